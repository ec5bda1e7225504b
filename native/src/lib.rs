//! The runner of pipeplan: it executes a plan on ranks, and the command line uses it.
//!
//! The runner executes the op list of each rank and the operator graph of each stage. It knows no scheduler: an order that
//! `check` accepts is an order that it runs.
//!
//! | Module | What it does |
//! |---|---|
//! | [`runner`] | trains: data, optimizer, gradients, checkpoints, the loop of a rank over its op list |
//! | [`backend`] | executes the operators of a stage on the CPU or a GPU, runs stages that another program brings ([`backend::staged`]), or waits for planned times |
//! | [`data`] | finds out what a file of data is, and gives its tokens |
//! | [`transport`] | exchanges tensors between ranks: threads, TCP, MPI, NCCL; collectives |
//! | [`mesh`] | ranks as a grid with named axes, and tensors that are sharded over it |
//! | [`profiling`] | measures operators, for plans with measured times |
//! | [`selftest`] | checks a device or a transport against references |
//! | [`bootstrap`] | reads rank and world size from the variables of a launcher |

pub mod backend;
pub mod bootstrap;
pub mod data;
pub mod mesh;
pub mod profiling;
pub mod runner;
pub mod selftest;
pub mod transport;
