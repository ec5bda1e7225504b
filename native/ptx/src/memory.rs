//! A card's global memory and a block's shared memory, and who has touched each byte of them.

use crate::decode::SHARED_START;

/// No thread, or no block.
const NOBODY: u32 = u32::MAX;
/// More than one.
const SEVERAL: u32 = u32::MAX - 1;

/// Who touches memory: the time is new behind every barrier, and is no other block's.
#[derive(Clone, Copy, Debug)]
pub struct Toucher {
    pub block: u32,
    pub thread: u32,
    pub time: u32,
    /// The instruction.
    pub at: u32,
}

/// What is wrong with an access, and the other instruction where two get into each other's way.
#[derive(Debug)]
pub struct Wrong {
    pub what: String,
    pub other: Option<u32>,
}

impl From<String> for Wrong {
    fn from(what: String) -> Wrong {
        Wrong { what, other: None }
    }
}

type Touched<T> = Result<T, Wrong>;

/// Who has touched a grain last.
#[derive(Clone, Copy, Debug)]
struct Cell {
    written: Toucher,
    read: Toucher,
    /// Whether a copy to it is on its way.
    is_coming: bool,
    /// How often the thread that has written it had shown its writes before.
    shows: u32,
}

impl Cell {
    const UNTOUCHED: Cell = {
        let nobody = Toucher { block: NOBODY, thread: NOBODY, time: 0, at: 0 };
        Cell { written: nobody, read: nobody, is_coming: false, shows: 0 }
    };

    /// Whether `who` may read what `written` says; times before `first` are of another launch or block.
    #[inline]
    fn read(&mut self, who: Toucher, first: u32) -> Touched<()> {
        let written = self.written;
        if written.time >= first {
            if self.is_coming {
                let whose = if written.thread == who.thread { "this thread" } else { "another thread" };
                let what = format!("it reads what {whose} still copies there: nobody has waited for the copy");
                return Err(Wrong { what, other: Some(written.at) });
            }
            if written.block != who.block {
                return Err(race("reads", "wrote it", written));
            }
            if written.time == who.time && written.thread != who.thread {
                return Err(race("reads", "wrote it and no barrier lies between", written));
            }
        }
        let read = &mut self.read;
        if read.time < first {
            *read = who;
        } else if read.block != who.block {
            *read = Toucher { block: SEVERAL, ..who };
        } else if read.time != who.time {
            *read = who;
        } else if read.thread != who.thread {
            read.thread = SEVERAL;
        }
        Ok(())
    }

    /// Whether `who` may write, with a copy that is then on its way where `is_coming`.
    fn write(&mut self, who: Toucher, first: u32, is_coming: bool) -> Touched<()> {
        let Cell { written, read, .. } = *self;
        if written.time >= first {
            if self.is_coming {
                let what = "it writes where a copy is still on its way".to_string();
                return Err(Wrong { what, other: Some(written.at) });
            }
            if written.block != who.block {
                return Err(race("writes", "wrote it too", written));
            }
            if written.time == who.time && written.thread != who.thread {
                return Err(race("writes", "wrote it too and no barrier lies between", written));
            }
        }
        if read.time >= first {
            if read.block != who.block {
                return Err(race("writes", "reads it", read));
            }
            if read.time == who.time && read.thread != who.thread {
                return Err(race("writes", "has read it and no barrier lies between", read));
            }
        }
        *self = Cell { written: who, is_coming, ..*self };
        Ok(())
    }
}

fn race(does: &str, did: &str, other: Toucher) -> Wrong {
    let whose = match other {
        Toucher { block: SEVERAL, .. } => "threads of several blocks".to_string(),
        Toucher { thread: SEVERAL, block, .. } => format!("several threads of block {block}"),
        Toucher { thread, block, .. } => format!("thread {thread} of block {block}"),
    };
    Wrong { what: format!("a race: it {does}, and {whose} {did}"), other: Some(other.at) }
}

/// Reading by a whole warp at once: in the way of any other thread, and of its own threads.
pub const BY_WARP: u32 = SEVERAL;

/// What was allocated.
struct Allocation {
    data: Vec<u8>,
    /// Whether each byte has been written, as 1.
    is_set: Vec<u8>,
    cells: Vec<Cell>,
    is_free: bool,
}

/// A card's memory. What is allocated lies at a multiple of 256, and of nothing more; no place is ever given out again.
#[derive(Default)]
pub struct Memory {
    allocations: Vec<Allocation>,
    /// The last time that a thread was told.
    pub(crate) time: u32,
}

/// Each allocation has this much of the addresses.
const APART: u64 = 1 << 32;
/// Where it begins there.
const START: u64 = 256;

impl Memory {
    /// `bytes` that nobody has written.
    ///
    /// # Panics
    /// Above 2 GiB.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        assert!(bytes < APART / 2, "an allocation of {bytes} bytes");
        let size = bytes as usize;
        self.allocations.push(Allocation {
            data: vec![0xff; size],
            is_set: vec![0; size],
            cells: Vec::new(),
            is_free: false,
        });
        self.allocations.len() as u64 * APART + START
    }

    /// Frees the allocation at `at`: any later access to it is a fault.
    pub fn free(&mut self, at: u64) {
        if let Some(allocation) =
            (at / APART).checked_sub(1).and_then(|index| self.allocations.get_mut(index as usize))
        {
            *allocation = Allocation { data: Vec::new(), is_set: Vec::new(), cells: Vec::new(), is_free: true };
        }
    }

    /// Allocation and place in it of `bytes` at `at`.
    fn place(&self, at: u64, bytes: u64) -> Result<(usize, usize), String> {
        let Some(index) = (at / APART).checked_sub(1) else { return Err(format!("no memory is at {at:#x}")) };
        let Some(allocation) = self.allocations.get(index as usize) else {
            return Err(format!("no memory is at {at:#x}"));
        };
        if allocation.is_free {
            return Err(format!("the memory at {at:#x} has been given back"));
        }
        let size = allocation.data.len() as u64;
        match (at % APART).checked_sub(START) {
            Some(start) if start + bytes <= size => Ok((index as usize, start as usize)),
            start => {
                let start = start.map_or_else(|| format!("-{}", START - at % APART), |start| start.to_string());
                Err(format!("bytes {start} to {start} + {bytes} of an allocation of {size}"))
            }
        }
    }

    /// Fills memory.
    ///
    /// # Errors
    /// Where it is not there.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let (index, start) = self.place(at, bytes.len() as u64)?;
        let allocation = &mut self.allocations[index];
        allocation.data[start..start + bytes.len()].copy_from_slice(bytes);
        allocation.is_set[start..start + bytes.len()].fill(1);
        Ok(())
    }

    /// Reads memory, whether anybody has written it or not.
    ///
    /// # Errors
    /// Where it is not there.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), String> {
        let (index, start) = self.place(at, bytes.len() as u64)?;
        bytes.copy_from_slice(&self.allocations[index].data[start..start + bytes.len()]);
        Ok(())
    }

    /// Copies within the memory, with what of it has been written.
    ///
    /// # Errors
    /// Where either is not there.
    pub fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), String> {
        let (from, to, size) = (self.place(from, bytes)?, self.place(to, bytes)?, bytes as usize);
        let of = &self.allocations[from.0];
        let data = of.data[from.1..from.1 + size].to_vec();
        let is_set = of.is_set[from.1..from.1 + size].to_vec();
        let into = &mut self.allocations[to.0];
        into.data[to.1..to.1 + size].copy_from_slice(&data);
        into.is_set[to.1..to.1 + size].copy_from_slice(&is_set);
        Ok(())
    }

    /// The first of `bytes` from `at` on that nobody has written.
    ///
    /// # Errors
    /// Where they are not there.
    pub fn first_unset(&self, at: u64, bytes: u64) -> Result<Option<u64>, String> {
        let (index, start) = self.place(at, bytes)?;
        let is_set = &self.allocations[index].is_set[start..start + bytes as usize];
        Ok(is_set.iter().position(|set| *set == 0).map(|at| at as u64))
    }

    /// The next time, later than all before.
    pub(crate) fn next_time(&mut self) -> u32 {
        self.time += 1;
        self.time
    }

    /// `bytes` for a thread of the launch that began at `first`.
    pub(crate) fn load(&mut self, at: u64, bytes: u32, grain: u32, who: Toucher, first: u32) -> Touched<&[u8]> {
        let (index, start) =
            self.place(at, bytes.into()).map_err(|what| format!("it reads where nothing is: {what}"))?;
        aligned(at, bytes)?;
        let allocation = &mut self.allocations[index];
        let end = start + bytes as usize;
        if allocation.is_set[start..end].contains(&0) {
            return Err(format!("it reads what nobody has written: byte {start} of an allocation").into());
        }
        for cell in cells(&mut allocation.cells, allocation.data.len(), start, end, grain) {
            cell.read(who, first)?;
        }
        Ok(&allocation.data[start..end])
    }

    /// The bytes that a thread may write.
    pub(crate) fn store(&mut self, at: u64, bytes: u32, grain: u32, who: Toucher, first: u32) -> Touched<&mut [u8]> {
        let (index, start) =
            self.place(at, bytes.into()).map_err(|what| format!("it writes where nothing is: {what}"))?;
        aligned(at, bytes)?;
        let allocation = &mut self.allocations[index];
        let end = start + bytes as usize;
        for cell in cells(&mut allocation.cells, allocation.data.len(), start, end, grain) {
            cell.write(who, first, false)?;
        }
        allocation.is_set[start..end].fill(1);
        Ok(&mut allocation.data[start..end])
    }
}

/// Whether what is touched begins at a multiple of its size, which makes its grains whole.
fn aligned(at: u64, bytes: u32) -> Result<(), String> {
    match at.is_multiple_of(bytes.into()) {
        true => Ok(()),
        false => Err(format!("the address {at:#x} is not aligned to the {bytes} bytes of the access")),
    }
}

/// The cells of the bytes from `start` to `end`, of so many in all.
fn cells(cells: &mut Vec<Cell>, of: usize, start: usize, end: usize, grain: u32) -> &mut [Cell] {
    let grain = grain as usize;
    let count = of.div_ceil(grain);
    if cells.len() < count {
        cells.resize(count, Cell::UNTOUCHED);
    }
    &mut cells[start / grain..end.div_ceil(grain)]
}

/// A copy that a thread has begun.
pub struct Coming {
    at: u32,
    content: [u8; 16],
    bytes: u32,
}

/// The shared memory of the block that runs.
pub struct Shared {
    data: Vec<u8>,
    cells: Vec<Cell>,
    grain: u32,
    /// From start to end.
    arrays: Vec<(u32, u32)>,
    /// When the block began: what was written before is another's.
    first: u32,
    /// By thread: how often it has shown its writes to those who read by themselves.
    shows: Vec<u32>,
}

impl Shared {
    /// With these arrays, touched by `grain` bytes or more.
    pub fn new(arrays: Vec<(u32, u32)>, grain: u32) -> Shared {
        let end = arrays.iter().map(|(_, end)| *end).max().unwrap_or(SHARED_START) as usize;
        let cells = vec![Cell::UNTOUCHED; end.div_ceil(grain as usize)];
        Shared { data: vec![0xff; end], cells, grain, arrays, first: 0, shows: Vec::new() }
    }

    /// Another block begins.
    pub fn begin(&mut self, time: u32) {
        self.first = time;
        self.data.fill(0xff);
        self.cells.iter_mut().for_each(|cell| cell.is_coming = false);
        self.shows.clear();
    }

    #[inline]
    fn place(&self, at: u64, bytes: u32) -> Result<usize, String> {
        let end = at + u64::from(bytes);
        let holds = |(start, stop): &(u32, u32)| at >= u64::from(*start) && end <= u64::from(*stop);
        if self.arrays.iter().any(holds) {
            return Ok(at as usize);
        }
        let near = self.arrays.iter().rev().find(|(start, _)| at >= u64::from(*start));
        Err(match near {
            Some((start, stop)) => format!(
                "bytes {} to {} of an array of {}",
                at - u64::from(*start),
                end - u64::from(*start),
                stop - start
            ),
            None => format!("address {at:#x}"),
        })
    }

    fn cells(&mut self, start: usize, bytes: u32) -> &mut [Cell] {
        let grain = self.grain as usize;
        &mut self.cells[start / grain..(start + bytes as usize).div_ceil(grain)]
    }

    /// `bytes` for a thread.
    pub fn load(&mut self, at: u64, bytes: u32, who: Toucher) -> Touched<&[u8]> {
        let start =
            self.place(at, bytes).map_err(|what| format!("it reads where nothing is in shared memory: {what}"))?;
        aligned(at, bytes)?;
        let first = self.first;
        for cell in self.cells(start, bytes) {
            if cell.written.time < first {
                return Err(format!("it reads what nobody has written: shared memory at {at:#x}").into());
            }
            cell.read(who, first)?;
        }
        Ok(&self.data[start..start + bytes as usize])
    }

    /// The same for what reads beside the threads: whoever has written it has to have shown it.
    pub fn load_async(&mut self, at: u64, bytes: u32, who: Toucher) -> Touched<&[u8]> {
        self.load(at, bytes, who)?;
        let (grain, start) = (self.grain as usize, at as usize);
        let cells = &self.cells[start / grain..(start + bytes as usize).div_ceil(grain)];
        match cells.iter().find(|cell| self.shows_of(cell.written.thread) <= cell.shows) {
            Some(cell) => {
                let what = "it reads what was written and not shown to products since".to_string();
                Err(Wrong { what, other: Some(cell.written.at) })
            }
            None => Ok(&self.data[start..start + bytes as usize]),
        }
    }

    /// What `thread` has written so far is shown to what reads beside the threads.
    pub fn show(&mut self, thread: u32) {
        let thread = thread as usize;
        if self.shows.len() <= thread {
            self.shows.resize(thread + 1, 0);
        }
        self.shows[thread] += 1;
    }

    fn shows_of(&self, thread: u32) -> u32 {
        self.shows.get(thread as usize).copied().unwrap_or(0)
    }

    /// The bytes that a thread may write.
    pub fn store(&mut self, at: u64, bytes: u32, who: Toucher) -> Touched<&mut [u8]> {
        let start =
            self.place(at, bytes).map_err(|what| format!("it writes where nothing is in shared memory: {what}"))?;
        aligned(at, bytes)?;
        let (first, shows) = (self.first, self.shows_of(who.thread));
        for cell in self.cells(start, bytes) {
            cell.write(who, first, false)?;
            cell.shows = shows;
        }
        Ok(&mut self.data[start..start + bytes as usize])
    }

    /// A copy of `content` begins.
    pub fn begin_copy(&mut self, at: u64, bytes: u32, content: [u8; 16], who: Toucher) -> Touched<Coming> {
        let start =
            self.place(at, bytes).map_err(|what| format!("it copies where nothing is in shared memory: {what}"))?;
        aligned(at, bytes)?;
        let first = self.first;
        for cell in self.cells(start, bytes) {
            cell.write(who, first, true)?;
        }
        self.data[start..start + bytes as usize].fill(0xff);
        Ok(Coming { at: at as u32, content, bytes })
    }

    /// The thread that began it has waited for it.
    pub fn end_copy(&mut self, coming: &Coming, who: Toucher) {
        let (start, shows) = (coming.at as usize, self.shows_of(who.thread));
        for cell in self.cells(start, coming.bytes) {
            cell.is_coming = false;
            cell.written.time = who.time;
            cell.shows = shows;
        }
        self.data[start..start + coming.bytes as usize].copy_from_slice(&coming.content[..coming.bytes as usize]);
    }
}
