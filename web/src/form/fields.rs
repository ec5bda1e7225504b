//! Every field of the form: where it stands in a spec, what it is called and in which unit it is typed.

use pipeplan_core::base::fields::Fault;
use serde_json::{Number, Value, json};

/// Which part of the form a field is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Beside the picture.
    Top,
    /// The model by name.
    Model,
    /// Its sizes by hand.
    ModelSizes,
    /// What its layers have beside the usual.
    Layers,
    /// Experts of its feed-forward parts.
    Experts,
    /// Latents of its attention.
    Latent,
    /// The cluster.
    Cluster,
    /// A device by hand.
    Device,
    /// Links and nodes by hand.
    Links,
    /// Ranks and chunks.
    Parallel,
    /// Devices beyond the pipeline's ranks.
    Split,
    /// What one step trains.
    Training,
    /// How operators are written.
    Operators,
    /// The memory of a rank.
    Memory,
    /// What is judged.
    Objective,
    /// How transfers go.
    Messages,
    /// Ranks, chunks and microbatches of typed costs.
    Shape,
    /// Typed costs.
    Costs,
    /// Bytes that typed ops need while they run.
    Workspace,
    /// The same for the fused backward.
    Fused,
    /// A line of costs for each stage.
    StageList,
    /// Typed limits and hops.
    Limits,
}

/// How a field's text becomes a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Text as it stands: words of one's own, or choices that are never numbers.
    Words,
    /// The name of a choice, or numbers with commas between.
    Text,
    /// A whole number.
    Whole,
    /// Any number.
    Real,
    /// `true` or `false`.
    Flag,
    /// A number of this many, shown with a suffix: 80 GiB.
    Of(f64, &'static str),
    /// A whole number, or several with commas between: one for each rank. `none` is no limit.
    List(&'static str),
    /// One line a stage: three times, three changes of bytes.
    Stages,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its path in a spec.
    pub path: &'static str,
    /// What a person reads beside it.
    pub label: &'static str,
    /// How its text is read.
    pub unit: Unit,
    /// Where it is in the form.
    pub group: Group,
    /// A sentence that explains it; may be empty.
    pub help: &'static str,
}

const GIB: f64 = (1u64 << 30) as f64;

const fn of(path: &'static str, label: &'static str, unit: Unit, group: Group, help: &'static str) -> Field {
    Field { path, label, unit, group, help }
}

/// All fields. A path stands before the paths within it.
pub const FIELDS: &[Field] = &[
    of("name", "Name", Unit::Words, Group::Top, ""),
    of("schedule", "Schedule", Unit::Text, Group::Top, ""),
    of(
        "jitter_permille",
        "Jitter",
        Unit::Of(10.0, "%"),
        Group::Top,
        "How much the times of ops differ, their standard deviation: the comparison says what that costs each schedule",
    ),
    of("model.name", "Model", Unit::Text, Group::Model, ""),
    of("model.family", "Family", Unit::Text, Group::ModelSizes, ""),
    of("model.layers", "Layers", Unit::Whole, Group::ModelSizes, ""),
    of("model.hidden", "Hidden", Unit::Whole, Group::ModelSizes, "Width of the residual stream"),
    of("model.heads", "Heads", Unit::Whole, Group::ModelSizes, "Query heads"),
    of("model.kv_heads", "KV heads", Unit::Whole, Group::ModelSizes, "Key and value heads; divides heads"),
    of("model.head_dim", "Head width", Unit::Whole, Group::ModelSizes, "hidden / heads where empty"),
    of("model.ffn", "Feed-forward", Unit::Whole, Group::ModelSizes, "Inner width"),
    of("model.vocab", "Vocabulary", Unit::Whole, Group::ModelSizes, ""),
    of("model.positions", "Positions", Unit::Whole, Group::ModelSizes, "The longest sequence"),
    of("model.rope_base", "Rotary base", Unit::Whole, Group::ModelSizes, ""),
    of("model.norm_eps", "Norm eps", Unit::Real, Group::ModelSizes, ""),
    of("model.tied", "Tied head", Unit::Flag, Group::ModelSizes, "Whether the head is the embedding's table"),
    of("model.qkv_bias", "Biases of q, k, v", Unit::Flag, Group::Layers, "As in Qwen 2"),
    of("model.qk_norm", "Norms of heads", Unit::Flag, Group::Layers, "Of each head's queries and keys, as in Qwen 3"),
    of(
        "model.post_norms",
        "Norms behind",
        Unit::Flag,
        Group::Layers,
        "Of what is added to the stream, as in Gemma 2",
    ),
    of(
        "model.rotary",
        "Turned columns",
        Unit::Whole,
        Group::Layers,
        "Of each head, by rotary positions; none: as the family",
    ),
    of(
        "model.arrangement",
        "Parts of a layer",
        Unit::Text,
        Group::Layers,
        "In a GPT: attention and feed-forward part",
    ),
    of("model.no_bias", "Bare matrices", Unit::Flag, Group::Layers, "In a GPT: without biases"),
    of("model.activation", "Gate", Unit::Text, Group::Layers, "The function of the feed-forward part's gate"),
    of("model.window", "Window", Unit::Text, Group::Layers, "none: every layer sees all tokens"),
    of(
        "model.window.tokens",
        "Window, tokens",
        Unit::Whole,
        Group::Layers,
        "Tokens that a token sees, itself included",
    ),
    of(
        "model.window.full_every",
        "Full every",
        Unit::Whole,
        Group::Layers,
        "Every how many layers one sees all tokens; 0: none does",
    ),
    of(
        "model.multi_token",
        "Further tokens",
        Unit::Whole,
        Group::Layers,
        "Modules of multi-token prediction, on the last stage",
    ),
    of(
        "model.norm_offset",
        "Norms from 1",
        Unit::Flag,
        Group::Layers,
        "Whether norms multiply with one more than their weight, as in Gemma",
    ),
    of("model.factors", "Factors", Unit::Text, Group::Layers, "none: nothing is multiplied with a number of its own"),
    of("model.factors.embedding", "Of the embedding", Unit::Real, Group::Layers, "none: 1"),
    of(
        "model.factors.residual",
        "Of what is added",
        Unit::Real,
        Group::Layers,
        "To the stream by attention and feed-forward; none: 1",
    ),
    of("model.factors.attention", "Of scores", Unit::Real, Group::Layers, "none: 1/√head width"),
    of("model.factors.logits", "Of logits", Unit::Real, Group::Layers, "none: 1"),
    of("model.caps", "Soft caps", Unit::Text, Group::Layers, "none: nothing is capped"),
    of("model.caps.attention", "Cap of scores", Unit::Real, Group::Layers, "As in Gemma 2; none: not capped"),
    of("model.caps.logits", "Cap of logits", Unit::Real, Group::Layers, "As in Gemma 2; none: not capped"),
    of("model.experts", "Experts", Unit::Text, Group::Experts, "none: one feed-forward part a layer"),
    of("model.experts.count", "Experts a layer", Unit::Whole, Group::Experts, ""),
    of("model.experts.active", "Of which see a token", Unit::Whole, Group::Experts, ""),
    of("model.experts.ffn", "Width of one", Unit::Whole, Group::Experts, "Inner width"),
    of("model.experts.shared_ffn", "Width of shared", Unit::Whole, Group::Experts, "Of all shared experts together"),
    of(
        "model.experts.dense_layers",
        "Layers without",
        Unit::Whole,
        Group::Experts,
        "The first layers, which have none",
    ),
    of(
        "model.experts.shared_gate",
        "Gate of shared",
        Unit::Flag,
        Group::Experts,
        "Whether shared experts are weighted for each token, as in Qwen 2 MoE",
    ),
    of(
        "model.experts.scores",
        "Scores",
        Unit::Text,
        Group::Experts,
        "What the router's numbers become: shares of one, or each by itself",
    ),
    of(
        "model.experts.normed",
        "Shared weight",
        Unit::Flag,
        Group::Experts,
        "Whether the scores of a token's experts are divided by their sum",
    ),
    of("model.experts.factor", "Times", Unit::Real, Group::Experts, "What they are then multiplied with"),
    of("model.experts.groups", "Groups", Unit::Whole, Group::Experts, "That experts lie in"),
    of(
        "model.experts.active_groups",
        "Chosen from",
        Unit::Whole,
        Group::Experts,
        "Groups that a token's experts are chosen from",
    ),
    of("model.latent", "Latents", Unit::Text, Group::Latent, "none: queries, keys and values come from the stream"),
    of(
        "model.latent.query_rank",
        "Of queries",
        Unit::Whole,
        Group::Latent,
        "Width of their latent; 0: from the stream itself",
    ),
    of("model.latent.key_value_rank", "Of keys, values", Unit::Whole, Group::Latent, "Width of their latent"),
    of("model.latent.rope_width", "Rotary columns", Unit::Whole, Group::Latent, "Of each head"),
    of("model.latent.value_width", "Value width", Unit::Whole, Group::Latent, "Of each head"),
    of("cluster.device", "Device", Unit::Text, Group::Cluster, ""),
    of("cluster.device.name", "Its name", Unit::Words, Group::Device, ""),
    of(
        "cluster.device.matmul_flops",
        "Matmul",
        Unit::Of(1e12, "TFLOP/s"),
        Group::Device,
        "Dense, in the training's format",
    ),
    of(
        "cluster.device.fp8_flops",
        "In fp8",
        Unit::Of(1e12, "TFLOP/s"),
        Group::Device,
        "The same with fp8 operands; 0: it takes none",
    ),
    of(
        "cluster.device.host_bytes_per_s",
        "To the host",
        Unit::Of(1e9, "GB/s"),
        Group::Device,
        "Copies to the host's memory and back",
    ),
    of(
        "cluster.device.matmul_permille",
        "Of it reached",
        Unit::Of(10.0, "%"),
        Group::Device,
        "What the best matmuls reach of that",
    ),
    of(
        "cluster.device.memory_bytes_per_s",
        "Bandwidth",
        Unit::Of(1e9, "GB/s"),
        Group::Device,
        "Between memory and compute",
    ),
    of("cluster.device.memory_bytes", "Memory", Unit::Of(GIB, "GiB"), Group::Device, ""),
    of(
        "cluster.device.launch_ns",
        "Launch",
        Unit::Of(1e3, "µs"),
        Group::Device,
        "Time that starting an operator takes",
    ),
    of("cluster.devices_per_node", "Devices a node", Unit::Whole, Group::Links, ""),
    of("cluster.link.bytes_per_s", "Link in a node", Unit::Of(1e9, "GB/s"), Group::Links, "In one direction"),
    of("cluster.link.latency_ns", "Latency inside", Unit::Of(1e3, "µs"), Group::Links, "Until a message arrives"),
    of("cluster.node_link.bytes_per_s", "Between nodes", Unit::Of(1e9, "GB/s"), Group::Links, "In one direction"),
    of(
        "cluster.node_link.latency_ns",
        "Latency between",
        Unit::Of(1e3, "µs"),
        Group::Links,
        "Until a message arrives",
    ),
    of(
        "parallel.pipeline",
        "Ranks",
        Unit::Whole,
        Group::Parallel,
        "Pipeline ranks, P: each holds a part of the model's layers",
    ),
    of(
        "parallel.chunks",
        "Chunks a rank",
        Unit::Whole,
        Group::Parallel,
        "Stages of each rank, V, for schedules that may choose",
    ),
    of(
        "parallel.partition",
        "Layers",
        Unit::Text,
        Group::Parallel,
        "How layers are dealt to stages: a name, or the number of layers of each stage with commas between",
    ),
    of("parallel.tensor", "Tensor", Unit::Whole, Group::Split, "Devices that share a stage"),
    of("parallel.async_reduce", "Sum of dX", Unit::Flag, Group::Split, "Whether it runs beside the dW matmul"),
    of(
        "parallel.sequence_parallel",
        "Sequence",
        Unit::Flag,
        Group::Split,
        "Whether they split norms over tokens too",
    ),
    of("parallel.data", "Copies", Unit::Whole, Group::Split, "Copies of the whole pipeline (data parallel)"),
    of("parallel.zero", "Copies share", Unit::Whole, Group::Split, "What copies share out (ZeRO, arXiv:1910.02054)"),
    of(
        "parallel.shard",
        "Among",
        Unit::Words,
        Group::Split,
        "How many copies share it out, of which there are several groups then; empty: all (hybrid sharding)",
    ),
    of(
        "parallel.reduce_gradients",
        "Reduce gradients",
        Unit::Text,
        Group::Split,
        "Over copies, after accumulation or after each microbatch; empty: each where copies share gradients",
    ),
    of(
        "parallel.context",
        "Parts of sequences",
        Unit::Whole,
        Group::Split,
        "Devices that hold a part of every sequence",
    ),
    of(
        "parallel.expert",
        "Experts dealt to",
        Unit::Whole,
        Group::Split,
        "Devices that a layer's experts are dealt to",
    ),
    of(
        "parallel.whole_experts",
        "Whole experts",
        Unit::Flag,
        Group::Split,
        "Whether devices that share a stage leave experts whole",
    ),
    of(
        "parallel.dispatch",
        "Tokens to experts",
        Unit::Text,
        Group::Split,
        "Between nodes: each copy by itself, or once to each node for all of a token's experts there, as DeepEP does",
    ),
    of(
        "parallel.overlap_exchanges",
        "Beside compute",
        Unit::Flag,
        Group::Split,
        "Whether the other op of a pair computes while tokens travel to experts, as in DualPipe",
    ),
    of(
        "training.microbatches",
        "Microbatches",
        Unit::Whole,
        Group::Training,
        "Parts of a step's batch, M, that go through the pipeline by themselves",
    ),
    of(
        "training.global_batch_size",
        "Global batch",
        Unit::Whole,
        Group::Training,
        "Sequences of a step over all copies: microbatches follow from it, also where copies change",
    ),
    of("training.microbatch_size", "Sequences each", Unit::Whole, Group::Training, "Sequences of one microbatch"),
    of("training.sequence", "Tokens each", Unit::Whole, Group::Training, "Tokens of one sequence"),
    of(
        "training.tokens",
        "Tokens in all",
        Unit::Of(1e12, "T"),
        Group::Training,
        "Of the whole training, in trillions: how many days and device-hours it takes stands beside the step",
    ),
    of("training.dtype", "Format", Unit::Text, Group::Training, "Of weights and activations"),
    of(
        "training.matmul_dtype",
        "Products in",
        Unit::Text,
        Group::Training,
        "What the matrices of layers are multiplied in",
    ),
    of(
        "training.recompute",
        "Recompute",
        Unit::Words,
        Group::Operators,
        "Made again in the backward: none, selective, cheap, latents, feed-forward, full; by layer, such as 3 full, 5 none; fit: the least that fits",
    ),
    of(
        "training.recompute_first",
        "Only the first",
        Unit::Whole,
        Group::Operators,
        "So many layers at the start of each stage; empty: all",
    ),
    of(
        "training.recompute_group",
        "In groups of",
        Unit::Whole,
        Group::Operators,
        "With full: keep only what so many layers in a row take in",
    ),
    of(
        "training.offload",
        "Kept on the host",
        Unit::Words,
        Group::Operators,
        "Activations that wait for the backward in the host's memory: none, of so many layers at the start of each stage, all; fit: of as many as have to",
    ),
    of(
        "training.offload_optimizer",
        "Optimizer state",
        Unit::Flag,
        Group::Operators,
        "Where moments and master weights lie: the optimizer's step can read and write them in the host's memory",
    ),
    of("training.attention", "Attention", Unit::Text, Group::Operators, "Whether its scores are kept in memory"),
    of("training.dropout", "Dropout", Unit::Flag, Group::Operators, "Whether dropout masks are kept"),
    of("training.gradients_dtype", "Gradients in", Unit::Text, Group::Operators, "What bf16 weights' are summed in"),
    of("training.moments_dtype", "Moments in", Unit::Text, Group::Operators, "What the optimizer keeps of both"),
    of("training.f32_logits", "Logits in f32", Unit::Flag, Group::Operators, "Whether they are widened for the loss"),
    of(
        "training.expert_imbalance",
        "Imbalance",
        Unit::Real,
        Group::Operators,
        "Copies of tokens on the fullest device of experts, over the average",
    ),
    of("memory.limit_bytes", "Limit a rank", Unit::Of(GIB, "GiB"), Group::Memory, "The device's memory where empty"),
    of(
        "memory.overhead_bytes",
        "Set aside",
        Unit::Of(GIB, "GiB"),
        Group::Memory,
        "What the framework holds besides: contexts, communicators, fragmentation",
    ),
    of("objective", "Shorten", Unit::Text, Group::Objective, ""),
    of(
        "messages.lowering",
        "Placed",
        Unit::Words,
        Group::Messages,
        "overlapped with compute, overlapped:2 with two received ahead; grouped between ops, where ranks wait for each \
         other; or as published systems do, receive-first or in-pieces, which can hang",
    ),
    of(
        "messages.transport",
        "Carried by",
        Unit::Words,
        Group::Messages,
        "What the transport promises: grouped, rendezvous, buffered:4, pair-ordered or streams. A plan that could hang on it \
         is refused",
    ),
    of("problem.ranks", "Ranks", Unit::Whole, Group::Shape, "Pipeline ranks, P"),
    of("problem.chunks", "Chunks a rank", Unit::Whole, Group::Shape, "Stages of each rank, V"),
    of(
        "problem.microbatches",
        "Microbatches",
        Unit::Whole,
        Group::Shape,
        "Parts of a step's batch, M, that go through the pipeline by themselves",
    ),
    of(
        "problem.placement",
        "Placement",
        Unit::Text,
        Group::Shape,
        "Which rank holds which stage: a name, or the rank of each stage with commas between",
    ),
    of("problem.backward", "Backward", Unit::Text, Group::Shape, "Whether B and W may run apart"),
    of(
        super::STAGE_LIST,
        "Costs of each stage",
        Unit::Stages,
        Group::StageList,
        "One line a stage: ns of F, B, W, then bytes of F, B, W, then workspace bytes of F, B, W, BW (or none), then ns of BW. Empty: the costs above.",
    ),
    of("problem.stages.forward_ns", "F", Unit::Whole, Group::Costs, "Forward"),
    of("problem.stages.backward_input_ns", "B", Unit::Whole, Group::Costs, "Backward for inputs"),
    of("problem.stages.backward_weight_ns", "W", Unit::Whole, Group::Costs, "Backward for weights"),
    of(
        "problem.stages.backward_ns",
        "BW, ns",
        Unit::Whole,
        Group::Fused,
        "The fused BW, where it is shorter than B and then W; empty: their sum",
    ),
    of(
        "problem.stages.forward_exchange_ns",
        "F exchanges, ns",
        Unit::Whole,
        Group::Fused,
        "The part of F in which the other op of a pair may compute",
    ),
    of(
        "problem.stages.backward_exchange_ns",
        "B exchanges, ns",
        Unit::Whole,
        Group::Fused,
        "The part of B, and of BW, in which the other op of a pair may compute",
    ),
    of("problem.stages.forward_bytes", "F", Unit::Whole, Group::Costs, "Bytes that F leaves held"),
    of("problem.stages.backward_input_bytes", "B", Unit::Whole, Group::Costs, "Change by B, mostly negative"),
    of("problem.stages.backward_weight_bytes", "W", Unit::Whole, Group::Costs, "Change by W, mostly negative"),
    of("problem.stages.forward_workspace_bytes", "F", Unit::Whole, Group::Workspace, "Only while F runs"),
    of("problem.stages.backward_input_workspace_bytes", "B", Unit::Whole, Group::Workspace, "Only while B runs"),
    of("problem.stages.backward_weight_workspace_bytes", "W", Unit::Whole, Group::Workspace, "Only while W runs"),
    of(
        "problem.stages.backward_workspace_bytes",
        "BW",
        Unit::Whole,
        Group::Fused,
        "Only while the fused BW runs; empty: the larger of B's and W's",
    ),
    of(
        "problem.overlap_permille",
        "Pairs hide, ‰",
        Unit::Whole,
        Group::Limits,
        "Of the shorter op, where a schedule runs F and B as a pair",
    ),
    of("problem.transfer_ns", "Hop", Unit::Whole, Group::Limits, "One transfer between neighbouring ranks, in ns"),
    of(
        "problem.static_bytes",
        "Static bytes",
        Unit::List("bytes"),
        Group::Limits,
        "Held throughout: one value, or one for each rank",
    ),
    of(
        "problem.limit_bytes",
        "Limit a rank",
        Unit::List("bytes"),
        Group::Limits,
        "One value, or one for each rank; empty for none",
    ),
    of("problem.objective", "Shorten", Unit::Text, Group::Objective, ""),
];

impl Field {
    /// What it is called where its legend is not seen with it; none where its label is enough.
    pub fn spoken(&self) -> Option<String> {
        match self.label {
            // A model has a number of them, too.
            "Layers" if self.group == Group::Parallel => return Some("Layers of stages".to_owned()),
            "F" | "B" | "W" | "BW" => {}
            _ => return None,
        }
        let of = match self.path.rsplit_once('_') {
            Some((key, "bytes")) if key.ends_with("_workspace") => "bytes only while it runs",
            Some((_, unit)) => unit,
            None => return None,
        };
        Some(format!("{}, {of}", self.label))
    }

    /// What is wrong with this field that `typed` stands in, in its own terms.
    pub fn told(&self, typed: &str, fault: &Fault) -> String {
        let inside = fault.field.strip_prefix(self.path).unwrap_or_default();
        if self.unit == Unit::Stages {
            return told_of_lines(inside, fault);
        }
        let inside = inside.trim_start_matches('.');
        let place = if inside.is_empty() { String::new() } else { format!("{inside}: ") };
        place + &self.unit.told(typed, &fault.found, &fault.accepted)
    }
}

/// The same of lines, which core knows as a list of tables.
fn told_of_lines(inside: &str, fault: &Fault) -> String {
    let Fault { found, accepted, .. } = fault;
    let number = |text: &str| text.split(' ').find_map(|word| word.parse::<usize>().ok());
    let place = || {
        let (index, key) = inside.strip_prefix('[')?.split_once(']')?;
        let key = key.trim_start_matches('.');
        let known = STAGE_KEYS.iter().position(|known| *known == key).map(|position| STAGE_NUMBERS[position]);
        Some(format!(
            "line {}, {}: found {found}; accepted is {accepted}",
            index.parse::<usize>().ok()? + 1,
            known.unwrap_or(key)
        ))
    };
    let lines = || {
        let (found, accepted) = (found.strip_prefix("a list of ").and_then(number)?, number(accepted)?);
        let found = crate::text::counted(found, "line");
        let wanted = crate::text::counted(accepted, "line");
        Some(format!(
            "found {found}; accepted is {wanted}, one for each stage, or none: all stages then have the costs above"
        ))
    };
    let told = if inside.is_empty() { lines() } else { place() };
    told.unwrap_or_else(|| format!("found {found}; accepted is {accepted}"))
}

/// The field of a path.
pub fn field(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

const STAGE_KEYS: [&str; 13] = [
    "forward_ns",
    "backward_input_ns",
    "backward_weight_ns",
    "forward_bytes",
    "backward_input_bytes",
    "backward_weight_bytes",
    "forward_workspace_bytes",
    "backward_input_workspace_bytes",
    "backward_weight_workspace_bytes",
    "backward_workspace_bytes",
    "backward_ns",
    "forward_exchange_ns",
    "backward_exchange_ns",
];

/// What each of them is in a line.
const STAGE_NUMBERS: [&str; 13] = [
    "ns of F",
    "ns of B",
    "ns of W",
    "bytes of F",
    "bytes of B",
    "bytes of W",
    "workspace bytes of F",
    "workspace bytes of B",
    "workspace bytes of W",
    "workspace bytes of BW",
    "ns of BW",
    "ns of F's exchanges",
    "ns of B's exchanges",
];

impl Unit {
    /// What stands behind the field.
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::Of(_, suffix) | Unit::List(suffix) => suffix,
            _ => "",
        }
    }

    /// The value of a text. What cannot be read stays text, for core to refuse by name.
    pub fn value_of(self, text: &str) -> Value {
        let number = |text: &str| -> Option<Value> {
            let text = text.trim();
            let whole = text.parse::<i64>().map(|number| json!(number));
            whole.or_else(|_| text.parse::<u64>().map(|number| json!(number))).ok()
        };
        if self == Unit::Words {
            return json!(text);
        }
        // What has no short form, such as hop times between each two ranks, is typed as JSON.
        if text.starts_with(['[', '{'])
            && let Ok(value) = serde_json::from_str(text)
        {
            return value;
        }
        let real = |text: &str| text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number);
        let read = match self {
            Unit::Text if text.contains(',') => {
                text.split(',').map(number).collect::<Option<Vec<_>>>().map(Value::Array)
            }
            Unit::Text | Unit::Words => None,
            Unit::Whole => number(text).or_else(|| real(text)),
            Unit::Real => real(text),
            Unit::Flag => text.parse::<bool>().ok().map(Value::Bool),
            Unit::Of(factor, _) => {
                let scaled = text.parse::<f64>().ok().map(|number| (number * factor).round());
                scaled.and_then(|number| {
                    let exact = (0.0..=9e15).contains(&number);
                    if exact { Some(json!(number as u64)) } else { Number::from_f64(number).map(Value::Number) }
                })
            }
            Unit::List(_) => {
                let one = |text: &str| if text.trim() == "none" { Some(Value::Null) } else { number(text) };
                match text.split(',').map(one).collect::<Option<Vec<Value>>>() {
                    Some(mut values) if values.len() == 1 => values.pop(),
                    several => several.map(Value::Array),
                }
            }
            Unit::Stages => {
                Some(Value::Array(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(stage).collect()))
            }
        };
        read.unwrap_or_else(|| json!(text))
    }

    /// What is wrong with a field that `typed` stands in, with numbers as the field has them: `found 101; accepted is a number
    /// from 0 to 100, in %`. Amounts of memory are said in whatever unit is short.
    pub fn told(self, typed: &str, found: &str, accepted: &str) -> String {
        // A spec has it in other units, and with the digits of a machine.
        let read = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let number = Some(typed.trim()).filter(|typed| read(typed).is_some());
        let Unit::Of(factor, suffix) = self else {
            let found = number.filter(|typed| read(typed) == read(found)).unwrap_or(found);
            return format!("found {found}; accepted is {accepted}");
        };
        let found = number.unwrap_or(found);
        let accepted = match accepted.strip_prefix("bytes from ") {
            Some(bytes) if factor == GIB => {
                let unit = number.map(|_| format!(" {suffix}")).unwrap_or_default();
                let bytes = respelled(bytes, |number| crate::text::bytes(number as u64));
                return format!("found {found}{unit}; accepted is {bytes}");
            }
            // A rate is read as an amount of a second, but is no text with a unit.
            Some(rate) => format!("a number from {}", rate.split(", or text").next().unwrap_or(rate)),
            None => accepted.replace("a whole number", "a number"),
        };
        let accepted = respelled(&accepted, |number| (number / factor).to_string());
        format!("found {found}; accepted is {accepted}, in {suffix}")
    }

    /// The shortest text that is read back as `number`, which is `here` in this unit.
    fn short(self, number: u64, here: f64) -> String {
        let texts = (0..=3).map(|decimals| crate::text::trimmed(here, decimals));
        texts.into_iter().find(|text| self.value_of(text) == json!(number)).unwrap_or_else(|| here.to_string())
    }

    /// The text of a value; the other way round.
    pub fn text_of(self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Null) => String::new(),
            (Unit::Of(factor, _), value) => {
                value.as_u64().map_or_else(|| value.to_string(), |number| self.short(number, number as f64 / factor))
            }
            (Unit::Stages, Value::Array(stages)) => {
                let line = |stage: &Value| {
                    let mut keys = &STAGE_KEYS[..];
                    // Workspaces are seldom typed: what is missing at the end is left out.
                    while let [before @ .., last] = keys
                        && stage.get(last).is_none()
                    {
                        keys = before;
                    }
                    // Of the fused BW, nothing is another thing than 0.
                    let nothing = |key: &&str| if *key == "backward_workspace_bytes" { "none" } else { "0" };
                    let number =
                        |key: &&str| stage.get(key).map_or_else(|| nothing(key).to_owned(), Value::to_string);
                    keys.iter().map(number).collect::<Vec<_>>().join(" ")
                };
                stages.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            (_, Value::Array(values)) if values.iter().any(|value| value.is_array() || value.is_object()) => {
                value.to_string()
            }
            (_, Value::Array(values)) => {
                let one = |value: &Value| if value.is_null() { "none".to_owned() } else { value.to_string() };
                values.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        }
    }
}

/// A text with each word that is a number as `spelled` has it.
fn respelled(text: &str, spelled: impl Fn(f64) -> String) -> String {
    let word = |word: &str| {
        let end = word.trim_end_matches([';', ',']);
        match end.parse::<f64>() {
            Ok(number) if end.starts_with(|c: char| c.is_ascii_digit()) => spelled(number) + &word[end.len()..],
            _ => word.to_owned(),
        }
    };
    text.split(' ').map(word).collect::<Vec<String>>().join(" ")
}

/// A stage of up to thirteen numbers in a line. What is no number stays text; what is missing stays out.
fn stage(line: &str) -> Value {
    let words = line.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let mut keys = STAGE_KEYS.iter();
    let mut table = serde_json::Map::new();
    for word in words {
        // A fourteenth number is named as what it is: one too many.
        let key = keys.next().copied().unwrap_or("a fourteenth number");
        if word != "none" {
            table.insert(key.to_owned(), Unit::Whole.value_of(word));
        }
    }
    Value::Object(table)
}
