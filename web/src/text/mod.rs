//! Numbers, names and sentences as a person reads them.
//!
//! - In: nanoseconds, bytes, shares, names, messages of the planner.
//! - Out: text.
//! - Knows: the planner. No browser, and no other folder of this crate.

mod names;
mod numbers;
mod sentences;

pub use names::{CUSTOM_SCHEDULE, placement, placement_meaning, schedule_title};
pub use numbers::{
    MFU, bytes, bytes_change, change, count, counted, duration, is_less, mfu, percent, rate_change, share_change,
    trimmed,
};
pub use sentences::{capital, for_page, readable, sentence, unreadable_file, within_device};

#[cfg(test)]
mod tests;
