//! Times of stages and hops as a run took them: what scales the estimates of a spec to the devices that ran it.
//!
//! Each measured stage has the estimate that the same derivation gave it. A stage that is estimated the same on the same rank
//! takes what it took. Any other stage of that rank takes its estimate times the ratio of the rank, job by job; on ranks that
//! did not run, the ratio of all. So placement and partition are free again.

use alloc::string::ToString;
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::Value;

use crate::base::fields::{Fault, Table, shown, whole};
use crate::base::units::Nanos;
use crate::problem::{MAX_CHUNKS, MAX_NS, MAX_RANKS, StageCost, Transfers};

/// F, B and W of a stage for one microbatch.
pub type JobNanos = [Nanos; 3];

/// One stage on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageTimes {
    /// The rank that ran it.
    pub rank: usize,
    /// What was estimated.
    pub estimated_ns: JobNanos,
    /// What it took, as a mean.
    pub measured_ns: JobNanos,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkTimes {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// What was estimated.
    pub estimated_ns: Nanos,
    /// What it took, as a median.
    pub measured_ns: Nanos,
}

/// What a run took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunTimes {
    /// By stage.
    pub stages: Vec<StageTimes>,
    /// The links whose messages were waited for.
    pub hops: Vec<LinkTimes>,
    /// How much ops differ from the mean of their stage and job, in thousandths.
    pub jitter_permille: u64,
}

/// `ns` times `is` over `was`.
fn scaled(ns: Nanos, is: u128, was: u128) -> Nanos {
    if was == 0 {
        return ns;
    }
    Nanos::try_from((u128::from(ns) * is + was / 2) / was).unwrap_or(Nanos::MAX).min(MAX_NS)
}

impl RunTimes {
    /// The cost of a stage on `rank` that is estimated as `cost`.
    pub fn cost(&self, rank: usize, mut cost: StageCost) -> StageCost {
        let own = [cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns];
        let same = self.stages.iter().find(|stage| stage.rank == rank && stage.estimated_ns == own);
        let has_rank = self.stages.iter().any(|stage| stage.rank == rank);
        let like = |stage: &&StageTimes| !has_rank || stage.rank == rank;
        let sums = |job: usize| {
            let add = |(is, was): (u128, u128), stage: &StageTimes| {
                (is + u128::from(stage.measured_ns[job]), was + u128::from(stage.estimated_ns[job]))
            };
            match same {
                Some(stage) => add((0, 0), stage),
                None => self.stages.iter().filter(like).fold((0, 0), add),
            }
        };
        let [forward, input, weight] = [0, 1, 2].map(|job| {
            let (is, was) = sums(job);
            scaled(own[job], is, was)
        });
        let before = u128::from(own[1]) + u128::from(own[2]);
        let both = u128::from(input) + u128::from(weight);
        // A fused backward is never longer than its halves.
        cost.backward_ns = cost.backward_ns.map(|ns| scaled(ns, both, before)).filter(|ns| u128::from(*ns) < both);
        for (exchange, (is, was)) in
            [(&mut cost.forward_exchange_ns, (forward, own[0])), (&mut cost.backward_exchange_ns, (input, own[1]))]
        {
            *exchange = scaled(*exchange, is.into(), was.into());
        }
        (cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns) = (forward, input, weight);
        cost.bounded()
    }

    /// Thousandths of its estimate that all work of `rank` took; of a rank that did not run, that of all.
    pub fn pace_permille(&self, rank: usize) -> u64 {
        let has_rank = self.stages.iter().any(|stage| stage.rank == rank);
        let sums = self.stages.iter().filter(|stage| !has_rank || stage.rank == rank);
        let (is, was) = sums.fold((0, 0), |(is, was): (u128, u128), stage| {
            let sum = |jobs: &JobNanos| jobs.iter().map(|ns| u128::from(*ns)).sum::<u128>();
            (is + sum(&stage.measured_ns), was + sum(&stage.estimated_ns))
        });
        u64::try_from((is * 1000).checked_div(was).unwrap_or(1000)).unwrap_or(u64::MAX)
    }

    /// The times of hops that are estimated as `transfers`: those that were measured, and the others in proportion.
    pub fn transfers(&self, transfers: Transfers) -> Transfers {
        let known = self.hops.iter().filter(|hop| hop.measured_ns > 0);
        let (is, was) = known.clone().fold((0, 0), |(is, was): (u128, u128), hop| {
            (is + u128::from(hop.measured_ns), was + u128::from(hop.estimated_ns))
        });
        match transfers {
            Transfers::Uniform(hop) => {
                let mut measured: Vec<Nanos> = known.map(|hop| hop.measured_ns).collect();
                measured.sort_unstable();
                Transfers::Uniform(measured.get(measured.len() / 2).copied().unwrap_or(hop))
            }
            Transfers::Links(mut links) => {
                links.iter_mut().flatten().for_each(|ns| *ns = scaled(*ns, is, was));
                for hop in known {
                    if let Some(ns) = links.get_mut(hop.from).and_then(|row| row.get_mut(hop.to)) {
                        *ns = hop.measured_ns;
                    }
                }
                Transfers::Links(links)
            }
        }
    }
}

pub(super) fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<RunTimes> {
    let mut table = Table::of(value, path, faults)?;
    let mut run = RunTimes {
        jitter_permille: table.whole("jitter_permille", 0..=1_000_000, faults).unwrap_or(0),
        ..RunTimes::default()
    };
    let entries = |table: &mut Table<'_>, key: &'static str, faults: &mut Vec<Fault>| -> Vec<Value> {
        match table.get(key) {
            None => Vec::new(),
            Some(Value::Array(entries)) if entries.len() <= MAX_RANKS * MAX_CHUNKS => entries.clone(),
            Some(other) => {
                faults.push(Fault::new(table.path(key), shown(other), "a list of measured times"));
                Vec::new()
            }
        }
    };
    let (stages, hops) = (entries(&mut table, "stages", faults), entries(&mut table, "hops", faults));
    let most_rank = MAX_RANKS as u64 - 1;
    for (index, value) in stages.iter().enumerate() {
        let Some(mut entry) = Table::of(value, &alloc::format!("{path}.stages[{index}]"), faults) else { continue };
        let rank = entry.needed_whole("rank", 0..=most_rank, faults);
        let estimated = jobs(&mut entry, "estimated_ns", faults);
        let measured = jobs(&mut entry, "measured_ns", faults);
        entry.finish(faults);
        if let (Some(rank), Some(estimated_ns), Some(measured_ns)) = (rank, estimated, measured) {
            run.stages.push(StageTimes { rank: rank as usize, estimated_ns, measured_ns });
        }
    }
    for (index, value) in hops.iter().enumerate() {
        let Some(mut entry) = Table::of(value, &alloc::format!("{path}.hops[{index}]"), faults) else { continue };
        let mut number = |key, most| entry.needed_whole(key, 0..=most, faults);
        let [from, to] = [number("from", most_rank), number("to", most_rank)];
        let [estimated, measured] = [number("estimated_ns", MAX_NS), number("measured_ns", MAX_NS)];
        entry.finish(faults);
        if let (Some(from), Some(to), Some(estimated_ns), Some(measured_ns)) = (from, to, estimated, measured) {
            run.hops.push(LinkTimes { from: from as usize, to: to as usize, estimated_ns, measured_ns });
        }
    }
    table.finish(faults);
    Some(run)
}

fn jobs(entry: &mut Table<'_>, key: &'static str, faults: &mut Vec<Fault>) -> Option<JobNanos> {
    let found = entry.get(key);
    let numbers =
        found.and_then(Value::as_array).map(|list| list.iter().filter_map(whole).filter(|ns| *ns <= MAX_NS));
    let numbers: Option<Vec<Nanos>> = numbers.map(Iterator::collect);
    let read = numbers.and_then(|numbers| JobNanos::try_from(numbers).ok());
    if read.is_none() {
        let found = found.map_or_else(|| "nothing".to_string(), shown);
        faults.push(Fault::new(entry.path(key), found, "three times in nanoseconds: of F, B and W"));
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn run() -> RunTimes {
        RunTimes {
            stages: vec![
                StageTimes { rank: 0, estimated_ns: [100, 100, 50], measured_ns: [210, 150, 50] },
                StageTimes { rank: 0, estimated_ns: [300, 300, 150], measured_ns: [590, 450, 150] },
                StageTimes { rank: 1, estimated_ns: [100, 100, 50], measured_ns: [100, 100, 50] },
            ],
            hops: vec![
                LinkTimes { from: 0, to: 1, estimated_ns: 10, measured_ns: 30 },
                LinkTimes { from: 1, to: 0, estimated_ns: 10, measured_ns: 50 },
            ],
            jitter_permille: 7,
        }
    }

    fn cost(forward_ns: Nanos, backward_input_ns: Nanos, backward_weight_ns: Nanos) -> StageCost {
        StageCost { forward_ns, backward_input_ns, backward_weight_ns, ..StageCost::default() }
    }

    #[test]
    fn a_stage_takes_what_it_took_or_what_its_rank_takes() {
        assert_eq!(run().cost(0, cost(100, 100, 50)), cost(210, 150, 50));
        assert_eq!(run().cost(1, cost(100, 100, 50)), cost(100, 100, 50));
        // Twice the estimate for F, half as much again for B.
        assert_eq!(run().cost(0, cost(200, 200, 100)), cost(400, 300, 100));
        // A rank that did not run is as the others are together: 900 of 500, 700 of 500.
        assert_eq!([0, 1, 9].map(|rank| run().pace_permille(rank)), [1600, 1000, 1480]);
        assert_eq!(RunTimes::default().pace_permille(0), 1000);
        assert_eq!(run().cost(9, cost(500, 500, 500)), cost(900, 700, 500));
        let fused = StageCost { backward_ns: Some(180), ..cost(200, 200, 100) };
        assert_eq!(run().cost(0, fused).backward_ns, Some(240));
    }

    #[test]
    fn links_take_what_they_took_and_others_in_proportion() {
        let links = vec![vec![0, 10, 20], vec![10, 0, 20], vec![20, 20, 0]];
        let found = run().transfers(Transfers::Links(links));
        assert_eq!(found, Transfers::Links(vec![vec![0, 30, 80], vec![50, 0, 80], vec![80, 80, 0]]));
        assert_eq!(run().transfers(Transfers::Uniform(10)), Transfers::Uniform(50));
        assert_eq!(RunTimes::default().transfers(Transfers::Uniform(10)), Transfers::Uniform(10));
    }
}
