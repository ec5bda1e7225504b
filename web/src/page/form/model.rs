//! The half of the form that describes a model on a cluster.

use leptos::prelude::*;

use super::Folded;
use super::inputs::{Select, Slid, Text, Texts};
use super::options::{devices, flag, models, named, objectives, or_none};
use crate::form::{Group, choices};
use crate::page::state::Planner;
use crate::protocol::Timed;

/// The fields of a model on a cluster.
#[component]
pub(super) fn ModelFields() -> impl IntoView {
    view! {
        <ModelPart />
        <ClusterPart />
        <PipelinePart />
        <TrainingPart />
        <fieldset>
            <legend>"Memory"</legend>
            <Slid path="memory.limit_bytes" />
            <Text path="memory.overhead_bytes" />
        </fieldset>
        <fieldset>
            <legend>"Objective"</legend>
            <Select alone=true path="objective" choices=objectives() />
        </fieldset>
    }
}

#[component]
fn ModelPart() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Model"</legend>
            <Select alone=true path="model.name" choices=models() />
            <Folded title="Sizes" groups=&[Group::ModelSizes]>
                <Select path="model.family" choices=named(&[("", "as the model"), ("llama", "Llama"), ("gpt", "GPT")]) />
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
            <Select alone=true path="cluster.device" choices=devices() />
            {move || own_device.get().then(|| view! { <div class="pairs"><Texts group=Group::Device but="" /></div> })}
            {move || planner.timed.get().map(|timed| view! { <TimesMeasured timed /> })}
            <Folded title="Nodes and links" groups=&[Group::Links]>
                <Text path="cluster.devices_per_node" />
                <div class="pairs"><Texts group=Group::Links but="cluster.devices_per_node" /></div>
            </Folded>
        </fieldset>
    }
}

#[component]
fn PipelinePart() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Pipeline"</legend>
            <Slid path="parallel.pipeline" />
            <Text path="parallel.chunks" />
            <Text path="parallel.partition" list="balanced layers layers-and-ends within-limit" />
            <Folded title="TP, DP, EP, CP and ZeRO" groups=&[Group::Split]>
                <div class="pairs">
                    <Text path="parallel.tensor" />
                    <Select path="parallel.sequence_parallel" choices=named(choices("parallel.sequence_parallel")) />
                    <Select path="parallel.async_reduce" choices=named(&[("", "off"), ("true", "on")]) />
                    <Text path="parallel.data" />
                    <Select path="parallel.zero" choices=named(choices("parallel.zero")) />
                    <Text path="parallel.shard" />
                    <Select path="parallel.reduce_gradients" choices=named(choices("parallel.reduce_gradients")) />
                    <Text path="parallel.expert" />
                    <Select path="parallel.whole_experts" choices=named(choices("parallel.whole_experts")) />
                    <Select path="parallel.dispatch" choices=named(choices("parallel.dispatch")) />
                    <Select path="parallel.overlap_exchanges" choices=named(choices("parallel.overlap_exchanges")) />
                    <Text path="parallel.context" />
                </div>
            </Folded>
        </fieldset>
    }
}

#[component]
fn TrainingPart() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Training step"</legend>
            <Slid path="training.microbatches" />
            <div class="pairs">
                <Text path="training.global_batch_size" />
                <Text path="training.microbatch_size" />
                <Text path="training.sequence" />
                <Text path="training.tokens" />
            </div>
            <div class="pairs">
                <Select path="training.dtype" choices=named(&[("", "default of the device"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64")]) />
                <Select path="training.matmul_dtype" choices=named(choices("training.matmul_dtype")) />
            </div>
            <Folded title="Recompute, offload, attention, dtypes" groups=&[Group::Operators]>
                <Text path="training.recompute" list="none selective cheap latents feed-forward full fit" />
                <div class="pairs">
                    <Text path="training.recompute_first" />
                    <Text path="training.recompute_group" />
                </div>
                <Text path="training.offload" list="none all fit" />
                <Select path="training.offload_optimizer" choices=named(choices("training.offload_optimizer")) />
                <Select path="training.attention" choices=named(choices("training.attention")) />
                <Select path="training.dropout" choices=named(&[("", "off"), ("true", "on")]) />
                <div class="pairs">
                    <Select path="training.gradients_dtype" choices=named(choices("training.gradients_dtype")) />
                    <Select path="training.moments_dtype" choices=named(choices("training.moments_dtype")) />
                </div>
                <Select path="training.f32_logits" choices=named(&[("", "off"), ("true", "on")]) />
                <Text path="training.expert_imbalance" />
            </Folded>
        </fieldset>
    }
}

/// What the layers of a model are made of, beyond their sizes.
#[component]
fn ArchitectureFold() -> impl IntoView {
    view! {
        <Folded title="Layers, MoE and MLA" groups=&[Group::Layers, Group::Experts, Group::Latent]>
            <div class="pairs">
                <Select path="model.qkv_bias" choices=flag() />
                <Select path="model.qk_norm" choices=flag() />
                <Select path="model.post_norms" choices=flag() />
                <Text path="model.rotary" />
                <Select path="model.arrangement" choices=named(&[("", "as the model"), ("in-turn", "off"), ("beside", "on, two norms"), ("beside-one-norm", "on, one norm")]) />
                <Select path="model.no_bias" choices=flag() />
                <Select path="model.activation" choices=named(&[("", "as the model"), ("silu", "SiLU"), ("gelu", "GELU")]) />
                <Select path="model.window" choices=or_none() />
                <Text path="model.multi_token" />
                <Text path="model.window.tokens" />
                <Text path="model.window.full_every" />
                <Select path="model.norm_offset" choices=flag() />
                <Select path="model.factors" choices=or_none() />
                <Text path="model.factors.embedding" />
                <Text path="model.factors.residual" />
                <Text path="model.factors.attention" />
                <Text path="model.factors.logits" />
                <Select path="model.caps" choices=or_none() />
                <Text path="model.caps.attention" />
                <Text path="model.caps.logits" />
            </div>
            <Select path="model.experts" choices=or_none() />
            <div class="pairs">
                <Text path="model.experts.count" />
                <Text path="model.experts.active" />
                <Text path="model.experts.ffn" />
                <Text path="model.experts.shared_ffn" />
                <Text path="model.experts.dense_layers" />
                <Select path="model.experts.shared_gate" choices=flag() />
                <Select path="model.experts.scores" choices=named(&[("", "as the model"), ("softmax", "softmax"), ("sigmoid", "sigmoid")]) />
                <Select path="model.experts.normed" choices=flag() />
                <Text path="model.experts.factor" />
                <Text path="model.experts.groups" />
                <Text path="model.experts.active_groups" />
            </div>
            <Select path="model.latent" choices=or_none() />
            <div class="pairs"><Texts group=Group::Latent but="model.latent" /></div>
        </Folded>
    }
}

/// Which measured times stand in the place of the device's estimates.
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
