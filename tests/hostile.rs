//! Input from anywhere: nothing panics, and what is refused says which part is wrong.

use pipeplan_core::formats::{profile, torch_profile};
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner;
use pipeplan_core::spec::Spec;
use pipeplan_core::spec::link;
use pipeplan_core::trace::Trace;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

#[path = "../fuzz/targets.rs"]
mod targets;

#[path = "../fuzz/mutations.rs"]
mod mutations;

use mutations::{Wounds, damaged_bytes, wounds};
use targets::with_digest;

fn example(name: &str) -> String {
    let path = format!("{}/../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn problem() -> Spec {
    Spec::read(&example("problem.json")).unwrap()
}

/// A text with some of its bytes changed, cut out, doubled or exchanged.
fn damage(text: &str, wounds: &Wounds) -> String {
    String::from_utf8_lossy(&damaged_bytes(text.as_bytes(), wounds)).into_owned()
}

/// Any JSON of a modest size, with the keys of real files among its keys.
fn json_like() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![Just("v"), Just("linear"), Just("any"), Just("best"), Just("h100"), Just("tiny-llama")]
            .prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("ranks"),
        Just("chunks"),
        Just("microbatches"),
        Just("stages"),
        Just("placement"),
        Just("transfer_ns"),
        Just("limit_bytes"),
        Just("static_bytes"),
        Just("forward_ns"),
        Just("forward_bytes"),
        Just("problem"),
        Just("model"),
        Just("cluster"),
        Just("training"),
        Just("parallel"),
        Just("device"),
        Just("name"),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(key.clone().prop_map(String::from), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn plan_of_one_rank() -> Plan {
    let spec = json!({ "ranks": 1, "microbatches": 2, "stages": { "forward_ns": 5, "backward_input_ns": 5, "backward_weight_ns": 5 } });
    planner::plan(&Spec::read(&spec.to_string()).unwrap(), "zb-h1").unwrap()
}

/// What torch would write of its rank on a card: each op a range, a launch and a kernel.
fn profile_of(plan: &Plan) -> String {
    let mut events = Vec::new();
    for (place, op) in plan.schedule.rows[0].iter().enumerate() {
        let (at, name) = (1000.5 + 100.0 * place as f64, op.to_string().replace('B', "I"));
        events.push(json!({ "ph": "X", "cat": "user_annotation", "name": format!("PP:{name}"), "ts": at, "dur": 90.25, "tid": 1 }));
        let args = json!({ "correlation": place });
        events.push(json!({ "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1.0, "dur": 2, "tid": 1, "args": args }));
        events.push(json!({ "ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 50.0, "dur": 80.0, "tid": 7, "args": args }));
    }
    json!({ "baseTimeNanoseconds": 1_790_857_026_000_000_000u64, "distributedInfo": { "rank": 0 }, "traceEvents": events }).to_string()
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(2026), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn damaged_links_are_refused_or_read(wounds in wounds(), which in 0usize..3) {
        let name = ["tiny-llama.toml", "zero-bubble-1.5b.toml", "problem.json"][which];
        let written = link::write(&Spec::read(&example(name)).unwrap());
        let damaged = damage(&written, &wounds);
        match link::read(&damaged) {
            // A checksum of 32 bits lets nothing through that is one wound away.
            Ok(spec) => prop_assert_eq!(link::write(&spec), written, "{} was read", damaged),
            Err(error) => {
                prop_assert!(!error.part().is_empty());
                prop_assert!(error.to_string().len() > 10);
            }
        }
    }

    #[test]
    fn any_text_is_a_spec_or_refused(text in any::<String>()) {
        let _ = Spec::read(&text);
        let _ = link::read(&format!("#v1.{text}"));
        let _ = Plan::from_json(&text);
        let _ = Trace::from_json(&text);
        let _ = torch_profile::read(&text);
    }

    /// Whatever becomes of what torch wrote of a rank, what is read of it is a trace of the plan or is refused.
    #[test]
    fn damaged_profiles_of_torch_are_refused_or_traced(wounds in wounds()) {
        let plan = plan_of_one_rank();
        if let Ok(recording) = torch_profile::read(&damage(&profile_of(&plan), &wounds)) {
            match profile::trace(&plan.problem, &plan.schedule, "", &[("rank0.json".to_owned(), recording)]) {
                Ok(trace) => prop_assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace)),
                Err(faults) => prop_assert!(!faults.0.is_empty()),
            }
        }
    }

    #[test]
    fn damaged_specs_are_read_or_refused_with_their_fields(wounds in wounds(), which in 0usize..4) {
        let name = ["tiny-llama.toml", "zero-bubble-1.5b.toml", "problem.json", "llama-2-70b.toml"][which];
        if let Err(error) = Spec::read(&damage(&example(name), &wounds)) {
            prop_assert!(error.to_string().len() > 10);
        }
    }

    #[test]
    fn anything_shaped_like_a_spec_is_read_or_refused(value in json_like()) {
        let _ = Spec::read(&value.to_string());
        let plan = json!({ "format": "pipeplan-plan", "version": 1, "digest": "sha256:00", "problem": value });
        prop_assert!(Plan::from_json(&plan.to_string()).is_err());
    }
}

proptest! {
    #![proptest_config(config(400))]

    /// A damaged plan with its digest made right again: its content has to be refused for what it says.
    #[test]
    fn a_forged_plan_is_refused(wounds in wounds()) {
        let plan = planner::plan(&problem(), "zb-v").unwrap();
        let text = plan.to_json();
        let damaged = damage(&text, &wounds);
        prop_assert!(damaged == text || Plan::from_json(&damaged).is_err() || same(&damaged, &text));
        if let Ok(Value::Object(mut content)) = serde_json::from_str::<Value>(&damaged) {
            content.remove("digest");
            let forged = with_digest(Value::Object(content));
            if let Ok(read) = Plan::from_json(&forged.to_string()) {
                // Whatever gets through is a valid plan of a valid problem.
                prop_assert!(Plan::from_json(&read.to_json()).is_ok());
            }
        }
    }

    #[test]
    fn a_problem_that_is_read_can_be_planned(wounds in wounds()) {
        let damaged = damage(&example("problem.json"), &wounds);
        let Ok(spec) = Spec::read(&damaged) else { return Ok(()) };
        let _ = planner::plan(&spec, "1f1b");
        let _ = planner::plan(&spec, "zb-v");
        prop_assert_eq!(link::read(&link::write(&spec)), Ok(spec));
    }
}

fn same(left: &str, right: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    read(left).is_some() && read(left) == read(right)
}

/// Each of these is refused before any memory is taken for it, by its field and by what would do.
#[test]
fn a_bad_problem_is_refused_by_the_name_of_its_field() {
    let good = json!({
        "ranks": 4, "microbatches": 8,
        "stages": { "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1,
            "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
    });
    assert!(Spec::read(&good.to_string()).is_ok());
    let huge = 1u64 << 53;
    for (pointer, value, field) in [
        ("/ranks", json!(0), "ranks"),
        ("/ranks", json!(-1), "ranks"),
        ("/ranks", json!(1025), "ranks"),
        ("/ranks", json!(1e300), "ranks"),
        ("/ranks", json!(3.5), "ranks"),
        ("/chunks", json!(0), "chunks"),
        ("/chunks", json!(65), "chunks"),
        ("/microbatches", json!(0), "microbatches"),
        ("/microbatches", json!(1_000_000_000), "microbatches"),
        ("/microbatches", json!(u64::MAX), "microbatches"),
        // Each is in range, and all ops together are too many.
        ("/microbatches", json!(1_000_000), "microbatches"),
        ("/stages", json!([]), "stages"),
        ("/stages", json!([1, 2, 3, 4]), "stages[0]"),
        ("/stages/forward_ns", json!(null), "stages.forward_ns"),
        ("/stages/forward_ns", json!("1"), "stages.forward_ns"),
        ("/stages/forward_ns", json!(-1), "stages.forward_ns"),
        ("/stages/forward_ns", json!(0.5), "stages.forward_ns"),
        ("/stages/forward_ns", json!(huge + 1), "stages.forward_ns"),
        ("/stages/forward_bytes", json!(huge + 1), "stages.forward_bytes"),
        ("/stages/backward_input_bytes", json!(-5), "stages"),
        ("/transfer_ns", json!([[0]]), "transfer_ns"),
        ("/transfer_ns", json!(-1), "transfer_ns"),
        ("/static_bytes", json!([1, 2]), "static_bytes"),
        ("/limit_bytes", json!("80 apples"), "limit_bytes"),
        ("/limit_bytes", json!([1, 2, 3]), "limit_bytes"),
        ("/placement", json!("zigzag"), "placement"),
        ("/placement", json!([0, 0, 1, 2]), "placement"),
        ("/placement", json!("v"), "placement"),
        ("/objective", json!("speed"), "objective"),
        ("/backward", json!("cut"), "backward"),
        ("/overlap_permille", json!(1001), "overlap_permille"),
        ("/microbatch", json!(1), "microbatch"),
    ] {
        let mut bad = good.clone();
        let (table, key) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(table).unwrap()[key] = value.clone();
        if value == json!(1_000_000) {
            bad["ranks"] = json!(1024);
        }
        let error = Spec::read(&bad.to_string()).expect_err(pointer).to_string();
        assert!(error.contains(&format!("{field}: ")), "{pointer} = {value}: {error}");
    }
    // In range one by one, and beyond what sums hold together.
    for (key, says) in [("forward_ns", "ns over all ops"), ("forward_bytes", "bytes over all ops")] {
        let mut bad = good.clone();
        bad["microbatches"] = json!(100_000);
        bad["stages"][key] = json!(huge);
        let error = Spec::read(&bad.to_string()).unwrap_err().to_string();
        assert!(error.contains("stages: ") && error.contains(says), "{error}");
    }
    // JSON has no such numbers, and says where one stands.
    for number in ["NaN", "Infinity", "-Infinity", "1e999", "0x10", "1_000"] {
        let text = good.to_string().replace("\"forward_ns\":1", &format!("\"forward_ns\":{number}"));
        let error = Spec::read(&text).expect_err(number).to_string();
        assert!(error.contains("line 1") || error.contains("forward_ns"), "{number}: {error}");
    }
    // A limit below the least memory is no fault of the spec; each schedule says what it lacks.
    let mut tight = good.clone();
    tight["limit_bytes"] = json!(1);
    for name in pipeplan_core::schedule::schedule_names() {
        let refused = planner::plan(&Spec::read(&tight.to_string()).unwrap(), name).unwrap_err().to_string();
        assert!(refused.len() > 20, "{name}: {refused}");
        if name == pipeplan_core::schedule::BEST {
            assert!(refused.contains("at least 2 bytes"), "{refused}");
        }
    }
}

/// On what no run before has tried. A find is written to `fuzz/found`, and goes into the corpus with the mend.
#[test]
fn fresh_mutations_of_the_corpus_hurt_nothing() {
    mutations::try_fresh_ones(&targets::TARGETS);
}
