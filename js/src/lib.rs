//! The planner for JavaScript and TypeScript: what wasm-pack makes the npm package of.
//!
//! A thin edge over `pipeplan-core`: what a caller hands over is read as the command reads it, the planner answers, and
//! what comes back is the text of a file, or the object that the command prints with `--json`. Types stand in
//! `types.d.ts`, and those of files in their JSON Schema, from which `build.rs` makes them.

#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod input;
#[cfg(target_arch = "wasm32")]
mod refusal;
#[cfg(target_arch = "wasm32")]
mod search;
#[cfg(target_arch = "wasm32")]
mod tune;
