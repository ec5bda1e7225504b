//! A plan as files of other programs, and as a figure for a paper.

use core::ops::ControlFlow;

use pipeplan_core::formats::colour::UP_TITLE;
use pipeplan_core::formats::events::{self, Chrome};
use pipeplan_core::formats::export::ops_csv;
use pipeplan_core::notation::torch_csv;
use pipeplan_core::simulate::timeline::Timeline;

use super::{Key, SHADES_TITLE, Scene, title_of};
use crate::draw::figure::{self, Style};
use crate::draw::memory;
use crate::draw::paint::Subject;
use crate::draw::view::View;
use crate::text;

impl Scene {
    /// When each op runs.
    pub fn timeline(&self) -> Timeline {
        Timeline {
            rows: self.tracks.iter().map(|track| track.spans().to_vec()).collect(),
            copies: self.copies.clone(),
        }
    }

    /// Events for ui.perfetto.dev and chrome://tracing: ops and memory of each rank.
    pub fn perfetto(&self) -> String {
        let mut text = Vec::new();
        let mut sink = |piece: &[u8]| {
            text.extend_from_slice(piece);
            ControlFlow::Continue(())
        };
        let holds: Vec<String> = self.memory.iter().map(|rank| rank.layers.clone()).collect();
        events::write_plan(&mut Chrome::new(&mut sink), &self.schedule, &self.problem, &self.timeline(), &holds);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The order of ops that torch.distributed.pipelining loads.
    ///
    /// # Errors
    /// Why torch cannot run it, as a sentence.
    pub fn torch_csv(&self) -> Result<String, String> {
        torch_csv::write(&self.problem, &self.order()).map_err(|reason| text::sentence(&reason.reason))
    }

    /// A line for each op, as the command's `export csv` has it.
    pub fn ops_csv(&self) -> String {
        ops_csv(&self.timeline())
    }

    /// The figure of the times that `view` shows on `width_px`, else of all.
    pub fn figure(&self, style: Style, view: Option<(View, f64)>, title: &str) -> String {
        let static_bytes: Vec<u64> = (0..self.tracks.len()).map(|rank| self.problem.static_bytes(rank)).collect();
        let chunk_of_stage = self.chunk_of_stage();
        let curve = |rank: usize| self.curve(rank);
        let subject = Subject {
            planned: &self.tracks,
            below: None,
            curve: &curve,
            static_bytes: &static_bytes,
            limits: &self.figures.limit_bytes,
            top_bytes: memory::top_bytes(self.peak_bytes(), self.limit_bytes()),
            chunk_of_stage: &chunk_of_stage,
            up_from: self.up_from(),
            lit: None,
            lit_below: None,
            carried: &|_| None,
        };
        let end_ns = self.end_ns() as f64;
        let shown =
            view.map_or(0.0..end_ns, |(view, width_px)| view.start_ns.max(0.0)..view.time_at(width_px).min(end_ns));
        let key = Key::of(Some(self), None);
        let kinds = key.kinds.into_iter().map(|kind| (Some(kind), title_of(kind).to_owned()));
        let shades = key.shaded.then(|| (None, SHADES_TITLE.to_owned()));
        let ways = key.two_way.then(|| (None, UP_TITLE.to_owned()));
        let legend: Vec<figure::Entry> = kinds.chain(shades).chain(ways).collect();
        figure::svg(&subject, shown, title, &legend, style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::example;

    #[test]
    fn a_plan_is_given_to_other_programs() {
        let scene = example("zb-h1", 1);
        assert!(scene.perfetto().contains("\"name\":\"0F0\"") && scene.perfetto().contains("\"memory\""));
        let torch = scene.torch_csv().unwrap();
        assert!(torch.starts_with("0F0,0F1,"), "{torch}");
        let csv = scene.ops_csv();
        assert_eq!(csv.lines().nth(1), Some("0,0,0F0,0,10"));
        assert_eq!(csv.lines().count(), 1 + 4 * 8 * 3);
        // Torch has no order that goes both ways.
        let refused = example("dualpipe", 1).torch_csv().unwrap_err();
        assert!(refused.contains("bidirectional"), "{refused}");
    }

    #[test]
    fn a_figure_is_of_all_or_of_the_times_on_screen() {
        let scene = example("1f1b", 1);
        let style = Style { width_px: 700.0, font_px: 8.0, memory: true };
        let all = scene.figure(style, None, "");
        assert!(all.contains(">0F0</text>") || all.contains(">0</text>"), "{all}");
        assert!(
            all.contains(">F forward</text>")
                && all.contains(">BW backward</text>")
                && all.contains("Memory by rank")
        );
        let end = scene.figure(style, Some((View { start_ns: 300.0, ns_per_px: 0.1 }, 300.0)), "");
        assert!(end.contains(">0BW7</text>") && !end.contains(">0F0</text>"), "{end}");
    }
}
