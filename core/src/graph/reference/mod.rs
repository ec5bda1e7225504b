//! The documented formulas, written down as plainly as possible in `f64`, on an arena that takes and gives back
//! buffers by the graph's rules. Gradients are held against differences of the loss, bytes against liveness, and devices
//! that share matrices against one that does not.

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
mod norm;
mod rope;
mod run;
mod tests;
