//! The code of the walk-throughs in `docs/src/contributing`: compiled, run, and included in the pages.

mod command;
mod format;
mod model_family;
mod operator;
mod schedule;
