//! Ranks as processes over TCP: the same losses as threads, and one report when a process dies or stands still.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod tiny;

use tiny::{assert_gone, children, losses, pipeplan};

fn run(arguments: &[&str]) -> Output {
    pipeplan(arguments).output().expect("it starts")
}

#[test]
fn processes_over_tcp_train_as_threads_do_bit_for_bit() {
    for (ranks, schedule) in [(1, "1f1b"), (2, "zb-h1"), (3, "1f1b"), (4, "zb-v")] {
        let plan = tiny::plan("bits", ranks, schedule);
        let plan = plan.to_str().expect("a path");
        let arguments = ["run", plan, "--steps", "2", "--json"];
        let threads = losses(&run(&arguments));
        assert_eq!(threads.len(), 2);
        let trace = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("pipeplan-tcp-{}-{ranks}.json", std::process::id()));
        let over_tcp =
            run(&[&arguments[..], &["--transport", "tcp", "--trace", trace.to_str().expect("a path")]].concat());
        assert_eq!(losses(&over_tcp), threads, "{ranks} ranks, {schedule}");
        let text = std::fs::read_to_string(&trace).expect("rank 0 writes the trace");
        let trace = pipeplan_core::trace::Trace::from_json(&text).expect("it reads back");
        assert_eq!((trace.transport.as_str(), trace.steps.len(), trace.peak_bytes.len()), ("tcp", 2, ranks));
        assert!(trace.steps.iter().all(|step| step.rows.iter().all(|row| !row.is_empty())));
    }
}

/// Eight processes on the mesh of two ranks of a pipeline, two replicas and two that share matrices; and a checkpoint
/// of theirs, which one process with four that share matrices goes on from.
#[test]
fn a_mesh_of_processes_trains_as_threads_do_bit_for_bit() {
    let mesh = "tensor = 2\nsequence_parallel = true\nasync_reduce = true\ndata = 2\nzero = 1\n";
    let plan = tiny::plan_with("mesh", 2, "1f1b", mesh);
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = folder.path().to_str().expect("a path");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--json"];
    let threads = losses(&run(&arguments));
    let over_tcp = run(&[&arguments[..], &["--transport", "tcp", "--checkpoint-dir", checkpoints]].concat());
    assert_eq!(losses(&over_tcp), threads);
    // Twice the microbatches for one replica are the same step.
    let other = tiny::plan_with("mesh-other", 1, "gpipe", "tensor = 4\n");
    let other = std::fs::read_to_string(other.with_extension("toml")).expect("a spec");
    let path = folder.path().join("other.toml");
    std::fs::write(&path, other.replace("microbatches = 6", "microbatches = 12")).expect("written");
    let whole = losses(&run(&["run", plan.to_str().expect("a path"), "--steps", "4", "--json"]));
    let rest = run(&["run", path.to_str().expect("a path"), "--steps", "4", "--resume", checkpoints, "--json"]);
    for (found, expected) in losses(&rest).into_iter().zip(&whole[2..]) {
        let (found, expected) = (f64::from_bits(found), f64::from_bits(*expected));
        assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
    }
}

/// Experts dealt to four of eight processes; and without room for uneven routing, which ends all of them at once.
#[test]
fn experts_are_dealt_to_processes() {
    let more = "data = 4\nexpert = 4\nzero = 1\n[model.experts]\ncount = 8\nactive = 2\nffn = 64\n";
    let without_room = tiny::plan_with("experts", 2, "1f1b", more).with_extension("toml");
    let text = std::fs::read_to_string(&without_room).expect("a spec");
    let with_room = without_room.with_extension("room.toml");
    std::fs::write(&with_room, text.replace("[training]", "[training]\nexpert_imbalance = 4")).expect("written");
    let arguments = |spec: &Path| {
        let spec = spec.to_str().expect("a path").to_string();
        ["run".into(), spec, "--steps".into(), "2".into(), "--json".into()]
    };
    let over_tcp =
        |spec: &Path| pipeplan(&arguments(spec).each_ref().map(String::as_str)).args(["--transport", "tcp"]).output();
    let threads = losses(&run(&arguments(&with_room).each_ref().map(String::as_str)));
    assert_eq!(losses(&over_tcp(&with_room).expect("it starts")), threads);
    let started = Instant::now();
    let output = over_tcp(&without_room).expect("it starts");
    assert!(started.elapsed() < Duration::from_secs(20), "nobody waits for what has not been sent");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("routed tokens arrive at the experts of rank"), "{text}");
    assert!(text.contains("write training.expert_imbalance = "), "{text}");
}

/// So do processes that pass keys and values around rings.
#[test]
fn rings_of_processes_train_as_threads_do_bit_for_bit() {
    let plan = tiny::plan_with("ring", 2, "zb-h1", "context = 2\ntensor = 2\nzero = 1\n");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--json"];
    let threads = losses(&run(&arguments));
    assert_eq!(threads.len(), 2);
    assert_eq!(losses(&run(&[&arguments[..], &["--transport", "tcp"]].concat())), threads);
}

/// So do processes that shard weights and gradients in groups of two.
#[test]
fn processes_that_shard_train_as_threads_do_bit_for_bit() {
    let plan = tiny::plan_with("shards", 2, "1f1b", "data = 4\nzero = 3\nshard = 2\n");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--json"];
    let threads = losses(&run(&arguments));
    assert_eq!(threads.len(), 2);
    assert_eq!(losses(&run(&[&arguments[..], &["--transport", "tcp"]].concat())), threads);
}

/// So do processes through which sequences go in slices.
#[test]
fn slices_go_through_processes_as_through_threads_bit_for_bit() {
    let plan = tiny::plan_with("slices", 2, "seq1f1b", "sequence_slices = 4\n");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--json"];
    let threads = losses(&run(&arguments));
    assert_eq!(threads.len(), 2);
    assert_eq!(losses(&run(&[&arguments[..], &["--transport", "tcp"]].concat())), threads);
}

/// The processes of a run that this test has launched; none outlives it.
struct Launched(Vec<Child>);

impl Launched {
    fn new(plan: &Path, ranks: usize, more: impl Fn(usize) -> Vec<String>) -> Launched {
        Launched::of(ranks, |rank| {
            let mut command = pipeplan(&["run", plan.to_str().expect("a path"), "--transport", "tcp"]);
            command.args(more(rank));
            command
        })
    }

    fn of(ranks: usize, command: impl Fn(usize) -> Command) -> Launched {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let start = |rank: usize| {
            let mut command = command(rank);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        Launched((0..ranks).map(start).collect())
    }

    /// Waits until rank 0 has printed the line of its first step, and reads on so that it never has to wait.
    fn in_training(mut self) -> Launched {
        let printed = self.0[0].stdout.take().expect("it is piped");
        let (tell, hear) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(printed).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        hear.recv_timeout(Duration::from_secs(60)).expect("a first step ends");
        self
    }

    /// Exit code and standard error of each, once all but `except` have ended.
    fn end(mut self, except: Option<usize>) -> Vec<(Option<i32>, String)> {
        let mut ends = Vec::new();
        for (rank, mut child) in self.0.drain(..).enumerate() {
            if except == Some(rank) {
                let _ = child.kill();
            }
            let output = child.wait_with_output().expect("it ends");
            ends.push((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        ends
    }

    fn signal(&self, rank: usize, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0[rank].id().to_string()]).status();
        assert!(status.expect("there is a kill").success());
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn many_steps(_: usize) -> Vec<String> {
    ["--steps", "100000", "--patience", "20"].map(str::to_string).to_vec()
}

#[test]
fn a_process_that_dies_ends_the_run_with_one_report() {
    let run = Launched::new(&tiny::plan("death", 3, "1f1b"), 3, many_steps).in_training();
    let died = Instant::now();
    run.signal(1, "-KILL");
    let ends = run.end(None);
    assert!(died.elapsed() < Duration::from_secs(5), "noticed at once: {:?}", died.elapsed());
    let (code, report) = &ends[0];
    assert_eq!(*code, Some(1), "{report}");
    for part in ["rank 1 failed: its process ended", "rank 0: ", "rank 1: no message since", "rank 2: "] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let (code, told) = &ends[2];
    assert_eq!(*code, Some(1));
    assert!(told.contains("rank 2 ended with the run; rank 0 gives the reason"), "{told}");
}

#[test]
fn where_rank_0_is_gone_the_next_one_reports() {
    let run = Launched::new(&tiny::plan("head", 3, "1f1b"), 3, many_steps).in_training();
    run.signal(0, "-KILL");
    let ends = run.end(None);
    assert!(ends[1].1.contains("rank 0 failed: its process ended"), "{}", ends[1].1);
    assert!(ends[2].1.contains("rank 1 gives the reason"), "{}", ends[2].1);
    assert_eq!((ends[1].0, ends[2].0), (Some(1), Some(1)));
}

#[test]
fn a_process_that_stands_still_ends_the_run_after_patience_and_grace() {
    let patient = |_: usize| ["--steps", "100000", "--patience", "3"].map(str::to_string).to_vec();
    let mut run = Launched::new(&tiny::plan("stall", 2, "1f1b"), 2, patient).in_training();
    let stood_still = Instant::now();
    run.signal(1, "-STOP");
    let status = run.0[0].wait().expect("it ends");
    // Three seconds of patience, five of grace; the rest is for machines that are busy with something else.
    assert!(stood_still.elapsed() < Duration::from_secs(60), "{:?}", stood_still.elapsed());
    assert_eq!(status.code(), Some(1));
    let report = run.end(Some(1)).swap_remove(0).1;
    let seconds = |before: &str, after: &str| -> f64 {
        let (_, rest) = report.split_once(before).unwrap_or_else(|| panic!("{before}: {report}"));
        let (number, _) = rest.split_once(after).unwrap_or_else(|| panic!("{after}: {report}"));
        number.parse().unwrap_or_else(|error| panic!("{error}: {report}"))
    };
    assert!(report.contains("rank 0 failed: "), "{report}");
    assert!(seconds("waited ", " s for rank 1 to ") >= 3.0, "{report}");
    assert!(seconds("rank 1 did not answer within ", " s") >= 5.0, "{report}");
}

#[test]
fn a_stop_asked_of_one_process_stops_all_after_the_same_step() {
    let run = Launched::new(&tiny::plan("stop", 2, "1f1b"), 2, many_steps).in_training();
    run.signal(1, "-TERM");
    let ends = run.end(None);
    assert_eq!(ends[0].0, Some(130), "{}", ends[0].1);
    assert!(ends[0].1.contains("stopped after"), "{}", ends[0].1);
    assert_eq!(ends[1].0, Some(130), "{}", ends[1].1);
    assert!(ends[1].1.contains("rank 1 was stopped with the run"), "{}", ends[1].1);
}

/// One of the ranks that the command has started is asked alone: the command says the same of the run.
#[test]
fn a_stop_asked_of_a_rank_that_was_started_is_that_of_the_command() {
    let plan = tiny::plan("stop-started", 2, "1f1b");
    let arguments = ["run", plan.to_str().expect("a path"), "--transport", "tcp", "--steps", "100000"];
    let child = pipeplan(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let launched = Launched(vec![child]).in_training();
    let ranks = children(launched.0[0].id());
    let sent = Command::new("kill").args(["-TERM", &ranks[1].to_string()]).status();
    assert!(sent.expect("there is a kill").success());
    let (code, text) = launched.end(None).remove(0);
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("stopped after"), "{text}");
}

#[test]
fn no_rank_outlives_a_command_that_is_killed() {
    let plan = tiny::plan("killed", 3, "1f1b");
    let arguments = ["run", plan.to_str().expect("a path"), "--transport", "tcp", "--steps", "100000"];
    let child = pipeplan(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut launched = Launched(vec![child]).in_training();
    let ranks = children(launched.0[0].id());
    assert_eq!(ranks.len(), 3);
    launched.0[0].kill().expect("it is there");
    launched.0[0].wait().expect("it ends");
    assert_gone(&ranks, Duration::from_secs(5));
}

#[test]
fn processes_that_do_not_run_the_same_are_refused() {
    let plan = tiny::plan("disagree", 2, "1f1b");
    let seeds = |rank: usize| vec!["--seed".to_string(), rank.to_string()];
    for (code, text) in Launched::new(&plan, 2, seeds).end(None) {
        assert_eq!(code, Some(2));
        assert!(text.contains("the plan, text or options of rank 1 differ from those of rank 0"), "{text}");
    }
    // Whoever hears of it before it has found it out ends in the same way.
    let four = tiny::plan("disagree", 4, "1f1b");
    for odd in [1, 3] {
        let seed = |rank: usize| vec!["--seed".to_string(), usize::from(rank == odd).to_string()];
        for (code, text) in Launched::new(&four, 4, seed).end(None) {
            assert_eq!(code, Some(2), "{text}");
            assert!(
                text.contains(&format!("the plan, text or options of rank {odd} differ"))
                    || text.contains("refused the run")
            );
        }
    }
    for (code, text) in Launched::new(&plan, 3, |_| Vec::new()).end(None) {
        assert_eq!(code, Some(2));
        assert!(text.contains("the plan has 2 ranks, but 3 processes were started"), "{text}");
    }
}

/// As threads, each of the processes that `torchrun` starts would make the whole run.
#[test]
fn processes_of_a_launcher_are_ranks_without_being_told() {
    let plan = tiny::plan("torchrun", 2, "1f1b");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "2", "--json"];
    let mut run = Launched::of(2, |_| pipeplan(&arguments));
    let outputs: Vec<Output> = run.0.drain(..).map(|child| child.wait_with_output().expect("it ends")).collect();
    assert_eq!(losses(&outputs[0]), losses(&pipeplan(&arguments).output().expect("it starts")));
    assert!(outputs[1].status.success() && outputs[1].stdout.is_empty(), "one summary");
}

/// The script of a job of Slurm has a rank without being one of several: its command starts the ranks itself.
#[test]
fn a_script_of_slurm_starts_its_ranks() {
    let plan = tiny::plan("slurm", 2, "1f1b");
    let arguments = ["run", plan.to_str().expect("a path"), "--steps", "1", "--json"];
    let threads = losses(&run(&arguments));
    for tasks in ["1", "2"] {
        let mut command = pipeplan(&arguments);
        command.args(["--transport", "tcp"]).env("SLURM_PROCID", "0").env("SLURM_NTASKS", tasks);
        assert_eq!(losses(&command.env("SLURM_LOCALID", "0").output().expect("it starts")), threads, "{tasks} tasks");
    }
}

/// A place that rank 0 alone looks at is refused by all with its exit code, whoever of them they hear it from.
#[test]
fn a_place_that_cannot_be_written_ends_all_processes_alike() {
    let plan = tiny::plan("occupied", 3, "1f1b");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(".lock")).expect("made");
    let saving = |_| vec!["--checkpoint-dir".to_string(), folder.path().to_string_lossy().into_owned()];
    for (code, text) in Launched::new(&plan, 3, saving).end(None) {
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(".lock cannot be opened") || text.contains("refused the run"), "{text}");
    }
}

/// Each task of `srun` that took itself for the script would make the whole run.
#[test]
fn a_task_of_slurm_that_cannot_find_rank_0_is_refused() {
    let plan = tiny::plan("tasks", 2, "1f1b");
    let plan = plan.to_str().expect("a path");
    let task = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0"), ("SLURM_JOB_ID", "77")];
    for (hosts, engine) in [
        (Some("r[1-2]n[3-4]"), &["--transport", "tcp"][..]),
        (Some("r[1-2]n[3-4]"), &[]),
        (None, &["--transport", "tcp"]),
        (None, &[]),
    ] {
        let mut command = pipeplan(&["run", plan, "--steps", "1"]);
        command.args(engine).envs(task).envs(hosts.map(|hosts| ("SLURM_STEP_NODELIST", hosts)));
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{hosts:?} {engine:?}: {text}");
        assert!(output.stdout.is_empty() && text.contains("SLURM_STEP_NODELIST"), "{hosts:?} {engine:?}: {text}");
        assert!(text.contains("Set MASTER_ADDR to the host of rank 0"), "{hosts:?} {engine:?}: {text}");
    }
}

#[test]
fn variables_that_make_no_rank_are_refused_by_name() {
    let plan = tiny::plan("variables", 2, "1f1b");
    let plan = plan.to_str().expect("a path");
    let output = pipeplan(&["run", plan, "--transport", "tcp"]).env("RANK", "2").env("WORLD_SIZE", "2").output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RANK is 2, but there are 2 ranks"));
    let output = pipeplan(&["run", plan, "--transport", "tcp"]).env("RANK", "0").env("WORLD_SIZE", "2").output();
    let text = String::from_utf8_lossy(&output.expect("it starts").stderr).into_owned();
    assert!(text.contains("torchrun does not give the address of rank 0") && text.contains("MASTER_ADDR"), "{text}");
    // Said before anybody waits for ranks that there are not.
    let started = Instant::now();
    let output =
        pipeplan(&["run", plan]).env("RANK", "0").env("WORLD_SIZE", "3").env("MASTER_ADDR", "127.0.0.1").output();
    let output = output.expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the plan has 2 ranks, but 3 processes were started"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let output = pipeplan(&["run", plan]).env("WORLD_SIZE", "2").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("WORLD_SIZE is set, but RANK is not"), "{text}");
    let output = run(&["selftest", "--transport", "tcp"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no launcher has set the rank") && text.contains("torchrun --no-python"), "{text}");
    let output = run(&["run", "-", "--transport", "tcp"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_failure_over_tcp_has_one_report_and_a_second_start_goes_on() {
    tiny::every_failure_has_one_report_and_a_second_start_goes_on("tcp-faults", 3, |plan, more| {
        let mut command = pipeplan(&["run", plan.to_str().expect("a path"), "--transport", "tcp"]);
        command.args(more);
        command
    });
}

#[test]
fn every_failure_among_threads_has_one_report_and_a_second_start_goes_on() {
    tiny::every_failure_has_one_report_and_a_second_start_goes_on("thread-faults", 3, |plan, more| {
        let mut command = pipeplan(&["run", plan.to_str().expect("a path")]);
        command.args(more);
        command
    });
}

/// A rehearsal that has not taken place says so, on whichever rank it was to be.
#[test]
fn a_fault_that_is_not_reached_is_told() {
    let plan = tiny::plan("not-reached", 2, "1f1b");
    let plan = plan.to_str().expect("a path");
    for transport in ["threads", "tcp"] {
        for (fault, is_told) in [("1:death@99999", true), ("1:short@99999", true), ("1:delay@1", false)] {
            let output = run(&["run", plan, "--steps", "1", "--transport", transport, "--fault", fault]);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{transport} {fault}: {text}");
            assert_eq!(text.contains("--fault for rank 1 was not reached"), is_told, "{transport} {fault}: {text}");
        }
    }
}

/// As a terminal does it: every process of the run gets the signal at once.
#[test]
fn an_interrupt_of_all_processes_leaves_a_checkpoint_and_no_process() {
    let plan = tiny::plan("interrupt", 3, "1f1b");
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = folder.path().to_str().expect("a path");
    let arguments = ["run", plan.to_str().expect("a path"), "--transport", "tcp", "--steps", "100000"];
    let mut command = pipeplan(&[&arguments[..], &["--checkpoint-dir", checkpoints]].concat());
    let mut launched =
        Launched(vec![command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")]);
    launched = launched.in_training();
    let processes = children(launched.0[0].id());
    assert_eq!(processes.len(), 3);
    for process in processes.iter().chain([&launched.0[0].id()]) {
        assert!(
            Command::new("kill").args(["-INT", &process.to_string()]).status().expect("there is a kill").success()
        );
    }
    let (code, text) = launched.end(None).remove(0);
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("stopped after"), "{text}");
    assert_gone(&processes, Duration::from_secs(5));
    let written = tiny::checkpoints(folder.path());
    assert_eq!(written, 1, "one checkpoint, of the last whole step");
}

/// As batch systems and other programs do it: only the process that they have started hears of it.
#[test]
fn a_signal_to_the_first_process_alone_reaches_all() {
    let plan = tiny::plan("first-alone", 3, "1f1b");
    for (signals, fault) in
        [(&["-TERM"][..], "0:delay@0"), (&["-USR1"], "0:delay@0"), (&["-TERM", "-TERM"], "1:stall@9/600")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = folder.path().to_str().expect("a path");
        let arguments = ["run", plan.to_str().expect("a path"), "--transport", "tcp", "--steps", "100000"];
        let mut command = pipeplan(&[&arguments[..], &["--checkpoint-dir", checkpoints, "--fault", fault]].concat());
        let mut launched =
            Launched(vec![command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")]);
        let stands_still = fault.contains("stall");
        if stands_still {
            std::thread::sleep(Duration::from_secs(2));
        } else {
            launched = launched.in_training();
        }
        let first = launched.0[0].id();
        let processes = children(first);
        assert_eq!(processes.len(), 3);
        for signal in signals {
            let sent = Command::new("kill").arg(signal).arg(first.to_string()).status();
            assert!(sent.expect("there is a kill").success());
            std::thread::sleep(Duration::from_millis(300));
        }
        let (code, text) = launched.end(None).remove(0);
        assert_eq!(code, Some(130), "{signals:?}: {text}");
        assert_gone(&processes, Duration::from_secs(5));
        // A rank that stands still is not waited for, and leaves nothing.
        let written = tiny::checkpoints(folder.path());
        assert_eq!(written, usize::from(!stands_still), "{signals:?}: {text}");
    }
}

#[test]
fn every_collective_over_tcp_keeps_its_definition() {
    let mut run = Launched::of(4, |_| pipeplan(&["selftest", "--transport", "tcp", "--json"]));
    for (rank, child) in run.0.drain(..).enumerate() {
        let output = child.wait_with_output().expect("it ends");
        match rank {
            0 => tiny::assert_selftest(&output, "4 ranks over tcp"),
            _ => assert!(output.status.success() && output.stdout.is_empty()),
        }
    }
}
