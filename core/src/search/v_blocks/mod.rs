//! Building blocks of a V as the public controllable-memory search takes them, and what it makes of each.
//!
//! A block is laid as in [`building_block`](crate::schedule): F, B and W of two chunks take one slot each, whatever
//! their times, and every six slots the next microbatch does the same. Down the ranks an op comes one of two slopes
//! later on each next rank, the first on the ranks up to a bend, the second behind it; up the ranks it comes one slot
//! later. Slopes, bend and the slots on the first rank say all; blocks in which two ops of a rank meet do not exist.
//!
//! What a block leaves idle in the warm-up and the cool-down is then filled by rule:
//!
//! 1. **Warm-up**, on each rank up to the first B of chunk 0: first the forwards, of chunk 0 while the first microbatch
//!    is on its way to the turn, of both chunks while it comes back; and then B and W of chunk 1, and one forward more,
//!    in turn.
//! 2. **Cool-down**: the last B, as many as memory holds microbatches, follow each other as closely as their inputs
//!    let them, and W waits behind them.
//! 3. Slot by slot each rank fills what is still idle with the first of its later ops that may run then and takes no
//!    more memory than was held at most anyway.
//! 4. W are run first come, first served.
//!
//! Where there are fewer microbatches than two for each rank, the warm-up is that of so many, and what is too much is
//! left out.
//!
//! With memory for so many chunks, blocks that hold just so many lead to the least idle time, so only those are tried.
//!
//! Source of the rule: `v_auto_schedule.py` of sail-sg/zero-bubble-pipeline-parallelism (arXiv:2405.15362, §3 and
//! Appendix A).

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, Code, F, Flat, Rows, UNLIMITED, W, code};
use super::makespan::Eval;
use crate::schedule::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, KINDS, PERIOD, WEIGHT_0, WEIGHT_1};

/// A slot of a row without an op.
const IDLE: usize = KINDS;

/// The steepest way down the ranks.
const STEEPEST: usize = 5;

/// How a block is laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lay {
    /// Slots within the period of the ops of the first rank after the F of chunk 0: of F of chunk 1, and of B of
    /// chunk 1 and chunk 0.
    first: [usize; 3],
    /// Slots from rank to rank on the way down, up to the rank `bend` and behind it.
    slopes: [usize; 2],
    bend: usize,
}

/// A block that is laid.
pub(super) struct Block {
    /// By rank and kind, the slot of the first microbatch.
    slots: Vec<[usize; KINDS]>,
    /// The most chunk activations that a rank holds.
    pub held: usize,
}

/// By rank, the kinds of its ops in their order or, where slots count, slot by slot.
pub(super) type Cells = Vec<Vec<usize>>;

/// Whether there is anything to lay: a V with B and W apart.
pub(super) fn applies(flat: &Flat) -> bool {
    let ranks = flat.ranks;
    let v = || (0..ranks).all(|rank| flat.lanes_of[rank] == [rank, 2 * ranks - 1 - rank]);
    flat.chains.len() == 1 && !flat.fused && ranks > 1 && flat.lanes.len() == 2 * ranks && v()
}

/// The blocks that take most memory of what there is.
pub(super) fn blocks(flat: &Flat, eval: &mut Eval) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    if !applies(flat) {
        return blocks;
    }
    let mut held = 0;
    // Those in which a microbatch turns at once: the others have nothing that these have not.
    for first in firsts().filter(|first| first[0] == 1) {
        for block in lays(first, flat.ranks, |block| {
            eval.ops += flat.ranks as u64;
            block.held <= 2 * flat.ranks && fits(flat, block)
        }) {
            if block.held > held {
                held = block.held;
                blocks.clear();
            }
            if block.held == held {
                blocks.push(block);
            }
        }
    }
    blocks
}

/// The order that a block leads to, if it is valid.
pub(super) fn order(flat: &Flat, eval: &mut Eval, block: &Block) -> Option<Rows> {
    let microbatches = flat.lanes[0].count;
    let all_fit = (0..flat.ranks).all(|rank| {
        let each = |lane: &usize| flat.lanes[*lane].net(F).saturating_mul(microbatches as i64);
        flat.lanes_of[rank].iter().map(each).fold(0, i64::saturating_add) <= flat.limit[rank]
    });
    eval.ops += 4 * flat.ops as u64;
    let rows = rows(flat, &build(block, microbatches, all_fit)?);
    (0..flat.ranks).all(|rank| flat.is_valid_row(rank, &rows[rank])).then_some(rows)
}

/// The ways to lay the first rank, as in [`Lay`].
pub(super) fn firsts() -> impl Iterator<Item = [usize; 3]> {
    let slots = || 1..PERIOD;
    let all = slots().flat_map(move |one| slots().flat_map(move |two| slots().map(move |three| [one, two, three])));
    all.filter(|[one, two, three]| one != two && one != three && two != three)
}

/// The different blocks that begin like this on their first rank and that are wanted; where one is not, neither are those
/// whose steeper slope goes further.
pub(super) fn lays(first: [usize; 3], ranks: usize, mut is_wanted: impl FnMut(&Block) -> bool) -> Vec<Block> {
    let mut wanted = Vec::new();
    for steep in 1..=STEEPEST {
        for flat in 1..=steep {
            // One slope all the way is met once, as a steeper one that goes all the way.
            let bends = match (steep, flat) {
                (1, _) => 1..2,
                (_, 1) => 1..ranks,
                _ if flat == steep => continue,
                _ => 1..ranks - 1,
            };
            for bend in bends {
                let Some(block) = (Lay { first, slopes: [steep, flat], bend }).block(ranks) else { continue };
                if !is_wanted(&block) {
                    break;
                }
                wanted.push(block);
            }
        }
    }
    wanted
}

impl Lay {
    /// The block, if no two ops of a rank meet.
    fn block(&self, ranks: usize) -> Option<Block> {
        let [forward_1, backward_1, backward_0] = self.first;
        let mut places = [0, forward_1, backward_1, backward_0];
        let mut slots = Vec::with_capacity(ranks);
        for rank in 0..ranks {
            if rank > 0 {
                let slope = self.slopes[usize::from(rank > self.bend)];
                for (kind, place) in places.iter_mut().enumerate() {
                    *place = (*place + if goes_down(kind) { slope } else { PERIOD - 1 }) % PERIOD;
                }
            }
            slots.push(with_weights(places)?);
        }
        // From here on slots are those of the first microbatch, and not only those of the period.
        let next = |from: usize, place: usize| from + (place + PERIOD - from % PERIOD) % PERIOD;
        let mut from = 0;
        for kind in [FORWARD_0, FORWARD_1, BACKWARD_1, BACKWARD_0] {
            for at in 0..ranks {
                let rank = &mut slots[if goes_down(kind) { at } else { ranks - 1 - at }];
                rank[kind] = next(from, rank[kind]);
                from = rank[kind] + 1;
                if is_backward(kind) {
                    rank[weight_of(kind)] = next(from, rank[weight_of(kind)]);
                }
            }
        }
        let held = slots.iter().map(|slots| {
            let each = [1, 1, 0, 0, -1, -1];
            [FORWARD_0, FORWARD_1].into_iter().map(|kind| before(slots, kind, &each) + 1).max().unwrap_or(0)
        });
        let held = held.max().unwrap_or(0) as usize;
        Some(Block { slots, held })
    }
}

/// Adds W to the places of F and B in a period, each in the first that is free; none where F and B meet.
fn with_weights(places: [usize; 4]) -> Option<[usize; KINDS]> {
    let mut taken = [false; PERIOD];
    let mut all = [0; KINDS];
    for (kind, place) in places.into_iter().enumerate() {
        if core::mem::replace(&mut taken[place], true) {
            return None;
        }
        all[kind] = place;
    }
    for kind in [BACKWARD_1, BACKWARD_0] {
        let place = (0..PERIOD).map(|more| (all[kind] + more) % PERIOD).find(|place| !taken[*place])?;
        taken[place] = true;
        all[weight_of(kind)] = place;
    }
    Some(all)
}

/// Whether an F or B goes from rank to next rank, and not back up.
fn goes_down(kind: usize) -> bool {
    kind == FORWARD_0 || kind == BACKWARD_1
}

fn is_forward(kind: usize) -> bool {
    kind == FORWARD_0 || kind == FORWARD_1
}

fn is_backward(kind: usize) -> bool {
    kind == BACKWARD_1 || kind == BACKWARD_0
}

fn is_weight(kind: usize) -> bool {
    kind == WEIGHT_1 || kind == WEIGHT_0
}

/// W of the chunk whose B this is.
fn weight_of(backward: usize) -> usize {
    if backward == BACKWARD_1 { WEIGHT_1 } else { WEIGHT_0 }
}

/// What a rank holds before an op of `kind`, where the block is repeated for ever and each kind adds `each`.
fn before(slots: &[usize; KINDS], kind: usize, each: &[i64; KINDS]) -> i64 {
    let most = slots.iter().copied().max().unwrap_or(0);
    let now = most / PERIOD * PERIOD + PERIOD + slots[kind] % PERIOD;
    (0..KINDS).map(|other| (now - slots[other]).div_ceil(PERIOD) as i64 * each[other]).sum()
}

/// Lane and kind of an op of the search.
fn op_of(rank: usize, ranks: usize, kind: usize) -> (usize, u32) {
    let lane = if kind == FORWARD_0 || kind == BACKWARD_0 || kind == WEIGHT_0 { rank } else { 2 * ranks - 1 - rank };
    (
        lane,
        if is_forward(kind) {
            F
        } else if is_backward(kind) {
            B
        } else {
            W
        },
    )
}

/// Whether the block, repeated for ever, keeps within the limits.
fn fits(flat: &Flat, block: &Block) -> bool {
    block.slots.iter().enumerate().all(|(rank, slots)| {
        let lane_of = |kind| op_of(rank, flat.ranks, kind);
        let mut each = [0; KINDS];
        for (kind, each) in each.iter_mut().enumerate() {
            let (lane, kind) = lane_of(kind);
            *each = flat.lanes[lane].net(kind);
        }
        let takes = |kind| {
            let (lane, kind) = lane_of(kind);
            flat.lanes[lane].takes[kind as usize]
        };
        let limit = flat.limit[rank];
        limit >= UNLIMITED || (0..KINDS).all(|kind| before(slots, kind, &each) + takes(kind) <= limit)
    })
}

/// The rows of the search.
pub(super) fn rows(flat: &Flat, cells: &Cells) -> Rows {
    let code = |rank: usize, kind: usize| -> Code {
        let (lane, kind) = op_of(rank, flat.ranks, kind);
        code(lane, kind)
    };
    cells.iter().enumerate().map(|(rank, row)| row.iter().map(|kind| code(rank, *kind)).collect()).collect()
}

/// The order that the rule makes of a block; none where it comes to nothing that runs within what the block holds.
/// `all_fit` says whether memory is enough for the forwards of all microbatches.
pub(super) fn build(block: &Block, microbatches: usize, all_fit: bool) -> Option<Cells> {
    let ranks = block.slots.len();
    let many = microbatches.max(2 * ranks);
    let mut cells = repeated(block, many);
    let mut held = block.held;
    for (rank, row) in cells.iter_mut().enumerate() {
        *row = warm_up(row, rank, ranks, held);
    }
    if most_held(&cells) > held {
        return None;
    }
    if microbatches < many {
        let many_held = most_held(&cells);
        for row in &mut cells {
            leave_out(row, microbatches);
            if microbatches <= ranks && all_fit {
                put_off_weights(row, many_held);
            }
        }
        held = most_held(&cells);
    }
    let mut cells = squeezed(&cells, microbatches)?;
    cool_down(&mut cells, microbatches, held)?;
    let mut cells = squeezed(&cells, microbatches)?;
    pull_left(&mut cells, microbatches);
    for row in &mut cells {
        row.retain(|kind| *kind != IDLE);
        serve_weights(row)?;
    }
    (most_held(&cells) <= held).then_some(cells)
}

/// The block for every microbatch, each rank's ops in the order of their slots.
fn repeated(block: &Block, microbatches: usize) -> Cells {
    let row = |slots: &[usize; KINDS]| {
        let mut order: Vec<(usize, usize, usize)> = Vec::with_capacity(KINDS);
        order.extend(slots.iter().enumerate().map(|(kind, slot)| (slot % PERIOD, slot / PERIOD, kind)));
        order.sort_unstable();
        let last = order.iter().map(|(_, periods, _)| *periods).max().unwrap_or(0);
        let mut row = Vec::with_capacity(KINDS * microbatches);
        for period in 0..microbatches + last {
            let runs = |before: usize| before <= period && period - before < microbatches;
            row.extend(order.iter().filter(|(_, before, _)| runs(*before)).map(|(.., kind)| *kind));
        }
        row
    };
    block.slots.iter().map(row).collect()
}

/// The most chunk activations that a rank holds.
fn most_held(cells: &Cells) -> usize {
    cells.iter().map(|row| row_holds(row)).max().unwrap_or(0)
}

fn row_holds(row: &[usize]) -> usize {
    let (mut held, mut most) = (0usize, 0);
    for kind in row {
        if is_forward(*kind) {
            held += 1;
            most = most.max(held);
        } else if is_weight(*kind) {
            held -= 1;
        }
    }
    most
}

/// A row with the ops before its first B of chunk 0 in the order of step 1, where `held` chunks may be held.
fn warm_up(row: &[usize], rank: usize, ranks: usize, held: usize) -> Vec<usize> {
    let end = row.iter().position(|kind| *kind == BACKWARD_0).unwrap_or(row.len());
    let mut left = [0usize; KINDS];
    row[..end].iter().for_each(|kind| left[*kind] += 1);
    let mut new = Vec::with_capacity(row.len());
    let mut put = |left: &mut [usize; KINDS], kind: usize| {
        let any = left[kind] > 0;
        if any {
            left[kind] -= 1;
            new.push(kind);
        }
        any
    };
    // Before the first B: of chunk 1 as many as come back in time, and the rest of the memory for chunk 0.
    let back = (rank + 1).min(held / 2);
    let mut first = [(held - back).min(left[FORWARD_0]), back.min(left[FORWARD_1])];
    let until_turn = 2 * (ranks - 1 - rank);
    for step in 0..until_turn + 2 * (rank + 1) {
        let chunk = if step < until_turn { 0 } else { (step - until_turn) % 2 };
        if first[chunk] > 0 {
            first[chunk] -= 1;
            put(&mut left, [FORWARD_0, FORWARD_1][chunk]);
        }
    }
    while left.iter().any(|left| *left > 0) {
        put(&mut left, BACKWARD_1);
        put(&mut left, WEIGHT_1);
        if !put(&mut left, FORWARD_1) {
            put(&mut left, FORWARD_0);
        }
    }
    new.extend_from_slice(&row[end..]);
    new
}

/// Leaves all but the first microbatches out.
fn leave_out(row: &mut Vec<usize>, microbatches: usize) {
    let mut seen = [0; KINDS];
    row.retain(|kind| {
        seen[*kind] += 1;
        seen[*kind] <= microbatches
    });
}

/// Where so few microbatches do not fill the memory, the first W wait until the end.
fn put_off_weights(row: &mut Vec<usize>, held: usize) {
    let mut spare = held.saturating_sub(row_holds(row));
    let mut waiting = Vec::with_capacity(spare);
    row.retain(|kind| {
        let waits = is_weight(*kind) && spare > 0;
        if waits {
            spare -= 1;
            waiting.push(*kind);
        }
        !waits
    });
    row.extend(waiting);
}

/// Step 2, on rows by slot.
fn cool_down(cells: &mut Cells, microbatches: usize, held: usize) -> Option<()> {
    let ranks = cells.len();
    let last_0 = held.div_ceil(2).min(microbatches);
    let last_1 = (held - last_0).min(microbatches);
    let from = cells[0].iter().rposition(|kind| *kind == FORWARD_1)?;
    for (rank, row) in cells.iter_mut().enumerate() {
        let mut taken = [0usize; KINDS];
        for cell in row.iter_mut().rev() {
            let most = match *cell {
                BACKWARD_1 => last_1.min(rank + 1),
                BACKWARD_0 => last_0,
                _ => continue,
            };
            if taken[*cell] < most {
                taken[*cell] += 1;
                *cell = IDLE;
            }
        }
        for cell in row.iter_mut().rev() {
            let [weights_1, weights_0] = [taken[WEIGHT_1], taken[WEIGHT_0]];
            if weights_1 >= taken[BACKWARD_1] && weights_0 >= taken[BACKWARD_0] && weights_1 + weights_0 >= held {
                break;
            }
            if is_weight(*cell) {
                taken[*cell] += 1;
                *cell = IDLE;
            }
        }
        // Those of chunk 0 come up from the last rank, those of chunk 1 down from the first, two slots apart.
        for (kind, last) in [(BACKWARD_0, (from + 2 * ranks).checked_sub(rank)?), (BACKWARD_1, from + 1 + rank)] {
            for n in 0..taken[kind] {
                let slot = last.checked_sub(2 * n)?;
                if slot >= row.len() {
                    row.resize(slot + 1, IDLE);
                }
                if core::mem::replace(&mut row[slot], kind) != IDLE {
                    return None;
                }
            }
        }
        put_back_weights(row)?;
    }
    Some(())
}

/// W that were taken out go into what is idle behind the last that was not, those of chunk 1 first.
fn put_back_weights(row: &mut Vec<usize>) -> Option<()> {
    let behind = row.iter().rposition(|kind| is_weight(*kind)).map_or(0, |last| last + 1);
    let mut waiting = [0usize; 2];
    for (slot, cell) in row.iter_mut().enumerate() {
        match *cell {
            BACKWARD_1 | BACKWARD_0 => waiting[*cell - BACKWARD_1] += 1,
            WEIGHT_1 | WEIGHT_0 => waiting[*cell - WEIGHT_1] = waiting[*cell - WEIGHT_1].checked_sub(1)?,
            IDLE if slot >= behind => {
                if let Some(chunk) = waiting.iter().position(|waiting| *waiting > 0) {
                    waiting[chunk] -= 1;
                    *cell = WEIGHT_1 + chunk;
                }
            }
            _ => {}
        }
    }
    for (chunk, waiting) in waiting.into_iter().enumerate() {
        row.extend(core::iter::repeat_n(WEIGHT_1 + chunk, waiting));
    }
    Some(())
}

/// What is placed so far.
struct Progress {
    /// By rank: the slots of F and B of each kind, and how many W of each.
    slots: Vec<[Vec<usize>; 4]>,
    weights: Vec<[usize; 2]>,
}

impl Progress {
    fn new(ranks: usize, microbatches: usize) -> Progress {
        let row = || [0; 4].map(|_| Vec::with_capacity(microbatches));
        Progress { slots: (0..ranks).map(|_| row()).collect(), weights: vec![[0; 2]; ranks] }
    }

    /// The first slot in which the input of a rank's next op of `kind` is there; none where it is not placed yet.
    fn ready(&self, rank: usize, kind: usize) -> Option<usize> {
        if is_weight(kind) {
            let n = self.weights[rank][kind - WEIGHT_1];
            return self.slots[rank][kind - 2].get(n).map(|slot| slot + 1);
        }
        let n = self.slots[rank][kind].len();
        let other = if goes_down(kind) { rank.checked_sub(1) } else { Some(rank + 1) };
        match other.and_then(|other| self.slots.get(other)) {
            Some(other) => other[kind].get(n).map(|slot| slot + 1),
            // The end of the way: the job before, on the same rank.
            None if kind == FORWARD_0 => Some(0),
            None => self.slots[rank][kind - 1].get(n).map(|slot| slot + 1),
        }
    }

    fn place(&mut self, rank: usize, kind: usize, slot: usize) {
        match is_weight(kind) {
            true => self.weights[rank][kind - WEIGHT_1] += 1,
            false => self.slots[rank][kind].push(slot),
        }
    }
}

/// Rows by slot in which each op starts as soon as its input and its rank let it, in the same order; none where ranks
/// wait for each other for ever.
fn squeezed(cells: &Cells, microbatches: usize) -> Option<Cells> {
    let ranks = cells.len();
    let mut progress = Progress::new(ranks, microbatches);
    let mut squeezed: Cells = cells.iter().map(|row| Vec::with_capacity(row.len())).collect();
    let mut at = vec![0; ranks];
    let mut awake: Vec<usize> = (0..ranks).collect();
    while let Some(rank) = awake.pop() {
        let from = at[rank];
        while let Some(&kind) = cells[rank].get(at[rank]) {
            if kind != IDLE {
                let Some(ready) = progress.ready(rank, kind) else { break };
                let row = &mut squeezed[rank];
                row.resize(row.len().max(ready), IDLE);
                progress.place(rank, kind, row.len());
                row.push(kind);
            }
            at[rank] += 1;
        }
        if at[rank] > from {
            awake.extend(rank.checked_sub(1));
            awake.extend(Some(rank + 1).filter(|rank| *rank < ranks));
        }
    }
    let length = squeezed.iter().map(Vec::len).max()?;
    squeezed.iter_mut().for_each(|row| row.resize(length, IDLE));
    (0..ranks).all(|rank| at[rank] == cells[rank].len()).then_some(squeezed)
}

/// Step 3: rows by slot, all of one length.
fn pull_left(cells: &mut Cells, microbatches: usize) {
    let ranks = cells.len();
    let length = cells.first().map_or(0, Vec::len);
    let most = most_held(cells) as i64;
    // By rank and kind, the slot behind the last op.
    let mut ends = vec![[0; KINDS]; ranks];
    for (ends, row) in ends.iter_mut().zip(cells.iter()) {
        row.iter().enumerate().filter(|(_, kind)| **kind != IDLE).for_each(|(slot, kind)| ends[*kind] = slot + 1);
    }
    let mut progress = Progress::new(ranks, microbatches);
    let mut held = vec![0i64; ranks];
    for slot in 0..length {
        for rank in 0..ranks {
            let row = &mut cells[rank];
            if row[slot] == IDLE {
                let may = |kind: usize| progress.ready(rank, kind).is_some_and(|ready| ready <= slot);
                let left = ends[rank].map(|end| end > slot + 1);
                if let Some(from) = first_to_pull(row, slot, left, most - held[rank], may) {
                    row.swap(slot, from);
                }
            }
            let kind = row[slot];
            if kind == IDLE {
                continue;
            }
            progress.place(rank, kind, slot);
            held[rank] += i64::from(is_forward(kind)) - i64::from(is_weight(kind));
        }
    }
}

/// The slot of the first op behind `slot` that may run in it, where `room` more chunks may be held; of each kind that is
/// left there only the first is asked for.
fn first_to_pull(
    row: &[usize],
    slot: usize,
    mut left: [bool; KINDS],
    room: i64,
    may: impl Fn(usize) -> bool,
) -> Option<usize> {
    // What the ops between add, and the most of it.
    let (mut more, mut most) = (0, 0);
    for (from, &kind) in row.iter().enumerate().skip(slot + 1) {
        if left == [false; KINDS] {
            return None;
        }
        if kind == IDLE {
            continue;
        }
        if core::mem::replace(&mut left[kind], false) && (!is_forward(kind) || most < room) && may(kind) {
            return Some(from);
        }
        more += i64::from(is_forward(kind)) - i64::from(is_weight(kind));
        most = most.max(more);
    }
    None
}

/// Step 4.
fn serve_weights(row: &mut [usize]) -> Option<()> {
    let mut waiting = VecDeque::new();
    for kind in row {
        if is_backward(*kind) {
            waiting.push_back(weight_of(*kind));
        } else if is_weight(*kind) {
            *kind = waiting.pop_front()?;
        }
    }
    Some(())
}
