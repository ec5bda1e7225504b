//! Which part of time is on screen.

/// The closest zoom: this many nanoseconds on one pixel.
const CLOSEST_NS_PER_PX: f64 = 0.01;
/// Room after the last op, as a share of the whole, so that its end can be seen as an end.
const ROOM_AFTER: f64 = 0.01;

/// The visible part of time: `x = (time − start) / ns_per_px`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Time at the left edge.
    pub start_ns: f64,
    /// Time on one pixel; above 0.
    pub ns_per_px: f64,
}

/// The range of a view: `0..whole_ns` on `width_px` pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The end of the last op of all that is shown together.
    pub whole_ns: f64,
    /// Width of the panel.
    pub width_px: f64,
}

impl Extent {
    /// The time from the left edge to the right one when all is shown.
    fn room_ns(self) -> f64 {
        (self.whole_ns * (1.0 + ROOM_AFTER)).max(1.0)
    }

    fn farthest_ns_per_px(self) -> f64 {
        self.room_ns() / self.width_px.max(1.0)
    }

    /// The view of everything.
    pub fn fit(self) -> View {
        View { start_ns: 0.0, ns_per_px: self.farthest_ns_per_px() }
    }

    /// The nearest view that shows no more than everything and nothing outside it.
    ///
    /// First the zoom, then the pan: the pan's range follows from the zoom. At the farthest zoom the range
    /// is a single point, so this is where every zooming out ends.
    pub fn clamp(self, view: View) -> View {
        let farthest = self.farthest_ns_per_px();
        let ns_per_px = if view.ns_per_px.is_finite() {
            view.ns_per_px.clamp(CLOSEST_NS_PER_PX.min(farthest), farthest)
        } else {
            farthest
        };
        // At the farthest zoom rounding alone would leave a range of a part of a nanosecond.
        let last_start =
            if ns_per_px >= farthest { 0.0 } else { (self.room_ns() - ns_per_px * self.width_px.max(1.0)).max(0.0) };
        let start_ns = if view.start_ns.is_finite() { view.start_ns.clamp(0.0, last_start) } else { 0.0 };
        View { start_ns, ns_per_px }
    }
}

impl View {
    /// Canvas x of a time.
    pub fn x_of(self, time_ns: f64) -> f64 {
        (time_ns - self.start_ns) / self.ns_per_px
    }

    /// Time at canvas x.
    pub fn time_at(self, x_px: f64) -> f64 {
        self.start_ns + x_px * self.ns_per_px
    }

    /// The same part of time where a pixel is `ratio` times finer.
    pub fn scaled(self, ratio: f64) -> View {
        View { ns_per_px: self.ns_per_px / ratio, ..self }
    }

    /// Zoomed by `factor` (above 1 is closer), the time under `x_px` staying where it is, if `extent` allows.
    pub fn zoomed(self, factor: f64, x_px: f64, extent: Extent) -> View {
        let fixed_ns = self.time_at(x_px);
        // The zoom is clamped before the start is derived from it, or zooming against the stop would pan.
        let ns_per_px = extent.clamp(View { ns_per_px: self.ns_per_px / factor, ..self }).ns_per_px;
        extent.clamp(View { start_ns: fixed_ns - x_px * ns_per_px, ns_per_px })
    }

    /// Moved so that what was at `dx_px` comes to the left edge.
    pub fn panned(self, dx_px: f64, extent: Extent) -> View {
        extent.clamp(View { start_ns: self.start_ns + dx_px * self.ns_per_px, ..self })
    }

    /// Panned no farther than it takes to show `from_ns..to_ns`; its beginning, where it is longer than what is shown.
    pub fn showing(self, from_ns: f64, to_ns: f64, extent: Extent) -> View {
        let least_ns = (to_ns - extent.width_px * self.ns_per_px).min(from_ns);
        extent.clamp(View { start_ns: self.start_ns.clamp(least_ns, from_ns), ..self })
    }

    /// The view of `from_ns..to_ns`.
    pub fn around(from_ns: f64, to_ns: f64, extent: Extent) -> View {
        let ns_per_px = (to_ns - from_ns) / extent.width_px.max(1.0);
        extent.clamp(View { start_ns: from_ns, ns_per_px })
    }

    /// The view after a change of the plans or of the width: a full view stays full, and a part keeps its times.
    pub fn carried(self, before: Extent, now: Extent) -> View {
        let was_all = self.ns_per_px >= before.farthest_ns_per_px() * 0.999;
        let ns_per_px = self.ns_per_px * before.width_px / now.width_px.max(1.0);
        if was_all { now.fit() } else { now.clamp(View { ns_per_px, ..self }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents() -> impl Strategy<Value = Extent> {
        (0.0..1e15, 1.0..4000.0).prop_map(|(whole_ns, width_px)| Extent { whole_ns, width_px })
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn x_and_time_are_inverse(start_ns in 0.0..1e12, ns_per_px in 0.01..1e9, x in -1e4..1e4) {
            let view = View { start_ns, ns_per_px };
            prop_assert!((view.x_of(view.time_at(x)) - x).abs() < 1e-2);
        }

        #[test]
        fn a_clamped_view_never_leaves_the_extent(extent in extents(), start in -1e15..1e15, per_px in 1e-6..1e15) {
            let view = extent.clamp(View { start_ns: start, ns_per_px: per_px });
            prop_assert!(view.start_ns >= 0.0);
            prop_assert!(view.time_at(extent.width_px) <= extent.room_ns() * (1.0 + 1e-9));
            prop_assert_eq!(extent.clamp(view), view);
        }

        #[test]
        fn zooming_keeps_the_time_under_the_pointer(extent in extents(), x in 0.0..1.0, factor in 1.0..50.0) {
            let x = x * extent.width_px;
            let before = extent.fit();
            let after = before.zoomed(factor, x, extent);
            // Zooming in from everything never meets a border.
            prop_assert!((after.time_at(x) - before.time_at(x)).abs() <= 1e-6 * extent.room_ns());
        }

        #[test]
        fn zooming_out_ends_at_everything(extent in extents(), x in 0.0..1.0, factor in 1.0..50.0) {
            let x = x * extent.width_px;
            let view = extent.fit().zoomed(factor, x, extent).zoomed(1e-9, x, extent);
            prop_assert_eq!(view, extent.fit());
        }
    }

    #[test]
    fn a_view_goes_no_farther_than_to_what_it_is_to_show() {
        let extent = Extent { whole_ns: 1000.0, width_px: 100.0 };
        let view = View { start_ns: 200.0, ns_per_px: 1.0 };
        for (from, to, start) in
            [(220.0, 260.0, 200.0), (150.0, 160.0, 150.0), (310.0, 330.0, 230.0), (400.0, 700.0, 400.0)]
        {
            assert_eq!(view.showing(from, to, extent).start_ns, start, "{from} to {to}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_show_everything() {
        let extent = Extent { whole_ns: 100.0, width_px: 50.0 };
        assert_eq!(extent.clamp(View { start_ns: f64::NAN, ns_per_px: f64::INFINITY }), extent.fit());
    }

    #[test]
    fn a_longer_plan_is_fitted_again_only_if_all_was_shown() {
        let before = Extent { whole_ns: 1000.0, width_px: 100.0 };
        let now = Extent { whole_ns: 4000.0, width_px: 100.0 };
        assert_eq!(before.fit().carried(before, now), now.fit());
        let part = View { start_ns: 10.0, ns_per_px: 1.0 };
        assert_eq!(part.carried(before, now), part);
        // On half of the width a pixel stands for twice the time.
        let narrow = Extent { width_px: 50.0, ..now };
        assert_eq!(part.carried(before, narrow), View { ns_per_px: 2.0, ..part });
    }
}
