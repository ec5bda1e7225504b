//! What a rank did beside its ops: transfers, collectives, the optimizer. A track of its own under the ops of the rank.

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::simulate::timeline::Span;

use super::colour::{Palette, Rgb};
use super::raster::{Image, track_row};
use super::track::Track;
use super::view::View;

/// Rows lower than this have no room for a second track.
const LEAST_ROW_PX: f64 = 10.0;
/// The share of a row that ops keep.
const SHARE_OF_OPS: f64 = 0.64;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkClass {
    /// P2P transfers, and waits for them.
    Transfer,
    /// The optimizer.
    Optimizer,
    /// Gradients of data parallel ranks.
    GradientSync,
    /// Weights that data parallel ranks have updated in parts.
    ParameterGather,
    /// Collectives of tensor parallel ranks.
    Tensor,
    /// Of context parallel ranks.
    Context,
    /// Of expert parallel ranks.
    Expert,
    /// Collectives that say no more of themselves.
    Other,
}

impl MarkClass {
    /// All, in the order of the legend.
    pub const ALL: [MarkClass; 8] = [
        MarkClass::Transfer,
        MarkClass::Optimizer,
        MarkClass::GradientSync,
        MarkClass::ParameterGather,
        MarkClass::Tensor,
        MarkClass::Context,
        MarkClass::Expert,
        MarkClass::Other,
    ];

    /// The one at a position of [`MarkClass::ALL`].
    pub fn at(position: usize) -> MarkClass {
        MarkClass::ALL.get(position).copied().unwrap_or(MarkClass::Other)
    }

    /// As the legend calls it.
    pub const fn title(self) -> &'static str {
        match self {
            MarkClass::Transfer => "P2P transfer",
            MarkClass::Optimizer => "optimizer",
            MarkClass::GradientSync => "gradient sync",
            MarkClass::ParameterGather => "param all-gather",
            MarkClass::Tensor => "TP",
            MarkClass::Context => "CP",
            MarkClass::Expert => "EP",
            MarkClass::Other => "other collectives",
        }
    }

    /// Its colour.
    pub fn colour(self, palette: &Palette) -> Rgb {
        match self {
            MarkClass::Transfer => palette.memory,
            MarkClass::Optimizer => palette.optimizer,
            MarkClass::GradientSync => palette.sync,
            MarkClass::ParameterGather => palette.sync.mixed(palette.panel, 0.45),
            MarkClass::Tensor => Rgb(201, 84, 141),
            MarkClass::Context => Rgb(122, 140, 40),
            MarkClass::Expert => Rgb(47, 140, 150),
            MarkClass::Other => palette.held,
        }
    }
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Position of its name.
    pub name: u32,
    /// When it started.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Those of a rank.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    all: Vec<Mark>,
    /// As they are drawn, none over another: in place of a stage stands the class, in place of a microbatch the position.
    track: Track,
    end_ns: u64,
}

impl Marks {
    /// In the order of their starts. `class` gives that of a name.
    pub fn new(all: Vec<Mark>, class: impl Fn(u32) -> MarkClass) -> Marks {
        let span = |(position, mark): (usize, &Mark)| Span {
            op: Op::new(class(mark.name) as usize, OpKind::F, position),
            start_ns: mark.start_ns,
            end_ns: mark.end_ns,
        };
        let track = Track::new(all.iter().enumerate().map(span).collect());
        let end_ns = all.iter().map(|mark| mark.end_ns).max().unwrap_or(0);
        Marks { all, track, end_ns }
    }

    /// The one at `time_ns`, or the nearest within `reach_ns`.
    pub fn at(&self, time_ns: f64, reach_ns: f64) -> Option<usize> {
        let place = self.track.at(time_ns, reach_ns)?;
        self.track.spans().get(place).map(|span| span.op.microbatch())
    }

    /// The one at a position.
    pub fn get(&self, position: usize) -> Option<Mark> {
        self.all.get(position).copied()
    }

    /// When the last one ends.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Paints them into `row`, a row of pixels, and copies that into the image from `top` to `bottom`.
    pub fn paint(
        &self,
        image: &mut Image,
        row: &mut [u8],
        (top, bottom): (i64, i64),
        view: View,
        samples: usize,
        palette: &Palette,
    ) {
        let colours = MarkClass::ALL.map(|class| class.colour(palette));
        let colour = |span: &Span| colours.get(span.op.stage()).copied().unwrap_or(palette.held);
        track_row(&self.track, view, palette.idle, samples, colour, row);
        image.repeat_row(row, top, bottom);
    }
}

/// Where the ops of a row end and its marks begin, of a row from `top` to `bottom`; none where there is no room for both.
pub fn split(top: f64, bottom: f64) -> Option<f64> {
    let high = bottom - top;
    (high >= LEAST_ROW_PX).then(|| (top + high * SHARE_OF_OPS).round())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::raster::Image;

    fn marks() -> Marks {
        let mark = |name, start_ns, end_ns| Mark { name, start_ns, end_ns };
        let all = vec![mark(0, 0, 40), mark(1, 20, 60), mark(0, 80, 100)];
        Marks::new(all, |name| if name == 0 { MarkClass::Transfer } else { MarkClass::GradientSync })
    }

    /// What lies over another keeps its own times; the pointer finds the one that is drawn.
    #[test]
    fn marks_that_lie_over_each_other_keep_their_times() {
        let marks = marks();
        assert_eq!(marks.at(30.0, 0.0), Some(0));
        assert_eq!(marks.at(50.0, 0.0), Some(1));
        assert_eq!(marks.get(1), Some(Mark { name: 1, start_ns: 20, end_ns: 60 }));
        assert_eq!((marks.at(70.0, 2.0), marks.at(78.5, 2.0)), (None, Some(2)));
        assert_eq!(marks.end_ns(), 100);
    }

    #[test]
    fn marks_have_the_colour_of_their_class() {
        let palette = Palette::LIGHT;
        let mut image = Image::filled(100, 4, palette.panel, None);
        let mut row = vec![0; 400];
        let view = View { start_ns: 0.0, ns_per_px: 1.0 };
        marks().paint(&mut image, &mut row, (1, 3), view, 8, &palette);
        let pixel = |x: usize, y: usize| &image.bytes[4 * (y * 100 + x)..][..4];
        assert_eq!(pixel(10, 1), &MarkClass::Transfer.colour(&palette).pixel());
        assert_eq!(pixel(50, 2), &MarkClass::GradientSync.colour(&palette).pixel());
        assert_eq!((pixel(70, 2), pixel(10, 3)), (&palette.idle.pixel()[..], &palette.panel.pixel()[..]));
    }

    #[test]
    fn low_rows_are_those_of_ops_alone() {
        assert_eq!((split(0.0, 9.0), split(10.0, 30.0)), (None, Some(23.0)));
    }
}
