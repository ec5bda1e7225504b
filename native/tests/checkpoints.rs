//! Whether a run that goes on from a checkpoint is the run that was never broken off.

mod common;

use std::fs;
use std::path::Path;

use common::{Stopper, assert_close_losses, options, published, train, transformers_agrees, work};
use pipeplan::backend::rotary::{LayerScaling, RopeScaling};
use pipeplan::runner::checkpoint::{Checkpoint, Pretrained, Saving, VERSION_WITH_ROTARY};
use pipeplan::runner::evaluate::evaluate;
use pipeplan::runner::optimizer::AdamW;
use pipeplan::runner::{LastCheckpoint, Precision, RunError, RunOptions, RunReport, Silent, Workload, run};
use pipeplan::transport::Buffer;
use pipeplan::transport::faulty::Faults;
use pipeplan_core::model::{Family, Variant, Window};
use pipeplan_core::spec::ModelWork;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

fn planned(ranks: usize, data: u32, zero: u32, name: &str, precision: Precision) -> Workload {
    published(&laid_out(ranks, data, zero), name, precision).unwrap_or_else(|| panic!("{name} exists"))
}

fn laid_out(ranks: usize, data: u32, zero: u32) -> ModelWork {
    let mut work = work(ranks, 8 / data as usize);
    (work.layout.data, work.layout.zero) = (data, zero);
    work
}

fn saving(folder: &Path, steps: u32, every: u32) -> RunOptions {
    RunOptions { saving: Some(Saving { folder: folder.to_path_buf(), every }), ..options(steps) }
}

fn resuming(folder: &Path, steps: u32) -> RunOptions {
    RunOptions { resume: Some(Checkpoint::open(folder).expect("a checkpoint")), ..options(steps) }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

fn refused(workload: &Workload, options: &RunOptions) -> String {
    match run(workload, options, &mut Silent) {
        Err(RunError::Refused(refusal)) => refusal.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the run ended well"),
    }
}

fn assert_same(run: &RunReport, whole: &RunReport, what: &str) {
    let from = whole.losses().len() - run.losses().len();
    assert_eq!(bits(&run.losses()), bits(&whole.losses()[from..]), "{what}");
    assert_eq!(run.weights, whole.weights, "{what}");
}

#[test]
fn a_run_goes_on_to_the_same_bits_on_its_own_layout() {
    for (ranks, data, zero, name) in
        [(1, 1, 0, "1f1b"), (2, 1, 0, "dualpipe"), (2, 2, 1, "zb-v"), (4, 2, 0, "1f1b"), (1, 4, 1, "gpipe")]
    {
        let what = format!("{name} on {ranks} ranks, {data} replicas, zero {zero}");
        let workload = planned(ranks, data, zero, name, Precision::Single);
        let whole = train(&workload, &options(7));
        let folder = tempfile::tempdir().expect("a folder");
        let first = train(&workload, &saving(folder.path(), 4, 2));
        assert_eq!(first.checkpoint, Some(folder.path().join("step-000004")), "{what}");
        for (from, left) in [("step-000002", 5), ("step-000004", 3)] {
            let rest = train(&workload, &resuming(&folder.path().join(from), 7));
            assert_eq!(rest.losses().len(), left, "{what}");
            assert_eq!(rest.steps[0].step as usize, 7 - left, "{what}");
            assert_same(&rest, &whole, &what);
        }
        let names = names_in(folder.path());
        assert_eq!(names, [".lock", "step-000002", "step-000004"], "nothing half-written is left");
    }
}

/// LayerNorms with biases, learned positions and a tied table are in checkpoints as well.
#[test]
fn a_gpt_goes_on_on_its_own_layout_and_on_another() {
    let gpt = |ranks: usize, tied: bool| {
        let mut work = work(ranks, 8);
        (work.model.family, work.model.tied) = (Family::Gpt, tied);
        work.model.kv_heads = work.model.heads;
        work
    };
    for tied in [false, true] {
        let planned = |ranks, name| {
            published(&gpt(ranks, tied), name, Precision::Double).unwrap_or_else(|| panic!("{name} exists"))
        };
        let whole = train(&planned(4, "1f1b"), &options(6));
        let folder = tempfile::tempdir().expect("a folder");
        train(&planned(4, "1f1b"), &saving(folder.path(), 3, 0));
        let same = train(&planned(4, "1f1b"), &resuming(folder.path(), 6));
        assert_eq!(same.losses().len(), 3);
        assert_same(&same, &whole, &format!("tied {tied}"));
        let other = train(&planned(2, "zb-v"), &resuming(folder.path(), 6));
        for (found, expected) in other.losses().iter().zip(&whole.losses()[3..]) {
            assert!((found - expected).abs() < 1e-10 * expected.abs(), "tied {tied}: {found} {expected}");
        }
    }
}

#[test]
fn a_run_goes_on_by_another_layout() {
    let layouts =
        [(1, 1, 0, "1f1b"), (4, 1, 0, "zb-h1"), (2, 4, 1, "1f1b"), (2, 2, 0, "dualpipe"), (2, 1, 0, "zb-v")];
    let whole = train(&planned(1, 1, 0, "1f1b", Precision::Double), &options(6));
    for (at, from) in layouts.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        train(&planned(from.0, from.1, from.2, from.3, Precision::Double), &saving(folder.path(), 3, 0));
        let to = layouts[(at + 1) % layouts.len()];
        let rest = train(&planned(to.0, to.1, to.2, to.3, Precision::Double), &resuming(folder.path(), 6));
        let what = format!("from {from:?} to {to:?}");
        let expected = RunReport { steps: whole.steps[3..].to_vec(), ..whole.clone() };
        assert_close_losses(&rest, &expected, 1e-10, &what);
        for (name, weight) in &rest.weights {
            let (Buffer::F64(found), Buffer::F64(expected)) = (weight, &whole.weights[name]) else {
                panic!("{name} is not in f64");
            };
            let far = found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() > 1e-10);
            assert!(!far, "{name} {what}");
        }
    }
    // Pure pipelines that gather in order keep every bit.
    let folder = tempfile::tempdir().expect("a folder");
    train(&planned(4, 1, 0, "1f1b", Precision::Single), &saving(folder.path(), 3, 0));
    let rest = train(&planned(2, 1, 0, "zb-v", Precision::Single), &resuming(folder.path(), 6));
    assert_same(&rest, &train(&planned(1, 1, 0, "1f1b", Precision::Single), &options(6)), "1f1b to zb-v");
}

#[test]
fn a_run_that_is_stopped_leaves_a_checkpoint_and_so_does_one_that_fails() {
    let workload = planned(2, 2, 1, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    let options = saving(folder.path(), 100_000, 0);
    let stopped = run(&workload, &options, &mut Stopper(options.stop.clone())).expect("it ends well");
    let steps = stopped.steps.len() as u32;
    assert!(stopped.stopped && steps < 100, "{steps}");
    assert_eq!(Checkpoint::open(folder.path()).expect("one").manifest.step, steps);
    let whole = train(&workload, &common::options(steps + 2));
    assert_same(&train(&workload, &resuming(folder.path(), steps + 2)), &whole, "after Ctrl-C");

    // One exchange in a step of rank 0 is a time at which it can die: far behind the first checkpoint.
    let folder = tempfile::tempdir().expect("a folder");
    let death = Faults { death: Some(300), ..Faults::default() };
    let dying = RunOptions { faults: vec![(3, death)], ..saving(folder.path(), 1000, 1) };
    let Err(RunError::Failed(failure)) = run(&workload, &dying, &mut Silent) else { panic!("it dies") };
    assert_eq!(failure.rank, 3);
    let LastCheckpoint::At(last) = &failure.checkpoint else { panic!("{failure}") };
    assert!(failure.to_string().ends_with(&format!("resume with `--resume {}`", last.display())), "{failure}");
    let found = Checkpoint::open(folder.path()).expect("one");
    assert_eq!(found.folder, *last);
    let whole = train(&workload, &common::options(found.manifest.step + 2));
    assert_same(&train(&workload, &resuming(last, found.manifest.step + 2)), &whole, "after a death");

    let folder = tempfile::tempdir().expect("a folder");
    let death = Faults { death: Some(3), ..Faults::default() };
    let early = RunOptions { faults: vec![(1, death)], ..saving(folder.path(), 5, 1) };
    let Err(RunError::Failed(failure)) = run(&workload, &early, &mut Silent) else { panic!("it dies") };
    assert!(failure.to_string().ends_with("no checkpoint has been written"), "{failure}");
}

/// Whoever asks a folder for its latest checkpoint gets that of the run which wrote into it last, or is told.
#[test]
fn a_folder_of_another_run_is_refused_and_left_as_it_is() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    let first = train(&workload, &saving(folder.path(), 4, 2));
    let last = first.checkpoint.expect("one");
    let manifest = || fs::read(last.join("manifest.json")).expect("a file");
    let before = manifest();
    let again = refused(&workload, &RunOptions { seed: 7, ..saving(folder.path(), 4, 2) });
    assert!(again.contains("it holds step-000004, but this run starts from the beginning"), "{again}");
    assert!(again.contains(&format!("--resume {}", folder.path().display())), "{again}");
    // From step 2, the run would come to step 4 once more.
    let back = resuming(&folder.path().join("step-000002"), 6);
    let refusal = refused(&workload, &RunOptions { saving: saving(folder.path(), 6, 0).saving, ..back });
    assert!(refusal.contains("it holds step-000004, but this run starts from step 2"), "{refusal}");
    assert_eq!(manifest(), before);
    // Nothing is in the way of a run that goes on from the latest.
    let on = RunOptions { saving: saving(folder.path(), 6, 0).saving, ..resuming(folder.path(), 6) };
    assert_eq!(train(&workload, &on).checkpoint, Some(folder.path().join("step-000006")));
    // Without a folder to write into, nothing is written, whatever was gone on from.
    assert_eq!(train(&workload, &resuming(folder.path(), 7)).checkpoint, None);
}

/// Puts a folder of its own where the run's next checkpoint belongs.
struct InTheWay<'f>(&'f Path);

impl pipeplan::runner::Observer for InTheWay<'_> {
    fn step_ended(&mut self, step: &pipeplan::runner::StepReport) {
        if step.step == 0 {
            fs::create_dir(self.0).expect("made");
            fs::write(self.0.join("notes.txt"), "mine").expect("written");
        }
    }
}

#[test]
fn a_folder_that_is_no_checkpoint_is_never_removed() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("step-000300");
    let Err(RunError::Failed(failure)) = run(&workload, &saving(folder.path(), 300, 0), &mut InTheWay(&other)) else {
        panic!("it cannot be written")
    };
    assert!(failure.cause.to_string().contains("step-000300 appeared there after the run started"), "{failure}");
    assert_eq!(fs::read_to_string(other.join("notes.txt")).expect("still there"), "mine");
    let refusal = refused(&workload, &saving(folder.path(), 2, 0));
    assert!(refusal.contains("it holds step-000300") && refusal.contains("not a checkpoint"), "{refusal}");
}

#[test]
fn weights_have_the_names_and_shapes_of_hugging_face() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = train(&planned(2, 1, 0, "1f1b", Precision::Single), &saving(folder.path(), 1, 0));
    let step = report.checkpoint.expect("one");
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(step.join(name)).expect("a file")).expect("JSON")
    };
    let config = json("config.json");
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    assert_eq!((&config["num_hidden_layers"], &config["num_key_value_heads"]), (&8.into(), &2.into()));
    assert_eq!(config["rms_norm_eps"], 1e-5);
    let index = json("model.safetensors.index.json");
    let map = index["weight_map"].as_object().expect("a map");
    // Of a layer: four projections of attention, three of the feed-forward part, two norms.
    assert_eq!(map.len(), 8 * 9 + 3);
    let layer = "model.layers.7";
    let shapes = [
        ("model.embed_tokens.weight".to_string(), vec![256, 16]),
        (format!("{layer}.self_attn.q_proj.weight"), vec![16, 16]),
        (format!("{layer}.self_attn.k_proj.weight"), vec![8, 16]),
        (format!("{layer}.mlp.down_proj.weight"), vec![16, 24]),
        (format!("{layer}.input_layernorm.weight"), vec![16]),
        ("model.norm.weight".to_string(), vec![16]),
        ("lm_head.weight".to_string(), vec![256, 16]),
    ];
    for (name, shape) in shapes {
        let file = fs::read(step.join(map[&name].as_str().expect("a file"))).expect("a file");
        let tensors = safetensors::SafeTensors::deserialize(&file).expect("whole");
        let tensor = tensors.tensor(&name).expect("it is there");
        assert_eq!(tensor.shape(), shape, "{name}");
        let Buffer::F32(expected) = &report.weights[&name] else { panic!("{name} is not in f32") };
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(tensor.data(), bytes, "{name}");
    }
}

/// A text of just as many windows as a step takes: whatever their order, their mean loss is that of the next step.
#[test]
fn evaluation_says_the_loss_of_the_next_step() {
    for tied in [false, true] {
        let mut work = laid_out(2, 1, 0);
        work.model.tied = tied;
        let windows = work.microbatches as usize * work.microbatch_size as usize;
        let text: Vec<u8> = common::text().into_iter().take(windows * work.sequence as usize + 1).collect();
        let workload = published(&work, "1f1b", Precision::Double).expect("it exists");
        let folder = tempfile::tempdir().expect("a folder");
        let with_text = |options: RunOptions| RunOptions { text: text.clone(), ..options };
        train(&workload, &with_text(saving(folder.path(), 4, 0)));
        let next = train(&workload, &with_text(resuming(folder.path(), 5))).losses()[0];
        let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
        let evaluation = evaluate::<f64>(&checkpoint, &text, 1000).expect("it computes");
        assert_eq!(evaluation.windows.len(), windows);
        assert!((evaluation.loss - next).abs() < 1e-12 * next, "{} {next}", evaluation.loss);
        assert_eq!(evaluation.logits.len(), windows * work.sequence as usize * 256);
    }
}

/// By `examples/transformers_check.py`, which says by how much they differ.
#[test]
fn transformers_computes_the_same_logits() {
    for (tied, precision) in [(false, Precision::Single), (true, Precision::Single), (true, Precision::Double)] {
        let mut work = laid_out(2, 1, 0);
        work.model.tied = tied;
        let workload = published(&work, "zb-v", precision).expect("it exists");
        if !transformers_agrees(&workload, precision, 20, &format!("tied {tied}, {precision:?}")) {
            return;
        }
    }
}

#[test]
fn what_is_no_checkpoint_or_of_another_run_is_refused() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    let missing = Checkpoint::open(folder.path()).expect_err("empty");
    assert!(missing.to_string().contains("has no checkpoint"), "{missing}");
    train(&workload, &saving(folder.path(), 2, 1));
    let good = || resuming(folder.path(), 4);
    let mut wider = laid_out(2, 1, 0);
    wider.model.ffn = 32;
    let wider = published(&wider, "1f1b", Precision::Single).expect("it exists");
    let fewer = published(&work(2, 4), "1f1b", Precision::Single).expect("it exists");
    let other_text = common::text().into_iter().rev().collect();
    let cases = [
        (&workload, RunOptions { steps: 2, ..good() }, "give more steps"),
        (&workload, RunOptions { seed: 1, ..good() }, "its seed is 42"),
        (&workload, RunOptions { text: other_text, ..good() }, "its text is"),
        (&fewer, good(), "its sequences of a training step is 16, but this run's is 8"),
        (&wider, good(), "its model differs: intermediate_size is 24 in the checkpoint and 32 in the plan; plan"),
    ];
    for (workload, options, says) in cases {
        let refusal = refused(workload, &options);
        assert!(refusal.contains(says), "{refusal}");
    }
    let blocked = RunOptions { saving: Some(Saving { folder: "/dev/null/x".into(), every: 1 }), ..options(1) };
    assert!(refused(&workload, &blocked).contains("/dev/null/x cannot be made"));
    // Whatever is cut off or written over is found before anything starts.
    let step = folder.path().join("step-000002");
    let opened = good();
    for file in ["optimizer-0-1-0.safetensors", "model-00001-of-00002.safetensors"] {
        let whole = fs::read(step.join(file)).expect("a file");
        for length in [0, 4, 50, whole.len() - 1] {
            fs::write(step.join(file), &whole[..length]).expect("written");
            let refusal = refused(&workload, &opened);
            assert!(refusal.contains(file), "{length}: {refusal}");
        }
        fs::write(step.join(file), [0xff; 64]).expect("written");
        assert!(refused(&workload, &opened).contains("its header claims"));
        fs::remove_file(step.join(file)).expect("removed");
        assert!(refused(&workload, &opened).contains(&format!("{file} cannot be read")));
        // As whole as any to whoever reads its header: a bit that has turned, and the file of another step.
        let mut turned = whole.clone();
        *turned.last_mut().expect("a byte") ^= 1;
        let other = fs::read(folder.path().join("step-000001").join(file)).expect("a file");
        assert_ne!(other, whole);
        for bytes in [turned, other] {
            fs::write(step.join(file), bytes).expect("written");
            let refusal = refused(&workload, &opened);
            assert!(refusal.contains(file) && refusal.contains("its CRC-32 is"), "{refusal}");
        }
        if file.starts_with("model") {
            let error =
                evaluate::<f32>(opened.resume.as_ref().expect("one"), &common::text(), 1).expect_err("damaged");
            assert!(error.to_string().contains("its CRC-32 is"), "{error}");
        }
        fs::write(step.join(file), whole).expect("written");
    }
    // Those of before sums were kept are read as they are.
    let manifest = fs::read_to_string(step.join("manifest.json")).expect("a file");
    let mut old: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    let files = old.as_object_mut().and_then(|fields| fields.remove("files")).expect("there are sums");
    assert_eq!(
        files.as_object().expect("a map").len(),
        6,
        "two files of weights, two of the optimizer, and two that describe the model"
    );
    old.as_object_mut().and_then(|fields| fields.remove("manifest_crc32")).expect("it has its own sum");
    fs::write(step.join("manifest.json"), old.to_string()).expect("written");
    train(&workload, &good());
    fs::write(step.join("manifest.json"), manifest).expect("written");
    let manifest = fs::read_to_string(step.join("manifest.json")).expect("a file");
    for (from, to, says) in [
        ("\"version\": 1", "\"version\": 2", "version is 2"),
        ("pipeplan checkpoint", "something", "`format`"),
        ("\"optimizer_state\": [", "\"optimizer_state\": [\"../x\", ", "not a file in this folder"),
        ("\"beta1\": 0.9", "\"beta1\": 1.5", "beta1 is 1.5"),
        ("\"seed\"", "\"sead\"", "missing field `seed`"),
        ("{", "", "manifest.json is not a valid checkpoint"),
    ] {
        fs::write(step.join("manifest.json"), manifest.replacen(from, to, 1)).expect("written");
        let error = Checkpoint::open(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// What describes a checkpoint is as damaged as what it describes.
#[test]
fn a_manifest_a_config_or_an_index_that_is_changed_is_told() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    train(&workload, &saving(folder.path(), 2, 0));
    let step = folder.path().join("step-000002");
    let opened = || resuming(folder.path(), 4);
    for file in ["config.json", "model.safetensors.index.json"] {
        let whole = fs::read(step.join(file)).expect("a file");
        let mut turned = whole.clone();
        let middle = turned.len() / 2;
        turned[middle] ^= 1;
        for bytes in [&turned[..], &whole[..middle], &[]] {
            fs::write(step.join(file), bytes).expect("written");
            let refusal = refused(&workload, &opened());
            assert!(refusal.contains(file) && refusal.contains("put back what was written"), "{refusal}");
        }
        fs::write(step.join(file), whole).expect("written");
    }
    let manifest = step.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("a file");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let with = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut changed = value.clone();
        change(changed.as_object_mut().expect("an object"));
        fs::write(&manifest, format!("{changed:#}\n")).expect("written");
        Checkpoint::open(folder.path()).expect_err("it is changed").to_string()
    };
    let own = |said: &str| said.contains("manifest.json") && said.contains("its CRC-32 is");
    let said = with(&|fields| fields["files"] = json!({}));
    assert!(said.contains("`files` has no sum of model-0000"), "{said}");
    // Nor is it emptied by whoever removes the sum of the manifest, too.
    let said = with(&|fields| {
        fields["files"] = json!({});
        fields.remove("manifest_crc32");
    });
    assert!(said.contains("`files` has no sum of"), "{said}");
    let said = with(&|fields| fields["seed"] = json!(7));
    assert!(own(&said), "{said}");
    let said = with(&|fields| fields["files"]["config.json"]["crc32"] = json!(7));
    assert!(own(&said), "{said}");
    let said = with(&|fields| fields["manifest_crc32"] = json!(""));
    assert!(said.contains("`manifest_crc32` is"), "{said}");
    let said = with(&|fields| fields["files"]["../config.json"] = json!({ "bytes": 1, "crc32": 7 }));
    assert!(said.contains("`../config.json` is not a file in this folder"), "{said}");
    fs::write(&manifest, text).expect("written");
    train(&workload, &opened());
}

/// Whatever a killed run has left is gone when the next has begun, and nothing else is.
#[test]
fn leftovers_of_killed_writes_are_removed_at_the_next_start() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    for name in [".step-000009.partial", ".step-000001.old", ".step-mine"] {
        fs::create_dir(folder.path().join(name)).expect("made");
        fs::write(folder.path().join(name).join("model.safetensors"), "half").expect("written");
    }
    train(&workload, &saving(folder.path(), 2, 0));
    assert_eq!(names_in(folder.path()), [".lock", ".step-mine", "step-000002"]);
}

/// One goes on beside training, each is whole before the next begins, and of all that were written the last ones stay.
#[test]
fn every_checkpoint_is_whole_and_the_last_ones_are_kept() {
    let workload = planned(2, 2, 1, "1f1b", Precision::Single);
    let whole = train(&workload, &options(9));
    let folder = tempfile::tempdir().expect("a folder");
    let report = train(&workload, &RunOptions { keep: 3, ..saving(folder.path(), 7, 1) });
    assert_eq!(report.checkpoint, Some(folder.path().join("step-000007")));
    assert_eq!(names_in(folder.path()), [".lock", "step-000005", "step-000006", "step-000007"]);
    for step in 5..8 {
        let from = folder.path().join(format!("step-{step:06}"));
        assert!(names_in(&from).iter().all(|name| !name.starts_with('.')), "no note is left");
        assert_same(&train(&workload, &resuming(&from, 9)), &whole, &format!("from step {step}"));
    }
}

/// Takes the name of the run's first checkpoint.
struct Breaking<'f>(&'f Path);

impl pipeplan::runner::Observer for Breaking<'_> {
    fn step_ended(&mut self, step: &pipeplan::runner::StepReport) {
        if step.step == 0 {
            fs::write(self.0.join("step-000200"), "in the way").expect("written");
        }
    }
}

#[test]
fn a_write_that_fails_beside_training_ends_the_run_by_name() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    // Far more steps than are made until the failure is seen.
    let options = saving(folder.path(), 1_000_000, 200);
    let Err(RunError::Failed(failure)) = run(&workload, &options, &mut Breaking(folder.path())) else {
        panic!("it cannot be written")
    };
    assert_eq!(failure.rank, 0, "who names checkpoints");
    assert!(failure.cause.to_string().contains("step-000200 appeared there after the run started"), "{failure}");
    assert!(failure.to_string().ends_with("no checkpoint has been written"), "{failure}");
}

/// A spec of `pipeline` ranks in `data` replicas, in `folder`: 4 microbatches a step, over all.
fn spec(folder: &Path, pipeline: u32, data: u32) -> std::path::PathBuf {
    let path = folder.join(format!("{pipeline}x{data}.toml"));
    let microbatches = 4 / data;
    let spec = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 4\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = {pipeline}\ndata = {data}\nzero = 1\n[training]\nmicrobatches = {microbatches}\nsequence = 16\n"
    );
    fs::write(&path, spec).expect("a spec is written");
    path
}

fn losses(arguments: &[&str]) -> Vec<f64> {
    let output = assert_cmd::Command::cargo_bin("pipeplan").expect("it is built").args(arguments).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    summary["losses"].as_array().expect("losses").iter().filter_map(serde_json::Value::as_f64).collect()
}

/// Killed at any time, in the middle of a write above all, a run leaves checkpoints that are whole.
#[cfg(unix)]
#[test]
fn a_run_that_is_killed_leaves_whole_checkpoints_alone() {
    use std::time::Duration;
    let folder = tempfile::tempdir().expect("a folder");
    let plan = spec(folder.path(), 2, 1);
    let plan = plan.to_str().expect("a path");
    let reference = losses(&["run", plan, "--steps", "60", "--json"]);
    let mut resumed = 0;
    for kill in 0..8 {
        let saved = folder.path().join(format!("saved-{kill}"));
        let saved_path = saved.to_str().expect("a path");
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"))
            .args(["run", plan, "--steps", "1000000", "--checkpoint-every", "1", "--keep", "2"])
            .args(["--checkpoint-dir", saved_path])
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it starts");
        while !saved.exists() || names_in(&saved).iter().all(|name| !name.starts_with("step-")) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(7 * kill));
        child.kill().expect("killed");
        child.wait().expect("it has ended");
        let Ok(last) = Checkpoint::open(&saved) else { panic!("{:?}", names_in(&saved)) };
        let step = last.manifest.step as usize;
        if step + 2 > reference.len() {
            continue;
        }
        resumed += 1;
        let steps = (step + 2).to_string();
        let on = ["run", plan, "--steps", &steps, "--resume", saved_path, "--checkpoint-dir", saved_path, "--json"];
        assert_eq!(bits(&losses(&on)), bits(&reference[step..step + 2]), "killed after step {step}");
        assert!(names_in(&saved).iter().all(|name| name == ".lock" || name.starts_with("step-")));
    }
    assert!(resumed >= 4, "most kills come early enough to compare: {resumed}");
}

/// What a run was told of its type, the next knows.
#[test]
fn a_checkpoint_in_f64_goes_on_in_f64_unless_another_type_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = spec(folder.path(), 2, 1);
    let plan = plan.to_str().expect("a path");
    let saved = folder.path().join("saved");
    let saved = saved.to_str().expect("a path");
    let whole = losses(&["run", plan, "--steps", "5", "--precision", "f64", "--json"]);
    losses(&["run", plan, "--steps", "3", "--precision", "f64", "--checkpoint-dir", saved, "--json"]);
    let rest = losses(&["run", plan, "--steps", "5", "--resume", saved, "--json"]);
    assert_eq!(bits(&rest), bits(&whole[3..]));
    let told = |arguments: &[&str]| {
        let all = [&["run", plan, "--steps", "5", "--resume", saved], arguments].concat();
        let output = assert_cmd::Command::cargo_bin("pipeplan").expect("built").args(all).output().expect("it runs");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let note = "note: the checkpoint is in f64, and this run goes on in f32";
    assert!(told(&["--precision", "f32"]).contains(note));
    assert!(!told(&[]).contains("note: the checkpoint"));
}

/// The command takes seed, step size and clipping from the checkpoint; ranks may be threads before and processes after.
#[test]
fn the_command_goes_on_as_before_over_processes_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plan, other) = (spec(folder.path(), 2, 2), spec(folder.path(), 1, 1));
    let (plan, other) = (plan.to_str().expect("a path"), other.to_str().expect("a path"));
    let saved = folder.path().join("saved");
    let saved = saved.to_str().expect("a path");
    let settings = ["--seed", "5", "--clip-norm", "0.5", "--learning-rate", "0.002", "--warm-up", "3", "--json"];
    let with = |first: &[&'static str]| -> Vec<String> {
        let words = ["run", plan].into_iter().chain(first.iter().copied()).chain(settings);
        words.map(str::to_string).collect()
    };
    let whole = with(&["--steps", "5"]);
    let whole = losses(&whole.iter().map(String::as_str).collect::<Vec<_>>());
    let mut part = with(&["--steps", "3"]);
    part.extend(["--checkpoint-dir".to_string(), saved.to_string()]);
    losses(&part.iter().map(String::as_str).collect::<Vec<_>>());
    let rest = losses(&["run", plan, "--steps", "5", "--resume", saved, "--transport", "tcp", "--json"]);
    assert_eq!(bits(&rest), bits(&whole[3..]));
    let alone = losses(&["run", other, "--steps", "5", "--resume", saved, "--json"]);
    for (found, expected) in alone.iter().zip(&whole[3..]) {
        assert!((found - expected).abs() < 1e-5 * expected, "{alone:?} {whole:?}");
    }
}

/// A run that starts from the weights in `folder` and does not change them.
fn starting_from(folder: &Path) -> RunOptions {
    let weights = Some(Pretrained::open(folder).expect("a folder of weights"));
    RunOptions { weights, optimizer: AdamW { learning_rate: 0.0, ..AdamW::default() }, ..options(1) }
}

/// The files that another library would write of a checkpoint: nothing that only this crate knows.
fn as_published(checkpoint: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names_in(checkpoint).iter().filter(|name| name.starts_with("model") || *name == "config.json") {
        fs::copy(checkpoint.join(name), folder.path().join(name)).expect("a copy");
    }
    folder
}

#[test]
fn a_run_starts_from_the_weights_of_a_folder_on_any_layout() {
    let gpt = |ranks: usize| {
        let mut work = work(ranks, 8);
        (work.model.family, work.model.tied, work.model.kv_heads) = (Family::Gpt, true, work.model.heads);
        published(&work, "1f1b", Precision::Double).expect("1f1b")
    };
    let llama = |(ranks, data, zero, name)| planned(ranks, data, zero, name, Precision::Double);
    let layouts = [(1, 1, 0, "1f1b"), (4, 1, 0, "zb-h1"), (2, 4, 1, "1f1b"), (2, 1, 0, "zb-v")].map(llama);
    let all = [(layouts[0].clone(), layouts.to_vec()), (gpt(2), vec![gpt(1), gpt(4)])];
    for (from, layouts) in all {
        let folder = tempfile::tempdir().expect("a folder");
        let trained = train(&from, &saving(folder.path(), 3, 0));
        let published = as_published(&folder.path().join("step-000003"));
        for to in layouts {
            let run = train(&to, &starting_from(published.path()));
            assert_eq!(run.steps[0].step, 0);
            assert_eq!(run.weights, trained.weights, "{} to {} ranks", from.problem.ranks(), to.problem.ranks());
        }
        // The same from a checkpoint: its weights alone.
        let run = train(&from, &starting_from(&folder.path().join("step-000003")));
        assert_eq!(run.weights, trained.weights);
    }
}

/// Each half precision is read as the nearest number that it has.
#[test]
fn weights_in_half_precision_are_read() {
    let workload = planned(2, 1, 0, "1f1b", Precision::Double);
    let folder = tempfile::tempdir().expect("a folder");
    // One rank writes one file.
    let trained = train(&planned(1, 1, 0, "1f1b", Precision::Double), &saving(folder.path(), 2, 0));
    let published = as_published(&folder.path().join("step-000002"));
    let path = published.path().join("model.safetensors");
    let whole = fs::read(&path).expect("weights");
    let stored = SafeTensors::deserialize(&whole).expect("safetensors");
    type Rounding = fn(f64) -> ([u8; 2], f64);
    let bf16: Rounding = |value| (half::bf16::from_f64(value).to_le_bytes(), half::bf16::from_f64(value).to_f64());
    let f16: Rounding = |value| (half::f16::from_f64(value).to_le_bytes(), half::f16::from_f64(value).to_f64());
    for (dtype, round) in [(Dtype::BF16, bf16), (Dtype::F16, f16)] {
        let halves: Vec<(String, Vec<usize>, Vec<u8>)> = stored
            .iter()
            .map(|(name, tensor)| {
                let (numbers, _) = tensor.data().as_chunks::<8>();
                let bytes = numbers.iter().flat_map(|number| round(f64::from_le_bytes(*number)).0).collect();
                (name.to_string(), tensor.shape().to_vec(), bytes)
            })
            .collect();
        let views = halves.iter().map(|(name, shape, bytes)| {
            (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).expect("a tensor"))
        });
        fs::write(&path, serialize(views, None).expect("safetensors")).expect("written");
        let run = train(&workload, &starting_from(published.path()));
        for (name, weight) in &run.weights {
            let (Buffer::F64(found), Buffer::F64(exact)) = (weight, &trained.weights[name]) else {
                panic!("{name} is not in f64");
            };
            assert!(found.iter().zip(exact).all(|(found, exact)| *found == round(*exact).1), "{name} {dtype:?}");
        }
    }
}

#[test]
fn weights_of_another_model_are_refused_with_what_differs() {
    let workload = planned(1, 1, 0, "1f1b", Precision::Single);
    let folder = tempfile::tempdir().expect("a folder");
    train(&workload, &saving(folder.path(), 1, 0));
    let checkpoint = folder.path().join("step-000001");
    let mut other = work(2, 8);
    other.model.ffn *= 2;
    let other = published(&other, "1f1b", Precision::Single).expect("1f1b");
    let said = refused(&other, &starting_from(&checkpoint));
    assert!(
        said.contains("this run cannot start from the weights in") && said.contains("intermediate_size is"),
        "{said}"
    );

    let published = as_published(&checkpoint);
    let path = published.path().join("model.safetensors");
    let whole = fs::read(&path).expect("weights");
    let stored = SafeTensors::deserialize(&whole).expect("safetensors");
    let norm = "model.norm.weight";
    let without = stored.iter().filter(|(name, _)| *name != norm);
    fs::write(&path, serialize(without, None).expect("safetensors")).expect("written");
    assert!(refused(&workload, &starting_from(published.path())).ends_with("it has no weight `model.norm.weight`"));
    fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    assert!(refused(&workload, &starting_from(published.path())).contains("ends after the end of the file"));

    // Rows of that family's queries and keys have another order, and the same shapes.
    let config = published.path().join("config.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&config).expect("a config")).expect("JSON");
    // No plan depends on these; what the weights compute does.
    for (name, says, what) in [
        ("rope_scaling", json!({ "rope_type": "llama3", "factor": 8.0 }), "low_freq_factor: found nothing"),
        ("rope_scaling", json!({ "rope_type": "longrope", "factor": 8.0 }), "in a way that is not run (longrope)"),
        ("rope_parameters", json!({ "full_attention": { "rope_type": "yarn" } }), "of some layers alone"),
        ("rope_parameters", json!({ "rope_type": "default", "rope_theta": 500.0 }), "more than one theta"),
        ("rope_parameters", json!({ "a": { "rope_theta": 1e4 }, "b": { "rope_theta": 1e6 } }), "more than one theta"),
        ("rope_local_base_freq", json!(123.0), "more than one theta"),
        ("rope_interleave", json!(true), "rope_interleave"),
        ("use_bidirectional_attention", json!(true), "another mask"),
    ] {
        let mut value = value.clone();
        value["rope_theta"] = json!(10_000.0);
        value[name] = says;
        fs::write(&config, value.to_string()).expect("written");
        let said = refused(&workload, &starting_from(published.path()));
        let is_refused = ["which the runner does not do", "its config.json is not run"].map(|why| said.contains(why));
        assert!(said.contains(what) && is_refused.contains(&true), "{name}: {said}");
    }
    value["model_type"] = json!("helium");
    fs::write(&config, value.to_string()).expect("written");
    let said = refused(&workload, &starting_from(published.path()));
    assert!(said.contains("weights of the model_type \"helium\" are not read"), "{said}");

    let open = |folder: &Path| Pretrained::open(folder).expect_err("refused").to_string();
    fs::remove_file(&path).expect("removed");
    assert!(open(published.path()).contains("neither model.safetensors nor model.safetensors.index.json"));
    let index = json!({ "weight_map": { norm: "../model.safetensors" } });
    fs::write(published.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    assert!(open(published.path()).contains("`../model.safetensors`, which is not a file in this folder"));
    fs::remove_file(&config).expect("removed");
    assert!(open(published.path()).contains("it has no config.json"));
}

/// Layers with a window have a RoPE theta of their own: a run that goes on has it, and another version keeps readers away
/// that would take the model's.
#[test]
fn a_rope_theta_of_layers_with_a_window_goes_on() {
    let with = |rope_base: Option<u32>| {
        let mut work = laid_out(2, 1, 0);
        let window = Window { rope_base, ..Window::sliding(5, 2) };
        work.model.variant = Variant { window: Some(window), ..common::gemma_2(5) };
        published(&work, "1f1b", Precision::Double).expect("it exists")
    };
    let workload = with(Some(100));
    let whole = train(&workload, &options(4));
    let plain = train(&with(None), &options(4));
    assert!((whole.losses()[0] - plain.losses()[0]).abs() > 1e-6, "the angles decide");
    let folder = tempfile::tempdir().expect("a folder");
    train(&workload, &saving(folder.path(), 2, 0));
    let manifest = Checkpoint::open(folder.path()).expect("a checkpoint").manifest;
    assert_eq!(manifest.version, VERSION_WITH_ROTARY);
    assert_same(&train(&workload, &resuming(folder.path(), 4)), &whole, "the rest");
    let said = refused(&with(None), &resuming(folder.path(), 4));
    assert!(said.contains("its model differs"), "{said}");
}

/// Scaled rotary positions are in the checkpoint's `config.json`: a run that goes on has them, evaluation too, and
/// another version keeps readers away that would leave them out.
#[test]
fn scaled_rotary_positions_go_on() {
    let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16.0 };
    let rotary = LayerScaling::of_all(Some(llama));
    let workload = planned(2, 1, 0, "1f1b", Precision::Double);
    let scaled = |options: RunOptions| RunOptions { rotary, ..options };
    let whole = train(&workload, &scaled(options(4)));
    let plain = train(&workload, &options(4));
    assert!((whole.losses()[0] - plain.losses()[0]).abs() > 1e-6, "the angles decide");
    let folder = tempfile::tempdir().expect("a folder");
    train(&workload, &scaled(saving(folder.path(), 2, 0)));
    let manifest = Checkpoint::open(folder.path()).expect("a checkpoint").manifest;
    assert_eq!(manifest.version, VERSION_WITH_ROTARY);
    assert_eq!(manifest.model["rope_scaling"]["rope_type"], "llama3");
    assert_same(&train(&workload, &resuming(folder.path(), 4)), &whole, "the rest");
    let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let with = evaluate::<f64>(&checkpoint, &common::text(), 2).expect("it computes").loss;
    let mut without = checkpoint.clone();
    without.manifest.model.as_object_mut().expect("fields").remove("rope_scaling");
    let without = evaluate::<f64>(&without, &common::text(), 2).expect("it computes").loss;
    assert!((with - without).abs() > 1e-6, "{with} and {without}");
    let mut unknown = checkpoint;
    unknown.manifest.model["rope_scaling"]["factor"] = json!(0);
    let said = refused(&workload, &RunOptions { resume: Some(unknown), ..options(4) });
    assert!(said.contains("llama3: factor: found 0, accepted is a number above 0"), "{said}");
}
