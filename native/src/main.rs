//! The command line of pipeplan.

use std::process::ExitCode;

mod cmd;

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    #[allow(unsafe_code, reason = "the driver hears this only from the environment")]
    // SAFETY: no thread has been started.
    unsafe {
        pipeplan::backend::cuda::driver::set_up_libraries();
    }
    cmd::fail::install();
    let cli = cmd::Cli::read();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
