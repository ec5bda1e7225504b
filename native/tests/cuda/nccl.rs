//! Ranks on cards of their own, over NCCL.

use crate::tiny::{losses, pipeplan};
use pipeplan::backend::cuda::nvidia::WORKSPACE_BYTES;

use super::{card, emulated, on_cards, planned, train};

/// Tensor-parallel ranks, each with a card: a sum waits for what it reads on a separate queue, the ranks' products go on
/// beside it, their queues wait where it is read, and no host waits in between. What a rank takes of its card is what was
/// worked out: sums take no memory of their own.
#[test]
fn sums_over_nccl_run_beside_the_queue() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let variables = [
        ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
        ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
        ("FAKE_CUDA_CARDS", "2"),
        ("FAKE_CUDA_ORDER", "1"),
    ];
    let (layers, microbatches, steps) = (2, 2, 4);
    for rows_too in [false, true] {
        let spec = format!(
            "schedule = \"1f1b\"\n[model]\nname = \"own\"\nfamily = \"llama\"\nlayers = {layers}\nhidden = 32\nheads = 2\n\
             ffn = 48\nvocab = 260\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 1\ntensor = 2\n\
             sequence_parallel = {rows_too}\nasync_reduce = true\n[training]\nmicrobatches = {microbatches}\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"f32\"\n"
        );
        let plan = planned(&format!("beside-{rows_too}"), &spec);
        let expected = emulated(&plan);
        let plan = plan.to_string_lossy();
        for graphs in ["on", "off"] {
            let name = format!("beside-{rows_too}-{graphs}");
            let steps = steps.to_string();
            let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--steps", &steps, "--json"];
            let arguments = [&arguments[..], &["--patience", "60", "--cuda-graphs", graphs]].concat();
            let ran = on_cards(&name, "", &arguments, &variables).expect("there was a card");
            assert_eq!(losses(&ran.output), expected, "{name}");
            for rank in ran.memory() {
                let [counted, device] =
                    ["high_water_bytes", "device_bytes"].map(|field| rank[field].as_u64().expect("bytes"));
                let slab = 2 << 20;
                let least = (counted + WORKSPACE_BYTES).div_ceil(slab) * slab;
                // A slab for the first message, and one for tables and what lies between tensors.
                assert!((least..=least + 2 * slab).contains(&device), "{name}: {device} taken, {counted} counted");
            }
            if graphs == "off" {
                let ranks: Vec<_> =
                    ran.by_process.iter().filter(|calls| calls.iter().any(|call| call.contains("init"))).collect();
                assert_eq!(ranks.len(), 2, "{name}");
                // Of each layer the gradients behind Q, K and V and behind gate and up.
                let least = 2 * layers * microbatches * 4;
                ranks.iter().for_each(|calls| assert_beside(calls, &name, least));
            }
        }
    }
}

/// That sums go as they should in `calls`, at least so many of them with products beside.
fn assert_beside(calls: &[String], name: &str, least: usize) {
    let numbers = |call: &str| -> Vec<u32> {
        call.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    let before = |at: usize, part: &str| calls[..at].iter().rposition(|call| call.contains(part)).expect(part);
    let mut with_products = 0;
    for at in (0..calls.len()).filter(|at| calls[*at].ends_with("from outside")) {
        let own = numbers(&calls[at])[0];
        // It waits for a mark that the rank's queue had just been given.
        let waits = before(at, &format!("stream {own} waits for mark"));
        let mark = before(waits, ": mark ");
        let [queue, ready] = numbers(&calls[mark])[..] else { panic!("{}", calls[mark]) };
        assert_eq!(numbers(&calls[waits])[1], ready, "{name}: {}", calls[waits]);
        assert!(queue != own && !calls[mark..at].iter().any(|call| call.contains("host waits")), "{name}");
        // The queue waits for the mark behind it, and the host for neither before that.
        let after =
            calls[at..].iter().position(|call| call.starts_with(&format!("stream {own}: mark"))).expect("a mark")
                + at;
        let done = numbers(&calls[after])[1];
        let joined = format!("stream {queue} waits for mark {done}");
        let joined = calls[after..].iter().position(|call| *call == joined).expect("it is joined") + after;
        let between = &calls[at..joined];
        assert!(!between.iter().any(|call| call.contains("host waits")), "{name}: {between:?}");
        with_products += usize::from(between.iter().any(|call| *call == format!("stream {queue}: product")));
    }
    assert!(with_products >= least, "{name}: {with_products} sums with products beside, of {least}");
}

/// Norms of heads, windows, experts and latent attention on tensor-parallel ranks, and rows too: as on the CPU.
#[test]
fn newer_families_share_matrices_on_a_card() {
    let experts = "experts = { count = 4, active = 2, ffn = 24 }";
    let latent = "experts = { count = 4, active = 2, ffn = 24, shared_ffn = 20, dense_layers = 1 }\n\
                  latent = { query_rank = 24, key_value_rank = 16, rope_width = 4, value_width = 8 }";
    let gemma = "post_norms = true\nactivation = \"gelu\"\nwindow = { tokens = 7, full_every = 2 }";
    for (name, heads, model) in [
        ("qwen", "kv_heads = 2\nhead_dim = 8", "qk_norm = true"),
        ("gemma", "kv_heads = 2\nhead_dim = 8", gemma),
        ("mixtral", "kv_heads = 2\nhead_dim = 8", experts),
        ("deepseek", "kv_heads = 4\nhead_dim = 12", latent),
    ] {
        for rows_too in [false, true] {
            let spec = format!(
                "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 32\nheads = 4\nffn = 48\nvocab = 260\n\
                 {heads}\n{model}\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\ntensor = 2\n\
                 sequence_parallel = {rows_too}\n[training]\nmicrobatches = 2\nsequence = 12\nmicrobatch_size = 2\n\
                 dtype = \"f32\"\n"
            );
            let name = format!("{name}-{rows_too}");
            let plan = planned(&name, &spec);
            let Some(ran) = train(&name, &plan, "", &[]) else { return };
            let plan = plan.to_string_lossy();
            let on_cpu = pipeplan(&["run", &*plan, "--steps", "4", "--json"]).output().expect("it starts");
            let values = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits);
            for (found, expected) in values(losses(&ran.output)).zip(values(losses(&on_cpu))) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{name}: {found} on the card, {expected} on the CPU");
            }
        }
    }
}

/// Experts dealt to two replicas, and whole ones to two tensor-parallel ranks; keys and values in a ring of two: on one
/// card and over NCCL on a card each as on the emulated card to the bit, within memory that is taken before the first
/// job.
#[test]
fn experts_and_rings_go_among_cards() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let variables = [
        ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
        ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
        ("FAKE_CUDA_CARDS", "2"),
        ("FAKE_CUDA_ORDER", "1"),
    ];
    for (name, dtype, parallel) in [
        ("dealt", "bf16", "data = 2\nzero = 1\nexpert = 2"),
        ("whole", "f32", "tensor = 2\nexpert = 2\nsequence_parallel = true\nwhole_experts = true"),
        ("ring", "bf16", "context = 2\nzero = 1"),
    ] {
        let spec = format!(
            "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 32\nheads = 4\nffn = 48\nvocab = 260\n\
             kv_heads = 2\nhead_dim = 8\nexperts = {{ count = 4, active = 2, ffn = 24 }}\n[cluster]\ndevice = \"cpu\"\n\
             [parallel]\npipeline = 1\n{parallel}\n[training]\nmicrobatches = 2\nsequence = 12\nmicrobatch_size = 2\n\
             dtype = \"{dtype}\"\nexpert_imbalance = 2\n"
        );
        let plan = planned(name, &spec);
        let expected = emulated(&plan);
        let on_one = train(name, &plan, "", &[]).expect("there was a card");
        assert_eq!(losses(&on_one.output), expected, "{name}");
        let plan = plan.to_string_lossy();
        let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--steps", "4", "--json"];
        let arguments = [&arguments[..], &["--patience", "60"]].concat();
        let over_nccl = on_cards(&format!("{name}-nccl"), "", &arguments, &variables).expect("there was a card");
        assert_eq!(losses(&over_nccl.output), expected, "{name} over NCCL");
        for calls in [&on_one.by_process, &over_nccl.by_process].into_iter().flatten() {
            let first_job = calls.iter().position(|call| call.starts_with("begin capture")).unwrap_or(calls.len());
            let late = calls[first_job..].iter().filter(|call| call.starts_with("take ")).count();
            assert_eq!(late, 0, "{name}: {calls:?}");
        }
    }
}
