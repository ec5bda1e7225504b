//! Loaded by `prover.js`, which then calls what the library exports.

// Linked for its exports.
use pipeplan_prover as _;

fn main() {
    #[cfg(not(target_arch = "wasm32"))]
    println!("The prover runs in a browser: build the page, then `pipeplan serve`; or `pipeplan plan --prove`.");
}
