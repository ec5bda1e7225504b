//! The registers of a warp, and where its threads stand.

use std::collections::VecDeque;

use super::{LaneFault, lane_fault};
use crate::decode::{Address, Either, Long, Op, Truth, Word};
use crate::memory::Coming;
use crate::products::Products;

/// Threads of a warp that stand at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) at: u32,
    pub(super) lanes: u32,
    pub(super) waits: bool,
}

/// Where a warp stands after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpState {
    Runs,
    /// At a barrier of the block, the instruction said.
    Barrier(u32),
    Ended,
}

pub struct Warp {
    pub number: u32,
    /// Lanes that there are.
    pub(super) lanes: u32,
    pub words: Vec<Words>,
    pub(super) longs: Vec<Longs>,
    pub(super) truths: Vec<u32>,
    pub(super) groups: Vec<Group>,
    pub(super) state: WarpState,
    /// By lane: groups of copies, the last one still open.
    pub(super) coming: Vec<VecDeque<Vec<Coming>>>,
    pub products: Products,
}

pub const LANES: usize = 32;

pub(super) const ALL: u32 = u32::MAX;

pub type Words = [u32; LANES];

pub(super) type Longs = [u64; LANES];

/// Sets the lanes `on` of a register.
#[inline(always)]
pub(super) fn put<T>(to: &mut [T; LANES], on: u32, of: impl Fn(usize) -> T) {
    if on == ALL {
        to.iter_mut().enumerate().for_each(|(lane, to)| *to = of(lane));
    } else {
        to.iter_mut().enumerate().filter(|(lane, _)| on >> lane & 1 == 1).for_each(|(lane, to)| *to = of(lane));
    }
}

impl Warp {
    /// Adds lanes that stand at `at`, to those that stand there already; which group they are now.
    pub(super) fn put(&mut self, at: u32, lanes: u32, waits: bool) -> usize {
        if let Some(here) = self.groups.iter().position(|group| group.at == at && group.waits == waits) {
            self.groups[here].lanes |= lanes;
            return here;
        }
        self.groups.push(Group { at, lanes, waits });
        self.groups.len() - 1
    }

    /// The lanes that have to take part in `op`, for which `lanes` ask.
    pub(super) fn members(&self, op: &Op, lanes: u32) -> Result<u32, LaneFault> {
        let word = match op {
            Op::Shuffle { members, .. } | Op::Ballot { members, .. } => *members,
            _ if self.lanes != ALL => {
                return lane_fault("matrices need a whole warp, and this one has fewer threads");
            }
            _ => return Ok(ALL),
        };
        let asked = self.word(word);
        let first = asked[lanes.trailing_zeros() as usize];
        if let Some(lane) =
            (0..LANES).find(|lane| lanes >> lane & 1 == 1 && (asked[*lane] != first || first >> lane & 1 == 0))
        {
            let what = format!("the mask {:#x} of its members is another lane's too, or lacks it", asked[lane]);
            return Err(LaneFault { what, other: None, lane: Some(lane) });
        }
        match first & !self.lanes {
            0 => Ok(first),
            missing => lane_fault(format!("lanes {missing:#x} should take part, and the block has no such threads")),
        }
    }

    #[inline(always)]
    pub fn word(&self, word: Word) -> Words {
        match word {
            Word::Reg(from) => self.words[from as usize],
            Word::Fixed(number) => [number; LANES],
        }
    }

    #[inline(always)]
    pub fn long(&self, long: Long) -> Longs {
        match long {
            Long::Reg(from) => self.longs[from as usize],
            Long::Fixed(number) => [number; LANES],
        }
    }

    #[inline(always)]
    pub fn truth(&self, truth: Truth) -> u32 {
        match truth {
            Truth::Reg { reg, negated: false } => self.truths[reg as usize],
            Truth::Reg { reg, negated: true } => !self.truths[reg as usize],
            Truth::Fixed(true) => ALL,
            Truth::Fixed(false) => 0,
        }
    }

    pub(super) fn address(&self, address: Address) -> Longs {
        let base = match address.base {
            Either::Word(word) => self.word(word).map(u64::from),
            Either::Long(long) => self.long(long),
        };
        base.map(|base| base.wrapping_add_signed(address.offset))
    }

    pub(super) fn set_truth(&mut self, to: u32, on: u32, truth: u32) {
        let old = &mut self.truths[to as usize];
        *old = *old & !on | truth & on;
    }
}
