//! Runs of torch's that are kept in the repository: `tests/reference/torch_profile` and `torch_profile_gpu`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::process::{output, printed, top};

/// The run, for one test.
pub struct Recorded {
    /// The plan whose order it is, of typed costs.
    pub plan: String,
    /// What torch wrote of each rank, as it is kept, with gzip.
    pub packed: [String; 2],
    /// The same, unpacked.
    pub files: [String; 2],
}

/// ZB-V on two ranks with two microbatches, on a CPU; files are under the name of a test.
///
/// # Panics
/// Where they cannot be made.
pub fn recorded(name: &str) -> Recorded {
    of_two_ranks(name, "torch_profile", "zb-v", json!({ "chunks": 2, "microbatches": 2, "placement": "v" }))
}

/// 1F1B on two ranks with four microbatches, both on one GPU; files are under the name of a test.
///
/// # Panics
/// Where they cannot be made.
pub fn recorded_on_gpu(name: &str) -> Recorded {
    of_two_ranks(name, "torch_profile_gpu", "1f1b", json!({ "chunks": 1, "microbatches": 4, "placement": "linear" }))
}

fn of_two_ranks(name: &str, folder: &str, schedule: &str, mut problem: Value) -> Recorded {
    let path = |path: PathBuf| path.to_str().expect("a path in UTF-8").to_owned();
    let [file, plan] = ["problem", "plan"].map(|what| path(output(&format!("{name}-torch-{what}.json"))));
    problem["ranks"] = json!(2);
    problem["stages"] =
        json!({ "forward_ns": 1_000_000, "backward_input_ns": 1_000_000, "backward_weight_ns": 1_000_000 });
    std::fs::write(&file, problem.to_string()).unwrap_or_else(|error| panic!("{file}: {error}"));
    printed(["plan", &file, "--schedule", schedule, "-o", &plan]);

    let kept = top().join("tests/reference").join(folder);
    let packed = ["0", "1"].map(|rank| path(kept.join(format!("rank{rank}.json.gz"))));
    let files = ["0", "1"].map(|rank| path(output(&format!("{name}-torch-rank{rank}.json"))));
    for (packed, file) in packed.iter().zip(&files) {
        let to = std::fs::File::create(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let status = Command::new("gzip").args(["-dc", packed]).stdout(Stdio::from(to)).status();
        assert!(status.is_ok_and(|status| status.success()), "{packed} cannot be unpacked");
    }
    Recorded { plan, packed, files }
}
