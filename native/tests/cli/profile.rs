//! `profile`: measured times in plans.

use crate::command::{json_of, refused, run};
use serde_json::Value;

use super::{PROBLEM, TINY, folder, path, write};

/// Every operator of the tiny model measured at 1 µs: F and BW then last as many as the stage has operators.
#[test]
fn a_profile_replaces_the_estimates_it_has() {
    use pipeplan_core::estimate::derive::{derive, graph_of};
    use pipeplan_core::graph::Job;
    use pipeplan_core::hardware::cost::Load;
    use pipeplan_core::hardware::profile::{Profile, Signature};
    use pipeplan_core::problem::placement::Placement;
    let spec = pipeplan_core::spec::Spec::read(TINY).unwrap();
    let pipeplan_core::spec::Work::Model(work) = &spec.work else { panic!("a model") };
    let stages = derive(work, Placement::Linear, 1).unwrap().stages;
    let graphs: Vec<_> = stages.iter().map(|stage| graph_of(work, stage)).collect();
    let (mut whole, mut products) = (Profile::new("test"), Profile::new("test"));
    for graph in &graphs {
        for operator in &graph.operators {
            let (signature, load) = (Signature::of(graph, operator), Load::of(graph, operator));
            if signature.kernel.starts_with("matmul") {
                products.insert(signature.clone(), load, 1000);
            }
            whole.insert(signature, load, 1000);
        }
    }
    let folder = folder();
    let file = path(&folder, "profile.json");
    let planned = |profile: &Profile| {
        write(&file, &profile.to_json());
        json_of(&["plan", "-", "--profile", &file, "--json"], TINY)
    };
    let (all, some, none) = (planned(&whole), planned(&products), json_of(&["plan", "-", "--json"], TINY));
    for (stage, graph) in graphs.iter().enumerate() {
        let cost = |plan: &Value, field: &str| plan["problem"]["stages"][stage][field].as_u64().unwrap_or(0);
        for (field, job) in [("forward_ns", Job::F), ("backward_input_ns", Job::B), ("backward_weight_ns", Job::W)] {
            assert_eq!(cost(&all, field), 1000 * graph.job(job).count() as u64, "{field}");
            assert!(cost(&some, field) != cost(&none, field), "{field}");
        }
        assert_eq!(cost(&all, "forward_bytes"), cost(&none, "forward_bytes"), "bytes are not measured");
    }
    write(&file, &whole.to_json());
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(!note.contains("estimated"), "all are measured: {note}");
    write(&file, &products.to_json());
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(note.contains("the others are estimated"), "{note}");

    // What a rank takes of a device beside its plan counts as memory, and is shown.
    let memory =
        || json_of(&["memory", "-", "--profile", &file, "--json"], TINY)["ranks"].as_array().unwrap().clone();
    let without = memory();
    products.workspace_bytes = 3 << 20;
    write(&file, &products.to_json());
    for (with, without) in memory().iter().zip(&without) {
        let peak = |rank: &Value| rank["peak_bytes"].as_u64().unwrap();
        assert_eq!((&with["static_bytes"]["workspace"], peak(with)), (&(3 << 20).into(), peak(without) + (3 << 20)));
        assert_eq!(without["static_bytes"]["workspace"], 0);
    }
    assert!(run(&["memory", "-", "--profile", &file], TINY).1.contains("workspace"));

    // Other sizes follow from those; another format has none of its kind.
    let other = TINY.replace("sequence = 16", "sequence = 24");
    let (_, _, note) = run(&["plan", "-", "--profile", &file], &other);
    assert!(note.contains("are scaled from measured operators of other sizes, the others are estimated"), "{note}");
    let other = TINY.replace("sequence = 16", "sequence = 16\ndtype = \"f64\"");
    assert!(
        refused(&["plan", "-", "--profile", &file], &other).contains("no operator of this model in its precision")
    );
    assert!(refused(&["plan", "-", "--profile", &file], PROBLEM).contains("this spec has typed costs"));
    write(&file, &products.to_json().replace("\"ns\": 1000", "\"ns\": -1"));
    let error = refused(&["memory", "-", "--profile", &file], TINY);
    assert!(error.contains("operators[0].ns: found -1") && error.contains("profile.json"), "{error}");
    write(&file, "nothing");
    let error = refused(&["compare", "-", "--profile", &file], TINY);
    assert!(error.contains("profile.json: this is not JSON: line 1"), "{error}");
    write(&file, &products.to_json().replacen("\"ns\": 1000", "\"ns\": 1000, \"ns\": 2000", 1));
    let error = refused(&["compare", "-", "--profile", &file], TINY);
    assert!(error.contains("the field \"ns\" is given twice"), "{error}");
}

/// Measured, and planned with it: nothing is left to be estimated, the stages of the plan take together what the microbatch
/// took, and what is known is not measured again.
#[test]
fn what_is_measured_is_planned_with() {
    let folder = folder();
    let file = path(&folder, "profile.json");
    let (_, said, _) = run(&["profile", "-", "-o", &file], TINY);
    assert!(said.contains("attention_grad") && said.contains("operators measured"), "{said}");
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(!note.contains("estimated"), "all are measured: {note}");
    let again = json_of(&["profile", "-", "--add", &file, "--json"], TINY);
    let plan = json_of(&["plan", "-", "--profile", &file, "--json"], TINY);
    let of_stages = |field: &str| {
        let stages = plan["problem"]["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage[field].as_u64().unwrap()).sum::<u64>()
    };
    for (job, field) in [
        ("forward", "forward_ns"),
        ("backward_input", "backward_input_ns"),
        ("backward_weight", "backward_weight_ns"),
    ] {
        assert_eq!(again["microbatch"][job]["measured_ns"], of_stages(field), "{job}");
    }
    let (_, said, _) = run(&["profile", "-", "--add", &file], TINY);
    assert!(said.contains("0 operators measured"), "{said}");
    // Another size of microbatch has other operators, but for the gradients' sums in the optimizer's format.
    let wider = TINY.replace("sequence = 16", "sequence = 16\nmicrobatch_size = 2");
    let both = path(&folder, "both.json");
    run(&["profile", "-", "--add", &file, "-o", &both], &wider);
    for spec in [TINY, &wider] {
        let (_, _, note) = run(&["plan", "-", "--profile", &both], spec);
        assert!(!note.contains("estimated"), "{note}");
    }

    assert!(refused(&["profile", "-"], PROBLEM).contains("this spec has typed costs"));
    let other = TINY.replace("sequence = 16", "sequence = 16\ndtype = \"bf16\"");
    assert!(refused(&["profile", "-"], &other).contains("training.dtype is bf16"));
    assert!(refused(&["profile", "-", "--split-gpu"], TINY).contains("--device cuda"));
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    write(&file, &known.to_string().replace("one core of", "half a core of"));
    let error = refused(&["profile", "-", "--add", &file], TINY);
    assert!(error.contains("half a core of") && error.contains("but this device is"), "{error}");
}
