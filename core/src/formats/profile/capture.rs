//! What a profiler recorded of one process: ranges of its host, launches, kernels of its GPU. Readers of files fill it; the ops
//! are found here, in the same way for all of them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::names::{self, Job, Meaning};
use super::{Counted, Group, Ran, Recording};
use crate::base::fields::Fault;
use crate::base::units::{Bytes, Nanos};
use crate::notation::torch_csv;
use crate::problem::op::{Op, OpKind};
use crate::program::{P2pOp, Payload, Way};
use crate::trace::collectives::{CollectiveKind, GroupKind};

/// The assumed precision of a card's clock.
const CLOCK_NS: Nanos = 1000;

/// What is kept of the events of one process. Times count from the same moment.
#[derive(Debug, Default)]
pub struct Capture {
    rank: Option<u64>,
    world: Option<u64>,
    transport: Option<String>,
    groups: Vec<Group>,
    /// What names the clock of its times.
    clock: Option<String>,
    base_ns: Nanos,
    count: usize,
    ranges: Vec<Range>,
    /// Ranges without a stage.
    jobs: Vec<Range>,
    /// Where receives were launched: from when to when.
    receives: Vec<(Nanos, Nanos, P2pOp)>,
    /// The first range of a pair of ops.
    pair: Option<String>,
    /// Of a processor, by thread.
    operators: BTreeMap<u64, Vec<Operator>>,
    /// When receives on the host ended, by thread.
    received: BTreeMap<u64, Vec<Nanos>>,
    /// When a node of autograd's graph ran, and its number.
    nodes: Vec<(Nanos, u32)>,
    /// When modules were called, and which.
    modules: Vec<(Nanos, u32)>,
    module_names: BTreeMap<String, u32>,
    is_interleaved: bool,
    /// When something was launched, and what the device calls it.
    launches: Vec<(Nanos, u64)>,
    /// Whether a GPU has done anything.
    on_gpu: bool,
    /// What was launched as one, from start to end.
    kernels: Vec<(u64, Nanos, Nanos)>,
    /// When NCCL's ended, and whether they send or receive.
    messages: Vec<(u64, Nanos, bool)>,
    /// Collectives of NCCL or gloo.
    together: Vec<Together>,
    /// When the host began to send to a rank or to receive from one.
    transfers: Vec<Transfer>,
    profiled: Vec<(Nanos, u64)>,
    /// Most bytes allocated on a GPU.
    peak_bytes: Option<Bytes>,
}

/// A send or a receive as the host began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub at_ns: Nanos,
    pub way: Way,
    /// The other rank among all; none where it is not recorded.
    pub peer: Option<u64>,
}

/// A collective, on a GPU or on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Together {
    pub kind: CollectiveKind,
    pub group: Option<GroupKind>,
    pub bytes: Option<Bytes>,
    pub start_ns: Nanos,
    pub end_ns: Nanos,
}

impl Together {
    fn later(self, by_ns: Nanos) -> Together {
        let [start_ns, end_ns] = [self.start_ns, self.end_ns].map(|ns| ns.saturating_add(by_ns));
        Together { start_ns, end_ns, ..self }
    }
}

#[derive(Debug)]
struct Range {
    what: What,
    thread: u64,
    start_ns: Nanos,
    end_ns: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Op(Op),
    Job(Job),
}

impl What {
    fn text(self) -> String {
        match self {
            What::Op(op) => torch_csv::action(op),
            What::Job(job) => {
                let word = if job.is_backward { "a backward" } else { "a forward" };
                job.microbatch.map_or(word.to_string(), |number| format!("{word} of microbatch {number}"))
            }
        }
    }

    fn kind(self) -> OpKind {
        match self {
            What::Op(op) => op.kind(),
            What::Job(job) if job.is_backward => OpKind::BW,
            What::Job(_) => OpKind::F,
        }
    }
}

/// An operator on a processor. Millions of them are held.
#[derive(Clone, Copy, Debug)]
struct Operator {
    start_ns: Nanos,
    /// Four seconds at most.
    long_ns: u32,
    /// The number that autograd gives the next node; `NONE` where it has none.
    node: u32,
}

const NONE: u32 = u32::MAX;

impl Capture {
    /// Nothing so far.
    pub fn new() -> Capture {
        Capture::default()
    }

    /// Of which rank among all, of how many.
    pub fn set_rank(&mut self, rank: Option<u64>, world: Option<u64>) {
        (self.rank, self.world) = (rank, world);
    }

    /// What carried P2P transfers, such as `nccl`.
    pub fn set_transport(&mut self, transport: Option<String>) {
        self.transport = transport;
    }

    /// A group of the process: its description, such as `PIPELINE_MODEL_PARALLEL_GROUP`, and the ranks among all.
    pub fn add_group(&mut self, description: &str, ranks: Vec<u64>) {
        self.groups.push(Group { description: description.to_string(), ranks });
    }

    /// What names the clock: processes with the same name share it.
    pub fn set_clock(&mut self, name: &str) {
        self.clock = Some(name.to_string());
    }

    /// Whether a GPU has done anything.
    pub fn has_kernels(&self) -> bool {
        self.on_gpu
    }

    /// What all times count from.
    pub fn set_base(&mut self, base_ns: Nanos) {
        self.base_ns = base_ns;
    }

    /// How many events there were, whatever they are.
    pub fn count(&mut self) {
        self.count += 1;
    }

    /// Bytes that torch's allocator holds on a GPU.
    pub fn allocated(&mut self, bytes: Option<Bytes>) {
        self.peak_bytes = self.peak_bytes.max(bytes);
    }

    /// A range that a program marked, or a function of Python.
    pub fn range(&mut self, name: &str, is_python: bool, thread: u64, start_ns: Nanos, end_ns: Nanos) {
        let meaning = if is_python { names::of_python(name) } else { names::of_range(name) };
        match meaning {
            Some(Meaning::Op(op)) => self.ranges.push(Range { what: What::Op(op), thread, start_ns, end_ns }),
            Some(Meaning::Job(job)) => self.jobs.push(Range { what: What::Job(job), thread, start_ns, end_ns }),
            Some(Meaning::Pair(name)) => {
                self.pair.get_or_insert(name);
            }
            Some(Meaning::Receive(message)) => self.receives.push((start_ns, end_ns, message)),
            Some(Meaning::Step(number)) => self.profiled.push((start_ns, number)),
            Some(Meaning::Module) => {
                let next = self.module_names.len() as u32;
                let known = self.module_names.get(name).copied();
                let module = known.unwrap_or_else(|| *self.module_names.entry(name.to_string()).or_insert(next));
                self.modules.push((start_ns, module));
            }
            Some(Meaning::Together(kind)) => {
                self.together.push(Together { kind, group: None, bytes: None, start_ns, end_ns });
            }
            Some(Meaning::Interleaved) => self.is_interleaved = true,
            Some(Meaning::Send) => self.transfer(Way::Send, None, start_ns),
            Some(Meaning::Arrival) => self.transfer(Way::Receive, None, start_ns),
            None => {}
        }
    }

    /// An operator of torch on the host, with the number of autograd's next node where it has one.
    pub fn operator(&mut self, name: &str, thread: u64, start_ns: Nanos, end_ns: Nanos, node: Option<u64>) {
        let node = node.and_then(|node| u32::try_from(node).ok()).unwrap_or(NONE);
        if name.starts_with(names::EVALUATES) && node != NONE {
            self.nodes.push((start_ns, node));
        }
        // Those of transfers wait for other ranks.
        if name.starts_with("c10d::recv") {
            self.received.entry(thread).or_default().push(end_ns);
        }
        if !name.starts_with("c10d::") {
            let long_ns = u32::try_from(end_ns.saturating_sub(start_ns)).unwrap_or(u32::MAX);
            self.operators.entry(thread).or_default().push(Operator { start_ns, long_ns, node });
        }
    }

    /// The operator of an NVTX range of torch's `emit_nvtx`; whether it is one.
    pub fn nvtx_operator(&mut self, name: &str, thread: u64, start_ns: Nanos, end_ns: Nanos) -> bool {
        let Some((operator, node)) = names::of_nvtx_operator(name) else { return false };
        self.operator(operator, thread, start_ns, end_ns, node);
        true
    }

    /// A launch, by the number that its kernel has too.
    pub fn launch(&mut self, correlation: u64, start_ns: Nanos) {
        self.launches.push((start_ns, correlation));
    }

    /// A collective's kernel, `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, with the description of its group and its bytes where
    /// these are known; nothing of another kernel.
    pub fn together(
        &mut self,
        kernel: &str,
        group: Option<&str>,
        bytes: Option<Bytes>,
        start_ns: Nanos,
        end_ns: Nanos,
    ) {
        if let Some(kind) = names::of_kernel(kernel) {
            let group = group.and_then(names::of_group);
            self.together.push(Together { kind, group, bytes, start_ns, end_ns });
        }
    }

    /// A kernel, or a copy of memory.
    pub fn kernel(&mut self, name: &str, correlation: Option<u64>, start_ns: Nanos, end_ns: Nanos) {
        self.on_gpu = true;
        let Some(correlation) = correlation else { return };
        if name.starts_with("nccl") {
            self.messages.push((correlation, end_ns, name.contains("SendRecv")));
        } else {
            self.kernels.push((correlation, start_ns, end_ns));
        }
    }

    /// A send to a rank or a receive from it, as the host began it.
    pub fn transfer(&mut self, way: Way, peer: Option<u64>, at_ns: Nanos) {
        self.transfers.push(Transfer { at_ns, way, peer });
    }

    /// The pipeline of the process.
    ///
    /// # Errors
    /// `events` names the events of the file. No ranges of a pipeline, several ops in one range, a GPU's run without its kernels.
    pub fn finish(mut self, events: &str) -> Result<Recording, Fault> {
        if let Some(pair) = self.pair {
            let accepted = "ranges of single ops: when the second op of a pair begins is not recorded; in Megatron-LM, \
                            run without --overlap-moe-expert-parallel-comm";
            return Err(Fault::new(events, format!("the pair {pair}"), accepted));
        }
        // Ranges that say everything come first.
        if !self.ranges.is_empty() {
            self.jobs.clear();
        }
        if self.ranges.is_empty() && self.jobs.is_empty() {
            return Err(Fault::new(events, format!("{} events and no such range", self.count), ACCEPTED));
        }
        let over_nccl = self.transport.as_ref().is_some_and(|backend| backend.contains("nccl"));
        if !self.on_gpu && (over_nccl || self.peak_bytes.is_some()) {
            let accepted = "kernels of a GPU: profile with ProfilerActivity.CUDA as well";
            return Err(Fault::new(events, "a run on GPUs without any", accepted));
        }
        if self.transport.is_none() && !self.messages.is_empty() {
            self.transport = Some("nccl".to_string());
        }
        let base_ns = self.base_ns;
        let is_counted = self.ranges.is_empty();
        let mut ranges = core::mem::take(if is_counted { &mut self.jobs } else { &mut self.ranges });
        ranges.sort_by_key(|range| (range.start_ns, core::cmp::Reverse(range.end_ns)));
        if is_counted {
            leave_inner_out(&mut ranges);
        }
        self.launches.sort_unstable();
        self.received.values_mut().for_each(|of_thread| of_thread.sort_unstable());
        self.operators.values_mut().for_each(|of_thread| of_thread.sort_unstable_by_key(|one| one.start_ns));
        let counted = if is_counted { self.counted(&ranges) } else { Vec::new() };
        let ops = if self.on_gpu { self.ops_of_gpu(&ranges, events)? } else { self.ops_of_cpu(&ranges) };
        let mut steps: Vec<(Nanos, u64)> =
            self.profiled.iter().map(|(start_ns, number)| (start_ns.saturating_add(base_ns), *number)).collect();
        steps.sort_unstable();
        let mut together = self.together;
        together.sort_by_key(|one| one.start_ns);
        let mut transfers = self.transfers;
        transfers.sort_by_key(|transfer| transfer.at_ns);
        let transfers = transfers.into_iter().map(|one| Transfer { at_ns: one.at_ns.saturating_add(base_ns), ..one });
        Ok(Recording {
            rank: self.rank,
            world: self.world,
            transport: self.transport,
            groups: self.groups,
            clock: self.clock,
            on_gpu: self.on_gpu,
            ops: ops.into_iter().map(|ran| ran.later(base_ns)).collect(),
            counted,
            is_interleaved: self.is_interleaved,
            together: together.into_iter().map(|one| one.later(base_ns)).collect(),
            first_end_ns: ranges.first().map_or(0, |range| range.end_ns.saturating_add(base_ns)),
            transfers: if is_counted { transfers.collect() } else { Vec::new() },
            steps,
            peak_bytes: self.peak_bytes,
        })
    }

    /// What is known of each of `ranges`, none of which says its stage.
    fn counted(&mut self, ranges: &[Range]) -> Vec<Counted> {
        self.nodes.sort_unstable();
        self.modules.sort_unstable();
        // Of each forward, the least and the most number of a node.
        let nodes_of = |range: &Range| {
            let of_thread = self.operators.get(&range.thread)?;
            let from = of_thread.partition_point(|one| one.start_ns < range.start_ns);
            let within = of_thread[from..].iter().take_while(|one| one.start_ns < range.end_ns);
            let numbers = || within.clone().map(|one| one.node).filter(|node| *node != NONE);
            Some((numbers().min()?, numbers().max()?))
        };
        let is_backward = |range: &Range| matches!(range.what, What::Job(Job { is_backward: true, .. }));
        let mut forwards: Vec<(u32, u32, usize)> = Vec::new();
        let mut counted = Vec::with_capacity(ranges.len());
        for (index, range) in ranges.iter().enumerate() {
            let What::Job(job) = range.what else { continue };
            let mut one = Counted { job, module: None, forward: None };
            if is_backward(range) {
                let from = self.nodes.partition_point(|(at_ns, _)| *at_ns < range.start_ns);
                let node = self.nodes.get(from).filter(|(at_ns, _)| *at_ns < range.end_ns).map(|(_, node)| *node);
                // Numbers of a forward that has just begun are those of the next node.
                let of = |node: u32| forwards.iter().rev().find(|(least, most, _)| (*least..=*most).contains(&node));
                one.forward = node.and_then(of).map(|(_, _, forward)| *forward);
            } else {
                if let Some((least, most)) = nodes_of(range) {
                    forwards.push((least, most, index));
                }
                let from = self.modules.partition_point(|(at_ns, _)| *at_ns < range.start_ns);
                one.module =
                    self.modules.get(from).filter(|(at_ns, _)| *at_ns < range.end_ns).map(|(_, module)| *module);
            }
            counted.push(one);
        }
        counted
    }

    fn ops_of_cpu(&self, ranges: &[Range]) -> Vec<Ran> {
        let ran = |range: &Range| {
            let of_thread = self.operators.get(&range.thread).map(Vec::as_slice).unwrap_or_default();
            // A range of a job may have the receive of its input in it.
            let received = self.received.get(&range.thread).filter(|_| matches!(range.what, What::Job(_)));
            let received_ns = received.and_then(|ends| {
                let within = ends.partition_point(|end_ns| *end_ns < range.end_ns);
                ends[..within].last().copied()
            });
            let begun_ns = range.start_ns.max(received_ns.unwrap_or(0));
            let from = of_thread.partition_point(|one| one.start_ns < begun_ns);
            let mut within = of_thread[from..].iter().take_while(|one| one.start_ns < range.end_ns);
            let start_ns = within.clone().next().map_or(range.end_ns, |one| one.start_ns);
            // The runtime of torch sends behind its ranges; within others, what follows the last operator may be a send.
            let end_ns = match range.what {
                What::Op(_) => range.end_ns,
                What::Job(_) => within
                    .try_fold(start_ns, |last_ns, one| Some(last_ns.max(one.start_ns + Nanos::from(one.long_ns))))
                    .unwrap_or(start_ns)
                    .min(range.end_ns),
            };
            Ran {
                op: op_until_counted(range),
                host_ns: range.start_ns,
                start_ns,
                end_ns,
                asked_ns: range.start_ns,
                arrived_ns: Some(start_ns),
            }
        };
        in_turn(ranges.iter().map(ran))
    }

    /// A fault where a kernel is missing.
    fn ops_of_gpu(&mut self, ranges: &[Range], events: &str) -> Result<Vec<Ran>, Fault> {
        self.receives.sort_unstable();
        self.kernels.sort_unstable();
        self.messages.sort_unstable();
        let launched = |start_ns: Nanos, end_ns: Nanos| {
            let at = |ns| self.launches.partition_point(|(launched_ns, _)| *launched_ns < ns);
            let launches = self.launches.get(at(start_ns)..at(end_ns)).unwrap_or_default();
            launches.iter().map(|(_, correlation)| *correlation)
        };
        let kernels_of = |correlation: u64| {
            let from = self.kernels.partition_point(|(of, ..)| *of < correlation);
            self.kernels[from..]
                .iter()
                .take_while(move |(of, ..)| *of == correlation)
                .map(|(_, start, end)| (*start, *end))
        };
        let messages_of = |correlation: u64| {
            let from = self.messages.partition_point(|(of, ..)| *of < correlation);
            self.messages[from..].iter().take_while(move |(of, ..)| *of == correlation)
        };
        // By P2P transfer, when its receive was launched, and when the data was there. A range ends where the next one
        // begins, so that each launch is looked at once.
        let mut arrivals: BTreeMap<P2pOp, Vec<(Nanos, Nanos)>> = BTreeMap::new();
        for (index, (start_ns, end_ns, message)) in self.receives.iter().enumerate() {
            let end_ns = self.receives.get(index + 1).map_or(*end_ns, |next| next.0.min(*end_ns));
            let arrived_ns = launched(*start_ns, end_ns).flat_map(messages_of).map(|(_, end_ns, _)| *end_ns).max();
            arrivals.entry(*message).or_default().extend(arrived_ns.map(|arrived_ns| (*start_ns, arrived_ns)));
        }
        // The last one that was launched before the op was.
        let arrived = |range: &Range| {
            let What::Op(op) = range.what else { return None };
            let payload = match op.kind() {
                OpKind::F => Payload::Activation,
                OpKind::B | OpKind::BW => Payload::Gradient,
                OpKind::W => return None,
            };
            let (stage, microbatch) = (op.stage() as u16, op.microbatch() as u32);
            let all = arrivals.get(&P2pOp { way: Way::Receive, payload, stage, microbatch })?;
            let before = all.partition_point(|(launched_ns, _)| *launched_ns < range.start_ns);
            Some(all.get(before.checked_sub(1)?)?.1)
        };
        // Of each job, whether ops have kernels, and one that has none.
        let mut jobs: BTreeMap<(usize, OpKind), (bool, Option<What>)> = BTreeMap::new();
        let mut ran = Vec::with_capacity(ranges.len());
        let mut before_ns = 0;
        for (index, range) in ranges.iter().enumerate() {
            let end_ns = ranges.get(index + 1).map_or(range.end_ns, |next| next.start_ns.min(range.end_ns));
            let mut arrived_ns = arrived(range);
            let kernels = || launched(range.start_ns, end_ns).flat_map(kernels_of);
            let last_ns = kernels().map(|kernel| kernel.1).max();
            let with_input = |ns: &Nanos| arrived_ns.is_none_or(|at| ns + CLOCK_NS >= at);
            let first_ns = kernels().map(|kernel| kernel.0).filter(with_input).min();
            if let (What::Job(_), Some(first_ns)) = (range.what, first_ns) {
                // The last transfer that was launched since the job before, and ended before this one's first kernel.
                let since = launched(before_ns, range.end_ns).flat_map(messages_of).filter(|(.., is_p2p)| *is_p2p);
                arrived_ns =
                    since.map(|(_, end_ns, _)| *end_ns).filter(|end_ns| *end_ns <= first_ns + CLOCK_NS).max();
            }
            before_ns = end_ns;
            let stage = if let What::Op(op) = range.what { op.stage() } else { usize::MAX };
            let job = jobs.entry((stage, range.what.kind())).or_default();
            match first_ns {
                Some(_) => job.0 = true,
                None => job.1 = job.1.or(Some(range.what)),
            }
            // An op that launches nothing takes no time, once its input is there.
            let (start_ns, end_ns) = first_ns.zip(last_ns).unwrap_or((arrived_ns.unwrap_or(0), 0));
            let end_ns = end_ns.max(start_ns);
            ran.push(Ran {
                op: op_until_counted(range),
                host_ns: range.start_ns,
                start_ns,
                end_ns,
                asked_ns: 0,
                arrived_ns,
            });
        }
        // The first stage's `I` does nothing, but may be the first that needs a sharded stage's weights.
        for ((_, kind), (has_kernels, without)) in jobs.into_iter().filter(|(job, _)| *job != (0, OpKind::B)) {
            if let (Some(what), true) = (without, has_kernels || matches!(kind, OpKind::F | OpKind::BW)) {
                let accepted =
                    "kernels of every op: record fewer steps, and wait for the device before the profile ends";
                return Err(Fault::new(events, format!("no kernel of {}", what.text()), accepted));
            }
        }
        let begun_ns = ran.iter().map(|ran| ran.start_ns).find(|start_ns| *start_ns > 0).unwrap_or(0);
        for ran in ran.iter_mut().take_while(|ran| ran.start_ns == 0) {
            (ran.start_ns, ran.end_ns) = (begun_ns, begun_ns);
        }
        Ok(in_turn(ran.into_iter()))
    }
}

/// What is accepted where a file has no ranges of a pipeline.
const ACCEPTED: &str = "ranges of a pipeline: `PP:0F0`, which the runtime of torch.distributed.pipelining records on every rank; \
                        `Forward 0` of ScheduleGPipe; or forwards and backwards of Schedule1F1B, Megatron-LM or DeepSpeed, \
                        which torch.profiler records with `with_stack=True` (Megatron-LM: \
                        --pytorch-profiler-collect-callstack) and Nsight Systems with --python-functions-trace";

/// The op of a range; of one that does not say its stage, the first of its kind.
fn op_until_counted(range: &Range) -> Op {
    match range.what {
        What::Op(op) => op,
        What::Job(_) => Op::new(0, range.what.kind(), 0),
    }
}

/// Leaves out ranges that are part of another one of their kind: a runtime's function calls the user's, or its own again. A
/// forward within a backward recomputes.
fn leave_inner_out(ranges: &mut Vec<Range>) {
    let mut outer: BTreeMap<u64, Nanos> = BTreeMap::new();
    ranges.retain(|range| {
        let end_ns = outer.entry(range.thread).or_default();
        let is_inner = range.start_ns < *end_ns;
        *end_ns = range.end_ns.max(*end_ns);
        !is_inner
    });
}

/// None before the one before it has ended: streams may overlap a little.
fn in_turn(ops: impl Iterator<Item = Ran>) -> Vec<Ran> {
    let mut before_ns = 0;
    ops.map(|ran| {
        let start_ns = ran.start_ns.max(before_ns);
        before_ns = ran.end_ns.max(start_ns);
        Ran { start_ns, end_ns: before_ns, ..ran }
    })
    .collect()
}
