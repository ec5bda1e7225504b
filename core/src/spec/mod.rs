//! All that a person says about a training run: model, cluster, degrees of parallelism, training, memory
//! and which schedule. Small, so that it fits a link.
//!
//! - In: TOML, JSON or a link from a person.
//! - Out: a [`Spec`] with every default filled in, or all faults; the same back as text and link.
//! - Knows: models, hardware, layouts and names of schedules. Nothing of how a plan is made.
//!
//! # The file
//! TOML or JSON with the same fields. Of a model only these are needed:
//!
//! ```toml
//! [model]
//! name = "llama-2-7b"
//! [cluster]
//! device = "h100"
//! [parallel]
//! pipeline = 8
//! [training]
//! microbatches = 32
//! ```
//!
//! All fields, with what they are where nothing is said:
//!
//! | Field | Meaning | Default |
//! |---|---|---|
//! | `name` | a name for people | empty |
//! | `schedule` | a published schedule, or `best` | `best` |
//! | `objective` | `makespan` or `longest_span` | `makespan` |
//! | `model.name` | a model of the [`catalog`] | none: all sizes by hand |
//! | `model.family` | `llama` or `gpt` | the catalog's; `llama` by hand |
//! | `model.layers`, `.hidden`, `.heads`, `.ffn`, `.vocab` | sizes | the catalog's |
//! | `model.kv_heads` | key and value heads | the catalog's; as many as `heads` by hand |
//! | `model.head_dim` | width of a head | `hidden / heads` |
//! | `model.positions` | the longest sequence | the catalog's; `training.sequence` by hand |
//! | `model.config` | the content of a `config.json` as Hugging Face's libraries write it ([read so](crate::model::hf_config)), instead of a name or sizes; for the command line its path | none |
//! | `model.qkv_bias`, `.qk_norm`, `.post_norms` | biases of q, k and v; norms of their heads; norms of what is added to the stream | the catalog's; false by hand |
//! | `model.activation` | the gate's: `silu` or `gelu` | the catalog's; `silu` by hand |
//! | `model.experts` | a table of `count`, `active`, `ffn`, `shared_ffn` (0), `dense_layers` (0), `shared_gate` (false), and how they are chosen and weighted: `scores` (`softmax`, or `sigmoid`), `normed` (whether those of a token share a weight of one; false), `factor` (1), `groups` and `active_groups` that they are chosen from (1); or `none` | the catalog's; `none` by hand |
//! | `model.latent` | latent attention: a table of `query_rank` (0), `key_value_rank`, `rope_width` and `value_width`, or `none` | the catalog's; `none` by hand |
//! | `model.window` | attention within a window: a table of `tokens` and `full_every` (every how many layers one sees all; 0: none does), or `none` | the catalog's; `none` by hand |
//! | `model.multi_token` | modules that each predict one token further, on the last stage; the mean of their losses counts for 0.1 in training | the catalog's; 0 by hand |
//! | `model.rotary` | columns of each head that rotary positions turn, or `none`: all in family `llama`, learned positions in `gpt` | the catalog's; `none` by hand |
//! | `model.arrangement`, `.no_bias` | in family `gpt`: attention and feed-forward part `in-turn`, `beside` each other or `beside-one-norm`; whether matrices have no biases | the catalog's; `in-turn`, false by hand |
//! | `model.factors`, `.caps`, `.norm_offset` | what `embedding`, `residual` (what layers add to the stream), `attention` (scores; usually 1/√head_dim) and `logits` are multiplied with, and within what `attention` and `logits` are softly capped: tables of numbers, each, as the whole, or `none`; whether norms multiply with one more than their weight | the catalog's; `none`, `none`, false by hand |
//! | `model.rope_base`, `.norm_eps`, `.tied` | rotary base, eps of norms, whether the head is the embedding's table | the catalog's; 10000, 1e-5, false by hand |
//! | `cluster.device` | a device of the [catalog](crate::hardware::cluster::catalog), or a table of `name`, `matmul_flops`, `memory_bytes_per_s`, `memory_bytes`, and where they differ from the catalog's `fp8_flops`, `host_bytes_per_s` (copies to the host's memory and back), `matmul_permille` (what the best matmuls reach of either) and `launch_ns` (the least time of an operator: a framework that launches several kernels for one takes as many times as long) | needed |
//! | `cluster.devices_per_node` | devices that share a node | the device's; those of `h100` by hand |
//! | `cluster.link`, `cluster.node_link` | within and between nodes: a link of the [catalog](crate::hardware::cluster::links), or a table of `bytes_per_s` and `latency_ns` | as `devices_per_node` |
//! | `parallel.pipeline` | ranks, P | needed |
//! | `parallel.chunks` | chunks a rank for schedules that may choose, V | 2 |
//! | `parallel.partition` | layers of stages: `balanced`, `layers`, `layers-and-ends`, `within-limit` ([what each means](crate::graph::layout::Partition)), a list by stage, or [Megatron's layout](crate::notation::megatron_layout), `m` on the last stage | `balanced` |
//! | `parallel.tensor`, `.sequence_parallel` | devices that share a stage; whether norms are split over them too | 1, false |
//! | `parallel.async_reduce` | whether the sum of dX over those devices runs [beside the dW matmul](crate::graph::passes::overlap_all_reduce) | false |
//! | `parallel.data`, `.zero` | copies of the pipeline; what they share out (ZeRO 0 to 3) | 1, 0 |
//! | `parallel.shard` | among how many neighbours copies do so, data × context, where groups of them hold the same shares (hybrid sharding). Planned, and not run | `all` |
//! | `parallel.reduce_gradients` | when copies reduce gradients: `after-accumulation`, once a step, or `each-microbatch`, so that what copies share out is never kept whole ([the pass between them](crate::graph::passes::reduce_gradients)) | `each-microbatch` where `zero` is 2 or 3, else `after-accumulation` |
//! | `parallel.context` | devices that hold parts of every sequence, [two pieces each](crate::graph::SequencePart): twice as many divide it | 1 |
//! | `parallel.expert`, `.whole_experts` | devices that a layer's experts are dealt to; whether tensor parallelism leaves them whole | 1, false |
//! | `parallel.dispatch` | how copies of tokens come to experts on other nodes: `each-copy` by itself, as the runner sends them, or `once-per-node`, for all experts of a token there, as DeepEP does | `each-copy` |
//! | `parallel.overlap_exchanges` | whether a forward and a backward that run as a pair ([`Schedule::pairs`](crate::problem::Schedule::pairs)) compute while the other exchanges tokens with experts, as in DualPipe. Planned, and not run | false |
//! | `training.f32_logits` | whether logits are widened to f32 for the loss, as most frameworks do; else one kernel does it as it goes | false |
//! | `training.expert_imbalance` | copies of tokens on the fullest device, over the average: as many have room there, so that 1 leaves none for uneven routing, at which a run on several devices ends | 1 |
//! | `training.microbatches` | microbatches of a step, M | needed, unless |
//! | `training.global_batch_size` | sequences of a step over all copies says it: M times `microbatch_size` times `parallel.data` | nothing |
//! | `training.microbatch_size` | sequences of a microbatch | 1 |
//! | `training.tokens` | tokens of the whole training, such as `"15T"`: how long it takes is told beside the step | nothing |
//! | `training.sequence` | tokens of a sequence | the catalog's |
//! | `training.dtype` | `bf16`, `f32` or `f64` | the device's usual one |
//! | `training.matmul_dtype` | `fp8`: the matrices of layers are [multiplied in fp8](crate::graph::passes::quantize), beside weights in bf16. Planned, and not run | as `training.dtype` |
//! | `training.gradients_dtype`, `.moments_dtype` | `bf16`: what gradients of bf16 weights are summed in, and reduced over copies; what the optimizer keeps of both moments. Planned, and not run | f32, or f64 with f64 |
//! | `training.attention` | `flash` or `materialised` | `flash` |
//! | `training.dropout` | whether there is dropout | false |
//! | `training.recompute` | what is computed again instead of kept: `none`, `selective`, `cheap`, `latents`, `feed-forward` or `full` ([each](crate::graph::form::Recompute)); for each layer `3 full, 5 none`; or `fit`: [the least that fits](crate::estimate::fit) | `none` |
//! | `training.recompute_first` | only in so many layers at the start of each stage | all layers |
//! | `training.recompute_group` | with `full`: keep only what every so many layers take in | 1 |
//! | `training.offload` | where what layers keep waits for the backward [in the host's memory](crate::graph::passes::offload_activations): `none`, so many layers at the start of each stage, `all`, or `fit`: [the fewest with which the step is the fastest that fits](crate::estimate::fit). Together with `recompute`: what is computed again is not kept | `none` |
//! | `training.offload_optimizer` | whether [what the optimizer keeps](crate::graph::layout::Layout::offload_optimizer), moments and master weights, lies in the host's memory, where its step reads and writes it | false |
//! | `memory.limit_bytes` | the memory of a rank | the device's |
//! | `memory.overhead_bytes` | what the framework holds besides | 0 |
//! | `jitter_permille` | standard deviation of an op's time, in thousandths of what is planned: comparisons say [what that costs](crate::simulate::jitter), and `best` is [what costs least then](crate::plan::planner::Best) | 0 |
//! | `messages.lowering` | [where transfers go](crate::program::lower::Lowering): `in-pieces`, `receive-first`, `grouped`, `overlapped` or `overlapped:2`, with so many messages of a link received ahead | `overlapped`; on a `pair-ordered` transport `grouped` |
//! | `messages.transport` | [what the transport that is to carry them promises](crate::program::Transport): `rendezvous`, `buffered`, `buffered:4`, `grouped`, `pair-ordered` or `streams`. A plan that could hang on it is refused | `grouped` |
//!
//! Bytes may be text: `80 GiB`.
//!
//! Instead of `model`, `cluster`, `parallel`, `training` and `memory`, a table `problem` holds typed costs in
//! the form of a [problem file](crate::problem); and a bare problem file is a spec, too. `messages` and `jitter_permille` may stand beside it;
//! typed costs know no sizes of messages, so buffers of messages that are received ahead belong into `static_bytes`.

#[cfg(test)]
pub(crate) mod arbitrary;
mod read;
#[cfg(test)]
mod tests;
mod text;
mod unlikely;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

pub use read::read_model_table;
pub use text::{SpecError, parse};

use crate::base::canonical;
use crate::base::fields::Fault;
use crate::base::units::Bytes;
use crate::graph::form::{Form, Offload};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers};
use crate::graph::of_e12;
use crate::hardware::cluster::{Device, Link, Nodes};
use crate::hardware::profile::Profile;
use crate::model::{Dtype, E12, Factors, ModelConfig, Variant, catalog};
use crate::problem::{Objective, Statement};
use crate::program::Transport;
use crate::program::lower::Lowering;

pub mod link;

/// The recomputation that is chosen to fit, by its name in a spec.
pub(crate) const FIT: &str = "fit";

/// What a person says.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// A name for people; may be empty.
    pub name: String,
    /// What is to be trained, or the typed costs of it.
    pub work: Work,
    /// A published schedule's name, or `best`.
    pub schedule: String,
    /// How transfers go.
    pub messages: Messages,
    /// How much the times of ops differ, see [`jitter`](crate::simulate::jitter); at most [`MAX_PERMILLE`](crate::simulate::jitter::MAX_PERMILLE).
    pub jitter_permille: u16,
}

/// How transfers go between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Messages {
    /// Where they are placed among the ops.
    pub lowering: Lowering,
    /// What the transport that is to carry them promises.
    pub transport: Transport,
}

/// What is to be planned.
#[expect(clippy::large_enum_variant, reason = "a program holds a handful of specs, each one of either")]
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A model on a cluster: costs and bytes follow from its operators.
    Model(ModelWork),
    /// Costs and bytes as typed.
    Typed(Statement),
}

/// A model on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelWork {
    /// The catalog's name of the model, or empty for sizes by hand.
    pub model_name: String,
    /// The model's sizes, from the catalog where `model_name` is given.
    pub model: ModelConfig,
    /// The device of every rank.
    pub device: Device,
    /// Devices that share one node.
    pub devices_per_node: u32,
    /// The link within a node.
    pub link: Link,
    /// The link between nodes.
    pub node_link: Link,
    /// Pipeline ranks, P.
    pub pipeline: u32,
    /// Chunks a rank for schedules that may choose, V.
    pub chunks: u32,
    /// Microbatches of one step, M.
    pub microbatches: u32,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Tokens of the whole training, where that is said.
    pub tokens: Option<u64>,
    /// Number format of weights and activations.
    pub dtype: Dtype,
    /// The memory limit of a rank; the device's memory where none is given.
    pub limit_bytes: Option<Bytes>,
    /// What a schedule is judged by.
    pub objective: Objective,
    /// How the model is dealt to devices beyond the pipeline's ranks.
    pub layout: Layout,
    /// Measured times of operators. They are no part of the spec's text: a plan holds the costs that follow from them.
    pub profile: Option<Arc<Profile>>,
}

impl Spec {
    /// A spec of typed costs, to be solved as well as possible: what a bare problem file means.
    pub fn typed(statement: Statement) -> Spec {
        let (name, schedule) = (String::new(), String::from("best"));
        Spec { name, work: Work::Typed(statement), schedule, messages: Messages::default(), jitter_permille: 0 }
    }

    /// What a schedule is judged by.
    pub fn objective(&self) -> Objective {
        match &self.work {
            Work::Model(model) => model.objective,
            Work::Typed(statement) => statement.objective,
        }
    }

    /// The spec with every default written out, as JSON.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert(String::from("name"), json!(self.name));
        map.insert(String::from("schedule"), json!(self.schedule));
        match &self.work {
            Work::Typed(statement) => {
                map.insert(String::from("problem"), statement.to_value());
            }
            Work::Model(work) => {
                for (key, value) in work.to_sections() {
                    map.insert(String::from(key), value);
                }
            }
        }
        if self.messages != Messages::default() {
            let Messages { lowering, transport } = self.messages;
            let messages = json!({ "lowering": lowering.to_string(), "transport": transport.to_string() });
            map.insert(String::from("messages"), messages);
        }
        if self.jitter_permille > 0 {
            map.insert(String::from("jitter_permille"), json!(self.jitter_permille));
        }
        Value::Object(map)
    }

    /// The canonical text of the spec: equal specs have equal texts, and [`Spec::read`] reads them back.
    pub fn to_json(&self) -> String {
        canonical::pretty(&self.to_value())
    }
}

impl ModelWork {
    /// Number formats that do not suit each other, or the devices.
    pub(crate) fn find_format_faults(&self, faults: &mut Vec<Fault>) {
        let form = &self.layout.form;
        for (field, is_so, dtype) in [
            ("training.matmul_dtype", form.fp8, Dtype::Fp8),
            ("training.gradients_dtype", form.bf16_gradients, Dtype::Bf16),
            ("training.moments_dtype", self.layout.bf16_moments, Dtype::Bf16),
        ] {
            if is_so && self.dtype != Dtype::Bf16 {
                let accepted = format!("nothing, because training.dtype is {}", self.dtype.name());
                faults.push(Fault::new(field, dtype.name(), accepted));
            }
        }
        if form.fp8 && self.device.fp8_flops == 0 {
            let accepted = "a rate above 0, because training.matmul_dtype is fp8; in the catalog h100, h200, b200 and newer devices have one";
            faults.push(Fault::new("cluster.device.fp8_flops", 0, accepted));
        }
        if form.fp8 && self.layout.zero >= 3 {
            let accepted =
                "0 to 2, because training.matmul_dtype is fp8: quantization of gathered weights is not supported";
            faults.push(Fault::new("parallel.zero", self.layout.zero, accepted));
        }
    }

    /// What it says of number formats that no backend computes in, as it stands in a spec.
    pub const fn format_not_run(&self) -> Option<&'static str> {
        match self.layout.form {
            Form { fp8: true, .. } => Some("training.matmul_dtype = \"fp8\""),
            Form { bf16_gradients: true, .. } => Some("training.gradients_dtype = \"bf16\""),
            _ if self.layout.bf16_moments => Some("training.moments_dtype = \"bf16\""),
            _ => None,
        }
    }

    /// All devices together.
    pub fn devices(&self) -> u64 {
        u64::from(self.pipeline).saturating_mul(self.layout.devices_per_rank())
    }

    /// Tokens of one training step, of all copies.
    pub fn step_tokens(&self) -> u64 {
        let sequences = u64::from(self.microbatches) * u64::from(self.microbatch_size);
        sequences.saturating_mul(self.sequence.into()).saturating_mul(self.layout.data.max(1).into())
    }

    /// How its devices are joined.
    pub(crate) const fn nodes(&self) -> Nodes {
        Nodes { devices: self.devices_per_node, link: self.link, node_link: self.node_link }
    }

    fn to_sections(&self) -> [(&'static str, Value); 6] {
        [
            ("model", self.model_section()),
            ("cluster", self.cluster_section()),
            ("parallel", self.parallel_section()),
            ("training", self.training_section()),
            ("memory", self.memory_section()),
            ("objective", json!(self.objective.name())),
        ]
    }

    fn model_section(&self) -> Value {
        let mut model = write_sizes(&self.model);
        if !self.model_name.is_empty() {
            model["name"] = json!(self.model_name);
        }
        let usual = catalog::find(&self.model_name).map_or(Variant::USUAL, |entry| entry.config.variant);
        // Most models are their family's usual ones, and most layouts deal neither sequences nor experts out.
        if self.model.variant != Variant::USUAL || usual != Variant::USUAL {
            write_variant(&self.model.variant, &mut model);
        }
        model
    }

    fn cluster_section(&self) -> Value {
        let link = |link: &Link| json!({ "bytes_per_s": link.bytes_per_s, "latency_ns": link.latency_ns });
        json!({
            "device": {
                "name": self.device.name,
                "matmul_flops": self.device.matmul_flops,
                "fp8_flops": self.device.fp8_flops,
                "matmul_permille": self.device.matmul_permille,
                "memory_bytes_per_s": self.device.memory_bytes_per_s,
                "memory_bytes": self.device.memory_bytes,
                "host_bytes_per_s": self.device.host_bytes_per_s,
                "launch_ns": self.device.launch_ns,
            },
            "devices_per_node": self.devices_per_node,
            "link": link(&self.link),
            "node_link": link(&self.node_link),
        })
    }

    fn parallel_section(&self) -> Value {
        let form = &self.layout.form;
        let mut parallel = json!({
            "pipeline": self.pipeline,
            "chunks": self.chunks,
            "partition": match &self.layout.partition {
                Partition::ByHand(counts) => json!(counts),
                partition => json!(partition.name()),
            },
            "tensor": form.tensor,
            "sequence_parallel": form.sequence_parallel,
            "data": self.layout.data,
            "zero": self.layout.zero,
        });
        if form.async_reduce {
            parallel["async_reduce"] = json!(true);
        }
        if let Some(shard) = self.layout.shard {
            parallel["shard"] = json!(shard);
        }
        if let Some(reduce) = self.layout.reduce_gradients {
            parallel["reduce_gradients"] = json!(reduce.name());
        }
        if form.context > 1 {
            parallel["context"] = json!(form.context);
        }
        if self.model.variant.experts.is_some() {
            parallel["expert"] = json!(form.expert);
            parallel["whole_experts"] = json!(form.whole_experts);
            if self.layout.dispatch != Dispatch::EachCopy {
                parallel["dispatch"] = json!(self.layout.dispatch.name());
            }
            if self.layout.overlap_exchanges {
                parallel["overlap_exchanges"] = json!(true);
            }
        }
        parallel
    }

    fn training_section(&self) -> Value {
        let form = &self.layout.form;
        let mut training = json!({
            "microbatches": self.microbatches,
            "microbatch_size": self.microbatch_size,
            "sequence": self.sequence,
            "dtype": self.dtype.name(),
            "attention": form.attention.name(),
            "dropout": form.dropout,
            "recompute": match &self.layout.recompute_layers {
                RecomputeLayers::Each(choices) => json!(RecomputeLayers::text_of(choices)),
                RecomputeLayers::Fit => json!(FIT),
                _ => json!(form.recompute.name()),
            },
        });
        if let Some(tokens) = self.tokens {
            training["tokens"] = json!(tokens);
        }
        match self.layout.recompute_layers {
            RecomputeLayers::First(count) => training["recompute_first"] = json!(count),
            RecomputeLayers::Groups(size) => training["recompute_group"] = json!(size),
            _ => {}
        }
        if form.f32_logits {
            training["f32_logits"] = json!(true);
        }
        match form.offload {
            _ if self.layout.offload_fits => training["offload"] = json!(FIT),
            Offload::None => {}
            Offload::First(layers) => training["offload"] = json!(layers),
            Offload::All => training["offload"] = json!(form.offload.text()),
        }
        if self.layout.offload_optimizer {
            training["offload_optimizer"] = json!(true);
        }
        let formats = [
            ("matmul_dtype", form.fp8, Dtype::Fp8),
            ("gradients_dtype", form.bf16_gradients, Dtype::Bf16),
            ("moments_dtype", self.layout.bf16_moments, Dtype::Bf16),
        ];
        for (key, _, dtype) in formats.into_iter().filter(|(_, is_so, _)| *is_so) {
            training[key] = json!(dtype.name());
        }
        if form.imbalance_permille != 1000 {
            training["expert_imbalance"] = json!(f64::from(form.imbalance_permille) / 1000.0);
        }
        training
    }

    fn memory_section(&self) -> Value {
        let mut memory = Map::new();
        if let Some(limit) = self.limit_bytes {
            memory.insert(String::from("limit_bytes"), json!(limit));
        }
        if self.layout.overhead_bytes > 0 {
            memory.insert(String::from("overhead_bytes"), json!(self.layout.overhead_bytes));
        }
        Value::Object(memory)
    }
}

/// `model` as the table of a spec that says all of it.
pub fn model_table(model: &ModelConfig) -> Value {
    let mut table = write_sizes(model);
    write_variant(&model.variant, &mut table);
    table
}

fn write_sizes(model: &ModelConfig) -> Value {
    json!({
        "family": model.family.name(),
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocab": model.vocab,
        "positions": model.positions,
        "rope_base": model.rope_base,
        // Rounded to the nearest double, from which reading rounds to the same whole number.
        "norm_eps": model.norm_eps_e12 as f64 / 1e12,
        "tied": model.tied,
    })
}

fn write_variant(variant: &Variant, model: &mut Value) {
    model["qkv_bias"] = json!(variant.qkv_bias);
    model["qk_norm"] = json!(variant.qk_norm);
    model["post_norms"] = json!(variant.post_norms);
    model["activation"] = json!(variant.activation.name());
    model["experts"] = variant.experts.map_or(json!("none"), |experts| {
        json!({
            "count": experts.count,
            "active": experts.active,
            "ffn": experts.ffn,
            "shared_ffn": experts.shared_ffn,
            "dense_layers": experts.dense_layers,
            "shared_gate": experts.shared_gate,
            "scores": experts.routing.scores.name(),
            "normed": experts.routing.normed,
            "factor": of_e12(experts.routing.factor.unwrap_or(E12)),
            "groups": experts.routing.groups,
            "active_groups": experts.routing.active_groups,
        })
    });
    model["latent"] = variant.latent.map_or(json!("none"), |latent| {
        json!({
            "query_rank": latent.query_rank,
            "key_value_rank": latent.key_value_rank,
            "rope_width": latent.rope_width,
            "value_width": latent.value_width,
        })
    });
    model["window"] = variant
        .window
        .map_or(json!("none"), |window| json!({ "tokens": window.tokens, "full_every": window.full_every }));
    model["multi_token"] = json!(variant.multi_token);
    model["rotary"] = variant.rotary.map_or(json!("none"), |columns| json!(columns));
    model["arrangement"] = json!(variant.arrangement.name());
    model["no_bias"] = json!(variant.no_bias);
    model["norm_offset"] = json!(variant.norm_offset);
    let Factors { embedding, residual, attention, logits } = variant.factors;
    let factors = [("embedding", embedding), ("residual", residual), ("attention", attention), ("logits", logits)];
    model["factors"] = numbers(&factors);
    model["caps"] = numbers(&[("attention", variant.caps.attention), ("logits", variant.caps.logits)]);
}

/// Numbers in units of 10⁻¹² as plain ones, each `none` where it is not there; `none` without any.
fn numbers(numbers: &[(&str, Option<u64>)]) -> Value {
    if numbers.iter().all(|(_, number)| number.is_none()) {
        return json!("none");
    }
    let plain = |number: &Option<u64>| number.map_or(json!("none"), |number| json!(of_e12(number)));
    Value::Object(numbers.iter().map(|(name, number)| (String::from(*name), plain(number))).collect())
}
