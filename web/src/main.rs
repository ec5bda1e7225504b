//! Starts the page, or the planner's worker.

fn main() {
    println!("The planner page runs in a browser: build it with `trunk build`, then `pipeplan serve`.");
}
