//! The step epilogue, after the pipeline of a training step: gradient sync and the optimizer. Two ranks of a pipeline
//! that hold the same weight sum its gradients first, then the data-parallel replicas sum theirs, then the optimizer
//! steps. From it follow the step time, the tokens per second and the MFU.
//!
//! Gradients that are reduced once, after the last microbatch, overlap with nothing. Gradients that are reduced after
//! each microbatch ([`ReduceGradients`]) overlap with the ops that follow, one reduction after the other; only what
//! is left after the last op counts. A reduction begins at the end of the op that made its gradients, so a step is at
//! most one reduction longer than with reductions of single layers during the backward. The slowdown of ops by a
//! network that is busy meanwhile does not count. Gradients that are reduced once may overlap, too: those of a stage with
//! its last backward, in the buckets of a layer that frameworks have, and with what follows it
//! ([`Layout::overlap_grad_reduce`]); and so may the gathering of updated weights, with what is before a stage's first
//! forward has ended ([`Layout::overlap_param_gather`]). With ZeRO 3 the gathers of weights for each microbatch are part of
//! its jobs' times.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::base::units::{Bytes, Nanos};
use crate::estimate::memory::StaticBytes;
use crate::graph::layout::{Layout, ReduceGradients};
use crate::hardware::cluster::Link;
use crate::hardware::cost::{self, COLLECTIVE_PER_MILLE};
use crate::problem::Objective;
use crate::problem::op::OpKind;
use crate::simulate::timeline::{Span, Timeline};
use crate::spec::ModelWork;

/// The epilogue of one rank: what follows its last op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RankEpilogue {
    /// Gradient sync: with another rank of the pipeline that has the same weights, and over data-parallel replicas,
    /// without the reductions after each microbatch; and the all-gather of weights that are updated in shards.
    pub reduce_ns: Nanos,
    /// The optimizer's step.
    pub optimizer_ns: Nanos,
}

/// The epilogue of each step of a model's pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StepEpilogue {
    /// What follows each rank's last op.
    pub tails: Vec<RankEpilogue>,
    /// The reduction of one microbatch's gradients over replicas, for each stage; 0 where they are reduced once per
    /// step.
    pub reduces_ns: Vec<Nanos>,
    /// Collectives of each stage that overlap with its ops; empty where none do.
    pub overlapped: Vec<Overlapped>,
}

/// Collectives of a stage, once per step, that overlap with ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Overlapped {
    /// The reduction of its gradients, from the start of its last backward on.
    pub reduce_ns: Nanos,
    /// The gathering of its weights, from the start of the step on.
    pub gather_ns: Nanos,
}

/// A whole step of a schedule, with communication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From the first op to the end of the last rank's optimizer.
    pub step_ns: Nanos,
    /// Tokens per second of all replicas.
    pub tokens_per_s: f64,
    /// Model FLOPs utilization: the operations that the model needs, over those that its devices could do in that time
    /// (arXiv:2204.02311 §4.1). Recomputation does not count.
    pub mfu: f64,
}

/// A whole training: equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Its tokens.
    pub tokens: u64,
    /// Its steps; the last one may have fewer tokens.
    pub steps: u64,
    /// Their time in seconds, without checkpoints, evaluation and failures.
    pub seconds: f64,
    /// The time of all devices together, in hours.
    pub device_hours: f64,
}

impl Training {
    /// The training of `work` in steps of `step_ns`, where it says of how many tokens.
    pub fn of(work: &ModelWork, step_ns: Nanos) -> Option<Training> {
        let tokens = work.tokens?;
        let steps = tokens.div_ceil(work.step_tokens().max(1));
        let seconds = steps as f64 * (step_ns as f64 / 1e9);
        Some(Training { tokens, steps, seconds, device_hours: seconds / 3600.0 * work.devices() as f64 })
    }

    /// The time in words: `54.2 days`.
    pub fn time(&self) -> String {
        const UNITS: [(f64, &str); 3] = [(86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")];
        let longer = UNITS.into_iter().find(|(unit, _)| self.seconds >= 1.5 * unit);
        let (unit, name) = longer.unwrap_or((1.0, "seconds"));
        format!("{} {name}", in_digits(self.seconds / unit))
    }
}

/// A training in words: `14.8 T tokens in 235244 steps: 54.2 days, 2.66 million device-hours`.
impl fmt::Display for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.tokens as f64;
        let tokens = match self.tokens {
            1_000_000_000_000.. => format!("{} T", in_digits(tokens / 1e12)),
            1_000_000_000.. => format!("{} B", in_digits(tokens / 1e9)),
            tokens => tokens.to_string(),
        };
        let hours = match self.device_hours {
            hours if hours >= 1e6 => format!("{} million", in_digits(hours / 1e6)),
            hours => in_digits(hours),
        };
        let steps = if self.steps == 1 { "step" } else { "steps" };
        write!(f, "{tokens} tokens in {} {steps}: {}, {hours} device-hours", self.steps, self.time())
    }
}

/// With three digits, or all digits before the point.
fn in_digits(number: f64) -> String {
    match number {
        number if number >= 100.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}

/// Replicas of weights, in sharding groups of neighbours.
pub(crate) struct Copies {
    /// Replicas in a group.
    pub sharers: u64,
    /// The links within a group.
    pub within: Link,
    /// Groups.
    groups: u64,
    /// The links between replicas with the same shard.
    between: Link,
}

/// The epilogue of a rank that holds `dense` and, of experts, `experts`, both without ZeRO.
pub fn tail(work: &ModelWork, dense: &StaticBytes, experts: &StaticBytes) -> RankEpilogue {
    let layout = &work.layout;
    let [of_dense, of_experts] = &copies_of(work);
    let mut tail = RankEpilogue::default();
    for (bytes, copies) in [(dense, of_dense), (experts, of_experts)] {
        if bytes.trained == 0 {
            continue;
        }
        tail.reduce_ns = tail.reduce_ns.saturating_add(copies.reduce(bytes, layout));
        let moved = moved_by_update(bytes);
        let share = if layout.zero > 0 { moved.div_ceil(copies.sharers) } else { moved };
        let measured = work.profile.as_ref().and_then(|profile| profile.update_time(work.dtype, share, &work.device));
        let update = measured.unwrap_or_else(|| cost::traffic_time(share, &work.device));
        let update = update.max(across(bytes, copies.sharers, work));
        // Each device quantizes all of its weights that train, in one pass.
        let quantized = match bytes.copies_again {
            0 => 0,
            copies => cost::traffic_time(bytes.trained.saturating_add(copies), &work.device),
        };
        // Whole matrices go to replicas, each in turn.
        let products = bytes.update_flops.div_ceil(if layout.zero > 0 { copies.sharers.into() } else { 1 });
        let update = update.saturating_add(cost::matmul_time(products, &work.device));
        tail.optimizer_ns = tail.optimizer_ns.saturating_add(update).saturating_add(quantized);
    }
    tail
}

/// The time to read the optimizer state of `bytes` from host memory, of which each of `sharers` may have a shard; 0
/// where the state is on the device. The write overlaps the read: links between host and device carry both ways at
/// once.
fn across(bytes: &StaticBytes, sharers: u64, work: &ModelWork) -> Nanos {
    if !work.layout.offload_optimizer {
        return 0;
    }
    let state = bytes.optimizer.saturating_add(bytes.master_weights);
    let share = if work.layout.zero > 0 { state.div_ceil(sharers) } else { state };
    work.device.host_link().time(share)
}

/// The sum of gradients of `bytes` between `members` ranks of a pipeline: an all-reduce once per step, before that over
/// replicas. With sharded gradients each replica sums its shard.
pub fn sum_between(work: &ModelWork, bytes: Bytes, members: u64, link: &Link) -> Nanos {
    let layout = &work.layout;
    let bytes = if layout.zero >= 2 { bytes.div_ceil(layout.sharers(layout.copies())) } else { bytes };
    match around(bytes, members).saturating_mul(2) {
        0 => 0,
        sent => cost::collective_time(sent, link, COLLECTIVE_PER_MILLE),
    }
}

/// Bytes that the optimizer's step moves: it reads gradient, moments and the weight (or its f32 copy), and writes all
/// but the gradient.
pub fn moved_by_update(bytes: &StaticBytes) -> Bytes {
    let state = bytes.optimizer.saturating_add(bytes.master_weights);
    bytes.gradients.saturating_add(bytes.trained).saturating_add(state.saturating_mul(2))
}

/// The replicas of a rank, and those of its experts. The distance between replicas is the TP degree; between replicas
/// of an expert it is the number of devices that share the layer's experts. The replicas of a group are neighbours.
pub(crate) fn copies_of(work: &ModelWork) -> [Copies; 2] {
    let (layout, nodes) = (&work.layout, work.nodes());
    let [tensor, expert] = [layout.form.tensor, layout.form.expert].map(|ways| u64::from(ways.max(1)));
    let sharing = u64::from(layout.form.expert_ways()).saturating_mul(expert);
    [(layout.copies(), tensor), (layout.expert_copies(), sharing)].map(|(copies, apart)| {
        let sharers = layout.sharers(copies);
        let groups = copies.div_ceil(sharers);
        let (within, between) =
            (nodes.in_rings(sharers, apart), nodes.in_rings(groups, apart.saturating_mul(sharers)));
        Copies { sharers, within, groups, between }
    })
}

/// Bytes that each of `copies` sends so that `bytes` go around a ring once.
fn around(bytes: Bytes, copies: u64) -> Bytes {
    let sent = (u128::from(bytes) * u128::from(copies - 1)).div_ceil(u128::from(copies));
    Bytes::try_from(sent).unwrap_or(Bytes::MAX)
}

impl Copies {
    /// Gradient sync in rings: an all-reduce, or a reduce-scatter of gradients and an all-gather of weights, which
    /// sends less; with ZeRO 3 the reduce-scatter alone. Where each microbatch's gradients are reduced, only the
    /// all-gather of weights is left.
    fn reduce(&self, bytes: &StaticBytes, layout: &Layout) -> Nanos {
        let gradients = match layout.reduces_gradients() {
            ReduceGradients::AfterAccumulation if !layout.overlap_grad_reduce => self.gradients_sent(bytes, layout),
            _ => [0; 2],
        };
        let weights = match layout.zero {
            1 | 2 if !layout.overlap_param_gather => around(bytes.trained, self.sharers),
            // Weights are whole, or stay sharded and the next step's jobs gather them.
            _ => 0,
        };
        self.time([gradients[0].saturating_add(weights), gradients[1]])
    }

    /// Bytes that each replica sends for its gradients or its shard of them: within its group, and between groups.
    fn gradients_sent(&self, bytes: &StaticBytes, layout: &Layout) -> [Bytes; 2] {
        let once = around(bytes.gradients, self.sharers);
        match layout.zero {
            0 => [once.saturating_mul(2), 0],
            _ => [once, around(bytes.gradients.div_ceil(self.sharers), self.groups).saturating_mul(2)],
        }
    }

    /// The all-gather of `bytes` within a group.
    pub fn gather(&self, bytes: Bytes) -> Nanos {
        self.time([around(bytes, self.sharers), 0])
    }

    /// Collectives in which a copy sends so much within its group, and between groups.
    fn time(&self, sent: [Bytes; 2]) -> Nanos {
        let links = [&self.within, &self.between];
        let each = sent.iter().zip(links).filter(|(sent, _)| **sent > 0);
        each.fold(0, |time, (sent, link)| {
            Nanos::saturating_add(time, cost::collective_time(*sent, link, COLLECTIVE_PER_MILLE))
        })
    }
}

/// The reduction of one microbatch's gradients of a stage that holds `dense` and, of experts, `experts`; 0 where
/// gradients are reduced once per step.
pub fn reduce_each(work: &ModelWork, dense: &StaticBytes, experts: &StaticBytes) -> Nanos {
    let layout = &work.layout;
    if layout.reduces_gradients() == ReduceGradients::AfterAccumulation {
        return 0;
    }
    let [of_dense, of_experts] = copies_of(work);
    let time = |copies: Copies, bytes| copies.time(copies.gradients_sent(bytes, layout));
    time(of_dense, dense).saturating_add(time(of_experts, experts))
}

/// The collectives of a stage, once per step, that overlap with ops. It holds `dense` and, of experts, `experts`.
pub fn overlapped(work: &ModelWork, dense: &StaticBytes, experts: &StaticBytes) -> Overlapped {
    let layout = &work.layout;
    let both = || [dense, experts].into_iter().zip(copies_of(work)).filter(|(bytes, _)| bytes.trained > 0);
    let reduces = layout.overlap_grad_reduce && layout.reduces_gradients() == ReduceGradients::AfterAccumulation;
    let gathers = layout.overlap_param_gather && matches!(layout.zero, 1 | 2);
    let sum = |wanted: bool, time: &dyn Fn((&StaticBytes, Copies)) -> Nanos| {
        both().filter(|_| wanted).map(time).fold(0, Nanos::saturating_add)
    };
    Overlapped {
        reduce_ns: sum(reduces, &|(bytes, copies)| copies.time(copies.gradients_sent(bytes, layout))),
        gather_ns: sum(gathers, &|(bytes, copies)| copies.gather(bytes.trained)),
    }
}

/// When reductions that begin with the last backward of each stage have ended, one after the other.
fn end_of_reductions(row: &[Span], overlapped: &[Overlapped]) -> Nanos {
    let mut last: Vec<&Span> = Vec::new();
    let backwards = row.iter().rev().filter(|span| matches!(span.op.kind(), OpKind::W | OpKind::BW));
    for span in backwards {
        if !last.iter().any(|seen| seen.op.stage() == span.op.stage()) {
            last.push(span);
        }
    }
    last.iter().rev().fold(0, |network: Nanos, span| {
        let takes = overlapped.get(span.op.stage()).map_or(0, |stage| stage.reduce_ns);
        network.max(span.start_ns).saturating_add(takes)
    })
}

/// By how much gathered weights put off the ops of `row`, in a step that begins at `first`: a stage's come one layer after
/// the other, and its first forward may end when the last one is there.
fn put_off(row: &[Span], overlapped: &[Overlapped], first: Nanos) -> Nanos {
    let (mut seen, mut network, mut put_off): (Vec<usize>, Nanos, Nanos) = (Vec::new(), 0, 0);
    for span in row.iter().filter(|span| span.op.kind() == OpKind::F) {
        let stage = span.op.stage();
        if !seen.contains(&stage) {
            seen.push(stage);
            network = network.saturating_add(overlapped.get(stage).map_or(0, |of| of.gather_ns));
            put_off = put_off.max(network.saturating_sub(span.end_ns.saturating_sub(first)));
        }
    }
    put_off
}

/// The time at which the last op of `row` and all reductions that overlap it have ended; `reduces` has the reduction
/// of each stage.
fn end_of_row(row: &[Span], reduces: &[Nanos]) -> Nanos {
    let mut network: Nanos = 0;
    for span in row.iter().filter(|span| matches!(span.op.kind(), OpKind::W | OpKind::BW)) {
        let takes = reduces.get(span.op.stage()).copied().unwrap_or(0);
        if takes > 0 {
            network = network.max(span.end_ns).saturating_add(takes);
        }
    }
    network.max(row.last().map_or(0, |span| span.end_ns))
}

impl StepEpilogue {
    /// From the first op of `timeline` to the end of the last optimizer step.
    pub fn step_ns(&self, timeline: &Timeline) -> Nanos {
        self.cost_ns(timeline, Objective::Makespan)
    }

    /// The `objective` of `timeline` with its epilogue: a rank's span ends with its optimizer step.
    pub fn cost_ns(&self, timeline: &Timeline, objective: Objective) -> Nanos {
        let starts = || timeline.rows.iter().map(|row| row.first().map(|span| span.start_ns));
        let first = starts().flatten().min().unwrap_or(0);
        let epilogue = timeline.rows.iter().zip(&self.tails).map(|(row, tail)| {
            let mut end = end_of_row(row, &self.reduces_ns);
            if !self.overlapped.is_empty() {
                end = end.max(end_of_reductions(row, &self.overlapped));
                end = end.saturating_add(put_off(row, &self.overlapped, first));
            }
            end.saturating_add(tail.reduce_ns).saturating_add(tail.optimizer_ns)
        });
        let spans = epilogue.zip(starts()).map(|(end, start)| match objective {
            Objective::Makespan => end.saturating_sub(first),
            Objective::LongestSpan => end.saturating_sub(start.unwrap_or(first)),
        });
        spans.max().unwrap_or(0)
    }

    /// The shortest epilogue of any rank.
    pub fn least_tail_ns(&self) -> Nanos {
        self.tails.iter().map(|tail| tail.reduce_ns.saturating_add(tail.optimizer_ns)).min().unwrap_or(0)
    }
}

impl Step {
    /// A step of `step_ns` on `ranks` ranks, for which the model needs `step_flops` operations.
    pub fn taking(work: &ModelWork, step_flops: u128, ranks: usize, step_ns: Nanos) -> Step {
        let seconds = step_ns.max(1) as f64 / 1e9;
        let tokens = work.step_tokens() as f64;
        let could = ranks as f64 * work.device.matmul_flops as f64 * seconds;
        Step {
            step_ns,
            tokens_per_s: tokens / seconds,
            mfu: if could > 0.0 { step_flops as f64 / could } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::derive::{Derived, derive};
    use crate::hardware::cost::Load;
    use crate::hardware::profile::{Profile, Signature};
    use crate::model::Dtype;
    use crate::plan::Plan;
    use crate::plan::planner;
    use crate::problem::placement::Placement;
    use crate::schedule;
    use crate::spec::{Spec, Work};
    use alloc::format;
    use alloc::sync::Arc;

    const SPEC: &str = "[model]\nname = \"llama-2-7b\"\n[cluster]\ndevice = \"h100\"\n[training]\nmicrobatches = 16\n\
                        [memory]\nlimit_bytes = \"900 GB\"\n[parallel]\npipeline = 4\n";

    fn step(parallel: &str) -> (ModelWork, Derived, Step) {
        let spec = Spec::read(&format!("{SPEC}{parallel}")).unwrap_or_else(|error| panic!("{error}"));
        let answer = planner::answer(&spec, &schedule::find("1f1b").unwrap()).unwrap();
        let Work::Model(work) = spec.work else { panic!("a model") };
        let derived = answer.case.derived.unwrap();
        let step = Step::taking(&work, derived.step_flops, 4, derived.epilogue.step_ns(&answer.timeline));
        (work, derived, step)
    }

    /// Llama 2: 2 T tokens in steps of 4 M (arXiv:2307.09288 §2.2) are half a million of them.
    #[test]
    fn a_training_is_all_its_steps() {
        let (mut work, ..) = step("data = 8\n");
        assert_eq!(Training::of(&work, 1), None, "nobody said of how many tokens");
        work.tokens = Some(2_000_000_000_000);
        (work.microbatch_size, work.sequence) = (8, 4096);
        let whole = Training::of(&work, 2_000_000_000).expect("it is said");
        assert_eq!((work.step_tokens(), whole.steps), (4_194_304, 476_838));
        assert!((whole.seconds - 953_676.0).abs() < 1e-6);
        // Each of 32 devices for eleven days.
        assert!((whole.device_hours - 32.0 * 953_676.0 / 3600.0).abs() < 1e-6, "{whole:?}");
        assert_eq!(whole.to_string(), "2.00 T tokens in 476838 steps: 11.0 days, 8477 device-hours");
        let second = Training { tokens: 500_000, steps: 1, seconds: 1.25, device_hours: 2_664_000.0 };
        assert_eq!(second.to_string(), "500000 tokens in 1 step: 1.25 seconds, 2.66 million device-hours");
    }

    #[test]
    fn a_step_is_its_pipeline_and_its_tail() {
        let (work, derived, alone) = step("");
        assert!(derived.epilogue.tails.iter().all(|tail| tail.reduce_ns == 0 && tail.optimizer_ns > 0));
        // 6 operations a token and parameter, and attention: at least that share of the rate.
        let rate = 4.0 * work.device.matmul_flops as f64;
        assert!(alone.mfu > 6.0 * 6.6e9 * alone.tokens_per_s / rate && alone.mfu < 0.7, "{alone:?}");

        let (_, copied, eight) = step("data = 8");
        assert!(copied.epilogue.tails.iter().all(|tail| tail.reduce_ns > 0));
        assert!(eight.step_ns > alone.step_ns && eight.tokens_per_s > 7.0 * alone.tokens_per_s);
        assert!(eight.mfu < alone.mfu, "the same work a device, and a reduction");
        let (_, sharded, _) = step("data = 8\nzero = 1");
        for (plain, sharded) in copied.epilogue.tails.iter().zip(&sharded.epilogue.tails) {
            assert!(sharded.reduce_ns < plain.reduce_ns, "bf16 weights come back instead of f32 gradients");
            assert!(sharded.optimizer_ns < plain.optimizer_ns);
        }
    }

    /// The ends of a pipeline of four ranks of eight devices, a node each.
    fn epilogue(model: &str, placement: Placement, parallel: &str) -> (Derived, Link) {
        let head = "[cluster]\ndevice = \"h100\"\n[training]\nmicrobatches = 16\n[memory]\nlimit_bytes = \"900 GB\"\n\
                    [parallel]\npipeline = 4\ntensor = 8\n";
        let spec = Spec::read(&format!("{model}\n{head}{parallel}")).unwrap_or_else(|error| panic!("{error}"));
        let Work::Model(work) = spec.work else { panic!("a model") };
        let chunks = if placement == Placement::V { 2 } else { 1 };
        (derive(&work, placement, chunks).unwrap_or_else(|faults| panic!("{faults}")), work.node_link)
    }

    /// Going two ways, each rank of a pair sends the other half of the gradients of both of their stages and gets the
    /// rest of the sum: as many bytes as they have.
    #[test]
    fn going_two_ways_stages_are_summed_between_their_ranks() {
        let model = "[model]\nname = \"llama-2-7b\"";
        let (one_way, link) = epilogue(model, Placement::Linear, "");
        let (two_ways, _) = epilogue(model, Placement::Bidirectional, "");
        assert!(one_way.epilogue.tails.iter().all(|tail| tail.reduce_ns == 0));
        for (rank, tail) in two_ways.epilogue.tails.iter().enumerate() {
            let held = one_way.static_bytes[rank].gradients + one_way.static_bytes[3 - rank].gradients;
            assert_eq!(two_ways.static_bytes[rank].gradients, held);
            assert_eq!(tail.reduce_ns, cost::collective_time(held, &link, COLLECTIVE_PER_MILLE), "rank {rank}");
        }
        // Before what copies sum.
        let (copied, _) = epilogue(model, Placement::Bidirectional, "data = 8");
        let (one_way, _) = epilogue(model, Placement::Linear, "data = 8");
        for (rank, tail) in copied.epilogue.tails.iter().enumerate() {
            let apart = one_way.epilogue.tails[rank].reduce_ns + one_way.epilogue.tails[3 - rank].reduce_ns;
            let over = two_ways.epilogue.tails[rank].reduce_ns;
            assert!(tail.reduce_ns.abs_diff(apart + over) < 20_000, "rank {rank}: {tail:?} {apart} {over}");
        }
    }

    /// The table of a tied model is summed between the first rank and the last, but where one rank holds both ends.
    #[test]
    fn a_tied_table_is_summed_between_the_ends() {
        let model = |tied: bool| format!("[model]\nname = \"llama-2-7b\"\ntied = {tied}");
        let reduces = |tied: bool, placement: Placement| {
            let (derived, link) = epilogue(&model(tied), placement, "");
            (derived.epilogue.tails.iter().map(|tail| tail.reduce_ns).collect::<Vec<_>>(), link)
        };
        let (tied, link) = reduces(true, Placement::Linear);
        // 32,000 tokens by 4096, an eighth on each device, in f32.
        let table = cost::collective_time(32_000 * 4096 / 8 * 4, &link, COLLECTIVE_PER_MILLE);
        assert_eq!(tied, [table, 0, 0, table]);
        assert_eq!(reduces(false, Placement::Linear).0, [0; 4]);
        assert_eq!(reduces(true, Placement::V).0, [0; 4]);
        // Going two ways both ends hold it anyway, once.
        let (two_ways, untied) =
            (reduces(true, Placement::Bidirectional).0, reduces(false, Placement::Bidirectional).0);
        let latency = link.latency_ns;
        assert!(untied[0].abs_diff(two_ways[0] + table - latency) <= 2, "{untied:?} {two_ways:?} {table}");
        assert_eq!(two_ways[1], untied[1]);
    }

    /// A measured update counts for weights in its format, of whatever number: what takes three times its traffic in
    /// one model does in another.
    #[test]
    fn the_optimizer_takes_what_was_measured() {
        let (work, derived, _) = step("");
        let measured = |dtype| {
            let mut profile = Profile::new("test");
            let load = Load { bytes: 1 << 30, ..Load::default() };
            profile.insert(Signature::of_update(dtype, 1 << 25), load, 3 * cost::traffic_time(1 << 30, &work.device));
            let profile = Profile::of_json(&profile.to_json()).unwrap_or_else(|error| panic!("{error}"));
            let work = ModelWork { profile: Some(Arc::new(profile)), ..work.clone() };
            derive(&work, Placement::Linear, 1).unwrap().epilogue.tails
        };
        assert_eq!(measured(Dtype::F32), derived.epilogue.tails, "of another format");
        for (measured, estimated) in measured(Dtype::Bf16).iter().zip(&derived.epilogue.tails) {
            let ratio = measured.optimizer_ns as f64 / estimated.optimizer_ns as f64;
            assert!((ratio - 3.0).abs() < 1e-6, "{measured:?} {estimated:?}");
        }
    }

    /// A file has no profile, but the times that it gave: who opens it elsewhere sees the same step. One of an
    /// earlier planner has none of them, and its step is estimated.
    #[test]
    fn a_plan_file_keeps_what_ends_its_steps() {
        let (work, derived, _) = step("data = 8\nzero = 2");
        let mut profile = Profile::new("test");
        let load = Load { bytes: 1 << 30, ..Load::default() };
        profile.insert(
            Signature::of_update(Dtype::Bf16, 1 << 25),
            load,
            9 * cost::traffic_time(1 << 30, &work.device),
        );
        let work = ModelWork { profile: Some(Arc::new(profile)), ..work };
        let spec = Spec { work: Work::Model(work), ..Spec::read(SPEC).unwrap() };
        let plan = planner::plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"));
        let read = Plan::from_json(&plan.to_json()).unwrap_or_else(|error| panic!("{error}"));
        let epilogue = read.epilogue.clone().expect("of a model");
        assert_eq!(epilogue.reduces_ns, derived.epilogue.reduces_ns);
        assert!(epilogue.tails.iter().zip(&derived.epilogue.tails).all(|(tail, estimated)| {
            tail.optimizer_ns > 8 * estimated.optimizer_ns && tail.reduce_ns == estimated.reduce_ns
        }));
        assert_eq!(read.step(), plan.step());
        let old = Plan { epilogue: None, ..read };
        assert_eq!(old.step_epilogue(), Some(derived.epilogue));
        assert!(old.step().unwrap().step_ns < plan.step().unwrap().step_ns);
    }

    /// An all-reduce for each microbatch, or a reduce-scatter and at the end one gather of weights; ZeRO 2 does that by
    /// itself, and is as fast as ZeRO 1 where it keeps the gradients until the end. ZeRO 3 has no gather at the end.
    #[test]
    fn reducing_each_microbatch_goes_beside_the_ops_that_follow() {
        let [after, each] =
            ["after-accumulation", "each-microbatch"].map(|name| format!("reduce_gradients = \"{name}\""));
        let of = |parallel: &str| step(&format!("data = 8\n{parallel}"));
        let tails = |parallel: &str| of(parallel).1.epilogue.tails;
        let reduces = |parallel: &str| of(parallel).1.epilogue.reduces_ns;
        assert_eq!(tails(&after), tails(""));
        assert_eq!(reduces(""), [0; 4]);
        let once: Vec<Nanos> = tails("").iter().map(|tail| tail.reduce_ns).collect();
        assert_eq!(reduces(&each), once, "one stage a rank: each the whole all-reduce");
        assert!(tails(&each).iter().all(|tail| tail.reduce_ns == 0));
        assert_eq!(reduces(&format!("zero = 1\n{each}")), reduces("zero = 2"));
        assert_eq!(tails(&format!("zero = 1\n{each}")), tails("zero = 2"));
        assert_eq!(tails(&format!("zero = 2\n{after}")), tails("zero = 1"));
        for (scatter, all) in reduces("zero = 3").iter().zip(&once) {
            // Half of an all-reduce, but for the latency that both have.
            assert!(*scatter >= all / 2 && *scatter < all / 2 + all / 100, "{scatter} of {all}");
        }
        assert!(tails("zero = 3").iter().all(|tail| tail.reduce_ns == 0));
        // An op takes longer than a reduction here, so only the last one is left when the row has ended: no less than
        // where all is reduced at the end, and no more than one reduction longer.
        let (at_end, beside) = (of(&after).2.step_ns, of(&each).2.step_ns);
        assert!(at_end <= beside && beside <= at_end + once.iter().max().unwrap(), "{at_end} {beside}");
    }

    /// Groups of eight neighbours, a node each, hold and gather what eight copies do. Four groups sum their shares
    /// besides, by the links between nodes: an all-reduce of an eighth of the gradients.
    #[test]
    fn groups_of_copies_share_out_and_sum_between_them() {
        let whole = step("data = 8").1.static_bytes;
        for zero in 1..=3 {
            let (work, grouped, _) = step(&format!("data = 32\nzero = {zero}\nshard = 8"));
            let (_, one, _) = step(&format!("data = 8\nzero = {zero}"));
            assert_eq!(grouped.static_bytes, one.static_bytes, "zero {zero}");
            assert_eq!(grouped.statement.stages, one.statement.stages, "zero {zero}");
            let link = work.nodes().in_rings(4, 8);
            assert_eq!(link.bytes_per_s, work.node_link.bytes_per_s);
            for (rank, whole) in whole.iter().enumerate() {
                let share = whole.gradients.div_ceil(8);
                let more = cost::collective_time(2 * (3 * share).div_ceil(4), &link, COLLECTIVE_PER_MILLE);
                let of =
                    |derived: &Derived| [derived.epilogue.tails[rank].reduce_ns, derived.epilogue.reduces_ns[rank]];
                let [at_end, each] = if zero == 1 { [more, 0] } else { [0, more] };
                let [end_of_one, each_of_one] = of(&one);
                assert_eq!(of(&grouped), [end_of_one + at_end, each_of_one + each], "zero {zero}, rank {rank}");
                let optimizer = |derived: &Derived| derived.epilogue.tails[rank].optimizer_ns;
                assert_eq!(optimizer(&grouped), optimizer(&one));
            }
        }
        // One group is all of them, and without ZeRO there is nothing to share out.
        assert_eq!(step("data = 8\nzero = 1\nshard = 8").1, step("data = 8\nzero = 1").1);
        assert_eq!(step("data = 8\nshard = 4").1, step("data = 8").1);
    }

    /// Reductions go one after the other, each after its op: with ops of 10 and reductions of 4, the last ends 4
    /// behind the row; with reductions of 25, three of them count from the first op's end.
    #[test]
    fn what_is_left_of_the_reductions_counts() {
        let span = |kind, microbatch: usize| {
            let start_ns = 20 * microbatch as u64 + if kind == OpKind::F { 0 } else { 10 };
            Span { op: crate::problem::op::Op::new(0, kind, microbatch), start_ns, end_ns: start_ns + 10 }
        };
        let row: Vec<Span> =
            (0..3).flat_map(|microbatch| [span(OpKind::F, microbatch), span(OpKind::BW, microbatch)]).collect();
        assert_eq!(end_of_row(&row, &[0]), 60);
        assert_eq!(end_of_row(&row, &[4]), 64);
        assert_eq!(end_of_row(&row, &[25]), 20 + 3 * 25);
        assert_eq!(end_of_row(&[], &[4]), 0);
    }
}
