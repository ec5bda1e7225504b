//! The half of the form that has typed costs.

use leptos::prelude::*;

use super::inputs::{LinesField, ListField, SliderField, TextField, Texts, Triple};
use super::options::{named, objectives};
use super::{Folded, ScheduleAndLimit};
use crate::form::Group;

#[component]
pub(super) fn TypedFields() -> impl IntoView {
    view! {
        <ScheduleAndLimit limit="problem.limit_bytes" />
        <fieldset>
            <legend>"Shape"</legend>
            <SliderField path="problem.ranks" />
            <SliderField path="problem.microbatches" />
            <TextField path="problem.chunks" />
            <TextField path="problem.placement" list="linear looped v wave two-way any" />
            <ListField path="problem.backward" choices=named(&[("", "split or fused"), ("fused", "fused")]) />
            <TextField path="problem.overlap_permille" />
            <TextField path="problem.microbatch_factors" />
            <TextField path="problem.slices" />
        </fieldset>
        <fieldset>
            <legend>"Time per op, ns"</legend>
            <div class="triples"><Triple paths=["problem.stages.forward_ns", "problem.stages.backward_input_ns", "problem.stages.backward_weight_ns"] /></div>
            <TextField path="problem.transfer_ns" />
        </fieldset>
        <fieldset>
            <legend>"Bytes per op"</legend>
            <div class="triples"><Triple paths=["problem.stages.forward_bytes", "problem.stages.backward_input_bytes", "problem.stages.backward_weight_bytes"] /></div>
            <Folded title="Workspace, fused BW, stages" groups=&[Group::Workspace, Group::Fused, Group::StageList]>
                <p class="help">"Bytes that an op needs only while it runs:"</p>
                <div class="triples"><Texts group=Group::Workspace but="" /></div>
                <TextField path="problem.stages.backward_workspace_bytes" />
                <TextField path="problem.stages.backward_ns" />
                <TextField path="problem.stages.forward_exchange_ns" />
                <TextField path="problem.stages.backward_exchange_ns" />
                <TextField path="problem.stages.slice_gradient_bytes" />
                <TextField path="problem.stages.offload_bytes" />
                <TextField path="problem.stages.offload_ns" />
                <LinesField path=crate::form::STAGE_LIST />
            </Folded>
        </fieldset>
        <fieldset>
            <legend>"Memory"</legend>
            <TextField path="problem.static_bytes" />
        </fieldset>
        <fieldset>
            <legend>"Objective"</legend>
            <ListField alone=true path="problem.objective" choices=objectives() />
        </fieldset>
    }
}
