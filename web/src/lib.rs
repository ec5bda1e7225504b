//! The planner page of pipeplan.
//!
//! All arithmetic of the page stands in plain modules that know no browser and are tested natively:
//! [`draw`] turns spans and bytes into pixels, [`form`] turns what a person types into a spec and back,
//! [`message`] is what page and worker say to each other, [`work`] is what the worker does about it,
//! [`scene`] is what the page then holds, [`gap`] says why a rank of it waits, [`ranking`] orders its comparison, [`compared`], [`kept`] and [`tuned`] say whether
//! its rows, what was kept and what was found go with it, [`edits`] tells steps of the history apart, [`packing`] makes files short. `page` and
//! `worker` connect them to the browser and exist only in WebAssembly.
//!
//! One WebAssembly file serves both the page and its worker, so the planner is downloaded once.

pub mod compared;
pub mod draw;
pub mod edits;
pub mod form;
pub mod frontier;
pub mod gap;
pub mod kept;
pub mod message;
pub mod packing;
pub mod proof;
pub mod ranking;
pub mod scene;
pub mod text;
pub mod tuned;
pub mod wire;
pub mod work;

#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod page;
#[cfg(target_arch = "wasm32")]
mod worker;

/// Starts the worker inside a worker, and the page anywhere else.
#[cfg(target_arch = "wasm32")]
pub fn start() {
    use wasm_bindgen::JsCast;

    console_error_panic_hook::set_once();
    match js_sys::global().dyn_into::<web_sys::DedicatedWorkerGlobalScope>() {
        Ok(scope) => worker::start(scope),
        Err(_) => page::start(),
    }
}
