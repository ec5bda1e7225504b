use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::base::canonical;
use crate::estimate::step::RankEpilogue;
use crate::plan::planner::{self, PlanError};
use crate::spec::arbitrary::problem;

fn example() -> Plan {
    let text = r#"{ "ranks": 2, "microbatches": 3, "stages": { "forward_ns": 1, "backward_input_ns": 1,
        "backward_weight_ns": 1, "forward_bytes": 1, "backward_weight_bytes": -1 }, "transfer_ns": 1 }"#;
    planner::plan(&Spec::read(text).unwrap(), "1f1b").unwrap()
}

/// The plan's file with one value changed and a digest that fits.
fn forged(pointer: &str, to: Value) -> PlanFileError {
    let mut value = example().to_value();
    value.as_object_mut().unwrap().remove("digest");
    *value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = to;
    let digest = file::digest_of(&value);
    value["digest"] = json!(digest);
    Plan::from_json(&value.to_string()).unwrap_err()
}

/// Of typed costs nothing says that replicas differ; and figures of packings come together.
#[test]
fn packings_that_do_not_belong_to_the_plan_are_refused() {
    let refused = |packing: Value| {
        let mut value = example().to_value();
        value.as_object_mut().unwrap().remove("digest");
        let prediction = &value["prediction"];
        let replica =
            json!({ "makespan_ns": prediction["makespan_ns"], "longest_span_ns": prediction["longest_span_ns"] });
        value["packing"] = packing;
        value["packing"]["replicas"] = json!([replica]);
        let digest = file::digest_of(&value);
        value["digest"] = json!(digest);
        Plan::from_json(&value.to_string()).unwrap_err().to_string()
    };
    let told = refused(json!({}));
    assert!(told.contains("packing is something; its content gives nothing"), "{told}");
    for (packing, missing) in [
        (json!({ "given_ns": 5, "bound_ns": 1 }), "packing.found_ns"),
        (json!({ "found_ns": 5 }), "packing.bound_ns"),
        (json!({ "sorted_ns": 5 }), "packing.bound_ns"),
    ] {
        let told = refused(packing);
        assert!(told.contains(missing), "{told}");
    }
}

#[test]
fn the_digest_is_sha_256_of_the_canonical_text() {
    // What `printf '{}' | sha256sum` prints.
    assert_eq!(
        file::digest_of(&json!({})),
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    );
}

#[test]
fn a_file_reads_back_in_any_layout() {
    let plan = example();
    let text = plan.to_json();
    assert_eq!(Plan::from_json(&text).as_ref(), Ok(&plan));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(Plan::from_json(&canonical::compact(&value)).as_ref(), Ok(&plan));
    assert_eq!(value["digest"], json!(plan.digest()));
}

#[test]
fn the_order_stands_in_the_short_form() {
    // 1F1B with P = 2, M = 3 (arXiv:2104.04473, figure 3 cut to two ranks).
    let value = example().to_value();
    assert_eq!(
        value["schedule"],
        json!({ "name": "1f1b", "rows": ["0F0 0F1 0BW0 0F2 0BW1 0BW2", "1F0 1BW0 1F1 1BW1 1F2 1BW2"] })
    );
}

#[test]
fn another_version_and_a_wrong_digest_are_refused_by_name() {
    let text = example().to_json();
    let error = Plan::from_json(&text.replace("\"version\": 1", "\"version\": 2")).unwrap_err();
    assert!(matches!(&error, PlanFileError::Version { found } if found == "2"), "{error}");
    let error = Plan::from_json(&text.replace("0F0 0F1", "0F1 0F0")).unwrap_err();
    assert!(matches!(&error, PlanFileError::Digest { .. }), "{error}");
    let error = Plan::from_json("{\"ranks\": 4}").unwrap_err();
    assert!(error.to_string().contains("this is not a plan: its `format` is nothing"), "{error}");
    let error = Plan::from_json("{\n  \"format\": }").unwrap_err();
    assert!(error.to_string().contains("line 2, column 13"), "{error}");
}

#[test]
fn lies_with_a_right_digest_are_refused() {
    let rows = |rows: [&str; 2]| json!(rows);
    for (pointer, to, says) in [
        ("/prediction/makespan_ns", json!(3), "prediction.makespan_ns is 3"),
        ("/prediction/longest_span_ns", json!(1), "prediction.longest_span_ns is 1"),
        ("/prediction/bound_ns", json!(1000), "prediction.bound_ns is 1000"),
        ("/prediction/peak_bytes", json!([0, 0]), "prediction.peak_bytes is [0, 0]"),
        ("/prediction/busy_ns", json!([9]), "prediction.busy_ns is [9]"),
        ("/problem/microbatches", json!(2), "0F2"),
        ("/problem/transfer_ns", json!(2), "prediction.makespan_ns"),
        ("/problem/placement", json!("any"), "problem.placement: found any"),
        ("/problem/ranks", json!(0), "problem.ranks: found 0"),
        ("/spec/problem/transfer_ns", json!(2), "the plan says that problem is another problem"),
        ("/spec/schedule", json!("2f2b"), "spec.schedule: found \"2f2b\""),
        (
            "/schedule/rows",
            rows(["0F0 0BW0 0F1 0F2 0BW1 0BW2", "1F0 1BW0 1F1 1BW1 1F2 1BW2"]),
            "program.rows is another order",
        ),
        ("/schedule/rows", rows(["0F0", ""]), "schedule is not valid"),
        ("/schedule/rows/0", json!("0F0 0G1"), "schedule.rows[0]: found 0G1"),
        ("/program/rows/0", json!("0F0 (0SEND_F0"), "program.rows[0]"),
        ("/program/rows/1", json!("1F0 1BW0 1F1 1BW1 1F2 1BW2 OPTIMIZER"), "program is not valid"),
        ("/program", Value::Null, "program: found nothing"),
        ("/schedule/name", json!(7), "schedule.name: found 7"),
    ] {
        let error = forged(pointer, to).to_string();
        assert!(error.contains(says), "{pointer}: {error} should say {says}");
    }
}

/// What a file says that does not follow from the rest of it is told, and nothing is of a plan that the planner made.
#[test]
fn what_is_taken_on_trust_is_told() {
    let text = "[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\ndata = 2\n[training]\n\
                microbatches = 4\nsequence = 64\n";
    let plan = planner::plan(&Spec::read(text).unwrap(), "1f1b").unwrap();
    let told = |plan: &Plan| {
        let read = Plan::from_json(&plan.to_json()).unwrap_or_else(|error| panic!("{error}"));
        read.checked(None, &[]).unwrap().on_trust
    };
    assert!(told(&plan).is_empty(), "{:?}", told(&plan));
    let fields =
        |plan: &Plan| told(plan).iter().map(|said| said.split(':').next().unwrap().to_string()).collect::<Vec<_>>();
    let mut changed = plan.clone();
    changed.epilogue.as_mut().unwrap().tails[0].reduce_ns += 1;
    assert_eq!(fields(&changed), ["ends"]);
    let mut changed = plan.clone();
    changed.prediction.bound_ns -= 1;
    assert_eq!(fields(&changed), ["prediction.bound_ns"]);
    let mut changed = plan;
    if let Work::Model(work) = &mut changed.spec.work {
        work.layout.data = 8;
    }
    assert_eq!(fields(&changed), ["ends"], "other copies, other reductions");
}

/// What ends a step is of the ranks and stages that there are, and of a model.
#[test]
fn ends_of_another_pipeline_are_refused() {
    let epilogue = |ranks: usize, stages: usize| StepEpilogue {
        tails: vec![RankEpilogue::default(); ranks],
        reduces_ns: vec![0; stages],
        overlapped: Vec::new(),
    };
    let read = |plan: &Plan, epilogue: StepEpilogue| {
        Plan::from_json(&Plan { epilogue: Some(epilogue), ..plan.clone() }.to_json())
            .map_err(|error| error.to_string())
    };
    let text = "[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\n\
                microbatches = 4\nsequence = 64\n";
    let model = planner::plan(&Spec::read(text).unwrap(), "interleaved-1f1b").unwrap();
    assert_eq!(model.problem.stage_count(), 4);
    assert!(read(&model, epilogue(2, 4)).is_ok());
    for (plan, epilogue, says) in [
        (&model, epilogue(3, 4), "the length of ends.optimizer_ns is 3; its content gives 2"),
        (&model, epilogue(2, 2), "the length of ends.reduce_each_ns is 2; its content gives 4"),
        (&example(), epilogue(2, 2), "nothing, since its costs are typed"),
    ] {
        let error = read(plan, epilogue).unwrap_err();
        assert!(error.contains(says), "{error} should say {says}");
    }
    let value = |key: &str, to: Value| {
        let mut value = model.to_value();
        value.as_object_mut().unwrap().remove("digest");
        value["ends"][key] = to;
        value["digest"] = json!(file::digest_of(&value));
        Plan::from_json(&value.to_string()).unwrap_err().to_string()
    };
    assert!(value("optimizer_ns", json!([1, -1])).contains("ends.optimizer_ns: found a list of 2"));
    assert!(value("optimizer_ns", json!([1])).contains("ends.optimizer_ns: found 1 numbers"));
    assert!(value("bias_ns", json!([1])).contains("ends.bias_ns"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Every plan that the planner makes is one that it reads, and the comparison says the same of it.
    #[test]
    fn slow_every_plan_reads_back(problem in problem()) {
        let spec = Spec::from_value(&problem).unwrap();
        let comparison = planner::compare(&spec);
        for row in &comparison.rows {
            match planner::plan(&spec, &row.schedule) {
                Ok(plan) => {
                    prop_assert_eq!(row.status, planner::Status::Ok);
                    prop_assert_eq!(row.makespan_ns, Some(plan.prediction.makespan_ns));
                    prop_assert_eq!(row.peak_bytes.as_ref(), Some(&plan.prediction.peak_bytes));
                    prop_assert!(row.gap.is_none_or(|gap| gap >= 0.0), "{:?}", row);
                    let text = plan.to_json();
                    let read = Plan::from_json(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    prop_assert_eq!(read.to_json(), text);
                }
                Err(PlanError::Absent { reason, .. }) => prop_assert_eq!(row.reason.as_ref(), Some(&reason)),
                Err(PlanError::NoSchedule { .. }) => prop_assert_eq!(row.status, planner::Status::Absent),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        let known: Vec<&str> = comparison.rows.iter().map(|row| row.schedule.as_str()).collect();
        prop_assert_eq!(known.last(), Some(&"best"));
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,100}", at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let _ = Plan::from_json(&text);
        let mut bytes = example().to_json().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(text) = String::from_utf8(bytes) {
            // Past the digest too: what stands there must be read as carefully.
            if let Ok(mut value) = serde_json::from_str::<Value>(&text)
                && let Some(map) = value.as_object_mut()
            {
                map.remove("digest");
                value["digest"] = json!(file::digest_of(&value));
                let _ = Plan::from_json(&value.to_string());
            }
            let _ = Plan::from_json(&text);
        }
    }
}
