//! The planner page of pipeplan.
//!
//! One WebAssembly file serves both the page and its worker, so that the planner is downloaded once. The first lines of each
//! folder say what goes in, what comes out and what it may know. A folder uses only folders above it in this list:
//!
//! - [`text`]: numbers, names and sentences as a person reads them;
//! - [`form`]: the text of each field, as a spec and back;
//! - [`protocol`]: messages between page and worker;
//! - [`draw`]: spans and bytes as pixels;
//! - [`scene`]: a plan or a measured step as the page holds it;
//! - [`logic`]: decisions of the page that need no browser;
//! - [`worker`]: answers to questions, in pieces;
//! - `page`: components that connect all of this to the browser.
//!
//! All but `page` and `worker::listen` know no browser and are tested natively.

pub mod draw;
pub mod form;
pub mod logic;
pub mod protocol;
pub mod scene;
pub mod script_api;
pub mod text;
pub mod worker;

#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod page;

/// Starts the worker inside a worker, and the page anywhere else.
#[cfg(target_arch = "wasm32")]
pub fn start() {
    use wasm_bindgen::JsCast;

    console_error_panic_hook::set_once();
    match js_sys::global().dyn_into::<web_sys::DedicatedWorkerGlobalScope>() {
        Ok(scope) => worker::listen::start(scope),
        Err(_) => page::start(),
    }
}
