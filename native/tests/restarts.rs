//! Runs that go on after ranks have died: with the bits of an unbroken run.

mod common;
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{options, published, train, work};
use pipeplan::runner::checkpoint::Saving;
use pipeplan::runner::random::SplitMix64;
use pipeplan::runner::{
    Precision, Restarting, RunError, RunOptions, RunReport, Silent, Source, Workload, run_restarting,
};
use pipeplan::transport::faulty::Faults;
use serde_json::Value;
use tiny::{children, losses, pipeplan};

fn laid_out(ranks: usize, data: u32, zero: u32) -> Workload {
    let mut work = work(ranks, 8 / data as usize);
    (work.layout.data, work.layout.zero) = (data, zero);
    published(&work, "1f1b", Precision::Single).expect("it exists")
}

fn deaths(at: &[(usize, u64)]) -> Vec<(usize, Faults)> {
    at.iter().map(|(rank, at)| (*rank, Faults { death: Some(*at), ..Faults::default() })).collect()
}

/// With so many restarts.
fn restarting(options: RunOptions, most: u32) -> RunOptions {
    RunOptions { restarting: Restarting { most, ..Restarting::default() }, ..options }
}

fn survive(workload: &Workload, options: &RunOptions) -> RunReport {
    run_restarting(workload, options, &mut Silent).unwrap_or_else(|error| panic!("{error}"))
}

fn assert_same(broken: &RunReport, whole: &RunReport, what: &str) {
    let bits = |report: &RunReport| report.losses().iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(broken), bits(whole), "{what}");
    assert_eq!(broken.weights, whole.weights, "{what}");
    let steps: Vec<u32> = broken.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, (0..whole.steps.len() as u32).collect::<Vec<_>>(), "{what}: each step once");
}

#[test]
fn a_thread_that_dies_gets_its_state_from_a_replica() {
    let workload = laid_out(2, 2, 0);
    let whole = train(&workload, &options(5));
    for (rank, at) in [(0, 3), (1, 30), (2, 61), (3, 100), (3, 0)] {
        let broken = RunOptions { faults: deaths(&[(rank, at)]), ..options(5) };
        let report = survive(&workload, &restarting(broken, 1));
        let what = format!("rank {rank} at {at}");
        assert_same(&report, &whole, &what);
        let [restart] = &report.restarts[..] else { panic!("{what}: {:?}", report.restarts) };
        // Where a rank has no state yet, the start is the same.
        let source = if restart.step == 0 { restart.source } else { Source::Memory };
        assert_eq!((restart.source, &restart.ranks), (source, &vec![rank]), "{what}");
        assert!(restart.redone <= 1 && restart.lost > Duration::ZERO, "{what}: {restart:?}");
    }
}

#[test]
fn where_no_other_rank_holds_the_same_all_go_back_to_the_checkpoint() {
    for (ranks, data, zero, precision) in
        [(2, 2, 1, Precision::Single), (4, 1, 0, Precision::Single), (2, 1, 0, Precision::Double)]
    {
        let mut model = work(ranks, 8 / data as usize);
        (model.layout.data, model.layout.zero) = (data, zero);
        let workload = published(&model, "1f1b", precision).expect("it exists");
        let whole = train(&workload, &options(6));
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 2 });
        // In the last of six steps, and then in the first one after the restart.
        let never = train(&workload, &RunOptions { faults: deaths(&[(1, u64::MAX)]), ..options(6) });
        let late = never.missed_faults[&1] * 11 / 12;
        let broken = RunOptions { saving, faults: deaths(&[(1, late), (1, 3)]), ..options(6) };
        let report = survive(&workload, &restarting(broken, 3));
        let what = format!("{ranks} ranks, {data} replicas, zero {zero}");
        assert_same(&report, &whole, &what);
        assert_eq!(report.restarts.len(), 2, "{what}");
        for restart in &report.restarts {
            assert_eq!((restart.source, restart.step % 2), (Source::Checkpoint, 0), "{what}: {restart:?}");
        }
        assert_eq!(report.checkpoint, Some(folder.path().join("step-000006")), "{what}");
    }
}

#[test]
fn a_run_with_more_failures_than_restarts_or_one_that_would_come_again_ends() {
    let workload = laid_out(2, 2, 0);
    let broken = RunOptions { faults: deaths(&[(1, 30), (1, 30)]), ..options(5) };
    let error = run_restarting(&workload, &restarting(broken, 1), &mut Silent).expect_err("it fails twice");
    assert!(matches!(&error, RunError::Failed(failure) if failure.rank == 1), "{error}");
    let mut diverging = options(5);
    diverging.optimizer.learning_rate = 1e30;
    let started = Instant::now();
    let error = run_restarting(&workload, &restarting(diverging, 10_000), &mut Silent).expect_err("it diverges");
    assert!(error.to_string().contains("try a smaller learning rate"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "the same loss comes again");
}

#[test]
fn a_restart_without_a_state_to_go_on_from_is_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let refused = |parallel: &str, more: &[&str], launcher: &[(&str, &str)]| {
        let name = format!("no-state-{}", parallel.len());
        let plan = tiny::plan_with(&name, 2, "1f1b", parallel);
        let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--restart", "2"];
        let mut command = pipeplan(&[&arguments[..], more].concat());
        let output = command.envs(launcher.iter().copied()).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(!text.contains("step 0"), "{text}");
        text
    };
    let text = refused("", &[], &[]);
    assert!(text.contains("no two ranks hold the same weights (parallel.data = 1)"), "{text}");
    assert!(text.contains("give --checkpoint-dir FOLDER and --checkpoint-every STEPS"), "{text}");
    // One at the end of the run is none to go on from.
    let text = refused("", &["--checkpoint-dir", path, "--transport", "tcp"], &[]);
    assert!(text.contains("give --checkpoint-dir FOLDER"), "{text}");
    let text = refused("data = 2\nzero = 1\n", &[], &[]);
    assert!(text.contains("replicas share out the optimizer states (parallel.zero)"), "{text}");
    let launcher = [("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    let text = refused("data = 2\n", &[], &launcher);
    assert!(text.contains("all processes start anew"), "{text}");
    let text = refused("data = 2\n", &["--backend", "modelled"], &[]);
    assert!(text.contains("--restart applies to training"), "{text}");
}

#[test]
fn a_run_says_how_often_checkpoints_are_best_written() {
    let plan = tiny::plan("interval", 2, "1f1b");
    let folder = tempfile::tempdir().expect("a folder");
    let (plan, path) = (plan.to_str().expect("a path"), folder.path().to_str().expect("a path"));
    let train = ["run", plan, "--steps", "6", "--json", "--checkpoint-dir", path, "--checkpoint-every", "2"];
    let output = pipeplan(&[&train[..], &["--mtbf", "10"]].concat()).output().expect("it starts");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let found = |name: &str| summary["checkpoint_interval"][name].as_f64().expect("a number");
    // Two ranks.
    assert_eq!(found("between_failures_s"), 5.0 * 3600.0);
    let pause = found("pause_s");
    assert!(pause > 0.0 && (found("young_s") - (2.0 * pause * 18_000.0).sqrt()).abs() < 1e-9, "{summary}");
    assert!(found("lost_share") <= found("lost_share_in_use"), "{summary}");
    let output = pipeplan(&[&train[..], &["--mtbf", "0"]].concat()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--mtbf is 0; give hours above 0"));
}

/// As torchrun's agent starts all of them again.
#[test]
fn a_run_that_a_launcher_starts_again_goes_on_from_its_latest_checkpoint() {
    let plan = tiny::plan("launcher", 2, "1f1b");
    let plan = plan.to_str().expect("a path");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let whole = losses(&pipeplan(&["run", plan, "--steps", "7", "--json"]).output().expect("it starts"));
    let launched = |steps: &str, more: &[&str], count: Option<&str>| {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port().to_string();
        drop(listener);
        let rank = |rank: usize| {
            let saving =
                ["run", plan, "--steps", steps, "--json", "--checkpoint-dir", path, "--checkpoint-every", "2"];
            let mut command = pipeplan(&[&saving[..], more].concat());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
            command.env("MASTER_PORT", &port).envs(count.map(|count| ("TORCHELASTIC_RESTART_COUNT", count)));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let ranks = [0, 1].map(rank);
        ranks.map(|rank| rank.wait_with_output().expect("it ends"))
    };
    // Its first start has nothing to go on from, and is the first one by what the launcher says.
    let [broken, _] = launched("7", &["--fault", "1:death@60"], Some("0"));
    assert_eq!(broken.status.code(), Some(1), "{}", String::from_utf8_lossy(&broken.stderr));
    let step = tiny::checkpoints(folder.path()) * 2;
    assert!((2..7).contains(&step));
    // Without a word of a restart the folder is another run's.
    let [refused, _] = launched("7", &[], Some("0"));
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let [rest, _] = launched("7", &[], Some("1"));
    assert_eq!(losses(&rest)[..], whole[step..]);
    // With it, also where the launcher does not count.
    let whole = losses(&pipeplan(&["run", plan, "--steps", "9", "--json"]).output().expect("it starts"));
    let [rest, _] = launched("9", &["--restart", "1"], None);
    assert_eq!(losses(&rest)[..], whole[7..]);
}

/// What killing ranks at random came to.
struct Figures {
    /// Kills that hit a rank.
    kills: usize,
    /// Restarts by where the state came from.
    restarts: Vec<(String, Duration)>,
}

impl Figures {
    fn told(&self, what: &str) {
        let mut text =
            format!("{what}: {} of {} kills survived, {} restarts", self.kills, self.kills, self.restarts.len());
        for source in ["memory", "checkpoint", "start", "overtaken"] {
            let of_source = self.restarts.iter().filter(|(from, _)| from == source);
            let mut lost: Vec<Duration> = of_source.map(|(_, lost)| *lost).collect();
            lost.sort_unstable();
            let Some(most) = lost.last() else { continue };
            text.push_str(&format!(
                "; {} from {source}, {:?} in the middle, {most:?} at most",
                lost.len(),
                lost[lost.len() / 2]
            ));
        }
        println!("{text}");
    }
}

/// Kills threads `kills` times at random, with replicas and with checkpoints alone, and holds the end against an unbroken run.
fn kill_threads(kills: usize, seed: u64) {
    for zero in [0, 1] {
        let workload = laid_out(2, 2, zero);
        let steps = 10 + 2 * kills as u32;
        let whole = train(&workload, &options(steps));
        let mut random = SplitMix64::new(seed);
        let at = |random: &mut SplitMix64| (random.below(4) as usize, random.below(300));
        let faults: Vec<(usize, u64)> = (0..kills.div_ceil(2)).map(|_| at(&mut random)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let saving = (zero > 0).then(|| Saving { folder: folder.path().to_path_buf(), every: 1 });
        let broken = RunOptions { saving, faults: deaths(&faults), grace: Duration::from_secs(1), ..options(steps) };
        let report = survive(&workload, &restarting(broken, 10_000));
        assert_same(&report, &whole, &format!("zero {zero}, {} restarts", report.restarts.len()));
        let lost = |restart: &pipeplan::runner::Restart| (restart.source.name().to_string(), restart.lost);
        let restarts: Vec<(String, Duration)> = report.restarts.iter().map(lost).collect();
        Figures { kills: restarts.len(), restarts }.told(&format!("threads, zero {zero}"));
        // A death that was meant for later than the rank's last exchange does not come.
        let missed = report.missed_faults.len();
        assert!(report.restarts.len() + 4 >= kills.div_ceil(2), "{} came, {missed} did not", report.restarts.len());
    }
}

/// A run of processes, ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lines(log: &Path) -> usize {
    fs::read_to_string(log).map_or(0, |text| text.lines().count())
}

/// Kills processes `kills` times at random, at any moment of a step or of a restart, and holds losses and weights against an
/// unbroken run.
fn kill_processes(name: &str, parallel: &str, kills: usize, seed: u64) {
    let plan = tiny::plan_with(name, 2, "1f1b", parallel);
    let plan = plan.to_str().expect("a path");
    let steps = 20 + 4 * kills;
    let count = steps.to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = |path: PathBuf| path.to_str().expect("a path").to_string();
    let train = ["run", plan, "--steps", &count, "--json"];
    let run =
        pipeplan(&[&train[..], &["--checkpoint-dir", &text(at("whole"))]].concat()).output().expect("it starts");
    let whole = losses(&run);
    let (log, summary) = (at("log"), at("summary.json"));
    let most = (4 * kills).to_string();
    let more =
        ["--transport", "tcp", "--restart", &most, "--checkpoint-every", "1", "--keep", "3", "--patience", "20"];
    let paths = ["--checkpoint-dir", &text(at("broken")), "--log", &text(log.clone())];
    let mut command: Command = pipeplan(&[&train[..], &more, &paths].concat());
    command.stdout(fs::File::create(&summary).expect("made")).stderr(fs::File::create(at("errors")).expect("made"));
    let mut running = Running(command.spawn().expect("it starts"));
    let errors = || fs::read_to_string(at("errors")).unwrap_or_default();
    let mut random = SplitMix64::new(seed);
    let (mut killed, mut after) = (0, 1);
    let started = Instant::now();
    while killed < kills {
        let ended = running.0.try_wait().expect("it can be asked");
        assert!(ended.is_none(), "{name}: ended after {killed} kills: {}", errors());
        assert!(
            started.elapsed() < Duration::from_secs(60 + 10 * kills as u64),
            "{name}: {killed} kills: {}",
            errors()
        );
        let ranks = children(running.0.id());
        if lines(&log) < after || ranks.len() < 4 {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        std::thread::sleep(Duration::from_millis(random.below(12)));
        let rank = ranks[random.below(ranks.len() as u64) as usize];
        let hit = Command::new("kill").args(["-9", &rank.to_string()]).stderr(Stdio::null()).status();
        killed += usize::from(hit.expect("there is a kill").success());
        // A few steps later, or at once: while the others are still on their way.
        after = lines(&log) + random.below(4) as usize;
    }
    let status = running.0.wait().expect("it ends");
    assert!(status.success(), "{name}: {status}: {}", errors());
    let report: Value = serde_json::from_str(&fs::read_to_string(&summary).expect("read")).expect("a summary");
    let first = report["first_step"].as_u64().expect("a step") as usize;
    let found: Vec<u64> = report["losses"]
        .as_array()
        .expect("losses")
        .iter()
        .map(|loss| loss.as_f64().expect("a loss").to_bits())
        .collect();
    assert_eq!(found[..], whole[first..], "{name}");
    let last = format!("step-{steps:06}");
    assert_eq!(tiny::tensors(&at("broken").join(&last)), tiny::tensors(&at("whole").join(&last)), "{name}");
    let restart = |restart: &Value| {
        let lost = Duration::from_nanos(restart["lost_ns"].as_u64().expect("nanoseconds"));
        (restart["state_from"].as_str().expect("a source").to_string(), lost)
    };
    let restarts: Vec<(String, Duration)> =
        report["restarts"].as_array().expect("restarts").iter().map(restart).collect();
    assert!(!restarts.is_empty() && restarts.len() <= kills, "{name}: {restarts:?}");
    Figures { kills: killed, restarts }.told(&format!("processes, {name}"));
}

#[test]
fn threads_that_are_killed_at_random_train_as_if_none_had_been() {
    kill_threads(24, 7);
}

#[test]
fn processes_that_are_killed_at_random_train_as_if_none_had_been() {
    kill_processes("kills-replicas", "data = 2\n", 12, 1);
    kill_processes("kills-checkpoint", "data = 2\nzero = 1\n", 8, 2);
}

/// A rank that stands still for longer than the patience is no death: nobody knows which it is, so all are started again.
#[test]
#[ignore = "it waits for patience and grace: 15 s"]
fn a_process_that_stands_still_is_started_again_with_all_others() {
    let plan = tiny::plan_with("stands", 2, "1f1b", "data = 2\n");
    let plan = plan.to_str().expect("a path");
    let folder = tempfile::tempdir().expect("a folder");
    let train = ["run", plan, "--steps", "6", "--json"];
    let whole = losses(&pipeplan(&train).output().expect("it starts"));
    let more = ["--transport", "tcp", "--restart", "4", "--fault", "1:stall@60/600", "--patience", "2"];
    let saving = ["--checkpoint-every", "1", "--checkpoint-dir", folder.path().to_str().expect("a path")];
    let output = pipeplan(&[&train[..], &more, &saving].concat()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = losses(&output);
    assert_eq!(found[..], whole[6 - found.len()..], "{text}");
    assert!(text.contains("waited for the others in vain"), "{text}");
}

#[test]
#[ignore = "200 kills of threads, and as many of processes: minutes"]
fn two_hundred_kills_of_threads_and_of_processes_are_survived() {
    kill_threads(200, 11);
    kill_processes("many-replicas", "data = 2\n", 140, 12);
    kill_processes("many-checkpoint", "data = 2\nzero = 1\n", 60, 13);
}
