//! Ticks of the time axis.

use super::view::View;
use crate::text::trimmed;

/// One labelled tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Canvas x.
    pub x_px: f64,
    /// The time with its unit.
    pub label: String,
}

/// Ticks at round times over `width_px`, at least `apart_px` apart. All have the unit that suits their step,
/// so that two neighbours can be told apart by their last digit.
pub fn ticks(view: View, width_px: f64, apart_px: f64) -> Vec<Tick> {
    let Some(step_ns) = round_step(apart_px * view.ns_per_px) else { return Vec::new() };
    let end_ns = view.time_at(width_px);
    // The largest unit that the times reach and in which the step needs at most three decimals.
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let suits = |(unit_ns, _): &(f64, &str)| end_ns >= *unit_ns && step_ns >= *unit_ns / 1e3;
    let (unit_ns, unit) = units.into_iter().find(suits).unwrap_or((1.0, "ns"));
    let decimals = (unit_ns / step_ns).log10().ceil().max(0.0) as usize;
    let first = (view.start_ns / step_ns).ceil();
    // A guard against a view that no clamp has seen; two thousand labels fill any screen.
    (0..2000)
        .map(|index| (first + f64::from(index)) * step_ns)
        .map(|time_ns| (view.x_of(time_ns), time_ns))
        .take_while(|(x_px, _)| *x_px <= width_px)
        .map(|(x_px, time_ns)| Tick { x_px, label: format!("{} {unit}", trimmed(time_ns / unit_ns, decimals)) })
        .collect()
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
pub(super) fn round_step(least: f64) -> Option<f64> {
    if !(least.is_finite() && least > 0.0) {
        return None;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= least * (1.0 - 1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_share_a_unit_and_a_round_step() {
        let labels = |start_ns, ns_per_px| -> Vec<String> {
            ticks(View { start_ns, ns_per_px }, 500.0, 100.0).into_iter().map(|tick| tick.label).collect()
        };
        assert_eq!(labels(0.0, 10.0), ["0 µs", "1 µs", "2 µs", "3 µs", "4 µs", "5 µs"]);
        assert_eq!(labels(0.0, 0.05), ["0 ns", "5 ns", "10 ns", "15 ns", "20 ns", "25 ns"]);
        assert_eq!(labels(1e9, 4e5), ["1 s", "1.05 s", "1.1 s", "1.15 s", "1.2 s"]);
    }

    #[test]
    fn ticks_are_far_enough_apart_at_every_zoom() {
        for exponent in -20..160 {
            let view = View { start_ns: 1e6, ns_per_px: 10f64.powf(f64::from(exponent) / 10.0) };
            let ticks = ticks(view, 1000.0, 80.0);
            assert!(ticks.len() <= 13, "{} at {exponent}", ticks.len());
            for pair in ticks.windows(2) {
                assert!(pair[1].x_px - pair[0].x_px >= 79.9);
                assert_ne!(pair[0].label, pair[1].label);
            }
        }
    }
}
