//! The operator graph on one CPU core.
//!
//! - In: an operator with its tensors.
//! - Out: its outputs, from loops in Rust and matrix products of a tuned crate.
//! - Knows: kernels in f32 and f64, and how numbers of other formats are kept ([`storage`]). Nothing of ranks but the groups of a stage ([`Peers`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::{Graph, INIT_STD, Init, Kernel, SequencePart, Tensor};
use pipeplan_core::model::Dtype;

use self::element::Element;
use self::kernels::{Context, Data};
use self::state::State;
use self::storage::{Along, Format, Quantized};
use super::documents::DocumentStarts;
use super::peers::Peers;
use super::stages::{ExpertOverflow, Held, Input, NewParameter, Processor, Slice, Stages, Training, Updated};
use super::{BackendError, Part, Store, Values, WeightShardings};
use crate::runner::data::Batches;
use crate::runner::optimizer::{AdamW, Rule};
use crate::runner::random::SplitMix64;
use crate::runner::shard::{Shard, ShardOwner};
use crate::transport::Buffer;

pub mod element;
mod expert_parallel;
pub mod gemm;
pub mod kernels;
mod node_dispatch;
mod state;
pub mod storage;

/// Executes graphs on the calling thread.
pub type Cpu<T> = Stages<Core<T>>;

/// One core, computing in `T`.
pub struct Core<T> {
    context: Context<T>,
    /// Ranks of a node in an expert-parallel group, where a token goes there once.
    node: Option<usize>,
}

impl From<Infallible> for BackendError {
    fn from(never: Infallible) -> BackendError {
        match never {}
    }
}

impl<T: Element> Cpu<T> {
    /// Holds the stages in `stages` (number and graph) of `stage_count` in all. Counts their bytes in `store`.
    pub fn new(
        stages: impl IntoIterator<Item = (u16, Graph)>,
        stage_count: usize,
        seed: u64,
        optimizer: AdamW,
        batches: Arc<Batches>,
        store: &mut Store,
    ) -> Cpu<T> {
        Cpu::sharing(
            stages,
            Training {
                stage_count,
                seed,
                optimizer,
                kind: Optimizer::AdamW,
                shardings: WeightShardings::WHOLE,
                state_on_host: false,
                bf16_moments: false,
                expert_node: None,
                seat: ShardOwner::default(),
                slicing: None,
                rotary: crate::backend::rotary::LayerScaling::default(),
                batches,
            },
            store,
        )
    }

    /// As [`Cpu::new`], with a share of the optimizer states.
    pub fn sharing(stages: impl IntoIterator<Item = (u16, Graph)>, training: Training, store: &mut Store) -> Cpu<T> {
        let mut context = Context::new(Box::new(gemm::Tuned));
        context.rotary = training.rotary;
        let core = Core { context, node: training.expert_node };
        Stages::start(core, stages, training, store).unwrap_or_else(|never| match never {})
    }

    /// Changes element `index` of weight `name` to `value`.
    pub fn set_weight(&mut self, name: &str, index: usize, value: T) {
        self.with_weight(name, |parameter| {
            parameter.state.lend(parameter.weight, parameter.mine, |values| values[index] = value);
        });
    }
}

impl<T: Element> Core<T> {
    /// Has `work` run a kernel.
    fn compute<R>(
        &mut self,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        work: impl FnOnce(&mut Context<T>, &[kernels::Input<'_, T>], &mut [Data<T>]) -> R,
    ) -> R {
        let widened = widened(inputs);
        let inputs: Vec<kernels::Input<'_, T>> = inputs
            .iter()
            .zip(&widened)
            .map(|(input, widened)| {
                let data = if let Held::Here(data) = input.data { Some(data) } else { None };
                kernels::Input { shape: &input.tensor.shape, data: widened.as_ref().or(data) }
            })
            .collect();
        // A kernel has its outputs side by side.
        let empty = || Data::Floats(Vec::new());
        let taken = outputs.iter_mut().map(|(_, data)| std::mem::replace(data, empty()));
        let mut data: Vec<Data<T>> = taken.map(|data| data.widened().unwrap_or(data)).collect();
        let done = work(&mut self.context, &inputs, &mut data);
        for ((tensor, output), data) in outputs.iter_mut().zip(data) {
            *output = kept(data, tensor.dtype);
        }
        done
    }

    /// Runs what needs no kernel of numbers: a copy, and operands of products in fewer bits. Says whether it has.
    fn run_on_storage(
        &self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
    ) -> bool {
        let Some(Input { data: Held::Here(from), tensor }) = inputs.first() else { return false };
        match (kernel, outputs) {
            // Host memory is the core's own: what starts here is done.
            (Kernel::Offload | Kernel::Reload, [(_, to)]) => to.clone_from(from),
            (Kernel::Quantize { of_gradient }, [(rows, of_rows), (columns, of_columns)]) => {
                *of_rows = quantized(from, tensor, rows.dtype, *of_gradient, Along::Rows);
                *of_columns = quantized(from, tensor, columns.dtype, *of_gradient, Along::Columns);
            }
            _ => return false,
        }
        true
    }
}

/// What of the inputs kernels read in another form than it is kept in.
fn widened<T: Element>(inputs: &[Input<'_, Data<T>>]) -> Vec<Option<Data<T>>> {
    let widened = |input: &Input<'_, Data<T>>| match input.data {
        Held::Here(data) => data.widened(),
        _ => None,
    };
    inputs.iter().map(widened).collect()
}

/// What a kernel has written, as a tensor of `dtype` keeps it.
fn kept<T: Element>(data: Data<T>, dtype: Dtype) -> Data<T> {
    match data {
        Data::Floats(values) => Data::kept(values, dtype),
        other => other,
    }
}

/// `from`, which is `tensor`, as an operand of products in `dtype`.
fn quantized<T: Element>(from: &Data<T>, tensor: &Tensor, dtype: Dtype, of_gradient: bool, along: Along) -> Data<T> {
    let values: Vec<f32> = from.wide().iter().map(|value| value.wide() as f32).collect();
    let columns = tensor.shape.last().map_or(1, |columns| *columns as usize);
    Data::Quantized(Quantized::of(&values, columns, Format { dtype, of_gradient, along }))
}

impl<T: Element> Processor for Core<T> {
    type Data = Data<T>;
    type State = State<T>;
    type Error = Infallible;

    fn allocate(&mut self, tensor: &Tensor, _: bool) -> Result<Data<T>, Infallible> {
        Ok(Data::room(tensor.dtype, tensor.elements() as usize))
    }

    fn copied(&mut self, data: &Data<T>) -> Option<Data<T>> {
        Some(data.clone())
    }

    fn tokens(&mut self, tokens: Vec<i32>) -> Result<Data<T>, Infallible> {
        Ok(Data::Tokens(tokens))
    }

    fn parameter(
        &mut self,
        training: &Training,
        init: Init,
        weight: &Tensor,
        gradient: &Tensor,
        (rule, held): (Rule, usize),
    ) -> Result<NewParameter<Data<T>, State<T>>, Infallible> {
        let values = initial(training, init, weight);
        let start = training.shardings.of(weight).share.of(values.len()).start;
        let state = State::new(rule, &values, start..start + held, weight.dtype, training.bf16_moments);
        Ok(NewParameter {
            weight: Data::kept(values, weight.dtype),
            gradient: Data::room(gradient.dtype, gradient.elements() as usize),
            state_bytes: state.bytes(),
            state,
        })
    }

    fn unpack(&mut self, buffer: Buffer, tensor: &Tensor) -> Option<Data<T>> {
        match buffer {
            Buffer::Bf16(values) => Some(Data::Bf16(values)),
            buffer => T::unpack(buffer).map(|values| Data::kept(values, tensor.dtype)),
        }
    }

    fn pack(&mut self, data: Data<T>, _: &Tensor, _: bool) -> Result<Buffer, Infallible> {
        Ok(match data {
            Data::Bf16(values) => Buffer::Bf16(values),
            data => T::pack(data.into_floats()),
        })
    }

    fn number(&mut self, data: &Data<T>) -> Result<f64, Infallible> {
        Ok(data.wide().first().map_or(0.0, |number| number.wide()))
    }

    fn to_host(&mut self, data: &Data<T>, _: &Tensor) -> Result<Buffer, Infallible> {
        Ok(T::pack(data.wide().into_owned()))
    }

    fn fill(&mut self, data: &mut Data<T>, tensor: &Tensor, values: Buffer) -> Result<(), Infallible> {
        // Its size is the tensor's: a collective says so otherwise.
        if let Some(values) = T::unpack(values) {
            *data = Data::kept(values, tensor.dtype);
        }
        Ok(())
    }

    fn quantize(&mut self, from: (&Tensor, &Data<T>), to: [&Tensor; 2]) -> Result<[Data<T>; 2], Infallible> {
        let (tensor, data) = from;
        let [rows, columns] = to.map(|tensor| tensor.dtype);
        Ok([
            quantized(data, tensor, rows, false, Along::Rows),
            quantized(data, tensor, columns, false, Along::Columns),
        ])
    }

    fn begin(&mut self, dropout_seed: u64, member: u64, part: SequencePart) {
        let context = &mut self.context;
        (context.dropout_seed, context.member, context.part) = (dropout_seed, member, part);
    }

    fn divide_losses(&mut self, divisor: Option<f64>) {
        self.context.loss_divisor = divisor;
    }

    fn stay_within(&mut self, documents: Option<DocumentStarts>) {
        self.context.documents = documents;
    }

    fn slice(&mut self, positions: Option<[u64; 2]>) {
        self.context.slice = positions;
    }

    fn run_in_slice(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        slice: &mut Slice<'_, Data<T>>,
    ) -> Result<(), Infallible> {
        self.compute(inputs, outputs, |context, inputs, outputs| {
            kernels::run_in_slice(context, kernel, inputs, outputs, slice);
        });
        Ok(())
    }

    fn run(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
    ) -> Result<(), Infallible> {
        if !self.run_on_storage(kernel, inputs, outputs) {
            self.compute(inputs, outputs, |context, inputs, outputs| kernels::run(context, kernel, inputs, outputs));
        }
        Ok(())
    }

    fn run_in_pieces(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        between: &mut dyn FnMut(),
    ) -> Result<(), Infallible> {
        if self.run_on_storage(kernel, inputs, outputs) {
            between();
            return Ok(());
        }
        self.compute(inputs, outputs, |context, inputs, outputs| {
            kernels::run_in_pieces(context, kernel, inputs, outputs, between);
        });
        Ok(())
    }

    fn run_among(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        self.compute(inputs, outputs, |context, inputs, outputs| {
            kernels::run_among(context, kernel, inputs, outputs, peers)
        })
    }

    fn expert_all_to_all(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        peers: &mut dyn Peers,
    ) -> Result<Option<ExpertOverflow>, BackendError> {
        let widened = widened(inputs);
        let read: Vec<Input<'_, Data<T>>> = inputs
            .iter()
            .zip(&widened)
            .map(|(input, widened)| {
                let data = match (widened, &input.data) {
                    (Some(widened), _) => Held::Here(widened),
                    (None, Held::Here(data)) => Held::Here(*data),
                    (None, Held::InOutput(at)) => Held::InOutput(*at),
                    (None, Held::Nowhere) => Held::Nowhere,
                };
                Input { tensor: input.tensor, data }
            })
            .collect();
        for (_, data) in outputs.iter_mut() {
            if let Some(widened) = data.widened() {
                *data = widened;
            }
        }
        let done = expert_parallel::run(kernel, &read, outputs, self.node, peers);
        for (tensor, data) in outputs.iter_mut() {
            *data = kept(std::mem::replace(data, Data::Floats(Vec::new())), tensor.dtype);
        }
        done
    }

    fn finish(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn update(
        &mut self,
        optimizer: &AdamW,
        step: u32,
        parameter: Updated<'_, Data<T>, State<T>>,
    ) -> Result<(), Infallible> {
        let Updated { weight, gradient, state, mine, of_gradient, decay, clear, .. } = parameter;
        let of_share = &gradient.wide()[of_gradient];
        state.update(weight, mine, |weight, moments| optimizer.update(step, weight, of_share, moments, decay));
        if clear {
            gradient.change(|values| values.fill(T::ZERO));
        }
        Ok(())
    }

    fn weight(&self, weight: &Data<T>, state: &State<T>) -> Option<Buffer> {
        Some(T::pack(state.exact(weight)))
    }

    fn gradient(&self, gradient: &Data<T>) -> Option<Buffer> {
        Some(T::pack(gradient.wide().into_owned()))
    }

    fn lend(
        &mut self,
        part: Part,
        parameter: Updated<'_, Data<T>, State<T>>,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), Infallible> {
        let Updated { weight, gradient, state, mine, .. } = parameter;
        let mut work = |values: &mut [T]| work(T::values(values));
        match part {
            Part::Weight => state.lend(weight, mine, &mut work),
            Part::Gradient => gradient.change(work),
            Part::Mean => state.moments(|moments| work(moments.mean_mut())),
            Part::Square => state.moments(|moments| work(moments.square_mut())),
        }
        Ok(())
    }
}

/// A weight's first values: those that this rank holds of what the whole weight starts with. They are drawn in `f64`,
/// so `f32` and `f64` runs start from the same numbers up to rounding.
pub(crate) fn initial<T: Element>(training: &Training, init: Init, weight: &Tensor) -> Vec<T> {
    let mut values = vec![T::ZERO; weight.elements() as usize];
    let random = SplitMix64::named(training.seed, &weight.name);
    for run in Shard::of(weight).runs(training.seat) {
        let values = &mut values[run.held..run.held + run.length];
        match init {
            Init::Zeros => {}
            Init::Ones => values.fill(T::ONE),
            Init::Normal => {
                draw_normal(values, &random.after(SplitMix64::DRAWS_OF_A_NORMAL * run.whole as u64));
            }
        }
    }
    values
}

/// The numbers of `random` from its start on, as initial weights: on all cores where they are many, since each has
/// its place in
/// the sequence whoever draws it. Billions of weights would take one core minutes.
fn draw_normal<T: Element>(values: &mut [T], random: &SplitMix64) {
    /// Some milliseconds of one core.
    const LEAST: usize = 1 << 17;
    let draw = |values: &mut [T], first: usize| {
        let mut random = random.after(SplitMix64::DRAWS_OF_A_NORMAL * first as u64);
        values.iter_mut().for_each(|value| *value = T::of(INIT_STD * random.normal()));
    };
    if values.len() <= LEAST {
        return draw(values, 0);
    }
    let pieces = Mutex::new(values.chunks_mut(LEAST).enumerate());
    let work = || {
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((number, values)) = next() {
            draw(values, number * LEAST);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        // Where a system allows no more threads, those that are there do it all.
        let start = |_: &usize| std::thread::Builder::new().spawn_scoped(scope, work).is_ok();
        let _ = (1..cores).take_while(start).count();
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many cores draw them, and wherever the first one stands: each number is that of its place.
    #[test]
    fn initial_weights_are_the_same_on_any_number_of_cores() {
        let random = SplitMix64::named(5, "weights").after(3);
        let mut together = vec![0f32; 300_001];
        draw_normal(&mut together, &random);
        let mut one_by_one = random.clone();
        let differs = together.iter().position(|value| *value != (INIT_STD * one_by_one.normal()) as f32);
        assert_eq!(differs, None);
    }
}
