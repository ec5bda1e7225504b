//! Runs as people have them: launch scripts, command lines and tables of Megatron-LM and its relatives. What each comes to is
//! known from elsewhere: published sizes, or the sum of its matrices by hand.

use std::fs;
use std::path::Path;

use pipeplan_core::estimate::derive::derive;
use pipeplan_core::formats::training_run::{Imported, TrainingRun, arguments};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::spec::{ModelWork, Work};

fn read(name: &str) -> TrainingRun {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/runs").join(name);
    TrainingRun::read(&fs::read_to_string(path).unwrap())
}

fn imported(name: &str, devices: Option<u64>) -> Imported {
    read(name).spec("h100", devices).unwrap_or_else(|faults| panic!("{name}: {faults}"))
}

fn model(imported: &Imported) -> &ModelWork {
    match &imported.spec.work {
        Work::Model(work) => work,
        Work::Typed(_) => panic!("a model"),
    }
}

fn refused(name: &str, devices: Option<u64>) -> String {
    read(name).spec("h100", devices).expect_err(name).to_string()
}

/// 24 layers of 2048 in a quoted block, a quoted line, a branch that is not taken, a batch job and a table of YAML.
#[test]
fn arguments_are_found_where_a_shell_finds_them() {
    for (name, devices, all) in [
        ("sh-quoted-block.sh", None, 8),
        ("sh-quoted-line.sh", None, 8),
        ("sh-branch-flag.sh", None, 8),
        ("slurm.sh", None, 32),
        ("megatron.yaml", Some(32), 32),
    ] {
        let imported = imported(name, devices);
        let work = model(&imported);
        let model = &work.model;
        assert_eq!((model.layers, model.hidden, work.pipeline), (24, 2048, 4), "{name}");
        assert_eq!((work.devices(), work.layout.zero), (all, 0), "{name}");
        assert_eq!(imported.value["training"].get("recompute"), None, "{name}");
    }
}

#[test]
fn branches_loops_and_arithmetic_are_worked_out() {
    let choice = imported("sh-choice.sh", None);
    assert_eq!((model(&choice).model.layers, model(&choice).model.hidden), (32, 4096));
    // 16 sequences for each of two replicas.
    let sums = imported("sh-arithmetic.sh", None);
    assert_eq!(sums.value["training"]["global_batch_size"], 32);
    assert_eq!(model(&sums).layout.data, 2);
    // One dense layer of 48.
    let counted = imported("sh-loop.sh", None);
    assert_eq!(counted.value["model"]["experts"]["dense_layers"], 1);
}

/// By hand: latent attention has 5120·1536 + 1536·128·192 + 5120·(512+64) + 512·128·256 + 128·128·5120 and three norms; experts
/// 3·5120·1536 each, 160 and two shared ones, and their router.
#[test]
fn names_of_relatives_are_those_of_the_same_parts() {
    let imported = imported("mindspeed-mla-moe.sh", None);
    let work = model(&imported);
    let parameters = work.model.parameters() as f64;
    assert!((parameters / 60.97e9 - 1.0).abs() < 1e-3, "{parameters}");
    assert_eq!((work.layout.data, work.layout.form.expert, work.chunks), (8, 8, 2));
    assert_eq!(imported.spec.schedule, "interleaved-1f1b");
}

/// A gate that is not SwiGLU has as many matrices. OpenAI says 20.9 B of gpt-oss-20b.
#[test]
fn other_gates_have_their_matrices() {
    for name in ["geglu.cmd", "geglu-as-swiglu.cmd"] {
        let parameters = model(&imported(name, Some(4))).model.parameters();
        assert!((parameters as f64 / 3.581e9 - 1.0).abs() < 1e-3, "{name}: {parameters}");
    }
    let imported = imported("gptoss-20b.sh", None);
    let parameters = model(&imported).model.parameters();
    assert!((parameters as f64 / 20.91e9 - 1.0).abs() < 1e-3, "{parameters}");
    assert_eq!(imported.value["model"]["window"]["tokens"], 128);
}

#[test]
fn patterns_of_layers_and_schedules_of_forks_are_read() {
    let maverick = imported("maverick.cmd", Some(128));
    assert_eq!(maverick.value["model"]["experts"]["layers"], "(01)");
    let zero_bubble = imported("zbv.sh", None);
    assert_eq!(zero_bubble.spec.schedule, "zb-v");
    assert_eq!(model(&imported("mini-qwen.cmd", Some(8))).model.layers, 48);
    let overlap = imported("overlap.sh", None);
    assert_eq!((&overlap.spec.schedule[..], model(&overlap).layout.overlap_exchanges), ("combined-1f1b", true));
    assert!(overlap.arguments.not_modelled.contains_key("delay-wgrad-compute"));
    // One moment of a matrix, two of all else.
    assert_eq!(imported("muon.sh", None).value["training"]["optimizer"], "muon");
}

/// On a rank two of eight experts, each cut by 2, and all else cut by 4: 8 · (2 · 3·4096·14336 / 2 + (2·4096² + 2·4096·1024) / 4)
/// weights of layers, and 8 · (8·4096 + 2·4096) of routers and norms; the first rank has a quarter of a table of 32,256 tokens,
/// too.
#[test]
fn experts_are_cut_by_a_degree_of_their_own() {
    let imported = imported("etp.sh", None);
    let work = model(&imported);
    assert_eq!((work.layout.form.expert_ways(), work.layout.expert_copies()), (2, 2));
    let derived = derive(work, Placement::Looped, 1).unwrap_or_else(|faults| panic!("{faults}"));
    let bytes = derived.static_bytes[1].weights;
    let layer = 2 * 3 * 4096 * 14336 / 2 + (2 * 4096 * 4096 + 2 * 4096 * 1024) / 4 + 8 * 4096 + 2 * 4096;
    assert_eq!(bytes, 2 * 8 * layer);
    let bytes = derived.static_bytes[0].weights;
    assert_eq!(bytes, 2 * (8 * layer + 32256 / 4 * 4096));
    assert!((bytes as f64 / 1_073_741_824.0 - 2.8).abs() < 0.05, "{bytes}");
}

/// ms-swift's rank 8 of all matrices, with its default alpha.
#[test]
fn adapters_are_read() {
    let lora = &imported("lora.sh", Some(2)).value["training"]["lora"];
    assert_eq!((lora["rank"].as_u64(), lora["alpha"].as_u64()), (Some(8), Some(32)));
    assert_eq!(lora["targets"][0], "all-linear");
}

/// 80 layers in 40 stages: as a layout that is uneven at its ends, and even.
#[test]
fn layouts_are_read() {
    let uneven = imported("lay70.cmd", Some(32));
    let counts = uneven.value["parallel"]["partition"].as_array().unwrap();
    assert_eq!(counts.iter().filter_map(|count| count.as_u64()).sum::<u64>(), 80);
    assert_eq!(imported("lay70e.cmd", Some(32)).value["parallel"]["partition"], "layers");
}

#[test]
fn what_cannot_be_planned_or_run_is_told_by_its_name() {
    assert!(refused("vpp468.cmd", Some(128)).contains("--num-layers-per-virtual-pipeline-stage"));
    let notes = imported("nemo-pp6.cmd", Some(6)).notes.join("\n");
    assert!(notes.contains("Megatron-LM refuses this run: with virtual stages"), "{notes}");
}

/// Every argument that Megatron-LM has had, and every name that its logs print.
#[test]
fn every_argument_of_megatron_lm_is_known() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/megatron_arguments.txt");
    let table = fs::read_to_string(path).unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect()).collect();
    assert!(rows.len() > 1000, "{}", rows.len());
    for row in rows {
        let known = arguments::find(row[0]).unwrap_or_else(|| panic!("--{} is not known", row[0]));
        let takes = match row[1] {
            "0" => arguments::Values::None,
            "1" => arguments::Values::One,
            _ => arguments::Values::Many,
        };
        assert_eq!(known.values, takes, "--{}", row[0]);
        assert!(arguments::find(row[2]).is_some(), "{} of a log is not known", row[2]);
    }
}
