//! The planner of pipeplan: from what a person says about a training run to an order of work per rank,
//! its time and memory, and a proof of how far it is from the best.
//!
//! The crate is `no_std` with `alloc` and knows no clock, file, thread or browser: the same input gives
//! the same bytes in WebAssembly and in a native binary. Time is whole nanoseconds and memory whole bytes;
//! no float decides an order.
//!
//! The road goes one way:
//! [`spec`] → [`estimate`] → [`problem`] → [`schedule`] or [`search`] → [`simulate`] → [`program`] → [`plan`] → [`trace`].
//! Each room says in its first lines what goes in, what comes out and what it may know; which room may use which is a
//! table in `tests/rooms.rs`.

#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod advise;
pub mod api;
pub mod base;
pub mod bounds;
pub mod check;
pub mod estimate;
pub mod formats;
pub mod graph;
pub mod hardware;
pub mod model;
pub mod notation;
pub mod plan;
pub mod problem;
pub mod program;
pub mod schedule;
pub mod search;
pub mod simulate;
pub mod spec;
pub mod trace;
