//! An order of ops with the longest paths to and from each op, kept up to date from move to move.
//!
//! A move changes some ops of one op list. The topological order of all ops is repaired only between the ends of the move (Pearce
//! and Kelly, “A dynamic topological sort algorithm for directed acyclic graphs”, 2006). Times are computed again only for ops
//! with a change before or behind them. So a move costs in proportion to what it changes.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{Code, Flat, Rows};
use super::makespan::Cost;

mod ops;
mod reorder;
mod timing;
mod whole_backward;

pub(super) use ops::{NONE, Node, State};
pub(super) use reorder::Shift;

use ops::{NOTHING, links, nodes, numbered};

pub(super) struct LongestPaths {
    pub nodes: Vec<Node>,
    pub states: Vec<State>,
    /// By node: the ops of its rank that it needs directly, and that need it; of the same kind, lane or microbatch.
    pub needs: Vec<[u32; 3]>,
    pub needed: Vec<[u32; 3]>,
    pub rows: Vec<Vec<u32>>,
    /// By rank and place: bytes held before the op.
    pub held: Vec<Vec<i64>>,
    /// By rank: the weight that is added to its end, so that the largest sum is the cost plus `shift`.
    pub weight: Vec<u64>,
    pub shift: u64,
    pub cost: Cost,
    /// All ops in topological order.
    line: Vec<u32>,
    /// By position in that order: whether the op there has to be timed.
    due: Vec<u64>,
    /// By node: the last move that visited it.
    seen: Vec<u32>,
    moves: u32,
    stack: Vec<u32>,
    taken: Vec<u32>,
    at: Vec<u32>,
    blocked: Vec<u32>,
    /// By rank: the W of whole backwards, which stand behind all else in its row.
    pub nothing: Vec<usize>,
    /// Ops timed or looked at so far.
    pub ops: u64,
}

impl LongestPaths {
    /// The longest paths of `rows`, which must be valid; none where the ranks deadlock. `mixes` says whether backwards
    /// may change between cut and whole: then those of a stage may have their W in any order.
    pub fn new(flat: &Flat, rows: &[Vec<Code>], mixes: bool) -> Option<LongestPaths> {
        let (nodes, states) = nodes(flat);
        let (needs, needed) = links(flat, mixes);
        let count = nodes.len();
        let mut paths = LongestPaths {
            states,
            needs,
            needed,
            rows: Vec::new(),
            held: Vec::new(),
            weight: vec![0; flat.ranks],
            shift: 0,
            cost: Cost::WORST,
            line: Vec::with_capacity(count),
            due: vec![0; count.div_ceil(64)],
            seen: vec![0; count],
            moves: 0,
            stack: Vec::new(),
            taken: Vec::new(),
            at: vec![0; flat.ranks],
            blocked: vec![NONE; flat.ranks],
            nothing: vec![0; flat.ranks],
            ops: 0,
            nodes,
        };
        let (rows, whole) = numbered(flat, rows);
        paths.held = rows.iter().map(|row| vec![0; row.len()]).collect();
        whole.iter().for_each(|backward| paths.make(flat, *backward, true));
        paths.start_at(flat, &rows).then_some(paths)
    }

    /// The codes of rows of nodes.
    pub fn codes(&self, rows: &[Vec<u32>]) -> Rows {
        let codes = |row: &Vec<u32>| {
            row.iter().map(|node| self.nodes[*node as usize].code).filter(|code| *code != NOTHING).collect()
        };
        rows.iter().map(codes).collect()
    }

    /// Continues from op lists of codes, with any backwards whole; false where the ranks deadlock.
    pub fn start_at_codes(&mut self, flat: &Flat, rows: &[Vec<Code>]) -> bool {
        let (rows, whole) = numbered(flat, rows);
        for backward in flat.slots as u32..2 * flat.slots as u32 {
            if self.is_whole(backward) && !flat.fused {
                self.make(flat, backward, false);
            }
        }
        whole.iter().for_each(|backward| self.make(flat, *backward, true));
        self.start_at(flat, &rows)
    }

    /// Continues from `rows`; false where the ranks deadlock.
    pub fn start_at(&mut self, flat: &Flat, rows: &[Vec<u32>]) -> bool {
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        if !self.line_up(flat) {
            return false;
        }
        for rank in 0..flat.ranks {
            self.hold(rank, 0, self.rows[rank].len());
        }
        self.weigh(flat);
        for spot in (0..self.line.len()).rev() {
            let id = self.line[spot] as usize;
            self.states[id].reach = self.reach(id);
        }
        self.ops += self.line.len() as u64 * 2;
        true
    }
}
