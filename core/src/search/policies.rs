//! The policies worth trying: few parameters, each a known idea, over their whole range.
//!
//! Everything hangs on the round trip of a lane: from the start of its F to the end of its B when nothing is
//! in the way. A rank that has to keep its lane busy holds at least round trip ÷ period microbatches (Little's
//! law); published schedules are points on that line. 1F1B and ZB-H1 hold once the round trip, ZB-H2 and
//! ZB-2p twice, V-Min, V-Half and ZB-V are the same line on a V.

use alloc::vec::Vec;

use super::flat::Flat;
use super::list::{NEVER, Policy};

/// Times of a chain when nothing is in the way, by lane.
pub(super) struct Shape {
    /// From the start of the chain's first F to the start of this lane's F.
    pub head: Vec<i64>,
    /// From the start of the chain's first F to the start of this lane's B.
    pub back: Vec<i64>,
    /// From the start of this lane's F to the end of its B.
    pub round_trip: Vec<i64>,
    /// The work of the busiest rank for one microbatch of each chain.
    pub period: i64,
}

impl Shape {
    pub fn new(flat: &Flat) -> Shape {
        let lanes = flat.lanes.len();
        let (mut head, mut back, mut round_trip) =
            (alloc::vec![0i64; lanes], alloc::vec![0i64; lanes], alloc::vec![0i64; lanes]);
        let backward = if flat.fused { 3 } else { 1 };
        for chain in &flat.chains {
            let range = chain.first_lane..chain.first_lane + chain.lanes;
            let mut time = 0i64;
            for index in range.clone() {
                let lane = &flat.lanes[index];
                time += lane.hop_f as i64;
                head[index] = time;
                time += lane.duration[0] as i64;
            }
            for index in range.rev() {
                let lane = &flat.lanes[index];
                time += lane.hop_b as i64;
                back[index] = time;
                time += lane.duration[backward] as i64;
                round_trip[index] = time - head[index];
            }
        }
        let period = flat
            .lanes_of
            .iter()
            .map(|lanes| {
                lanes.iter().map(|lane| (flat.lanes[*lane].duration[0] + flat.lanes[*lane].duration[3]) as i64).sum()
            })
            .max()
            .unwrap_or(0)
            .max(1);
        Shape { head, back, round_trip, period }
    }

    /// Forwards in flight by lane: `scale` thousandths of round trip ÷ period, at least 1.
    fn caps(&self, scale: u64) -> Vec<u32> {
        self.round_trip
            .iter()
            .map(|trip| {
                let cap = (*trip as u128 * u128::from(scale)).div_ceil(self.period as u128 * 1000);
                cap.clamp(1, u128::from(u32::MAX)) as u32
            })
            .collect()
    }
}

/// Which op a free rank prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefer {
    /// Backward first; among forwards the later chunk, among backwards the earlier one.
    Backward,
    /// By planned time, with forwards and backwards stretched by this many thousandths of their least time.
    Plan(u32, u32),
}

/// One policy by its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    /// Forwards in flight in thousandths of round trip ÷ period; 0 for all that fit.
    pub scale: u64,
    pub prefer: Prefer,
    /// When W is planned after its B, in thousandths of the period; [`NEVER`] to fill gaps only.
    pub w_lag: i64,
    pub w_fit: u32,
    pub patience: u32,
    /// The period of the plan in thousandths of the least.
    pub stretch: u32,
    /// Whether forwards wait for their planned time.
    pub paced: bool,
}

impl Recipe {
    pub fn policy(&self, flat: &Flat, shape: &Shape) -> Policy {
        let lanes = flat.lanes.len();
        let period = (shape.period as i128 * i128::from(self.stretch) / 1000) as i64;
        let caps = if self.scale == 0 { alloc::vec![u32::MAX; lanes] } else { shape.caps(self.scale) };
        let (key_f, key_b) = match self.prefer {
            Prefer::Backward => {
                // Sums of all times stay below 2^62: half of that puts every B before every F.
                let key_f = (0..lanes).map(|lane| -shape.head[lane] * 2).collect();
                let key_b = shape.back.iter().map(|back| -(1i64 << 61) - *back).collect();
                (key_f, key_b)
            }
            Prefer::Plan(forward, backward) => {
                let scaled = |time: i64, by: u32| (time as i128 * i128::from(by) / 1000) as i64;
                let turn = |lane: usize| {
                    let chain = &flat.chains[flat.lanes[lane].chain];
                    shape.head[chain.first_lane + chain.lanes - 1]
                };
                let key_f = (0..lanes).map(|lane| scaled(shape.head[lane], forward)).collect();
                let key_b = (0..lanes)
                    .map(|lane| scaled(turn(lane), forward) + scaled(shape.back[lane] - turn(lane), backward))
                    .collect();
                (key_f, key_b)
            }
        };
        Policy {
            caps,
            key_f,
            key_b,
            period: if self.prefer == Prefer::Backward { 0 } else { period },
            w_lag: if self.w_lag == NEVER {
                NEVER
            } else {
                (shape.period as i128 * i128::from(self.w_lag) / 1000) as i64
            },
            w_fit: self.w_fit,
            patience: self.patience,
            early: if self.paced { 0 } else { NEVER },
        }
    }
}

/// All recipes, the most promising first.
pub(super) fn recipes() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    let base = Recipe {
        scale: 0,
        prefer: Prefer::Backward,
        w_lag: NEVER,
        w_fit: 1000,
        patience: 0,
        stretch: 1000,
        paced: false,
    };
    for scale in [0, 1000, 1250, 1500, 1750, 2000, 2500, 3000] {
        for w_fit in [1000, 500, 0] {
            for prefer in [
                Prefer::Backward,
                Prefer::Plan(1000, 1000),
                Prefer::Plan(1500, 1500),
                Prefer::Plan(2000, 2000),
                Prefer::Plan(2000, 1000),
                Prefer::Plan(1000, 2000),
                Prefer::Plan(3000, 3000),
            ] {
                for patience in [0, 300] {
                    for paced in [false, true] {
                        for w_lag in [NEVER, 0] {
                            if paced && prefer == Prefer::Backward {
                                continue;
                            }
                            recipes.push(Recipe { scale, prefer, w_fit, patience, paced, w_lag, ..base });
                        }
                    }
                }
            }
        }
    }
    recipes
}
