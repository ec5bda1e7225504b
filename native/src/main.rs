//! The command line of pipeplan.

fn main() {}
