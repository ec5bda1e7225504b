//! A reference executor for graphs: the documented formulas in `f64`, as plainly as possible, on buffers that follow
//! the rules of liveness. The tests compare gradients with differences of the loss, bytes with liveness, and several
//! tensor-parallel devices with one.

mod activation;
mod arena;
mod attention;
mod devices;
mod embedding;
mod experts;
mod formulas;
mod given;
mod linear;
mod loss;
mod newer;
mod norm;
mod recurrence;
mod rope;
mod run;
mod tests;
