//! What is fuzzed: readers of all that comes from elsewhere, and the checker against the exhaustive explorer. Each target takes any
//! bytes. It panics where something is wrong, and only there. cargo-fuzz calls them by coverage (`fuzz/`), and
//! `tests/hostile.rs` calls them with mutations of the same corpus.

use pipeplan_core::formats::paddle_log::{self, Worker};
use pipeplan_core::formats::run_files::{self, Files, Reader};
use pipeplan_core::formats::training_run::{Given, TrainingRun};
use pipeplan_core::formats::{flight_recorder, lengths, profile, torch_profile};
use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::model::hf_config;
use pipeplan_core::notation::{megatron_layout, order};
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::spec::{Spec, Work, link};
use pipeplan_core::trace::{Trace, analysis};
use serde_json::{Value, json};

#[path = "../core/tests/explorer/mod.rs"]
mod explorer;

/// A name, which is that of a corpus, and what takes any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 16] = [
    ("spec", spec),
    ("planned", planned),
    ("link", link),
    ("plan", plan),
    ("trace", trace),
    ("torch_profile", profile_of_torch),
    ("paddle_log", log),
    ("order", order),
    ("config", config),
    ("run", run),
    ("script", script),
    ("dump", dump),
    ("lengths", lengths_of_documents),
    ("operators", operators),
    ("file_of_run", file_of_run),
    ("check", check),
];

fn text(bytes: &[u8]) -> Option<&str> {
    core::str::from_utf8(bytes).ok()
}

/// A spec that is read can be written as a link, and is the same then.
pub fn spec(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match Spec::read(text) {
        Ok(spec) => assert_eq!(link::read(&link::write(&spec)), Ok(spec)),
        Err(error) => assert!(error.to_string().len() > 10, "{error}"),
    }
}

/// A link that is read is written as the same spec.
pub fn link(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(spec) = link::read(text) {
        assert_eq!(link::read(&link::write(&spec)), Ok(spec));
    }
}

/// A plan that is read is valid, also where its digest is made right after its content was changed.
pub fn plan(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let valid = |text: &str| {
        if let Ok(plan) = Plan::from_json(text) {
            assert!(Plan::from_json(&plan.to_json()).is_ok());
        }
    };
    valid(text);
    if let Ok(Value::Object(mut content)) = serde_json::from_str::<Value>(text) {
        content.remove("digest");
        valid(&with_digest(Value::Object(content)).to_string());
    }
}

/// `content` of a plan, with its digest.
pub fn with_digest(mut content: Value) -> Value {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(serde_json::to_string(&content).unwrap_or_default());
    let digest: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    content["digest"] = json!(format!("sha256:{digest}"));
    content
}

/// What is read of a small spec can be planned, or is refused with a reason; a plan of it can be read again.
pub fn planned(bytes: &[u8]) {
    let Some(spec) = text(bytes).and_then(|text| Spec::read(text).ok()) else { return };
    plan_of(&spec);
}

/// Plans `spec` where that takes no longer than a moment.
fn plan_of(spec: &Spec) {
    let (ops, layers) = match &spec.work {
        Work::Typed(statement) => (statement.ranks * statement.chunks * statement.microbatches, 1),
        Work::Model(work) => {
            let ops = u64::from(work.pipeline) * u64::from(work.chunks) * u64::from(work.microbatches);
            (ops as usize, work.model.layers)
        }
    };
    if ops > 128 || layers > 64 {
        return;
    }
    for name in ["1f1b", "zb-v"] {
        match planner::plan(spec, name) {
            Ok(plan) => assert_eq!(Plan::from_json(&plan.to_json()).map(|read| read.to_json()), Ok(plan.to_json())),
            Err(error) => assert!(error.to_string().len() > 10, "{error}"),
        }
    }
}

/// A trace that is read is written as the same trace, and can be explained.
pub fn trace(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(trace) = Trace::from_json(text) {
        explained(&trace);
        assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace));
    }
}

/// What a person asks of a trace.
fn explained(trace: &Trace) {
    let _ = analysis::analyse(trace, None).map(|analysis| analysis.to_value());
}

/// A profile of operators that is read is written as the same one.
pub fn operators(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(profile) = Profile::of_json(text) {
        let written = profile.to_json();
        assert_eq!(Profile::of_json(&written).map(|profile| profile.to_json()), Ok(written));
    }
}

/// What torch has recorded, as a whole and in pieces.
pub fn profile_of_torch(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut reader = torch_profile::Reader::new();
    let pushed = bytes.chunks(7).try_for_each(|piece| reader.push(piece));
    let in_pieces = pushed.and_then(|()| reader.finish());
    if let Ok(recording) = torch_profile::read(text) {
        let _ = profile::found(&[("rank0.json".to_string(), recording)]);
    }
    if let Ok(recording) = in_pieces {
        let _ = profile::found(&[("rank0.json".to_string(), recording)]);
    }
}

/// Logs of PaddlePaddle's workers: of one, or of two where a line says `---`.
pub fn log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let workers: Vec<Worker> = text
        .split("---\n")
        .take(4)
        .enumerate()
        .map(|(device, text)| Worker::new(format!("workerlog.{device}"), 0, device).text(text))
        .collect();
    if let Ok(logged) = paddle_log::trace(&workers, None) {
        assert_eq!(Trace::from_json(&logged.trace.to_json()), Ok(logged.trace));
    }
}

/// Orders in any notation, and layouts.
pub fn order(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = order::looks_like_one(text);
    let _ = order::read_whole(text);
    if let Ok(stages) = megatron_layout::read(text) {
        assert_eq!(megatron_layout::read(&megatron_layout::write(&stages)), Ok(stages));
    }
}

/// A model's `config.json`.
pub fn config(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let _ = (hf_config::looks_like_one(&value), hf_config::notes(&value));
    let mut faults = Vec::new();
    if hf_config::read(&value, "model.config", &mut faults).is_none() {
        assert!(!faults.is_empty(), "nothing is refused without a reason");
    }
}

/// A run of Megatron-LM: a log, a command line, a script or YAML.
pub fn run(bytes: &[u8]) {
    let run = TrainingRun::read(&String::from_utf8_lossy(bytes));
    let _ = (run.is_any(), run.typical_step_ns(), run.sorted_arguments());
    if let Ok(imported) = run.spec("h100", Some(8)) {
        assert_eq!(link::read(&link::write(&imported.spec)), Ok(imported.spec));
    }
}

/// The same of a launch script, which may name files that it takes variables from: what stands behind a zero byte is in all of
/// them.
pub fn script(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (script, file) = text.split_once('\0').unwrap_or((&text, ""));
    let run = TrainingRun::read(script);
    let files = run.wanted_files().iter().map(|path| (path.clone(), file.to_string())).collect();
    let run = TrainingRun::read_with(script, &Given { files, ..Given::default() });
    if let Ok(imported) = run.spec("h100", Some(8)) {
        assert_eq!(link::read(&link::write(&imported.spec)), Ok(imported.spec));
    }
}

/// A dump of torch's flight recorder, of two ranks that are alike and one that has none.
pub fn dump(bytes: &[u8]) {
    let read = match bytes.first() {
        Some(b'{') => text(bytes).and_then(|text| flight_recorder::read_json(text).ok()),
        _ => flight_recorder::read_pickle(bytes).ok(),
    };
    let Some(dump) = read else { return };
    let dumps = [("rank_0".to_string(), 0, dump.clone()), ("rank_1".to_string(), 1, dump)];
    if let Ok(report) = flight_recorder::waits(&dumps) {
        let _ = (report.to_value(), report.parts(&|ns| ns.to_string()));
    }
}

/// Lengths of documents, which are the same as lines and as a list.
pub fn lengths_of_documents(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match lengths::read(text) {
        Ok(read) => {
            let lines: Vec<String> = read.iter().map(u32::to_string).collect();
            assert_eq!(lengths::read(&lines.join("\n")), Ok(read.clone()));
            assert_eq!(lengths::read(&json!(read).to_string()), Ok(read));
        }
        Err(error) => assert!(error.to_string().len() > 10 && error.help().len() > 10, "{error}"),
    }
}

/// Any file of a run, by a name that the first byte chooses, in pieces; then what a person sees of it.
pub fn file_of_run(bytes: &[u8]) {
    let [which, bytes @ ..] = bytes else { return };
    let name = ["rank0.json", "machine1/workerlog.3", "nccl_trace_rank_0", "trace.json"][usize::from(*which) % 4];
    let mut reader = Reader::new(name, bytes.len() as u64);
    if bytes.chunks(1 + usize::from(*which)).try_for_each(|piece| reader.push(piece)).is_err() {
        return;
    }
    let Ok(contents) = reader.finish() else { return };
    let mut files = Files::default();
    files.add(name.to_string(), contents);
    assert_eq!(files.expect_one_program(), Ok(()));
    if let Ok(run) = run_files::of_recordings(&files.recordings, None) {
        explained(&run.trace);
    }
    if let Ok(run) = run_files::of_logs(&files.logs, &[], None) {
        explained(&run.trace);
    }
    let _ = flight_recorder::waits(&files.dumps);
}

/// The checker, on a small program that the bytes ask for.
pub fn check(bytes: &[u8]) {
    let [shape, lowering, transport, moves @ ..] = bytes else { return };
    let (moves, _) = moves.as_chunks::<3>();
    let moves = moves
        .iter()
        .take(6)
        .map(|[rank, from, by]| (usize::from(*rank), usize::from(*from), 1 + usize::from(*by) % 4));
    let [shape, lowering, transport] = [shape, lowering, transport].map(|byte| usize::from(*byte));
    let draw = explorer::Draw { shape, lowering, transport, moves: moves.collect() };
    assert_eq!(explorer::agree(draw), Ok(()));
}
