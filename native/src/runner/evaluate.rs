//! What the weights of a checkpoint make of a text, without training: its loss, and the logits of every token.
//!
//! The forward of a whole model runs operator by operator with the kernels of a run, on one thread, one sequence
//! after the other. So what another program computes from the same weights can be held against it, number by number.

use pipeplan_core::base::fields::Faults;
use pipeplan_core::graph::build::forward_graph;
use pipeplan_core::graph::form::{Form, StageShape};
use pipeplan_core::graph::{Kernel, Needs, Role, TensorId};
use pipeplan_core::model::ModelConfig;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView, serialize};

use super::checkpoint::{self, Checkpoint, CheckpointError, Reader};
use super::data::{DataError, Source};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::gemm::Tuned;
use crate::backend::cpu::kernels::{self, Context, Data, Input};

/// What a checkpoint makes of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation<T> {
    /// The mean over all tokens of −ln of the next one's probability.
    pub loss: f64,
    /// The sequences, each a token longer than what is computed: the last one is only predicted.
    pub windows: Vec<Vec<i32>>,
    /// Logits of every token of every sequence, in order: `[windows, sequence, vocabulary]`.
    pub logits: Vec<T>,
    /// Logits of one token.
    pub vocabulary: usize,
}

/// Why a checkpoint says nothing of a text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EvaluateError {
    /// It cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The text is no text for it.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Its model is none that is known from a `config.json`.
    #[error("the checkpoint's model cannot be evaluated:\n{0}")]
    Model(Faults),
    /// A weight has another size than the model asks for.
    #[error("the checkpoint does not fit its model: {0}")]
    Mismatch(String),
}

/// The first `windows` sequences of `text` through the weights of `checkpoint`, in `T`. Sequences are as long as
/// those that it was trained on.
///
/// # Errors
/// [`EvaluateError`].
pub fn evaluate<T: Element>(
    checkpoint: &Checkpoint,
    text: &[u8],
    windows: usize,
) -> Result<Evaluation<T>, EvaluateError> {
    evaluate_on(checkpoint, &Source::of_text(text.to_vec()), windows)
}

/// The same of any data.
///
/// # Errors
/// [`EvaluateError`], also where some tokens are not to be predicted.
pub fn evaluate_on<T: Element>(
    checkpoint: &Checkpoint,
    data: &Source,
    windows: usize,
) -> Result<Evaluation<T>, EvaluateError> {
    let sequence = checkpoint.manifest.sequence as usize;
    if sequence == 0 || data.tokens <= sequence as u64 {
        return Err(match data.is_in_memory() {
            true => DataError::TooShort { bytes: data.tokens as usize, sequence, ahead: 1 }.into(),
            false => {
                let (path, tokens, needed) = (data.path.clone(), data.tokens, sequence as u64 + 1);
                DataError::TooFew { path, tokens, for_what: "one sequence and what is predicted from it", needed }
                    .into()
            }
        });
    }
    if data.is_masked {
        let found = "tokens that are not to be predicted";
        return Err(DataError::wrong(&data.path, "the file", found, "data without loss masks").into());
    }
    let mut faults = Vec::new();
    let model = checkpoint::model_of(&checkpoint.manifest.model, &mut faults);
    let mut model = model.ok_or(EvaluateError::Model(Faults(faults)))?;
    // What is predicted further on changes nothing of the next token.
    model.variant.multi_token = 0;
    checkpoint.check_files(false, 0, 1)?;
    let mut forward = Forward::<T>::new(&model, checkpoint)?;
    let starts = (0..data.tokens - sequence as u64).step_by(sequence).take(windows.max(1));
    let read = |start| data.read(start, sequence + 1, model.vocab.into());
    let windows: Vec<Vec<i32>> = starts
        .map(|start| Ok(read(start)?.into_iter().map(|token| token as i32).collect()))
        .collect::<Result<_, DataError>>()?;
    let (mut loss, mut logits) = (0.0, Vec::new());
    for window in &windows {
        let (of_window, more) = forward.run(window)?;
        loss += of_window / windows.len() as f64;
        logits.extend(more);
    }
    Ok(Evaluation { loss, windows, logits, vocabulary: model.vocab as usize })
}

impl<T: Element> Evaluation<T> {
    /// The bytes of a file of the tensors `logits`, `windows` (tokens, as 32-bit numbers) and `loss`, in the format of
    /// safetensors.
    ///
    /// # Errors
    /// That of the format, where it has no words for them.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, SafeTensorError> {
        let (count, length) = (self.windows.len(), self.windows.first().map_or(0, Vec::len));
        let numbers = |values: &[T]| -> (Dtype, Vec<u8>) {
            match T::DTYPE {
                pipeplan_core::model::Dtype::F64 => {
                    (Dtype::F64, values.iter().flat_map(|value| value.wide().to_le_bytes()).collect())
                }
                _ => (Dtype::F32, values.iter().flat_map(|value| (value.wide() as f32).to_le_bytes()).collect()),
            }
        };
        let (dtype, logits) = numbers(&self.logits);
        let windows: Vec<u8> = self.windows.concat().into_iter().flat_map(i32::to_le_bytes).collect();
        let loss = self.loss.to_le_bytes();
        let shape = vec![count, length.saturating_sub(1), self.vocabulary];
        let tensors = [
            ("logits", TensorView::new(dtype, shape, &logits)),
            ("loss", TensorView::new(Dtype::F64, vec![1], &loss)),
            ("windows", TensorView::new(Dtype::I32, vec![count, length], &windows)),
        ];
        let tensors: Result<Vec<_>, _> =
            tensors.into_iter().map(|(name, view)| view.map(|view| (name, view))).collect();
        tensors.and_then(|tensors| serialize(tensors, None))
    }
}

/// A whole model, and its weights.
struct Forward<T> {
    graph: pipeplan_core::graph::Graph,
    /// By tensor: weights.
    weights: Vec<Option<Data<T>>>,
    context: Context<T>,
}

impl<T: Element> Forward<T> {
    fn new(model: &ModelConfig, checkpoint: &Checkpoint) -> Result<Forward<T>, EvaluateError> {
        let lora = match &checkpoint.manifest.lora {
            None => None,
            Some(adapters) => Some(
                adapters
                    .lora()
                    .ok_or_else(|| EvaluateError::Mismatch("its adapters are none that a spec says".into()))?,
            ),
        };
        let shape = StageShape {
            layers: 0..model.layers,
            has_embedding: true,
            has_head: true,
            modules: pipeplan_core::model::Modules::default(),
            microbatch_size: 1,
            sequence: checkpoint.manifest.sequence,
            dtype: T::DTYPE,
            form: Form { lora, ..Form::default() },
        };
        let graph = forward_graph(model, &shape, 1);
        let reader = Reader::open(checkpoint)?;
        let mut weights: Vec<Option<Data<T>>> = graph.tensors.iter().map(|_| None).collect();
        for (id, tensor) in graph.weights() {
            let values: Vec<T> = reader.weight(&tensor.name)?;
            if values.len() as u64 != tensor.elements() {
                let (name, needed) = (&tensor.name, tensor.elements());
                return Err(EvaluateError::Mismatch(format!(
                    "{name} has {} elements; needed are {needed}",
                    values.len()
                )));
            }
            weights[id.index()] = Some(Data::Floats(values));
        }
        let rotary = checkpoint::rope_scaling(&checkpoint.manifest.model).map_err(EvaluateError::Mismatch)?;
        let mut context = Context::new(Box::new(Tuned));
        context.rotary = rotary;
        Ok(Forward { graph, weights, context })
    }

    /// The loss of one sequence, and its logits.
    fn run(&mut self, window: &[i32]) -> Result<(f64, Vec<T>), EvaluateError> {
        let Forward { graph, weights, context } = self;
        let tokens = |tokens: &[i32]| Data::Tokens(tokens.to_vec());
        let mut made: Vec<Option<Data<T>>> = graph.tensors.iter().map(|_| None).collect();
        for (id, tensor) in graph.tensors() {
            made[id.index()] = match tensor.role {
                Role::Tokens { ahead: 0 } => Some(tokens(&window[..window.len() - 1])),
                Role::Tokens { .. } => Some(tokens(&window[1..])),
                _ => None,
            };
        }
        for operator in &graph.operators {
            let mut outputs: Vec<Data<T>> = operator
                .outputs
                .iter()
                .map(|id| Data::zeros(graph[*id].dtype, graph[*id].elements() as usize))
                .collect();
            let inputs: Vec<Input<'_, T>> = operator
                .inputs
                .iter()
                .map(|input| {
                    let data = weights[input.tensor.index()].as_ref().or(made[input.tensor.index()].as_ref());
                    let data = data.filter(|_| input.needs == Needs::Data);
                    Input { shape: &graph[input.tensor].shape, data }
                })
                .collect();
            kernels::run(context, &operator.kernel, &inputs, &mut outputs);
            for (id, data) in operator.outputs.iter().zip(outputs) {
                made[id.index()] = Some(data);
            }
        }
        let mut take = |id: TensorId| match made[id.index()].take() {
            Some(Data::Floats(values)) => Some(values),
            _ => None,
        };
        // What the loss is of are the logits, as they are after all that is done to them.
        let of_loss = graph.operators.iter().find(|operator| matches!(operator.kernel, Kernel::CrossEntropy { .. }));
        let ids = of_loss.and_then(|operator| Some((operator.inputs.first()?.tensor, *operator.outputs.first()?)));
        let both = ids.and_then(|(logits, loss)| Some((take(loss)?.first()?.wide(), take(logits)?)));
        both.ok_or_else(|| EvaluateError::Mismatch("the model makes no logits".into()))
    }
}
