//! Bytes that a rank holds throughout a step, and bytes that each op adds.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::units::Bytes;
use crate::graph::layout::{Layout, ReduceGradients};
use crate::graph::liveness::JobMemory;
use crate::graph::{Graph, Job, Role, Tensor, TensorId};
use crate::hardware::cost::JobTimes;
use crate::model::Dtype;
use crate::problem::StageCost;

/// Bytes that a rank holds throughout a step, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StaticBytes {
    /// Weights, in the training's number format.
    pub weights: Bytes,
    /// Quantized copies of weights, where matmuls read them in FP8 or FP4.
    pub weight_copies: Bytes,
    /// Accumulated gradients: f32, or f64 with f64 weights, or bf16 where the spec asks for it.
    pub gradients: Bytes,
    /// Master weights: f32 copies of weights in a coarser format.
    pub master_weights: Bytes,
    /// What the optimizer keeps, such as AdamW's two moments: f32, or f64 with f64 weights, or bf16 where the spec asks
    /// for it.
    pub optimizer: Bytes,
    /// Where weights are shared out among copies (ZeRO 3): a layer, gathered, and the next one under way, where these
    /// two are largest.
    pub gathered: Bytes,
    /// Where copies reduce each microbatch's gradients: those of a layer, not yet reduced, and of the next one that
    /// the backward makes meanwhile, where these two are largest.
    pub under_way: Bytes,
    /// Buffers of P2P transfers: one of each kind at each end of a stage.
    pub buffers: Bytes,
    /// Workspace of the device's libraries, from the device's profile.
    pub workspace: Bytes,
    /// Reserved memory of the framework, from the spec.
    pub overhead: Bytes,
    /// Master weights and moments that lie in the host's memory ([`Layout::offload_optimizer`]), which none of the
    /// others count and neither does their sum.
    pub on_host: Bytes,
    /// Of the weights, those that train; in no sum of bytes.
    pub trained: Bytes,
    /// Of the quantized copies, those of weights that train, which each step makes again; in no sum of bytes.
    pub copies_again: Bytes,
    /// Floating-point operations of the optimizer's matrix products ([`Optimizer::update_flops`]); no bytes, and in no
    /// sum of them.
    ///
    /// [`Optimizer::update_flops`]: crate::graph::optimizer::Optimizer::update_flops
    pub update_flops: u128,
}

impl StaticBytes {
    /// All kinds together, without host memory.
    pub fn total(&self) -> Bytes {
        [
            self.weight_copies,
            self.gradients,
            self.master_weights,
            self.optimizer,
            self.gathered,
            self.under_way,
            self.buffers,
            self.workspace,
            self.overhead,
        ]
        .into_iter()
        .fold(self.weights, Bytes::saturating_add)
    }

    /// Each kind with its name, for a table.
    pub fn kinds(&self) -> [(&'static str, Bytes); 10] {
        [
            ("weights", self.weights),
            ("quantized weights", self.weight_copies),
            ("gradients", self.gradients),
            ("master weights", self.master_weights),
            ("optimizer", self.optimizer),
            ("gathered weights", self.gathered),
            ("gradients reduced", self.under_way),
            ("buffers", self.buffers),
            ("workspace", self.workspace),
            ("overhead", self.overhead),
        ]
    }

    /// The sum by kind.
    pub fn plus(&self, other: &StaticBytes) -> StaticBytes {
        StaticBytes {
            weights: self.weights.saturating_add(other.weights),
            weight_copies: self.weight_copies.saturating_add(other.weight_copies),
            gradients: self.gradients.saturating_add(other.gradients),
            master_weights: self.master_weights.saturating_add(other.master_weights),
            optimizer: self.optimizer.saturating_add(other.optimizer),
            // A layer and the next one, whichever stage they are of; and once a device.
            gathered: self.gathered.max(other.gathered),
            under_way: self.under_way.max(other.under_way),
            buffers: self.buffers.saturating_add(other.buffers),
            workspace: self.workspace.max(other.workspace),
            overhead: self.overhead.max(other.overhead),
            on_host: self.on_host.saturating_add(other.on_host),
            trained: self.trained.saturating_add(other.trained),
            copies_again: self.copies_again.saturating_add(other.copies_again),
            update_flops: self.update_flops.saturating_add(other.update_flops),
        }
    }

    /// These bytes with ZeRO: `copies` replicas shard what [`Layout::zero`] of `layout` gives, in equal shards (the
    /// last one may be smaller), and the optimizer state lies where `layout` puts it. Gradients that are reduced
    /// after accumulation are kept whole. `largest_neighbours` are the weights that are gathered at once, and the most
    /// of them that train.
    pub fn shared_out(&self, layout: &Layout, copies: u64, largest_neighbours: [Bytes; 2]) -> StaticBytes {
        let [largest_neighbours, largest_trained] = largest_neighbours;
        let (zero, sharers) = (layout.zero, layout.sharers(copies));
        let share = |from: u32, bytes: Bytes| if zero >= from { bytes.div_ceil(sharers) } else { bytes };
        let each = layout.reduces_gradients() == ReduceGradients::EachMicrobatch;
        let gradients = if each { share(2, self.gradients) } else { self.gradients };
        // In the format of the gradients, of which there is one for each weight that trains.
        let of_largest = u128::from(largest_trained) * u128::from(self.gradients) / u128::from(self.trained.max(1));
        let of_largest = Bytes::try_from(of_largest).unwrap_or(Bytes::MAX);
        let state = [self.master_weights, self.optimizer].map(|bytes| share(1, bytes));
        let [master_weights, optimizer] = if layout.offload_optimizer { [0; 2] } else { state };
        StaticBytes {
            weights: share(3, self.weights),
            gradients,
            master_weights,
            optimizer,
            on_host: if layout.offload_optimizer { state[0].saturating_add(state[1]) } else { 0 },
            under_way: if each && copies > 1 { of_largest } else { 0 },
            gathered: if zero >= 3 && sharers > 1 { largest_neighbours } else { 0 },
            ..*self
        }
    }

    /// The sum with what the experts of the same layers hold: gathered together with them.
    pub fn with_experts(&self, experts: &StaticBytes) -> StaticBytes {
        let gathered = self.gathered.saturating_add(experts.gathered);
        let under_way = self.under_way.saturating_add(experts.under_way);
        StaticBytes { gathered, under_way, ..self.plus(experts) }
    }

    /// What the weights of a stage need, those of its experts apart, and the buffers of its messages: an activation and
    /// a gradient for each neighbour, sent or received. Stages of one rank hand over without a copy, so one buffer,
    /// counted with the later stage, serves both ends: `shares_after` says that the next stage is on the same rank.
    /// `layout` has the optimizer and the number format of its moments.
    pub fn of_stage(graph: &Graph, shares_after: bool, layout: &Layout) -> (StaticBytes, StaticBytes) {
        let (mut bytes, mut experts) = (StaticBytes::default(), StaticBytes::default());
        let of_layers = graph.weights_of_layers();
        for (id, tensor) in graph.tensors() {
            match tensor.role {
                Role::Weight { .. } => {
                    let bytes = if tensor.expert_ways().is_some() { &mut experts } else { &mut bytes };
                    bytes.weights = bytes.weights.saturating_add(tensor.bytes());
                    if tensor.is_frozen() {
                        continue;
                    }
                    bytes.trained = bytes.trained.saturating_add(tensor.bytes());
                    if tensor.dtype == Dtype::Bf16 {
                        let master = tensor.elements().saturating_mul(Dtype::F32.bytes());
                        bytes.master_weights = bytes.master_weights.saturating_add(master);
                    }
                    let in_layer = of_layers.contains(&id);
                    let kept = layout.optimizer.state_elements(&tensor.shape, in_layer);
                    let kept = kept.saturating_mul(layout.state_dtype(tensor.dtype).bytes());
                    bytes.optimizer = bytes.optimizer.saturating_add(kept);
                    let flops = layout.optimizer.update_flops(&tensor.shape, in_layer);
                    bytes.update_flops = bytes.update_flops.saturating_add(flops);
                }
                Role::WeightCopy { of } => {
                    let bytes = if graph[of].expert_ways().is_some() { &mut experts } else { &mut bytes };
                    bytes.weight_copies = bytes.weight_copies.saturating_add(tensor.bytes());
                    if !graph[of].is_frozen() {
                        bytes.copies_again = bytes.copies_again.saturating_add(tensor.bytes());
                    }
                }
                Role::WeightGradient { of } => {
                    let bytes = if graph[of].expert_ways().is_some() { &mut experts } else { &mut bytes };
                    bytes.gradients = bytes.gradients.saturating_add(tensor.bytes());
                }
                Role::ActivationIn | Role::GradientOut => {
                    bytes.buffers = bytes.buffers.saturating_add(tensor.bytes());
                }
                Role::ActivationOut | Role::GradientIn if !shares_after => {
                    bytes.buffers = bytes.buffers.saturating_add(tensor.bytes());
                }
                _ => {}
            }
        }
        (bytes, experts)
    }
}

/// Bytes of the sharded weights of `graph` that are gathered at once: those of the two neighbouring units with the
/// most, one in use and the next one under way. Units are the embedding, each layer, and the head with what follows
/// it, as torchtitan wraps them (`apply_fsdp`). The first number is for all weights but experts, the second for
/// experts; 0 where `shared` says that they are not sharded. Only weights that `counts` count.
pub fn largest_neighbours(graph: &Graph, shared: [bool; 2], counts: impl Fn(&Tensor) -> bool) -> [Bytes; 2] {
    let mut last_layer = None;
    let mut units: Vec<[Bytes; 2]> = Vec::new();
    // Where each weight is needed first and last.
    let mut needed: BTreeMap<TensorId, [usize; 2]> = BTreeMap::new();
    for operator in graph.job(Job::F) {
        let weights = operator.inputs.iter().filter_map(|input| graph.weight_of(input.tensor));
        for weight in weights.filter(|id| counts(&graph[*id])) {
            if last_layer != Some(operator.layer) {
                last_layer = Some(operator.layer);
                units.push([0; 2]);
            }
            let unit = units.len() - 1;
            needed.entry(weight).or_insert([unit, unit])[1] = unit;
        }
    }
    // A table that is embedding and head stays for all that is between.
    let mut throughout = [0; 2];
    for (weight, [first, last]) in needed {
        let kind = usize::from(graph[weight].expert_ways().is_some());
        let sum = if first == last { &mut units[first][kind] } else { &mut throughout[kind] };
        *sum = sum.saturating_add(if shared[kind] { graph[weight].bytes() } else { 0 });
    }
    let plus = |a: [Bytes; 2], b: [Bytes; 2]| [a[0].saturating_add(b[0]), a[1].saturating_add(b[1])];
    // A stage of one unit has itself behind it, of the next microbatch.
    let alone = units.first().map(|unit| plus(*unit, *unit)).filter(|_| units.len() == 1);
    let pairs = units.windows(2).map(|pair| plus(pair[0], pair[1]));
    let most = pairs.chain(alone).max_by_key(|[others, experts]| others.saturating_add(*experts));
    plus(most.unwrap_or_default(), throughout)
}

/// Bytes of the gradients of tables that another stage holds too.
pub fn gradients_of_tables(graph: &Graph) -> Bytes {
    let of_table = |tensor: &Tensor| match tensor.role {
        Role::WeightGradient { of } => matches!(graph[of].role, Role::Weight { shared: true, .. }),
        _ => false,
    };
    graph
        .tensors()
        .filter(|(_, tensor)| of_table(tensor))
        .fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.bytes()))
}

/// What a scheduler may know of a stage: times and bytes of F, B, W and the fused BW.
pub fn stage_cost(times: &JobTimes, memory: [JobMemory; 3], fused: JobMemory) -> StageCost {
    let [forward, backward_input, backward_weight] = memory;
    let [forward_ns, backward_input_ns, backward_weight_ns] = times.jobs;
    StageCost {
        forward_ns,
        backward_input_ns,
        backward_weight_ns,
        backward_ns: (times.fused < backward_input_ns.saturating_add(backward_weight_ns)).then_some(times.fused),
        forward_exchange_ns: times.exchanges[0],
        backward_exchange_ns: times.exchanges[1],
        forward_bytes: forward.net,
        backward_input_bytes: backward_input.net,
        backward_weight_bytes: backward_weight.net,
        forward_workspace_bytes: forward.workspace(),
        backward_input_workspace_bytes: backward_input.workspace(),
        backward_weight_workspace_bytes: backward_weight.workspace(),
        backward_workspace_bytes: Some(fused.workspace()),
        slice_gradient_bytes: 0,
        offload_bytes: 0,
        offload_ns: 0,
    }
}
