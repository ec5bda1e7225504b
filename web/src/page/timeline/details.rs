//! The details of a block, a gap or a memory curve, and their position on the picture.

use leptos::prelude::*;

use crate::draw::layout::{Layout, Place, RULER_PX};
use crate::draw::selection::{Block, Pointed, Ranks};
use crate::page::state::Planner;
use crate::scene::Below;
use crate::text;

#[component]
pub(super) fn Tooltip(
    shown: Memo<Option<Pointed>>,
    anchor: Memo<Option<(f64, f64)>>,
    whole_width: RwSignal<f64>,
) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let lines = Memo::new(move |_| shown.get().map(|shown| details(planner, shown)).unwrap_or_default());
    let place = move || {
        let (x, y) = anchor.get().unwrap_or_default();
        // On the side with more room. On narrow screens the free space shrinks first, so that the tooltip never leaves
        // the picture.
        let beside = |px: f64| format!("minmax(0,{:.0}px)", px + 14.0);
        let columns = if x > whole_width.get() / 2.0 {
            format!("minmax(0,1fr) max-content {}", beside(whole_width.get() - x))
        } else {
            format!("{} max-content minmax(0,1fr)", beside(x))
        };
        format!("grid-template-columns:{columns};top:{:.0}px", y + 14.0)
    };
    move || {
        let lines = lines.get();
        (!lines.is_empty()).then(|| {
            let rows = lines.into_iter().map(|(name, value)| view! { <dt>{name}</dt><dd>{value}</dd> });
            view! { <div class="tip-place" style=place><dl class="tooltip" data-test="tooltip">{rows.collect_view()}</dl></div> }
        })
    }
}

/// The details of a block, or of a rank's memory.
pub(super) fn details(planner: Planner, pointed: Pointed) -> Vec<(String, String)> {
    let Some(scene) = untrack(|| planner.stage_scene()) else { return Vec::new() };
    let plan = untrack(|| planner.planned());
    match pointed {
        Pointed::Block(Block { below: false, rank, index, gap: true }) => scene.describe_wait(rank, index),
        Pointed::Block(Block { below: false, rank, index, .. }) => scene.describe(rank, index),
        Pointed::Block(Block { below: true, rank, index, gap }) => {
            let describe = |below: Below| match gap {
                true => below.describe_wait(rank, index),
                false => below.describe(rank, index, plan.as_deref()),
            };
            untrack(|| planner.below()).map(describe).unwrap_or_default()
        }
        Pointed::Instant { time_ns } => scene.describe_instant(time_ns),
        Pointed::Carried { rank, time_ns } => scene.describe_carried(rank, time_ns),
        Pointed::Mark { rank, index } => planner
            .measured
            .with_untracked(|shown| shown.as_ref().map(|shown| shown.describe_mark(rank, index)))
            .unwrap_or_default(),
        Pointed::Range { from_ns, to_ns } => match &plan {
            Some(plan) => plan.describe_range(from_ns, to_ns),
            None => planner
                .measured
                .with_untracked(|shown| shown.as_ref().map(|shown| shown.describe_range(from_ns, to_ns)))
                .unwrap_or_default(),
        },
        Pointed::Memory { rank, time_ns } => {
            let mut lines = scene.describe_memory(rank, time_ns as f64);
            if let Some(Below::Kept(kept)) = untrack(|| planner.below())
                && let Some(curve) = kept.curve(rank)
            {
                lines.push(("kept plan holds".to_owned(), text::bytes(curve.at(time_ns as f64))));
                lines.push(("kept plan peak".to_owned(), text::bytes(curve.peak())));
            }
            lines
        }
    }
}

/// The element under the pointer.
pub(super) fn point_at(planner: Planner, layout: &Layout, x: f64, y: f64) -> Option<Pointed> {
    let scene = planner.stage_scene()?;
    let view = planner.view.get();
    let time_ns = view.time_at(x - layout.left_px);
    // Two pixels, so that a person can point at blocks narrower than a pixel.
    let reach_ns = 2.0 * view.ns_per_px;
    if x < layout.left_px {
        return None;
    }
    match layout.place_at(y)? {
        Place::Planned(rank) => {
            let block = scene.tracks.get(rank)?.at(time_ns, reach_ns);
            let block = block.map(|index| Block { below: false, rank, index, gap: false });
            block.or_else(|| with_ranks(planner, |ranks| ranks.gap_at(rank, time_ns))).map(Pointed::Block)
        }
        Place::Below(rank) => {
            let below = planner.below()?;
            let scale = planner.below_scale();
            let block = below.tracks().get(rank)?.at(time_ns / scale, reach_ns / scale);
            let block = block.map(|index| Block { below: true, rank, index, gap: false });
            let row = scene.tracks.len() + rank;
            block.or_else(|| with_ranks(planner, |ranks| ranks.gap_at(row, time_ns))).map(Pointed::Block)
        }
        Place::Marks(rank) => {
            let (below, scale) = (planner.below()?, planner.below_scale());
            let index = below.marks().get(rank)?.at(time_ns / scale, reach_ns / scale)?;
            Some(Pointed::Mark { rank, index })
        }
        Place::Ruler if planner.is_alone() => None,
        Place::Ruler => {
            (0.0..=scene.end_ns() as f64).contains(&time_ns).then_some(Pointed::Instant { time_ns: time_ns as u64 })
        }
        Place::Carried(rank) => (0.0..=scene.step_end_ns() as f64)
            .contains(&time_ns)
            .then_some(Pointed::Carried { rank, time_ns: time_ns as u64 }),
        Place::Memory(rank) => {
            (time_ns <= scene.end_ns() as f64).then_some(Pointed::Memory { rank, time_ns: time_ns.max(0.0) as u64 })
        }
    }
}

/// Calls `then` with all rows that blocks are on.
pub(super) fn with_ranks<T>(planner: Planner, then: impl FnOnce(&Ranks<'_>) -> Option<T>) -> Option<T> {
    let scene = planner.stage_scene()?;
    let (below, scale) = (planner.below(), planner.below_scale());
    then(&Ranks { planned: &scene.tracks, below: below.as_ref().map_or(&[], Below::tracks), scale })
}

/// The position of the details of the selection: under the middle of its visible part.
pub(super) fn anchor(planner: Planner, layout: &Layout, selected: Pointed) -> Option<(f64, f64)> {
    let view = planner.view.get();
    let (panel, rank, (from_ns, to_ns)) = match selected {
        Pointed::Block(block) => {
            let panel = if block.below { layout.below? } else { layout.planned };
            (panel, block.rank, with_ranks(planner, |ranks| ranks.times(block))?)
        }
        Pointed::Mark { rank, index } => {
            let marks = untrack(|| planner.below())?;
            let mark = marks.marks().get(rank)?.get(index)?;
            let scale = untrack(|| planner.below_scale());
            (layout.below?, rank, (mark.start_ns as f64 * scale, mark.end_ns as f64 * scale))
        }
        Pointed::Carried { rank, time_ns } => (layout.carried?, rank, (time_ns as f64, time_ns as f64)),
        Pointed::Memory { rank, time_ns } => (layout.memory, rank, (time_ns as f64, time_ns as f64)),
        Pointed::Range { from_ns, to_ns } => {
            let x = |time_ns: u64| view.x_of(time_ns as f64).clamp(0.0, layout.width_px);
            return Some((layout.left_px + (x(from_ns) + x(to_ns)) / 2.0, RULER_PX));
        }
        Pointed::Instant { time_ns } => {
            let x_px = view.x_of(time_ns as f64);
            let in_sight = (0.0..=layout.width_px).contains(&x_px);
            return in_sight.then_some((layout.left_px + x_px, RULER_PX));
        }
    };
    let x = |time_ns: f64| view.x_of(time_ns).clamp(0.0, layout.width_px);
    let (_, bottom) = panel.rows.span_of(rank);
    let middle = layout.left_px + (x(from_ns) + x(to_ns)) / 2.0;
    Some((middle, panel.top_px + bottom.clamp(0.0, panel.rows.height_px)))
}

/// The picture in a sentence, for screen readers.
pub(super) fn describe(planner: Planner) -> String {
    if planner.is_alone() {
        let said = |shown: &crate::scene::MeasuredScene| {
            let ops: usize = shown.tracks.iter().map(|track| track.spans().len()).sum();
            let took = crate::text::duration(shown.end_ns() as f64);
            format!(
                "Timeline of a measured step: {} ranks, {ops} ops in {took}. Arrow keys pan and zoom. Enter selects a block; arrow keys then go from block to block and gap to gap.",
                shown.tracks.len()
            )
        };
        return planner.measured.with(|shown| shown.as_deref().map(said)).unwrap_or_default();
    }
    planner.scene.with(|scene| match scene {
        Some(scene) => {
            let ops: usize = scene.tracks.iter().map(|track| track.spans().len()).sum();
            let kept = match planner.below() {
                Some(Below::Kept(kept)) => format!(" Kept below: {}.", kept.headline()),
                _ => String::new(),
            };
            format!(
                "Timeline of {}: {} ranks, {ops} ops in {}.{kept} Arrow keys pan and zoom. Enter selects a block; arrow keys then go from block to block and gap to gap.",
                crate::text::schedule_title(&scene.schedule),
                scene.tracks.len(),
                crate::text::duration(scene.end_ns() as f64)
            )
        }
        None => "No timeline".to_owned(),
    })
}
