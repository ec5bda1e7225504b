//! What is checked before ranks start: the spec, the program, the options, memory and devices.

use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::check;
use pipeplan_core::check::Violation;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::{Kernel, Recurring};
use pipeplan_core::model::{Activation, Dtype, RecurrenceKind, Routing, Scores, StageLayout};
use pipeplan_core::program::{Step, Transport};
use pipeplan_core::spec::{ModelWork, Spec, Work};

use super::memory::available_bytes;
use super::ranks::MAX_WORLD;
use super::refusal::Refusal;
use super::{Computation, ModelStages, Workload, in_precision};
use crate::backend::Sharding;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::data::Format;
use crate::runner::checkpoint::CheckpointError;
use crate::runner::data::{BYTE_VOCABULARY, Batches, Cut, Sources, Within};
use crate::runner::{Device, Precision, RunOptions};

/// What carries messages between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageCarrier {
    /// Mailboxes with [`RunOptions::transport`]'s slots.
    Threads,
    /// Links that take every send at once.
    Processes,
}

impl Workload {
    /// Whether no plan of `spec` could be run on `device`, whatever its schedule: what is known before a long search.
    ///
    /// # Errors
    /// [`Refusal`], as a run of the plan would end with.
    pub fn check_spec(spec: &Spec, precision: Option<Precision>, device: Device) -> Result<(), Refusal> {
        let Work::Model(work) = &spec.work else { return Err(Refusal::NoModel) };
        check_layout(work)?;
        let work = in_precision(work, precision);
        let whole =
            StageLayout { layers: 0..work.model.layers, embedding: true, head: true, ..StageLayout::default() };
        ModelStages::new(&work, [&whole]).check(device)
    }

    /// Whether any rank copies activations to the host between its ops.
    pub(super) fn copies_activations(&self) -> bool {
        self.program.rows.iter().flatten().any(|step| matches!(step, Step::StartCopy(_)))
    }

    /// Whether all is there that a run needs; cuts the text that a model trains on.
    pub(crate) fn check(&self, options: &RunOptions, carries: MessageCarrier) -> Result<Option<Batches>, Refusal> {
        if options.steps == 0 {
            return Err(Refusal::NoSteps);
        }
        self.check_program(options, carries)?;
        if self.world() > MAX_WORLD {
            let (ranks, replicas) = (self.problem.ranks() * self.devices_per_rank(), self.replicas());
            return Err(Refusal::TooManyRanks { replicas, ranks });
        }
        if let Some(norm) = options.clip_norm.filter(|norm| !(*norm > 0.0 && norm.is_finite())) {
            return Err(Refusal::ClipNorm { norm: norm.to_string() });
        }
        let model = match &self.computation {
            Computation::Model(model) => model,
            Computation::Stages(staged) => return staged.check(self, options).map(|()| None),
            Computation::PlannedTimes { .. } => {
                let saves = options.saving.is_some() || options.resume.is_some() || options.weights.is_some();
                return if saves { Err(Refusal::NothingToSave) } else { Ok(None) };
            }
        };
        let stages = self.problem.stage_count();
        if model.graphs.len() != stages {
            return Err(Refusal::Stages { stages, graphs: model.graphs.len() });
        }
        model.check(options.device)?;
        if options.device != Device::Cpu && self.copies_activations() {
            return Err(Refusal::CopiesOnCard);
        }
        if matches!(options.device, Device::Cuda(_)) {
            // The card's memory is not the machine's; it says itself when it is full. Which processes share a machine
            // is not known here: each looks for itself.
            check_device(options, self.world())?;
            if carries == MessageCarrier::Threads {
                self.check_host_memory(options)?;
            }
        } else {
            self.check_memory(options)?;
        }
        let (sequence, microbatch_size) = (model.sequence as usize, model.microbatch_size as usize);
        let ahead = 1 + model.model.variant.multi_token as usize;
        let sources = options.data.clone();
        let sources = sources.unwrap_or_else(|| Arc::new(Sources::of_text(options.text.clone())));
        if sources.training.iter().any(|(source, _)| source.format == Format::Bytes) {
            model.check_vocabulary()?;
        }
        let cut = Cut {
            sequence,
            ahead,
            microbatch_size,
            microbatches: self.step_microbatches(),
            seed: options.seed,
            vocabulary: model.model.vocab.into(),
            within: self.within(model)?,
            slices: model.slices as usize,
        };
        let batches = Batches::of(sources, &cut)?.among(self.replicas());
        model.check_masks(&batches, options.device)?;
        if options.evaluate_every > 0 && batches.validation_windows() == 0 {
            return Err(Refusal::NoValidation);
        }
        batches.check(options.first_step()..options.steps.max(options.first_step()))?;
        if let Some(saving) = &options.saving {
            std::fs::create_dir_all(&saving.folder).map_err(CheckpointError::file(&saving.folder, "made"))?;
        }
        if let Some(checkpoint) = &options.resume {
            self.check_resume(checkpoint, options, Some(&batches))?;
        }
        if let Some(pretrained) = &options.weights {
            self.check_weights(model, pretrained)?;
        }
        if !options.rope_scaling().is_plain() && options.device != Device::Cpu {
            return Err(Refusal::NotOnCard { part: "scaled rotary positions (rope_scaling)" });
        }
        Ok(Some(batches))
    }

    /// Where attention stays within documents, the planned work of the microbatches of all replicas.
    fn within(&self, model: &ModelStages) -> Result<Option<Within>, Refusal> {
        /// A number for each of them, several times over, in the memory of each rank.
        const MOST: usize = 1 << 22;
        let Some(planned) = &model.planned_work else { return Ok(None) };
        let microbatches = self.step_microbatches();
        if microbatches > MOST {
            return Err(Refusal::DocumentsOfMicrobatches { microbatches, most: MOST });
        }
        Ok(Some(Within { planned: planned.iter().copied().cycle().take(microbatches).collect() }))
    }

    /// Whether the engine completes the program. Every engine takes a group at once, and keeps some sends until they
    /// are taken: so it completes whatever groups alone or buffers alone do.
    fn check_program(&self, options: &RunOptions, carries: MessageCarrier) -> Result<(), Refusal> {
        let (problem, program) = (&self.problem, &self.program);
        let buffered = match carries {
            MessageCarrier::Threads => options.transport.slots,
            MessageCarrier::Processes => usize::MAX,
        };
        let grouped = check::check_program(problem, program, Transport::Grouped);
        let Err(violations) = grouped else { return Ok(()) };
        let stuck = |violation: &Violation| matches!(violation, Violation::Stuck(_));
        if violations.iter().all(stuck) && buffered > 0 {
            let transport = Transport::Buffered { slots: buffered };
            return check::check_program(problem, program, transport)
                .map_err(|violations| Refusal::Invalid { violations });
        }
        Err(Refusal::Invalid { violations })
    }

    /// Refuses what the machine's memory cannot hold, where the machine says how much it has. What devices of this
    /// machine's memory keep on the host is in the same.
    fn check_memory(&self, options: &RunOptions) -> Result<(), Refusal> {
        let on_devices = self.of_world(&self.predicted_peak_bytes);
        let copies = self.of_world(&self.restart_bytes(options));
        let needed = on_devices.saturating_add(self.of_world(&self.host_bytes())).saturating_add(copies);
        match available_bytes() {
            Some(available) if needed > available => Err(Refusal::Memory { needed, available, copies }),
            _ => Ok(()),
        }
    }

    /// The same of what cards keep on the host: memory that does not move cannot be taken beyond what there is, and a
    /// machine that tries to stands still.
    fn check_host_memory(&self, options: &RunOptions) -> Result<(), Refusal> {
        let copies = self.of_world(&self.restart_bytes(options));
        let needed = self.of_world(&self.host_bytes()).saturating_add(copies);
        match available_bytes() {
            Some(available) if needed > available => Err(Refusal::HostMemory { needed, available, copies }),
            _ => Ok(()),
        }
    }

    /// Over all ranks, of which those of a pipeline have `bytes`.
    fn of_world(&self, bytes: &[Bytes]) -> Bytes {
        let pipeline = bytes.iter().fold(0, |sum: Bytes, bytes| sum.saturating_add(*bytes));
        pipeline.saturating_mul(self.replicas() as u64).saturating_mul(self.devices_per_rank() as u64)
    }
}

impl ModelStages {
    pub(super) fn check(&self, device: Device) -> Result<(), Refusal> {
        for (stage, graph) in self.graphs.iter().enumerate() {
            for operator in
                graph.operators.iter().filter(|operator| matches!(operator.kernel, Kernel::Dispatch { .. }))
            {
                let copies = operator.inputs.get(1).map_or(0, |chosen| graph[chosen.tensor].elements());
                let rows = operator.outputs.first().and_then(|rows| graph[*rows].shape.first()).copied().unwrap_or(0);
                if rows < copies {
                    return Err(Refusal::ExpertRows { stage, rows, copies });
                }
            }
        }
        self.check_parts(device)?;
        self.check_documents(device)?;
        self.check_sharding(device)?;
        self.check_slices(device)?;
        match device {
            Device::Cpu => self.precision().map(|_| ())?,
            Device::Cuda(_) | Device::Emulated => self.check_card_formats()?,
        }
        self.check_optimizer(device)
    }

    /// Loss masks run on the CPU. Each MTP module needs a mask, and a number of predicted tokens, of its own.
    fn check_masks(&self, batches: &Batches, device: Device) -> Result<(), Refusal> {
        if !batches.is_masked() {
            return Ok(());
        }
        let why = match device {
            Device::Cuda(_) | Device::Emulated => "on the CPU only: use --backend cpu",
            Device::Cpu if self.model.variant.multi_token > 0 => "without MTP modules",
            Device::Cpu => return Ok(()),
        };
        Err(Refusal::Masks { why })
    }

    /// Cards update by AdamW alone. Muon needs each matrix whole, and its state too.
    fn check_optimizer(&self, device: Device) -> Result<(), Refusal> {
        let optimizer = self.optimizer.name();
        match self.optimizer {
            Optimizer::AdamW => Ok(()),
            Optimizer::Adafactor => Err(Refusal::Optimizer { optimizer, why: "the runner does not have" }),
            _ if device != Device::Cpu => {
                Err(Refusal::Optimizer { optimizer, why: "the runner has on the CPU only" })
            }
            Optimizer::Muon if self.tensor > 1 || self.sharding.optimizer => Err(Refusal::WholeMatrices),
            _ => Ok(()),
        }
    }

    /// Refuses parts of a model that are only planned, or only run on the CPU.
    fn check_parts(&self, device: Device) -> Result<(), Refusal> {
        let on_card = matches!(device, Device::Cuda(_) | Device::Emulated);
        let mut weights = self.graphs.iter().flat_map(|graph| graph.weights());
        if on_card && weights.any(|(_, weight)| weight.is_frozen()) {
            return Err(Refusal::NotOnCard { part: "frozen weights (training.frozen, training.lora)" });
        }
        for operator in self.graphs.iter().flat_map(|graph| &graph.operators) {
            if let Some(part) = only_planned(&operator.kernel) {
                return Err(Refusal::OnlyPlanned { part });
            }
            if let Some(part) = only_on_cpu(&operator.kernel).filter(|_| on_card) {
                return Err(Refusal::NotOnCard { part });
            }
        }
        Ok(())
    }

    /// Attention stays within documents on the CPU. A recurrence would go on beyond them, and an MTP module predicts
    /// from them.
    fn check_documents(&self, device: Device) -> Result<(), Refusal> {
        let mut operators = self.graphs.iter().flat_map(|graph| &graph.operators);
        let goes_on = |kernel: &Kernel| matches!(kernel, Kernel::Convolution { .. } | Kernel::Recurrence(_));
        let why = match device {
            _ if self.planned_work.is_none() => return Ok(()),
            Device::Cuda(_) | Device::Emulated => "on the CPU only: use --backend cpu",
            Device::Cpu if self.model.variant.multi_token > 0 => "without MTP modules",
            Device::Cpu if operators.any(|operator| goes_on(&operator.kernel)) => {
                "without convolutions and recurrences"
            }
            Device::Cpu => return Ok(()),
        };
        Err(Refusal::WithinDocuments { why })
    }

    /// The CPU runs slices. Whatever draws or sums over the tokens of a microbatch would know those of a slice alone.
    fn check_slices(&self, device: Device) -> Result<(), Refusal> {
        let has = |kind: fn(&Kernel) -> bool| {
            self.graphs.iter().flat_map(|graph| &graph.operators).any(|operator| kind(&operator.kernel))
        };
        let why = match device {
            _ if self.slices <= 1 => return Ok(()),
            Device::Cuda(_) | Device::Emulated => "on the CPU only: use --backend cpu",
            Device::Cpu if self.context > 1 => "without context parallel (parallel.context)",
            Device::Cpu if has(|kernel| matches!(kernel, Kernel::Dropout { .. })) => {
                "without dropout (training.dropout)"
            }
            Device::Cpu if has(|kernel| matches!(kernel, Kernel::RouterLoss { .. })) => {
                "without losses of routers (training.moe_aux_loss, training.moe_z_loss), which are over all tokens of a \
                 microbatch"
            }
            Device::Cpu => return Ok(()),
        };
        Err(Refusal::Sliced { why })
    }

    /// Cards shard optimizer states over all replicas, and reduce gradients once per step.
    fn check_sharding(&self, device: Device) -> Result<(), Refusal> {
        let Sharding { weights, gradients, group, each_microbatch, .. } = self.sharding;
        let part = match device {
            Device::Cpu => return Ok(()),
            _ if weights => "sharded weights (parallel.zero = 3)",
            _ if gradients && each_microbatch => "sharded gradients (parallel.zero = 2)",
            _ if each_microbatch => {
                "gradients reduced for each microbatch (parallel.reduce_gradients = \"each-microbatch\")"
            }
            _ if group > 0 => "sharding groups (parallel.shard)",
            _ => return Ok(()),
        };
        Err(Refusal::ShardingOnCard { part })
    }

    /// A card computes in f32 or bf16, sums gradients in f32, and sends a token for each of its experts.
    fn check_card_formats(&self) -> Result<(), Refusal> {
        if self.expert_node.is_some() {
            return Err(Refusal::OncePerNode);
        }
        if let Some(said) = self.format_of_cpu {
            return Err(Refusal::NumberFormat { said });
        }
        for (stage, graph) in self.graphs.iter().enumerate() {
            if graph.tensors.iter().any(|tensor| tensor.dtype == Dtype::F64) {
                return Err(Refusal::CardFormat { stage });
            }
        }
        Ok(())
    }

    fn check_vocabulary(&self) -> Result<(), Refusal> {
        let vocabulary = u64::from(self.model.vocab);
        if vocabulary < BYTE_VOCABULARY { Err(Refusal::Vocabulary { vocabulary }) } else { Ok(()) }
    }
}

/// The part of a model that no backend runs, where `kernel` is of one.
const fn only_planned(kernel: &Kernel) -> Option<&'static str> {
    match kernel {
        Kernel::IndexKeys(_) | Kernel::SparseAttention(_) => Some("an indexer (sparse attention)"),
        Kernel::FullAttention(_) | Kernel::ImageRows(_) => Some("a vision tower (model.vision)"),
        Kernel::Route { routing: Routing { scores: Scores::SparseMixer, .. }, .. } => {
            Some("a SparseMixer router (experts.scores = sparse-mixer)")
        }
        _ => None,
    }
}

/// The part of a model that runs on the CPU alone, where `kernel` is of one.
const fn only_on_cpu(kernel: &Kernel) -> Option<&'static str> {
    match kernel {
        Kernel::ClampedGlu | Kernel::WeightedGlu { activation: Activation::ClampedSilu } => Some("a clamped SwiGLU"),
        Kernel::SquaredRelu | Kernel::WeightedSquaredRelu => Some("squared ReLU"),
        Kernel::Xielu => Some("xIELU"),
        Kernel::SigmoidGate => Some("an attention gate"),
        Kernel::SharedRmsNorm { .. } => Some("QK-norm over all heads with tensor parallelism"),
        Kernel::HeadLength { .. } => Some("RMSNorm without weights"),
        Kernel::HeadLayerNorm { .. } => {
            Some("LayerNorm without biases, without weights, of heads, or with gains of one more")
        }
        Kernel::Clip { .. } => Some("clipped queries, keys and values"),
        Kernel::PositionScale { .. } => Some("attention temperature"),
        Kernel::SinkAttention(_) => Some("attention sinks"),
        Kernel::ExpertBias { .. } => Some("biases of experts"),
        Kernel::ExpertScale => Some("an MLP beside experts (model.mlp_beside_experts)"),
        Kernel::RouterLoss { .. } => Some("a loss of routers (training.moe_aux_loss, training.moe_z_loss)"),
        Kernel::Convolution { .. } => Some("convolutions"),
        Kernel::Recurrence(Recurring { kind: RecurrenceKind::DeltaNet, .. }) => Some("gated delta nets"),
        Kernel::Recurrence(Recurring { kind: RecurrenceKind::Mamba2, .. }) => Some("Mamba 2 layers"),
        Kernel::Route { routing: Routing { scores: Scores::InputSigmoid, .. }, .. } => {
            Some("a router that weights what experts take in")
        }
        _ => None,
    }
}

/// Whether the layout is one that is run.
pub(super) fn check_layout(work: &ModelWork) -> Result<(), Refusal> {
    let form = &work.layout.form;
    if !form.router_losses.is_none() && (form.context > 1 || form.expert_ways() != form.tensor.max(1)) {
        return Err(Refusal::RouterLosses);
    }
    let ways = work.layout.form.expert_tensor;
    if ways > 0 {
        return Err(Refusal::ExpertTensor { ways });
    }
    Ok(())
}

/// Whether the device can be used at all, so that a run is refused before its ranks start.
#[cfg(feature = "cuda")]
fn check_device(options: &RunOptions, ranks: usize) -> Result<(), Refusal> {
    let portion = options.split_gpu.then_some(cuda::card::Portion { part: 0, parts: ranks });
    let open = cuda::open_as(options.device, cuda::Opening { portion, ..cuda::Opening::default() });
    open.map(|_| ()).map_err(|error| Refusal::Device { reason: error.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn check_device(_: &RunOptions, _: usize) -> Result<(), Refusal> {
    let reason = "this binary was built without the feature `cuda`".to_string();
    Err(Refusal::Device { reason })
}
