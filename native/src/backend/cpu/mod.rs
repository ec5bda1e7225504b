//! The operator graph on one CPU core.
//!
//! - In: an operator with its tensors.
//! - Out: its outputs, from loops in Rust and matrix products of a tuned crate.
//! - Knows: kernels, f32 and f64. Nothing of ranks but the groups of a stage ([`Peers`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::{Graph, INIT_STD, Init, Kernel, SequencePart, Tensor};

use self::element::Element;
use self::kernels::{Context, Data};
use super::documents::DocumentStarts;
use super::peers::Peers;
use super::stages::{ExpertOverflow, Held, Input, NewParameter, Processor, Slice, Stages, Training, Updated};
use super::{BackendError, Part, Store, Values, WeightShardings};
use crate::runner::data::Batches;
use crate::runner::optimizer::{AdamW, Moments, Rule};
use crate::runner::random::SplitMix64;
use crate::runner::shard::{Shard, ShardOwner};
use crate::transport::Buffer;

pub mod element;
mod expert_parallel;
pub mod gemm;
pub mod kernels;

/// Executes graphs on the calling thread.
pub type Cpu<T> = Stages<Core<T>>;

/// One core, computing in `T`.
pub struct Core<T> {
    context: Context<T>,
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
                seat: ShardOwner::default(),
                slicing: None,
                rotary: None,
                batches,
            },
            store,
        )
    }

    /// As [`Cpu::new`], with a share of the optimizer states.
    pub fn sharing(stages: impl IntoIterator<Item = (u16, Graph)>, training: Training, store: &mut Store) -> Cpu<T> {
        let mut context = Context::new(Box::new(gemm::Tuned));
        context.rotary = training.rotary;
        let core = Core { context };
        Stages::start(core, stages, training, store).unwrap_or_else(|never| match never {})
    }

    /// Changes element `index` of weight `name` to `value`.
    pub fn set_weight(&mut self, name: &str, index: usize, value: T) {
        self.with_weight(name, |parameter| parameter.weight.floats_mut()[index] = value);
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
        let inputs: Vec<kernels::Input<'_, T>> = inputs
            .iter()
            .map(|input| {
                let data = if let Held::Here(data) = input.data { Some(data) } else { None };
                kernels::Input { shape: &input.tensor.shape, data }
            })
            .collect();
        // A kernel has its outputs side by side.
        let empty = || Data::Floats(Vec::new());
        let mut data: Vec<Data<T>> = outputs.iter_mut().map(|(_, data)| std::mem::replace(data, empty())).collect();
        let done = work(&mut self.context, &inputs, &mut data);
        for ((_, output), data) in outputs.iter_mut().zip(data) {
            *output = data;
        }
        done
    }
}

impl<T: Element> Processor for Core<T> {
    type Data = Data<T>;
    type State = Moments<T>;
    type Error = Infallible;

    fn allocate(&mut self, tensor: &Tensor, _: bool) -> Result<Data<T>, Infallible> {
        Ok(Data::zeros(tensor.dtype, tensor.elements() as usize))
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
    ) -> Result<NewParameter<Data<T>, Moments<T>>, Infallible> {
        let elements = gradient.elements() as usize;
        let state = Moments::new(rule, held);
        Ok(NewParameter {
            weight: Data::Floats(initial(training, init, weight)),
            gradient: Data::Floats(vec![T::ZERO; elements]),
            state_bytes: state.bytes(),
            state,
        })
    }

    fn unpack(&mut self, buffer: Buffer) -> Option<Data<T>> {
        T::unpack(buffer).map(Data::Floats)
    }

    fn pack(&mut self, data: Data<T>, _: &Tensor, _: bool) -> Result<Buffer, Infallible> {
        Ok(T::pack(data.into_floats()))
    }

    fn number(&mut self, data: &Data<T>) -> Result<f64, Infallible> {
        Ok(data.floats().first().map_or(0.0, |number| number.wide()))
    }

    fn to_host(&mut self, data: &Data<T>, _: &Tensor) -> Result<Buffer, Infallible> {
        Ok(T::pack(data.floats().to_vec()))
    }

    fn fill(&mut self, data: &mut Data<T>, _: &Tensor, values: Buffer) -> Result<(), Infallible> {
        // Its size is the tensor's: a collective says so otherwise.
        if let Some(values) = T::unpack(values) {
            *data = Data::Floats(values);
        }
        Ok(())
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
        self.compute(inputs, outputs, |context, inputs, outputs| kernels::run(context, kernel, inputs, outputs));
        Ok(())
    }

    fn run_in_pieces(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Data<T>>],
        outputs: &mut [(&Tensor, Data<T>)],
        between: &mut dyn FnMut(),
    ) -> Result<(), Infallible> {
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
        expert_parallel::run(kernel, inputs, outputs, peers)
    }

    fn finish(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn update(
        &mut self,
        optimizer: &AdamW,
        step: u32,
        parameter: Updated<'_, Data<T>, Moments<T>>,
    ) -> Result<(), Infallible> {
        let Updated { weight, gradient, state, mine, of_gradient, decay, clear, .. } = parameter;
        let gradient = gradient.floats_mut();
        optimizer.update(step, &mut weight.floats_mut()[mine], &gradient[of_gradient], state, decay);
        if clear {
            gradient.fill(T::ZERO);
        }
        Ok(())
    }

    fn weight(&self, weight: &Data<T>, _: &Moments<T>) -> Option<Buffer> {
        Some(T::pack(weight.floats().to_vec()))
    }

    fn gradient(&self, gradient: &Data<T>) -> Option<Buffer> {
        Some(T::pack(gradient.floats().to_vec()))
    }

    fn lend(
        &mut self,
        part: Part,
        parameter: Updated<'_, Data<T>, Moments<T>>,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), Infallible> {
        work(T::values(match part {
            Part::Weight => parameter.weight.floats_mut(),
            Part::Gradient => parameter.gradient.floats_mut(),
            Part::Mean => parameter.state.mean_mut(),
            Part::Square => parameter.state.square_mut(),
        }));
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
