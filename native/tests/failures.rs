//! What a run does when something breaks, and what it refuses to start.

mod common;

use std::time::{Duration, Instant};

use common::{Stopper, one_by_one, options, published, train, work};
use pipeplan::backend::BackendError;
use pipeplan::runner::{
    Cause, Device, Failure, Precision, Refusal, RunError, RunOptions, Silent, State, Workload, run,
};
use pipeplan::transport::TransportError;
use pipeplan::transport::faulty::Faults;
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::graph::layout::ReduceGradients;
use pipeplan_core::program::Step;
use pipeplan_core::spec::ModelWork;

fn four_ranks() -> Workload {
    published(&work(4, 8), "1f1b", Precision::Single).expect("it exists")
}

fn with_faults(faults: Vec<(usize, Faults)>, patience: Duration) -> RunOptions {
    RunOptions { faults, transport: ThreadOptions { slots: 0, patience }, ..options(3) }
}

/// How the run failed, and how long after its start.
fn fail(workload: &Workload, options: &RunOptions) -> (Failure, Duration) {
    let started = Instant::now();
    match run(workload, options, &mut Silent) {
        Err(RunError::Failed(failure)) => (*failure, started.elapsed()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the run ended well"),
    }
}

fn refuse(workload: &Workload, options: &RunOptions) -> Refusal {
    match run(workload, options, &mut Silent) {
        Err(RunError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the run ended well"),
    }
}

#[test]
fn a_rank_that_dies_ends_the_run_at_once() {
    let death = Faults { death: Some(9), ..Faults::default() };
    let options = with_faults(vec![(2, death)], Duration::from_secs(60));
    let (failure, took) = fail(&four_ranks(), &options);
    assert!(took < Duration::from_secs(10), "nobody waits for the dead: {took:?}");
    assert_eq!(failure.rank, 2);
    assert!(matches!(failure.cause, Cause::Died { .. }), "{failure}");
    assert_eq!((failure.ranks.len(), failure.silent.len()), (4, 0), "{failure}");
    assert_eq!(failure.ranks[2].state, State::Failed);
    assert!(
        matches!(failure.ranks[2].pending, Some(Step::Transfer(_) | Step::Start(_) | Step::Wait(_))),
        "{failure}"
    );
    assert!(!failure.ranks[2].peers.is_empty(), "{failure}");
    let text = failure.to_string();
    assert!(text.starts_with("rank 2 failed: its thread died: injected failure: this rank dies here"), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn a_rank_that_stands_still_is_noticed_within_patience_and_grace() {
    let stall = Faults { stall: Some((9, Duration::from_secs(20))), ..Faults::default() };
    let mut options = with_faults(vec![(1, stall)], Duration::from_millis(400));
    options.grace = Duration::from_millis(300);
    let (failure, took) = fail(&four_ranks(), &options);
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(matches!(failure.cause, Cause::Transport(TransportError::TimedOut { .. })), "{failure}");
    assert_ne!(failure.rank, 1, "{failure}");
    assert_eq!(failure.silent, [1], "{failure}");
    assert!(failure.to_string().ends_with("rank 1 did not answer within 0.3 s"), "{failure}");
}

#[test]
fn a_lost_parcel_is_noticed() {
    for seed in 0..4 {
        let lossy = Faults { seed, lost_per_mille: 100, ..Faults::default() };
        let options = with_faults(vec![(1, lossy)], Duration::from_millis(500));
        let (failure, _) = fail(&four_ranks(), &options);
        let Cause::Transport(cause) = &failure.cause else { panic!("{failure}") };
        assert!(
            matches!(cause, TransportError::TimedOut { .. } | TransportError::WrongParcel { .. }),
            "seed {seed}: {failure}"
        );
    }
}

#[test]
fn a_parcel_of_the_wrong_size_is_noticed_by_its_receiver() {
    let short = Faults { seed: 1, short_per_mille: 100, ..Faults::default() };
    let (failure, _) = fail(&four_ranks(), &with_faults(vec![(1, short)], Duration::from_secs(5)));
    assert!(matches!(failure.cause, Cause::Backend(BackendError::WrongSize { .. })), "{failure}");
    assert!([0, 2].contains(&failure.rank), "{failure}");
}

/// Whichever message it is: its receiver knows which one it waits for.
#[test]
fn a_parcel_that_comes_twice_or_after_the_next_is_noticed() {
    for at in [0, 3, 8, 20] {
        for faults in
            [Faults { twice: Some(at), ..Faults::default() }, Faults { late: Some(at), ..Faults::default() }]
        {
            let (failure, _) = fail(&four_ranks(), &with_faults(vec![(1, faults)], Duration::from_millis(500)));
            let Cause::Transport(cause) = &failure.cause else { panic!("{faults:?}: {failure}") };
            assert!(
                matches!(cause, TransportError::TimedOut { .. } | TransportError::WrongParcel { .. }),
                "{faults:?}: {failure}"
            );
        }
    }
}

/// A bit that turns before any checksum is made is in the losses, or they are no numbers any more, which ends the run.
#[test]
fn a_value_that_is_corrupt_is_never_without_effect() {
    let calm = train(&four_ranks(), &options(3));
    for at in [0, 5, 20] {
        let corrupt = Faults { corrupt: Some(at), ..Faults::default() };
        let options = with_faults(vec![(1, corrupt)], Duration::from_secs(30));
        match run(&four_ranks(), &options, &mut Silent) {
            Ok(report) => assert_ne!(report.losses(), calm.losses(), "exchange {at}"),
            Err(RunError::Failed(failure)) => {
                assert!(matches!(failure.cause, Cause::Backend(BackendError::NotFinite { .. })), "{failure}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn delays_change_nothing_but_time() {
    let calm = train(&four_ranks(), &options(3));
    let delay = Duration::from_millis(2);
    let faults = (0..4).map(|rank| (rank, Faults { seed: 7, delay, ..Faults::default() })).collect();
    let late = train(&four_ranks(), &with_faults(faults, Duration::from_secs(30)));
    assert_eq!(late.losses(), calm.losses());
    assert_eq!(late.weights, calm.weights);
}

#[test]
fn training_that_diverges_says_so() {
    let mut options = options(50);
    options.optimizer.learning_rate = 1e20;
    let (failure, _) = fail(&one_by_one(&work(1, 2), Precision::Single), &options);
    assert!(matches!(failure.cause, Cause::Backend(BackendError::NotFinite { .. })), "{failure}");
}

#[test]
fn a_raised_flag_ends_the_run_after_a_whole_step() {
    let options = options(100_000);
    let report = run(&four_ranks(), &options, &mut Stopper(options.stop.clone())).expect("it ends well");
    assert!(report.stopped);
    assert_eq!(report.exit_status(), 130);
    assert!((3..100).contains(&report.steps.len()), "{}", report.steps.len());
    // What was trained by then is what a run of so many steps trains.
    let steps = report.steps.len() as u32;
    let whole = train(&four_ranks(), &common::options(steps));
    assert_eq!((report.losses(), report.weights), (whole.losses(), whole.weights));
    assert!(!whole.stopped);
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason() {
    let good = || one_by_one(&work(1, 2), Precision::Single);
    let cases: Vec<(&str, Workload, RunOptions, &str)> = vec![
        ("no steps", good(), options(0), "at least 1 step"),
        ("short text", good(), RunOptions { text: b"too short".to_vec(), ..options(1) }, "give a longer text"),
        ("small vocabulary", with_model(|work| work.model.vocab = 100), options(1), "vocabulary of 256"),
        ("lost message", without_a_message(), options(1), "1RECV_F0"),
        ("no norm", good(), RunOptions { clip_norm: Some(f64::NAN), ..options(1) }, "above 0"),
        ("too large", Workload { predicted_peak_bytes: vec![1 << 50], ..good() }, options(1), "plan a smaller model"),
    ];
    for (what, workload, options, says) in cases {
        let refusal = refuse(&workload, &options).to_string();
        assert!(refusal.contains(says), "{what}: {refusal}");
    }
}

/// What a GPU does not shard is refused by its name, before the device is looked for.
#[test]
fn what_only_the_cpu_shards_is_refused_on_gpus() {
    use ReduceGradients::{AfterAccumulation, EachMicrobatch};
    let on_card = RunOptions { device: Device::Emulated, ..options(1) };
    for (data, zero, shard, reduce, says) in [
        (2, 3, None, None, "sharded weights (parallel.zero = 3)"),
        (2, 2, None, None, "sharded gradients (parallel.zero = 2)"),
        (2, 1, None, Some(EachMicrobatch), "gradients reduced for each microbatch"),
        (4, 1, Some(2), None, "sharding groups (parallel.shard)"),
        (2, 2, None, Some(AfterAccumulation), ""),
        (2, 1, Some(2), None, ""),
        (1, 3, None, None, ""),
    ] {
        let mut work = work(1, 2);
        (work.layout.data, work.layout.zero, work.layout.shard) = (data, zero, shard);
        work.layout.reduce_gradients = reduce;
        let single = one_by_one(&common::work(1, 2), Precision::Single);
        let workload =
            Workload::new(&work, &single.problem, &single.program, Some(Precision::Single)).expect("a plan");
        let refusal = match run(&workload, &on_card, &mut Silent) {
            Err(RunError::Refused(refusal)) => refusal.to_string(),
            _ => String::new(),
        };
        let is_of_sharding = refusal.contains("which run on the CPU only");
        assert_eq!((is_of_sharding, refusal.contains(says)), (!says.is_empty(), true), "{says}: {refusal}");
    }
}

fn with_model(change: impl Fn(&mut ModelWork)) -> Workload {
    let mut work = work(1, 2);
    change(&mut work);
    one_by_one(&work, Precision::Single)
}

fn without_a_message() -> Workload {
    let mut workload = four_ranks();
    let row = &mut workload.program.rows[1];
    let first = row.iter().position(|step| matches!(step, Step::Transfer(_) | Step::Start(_))).expect("a transfer");
    row.remove(first);
    workload
}
