//! How much memory a rank takes of a card: found out before it starts, by running its op list in a dry run.
//!
//! The walk is that of the real run ([`Stages`]), with a [`Processor`] that only notes when which bytes are taken and
//! given back. What [`Heap`] then needs to deal them out is what the rank reserves, in one piece: the bytes of the
//! plan, and what the gaps between tensors cost, which is known and tested here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, Init, Kernel, Role, SequencePart, Tensor};
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::program::{P2pOp, Payload, Program, Step, Way};

use super::card::Held;
use super::heap::{ALIGNMENT, Heap, rounded};
use super::launch::{rope_bytes, rope_tables};
use super::nvidia::SLAB;
use super::{expert_parallel, held_as_state, launch};
use crate::backend::peers::{Alone, Collective, Peers};
use crate::backend::stages::{
    CollectiveOutcome, ExpertOverflow, Input, NewParameter, Processor, Stages, Training, Updated,
};
use crate::backend::{Backend, BackendError, Parcel, Part, Store, Values};
use crate::runner::optimizer::{AdamW, Rule};
use crate::transport::{Buffer, OnCard};

/// What a rank takes for all that is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Of the card's memory.
    pub on_card: Bytes,
    /// Of the host's, for what is kept there.
    pub on_host: Bytes,
}

/// Bytes of the memory that a rank which walks `row` with `stages` takes for all that is its own. Where it `shows`
/// what it deals
/// out, others give that back.
///
/// # Errors
/// [`BackendError`] where the row runs something before what it needs.
pub fn needed(
    stages: &[(u16, Graph)],
    training: &Training,
    row: &[Step],
    shows: bool,
) -> Result<Needed, BackendError> {
    let events = walk(stages, training, row, shows)?;
    let is_on_host = |event: &Event| matches!(event, Event::Take(_, _, Held::OnHost));
    let on_host: BTreeSet<u32> = events.iter().filter(|event| is_on_host(event)).map(|event| event.place()).collect();
    let (on_host, on_card): (Vec<Event>, Vec<Event>) =
        events.into_iter().partition(|event| on_host.contains(&event.place()));
    Ok(Needed { on_card: dealt_from(&on_card, ALIGNMENT), on_host: dealt_from(&on_host, SLAB) })
}

/// The least memory, or nearly so, that all of `events` can be dealt from, in units of `unit`. What is dealt from
/// more may lie
/// otherwise, and not fit.
fn dealt_from(events: &[Event], unit: Bytes) -> Bytes {
    let least = replay(events, Bytes::MAX / 2).unwrap_or(0).next_multiple_of(unit);
    // What is dealt out always lies with gaps: in steps of a 256th, the least that does.
    let step = (least / 256).next_multiple_of(unit).max(unit);
    let mut sizes = (0..128).map(|more| least + more * step);
    sizes.find(|size| replay(events, *size).is_some()).unwrap_or(least)
}

/// The most bytes of messages that `rank` of a pipeline, which holds `stages`, has made and others may not have taken
/// yet: what its memory for those must hold, in whatever order ranks get on. What is given back is seen now and then,
/// so of each receiver the last message that is known to be taken is still held.
pub fn leaving(problem: &Problem, program: &Program, rank: usize, stages: &[(u16, Graph)]) -> Bytes {
    let known = known_to_be_taken(problem, program, rank);
    let bytes = |message: &P2pOp| {
        let role = match message.payload {
            Payload::Activation => Role::ActivationOut,
            Payload::Gradient => Role::GradientOut,
        };
        let graph = stages.iter().find(|(stage, _)| *stage == message.stage).map(|(_, graph)| graph);
        let tensors = graph.into_iter().flat_map(|graph| &graph.tensors).filter(|tensor| tensor.role == role);
        tensors.map(|tensor| rounded(tensor.bytes())).sum::<Bytes>()
    };
    // By receiver: from where on each message is known to be taken, and its bytes.
    let mut under_way: BTreeMap<usize, VecDeque<(usize, Bytes)>> = BTreeMap::new();
    let (mut held, mut most) = (0, 0);
    for (index, step) in program.rows.get(rank).into_iter().flatten().enumerate() {
        for sent in under_way.values_mut() {
            while sent.get(1).is_some_and(|(known, _)| *known <= index) {
                held -= sent.pop_front().map_or(0, |(_, bytes)| bytes);
            }
        }
        match step {
            Step::Compute(op) => {
                let payload = match op.kind() {
                    OpKind::F => Payload::Activation,
                    OpKind::B | OpKind::BW => Payload::Gradient,
                    OpKind::W => continue,
                };
                let (stage, microbatch) = (op.stage() as u16, op.microbatch() as u32);
                let made = P2pOp { way: Way::Send, payload, stage, microbatch };
                if known.contains_key(&made) {
                    held += bytes(&made);
                    most = most.max(held);
                }
            }
            _ => {
                for message in messages_of(step, Way::Send) {
                    let taken = known.get(message).copied().unwrap_or(usize::MAX);
                    under_way.entry(receiver(problem, message)).or_default().push_back((taken, bytes(message)));
                }
            }
        }
    }
    most
}

/// The messages that `step` begins to send, or that it ends only with.
fn messages_of(step: &Step, way: Way) -> impl Iterator<Item = &P2pOp> {
    let messages = match (step, way) {
        (Step::Transfer(messages), _) | (Step::Start(messages), Way::Send) | (Step::Wait(messages), Way::Receive) => {
            messages.as_slice()
        }
        _ => &[],
    };
    messages.iter().filter(move |message| message.way == way)
}

/// The rank at the other end.
fn receiver(problem: &Problem, message: &P2pOp) -> usize {
    problem.rank_of(message.peer_stage(), message.microbatch as usize)
}

/// For each message that `rank` sends, from which step of its row on it is certain that it has been taken: something
/// has come since that was sent behind that. Beyond every row where that is never so.
///
/// Every rank walks as far as it can, none waiting for its sends, and learns with what it receives how far the
/// receivers of `rank` had come, as far as the sender knew.
fn known_to_be_taken(problem: &Problem, program: &Program, rank: usize) -> BTreeMap<P2pOp, usize> {
    let sends = || program.rows.get(rank).into_iter().flatten().flat_map(|step| messages_of(step, Way::Send));
    let mut known: BTreeMap<P2pOp, usize> = sends().map(|message| (*message, usize::MAX)).collect();
    let receivers: Vec<usize> =
        sends().map(|message| receiver(problem, message)).collect::<BTreeSet<_>>().into_iter().collect();
    // Of each message, which receiver takes it, and how many steps it has then done.
    let mut taken: BTreeMap<P2pOp, (usize, usize)> = BTreeMap::new();
    for (place, receiver) in receivers.iter().enumerate() {
        for (index, step) in program.rows[*receiver].iter().enumerate() {
            taken.extend(messages_of(step, Way::Receive).map(|message| (message.mirrored(), (place, index + 1))));
        }
    }
    // By rank: steps that each receiver is known to have done. By parcel: what its sender knew.
    let mut seen = vec![vec![0; receivers.len()]; program.rows.len()];
    let mut told: BTreeMap<Parcel, Vec<usize>> = BTreeMap::new();
    let mut done = vec![0; program.rows.len()];
    let mut unsure: Vec<P2pOp> = known.keys().copied().collect();
    loop {
        let before: usize = done.iter().sum();
        for (of, row) in program.rows.iter().enumerate() {
            while let Some(step) = row.get(done[of]) {
                for message in messages_of(step, Way::Send) {
                    told.insert(Parcel::of(*message), seen[of].clone());
                }
                if !messages_of(step, Way::Receive).all(|message| told.contains_key(&Parcel::of(*message))) {
                    break;
                }
                for message in messages_of(step, Way::Receive) {
                    for (seen, told) in
                        seen[of].iter_mut().zip(told.remove(&Parcel::of(*message)).unwrap_or_default())
                    {
                        *seen = (*seen).max(told);
                    }
                }
                done[of] += 1;
                if let Some(place) = receivers.iter().position(|receiver| *receiver == of) {
                    seen[of][place] = done[of];
                }
                if of == rank {
                    unsure.retain(|message| {
                        let is_taken = taken.get(message).is_some_and(|(place, steps)| seen[rank][*place] >= *steps);
                        if is_taken {
                            known.insert(*message, done[rank]);
                        }
                        !is_taken
                    });
                }
            }
        }
        if done.iter().sum::<usize>() == before {
            return known;
        }
    }
}

/// What a processor was asked for, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// So many bytes, for the place of this number.
    Take(u32, Bytes, Held),
    /// The place of this number is given back.
    GiveBack(u32),
}

impl Event {
    /// The number of its place.
    fn place(&self) -> u32 {
        let (Event::Take(place, ..) | Event::GiveBack(place)) = self;
        *place
    }
}

/// The most bytes in use at once, where a heap of `size` can deal out all that `events` ask for.
fn replay(events: &[Event], size: Bytes) -> Option<Bytes> {
    let mut heap = Heap::default();
    heap.add(ALIGNMENT, size);
    let mut places: BTreeMap<u32, (u64, Bytes)> = BTreeMap::new();
    for event in events {
        match *event {
            Event::Take(place, bytes, held) => {
                places.insert(place, (heap.allocate(bytes, held)?, bytes));
            }
            Event::GiveBack(place) => {
                if let Some((at, bytes)) = places.remove(&place) {
                    heap.give_back(at, bytes);
                }
            }
        }
    }
    Some(heap.most())
}

/// The paper: what was asked for so far, and how many places that made.
type Paper = Arc<Mutex<(Vec<Event>, u32)>>;

fn walk(stages: &[(u16, Graph)], training: &Training, row: &[Step], shows: bool) -> Result<Vec<Event>, BackendError> {
    let paper = Paper::default();
    let mut store = Store::default();
    // Tables of angles, which stay.
    let tables = rope_tables(stages.iter().map(|(_, graph)| graph));
    let tables: Vec<Place> =
        tables.into_iter().map(|table| Place::new(&paper, rope_bytes(table), Held::Kept)).collect();
    let noted = Noting { paper: Arc::clone(&paper), shows };
    let mut backend = Stages::start(noted, stages.iter().cloned(), training.clone(), &mut store)?;
    let mut there = BTreeSet::new();
    backend.begin(0);
    for step in row {
        match step {
            Step::Compute(op) => backend.compute(*op, &mut store, &mut Alone::default())?,
            Step::Optimizer => backend.optimize(&mut store)?,
            // Refused on a card before anything starts.
            Step::StartCopy(_) | Step::WaitCopy(_) => {}
            Step::Transfer(messages) | Step::Start(messages) | Step::Wait(messages) => {
                for message in messages {
                    let parcel = Parcel::of(*message);
                    match message.way {
                        // It goes as a copy, in memory that others give back.
                        Way::Send => drop(store.take(parcel).ok()),
                        // Where it may arrive by itself, it has its room from the start of the transfer on.
                        Way::Receive if there.insert(parcel) => {
                            let bytes = backend.expects(parcel);
                            let place = Place::new(&paper, bytes, Held::Kept);
                            store.put(parcel, Buffer::OnCard(OnCard::new(Arc::new(place), bytes)));
                        }
                        Way::Receive => {}
                    }
                }
            }
        }
    }
    drop((backend, store, tables));
    let events = std::mem::take(&mut paper.lock().unwrap_or_else(PoisonError::into_inner).0);
    Ok(events)
}

/// Notes what is asked for, and holds nothing.
struct Noting {
    paper: Paper,
    /// Whether what it deals out is in memory that others give back.
    shows: bool,
}

/// A place that would be held.
struct Place {
    paper: Paper,
    number: u32,
}

impl Place {
    fn new(paper: &Paper, bytes: Bytes, held: Held) -> Place {
        let mut noted = paper.lock().unwrap_or_else(PoisonError::into_inner);
        let number = noted.1;
        noted.1 += 1;
        noted.0.push(Event::Take(number, rounded(bytes), held));
        Place { paper: Arc::clone(paper), number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.paper.lock().unwrap_or_else(PoisonError::into_inner).0.push(Event::GiveBack(self.number));
    }
}

/// A tensor of which only its shape counts.
fn nowhere(tensor: &Tensor) -> launch::Place<'_> {
    launch::Place { at: None, shape: &tensor.shape, dtype: tensor.dtype }
}

impl Noting {
    fn kept(&self, bytes: Bytes) -> Arc<Place> {
        Arc::new(Place::new(&self.paper, bytes, Held::Kept))
    }

    /// What is taken while an operator runs, in this order.
    fn briefly(&self, sizes: impl IntoIterator<Item = Bytes>) {
        let taken: Vec<Place> =
            sizes.into_iter().map(|bytes| Place::new(&self.paper, bytes, Held::Briefly)).collect();
        drop(taken);
    }
}

impl Processor for Noting {
    type Data = Arc<Place>;
    type State = [Option<Arc<Place>>; 3];
    type Error = BackendError;

    fn allocate(&mut self, tensor: &Tensor, briefly: bool) -> Result<Arc<Place>, BackendError> {
        let held = match tensor.role {
            Role::OnHost => Held::OnHost,
            _ if briefly => Held::Briefly,
            _ => Held::Kept,
        };
        Ok(Arc::new(Place::new(&self.paper, tensor.bytes(), held)))
    }

    fn tokens(&mut self, tokens: Vec<i32>) -> Result<Arc<Place>, BackendError> {
        Ok(self.kept(4 * tokens.len() as Bytes))
    }

    /// In the order in which [`Queue`](super::Queue) takes them.
    fn parameter(
        &mut self,
        training: &Training,
        _: Init,
        weight: &Tensor,
        gradient: &Tensor,
        // By AdamW: others are refused before a run.
        (_, held): (Rule, usize),
    ) -> Result<NewParameter<Arc<Place>, [Option<Arc<Place>>; 3]>, BackendError> {
        let state = |bytes: Bytes| Arc::new(Place::new(&self.paper, bytes, held_as_state(training)));
        let master = (weight.dtype == Dtype::Bf16).then(|| state(4 * held as Bytes));
        let moments = [(); 2].map(|()| Some(state(4 * held as Bytes)));
        let [mean, square] = moments;
        Ok(NewParameter {
            weight: self.kept(weight.bytes()),
            gradient: self.kept(gradient.bytes()),
            state: [master, mean, square],
            state_bytes: 0,
        })
    }

    fn unpack(&mut self, buffer: Buffer, _: &Tensor) -> Option<Arc<Place>> {
        match buffer {
            Buffer::OnCard(parcel) => parcel.content().downcast().ok(),
            _ => None,
        }
    }

    fn pack(&mut self, data: Arc<Place>, tensor: &Tensor, _: bool) -> Result<Buffer, BackendError> {
        Ok(Buffer::OnCard(OnCard::new(data, tensor.bytes())))
    }

    fn number(&mut self, _: &Arc<Place>) -> Result<f64, BackendError> {
        Ok(0.0)
    }

    /// Whatever others are for, it takes no memory here that is not the operator's own.
    fn run_collective(
        &mut self,
        _: Collective,
        _: (&Tensor, Option<&Arc<Place>>),
        _: (&Tensor, &Arc<Place>),
        _: &mut dyn Peers,
    ) -> Result<CollectiveOutcome, BackendError> {
        Ok(CollectiveOutcome::Done)
    }

    fn to_host(&mut self, _: &Arc<Place>, _: &Tensor) -> Result<Buffer, BackendError> {
        Ok(Buffer::Nothing)
    }

    fn fill(&mut self, _: &mut Arc<Place>, _: &Tensor, _: Buffer) -> Result<(), BackendError> {
        Ok(())
    }

    fn begin(&mut self, _: u64, _: u64, _: SequencePart) {}

    fn run(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Arc<Place>>],
        _: &mut [(&Tensor, Arc<Place>)],
    ) -> Result<(), BackendError> {
        let inputs: Vec<_> = inputs.iter().map(|input| nowhere(input.tensor)).collect();
        self.briefly(launch::taken(kernel, &inputs));
        Ok(())
    }

    fn expert_all_to_all(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Arc<Place>>],
        outputs: &mut [(&Tensor, Arc<Place>)],
        _: &mut dyn Peers,
    ) -> Result<Option<ExpertOverflow>, BackendError> {
        let inputs: Vec<_> = inputs.iter().map(|input| nowhere(input.tensor)).collect();
        let outputs: Vec<_> = outputs.iter().map(|(tensor, _)| nowhere(tensor)).collect();
        self.briefly(expert_parallel::taken(kernel, &inputs, &outputs, self.shows));
        Ok(None)
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn update(
        &mut self,
        _: &AdamW,
        _: u32,
        _: Updated<'_, Arc<Place>, [Option<Arc<Place>>; 3]>,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn weight(&self, _: &Arc<Place>, _: &[Option<Arc<Place>>; 3]) -> Option<Buffer> {
        None
    }

    fn gradient(&self, _: &Arc<Place>) -> Option<Buffer> {
        None
    }

    fn lend(
        &mut self,
        _: Part,
        _: Updated<'_, Arc<Place>, [Option<Arc<Place>>; 3]>,
        _: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), BackendError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pipeplan_core::model::{Dtype, Experts, Family, ModelConfig, Routing, Variant};

    use super::*;
    use crate::runner::data::Batches;
    use crate::runner::{Computation, Device, RunOptions, Silent, Workload, run};
    use crate::selftest::speed::Sizes;
    use crate::selftest::training_runs::published;

    fn text() -> Vec<u8> {
        (0..1u32 << 16).map(|n| (n % 251) as u8).collect()
    }

    /// Bytes that each rank takes, and the least that is enough if tensors can lie anywhere.
    fn taken(work: &pipeplan_core::spec::ModelWork, schedule: &str) -> Vec<(Bytes, Bytes)> {
        let (workload, predicted) = published(work, schedule, None).expect("a plan");
        taken_of(&workload, work, false).into_iter().zip(predicted).collect()
    }

    /// Bytes that each rank of a pipeline takes.
    fn taken_of(workload: &Workload, work: &pipeplan_core::spec::ModelWork, shows: bool) -> Vec<Bytes> {
        let Workload { computation: Computation::Model(model), problem, .. } = workload else { panic!("a model") };
        let (sequence, size, count) =
            (work.sequence as usize, work.microbatch_size as usize, work.microbatches as usize);
        let batches = Arc::new(Batches::new(text(), [sequence, 3], size, count, 0).expect("enough text"));
        let of_rank = |rank: usize| {
            let held: Vec<(u16, Graph)> = (0..problem.stage_count())
                .filter(|stage| problem.rank_of(*stage, 0) == rank)
                .map(|stage| (stage as u16, model.graphs[stage].clone()))
                .collect();
            let training = Training {
                stage_count: problem.stage_count(),
                seed: 0,
                optimizer: AdamW::default(),
                kind: model.optimizer,
                shardings: crate::backend::WeightShardings::WHOLE,
                state_on_host: model.optimizer_on_host,
                bf16_moments: model.bf16_moments,
                expert_node: model.expert_node,
                seat: Default::default(),
                slicing: None,
                rotary: crate::backend::rotary::LayerScaling::default(),
                batches: Arc::clone(&batches),
            };
            needed(&held, &training, &workload.program.rows[rank], shows).expect("it walks").on_card
        };
        (0..problem.ranks()).map(of_rank).collect()
    }

    /// Two expert-parallel ranks hold what the dry run says: with what is on its way, which is some of it.
    #[test]
    fn slow_what_is_dealt_out_is_counted() {
        if crate::backend::cuda::tests::host().is_none() {
            return;
        }
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let mut work = Sizes::large().expect("a cpu is in the catalog").work;
            let experts = Experts {
                count: 4,
                active: 2,
                ffn: 32,
                shared_ffn: 0,
                shared_gate: false,
                dense_layers: 0,
                layers: None,
                biases: false,
                routing: Routing::USUAL,
            };
            work.model = ModelConfig {
                layers: 2,
                hidden: 64,
                heads: 2,
                kv_heads: 2,
                head_dim: 32,
                vocab: 256,
                variant: Variant { experts: Some(experts), ..Variant::USUAL },
                ..work.model
            };
            (work.pipeline, work.chunks, work.microbatches, work.microbatch_size) = (1, 1, 2, 1);
            (work.sequence, work.dtype, work.layout.data) = (128, dtype, 2);
            (work.layout.form.expert, work.layout.form.imbalance_permille) = (2, 2000);
            let (workload, _) = published(&work, "1f1b", None).expect("a plan");
            let options = RunOptions { steps: 2, device: Device::Emulated, text: text(), ..RunOptions::default() };
            let report = run(&workload, &options, &mut Silent).unwrap_or_else(|error| panic!("{error}"));
            let on_paper = |shows| taken_of(&workload, &work, shows)[0];
            for memory in &report.memory {
                let held = memory.device_bytes;
                println!("{}: {held} of {}, {} without", dtype.name(), on_paper(false), on_paper(true));
                // The other rank may still read what it was shown last when this one shows it the next: so much more.
                let unread = on_paper(false) - on_paper(true);
                assert!(held <= on_paper(false) + unread, "{held}: {}", on_paper(false));
                assert!(on_paper(false) < held + held / 16, "{held}: {}", on_paper(false));
                assert!(on_paper(true) < held, "{held}: {}", on_paper(true));
            }
        }
    }

    /// Of four ranks, the first has as many activations on the way as the pipe holds or, where no gradient comes in
    /// between, all; the last knows that a gradient has been taken two activations later. The optimizer's step tells
    /// nothing.
    #[test]
    fn messages_on_the_way_are_as_many_as_can_be() {
        let mut work = Sizes::large().expect("a cpu is in the catalog").work;
        work.microbatches = 12;
        let message = u64::from(work.sequence) * u64::from(work.microbatch_size) * u64::from(work.model.hidden) * 2;
        let on_the_way = |schedule: &str, rank: usize| {
            let (workload, _) = published(&work, schedule, None).expect("a plan");
            let Workload { computation: Computation::Model(model), problem, program, .. } = &workload else {
                panic!("a model")
            };
            let held: Vec<(u16, Graph)> = vec![(rank as u16, model.graphs[rank].clone())];
            leaving(problem, program, rank, &held) as f64 / message as f64
        };
        assert_eq!(on_the_way("gpipe", 0), 12.0);
        assert_eq!(on_the_way("1f1b", 0), 4.0);
        assert_eq!(on_the_way("1f1b", 3), 3.0);
    }

    /// The model of the selftest, of half a billion parameters, and a GPT of the same size: what a rank takes of a
    /// card is within 3 % of what the plan says, although tensors lie in one piece each.
    #[test]
    fn what_a_rank_takes_is_what_the_plan_says() {
        let large = Sizes::large().expect("a cpu is in the catalog").work;
        let mut gpt = large.clone();
        gpt.model.family = Family::Gpt;
        gpt.model.kv_heads = gpt.model.heads;
        let mut chunked = large.clone();
        chunked.chunks = 2;
        let mut ring = large.clone();
        ring.layout.form.context = 2;
        let cases = [
            (&large, "1f1b"),
            (&large, "gpipe"),
            (&large, "zb-h1"),
            (&gpt, "1f1b"),
            (&chunked, "interleaved-1f1b"),
            (&ring, "1f1b"),
        ];
        for (work, schedule) in cases {
            for (rank, (taken, planned)) in taken(work, schedule).into_iter().enumerate() {
                let over = taken as f64 / planned as f64 - 1.0;
                println!("{schedule} rank {rank}: {taken} of {planned}, {:+.2} %", 100.0 * over);
                assert!((0.0..0.03).contains(&over), "{schedule}, rank {rank}: {taken} beside {planned} planned");
            }
        }
        assert_eq!(large.dtype, Dtype::Bf16);
    }
}
