//! The arithmetic of the picture.
//!
//! - In: spans, bytes, points, and the visible part of time.
//! - Out: pixels, positions, ticks and SVG.
//! - Knows: ops and timelines of the planner, [`protocol`](crate::protocol) for points of the chart, [`text`](crate::text).
//!   No browser, so that all of it is tested natively.
//!
//! # Spaces
//! - **time**, in nanoseconds from the start of the step, as `f64` (exact to 104 days);
//! - **canvas**, in pixels from the left or top edge of the panel, as `f64`. Pointers speak in CSS pixels,
//!   images in device pixels; a [`View`](view::View) in one becomes the other by
//!   [`View::scaled`](view::View::scaled).
//!
//! [`view`] maps between them and clamps zoom and pan; [`track`] holds one rank's spans; [`raster`] turns a
//! track into one row of pixels, whatever the number of spans under a pixel; [`selection`] goes from block to block; [`marks`] is what a rank did beside its ops; [`memory`] does so for bytes
//! over time; [`rows`] stacks ranks, and [`layout`] panels of them; [`ruler`] places ticks; [`overview`] is all of the time in a strip; [`frontier`] draws time against memory; [`figure`] draws for papers; [`colour`] holds the palette.

pub mod colour;
pub mod figure;
pub mod frontier;
pub mod layout;
pub mod marks;
pub mod memory;
pub mod overview;
pub mod paint;
pub mod painted;
pub mod raster;
pub mod rows;
pub mod ruler;
pub mod selection;
pub mod track;
pub mod view;
