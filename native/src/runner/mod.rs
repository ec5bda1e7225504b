//! Executing a plan: one thread a rank, each walking its row of the program.

pub mod random;
