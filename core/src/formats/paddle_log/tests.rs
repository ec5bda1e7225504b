//! The line format, steps, rows and colours are those that the developers' notes and Paddle's tool state.

use super::*;
use crate::plan::Plan;
use crate::plan::planner;
use crate::problem::placement::Placement;
use crate::schedule::published;
use crate::spec::Spec;
use proptest::prelude::*;
use serde_json::Value;

fn line(microbatch: u32, kind: &str, start: f64, end: f64) -> String {
    format!(
        "I0405 11:33:31.042309 12087 program_interpreter.cc:172] Profiler Info: Job ({microbatch}), type = {kind}, \
         micro_batch_id = {microbatch}, job_start_time = {start:.3}, job_end_time = {end:.3}"
    )
}

/// Two devices, two microbatches of 1F1B, two steps; times in milliseconds of a wall clock.
fn two_workers() -> [String; 2] {
    let at = |step: u32, ms: f64| 1_712_345_678_000.0 + f64::from(step) * 100.0 + ms;
    let mut logs =
        [String::from("some other line\n"), String::from("Schedule Profiler start at step 7 and end at step 9\n")];
    for step in 0..2 {
        for (microbatch, kind, from, to) in [
            (0, "forward", 0.0, 10.0),
            (1, "forward", 10.0, 20.0),
            (0, "backward", 30.5, 50.5),
            (1, "backward", 60.5, 80.5),
            (0, "optimizer", 80.5, 81.25),
        ] {
            logs[0].push_str(&(line(microbatch, kind, at(step, from), at(step, to)) + "\n"));
        }
        for (microbatch, kind, from, to) in [
            (0, "forward", 10.5, 20.5),
            (0, "backward", 20.5, 30.25),
            (1, "forward", 30.25, 40.25),
            (1, "backward", 40.25, 60.25),
            (0, "optimizer", 60.25, 61.0),
        ] {
            logs[1].push_str(&(line(microbatch, kind, at(step, from), at(step, to)) + "\n"));
        }
    }
    logs
}

fn workers() -> Vec<Worker> {
    let logs = two_workers();
    logs.iter()
        .enumerate()
        .map(|(device, text)| Worker::new(format!("workerlog.{device}"), 0, device).text(text))
        .collect()
}

fn texts(trace: &Trace) -> Vec<String> {
    Schedule::of(trace.order()).text_rows()
}

#[test]
fn two_devices_are_two_ranks_and_two_steps() {
    let logged = trace(&workers(), None).expect("whole logs");
    assert_eq!(logged.faults, []);
    assert_eq!(texts(&logged.trace), ["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"]);
    assert_eq!(logged.trace.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [7, 8]);
    let step = &logged.trace.steps[1];
    assert_eq!(step.began_ns, Some(1_712_345_678_100_000_000));
    assert_eq!((step.rows[0][2].start_ns, step.rows[0][2].end_ns), (30_500_000, 50_500_000));
    assert_eq!(step.rows[1][4].step, Step::Optimizer);
    assert_eq!(logged.placed, Some("one stage per rank"));
    assert_eq!(Trace::from_json(&logged.trace.to_json()).as_ref(), Ok(&logged.trace));
}

/// Fields, names, categories, times in microseconds, rows and colours as the tool writes them.
#[test]
fn events_are_those_of_paddles_tool() {
    let value: Value = serde_json::from_str(&events(&workers())).expect("JSON");
    let events_of = |value: &Value| value["traceEvents"].as_array().expect("a list").clone();
    let all = events_of(&value);
    assert_eq!(all.len(), 2 * (20 + 2));
    let first: Value = serde_json::json!({
        "name": "forward_0", "cat": "forward", "ph": "B", "ts": 1_712_345_678_000_000.0, "pid": 0, "tid": "GPU0",
        "cname": "thread_state_running",
    });
    assert_eq!(all[0], first);
    let of = |name: &str, phase: &str| {
        all.iter().find(|event| event["name"] == name && event["ph"] == phase).expect("there")
    };
    assert_eq!(of("backward_1", "E")["ts"], 1_712_345_678_080_500.0);
    assert_eq!(
        (&of("backward_1", "E")["cname"], &of("optimizer_0", "B")["cname"]),
        (&"rail_idle".into(), &"rail_response".into())
    );
    let step = of("step1", "B");
    assert_eq!(
        (&step["cat"], &step["tid"], &step["cname"]),
        (&"step".into(), &"Step".into(), &"thread_state_unknown".into())
    );
    assert_eq!(
        (step["ts"].as_f64(), of("step1", "E")["ts"].as_f64()),
        (Some(1_712_345_678_100_000.0), Some(1_712_345_678_181_250.0))
    );

    let mut two_machines = workers();
    two_machines[1].machine = 1;
    two_machines[1].device = 0;
    let value: Value = serde_json::from_str(&perfetto_events(&two_machines)).expect("JSON");
    let all = events_of(&value);
    let named: Vec<(u64, &str)> = all
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| (event["tid"].as_u64().expect("a number"), event["args"]["name"].as_str().expect("a name")))
        .collect();
    assert_eq!(named, [(2333, "STEP"), (2334, "GPU:0(machine:0)"), (2335, "GPU:0(machine:1)")]);
    assert!(all.iter().any(|event| event["tid"] == 2335 && event["name"] == "forward_1"));
    let plain: Value = serde_json::from_str(&events(&two_machines)).expect("JSON");
    assert!(events_of(&plain).iter().any(|event| event["tid"] == "GPU0(machine:1)"));
}

/// The rest is shown where lines are damaged.
#[test]
fn damaged_lines_are_named_and_the_rest_is_shown() {
    let [first, second] = two_workers();
    let mut damaged: Vec<&str> = second.lines().collect();
    let cut = damaged[10][..damaged[10].len() - 30].to_string();
    damaged[10] = &cut;
    let wrong = damaged[2].replace("micro_batch_id = 0", "micro_batch_id = 5");
    damaged[2] = &wrong;
    let workers = [
        Worker::new("workerlog.0", 0, 0).text(&first),
        Worker::new("workerlog.1", 0, 1).text(&damaged.join("\n")),
        Worker::new("workerlog.2", 0, 2).text("nothing of use\n"),
    ];
    let logged = trace(&workers, None).expect("most of it");
    let told: Vec<String> = logged.faults.iter().map(ToString::to_string).collect();
    assert!(
        told[0].starts_with("workerlog.1 line 3: found `Profiler Info: Job (0)")
            && told[0].contains("same microbatch"),
        "{told:?}"
    );
    assert!(told[1].starts_with("workerlog.1 line 11: found"), "{told:?}");
    assert!(told[2].starts_with("workerlog.2: found no line of a job"), "{told:?}");
    assert_eq!(logged.trace.steps.len(), 2);
    assert_eq!(logged.trace.steps[0].rows.iter().map(Vec::len).collect::<Vec<_>>(), [5, 4, 0]);
    assert_eq!(trace(&workers[2..], None).unwrap_err().to_string().matches("workerlog.2").count(), 1);
}

#[test]
fn workers_of_the_same_order_are_copies() {
    let logs = two_workers();
    let four: Vec<Worker> =
        (0..4).map(|device| Worker::new(format!("workerlog.{device}"), 0, device).text(&logs[device / 2])).collect();
    let logged = trace(&four, None).expect("whole logs");
    assert_eq!((logged.trace.replicas, logged.trace.steps[0].rows.len()), (2, 4));
    assert_eq!(texts(&logged.trace), ["0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"]);
}

#[test]
fn types_of_chunks_halves_and_transfers_are_known() {
    assert_eq!(Did::of("forward11"), Did::Op(OpKind::F, 11));
    assert_eq!(Did::of("backward_b0"), Did::Op(OpKind::B, 0));
    assert_eq!(Did::of("backward_w1"), Did::Op(OpKind::W, 1));
    assert_eq!((Did::of("recv_forward2"), Did::of("send_backward1")), (Did::Receive(2), Did::Send(1)));
    assert_eq!((Did::of("lr"), Did::of("default")), (Did::Other, Did::Other));
    assert_eq!(
        (nanos("12.5"), nanos("1.5e3"), nanos("7"), nanos("x")),
        (Some(12_500_000), Some(1_500_000_000), Some(7_000_000), None)
    );
}

fn planned(name: &str, chunks: usize) -> Option<Plan> {
    let placement = if chunks == 1 { "linear" } else { "any" };
    let spec = Spec::read(&format!(
        "ranks = 4\nchunks = {chunks}\nmicrobatches = 8\nplacement = \"{placement}\"\ntransfer_ns = 3\n\
         stages = {{ forward_ns = 1000, backward_input_ns = 1100, backward_weight_ns = 900 }}\n"
    ));
    planner::plan(&spec.expect("a sound spec"), name).ok()
}

fn measured(plan: &Plan) -> Trace {
    let timeline = plan.timeline().expect("runs");
    let row = |row: &Vec<crate::simulate::timeline::Span>| {
        row.iter()
            .map(|span| TraceSpan { step: Step::Compute(span.op), start_ns: span.start_ns, end_ns: span.end_ns })
            .collect()
    };
    let step = |step| StepTrace {
        step,
        loss: None,
        tokens: 0,
        began_ns: Some(1_700_000_000_000_000_000 + step * 1_000_000),
        rows: timeline.rows.iter().map(row).collect(),
        ..StepTrace::default()
    };
    Trace { replicas: 1, context: 1, tensor: 1, steps: (0..3).map(step).collect(), ..Trace::default() }
}

/// What is written is read back: the same spans and the same order, with the plan and without.
#[test]
fn every_published_order_is_written_and_read_back() {
    let mut read = 0;
    for chunks in [1, 2] {
        for schedule in published() {
            let Some(plan) = planned(schedule.name, chunks) else { continue };
            let trace_of_plan = measured(&plan);
            let logs = match write(&trace_of_plan) {
                Ok(logs) => logs,
                Err(faults) => {
                    assert!(*plan.problem.placement() == Placement::Bidirectional, "{}: {faults}", schedule.name);
                    continue;
                }
            };
            let workers: Vec<Worker> = logs
                .iter()
                .enumerate()
                .map(|(at, text)| Worker::new(format!("workerlog.{at}"), 0, at).text(text))
                .collect();
            let with_plan = trace(&workers, Some((&plan.problem, &plan.schedule, ""))).expect("its own run");
            assert_eq!(with_plan.trace.steps, trace_of_plan.steps, "{}", schedule.name);
            assert_eq!(with_plan.faults, []);
            let without = trace(&workers, None).expect("whole logs");
            assert_eq!(without.trace.order(), trace_of_plan.order(), "{} of {chunks}", schedule.name);
            read += 1;
        }
    }
    assert!(read >= 12, "{read}");
}

/// A machine whose clock is 50 ms ahead: its ops come behind what they wait for again.
#[test]
fn clocks_of_machines_are_put_right() {
    let mut workers = workers();
    workers[1].machine = 1;
    for job in &mut workers[1].jobs {
        (job.start_ns, job.end_ns) = (job.start_ns + 50_000_000, job.end_ns + 50_000_000);
    }
    let logged = trace(&workers, None).expect("whole logs");
    assert!(logged.clocks.broken > 0 && logged.clocks.clocks.len() == 2, "{:?}", logged.clocks);
    assert!(logged.clocks.clocks[1].offset_ns.abs_diff(50_000_000) <= 500_000, "{:?}", logged.clocks);
    assert!(logged.trace.steps[0].timeline().makespan_ns().abs_diff(80_500_000) <= 600_000);
    assert_eq!(crate::trace::clocks::broken_waits(&logged.trace).1, 0);
}

#[test]
fn another_order_than_the_plans_is_refused() {
    let plan = Spec::read("ranks = 2\nmicrobatches = 2\nstages = { forward_ns = 1, backward_input_ns = 1 }\n");
    let plan = planner::plan(&plan.expect("a sound spec"), "gpipe").expect("exists");
    let told = trace(&workers(), Some((&plan.problem, &plan.schedule, ""))).unwrap_err().to_string();
    assert!(told.contains("workerlog.1: found 1BW0 as op 2, accepted is 1F1: rank 1"), "{told}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_line_makes_it_panic(text in ".{0,200}", at in 0usize..150, with in any::<char>()) {
        let whole: String = line(3, "forward0", 1.5, 2.5).chars().enumerate().map(|(index, c)| if index == at { with } else { c }).collect();
        let worker = Worker::new("workerlog.0", 0, 0).text(&text).text(&whole).text(&format!("Profiler Info{text}"));
        let _ = trace(&[worker], None);
    }
}

/// Found by fuzzing: the only whole line is of a backward, so no worker holds a stage.
#[test]
fn logs_without_a_forward_are_refused() {
    let line = "I0101 00:00:00.000000     0 a:0] Profiler Info: Job (0), type = backward_b, micro_batch_id = 0, \
                job_start_time = 0.000028, job_end_time = 0.000033";
    let workers = [Worker::new("workerlog.0".to_string(), 0, 0).text(line)];
    let refused = trace(&workers, None).expect_err("nothing can be shown").to_string();
    assert!(refused.contains("no forward of a stage"), "{refused}");
}
