//! The builder of a stage's forward: it appends tensors and operators, and knows which device holds which share.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::form::{AttentionForm, Form, StageShape};
use super::{
    Angles, Graph, Heads, Init, Job, Kernel, Needs, Operator, Role, Split, Spread, Stream, Tensor, TensorId, Use,
};
use crate::model::{Dtype, ModelConfig, Scores};

/// Appends tensors and forward operators to a graph.
pub(super) struct Builder {
    pub(super) graph: Graph,
    /// With the sizes of attention in the layer that is being built.
    pub(super) model: ModelConfig,
    /// With those that most layers have.
    usual: ModelConfig,
    pub(super) tokens: u64,
    pub(super) sequence: u64,
    pub(super) layer: Option<u32>,
    pub(super) form: Form,
    microbatches: u32,
    /// Dropouts so far in this layer.
    dropouts: u64,
    /// Whether devices each work on a share of the matrices where the graph is being built.
    is_split: bool,
    /// Tokens of the microbatch (of this device's part of each sequence, with context parallelism), of which `tokens`
    /// are this device's where the graph is being built.
    all_tokens: u64,
    /// Whether another stage holds the other copy of the table: of a tied one, or for multi-token prediction.
    pub(super) shares_table: bool,
    dtype: Dtype,
}

impl Builder {
    pub(super) fn new(model: ModelConfig, shape: &StageShape, microbatches: u32) -> Builder {
        let tokens = shape.tokens().div_ceil(shape.form.context.max(1).into());
        Builder {
            graph: Graph::default(),
            model,
            usual: model,
            tokens,
            sequence: shape.sequence.into(),
            layer: None,
            form: shape.form,
            microbatches,
            dropouts: 0,
            is_split: false,
            all_tokens: tokens,
            shares_table: (model.tied || model.variant.multi_token > 0) && !(shape.has_embedding && shape.has_head),
            dtype: shape.dtype,
        }
    }

    /// What follows belongs to `layer`.
    pub(super) fn enter_layer(&mut self, layer: u32) {
        (self.layer, self.dropouts) = (Some(layer), 0);
        self.model = self.usual;
        self.model.rope_base = self.usual.rope_base_of(layer);
        if let Some(global) = self.usual.global(layer) {
            (self.model.head_dim, self.model.kv_heads) = (global.head_dim, global.kv_heads);
            // Its angles are of the whole head.
            self.model.variant.rotary = None;
        }
    }

    /// The angles of rotary positions in the layer that is being built.
    pub(super) fn angles(&self) -> Angles {
        let global = self.layer.and_then(|layer| self.model.global(layer));
        Angles {
            base: self.model.rope_base.into(),
            pairs: global.and_then(|global| global.rotary).map(|columns| u64::from(columns / 2)),
            windowed: self.layer.is_some_and(|layer| self.model.has_window(layer)),
        }
    }

    /// Columns of `x`.
    pub(super) fn width_of(&self, x: TensorId) -> u64 {
        self.graph[x].shape.last().copied().unwrap_or(1)
    }

    pub(super) fn hidden(&self) -> u64 {
        self.model.hidden.into()
    }

    /// Devices that share each matrix.
    pub(super) fn ways(&self) -> u64 {
        u64::from(self.form.tensor.max(1))
    }

    /// This device's share of `size`; the last device's may be less.
    pub(super) fn share(&self, size: u32) -> u64 {
        u64::from(size).div_ceil(self.ways())
    }

    /// The heads of one device. Where there are fewer key and value heads than devices, some hold the same one.
    pub(super) fn heads(&self) -> Heads {
        Heads {
            sequence: self.attention_sequence(),
            query: self.share(self.model.heads),
            key_value: self.share(self.model.kv_heads),
            width: self.model.head_dim.into(),
            scale_e12: self.model.variant.factors.attention,
            // A separate operator caps scores that are held.
            cap_e12: match self.form.attention {
                AttentionForm::Flash => self.model.variant.caps.attention,
                AttentionForm::Materialised => None,
            },
        }
    }

    /// Tokens of what attention takes as one sequence: a chunk where the layer has them.
    fn attention_sequence(&self) -> u64 {
        self.layer.map_or(self.sequence, |layer| self.model.attention_sequence(layer, self.sequence))
    }

    /// The number format of saved statistics.
    pub(super) fn statistics(&self) -> Dtype {
        statistics_of(self.dtype)
    }

    pub(super) fn tensor(&mut self, name: &str, shape: Vec<u64>, dtype: Dtype, role: Role) -> TensorId {
        self.graph.add(name.to_string(), shape, dtype, role)
    }

    pub(super) fn tokens_of(&mut self, name: &str, ahead: u32) -> TensorId {
        self.tensor(name, vec![self.all_tokens], Dtype::I32, Role::Tokens { ahead })
    }

    /// A matrix of `width` columns, one row a token.
    pub(super) fn activation(&mut self, name: &str, width: u64, role: Role) -> TensorId {
        let name = match self.layer {
            Some(layer) => format!("layer {layer} {name}"),
            None => name.to_string(),
        };
        self.graph.add(name, vec![self.tokens, width], self.dtype, role)
    }

    /// One saved number for each token and column.
    pub(super) fn statistic(&mut self, name: &str, columns: Option<u64>) -> TensorId {
        let id = self.activation(name, 1, Role::Intermediate);
        let dtype = self.statistics();
        let tensor = &mut self.graph.tensors[id.index()];
        tensor.shape.truncate(1);
        tensor.shape.extend(columns);
        tensor.dtype = dtype;
        id
    }

    /// A weight of which each device holds all.
    pub(super) fn new_weight(&mut self, name: String, shape: Vec<u64>, init: Init, shared: bool) -> TensorId {
        self.weight_of(name, shape, init, shared, None)
    }

    /// A weight that devices hold as `split` says; `shape` is that of one device's part.
    pub(super) fn weight_of(
        &mut self,
        name: String,
        shape: Vec<u64>,
        init: Init,
        shared: bool,
        split: Option<Split>,
    ) -> TensorId {
        // A matrix of each expert has three sizes.
        let experts = (shape.len() > 2).then_some(u64::from(self.form.expert.max(1)));
        let (decay, partial) = (shape.len() > 1, self.is_partial(split, experts.is_some()));
        let frozen = self.form.is_frozen(&name, self.layer);
        let role = Role::Weight { init, decay, shared, experts, split, partial, frozen };
        self.graph.add(name, shape, self.dtype, role)
    }

    /// The biases `[experts, out]` of the experts of this device.
    pub(super) fn expert_bias(&mut self, name: String, shape: [u64; 2], split: Option<Split>) -> TensorId {
        let experts = Some(u64::from(self.form.expert.max(1)));
        let partial = self.is_partial(split, true);
        let frozen = self.form.is_frozen(&name, self.layer);
        let role = Role::Weight { init: Init::Zeros, decay: false, shared: false, experts, split, partial, frozen };
        self.graph.add(name, shape.to_vec(), self.dtype, role)
    }

    /// Whether a device's gradient of a weight is a part of a sum over devices that share matrices. Those that hold whole
    /// experts each have others.
    fn is_partial(&self, split: Option<Split>, of_experts: bool) -> bool {
        let holders = split.map_or(self.ways(), |split| split.holders());
        holders > 1 && (self.is_split || self.form.sequence_parallel && !of_experts)
    }

    /// How devices hold a weight that has `whole` entries in `dimension`, of which each has a share.
    pub(super) fn split(&self, dimension: u32, whole: u32) -> Option<Split> {
        let (ways, whole) = (self.ways(), whole.into());
        (ways > 1).then_some(Split { dimension, whole, ways, pieces: ways })
    }

    /// How devices hold a weight whose rows are `heads` of `width` each: no piece is less than a head.
    pub(super) fn split_heads(&self, heads: u32, width: u64) -> Option<Split> {
        let (ways, heads) = (self.ways(), u64::from(heads));
        (ways > 1).then_some(Split { dimension: 0, whole: heads * width, ways, pieces: ways.min(heads) })
    }

    /// The table of token embeddings.
    pub(super) fn table(&mut self, name: &str) -> TensorId {
        let shape = vec![self.share(self.model.vocab), self.hidden()];
        let split = self.split(0, self.model.vocab);
        self.weight_of(name.to_string(), shape, Init::Normal, self.shares_table, split)
    }

    /// Tokens as rows of this device's part of the vocabulary.
    fn own_tokens(&mut self, tokens: TensorId) -> TensorId {
        if self.ways() == 1 {
            return tokens;
        }
        let name = format!("own {}", self.graph[tokens].name);
        let own = self.tensor(&name, vec![self.all_tokens], Dtype::I32, Role::Intermediate);
        self.operator(Kernel::OwnTokens { rows: self.share(self.model.vocab) }, &[tokens], &[own]);
        own
    }

    /// What the router of this layer is trained on besides the loss of its tokens.
    /// `sharers` devices route the same tokens.
    pub(super) fn router_loss(&mut self, logits: TensorId, chosen: TensorId, scores: Scores, sharers: u64) {
        let (losses, microbatches) = (self.form.router_losses, u64::from(self.microbatches));
        if losses.is_none() {
            return;
        }
        let role = Role::RouterLoss { layer: self.layer.unwrap_or(0) };
        let loss = self.tensor("router's loss", vec![1], self.statistics(), role);
        self.operator(Kernel::RouterLoss { losses, scores, microbatches, sharers }, &[logits, chosen], &[loss]);
    }

    /// The loss of `logits`, of which each device holds its part of the vocabulary.
    fn cross_entropy(&mut self, logits: TensorId, targets: TensorId, role: Role, microbatches: u64) {
        let (statistics, tokens, ways) = (self.statistics(), self.all_tokens, self.ways());
        let logits = self.without_padding(logits);
        let targets = self.own_tokens(targets);
        let mut made = |name: &str, shape: Vec<u64>, role| self.tensor(name, shape, statistics, role);
        let loss = made("loss", vec![1], role);
        let log_sum_exp = made("log_sum_exp", vec![tokens], Role::Intermediate);
        if ways == 1 {
            self.operator(Kernel::CrossEntropy { microbatches }, &[logits, targets], &[loss, log_sum_exp]);
            return;
        }
        let [own, greatest] = ["greatest logits", "greatest logits of all devices"]
            .map(|name| made(name, vec![tokens], Role::Intermediate));
        let [part, sums] =
            ["sums", "sums of all devices"].map(|name| made(name, vec![tokens, 2], Role::Intermediate));
        self.operator(Kernel::RowMax, &[logits], &[own]);
        self.operator(Kernel::AllReduceMax { ways }, &[own], &[greatest]);
        self.operator(Kernel::ExpSums, &[logits, greatest, targets], &[part]);
        self.operator(Kernel::AllReduce { ways }, &[part], &[sums]);
        let kernel = Kernel::SharedCrossEntropy { microbatches };
        self.operator(kernel, &[greatest, sums, logits, targets], &[loss, log_sum_exp]);
        if let Some(operator) = self.graph.operators.last_mut() {
            operator.inputs[2..].iter_mut().for_each(|input| input.needs = Needs::Shape);
        }
    }

    /// `logits` without what no token has.
    fn without_padding(&mut self, logits: TensorId) -> TensorId {
        let vocab = u64::from(self.model.vocab);
        if vocab.is_multiple_of(self.ways()) {
            return logits;
        }
        let (shape, dtype) = (self.graph[logits].shape.clone(), self.graph[logits].dtype);
        let output = self.tensor("logits of tokens", shape, dtype, Role::Intermediate);
        self.operator(Kernel::HidePadding { vocab }, &[logits], &[output]);
        output
    }

    /// The weight of that name, where the stage has it already.
    fn held(&self, name: &str) -> Option<TensorId> {
        self.graph.weights().find(|(_, weight)| weight.name == name).map(|(id, _)| id)
    }

    /// The table of token embeddings, of which a stage has one whatever it is for.
    pub(super) fn one_table(&mut self, name: &str) -> TensorId {
        self.held(name).unwrap_or_else(|| self.table(name))
    }

    /// `x` times a factor of the model, where it has one.
    pub(super) fn scaled(&mut self, x: TensorId, factor: Option<u64>, name: &str) -> TensorId {
        let Some(factor_e12) = factor else { return x };
        let width = self.width_of(x);
        self.apply(Kernel::Scale { factor_e12 }, &[x], name, width)
    }

    /// `x` within a soft cap, where the model has one.
    fn capped(&mut self, x: TensorId, cap: Option<u64>, name: &str) -> TensorId {
        let Some(cap_e12) = cap else { return x };
        let (shape, dtype) = (self.graph[x].shape.clone(), self.graph[x].dtype);
        let output = self.tensor(name, shape, dtype, Role::Intermediate);
        self.operator(Kernel::SoftCap { cap_e12 }, &[x], &[output]);
        output
    }

    /// The head: `x` times its matrix, which is the embedding's `table` where the model is tied, scaled and capped as
    /// the model says.
    pub(super) fn logits(&mut self, x: TensorId, table: &str) -> TensorId {
        let vocab = self.share(self.model.vocab);
        let matrix = if self.model.tied { Some(self.one_table(table)) } else { self.held("lm_head.weight") };
        let split = self.split(0, self.model.vocab);
        let logits = match matrix {
            Some(matrix) => self.times(x, matrix, vocab, "logits"),
            None => self.linear(x, "lm_head", vocab, "logits", split),
        };
        let logits = self.with_head_bias(logits, vocab, split);
        let logits = self.scaled(logits, self.model.variant.factors.logits, "logits scaled");
        self.capped(logits, self.model.variant.caps.logits, "logits capped")
    }

    /// `logits` with the bias of the output layer, where the model has one.
    fn with_head_bias(&mut self, logits: TensorId, vocab: u64, split: Option<Split>) -> TensorId {
        if !self.model.variant.head_bias {
            return logits;
        }
        let bias = self.weight_of("lm_head.bias".to_string(), vec![vocab], Init::Zeros, false, split);
        self.apply(Kernel::AddBias, &[logits, bias], "logits", vocab)
    }

    /// `x` clipped on both sides of 0, where the model does so.
    pub(super) fn clipped(&mut self, x: TensorId, limit: Option<u64>, name: &str) -> TensorId {
        let Some(limit_e12) = limit else { return x };
        let width = self.width_of(x);
        self.apply(Kernel::Clip { limit_e12 }, &[x], name, width)
    }

    /// The rows of `table` for `tokens`, of which each device keeps its own where tokens are shared out.
    pub(super) fn embedded(&mut self, tokens: TensorId, table: TensorId, name: &str) -> TensorId {
        // Every device looks all tokens up in its share of the table, and has 0 for those of the others.
        self.tokens = self.all_tokens;
        let tokens = self.own_tokens(tokens);
        let hidden = self.hidden();
        let x = self.apply(Kernel::Embedding, &[tokens, table], name, hidden);
        self.leave_split(x, "embedding of all devices")
    }

    pub(super) fn operator(&mut self, kernel: Kernel, inputs: &[TensorId], outputs: &[TensorId]) {
        self.graph.operators.push(operator(kernel, Job::F, self.layer, inputs, outputs));
    }

    /// From here on, tensors hold only this device's tokens, where tokens are shared out.
    pub(super) fn split_tokens(&mut self) {
        if self.form.sequence_parallel {
            self.tokens = self.all_tokens.div_ceil(self.ways());
        }
    }

    /// The rows of `x` of all devices, where tokens are shared out.
    pub(super) fn gathered(&mut self, x: TensorId, name: &str) -> TensorId {
        let ways = self.ways();
        if ways == 1 || !self.form.sequence_parallel {
            return x;
        }
        let (width, dtype) = (self.width_of(x), self.graph[x].dtype);
        let output = self.tensor(name, vec![self.all_tokens, width], dtype, Role::Intermediate);
        self.operator(Kernel::AllGather { ways }, &[x], &[output]);
        output
    }

    /// What all devices need of `x` to each work on a share of the matrices: all of its tokens, and the sum of
    /// their gradients.
    pub(super) fn enter_split(&mut self, x: TensorId, name: &str) -> TensorId {
        let ways = self.ways();
        if ways == 1 {
            return x;
        }
        let width = self.width_of(x);
        self.is_split = true;
        if self.form.sequence_parallel {
            self.tokens = self.all_tokens;
            self.apply(Kernel::AllGather { ways }, &[x], name, width)
        } else {
            self.apply(Kernel::Replicate { ways }, &[x], name, width)
        }
    }

    /// The tokens of `ways` neighbours, which share experts' matrices; sequence parallelism alone has such.
    pub(super) fn enter_experts(&mut self, x: TensorId, ways: u64) -> TensorId {
        let width = self.width_of(x);
        self.is_split = true;
        self.tokens = self.tokens.saturating_mul(ways);
        self.apply(Kernel::AllGather { ways }, &[x], "experts' input of devices that share them", width)
    }

    /// The sum over `ways` neighbours, of which each keeps its tokens.
    pub(super) fn leave_experts(&mut self, x: TensorId, ways: u64) -> TensorId {
        let hidden = self.hidden();
        self.is_split = false;
        self.split_tokens();
        self.apply(Kernel::ReduceScatter { ways }, &[x], "experts of devices that share them", hidden)
    }

    /// The sum of the devices' shares of `x`, of which each keeps its tokens.
    pub(super) fn leave_split(&mut self, x: TensorId, name: &str) -> TensorId {
        let ways = self.ways();
        if ways == 1 {
            return x;
        }
        let hidden = self.width_of(x);
        self.is_split = false;
        if self.form.sequence_parallel {
            self.split_tokens();
            self.apply(Kernel::ReduceScatter { ways }, &[x], name, hidden)
        } else {
            self.apply(Kernel::AllReduce { ways }, &[x], name, hidden)
        }
    }

    /// `x` with dropout, where there is any.
    pub(super) fn dropout(&mut self, x: TensorId, name: &str) -> TensorId {
        if !self.form.dropout {
            return x;
        }
        // At most three in a layer, and one after the embedding.
        let site = self.layer.map_or(0, |layer| 4 * (u64::from(layer) + 1)) + self.dropouts;
        self.dropouts += 1;
        let shape = self.graph[x].shape.clone();
        // Of a softmax each device has some heads of every sequence; between the matrices, some rows of all.
        let (ways, blocks) = match (self.is_split, self.form.sequence_parallel) {
            (true, _) => (self.ways(), self.all_tokens / self.sequence.max(1)),
            (false, true) => (self.ways(), 1),
            (false, false) => (1, 1),
        };
        let kept = self.tensor("kept by dropout", shape.clone(), Dtype::U8, Role::Intermediate);
        let output = self.tensor(name, shape, self.dtype, Role::Intermediate);
        self.operator(Kernel::Dropout { site, ways, blocks, sequence: self.sequence }, &[x], &[output, kept]);
        output
    }

    /// Causal attention of this device's heads.
    pub(super) fn attention(&mut self, q: TensorId, k: TensorId, v: TensorId) -> TensorId {
        let heads = self.heads();
        let width = heads.query * heads.width;
        let (ways, latent) = (u64::from(self.form.context.max(1)), self.model.variant.latent);
        let window = self.layer.map_or(self.sequence, |layer| self.model.looks_back(layer, self.sequence));
        if ways > 1 || latent.is_some() || window < self.sequence {
            let value_width = latent.map_or(heads.width, |latent| latent.value_width.into());
            return self.spread_attention([q, k, v], Spread { heads, value_width, ways, window });
        }
        match self.form.attention {
            AttentionForm::Flash => {
                let log_sum_exp = self.statistic("attention log-sum-exp", Some(heads.query));
                let attended = self.apply(Kernel::Attention(heads), &[q, k, v], "attended", width);
                if let Some(operator) = self.graph.operators.last_mut() {
                    operator.outputs.push(log_sum_exp);
                }
                attended
            }
            AttentionForm::Materialised => {
                let shape = vec![self.tokens.saturating_mul(heads.query), self.sequence];
                let scores = self.tensor("scores", shape.clone(), self.dtype, Role::Intermediate);
                self.operator(Kernel::Scores(heads), &[q, k], &[scores]);
                let scores = self.capped(scores, self.model.variant.caps.attention, "scores capped");
                let weights = self.tensor("softmax", shape, self.dtype, Role::Intermediate);
                self.operator(Kernel::Softmax, &[scores], &[weights]);
                let weights = self.dropout(weights, "softmax with dropout");
                self.apply(Kernel::Attend(heads), &[weights, v], "attended", width)
            }
        }
    }

    /// Causal attention of this device's heads with a sink each.
    pub(super) fn attention_with_sinks(&mut self, inputs: [TensorId; 3], sinks: TensorId) -> TensorId {
        let spread = self.alone();
        let [q, k, v] = inputs;
        self.attention_of(Kernel::SinkAttention(spread), &[q, k, v, sinks], spread)
    }

    /// Causal attention of this device's heads over tokens that were `chosen`.
    pub(super) fn attention_to(&mut self, inputs: [TensorId; 3], chosen: TensorId, most: u64) -> TensorId {
        let spread = self.alone();
        let value_width = self.model.variant.latent.map_or(spread.heads.width, |latent| latent.value_width.into());
        let spread = Spread { value_width, window: most.min(self.sequence), ..spread };
        let [q, k, v] = inputs;
        self.attention_of(Kernel::SparseAttention(spread), &[q, k, v, chosen], spread)
    }

    /// Attention of one device to whole sequences, within the layer's window.
    fn alone(&self) -> Spread {
        let heads = self.heads();
        let window = self.layer.map_or(self.sequence, |layer| self.model.looks_back(layer, self.sequence));
        Spread { heads, value_width: heads.width, ways: 1, window: window.min(heads.sequence) }
    }

    /// Attention by `kernel`, with its log-sum-exp.
    fn attention_of(&mut self, kernel: Kernel, inputs: &[TensorId], spread: Spread) -> TensorId {
        let log_sum_exp = self.statistic("attention log-sum-exp", Some(spread.heads.query));
        let attended = self.apply(kernel, inputs, "attended", spread.heads.query * spread.value_width);
        if let Some(operator) = self.graph.operators.last_mut() {
            operator.outputs.push(log_sum_exp);
        }
        attended
    }

    /// Flash attention with another head dim for the values, over several devices, or within a window.
    fn spread_attention(&mut self, inputs: [TensorId; 3], spread: Spread) -> TensorId {
        let heads = spread.heads;
        let log_sum_exp = self.statistic("attention log-sum-exp", Some(heads.query));
        let kernel = Kernel::SpreadAttention(spread);
        let attended = self.apply(kernel, &inputs, "attended", heads.query * spread.value_width);
        let mut others = vec![log_sum_exp];
        if spread.ways > 1 {
            let shape = vec![2, self.tokens, self.width_of(inputs[1]) + self.width_of(inputs[2])];
            others.push(self.tensor("ring of keys and values", shape, self.dtype, Role::Intermediate));
        }
        if let Some(operator) = self.graph.operators.last_mut() {
            operator.outputs.extend(others);
        }
        attended
    }

    /// The loss of `logits` as what they say of the tokens `ahead`, over all tokens, whoever holds what is between the
    /// matrices.
    pub(super) fn loss(&mut self, logits: TensorId, ahead: u32, weight_e12: u64, microbatches: u32) {
        let logits = self.widened(logits);
        let targets = self.tokens_of("targets", ahead);
        self.cross_entropy(logits, targets, Role::Loss { ahead, weight_e12 }, microbatches.into());
    }

    /// `logits` as the loss takes them.
    fn widened(&mut self, logits: TensorId) -> TensorId {
        if !self.form.f32_logits || self.dtype != Dtype::Bf16 {
            return logits;
        }
        let shape = self.graph[logits].shape.clone();
        let wide = self.tensor("logits in f32", shape, Dtype::F32, Role::Intermediate);
        self.operator(Kernel::Cast, &[logits], &[wide]);
        wide
    }

    /// A matrix of other rows than one a token.
    pub(super) fn rows(&mut self, name: &str, rows: u64, width: u64) -> TensorId {
        let id = self.activation(name, width, Role::Intermediate);
        if let Some(first) = self.graph.tensors[id.index()].shape.first_mut() {
            *first = rows;
        }
        id
    }

    /// An operator of one output of `width` columns.
    pub(super) fn apply(&mut self, kernel: Kernel, inputs: &[TensorId], name: &str, width: u64) -> TensorId {
        let output = self.activation(name, width, Role::Intermediate);
        self.operator(kernel, inputs, &[output]);
        output
    }

    /// `x · wᵀ` with the weight `{weight}.weight` of shape `[out, in]`, held as `split` says.
    pub(super) fn linear(
        &mut self,
        x: TensorId,
        weight: &str,
        out: u64,
        name: &str,
        split: Option<Split>,
    ) -> TensorId {
        let inner = self.width_of(x);
        let matrix = self.weight_of(format!("{weight}.weight"), vec![out, inner], Init::Normal, false, split);
        let y = self.times(x, matrix, out, name);
        let Some(([a, b], factor)) = self.adapter(weight, &[out, inner], split) else { return y };
        let narrow = self.times(x, a, self.graph[a].shape[0], &format!("{name}, adapter"));
        let narrow = self.scaled(narrow, factor, &format!("{name}, adapter scaled"));
        let kernel = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: true };
        self.apply(kernel, &[narrow, b, y], name, out)
    }

    /// The two matrices of LoRA beside the matrix `weight`, of the sizes `shape` on this device and held as `split` says,
    /// and the factor on their product; none where it has no adapter. Its last two sizes are out and in, and those before
    /// them are experts.
    ///
    /// Devices that hold rows of the matrix hold those rows of B, and all of A; devices that hold columns hold those of A,
    /// and all of B. So the adapters need no collective in F and B: what devices make of them is summed with what they make
    /// of the matrix. Of the one that all hold, each gathers a part of the gradient.
    pub(super) fn adapter(
        &mut self,
        weight: &str,
        shape: &[u64],
        split: Option<Split>,
    ) -> Option<([TensorId; 2], Option<u64>)> {
        let lora = self.form.lora.filter(|lora| lora.targets.cover(weight))?;
        let [experts @ .., out, inner] = shape else { return None };
        let by_rows = split.is_none_or(|split| split.dimension as usize == experts.len());
        let [of_a, of_b] = if by_rows { [None, split] } else { [split, None] };
        let rank = u64::from(lora.rank);
        let parts = [("lora_A", [rank, *inner], Init::Normal, of_a), ("lora_B", [*out, rank], Init::Zeros, of_b)];
        let pair = parts.map(|(part, sizes, init, split)| {
            let shape = experts.iter().copied().chain(sizes).collect();
            let id = self.weight_of(format!("{weight}.{part}.weight"), shape, init, false, split);
            if let Role::Weight { frozen, .. } = &mut self.graph.tensors[id.index()].role {
                *frozen = false;
            }
            id
        });
        Some((pair, lora.factor_e12()))
    }

    /// `x · wᵀ`.
    pub(super) fn times(&mut self, x: TensorId, weight: TensorId, out: u64, name: &str) -> TensorId {
        let kernel = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
        self.apply(kernel, &[x, weight], name, out)
    }
}

/// The number format of saved statistics and of weight gradients for tensors of `dtype`.
pub(super) const fn statistics_of(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

pub(super) fn operator(
    kernel: Kernel,
    job: Job,
    layer: Option<u32>,
    inputs: &[TensorId],
    outputs: &[TensorId],
) -> Operator {
    let inputs = inputs.iter().map(|tensor| Use { tensor: *tensor, needs: Needs::Data }).collect();
    Operator { kernel, job, inputs, outputs: outputs.to_vec(), in_place: None, stream: Stream::Compute, layer }
}

impl Graph {
    /// Appends a tensor.
    pub(super) fn add(&mut self, name: String, shape: Vec<u64>, dtype: Dtype, role: Role) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(Tensor { name, shape, dtype, role });
        id
    }
}
