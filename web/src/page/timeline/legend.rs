//! The meaning of colours, and how to read the picture.

use leptos::prelude::*;
use pipeplan_core::formats::colour::UP_TITLE;
use pipeplan_core::problem::op::OpKind;

use crate::draw::colour::Palette;
use crate::page::browser;
use crate::page::state::Planner;
use crate::scene::{Key, MarkClass, SHADES_TITLE, title_of};

#[component]
pub fn Legend() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let key = Memo::new(move |_| {
        let below = planner.below();
        Key::of(planner.planned().as_deref(), below.as_ref())
    });
    let entry = |kind: OpKind| {
        let class = match kind {
            OpKind::F => "f",
            OpKind::B => "b",
            OpKind::W => "w",
            OpKind::BW => "bw",
        };
        view! { <li><span class=format!("swatch {class}")></span>{title_of(kind)}</li> }
    };
    let dark = RwSignal::new(browser::prefers_dark());
    browser::on_media_change("(prefers-color-scheme: dark)", move || dark.set(browser::prefers_dark()));
    let mark = move |class: MarkClass| {
        let style = move || format!("background:{}", class.colour(&Palette::of(dark.get())).css());
        view! { <li><span class="swatch mark" style=style></span>{class.title()}</li> }
    };
    view! {
        <ul class="legend" aria-label="Legend" data-test="legend">
            {move || key.get().kinds.into_iter().map(entry).collect_view()}
            {move || key.get().shaded.then(|| view! { <li class="chunks">{SHADES_TITLE}</li> })}
            {move || key.get().marks.into_iter().map(mark).collect_view()}
            {move || key.get().two_way.then(|| view! { <li><span class="swatch up"></span>{UP_TITLE}</li> })}
        </ul>
    }
}

/// How to read the picture, for a first visit.
#[component]
pub fn Guide() -> impl IntoView {
    view! {
        <details class="guide" data-test="guide">
            <summary>"How to read this"</summary>
            <dl>
                <dt>"Rows and blocks"</dt>
                <dd>"Each row is a rank: one GPU, or several GPUs that share the work. Each block is one op for one microbatch. F is the forward. B is the backward for inputs; the previous rank waits for it. W is the backward for weights; no rank waits for it. BW is B and W in one op. The text of a block is the microbatch number, with the kind and the stage where there is room: 3, B3, 0B3. Point at a block, or tap it, to see its times and what it waits for."</dd>
                <dt>"Stage"</dt>
                <dd>"A stage is a group of consecutive layers. Stage 0 is the first. A microbatch goes forward through all stages in order, and backward in reverse order."</dd>
                <dt>"Virtual stage"</dt>
                <dd>"A rank can hold several stages. Each has a shade (Megatron-LM: virtual pipeline stage; also called chunk)."</dd>
                <dt>"Microbatch"</dt>
                <dd>"A microbatch is a part of the batch of a step. Ranks work on different microbatches at the same time. The optimizer updates the weights once, after all microbatches."</dd>
                <dt>"Placements"</dt>
                <dd>"The placement says which rank holds which stages. Linear: one stage per rank, in order. Looped: stages go around the ranks several times (interleaved 1F1B, arXiv:2104.04473). V: down the ranks and back up. Wave: down and up several times. Bidirectional: two copies of the model, one down and one up; blocks of microbatches that go up are lighter and underlined. More stages per rank make the bubble smaller and add transfers."</dd>
                <dt>"Bubble"</dt>
                <dd>"The light gaps are the bubble: the share of time in which ranks wait for each other. Less is better. Point at a gap, or tap it, to see what its rank waits for."</dd>
                <dt>"Critical path"</dt>
                <dd>"The chain of ops and transfers that decides how long the step takes: each starts when the one before has ended. A shorter op elsewhere does not make the step shorter. A button above the picture shows it. A selected op shows the way of its microbatch through all stages."</dd>
                <dt>"Longest span"</dt>
                <dd>"The span of a rank is the time from its first op to its last op. The makespan is the time from the first op of any rank to the last op of any rank, so it is longer. The longest span counts where a rank can begin the next step before other ranks end this one. The field “Minimize” selects one of the two."</dd>
                <dt>"Memory"</dt>
                <dd>"The lower part shows memory over the same time axis, for each rank: weights and optimizer states (dark), and activations. A line shows the memory of a kept plan. Schedules differ in memory as much as in time."</dd>
                <dt>"MFU"</dt>
                <dd>"Model FLOPs utilization: the FLOPs that the model needs for a step, as a share of the peak FLOPs of the devices in that time. Recomputation does not count."</dd>
                <dt>"Lower bound"</dt>
                <dd>"No schedule of these stages on these ranks is faster than this time. The bound is computed for each plan. A better schedule can save at most the difference."</dd>
                <dt>"What to do next"</dt>
                <dd>"Choose another schedule in the table below. Press Keep to see two plans together. Drag a slider. The address is a link to what you see."</dd>
            </dl>
        </details>
    }
}
