//! Devices and links: how long an operator or a transfer takes on them.
//!
//! - In: the name of a device or its rates; operators of a graph with their shapes.
//! - Out: nanoseconds of an operator by the roofline model ([`cost`]) or by what was measured ([`profile`]), and of a transfer
//!   by its link ([`cluster`]).
//! - Knows: models and their operators. Nothing of stages, ranks' orders or plans.

pub mod cluster;
pub mod cost;
pub mod profile;
mod rates;
