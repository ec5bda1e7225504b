//! Starts the page, or the planner's worker: both load the same file.

fn main() {
    #[cfg(target_arch = "wasm32")]
    pipeplan_web::start();
    #[cfg(not(target_arch = "wasm32"))]
    println!("The planner page runs in a browser: build it with `trunk build`, then `pipeplan serve`.");
}
