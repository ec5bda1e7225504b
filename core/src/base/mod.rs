//! What every other room uses. This room knows none of them.
//!
//! - In: numbers and JSON values as people write them.
//! - Out: nanoseconds and bytes ([`units`]), fields with faults that name the place ([`fields`]), JSON within stated limits
//!   ([`json`]) or read while it is parsed (`stream`), JSON with its keys in order ([`canonical`]), seeded random numbers.
//! - Knows: nothing of pipelines.

pub mod canonical;
pub mod fields;
pub mod json;
pub(crate) mod random;
pub(crate) mod stream;
pub mod units;
