//! The panels around the timeline: arguments of a run, figures, the measured run, microbatches, time and memory by rank, passes, sensitivity, time against memory, comparison, layouts.
//!
//! - In: the signals of the page's state.
//! - Out: components, one file for each panel.
//! - Knows: the state of the page, [`draw`](crate::draw), [`form`](crate::form), [`logic`](crate::logic),
//!   [`scene`](crate::scene), [`text`](crate::text). No other panel, and no worker.

pub mod arguments;
pub mod compare;
pub mod figures;
pub mod frontier;
pub mod hang;
pub mod layouts;
pub mod memory;
pub mod microbatches;
pub mod passes;
pub mod run;
pub mod sensitivity;
pub mod time_split;
