//! One stage on one device: its buffers by the rules of liveness, and the formula of each operator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::devices::held;
use super::given::Given;
use super::run::Border;
use super::{activation, attention, embedding, experts, linear, loss, newer, norm, recurrence, rope};
use crate::graph::liveness::Lifetimes;
use crate::graph::{Graph, Job, Kernel, Needs, Operator, Role, TensorId};

/// The buffers of one stage on one device. A read of a missing buffer panics, so the test fails.
pub(super) struct Arena<'g> {
    pub(super) graph: &'g Graph,
    /// The device's number among the TP devices.
    pub(super) member: usize,
    pub(super) lifetimes: Lifetimes,
    pub(super) values: BTreeMap<TensorId, Vec<f64>>,
    /// Results of collectives that have started, by the started tensor.
    pub(super) under_way: RefCell<BTreeMap<TensorId, Vec<f64>>>,
    pub(super) held: u64,
}

impl<'g> Arena<'g> {
    pub(super) fn new(
        graph: &'g Graph,
        member: usize,
        weights: &BTreeMap<String, Vec<f64>>,
        lifetimes: Lifetimes,
    ) -> Arena<'g> {
        let mut values = BTreeMap::new();
        for (id, tensor) in graph.tensors() {
            match tensor.role {
                Role::Weight { .. } => values.insert(id, held(tensor, member, &weights[&tensor.name])),
                Role::WeightCopy { of } => values.insert(id, held(&graph[of], member, &weights[&graph[of].name])),
                Role::WeightGradient { .. } => values.insert(id, vec![0.0; tensor.elements() as usize]),
                _ => None,
            };
        }
        Arena { graph, member, lifetimes, values, under_way: RefCell::default(), held: 0 }
    }

    /// Takes the tensors that arrive for a job.
    pub(super) fn begin(&mut self, job: Job, arriving: &BTreeMap<Border, Vec<f64>>) {
        for id in self.lifetimes.arrive[job as usize].clone() {
            self.values.insert(id, arriving[&Border::of(self.graph[id].role)].clone());
            self.held += self.graph[id].device_bytes();
        }
    }

    /// Stores the outputs of an operator and frees the tensors that it read last. Returns the most bytes held
    /// meanwhile.
    pub(super) fn settle(&mut self, at: usize, outputs: Vec<Vec<f64>>) -> u64 {
        let operator = &self.graph.operators[at];
        if let (Kernel::OffloadWait | Kernel::ReloadWait, [copy, from]) = (operator.kernel, &operator.inputs[..]) {
            let copied = self.under_way.borrow_mut().remove(&copy.tensor).unwrap();
            assert_eq!(copied, self.values[&from.tensor], "somebody wrote what is copied");
            let before = self.values.insert(copy.tensor, copied);
            assert!(before.is_some_and(|before| before.iter().all(|number| number.is_nan())));
        }
        if self.lifetimes.takes_over[at] {
            let given = operator.inputs[operator.in_place.unwrap() as usize].tensor;
            self.values.remove(&given).unwrap();
            self.held -= self.graph[given].device_bytes();
        }
        for (id, value) in operator.outputs.iter().zip(outputs) {
            assert_eq!(value.len() as u64, self.graph[*id].elements(), "{}", self.graph[*id].name);
            let before = self.values.insert(*id, value);
            if !self.graph[*id].role.is_persistent() {
                assert!(before.is_none());
                self.held += self.graph[*id].device_bytes();
            }
        }
        let most = self.held;
        for id in self.lifetimes.free_after[at].clone() {
            self.values.remove(&id).unwrap();
            self.held -= self.graph[id].device_bytes();
        }
        most
    }

    /// Gives the tensors that leave after a job.
    pub(super) fn end(&mut self, job: Job) -> BTreeMap<Border, Vec<f64>> {
        let mut leaving = BTreeMap::new();
        for id in self.lifetimes.end[job as usize].clone() {
            let value = self.values.remove(&id).unwrap();
            self.held -= self.graph[id].device_bytes();
            leaving.insert(Border::of(self.graph[id].role), value);
        }
        leaving
    }

    /// The outputs of `operator` on this device alone.
    ///
    /// Long on purpose: a table with every kernel.
    pub(super) fn compute(&self, operator: &Operator) -> Vec<Vec<f64>> {
        let nothing = Vec::new();
        let given = Given::of(self.graph, operator, self.member, |input| match input.needs {
            Needs::Data => &self.values[&input.tensor],
            Needs::Shape => &nothing,
        });
        let x = &given.x;
        match operator.kernel {
            Kernel::OwnTokens { .. }
            | Kernel::Embedding
            | Kernel::EmbeddingGrad
            | Kernel::Positions { .. }
            | Kernel::PositionsGrad { .. } => embedding::compute(&given),
            Kernel::RmsNorm { .. }
            | Kernel::RmsNormInputGrad { .. }
            | Kernel::RmsNormGainGrad
            | Kernel::LayerNorm { .. }
            | Kernel::LayerNormInputGrad
            | Kernel::LayerNormGainGrad
            | Kernel::HeadLayerNorm { .. }
            | Kernel::HeadLayerNormInputGrad { .. }
            | Kernel::HeadLayerNormGainGrad { .. }
            | Kernel::HeadNorm { .. }
            | Kernel::HeadNormInputGrad { .. }
            | Kernel::HeadNormGainGrad { .. } => norm::compute(&given),
            Kernel::AddBias
            | Kernel::BiasGrad
            | Kernel::MatMul { .. }
            | Kernel::Cast
            | Kernel::Quantize { .. }
            | Kernel::Add
            | Kernel::Scale { .. } => linear::compute(&given),
            Kernel::Rope { .. }
            | Kernel::RopeTail { .. }
            | Kernel::SplitColumns
            | Kernel::JoinColumns
            | Kernel::LatentKeys { .. }
            | Kernel::LatentKeysGrad { .. } => rope::compute(&given),
            Kernel::Attention(_)
            | Kernel::AttentionGrad(_)
            | Kernel::Scores(_)
            | Kernel::ScoresGrad(_)
            | Kernel::Softmax
            | Kernel::SoftmaxGrad
            | Kernel::Attend(_)
            | Kernel::AttendGrad(_)
            | Kernel::SpreadAttention(_)
            | Kernel::SpreadAttentionGrad(_) => attention::compute(&given),
            Kernel::Route { .. }
            | Kernel::RouteGrad { .. }
            | Kernel::RouterLoss { .. }
            | Kernel::RouterLossGrad { .. }
            | Kernel::RowGate
            | Kernel::RowGateGrad
            | Kernel::Dispatch { .. }
            | Kernel::DispatchGrad { .. }
            | Kernel::Combine { .. }
            | Kernel::CombineGrad { .. }
            | Kernel::ExpertMatMul { .. }
            | Kernel::ExpertMatMulGrad => experts::compute(&given),
            Kernel::SwiGlu
            | Kernel::SwiGluGrad
            | Kernel::Gelu
            | Kernel::GeluGrad
            | Kernel::GeluTanh
            | Kernel::GeluTanhGrad
            | Kernel::Dropout { .. }
            | Kernel::DropoutGrad
            | Kernel::GeGlu
            | Kernel::GeGluGrad
            | Kernel::WeightedGlu { .. }
            | Kernel::WeightedGluGrad { .. } => activation::compute(&given),
            Kernel::SoftCap { .. }
            | Kernel::SoftCapGrad { .. }
            | Kernel::Clip { .. }
            | Kernel::ClipGrad { .. }
            | Kernel::CrossEntropy { .. }
            | Kernel::HidePadding { .. }
            | Kernel::RowMax
            | Kernel::ExpSums
            | Kernel::SharedCrossEntropy { .. }
            | Kernel::CrossEntropyGrad { .. } => loss::compute(&given),
            Kernel::ClampedGlu
            | Kernel::ClampedGluGrad
            | Kernel::SquaredRelu
            | Kernel::SquaredReluGrad
            | Kernel::WeightedSquaredRelu
            | Kernel::WeightedSquaredReluGrad
            | Kernel::Xielu
            | Kernel::XieluGrad
            | Kernel::XieluWeightGrad { .. }
            | Kernel::SigmoidGate
            | Kernel::SigmoidGateGrad
            | Kernel::RowSquares
            | Kernel::RowSquaresGrad
            | Kernel::SharedRmsNorm { .. }
            | Kernel::SharedRmsNormGrad { .. }
            | Kernel::HeadLength { .. }
            | Kernel::HeadLengthGrad { .. }
            | Kernel::PositionScale { .. }
            | Kernel::SinkAttention(_)
            | Kernel::SinkGrad
            | Kernel::ExpertBias { .. }
            | Kernel::ExpertBiasGrad { .. }
            | Kernel::ExpertBiasShareGrad { .. }
            | Kernel::ExpertScale
            | Kernel::ExpertScaleGrad
            | Kernel::DetachedMatMul
            | Kernel::Convolution { .. }
            | Kernel::ConvolutionGrad { .. }
            | Kernel::ConvolutionWeightGrad { .. }
            | Kernel::IndexKeys(_)
            | Kernel::IndexKeysGrad(_)
            | Kernel::SparseAttention(_)
            | Kernel::SparseAttentionGrad(_) => newer::compute(&given),
            Kernel::Recurrence(_) | Kernel::RecurrenceGrad(_) => recurrence::compute(&given),
            Kernel::FullAttention(_)
            | Kernel::FullAttentionGrad(_)
            | Kernel::ImageRows(_)
            | Kernel::ImageRowsGrad(_) => panic!("{} is only planned", operator.kernel.name()),
            Kernel::Replicate { .. } => vec![x[0].clone()],
            // The copy is kept apart until the wait, as the results of collectives.
            Kernel::Offload | Kernel::Reload => {
                self.under_way.borrow_mut().insert(operator.outputs[0], x[0].clone());
                vec![vec![f64::NAN; x[0].len()]]
            }
            Kernel::OffloadWait | Kernel::ReloadWait => vec![],
            Kernel::AllReduceWait | Kernel::ReduceScatterWait => {
                assert!(x[0].iter().all(|number| number.is_nan()), "somebody wrote what is under way");
                vec![self.under_way.borrow_mut().remove(&operator.inputs[0].tensor).unwrap()]
            }
            Kernel::AllReduce { .. }
            | Kernel::AllReduceMax { .. }
            | Kernel::AllReduceStart { .. }
            | Kernel::ReduceScatterStart { .. }
            | Kernel::AllGather { .. }
            | Kernel::ReduceScatter { .. } => panic!("{} takes several devices", operator.kernel.name()),
        }
    }
}
