use pipeplan_core::model::catalog;
use pipeplan_core::problem::Statement;
use proptest::prelude::*;

use super::*;

fn read(form: &Form) -> Result<Spec, pipeplan_core::fields::Faults> {
    Spec::from_value(&form.to_value())
}

#[test]
fn the_page_opens_with_valid_forms() {
    let mut form = Form::default();
    assert!(read(&form).is_ok(), "{:?}", read(&form));
    form.kind = Kind::Typed;
    assert!(read(&form).is_ok(), "{:?}", read(&form));
}

#[test]
fn every_spec_of_the_catalog_opens_as_a_form_that_means_it() {
    for model in catalog::catalog() {
        for device in cluster::catalog() {
            let value = json!({
                "model": { "name": model.name }, "cluster": { "device": device.name, "devices_per_node": 4 },
                "parallel": { "pipeline": 2, "chunks": 3 }, "training": { "microbatches": 7, "dtype": "f32" },
                "memory": { "limit_bytes": 12_345_678_901u64 }, "objective": "longest_span", "schedule": "1f1b",
            });
            let spec = Spec::from_value(&value).unwrap();
            let form = Form::of(&spec);
            assert_eq!(read(&form), Ok(spec), "{form:?}");
            assert_eq!(form.text("model.layers"), "", "the catalog's own sizes stay out");
            assert_eq!(form.text("cluster.device"), device.name);
        }
    }
}

#[test]
fn sizes_and_figures_by_hand_survive() {
    let mut form = Form::default();
    form.choose_model("");
    form.choose_device("");
    assert_ne!(form.text("model.layers"), "", "sizes by hand start from the model before");
    form.set("model.layers", "13");
    form.set("cluster.device.matmul_flops", "123.4");
    form.set("cluster.link.latency_ns", "1.5");
    let spec = read(&form).unwrap();
    let Work::Model(work) = &spec.work else { panic!("a model") };
    assert_eq!((work.model.layers, work.device.matmul_flops, work.link.latency_ns), (13, 123_400_000_000_000, 1500));
    assert_eq!(read(&Form::of(&spec)), Ok(spec));
}

#[test]
fn typed_costs_survive_also_as_lists() {
    for value in [
        json!({ "ranks": 2, "chunks": 2, "microbatches": 3, "placement": [0, 1, 1, 0],
            "stages": { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 2, "backward_input_bytes": -2, "forward_workspace_bytes": 3 },
            "transfer_ns": [[0, 5], [6, 0]] }),
        json!({ "ranks": 2, "chunks": 1, "microbatches": 3, "placement": "linear", "limit_bytes": [7, null], "static_bytes": [1, 2],
            "backward": "fused", "objective": "longest_span", "transfer_ns": 9,
            "stages": [
                { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
                { "forward_ns": 8, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2, "backward_weight_workspace_bytes": 4 },
            ] }),
    ] {
        let spec = Spec::typed(Statement::read(&value).unwrap());
        let form = Form::of(&spec);
        assert_eq!(read(&form), Ok(spec), "{form:?}");
    }
}

#[test]
fn what_cannot_be_read_is_named_at_its_field() {
    for (path, text, found) in [
        ("training.microbatches", "many", "\"many\""),
        ("training.microbatches", "-1", "-1"),
        ("training.microbatches", "2.5", "2.5"),
        ("memory.limit_bytes", "lots", "\"lots\""),
        ("cluster.link.latency_ns", "x", "\"x\""),
        ("cluster.device", "abacus", "\"abacus\""),
    ] {
        let mut form = Form::default();
        form.set(path, text);
        let faults = read(&form).unwrap_err().0;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(Form::field_of(&faults[0]).map(|field| field.path), Some(path), "{faults:?}");
        assert!(faults[0].found.contains(found.trim_matches('"')), "{faults:?}");
    }
    let mut form = Form { kind: Kind::Typed, ..Form::default() };
    form.set("problem.placement", "linear");
    form.set("problem.ranks", "2");
    form.set(STAGE_LIST, "1 2 3 4 -2 -2\n1 2 three");
    let faults = read(&form).unwrap_err().0;
    assert_eq!(faults[0].field, "problem.stages[1].backward_weight_ns");
    assert_eq!(Form::field_of(&faults[0]).map(|field| field.path), Some(STAGE_LIST));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_with_units_survive_exactly(number in 0u64..1 << 50) {
        for factor in [(1u64 << 30) as f64, 1e12, 1e9, 1e3] {
            let unit = Unit::Of(factor, "");
            // Beyond 2^50 two roundings may add up to one.
            prop_assert_eq!(unit.value_of(&unit.text_of(&json!(number))), json!(number));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,60}", at in 0usize..FIELDS.len(), typed in any::<bool>()) {
        let mut form = Form { kind: if typed { Kind::Typed } else { Kind::Model }, ..Form::default() };
        form.set(FIELDS[at].path, text);
        let _ = read(&form);
    }
}
