//! Runs kernels: blocks one after the other, warps in random turns, the threads of a warp together.
//!
//! - In: decoded kernels, a launch and the memory of the card.
//! - Out: changed memory and counts, or the first fault.
//! - Knows: instructions ([`crate::decode`]) and memory. Nothing of CUDA or pipeplan.

use std::collections::VecDeque;

use self::warp::{ALL, Group, WarpState};
use crate::Memory;
use crate::decode::{Kernel, Op};
use crate::memory::{Shared, Toucher, Wrong};
use crate::number::Random;
use crate::products::Products;

mod arithmetic;
mod collective;
mod launch;
mod memory;
mod warp;

pub use self::launch::{Counts, Launch, Traffic};
pub use self::warp::{LANES, Warp, Words};

/// What is wrong, and with which lane.
pub struct LaneFault {
    pub what: String,
    /// The other instruction, where two are at fault.
    pub other: Option<u32>,
    pub lane: Option<usize>,
}

pub fn lane_fault<T>(what: impl Into<String>) -> Result<T, LaneFault> {
    Err(LaneFault { what: what.into(), other: None, lane: None })
}

pub fn of_lane(lane: usize) -> impl Fn(Wrong) -> LaneFault {
    move |Wrong { what, other }| LaneFault { what, other, lane: Some(lane) }
}

/// What all warps of a block share.
pub struct Block<'a> {
    pub kernel: &'a Kernel,
    pub launch: &'a Launch<'a>,
    number: u32,
    index: [u32; 3],
    memory: &'a mut Memory,
    pub shared: &'a mut Shared,
    /// When the launch began, and what the time is.
    first: u32,
    time: u32,
    traffic: &'a mut [Traffic],
    instructions: u64,
}

impl Block<'_> {
    /// Until all threads have ended, or the first trouble: its warp, instruction and what it is.
    fn run(&mut self, random: &mut Random) -> Result<(), (u32, Option<u32>, LaneFault)> {
        let threads = self.launch.threads;
        let mut warps: Vec<Warp> = (0..threads.div_ceil(LANES as u32)).map(|number| self.warp(number)).collect();
        loop {
            let open: Vec<usize> = (0..warps.len()).filter(|at| warps[*at].state == WarpState::Runs).collect();
            if open.is_empty() {
                self.groups_agree(&warps)?;
                if warps.iter().all(|warp| warp.state == WarpState::Ended) {
                    return Ok(());
                }
                self.pass_barrier(&mut warps)?;
                continue;
            }
            let warp = &mut warps[open[random.below(open.len())]];
            if self.instructions > self.launch.most_instructions {
                let what = format!("the block does not end within {} instructions", self.launch.most_instructions);
                let at = warp.groups.first().map(|group| group.at);
                return Err((warp.number, at, LaneFault { what, other: None, lane: None }));
            }
            // Long turns mostly: what matters is that each warp may be ahead of each.
            let turn = 1 << random.below(14);
            let mut at = None;
            warp.state = self.run_slice(warp, turn, &mut at).map_err(|lane_fault| (warp.number, at, lane_fault))?;
        }
    }

    fn warp(&self, number: u32) -> Warp {
        let count = (self.launch.threads - number * LANES as u32).min(LANES as u32);
        let lanes = if count == LANES as u32 { ALL } else { (1 << count) - 1 };
        Warp {
            number,
            lanes,
            words: vec![[0xffff_ffff; LANES]; self.kernel.words as usize],
            longs: vec![[u64::MAX; LANES]; self.kernel.longs as usize],
            truths: vec![0; self.kernel.truths as usize],
            groups: vec![Group { at: 0, lanes, waits: false }],
            state: WarpState::Runs,
            coming: (0..LANES).map(|_| VecDeque::new()).collect(),
            products: Products::default(),
        }
    }

    /// All warps stand at a barrier or have ended: lets them go on where that is the same barrier for all.
    fn pass_barrier(&mut self, warps: &mut [Warp]) -> Result<(), (u32, Option<u32>, LaneFault)> {
        let waiting = warps.iter().find_map(|warp| match warp.state {
            WarpState::Barrier(at) => Some((warp.number, at)),
            _ => None,
        });
        let Some((number, at)) = waiting else { return Ok(()) };
        if let Some(other) = warps.iter().find(|warp| warp.state != WarpState::Barrier(at)) {
            let (who, other) = match other.state {
                WarpState::Barrier(other_at) => (format!("warp {} waits at another", other.number), Some(other_at)),
                _ => (format!("the threads of warp {} have ended", other.number), None),
            };
            let what =
                format!("a barrier that not all threads of the block reach: warp {number} waits there, and {who}");
            return Err((number, Some(at), LaneFault { what, other, lane: None }));
        }
        if let Op::Barrier(Some((any, to, truth))) = self.kernel.code[at as usize].op {
            let of = |warp: &Warp| (warp.truth(truth) & warp.lanes, warp.lanes);
            let result = match any {
                true => warps.iter().any(|warp| of(warp).0 != 0),
                false => warps.iter().all(|warp| of(warp).0 == of(warp).1),
            };
            warps.iter_mut().for_each(|warp| warp.truths[to as usize] = if result { ALL } else { 0 });
        }
        self.time = self.memory.next_time();
        for warp in warps {
            warp.groups = vec![Group { at: at + 1, lanes: warp.lanes, waits: false }];
            warp.state = WarpState::Runs;
        }
        Ok(())
    }

    /// Runs `warp` for at most `most` instructions; `now` is the last one started.
    fn run_slice(&mut self, warp: &mut Warp, most: u32, now: &mut Option<u32>) -> Result<WarpState, LaneFault> {
        let mut left = most;
        loop {
            // Those that are furthest behind.
            let open = warp.groups.iter().enumerate().filter(|(_, group)| !group.waits);
            let Some((chosen, _)) = open.min_by_key(|(_, group)| group.at) else {
                return self.no_lane_goes_on(warp, now);
            };
            let Group { mut at, mut lanes, .. } = warp.groups.swap_remove(chosen);
            let others = warp.groups.iter().filter(|group| !group.waits);
            let mut next = others.map(|group| group.at).min().unwrap_or(u32::MAX);
            loop {
                if left == 0 {
                    warp.put(at, lanes, false);
                    return Ok(WarpState::Runs);
                }
                if at >= next {
                    warp.put(at, lanes, false);
                    break;
                }
                left -= 1;
                self.instructions += 1;
                let kernel = self.kernel;
                let instruction = &kernel.code[at as usize];
                *now = Some(at);
                let on = instruction.when.map_or(lanes, |truth| warp.truth(truth) & lanes);
                match &instruction.op {
                    Op::Jump(to) => {
                        if on == lanes {
                            at = *to;
                        } else {
                            if on != 0 {
                                warp.put(*to, on, false);
                                next = next.min(*to);
                                lanes &= !on;
                            }
                            at += 1;
                        }
                        continue;
                    }
                    Op::Return => {
                        if let Some(lane) =
                            (0..LANES).find(|lane| on >> lane & 1 == 1 && !warp.coming[*lane].is_empty())
                        {
                            let what = "the thread ends and has not waited for copies that it began".to_string();
                            return Err(LaneFault { what, other: None, lane: Some(lane) });
                        }
                        if on != 0 && !warp.products.are_done() {
                            return lane_fault("the threads end and have not waited for products that they began");
                        }
                        if on == lanes {
                            break;
                        }
                        lanes &= !on;
                        at += 1;
                        continue;
                    }
                    // What threads do together: none goes on before all are here.
                    Op::Barrier(_) => {
                        if on != lanes {
                            return lane_fault("a barrier that only some threads of a warp ask for");
                        }
                        warp.put(at, lanes, true);
                        if warp.groups.len() == 1 && warp.groups[0].lanes == warp.lanes {
                            return Ok(WarpState::Barrier(at));
                        }
                        break;
                    }
                    op @ (Op::Shuffle { .. }
                    | Op::Ballot { .. }
                    | Op::Matrices { .. }
                    | Op::Multiply { .. }
                    | Op::BeginProducts
                    | Op::MultiplyAsync(_)
                    | Op::CommitProducts
                    | Op::AwaitProducts(_)) => {
                        if on != lanes {
                            return lane_fault("only some threads of a warp ask for what they do together");
                        }
                        let members = warp.members(op, lanes)?;
                        let here = warp.put(at, lanes, true);
                        if warp.groups[here].lanes & members != members {
                            break;
                        }
                        lanes = warp.groups.swap_remove(here).lanes;
                        self.run_collective(warp, at, op, lanes)?;
                    }
                    _ if on == 0 => {}
                    _ => self.run_per_lane(warp, at, instruction, on)?,
                }
                at += 1;
            }
        }
    }

    /// No group of `warp` can go on: it has ended, or waits for lanes that never come.
    fn no_lane_goes_on(&self, warp: &Warp, now: &mut Option<u32>) -> Result<WarpState, LaneFault> {
        let Some(group) = warp.groups.first() else { return Ok(WarpState::Ended) };
        *now = Some(group.at);
        let others = warp.groups[1..].iter().map(|other| {
            format!("lanes {:#x} wait at PTX line {}", other.lanes, self.kernel.code[other.at as usize].line.ptx)
        });
        let there = warp.groups.iter().fold(0, |lanes, group| lanes | group.lanes);
        let ended = (there != warp.lanes).then(|| format!("lanes {:#x} have ended", warp.lanes & !there));
        let rest: Vec<String> = others.chain(ended).collect();
        let what = match self.kernel.code[group.at as usize].op {
            Op::Barrier(_) => "a barrier that not all threads of a warp reach",
            _ => "inactive lanes where a warp acts together",
        };
        lane_fault(format!(
            "{what}: lanes {:#x} of warp {} wait there, {}",
            group.lanes,
            warp.number,
            rest.join(", ")
        ))
    }

    pub fn toucher(&self, warp: &Warp, lane: usize, at: u32) -> Toucher {
        Toucher { block: self.number, thread: warp.number * LANES as u32 + lane as u32, time: self.time, at }
    }
}
