//! Memory of the card and of the host: taken once, as much as was worked out.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tiny::{losses, pipeplan};
use pipeplan::backend::cuda::nvidia::WORKSPACE_BYTES;
use serde_json::Value;

use super::{card, emulated, on_cards, plan, planned, train};

/// All that a rank takes of the card is taken before its first job: what the dry run says, and the workspace.
#[test]
fn memory_is_taken_once_and_is_what_was_worked_out() {
    let plan = plan("llama", "bf16");
    let Some(ran) = train("memory", &plan, "", &[]) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    let taken: Vec<u64> = ran.calls.iter().filter_map(|call| call.strip_prefix("take ")?.parse().ok()).collect();
    let given: u64 = ran.calls.iter().filter_map(|call| call.strip_prefix("give back ")?.parse::<u64>().ok()).sum();
    assert_eq!(taken.iter().sum::<u64>(), given, "all is given back");
    let mebibytes = |bytes: u64| bytes.div_ceil(2 << 20) * (2 << 20);
    for rank in ran.memory() {
        let [counted, device] =
            ["high_water_bytes", "device_bytes"].map(|field| rank[field].as_u64().expect("bytes"));
        // A slab of its own, perhaps another for tables of angles, and one for messages that others give back.
        let least = mebibytes(counted + WORKSPACE_BYTES);
        assert!((least..=least + (2 << 20) + (16 << 20)).contains(&device), "{device} taken, {counted} counted");
    }
    let first_job = ran.calls.iter().position(|call| call == "begin capture in mode 2").expect("a capture");
    let late = ran.calls[first_job..].iter().filter(|call| call.starts_with("take ")).count();
    assert_eq!(late, 0, "{:?}", ran.calls);
}

/// What waits in host memory goes there and back on a stream of its own, to pinned memory that is taken once, before the
/// first job; the bits are those of a run that keeps all on the card. Where so much cannot be pinned, the run says so.
#[test]
fn what_is_kept_on_the_host_goes_beside_compute_and_changes_no_bit() {
    let spec = |offload: &str| {
        format!(
            "schedule = \"zb-h1\"\n[model]\nname = \"own\"\nlayers = 6\nhidden = 32\nheads = 2\nffn = 48\nvocab = 260\n\
             [cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 4\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"bf16\"\noffload = \"{offload}\"\n"
        )
    };
    let kept = planned("kept", &spec("none"));
    let Some(expected) = train("kept", &kept, "", &[]) else { return };
    for offload in ["all", "1"] {
        let plan = planned(&format!("away-{offload}"), &spec(offload));
        assert_eq!(emulated(&plan), losses(&expected.output), "{offload}");
        let plan = plan.to_string_lossy();
        let arguments = ["run", &*plan, "--backend", "cuda", "--steps", "4", "--json"];
        let name = format!("away-{offload}");
        let ran = on_cards(&name, "", &arguments, &[("FAKE_CUDA_ORDER", "1")]).expect("there was a card");
        assert_eq!(losses(&ran.output), losses(&expected.output), "{offload}");
        let streams = |end: &str| -> BTreeSet<&str> {
            ran.calls.iter().filter(|call| call.ends_with(end)).filter_map(|call| call.split(':').next()).collect()
        };
        let (away, back, products) = (streams(": to the host"), streams(": from the host"), streams(": product"));
        assert_eq!((away.len(), &back), (2, &away), "a stream of each rank: {away:?} {back:?}");
        assert!(away.is_disjoint(&products), "{away:?} {products:?}");
        // Each begins behind a place that its rank's own work has come to.
        for (at, call) in ran.calls.iter().enumerate().filter(|(_, call)| call.ends_with(" the host")) {
            let Some((stream, _)) = call.strip_prefix("stream ").and_then(|call| call.split_once(": ")) else {
                continue;
            };
            let waits = format!("stream {stream} waits for mark ");
            let last = ran.calls[..at].iter().rev().find(|call| call.starts_with(&format!("stream {stream}")));
            let mark =
                last.and_then(|last| last.strip_prefix(&waits)).unwrap_or_else(|| panic!("{call} behind {last:?}"));
            let made = format!(": mark {mark}");
            let of = ran.calls[..at].iter().rev().find(|call| call.ends_with(&made)).expect("the mark was made");
            assert!(products.contains(of.split(':').next().unwrap_or_default()), "{of}");
        }
        let copies = |end: &str| ran.calls.iter().filter(|call| call.ends_with(end)).count();
        assert_eq!(copies(": to the host"), copies(": from the host"));
        let pinned: Vec<u64> = ran.calls.iter().filter_map(|call| call.strip_prefix("pin ")?.parse().ok()).collect();
        let unpinned: u64 =
            ran.calls.iter().filter_map(|call| call.strip_prefix("unpin ")?.parse::<u64>().ok()).sum();
        assert_eq!((pinned.len(), pinned.iter().sum::<u64>()), (2, unpinned), "once for each rank, and given back");
        let first_job = ran.calls.iter().position(|call| call.starts_with("begin capture")).expect("a capture");
        let late = ran.calls[first_job..].iter().filter(|call| call.starts_with("take ") || call.starts_with("pin "));
        assert_eq!(late.count(), 0, "{offload}");
        for (rank, before) in ran.memory().iter().zip(expected.memory()) {
            let bytes = |of: &Value, field: &str| of[field].as_u64().expect("bytes");
            assert!(bytes(rank, "host_bytes") > 0 && bytes(&before, "host_bytes") == 0);
            assert!(bytes(rank, "activation_bytes") < bytes(&before, "activation_bytes"), "{rank} {before}");
        }
        let full = on_cards(&format!("{name}-full"), "", &arguments, &[("FAKE_CUDA_PINNED", "100")]).expect("a card");
        let says = String::from_utf8_lossy(&full.output.stderr).into_owned();
        assert!(!full.output.status.success() && says.contains("training.offload"), "{says}");
    }
}

/// The optimizer states lies in pinned memory, where its kernel reads and writes it: no copies, the bits of a run that
/// keeps it on the card, and so many bytes of the card less. That goes for replicas that share it out, which then hand
/// round by way of the host what each has updated, and for a run that goes on from a checkpoint.
#[test]
fn what_the_optimizer_keeps_on_the_host_changes_no_bit() {
    let spec = |parallel: &str, on_host: bool| {
        format!(
            "schedule = \"zb-h1\"\n[model]\nname = \"own\"\nlayers = 4\nhidden = 32\nheads = 2\nffn = 48\nvocab = 260\n\
             [cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n{parallel}\n[training]\nmicrobatches = 4\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"bf16\"\noffload_optimizer = {on_host}\n"
        )
    };
    let mut states = Vec::new();
    for (name, parallel) in [("state", ""), ("shared-state", "data = 2\nzero = 1")] {
        let [here, there] =
            [false, true].map(|on_host| planned(&format!("{name}-{on_host}"), &spec(parallel, on_host)));
        let Some(expected) = train(&format!("{name}-here"), &here, "", &[]) else { return };
        let ran = train(&format!("{name}-there"), &there, "", &[]).expect("there was a card");
        assert_eq!(losses(&ran.output), losses(&expected.output), "{name}");
        assert_eq!(emulated(&there), losses(&expected.output), "{name}");
        assert_eq!(ran.calls.iter().filter(|call| call.ends_with(" the host")).count(), 0, "{name}");
        let pins = ran.calls.iter().filter(|call| call.starts_with("pin "));
        assert_eq!(pins.count(), ran.memory().len(), "{name}: once for each rank");
        for (rank, before) in ran.memory().iter().zip(expected.memory()) {
            let bytes = |of: &Value, field: &str| of[field].as_u64().expect("bytes");
            let (moved, none) = (bytes(rank, "host_bytes"), bytes(&before, "host_bytes"));
            assert!(moved > 0 && none == 0, "{name}");
            let persistent = [&before, rank].map(|memory| bytes(memory, "persistent_bytes"));
            assert_eq!(persistent[0] - persistent[1], moved, "{name}");
        }
        states.push(ran.memory().iter().map(|rank| rank["host_bytes"].as_u64().expect("bytes")).sum::<u64>());
        let folder = tempfile::tempdir().expect("a folder");
        let saved = folder.path().join("saved");
        let run = |plan: &Path, more: &[&str]| {
            let plan = plan.to_string_lossy();
            let run = ["run", &*plan, "--backend", "emulated", "--json"];
            let output = pipeplan(&[&run[..], more].concat()).output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            losses(&output)
        };
        let saved = saved.to_string_lossy();
        run(&there, &["--steps", "2", "--checkpoint-dir", &*saved]);
        assert_eq!(run(&here, &["--steps", "4", "--resume", &*saved])[..], losses(&expected.output)[2..], "{name}");
    }
    assert_eq!(states[0], states[1], "two replicas share out what one keeps, master weights too");
}

/// Three messages of 20 MiB that can be on the way to another card at once have their memory before the first job; and a card
/// that is too small for them says what it has.
#[test]
fn what_is_on_the_way_to_other_cards_is_taken_at_the_start() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let plan = planned(
        "on-the-way",
        "schedule = \"gpipe\"\n[model]\nname = \"own\"\nfamily = \"llama\"\nlayers = 2\nhidden = 256\nheads = 2\nffn = 48\n\
         vocab = 260\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 3\nsequence = 8\n\
         microbatch_size = 2560\ndtype = \"f32\"\nrecompute = \"full\"\n",
    );
    let plan = plan.to_string_lossy();
    // What rank 0 lacks on a card of so many MiB, by its own words, and what it has been given.
    let lacking = |mebibytes: u64| {
        let memory = (mebibytes << 20).to_string();
        let variables = [
            ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
            ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
            ("FAKE_CUDA_CARDS", "2"),
            ("FAKE_CUDA_MEMORY", &*memory),
        ]
        .map(|(name, value)| (name, value.to_string()));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--patience", "60"];
        // Both ranks lack memory, and on a busy machine the other one may be the first to end the run.
        let one = |_| {
            let ran =
                on_cards(&format!("on-the-way-{mebibytes}"), "", &arguments, &variables).expect("there was a card");
            String::from_utf8_lossy(&ran.output.stderr).into_owned()
        };
        let says = |text: &String| text.contains("rank 0 failed: the GPU does not have ");
        let text = (0..10).map(one).find(says).expect("rank 0 says it in one of ten runs");
        let said = text.split("rank 0 failed: the GPU does not have ").nth(1).unwrap_or_else(|| panic!("{text}"));
        let numbers: Vec<u64> =
            said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).take(3).collect();
        let [lacks, free, all] = numbers[..] else { panic!("{text}") };
        assert!(free < lacks && all == mebibytes, "{text}");
        assert!(said.contains("memory.overhead_bytes or a lower memory.limit_bytes"), "{text}");
        lacks
    };
    let own = lacking(16);
    assert!(own > 60, "{own}");
    // A slab for what is tried out first.
    assert_eq!(lacking(own + 2 + 59), 60);
}
