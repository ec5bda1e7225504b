//! Executing a plan: one thread a rank, each walking its row of the program.

pub mod data;
pub mod optimizer;
pub mod random;
