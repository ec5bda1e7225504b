//! The form for the spec.

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::catalog;
use pipeplan_core::plan::planner;

use super::state::Planner;
use crate::form::{FIELDS, Field, Form, Group, Kind, Unit, choices, field, slider};
use crate::protocol::Timed;
use crate::text;

type Choices = Vec<(String, String)>;

#[component]
pub fn SpecForm() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let kind = Memo::new(move |_| planner.kind());
    let choose = move |kind: Kind| planner.change_with(|form| form.kind = kind);
    // Stray faults: those that no field of this form is to blame for.
    let stray = move || {
        let faults = planner.faults.get();
        let stray = faults.into_iter().filter(|fault| Form::field_of(fault).is_none());
        stray.map(|fault| view! { <p class="fault">{fault.to_string()}</p> }).collect_view()
    };
    view! {
        <form class="spec" class:open=planner.form_open aria-label="Spec" data-test="form" on:submit=|event| event.prevent_default()>
            <div class="kinds" role="group" aria-label="What is planned">
                <KindButton this=Kind::Model title="Model on a cluster" kind choose test="kind-model" />
                <KindButton this=Kind::Typed title="Typed costs" kind choose test="kind-typed" />
            </div>
            <div data-test="stray-faults" tabindex="-1">{stray}</div>
            {move || match kind.get() {
                Kind::Model => view! { <ModelFields /> }.into_any(),
                Kind::Typed => view! { <TypedFields /> }.into_any(),
            }}
            <fieldset>
                <legend>"Schedule"</legend>
                <Select alone=true path="schedule" choices=schedules() />
                <GroupSize />
                <Folded title="Transfers" groups=&[Group::Messages]>
                    <Text path="messages.lowering" list="overlapped overlapped:2 grouped receive-first in-pieces" />
                    <Text path="messages.transport" list="grouped rendezvous buffered buffered:4 pair-ordered streams" />
                </Folded>
                <Text path="jitter_permille" />
                <Text path="name" />
            </fieldset>
        </form>
    }
}

#[component]
fn KindButton(
    this: Kind,
    title: &'static str,
    kind: Memo<Kind>,
    choose: impl Fn(Kind) + Copy + Send + 'static,
    test: &'static str,
) -> impl IntoView {
    view! {
        <button type="button" data-test=test aria-pressed=move || (kind.get() == this).to_string()
            on:click=move |_| choose(this)>{title}</button>
    }
}

#[component]
fn ModelFields() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let own_device = Memo::new(move |_| planner.form.with(|form| form.text("cluster.device").is_empty()));
    view! {
        <fieldset>
            <legend>"Model"</legend>
            <Select alone=true path="model.name" choices=models() />
            <Folded title="Sizes" groups=&[Group::ModelSizes]>
                <Select path="model.family" choices=named(&[("", "as the model"), ("llama", "Llama"), ("gpt", "GPT")]) />
                <div class="pairs"><Texts group=Group::ModelSizes but="model.family" /></div>
            </Folded>
            <Folded title="Layers, experts and latents" groups=&[Group::Layers, Group::Experts, Group::Latent]>
                <div class="pairs">
                    <Select path="model.qkv_bias" choices=flag() />
                    <Select path="model.qk_norm" choices=flag() />
                    <Select path="model.post_norms" choices=flag() />
                    <Text path="model.rotary" />
                    <Select path="model.arrangement" choices=named(&[("", "as the model"), ("in-turn", "in turn"), ("beside", "beside each other"), ("beside-one-norm", "beside, one norm")]) />
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
        </fieldset>
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
        <fieldset>
            <legend>"Pipeline"</legend>
            <Slid path="parallel.pipeline" />
            <Text path="parallel.chunks" />
            <Text path="parallel.partition" list="balanced layers layers-and-ends within-limit" />
            <Folded title="Tensor, data, expert and context parallel" groups=&[Group::Split]>
                <div class="pairs">
                    <Text path="parallel.tensor" />
                    <Select path="parallel.sequence_parallel" choices=named(choices("parallel.sequence_parallel")) />
                    <Select path="parallel.async_reduce" choices=named(&[("", "waited for"), ("true", "beside dW")]) />
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
                <Select path="training.dtype" choices=named(&[("", "device's"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64")]) />
                <Select path="training.matmul_dtype" choices=named(choices("training.matmul_dtype")) />
            </div>
            <Folded title="Recompute, attention, formats" groups=&[Group::Operators]>
                <Text path="training.recompute" list="none selective cheap latents feed-forward full fit" />
                <div class="pairs">
                    <Text path="training.recompute_first" />
                    <Text path="training.recompute_group" />
                </div>
                <Text path="training.offload" list="none all fit" />
                <Select path="training.offload_optimizer" choices=named(choices("training.offload_optimizer")) />
                <Select path="training.attention" choices=named(choices("training.attention")) />
                <Select path="training.dropout" choices=named(&[("", "none"), ("true", "with masks")]) />
                <div class="pairs">
                    <Select path="training.gradients_dtype" choices=named(choices("training.gradients_dtype")) />
                    <Select path="training.moments_dtype" choices=named(choices("training.moments_dtype")) />
                </div>
                <Select path="training.f32_logits" choices=named(&[("", "no"), ("true", "yes")]) />
                <Text path="training.expert_imbalance" />
            </Folded>
        </fieldset>
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

/// Which measured times stand in the place of the device's estimates.
#[component]
fn TimesMeasured(timed: Timed) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let Timed { device, covers } = timed;
    let covers = if covers.is_empty() { String::new() } else { format!(": {covers}.") };
    view! {
        <div class="timed" data-test="profile">
            <p>"Times measured on "<b>{device}</b>{covers}</p>
            <button type="button" data-test="profile-close" on:click=move |_| planner.measure(None)>"Estimate instead"</button>
        </div>
    }
}

#[component]
fn TypedFields() -> impl IntoView {
    view! {
        <fieldset>
            <legend>"Shape"</legend>
            <Slid path="problem.ranks" />
            <Slid path="problem.microbatches" />
            <Text path="problem.chunks" />
            <Text path="problem.placement" list="linear looped v wave two-way any" />
            <Select path="problem.backward" choices=named(&[("", "split or fused"), ("fused", "fused only")]) />
            <Text path="problem.overlap_permille" />
        </fieldset>
        <fieldset>
            <legend>"Time of an op, ns"</legend>
            <div class="triples"><Triple paths=["problem.stages.forward_ns", "problem.stages.backward_input_ns", "problem.stages.backward_weight_ns"] /></div>
            <Text path="problem.transfer_ns" />
        </fieldset>
        <fieldset>
            <legend>"Bytes of an op"</legend>
            <div class="triples"><Triple paths=["problem.stages.forward_bytes", "problem.stages.backward_input_bytes", "problem.stages.backward_weight_bytes"] /></div>
            <Folded title="Workspace and single stages" groups=&[Group::Workspace, Group::Fused, Group::StageList]>
                <p class="help">"Bytes only while an op runs:"</p>
                <div class="triples"><Texts group=Group::Workspace but="" /></div>
                <Text path="problem.stages.backward_workspace_bytes" />
                <Text path="problem.stages.backward_ns" />
                <Text path="problem.stages.forward_exchange_ns" />
                <Text path="problem.stages.backward_exchange_ns" />
                <Lines path=crate::form::STAGE_LIST />
            </Folded>
        </fieldset>
        <fieldset>
            <legend>"Memory"</legend>
            <Slid path="problem.limit_bytes" />
            <Text path="problem.static_bytes" />
        </fieldset>
        <fieldset>
            <legend>"Objective"</legend>
            <Select alone=true path="problem.objective" choices=objectives() />
        </fieldset>
    }
}

/// Fields that are seldom needed. Opens by itself when one of them comes to say something, and whenever a fault comes up
/// in it, also where a person has closed it before.
#[component]
fn Folded(title: &'static str, groups: &'static [Group], children: Children) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let mine = |field: &&Field| groups.contains(&field.group);
    let said = Memo::new(move |_| {
        planner.form.with(|form| FIELDS.iter().filter(mine).any(|field| !form.text(field.path).is_empty()))
    });
    let faults = Memo::new(move |_| {
        let here = |fault: &&Fault| Form::field_of(fault).is_some_and(|field| groups.contains(&field.group));
        planner.faults_of_fields().iter().filter(here).cloned().collect::<Vec<Fault>>()
    });
    // Nothing closes it but a hand: emptying the last field does not take it away from under one.
    let open = RwSignal::new(false);
    let open_where = move |reason: bool| {
        if reason {
            open.set(true);
        }
    };
    Effect::new(move |_| open_where(said.get()));
    Effect::new(move |_| open_where(faults.with(|faults| !faults.is_empty())));
    let toggled = move |event: leptos::ev::Event| {
        open.set(event_target::<web_sys::Element>(&event).has_attribute("open"));
    };
    view! {
        <details prop:open=open on:toggle=toggled>
            <summary>{title}</summary>
            {children()}
        </details>
    }
}

const GROUP_HELP: &str = "Microbatches that go through a chunk before the next chunk's turn";

/// Microbatches of a group, for schedules that have groups.
#[component]
fn GroupSize() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let shown = Memo::new(move |_| planner.form.with(Form::takes_groups) || !group(planner).is_empty());
    let text = Memo::new(move |_| group(planner));
    move || {
        shown.get().then(|| {
            view! {
                <div class="field">
                    <label for="schedule-group" title=GROUP_HELP>"Groups of"</label>
                    <input type="text" id="schedule-group" data-test="schedule-group" autocomplete="off" placeholder="as many as ranks" prop:value=text
                        aria-describedby="schedule-group-help"
                        on:input=move |event| planner.type_in("schedule", |form| form.set_group(event_target_value(&event).trim()))
                        on:change=move |_| planner.typed() />
                    <Help id="schedule-group-help".to_owned() help=GROUP_HELP />
                </div>
            }
        })
    }
}

fn group(planner: Planner) -> String {
    planner.form.with(|form| form.schedule_and_group().1.to_owned())
}

/// All fields of a group but one.
#[component]
fn Texts(group: Group, but: &'static str) -> impl IntoView {
    let fields = FIELDS.iter().filter(move |field| field.group == group && field.path != but);
    let input = |field: &'static Field| match field.unit {
        Unit::Flag => view! { <Select path=field.path choices=flag() /> }.into_any(),
        _ => view! { <Text path=field.path /> }.into_any(),
    };
    fields.map(input).collect_view()
}

#[component]
fn Triple(paths: [&'static str; 3]) -> impl IntoView {
    paths.map(|path| view! { <Text path /> }).collect_view()
}

/// A field with its label, help and fault around `input`. The label of one that stands `alone` under its
/// legend is for those who do not see the legend.
fn framed(
    field: &'static Field,
    alone: bool,
    faults: Memo<Vec<String>>,
    input: impl IntoView + 'static,
) -> impl IntoView {
    view! {
        <div class="field" class:alone=alone class:faulty=move || is_faulty(faults)>
            <label for=id(field) title=field.help>{field.label}</label>
            {input}
            <Help id=help_id(field) help=field.help />
            <div class="faults" id=fault_id(field) aria-live="polite" data-test=format!("fault-{}", field.path)>
                {move || faults.get().into_iter().map(|fault| view! { <p class="fault">{fault}</p> }).collect_view()}
            </div>
        </div>
    }
}

fn faults_of(planner: Planner, field: &'static Field) -> Memo<Vec<String>> {
    Memo::new(move |_| {
        let typed = planner.form.with(|form| form.text(field.path).to_owned());
        let sentence = |fault: &Fault| field.told(&typed, fault);
        let mine = |fault: &&Fault| Form::field_of(fault).is_some_and(|owner| owner.path == field.path);
        planner.faults_of_fields().iter().filter(mine).take(4).map(sentence).collect()
    })
}

fn is_faulty(faults: Memo<Vec<String>>) -> bool {
    faults.with(|faults| !faults.is_empty())
}

fn id(field: &Field) -> String {
    format!("field-{}", field.path.replace('.', "-"))
}

fn fault_id(field: &Field) -> String {
    format!("{}-fault", id(field))
}

fn help_id(field: &Field) -> String {
    format!("{}-help", id(field))
}

/// What describes a field: its help, and what is wrong with it.
fn described_by(field: &Field) -> String {
    format!("{} {}", help_id(field), fault_id(field))
}

/// What a field means, under it while it has the focus: fingers and keys reach no tip of a label.
#[component]
fn Help(id: String, help: &'static str) -> impl IntoView {
    (!help.is_empty()).then(|| view! { <p class="help tip" id=id>{help}</p> })
}

/// What an empty field means, as far as it is known: what it said before it was emptied means nothing.
fn placeholder(planner: Planner, field: &'static Field) -> String {
    let empty = planner.resolved.with(|(form, resolved)| {
        if !form.text(field.path).is_empty() {
            return None;
        }
        let value = field.path.split('.').try_fold(resolved, |value, key| value.get(key));
        let text =
            |value: &serde_json::Value| (!value.is_object() && !value.is_null()).then(|| field.unit.text_of(value));
        value.and_then(text)
    });
    match (empty, field.path) {
        (None, "memory.limit_bytes") => planner
            .resolved
            .with(|(_, resolved)| {
                resolved.pointer("/cluster/device/memory_bytes").map(|value| field.unit.text_of(value))
            })
            .unwrap_or_default(),
        (None, "problem.limit_bytes") => "none".to_owned(),
        // No spec says both.
        (None, "training.global_batch_size") => planner
            .resolved
            .with(|(_, resolved)| global_batch(resolved))
            .map_or_else(String::new, |sequences| sequences.to_string()),
        (empty, _) => empty.unwrap_or_default(),
    }
}

/// The sequences of a step of `resolved`, a spec of a model, over all copies.
fn global_batch(resolved: &serde_json::Value) -> Option<u64> {
    let whole = |path: &str| resolved.pointer(path).and_then(serde_json::Value::as_u64);
    let microbatches = whole("/training/microbatches")?.checked_mul(whole("/training/microbatch_size")?)?;
    microbatches.checked_mul(whole("/parallel/data")?)
}

/// A line of text.
#[component]
fn Text(path: &'static str, #[prop(optional)] list: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| planner.form.with(|form| form.text(path).to_owned()));
    let faults = faults_of(planner, field);
    let options = list.split_whitespace().map(|name| view! { <option value=name></option> }).collect_view();
    let list_id = format!("{}-list", id(field));
    let input = view! {
        <div class="unit">
            <input type="text" id=id(field) data-test=format!("field-{path}") autocomplete="off" spellcheck="false"
                list=(!list.is_empty()).then(|| list_id.clone())
                prop:value=text
                placeholder=move || placeholder(planner, field)
                aria-label=field.spoken()
                aria-describedby=described_by(field)
                aria-invalid=move || is_faulty(faults).to_string()
                on:input=move |event| planner.type_in(path, |form| form.set(path, event_target_value(&event)))
                on:change=move |_| planner.typed() />
            <span class="suffix">{field.unit.suffix()}</span>
            {(!list.is_empty()).then(|| view! { <datalist id=list_id.clone()>{options}</datalist> })}
        </div>
    };
    framed(field, false, faults, input).into_any()
}

/// Several lines of text.
#[component]
fn Lines(path: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| planner.form.with(|form| form.text(path).to_owned()));
    let faults = faults_of(planner, field);
    let input = view! {
        <textarea id=id(field) data-test=format!("field-{path}") rows="3" spellcheck="false" prop:value=text
            aria-describedby=described_by(field)
            aria-invalid=move || is_faulty(faults).to_string()
            on:input=move |event| planner.type_in(path, |form| form.set(path, event_target_value(&event)))
            on:change=move |_| planner.typed()></textarea>
    };
    framed(field, false, faults, input).into_any()
}

/// A number with a slider: dragging plans live.
#[component]
fn Slid(path: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let place =
        Memo::new(move |_| planner.form.with(|form| planner.spec.with(|spec| slider(form, spec.as_deref(), path))));
    let of = move |pick: fn(&crate::form::Slider) -> f64| {
        move || place.with(|place| place.as_ref().map_or_else(String::new, |place| pick(place).to_string()))
    };
    let moved = move |event: leptos::ev::Event| {
        let position: Option<f64> = event_target_value(&event).parse().ok();
        if let (Some(position), Some(place)) = (position, place.get_untracked()) {
            planner.type_in(path, |form| form.set(path, place.text_at(position)));
        }
    };
    view! {
        <div class="slid">
            <Text path />
            <input type="range" aria-label=format!("{} by slider", field.label) data-test=format!("slider-{path}")
                min=of(|place| place.least) max=of(|place| place.most) step=of(|place| place.step)
                prop:value=of(|place| place.value)
                hidden=move || place.with(|place| place.is_none())
                on:input=moved
                on:change=move |_| planner.typed() />
        </div>
    }
    .into_any()
}

/// A choice.
#[component]
fn Select(path: &'static str, choices: Choices, #[prop(optional)] alone: bool) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| {
        planner.form.with(|form| match path {
            // The size of its groups has a field of its own.
            "schedule" => form.schedule_and_group().0.to_owned(),
            _ => form.text(path).to_owned(),
        })
    });
    let known: Vec<String> = choices.iter().map(|(name, _)| name.clone()).collect();
    // A name that no choice has, as a file may hold: shown as it is instead of as the first choice.
    let other = move || {
        let text = text.get();
        (!known.contains(&text)).then(|| view! { <option value=text.clone() selected>{text.clone()}</option> })
    };
    let options = choices
        .into_iter()
        .map(|(name, title)| {
            let value = name.clone();
            view! { <option value=value prop:selected=move || text.with(|text| *text == name)>{title}</option> }
        })
        .collect_view();
    let chosen = move |event: leptos::ev::Event| {
        let name = event_target_value(&event);
        planner.change_with(|form| match path {
            "model.name" => form.choose_model(&name),
            "cluster.device" => form.choose_device(&name),
            _ => form.set(path, name),
        });
    };
    let faults = faults_of(planner, field);
    let input = view! {
        <select id=id(field) data-test=format!("field-{path}") aria-describedby=described_by(field)
            aria-invalid=move || is_faulty(faults).to_string() on:change=chosen>
            {options}
            {other}
        </select>
    };
    framed(field, alone, faults, input).into_any()
}

fn named(choices: &[(&str, &str)]) -> Choices {
    choices.iter().map(|(name, title)| ((*name).to_owned(), (*title).to_owned())).collect()
}

/// Of what a model of the catalog has its own way of.
fn flag() -> Choices {
    named(&[("", "as the model"), ("true", "yes"), ("false", "no")])
}

/// Of what a model has by its fields, or not at all.
fn or_none() -> Choices {
    named(&[("", "as the model, or below"), ("none", "none")])
}

fn objectives() -> Choices {
    named(&[("", "makespan over all ranks"), ("longest_span", "longest span of a rank")])
}

fn models() -> Choices {
    let mut choices: Choices =
        catalog::catalog().iter().map(|entry| (entry.name.to_owned(), entry.title.to_owned())).collect();
    choices.push((String::new(), "Sizes by hand".to_owned()));
    choices
}

fn devices() -> Choices {
    let mut choices: Choices =
        cluster::catalog().iter().map(|entry| (entry.name.to_owned(), entry.title.to_owned())).collect();
    choices.push((String::new(), "Figures by hand".to_owned()));
    choices
}

fn schedules() -> Choices {
    planner::schedule_names().into_iter().map(|name| (name.to_owned(), text::schedule_title(name))).collect()
}
