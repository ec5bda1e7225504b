//! What ends a training step beside the pipeline: gradients are summed over copies, and the optimizer steps. So a step's
//! time, its tokens a second and the share of the devices' rate that the model gets.
//!
//! Gradients are reduced once, after the last microbatch, or after each
//! ([`ReduceGradients`](crate::layout::ReduceGradients)), and nothing of it is hidden under ops: an upper bound on a step's
//! end. Where copies share weights out (ZeRO 3), gathering them for each microbatch is part of its jobs' times.

use alloc::vec::Vec;

use crate::cluster::Link;
use crate::cost::{self, COLLECTIVE_PER_MILLE};
use crate::derive::{Derived, derive};
use crate::layout::Layout;
use crate::memory::StaticBytes;
use crate::plan::Plan;
use crate::spec::{ModelWork, Work};
use crate::timeline::Timeline;
use crate::units::{Bytes, Nanos};

/// What follows a rank's last op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tail {
    /// Summing gradients over the copies of the pipeline, and handing weights back where one copy steps for all.
    pub reduce_ns: Nanos,
    /// The optimizer's step.
    pub optimizer_ns: Nanos,
}

/// A whole step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From the first op to the end of the last rank's optimizer.
    pub step_ns: Nanos,
    /// Tokens of all copies, a second.
    pub tokens_per_s: f64,
    /// Model FLOPs utilisation: the operations that the model needs, over what its devices could do in that time
    /// (arXiv:2204.02311 §4.1). Work done twice to save memory does not count.
    pub mfu: f64,
}

/// The tail of a rank that holds `dense` and, of experts, `experts`, both before anything is shared out, and each stage of
/// which works on `microbatches`.
pub fn tail(work: &ModelWork, dense: &StaticBytes, experts: &StaticBytes, microbatches: u64) -> Tail {
    let layout = &work.layout;
    let link = copies_link(work);
    let parts = [(dense, layout.copies()), (experts, layout.expert_copies())];
    let mut tail = Tail::default();
    for (bytes, copies) in parts {
        if bytes.weights == 0 {
            continue;
        }
        tail.reduce_ns = tail.reduce_ns.saturating_add(reduce(bytes, copies, layout, microbatches, link));
        // Gradient, moments and the weight (or its f32 copy) are read; all but the gradient are written.
        let state = bytes.optimizer.saturating_add(bytes.master_weights);
        let moved = bytes.gradients.saturating_add(bytes.weights).saturating_add(state.saturating_mul(2));
        let share = if layout.zero > 0 { moved.div_ceil(copies) } else { moved };
        tail.optimizer_ns = tail.optimizer_ns.saturating_add(cost::traffic_time(share, &work.device));
    }
    tail
}

/// What joins the copies of a rank. They are next to each other, so a rank that spans more than a node has all of it
/// counted as leaving it.
pub(crate) fn copies_link(work: &ModelWork) -> &Link {
    let spans_nodes = work.layout.devices_per_rank() > u64::from(work.devices_per_node);
    if spans_nodes { &work.node_link } else { &work.link }
}

/// Handing `bytes`, of which each of `copies` holds a part, to all of them, in a ring.
pub(crate) fn gather_time(bytes: Bytes, copies: u64, link: &Link) -> Nanos {
    if copies <= 1 || bytes == 0 {
        return 0;
    }
    cost::collective_time(around(bytes, copies), link, COLLECTIVE_PER_MILLE)
}

/// What each of `copies` sends so that `bytes` go once around a ring.
fn around(bytes: Bytes, copies: u64) -> Bytes {
    let sent = (u128::from(bytes) * u128::from(copies - 1)).div_ceil(u128::from(copies));
    Bytes::try_from(sent).unwrap_or(Bytes::MAX)
}

/// In a ring: an all-reduce, or a reduce-scatter of gradients and an all-gather of weights, which sends less; with ZeRO 3
/// the reduce-scatter alone. Where each microbatch's gradients are reduced, weights are still gathered once.
fn reduce(bytes: &StaticBytes, copies: u64, layout: &Layout, microbatches: u64, link: &Link) -> Nanos {
    if copies <= 1 {
        return 0;
    }
    let time = |sent| cost::collective_time(sent, link, COLLECTIVE_PER_MILLE);
    let gradients = around(bytes.gradients, copies);
    let (second, again) = match layout.zero {
        0 => (gradients, gradients.saturating_mul(2)),
        1 | 2 => (around(bytes.weights, copies), gradients),
        // Weights stay shared out; the next step's jobs gather them.
        _ => (0, gradients),
    };
    let further = layout.reduces_gradients().times(microbatches).saturating_sub(1);
    time(gradients.saturating_add(second)).saturating_add(time(again).saturating_mul(further))
}

impl Step {
    /// The step that `timeline`, a schedule of `derived`'s problem, makes.
    pub fn of(work: &ModelWork, derived: &Derived, timeline: &Timeline) -> Step {
        let start = timeline.rows.iter().filter_map(|row| row.first()).map(|span| span.start_ns).min().unwrap_or(0);
        let ends = timeline.rows.iter().zip(&derived.tails).map(|(row, tail)| {
            let end = row.last().map_or(0, |span| span.end_ns);
            end.saturating_add(tail.reduce_ns).saturating_add(tail.optimizer_ns)
        });
        let ends: Vec<Nanos> = ends.collect();
        let step_ns = ends.into_iter().max().unwrap_or(0).saturating_sub(start);
        let seconds = step_ns.max(1) as f64 / 1e9;
        let sequences = u64::from(work.microbatches) * u64::from(work.microbatch_size);
        let tokens = sequences as f64 * f64::from(work.sequence) * f64::from(work.layout.data.max(1));
        let could = timeline.rows.len() as f64 * work.device.matmul_flops as f64 * seconds;
        Step {
            step_ns,
            tokens_per_s: tokens / seconds,
            mfu: if could > 0.0 { derived.step_flops() as f64 / could } else { 0.0 },
        }
    }
}

impl Plan {
    /// The step that this plan makes, where its spec is of a model.
    pub fn step(&self) -> Option<Step> {
        let Work::Model(work) = &self.spec.work else { return None };
        let derived = derive(work, self.problem.placement().clone(), self.problem.chunks()).ok()?;
        Some(Step::of(work, &derived, &self.timeline().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner;
    use crate::schedule;
    use crate::spec::Spec;
    use std::format;

    fn step(parallel: &str) -> (ModelWork, Derived, Step) {
        let text = format!(
            "[model]\nname = \"llama-2-7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n{parallel}\n\
             [training]\nmicrobatches = 16\n[memory]\nlimit_bytes = \"900 GB\""
        );
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
        let answer = planner::answer(&spec, &schedule::find("1f1b").unwrap()).unwrap();
        let Work::Model(work) = spec.work else { panic!("a model") };
        let derived = answer.case.derived.unwrap();
        let step = Step::of(&work, &derived, &answer.timeline);
        (work, derived, step)
    }

    #[test]
    fn a_step_is_its_pipeline_and_its_tail() {
        let (work, derived, alone) = step("");
        assert!(derived.tails.iter().all(|tail| tail.reduce_ns == 0 && tail.optimizer_ns > 0));
        // 6 operations a token and parameter, and attention: at least that share of the rate.
        let rate = 4.0 * work.device.matmul_flops as f64;
        assert!(alone.mfu > 6.0 * 6.6e9 * alone.tokens_per_s / rate && alone.mfu < 0.7, "{alone:?}");

        let (_, copied, eight) = step("data = 8");
        assert!(copied.tails.iter().all(|tail| tail.reduce_ns > 0));
        assert!(eight.step_ns > alone.step_ns && eight.tokens_per_s > 7.0 * alone.tokens_per_s);
        assert!(eight.mfu < alone.mfu, "the same work a device, and a reduction");
        let (_, sharded, _) = step("data = 8\nzero = 1");
        for (plain, sharded) in copied.tails.iter().zip(&sharded.tails) {
            assert!(sharded.reduce_ns < plain.reduce_ns, "bf16 weights come back instead of f32 gradients");
            assert!(sharded.optimizer_ns < plain.optimizer_ns);
        }
    }

    /// With 16 microbatches 16 all-reduces, or 16 reduce-scatters and one all-gather. ZeRO 2 does that by itself, and is
    /// as fast as ZeRO 1 where it keeps the gradients until the end.
    #[test]
    fn reducing_each_microbatch_counts_each_time() {
        let reduced = |parallel: &str| -> Vec<Nanos> {
            let (_, derived, _) = step(&format!("data = 8\n{parallel}"));
            derived.tails.iter().map(|tail| tail.reduce_ns).collect()
        };
        let [after, each] =
            ["after-accumulation", "each-microbatch"].map(|name| format!("reduce_gradients = \"{name}\""));
        let times = |ns: &[Nanos], times: u64| ns.iter().map(|ns| ns * times).collect::<Vec<_>>();
        assert_eq!(reduced(&after), reduced(""));
        assert_eq!(reduced(&each), times(&reduced(""), 16));
        let (once, often) = (reduced("zero = 1"), reduced("zero = 2"));
        assert_eq!(reduced(&format!("zero = 1\n{each}")), often);
        assert_eq!(reduced(&format!("zero = 2\n{after}")), once);
        // A reduce-scatter is half an all-reduce, but for the latency that both have; ZeRO 3 has nothing else.
        let scatters = reduced("zero = 3");
        for (rank, ((often, once), plain)) in often.iter().zip(&once).zip(reduced("")).enumerate() {
            let further = (often - once) / 15;
            assert_eq!(scatters[rank], 16 * further);
            assert!(further >= plain / 2 && further < plain / 2 + plain / 100, "{further} of {plain}");
        }
    }
}
