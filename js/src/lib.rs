//! The planner for JavaScript and TypeScript: the source of the npm package, which wasm-pack builds.
//!
//! A thin layer over `pipeplan-core`. It reads arguments as the command does, and returns the text of a file or the object
//! that the command prints with `--json`. Types are in `types.d.ts`; `build.rs` makes the types of files from their JSON
//! Schema.

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
