//! A launch of a kernel: its blocks, one after the other, and what is counted of it.

use super::warp::LANES;
use super::{Block, LaneFault};
use crate::memory::Shared;
use crate::number::Random;
use crate::{Fault, Line, Memory, Module};

/// A launch of a kernel.
pub struct Launch<'a> {
    /// Its name.
    pub kernel: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that the launch chooses.
    pub shared: u32,
    /// The bytes of its parameters.
    pub parameters: &'a [u8],
    /// Bytes of shared memory that a block may have, and that it has without asking for more.
    pub most_shared: u32,
    /// Instructions of warps after which a block counts as one that does not end.
    pub most_instructions: u64,
    /// Draws the order of blocks and warps.
    pub seed: u64,
    /// Whether accesses of memory are counted.
    pub counts_traffic: bool,
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions, each of a warp.
    pub instructions: u64,
    /// Accesses of memory, where they were counted.
    pub traffic: Vec<(Line, Traffic)>,
}

impl Counts {
    /// Adds those of another launch of the same kernel.
    pub fn add(&mut self, other: &Counts) {
        self.instructions += other.instructions;
        for (line, traffic) in &other.traffic {
            match self.traffic.binary_search_by_key(line, |(line, _)| *line) {
                Ok(at) => self.traffic[at].1.add(traffic),
                Err(at) => self.traffic.insert(at, (*line, *traffic)),
            }
        }
    }
}

/// What an instruction does to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Whether it is shared memory.
    pub is_shared: bool,
    /// By how many warps.
    pub requests: u64,
    /// What they took: passes over the banks of shared memory, or sectors of 32 bytes of global memory.
    pub taken: u64,
    /// What they would take at best for as many bytes.
    pub needed: u64,
}

impl Traffic {
    /// Adds what the same instruction did elsewhere.
    fn add(&mut self, other: &Traffic) {
        self.is_shared = other.is_shared;
        self.requests += other.requests;
        self.taken += other.taken;
        self.needed += other.needed;
    }

    /// Sectors of 32 bytes that a warp touches, and that as many bytes side by side would.
    pub(super) fn global(&mut self, places: &[u64], on: u32, width: u64) {
        let mut sectors: Vec<u64> = lanes_of(places, on).map(|place| place / 32).collect();
        let bytes: u64 = {
            let mut apart: Vec<u64> = lanes_of(places, on).collect();
            apart.sort_unstable();
            apart.dedup();
            apart.len() as u64 * width
        };
        sectors.sort_unstable();
        sectors.dedup();
        self.requests += 1;
        self.taken += sectors.len() as u64;
        self.needed += bytes.div_ceil(32);
    }

    /// Passes over the 32 banks of 4 bytes each; accesses of 8 and 16 bytes go by halves and quarters of the warp.
    pub(super) fn shared(&mut self, places: &[u64], on: u32, width: u64) {
        self.is_shared = true;
        self.requests += 1;
        let at_once = (128 / width.max(4)) as usize;
        let all: Vec<Option<u64>> =
            places.iter().enumerate().map(|(lane, place)| (on >> lane & 1 == 1).then_some(*place)).collect();
        for part in all.chunks(at_once) {
            let mut words: Vec<u64> =
                part.iter().flatten().flat_map(|place| place / 4..(place + width).div_ceil(4)).collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0u64; 32];
            words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
            self.taken += banks.iter().max().copied().unwrap_or(0);
            self.needed += words.len().div_ceil(32) as u64;
        }
    }
}

fn lanes_of(places: &[u64], on: u32) -> impl Iterator<Item = u64> {
    places.iter().enumerate().filter(move |(lane, _)| on >> lane & 1 == 1).map(|(_, place)| *place)
}

impl Module {
    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn launch(&self, memory: &mut Memory, launch: &Launch<'_>) -> Result<Counts, Fault> {
        let fault = |what: String| Fault {
            kernel: launch.kernel.to_string(),
            what,
            line: 0,
            source: None,
            block: None,
            thread: None,
        };
        let kernel = self.kernels.get(launch.kernel).ok_or_else(|| fault("there is no such kernel".to_string()))?;
        let Launch { grid, threads, shared, parameters, .. } = *launch;
        let most = kernel.most_threads.unwrap_or(1024);
        if threads == 0 || threads > most {
            return Err(fault(format!("{threads} threads a block, and it is compiled for {most}")));
        }
        if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 {
            return Err(fault(format!("a card takes no grid of {grid:?} blocks")));
        }
        if kernel.static_bytes + shared > launch.most_shared {
            let own = kernel.static_bytes;
            return Err(fault(format!(
                "{own} + {shared} bytes of shared memory, and a block has {}",
                launch.most_shared
            )));
        }
        if parameters.len() != kernel.parameter_bytes as usize {
            return Err(fault(format!(
                "{} bytes of parameters, and it takes {}",
                parameters.len(),
                kernel.parameter_bytes
            )));
        }
        let mut random = Random(launch.seed);
        let blocks: u32 = grid.iter().product();
        let mut order: Vec<u32> = (0..blocks).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at + 1)));
        let mut arrays = kernel.shared.clone();
        arrays.push((kernel.dynamic, kernel.dynamic + shared));
        let mut shared = Shared::new(arrays, kernel.grain[1]);
        let mut traffic = vec![Traffic::default(); if launch.counts_traffic { kernel.code.len() } else { 0 }];
        let mut instructions = 0;
        let first = memory.next_time();
        for number in order {
            let index = [number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]];
            let time = memory.next_time();
            shared.begin(time);
            let mut block = Block {
                kernel,
                launch,
                number,
                index,
                memory,
                shared: &mut shared,
                first,
                time,
                traffic: &mut traffic,
                instructions: 0,
            };
            let ended = block.run(&mut random);
            instructions += block.instructions;
            ended.map_err(|(warp, at, LaneFault { what, other, lane })| {
                let line = at.map(|at| kernel.code[at as usize].line).unwrap_or_default();
                let other = other.map(|at| format!("; the other is {}", self.place(kernel.code[at as usize].line)));
                Fault {
                    what: what + &other.unwrap_or_default(),
                    line: line.ptx,
                    source: self
                        .files
                        .get(&line.file)
                        .filter(|_| line.line > 0)
                        .map(|file| (file.clone(), line.line)),
                    block: Some(index),
                    thread: lane.map(|lane| warp * LANES as u32 + lane as u32),
                    ..fault(String::new())
                }
            })?;
        }
        let of_code = kernel.code.iter().map(|instruction| instruction.line);
        let traffic = of_code.zip(traffic).filter(|(_, traffic)| traffic.requests > 0).collect();
        Ok(Counts { instructions, traffic })
    }
}
