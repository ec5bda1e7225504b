//! A run of torch's that is kept in the repository: `tests/reference/torch_profile`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::process::{output, printed, top};

/// The run, for one test.
pub struct Recorded {
    /// The plan whose order it is: ZB-V on two ranks with two microbatches, of typed costs.
    pub plan: String,
    /// What torch wrote of each rank, as it is kept, with gzip.
    pub packed: [String; 2],
    /// The same, unpacked.
    pub files: [String; 2],
}

/// The run, its files under the name of a test.
///
/// # Panics
/// Where they cannot be made.
pub fn recorded(name: &str) -> Recorded {
    let path = |path: PathBuf| path.to_str().expect("a path in UTF-8").to_owned();
    let [problem, plan] = ["problem", "plan"].map(|what| path(output(&format!("{name}-torch-{what}.json"))));
    let costs = json!({ "forward_ns": 1_000_000, "backward_input_ns": 1_000_000, "backward_weight_ns": 1_000_000 });
    let two = json!({ "ranks": 2, "chunks": 2, "microbatches": 2, "placement": "v", "stages": costs });
    std::fs::write(&problem, two.to_string()).unwrap_or_else(|error| panic!("{problem}: {error}"));
    printed(["plan", &problem, "--schedule", "zb-v", "-o", &plan]);

    let kept = top().join("tests/reference/torch_profile");
    let packed = ["0", "1"].map(|rank| path(kept.join(format!("rank{rank}.json.gz"))));
    let files = ["0", "1"].map(|rank| path(output(&format!("{name}-torch-rank{rank}.json"))));
    for (packed, file) in packed.iter().zip(&files) {
        let to = std::fs::File::create(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let status = Command::new("gzip").args(["-dc", packed]).stdout(Stdio::from(to)).status();
        assert!(status.is_ok_and(|status| status.success()), "{packed} cannot be unpacked");
    }
    Recorded { plan, packed, files }
}
