//! ZB-auto (Qi et al., arXiv:2401.10241, §3.1), the rule of zero-bubble planners on a linear pipeline, for stages of any cost and
//! ranks of any limit: one round for each microbatch.
//!
//! 1. *Warm-up.* Stage by stage, as many forwards as memory holds, fewer on each later stage. They are at most as many as end
//!    before the first backward arrives, or, in a variant, as many as there is memory for.
//! 2. *Rounds.* In round `i` each stage takes at most one more forward and then the backward of microbatch `i`. In variants, a
//!    forward that the round does not need is delayed where the backward would wait for it, and made up for in a later round that
//!    has the time.
//! 3. *W* fills gaps: where it fits; where memory is full; and in a variant where it does not fit, but waiting would leave this
//!    rank idle for longer than any rank may be. That time is not known at first: it is the most that a rank has been idle so far.
//!    Then the rule runs again with the idle time of the worst rank.
//!
//! A list scheduler decides for one rank at one time, and cannot see that a gap costs nothing where another rank has a larger one.
//! This rule can.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, F, Flat, Rows, W, code};

/// The most runs of one variant: the first, and those that know the idle time of the one before.
const RUNS: usize = 3;

/// The decisions that the rule leaves open.
#[derive(Clone, Copy)]
struct Variant {
    /// Whether the warm-up may go on after the first backward could have run.
    deep: bool,
    /// By how many forwards the warm-up of a stage is shorter than that of the one before, at least.
    drop: usize,
    backward_first: BackwardFirst,
    /// Whether W may delay the op that it goes before.
    overlap: bool,
}

/// When a forward that a round does not need is delayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackwardFirst {
    Never,
    /// Where the backward has to wait for a rank that waits itself.
    BeforeLate,
    /// Where the backward has to wait.
    Always,
}

/// One rank, which has one stage.
#[derive(Clone, Default)]
struct Stage {
    free: u64,
    idle: u64,
    held: i64,
    /// Ops of each kind so far.
    done: [usize; 3],
    /// The bytes that a forward needs above those held: for itself, and for its backward and W after it.
    needs: i64,
    arrive_f: Vec<u64>,
    arrive_b: Vec<u64>,
}

/// Hands the orders of the rule to `offer`, except those over the limit; `ops` counts the ops run. An order that costs
/// more than `cutoff`, or later more than the answer of `offer`, is given up. There are none unless the problem is a
/// linear pipeline with a split backward.
pub(super) fn orders(flat: &Flat, ops: &mut u64, mut cutoff: u64, mut offer: impl FnMut(Rows) -> u64) {
    if flat.fused || flat.chains.len() != 1 || flat.lanes.len() != flat.ranks || flat.ranks < 2 {
        return;
    }
    for bits in 0..24 {
        let variant = Variant {
            deep: bits & 1 > 0,
            backward_first: [BackwardFirst::Never, BackwardFirst::BeforeLate, BackwardFirst::Always][bits / 8],
            overlap: bits & 2 > 0,
            drop: usize::from(bits & 4 == 0),
        };
        let (mut allowed, mut least) = (0, u64::MAX);
        for _ in 0..RUNS {
            let mut run = Run::new(flat, variant, allowed, cutoff);
            let done = run.finish();
            *ops += run.rows.iter().map(Vec::len).sum::<usize>() as u64;
            if !done || (0..flat.ranks).any(|rank| !flat.is_valid_row(rank, &run.rows[rank])) {
                break;
            }
            let worst = run.stages.iter().map(|stage| stage.idle).max().unwrap_or(0);
            if worst >= least {
                break;
            }
            least = worst;
            allowed = worst;
            cutoff = offer(run.rows);
            if !variant.overlap {
                break;
            }
        }
    }
}

struct Run<'a> {
    flat: &'a Flat,
    variant: Variant,
    /// Idle time that does no harm.
    allowed: u64,
    /// The limit on work plus idle time of a rank.
    cutoff: u64,
    stages: Vec<Stage>,
    rows: Rows,
}

impl Run<'_> {
    fn new(flat: &Flat, variant: Variant, allowed: u64, cutoff: u64) -> Run<'_> {
        let microbatches = flat.chains[0].microbatches;
        let stages = flat
            .lanes
            .iter()
            .map(|lane| {
                let takes = |kind: u32| lane.takes[kind as usize];
                let after_b = lane.net(F) + lane.net(B);
                Stage {
                    needs: takes(F).max(lane.net(F) + takes(B)).max(after_b + takes(W)),
                    arrive_f: vec![0; microbatches],
                    arrive_b: vec![0; microbatches],
                    ..Stage::default()
                }
            })
            .collect();
        let row = || Vec::with_capacity(3 * microbatches);
        Run { flat, variant, allowed, cutoff, stages, rows: (0..flat.ranks).map(|_| row()).collect() }
    }

    /// Runs the rule to its end; false where a rank lacks memory.
    fn finish(&mut self) -> bool {
        let microbatches = self.flat.chains[0].microbatches;
        let stages = self.stages.len();
        let warm_up = self.warm_up();
        for n in 0..warm_up[0] {
            for (stage, count) in warm_up.iter().enumerate() {
                if n < *count && !self.put(stage, F) {
                    return false;
                }
            }
        }
        for i in 0..microbatches {
            if i > 0 {
                let takes = self.decide(i);
                for (stage, takes) in takes.into_iter().enumerate() {
                    if takes && !self.put(stage, F) && self.stages[stage].done[0] <= i {
                        return false;
                    }
                }
            }
            for stage in (0..stages).rev() {
                self.catch_up(stage, i, warm_up[stage]);
                if !self.put(stage, B) {
                    return false;
                }
            }
        }
        for stage in 0..stages {
            while self.stages[stage].done[2] < microbatches {
                self.weight(stage);
            }
        }
        true
    }

    /// Forwards of each stage before the first backward, each count from 1 on and none above the one before.
    fn warm_up(&self) -> Vec<usize> {
        let flat = self.flat;
        let microbatches = flat.chains[0].microbatches;
        // When the first forward ends, and how far apart the next come at most.
        let (mut time, mut slowest) = (0, 1);
        let arrivals: Vec<(u64, u64)> = flat
            .lanes
            .iter()
            .map(|lane| {
                time += lane.hop_f + lane.duration[F as usize];
                slowest = slowest.max(lane.duration[F as usize]);
                (time, slowest)
            })
            .collect();
        let mut counts = vec![1; flat.lanes.len()];
        for (stage, lane) in flat.lanes.iter().enumerate().rev() {
            // The first backward arrives at `time` if nothing is in its way.
            time += lane.hop_b;
            let (end, apart) = arrivals[stage];
            let in_time = usize::try_from((time - end.min(time)) / apart).unwrap_or(usize::MAX).saturating_add(1);
            let spare = (flat.limit[lane.rank] - self.stages[stage].needs).max(0);
            let fit = usize::try_from(spare / lane.net(F).max(1)).unwrap_or(usize::MAX).saturating_add(1);
            counts[stage] = if self.variant.deep { fit } else { fit.min(in_time) }.min(microbatches);
            time += lane.duration[B as usize];
        }
        for stage in 1..counts.len() {
            counts[stage] = counts[stage].min(counts[stage - 1].saturating_sub(self.variant.drop)).max(1);
        }
        counts
    }

    /// Which stages take a forward before the backward of microbatch `i`.
    fn decide(&self, i: usize) -> Vec<bool> {
        let (stages, lanes) = (&self.stages, &self.flat.lanes);
        let mut takes = vec![false; stages.len()];
        // When the backward of the stage after is expected to arrive.
        let mut arrival = 0;
        for stage in (0..stages.len()).rev() {
            let (lane, at) = (&lanes[stage], &stages[stage]);
            let next = at.done[0];
            let before = stage.checked_sub(1).map(|before| &stages[before]);
            let f = lane.duration[F as usize];
            let input = match before {
                None => 0,
                Some(before) if before.done[0] > next => at.arrive_f[next.min(at.arrive_f.len() - 1)],
                Some(before) => before.free + lanes[stage - 1].duration[F as usize] + lane.hop_f,
            };
            let end = at.free.max(input) + f;
            if stage + 1 == stages.len() {
                arrival = if next > i { at.arrive_b[i] } else { end };
            }
            let needed = next <= i || takes.get(stage + 1) == Some(&true) && stages[stage + 1].done[0] >= next;
            takes[stage] = next < at.arrive_f.len()
                && (needed
                    || match self.variant.backward_first {
                        BackwardFirst::Never => true,
                        BackwardFirst::BeforeLate => at.free >= input || input < arrival,
                        BackwardFirst::Always => end <= arrival,
                    });
            let free = if takes[stage] { end } else { at.free };
            arrival = arrival.max(free) + lane.duration[B as usize];
            arrival += stage.checked_sub(1).map_or(0, |before| lanes[before].hop_b);
        }
        takes
    }

    /// Runs delayed forwards, where the backward of microbatch `i` leaves the time.
    fn catch_up(&mut self, stage: usize, i: usize, warm_up: usize) {
        if self.variant.backward_first == BackwardFirst::Never {
            return;
        }
        loop {
            let at = &self.stages[stage];
            let n = at.done[0];
            let made = stage == 0 || self.stages[stage - 1].done[0] > n;
            if n >= (warm_up + i).min(at.arrive_f.len()) || !made {
                return;
            }
            let start = at.free.max(at.arrive_f[n]);
            let in_time = match self.variant.backward_first {
                BackwardFirst::BeforeLate => start < at.arrive_b[i],
                _ => start + self.flat.lanes[stage].duration[F as usize] <= at.arrive_b[i],
            };
            if !in_time || !self.put(stage, F) {
                return;
            }
        }
    }

    /// Appends the next op of `kind`, with W before it where the rule says so. False, and nothing appended but
    /// W, where its input has not been made, the memory is too small or the idle time too long.
    fn put(&mut self, stage: usize, kind: u32) -> bool {
        let lane = &self.flat.lanes[stage];
        let at = &self.stages[stage];
        let n = at.done[kind as usize];
        let made = match kind {
            F => stage == 0 || self.stages[stage - 1].done[0] > n,
            _ => at.done[0] > n && (lane.last || self.stages[stage + 1].done[1] > n),
        };
        if !made || n >= lane.count {
            return false;
        }
        let arrival = if kind == F { at.arrive_f[n] } else { at.arrive_b[n] };
        let needs = if kind == F { at.needs } else { lane.takes[B as usize] };
        let fits = |run: &Self| run.stages[stage].held + needs <= run.flat.limit[lane.rank];
        while !fits(self) {
            if !self.weight(stage) {
                return false;
            }
        }
        let weight = lane.duration[W as usize];
        loop {
            let at = &self.stages[stage];
            let gap = arrival.saturating_sub(at.free);
            if gap == 0 || at.done[2] >= at.done[1] {
                break;
            }
            let hurts = || {
                let worst = self.stages.iter().map(|other| other.idle).max().unwrap_or(0).max(self.allowed);
                at.idle + gap > worst
            };
            if !(weight <= gap || self.variant.overlap && hurts()) || !self.weight(stage) {
                break;
            }
        }
        let at = &mut self.stages[stage];
        let start = at.free.max(arrival);
        // What lies before a rank's first op counts in no span.
        if at.done[0] > 0 {
            at.idle += start - at.free;
        }
        if at.idle + self.flat.work[lane.rank] > self.cutoff {
            return false;
        }
        let end = start + lane.duration[kind as usize];
        at.free = end;
        at.held += lane.net(kind);
        at.done[kind as usize] = n + 1;
        self.rows[lane.rank].push(code(stage, kind));
        if kind == F && lane.last {
            at.arrive_b[n] = end;
        } else if kind == F {
            let after = &mut self.stages[stage + 1];
            after.arrive_f[n] = end + self.flat.lanes[stage + 1].hop_f;
        } else if stage > 0 {
            self.stages[stage - 1].arrive_b[n] = end + self.flat.lanes[stage - 1].hop_b;
        }
        true
    }

    /// Appends the oldest W; false where there is none.
    fn weight(&mut self, stage: usize) -> bool {
        let lane = &self.flat.lanes[stage];
        let at = &mut self.stages[stage];
        if at.done[2] >= at.done[1] {
            return false;
        }
        at.free += lane.duration[W as usize];
        at.held += lane.net(W);
        at.done[2] += 1;
        self.rows[lane.rank].push(code(stage, W));
        true
    }
}
