//! The command line of pipeplan.

use std::process::ExitCode;

mod cmd;

/// Tensors come and go with every job. What the C library frees it gives back to the system, which then fills each page with
/// zeros again: a run so took up to a fifth longer, and differently often.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    #[allow(unsafe_code, reason = "the driver hears this only from the environment")]
    // SAFETY: no thread has been started.
    unsafe {
        pipeplan::backend::cuda::driver::set_up_libraries();
    }
    cmd::failure::install();
    let cli = cmd::Cli::read();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
