//! Numbers, names and sentences as a person reads them.
//!
//! - In: nanoseconds, bytes, shares, names, messages of the planner.
//! - Out: text.
//! - Knows: the planner, and the labels of the form. No browser.

mod names;
mod numbers;
mod sentences;

pub use names::{CUSTOM_SCHEDULE, placement, placement_meaning, schedule_title};
pub use numbers::{MFU, bytes, change, count, counted, duration, is_less, mfu, percent, trimmed};
pub use sentences::{capital, fault_of, for_page, readable, sentence, unreadable_file, with_labels, within_device};

#[cfg(test)]
mod tests;
