//! One rank's work on a card: the [`Processor`](crate::backend::stages::Processor) that holds the rank's tensors and
//! runs its operators.

use std::ops::Range;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Axis, Graph, Init, Kernel, Role, SequencePart, Tensor, TensorId};
use pipeplan_core::model::Dtype;

use super::card::{Address, Card, CardError, Format, Held as For, Matrix, Memory, Product};
use super::launch::{Context, MOST_MEMBERS, Place};
use super::offload::Copies;
use super::ring_attention::{Ring, Seen};
use super::values::{floats, format_of, packed, unpacked};
use super::{expert_parallel, matmuls};
use crate::backend::cpu::initial;
use crate::backend::peers::{Collective, Peers, Reach};
use crate::backend::stages::{
    CollectiveOutcome, ExpertOverflow, Held, Input, NewParameter, Processor, Stages, Training, Updated,
};
use crate::backend::{BackendError, Part, Store, Values};
use crate::runner::optimizer::{AdamW, Rule};
use crate::transport::{Buffer, OnCard};

/// How parcels leave a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// As memory of the card: for ranks of this process.
    OnCard,
    /// Through host memory, for transports that know no cards.
    ThroughHost,
}

/// The optimizer states of a weight: of the rank's share of it.
pub struct State {
    /// The weight in f32, where the weight is not.
    master: Option<Arc<Memory>>,
    /// Where the share begins.
    start: usize,
    mean: Arc<Memory>,
    square: Arc<Memory>,
}

impl State {
    /// The numbers of the share.
    fn mine(&self) -> Range<usize> {
        self.start..self.start + self.mean.bytes() as usize / 4
    }

    /// The numbers of `weight`, widened, those of the share as exactly as they are kept.
    fn exact(&self, weight: &Memory) -> Result<Vec<f32>, CardError> {
        let Some(master) = &self.master else { return Ok(floats(&weight.read()?)) };
        let mut values = unpacked(&weight.read()?, Format::Bf16);
        values[self.mine()].copy_from_slice(&floats(&master.read()?));
        Ok(values)
    }
}

/// How that is held: the optimizer's kernel reads and writes host memory where it lies, both ways of the link at once.
pub(crate) const fn held_as_state(training: &Training) -> For {
    if training.state_on_host { For::OnHost } else { For::Kept }
}

/// Executes graphs on a card.
pub type Cuda = Stages<Queue>;

/// One rank's queue on a card.
pub struct Queue {
    /// Where there is anything to copy to host memory. Goes before the memory does.
    copies: Option<Copies>,
    pub(super) card: Arc<dyn Card>,
    /// The format of activations.
    pub(super) format: Format,
    leaving: Leaving,
    context: Context,
}

impl Drop for Queue {
    /// The context of the rank's part is for whoever has that next, also where others still hold memory of its card.
    fn drop(&mut self) {
        // Where it is no card's any more, nobody comes next.
        let _ = self.card.choose();
    }
}

impl Cuda {
    /// Holds the stages in `stages` (number and graph) on `card`, with the weights that
    /// [`Cpu`](crate::backend::cpu::Cpu) would start with. Counts their bytes in `store`.
    ///
    /// # Errors
    /// [`CardError`], such as a card too small for them.
    pub fn new(
        card: Arc<dyn Card>,
        stages: Vec<(u16, Graph)>,
        training: Training,
        leaving: Leaving,
        store: &mut Store,
    ) -> Result<Cuda, CardError> {
        let is_bf16 = |(_, graph): &(u16, Graph)| graph.tensors.iter().any(|tensor| tensor.dtype == Dtype::Bf16);
        let format = if stages.iter().any(is_bf16) { Format::Bf16 } else { Format::F32 };
        let mut context = Context::new(Arc::clone(&card));
        card.prepare(&products(&stages))?;
        context.prepare(stages.iter().map(|(_, graph)| graph))?;
        let copies = stages.iter().flat_map(|(_, graph)| &graph.operators).any(|operator| operator.kernel.copies());
        let copies = if copies { Some(Copies::overlapped_queue(&card)?) } else { None };
        Stages::start(Queue { copies, card, format, leaving, context }, stages, training, store)
    }
}

/// The products of matrices in `stages`, each once, with what [`jobs::fused`] may make of them; where their operands
/// lie is not said.
fn products(stages: &[(u16, Graph)]) -> Vec<Product> {
    let mut products: Vec<Product> = Vec::new();
    let mut note = |product: Product| {
        // Where it lies counts for what its address is a multiple of.
        let [a, b, c] = [product.a, product.b, product.c].map(|matrix| Matrix {
            at: Address(Address::SOMEWHERE.0 + matrix.at.0 % Address::SOMEWHERE.0),
            ..matrix
        });
        let product = Product { a, b, c, ..product };
        if !products.contains(&product) {
            products.push(product);
        }
    };
    let there = Some(Address::SOMEWHERE);
    for graph in stages.iter().map(|(_, graph)| graph) {
        for (index, operator) in graph.operators.iter().enumerate() {
            let place = |id: TensorId| {
                let tensor = &graph[id];
                Place { at: there, shape: &tensor.shape, dtype: tensor.dtype }
            };
            let inputs: Vec<Place<'_>> = operator.inputs.iter().map(|input| place(input.tensor)).collect();
            let outputs: Vec<Place<'_>> = operator.outputs.iter().map(|id| place(*id)).collect();
            let next = graph.operators.get(index + 1).map(|next| next.kernel);
            for product in matmuls::of(&operator.kernel, &inputs, &outputs) {
                note(product);
                let Kernel::MatMul { accumulate, .. } = operator.kernel else { continue };
                if accumulate && operator.inputs.get(2).map(|input| input.tensor) != operator.outputs.first().copied()
                {
                    note(Product { addend: there, ..product });
                } else if accumulate {
                    // The first of a step writes what the others add to.
                    note(Product { beta: 0.0, ..product });
                }
                match next {
                    Some(Kernel::AddBias) if !accumulate => note(Product { bias: there, ..product }),
                    Some(Kernel::Add) if !accumulate => note(Product { addend: there, beta: 1.0, ..product }),
                    _ => {}
                }
            }
        }
    }
    products
}

impl Processor for Queue {
    /// A tensor that has arrived from a stage of this rank is still its parcel's.
    type Data = Arc<Memory>;
    type State = State;
    type Error = CardError;

    fn allocate(&mut self, tensor: &Tensor, briefly: bool) -> Result<Arc<Memory>, CardError> {
        let held = match tensor.role {
            Role::OnHost => For::OnHost,
            _ if briefly => For::Briefly,
            _ => For::Kept,
        };
        Memory::held(&self.card, tensor.bytes(), held).map(Arc::new)
    }

    fn tokens(&mut self, tokens: Vec<i32>) -> Result<Arc<Memory>, CardError> {
        let bytes: Vec<u8> = tokens.into_iter().flat_map(i32::to_ne_bytes).collect();
        Memory::holding(&self.card, &bytes).map(Arc::new)
    }

    fn parameter(
        &mut self,
        training: &Training,
        init: Init,
        weight: &Tensor,
        gradient: &Tensor,
        // By AdamW: others are refused before a run.
        (_, held): (Rule, usize),
    ) -> Result<NewParameter<Arc<Memory>, State>, CardError> {
        let values: Vec<f32> = initial(training, init, weight);
        let mine = training.shardings.of(weight).share.of(values.len());
        let format = format_of(weight.dtype);
        let master = match format {
            Format::F32 => None,
            Format::Bf16 => {
                let master = Memory::held(&self.card, 4 * held as Bytes, held_as_state(training))?;
                master.write(&packed(&values[mine.clone()], Format::F32))?;
                Some(Arc::new(master))
            }
        };
        let moment = || {
            let moment = Memory::held(&self.card, 4 * held as Bytes, held_as_state(training))?;
            moment.clear()?;
            Ok::<_, CardError>(Arc::new(moment))
        };
        let state = State { master, start: mine.start, mean: moment()?, square: moment()? };
        let state_bytes =
            state.master.as_ref().map_or(0, |master| master.bytes()) + state.mean.bytes() + state.square.bytes();
        Ok(NewParameter {
            weight: Arc::new(Memory::holding(&self.card, &packed(&values, format))?),
            gradient: Arc::new(Memory::zeros(&self.card, gradient.bytes())?),
            state,
            state_bytes,
        })
    }

    fn unpack(&mut self, buffer: Buffer, _: &Tensor) -> Option<Arc<Memory>> {
        match buffer {
            Buffer::OnCard(parcel) => parcel.content().downcast::<Memory>().ok(),
            _ => None,
        }
    }

    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, CardError> {
        let own = match &buffer {
            Buffer::F32(values) => Memory::holding(&self.card, &packed(values, self.format))?,
            Buffer::OnCard(parcel) => match parcel.content().downcast::<Memory>() {
                Ok(memory) if !memory.is_of(&self.card) => memory.copied_to(&self.card, For::Kept)?,
                _ => return Ok(buffer),
            },
            _ => return Ok(buffer),
        };
        let bytes = own.bytes();
        Ok(Buffer::OnCard(OnCard::new(Arc::new(own), bytes)))
    }

    fn pack(&mut self, data: Arc<Memory>, tensor: &Tensor, stays: bool) -> Result<Buffer, CardError> {
        let bytes = data.bytes();
        // Its copy lies where others have left room: in no list of work that is to come again.
        self.card.end_job()?;
        Ok(match self.leaving {
            Leaving::ThroughHost if !stays => Buffer::F32(unpacked(&data.read()?, format_of(tensor.dtype))),
            _ if stays => Buffer::OnCard(OnCard::new(data, bytes)),
            _ => Buffer::OnCard(OnCard::new(Arc::new(data.copied_to(&self.card, For::ByOthers)?), bytes)),
        })
    }

    fn number(&mut self, data: &Arc<Memory>) -> Result<f64, CardError> {
        Ok(floats(&data.read()?).first().map_or(0.0, |number| f64::from(*number)))
    }

    /// Members on one card read each other's copies; an engine works at the same time as the queue.
    fn run_collective(
        &mut self,
        what: Collective,
        (tensor, own): (&Tensor, Option<&Arc<Memory>>),
        (_, to): (&Tensor, &Arc<Memory>),
        peers: &mut dyn Peers,
    ) -> Result<CollectiveOutcome, BackendError> {
        let from = own.unwrap_or(to);
        let (card, member, format) = (&self.card, self.context.member, format_of(tensor.dtype));
        let shown = |memory: &Arc<Memory>| OnCard::new(memory.clone(), memory.bytes());
        // A member's part of what all have, where that lies one part after the other.
        let part = |all: &Memory, part: u64, member: u64| all.after(part * member);
        match peers.reach(Axis::Tensor) {
            Reach::Host => return Ok(CollectiveOutcome::Not),
            Reach::Members(members) if members > MOST_MEMBERS => return Ok(CollectiveOutcome::Not),
            Reach::Members(_) => {
                // What this rank writes next is no longer what the others are to read.
                let copy = Arc::new(from.copied_to(card, For::ByOthers)?);
                let all = peers.show(Axis::Tensor, shown(&copy))?;
                let others = all.iter().map(|memory| memory.content().downcast::<Memory>());
                let Ok(all) = others.collect::<Result<Vec<_>, _>>() else {
                    return Err(CardError::call("a collective", "the other ranks are not on such a GPU").into());
                };
                let places = |start: u64| all.iter().map(|memory| memory.after(start)).collect::<Vec<_>>();
                let numbers = to.bytes() / format.bytes();
                match what {
                    Collective::Sum | Collective::Max => {
                        self.context.combine(what == Collective::Max, format, &places(0), to.at(), numbers)?;
                    }
                    Collective::Scatter => {
                        self.context.combine(false, format, &places(to.bytes() * member), to.at(), numbers)?;
                    }
                    Collective::Gather => {
                        for (memory, member) in all.iter().zip(0..) {
                            card.copy(memory.at(), part(to, copy.bytes(), member), copy.bytes())?;
                        }
                    }
                }
                // The others' memory is let go of behind this.
                card.finish()?;
            }
            Reach::Engine => {
                let from_to = (&shown(from), &shown(to));
                return Ok(CollectiveOutcome::Begun(peers.begin_on_card(
                    Axis::Tensor,
                    what,
                    from_to,
                    tensor.dtype,
                )?));
            }
        }
        Ok(CollectiveOutcome::Done)
    }

    /// The choice of experts, and what has arrived for them, is read by the host.
    fn waits_for_device(&self, kernel: &Kernel) -> bool {
        if matches!(kernel, Kernel::Offload | Kernel::OffloadWait | Kernel::Reload | Kernel::ReloadWait) {
            return self.copies.as_ref().is_some_and(Copies::waits);
        }
        matches!(
            kernel,
            Kernel::Dispatch { .. }
                | Kernel::DispatchGrad { .. }
                | Kernel::Combine { .. }
                | Kernel::CombineGrad { .. }
                | Kernel::ExpertMatMul { .. }
                | Kernel::ExpertMatMulGrad
        )
    }

    fn to_host(&mut self, data: &Arc<Memory>, tensor: &Tensor) -> Result<Buffer, CardError> {
        Ok(Buffer::F32(unpacked(&data.read()?, format_of(tensor.dtype))))
    }

    fn fill(&mut self, data: &mut Arc<Memory>, tensor: &Tensor, values: Buffer) -> Result<(), CardError> {
        match values {
            Buffer::F32(values) => self.card.write(data.at(), &packed(&values, format_of(tensor.dtype))),
            _ => Err(CardError::call("a collective", "the other ranks did not give f32 values")),
        }
    }

    fn begin(&mut self, dropout_seed: u64, member: u64, part: SequencePart) {
        let context = &mut self.context;
        (context.dropout_seed, context.member, context.part) = (dropout_seed, member, part);
        self.card.begin_job();
    }

    fn run(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Arc<Memory>>],
        outputs: &mut [(&Tensor, Arc<Memory>)],
    ) -> Result<(), CardError> {
        if let (Some(copies), Some(Input { data: Held::Here(first), .. })) = (&mut self.copies, inputs.first()) {
            match (kernel, outputs.first()) {
                (Kernel::Offload | Kernel::Reload, Some((_, copy))) => return copies.begin(&self.card, first, copy),
                (Kernel::OffloadWait | Kernel::ReloadWait, _) => return copies.end(&self.card, first),
                _ => {}
            }
        }
        let (inputs, outputs) = places(inputs, outputs);
        self.context.run(kernel, &inputs, &outputs)
    }

    /// Of these kernels, attention in a ring.
    fn run_among(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Arc<Memory>>],
        outputs: &mut [(&Tensor, Arc<Memory>)],
        peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        let here = |at: usize| match inputs[at].data {
            Held::Here(memory) => &**memory,
            _ => panic!("input {at} of `{}` lies apart", kernel.name()),
        };
        let output = |at: usize| &outputs[at].1;
        let (format, rows) = (format_of(inputs[0].tensor.dtype), inputs[0].tensor.shape[0]);
        let (card, context) = (&self.card, &self.context);
        match kernel {
            Kernel::SpreadAttention(spread) => {
                let inputs = [0, 1, 2].map(here);
                let mut ring = Ring { card, context, spread, format, rows, peers };
                ring.attention(inputs, [output(0), output(1)], output(2))
            }
            Kernel::SpreadAttentionGrad(spread) => {
                let seen = Seen { d_o: here(0), q: here(1), o: here(4), l: here(5) };
                let mut ring = Ring { card, context, spread, format, rows, peers };
                ring.attention_grad(&seen, [here(2), here(3)], [output(0), output(1), output(2)], output(3))
            }
            _ => Ok(self.run(kernel, inputs, outputs)?),
        }
    }

    fn expert_all_to_all(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Arc<Memory>>],
        outputs: &mut [(&Tensor, Arc<Memory>)],
        peers: &mut dyn Peers,
    ) -> Result<Option<ExpertOverflow>, BackendError> {
        let (inputs, outputs) = places(inputs, outputs);
        expert_parallel::run(&self.context, kernel, &inputs, &outputs, peers)
    }

    fn finish(&mut self) -> Result<(), CardError> {
        self.card.end_job()?;
        self.card.finish()
    }

    fn update(
        &mut self,
        optimizer: &AdamW,
        step: u32,
        parameter: Updated<'_, Arc<Memory>, State>,
    ) -> Result<(), CardError> {
        let Updated { tensor, weight, gradient, state, mine, decay, clear, .. } = parameter;
        let format = format_of(tensor.dtype);
        let start = mine.start as u64;
        let own = weight.after(start * format.bytes());
        let places = [
            own,
            state.master.as_ref().map_or(own, |master| master.at()),
            gradient.after(start * 4),
            state.mean.at(),
            state.square.at(),
        ];
        let elements = mine.len() as u64;
        self.context.adamw(optimizer, step, format, places, elements, decay, clear)?;
        if clear && elements < tensor.elements() {
            self.card.zero(gradient.at(), gradient.bytes())?;
        }
        Ok(())
    }

    fn weight(&self, weight: &Arc<Memory>, state: &State) -> Option<Buffer> {
        state.exact(weight).ok().map(Buffer::F32)
    }

    fn gradient(&self, gradient: &Arc<Memory>) -> Option<Buffer> {
        gradient.read().ok().map(|bytes| Buffer::F32(floats(&bytes)))
    }

    fn device_bytes(&self) -> Option<Bytes> {
        self.card.taken_bytes()
    }

    fn on_card(&mut self, part: Part, parameter: Updated<'_, Arc<Memory>, State>) -> Option<(OnCard, Dtype)> {
        let memory = Arc::clone(memory_of(part, &parameter));
        let bytes = memory.bytes();
        let dtype = if part == Part::Weight { parameter.tensor.dtype } else { Dtype::F32 };
        // What reaches from card to card, such as NCCL, is not asked for host memory.
        (!memory.is_on_host()).then(|| (OnCard::new(memory, bytes), dtype))
    }

    fn scale_on_card(
        &mut self,
        part: Part,
        parameter: Updated<'_, Arc<Memory>, State>,
        factor: f64,
    ) -> Result<(), CardError> {
        self.context.scale(memory_of(part, &parameter).at(), parameter.tensor.elements(), factor)
    }

    fn copied_on_card(
        &mut self,
        part: Part,
        parameter: Updated<'_, Arc<Memory>, State>,
        range: Range<usize>,
    ) -> Result<Option<OnCard>, CardError> {
        let (from, bytes) = (memory_of(part, &parameter).after(4 * range.start as u64), 4 * range.len() as u64);
        let copy = Memory::held(&self.card, bytes, For::ByOthers)?;
        self.card.copy(from, copy.at(), bytes)?;
        self.card.finish()?;
        Ok(Some(OnCard::new(Arc::new(copy), bytes)))
    }

    fn sum_on_card(
        &mut self,
        part: Part,
        parameter: Updated<'_, Arc<Memory>, State>,
        start: usize,
        from: &[OnCard],
    ) -> Result<(), CardError> {
        let others = from.iter().map(|memory| memory.content().downcast::<Memory>());
        let Ok(others) = others.collect::<Result<Vec<_>, _>>() else {
            return Err(CardError::call("a sum of gradients", "the other ranks are not on such a GPU"));
        };
        let Some(first) = others.first() else { return Ok(()) };
        let to = memory_of(part, &parameter).after(4 * start as u64);
        let places: Vec<Address> = others.iter().map(|memory| memory.at()).collect();
        self.context.combine(false, Format::F32, &places, to, first.bytes() / 4)?;
        // The others' memory is let go of behind this.
        self.card.finish()
    }

    fn squares_on_card(
        &mut self,
        part: Part,
        parameter: Updated<'_, Arc<Memory>, State>,
        range: Range<usize>,
    ) -> Result<Option<f64>, CardError> {
        let at = memory_of(part, &parameter).after(4 * range.start as u64);
        self.context.squares(at, range.len() as u64).map(Some)
    }

    fn most_on_card(&self) -> usize {
        MOST_MEMBERS
    }

    fn lend(
        &mut self,
        part: Part,
        parameter: Updated<'_, Arc<Memory>, State>,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), CardError> {
        let Updated { weight, state, .. } = &parameter;
        let master = state.master.as_ref().filter(|_| part == Part::Weight);
        let memory = memory_of(part, &parameter);
        let mut values = if master.is_some() { state.exact(weight)? } else { floats(&memory.read()?) };
        let before = values.clone();
        work(Values::F32(&mut values));
        if values != before {
            memory.write(&packed(&values, if master.is_some() { Format::Bf16 } else { Format::F32 }))?;
            if let Some(master) = master {
                master.write(&packed(&values[state.mine()], Format::F32))?;
            }
        }
        Ok(())
    }
}

/// Where the inputs and the outputs of an operator lie.
fn places<'a>(
    inputs: &[Input<'a, Arc<Memory>>],
    outputs: &[(&'a Tensor, Arc<Memory>)],
) -> (Vec<Place<'a>>, Vec<Place<'a>>) {
    let place = |tensor: &'a Tensor, memory: Option<&Arc<Memory>>| Place {
        at: memory.map(|memory| memory.at()),
        shape: &tensor.shape,
        dtype: tensor.dtype,
    };
    let input = |input: &Input<'a, Arc<Memory>>| match input.data {
        Held::Here(memory) => place(input.tensor, Some(memory)),
        Held::InOutput(output) => place(input.tensor, outputs.get(output).map(|(_, memory)| memory)),
        Held::Nowhere => place(input.tensor, None),
    };
    let of_inputs = inputs.iter().map(input).collect();
    (of_inputs, outputs.iter().map(|(tensor, memory)| place(tensor, Some(memory))).collect())
}

fn memory_of<'a>(part: Part, parameter: &'a Updated<'_, Arc<Memory>, State>) -> &'a Arc<Memory> {
    let Updated { weight, gradient, state, .. } = parameter;
    match part {
        Part::Weight => weight,
        Part::Gradient => gradient,
        Part::Mean => &state.mean,
        Part::Square => &state.square,
    }
}
