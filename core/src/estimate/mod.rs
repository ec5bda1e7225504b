//! From model, hardware and layout to the costs and bytes of each stage.
//!
//! - In: a [`Spec`](crate::spec::Spec).
//! - Out: the [`Problem`](crate::problem::Problem) that a scheduler gets ([`mod@derive`]), with the layers of each
//!   stage ([`partition`], `assign`, [`layer_map`]), the recomputation and offload that fit the memory limit
//!   ([`fit`]), the bytes that a rank holds besides activations ([`memory`]), the step epilogue: gradient sync and
//!   optimizer ([`step`]), and reports of the passes ([`pass_reports`]).
//! - Knows: specs, models, graphs and hardware; schedules only as orders in which memory is held. Never how a
//!   schedule is searched.

mod assign;
pub mod derive;
pub mod fit;
pub mod layer_map;
pub mod memory;
pub mod partition;
pub mod pass_reports;
pub mod published;
pub mod step;
