//! The plan in slow motion: which instant is shown.

/// Seconds that a plan takes at speed 1.
const SECONDS: f64 = 20.0;

/// Speeds that can be chosen.
pub const SPEEDS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// A plan that is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Playback {
    /// The instant that is shown. What begins later is not shown yet.
    pub at_ns: f64,
    /// Whether it goes on.
    pub plays: bool,
    /// One of [`SPEEDS`].
    pub speed: f64,
}

impl Playback {
    /// From the beginning.
    pub fn start() -> Playback {
        Playback { at_ns: 0.0, plays: true, speed: 1.0 }
    }

    /// After so many milliseconds, of a plan that takes `whole_ns`. It stops at the end.
    pub fn after(self, ms: f64, whole_ns: f64) -> Playback {
        if !self.plays {
            return self;
        }
        let at_ns = self.at_ns + ms / 1e3 / SECONDS * self.speed * whole_ns;
        Playback { at_ns: at_ns.min(whole_ns), plays: at_ns < whole_ns, ..self }
    }

    /// Pauses, or goes on: from the beginning where it had ended.
    pub fn toggled(self, whole_ns: f64) -> Playback {
        let at_ns = if !self.plays && self.at_ns >= whole_ns { 0.0 } else { self.at_ns };
        Playback { at_ns, plays: !self.plays, ..self }
    }

    /// The next speed, up or down.
    pub fn faster(self, up: bool) -> Playback {
        let at = SPEEDS.iter().position(|speed| *speed == self.speed).unwrap_or(2);
        let to = if up { at + 1 } else { at.saturating_sub(1) };
        Playback { speed: SPEEDS.get(to).copied().unwrap_or(self.speed), ..self }
    }

    /// At the next of `edges`, times at which something begins or ends, or at the one before. It pauses there.
    pub fn stepped(self, edges: impl Iterator<Item = u64>, forward: bool) -> Playback {
        let edges = edges.map(|edge| edge as f64);
        let found = match forward {
            true => edges.filter(|edge| *edge > self.at_ns).min_by(f64::total_cmp),
            false => edges.filter(|edge| *edge < self.at_ns).max_by(f64::total_cmp),
        };
        Playback { at_ns: found.unwrap_or(self.at_ns), plays: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_played_to_its_end_and_from_there_again() {
        let whole_ns = 1000.0;
        let half = Playback::start().after(10_000.0, whole_ns);
        assert_eq!((half.at_ns, half.plays), (500.0, true));
        let paused = half.toggled(whole_ns);
        assert_eq!(paused.after(5_000.0, whole_ns), paused);
        let twice = paused.toggled(whole_ns).faster(true);
        assert_eq!((twice.speed, twice.after(2_500.0, whole_ns).at_ns), (2.0, 750.0));
        let over = twice.after(60_000.0, whole_ns);
        assert_eq!((over.at_ns, over.plays), (1000.0, false));
        assert_eq!(over.toggled(whole_ns), Playback { at_ns: 0.0, plays: true, speed: 2.0 });
    }

    #[test]
    fn steps_go_from_edge_to_edge() {
        let edges = || [0, 10, 30, 10].into_iter();
        let at = |at_ns: f64, forward: bool| Playback { at_ns, ..Playback::start() }.stepped(edges(), forward).at_ns;
        assert_eq!(
            [at(0.0, true), at(10.0, true), at(12.0, false), at(30.0, true), at(0.0, false)],
            [10.0, 30.0, 10.0, 30.0, 0.0]
        );
        assert!(!Playback::start().stepped(edges(), true).plays);
    }

    #[test]
    fn speeds_end_at_the_slowest_and_the_fastest() {
        let slowest = (0..9).fold(Playback::start(), |playback, _| playback.faster(false));
        let fastest = (0..9).fold(Playback::start(), |playback, _| playback.faster(true));
        assert_eq!((slowest.speed, fastest.speed), (0.25, 4.0));
    }
}
