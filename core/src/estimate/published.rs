//! How far planned steps were from those that others measured.

use crate::base::units::Nanos;
use crate::spec::ModelWork;

/// What steps took over what is planned for them, of runs that others published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Steps that were compared.
    pub count: usize,
    /// The 10th percentile of what they took over what is planned, in thousandths.
    pub low_per_mille: u64,
    /// The 90th percentile.
    pub high_per_mille: u64,
}

/// Steps of the runs in `core/tests/published_runs.rs`, which holds these figures: models of 1.7 B to 1 T parameters on 8 to
/// 16,384 A100, H100, H800, B200, GB200 and GB300, from the papers and records that [`cost`](crate::hardware::cost) lists.
pub const PUBLISHED_STEPS: Published = Published { count: 97, low_per_mille: 954, high_per_mille: 1150 };

impl Published {
    /// The shortest and the longest that a step of `work`, planned to take `step_ns`, took in eight of ten published runs.
    /// None where a measured profile has the times, or where the device is not of those that published runs had.
    pub fn of(&self, work: &ModelWork, step_ns: Nanos) -> Option<[Nanos; 2]> {
        if work.profile.is_some() || work.device.multiprocessors == 0 {
            return None;
        }
        Some([self.low_per_mille, self.high_per_mille].map(|per_mille| {
            let time = u128::from(step_ns) * u128::from(per_mille) / 1000;
            Nanos::try_from(time).unwrap_or(Nanos::MAX)
        }))
    }
}
