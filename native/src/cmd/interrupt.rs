//! Signals.
//!
//! Ctrl-C: the first asks whatever is under way to end soon, the second ends the process. SIGUSR1 asks, too: launchers hand
//! it on to all ranks and, unlike after Ctrl-C, let them end in their own time. SIGUSR2 asks a run to begin or to end recording.

use std::sync::{Mutex, Once, OnceLock, PoisonError};

use pipeplan::runner::{RecordingSwitch, StopFlag};

/// A process has one handler, but a command may have two parts: planning, then running. With whether Ctrl-C has come since
/// it began, which the flag does not say: SIGUSR1 may have come first, or sooner than a Ctrl-C that was earlier.
static CURRENT: Mutex<Option<(StopFlag, bool)>> = Mutex::new(None);
static HANDLER: Once = Once::new();
static ENDING: OnceLock<StopFlag> = OnceLock::new();
static AGAIN: OnceLock<StopFlag> = OnceLock::new();
static RECORDING: OnceLock<RecordingSwitch> = OnceLock::new();

/// A new flag that Ctrl-C and SIGUSR1 raise from now on. Where no handler can be set, the process just ends.
pub fn flag() -> StopFlag {
    let flag = StopFlag::default();
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some((flag.clone(), false));
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGUSR1, flag.shared());
    HANDLER.call_once(|| {
        // A file beyond the limit of file sizes is a failed write, with a report, and no end without a word.
        #[cfg(unix)]
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, StopFlag::default().shared());
        let _ = ctrlc::set_handler(|| {
            ending().raise();
            match &mut *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) {
                Some((flag, has_come @ false)) => {
                    *has_come = true;
                    flag.raise();
                }
                _ => match AGAIN.get() {
                    Some(again) => again.raise(),
                    None => std::process::exit(130),
                },
            };
        });
    });
    flag
}

/// A flag that the second Ctrl-C raises from now on instead of ending the process: for commands that first end other
/// processes.
pub fn again() -> StopFlag {
    AGAIN.get_or_init(StopFlag::default).clone()
}

/// The flag that Ctrl-C and a launcher's SIGTERM raise and SIGUSR1 does not: after it, launchers soon kill.
pub fn ending() -> StopFlag {
    ENDING.get_or_init(StopFlag::default).clone()
}

/// What SIGUSR2 asks from now on. Where no handler can be set, nothing does.
pub fn recording() -> RecordingSwitch {
    RECORDING
        .get_or_init(|| {
            let switch = RecordingSwitch::default();
            #[cfg(unix)]
            if let Ok(mut signals) = signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR2]) {
                let switch = switch.clone();
                // It sleeps until a signal comes.
                let wait = move || signals.forever().for_each(|_| switch.ask());
                let _ = std::thread::Builder::new().name("signals".to_string()).spawn(wait);
            }
            switch
        })
        .clone()
}
