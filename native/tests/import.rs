//! What `pipeplan import` makes of runs.

mod command;

use std::fs;

use command::{json_of, run};

/// A run of open-sci-ref 1.7B on 63 nodes of four A100 (Leonardo), as its log of 2025-03-31 has it, with the size of the
/// vocabulary of its tokenizer (GPT-NeoX) added. Its A100 have 64 GB, which nothing here depends on.
const LEONARDO: &str = "\
pretrain_gpt.py --num-layers 24 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --seq-length 4096 \
--max-position-embeddings 4096 --micro-batch-size 4 --global-batch-size 1008 --train-iters 242204 --use-flash-attn --bf16 \
--qk-layernorm --position-embedding-type rope --rotary-base 100000 --rotary-percent 1.0 --normalization RMSNorm \
--norm-epsilon 1e-5 --swiglu --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce \
--recompute-activations --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --sequence-parallel \
--data-path merged_0 merged_1 --split 989,10,1 --vocab-size 50277
[lrdn0137:0]:Total number of parameters in billions: 1.71
[lrdn0137:0]:[Rank 0] (after 50 iterations) memory (MB) | allocated: 9909.07763671875 | max allocated: 50277.15625 | reserved: 53386.0 | max reserved: 53386.0
[lrdn3321:3]: [2025-03-31 05:54:07] iteration       50/  242204 | elapsed time per iteration (ms): 1552.8 | lm loss: 6.258318E+00 |
[lrdn3321:3]: [2025-03-31 05:56:24] iteration      150/  242204 | elapsed time per iteration (ms): 1283.2 | lm loss: 4.044766E+00 |
[lrdn3321:3]: [2025-03-31 05:57:25] iteration      200/  242204 | elapsed time per iteration (ms): 1211.9 | lm loss: 3.736206E+00 |
[lrdn3321:3]: [2025-03-31 05:58:26] iteration      250/  242204 | elapsed time per iteration (ms): 1230.1 | lm loss: 3.510861E+00 |
";

/// Llama 2 7B on eight RTX 4090 of 48 GB in four stages, as Infinigence's guide to training on them has its log
/// (2025-08-01), which has a line of memory for each stage. That its sequences have 4,096 tokens follows from the TFLOP/s
/// that it reports; that there is one in a microbatch, from what stages hold beside each other.
const FOUR_STAGES: &str = "\
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --normalization RMSNorm \
--disable-bias-linear --position-embedding-type rope --seq-length 4096 --untie-embeddings-and-output-weights \
--attention-dropout 0 --hidden-dropout 0 --bf16 --vocab-size 32000 --tensor-model-parallel-size 1 \
--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 128 --use-distributed-optimizer
[Rank 4] (after 1 iterations) memory (MB) | allocated: 18598.7529296875 | max allocated: 20931.01220703125 | reserved: 21534.0 | max reserved: 21534.0
[Rank 0] (after 1 iterations) memory (MB) | allocated: 20034.7529296875 | max allocated: 30227.64599609375 | reserved: 31086.0 | max reserved: 31086.0
[Rank 2] (after 1 iterations) memory (MB) | allocated: 18598.7529296875 | max allocated: 25079.2666015625 | reserved: 25890.0 | max reserved: 25890.0
[Rank 6] (after 1 iterations) memory (MB) | allocated: 20115.05078125 | max allocated: 20115.08251953125 | reserved: 20258.0 | max reserved: 20258.0
";

/// Each stage of a pipeline held what its plan says, to one percent.
#[test]
fn every_stage_of_a_run_held_what_is_planned() {
    let shown = json_of(&["import", "-", "--device", "a100-80", "--devices", "8", "--json"], FOUR_STAGES);
    let peaks = shown["measured"]["peaks"].as_array().unwrap();
    assert_eq!(peaks.len(), 4);
    for peak in peaks {
        let [measured, planned] = ["peak_bytes", "planned_bytes"].map(|key| peak[key].as_u64().unwrap() as f64);
        assert!((planned / measured - 1.0).abs() < 0.01, "{peak}");
    }
}

/// Memory that a run held on a cluster is what its plan says, to half a percent; the step takes longer than its operators at
/// their best.
#[test]
fn what_a_log_measured_stands_beside_what_is_planned() {
    let shown = json_of(&["import", "-", "--device", "a100-80", "--devices", "252", "--json"], LEONARDO);
    let measured = &shown["measured"];
    let [peak, planned] =
        ["peak_bytes", "planned_bytes"].map(|key| measured["peaks"][0][key].as_u64().unwrap() as f64);
    assert!((planned / peak - 1.0).abs() < 0.005, "{measured}");
    let [step, planned] = ["step_ns", "planned_step_ns"].map(|key| measured[key].as_u64().unwrap() as f64);
    assert!(planned < step && planned > 0.8 * step, "{measured}");
    // Nothing of it is left out, the biases of its layers neither.
    assert_eq!(shown["notes"].as_array().map(Vec::len), Some(0), "{}", shown["notes"]);
    assert_eq!(shown["spec"]["model"]["mlp_bias"], true, "{}", shown["spec"]);
    assert_eq!(shown["spec"]["training"]["tokens"], 1_000_004_124_672_u64);
}

/// The spec that is written is the run, and plans.
#[test]
fn the_spec_that_is_written_is_read_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spec.toml").to_string_lossy().into_owned();
    let (code, text, told) = run(&["import", "-", "--device", "a100-80", "--devices", "252", "-o", &path], LEONARDO);
    assert_eq!(code, Some(0), "{told}");
    for part in ["memory of rank 0", "49.10 GiB", "step, median of 4", "planned as 1f1b", "spec.toml"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text, _) = run(&["plan", &path], "");
    assert_eq!(code, Some(0));
    assert!(text.contains("training      1.00 T tokens in 242204 steps"), "{text}");
    // Without -o the spec is all that standard output has.
    let (_, text, told) = run(&["import", "-", "--device", "a100-80", "--devices", "252"], LEONARDO);
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
    assert!(told.contains("memory of rank 0"), "{told}");
}

/// A program gets every argument of a refused run, too: each in one list.
#[test]
fn a_refused_run_lists_its_arguments() {
    let wrong = LEONARDO.replace("--swiglu", "--swiglu --num-medusa 3 --mtp-hsm --wandb-project x --freeze-router");
    let (code, out, told) = run(&["import", "-", "--device", "h100", "--devices", "252", "--json"], &wrong);
    assert_eq!(code, Some(2));
    assert!(told.contains("--mtp-hsm"), "{told}");
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    let arguments = &shown["arguments"];
    assert_eq!(arguments["refused"], serde_json::json!(["freeze-router", "mtp-hsm"]));
    assert_eq!(arguments["not_known"], serde_json::json!(["num-medusa"]));
    let has = |list: &str, name: &str| arguments[list].as_array().unwrap().iter().any(|known| known == name);
    assert!(has("used", "num-layers") && has("harmless", "wandb-project") && !has("used", "mtp-hsm"), "{arguments}");
    assert_eq!(shown["faults"].as_array().map(Vec::len), Some(2), "{shown}");
    assert_eq!(shown["faults"][0]["field"], "--freeze-router");
}

#[test]
fn what_is_no_run_or_lacks_something_is_refused() {
    let refused = |arguments: &[&str], text: &str| {
        let (code, out, told) = run(arguments, text);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        told
    };
    assert!(
        refused(&["import", "-", "--device", "h100"], "hello\n")
            .contains("contains no arguments of Megatron-LM, torchtitan or verl")
    );
    assert!(refused(&["import", "-", "--device", "h100"], LEONARDO).contains("devices: found nothing"));
    let told = refused(&["import", "-", "--device", "h1000", "--devices", "252"], LEONARDO);
    assert!(told.contains("cluster.device") && told.contains("h100"), "{told}");
    let without = LEONARDO.replace("--vocab-size 50277", "");
    let told = refused(&["import", "-", "--device", "h100", "--devices", "252"], &without);
    assert!(told.contains("--vocab-size: found nothing"), "{told}");
}

/// Files that a script takes variables from are read beside it and in its repository, and nowhere else.
#[test]
fn files_of_a_script_are_read_within_its_repository() {
    let folder = std::env::temp_dir().join(format!("pipeplan-import-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let (outside, repository) = (folder.join("outside"), folder.join("repository"));
    let scripts = repository.join("examples/a");
    for path in [&outside, &scripts, &repository.join(".git"), &repository.join("models")] {
        fs::create_dir_all(path).unwrap();
    }
    let (model, rest) = LEONARDO.lines().next().and_then(|line| line.split_once(" --seq-length")).unwrap();
    let script = "HERE=$(cd \"$(dirname \"$0\")\" && pwd)\nsource \"$HERE/../../models/m.sh\"\n. $HERE/rest.sh\n\
                  torchrun --nproc-per-node 4 --nnodes 63 $MODEL $REST\n";
    fs::write(scripts.join("run.sh"), script).unwrap();
    fs::write(repository.join("models/m.sh"), format!("MODEL=\"{model}\"")).unwrap();
    fs::write(outside.join("rest.sh"), format!("REST=\"--seq-length{rest}\"")).unwrap();
    let path = scripts.join("run.sh").to_string_lossy().into_owned();
    let arguments = ["import", path.as_str(), "--device", "a100-80"];
    let (code, _, told) = run(&arguments, "");
    assert!(code == Some(2) && told.contains("arguments: found $REST"), "{told}");
    // A link to a file outside is none of the repository.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outside.join("rest.sh"), scripts.join("rest.sh")).unwrap();
        assert_eq!(run(&arguments, "").0, Some(2));
        fs::remove_file(scripts.join("rest.sh")).unwrap();
    }
    fs::rename(outside.join("rest.sh"), repository.join("rest.sh")).unwrap();
    let (code, out, told) = run(&arguments, "");
    assert_eq!(code, Some(0), "{told}");
    assert!(
        out.contains("schedule = \"1f1b\"") && told.contains("`../../models/m.sh`") && told.contains("`rest.sh`")
    );
    fs::remove_dir_all(&folder).unwrap();
}

/// A model that does not fit is read in the time of its plan: nobody looks for what would make it fit, which takes a minute.
#[test]
fn a_deep_model_that_does_not_fit_is_read_in_a_moment() {
    let deep = "pretrain_gpt.py --num-layers 2048 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16 \
                --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 \
                --pipeline-model-parallel-size 8";
    let started = std::time::Instant::now();
    let (code, _, told) = run(&["import", "-", "--device", "h100", "--devices", "64"], deep);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("does not fit"), "{told}");
    assert!(started.elapsed() < std::time::Duration::from_secs(15), "{:?}", started.elapsed());
}
