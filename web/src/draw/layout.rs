//! Where the panels of the picture and their rows are, in CSS pixels.

use super::marks;
use super::rows::Rows;

/// Height of the ruler.
pub const RULER_PX: f64 = 22.0;
/// Height of the line that names a panel.
pub const TITLE_PX: f64 = 20.0;
/// Between two panels.
const BETWEEN_PX: f64 = 6.0;

/// A panel of a picture is no higher: that of a thousand ranks would be mostly lines of a few pixels.
pub const WHOLE_PX: f64 = 1200.0;

/// From so many ranks on, memory is a heat map with the rows of the ranks.
pub const HEAT_FROM: usize = 16;

/// Rows of a picture that has room are no higher.
const MOST_ROW_PX: f64 = 96.0;

/// One panel of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Panel {
    /// Top of its first row.
    pub top_px: f64,
    /// Its rows.
    pub rows: Rows,
    /// Whether the lower part of a row is for what its rank did beside its ops.
    pub marked: bool,
}

impl Panel {
    /// Top and bottom of the ops of a row, from the top of the panel.
    pub fn ops_of(&self, row: usize) -> (f64, f64) {
        let (top, bottom) = self.rows.span_of(row);
        (top, self.marks_from(row).unwrap_or(bottom))
    }

    /// Where the lower part of a row begins, where it has one.
    pub fn marks_from(&self, row: usize) -> Option<f64> {
        let (top, bottom) = self.rows.span_of(row);
        marks::split(top, bottom).filter(|_| self.marked)
    }
}

/// Where everything is, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Left of the time axis: room for rank names.
    pub left_px: f64,
    /// Width of the time axis.
    pub width_px: f64,
    /// Height of all.
    pub height_px: f64,
    /// How far ranks are scrolled.
    pub scroll_px: f64,
    /// How far they can be.
    pub scroll_range_px: f64,
    /// The planned ranks.
    pub planned: Panel,
    /// The ranks of the part under the plan.
    pub below: Option<Panel>,
    /// What ranks send, gradient sync and optimizer, where that is shown.
    pub carried: Option<Panel>,
    /// Memory by rank.
    pub memory: Panel,
    /// Whether memory is a heat map.
    pub heat: bool,
}

/// What decides how high panels are.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Heights {
    /// Panels grow up to this height where their rows need it.
    most_px: f64,
    /// They share this height beside that.
    room_px: f64,
    /// Whether transfers, gradient sync and optimizer are shown.
    carried: bool,
}

/// The panel of a point of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A planned rank.
    Planned(usize),
    /// A rank of the part under the plan.
    Below(usize),
    /// What such a rank did beside its ops.
    Marks(usize),
    /// What a rank sends and does beside its ops.
    Carried(usize),
    /// The memory of a rank.
    Memory(usize),
    /// The ruler: all ranks at a time.
    Ruler,
}

impl Layout {
    /// Stacks the panels for `ranks` planned ranks and `below` ranks compared with them, scrolled by `scroll_px` of
    /// [`Layout::scroll_range_px`]. Panels scroll by the same share, so that the same ranks are in sight.
    pub fn new(whole_width_px: f64, ranks: usize, below: usize, scroll_px: f64) -> Layout {
        Layout::stacked(whole_width_px, ranks, below, scroll_px, Heights::default())
    }

    /// As [`Layout::new`], higher by up to `room_px`, which rows share, and with what ranks send where that is `carried`.
    pub fn roomy(
        whole_width_px: f64,
        ranks: usize,
        below: usize,
        scroll_px: f64,
        room_px: f64,
        carried: bool,
    ) -> Layout {
        Layout::stacked(whole_width_px, ranks, below, scroll_px, Heights { most_px: 0.0, room_px, carried })
    }

    /// As [`Layout::new`], as high as all ranks need, up to [`WHOLE_PX`] a panel: paper and pictures do not scroll.
    pub fn whole(whole_width_px: f64, ranks: usize, below: usize, carried: bool) -> Layout {
        Layout::stacked(whole_width_px, ranks, below, 0.0, Heights { most_px: WHOLE_PX, room_px: 0.0, carried })
    }

    fn stacked(whole_width_px: f64, ranks: usize, below: usize, scroll_px: f64, heights: Heights) -> Layout {
        let Heights { most_px, room_px, carried } = heights;
        let left_px = if whole_width_px < 520.0 { 30.0 } else { 52.0 };
        // What was measured without a plan has the room of both.
        let tracks_px = match (ranks, below) {
            (0, _) => 460.0,
            (_, 0) => 200.0,
            _ => 160.0,
        };
        let share = if below > 0 { room_px / 3.0 } else { room_px / 2.0 };
        let rows = |count: usize, usual_px: f64, least_px: f64, row_px: f64| {
            let usual_px = usual_px + share;
            let row_px =
                row_px.max(if share > 0.0 { (usual_px / count.max(1) as f64).min(MOST_ROW_PX) } else { 0.0 });
            let height_px = (count as f64 * least_px).min(most_px).max(usual_px);
            Rows::sharing(count, height_px, least_px, row_px, 0.0)
        };
        let planned = rows(ranks, tracks_px, 3.0, 28.0);
        let below = (below > 0).then(|| rows(below, tracks_px, 3.0, 28.0));
        // With the rows of the ranks, so that a rank and its memory are in sight together.
        let heat = ranks >= HEAT_FROM;
        let memory = if heat { planned } else { rows(ranks, 144.0, 9.0, 34.0) };
        let carried = (carried && ranks > 0).then(|| if heat { planned } else { rows(ranks, 96.0, 9.0, 18.0) });
        let ranges = [planned, memory].into_iter().chain(below).map(|rows| rows.scroll_range_px());
        let scroll_range_px = ranges.fold(0.0, f64::max);
        let share = if scroll_range_px > 0.0 { (scroll_px / scroll_range_px).clamp(0.0, 1.0) } else { 0.0 };
        let mut y = RULER_PX;
        let mut panel = |rows: Rows| {
            let rows = Rows { scroll_px: share * rows.scroll_range_px(), ..rows };
            if rows.count == 0 {
                return Panel { top_px: y, rows, marked: false };
            }
            let panel = Panel { top_px: y + TITLE_PX, rows, marked: false };
            y = panel.top_px + rows.height_px + BETWEEN_PX;
            panel
        };
        let planned = panel(planned);
        let below = below.map(&mut panel);
        let carried = carried.map(&mut panel);
        let memory = panel(memory);
        let width_px = (whole_width_px - left_px - 1.0).max(1.0);
        let scroll_px = share * scroll_range_px;
        Layout { left_px, width_px, height_px: y, scroll_px, scroll_range_px, planned, below, carried, memory, heat }
    }

    /// As this, with a track for what ranks did beside their ops, where `marked`.
    pub fn with_marks(mut self, marked: bool) -> Layout {
        self.below = self.below.map(|panel| Panel { marked, ..panel });
        self
    }

    /// How far to scroll so that a rank of a panel comes into sight, if it is not.
    pub fn scroll_showing(&self, panel: &Panel, rank: usize) -> f64 {
        let (range, here) = (panel.rows.scroll_range_px(), panel.rows.scroll_px);
        // Panels scroll by the same share.
        let share = |scroll_px: f64| if range > 0.0 { scroll_px / range } else { 0.0 };
        let to = panel.rows.scroll_showing(rank);
        if to == here { self.scroll_px } else { share(to) * self.scroll_range_px }
    }

    /// How far a tap on the scroll mark of a panel, or near it, scrolls.
    pub fn scroll_at(&self, x_px: f64, y_px: f64) -> Option<f64> {
        // As wide as a finger needs.
        const REACH_PX: f64 = 20.0;
        let tapped = |panel: &Panel| panel.rows.mark().is_some() && panel.rows.at(y_px - panel.top_px).is_some();
        let near = x_px >= self.left_px + self.width_px - REACH_PX;
        let panel = self.panels().filter(|_| near).find(tapped)?;
        Some(panel.rows.share_at(y_px - panel.top_px) * self.scroll_range_px)
    }

    /// All panels, from the top.
    pub fn panels(&self) -> impl Iterator<Item = Panel> + use<> {
        [Some(self.planned), self.below, self.carried, Some(self.memory)].into_iter().flatten()
    }

    /// The element at a point of the canvas.
    pub fn place_at(&self, y_px: f64) -> Option<Place> {
        let row = |panel: &Panel| panel.rows.at(y_px - panel.top_px);
        let below = self.below.as_ref().and_then(|panel| {
            let rank = row(panel)?;
            let from = panel.marks_from(rank).filter(|from| y_px - panel.top_px >= *from);
            Some(from.map_or(Place::Below(rank), |_| Place::Marks(rank)))
        });
        let ruler = (0.0..RULER_PX).contains(&y_px).then_some(Place::Ruler);
        let carried = self.carried.as_ref().and_then(row).map(Place::Carried);
        row(&self.planned)
            .map(Place::Planned)
            .or(below)
            .or(carried)
            .or(row(&self.memory).map(Place::Memory))
            .or(ruler)
    }
}
