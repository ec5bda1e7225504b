use alloc::string::ToString;

use proptest::prelude::*;

use super::lists::layers_of_experts;
use super::parallel::dealt;
use super::*;
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::model::{Activation, Norm};
use crate::spec::{ModelWork, Work};

const MODEL: &str = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu \
 --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --seq-length 4096 \
                     --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --bf16 \
                     --vocab-size 32000 ";

fn imported(text: &str) -> (ModelWork, Spec, Vec<String>) {
    let run = TrainingRun::read(text);
    let Imported { spec, notes, .. } = run.spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    let Work::Model(work) = spec.work.clone() else { panic!("a model") };
    (work, spec, notes)
}

/// As [`imported`], of a launch of this model on two nodes.
fn launched(model: &str) -> (ModelWork, Spec, Vec<String>) {
    imported(&format!(
        "torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py {model} --pipeline-model-parallel-size 4 \
         --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 64 \
         --use-distributed-optimizer --num-layers-per-virtual-pipeline-stage 4 --train-samples 1000000"
    ))
}

/// Llama 2 7B has the parameters that were published, whoever describes it.
#[test]
fn a_command_line_is_the_model_that_it_describes() {
    let (work, spec, notes) = launched(MODEL);
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(work.model.parameters(), 6_738_415_616);
    assert_eq!((work.pipeline, work.layout.form.tensor, work.layout.data, work.layout.zero), (4, 2, 2, 1));
    assert!(work.layout.form.sequence_parallel && !work.layout.form.dropout && work.layout.form.f32_logits);
    assert_eq!((spec.schedule.as_str(), work.chunks, work.microbatches), ("interleaved-1f1b", 2, 32));
    assert_eq!(work.layout.partition, Partition::Layers, "an even deal is a rule, which other schedules can follow");
    assert_eq!(work.tokens, Some(4_096_000_000));
}

/// Megatron-LM's layers have LayerNorm and biases unless the script says otherwise, with a gate too: of 32 layers four
/// biases of attention, three of the MLP, and one beside each gain of 65 norms.
#[test]
fn norms_biases_and_partial_rotary_positions_are_those_of_the_script() {
    let plain = 6_738_415_616;
    let biases = 32 * (4 * 4096 + 2 * 11008 + 4096);
    let with = |from: &str, to: &str| launched(&MODEL.replace(from, to));
    let (work, _, notes) = with("--disable-bias-linear", "");
    assert_eq!((work.model.parameters(), notes), (plain + biases, Vec::new()));
    let (work, _, notes) = with("--normalization RMSNorm", "--rotary-percent 0.25");
    assert_eq!((work.model.parameters(), notes), (plain + 65 * 4096, Vec::new()));
    assert_eq!((work.model.variant.norm, work.model.variant.rotary), (Norm::Layer, Some(32)));
    // Nemotron's layers: two matrices in the MLP, and gains around 1.
    let nemotron = "--squared-relu --apply-layernorm-1p";
    let (work, _, notes) = launched(&MODEL.replace("--swiglu", nemotron).replace("--normalization RMSNorm", ""));
    assert_eq!((work.model.parameters(), notes), (plain - 32 * 4096 * 11008 + 65 * 4096, Vec::new()));
    let variant = work.model.variant;
    assert_eq!((variant.activation, variant.norm), (Activation::SquaredRelu, Norm::Layer));
    assert!(variant.norm_offset && !variant.mlp_bias);
}

#[test]
fn a_log_and_a_command_line_of_one_run_say_the_same() {
    let arguments = format!("{MODEL} --recompute-granularity full --recompute-method block --recompute-num-layers 3");
    let mut log = String::from("using world size: 4, data-parallel size: 2\n");
    for word in arguments.split("--").filter(|word| !word.trim().is_empty()) {
        let (name, value) = word.trim().split_once(' ').unwrap_or((word.trim(), "True"));
        let (name, value) = match name {
            "disable-bias-linear" => ("add_bias_linear", "False"),
            name => (name, value),
        };
        log.push_str(&format!("[rank0]:   {} {} {value}\n", name.replace('-', "_"), ".".repeat(20)));
    }
    log.push_str("  pipeline_model_parallel_size ...... 2\n  num_experts ........ None\n  wandb_project ......\n");
    log.push_str(" > padded vocab (size: 32000) with 0 dummy tokens (new size: 32000)\n");
    let script = format!(
        "PP=2\nexport N=4 # devices\nARGS=(\n  {arguments} \\\n  --pipeline-model-parallel-size ${{PP}} # ranks\n  \
         --micro-batch-size ${{SIZE:-1}}\n)\ntorchrun --nproc_per_node $N pretrain_gpt.py ${{ARGS[@]}}\n"
    );
    let (of_log, of_script) = (imported(&log), imported(&script));
    assert_eq!(of_log, of_script);
    assert_eq!(of_log.0.layout.recompute_layers, RecomputeLayers::First(3));
}

/// DeepSeek-V3's parameters (arXiv:2412.19437 §4.2), and how its layers may be dealt.
#[test]
fn latent_attention_experts_and_layouts_are_read() {
    let text = "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu \
        --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --seq-length 4096 --bf16 \
        --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 129280 \
        --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \
        --v-head-dim 128 --qk-layernorm --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 \
        --moe-shared-expert-intermediate-size 2048 --moe-layer-freq '([0]*3+[1]*58)' --mtp-num-layers 1 \
        --moe-router-score-function sigmoid --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 \
        --pipeline-model-parallel-layout \"Et*3|(tt|)*29m|L\" --nproc_per_node 8 --nnodes 256 --micro-batch-size 1 \
        --global-batch-size 15360 --recompute-granularity selective --recompute-modules mla_up_proj layernorm moe_act";
    let (work, ..) = imported(text);
    let known = crate::model::catalog::find("deepseek-v3").unwrap().config;
    assert_eq!(work.model.parameters(), known.parameters());
    assert_eq!(work.model.variant.latent, known.variant.latent);
    assert_eq!((work.layout.data, work.layout.form.expert, work.chunks), (128, 64, 2));
    let Partition::WithModules(counts) = &work.layout.partition else { panic!("{:?}", work.layout.partition) };
    assert_eq!((counts.len(), counts[0], counts[1], &counts[30..]), (32, [3, 0], [2, 0], &[[0, 1], [0, 0]][..]));
    assert_eq!(counts.iter().map(|[layers, _]| layers).sum::<u32>(), 61);
}

/// As Megatron-LM deals layers: `get_num_layers_to_build` of its `transformer_block.py`.
#[test]
fn layers_are_dealt_as_megatron_does() {
    let no = [None, None];
    assert_eq!(dealt(32, 8, 2, no, [false; 2]), Some(alloc::vec![4; 8]));
    assert_eq!(dealt(30, 4, 1, no, [true, true]), Some(alloc::vec![7, 8, 8, 7]));
    assert_eq!(dealt(31, 8, 2, no, [false, true]), Some(alloc::vec![4, 4, 4, 4, 4, 4, 4, 3]));
    assert_eq!(dealt(30, 4, 1, [Some(6), None], [false; 2]), Some(alloc::vec![6, 8, 8, 8]));
    assert_eq!(dealt(28, 8, 2, [Some(6), Some(6)], [false; 2]), Some(alloc::vec![3, 4, 4, 3, 3, 4, 4, 3]));
    assert_eq!(dealt(30, 4, 1, no, [false; 2]), None);
}

#[test]
fn experts_may_be_in_every_so_many_layers_or_in_those_of_a_list() {
    let of = |text: &str, layers| layers_of_experts(text, layers);
    assert_eq!(of("2", 4), Some(alloc::vec![true, false, true, false]));
    assert_eq!(of("([0]*1+[1]*3)", 4), Some(alloc::vec![false, true, true, true]));
    assert_eq!(of("[0, 1, 1]", 3), Some(alloc::vec![false, true, true]));
    assert_eq!(of("[0,1]*2", 4), Some(alloc::vec![false, true, false, true]));
    for text in ["0", "[0]*3", "[0]*9999999999", "[2]*4", "many", "[0", ""] {
        assert_eq!(of(text, 4), None, "{text}");
    }
}

/// Steps in the middle of what was reported, and the most of each rank.
#[test]
fn what_a_log_measured_is_read() {
    let run = TrainingRun::read(
        "0: [Rank 0] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 1024.5 | reserved: 1\n\
         0: [Rank 0] (after 9 iterations) memory (MB) | allocated: 10.0 | max allocated: 1000.0 | reserved: 1\n\
         [Rank 16] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: 2048.0 | reserved: 1\n\
         iteration 1/ 9 | elapsed time per iteration (ms): 9000.0 | lm loss: 1\n\
         iteration 2/ 9 | elapsed time per iteration (ms): 120.5 | lm loss: 1\n\
         iteration 3/ 9 | elapsed time per iteration (ms): 110.0 | lm loss: 1\n\
         iteration 4/ 9 | elapsed time per iteration (ms): 130.0 | lm loss: 1\n",
    );
    assert_eq!(run.typical_step_ns(), Some(120_500_000));
    let peaks: Vec<_> = run.peaks.iter().map(|(rank, peak)| (*rank, peak.bytes, peak.of_first_step)).collect();
    assert_eq!(peaks, [(0, 1_074_266_112, false), (16, 2_147_483_648, true)]);
}

#[test]
fn what_is_missing_or_no_number_is_told_by_its_argument() {
    let run = TrainingRun::read("--num-layers $LAYERS --hidden-size 4096 --swiglu");
    let faults = run.spec("h100", None).unwrap_err().to_string();
    for part in [
        "--num-layers: found $LAYERS, accepted is the value of a variable: --set LAYERS=VALUE",
        "--num-attention-heads: found nothing",
        "--seq-length: found nothing",
        "devices: found nothing",
    ] {
        assert_eq!(faults.matches(part).count(), 1, "{part}: {faults}");
    }
    let unknown = TrainingRun::read(&format!("{MODEL} --nproc_per_node 1")).spec("h1000", None).unwrap_err();
    assert!(unknown.to_string().starts_with("cluster.device"), "{unknown}");
    assert!(!TrainingRun::read("a log of something else").is_any());
}

#[test]
fn lists_are_read_as_python_has_them() {
    let of = |text: &str, layers| layers_of_experts(text, layers);
    assert_eq!(of("([0]*2+[1])*2", 6), Some(alloc::vec![false, false, true, false, false, true]));
    assert_eq!(of("[0, 1] * 2 + [1]", 5), Some(alloc::vec![false, true, false, true, true]));
    for text in ["[0]*2*", "([0]", "[0])", "[0]**2", "[]*4", "((((((((((((((((((([1])))))))))))))))))))*4"] {
        assert_eq!(of(text, 4), None, "{text}");
    }
}

/// Of several commands one is taken, and what a person gives counts.
#[test]
fn what_a_person_gives_is_taken() {
    let script =
        format!("L=${{1:?layers}}\ntrain_a.py {MODEL} --num-layers $L --nproc_per_node 4\ntrain_b.py {MODEL}\n");
    let faults =
        |given: &Given| TrainingRun::read_with(&script, given).spec("h100", Some(4)).unwrap_err().to_string();
    let both = faults(&Given::default());
    assert!(both.contains("1 in line 2 (train_a.py), 2 in line 3 (train_b.py)"), "{both}");
    let mut given = Given { command: Some(1), ..Given::default() };
    assert!(faults(&given).contains("--num-layers: found $1, accepted is the value of a variable: --set 1=VALUE"));
    given.variables.insert("1".to_string(), "16".to_string());
    let imported =
        TrainingRun::read_with(&script, &given).spec("h100", Some(4)).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(imported.value["model"]["layers"], 16);
    given.variables.insert("TYPO".to_string(), "1".to_string());
    assert!(faults(&given).contains("--set TYPO: found no such variable"));
}

/// Each argument is in one of the lists, and what decides a plan and cannot be planned is refused.
#[test]
fn no_argument_is_passed_over() {
    let text = format!("{MODEL} --nproc_per_node 1 --seed 1 --tp-comm-overlap --my-own 3 --optimizer muon --swiglu");
    let run = TrainingRun::read(&text);
    let Imported { arguments, .. } = run.spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    let all =
        arguments.used.len() + arguments.harmless.len() + arguments.not_modelled.len() + arguments.not_known.len();
    assert_eq!(all, run.arguments.len());
    assert_eq!(arguments.not_known, ["my-own"]);
    assert!(arguments.harmless.iter().any(|name| name == "seed"));
    assert!(arguments.not_modelled.contains_key("tp-comm-overlap"));
    assert!(["optimizer", "swiglu"].iter().all(|name| arguments.used.iter().any(|used| used == name)));
    for refused in ["--hybrid-override-pattern M-M*", "--heterogeneous-layers-config-path x", "--train_type longlora"]
    {
        let faults = TrainingRun::read(&format!("{text} {refused}")).spec("h100", None).unwrap_err().to_string();
        assert!(faults.contains(refused.split(' ').next().unwrap().replace('_', "-").as_str()), "{faults}");
    }
}

/// Relatives of Megatron-LM say heads of keys, devices, formats and batch by names of their own, or set them themselves.
///
/// Long on purpose: a table of relatives, a few lines each.
#[test]
fn relatives_of_megatron_say_it_in_their_way() {
    let imported = |more: &str| {
        let text = format!("{MODEL} {more}");
        TrainingRun::read(&text).spec("h100", None).unwrap_or_else(|faults| panic!("{more}: {faults}"))
    };
    // Megatron-DeepSpeed.
    let of = imported(
        "--nproc_per_node 8 --bf16 --deepspeed --deepspeed_config=ds.json --zero-stage=2 --num-key-value-heads 2 \
         --rotary-position-embeddings-theta 500000 --no-pipeline-parallel --swiglu",
    );
    assert_eq!(
        (of.value["model"]["kv_heads"].as_u64(), of.value["model"]["rope_base"].as_u64()),
        (Some(2), Some(500_000))
    );
    assert_eq!(
        (of.value["parallel"]["zero"].as_u64(), &of.value["training"]["attention"]),
        (Some(2), &Value::from("materialised"))
    );
    assert!(of.arguments.not_modelled.contains_key("deepspeed-config") && of.arguments.not_known.is_empty());
    for switch in
        ["--use-flash-attn-v1", "--use-flash-attn-v2", "--use-flash-attn-triton", "--use-flash-attn-builder"]
    {
        let flash = imported(&format!("--nproc_per_node 8 --bf16 --deepspeed --zero-stage 1 {switch}"));
        assert_eq!(flash.value["training"].get("attention"), None, "{switch}");
    }
    let text = format!("{MODEL} --nproc_per_node 8 --deepspeed --ds-sequence-parallel-size 4");
    let faults = TrainingRun::read(&text).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("--ds-sequence-parallel-size: found \"4\"") && faults.contains("Ulysses"), "{faults}");
    // NeMo: Llama 3 8B on two nodes.
    let nemo = "trainer:\n  devices: 8\n  num_nodes: 2\n  precision: bf16-mixed\nmodel:\n  encoder_seq_length: 8192\n  \
                max_position_embeddings: ${.encoder_seq_length}\n  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 14336\n  \
                num_attention_heads: 32\n  num_query_groups: 8\n  normalization: rmsnorm\n  bias: false\n  activation: fast-swiglu\n  \
                position_embedding_type: rope\n  share_embeddings_and_output_weights: false\n  vocab_size: 128256\n  \
                hidden_dropout: 0.0\n  attention_dropout: 0.0\n  tensor_model_parallel_size: 1\n  micro_batch_size: 1\n  \
                global_batch_size: 128\n  activations_checkpoint_granularity: selective\n  optim:\n    name: distributed_fused_adam\n";
    let run = TrainingRun::read(nemo);
    let of = run.spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    let Work::Model(work) = &of.spec.work else { panic!("a model") };
    // 8.03 billion, as published.
    assert_eq!(work.model.parameters(), 8_030_261_248);
    assert_eq!((work.layout.data, work.layout.zero, work.model.positions), (16, 1, 8192));
    assert_eq!(
        (&of.value["training"]["dtype"], &of.value["training"]["recompute"]),
        (&Value::from("bf16"), &Value::from("selective"))
    );
    let faults = TrainingRun::read(&nemo.replace("fast-swiglu", "reglu")).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("activation: found \"reglu\""), "{faults}");
    // What is evaluated on has a batch of its own, and other tables too.
    let sets = format!("{nemo}  data:\n    validation_ds:\n      micro_batch_size: 4\n      global_batch_size: 16\n");
    let run = TrainingRun::read(&sets);
    let with_sets = run.spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(with_sets.value, of.value);
    assert!(
        with_sets.notes.iter().any(|note| note.contains("left out: model.data.validation_ds")),
        "{:?}",
        with_sets.notes
    );
    for (from, to, told) in [
        ("distributed_fused_adam", "adafactor", "model.optim.name: found \"adafactor\""),
        (
            "position_embedding_type: rope",
            "position_embedding_type: alibi",
            "--position-embedding-type: found \"alibi\"",
        ),
        ("  bias: false", "  bias: false\n  headscale: true", "a weight for each head is not planned"),
        ("  bias: false", "  bias: false\n  transformer_block_type: normformer", "norms at other places"),
    ] {
        let faults = TrainingRun::read(&nemo.replace(from, to)).spec("h100", None).unwrap_err().to_string();
        assert!(faults.contains(told), "{to}: {faults}");
    }
    let neutral =
        nemo.replace("  bias: false", "  bias: false\n  headscale: False\n  transformer_block_type: 'pre_ln'");
    let neutral = TrainingRun::read(&neutral).spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(neutral.value, of.value);
    let peft = format!("{nemo}  peft:\n    peft_scheme: lora\n");
    let faults = TrainingRun::read(&peft).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("model.peft.peft_scheme: found \"lora\""), "{faults}");
    // Names of tables beyond what people write take no memory for each entry.
    let tables: String = (0..8).map(|depth| " ".repeat(depth) + &"t".repeat(9000) + ":\n").collect();
    let entries = yaml::read(&(tables + &"          seed: 1\n".repeat(100))).entries;
    assert!(entries.len() == 100 && entries.iter().all(|entry| entry.path.len() <= 256));
    // Elsewhere two values of what decides the plan are asked for.
    let twice =
        "A:\n  num_layers: 4\n  hidden_size: 64\nB:\n  num_layers: 8\n  num_workers: 1\nC:\n  num_workers: 2\n";
    let faults = TrainingRun::read(twice).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("--num-layers: found 4 in A and 8 in B, accepted is one value"), "{faults}");
    assert!(!faults.contains("--num-workers"), "{faults}");
    // slime: four nodes of eight, 32 prompts of 8 samples, two steps on each rollout.
    let of = imported(
        "--actor-num-nodes 4 --actor-num-gpus-per-node 8 --rollout-num-gpus 64 --rollout-batch-size 32 \
         --n-samples-per-prompt 8 --num-steps-per-rollout 2 --sglang-mem-fraction-static 0.7 --use-dynamic-batch-size \
         --max-tokens-per-gpu 9216 --eps-clip 0.2 --hf-checkpoint model",
    );
    let degree = |name: &str| of.value["parallel"][name].as_u64().unwrap_or(1);
    assert_eq!(degree("data") * degree("pipeline") * degree("tensor"), 32);
    assert_eq!((degree("zero"), &of.value["training"]["dtype"]), (1, &Value::from("bf16")));
    assert_eq!(of.value["training"]["global_batch_size"], 128);
    assert!(of.arguments.not_known.is_empty(), "{:?}", of.arguments.not_known);
    // What the number of devices depends on is asked for.
    for (script, found) in [
        (format!("torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py {MODEL}"), "$NODES"),
        (format!("srun -N $NODES --ntasks-per-node 8 python pretrain_gpt.py {MODEL}"), "$NODES"),
    ] {
        let faults = TrainingRun::read(&script).spec("h100", None).unwrap_err().to_string();
        let asked = format!(
            "devices: found {found}, accepted is the value of a variable: --set NODES=VALUE, or --devices COUNT"
        );
        assert!(faults.contains(&asked), "{script}: {faults}");
    }
    // What is given and read by nothing is no part of the plan.
    let given = Given { config: Some("{}".into()), ..Given::default() };
    let text = format!("torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL}");
    let faults = TrainingRun::read_with(&text, &given).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("--config: found a file, accepted is a command of verl"), "{faults}");
    let mut given = Given { command: Some(3), ..Given::default() };
    given.variables.insert("X".into(), "1".into());
    let faults = TrainingRun::read_with(nemo, &given).spec("h100", None).unwrap_err().to_string();
    assert!(
        faults.contains("--set X: found a text that is no script") && faults.contains("--command: found 3"),
        "{faults}"
    );
    // What a script is called with is read where it hands all of it on.
    let mut given = Given::default();
    given.variables.insert("1".into(), "--context-parallel-size=2".into());
    let script = format!("torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} \"$@\"");
    let of = TrainingRun::read_with(&script, &given).spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(of.value["parallel"]["context"], 2);
    // Sizes beyond all machines end in words.
    let text =
        format!("torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --context-parallel-size 18446744073709551615");
    assert!(TrainingRun::read(&text).spec("h100", None).is_err());
    // Without the other, eight on each node.
    let of =
        imported("--actor-num-nodes 2 --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2");
    let degree = |name: &str| of.value["parallel"][name].as_u64().unwrap_or(1);
    assert_eq!(degree("data") * degree("pipeline") * degree("tensor"), 16);
    // ms-swift.
    let text = format!("{MODEL} --nproc_per_node 8").replace("--seq-length 4096", "--max_length 4096");
    let of = TrainingRun::read(&text).spec("h100", None).expect("it is a run");
    assert_eq!(of.value["training"]["sequence"], 4096);
    // Where a file has the model, it is named.
    let text = "torchrun --nproc_per_node 8 train.py --config-file models/kimi.yaml --tensor-model-parallel-size 8 --seq-length 8";
    let run = TrainingRun::read(text);
    assert!(run.is_any());
    let faults = run.spec("h100", None).unwrap_err().to_string();
    assert!(
        faults.contains("--num-layers: found nothing") && faults.contains("models/kimi.yaml (--config-file)"),
        "{faults}"
    );
    let text =
        "P=$(yq .ARGS x.yaml)\nmpirun -np 16 bash -c \"python pretrain_gpt.py --pipeline-model-parallel-size 2 $P\"";
    let faults = TrainingRun::read(text).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("arguments: found $P"), "{faults}");
    let text = format!(
        "{MODEL} --nproc_per_node 8 --num-experts 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1"
    );
    let faults = TrainingRun::read(&text).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("--sequence-parallel: found nothing"), "{faults}");
    // Megatron-LM itself, where nobody says a format.
    let text = format!("{MODEL} --nproc_per_node 8").replace("--bf16", "");
    let notes = TrainingRun::read(&text).spec("h100", None).expect("it is a run").notes;
    assert!(notes.iter().any(|note| note.contains("planned in f32")), "{notes:?}");
}

proptest! {
    /// Whatever a log holds, nothing panics, and no number in it takes memory.
    #[test]
    fn no_text_makes_it_panic(
        at in any::<prop::sample::Index>(), with in "[ -~\n]{0,12}", number in any::<u64>(), which in 0usize..9,
    ) {
        let names = ["num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size",
            "pipeline-model-parallel-size", "num-experts", "num-layers-per-virtual-pipeline-stage", "nproc_per_node"];
        let mut text = format!("{MODEL} --nproc_per_node 8 --moe-layer-freq 1 --{} {number}", names[which]);
        let at = at.index(text.len());
        text.insert_str(at, &with);
        let run = TrainingRun::read(&text);
        if let Ok(imported) = run.spec("h100", Some(number)) {
            prop_assert!(Spec::from_value(&imported.value).is_ok());
        }
    }
}

/// Frozen weights are refused by the name of their argument, with where a spec says them; off, they say nothing.
#[test]
fn frozen_weights_of_a_run_are_refused_by_name() {
    let faults = |more: &str| {
        let text = format!("{MODEL} --micro-batch-size 1 --global-batch-size 8 {more}");
        let found = TrainingRun::read(&text).spec("h100", Some(8));
        found.map(|_| ()).map_or_else(|faults| faults.to_string(), |()| String::new())
    };
    assert_eq!(faults("--freeze-parameters-ratio 0 --qad-train-target all --freeze-llm false --freeze-ViT"), "");
    for (more, told) in [
        ("--freeze-LM", "--freeze-LM: found it, accepted is nothing: a decoder that is all frozen"),
        ("--freeze-parameters-ratio 0.5", "training.frozen of a spec"),
        ("--trainable-parameters model.layers", "names of weights are not read"),
        ("--qad-train-target mtp", "--qad-train-target: found \"mtp\""),
        ("--freeze-all-layers", "nothing trains"),
    ] {
        let found = faults(more);
        assert!(found.contains(told), "{more}: {found}");
    }
    let text = format!("{MODEL} --micro-batch-size 1 --global-batch-size 8 --freeze-ViT");
    let told = TrainingRun::read(&text).spec("h100", Some(8)).unwrap().arguments.not_modelled;
    assert!(told["freeze-ViT"].contains("model.vision"), "{told:?}");
}

/// What is not read is told by what it seems to be, and a run is none of these.
#[test]
fn other_files_are_told_for_what_they_are() {
    for (text, told) in [
        ("import nemo_run as run\nfrom nemo.collections import llm\n", "a Python recipe of NeMo 2"),
        ("{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3}}", "a config of DeepSpeed"),
        ("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\n", "a config of LLaMA-Factory"),
        ("base_model: NousResearch/Llama-3.2-1B\nmicro_batch_size: 2\n", "a config of axolotl"),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n", "a config of accelerate"),
        ("{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096}", "the config.json of"),
    ] {
        let (what, advice) = likely(text).unwrap_or_else(|| panic!("{text}"));
        assert!(what.starts_with(told) && advice.contains("spec"), "{what}: {advice}");
        assert!(!TrainingRun::read(text).is_any(), "{text}");
    }
    assert_eq!(likely("hello"), None);
    assert_eq!(likely(&"\u{20ac}".repeat(40_000)), None);
}
