//! One case of the check of operators: a kernel with its inputs, its reference and its error on a card.

use std::sync::Arc;

use pipeplan_core::graph::{Kernel, SequencePart};
use pipeplan_core::model::Dtype;

use crate::backend::cpu::gemm::Tuned;
use crate::backend::cpu::kernels;
use crate::backend::cpu::kernels::{Data, Input};
use crate::backend::cuda::card::{Card, CardError, Format, Memory};
use crate::backend::cuda::launch::{Context, Place};
use crate::backend::cuda::{packed, unpacked};
use crate::runner::random::SplitMix64;
use crate::selftest::{Extent, Row};

/// A tensor whose values are exact in its format, so that both sides start from the same numbers.
#[derive(Clone)]
pub struct Tensor {
    pub(super) shape: Vec<u64>,
    pub(super) dtype: Dtype,
    pub(super) data: Data<f64>,
}

impl Tensor {
    pub(crate) fn rows(&self) -> u64 {
        self.shape[0]
    }

    pub(super) fn new(shape: &[u64], dtype: Dtype, data: Data<f64>) -> Tensor {
        let format = if dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 };
        let data = match data {
            Data::Floats(values) => {
                let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
                Data::Floats(unpacked(&packed(&values, format), format).into_iter().map(f64::from).collect())
            }
            other => other,
        };
        Tensor { shape: shape.to_vec(), dtype, data }
    }

    pub(super) fn random(shape: &[u64], dtype: Dtype, seed: u64) -> Tensor {
        let mut random = SplitMix64::new(seed);
        let values = (0..shape.iter().product()).map(|_| random.normal()).collect();
        Tensor::new(shape, dtype, Data::Floats(values))
    }

    pub(super) fn tokens(count: u64, vocabulary: u64) -> Tensor {
        let mut random = SplitMix64::new(11);
        let tokens = (0..count).map(|_| random.below(vocabulary) as i32).collect();
        Tensor { shape: vec![count], dtype: Dtype::I32, data: Data::Tokens(tokens) }
    }

    pub(super) fn zeros(shape: &[u64], dtype: Dtype) -> Tensor {
        let elements = shape.iter().product::<u64>() as usize;
        Tensor { shape: shape.to_vec(), dtype, data: Data::zeros(dtype, elements) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::Floats(values) => {
                let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
                packed(&values, if self.dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 })
            }
            Data::Tokens(tokens) => tokens.iter().flat_map(|token| token.to_ne_bytes()).collect(),
            Data::Bytes(bytes) => bytes.clone(),
            Data::Bf16(_) | Data::Quantized(_) => panic!("{KEPT}"),
        }
    }

    fn values(&self) -> Vec<f64> {
        match &self.data {
            Data::Floats(values) => values.clone(),
            Data::Tokens(tokens) => tokens.iter().map(|token| f64::from(*token)).collect(),
            Data::Bytes(bytes) => bytes.iter().map(|byte| f64::from(*byte)).collect(),
            Data::Bf16(_) | Data::Quantized(_) => panic!("{KEPT}"),
        }
    }
}

/// Why no case has such data.
const KEPT: &str = "what a case compares is in f64, whatever a device keeps it in";

/// An operator with its inputs and the sizes of its outputs.
pub struct Case {
    pub(super) kernel: Kernel,
    pub(super) format: Dtype,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<(Vec<u64>, Dtype)>,
    /// The input that output 0 adds to.
    adds_to: Option<usize>,
    /// What the rank holds of every sequence.
    pub(super) part: SequencePart,
}

/// How far results may be off.
pub(super) fn limit(format: Dtype) -> f64 {
    if format == Dtype::Bf16 { 5e-3 } else { 1e-5 }
}

const DROPOUT_SEED: u64 = 77;

/// The member that computes, where members of a group do different things.
const MEMBER: u64 = 1;

impl Case {
    pub(super) fn new(kernel: Kernel, format: Dtype, inputs: Vec<Tensor>, outputs: &[(&[u64], Dtype)]) -> Case {
        let outputs = outputs.iter().map(|(shape, dtype)| (shape.to_vec(), *dtype)).collect();
        Case { kernel, format, inputs, outputs, adds_to: None, part: SequencePart::WHOLE }
    }

    /// On a rank with a part of every sequence, and not the first.
    pub(super) fn in_part(self, parts: u64) -> Case {
        Case { part: SequencePart { part: parts - 2, parts }, ..self }
    }

    pub(super) fn adding(self, input: usize) -> Case {
        Case { adds_to: Some(input), ..self }
    }

    /// What the CPU makes of it in `f64`.
    pub(crate) fn reference(&self) -> Vec<Tensor> {
        let mut context = kernels::Context::new(Box::new(Tuned));
        (context.dropout_seed, context.member, context.part) = (DROPOUT_SEED, MEMBER, self.part);
        let inputs: Vec<Input<'_, f64>> =
            self.inputs.iter().map(|tensor| Input { shape: &tensor.shape, data: Some(&tensor.data) }).collect();
        let zeros = |(shape, dtype): &(Vec<u64>, Dtype)| Tensor::zeros(shape, *dtype).data;
        let mut outputs: Vec<Data<f64>> = self.outputs.iter().map(zeros).collect();
        kernels::run(&mut context, &self.kernel, &inputs, &mut outputs);
        let tensor = |((shape, dtype), data): (&(Vec<u64>, Dtype), Data<f64>)| Tensor {
            shape: shape.clone(),
            dtype: *dtype,
            data,
        };
        self.outputs.iter().zip(outputs).map(tensor).collect()
    }

    /// What `card` makes of it, as bytes, with output 0 in the place of input `in_place`.
    fn measured(&self, card: &Arc<dyn Card>, in_place: Option<usize>) -> Result<Vec<Vec<u8>>, CardError> {
        self.measured_by(card, in_place, Context::run)
    }

    /// The same, where `run` starts it.
    pub(super) fn measured_by<E: From<CardError>>(
        &self,
        card: &Arc<dyn Card>,
        in_place: Option<usize>,
        run: impl FnOnce(&mut Context, &Kernel, &[Place<'_>], &[Place<'_>]) -> Result<(), E>,
    ) -> Result<Vec<Vec<u8>>, E> {
        let mut context = Context::new(Arc::clone(card));
        (context.dropout_seed, context.member, context.part) = (DROPOUT_SEED, MEMBER, self.part);
        let inputs: Vec<Memory> =
            self.inputs.iter().map(|tensor| Memory::holding(card, &tensor.bytes())).collect::<Result<_, _>>()?;
        let size = |(shape, dtype): &(Vec<u64>, Dtype)| shape.iter().product::<u64>() * dtype.bytes();
        let outputs: Vec<Memory> =
            self.outputs.iter().map(|output| Memory::new(card, size(output))).collect::<Result<_, _>>()?;
        let shared = in_place.or(self.adds_to);
        let first = shared.map_or(&outputs[0], |input| &inputs[input]);
        let in_places: Vec<Place<'_>> = inputs
            .iter()
            .zip(&self.inputs)
            .map(|(memory, tensor)| Place { at: Some(memory.at()), shape: &tensor.shape, dtype: tensor.dtype })
            .collect();
        let out_places: Vec<Place<'_>> = self
            .outputs
            .iter()
            .enumerate()
            .map(|(at, (shape, dtype))| {
                let memory = if at == 0 { first } else { &outputs[at] };
                Place { at: Some(memory.at()), shape, dtype: *dtype }
            })
            .collect();
        run(&mut context, &self.kernel, &in_places, &out_places)?;
        let read = |at: usize| if at == 0 { first.read() } else { outputs[at].read() };
        Ok((0..outputs.len()).map(read).collect::<Result<_, _>>()?)
    }

    fn sizes(&self) -> String {
        let sizes = |tensor: &Tensor| {
            let sizes: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            sizes.join("x")
        };
        let shown: Vec<String> = self.inputs.iter().take(2).map(sizes).collect();
        shown.join(" ")
    }

    /// The greatest relative error of the outputs.
    pub(crate) fn error(&self, reference: &[Tensor], measured: &[Vec<u8>]) -> f64 {
        let of = |(reference, bytes): (&Tensor, &Vec<u8>)| {
            let found: Vec<f64> = match reference.dtype {
                Dtype::Bf16 => unpacked(bytes, Format::Bf16).into_iter().map(f64::from).collect(),
                Dtype::U8 => bytes.iter().map(|byte| f64::from(*byte)).collect(),
                Dtype::I32 => {
                    let (numbers, _) = bytes.as_chunks::<4>();
                    numbers.iter().map(|number| f64::from(i32::from_ne_bytes(*number))).collect()
                }
                _ => unpacked(bytes, Format::F32).into_iter().map(f64::from).collect(),
            };
            relative_error(&found, &reference.values())
        };
        reference
            .iter()
            .zip(measured)
            .map(of)
            .fold(0.0, |worst: f64, error| if error > worst || error.is_nan() { error } else { worst })
    }

    /// Whether cuBLAS computes it.
    pub(super) fn is_of_products(&self) -> bool {
        use Kernel::{Attend, AttendGrad, ExpertMatMul, ExpertMatMulGrad, MatMul, Scores, ScoresGrad};
        matches!(
            self.kernel,
            MatMul { .. }
                | ExpertMatMul { .. }
                | ExpertMatMulGrad
                | Scores(_)
                | ScoresGrad(_)
                | Attend(_)
                | AttendGrad(_)
        )
    }

    /// Its operator, format and sizes.
    pub fn name(&self) -> String {
        let part = if self.part == SequencePart::WHOLE { "" } else { " in part" };
        format!("{} {} {}{part}", self.kernel.name(), self.format.name(), self.sizes())
    }

    /// Runs it twice, and in every place that it may take.
    pub fn check(&self, card: &Arc<dyn Card>) -> Row {
        self.checked(card, Extent::Whole)
    }

    pub(super) fn checked(&self, card: &Arc<dyn Card>, extent: Extent) -> Row {
        let limit = limit(self.format);
        let name = self.name();
        let reference = self.reference();
        let outcome = (|| {
            let once = self.measured(card, None)?;
            let mut error = self.error(&reference, &once);
            if extent == Extent::Briefly {
                return Ok((error, true));
            }
            let mut repeats = self.measured(card, None)? == once;
            let may = if self.adds_to.is_some() { &[] } else { self.kernel.may_run_in_place_of() };
            for input in may {
                let tensor = &self.inputs[*input as usize];
                if tensor.dtype == self.outputs[0].1 && tensor.shape == self.outputs[0].0 {
                    let there = self.measured(card, Some(*input as usize))?;
                    error = error.max(self.error(&reference, &there));
                    repeats &= there == once;
                }
            }
            Ok((error, repeats))
        })();
        match outcome {
            Ok((error, repeats)) => {
                let row = Row::error("operators", name, error, limit);
                if repeats { row } else { row.failed("a second run gives other bits") }
            }
            Err::<_, CardError>(error) => Row::broken("operators", name, &error),
        }
    }
}

/// ‖found − expected‖ / ‖expected‖; what is infinite on both sides does not count.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let mut sums = (0.0, 0.0);
    for (found, expected) in found.iter().zip(expected) {
        if found != expected {
            sums.0 += (found - expected) * (found - expected);
        }
        if expected.is_finite() {
            sums.1 += expected * expected;
        }
    }
    if found.len() != expected.len() { f64::NAN } else { (sums.0 / f64::max(sums.1, f64::MIN_POSITIVE)).sqrt() }
}
