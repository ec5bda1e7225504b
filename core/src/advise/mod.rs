//! What to change: in a spec that does not fit, or that could be faster.
//!
//! - In: a spec, and plans of it.
//! - Out: changes of the spec, each planned ([`suggest`]); layouts of a number of devices by step time ([`tune`]); which times
//!   the makespan depends on ([`sensitivity`]); a comparison in sentences ([`explanation`]).
//! - Knows: the planner and all below it. Nothing else in the crate knows this room.

pub mod explanation;
pub mod sensitivity;
pub mod suggest;
pub mod tune;
