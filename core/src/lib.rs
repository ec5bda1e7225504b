//! The planner of pipeplan: from what a person says about a training run to an order of work per rank,
//! its time and memory, and a proof of how far it is from the best.
//!
//! The crate is `no_std` with `alloc` and knows no clock, file, thread or browser: the same input gives
//! the same bytes in WebAssembly and in a native binary. Time is whole nanoseconds and memory whole bytes;
//! no float decides an order.
//!
//! The road goes one way:
//! [`spec`] → [`problem`] → [`schedule`] → [`program`] → [`timeline`] → [`plan`].

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod accounts;
pub mod bounds;
pub mod calibrate;
pub mod canonical;
pub mod check;
pub mod cluster;
pub mod cost;
mod deal;
pub mod derive;
pub mod execute;
pub mod explanation;
pub mod export;
pub mod fields;
pub mod fit;
pub mod format;
pub mod graph;
pub mod jitter;
pub mod json;
pub mod layer_map;
pub mod layout;
pub mod link;
pub mod lower;
pub mod memory;
pub mod model;
pub mod op;
pub mod partition;
pub mod placement;
pub mod plan;
pub mod planner;
pub mod problem;
pub mod profile;
pub mod program;
mod random;
pub mod relief;
pub mod schedule;
pub mod search;
pub mod sensitivity;
pub mod simulate;
pub mod spec;
pub mod step;
pub mod timeline;
pub mod trace;
pub mod tune;
pub mod units;
pub mod verdict;
