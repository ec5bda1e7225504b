//! Ctrl-C: the first asks whatever is under way to end soon, the second ends the process.

use std::sync::{Mutex, Once, PoisonError};

use pipeplan::runner::StopFlag;

/// A process has one handler, but a command may have two parts: planning, then running.
static CURRENT: Mutex<Option<StopFlag>> = Mutex::new(None);
static HANDLER: Once = Once::new();

/// A new flag that Ctrl-C raises from now on. Where no handler can be set, the process just ends.
pub fn flag() -> StopFlag {
    let flag = StopFlag::default();
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(flag.clone());
    HANDLER.call_once(|| {
        let _ = ctrlc::set_handler(|| {
            match &*CURRENT.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(flag) if !flag.is_raised() => flag.raise(),
                _ => std::process::exit(130),
            };
        });
    });
    flag
}
