//! Whether a schedule of a model fits its devices: bytes by rank and kind, and what to change first where it does not.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::derive::{Derived, dealt_within_limit};
use crate::graph::form::{AttentionForm, Recompute};
use crate::layout::{Partition, RecomputeLayers, ReduceGradients};
use crate::memory::StaticBytes;
use crate::op::Op;
use crate::planner::{self, Answer};
use crate::problem::Problem;
use crate::schedule::{Absent, Published};
use crate::spec::{FIT, ModelWork, Spec, Work};
use crate::timeline::Timeline;
use crate::units::{Bytes, Nanos};

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMemory {
    /// The rank.
    pub rank: usize,
    /// What it holds throughout.
    pub fixed: StaticBytes,
    /// The most that its microbatches hold at once, beside what is fixed.
    pub activations: Bytes,
    /// The op during which that is.
    pub at: Option<Op>,
    /// When that op starts.
    pub at_ns: Nanos,
    /// Fixed and activations together.
    pub peak: Bytes,
    /// What it may hold.
    pub limit: Option<Bytes>,
}

impl RankMemory {
    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.limit.is_none_or(|limit| self.peak <= limit)
    }
}

/// The memory of every rank under `timeline`, a schedule of `problem`, which is `derived`'s.
pub fn by_rank(derived: &Derived, problem: &Problem, timeline: &Timeline) -> Vec<RankMemory> {
    let ranks = timeline.rows.iter().zip(&derived.static_bytes).enumerate();
    ranks
        .map(|(rank, (row, fixed))| {
            let (mut held, mut most, mut at) = (0, 0, None);
            // Ops that overlap hold their bytes together.
            for together in row.chunk_by(|a, b| b.start_ns < a.end_ns) {
                for span in together {
                    held += problem.cost(span.op.stage()).takes(span.op.kind());
                    if held > most {
                        (most, at) = (held, Some(span));
                    }
                }
                held -=
                    together.iter().map(|span| problem.cost(span.op.stage()).gives(span.op.kind())).sum::<Bytes>();
            }
            RankMemory {
                rank,
                fixed: *fixed,
                activations: most,
                at: at.map(|span| span.op),
                at_ns: at.map_or(0, |span| span.start_ns),
                peak: fixed.total().saturating_add(most),
                limit: problem.limit_bytes(rank),
            }
        })
        .collect()
}

/// One change of a spec, and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relief {
    /// The field to change, as in a spec.
    pub field: &'static str,
    /// Its value now.
    pub from: String,
    /// The value that is tried.
    pub to: String,
    /// The most bytes that a rank then holds.
    pub peak: Bytes,
    /// Whether every rank then fits.
    pub fits: bool,
    /// The cost of the schedule then, by the spec's objective. For a change of the microbatch's size, of as many
    /// sequences as before.
    pub cost_ns: Nanos,
}

/// What `published` needs for `spec` without regard to its limit: its bytes by rank beside the limit, and its cost.
///
/// # Errors
/// [`Absent`] where the costs are typed, so that there is nothing to explain, or where the schedule does not exist.
pub fn verdict(spec: &Spec, published: &Published) -> Result<(Answer, Vec<RankMemory>), Absent> {
    let Work::Model(work) = &spec.work else {
        return Err(Absent::because("bytes are explained for a model; these costs are typed"));
    };
    // What is left to the limit is settled under it; where nothing fits, all is computed again.
    let mut settled = work.clone();
    let mut fitted = None;
    if work.layout.recompute_layers == RecomputeLayers::Fit {
        match planner::case(spec, published) {
            Ok(planner::Case { fitted: Some(found), .. }) => {
                settled = found.applied_to(work);
                fitted = Some(found);
            }
            _ => {
                settled.layout.recompute_layers = RecomputeLayers::All;
                settled.layout.form.recompute = Recompute::Full;
            }
        }
    }
    let mut unlimited = ModelWork { limit_bytes: Some(UNLIMITED), ..settled };
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    if work.layout.partition == Partition::WithinLimit {
        // As dealt for the limit that is, and evenly where no deal keeps it.
        unlimited.layout.partition =
            dealt_within_limit(work, &placement, chunks).map_or(Partition::Balanced, Partition::ByHand);
    }
    let mut answer = planner::answer(&Spec { work: Work::Model(unlimited), ..spec.clone() }, published)?;
    answer.case.fitted = fitted;
    let Some(derived) = &answer.case.derived else {
        return Err(Absent::because("bytes are explained for a model; these costs are typed"));
    };
    let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
    let mut ranks = by_rank(derived, &answer.case.problem, &answer.timeline);
    ranks.iter_mut().for_each(|rank| rank.limit = Some(limit));
    Ok((answer, ranks))
}

/// Beyond what a plan can hold.
const UNLIMITED: Bytes = 1 << 53;

/// Single changes of `spec` that make `published` hold fewer bytes: those that then fit come first, each group from the
/// cheapest in time. Every one of them has been planned; none changes what is learnt but the last bits of sums.
///
/// # Errors
/// As [`verdict`].
pub fn reliefs(spec: &Spec, published: &Published) -> Result<Vec<Relief>, Absent> {
    let (_, ranks) = verdict(spec, published)?;
    let Work::Model(work) = &spec.work else { return Ok(Vec::new()) };
    let peak_now = ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
    let mut reliefs = Vec::new();
    for (field, from, to, changed) in changes(work) {
        let changed = Spec { work: Work::Model(changed), ..spec.clone() };
        // A change that no longer makes a problem is no relief.
        let Ok((answer, ranks)) = verdict(&changed, published) else { continue };
        let peak = ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
        if peak < peak_now {
            let fits = ranks.iter().all(RankMemory::fits);
            reliefs.push(Relief { field, from, to, peak, fits, cost_ns: answer.cost_ns() });
        }
    }
    reliefs.sort_by_key(|relief| (!relief.fits, relief.cost_ns, relief.peak));
    Ok(reliefs)
}

type Changed = (&'static str, String, String, ModelWork);

/// The single changes that may help.
fn changes(work: &ModelWork) -> Vec<Changed> {
    let mut changes = Vec::new();
    let mut add = |field, from: String, to: String, change: &dyn Fn(&mut ModelWork)| {
        let mut changed = work.clone();
        change(&mut changed);
        changes.push((field, from, to, changed));
    };
    let form = work.layout.form;
    let layers = &work.layout.recompute_layers;
    let now = match layers {
        RecomputeLayers::Each(choices) => RecomputeLayers::text_of(choices),
        RecomputeLayers::Fit => FIT.to_string(),
        _ => form.recompute.name().to_string(),
    };
    if *layers != RecomputeLayers::Fit {
        add("training.recompute", now.clone(), FIT.to_string(), &|work| {
            work.layout.recompute_layers = RecomputeLayers::Fit;
            work.layout.form.recompute = Recompute::None;
        });
        for recompute in [Recompute::Selective, Recompute::Cheap, Recompute::Full] {
            if recompute != form.recompute || *layers != RecomputeLayers::All {
                add("training.recompute", now.clone(), recompute.name().to_string(), &|work| {
                    work.layout.recompute_layers = RecomputeLayers::All;
                    work.layout.form.recompute = recompute;
                });
            }
        }
    }
    let partition = &work.layout.partition;
    if *partition != Partition::WithinLimit {
        let from = partition.name().map_or_else(|| "by hand".to_string(), ToString::to_string);
        add("parallel.partition", from, "within-limit".to_string(), &|work| {
            work.layout.partition = Partition::WithinLimit;
        });
    }
    if form.attention == AttentionForm::Materialised {
        let names = [AttentionForm::Materialised, AttentionForm::Flash].map(|form| form.name().to_string());
        let [from, to] = names;
        add("training.attention", from, to, &|work| work.layout.form.attention = AttentionForm::Flash);
    }
    if work.microbatch_size > 1 && work.microbatch_size.is_multiple_of(2) {
        let half = work.microbatch_size / 2;
        let to = format!("{half}, with twice the microbatches");
        add("training.microbatch_size", work.microbatch_size.to_string(), to, &|work| {
            work.microbatch_size = half;
            work.microbatches = work.microbatches.saturating_mul(2);
        });
    }
    if form.tensor > 1 && !form.sequence_parallel {
        add("parallel.sequence_parallel", "false".to_string(), "true".to_string(), &|work| {
            work.layout.form.sequence_parallel = true;
        });
    }
    let doubled = form.tensor.saturating_mul(2);
    let mut faults = Vec::new();
    let split = crate::graph::form::Form { tensor: doubled, ..form };
    split.find_faults(&work.model, work.sequence, "parallel", &mut faults);
    if faults.is_empty() {
        add("parallel.tensor", form.tensor.to_string(), format!("{doubled}, on twice the devices"), &|work| {
            work.layout.form.tensor = doubled;
        });
    }
    if work.layout.data > 1 {
        for zero in work.layout.zero + 1..=3 {
            add("parallel.zero", work.layout.zero.to_string(), zero.to_string(), &|work| work.layout.zero = zero);
        }
    }
    let (layout, each) = (&work.layout, ReduceGradients::EachMicrobatch);
    if layout.zero >= 2 && layout.copies() > 1 && layout.reduces_gradients() != each {
        let from = layout.reduces_gradients().name().to_string();
        add("parallel.reduce_gradients", from, each.name().to_string(), &|work| {
            work.layout.reduce_gradients = Some(each);
        });
    }
    let doubled = work.pipeline.saturating_mul(2);
    if doubled <= work.model.layers {
        add("parallel.pipeline", work.pipeline.to_string(), format!("{doubled}, on twice the devices"), &|work| {
            work.pipeline = doubled;
        });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;

    fn spec(memory: &str) -> Spec {
        let text = format!(
            "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 8\n\
             [training]\nmicrobatches = 16\nmicrobatch_size = 2\n[memory]\n{memory}"
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn what_does_not_fit_is_told_what_would() {
        let published = schedule::find("1f1b").unwrap();
        let spec = spec("limit_bytes = 60000000000");
        let (_, ranks) = verdict(&spec, &published).unwrap();
        // Stage 0 holds the most microbatches.
        assert!(!ranks[0].fits() && ranks[0].activations > ranks[7].activations);
        for rank in &ranks {
            assert_eq!(rank.peak, rank.fixed.total() + rank.activations);
        }
        let reliefs = reliefs(&spec, &published).unwrap();
        let first = reliefs.first().unwrap();
        assert!(first.fits, "{first:?}");
        assert!(reliefs.iter().any(|relief| relief.to == "full" && relief.fits));
        assert!(reliefs.windows(2).all(|pair| pair[0].fits >= pair[1].fits));
    }

    /// The same bytes as those that a plan is judged by.
    #[test]
    fn the_table_is_the_timeline_s() {
        for published in schedule::published() {
            let Ok((answer, ranks)) = verdict(&spec(""), published) else { continue };
            for rank in ranks {
                assert_eq!(
                    rank.peak,
                    answer.timeline.peak_bytes(&answer.case.problem, rank.rank),
                    "{}",
                    published.name
                );
            }
        }
    }
}
