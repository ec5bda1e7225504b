//! The command line of pipeplan.

use std::process::ExitCode;

use clap::Parser;

mod cmd;

fn main() -> ExitCode {
    cmd::fail::install();
    let cli = cmd::Cli::parse();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
