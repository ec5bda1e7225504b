//! Runs without a browser: files in, replies out.

use pipeplan_core::base::fields::Faults;
use pipeplan_core::formats::run_files::{Contents, Reader};
use pipeplan_core::search::Flow;
use pipeplan_core::trace::Trace;

use super::{Analyst, Watched};
use crate::protocol::{Export, Order, TraceAsk, TraceResponse, TraceSummary};
use crate::worker::specs::read_spec;

type Read = (String, Result<Contents, Faults>);

/// A file that comes in pieces of seven bytes.
fn file(name: &str, bytes: &[u8]) -> Read {
    let mut reader = Reader::new(name, bytes.len() as u64);
    let pushed = bytes.chunks(7).try_for_each(|piece| reader.push(piece));
    (name.to_owned(), pushed.map_err(Faults::from).and_then(|()| reader.finish()))
}

fn opened(replies: &[TraceResponse]) -> &TraceSummary {
    match &replies[0] {
        TraceResponse::Opened(summary) => summary,
        other => panic!("{other:?}"),
    }
}

fn faults_of(replies: &[TraceResponse]) -> Vec<String> {
    match replies {
        [TraceResponse::NotOpened(faults)] => faults.iter().map(|fault| fault.field.clone()).collect(),
        other => panic!("{other:?}"),
    }
}

fn ask(analyst: &Analyst, ask: TraceAsk) -> Vec<TraceResponse> {
    analyst.answer(ask, &mut |_: Watched| Flow::Continue)
}

fn analysis_of(index: Option<u32>) -> TraceAsk {
    TraceAsk::Analyse { index, order: None, while_readable: None }
}

/// Replays are counted, never more than were said to come, and an analysis ends at any of them.
#[test]
fn an_analysis_says_how_far_it_has_come_and_can_be_ended() {
    let mut analyst = Analyst::default();
    analyst.open(vec![file("trace.json", trace(4, 9).as_bytes())], None);
    let mut heard = Vec::new();
    let replies = analyst.answer(analysis_of(None), &mut |watched| {
        if let Watched::Replays(done, most) = watched {
            heard.push((done, most));
        }
        Flow::Continue
    });
    assert!(matches!(&replies[..], [TraceResponse::Analysed(_)]), "{replies:?}");
    assert!(heard.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1), "{heard:?}");
    // Two replays make each of the four steps, and four change it; then come those of stragglers.
    assert!(heard.iter().all(|(done, most)| *done <= *most && *most >= 24), "{heard:?}");
    assert!(heard.last().is_some_and(|(done, _)| *done >= 24), "{heard:?}");
    for end in 0..heard.len() {
        let mut calls = 0;
        let replies = analyst.answer(analysis_of(None), &mut |_| {
            calls += 1;
            if calls > end { Flow::Stop } else { Flow::Continue }
        });
        assert_eq!((replies, calls), (vec![TraceResponse::NotAnalysed], end + 1));
    }
}

fn order(rows: &[&str]) -> Order {
    let problem = r#"{ "ranks": 1, "microbatches": 1, "stages": { "forward_ns": 2, "backward_input_ns": 2 } }"#;
    let rows: Vec<String> = rows.iter().map(|row| (*row).to_owned()).collect();
    Order { problem: problem.to_owned(), pairs: vec![Vec::new(); rows.len()], rows, copies: Vec::new() }
}

/// What torch recorded of one rank: 0F0 from 10 to 15 µs, 0BW0 from 20 to 25.
fn of_torch() -> String {
    let range = |name: &str, ts: u32| {
        format!(
            r#"{{ "ph": "X", "cat": "user_annotation", "name": "PP:{name}", "ts": {ts}, "dur": 5, "tid": 1 }},
            {{ "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": {ts}, "dur": 5, "tid": 1 }}"#
        )
    };
    format!(r#"{{ "traceEvents": [{}, {}] }}"#, range("0F0", 10), range("0B0", 20))
}

/// With the plan that ran, with another one, and without one. Faults name their file.
#[test]
fn what_torch_recorded_becomes_a_run_with_a_plan_or_without() {
    for planned in [Some(order(&["0F0 0BW0"])), Some(order(&["0BW0 0F0"])), None] {
        let mut analyst = Analyst::default();
        let replies = analyst.open(vec![file("rank0.json", of_torch().as_bytes())], planned.as_ref());
        let summary = opened(&replies);
        assert_eq!((summary.shape, summary.ranks, summary.steps[0].makespan_ns), ([1, 1], 1, 15_000));
        let is_other = planned.as_ref().is_some_and(|order| order.rows[0].starts_with("0BW0"));
        assert_eq!(summary.told.iter().any(|line| line.contains("not a run of the plan on screen")), is_other);
        // Kept for a reload, it is the same run.
        let text = summary.text.clone().expect("small");
        assert_eq!(Trace::from_json(&text).expect("a trace").steps[0].timeline().makespan_ns(), 15_000);
    }
    let replies = Analyst::default().open(vec![file("rank0.json", br#"{ "traceEvents": [] }"#)], None);
    assert_eq!(faults_of(&replies), ["rank0.json, traceEvents"]);
    let cut = &of_torch()[..of_torch().len() - 30];
    let replies = Analyst::default().open(vec![file("rank0.json", cut.as_bytes())], None);
    assert!(faults_of(&replies)[0].starts_with("rank0.json, "), "{replies:?}");
}

/// Two workers by hand; of the second a line is damaged, and the third has no file.
#[test]
fn logs_of_paddle_become_a_run_and_damage_is_named_with_its_line() {
    let line = |kind: &str, microbatch: u32, from: u32, to: u32| {
        format!(
            "I0101 00:00:00.0 1 executor.cc:1] Profiler Info: Job ({microbatch}), type = {kind}, micro_batch_id = {microbatch}, \
             job_start_time = {from}.0, job_end_time = {to}.0\n"
        )
    };
    let first = [line("forward", 0, 0, 10), line("backward", 0, 40, 60), line("optimizer", 0, 60, 61)].concat();
    let second =
        [line("forward", 0, 11, 21), "Profiler Info: Job (0), typ\n".to_owned(), line("backward", 0, 21, 39)]
            .concat();
    let files = vec![file("workerlog.0", first.as_bytes()), file("workerlog.1", second.as_bytes())];
    let mut analyst = Analyst::default();
    let replies = analyst.open(files, None);
    let summary = opened(&replies);
    assert_eq!((summary.shape, summary.ranks, summary.steps.len()), ([2, 1], 2, 1));
    assert_eq!(summary.steps[0].makespan_ns, 60_000_000);
    let named: Vec<&str> = summary.faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(named, ["workerlog.1 line 2"]);
    let missing = vec![file("workerlog.1", second.as_bytes()), file("workerlog.2", first.as_bytes())];
    let replies = Analyst::default().open(missing, None);
    let named: Vec<&str> = opened(&replies).faults.iter().map(|fault| fault.field.as_str()).collect();
    assert!(named.contains(&"workerlog.0") && named.contains(&"workerlog.1 line 2"), "{named:?}");
    // The order that ran can be planned.
    let TraceResponse::Ordered { order, problem } = ask(&analyst, TraceAsk::Order { while_readable: None }).remove(0)
    else {
        panic!("an order")
    };
    assert_eq!(order, "0F0 0BW0\n1F0 1BW0\n");
    assert!(read_spec(&problem).is_ok(), "{problem}");
}

/// A file of Nsight Systems, something else, and files of two programs at once.
#[test]
fn what_is_no_run_says_what_to_do() {
    let mut nsight = b"SQLite format 3\0".to_vec();
    nsight.resize(4096, 0);
    let said = |files: Vec<Read>| match Analyst::default().open(files, None).remove(0) {
        TraceResponse::NotOpened(faults) => format!("{} {} {}", faults[0].field, faults[0].found, faults[0].accepted),
        other => panic!("{other:?}"),
    };
    let told = said(vec![file("report.sqlite", &nsight)]);
    assert!(
        told.contains("report.sqlite") && told.contains("Nsight Systems") && told.contains("pipeplan trace"),
        "{told}"
    );
    assert!(said(vec![file("a.txt", b"nonsense")]).contains("`nonsense`"));
    assert!(said(vec![file("empty", b"")]).contains("empty"));
    let log =
        b"Profiler Info: Job (0), type = forward, micro_batch_id = 0, job_start_time = 0.0, job_end_time = 1.0\n";
    let told = said(vec![file("workerlog.0", log), file("rank0.json", of_torch().as_bytes())]);
    assert!(told.contains("files of one program"), "{told}");
}

/// A run by hand on two ranks: F takes 3 instead of 2, and the last step is slow on rank 1.
fn trace(steps: u64, slow: u64) -> String {
    let step = |step: u64| {
        let by = if step + 1 == steps { slow } else { 1 };
        let (a, b) = (10 + 10 * by, 10 + 30 * by);
        format!(
            r#"{{ "step": {step}, "loss": null, "tokens": 0, "rows": [
            {{ "steps": "0F0 0BW0 OPTIMIZER", "start_ns": [0, {b}, {c}], "end_ns": [10, {c}, {d}] }},
            {{ "steps": "1F0 1BW0 OPTIMIZER", "start_ns": [10, {a}, {c}], "end_ns": [{a}, {b}, {d}] }}] }}"#,
            c = b + 20,
            d = b + 25
        )
    };
    let steps: Vec<String> = (0..steps).map(step).collect();
    format!(
        r#"{{ "format": "pipeplan-trace", "version": 1, "plan_digest": "", "backend": "cpu", "transport": "threads",
        "peak_bytes": [0, 0], "steps": [{}] }}"#,
        steps.join(",")
    )
}

#[test]
fn steps_follow_and_what_they_mean_is_that_of_the_command() {
    let mut analyst = Analyst::default();
    assert!(ask(&analyst, TraceAsk::Step { index: 0 }).is_empty(), "there is no run");
    let replies = analyst.open(vec![file("trace.json", trace(4, 9).as_bytes())], None);
    let times: Vec<u64> = opened(&replies).steps.iter().map(|step| step.makespan_ns).collect();
    assert_eq!(times, [60, 60, 60, 300]);
    let TraceResponse::Shown(last) = &replies[replies.len() - 1] else { panic!("{replies:?}") };
    assert_eq!((last.index, last.makespan_ns, last.duration_ns), (3, 300, 305));
    assert_eq!(last.mark_names, [(1, "optimizer".to_owned())]);
    let first = ask(&analyst, TraceAsk::Step { index: 0 });
    assert!(matches!(&first[first.len() - 1], TraceResponse::Shown(shown) if shown.makespan_ns == 60), "{first:?}");
    assert!(ask(&analyst, TraceAsk::Step { index: 4 }).is_empty());
    let analysed = |index| match ask(&analyst, analysis_of(index)).remove(0) {
        TraceResponse::Analysed(found) => found,
        other => panic!("{other:?}"),
    };
    let whole = analysed(None);
    let parts: Vec<u64> = whole.rows.iter().map(|row| row.parts_ns.iter().sum()).collect();
    assert_eq!((whole.makespan_ns, parts), (120, vec![120, 120]));
    let of_command = Trace::from_json(&trace(4, 9)).expect("a trace");
    let of_command = pipeplan_core::trace::analysis::analyse(&of_command, None).expect("ops");
    let names: Vec<&str> = whole.what_ifs.iter().map(|what| what.name.as_str()).collect();
    assert_eq!(names, of_command.what_ifs.iter().map(|what| what.name).collect::<Vec<_>>());
    assert_eq!(whole.path_of, 3);
    // By hand: rank 0's forward, both ops of rank 1, rank 0's backward.
    let path: Vec<(u32, u16)> = whole.path.iter().map(|op| (op.row, op.op.0)).collect();
    assert_eq!(path, [(0, 0), (1, 1), (1, 1), (0, 0)]);
    let one = analysed(Some(0));
    assert_eq!((one.index, one.steps, one.makespan_ns, one.path_of), (Some(0), 1, 60, 0));
    // A straggler says where to look at it.
    for straggler in &whole.stragglers {
        let at = straggler.at.expect("a place");
        assert!(at.index < 4 && at.row < 2 && at.place < 2, "{straggler:?}");
    }
}

/// A plan of one rank, whose forward takes 3 instead of 2.
#[test]
fn a_trace_is_held_against_the_plan_on_screen() {
    let problem = r#"{ "ranks": 1, "microbatches": 2, "placement": "linear",
        "stages": { "forward_ns": 2, "backward_input_ns": 4, "backward_weight_ns": 0 } }"#;
    let trace = r#"{ "format": "pipeplan-trace", "version": 1, "plan_digest": "", "backend": "cpu",
        "transport": "threads", "peak_bytes": [0], "steps": [{ "step": 0, "loss": null, "tokens": 0, "rows": [
        { "steps": "0F0 0BW0 0F1 0BW1", "start_ns": [0, 3, 7, 10], "end_ns": [3, 7, 10, 14] }] }] }"#;
    let mut analyst = Analyst::default();
    let calibrate = |row: &str| {
        let (problem, rows) = (problem.to_owned(), vec![row.to_owned()]);
        let order = Order { problem, rows, pairs: vec![Vec::new()], copies: Vec::new() };
        TraceAsk::Calibrate { order, while_readable: None }
    };
    analyst.open(vec![file("trace.json", trace.as_bytes())], None);
    let replies = ask(&analyst, calibrate("0F0 0BW0 0F1 0BW1"));
    let TraceResponse::Calibrated(found) = &replies[0] else { panic!("{replies:?}") };
    assert_eq!((found.planned_ns, found.causes_ns, found.measured_ns), (12, [2, 0, 0, 0], 14));
    assert_eq!(found.deciding[0].0, "0BW");
    assert!(read_spec(&found.problem).is_ok(), "{}", found.problem);
    let replies = ask(&analyst, calibrate("0F0 0F1 0BW0 0BW1"));
    assert!(matches!(&replies[0], TraceResponse::NotCalibrated(faults) if faults.len() == 1), "{replies:?}");
    // No order of one rank's ops is shorter.
    let best = ask(&analyst, TraceAsk::BestOrder { order: None, while_readable: None });
    assert!(matches!(&best[0], TraceResponse::BestOrder(Some(what)) if what.saved_ns == 0), "{best:?}");
}

/// What takes long hears at each of its parts that nobody waits for it any more, and is not told to go on after that.
#[test]
fn whatever_takes_long_can_be_ended() {
    let spec = r#"{ "schedule": "1f1b", "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" },
        "parallel": { "pipeline": 2 }, "training": { "microbatches": 1 } }"#;
    let plan = crate::script_api::plan_file(spec, Some("1f1b")).unwrap();
    let mut analyst = Analyst::default();
    analyst.open(vec![file("trace.json", trace(3, 2).as_bytes())], None);
    let problem = r#"{ "ranks": 2, "microbatches": 1, "stages": { "forward_ns": 2, "backward_input_ns": 2 } }"#;
    let rows = vec!["0F0 0BW0".to_owned(), "1F0 1BW0".to_owned()];
    let order = Order { problem: problem.to_owned(), rows, pairs: vec![Vec::new(); 2], copies: Vec::new() };
    let export = |export| TraceAsk::Export { export, while_readable: None };
    for ask in [
        TraceAsk::Calibrate { order, while_readable: None },
        TraceAsk::Order { while_readable: None },
        TraceAsk::Profile { plan, while_readable: None },
        export(Export::Trace),
        export(Export::Perfetto),
        export(Export::Csv),
    ] {
        let mut parts = 0;
        let whole = analyst.answer(ask.clone(), &mut |_: Watched| {
            parts += 1;
            Flow::Continue
        });
        assert!(parts > 0 && !matches!(&whole[..], [TraceResponse::Ended]), "{ask:?}: {whole:?}");
        for end in 1..=parts {
            let mut calls = 0;
            let replies = analyst.answer(ask.clone(), &mut |_: Watched| {
                calls += 1;
                if calls == end { Flow::Stop } else { Flow::Continue }
            });
            assert_eq!((replies, calls), (vec![TraceResponse::Ended], end), "{ask:?}");
        }
    }
}

/// The next plan of the same model uses what the run took; typed costs have no model.
#[test]
fn a_run_of_a_models_plan_becomes_a_profile() {
    let spec = r#"{ "schedule": "1f1b", "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" },
        "parallel": { "pipeline": 2 }, "training": { "microbatches": 1 } }"#;
    let plan = crate::script_api::plan_file(spec, Some("1f1b")).unwrap();
    let mut analyst = Analyst::default();
    analyst.open(vec![file("trace.json", trace(2, 1).as_bytes())], None);
    let replies = ask(&analyst, TraceAsk::Profile { plan, while_readable: None });
    let [TraceResponse::Profiled { profile, measured_ns }] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(*measured_ns, 60);
    assert!(pipeplan_core::hardware::profile::Profile::of_json(profile).is_ok_and(|profile| profile.run.is_some()));
    let typed = crate::script_api::plan_file(crate::worker::tests::SPEC, Some("1f1b")).unwrap();
    let replies = ask(&analyst, TraceAsk::Profile { plan: typed, while_readable: None });
    assert!(matches!(&replies[..], [TraceResponse::NotProfiled(faults)] if faults[0].found.contains("typed costs")));
}

#[test]
fn traces_of_one_run_are_merged_and_those_of_another_are_named() {
    let part = |steps: core::ops::Range<u64>| {
        let steps = pipeplan_core::trace::select::Selection { steps: Some(steps), ..Default::default() };
        steps.of(Trace::from_json(&trace(4, 1)).expect("a trace")).expect("steps").to_json()
    };
    let other = part(0..1).replace(r#""plan_digest":"""#, r#""plan_digest":"sha256:1""#);
    let files = vec![
        file("a.json", part(0..2).as_bytes()),
        file("b.json", part(2..4).as_bytes()),
        file("c.json", other.as_bytes()),
        file("d.json", &part(3..4).as_bytes()[..80]),
    ];
    let mut analyst = Analyst::default();
    let replies = analyst.open(files, None);
    let summary = opened(&replies);
    assert_eq!(summary.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let named: Vec<&str> = summary.faults.iter().map(|fault| fault.field.as_str()).collect();
    assert!(named[0].starts_with("d.json") && named[1] == "c.json", "{named:?}");
    for (export, begins) in [(Export::Perfetto, "{"), (Export::Csv, "step,rank,"), (Export::Trace, "{")] {
        let [TraceResponse::Exported { text, step: None, .. }] =
            &ask(&analyst, TraceAsk::Export { export, while_readable: None })[..]
        else {
            panic!("a file")
        };
        assert!(text.starts_with(begins), "{}", &text[..40]);
    }
}
