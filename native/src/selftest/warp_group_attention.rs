//! Attention by groups of warps beside attention by warps, on sizes that fill a card: what is wrong with the order in which
//! copies, products and barriers meet shows where many blocks go through many tiles. The [operators](super::operators) hold both
//! against the CPU, on less.

use std::sync::Arc;

use super::{News, Row, Rows};
use crate::backend::cuda::card::{Card, CardError};
use crate::backend::cuda::fallbacks::{self, Tally};
use crate::backend::cuda::warp_group_trial::{self, MOST, PATIENCE, Shape};

const GROUP: &str = "attention by groups of warps";

/// Two blocks for each multiprocessor, or more; the last tile is not full.
const WHOLE: Shape = Shape { rows: 2040, sequences: 2, heads: [8, 2], window: 2040, cap_e12: None };
const SHAPES: [(&str, Shape); 2] = [
    ("all of a sequence", WHOLE),
    ("a window of it, capped", Shape { window: 700, cap_e12: Some(20_000_000_000_000), ..WHOLE }),
];

/// All widths that `card` has, but not for a checker of memory, which takes each tensor `apart`: it would take too long, and the
/// operators run the same kernels. Where a process goes without, that is said; it fails where that was found when it was opened.
pub(super) fn check<F: FnMut(News)>(card: &Arc<dyn Card>, apart: bool, rows: &mut Rows<F>) {
    let Tally { no_groups, groups_left, .. } = fallbacks::so_far();
    let without =
        |found: &str, against: &str| Row::figure(GROUP, "all widths", found.to_string(), against.to_string());
    if let Some(why) = no_groups {
        rows.push(Row::fact(GROUP, "tried out at the start", "left out: runs go by warps", &why, false));
        return;
    }
    let widths = warp_group_trial::widths(card);
    if widths.is_empty() {
        rows.push(match groups_left {
            true => without("not tried", "the environment says so"),
            false => without("none", "H100 and H200 have them, with NVRTC of CUDA 12.0 or later"),
        });
    }
    if apart {
        return;
    }
    for (widths, (what, shape)) in widths.into_iter().flat_map(|widths| SHAPES.map(|shape| (widths, shape))) {
        let name = format!("heads {} and {} wide, {what}", widths.0, widths.1);
        rows.section(GROUP, &name, |rows| {
            let found = warp_group_trial::compare(card, &shape, widths, PATIENCE)?;
            let row = Row::error(GROUP, name.clone(), found.error, MOST);
            rows.push(if found.repeats { row } else { row.failed("a second run gives other bits") });
            Ok::<_, CardError>(())
        });
    }
}
