//! Wrong input, of every command.

use crate::command::{printed, refused, run};
use serde_json::{Value, json};

use super::{PROBLEM, TINY, folder, path, write};

#[test]
fn wrong_input_is_refused_with_the_place_and_what_to_write() {
    let folder = folder();
    let spec = path(&folder, "spec.toml");
    write(&spec, &TINY.replace("pipeline = 2", "pipeline = 0").replace("\"cpu\"", "\"abacus\""));
    let error = refused(&["plan", &spec], "");
    for says in [
        "spec.toml has 2 faults",
        "parallel.pipeline: found 0, accepted is a whole number from 1 to 1024",
        "cluster.device: found \"abacus\", accepted is one of a100-40",
        "spec.toml:6:10",
    ] {
        assert!(error.contains(says), "{error} should say {says}");
    }
    let plan = printed(&["plan", "-", "--schedule", "zb-v", "--json"], PROBLEM);
    let link = printed(&["link", "-"], PROBLEM);
    let mut changed = link.trim().to_owned();
    let other = if &changed[12..13] == "A" { "B" } else { "A" };
    changed.replace_range(12..13, other);
    let broken = link.trim().replace("#v2", "#v7");
    let with = |line: &str| {
        let on_a_gpu = TINY.replace("\"cpu\"", "\"h100\"");
        on_a_gpu.replace("[training]\n", &format!("[training]\n{line}\n"))
    };
    for (arguments, input, says) in [
        (&["plan", "no-such-file.toml"][..], "", "no-such-file.toml cannot be read"),
        (&["plan", "."], "", ". cannot be read"),
        (&["plan", "-"], "{\n\"ranks\": }", "standard input: this is not JSON: line 2, column 10"),
        (&["plan", "-"], "ranks = 2\nranks = 3\n", "this is not TOML: line 2"),
        (&["plan", "-"], "", "standard input is empty"),
        (&["check", "-"], "", "standard input is empty"),
        (&["plan", "-"], "name = \"x\"", "model: found nothing"),
        (
            &["compare", "-"],
            &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"),
            "no schedule is valid for this spec",
        ),
        (
            &["plan", "-", "--schedule", "2f2b"],
            PROBLEM,
            "no schedule is called `2f2b`; accepted is one of best, gpipe",
        ),
        (&["plan", "-", "--schedule", "zbv"], PROBLEM, "(perhaps zb-v)"),
        (&["plan", "-"], &TINY.replace("layers", "layesr"), "(perhaps layers)"),
        (&["plan", "-", "--schedule", "1f1b"], PROBLEM, "1f1b has no plan here: it has 1 chunk per rank"),
        (&["compare", "-"], &PROBLEM.replace("\"ranks\": 4", "\"ranks\": 0"), "ranks: found 0"),
        (&["compare", "-"], &PROBLEM.replace(": 8,", ": 1000000000,"), "microbatches: found 1000000000"),
        (
            &["compare", "-"],
            &PROBLEM.replace("\"forward_ns\": 50", "\"forward_ns\": 1e300"),
            "forward_ns: found 1e+300",
        ),
        (&["plan", "-"], &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"), "needs at least"),
        (&["plan", &changed], "", "the link's checksum is wrong"),
        (&["plan", &broken], "", "the link's version is `v7`"),
        (&["plan", "https://example.org/"], "", "the address has no spec"),
        (&["check", "-"], &plan.replace("zb-v", "zb-w"), "the plan was changed after it was written"),
        (&["check", "-"], &plan.replace("\"version\": 1", "\"version\": 9"), "the plan's version is 9"),
        (&["show", "-", "--step", "3"], &plan, "--step applies to traces"),
        (&["run", "-"], &plan, "no model to train"),
        (&["run", "-", "--data", "no-such-book.txt"], TINY, "no-such-book.txt cannot be read"),
        (
            &["run", "-", "--backend", "emulated"],
            &with("moments_dtype = \"bf16\""),
            "training.moments_dtype = \"bf16\", which runs on the CPU only",
        ),
        (
            &["run", "-", "--backend", "emulated"],
            &with("matmul_dtype = \"fp8\""),
            "training.matmul_dtype = \"fp8\", which runs on the CPU only",
        ),
        (
            &["profile", "-"],
            &with("gradients_dtype = \"bf16\""),
            "operators with training.gradients_dtype = \"bf16\" are not measured",
        ),
        (
            &["plan", "-"],
            &with("matmul_dtype = \"fp4\""),
            "training.matmul_dtype: found \"fp4\", accepted is one of fp8, mxfp8, mxfp4, nvfp4",
        ),
        (&["serve", "--web", "no-such-folder"], "", "no-such-folder holds no index.html"),
        (&["plan"], "", "Usage: pipeplan plan"),
    ] {
        let error = refused(arguments, input);
        assert!(error.contains(says), "{arguments:?}: {error} should say {says}");
    }
    let (_, stdout, _) = run(&["check", "-", "--json"], &plan.replace("zb-v", "zb-w"));
    let verdict: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(verdict["valid"], false);
    // Nothing is known of what was not read.
    let (code, stdout, _) = run(&["check", "no-such-file.json", "--json"], "");
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
}

#[test]
fn a_text_without_end_is_refused() {
    let error = refused(&["run", "-", "--data", "/dev/zero"], TINY);
    assert!(error.contains("/dev/zero is longer than the limit of 1073741824 bytes"), "{error}");
}

#[test]
fn a_models_config_is_told_how_to_become_a_spec() {
    let folder = folder();
    let config = path(&folder, "my \"7B\".json");
    let sizes = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    write(&config, &sizes.to_string());
    let error = refused(&["plan", &config], "");
    assert!(error.contains("describes a model") && error.lines().count() < 12, "{error}");
    // What it says to write is a spec.
    let fields = ["model.", "cluster.", "parallel.", "training."];
    let lines: Vec<&str> = error
        .lines()
        .filter_map(|line| fields.iter().find_map(|field| Some(&line[line.find(field)?..])))
        .filter(|line| line.contains(" = "))
        .collect();
    assert_eq!(lines.len(), 5, "{error}");
    let spec = path(&folder, "spec.toml");
    write(&spec, &lines.join("\n"));
    assert!(printed(&["plan", &spec, "--schedule", "1f1b"], "").contains("8 ranks"));
}
