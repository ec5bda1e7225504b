//! Runs kernels: blocks one after the other, warps in turns, threads of a warp together.

use std::collections::VecDeque;

use crate::decode::{
    Access, Address, BitsOne, Compare, Either, FloatOne, FloatTwo, Handing, Instruction, Kernel, Long, Op, Space,
    Special, Truth, Two, Whole, Word,
};
use crate::memory::{BY_WARP, Coming, Shared, Toucher, Wrong};
use crate::number::{self, Dice};
use crate::products::Products;
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

pub const LANES: usize = 32;
const ALL: u32 = u32::MAX;

pub type Words = [u32; LANES];
type Longs = [u64; LANES];

/// Threads of a warp that stand at one place.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: u32,
    lanes: u32,
    waits: bool,
}

/// What is wrong, and with which lane.
pub struct Trouble {
    pub what: String,
    /// The other instruction, where two are at fault.
    pub other: Option<u32>,
    pub lane: Option<usize>,
}

pub fn trouble<T>(what: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble { what: what.into(), other: None, lane: None })
}

pub fn of_lane(lane: usize) -> impl Fn(Wrong) -> Trouble {
    move |Wrong { what, other }| Trouble { what, other, lane: Some(lane) }
}

/// Where a warp stands after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Runs,
    /// At a barrier of the block, the instruction said.
    Barrier(u32),
    Ended,
}

pub struct Warp {
    pub number: u32,
    /// Lanes that there are.
    lanes: u32,
    pub words: Vec<Words>,
    longs: Vec<Longs>,
    truths: Vec<u32>,
    groups: Vec<Group>,
    stand: Stand,
    /// By lane: groups of copies, the last one still open.
    coming: Vec<VecDeque<Vec<Coming>>>,
    pub products: Products,
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
        let mut dice = Dice(launch.seed);
        let blocks: u32 = grid.iter().product();
        let mut order: Vec<u32> = (0..blocks).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, dice.below(at + 1)));
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
            let ended = block.run(&mut dice);
            instructions += block.instructions;
            ended.map_err(|(warp, at, Trouble { what, other, lane })| {
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

impl Block<'_> {
    /// Until all threads have ended, or the first trouble: its warp, instruction and what it is.
    fn run(&mut self, dice: &mut Dice) -> Result<(), (u32, Option<u32>, Trouble)> {
        let threads = self.launch.threads;
        let mut warps: Vec<Warp> = (0..threads.div_ceil(LANES as u32)).map(|number| self.warp(number)).collect();
        loop {
            let open: Vec<usize> = (0..warps.len()).filter(|at| warps[*at].stand == Stand::Runs).collect();
            if open.is_empty() {
                self.groups_agree(&warps)?;
                if warps.iter().all(|warp| warp.stand == Stand::Ended) {
                    return Ok(());
                }
                self.meet(&mut warps)?;
                continue;
            }
            let warp = &mut warps[open[dice.below(open.len())]];
            if self.instructions > self.launch.most_instructions {
                let what = format!("the block does not end within {} instructions", self.launch.most_instructions);
                let at = warp.groups.first().map(|group| group.at);
                return Err((warp.number, at, Trouble { what, other: None, lane: None }));
            }
            // Long turns mostly: what matters is that each warp may be ahead of each.
            let turn = 1 << dice.below(14);
            let mut at = None;
            warp.stand = self.turn(warp, turn, &mut at).map_err(|trouble| (warp.number, at, trouble))?;
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
            stand: Stand::Runs,
            coming: (0..LANES).map(|_| VecDeque::new()).collect(),
            products: Products::default(),
        }
    }

    /// All warps stand at a barrier or have ended: lets them go on where that is the same barrier for all.
    fn meet(&mut self, warps: &mut [Warp]) -> Result<(), (u32, Option<u32>, Trouble)> {
        let waiting = warps.iter().find_map(|warp| match warp.stand {
            Stand::Barrier(at) => Some((warp.number, at)),
            _ => None,
        });
        let Some((number, at)) = waiting else { return Ok(()) };
        if let Some(other) = warps.iter().find(|warp| warp.stand != Stand::Barrier(at)) {
            let (who, other) = match other.stand {
                Stand::Barrier(other_at) => (format!("warp {} waits at another", other.number), Some(other_at)),
                _ => (format!("the threads of warp {} have ended", other.number), None),
            };
            let what =
                format!("a barrier that not all threads of the block reach: warp {number} waits there, and {who}");
            return Err((number, Some(at), Trouble { what, other, lane: None }));
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
            warp.stand = Stand::Runs;
        }
        Ok(())
    }

    /// Runs `warp` for at most so many instructions; `now` is the last one begun.
    fn turn(&mut self, warp: &mut Warp, most: u32, now: &mut Option<u32>) -> Result<Stand, Trouble> {
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
                    return Ok(Stand::Runs);
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
                            return Err(Trouble { what, other: None, lane: Some(lane) });
                        }
                        if on != 0 && !warp.products.are_done() {
                            return trouble("the threads end and have not waited for products that they began");
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
                            return trouble("a barrier that only some threads of a warp ask for");
                        }
                        warp.put(at, lanes, true);
                        if warp.groups.len() == 1 && warp.groups[0].lanes == warp.lanes {
                            return Ok(Stand::Barrier(at));
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
                            return trouble("only some threads of a warp ask for what they do together");
                        }
                        let members = warp.members(op, lanes)?;
                        let here = warp.put(at, lanes, true);
                        if warp.groups[here].lanes & members != members {
                            break;
                        }
                        lanes = warp.groups.swap_remove(here).lanes;
                        self.together(warp, at, op, lanes)?;
                    }
                    _ if on == 0 => {}
                    _ => self.alone(warp, at, instruction, on)?,
                }
                at += 1;
            }
        }
    }

    /// No group of `warp` can go on: it has ended, or waits for lanes that never come.
    fn no_lane_goes_on(&self, warp: &Warp, now: &mut Option<u32>) -> Result<Stand, Trouble> {
        let Some(group) = warp.groups.first() else { return Ok(Stand::Ended) };
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
        trouble(format!("{what}: lanes {:#x} of warp {} wait there, {}", group.lanes, warp.number, rest.join(", ")))
    }

    pub fn toucher(&self, warp: &Warp, lane: usize, at: u32) -> Toucher {
        Toucher { block: self.number, thread: warp.number * LANES as u32 + lane as u32, time: self.time, at }
    }

    /// What the lanes of a warp do together.
    fn together(&mut self, warp: &mut Warp, at: u32, op: &Op, lanes: u32) -> Result<(), Trouble> {
        match op {
            Op::Shuffle { way, to, within, value, by, clamp, .. } => {
                let [value, by, clamp] = [value, by, clamp].map(|word| warp.word(*word));
                let (mut result, mut is_within) = ([0; LANES], 0u32);
                for lane in 0..LANES as u32 {
                    let (by, bounds) = (by[lane as usize] & 31, clamp[lane as usize]);
                    let (clamp, segments) = (bounds & 31, bounds >> 8 & 31);
                    let highest = lane & segments | clamp & !segments;
                    let lowest = lane & segments;
                    let (from, is_there) = match way {
                        Handing::Xor => (lane ^ by, lane ^ by <= highest),
                        Handing::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= highest as i32),
                        Handing::Down => (lane + by, lane + by <= highest),
                        Handing::Index => (lowest | by & !segments, lowest | by & !segments <= highest),
                    };
                    let from = if is_there { from } else { lane };
                    if lanes >> lane & 1 == 1 && lanes >> from & 1 == 0 {
                        let what = format!("it takes a value from lane {from}, which does not take part");
                        return Err(Trouble { what, other: None, lane: Some(lane as usize) });
                    }
                    result[lane as usize] = value[from as usize];
                    is_within |= u32::from(is_there) << lane;
                }
                put(&mut warp.words[*to as usize], lanes, |lane| result[lane]);
                if let Some(within) = within {
                    let truth = &mut warp.truths[*within as usize];
                    *truth = *truth & !lanes | is_within & lanes;
                }
            }
            Op::Ballot { to, truth, .. } => {
                let votes = warp.truth(*truth) & lanes;
                put(&mut warp.words[*to as usize], lanes, |_| votes);
            }
            Op::Matrices { to, transposed, address } => {
                let places = warp.address(*address);
                let mut rows = [[0u8; 16]; LANES];
                for (lane, row) in rows.iter_mut().enumerate().take(8 * to.len()) {
                    // The whole warp gets what a lane points to.
                    let who = Toucher { thread: BY_WARP, ..self.toucher(warp, lane, at) };
                    row.copy_from_slice(self.shared.load(places[lane], 16, who).map_err(of_lane(lane))?);
                }
                let halves = |row: &[u8; 16], column: usize| {
                    u32::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
                };
                for (matrix, to) in to.iter().enumerate() {
                    let rows = &rows[8 * matrix..8 * matrix + 8];
                    let pair = |lane: usize| {
                        let [first, second] = [0, 1].map(|one| match transposed {
                            false => halves(&rows[lane / 4], lane % 4 * 2 + one),
                            true => halves(&rows[lane % 4 * 2 + one], lane / 4),
                        });
                        second << 16 | first
                    };
                    put(&mut warp.words[*to as usize], lanes, pair);
                }
                if let Some(traffic) = self.traffic.get_mut(at as usize) {
                    traffic.shared(&places[..8 * to.len()], ALL, 16);
                }
            }
            Op::Multiply { to, left, right, plus } => {
                let [left, plus] = [left, plus].map(|words| words.map(|word| warp.word(word)));
                let right = right.map(|word| warp.word(word));
                let half =
                    |both: u32, one: usize| f32::from_bits(if one == 0 { both << 16 } else { both & 0xffff_0000 });
                let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
                for lane in 0..LANES {
                    let (row, pair) = (lane / 4, lane % 4 * 2);
                    for one in 0..2 {
                        for (register, words) in left.iter().enumerate() {
                            a[row + register % 2 * 8][pair + register / 2 * 8 + one] = half(words[lane], one);
                        }
                        for (register, words) in right.iter().enumerate() {
                            b[pair + register * 8 + one][row] = half(words[lane], one);
                        }
                    }
                }
                let mut c = [[0f32; 8]; 16];
                for (row, sums) in a.iter().zip(&mut c) {
                    for (factor, others) in row.iter().zip(&b) {
                        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += factor * other);
                    }
                }
                for (register, to) in to.iter().enumerate() {
                    let words = plus[register];
                    put(&mut warp.words[*to as usize], lanes, |lane| {
                        let sum = c[lane / 4 + register / 2 * 8][lane % 4 * 2 + register % 2];
                        (f32::from_bits(words[lane]) + sum).to_bits()
                    });
                }
            }
            Op::BeginProducts => warp.begin_products(),
            Op::MultiplyAsync(product) => self.multiply(warp, at, product)?,
            Op::CommitProducts => warp.products.commit(),
            Op::AwaitProducts(left) => self.await_products(warp, *left as usize)?,
            _ => return trouble("the warp does this not together"),
        }
        Ok(())
    }

    /// What each thread does for itself.
    fn alone(&mut self, warp: &mut Warp, at: u32, instruction: &Instruction, on: u32) -> Result<(), Trouble> {
        match &instruction.op {
            Op::Load(access) => return self.load(warp, at, access, on),
            Op::Store(access) => return self.store(warp, at, access, on),
            Op::Special(to, special) => {
                let launch = self.launch;
                let thread = warp.number * LANES as u32;
                let of = |lane: usize| match special {
                    Special::Thread(0) => thread + lane as u32,
                    Special::Thread(_) => 0,
                    Special::Threads(0) => launch.threads,
                    Special::Threads(_) => 1,
                    Special::Block(axis) => self.index[*axis],
                    Special::Blocks(axis) => launch.grid[*axis],
                    Special::Lane => lane as u32,
                    Special::Warp => warp.number,
                };
                put(&mut warp.words[*to as usize], on, of);
            }
            Op::CopyAsync { to, from, bytes, there } => {
                let [to, from] = [to, from].map(|address| warp.address(*address));
                let there = warp.word(*there);
                for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
                    let who = self.toucher(warp, lane, at);
                    if there[lane] > *bytes {
                        return Err(of_lane(lane)(format!("it copies {} of {bytes} bytes", there[lane]).into()));
                    }
                    let mut content = [0; 16];
                    if !from[lane].is_multiple_of(u64::from(*bytes)) {
                        return Err(of_lane(lane)(
                            format!("the address {:#x} is not aligned to {bytes} bytes", from[lane]).into(),
                        ));
                    }
                    if there[lane] > 0 {
                        let read = self.memory.load(from[lane], there[lane], self.kernel.grain[0], who, self.first);
                        content[..there[lane] as usize].copy_from_slice(read.map_err(of_lane(lane))?);
                    }
                    let coming = self.shared.begin_copy(to[lane], *bytes, content, who).map_err(of_lane(lane))?;
                    let groups = &mut warp.coming[lane];
                    let mut open = groups.pop_back().unwrap_or_default();
                    open.push(coming);
                    groups.push_back(open);
                }
                if let Some(traffic) = self.traffic.get_mut(at as usize) {
                    traffic.global(&from, on, u64::from(*bytes));
                }
            }
            Op::ShowToAsync => {
                let lanes = (0..LANES).filter(|lane| on >> lane & 1 == 1);
                lanes.for_each(|lane| self.shared.show(warp.number * LANES as u32 + lane as u32));
            }
            Op::CommitCopies => {
                for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
                    warp.coming[lane].push_back(Vec::new());
                }
            }
            Op::AwaitCopies(_) | Op::AwaitAllCopies => {
                for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
                    let who = self.toucher(warp, lane, at);
                    let groups = &mut warp.coming[lane];
                    // The last group is the open one, which only `wait_all` ends.
                    let left = match instruction.op {
                        Op::AwaitCopies(left) => left as usize + 1,
                        _ => 0,
                    };
                    while groups.len() > left {
                        let ended = groups.pop_front().unwrap_or_default();
                        ended.iter().for_each(|coming| self.shared.end_copy(coming, who));
                    }
                    if groups.iter().all(Vec::is_empty) {
                        groups.clear();
                    }
                }
            }
            other => return warp.compute(other, on),
        }
        Ok(())
    }

    fn load(&mut self, warp: &mut Warp, at: u32, access: &Access, on: u32) -> Result<(), Trouble> {
        let places = warp.address(access.address);
        let (width, size) = (access.width(), access.whole.bits as usize / 8);
        for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
            let who = self.toucher(warp, lane, at);
            let place = places[lane];
            let bytes = match access.space {
                Space::Global => {
                    self.memory.load(place, width, self.kernel.grain[0], who, self.first).map_err(of_lane(lane))?
                }
                Space::Shared => self.shared.load(place, width, who).map_err(of_lane(lane))?,
                Space::Parameter => {
                    let bytes =
                        self.launch.parameters.get(place as usize..).and_then(|bytes| bytes.get(..width as usize));
                    match bytes {
                        Some(bytes) if place.is_multiple_of(u64::from(width)) => bytes,
                        _ => return trouble(format!("no parameter of {width} bytes is at {place}")),
                    }
                }
            };
            // Most loads are of one word.
            if let ([Either::Word(Word::Reg(to))], [a, b, c, d]) = (&access.values[..], bytes) {
                warp.words[*to as usize][lane] = u32::from_le_bytes([*a, *b, *c, *d]);
                continue;
            }
            for (value, bytes) in access.values.iter().zip(bytes.chunks_exact(size)) {
                let mut whole = [0; 8];
                whole[..size].copy_from_slice(bytes);
                let mut number = u64::from_le_bytes(whole);
                if access.whole.signed {
                    let above = 64 - access.whole.bits;
                    number = ((number << above) as i64 >> above) as u64;
                }
                match value {
                    Either::Word(Word::Reg(to)) => warp.words[*to as usize][lane] = number as u32,
                    Either::Long(Long::Reg(to)) => warp.longs[*to as usize][lane] = number,
                    _ => return trouble("it loads into no register"),
                }
            }
        }
        self.count(at, access, &places, on);
        Ok(())
    }

    fn store(&mut self, warp: &mut Warp, at: u32, access: &Access, on: u32) -> Result<(), Trouble> {
        let places = warp.address(access.address);
        let (width, size) = (access.width(), access.whole.bits as usize / 8);
        for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
            let who = self.toucher(warp, lane, at);
            let place = places[lane];
            let bytes = match access.space {
                Space::Global => self.memory.store(place, width, self.kernel.grain[0], who, self.first),
                Space::Shared => self.shared.store(place, width, who),
                Space::Parameter => return trouble("it stores to a parameter"),
            };
            let bytes = bytes.map_err(of_lane(lane))?;
            for (value, bytes) in access.values.iter().zip(bytes.chunks_exact_mut(size)) {
                let number = match *value {
                    Either::Word(Word::Reg(from)) => u64::from(warp.words[from as usize][lane]),
                    Either::Word(Word::Fixed(number)) => u64::from(number),
                    Either::Long(Long::Reg(from)) => warp.longs[from as usize][lane],
                    Either::Long(Long::Fixed(number)) => number,
                };
                bytes.copy_from_slice(&number.to_le_bytes()[..size]);
            }
        }
        self.count(at, access, &places, on);
        Ok(())
    }

    fn count(&mut self, at: u32, access: &Access, places: &Longs, on: u32) {
        let Some(traffic) = self.traffic.get_mut(at as usize) else { return };
        match access.space {
            Space::Global => traffic.global(places, on, access.width().into()),
            Space::Shared => traffic.shared(places, on, access.width().into()),
            Space::Parameter => {}
        }
    }
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
    fn global(&mut self, places: &[u64], on: u32, width: u64) {
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
    fn shared(&mut self, places: &[u64], on: u32, width: u64) {
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

/// Sets the lanes `on` of a register.
#[inline(always)]
fn put<T>(to: &mut [T; LANES], on: u32, of: impl Fn(usize) -> T) {
    if on == ALL {
        to.iter_mut().enumerate().for_each(|(lane, to)| *to = of(lane));
    } else {
        to.iter_mut().enumerate().filter(|(lane, _)| on >> lane & 1 == 1).for_each(|(lane, to)| *to = of(lane));
    }
}

impl Warp {
    /// Adds lanes that stand at `at`, to those that stand there already; which group they are now.
    fn put(&mut self, at: u32, lanes: u32, waits: bool) -> usize {
        if let Some(here) = self.groups.iter().position(|group| group.at == at && group.waits == waits) {
            self.groups[here].lanes |= lanes;
            return here;
        }
        self.groups.push(Group { at, lanes, waits });
        self.groups.len() - 1
    }

    /// The lanes that have to take part in `op`, for which `lanes` ask.
    fn members(&self, op: &Op, lanes: u32) -> Result<u32, Trouble> {
        let word = match op {
            Op::Shuffle { members, .. } | Op::Ballot { members, .. } => *members,
            _ if self.lanes != ALL => return trouble("matrices need a whole warp, and this one has fewer threads"),
            _ => return Ok(ALL),
        };
        let asked = self.word(word);
        let first = asked[lanes.trailing_zeros() as usize];
        if let Some(lane) =
            (0..LANES).find(|lane| lanes >> lane & 1 == 1 && (asked[*lane] != first || first >> lane & 1 == 0))
        {
            let what = format!("the mask {:#x} of its members is another lane's too, or lacks it", asked[lane]);
            return Err(Trouble { what, other: None, lane: Some(lane) });
        }
        match first & !self.lanes {
            0 => Ok(first),
            missing => trouble(format!("lanes {missing:#x} should take part, and the block has no such threads")),
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

    fn address(&self, address: Address) -> Longs {
        let base = match address.base {
            Either::Word(word) => self.word(word).map(u64::from),
            Either::Long(long) => self.long(long),
        };
        base.map(|base| base.wrapping_add_signed(address.offset))
    }

    #[inline(always)]
    fn words2(&mut self, to: u32, on: u32, [a, b]: [Word; 2], of: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.word(a), self.word(b));
        put(&mut self.words[to as usize], on, |lane| of(a[lane], b[lane]));
    }

    #[inline(always)]
    fn longs2(&mut self, to: u32, on: u32, [a, b]: [Long; 2], of: impl Fn(u64, u64) -> u64) {
        let (a, b) = (self.long(a), self.long(b));
        put(&mut self.longs[to as usize], on, |lane| of(a[lane], b[lane]));
    }

    #[inline(always)]
    fn words1(&mut self, to: u32, on: u32, a: Word, of: impl Fn(u32) -> u32) {
        let a = self.word(a);
        put(&mut self.words[to as usize], on, |lane| of(a[lane]));
    }

    #[inline(always)]
    fn floats2(&mut self, to: u32, on: u32, from: [Word; 2], of: impl Fn(f32, f32) -> f32) {
        self.words2(to, on, from, |a, b| of(f32::from_bits(a), f32::from_bits(b)).to_bits());
    }

    #[inline(always)]
    fn floats1(&mut self, to: u32, on: u32, from: Word, of: impl Fn(f32) -> f32) {
        self.words1(to, on, from, |a| of(f32::from_bits(a)).to_bits());
    }

    fn set_truth(&mut self, to: u32, on: u32, truth: u32) {
        let old = &mut self.truths[to as usize];
        *old = *old & !on | truth & on;
    }

    #[inline(always)]
    fn test<T: Copy>(&mut self, to: u32, on: u32, a: [T; LANES], b: [T; LANES], holds: impl Fn(T, T) -> bool) {
        let truth = (0..LANES).fold(0, |truth, lane| truth | u32::from(holds(a[lane], b[lane])) << lane);
        self.set_truth(to, on, truth);
    }

    #[inline(always)]
    fn compare<T: Copy + PartialOrd>(&mut self, how: Compare, to: u32, on: u32, a: [T; LANES], b: [T; LANES]) {
        match how {
            Compare::Eq => self.test(to, on, a, b, |a, b| a == b),
            Compare::Ne => self.test(to, on, a, b, |a, b| a != b),
            Compare::Lt => self.test(to, on, a, b, |a, b| a < b),
            Compare::Le => self.test(to, on, a, b, |a, b| a <= b),
            Compare::Gt => self.test(to, on, a, b, |a, b| a > b),
            Compare::Ge => self.test(to, on, a, b, |a, b| a >= b),
            Compare::Number => self.test(to, on, a, b, |a, b| a.partial_cmp(&b).is_some()),
            Compare::NoNumber => self.test(to, on, a, b, |_, _| false),
        }
    }

    /// What changes registers only.
    fn compute(&mut self, op: &Op, on: u32) -> Result<(), Trouble> {
        match *op {
            Op::Copy32(to, from) => self.words1(to, on, from, |a| a),
            Op::Copy64(to, from) => {
                let from = self.long(from);
                put(&mut self.longs[to as usize], on, |lane| from[lane]);
            }
            Op::CopyTruth(to, from) => self.set_truth(to, on, self.truth(from)),
            Op::Split32([low, high], from) => {
                let from = self.word(from);
                put(&mut self.words[low as usize], on, |lane| from[lane] & 0xffff);
                put(&mut self.words[high as usize], on, |lane| from[lane] >> 16);
            }
            Op::Join32(to, from) => self.words2(to, on, from, |low, high| high << 16 | low & 0xffff),
            Op::Split64([low, high], from) => {
                let from = self.long(from);
                put(&mut self.words[low as usize], on, |lane| from[lane] as u32);
                put(&mut self.words[high as usize], on, |lane| (from[lane] >> 32) as u32);
            }
            Op::Join64(to, from) => {
                let [low, high] = from.map(|word| self.word(word));
                put(&mut self.longs[to as usize], on, |lane| u64::from(high[lane]) << 32 | u64::from(low[lane]));
            }
            Op::Two32(two, whole, to, from) => return self.two32(two, whole, to, from, on),
            Op::Two64(two, signed, to, from) => return self.two64(two, signed, to, from, on),
            Op::Shift32 { left: true, whole, to, from } => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                self.words2(to, on, from, |a, by| a.checked_shl(by).unwrap_or(0) & kept);
            }
            Op::Shift32 { left: false, whole, to, from } => match (whole.signed, whole.bits) {
                (false, _) => self.words2(to, on, from, |a, by| a.checked_shr(by).unwrap_or(0)),
                (true, 16) => {
                    self.words2(to, on, from, |a, by| (i32::from(a as u16 as i16) >> by.min(31)) as u32 & 0xffff)
                }
                (true, _) => self.words2(to, on, from, |a, by| (a as i32 >> by.min(31)) as u32),
            },
            Op::Shift64 { left, signed, to, from, by } => {
                let (from, by) = (self.long(from), self.word(by));
                let to = &mut self.longs[to as usize];
                match (left, signed) {
                    (true, _) => put(to, on, |lane| from[lane].checked_shl(by[lane]).unwrap_or(0)),
                    (false, false) => put(to, on, |lane| from[lane].checked_shr(by[lane]).unwrap_or(0)),
                    (false, true) => put(to, on, |lane| (from[lane] as i64 >> by[lane].min(63)) as u64),
                }
            }
            Op::One32(one, whole, to, from) => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                match one {
                    BitsOne::Not => self.words1(to, on, from, |a| !a & kept),
                    BitsOne::Neg => self.words1(to, on, from, |a| a.wrapping_neg() & kept),
                    BitsOne::Abs { half: true } => {
                        self.words1(to, on, from, |a| u32::from((a as u16 as i16).unsigned_abs()));
                    }
                    BitsOne::Abs { half: false } => self.words1(to, on, from, |a| (a as i32).unsigned_abs()),
                    BitsOne::Reversed => self.words1(to, on, from, u32::reverse_bits),
                    BitsOne::LeadingZeros => self.words1(to, on, from, u32::leading_zeros),
                    BitsOne::Ones => self.words1(to, on, from, u32::count_ones),
                    BitsOne::Highest { signed, shift } => self.words1(to, on, from, |a| {
                        let a = if signed && (a as i32) < 0 { !a } else { a };
                        let none = if a == 0 { ALL } else { 31 - a.leading_zeros() };
                        if shift && a != 0 { a.leading_zeros() } else { none }
                    }),
                }
            }
            Op::One64(one, to, from) => {
                let from = self.long(from);
                let to = &mut self.longs[to as usize];
                match one {
                    BitsOne::Not => put(to, on, |lane| !from[lane]),
                    BitsOne::Neg => put(to, on, |lane| from[lane].wrapping_neg()),
                    BitsOne::Abs { .. } => put(to, on, |lane| (from[lane] as i64).unsigned_abs()),
                    _ => return trouble("it is not known for 64 bits"),
                }
            }
            Op::Wide { signed, to, from, plus } => {
                let [a, b] = from.map(|word| self.word(word));
                let plus = plus.map_or([0; LANES], |plus| self.long(plus));
                let to = &mut self.longs[to as usize];
                match signed {
                    true => put(to, on, |lane| {
                        (i64::from(a[lane] as i32) * i64::from(b[lane] as i32)).wrapping_add(plus[lane] as i64) as u64
                    }),
                    false => put(to, on, |lane| (u64::from(a[lane]) * u64::from(b[lane])).wrapping_add(plus[lane])),
                }
            }
            Op::MulAdd32(whole, to, from) => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                let [a, b, c] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| {
                    a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane]) & kept
                });
            }
            Op::MulAdd64(to, from) => {
                let [a, b, c] = from.map(|long| self.long(long));
                put(&mut self.longs[to as usize], on, |lane| a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane]));
            }
            Op::Compare32(how, whole, to, from) => {
                let [a, b] = from.map(|word| self.word(word));
                match (whole.signed, whole.bits) {
                    (false, _) => self.compare(how, to, on, a, b),
                    (true, 16) => self.compare(how, to, on, a.map(|a| a as u16 as i16), b.map(|b| b as u16 as i16)),
                    (true, _) => self.compare(how, to, on, a.map(|a| a as i32), b.map(|b| b as i32)),
                }
            }
            Op::Compare64(how, signed, to, from) => {
                let [a, b] = from.map(|long| self.long(long));
                match signed {
                    false => self.compare(how, to, on, a, b),
                    true => self.compare(how, to, on, a.map(|a| a as i64), b.map(|b| b as i64)),
                }
            }
            Op::CompareFloat(how, or_none, to, from) => {
                let [a, b] = from.map(|word| self.word(word).map(f32::from_bits));
                self.compare(how, to, on, a, b);
                // Where one is no number, it is said apart what holds.
                let none =
                    (0..LANES).fold(0, |none, lane| none | u32::from(a[lane].is_nan() || b[lane].is_nan()) << lane);
                self.set_truth(to, on & none, if or_none { ALL } else { 0 });
            }
            Op::TruthTwo(two, to, from) => {
                let [a, b] = from.map(|truth| self.truth(truth));
                let truth = match two {
                    Two::And => a & b,
                    Two::Or => a | b,
                    _ => a ^ b,
                };
                self.set_truth(to, on, truth);
            }
            Op::TruthNot(to, from) => self.set_truth(to, on, !self.truth(from)),
            Op::Select32(to, from, truth) => {
                let ([a, b], truth) = (from.map(|word| self.word(word)), self.truth(truth));
                put(&mut self.words[to as usize], on, |lane| if truth >> lane & 1 == 1 { a[lane] } else { b[lane] });
            }
            Op::Select64(to, from, truth) => {
                let ([a, b], truth) = (from.map(|long| self.long(long)), self.truth(truth));
                put(&mut self.longs[to as usize], on, |lane| if truth >> lane & 1 == 1 { a[lane] } else { b[lane] });
            }
            Op::FloatTwo(two, to, from) => match two {
                FloatTwo::Add => self.floats2(to, on, from, |a, b| a + b),
                FloatTwo::Sub => self.floats2(to, on, from, |a, b| a - b),
                FloatTwo::Mul => self.floats2(to, on, from, |a, b| a * b),
                FloatTwo::Div => self.floats2(to, on, from, |a, b| a / b),
                FloatTwo::Min => self.floats2(to, on, from, number::lesser),
                FloatTwo::Max => self.floats2(to, on, from, number::greater),
                FloatTwo::CopySign => self.words2(to, on, from, |sign, of| of & 0x7fff_ffff | sign & 0x8000_0000),
            },
            Op::FloatOne(one, flushes, to, from) => {
                let flushed = |x: f32| if flushes { number::flushed(x) } else { x };
                match one {
                    FloatOne::Neg => self.words1(to, on, from, |a| a ^ 0x8000_0000),
                    FloatOne::Abs => self.words1(to, on, from, |a| a & 0x7fff_ffff),
                    FloatOne::Root => self.floats1(to, on, from, f32::sqrt),
                    FloatOne::Reciprocal => self.floats1(to, on, from, |a| flushed(1.0 / flushed(a))),
                    FloatOne::PowerOf2 => self.floats1(to, on, from, |a| flushed(flushed(a).exp2())),
                    FloatOne::Log2 => self.floats1(to, on, from, |a| flushed(flushed(a).log2())),
                    // What is no number becomes 0.
                    FloatOne::Saturated => self.floats1(to, on, from, |a| if a > 0.0 { a.min(1.0) } else { 0.0 }),
                }
            }
            Op::Fma { down, to, from } => {
                let [a, b, c] = from.map(|word| self.word(word).map(f32::from_bits));
                let to = &mut self.words[to as usize];
                match down {
                    false => put(to, on, |lane| number::fma(a[lane], b[lane], c[lane]).to_bits()),
                    true => put(to, on, |lane| number::fma_down(a[lane], b[lane], c[lane]).to_bits()),
                }
            }
            Op::Resize { from, to_bits, to, value } => {
                let value = self.extended(value, from);
                match to_bits {
                    64 => put(&mut self.longs[to as usize], on, |lane| value[lane]),
                    bits => {
                        let kept = ALL >> (32 - bits);
                        put(&mut self.words[to as usize], on, |lane| value[lane] as u32 & kept);
                    }
                }
            }
            Op::FloatOfWhole { signed, to, value } => {
                let bits = if matches!(value, Either::Word(_)) { 32 } else { 64 };
                let value = self.extended(value, Whole { bits, signed });
                let to = &mut self.words[to as usize];
                match signed {
                    true => put(to, on, |lane| (value[lane] as i64 as f32).to_bits()),
                    false => put(to, on, |lane| (value[lane] as f32).to_bits()),
                }
            }
            Op::WholeOfFloat { whole, to, value } => match whole.signed {
                true => self.words1(to, on, value, |a| f32::from_bits(a) as i32 as u32),
                false => self.words1(to, on, value, |a| f32::from_bits(a) as u32),
            },
            Op::PairOfBf16(to, from) => self.words2(to, on, from, |high, low| {
                number::bf16(f32::from_bits(high)) << 16 | number::bf16(f32::from_bits(low))
            }),
            Op::InsertBits(to, from) => {
                let [a, b, start, count] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| {
                    let (start, count) = (start[lane] & 0xff, count[lane] & 0xff);
                    let ones = if count >= 32 { ALL } else { (1 << count) - 1 };
                    let mask = ones.checked_shl(start).unwrap_or(0);
                    b[lane] & !mask | a[lane].checked_shl(start).unwrap_or(0) & mask
                });
            }
            Op::InsertBits64(to, from, place) => {
                let ([a, b], [start, count]) = (from.map(|long| self.long(long)), place.map(|word| self.word(word)));
                put(&mut self.longs[to as usize], on, |lane| {
                    let (start, count) = (start[lane] & 0xff, count[lane] & 0xff);
                    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
                    let mask = ones.checked_shl(start).unwrap_or(0);
                    b[lane] & !mask | a[lane].checked_shl(start).unwrap_or(0) & mask
                });
            }
            Op::Permute(to, from) => {
                let [a, b, order] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| number::permuted(a[lane], b[lane], order[lane]));
            }
            _ => return trouble("it is not known what this does"),
        }
        Ok(())
    }

    /// A whole number as 64 bits.
    fn extended(&self, value: Either, from: Whole) -> Longs {
        let value = match value {
            Either::Word(word) => self.word(word).map(u64::from),
            Either::Long(long) => self.long(long),
        };
        let above = 64 - from.bits;
        match from.signed {
            true => value.map(|value| ((value << above) as i64 >> above) as u64),
            false => value.map(|value| value << above >> above),
        }
    }

    fn two32(&mut self, two: Two, whole: Whole, to: u32, from: [Word; 2], on: u32) -> Result<(), Trouble> {
        let signed = whole.signed;
        if whole.bits == 16 {
            let extended = |a: u32| if signed { i64::from(a as u16 as i16) } else { i64::from(a as u16) };
            let of: fn(i64, i64) -> i64 = match two {
                Two::Add => |a, b| a + b,
                Two::Sub => |a, b| a - b,
                Two::Mul => |a, b| a * b,
                Two::Min => i64::min,
                Two::Max => i64::max,
                Two::And => |a, b| a & b,
                Two::Or => |a, b| a | b,
                Two::Xor => |a, b| a ^ b,
                Two::MulHigh | Two::Div | Two::Rem => return trouble("it is not known for 16 bits"),
            };
            self.words2(to, on, from, |a, b| of(extended(a), extended(b)) as u32 & 0xffff);
            return Ok(());
        }
        match two {
            Two::Add => self.words2(to, on, from, u32::wrapping_add),
            Two::Sub => self.words2(to, on, from, u32::wrapping_sub),
            Two::Mul => self.words2(to, on, from, u32::wrapping_mul),
            Two::MulHigh if signed => {
                self.words2(to, on, from, |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
            }
            Two::MulHigh => self.words2(to, on, from, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Two::Min if signed => self.words2(to, on, from, |a, b| (a as i32).min(b as i32) as u32),
            Two::Min => self.words2(to, on, from, u32::min),
            Two::Max if signed => self.words2(to, on, from, |a, b| (a as i32).max(b as i32) as u32),
            Two::Max => self.words2(to, on, from, u32::max),
            Two::And => self.words2(to, on, from, |a, b| a & b),
            Two::Or => self.words2(to, on, from, |a, b| a | b),
            Two::Xor => self.words2(to, on, from, |a, b| a ^ b),
            Two::Div | Two::Rem => {
                self.no_zero(self.word(from[1]).map(u64::from), on)?;
                match (two, signed) {
                    (Two::Div, true) => self.words2(to, on, from, |a, b| (a as i32).wrapping_div(b as i32) as u32),
                    (Two::Div, false) => self.words2(to, on, from, |a, b| a / b),
                    (_, true) => self.words2(to, on, from, |a, b| (a as i32).wrapping_rem(b as i32) as u32),
                    (_, false) => self.words2(to, on, from, |a, b| a % b),
                }
            }
        }
        Ok(())
    }

    fn two64(&mut self, two: Two, signed: bool, to: u32, from: [Long; 2], on: u32) -> Result<(), Trouble> {
        match two {
            Two::Add => self.longs2(to, on, from, u64::wrapping_add),
            Two::Sub => self.longs2(to, on, from, u64::wrapping_sub),
            Two::Mul => self.longs2(to, on, from, u64::wrapping_mul),
            Two::MulHigh if signed => {
                self.longs2(to, on, from, |a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
            }
            Two::MulHigh => self.longs2(to, on, from, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
            Two::Min if signed => self.longs2(to, on, from, |a, b| (a as i64).min(b as i64) as u64),
            Two::Min => self.longs2(to, on, from, u64::min),
            Two::Max if signed => self.longs2(to, on, from, |a, b| (a as i64).max(b as i64) as u64),
            Two::Max => self.longs2(to, on, from, u64::max),
            Two::And => self.longs2(to, on, from, |a, b| a & b),
            Two::Or => self.longs2(to, on, from, |a, b| a | b),
            Two::Xor => self.longs2(to, on, from, |a, b| a ^ b),
            Two::Div | Two::Rem => {
                self.no_zero(self.long(from[1]), on)?;
                match (two, signed) {
                    (Two::Div, true) => self.longs2(to, on, from, |a, b| (a as i64).wrapping_div(b as i64) as u64),
                    (Two::Div, false) => self.longs2(to, on, from, |a, b| a / b),
                    (_, true) => self.longs2(to, on, from, |a, b| (a as i64).wrapping_rem(b as i64) as u64),
                    (_, false) => self.longs2(to, on, from, |a, b| a % b),
                }
            }
        }
        Ok(())
    }

    /// Whether no thread divides by 0, which gives anything.
    fn no_zero(&self, by: Longs, on: u32) -> Result<(), Trouble> {
        match (0..LANES).find(|lane| on >> lane & 1 == 1 && by[*lane] == 0) {
            Some(lane) => Err(Trouble { what: "it divides by 0".to_string(), other: None, lane: Some(lane) }),
            None => Ok(()),
        }
    }
}
