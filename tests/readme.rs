//! README.md and the book in `docs/src`: their commands run, their links lead somewhere, their reference is what the program
//! says of itself, and the code of their walk-throughs works.
//!
//! With `PIPEPLAN_UPDATE=1` in the environment the outputs of commands, the reference and the pictures are written anew;
//! read the diff. Without it they are compared, except for what depends on the machine.

#[path = "book/commands.rs"]
mod commands;
#[path = "book/links.rs"]
mod links;
#[path = "book/pages.rs"]
mod pages;
#[path = "book/pictures.rs"]
mod pictures;
#[path = "book/reference.rs"]
mod reference;
#[path = "book/walkthroughs/mod.rs"]
mod walkthroughs;
