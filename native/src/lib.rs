//! The command line of pipeplan and the runner: what executes a plan on ranks of one machine.
//!
//! The runner walks a rank's program row and executes the operator graph of each stage. It knows no
//! scheduler: an order that `check` accepts is an order that it runs.

pub mod backend;
pub mod bootstrap;
pub mod mesh;
pub mod profiling;
pub mod runner;
pub mod selftest;
pub mod transport;
