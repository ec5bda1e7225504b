//! How often a run best writes checkpoints, from how long it stands still for each and how often it fails.
//!
//! - Young, “A first order approximation to the optimum checkpoint interval”, CACM 17 (1974): `√(2 δ M)`.
//! - Daly, “A higher order estimate of the optimum checkpoint interval for restart dumps”, FGCS 22 (2006): eq. 37 for the
//!   interval, eq. 20 for the time that a run takes with it.
//!
//! `δ` is the time that training stands still for a checkpoint, `M` the mean time between failures of the whole run, and an
//! interval is the time of training between two checkpoints. All are in the same unit.

/// Young's interval: right where checkpoints are short against the time between failures.
pub fn young(pause: f64, between_failures: f64) -> f64 {
    (2.0 * pause * between_failures).sqrt()
}

/// Daly's interval, which holds for longer checkpoints, too.
pub fn daly(pause: f64, between_failures: f64) -> f64 {
    if pause >= 2.0 * between_failures {
        return between_failures;
    }
    let ratio = pause / (2.0 * between_failures);
    young(pause, between_failures) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - pause
}

/// The share of the time of a run that brings nothing: checkpoints, and work that is made again. Failures come at random, also
/// while a checkpoint is written; the time of a restart is not in it.
pub fn lost_share(interval: f64, pause: f64, between_failures: f64) -> f64 {
    1.0 - interval / (between_failures * ((interval + pause) / between_failures).exp_m1())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// δ, M, Young's and Daly's interval. The first two rows are worked out by hand, in minutes: √(2·5·1440) = 120, and with
    /// √(5/2880) = 1/24 Daly's is 120·(1 + 1/72 + 1/5184) − 5. The third is Llama 3 405B's run in seconds: 419 unexpected
    /// interruptions in 54 days (arXiv:2407.21783, §3.3.4), and a pause of 10 s: M = 11,135 s. In the last one a checkpoint
    /// takes longer than two failures are apart.
    const TABLE: [(f64, f64, f64, f64); 4] = [
        (5.0, 1440.0, 120.0, 116.689_814_814_8),
        (0.0, 1440.0, 0.0, 0.0),
        (10.0, 11_135.083_532_2, 471.912_778_6, 465.269_656_8),
        (10.0, 4.0, 8.944_271_910_0, 4.0),
    ];

    #[test]
    fn intervals_are_those_of_young_and_daly() {
        for (pause, between, of_young, of_daly) in TABLE {
            assert!((young(pause, between) - of_young).abs() < 1e-4 * of_young.max(1.0), "{pause} {between}");
            let found = daly(pause, between);
            assert!((found - of_daly).abs() < 1e-4 * of_daly.max(1.0), "{pause} {between}: {found}");
        }
    }

    /// Daly's is the estimate of what has no closed form: no interval near it loses noticeably less.
    #[test]
    fn no_other_interval_loses_noticeably_less_than_dalys() {
        for (pause, between) in [(5.0, 1440.0), (10.0, 11_135.0), (30.0, 300.0), (60.0, 240.0)] {
            let lost = lost_share(daly(pause, between), pause, between);
            let best = (1..4000).map(|at| lost_share(f64::from(at) * between / 1000.0, pause, between));
            let best = best.fold(f64::INFINITY, f64::min);
            assert!(lost <= best + 1e-3, "{pause} {between}: {lost} {best}");
            assert!(lost <= lost_share(young(pause, between), pause, between) + 1e-9, "{pause} {between}");
        }
    }

    /// Daly's eq. 20 by another way: a segment of `interval + pause` is tried until no failure comes in it.
    #[test]
    fn the_share_lost_is_that_of_segments_tried_until_one_is_whole() {
        let (interval, pause, between) = (116.69, 5.0, 1440.0);
        let length: f64 = interval + pause;
        let whole = (-length / between).exp();
        // Mean time of a try that fails, and the number of them before one does not.
        let failed = between - length * whole / (1.0 - whole);
        let took = length + (1.0 - whole) / whole * failed;
        assert!((lost_share(interval, pause, between) - (1.0 - interval / took)).abs() < 1e-12);
    }
}
