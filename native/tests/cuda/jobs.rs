//! Jobs on the card: CUDA graphs, the calls of cuBLAS, and which attention kernel is launched.

use crate::tiny::losses;
use serde_json::Value;

use super::selftest::selftest_within;
use super::{emulated, on_cards, plan, train};

/// Jobs are captured when they come again as they were, launched from then on, and destroyed; the bits are those of
/// launches one by one, and of the emulated card.
#[test]
fn jobs_that_come_again_are_graphs_and_change_no_bit() {
    let plan = plan("llama", "bf16");
    let Some(graphs) = train("graphs", &plan, "", &[]) else { return };
    let expected = emulated(&plan);
    assert_eq!(losses(&graphs.output), expected);
    let begun = graphs.count("begin capture in mode 2");
    assert!(begun > 0, "{:?}", graphs.calls);
    for call in ["end capture", "instantiate", "destroy the capture", "destroy"] {
        assert_eq!(graphs.count(call), begun, "{call}");
    }
    // 4 steps of 3 microbatches: whatever comes again later is launched at least once more than it is made.
    assert!(graphs.count("launch") > begun, "{} launches of {begun} graphs", graphs.count("launch"));
    // Two ranks' calls lie between each other; of a capture, the order holds where only one is under way.
    let at = |call: &str| graphs.calls.iter().position(|found| found == call);
    assert!(at("begin capture in mode 2") < at("end capture") && at("end capture") < at("instantiate"));
    assert!(at("instantiate") < at("launch") && at("launch") < at("destroy"));

    let off = train("off", &plan, "", &["--cuda-graphs", "off"]).expect("there was a card");
    assert_eq!((losses(&off.output), off.count("begin capture in mode 2")), (expected.clone(), 0));
    // A driver that fails a capture, or does not start what was captured: once for each rank, and then no more is
    // asked of it.
    for what in ["capture", "launch"] {
        let failing = train(&format!("failing-{what}"), &plan, what, &[]).expect("there was a card");
        assert_eq!(losses(&failing.output), expected, "{what}");
        assert_eq!((failing.count("begin capture in mode 2"), failing.count("launch")), (2, 0), "{what}");
    }
}

/// Where cuBLASLt has no algorithm, cuBLAS multiplies, and what an epilogue would have done comes before and after: in f32
/// the bits are the same.
#[test]
fn without_an_algorithm_of_cublaslt_cublas_multiplies() {
    for family in ["llama", "gpt"] {
        let plan = plan(family, "f32");
        let Some(with) = train(&format!("with-{family}"), &plan, "", &[]) else { return };
        let without = train(&format!("without-{family}"), &plan, "lt", &[]).expect("there was a card");
        assert_eq!(losses(&with.output), losses(&without.output), "{family}");
        assert_eq!(losses(&with.output), emulated(&plan), "{family}");
        assert_eq!(with.count("plain product"), 0);
        assert!(without.count("plain product") > 0);
        let fused = if family == "gpt" { "product and a bias" } else { "product and what lies elsewhere" };
        assert!(with.count(fused) > 0, "{family}: {:?}", with.calls);
        // Each shape is asked for once a rank.
        let mut asked: Vec<&String> = with.calls.iter().filter(|call| call.starts_with("choose")).collect();
        let all = asked.len();
        asked.sort();
        asked.dedup();
        assert!(all <= 4 * asked.len(), "{all} questions for {} shapes", asked.len());
    }
}

/// A word that the variable does not know is no wish that goes unheard.
#[test]
fn how_attention_goes_is_said_by_one_word() {
    let plan = plan("llama", "f32");
    let path = plan.to_string_lossy();
    let run = |word: &str| {
        let arguments = ["run", &*path, "--backend", "cuda", "--steps", "1", "--json"];
        on_cards(&format!("attention-{word}"), "", &arguments, &[("PIPEPLAN_ATTENTION", word)])
    };
    let Some(known) = run("warps") else { return };
    assert!(known.output.status.success(), "{}", String::from_utf8_lossy(&known.output.stderr));
    let unknown = run("warp").expect("there was a card").output;
    assert!(!unknown.status.success());
    let text = String::from_utf8_lossy(&unknown.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("PIPEPLAN_ATTENTION") && text.contains("`warp`"), "{text}");
}

/// Kernels that only some cards have, on one where they give nothing, break the card for its process, or do not end:
/// a run goes
/// on without them, or ends and says how it would; a selftest says what is wrong and goes on without them.
#[test]
fn kernels_of_some_cards_are_tried_out_first() {
    let plan = plan("llama", "f32");
    let path = plan.to_string_lossy();
    let run = |groups: &str, more: &[(&str, &str)]| {
        let arguments = ["run", &*path, "--backend", "cuda", "--steps", "4", "--json"];
        let variables = [&[("FAKE_CUDA_GROUPS", groups)], more].concat();
        Some(on_cards(&format!("groups-{groups}-{}", more.len()), "", &arguments, &variables)?.output)
    };
    let Some(without) = run("nothing", &[]) else { return };
    assert_eq!(losses(&without), emulated(&plan));
    for (groups, why) in [("fault", "ILLEGAL_ADDRESS"), ("endless", "has not ended within 20 s")] {
        let refused = run(groups, &[]).expect("there was a card");
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("attention by warp groups") && text.contains(why), "{text}");
        assert!(text.contains("PIPEPLAN_ATTENTION=warps in the environment turns off"), "{text}");
        let warps = [("PIPEPLAN_ATTENTION", "warps")];
        assert_eq!(losses(&run(groups, &warps).expect("there was a card")), emulated(&plan), "{groups}");
    }
    let other = [("FAKE_CUDA_GROUPS", "nothing")];
    let rows = selftest_within(10, "groups-other", &["--only", "kernels"], &other).expect("there was a card");
    let of_groups = rows.iter().find(|row| row["group"] == "attention by groups of warps");
    assert_eq!(of_groups.map(|row| &row["passed"]), Some(&Value::Bool(false)), "{rows:#?}");
    // How much of it comes to be tested in so little time does not matter.
    let fault = [("FAKE_CUDA_GROUPS", "fault")];
    let rows = selftest_within(10, "groups", &["--only", "kernels"], &fault).expect("there was a card");
    let is_opening = |row: &&Value| row["group"] == "device";
    let opening: Vec<&Value> = rows.iter().filter(is_opening).collect();
    let [Value::Object(opening)] = opening[..] else { panic!("{rows:#?}") };
    assert_eq!(opening["passed"], false);
    assert!(opening["found"].as_str().is_some_and(|found| found.contains("ILLEGAL_ADDRESS")), "{opening:?}");
    assert!(rows.len() > 1, "{rows:#?}");
}
