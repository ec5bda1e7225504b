//! A second opinion on plans. It reads a problem and rows of ops from JSON alone, decides whether the rows
//! are a valid answer, and computes their times and bytes. It shares no code with `pipeplan-core`, and its
//! method differs too: the ops and what they wait for become a graph, and times are its longest paths.
//!
//! The rules are those of a problem file:
//! - a forward and the backward right after it may run as one pair: both start together when both can, end
//!   together, and take less than both: by `overlap_permille` thousandths of the shorter one, or by what each computes
//!   while the other exchanges, whichever is more;
//! - every stage runs F once for each microbatch, then either B and W or the fused BW;
//! - F waits for the F of the stage before, B and BW for their own F and for the B or BW of the stage after,
//!   W for its B; what comes from another rank arrives one transfer time after its op has ended;
//! - a rank runs one op at a time, in the order of its row, as early as it can;
//! - an op's positive bytes are taken when it starts and its negative ones given back when it ends; its
//!   workspace is held while it runs; held bytes and static bytes together never exceed the limit;
//! - a microbatch with factors takes that many thousandths, rounded up, of each time of F, B and W, of the bytes that are
//!   held after each, of the workspaces, and of the hops between this stage and the next. The fused BW then takes its
//!   share of B and W as before, rounded up. What is exchanged is rounded down, and never more than its op takes;
//! - with `slices`, microbatches that follow each other, this many at a time, are the slices of the same
//!   sequences. On each stage F of a slice waits for F of the slice before, and its B or BW for that of the slice behind. B of
//!   the last slice takes `slice_gradient_bytes` for each slice before it; the others give theirs back;
//! - `offload_bytes` of what a stage keeps of a microbatch may go to the host behind its F and come back before its backward, each
//!   way in `offload_ns`. The copies of a rank go one after the other, in their order, each behind the op before its first
//!   position. The op at its second position waits for it. A reload takes its bytes at the first, an offload gives them back at
//!   the second.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// A problem as this judge sees it: everything by stage and by rank, written out.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of microbatches.
    pub microbatches: usize,
    /// Microbatches that follow each other, this many at a time, are the slices of the same sequences.
    pub slices: usize,
    /// By stage: bytes of the gradients of keys and values of one slice.
    pub slice_gradients: Vec<i64>,
    /// The rank of each stage; in a two-way placement that of the first half of the microbatches.
    pub rank_of_stage: Vec<usize>,
    /// Whether the second half of the microbatches goes the other way.
    pub two_way: bool,
    /// Duration of F, B and W, by stage.
    pub durations: Vec<[u64; 3]>,
    /// Bytes that F, B and W add, by stage.
    pub bytes: Vec<[i64; 3]>,
    /// Bytes that F, B and W hold while they run, by stage.
    pub workspace: Vec<[i64; 3]>,
    /// Bytes that the fused BW holds while it runs, by stage, where the file gives them: B's and W's bytes are
    /// then one change, their sum.
    pub fused_workspace: Vec<Option<i64>>,
    /// By stage: what the fused BW takes where that is less than B and then W.
    pub fused_durations: Vec<Option<u64>>,
    /// What F spends in exchanges, and what B and BW do, by stage.
    pub exchanges: Vec<[u64; 2]>,
    /// By stage: the bytes of a microbatch that may go to the host, and the time that takes.
    pub offloads: Vec<[u64; 2]>,
    /// Thousandths of the shorter op of a pair that hide behind the longer.
    pub overlap_permille: u64,
    /// Transfer time by sender and receiver.
    pub hops: Vec<Vec<u64>>,
    /// Bytes held throughout, by rank.
    pub static_bytes: Vec<i64>,
    /// Most bytes of a rank.
    pub limits: Vec<Option<i64>>,
    /// By microbatch, then by stage: thousandths of F, B, W, bytes and messages.
    pub factors: Option<Vec<Vec<[u64; 5]>>>,
    /// Whether only the fused backward may run.
    pub fused: bool,
    /// Whether the cost is the longest span of a rank (else the makespan).
    pub by_span: bool,
}

/// What a valid schedule costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Last end over all ranks minus first start.
    pub makespan_ns: u64,
    /// By rank: last end minus first start.
    pub span_ns: Vec<u64>,
    /// By rank: the sum of its ops' durations.
    pub busy_ns: Vec<u64>,
    /// By rank: the most bytes held at once, static bytes included.
    pub peak_bytes: Vec<i64>,
}

impl Verdict {
    /// The largest span of a rank.
    pub fn longest_span_ns(&self) -> u64 {
        self.span_ns.iter().copied().max().unwrap_or(0)
    }

    /// The figure that the problem asks to be small.
    pub fn cost_ns(&self, problem: &Problem) -> u64 {
        if problem.by_span { self.longest_span_ns() } else { self.makespan_ns }
    }
}

impl Problem {
    /// Reads a problem file.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn read(value: &Value) -> Result<Problem, String> {
        let count = |key: &str| value[key].as_u64().map(|number| number as usize);
        let ranks = count("ranks").ok_or("ranks is missing")?;
        let chunks = count("chunks").unwrap_or(1);
        let microbatches = count("microbatches").ok_or("microbatches is missing")?;
        let stages = ranks * chunks;
        let rank_of_stage = match &value["placement"] {
            Value::Array(list) => list
                .iter()
                .map(|rank| {
                    rank.as_u64().map(|rank| rank as usize).ok_or("placement holds something else than ranks")
                })
                .collect::<Result<Vec<_>, _>>()?,
            Value::String(name) => named_placement(name, ranks, chunks)?,
            Value::Null if chunks == 1 => (0..ranks).collect(),
            other => return Err(format!("placement {other} leaves the stages' ranks open")),
        };
        if rank_of_stage.len() != stages {
            return Err(format!("placement names {} stages of {stages}", rank_of_stage.len()));
        }
        let by_stage: Vec<&Value> = match &value["stages"] {
            Value::Array(list) if list.len() == stages => list.iter().collect(),
            object @ Value::Object(_) => vec![object; stages],
            other => return Err(format!("stages is {other}")),
        };
        let number = |stage: &Value, key: &str| stage[key].as_i64().unwrap_or(0);
        let jobs = ["forward", "backward_input", "backward_weight"];
        let three = |unit: &str| -> Vec<[i64; 3]> {
            by_stage.iter().map(|stage| jobs.map(|job| number(stage, &format!("{job}_{unit}")))).collect()
        };
        let hops = match &value["transfer_ns"] {
            Value::Array(rows) => rows
                .iter()
                .map(|row| row.as_array().into_iter().flatten().map(|hop| hop.as_u64().unwrap_or(0)).collect())
                .collect(),
            hop => vec![vec![hop.as_u64().unwrap_or(0); ranks]; ranks],
        };
        let by_rank = |key: &str| -> Vec<Option<i64>> {
            match &value[key] {
                Value::Array(list) => list.iter().map(Value::as_i64).collect(),
                one => vec![one.as_i64(); ranks],
            }
        };
        Ok(Problem {
            ranks,
            microbatches,
            slices: count("slices").unwrap_or(1),
            slice_gradients: by_stage.iter().map(|stage| number(stage, "slice_gradient_bytes")).collect(),
            rank_of_stage,
            two_way: value["placement"] == "two-way",
            durations: three("ns").into_iter().map(|three| three.map(|time| time as u64)).collect(),
            bytes: three("bytes"),
            workspace: three("workspace_bytes"),
            fused_durations: by_stage.iter().map(|stage| stage["backward_ns"].as_u64()).collect(),
            fused_workspace: by_stage.iter().map(|stage| stage["backward_workspace_bytes"].as_i64()).collect(),
            exchanges: by_stage
                .iter()
                .map(|stage| ["forward_exchange_ns", "backward_exchange_ns"].map(|key| number(stage, key) as u64))
                .collect(),
            offloads: by_stage
                .iter()
                .map(|stage| ["offload_bytes", "offload_ns"].map(|key| number(stage, key) as u64))
                .collect(),
            overlap_permille: value["overlap_permille"].as_u64().unwrap_or(0),
            hops,
            static_bytes: by_rank("static_bytes").into_iter().map(|bytes| bytes.unwrap_or(0)).collect(),
            limits: by_rank("limit_bytes"),
            factors: factors_of(&value["microbatch_factors"], stages)?,
            fused: value["backward"] == "fused",
            by_span: value["objective"] == "longest_span",
        })
    }

    fn rank(&self, stage: usize, microbatch: usize) -> usize {
        let down = self.rank_of_stage[stage];
        if self.two_way && microbatch >= self.microbatches / 2 { self.ranks - 1 - down } else { down }
    }

    /// The hop of `microbatch` from one stage to a neighbour.
    fn hop(&self, from: usize, to: usize, microbatch: usize) -> u64 {
        let (here, there) = (self.rank(from, microbatch), self.rank(to, microbatch));
        if here == there { 0 } else { up(self.hops[here][there], self.factor(from.min(to), microbatch)[4]) }
    }

    fn factor(&self, stage: usize, microbatch: usize) -> [u64; 5] {
        self.factors.as_ref().map_or([1000; 5], |factors| factors[microbatch][stage])
    }

    /// What `op` takes alone.
    fn alone(&self, op: &Op) -> u64 {
        let factor = self.factor(op.stage, op.microbatch);
        let of = self.durations[op.stage];
        let parts: Vec<u64> = op.jobs().iter().map(|job| up(of[*job], factor[*job])).collect();
        let apart: u64 = parts.iter().sum();
        match (op.kind, self.fused_durations[op.stage]) {
            (Kind::Bw, Some(fused)) => {
                let usual = u128::from(of[1] + of[2]).max(1);
                apart.min((u128::from(fused) * u128::from(apart)).div_ceil(usual) as u64)
            }
            _ => apart,
        }
    }

    /// What `op` exchanges.
    fn exchanged(&self, op: &Op) -> u64 {
        let factor = self.factor(op.stage, op.microbatch);
        let of =
            |job: usize| u64::try_from(u128::from(self.exchanges[op.stage][job]) * u128::from(factor[job]) / 1000);
        let alone = |kind: Kind| self.alone(&Op { kind, ..*op });
        match op.kind {
            Kind::F => of(0).unwrap_or(u64::MAX).min(alone(Kind::F)),
            Kind::W => 0,
            Kind::B | Kind::Bw => of(1).unwrap_or(u64::MAX).min(alone(Kind::B)).min(alone(Kind::Bw)),
        }
    }

    /// Decides whether `rows` is a valid answer, and what it costs.
    ///
    /// # Errors
    /// The first broken rule, as a sentence with the rank and the op.
    pub fn judge(&self, rows: &[&str]) -> Result<Verdict, String> {
        self.judge_schedule(rows, &[], &[])
    }

    /// As [`Problem::judge`], with the places by rank at which a forward runs as a pair with the backward after
    /// it, and the copies to and from the host of each rank.
    ///
    /// # Errors
    /// The first broken rule, as a sentence with the rank and the op.
    pub fn judge_schedule(&self, rows: &[&str], pairs: &[Vec<usize>], copies: &[&str]) -> Result<Verdict, String> {
        let rows: Vec<Vec<Op>> = rows
            .iter()
            .map(|row| row.split_whitespace().map(Op::read).collect::<Result<_, _>>())
            .collect::<Result<_, _>>()?;
        if rows.len() != self.ranks {
            return Err(format!("{} rows for {} ranks", rows.len(), self.ranks));
        }
        self.every_op_once(&rows)?;
        let copies: Vec<Vec<Copy>> = copies
            .iter()
            .map(|row| row.split_whitespace().map(Copy::read).collect::<Result<_, _>>())
            .collect::<Result<_, _>>()?;
        for (rank, copies) in copies.iter().enumerate() {
            if !copies.is_empty() && pairs.get(rank).is_some_and(|pairs| !pairs.is_empty()) {
                return Err(format!("rank {rank} has pairs and copies, of which this judge knows one at a time"));
            }
            self.copies_in_place(rank, &rows[rank], copies)?;
        }
        let none = Vec::new();
        let copies_of = |rank: usize| copies.get(rank).unwrap_or(&none);
        let rows: Vec<Vec<Vec<Op>>> = rows
            .into_iter()
            .enumerate()
            .map(|(rank, row)| grouped(row, pairs.get(rank).map_or(&[], Vec::as_slice)))
            .collect::<Result<_, _>>()?;
        let (starts, ends) = self.times(&rows, &copies)?;
        let peak_bytes: Vec<i64> =
            rows.iter().enumerate().map(|(rank, row)| self.peak(rank, row, copies_of(rank))).collect();
        for (rank, peak) in peak_bytes.iter().enumerate() {
            if self.limits[rank].is_some_and(|limit| *peak > limit) {
                return Err(format!("rank {rank} holds {peak} bytes, above its limit of {:?}", self.limits[rank]));
            }
        }
        let span_ns: Vec<u64> = starts
            .iter()
            .zip(&ends)
            .map(|(starts, ends)| match (starts.first(), ends.last()) {
                (Some(first), Some(last)) => last - first,
                _ => 0,
            })
            .collect();
        let first = starts.iter().flatten().min().copied().unwrap_or(0);
        let last = ends.iter().flatten().max().copied().unwrap_or(0);
        let busy_ns = rows.iter().map(|row| row.iter().map(|ops| self.duration(ops)).sum()).collect();
        Ok(Verdict { makespan_ns: last - first, span_ns, busy_ns, peak_bytes })
    }

    /// How long one op, or the two of a pair, take.
    fn duration(&self, ops: &[Op]) -> u64 {
        let both: Vec<u64> = ops.iter().map(|op| self.alone(op)).collect();
        let saved = if let ([first, second], [forward, backward]) = (&both[..], ops) {
            let (sends, gets) = (self.exchanged(forward), self.exchanged(backward));
            let beside = sends.min(second - gets) + gets.min(first - sends);
            beside.max(first.min(second) * self.overlap_permille / 1000)
        } else {
            0
        };
        both.iter().sum::<u64>() - saved
    }

    fn every_op_once(&self, rows: &[Vec<Op>]) -> Result<(), String> {
        let mut seen: HashMap<(usize, usize), [usize; 3]> = HashMap::new();
        for (rank, row) in rows.iter().enumerate() {
            for op in row {
                if op.stage >= self.rank_of_stage.len() || op.microbatch >= self.microbatches {
                    return Err(format!("rank {rank}: {op:?} does not belong to the problem"));
                }
                if self.rank(op.stage, op.microbatch) != rank {
                    return Err(format!("rank {rank}: {op:?} belongs to another rank"));
                }
                if self.fused && matches!(op.kind, Kind::B | Kind::W) {
                    return Err(format!("rank {rank}: {op:?} splits a backward that is fused"));
                }
                let jobs = seen.entry((op.stage, op.microbatch)).or_default();
                op.jobs().iter().for_each(|job| jobs[*job] += 1);
            }
        }
        for stage in 0..self.rank_of_stage.len() {
            for microbatch in 0..self.microbatches {
                let jobs = seen.get(&(stage, microbatch)).copied().unwrap_or_default();
                if jobs != [1, 1, 1] {
                    return Err(format!("stage {stage}, microbatch {microbatch}: F, B, W run {jobs:?} times"));
                }
            }
        }
        Ok(())
    }

    /// Starts and ends of all ops: longest paths through the graph of what waits for what.
    fn times(&self, rows: &[Vec<Vec<Op>>], copies: &[Vec<Copy>]) -> Result<Times, String> {
        // Who makes the output of F and the gradient of B, by stage and microbatch.
        let mut maker: HashMap<(bool, usize, usize), usize> = HashMap::new();
        let mut nodes: Vec<(usize, &[Op])> = Vec::new();
        for (rank, row) in rows.iter().enumerate() {
            for ops in row {
                for op in ops {
                    match op.kind {
                        Kind::F => maker.insert((false, op.stage, op.microbatch), nodes.len()),
                        Kind::B | Kind::Bw => maker.insert((true, op.stage, op.microbatch), nodes.len()),
                        Kind::W => None,
                    };
                }
                nodes.push((rank, ops));
            }
        }
        let mut followers: Vec<Vec<(usize, u64)>> = vec![Vec::new(); nodes.len()];
        let mut waits = vec![0usize; nodes.len()];
        let mut edge = |from: usize, to: usize, delay: u64| {
            followers[from].push((to, delay));
            waits[to] += 1;
        };
        for (node, (rank, ops)) in nodes.iter().enumerate() {
            if node > 0 && nodes[node - 1].0 == *rank {
                edge(node - 1, node, 0);
            }
            for op in *ops {
                let (stage, microbatch) = (op.stage, op.microbatch);
                let (is_first, is_last) = self.ends(microbatch);
                match op.kind {
                    Kind::F if !is_first => edge(maker[&(false, stage, microbatch - 1)], node, 0),
                    Kind::B | Kind::Bw if !is_last => edge(maker[&(true, stage, microbatch + 1)], node, 0),
                    _ => {}
                }
                match op.kind {
                    Kind::F if stage > 0 => {
                        let hop = self.hop(stage - 1, stage, microbatch);
                        edge(maker[&(false, stage - 1, microbatch)], node, hop);
                    }
                    Kind::F => {}
                    Kind::B | Kind::Bw => {
                        edge(maker[&(false, stage, microbatch)], node, 0);
                        if stage + 1 < self.rank_of_stage.len() {
                            let hop = self.hop(stage + 1, stage, microbatch);
                            edge(maker[&(true, stage + 1, microbatch)], node, hop);
                        }
                    }
                    Kind::W => edge(maker[&(true, stage, microbatch)], node, 0),
                }
            }
        }
        // A copy becomes edges: from the op before it, over all copies that run after it on the link without a break, to
        // the op that waits for the last of them.
        let mut first_of_rank = 0;
        for (rank, row) in rows.iter().enumerate() {
            let copies = copies.get(rank).map_or(&[][..], Vec::as_slice);
            for from in 0..copies.len() {
                let mut delay = 0;
                for to in &copies[from..] {
                    delay += self.offloads[to.stage][1];
                    // A copy before all ops has none to wait for; every copy is behind its F, so there is none.
                    let (behind, before) = (first_of_rank + copies[from].starts - 1, first_of_rank + to.ends);
                    if behind < before {
                        edge(behind, before, delay);
                    }
                }
            }
            first_of_rank += row.len();
        }
        let mut start = vec![0u64; nodes.len()];
        let mut free: Vec<usize> = (0..nodes.len()).filter(|node| waits[*node] == 0).collect();
        let mut done = 0;
        while let Some(node) = free.pop() {
            done += 1;
            let end = start[node] + self.duration(nodes[node].1);
            for (next, delay) in &followers[node] {
                start[*next] = start[*next].max(end + delay);
                waits[*next] -= 1;
                if waits[*next] == 0 {
                    free.push(*next);
                }
            }
        }
        if done < nodes.len() {
            let stuck = (0..nodes.len()).find(|node| waits[*node] > 0).map(|node| nodes[node]);
            return Err(format!("the ranks wait for each other for ever, among them {stuck:?}"));
        }
        let mut starts = Vec::new();
        let mut ends = Vec::new();
        let mut at = 0;
        for row in rows {
            starts.push(start[at..at + row.len()].to_vec());
            ends.push(row.iter().zip(&start[at..]).map(|(ops, start)| start + self.duration(ops)).collect());
            at += row.len();
        }
        Ok((starts, ends))
    }

    /// Whether a microbatch is the first slice of its sequences, and whether it is the last one.
    fn ends(&self, microbatch: usize) -> (bool, bool) {
        (microbatch.is_multiple_of(self.slices), (microbatch + 1).is_multiple_of(self.slices))
    }

    /// Whether each copy of a rank is behind its F and comes back before its backward, in an order that the link can keep.
    fn copies_in_place(&self, rank: usize, row: &[Op], copies: &[Copy]) -> Result<(), String> {
        for (index, copy) in copies.iter().enumerate() {
            let wrong = |why: &str| Err(format!("rank {rank}: {copy:?} {why}"));
            let is_here = |op: &&Op| op.stage == copy.stage && op.microbatch == copy.microbatch;
            let place = |backward: bool| {
                row.iter().position(|op| is_here(&op) && op.kind != Kind::W && (op.kind != Kind::F) == backward)
            };
            let (Some(forward), Some(backward)) = (place(false), place(true)) else { return wrong("has no op") };
            if self.offloads[copy.stage][0] == 0 || copy.starts > copy.ends || copy.ends >= row.len() {
                return wrong("cannot be");
            }
            if index > 0 && copies[index - 1].starts > copy.starts {
                return wrong("starts before the one before it");
            }
            let same = |other: &&Copy| (other.stage, other.microbatch) == (copy.stage, copy.microbatch);
            let others: Vec<&Copy> = copies.iter().filter(same).collect();
            let [away, back] = others[..] else { return wrong("does not go once and come back once") };
            let in_order = !away.is_back && back.is_back && away.starts > forward && away.ends <= back.starts;
            if !in_order || back.ends > backward {
                return wrong("is not between F and the backward");
            }
        }
        Ok(())
    }

    fn peak(&self, rank: usize, row: &[Vec<Op>], copies: &[Copy]) -> i64 {
        let mut held = self.static_bytes[rank];
        let mut peak = held;
        for (place, ops) in row.iter().enumerate() {
            // In the order of the link.
            for copy in copies {
                let bytes = self.offloads[copy.stage][0] as i64;
                held += if copy.is_back && copy.starts == place { bytes } else { 0 };
                peak = peak.max(held);
                held -= if !copy.is_back && copy.ends == place { bytes } else { 0 };
            }
            // The two of a pair hold their bytes together.
            held += ops.iter().map(|op| self.changes(op).0).sum::<i64>();
            peak = peak.max(held);
            held -= ops.iter().map(|op| self.changes(op).1).sum::<i64>();
        }
        peak
    }

    /// Bytes that `op` takes when it starts, and gives back when it ends.
    fn changes(&self, op: &Op) -> (i64, i64) {
        let factor = self.factor(op.stage, op.microbatch)[3];
        let more = |bytes: i64| up(bytes.max(0) as u64, factor) as i64;
        let [forward, input, weight] = self.bytes[op.stage];
        let held = [forward, forward + input, forward + input + weight].map(more);
        let bytes = [held[0], held[1] - held[0], held[2] - held[1]];
        let workspace = self.workspace[op.stage].map(more);
        let (deltas, workspace) = match (op.kind, self.fused_workspace[op.stage].map(more)) {
            (Kind::Bw, Some(workspace)) => (vec![bytes[1] + bytes[2]], workspace),
            _ => {
                let jobs = op.jobs().iter();
                (jobs.clone().map(|job| bytes[*job]).collect(), jobs.map(|job| workspace[*job]).max().unwrap_or(0))
            }
        };
        let mut taken: i64 = deltas.iter().map(|delta| delta.max(&0)).sum();
        let mut given: i64 = deltas.iter().map(|delta| -delta.min(&0)).sum();
        if matches!(op.kind, Kind::B | Kind::Bw) {
            let one = self.slice_gradients[op.stage];
            match self.ends(op.microbatch).1 {
                true => taken += one * (self.slices as i64 - 1),
                false => given += one,
            }
        }
        (taken + workspace, given + workspace)
    }
}

/// `permille` thousandths of `value`, rounded up.
fn up(value: u64, permille: u64) -> u64 {
    (u128::from(value) * u128::from(permille)).div_ceil(1000) as u64
}

/// The factors of a problem file: for each microbatch one entry, or a list of one for each stage. An entry is a number for
/// all, or an object of those that are not 1000.
fn factors_of(value: &Value, stages: usize) -> Result<Option<Vec<Vec<[u64; 5]>>>, String> {
    let Some(list) = value.as_array() else {
        return if value.is_null() { Ok(None) } else { Err(format!("microbatch_factors is {value}")) };
    };
    let names = ["forward", "backward_input", "backward_weight", "bytes", "messages"];
    let one = |entry: &Value| match entry {
        Value::Number(number) => number.as_u64().map(|number| [number; 5]),
        Value::Object(entry) => Some(names.map(|name| entry.get(name).and_then(Value::as_u64).unwrap_or(1000))),
        _ => None,
    };
    let row = |entry: &Value| match entry {
        Value::Array(row) if row.len() == stages => row.iter().map(one).collect::<Option<Vec<_>>>(),
        entry => one(entry).map(|one| vec![one; stages]),
    };
    let rows: Option<Vec<_>> = list.iter().map(row).collect();
    rows.map(Some).ok_or_else(|| format!("microbatch_factors is {value}"))
}

/// A row with its pairs put together.
fn grouped(row: Vec<Op>, pairs: &[usize]) -> Result<Vec<Vec<Op>>, String> {
    let mut groups: Vec<Vec<Op>> = Vec::with_capacity(row.len());
    let mut second_of_a_pair = false;
    for (place, op) in row.into_iter().enumerate() {
        if second_of_a_pair {
            let backward = matches!(op.kind, Kind::B | Kind::Bw);
            let pair =
                groups.last_mut().filter(|_| backward).ok_or(format!("{op:?} ends a pair, and is no backward"))?;
            pair.push(op);
            second_of_a_pair = false;
            continue;
        }
        second_of_a_pair = pairs.contains(&place);
        if second_of_a_pair && op.kind != Kind::F {
            return Err(format!("{op:?} begins a pair, and is no forward"));
        }
        groups.push(vec![op]);
    }
    if second_of_a_pair { Err("a pair has no second op".into()) } else { Ok(groups) }
}

/// A copy to the host, or back.
#[derive(Clone, Debug)]
struct Copy {
    is_back: bool,
    stage: usize,
    microbatch: usize,
    starts: usize,
    ends: usize,
}

impl Copy {
    /// `0OFFLOAD3:4-9`.
    fn read(text: &str) -> Result<Copy, String> {
        let read = || {
            let (moved, places) = text.split_once(':')?;
            let (starts, ends) = places.split_once('-')?;
            let is_back = moved.contains("RELOAD");
            let (stage, microbatch) = moved.split_once(if is_back { "RELOAD" } else { "OFFLOAD" })?;
            let number = |text: &str| text.parse().ok();
            Some(Copy {
                is_back,
                stage: number(stage)?,
                microbatch: number(microbatch)?,
                starts: number(starts)?,
                ends: number(ends)?,
            })
        };
        read().ok_or_else(|| format!("{text} is no copy"))
    }
}

/// The copies of a program row as a schedule writes them.
fn copies_between(steps: &[Step]) -> Vec<String> {
    let mut computed = 0;
    let mut copies: Vec<(&str, usize, Option<usize>)> = Vec::new();
    for step in steps {
        match step {
            Step::Compute(_) => computed += 1,
            Step::Copy(false, name) => copies.push((name, computed, None)),
            Step::Copy(true, name) => {
                copies.iter_mut().filter(|copy| copy.0 == name).for_each(|copy| copy.2 = Some(computed));
            }
            Step::Messages(_) | Step::Optimizer => {}
        }
    }
    let text = |(name, starts, ends): &(&str, usize, Option<usize>)| match ends {
        Some(ends) => format!("{name}:{starts}-{ends}"),
        None => format!("{name} is never awaited"),
    };
    copies.iter().map(text).collect()
}

/// One step of a program row.
enum Step {
    Compute(Op),
    /// Messages that start together: whether it is a send, its peer, and what identifies it at both ends.
    Messages(Vec<(bool, usize, String)>),
    /// A copy that is started, or awaited.
    Copy(bool, String),
    Optimizer,
}

impl Problem {
    /// Decides whether program rows do what `rows` say, with every transfer paired and none that hangs, where a
    /// send ends only when its receive has started and the messages of one group start together.
    ///
    /// # Errors
    /// The first broken rule, as a sentence.
    pub fn judge_program(&self, rows: &[&str], program: &[&str], copies: &[&str]) -> Result<(), String> {
        let steps: Vec<Vec<Step>> = program.iter().map(|row| self.steps(row)).collect::<Result<_, _>>()?;
        if rows.len() != steps.len() {
            return Err(format!("{} program rows for {} ranks", steps.len(), rows.len()));
        }
        for (rank, (row, steps)) in rows.iter().zip(&steps).enumerate() {
            let computes = |step: &Step| if let Step::Compute(op) = step { Some(format!("{op:?}")) } else { None };
            let computes: Vec<String> = steps.iter().filter_map(computes).collect();
            if computes != row.split_whitespace().collect::<Vec<_>>() {
                return Err(format!("rank {rank}: the program computes in another order than the schedule"));
            }
            let said: Vec<&str> = copies.get(rank).map_or(Vec::new(), |row| row.split_whitespace().collect());
            if copies_between(steps) != said {
                return Err(format!("rank {rank}: the program copies at other places than the schedule"));
            }
            if !matches!(steps.last(), Some(Step::Optimizer)) {
                return Err(format!("rank {rank}: the program does not end with the optimizer"));
            }
        }
        self.messages_pair(&steps)?;
        self.runs_under_rendezvous(&steps)
    }

    /// Per pair of ranks, the n-th message sent is the n-th received: carriers match by order, not by name.
    fn messages_pair(&self, steps: &[Vec<Step>]) -> Result<(), String> {
        let mut sent: HashMap<(usize, usize), Vec<&str>> = HashMap::new();
        let mut received: HashMap<(usize, usize), Vec<&str>> = HashMap::new();
        for (rank, row) in steps.iter().enumerate() {
            let messages =
                row.iter().filter_map(|step| if let Step::Messages(list) = step { Some(list) } else { None });
            for (sends, peer, name) in messages.flatten() {
                match sends {
                    true => sent.entry((rank, *peer)).or_default().push(name),
                    false => received.entry((*peer, rank)).or_default().push(name),
                }
            }
        }
        let crossing = |stage: &usize| {
            (0..self.microbatches).filter(|m| self.rank(*stage, *m) != self.rank(stage + 1, *m)).count()
        };
        let needed = 2 * (0..self.rank_of_stage.len().saturating_sub(1)).map(|stage| crossing(&stage)).sum::<usize>();
        let count: usize = sent.values().map(Vec::len).sum();
        if sent != received || count != needed {
            return Err(format!("{count} messages where {needed} are needed, or their ends disagree on the order"));
        }
        Ok(())
    }

    /// Runs the rows: a compute needs its inputs, and a group of messages ends when each has met its other end.
    fn runs_under_rendezvous(&self, steps: &[Vec<Step>]) -> Result<(), String> {
        let mut at = vec![0usize; steps.len()];
        // What has been computed on, or has arrived at, each rank.
        let mut present: HashSet<(usize, String)> = HashSet::new();
        let mut met: HashSet<(bool, usize, String)> = HashSet::new();
        loop {
            let mut moved = false;
            for rank in 0..steps.len() {
                let Some(step) = steps[rank].get(at[rank]) else { continue };
                let done = match step {
                    Step::Optimizer | Step::Copy(..) => true,
                    Step::Compute(op) => {
                        let inputs = self.inputs(op);
                        if let Some(missing) =
                            inputs.iter().find(|input| !present.contains(&(rank, (*input).clone())))
                        {
                            // In the order of a row nothing that is missing can come later.
                            return Err(format!("rank {rank}: {op:?} runs without {missing}"));
                        }
                        present.insert((rank, op.output()));
                        true
                    }
                    Step::Messages(list) => {
                        for (sends, peer, name) in list {
                            if *sends && !present.contains(&(rank, name.clone())) {
                                return Err(format!("rank {rank} sends {name} before it has it"));
                            }
                            let other = steps[*peer].get(at[*peer]);
                            let meets = matches!(other, Some(Step::Messages(others))
                                if others.iter().any(|(way, back, other)| way != sends && *back == rank && other == name));
                            if meets {
                                met.insert((*sends, rank, name.clone()));
                                met.insert((!*sends, *peer, name.clone()));
                            }
                        }
                        list.iter().all(|(sends, _, name)| met.contains(&(*sends, rank, name.clone())))
                    }
                };
                if done {
                    if let Step::Messages(list) = step {
                        present
                            .extend(list.iter().filter(|(sends, ..)| !sends).map(|(.., name)| (rank, name.clone())));
                    }
                    at[rank] += 1;
                    moved = true;
                }
            }
            if at.iter().zip(steps).all(|(at, row)| *at == row.len()) {
                return Ok(());
            }
            if !moved {
                return Err(format!("the ranks wait for each other's messages for ever, at steps {at:?}"));
            }
        }
    }

    fn inputs(&self, op: &Op) -> Vec<String> {
        let Op { stage, microbatch, .. } = *op;
        let own = match op.kind {
            Kind::F => return if stage > 0 { vec![format!("{}F{microbatch}", stage - 1)] } else { Vec::new() },
            Kind::B | Kind::Bw => format!("{stage}F{microbatch}"),
            Kind::W => format!("{stage}B{microbatch}"),
        };
        let mut inputs = vec![own];
        if op.kind != Kind::W && stage + 1 < self.rank_of_stage.len() {
            inputs.push(format!("{}B{microbatch}", stage + 1));
        }
        inputs
    }

    /// A program row: `(1RECV_F0 1SEND_B2) 1F0 … OPTIMIZER`, each message named by what it carries.
    fn steps(&self, row: &str) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        let mut group: Option<Vec<(bool, usize, String)>> = None;
        for word in row.split_whitespace() {
            if word == "OPTIMIZER" {
                steps.push(Step::Optimizer);
                continue;
            }
            if let Some((verb, name)) = word.split_once('(').filter(|(verb, _)| !verb.is_empty()) {
                steps.push(Step::Copy(verb == "wait", name.trim_end_matches(')').to_string()));
                continue;
            }
            if word.starts_with('(') {
                group = Some(Vec::new());
            }
            let Some(messages) = &mut group else {
                steps.push(Step::Compute(Op::read(word)?));
                continue;
            };
            messages.push(self.message(word.trim_matches(['(', ')']))?);
            if word.ends_with(')') {
                steps.extend(group.take().map(Step::Messages));
            }
        }
        if group.is_some() { Err(format!("`{row}` does not close its last group")) } else { Ok(steps) }
    }

    fn message(&self, word: &str) -> Result<(bool, usize, String), String> {
        let no_message = || format!("`{word}` is no message");
        let verb_at = word.find(|c: char| c.is_ascii_uppercase()).ok_or_else(no_message)?;
        let (stage, rest) = word.split_at(verb_at);
        let number_at = rest.find(|c: char| c.is_ascii_digit()).ok_or_else(no_message)?;
        let (verb, microbatch) = rest.split_at(number_at);
        let stage: usize = stage.parse().map_err(|_| no_message())?;
        let microbatch: usize = microbatch.parse().map_err(|_| no_message())?;
        // The stage named is the rank's own; the payload is named by the stage that made it.
        let (sends, peer, maker, kind) = match verb {
            "SEND_F" => (true, stage + 1, stage, 'F'),
            "RECV_F" => (false, stage - 1, stage - 1, 'F'),
            "SEND_B" => (true, stage - 1, stage, 'B'),
            "RECV_B" => (false, stage + 1, stage + 1, 'B'),
            _ => return Err(no_message()),
        };
        Ok((sends, self.rank(peer, microbatch), format!("{maker}{kind}{microbatch}")))
    }
}

fn named_placement(name: &str, ranks: usize, chunks: usize) -> Result<Vec<usize>, String> {
    let folded = match name {
        "linear" | "looped" | "two-way" => false,
        "v" | "wave" => true,
        _ => return Err(format!("placement `{name}` leaves the stages' ranks open")),
    };
    let down = 0..ranks;
    Ok((0..chunks)
        .flat_map(|chunk| -> Vec<usize> {
            if folded && chunk % 2 == 1 { down.clone().rev().collect() } else { down.clone().collect() }
        })
        .collect())
}

/// Starts and ends of all ops, by rank.
type Times = (Vec<Vec<u64>>, Vec<Vec<u64>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F,
    B,
    W,
    Bw,
}

#[derive(Clone, Copy)]
struct Op {
    stage: usize,
    kind: Kind,
    microbatch: usize,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.kind == Kind::Bw { "BW".to_string() } else { format!("{:?}", self.kind) };
        write!(f, "{}{kind}{}", self.stage, self.microbatch)
    }
}

impl Op {
    fn read(word: &str) -> Result<Op, String> {
        let letters = word.find(|c: char| c.is_ascii_uppercase()).ok_or(format!("`{word}` is no op"))?;
        let (stage, rest) = word.split_at(letters);
        let digits = rest.find(|c: char| c.is_ascii_digit()).ok_or(format!("`{word}` is no op"))?;
        let (kind, microbatch) = rest.split_at(digits);
        let kind = match kind {
            "F" => Kind::F,
            "B" => Kind::B,
            "W" => Kind::W,
            "BW" => Kind::Bw,
            _ => return Err(format!("`{word}` is no op")),
        };
        let number = |text: &str| text.parse().map_err(|_| format!("`{word}` is no op"));
        Ok(Op { stage: number(stage)?, kind, microbatch: number(microbatch)? })
    }

    /// What it makes, by name: a fused backward makes the gradient that a B makes.
    fn output(&self) -> String {
        let kind = match self.kind {
            Kind::F => 'F',
            Kind::B | Kind::Bw => 'B',
            Kind::W => 'W',
        };
        format!("{}{kind}{}", self.stage, self.microbatch)
    }

    fn jobs(&self) -> &'static [usize] {
        match self.kind {
            Kind::F => &[0],
            Kind::B => &[1],
            Kind::W => &[2],
            Kind::Bw => &[1, 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Problem;

    fn two_ranks() -> Problem {
        let stages = json!({ "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1,
            "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 });
        Problem::read(&json!({ "ranks": 2, "microbatches": 2, "stages": stages, "limit_bytes": 2 })).unwrap()
    }

    #[test]
    fn one_f_one_b_on_two_ranks_takes_three_times_m_plus_p_less_one() {
        let verdict = two_ranks().judge(&["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"]).unwrap();
        assert_eq!((verdict.makespan_ns, verdict.peak_bytes), (9, vec![2, 1]));
        assert_eq!(verdict.span_ns, [9, 6]);
    }

    #[test]
    fn it_is_not_fooled() {
        let lies: [(&[&str], &str); 6] = [
            (&["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1"], "stage 1, microbatch 1"),
            (&["0F0 0F1 0BW0 0BW1 0BW1", "1F0 1BW0 1F1 1BW1"], "stage 0, microbatch 1"),
            (&["0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW1 1BW0"], "wait for each other"),
            (&["0F0 0BW1 0F1 0BW0", "1F0 1BW0 1F1 1BW1"], "wait for each other"),
            (&["0F0 1F1 0BW0 0BW1", "1F0 1BW0 0F1 1BW1"], "another rank"),
            (&["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BX1"], "no op"),
        ];
        for (rows, says) in lies {
            let refusal = two_ranks().judge(rows).unwrap_err();
            assert!(refusal.contains(says), "{rows:?}: {refusal}");
        }
        let mut tight = two_ranks();
        tight.limits = vec![Some(1); 2];
        assert!(tight.judge(&["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"]).unwrap_err().contains("above its limit"));
    }

    #[test]
    fn hops_delay_only_what_crosses_ranks() {
        let mut slow = two_ranks();
        slow.hops = vec![vec![5; 2]; 2];
        let verdict = slow.judge(&["0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"]).unwrap();
        // F0 ends at 1 and arrives at 6; B0 ends at 8 and its gradient arrives at 13; B1, ended at 10, at 15.
        assert_eq!(verdict.makespan_ns, 17);
        assert_eq!(verdict.span_ns, [17, 6]);
    }

    #[test]
    fn it_follows_messages() {
        let problem = two_ranks();
        let rows = ["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"];
        let first = "0F0 (0SEND_F0) 0F1 (0SEND_F1 0RECV_B0) 0BW0 (0RECV_B1) 0BW1 OPTIMIZER";
        let second = "(1RECV_F0) 1F0 1BW0 (1SEND_B0 1RECV_F1) 1F1 1BW1 (1SEND_B1) OPTIMIZER";
        assert_eq!(problem.judge_program(&rows, &[first, second], &[]), Ok(()));
        let lies = [
            (first.replace(" (0SEND_F1 0RECV_B0)", " (0SEND_F1)"), second.to_string(), "messages where"),
            (first.replace("0SEND_F0", "0SEND_F1"), second.to_string(), "disagree on the order"),
            // Both want to send first, and nobody receives.
            (
                first.replace("(0SEND_F1 0RECV_B0)", "(0SEND_F1) (0RECV_B0)"),
                second.replace("(1SEND_B0 1RECV_F1)", "(1SEND_B0) (1RECV_F1)"),
                "for ever",
            ),
            (first.replace("0F0 (0SEND_F0)", "(0SEND_F0) 0F0"), second.to_string(), "before it has it"),
            (first.to_string(), second.replace("(1RECV_F0) 1F0 1BW0", "1F0 (1RECV_F0) 1BW0"), "runs without"),
            (first.replace(" OPTIMIZER", ""), second.to_string(), "optimizer"),
            (first.replace("0F0 ", ""), second.to_string(), "another order"),
        ];
        for (first, second, says) in lies {
            let refusal = problem.judge_program(&rows, &[&first, &second], &[]).unwrap_err();
            assert!(refusal.contains(says), "{first} | {second}: {refusal}");
        }
    }
}
