//! The planner page of pipeplan.
//!
//! It becomes four WebAssembly files (`src/bin`): the page; the planner, which its worker loads beside it; the readers of
//! files and the prover, which are loaded when they are needed first. The first lines of each folder say what goes in, what
//! comes out and what it may know. A folder uses only folders above it in this list:
//!
//! - [`text`]: numbers, names and sentences as a person reads them;
//! - [`form`]: the text of each field, as a spec and back;
//! - [`protocol`]: messages between page and worker;
//! - [`draw`]: spans and bytes as pixels;
//! - [`scene`]: a plan or a measured step as the page holds it;
//! - [`logic`]: decisions of the page that need no browser;
//! - [`worker`]: answers to questions, in pieces;
//! - [`reader`]: what a file is that a person opens;
//! - `page`: components that connect all of this to the browser.
//!
//! All but `page` and `worker::listen` know no browser and are tested natively.

pub mod draw;
pub mod form;
pub mod logic;
pub mod protocol;
pub mod reader;
pub mod scene;
pub mod script_api;
pub mod text;
pub mod worker;

#[cfg(target_arch = "wasm32")]
mod page;

#[cfg(target_arch = "wasm32")]
pub use page::parts::call_planner;

/// Starts the page.
#[cfg(target_arch = "wasm32")]
pub fn start() {
    console_error_panic_hook::set_once();
    page::start();
}

/// Starts the planner, if this is a worker. Scripts call its functions without a start.
#[cfg(target_arch = "wasm32")]
pub fn start_planner() {
    use wasm_bindgen::JsCast;

    console_error_panic_hook::set_once();
    if let Ok(scope) = js_sys::global().dyn_into::<web_sys::DedicatedWorkerGlobalScope>() {
        // A worker of measured runs has that name: see `worker.js`.
        match scope.name() == protocol::TRACE_WORKER {
            true => worker::trace::listen::start(scope),
            false => worker::listen::start(scope),
        }
    }
}
