//! The planner page of pipeplan.
//!
//! All arithmetic of the page stands in plain modules that know no browser and are tested natively:
//! [`draw`] turns spans and bytes into pixels, [`form`] turns what a person types into a spec and back,
//! [`message`] is what page and worker say to each other, [`work`] is what the worker does about it.
//! `page` and `worker` connect them to the browser and exist only in WebAssembly.
//!
//! One WebAssembly file serves both the page and its worker, so the planner is downloaded once.

pub mod draw;
pub mod text;
