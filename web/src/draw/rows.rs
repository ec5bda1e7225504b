//! The position of each rank in a panel: rows of equal height, which scroll if they do not fit.

/// Rows of a panel, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// How many.
    pub count: usize,
    /// From one row's top to the next.
    pub pitch_px: f64,
    /// Height of the panel.
    pub height_px: f64,
    /// How much of the top is scrolled out of sight.
    pub scroll_px: f64,
}

impl Rows {
    /// Rows that share `height_px`, each between `least` and `most` pixels high. They use less than the whole
    /// height where there are few, and scroll where there are many.
    pub fn sharing(count: usize, height_px: f64, least: f64, most: f64, scroll_px: f64) -> Rows {
        let pitch_px = (height_px / count.max(1) as f64).clamp(least, most);
        // Whole pixels keep rows equally high on screen.
        let pitch_px = if pitch_px >= 4.0 { pitch_px.floor() } else { pitch_px };
        let rows = Rows { count, pitch_px, height_px: height_px.min(pitch_px * count as f64), scroll_px: 0.0 };
        Rows { scroll_px: scroll_px.clamp(0.0, rows.scroll_range_px()), ..rows }
    }

    /// The farthest scroll.
    pub fn scroll_range_px(&self) -> f64 {
        (self.pitch_px * self.count as f64 - self.height_px).max(0.0)
    }

    /// Top and bottom of a row, less the gap to the next one.
    pub fn span_of(&self, row: usize) -> (f64, f64) {
        let top = row as f64 * self.pitch_px - self.scroll_px;
        (top, top + self.pitch_px - self.gap_px())
    }

    /// Left free between two rows.
    pub fn gap_px(&self) -> f64 {
        match self.pitch_px {
            pitch if pitch >= 12.0 => 3.0,
            pitch if pitch >= 5.0 => 1.0,
            _ => 0.0,
        }
    }

    /// The rows that are at least partly in sight.
    pub fn visible(&self) -> core::ops::Range<usize> {
        let first = (self.scroll_px / self.pitch_px) as usize;
        let last = ((self.scroll_px + self.height_px) / self.pitch_px).ceil() as usize;
        first.min(self.count)..last.min(self.count)
    }

    /// The first and the last row that are in sight as a whole, where not all are.
    pub fn in_sight(&self) -> Option<(usize, usize)> {
        // Rounding alone does not take a row out of sight.
        const A_LITTLE: f64 = 1e-6;
        let first = (self.scroll_px / self.pitch_px - A_LITTLE).ceil() as usize;
        let end = ((self.scroll_px + self.height_px) / self.pitch_px + A_LITTLE) as usize;
        (self.scroll_range_px() > 0.0).then_some((first, end.saturating_sub(1)))
    }

    /// Top and bottom of the mark that says which part of the rows is in sight, where not all are.
    pub fn mark(&self) -> Option<(f64, f64)> {
        let whole = self.pitch_px * self.count as f64;
        let length = (self.height_px * self.height_px / whole).max(12.0);
        let share = self.scroll_px / self.scroll_range_px();
        let top = share * (self.height_px - length);
        (self.scroll_range_px() > 0.0).then_some((top, top + length))
    }

    /// The share of the farthest scroll at which the mark is nearest to `y_px`.
    pub fn share_at(&self, y_px: f64) -> f64 {
        let whole = self.pitch_px * self.count as f64;
        let top = y_px / self.height_px * whole - self.height_px / 2.0;
        if self.scroll_range_px() > 0.0 { (top / self.scroll_range_px()).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The scroll nearest to this one at which a row is in sight as a whole.
    pub fn scroll_showing(&self, row: usize) -> f64 {
        let top = row as f64 * self.pitch_px;
        self.scroll_px.min(top).max(top + self.pitch_px - self.height_px)
    }

    /// The row at `y_px`.
    pub fn at(&self, y_px: f64) -> Option<usize> {
        if !(0.0..self.height_px).contains(&y_px) {
            return None;
        }
        let row = ((y_px + self.scroll_px) / self.pitch_px) as usize;
        (row < self.count).then_some(row)
    }

    /// Rank names fit beside every how many rows.
    pub fn name_every(&self) -> usize {
        const LINE_PX: f64 = 11.0;
        let fits = (LINE_PX / self.pitch_px).ceil().max(1.0) as usize;
        // Round numbers are easier to count on than every seventh.
        [1, 2, 4, 8, 16, 32, 64, 128].into_iter().find(|every| *every >= fits).unwrap_or(256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_high_and_many_scroll() {
        let few = Rows::sharing(4, 400.0, 3.0, 30.0, 50.0);
        assert_eq!((few.pitch_px, few.height_px, few.scroll_px), (30.0, 120.0, 0.0));
        let many = Rows::sharing(1024, 400.0, 3.0, 30.0, 1e9);
        assert_eq!((many.pitch_px, many.height_px), (3.0, 400.0));
        assert_eq!(many.scroll_px, 1024.0 * 3.0 - 400.0);
        assert_eq!(many.visible().end, 1024);
    }

    #[test]
    fn what_is_out_of_sight_is_said_marked_and_scrolled_to() {
        assert_eq!(Rows::sharing(4, 400.0, 3.0, 30.0, 0.0).in_sight(), None);
        assert_eq!(Rows::sharing(4, 400.0, 3.0, 30.0, 0.0).mark(), None);
        let at = |scroll_px: f64| Rows::sharing(32, 144.0, 9.0, 34.0, scroll_px);
        assert_eq!(
            [0.0, 4.0, 144.0].map(|scroll| at(scroll).in_sight()),
            [Some((0, 15)), Some((1, 15)), Some((16, 31))]
        );
        assert_eq!([0.0, 144.0].map(|scroll| at(scroll).mark()), [Some((0.0, 72.0)), Some((72.0, 144.0))]);
        assert_eq!([0.0, 30.0, 72.0, 144.0].map(|y| at(0.0).share_at(y)), [0.0, 0.0, 0.5, 1.0]);
        for row in 0..32 {
            let (first, last) = at(at(50.0).scroll_showing(row)).in_sight().unwrap();
            assert!((first..=last).contains(&row), "{row}");
        }
        assert_eq!(at(50.0).scroll_showing(10), 50.0, "it is in sight already");
    }

    #[test]
    fn every_visible_row_is_found_at_its_middle() {
        for count in [1, 3, 17, 500] {
            let rows = Rows::sharing(count, 300.0, 3.0, 28.0, 40.0);
            for row in rows.visible() {
                let (top, bottom) = rows.span_of(row);
                let middle = (top + bottom) / 2.0;
                if (0.0..rows.height_px).contains(&middle) {
                    assert_eq!(rows.at(middle), Some(row), "{row} of {count}");
                }
            }
            assert_eq!(rows.at(-1.0), None);
            assert_eq!(rows.at(301.0), None);
        }
    }

    #[test]
    fn names_do_not_overlap() {
        for count in [1, 8, 40, 100, 1024] {
            let rows = Rows::sharing(count, 300.0, 2.0, 28.0, 0.0);
            assert!(rows.name_every() as f64 * rows.pitch_px >= 11.0);
        }
    }
}
