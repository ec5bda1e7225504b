//! A plan that trains in a moment.

use std::path::PathBuf;
use std::process::Command;

/// The file of a plan of four layers for so many ranks; `name` keeps tests apart.
pub fn plan(name: &str, ranks: usize, schedule: &str) -> PathBuf {
    let file = |what: &str| {
        std::env::temp_dir().join(format!("pipeplan-{name}-{}-{ranks}-{schedule}{what}", std::process::id()))
    };
    let chunks = if schedule == "zb-v" { 2 } else { 1 };
    let spec = format!(
        "schedule = \"{schedule}\"\n[model]\nname = \"tiny-llama\"\nlayers = 8\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = {ranks}\nchunks = {chunks}\n[training]\nmicrobatches = 6\nsequence = 16\n"
    );
    let (spec_file, plan_file) = (file(".toml"), file(".json"));
    std::fs::write(&spec_file, spec).expect("a spec is written");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"))
        .args([std::ffi::OsStr::new("plan"), spec_file.as_os_str(), "-o".as_ref(), plan_file.as_os_str()])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    plan_file
}
