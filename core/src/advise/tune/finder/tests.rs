use alloc::string::String;

use super::*;
use crate::model::catalog;

fn spec(model: &str, device: &str, more: &str) -> Spec {
    let text = format!(
        "[model]\nname = \"{model}\"\n[cluster]\ndevice = \"{device}\"\n[parallel]\npipeline = 1\n\
         [training]\nmicrobatches = 1\n{more}"
    );
    Spec::read(&text).unwrap_or_else(|faults| panic!("{model}: {faults}"))
}

fn outcome(spec: &Spec, devices: Option<u64>, batch: Option<u64>, pins: &[Field]) -> Outcome {
    let mut finder = LayoutFinder::new(spec, devices, batch, pins).unwrap_or_else(|faults| panic!("{faults}"));
    while finder.step() {}
    finder.outcome().cloned().unwrap()
}

fn found(outcome: Outcome) -> Tuned {
    match outcome {
        Outcome::Found(tuned) => *tuned,
        Outcome::None(reason, next) => panic!("{reason}: {next:?}"),
    }
}

fn devices_of(tuned: &Tuned) -> u64 {
    let Work::Model(work) = &tuned.spec.work else { panic!("a model") };
    work.devices()
}

/// Every degree of a power of two of devices divides the batch, and a device has at least a sequence.
#[test]
fn the_usual_batch_is_a_multiple_of_the_devices() {
    let told = [1u64, 4, 8, 12, 64, 512, 1024, 2048].map(usual_batch);
    assert_eq!(told, [32, 32, 32, 36, 128, 1024, 1024, 2048]);
}

/// 16 bytes a parameter of mixed-precision Adam (arXiv:1910.02054 §3.1) without the 2 of gradients: 70.6 G parameters need
/// 988 GB, which 8 devices of 85 GB do not have.
#[test]
fn seventy_billion_parameters_are_told_how_many_devices_hold_them() {
    let spec = spec("llama-3-70b", "h100", "");
    let layout = found(outcome(&spec, Some(64), None, &[]));
    assert_eq!(devices_of(&layout), 64);
    assert!(layout.degrees.pipeline > 1, "{:?}", layout.degrees);
    let Outcome::None(reason, Some(NextStep::Devices(enough))) = outcome(&spec, Some(8), None, &[]) else {
        panic!("8 devices hold no 70B")
    };
    assert!(reason.contains("8 devices") && reason.contains("GiB"), "{reason}");
    assert_eq!(devices_of(&found(outcome(&spec, Some(enough), None, &[]))), enough);
    // Without a number, the least that works is found.
    assert_eq!(devices_of(&found(outcome(&spec, None, None, &[]))), enough);
}

#[test]
fn pinned_degrees_stay_and_the_others_follow() {
    let mut spec = spec("llama-2-7b", "h100", "");
    let Work::Model(work) = &mut spec.work else { panic!("a model") };
    work.pipeline = 4;
    let layout = found(outcome(&spec, Some(16), Some(64), &[Field::Pipeline]));
    assert_eq!((layout.degrees.pipeline, devices_of(&layout)), (4, 16));
    let sequences = layout.degrees.data * layout.degrees.microbatch_size * layout.degrees.microbatches;
    assert_eq!(sequences, 64);
    // 4 does not divide 6.
    let outcome = outcome(&spec, Some(6), Some(36), &[Field::Pipeline]);
    assert!(matches!(&outcome, Outcome::None(_, Some(NextStep::Unpin))), "{outcome:?}");
}

/// Data-parallel replicas that divide 7 sequences are 1 or 7, and a tiny model has no 1024 devices for a replica. Its sequences
/// are short: a microbatch of many would leave devices without one.
#[test]
fn a_batch_that_no_layout_divides_is_told_another() {
    let spec = spec("tiny-llama", "h100", "");
    let outcome = outcome(&spec, Some(1024), Some(7), &[]);
    assert!(matches!(&outcome, Outcome::None(_, Some(NextStep::Batch(1024)))), "{outcome:?}");
}

/// What a first visitor may choose. Every model of the catalog on some numbers of devices: a layout, or one next step that
/// has a layout.
fn every_choice_leads_on(models: impl Fn(usize) -> bool, numbers: &[u64]) {
    let mut dead = String::new();
    for (_, entry) in catalog::catalog().iter().enumerate().filter(|(at, _)| models(*at)) {
        for devices in numbers {
            let spec = spec(entry.name, "h100", "");
            match outcome(&spec, Some(*devices), None, &[]) {
                Outcome::Found(layout) => {
                    assert_eq!(devices_of(&layout), *devices, "{}", entry.name);
                    let Work::Model(work) = &layout.spec.work else { panic!("a model") };
                    assert!(layout.peak <= work.device.memory_bytes, "{}", entry.name);
                }
                Outcome::None(reason, Some(NextStep::Devices(enough))) if enough > *devices => {
                    assert!(reason.contains("fits"), "{}: {reason}", entry.name);
                    // The step works: it is itself such a choice.
                    let layout = found(outcome(&spec, Some(enough), None, &[]));
                    assert_eq!(devices_of(&layout), enough, "{}", entry.name);
                }
                other => dead += &format!("{} on {devices}: {other:?}\n", entry.name),
            }
        }
    }
    assert!(dead.is_empty(), "{dead}");
}

#[test]
fn slow_every_model_of_the_catalog_leads_on_from_8_and_64_devices() {
    every_choice_leads_on(|_| true, &[8, 64]);
}

/// A sample: every fifth model, on the numbers that have thousands of layouts.
#[test]
fn slow_a_sample_of_the_catalog_leads_on_from_512_and_2048_devices() {
    every_choice_leads_on(|at| at % 5 == 0, &[512, 2048]);
}

#[test]
#[ignore = "several minutes: all of the catalog on 512 and 2048 devices"]
fn slow_every_model_of_the_catalog_leads_on_from_512_and_2048_devices() {
    every_choice_leads_on(|_| true, &[512, 2048]);
}
