//! Instructions that the threads of a warp execute together: shuffles, votes, matrices.

use super::warp::{ALL, LANES, Warp, put};
use super::{Block, LaneFault, lane_fault, of_lane};
use crate::decode::{Op, ShuffleMode};
use crate::memory::{BY_WARP, Toucher};

impl Block<'_> {
    /// What the lanes of a warp do together.
    pub(super) fn run_collective(&mut self, warp: &mut Warp, at: u32, op: &Op, lanes: u32) -> Result<(), LaneFault> {
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
                        ShuffleMode::Xor => (lane ^ by, lane ^ by <= highest),
                        ShuffleMode::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= highest as i32),
                        ShuffleMode::Down => (lane + by, lane + by <= highest),
                        ShuffleMode::Index => (lowest | by & !segments, lowest | by & !segments <= highest),
                    };
                    let from = if is_there { from } else { lane };
                    if lanes >> lane & 1 == 1 && lanes >> from & 1 == 0 {
                        let what = format!("it takes a value from lane {from}, which does not take part");
                        return Err(LaneFault { what, other: None, lane: Some(lane as usize) });
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
            _ => return lane_fault("the warp does this not together"),
        }
        Ok(())
    }
}
