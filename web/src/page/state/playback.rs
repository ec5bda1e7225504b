//! The plan in slow motion.

use leptos::prelude::*;

use super::Planner;
use crate::draw::track::Track;
use crate::logic::playback::Playback;

impl Planner {
    /// Begins a playback, pauses it, or goes on with it.
    pub fn play_or_pause(self) {
        if self.scene.with_untracked(Option::is_none) {
            return;
        }
        let whole_ns = self.extent().whole_ns;
        self.playback.update(|playback| {
            *playback = Some(playback.map_or_else(Playback::start, |playback| playback.toggled(whole_ns)));
        });
    }

    /// Changes the playback, if there is one, and keeps its instant in sight.
    pub fn change_playback(self, change: impl FnOnce(Playback) -> Playback) {
        let Some(next) = self.playback.get_untracked().map(change) else { return };
        self.playback.set(Some(next));
        let (extent, view) = (self.extent(), self.view.get_untracked());
        let shown = view.showing(next.at_ns, next.at_ns, extent);
        if shown != view {
            self.view.set(shown);
        }
    }

    /// Goes to the next time at which an op begins or ends, or to the one before.
    pub fn step_playback(self, forward: bool) {
        let Some(scene) = self.scene.get_untracked() else { return };
        if self.playback.with_untracked(Option::is_none) {
            self.playback.set(Some(Playback { plays: false, ..Playback::start() }));
        }
        let edges = scene.tracks.iter().flat_map(Track::spans).flat_map(|span| [span.start_ns, span.end_ns]);
        self.change_playback(|playback| playback.stepped(edges, forward));
    }
}
