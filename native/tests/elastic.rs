//! Runs that go on with fewer data-parallel replicas: with the losses of a run that was planned so from that step.

mod common;
mod tiny;

use std::path::Path;
use std::process::{Output, Stdio};

use common::{options, published, train, work};
use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::{
    Precision, Restarting, RunError, RunOptions, RunReport, Silent, Source, Workload, run_elastic,
};
use pipeplan::transport::faulty::Faults;
use serde_json::Value;
use tiny::{losses, pipeplan};

/// Twelve microbatches a step, dealt to `data` replicas of two ranks.
fn dealt(data: u32, zero: u32, precision: Precision) -> Workload {
    let mut work = work(2, 12 / data as usize);
    (work.layout.data, work.layout.zero) = (data, zero);
    published(&work, "1f1b", precision).expect("it exists")
}

fn deaths(at: &[(usize, u64)]) -> Vec<(usize, Faults)> {
    at.iter().map(|(rank, at)| (*rank, Faults { death: Some(*at), ..Faults::default() })).collect()
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// A run on `before` replicas up to `step`, and on `after` from there, of `steps` in all; without a failure.
fn planned([before, after]: [u32; 2], zero: u32, precision: Precision, [step, steps]: [u32; 2]) -> RunReport {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = Vec::new();
    let mut resume = None;
    if step > 0 {
        let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
        let report = train(&dealt(before, zero, precision), &RunOptions { saving, ..options(step) });
        first = report.steps;
        resume = Some(Checkpoint::open(folder.path()).expect("it is there"));
    }
    let mut report = train(&dealt(after, zero, precision), &RunOptions { resume, ..options(steps) });
    report.steps.splice(..0, first);
    report
}

#[test]
fn a_run_goes_on_with_fewer_replicas_as_if_it_had_been_planned_so_from_that_step() {
    for precision in [Precision::Single, Precision::Double] {
        for (data, zero, deaths_at) in
            [(2, 0, &[(3, 5)][..]), (3, 0, &[(0, 5)]), (3, 0, &[(5, 3), (2, 6)]), (2, 1, &[(1, 8)])]
        {
            let folder = tempfile::tempdir().expect("a folder");
            let saving = (zero > 0).then(|| Saving { folder: folder.path().to_path_buf(), every: 1 });
            // After so many twelfths of six steps of the replicas that there are then.
            let at = deaths_at.iter().zip((1..=data).rev()).map(|((rank, twelfths), data)| {
                let never = RunOptions { faults: deaths(&[(*rank, u64::MAX)]), ..options(6) };
                (*rank, train(&dealt(data, zero, precision), &never).missed_faults[rank] * twelfths / 12)
            });
            let broken = RunOptions { saving, faults: deaths(&at.collect::<Vec<_>>()), ..options(6) };
            let fewer = &mut |was: &Workload| Some(dealt(was.replicas() as u32 - 1, zero, precision));
            let report = run_elastic(&dealt(data, zero, precision), &broken, &mut Silent, fewer)
                .unwrap_or_else(|error| panic!("{error}"));
            let what = format!("{precision:?}, {data} replicas, zero {zero}: {:?}", report.restarts);
            assert_eq!(report.restarts.len(), deaths_at.len(), "{what}");
            let first = &report.restarts[0];
            assert_eq!(first.replicas, Some(data as usize - 1), "{what}");
            assert_eq!(first.source, if zero > 0 { Source::Checkpoint } else { Source::Memory }, "{what}");
            let steps: Vec<u32> = report.steps.iter().map(|step| step.step).collect();
            assert_eq!(steps, [0, 1, 2, 3, 4, 5], "{what}");
            // The second failure is of a run that was planned so from its own step on.
            let until = report.restarts.get(1).map_or(6, |second| second.step) as usize;
            let whole = planned([data, data - 1], zero, precision, [first.step, 6]);
            assert_eq!(bits(&report.losses()[..until]), bits(&whole.losses()[..until]), "{what}");
            if deaths_at.len() == 1 {
                assert_eq!(report.weights, whole.weights, "{what}");
            }
            assert!(first.step > 0, "{what}: it dies after the first step");
        }
    }
}

#[test]
fn a_run_ends_with_its_failure_where_no_smaller_one_is_left() {
    let broken = RunOptions { faults: deaths(&[(1, 30), (1, 20)]), ..options(5) };
    let mut asked = Vec::new();
    let fewer = &mut |was: &Workload| {
        asked.push(was.replicas());
        (was.replicas() > 1).then(|| dealt(1, 0, Precision::Single))
    };
    let error = run_elastic(&dealt(2, 0, Precision::Single), &broken, &mut Silent, fewer).expect_err("it fails");
    assert!(matches!(&error, RunError::Failed(failure) if failure.rank == 1), "{error}");
    assert_eq!(asked, [2, 1]);
    // Restarts come first.
    let restarting = Restarting { most: 1, ..Restarting::default() };
    let broken = RunOptions { faults: deaths(&[(1, 30)]), restarting, ..options(3) };
    let report = run_elastic(&dealt(2, 0, Precision::Single), &broken, &mut Silent, &mut |_| panic!("it restarts"))
        .expect("it restarts");
    assert_eq!((report.restarts.len(), report.restarts[0].replicas), (1, None));
}

/// The path of a spec of `data` replicas of two ranks with so many microbatches each.
fn spec(folder: &Path, data: u32, microbatches: u32, more: &str) -> String {
    let path = folder.join(format!("{data}-{microbatches}.toml"));
    let text = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 4\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = 2\ndata = {data}\n[training]\nmicrobatches = {microbatches}\nsequence = 16\n{more}"
    );
    std::fs::write(&path, text).expect("it is written");
    path.to_str().expect("a path").to_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_command_goes_on_with_as_many_replicas_as_the_batch_can_be_dealt_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let elastic = spec(folder.path(), 4, 2, "elastic = true\n");
    let run = |arguments: &[&str]| pipeplan(arguments).output().expect("it starts");
    let broken = run(&["run", &elastic, "--steps", "4", "--json", "--fault", "2:death@60"]);
    let text = said(&broken);
    assert!(
        text.contains("3 replicas not gone on with: the 8 microbatches of a step cannot be dealt to 3"),
        "{text}"
    );
    let summary: Value = serde_json::from_slice(&broken.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    let restart = &summary["restarts"][0];
    assert_eq!((&restart["replicas"], &restart["state_from"]), (&2.into(), &"memory".into()), "{summary}");
    let step = restart["step"].as_u64().expect("a step").to_string();
    assert!(text.contains(&format!("went on after step {step} from memory, on 2 replicas")), "{text}");
    // From the same step on as it would have been planned.
    let path = folder.path().join("state");
    let path = path.to_str().expect("a path");
    let first = run(&["run", &elastic, "--steps", &step, "--json", "--checkpoint-dir", path]);
    let two = spec(folder.path(), 2, 4, "");
    let rest = run(&["run", &two, "--steps", "4", "--json", "--resume", path]);
    assert_eq!(losses(&broken), [losses(&first), losses(&rest)].concat());
    // Without the word a failure ends the run, as does one with the last replica.
    let plain = run(&["run", &two, "--steps", "4", "--fault", "2:death@60"]);
    assert_eq!(plain.status.code(), Some(1), "{}", said(&plain));
    let replan = run(&["run", &elastic, "--steps", "4", "--replan"]);
    assert_eq!(replan.status.code(), Some(2));
    assert!(said(&replan).contains("training.elastic may leave fewer of them"), "{}", said(&replan));
}

/// Documents that a plan has dealt to microbatches and replicas are packed anew for those that are left.
#[test]
fn documents_of_replicas_are_packed_anew_for_fewer() {
    let folder = tempfile::tempdir().expect("a folder");
    let elastic = spec(folder.path(), 2, 2, "elastic = true\ndocuments = [[[16], [8]], [[4, 4], [4]]]\n");
    let data = folder.path().join("data.jsonl");
    let line = |document: u32| {
        let tokens: Vec<u32> = (0..3 + document % 9).map(|at| (document * 31 + at * 7) % 250).collect();
        serde_json::json!({ "input_ids": tokens }).to_string() + "\n"
    };
    std::fs::write(&data, (0..60).map(line).collect::<String>()).expect("written");
    let data = data.to_str().expect("a path");
    let run = |more: &[&str]| {
        let arguments = ["run", &elastic, "--data", data, "--steps", "4", "--json"];
        pipeplan(&[&arguments[..], more].concat()).output().expect("it starts")
    };
    let broken = run(&["--fault", "2:death@30"]);
    let summary: Value =
        serde_json::from_slice(&broken.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&broken)));
    assert_eq!(summary["restarts"][0]["replicas"], 1, "{summary}");
    // The samples of a step are the same, whatever the order of their gradients.
    for (found, expected) in losses(&broken).into_iter().zip(losses(&run(&[]))) {
        let (found, expected) = (f64::from_bits(found), f64::from_bits(expected));
        assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
    }
    // The one microbatch of the slowest replica is like itself.
    let alike = spec(folder.path(), 2, 1, "documents = [[[16]], [[8, 8]]]\n");
    let replan = pipeplan(&["run", &alike, "--data", data, "--replan"]).output().expect("it starts");
    assert!(said(&replan).contains("the plan's microbatches differ (training.documents)"), "{}", said(&replan));
}

#[test]
fn processes_go_on_with_fewer_replicas_from_the_latest_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let elastic = spec(folder.path(), 2, 2, "elastic = true\n");
    let path = folder.path().join("state");
    let path = path.to_str().expect("a path");
    let run = |arguments: &[&str]| pipeplan(arguments).output().expect("it starts");
    let saving = ["--steps", "6", "--json", "--checkpoint-dir", path, "--checkpoint-every", "1"];
    let broken = run(&[&["run", &elastic, "--transport", "tcp", "--fault", "3:death@60"][..], &saving].concat());
    let text = said(&broken);
    assert!(text.contains("2 of 4 ranks go on, from the latest checkpoint (training.elastic)"), "{text}");
    assert!(text.contains("2 ranks are 1 replica of 2; the global batch stays"), "{text}");
    let summary: Value = serde_json::from_slice(&broken.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    let step = summary["first_step"].as_u64().expect("a step");
    assert!((1..6).contains(&step), "{summary}");
    let before = Path::new(path).join(format!("step-{step:06}"));
    let one = spec(folder.path(), 1, 4, "");
    let rest = run(&["run", &one, "--steps", "6", "--json", "--resume", before.to_str().expect("a path")]);
    assert_eq!(losses(&broken), losses(&rest));
}

/// As torchrun comes back with one node of two.
#[test]
fn a_launcher_that_comes_back_with_fewer_ranks_goes_on_with_fewer_replicas() {
    let folder = tempfile::tempdir().expect("a folder");
    let elastic = spec(folder.path(), 2, 2, "elastic = true\n");
    let path = folder.path().join("state");
    let path = path.to_str().expect("a path");
    let launched = |world: usize, spec: &str, steps: &str| {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port().to_string();
        drop(listener);
        let rank = |rank: usize| {
            let saving =
                ["--steps", steps, "--json", "--checkpoint-dir", path, "--checkpoint-every", "1", "--restart", "1"];
            let mut command = pipeplan(&[&["run", spec][..], &saving].concat());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let ranks: Vec<_> = (0..world).map(rank).collect();
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect::<Vec<_>>().swap_remove(0)
    };
    let first = launched(4, &elastic, "2");
    let rest = launched(2, &elastic, "4");
    assert!(said(&rest).contains("2 ranks are 1 replica of 2; the global batch stays"), "{}", said(&rest));
    let one = spec(folder.path(), 1, 4, "");
    let before = Path::new(path).join("step-000002");
    let resumed = pipeplan(&["run", &one, "--steps", "4", "--json", "--resume", before.to_str().expect("a path")]);
    assert_eq!(losses(&rest), losses(&{ resumed }.output().expect("it starts")));
    assert_eq!(losses(&first).len(), 2);
    // Three ranks are no whole replicas, and a spec that is not elastic is planned for its own.
    for (world, spec) in [(3, &elastic), (2, &spec(folder.path(), 2, 3, ""))] {
        let refused = launched(world, spec, "6");
        assert_eq!(refused.status.code(), Some(2));
        let text = said(&refused);
        assert!(text.contains(&format!("the plan has 4 ranks, but {world} processes were started")), "{text}");
    }
}
