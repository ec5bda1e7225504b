//! A plan or a measured step as the page holds it: all that painting and pointing need.
//!
//! - In: pictures and measured steps as they travelled.
//! - Out: tracks, memory curves, figures, and the lines of tooltips.
//! - Knows: the planner's problems, [`draw`](crate::draw), [`protocol`](crate::protocol), [`text`](crate::text). No browser.

mod below;
mod carried;
mod describe;
mod files;
mod gaps;
mod legend;
mod measured;
mod op_table;
mod path;
mod plan;
mod search;
#[cfg(test)]
mod tests;
mod time_split;
mod widths;

use crate::draw::track::Track;
use crate::protocol::WireSpan;
use crate::protocol::spans;

pub use crate::draw::marks::MarkClass;
pub use below::Below;
pub use describe::subject;
pub use gaps::{Alternative, Need, Wait};
pub use legend::{Key, SHADES_TITLE, kinds_of, title_of};
pub use measured::{Ahead, MeasuredScene, measured_scale};
pub use op_table::{OpRow, words_of};
pub use plan::Scene;
#[cfg(test)]
pub(crate) use tests::example;
pub use time_split::{MOST_SPLIT_OPS, Part, Split};
pub use widths::Spread;

/// Rows that have travelled, as tracks.
pub fn tracks_of(rows: &[Vec<WireSpan>]) -> Vec<Track> {
    rows.iter().map(|row| Track::new(spans::unpack(row))).collect()
}
