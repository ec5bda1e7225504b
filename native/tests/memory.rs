//! What `pipeplan memory` tells a person and a program.

mod command;

use command::{json_of, run};
use serde_json::Value;

/// Llama 2 13B on eight A100: 1F1B holds the most on rank 0.
fn spec(memory: &str) -> String {
    format!(
        "schedule = \"1f1b\"\n[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 8\n\
         [training]\nmicrobatches = 16\nmicrobatch_size = 2\n[memory]\n{memory}"
    )
}

#[test]
fn bytes_by_kind_add_up_to_the_peak() {
    let shown = json_of(&["memory", "-", "--json"], &spec("limit_bytes = \"100 GiB\""));
    assert_eq!(shown["fits"], true);
    assert_eq!(shown["changes"].as_array().map(Vec::len), Some(0), "nothing needs to change");
    let ranks = shown["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 8);
    for rank in ranks {
        let fixed: u64 = rank["static_bytes"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let activations = rank["activation_bytes"].as_u64().unwrap();
        assert_eq!(rank["peak_bytes"].as_u64(), Some(fixed + activations), "{rank}");
        assert_eq!(rank["limit_bytes"], 100u64 << 30);
    }
    // 1F1B holds p - s microbatches on stage s: 7 on rank 1 and 2 on rank 6, whose stages are alike.
    let held = |rank: usize| ranks[rank]["activation_bytes"].as_u64().unwrap();
    assert!(10 * held(1) > 34 * held(6) && 10 * held(1) < 36 * held(6), "{} {}", held(1), held(6));
    // B alone frees almost nothing: SwiGLU even has more gradients of outputs than W leaves inputs to free.
    for stage in shown["held_for_weight_permille"].as_array().unwrap() {
        assert!((850..1050).contains(&stage.as_u64().unwrap()), "{stage}");
    }
}

/// As many layers' activations go to host memory as have to, and what W needs is a share of all that F keeps, wherever
/// that is.
#[test]
fn what_waits_on_the_host_is_told() {
    let on_host = |offload: &str| {
        spec("limit_bytes = \"50 GiB\"").replace("[memory]", &format!("offload = \"{offload}\"\n[memory]"))
    };
    let [none, fit] = ["none", "fit"].map(|offload| json_of(&["memory", "-", "--json"], &on_host(offload)));
    assert_eq!((&none["fits"], &fit["fits"]), (&false.into(), &true.into()));
    let most = |shown: &Value, key: &str| {
        shown["ranks"].as_array().unwrap().iter().filter_map(|rank| rank[key].as_u64()).max().unwrap()
    };
    assert_eq!(most(&none, "host_bytes"), 0);
    // What leaves the device is what the host holds, but for what is there while it is copied.
    let (gone, held) = (most(&none, "peak_bytes") - most(&fit, "peak_bytes"), most(&fit, "host_bytes"));
    assert!(gone <= held && 10 * gone > 7 * held, "{gone} {held}");
    assert_eq!(none["held_for_weight_permille"], fit["held_for_weight_permille"]);
    assert_eq!(fit["fit"]["pass"], "offload to fit");
    let (code, text, _) = run(&["memory", "-"], &on_host("fit"));
    assert_eq!(code, Some(0));
    for part in [
        "activation and optimizer offload: at most",
        "offload to fit: 1 done",
        "every rank fits its limit of 50.00 GiB",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn what_does_not_fit_is_told_what_to_change() {
    let tight = spec("limit_bytes = \"60 GB\"");
    let shown = json_of(&["memory", "-", "--json"], &tight);
    assert_eq!(shown["fits"], false);
    let first = &shown["changes"][0];
    assert_eq!(first["fits"], true, "{first}");
    assert!(first["step_ns"].as_u64() > Some(0) && first["peak_bytes"].as_u64() <= Some(60_000_000_000));
    assert_eq!(shown["cheapest"], *first);
    let (code, text, _) = run(&["memory", "-"], &tight);
    assert_eq!(code, Some(0));
    for part in ["rank", "weights", "activations", "-", "does not fit", "suggestions:", "training.recompute"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Where no single change is enough, what is enough together, and which of it costs the least time.
#[test]
fn changes_are_combined_where_none_is_enough() {
    let tight = spec("limit_bytes = \"14 GB\"").replace("pipeline = 8\n", "pipeline = 8\ndata = 8\n");
    let shown = json_of(&["memory", "-", "--json"], &tight);
    assert!(shown["changes"].as_array().unwrap().iter().all(|change| change["fits"] == false));
    let together = &shown["combinations"][0];
    assert!(together["changes"].as_array().unwrap().len() > 1 && together["fits"] == true, "{together}");
    assert_eq!(shown["cheapest"], *together);
    let (code, text, _) = run(&["memory", "-"], &tight);
    assert_eq!(code, Some(0));
    for part in ["not enough alone", "is enough. Suggested together:", "cheapest: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, text, _) = run(&["memory", "-"], &spec("limit_bytes = \"0.1 GB\""));
    assert!(text.contains("none of the changes tried fits. All "), "{text}");
}

#[test]
fn best_without_a_plan_shows_the_leanest() {
    let tight = spec("limit_bytes = \"20 GB\"");
    let shown = json_of(&["memory", "-", "--schedule", "best", "--json"], &tight);
    assert!(shown["note"].as_str().is_some_and(|note| note.contains("needs the least memory")), "{}", shown["note"]);
    assert_eq!(shown["fits"], false);
    let shown = json_of(
        &["memory", "-", "--schedule", "best", "--effort", "1000", "--json"],
        &spec("limit_bytes = \"100 GiB\""),
    );
    assert_eq!((&shown["fits"], &shown["note"]), (&Value::Bool(true), &Value::Null));
}

#[test]
fn typed_costs_and_unknown_names_are_refused() {
    let problem = r#"{ "ranks": 2, "microbatches": 4, "placement": "linear", "stages": { "forward_ns": 1,
        "backward_input_ns": 1, "backward_weight_ns": 1 } }"#;
    for schedule in ["1f1b", "best"] {
        let (code, _, error) = run(&["memory", "-", "--schedule", schedule], problem);
        assert_eq!(code, Some(2));
        assert!(error.contains("these costs are typed"), "{error}");
    }
    let (code, _, error) = run(&["memory", "-", "--schedule", "1f1c"], &spec(""));
    assert_eq!(code, Some(2));
    assert!(error.contains("no schedule is called `1f1c`"), "{error}");
}

/// A spec that names a `config.json`, from the folder of the spec.
#[test]
fn a_config_json_is_read_from_beside_the_spec() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
    let config = r#"{ "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "rms_norm_eps": 1e-5,
        "rope_theta": 1e6, "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2 }"#;
    write("config.json", config);
    let spec = |model: &str| {
        format!(
            "schedule = \"1f1b\"\n[model]\n{model}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 8\ndata = 8\n\
             zero = 1\nexpert = 4\n[training]\nmicrobatches = 16\nsequence = 4096"
        )
    };
    write("named.toml", &spec("name = \"mixtral-8x7b\""));
    write("file.toml", &spec("config = \"config.json\""));
    write("folder.toml", &spec("config = \".\""));
    let shown = json_of(&["memory", &at("named.toml"), "--json"], "");
    assert_eq!(json_of(&["memory", &at("file.toml"), "--json"], ""), shown);
    assert_eq!(json_of(&["memory", &at("folder.toml"), "--json"], ""), shown);

    write("config.json", &config.replace("\"hidden_size\"", "\"width\""));
    let (code, _, error) = run(&["memory", &at("file.toml")], "");
    assert_eq!(code, Some(2));
    assert!(error.contains("model.config.hidden_size: found nothing"), "{error}");
    write("lost.toml", &spec("config = \"lost.json\""));
    let (code, _, error) = run(&["memory", &at("lost.toml")], "");
    assert_eq!(code, Some(2));
    assert!(error.contains("lost.json cannot be read"), "{error}");
}

/// What each layer computes again follows from the limit, and is said.
#[test]
fn recomputation_is_fitted_to_the_limit() {
    let fit = |limit: &str| spec(limit).replace("[training]\n", "[training]\nrecompute = \"fit\"\n");
    let (code, text, stderr) = run(&["memory", "-"], &fit("limit_bytes = \"55 GB\""));
    assert_eq!(code, Some(0), "{stderr}");
    for part in ["1f1b fits", "recompute to fit: ", "stage 0: ", " feed-forward", "stage 7: "] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let shown = json_of(&["passes", "-", "--json"], &fit("limit_bytes = \"55 GB\""));
    let stages = shown["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 8);
    let done = |stage: usize, name: &str| {
        let passes = stages[stage]["passes"].as_array().unwrap();
        let pass = passes.iter().find(|found| found["pass"] == name).unwrap();
        let weights = pass["done"].as_array().unwrap().iter().filter(|entry| {
            name != "split of the backward into B and W" || entry["what"].as_str().unwrap().ends_with(".weight")
        });
        weights.count()
    };
    assert!(done(0, "recompute") > 0 && done(7, "recompute") == 0, "only the first stages hold too much");
    // 40 layers of seven matrices, the head's and the embedding's; beside what W makes again for itself.
    let in_w: usize = (0..8).map(|stage| done(stage, "split of the backward into B and W")).sum();
    assert_eq!(in_w, 40 * 7 + 2);
    let (_, text, _) = run(&["passes", "-", "--stage", "9"], &spec(""));
    assert!(text.is_empty());
}

/// The passes are those of the stages that the spec's own schedule makes, and sizes are written as people read them.
#[test]
fn passes_follow_the_spec_s_schedule() {
    let of = |schedule: &str| spec("").replace("\"1f1b\"", &format!("\"{schedule}\""));
    for (schedule, shown, stages) in [("zb-v", "zb-v", 16), ("1f1b", "1f1b", 8), ("best", "1f1b", 8)] {
        let said = json_of(&["passes", "-", "--json"], &of(schedule));
        assert_eq!((said["schedule"].as_str(), said["stages"].as_array().map(Vec::len)), (Some(shown), Some(stages)));
    }
    // Asked for by name, `best` is searched for: these are the stages of its own placement.
    let effort = ["--schedule", "best", "--effort", "1000", "--json"];
    let said = json_of(&[&["passes", "-"], &effort[..]].concat(), &of("1f1b"));
    let plan = json_of(&[&["plan", "-"], &effort[..]].concat(), &of("1f1b"));
    assert_eq!(said["schedule"], "best");
    assert_eq!(said["stages"].as_array().map(Vec::len), plan["problem"]["stages"].as_array().map(Vec::len));
    let dealt = of("zb-v").replace("pipeline = 8", "pipeline = 8\npartition = \"within-limit\"");
    for command in ["passes", "memory"] {
        let (_, text, stderr) = run(&[command, "-"], &dealt);
        let line =
            text.lines().find(|line| line.contains("slowest stage")).unwrap_or_else(|| panic!("{text}{stderr}"));
        assert!(line.contains(" ms for each microbatch"), "{line}");
    }
}

/// Gradients that are reduced only after accumulation are kept whole under ZeRO 2; `memory` counts them as `passes` says.
#[test]
fn gradients_that_are_reduced_late_are_shown_as_they_are_kept() {
    let with = |reduce: &str| {
        let parallel = format!("pipeline = 8\ndata = 8\nzero = 2\n{reduce}");
        spec("limit_bytes = \"400 GB\"").replace("pipeline = 8", &parallel)
    };
    let gradients = |reduce: &str| -> Vec<u64> {
        let shown = json_of(&["memory", "-", "--json"], &with(reduce));
        let ranks = shown["ranks"].as_array().unwrap();
        ranks.iter().map(|rank| rank["static_bytes"]["gradients"].as_u64().unwrap()).collect()
    };
    let extra = |reduce: &str| -> Vec<u64> {
        let shown = json_of(&["passes", "-", "--json"], &with(reduce));
        let of_stage = |stage: &Value| {
            let passes = stage["passes"].as_array().unwrap();
            let named = |pass: &&Value| pass["pass"] == "reduction of gradients after accumulation";
            let done = passes.iter().find(named).unwrap()["done"].as_array().unwrap();
            done.iter().map(|entry| entry["bytes"].as_u64().unwrap()).sum()
        };
        shown["stages"].as_array().unwrap().iter().map(of_stage).collect()
    };
    let (after, each) = ("reduce_gradients = \"after-accumulation\"", "reduce_gradients = \"each-microbatch\"");
    assert_eq!(gradients(each), gradients(""));
    assert_eq!(extra(""), [0; 8]);
    let kept: Vec<u64> = gradients(each).iter().zip(extra(after)).map(|(owned, more)| owned + more).collect();
    assert_eq!(gradients(after), kept);
    for (whole, owned) in gradients(after).iter().zip(gradients(each)) {
        assert_eq!(whole.div_ceil(8), owned);
    }
}

/// Where the best fits, and only as long as everything waits for memory.
#[test]
fn what_the_limit_costs_is_told_with_what_would_cost_less() {
    let tight = spec("limit_bytes = \"40 GiB\"");
    let shown = json_of(&["memory", "-", "--schedule", "best", "--json"], &tight);
    let shorter = &shown["shorter"];
    let step = |value: &Value| value["step_ns"].as_u64().unwrap();
    assert!(2 * shorter["without_limit_step_ns"].as_u64().unwrap() < step(&shown), "{shorter}");
    let [alone, together] = ["changes", "combinations"].map(|key| &shorter[key][0]);
    assert!(step(together) < step(alone) && step(alone) < step(&shown), "{shorter}");
    let (code, text, _) = run(&["memory", "-", "--schedule", "best"], &tight);
    assert_eq!(code, Some(0));
    for part in ["the memory limit makes the step", "on the same devices", "training.recompute none → fit"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for command in ["plan", "compare"] {
        let tight = tight.replace("schedule = \"1f1b\"\n", "");
        let (code, _, told) = run(&[command, "-"], &tight);
        assert_eq!(code, Some(0));
        assert!(told.contains("the memory limit makes the step"), "{command}: {told}");
    }
    assert_eq!(json_of(&["memory", "-", "--json"], &spec("limit_bytes = \"100 GiB\""))["shorter"], Value::Null);
}
