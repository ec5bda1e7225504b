//! Loads, stores and copies of each thread.

use super::warp::{LANES, Longs, Warp, put};
use super::{Block, LaneFault, lane_fault, of_lane};
use crate::decode::{Access, Either, Instruction, Long, Op, Space, Special, Word};

impl Block<'_> {
    /// What each thread does for itself.
    pub(super) fn run_per_lane(
        &mut self,
        warp: &mut Warp,
        at: u32,
        instruction: &Instruction,
        on: u32,
    ) -> Result<(), LaneFault> {
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

    pub(super) fn load(&mut self, warp: &mut Warp, at: u32, access: &Access, on: u32) -> Result<(), LaneFault> {
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
                        _ => return lane_fault(format!("no parameter of {width} bytes is at {place}")),
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
                    _ => return lane_fault("it loads into no register"),
                }
            }
        }
        self.count(at, access, &places, on);
        Ok(())
    }

    fn store(&mut self, warp: &mut Warp, at: u32, access: &Access, on: u32) -> Result<(), LaneFault> {
        let places = warp.address(access.address);
        let (width, size) = (access.width(), access.whole.bits as usize / 8);
        for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
            let who = self.toucher(warp, lane, at);
            let place = places[lane];
            let bytes = match access.space {
                Space::Global => self.memory.store(place, width, self.kernel.grain[0], who, self.first),
                Space::Shared => self.shared.store(place, width, who),
                Space::Parameter => return lane_fault("it stores to a parameter"),
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
