//! Ranks as processes of `mpirun`: the same losses as threads, and an end with a report when a process dies.
//!
//! Built with the feature `mpi` alone, and then `mpirun` must be there: `./dev test` sees to both.
#![cfg(feature = "mpi")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pipeplan::runner::random::SplitMix64;
use serde_json::Value;

mod tiny;

use tiny::{assert_gone, children, losses, pipeplan};

fn mpirun(ranks: usize, plan: &Path, more: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // More ranks than cores is what a test machine has; containers run as root.
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
    command.arg(assert_cmd::cargo::cargo_bin!("pipeplan")).arg("run").arg(plan);
    command.args(["--transport", "mpi"]).args(more).env("NO_COLOR", "1");
    command
}

#[test]
fn processes_over_mpi_train_as_threads_do_bit_for_bit() {
    for (ranks, schedule) in [(2, "zb-h1"), (3, "1f1b"), (4, "zb-v")] {
        let plan = tiny::plan("mpi", ranks, schedule);
        let threads = pipeplan(&["run", plan.to_str().expect("a path"), "--steps", "3", "--json"]).output();
        let threads = threads.expect("it starts");
        let over_mpi = mpirun(ranks, &plan, &["--steps", "3", "--json"]).output().expect("mpirun is there");
        assert_eq!(losses(&over_mpi), losses(&threads), "{ranks} ranks, {schedule}");
    }
}

/// Two ranks of a pipeline that are two each, which share matrices, sequences, or weights.
#[test]
fn ranks_that_are_several_train_over_mpi_as_threads_do_bit_for_bit() {
    for (name, more) in [
        ("mpi-mesh", "tensor = 2\nasync_reduce = true\n"),
        ("mpi-ring", "context = 2\nzero = 1\n"),
        ("mpi-shards", "data = 2\nzero = 3\n"),
    ] {
        let plan = tiny::plan_with(name, 2, "1f1b", more);
        let threads = pipeplan(&["run", plan.to_str().expect("a path"), "--steps", "3", "--json"]).output();
        let over_mpi = mpirun(4, &plan, &["--steps", "3", "--json"]).output().expect("mpirun is there");
        assert_eq!(losses(&over_mpi), losses(&threads.expect("it starts")), "{name}");
    }
}

/// The new plan goes to all ranks over MPI, and they go on from the checkpoint.
#[test]
fn ranks_over_mpi_plan_themselves_anew_where_one_is_slow() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let (spec, saved) = (folder.path().join("spec.toml"), at("saved"));
    let text = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 6\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
                pipeline = 2\n[training]\nmicrobatches = 4\nmicrobatch_size = 2\nsequence = 32\n";
    std::fs::write(&spec, text).expect("it is written");
    let plain = pipeplan(&["run", spec.to_str().expect("a path"), "--steps", "16", "--precision", "f64", "--json"]);
    let more = ["--steps", "16", "--precision", "f64", "--json", "--fault", "1:slow@4", "--replan=3"];
    let saving = ["--checkpoint-dir", &saved, "--checkpoint-every", "2"];
    let anew = mpirun(2, &spec, &[&more[..], &saving].concat()).output().expect("mpirun is there");
    let summary: serde_json::Value = serde_json::from_slice(&anew.stdout).expect("a summary");
    let rounds = summary["replanned"].as_array().expect("rounds");
    assert!(rounds.iter().any(|round| round["from_step"].is_u64()), "{summary}");
    for (plain, loss) in losses(&{ plain }.output().expect("it starts")).into_iter().zip(losses(&anew)) {
        let (plain, loss) = (f64::from_bits(plain), f64::from_bits(loss));
        assert!((plain - loss).abs() < 1e-9, "{plain} and {loss}");
    }
}

#[test]
fn another_number_of_processes_is_refused() {
    let output = mpirun(3, &tiny::plan("mpi-world", 2, "1f1b"), &[]).output().expect("mpirun is there");
    assert_ne!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("the plan has 2 ranks, but 3 processes were started"), "{text}");
}

#[test]
fn a_process_that_dies_ends_the_run_within_seconds_and_leaves_none_behind() {
    let plan = tiny::plan("mpi-death", 3, "1f1b");
    let mut command = mpirun(3, &plan, &["--steps", "100000"]);
    let launched = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun is there");
    thread::sleep(Duration::from_secs(3));
    let processes = children(launched.id());
    assert_eq!(processes.len(), 3, "all ranks run");
    let died = Instant::now();
    let killed = Command::new("kill").args(["-KILL", &processes[1].to_string()]).status();
    assert!(killed.expect("there is a kill").success());
    let output = launched.wait_with_output().expect("it ends");
    assert!(died.elapsed() < Duration::from_secs(8), "{:?}", died.elapsed());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{text}");
    // One of those that are left tells where all were, before the launcher ends it.
    assert!(text.contains("the launcher ends the run"), "{text}");
    assert!(text.contains("rank 0: ") || text.contains("rank 2: "), "{text}");
    // `mpirun` ends a moment before those that it has killed.
    assert_gone(&processes, Duration::from_secs(5));
}

#[test]
fn every_failure_over_mpi_has_one_report_and_a_second_start_goes_on() {
    tiny::every_failure_has_one_report_and_a_second_start_goes_on("mpi-faults", 3, |plan, more| {
        mpirun(3, plan, more)
    });
}

/// Ctrl-C goes to `mpirun`, which sends all ranks SIGTERM and, a second later, SIGKILL.
#[test]
fn an_interrupt_of_mpirun_leaves_a_checkpoint_and_no_process() {
    leaves_a_checkpoint("-INT");
}

/// SIGUSR1 it hands on, and lets them end.
#[test]
fn usr1_to_mpirun_ends_the_run_with_a_checkpoint() {
    assert_eq!(leaves_a_checkpoint("-USR1"), Some(130));
}

fn leaves_a_checkpoint(signal: &str) -> Option<i32> {
    let plan = tiny::plan(&format!("mpi{signal}"), 3, "1f1b");
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = folder.path().to_str().expect("a path");
    let mut command = mpirun(3, &plan, &["--steps", "100000", "--checkpoint-dir", checkpoints]);
    let mut launched = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun is there");
    let printed = std::io::BufReader::new(launched.stdout.take().expect("it is piped"));
    let mut lines = std::io::BufRead::lines(printed);
    if lines.next().is_none() {
        let output = launched.wait_with_output().expect("it ends");
        panic!("no first step: {}", String::from_utf8_lossy(&output.stderr));
    }
    let read_on = thread::spawn(move || lines.count());
    let processes = children(launched.id());
    assert_eq!(processes.len(), 3, "all ranks run");
    let sent = Command::new("kill").args([signal, &launched.id().to_string()]).status();
    assert!(sent.expect("there is a kill").success());
    let output = launched.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{text}");
    assert!(read_on.join().is_ok());
    assert_gone(&processes, Duration::from_secs(5));
    assert_eq!(tiny::checkpoints(folder.path()), 1, "one checkpoint, of the last whole step: {text}");
    output.status.code()
}

#[test]
fn every_collective_over_mpi_keeps_its_definition() {
    let mut command = Command::new("mpirun");
    command.args(["-n", "4", "--oversubscribe", "--allow-run-as-root"]);
    command.arg(assert_cmd::cargo::cargo_bin!("pipeplan")).args(["selftest", "--transport", "mpi", "--json"]);
    tiny::assert_selftest(&command.output().expect("mpirun is there"), "4 ranks over mpi");
}

/// mpirun starts nobody again: whoever does, such as a loop of a batch script, gives --restart, and the run goes on
/// from its latest checkpoint.
#[test]
fn a_run_that_mpirun_starts_again_goes_on_from_its_latest_checkpoint() {
    let plan = tiny::plan("mpi-restart", 2, "1f1b");
    let text = plan.to_str().expect("a path");
    let whole = losses(&pipeplan(&["run", text, "--steps", "7", "--json"]).output().expect("it starts"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let saving = ["--steps", "7", "--json", "--restart", "1", "--checkpoint-dir", path, "--checkpoint-every", "2"];
    let broken =
        mpirun(2, &plan, &[&saving[..], &["--fault", "1:death@60"]].concat()).output().expect("mpirun is there");
    assert_ne!(broken.status.code(), Some(0));
    let step = tiny::checkpoints(folder.path()) * 2;
    assert!((2..7).contains(&step), "{step}: {}", String::from_utf8_lossy(&broken.stderr));
    let rest = mpirun(2, &plan, &saving).output().expect("mpirun is there");
    assert_eq!(losses(&rest)[..], whole[step..]);
}

/// Kills ranks of `mpirun` at random, `kills` times, at any moment of a step or of a start. Each time the rest ends by itself, a loop
/// starts all again as a batch script does, and the end is held against an unbroken run.
fn kill_over_mpi(kills: usize, seed: u64) {
    let plan = tiny::plan_with("mpi-kills", 2, "1f1b", "data = 2\n");
    let steps = 12 + 4 * kills;
    let count = steps.to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = |path: PathBuf| path.to_str().expect("a path").to_string();
    let whole = text(at("whole"));
    let threads = ["run", plan.to_str().expect("a path"), "--steps", &count, "--json", "--checkpoint-dir", &whole];
    let expected = losses(&pipeplan(&threads).output().expect("it starts"));
    let (saved, log) = (at("saved"), at("log"));
    let (folder_text, log_text) = (text(saved.clone()), text(log.clone()));
    let train = ["--steps", &count, "--json", "--restart", "1", "--checkpoint-every", "1", "--keep", "3"];
    let train = [&train[..], &["--checkpoint-dir", &folder_text, "--log", &log_text]].concat();
    let mut random = SplitMix64::new(seed);
    let mut lost = Vec::new();
    let mut died: Option<Instant> = None;
    for killed in 0.. {
        let mut command = mpirun(4, &plan, &train);
        let errors = at("errors");
        command
            .stdout(fs::File::create(at("summary")).expect("made"))
            .stderr(fs::File::create(&errors).expect("made"));
        let said = || fs::read_to_string(&errors).unwrap_or_default();
        let before = lines(&log);
        let mut launched = command.spawn().expect("mpirun is there");
        if killed < kills {
            // Now and then before the first step.
            let after = random.below(4) as usize;
            while children(launched.id()).len() < 4 || lines(&log) < before + after {
                assert!(launched.try_wait().expect("it can be asked").is_none(), "kill {killed}: {}", said());
                note_first(&mut died, &mut lost, lines(&log) > before);
                thread::sleep(Duration::from_millis(2));
            }
            note_first(&mut died, &mut lost, after > 0);
            thread::sleep(Duration::from_millis(random.below(30)));
            let ranks = children(launched.id());
            let rank = ranks[random.below(ranks.len() as u64) as usize].to_string();
            let hit = Command::new("kill").args(["-KILL", &rank]).status();
            assert!(hit.expect("there is a kill").success());
            died = Some(died.unwrap_or_else(Instant::now));
        }
        let ended = launched.wait().expect("it ends");
        if killed == kills {
            assert!(ended.success(), "after {killed} kills: {}", said());
            break;
        }
        assert!(!ended.success(), "kill {killed}: {}", said());
    }
    let summary: Value = serde_json::from_slice(&fs::read(at("summary")).expect("read")).expect("a summary");
    let rest: Vec<u64> = summary["losses"].as_array().expect("losses").iter().map(bits_of).collect();
    assert_eq!(rest[..], expected[steps - rest.len()..]);
    let last = format!("step-{steps:06}");
    assert_eq!(tiny::tensors(&saved.join(&last)), tiny::tensors(&at("whole").join(&last)));
    lost.sort_unstable();
    println!(
        "MPI: {kills} of {kills} kills survived; {:?} lost in the middle, {:?} at most",
        lost.get(lost.len() / 2),
        lost.last()
    );
}

/// Takes the time from a death to the first step that ends after it.
fn note_first(died: &mut Option<Instant>, lost: &mut Vec<Duration>, is_there: bool) {
    if is_there && let Some(died) = died.take() {
        lost.push(died.elapsed());
    }
}

fn bits_of(loss: &Value) -> u64 {
    loss.as_f64().expect("a number").to_bits()
}

fn lines(log: &Path) -> usize {
    fs::read_to_string(log).map_or(0, |text| text.lines().count())
}

#[test]
fn ranks_of_mpirun_that_are_killed_at_random_train_as_if_none_had_been() {
    kill_over_mpi(5, 3);
}

#[test]
#[ignore = "60 kills, after each of which mpirun starts again: minutes"]
fn sixty_kills_over_mpi_are_survived() {
    kill_over_mpi(60, 14);
}
