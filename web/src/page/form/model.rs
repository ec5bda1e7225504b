//! The half of the form that describes a model on a cluster.

use leptos::prelude::*;

use super::documents::DocumentsField;
use super::inputs::{ListField, SliderField, TextField, Texts};
use super::options::{devices, flag, models, named, objectives, or_none};
use super::{Folded, ScheduleAndLimit};
use crate::form::{DEVICES, Form, Group, choices};
use crate::page::state::Planner;
use crate::protocol::Timed;

/// The fields of a model on a cluster: first the five that a person starts with, then those that follow or have defaults.
#[component]
pub(super) fn ModelFields() -> impl IntoView {
    view! {
        <StartPart />
        <ScheduleAndLimit limit="memory.limit_bytes" />
        <LayoutPart />
        <TrainingPart />
        <fieldset>
            <legend>"Memory"</legend>
            <TextField path="memory.overhead_bytes" />
        </fieldset>
        <ModelPart />
        <ClusterPart />
        <fieldset>
            <legend>"Objective"</legend>
            <ListField alone=true path="objective" choices=objectives() />
        </fieldset>
    }
}

/// Model, device, number of devices, batch, sequence length.
#[component]
fn StartPart() -> impl IntoView {
    view! {
        <fieldset class="start" data-test="start">
            <legend class="unseen">"Model and devices"</legend>
            <ListField path="model.name" choices=models() />
            <ListField path="cluster.device" choices=devices() />
            <TextField path=DEVICES />
            <TextField path="training.global_batch_size" />
            <TextField path="training.sequence" />
        </fieldset>
    }
}

#[component]
fn ModelPart() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Model"</legend>
            <Folded title="Sizes" groups=&[Group::ModelSizes]>
                <ListField path="model.family" choices=named(&[("", "as the model"), ("llama", "Llama"), ("gpt", "GPT")]) />
                <div class="pairs"><Texts group=Group::ModelSizes but="model.family" /></div>
            </Folded>
            <ArchitectureFold />
        </fieldset>
    }
}

#[component]
fn ClusterPart() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let own_device = Memo::new(move |_| planner.form.with(|form| form.text("cluster.device").is_empty()));
    view! {
        <fieldset>
            <legend>"Cluster"</legend>
            {move || own_device.get().then(|| view! { <div class="pairs"><Texts group=Group::Device but="" /></div> })}
            {move || planner.measured_times.get().map(|timed| view! { <TimesMeasured timed /> })}
            <Folded title="Nodes and links" groups=&[Group::Links]>
                <TextField path="cluster.devices_per_node" />
                <div class="pairs"><Texts group=Group::Links but="cluster.devices_per_node" /></div>
            </Folded>
        </fieldset>
    }
}

/// The parallel degrees: found, or typed.
#[component]
fn LayoutPart() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Parallelism"</legend>
            <Following />
            <SliderField path="parallel.pipeline" />
            <div class="pairs degrees">
                <TextField path="parallel.tensor" />
                <TextField path="parallel.data" />
                <TextField path="parallel.expert" />
                <TextField path="parallel.context" />
            </div>
            <TextField path="parallel.chunks" />
            <TextField path="parallel.partition" list="balanced layers layers-and-ends within-limit" />
            <Folded title="Sequence parallel, ZeRO, ETP, MoE dispatch" groups=&[Group::Split]>
                <div class="pairs">
                    <ListField path="parallel.sequence_parallel" choices=named(choices("parallel.sequence_parallel")) />
                    <ListField path="parallel.async_reduce" choices=named(&[("", "off"), ("true", "on")]) />
                    <ListField path="parallel.zero" choices=named(choices("parallel.zero")) />
                    <TextField path="parallel.sequence_slices" />
                    <TextField path="parallel.shard" />
                    <ListField path="parallel.reduce_gradients" choices=named(choices("parallel.reduce_gradients")) />
                    <ListField path="parallel.whole_experts" choices=named(choices("parallel.whole_experts")) />
                    <TextField path="parallel.expert_tensor" />
                    <ListField path="parallel.dispatch" choices=named(choices("parallel.dispatch")) />
                    <ListField path="parallel.overlap_exchanges" choices=named(choices("parallel.overlap_exchanges")) />
                    <ListField path="parallel.overlap_grad_reduce" choices=named(choices("parallel.overlap_grad_reduce")) />
                    <ListField path="parallel.overlap_param_gather" choices=named(choices("parallel.overlap_param_gather")) />
                </div>
            </Folded>
        </fieldset>
    }
}

/// Whether degrees follow, and how to change that.
#[component]
fn Following() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let follows = Memo::new(move |_| planner.form.with(Form::follows));
    let pins = Memo::new(move |_| planner.form.with(|form| form.pins().len()));
    let said = move || match (follows.get(), pins.get()) {
        (false, _) => "All degrees are as typed.".to_owned(),
        (true, 0) => "Found for these devices. Type a value to pin it.".to_owned(),
        (true, 1) => "1 value is pinned; the others are found.".to_owned(),
        (true, pins) => format!("{pins} values are pinned; the others are found."),
    };
    let free = move || {
        (!follows.get() || pins.get() > 0).then(|| match follows.get() {
            true => "Unpin all",
            false => "Find them",
        })
    };
    view! {
        <div class="following" data-test="following" data-follows=move || follows.get().to_string()>
            <p class="note">{said}</p>
            {move || free().map(|title| view! {
                <button type="button" class="small" data-test="let-follow" on:click=move |_| planner.let_follow()
                    title="Find the fastest layout for the devices above: 1F1B decides, with the least recomputation that fits">{title}</button>
            })}
        </div>
    }
}

#[component]
fn TrainingPart() -> impl IntoView {
    let planner = expect_context::<Planner>();
    // Where degrees follow, so do microbatches: the batch of all replicas is typed.
    let follows = Memo::new(move |_| planner.form.with(Form::follows));
    view! {
        <fieldset>
            <legend>"Training step"</legend>
            {move || (!follows.get()).then(|| view! { <SliderField path="training.microbatches" /> })}
            <div class="pairs">
                <TextField path="training.microbatch_size" />
                <TextField path="training.tokens" />
            </div>
            <div class="pairs">
                <ListField path="training.dtype" choices=named(&[("", "from device"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64")]) />
                <ListField path="training.matmul_dtype" choices=named(choices("training.matmul_dtype")) />
            </div>
            <Folded title="Documents, microbatches that differ" groups=&[Group::Documents]>
                <DocumentsField />
                <TextField path="training.microbatch_factors" />
            </Folded>
            <Folded title="Recompute, offload, optimizer, attention, dtypes" groups=&[Group::Operators]>
                <TextField path="training.recompute" list="none selective cheap latents feed-forward full fit" />
                <div class="pairs">
                    <TextField path="training.recompute_first" />
                    <TextField path="training.recompute_group" />
                </div>
                <TextField path="training.offload" list="none all fit" />
                <ListField path="training.optimizer" choices=named(choices("training.optimizer")) />
                <TextField path="training.frozen" />
                <div class="pairs">
                    <TextField path="training.lora.rank" />
                    <TextField path="training.lora.alpha" />
                </div>
                <TextField path="training.lora.targets" list="all-linear" />
                <ListField path="training.offload_optimizer" choices=named(choices("training.offload_optimizer")) />
                <ListField path="training.attention" choices=named(choices("training.attention")) />
                <ListField path="training.dropout" choices=named(&[("", "off"), ("true", "on")]) />
                <div class="pairs">
                    <ListField path="training.gradients_dtype" choices=named(choices("training.gradients_dtype")) />
                    <ListField path="training.moments_dtype" choices=named(choices("training.moments_dtype")) />
                </div>
                <ListField path="training.f32_logits" choices=named(&[("", "off"), ("true", "on")]) />
                <TextField path="training.expert_imbalance" />
                <div class="pairs">
                    <TextField path="training.moe_aux_loss" />
                    <TextField path="training.moe_z_loss" />
                </div>
                <ListField path="training.elastic" choices=named(choices("training.elastic")) />
                <TextField path="training.mtbf_hours" />
            </Folded>
        </fieldset>
    }
}

/// The structure of layers, beyond their sizes.
#[component]
fn ArchitectureFold() -> impl IntoView {
    view! {
        <Folded title="Layers, MoE and MLA" groups=&[Group::Layers, Group::Experts, Group::Latent, Group::Parts]>
            <div class="pairs">
                <ListField path="model.qkv_bias" choices=flag() />
                <ListField path="model.qk_norm" choices=flag() />
                <ListField path="model.post_norms" choices=flag() />
                <TextField path="model.rotary" />
                <ListField path="model.arrangement" choices=named(&[("", "as the model"), ("in-turn", "off"), ("beside", "on, two norms"), ("beside-one-norm", "on, one norm")]) />
                <ListField path="model.no_bias" choices=flag() />
                <ListField path="model.activation" choices=named(&[("", "as the model"), ("silu", "SiLU"), ("gelu", "GELU")]) />
                <ListField path="model.window" choices=or_none() />
                <TextField path="model.multi_token" />
                <TextField path="model.window.tokens" />
                <TextField path="model.window.full_every" />
                <ListField path="model.norm_offset" choices=flag() />
                <ListField path="model.factors" choices=or_none() />
                <TextField path="model.factors.embedding" />
                <TextField path="model.factors.residual" />
                <TextField path="model.factors.attention" />
                <TextField path="model.factors.logits" />
                <ListField path="model.caps" choices=or_none() />
                <TextField path="model.caps.attention" />
                <TextField path="model.caps.logits" />
            </div>
            <ListField path="model.experts" choices=or_none() />
            <div class="pairs">
                <TextField path="model.experts.count" />
                <TextField path="model.experts.active" />
                <TextField path="model.experts.ffn" />
                <TextField path="model.experts.shared_ffn" />
                <TextField path="model.experts.dense_layers" />
                <ListField path="model.experts.shared_gate" choices=flag() />
                <ListField path="model.experts.scores" choices=named(&[("", "as the model"), ("softmax", "softmax"), ("sigmoid", "sigmoid")]) />
                <ListField path="model.experts.normed" choices=flag() />
                <TextField path="model.experts.factor" />
                <TextField path="model.experts.groups" />
                <TextField path="model.experts.active_groups" />
            </div>
            <ListField path="model.latent" choices=or_none() />
            <div class="pairs"><Texts group=Group::Latent but="model.latent" /></div>
            <div class="pairs"><Texts group=Group::Parts but="" /></div>
        </Folded>
    }
}

/// The measured times that replace estimates of the device.
#[component]
fn TimesMeasured(timed: Timed) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let Timed { device, covers } = timed;
    let covers = if covers.is_empty() { String::new() } else { format!(": {covers}.") };
    view! {
        <div class="timed" data-test="profile">
            <p>"Times measured on "<b>{device}</b>{covers}</p>
            <button type="button" data-test="profile-close" on:click=move |_| planner.measure(None)>"Use estimates"</button>
        </div>
    }
}
