//! Training on files: every layout takes the same samples, a run that resumes goes on at the next one, masks and
//! evaluation do what they say, and what is written of a run is read by others.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use common::{assert_close_losses, options, published, train, work};
use pipeplan::data::tokenizer::Tokenizer;
use pipeplan::data::{self, Source};
use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::data::{Batches, Cut, Sources};
use pipeplan::runner::metrics::{Figures, Metrics};
use pipeplan::runner::{Observer, Precision, RunError, RunOptions, Silent, StepReport, Workload, run};
use pipeplan_core::graph::SequencePart;
use pipeplan_core::spec::{Documents, ModelWork};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Tokens with structure to learn, below 256.
fn tokens(count: usize) -> Vec<u16> {
    (0..count as u64).map(|at| ((at * at / 7 + at % 13) % 251) as u16).collect()
}

fn flat(folder: &Path, name: &str, tokens: &[u16]) -> PathBuf {
    let path = folder.join(name);
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(&path, bytes).expect("written");
    path
}

fn open(path: &Path) -> Arc<Source> {
    Arc::new(data::open(path, &Tokenizer::Bytes).unwrap_or_else(|error| panic!("{error}")))
}

/// A blend of tokens and of lines of JSON, and something to evaluate on.
fn blend(folder: &Path) -> Arc<Sources> {
    let web = flat(folder, "web.u16", &tokens(4000));
    let lines: String = (0..90).map(|n| format!("{{\"text\": \"{n} times {n} is {}\"}}\n", n * n)).collect();
    let chats = folder.join("chats.jsonl");
    std::fs::write(&chats, lines).expect("written");
    let mut sources = Sources::new(vec![(open(&web), Some(0.7)), (open(&chats), Some(0.3))]);
    sources.validation = vec![open(&web)];
    Arc::new(sources)
}

fn planned(ranks: usize, data: u32, name: &str) -> Workload {
    let mut work = work(ranks, 8 / data as usize);
    work.layout.data = data;
    published(&work, name, Precision::Double).unwrap_or_else(|| panic!("{name} exists"))
}

fn on(data: &Arc<Sources>, steps: u32) -> RunOptions {
    RunOptions { data: Some(Arc::clone(data)), ..options(steps) }
}

fn refused(workload: &Workload, options: &RunOptions) -> String {
    match run(workload, options, &mut Silent) {
        Err(RunError::Refused(refusal)) => refusal.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the run ended well"),
    }
}

#[test]
fn every_layout_takes_the_same_samples_of_a_blend() {
    let folder = folder();
    let data = blend(folder.path());
    let evaluating = || RunOptions { evaluate_every: 2, evaluate_steps: 2, ..on(&data, 5) };
    let expected = train(&planned(1, 1, "gpipe"), &evaluating());
    assert_eq!(expected.steps.iter().filter(|step| step.validation_loss.is_some()).count(), 2);
    for (ranks, data, name) in [(2, 1, "1f1b"), (2, 2, "zb-v"), (1, 4, "gpipe"), (4, 1, "interleaved-1f1b")] {
        let found = train(&planned(ranks, data, name), &evaluating());
        let what = format!("{name} on {ranks} ranks, {data} replicas");
        assert_close_losses(&found, &expected, 1e-11, &what);
        for (found, expected) in found.steps.iter().zip(&expected.steps) {
            let (found, expected) = (found.validation_loss, expected.validation_loss);
            let close = |found: f64, expected: f64| (found - expected).abs() < 1e-11 * expected;
            assert!(found.zip(expected).is_none_or(|(found, expected)| close(found, expected)), "{what}");
            assert_eq!(found.is_some(), expected.is_some(), "{what}");
        }
    }
    // Context parallel ranks, too.
    let mut work = work(1, 8);
    work.layout.form.context = 2;
    let spread = published(&work, "gpipe", Precision::Double).expect("it exists");
    assert_close_losses(&train(&spread, &evaluating()), &expected, 1e-11, "context parallel");
}

/// In one run and in parts of it, bit for bit: also over the end of an epoch, and with evaluations that change nothing.
#[test]
fn a_run_that_resumes_goes_on_at_the_next_sample() {
    let folder = folder();
    let data = blend(folder.path());
    let workload = planned(2, 2, "1f1b");
    // 16 sequences of 12 tokens a step: the lines of JSON have two hundred.
    let whole = train(&workload, &on(&data, 60));
    let checkpoints = folder.path().join("run");
    let saving = Some(Saving { folder: checkpoints.clone(), every: 0 });
    train(&workload, &RunOptions { saving, evaluate_every: 10, ..on(&data, 47) });
    let resume = Some(Checkpoint::open(&checkpoints).expect("a checkpoint"));
    let rest = train(&workload, &RunOptions { resume: resume.clone(), ..on(&data, 60) });
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&rest.losses()), bits(&whole.losses()[47..]));
    assert_eq!(rest.weights, whole.weights);
    // Other data is another run.
    let other = Arc::new(Sources::new(vec![(open(&folder.path().join("web.u16")), None)]));
    let error = refused(&workload, &RunOptions { resume, ..on(&other, 60) });
    assert!(error.contains("its text is fnv1a64:"), "{error}");
}

/// The loss of the first step, of weights that nothing has changed, is the mean over what is predicted: so the means
/// of two masks that leave no token out add up to the mean of all.
#[test]
fn masked_tokens_count_neither_in_the_loss_nor_in_its_mean() {
    let folder = folder();
    let tokens = tokens(3000);
    let of = |name: &str, is_masked: &dyn Fn(usize) -> bool| {
        let label = |at: usize| if is_masked(at) { -100 } else { i32::from(tokens[at]) };
        let labels: Vec<i32> = (0..tokens.len()).map(label).collect();
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{{\"input_ids\": {tokens:?}, \"labels\": {labels:?}}}\n")).expect("written");
        Arc::new(Sources::new(vec![(open(&path), None)]))
    };
    let some = |at: usize| at.is_multiple_of(3);
    let [all, masked, other] = [of("all", &|_| false), of("masked", &some), of("other", &|at| !some(at))];
    let flat = Arc::new(Sources::new(vec![(open(&flat(folder.path(), "flat.u16", &tokens)), None)]));
    let alone = planned(1, 1, "gpipe");
    let first = |data: &Arc<Sources>| train(&alone, &on(data, 3)).losses();
    let (whole, without, of_others) = (first(&all), first(&masked), first(&other));
    assert_eq!(whole, first(&flat), "labels that leave nothing out change nothing");
    // A third of all tokens are masked: 12 tokens of a sequence are a multiple of 3.
    let mean = without[0] * 2.0 / 3.0 + of_others[0] / 3.0;
    assert!((mean - whole[0]).abs() < 1e-12 * whole[0], "{mean} {}", whole[0]);
    // However they are dealt.
    for (ranks, replicas, name) in [(2, 2, "zb-v"), (1, 4, "gpipe")] {
        let found = train(&planned(ranks, replicas, name), &on(&masked, 3));
        let close = found.losses().iter().zip(&without).all(|(found, expected)| (found - expected).abs() < 1e-11);
        assert!(close, "{name}: {:?} {without:?}", found.losses());
    }
    // Where ranks share the vocabulary, no rank sees all of a token's logits.
    let mut tensor = work(1, 8);
    tensor.layout.form.tensor = 2;
    let shared = published(&tensor, "gpipe", Precision::Double).expect("it exists");
    let found = train(&shared, &on(&masked, 3));
    let close = found.losses().iter().zip(&without).all(|(found, expected)| (found - expected).abs() < 1e-11);
    assert!(close, "tensor parallel: {:?} {without:?}", found.losses());
    let mut ahead = work(1, 8);
    ahead.model.variant.multi_token = 1;
    let error = refused(&published(&ahead, "gpipe", Precision::Double).expect("it exists"), &on(&masked, 3));
    assert!(error.contains("loss masks") && error.contains("without MTP modules"), "{error}");
}

/// `work`, whose attention stays within documents. What these are the data says; a plan counts on half a sequence each.
fn within_documents(mut work: ModelWork) -> ModelWork {
    work.batch.documents = Documents::OfMicrobatches(vec![vec![6, 6, 6, 6]; work.microbatches as usize]);
    work
}

/// Documents as lines of JSON; with `is_cut` the first token of each is not to be predicted.
fn of_documents(path: &Path, documents: &[&[u16]], is_cut: bool) -> Arc<Sources> {
    let line = |document: &&[u16]| {
        let mut labels: Vec<i32> = document.iter().map(|token| i32::from(*token)).collect();
        if is_cut {
            labels[0] = -100;
        }
        format!("{{\"input_ids\": {document:?}, \"labels\": {labels:?}}}\n")
    };
    std::fs::write(path, documents.iter().map(line).collect::<String>()).expect("written");
    Arc::new(Sources::new(vec![(open(path), None)]))
}

/// Documents packed into sequences train as sequences of their own do, in every layout. A step takes all data: 96
/// documents of 6 tokens, which are 96 sequences, or pairs of which are 48.
#[test]
fn documents_in_a_sequence_train_as_sequences_of_their_own() {
    let folder = folder();
    let tokens = tokens(6 * 96);
    let documents: Vec<&[u16]> = tokens.chunks(6).collect();
    // One document more has the token behind the last one.
    let data = |name: &str, is_cut: bool| {
        let all: Vec<&[u16]> = documents.iter().copied().chain([&tokens[..1]]).collect();
        of_documents(&folder.path().join(name), &all, is_cut)
    };
    let (packed, apart) = (data("packed.jsonl", false), data("apart.jsonl", true));
    let mut alone = work(1, 24);
    (alone.sequence, alone.microbatch_size) = (6, 4);
    let expected = train(&published(&alone, "gpipe", Precision::Double).expect("it exists"), &on(&apart, 4));
    let whole = train(&published(&work(1, 24), "gpipe", Precision::Double).expect("it exists"), &on(&packed, 4));
    assert!((whole.losses()[0] - expected.losses()[0]).abs() > 1e-6, "attention over documents is something else");
    type Change = fn(&mut ModelWork);
    let layouts: [(&str, usize, Change); 4] = [
        ("gpipe", 1, |_| ()),
        ("1f1b", 4, |_| ()),
        ("zb-h1", 2, |work| (work.layout.data, work.microbatches) = (2, 12)),
        ("1f1b", 2, |work| work.layout.form.tensor = 2),
    ];
    for (name, ranks, change) in layouts {
        let mut work = work(ranks, 24);
        change(&mut work);
        let workload = published(&within_documents(work), name, Precision::Double).expect("it exists");
        let found = train(&workload, &on(&packed, 4));
        assert_close_losses(&found, &expected, 1e-11, &format!("{name} on {ranks} ranks"));
    }
}

/// Documents of any length: the loss of weights that nothing has changed is the mean over what is predicted in each
/// alone.
#[test]
fn documents_of_any_length_are_each_for_themselves() {
    let folder = folder();
    let tokens = tokens(400);
    let lengths = [5, 7, 1, 11, 12, 2, 2, 2, 6];
    let mut documents = Vec::new();
    let mut rest = &tokens[..];
    for length in lengths {
        let (document, behind) = rest.split_at(length);
        documents.push(document);
        rest = behind;
    }
    let loss = |work: ModelWork, data: &Arc<Sources>| {
        train(&published(&work, "gpipe", Precision::Double).expect("it exists"), &on(data, 1)).losses()[0]
    };
    let (mut sum, mut predicted) = (0.0, 0.0);
    for document in documents.iter().filter(|document| document.len() > 1) {
        let mut alone = work(1, 1);
        (alone.sequence, alone.microbatch_size) = (document.len() as u32, 1);
        let data = of_documents(&folder.path().join("alone.jsonl"), &[document, &tokens[..1]], true);
        sum += loss(alone, &data) * (document.len() - 1) as f64;
        predicted += (document.len() - 1) as f64;
    }
    // They fill four sequences.
    let mut all = documents.clone();
    all.push(&tokens[..1]);
    let mut packed = work(1, 2);
    packed.batch.documents = Documents::OfMicrobatches(vec![vec![12, 12]; 2]);
    let found = loss(packed.clone(), &of_documents(&folder.path().join("packed.jsonl"), &all, false));
    assert!((found - sum / predicted).abs() < 1e-12 * found, "{found} {}", sum / predicted);

    // What cannot be is refused by name.
    let flat = Arc::new(Sources::new(vec![(open(&flat(folder.path(), "flat.u16", &tokens)), None)]));
    let workload = published(&packed, "gpipe", Precision::Double).expect("it exists");
    let error = refused(&workload, &on(&flat, 1));
    assert!(error.contains("flat.u16") && error.contains("does not say where documents begin"), "{error}");
    packed.model.variant.multi_token = 1;
    let error = refused(&published(&packed, "gpipe", Precision::Double).expect("it exists"), &on(&flat, 1));
    assert!(error.contains("training.documents") && error.contains("without MTP modules"), "{error}");
}

#[test]
fn data_that_does_not_fit_is_refused_before_the_first_step() {
    let folder = folder();
    let alone = planned(1, 1, "gpipe");
    let mut tokens = tokens(4000);
    tokens[2345] = 256;
    let far = Arc::new(Sources::new(vec![(open(&flat(folder.path(), "far.u16", &tokens)), None)]));
    let error = refused(&alone, &on(&far, 100));
    let expected =
        "far.u16, token 2345 (byte 4690): 256; expected is 0 to 255, as the model's vocabulary has 256 tokens";
    assert!(error.contains(expected), "{error}");
    let short = Arc::new(Sources::new(vec![(open(&flat(folder.path(), "short.u16", &tokens[..12])), None)]));
    let error = refused(&alone, &on(&short, 3));
    assert!(error.contains("short.u16 has 12 tokens") && error.contains("needs 13"), "{error}");
    let nothing = RunOptions { evaluate_every: 1, ..on(&far, 3) };
    let fine = Arc::new(Sources::new(vec![(open(&flat(folder.path(), "fine.u16", &tokens[..2000])), None)]));
    let error = refused(&alone, &RunOptions { data: Some(fine), ..nothing });
    assert!(error.contains("evaluation needs data"), "{error}");
}

/// Cuts a file after a step.
struct Cutter(PathBuf);

impl Observer for Cutter {
    fn step_ended(&mut self, step: &StepReport) {
        if step.step == 2 {
            std::fs::OpenOptions::new().write(true).open(&self.0).and_then(|file| file.set_len(10)).expect("cut");
        }
    }
}

#[test]
fn a_file_that_shrinks_ends_the_run_with_a_whole_checkpoint() {
    let folder = folder();
    let path = flat(folder.path(), "web.u16", &tokens(4000));
    let data = Arc::new(Sources::new(vec![(open(&path), None)]));
    let workload = planned(2, 2, "1f1b");
    let whole = train(&workload, &on(&data, 8));
    let saving = Some(Saving { folder: folder.path().join("run"), every: 0 });
    let cut = RunOptions { saving, ..on(&data, 1000) };
    let report = run(&workload, &cut, &mut Cutter(path.clone())).expect("it ends with a report");
    let failure = data.failure().expect("the reason is known").to_string();
    assert!(failure.contains("web.u16, tokens") && failure.contains("ends at byte 10"), "{failure}");
    let done = report.steps.len();
    assert!(report.stopped && (3..8).contains(&done), "{done} steps");
    // The file is whole again, and the run goes on as if nothing had been.
    flat(folder.path(), "web.u16", &tokens(4000));
    let again = Arc::new(Sources::new(vec![(open(&path), None)]));
    let resume = Some(Checkpoint::open(&report.checkpoint.expect("written")).expect("whole"));
    let rest = train(&workload, &RunOptions { resume, ..on(&again, 8) });
    assert_eq!(rest.losses(), whole.losses()[done..]);
}

#[test]
fn only_the_last_checkpoints_are_kept() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("notes")).expect("made");
    let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 2 });
    train(&planned(2, 1, "1f1b"), &RunOptions { saving, keep: 2, ..options(9) });
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .expect("read")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    // What is no checkpoint stays.
    assert_eq!(names, [".lock", "notes", "step-000008", "step-000009"]);
}

/// Reading a sequence of 4096 tokens, against a thousandth of the 53 ms that an H200 takes for one of Qwen3 0.6B.
/// Printed, since a machine that does other things says nothing about a limit; a limit a hundred times as large holds
/// on any.
#[test]
fn reading_takes_microseconds() {
    const SEQUENCE: usize = 4096;
    let folder = folder();
    let path = flat(folder.path(), "web.u16", &tokens(2_000_000));
    let data = Arc::new(Sources::new(vec![(open(&path), None)]));
    let cut = Cut {
        sequence: SEQUENCE,
        ahead: 1,
        microbatch_size: 1,
        microbatches: 8,
        seed: 0,
        vocabulary: 256,
        within: None,
        slices: 1,
    };
    let batches = Batches::of(data, &cut).expect("enough").starting_at(0, SequencePart::WHOLE);
    let (mut least, started) = (u64::MAX, Instant::now());
    for step in 0..50 {
        batches.prepare(step).expect("read");
        let before = batches.waited_ns();
        for microbatch in 0..8 {
            batches.tokens(step, microbatch, 0).expect("read");
            batches.tokens(step, microbatch, 1).expect("read");
        }
        least = least.min((batches.waited_ns() - before) / 8);
    }
    println!(
        "{:.1} us a sequence of {SEQUENCE} tokens, {:.1} ms in all",
        least as f64 / 1e3,
        started.elapsed().as_secs_f64() * 1e3
    );
    assert!(least < 5_300_000, "{least} ns");
}

const READER: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    print(tag, *[f'{event.step}:{event.value:.6g}' for event in events.Scalars(tag)])
";

/// TensorBoard's own reader, where Python has it.
#[test]
fn figures_of_each_step_are_read_by_tensorboard_and_as_json_lines() {
    let folder = folder();
    let (log, board) = (folder.path().join("log.jsonl"), folder.path().join("board"));
    let mut metrics = Metrics::open(Some(&log), Some(&board), Figures::new(Some(2.5e8))).expect("opened");
    let measured = RunOptions { measure_norm: true, ..options(3) };
    let report = run(&planned(2, 1, "1f1b"), &measured, &mut metrics).expect("it runs");
    assert_eq!(metrics.error(), None);
    let lines = std::fs::read_to_string(&log).expect("read");
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    for (number, (line, step)) in lines.iter().zip(&report.steps).enumerate() {
        assert_eq!((line["step"].as_u64(), line["loss"].as_f64()), (Some(number as u64 + 1), step.loss));
        let all =
            ["gradient_norm", "learning_rate", "tokens_per_s", "mfu", "step_seconds", "peak_bytes", "seconds_left"];
        assert!(all.iter().all(|name| line[name].is_number()), "{line}");
    }
    assert!(lines[0]["gradient_norm"].as_f64() > Some(0.0) && lines[2]["seconds_left"] == 0.0);
    let python = std::env::var("PIPEPLAN_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let known = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no tensorboard; PIPEPLAN_PYTHON names one that has");
        return;
    }
    let output = Command::new(&python).args(["-c", READER]).arg(&board).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let losses = said.lines().find(|line| line.starts_with("loss ")).expect("a loss");
    for (number, step) in report.steps.iter().enumerate() {
        let value: f64 = losses
            .split(&format!("{}:", number + 1))
            .nth(1)
            .expect("a step")
            .split(' ')
            .next()
            .unwrap_or("")
            .trim()
            .parse()
            .expect("a number");
        assert!((value - step.loss.expect("a loss")).abs() < 1e-5, "{losses}");
    }
}

const WRITER: &str = "
import sys, numpy, pyarrow, pyarrow.parquet
folder = sys.argv[1]
numpy.save(folder + '/a.npy', numpy.array([1, 2, 60000], dtype=numpy.uint16))
numpy.save(folder + '/b.npy', numpy.array([[1, 2], [3, 4]], dtype=numpy.int64))
texts = pyarrow.table({'id': [1, 2], 'text': ['ab', 'c']})
ids = pyarrow.table({'input_ids': pyarrow.array([[5, 6], [7]], pyarrow.list_(pyarrow.int32()))})
for compression in ['none', 'snappy', 'lz4', 'gzip', 'brotli', 'zstd']:
    pyarrow.parquet.write_table(texts, f'{folder}/text-{compression}.parquet', compression=compression)
    pyarrow.parquet.write_table(ids, f'{folder}/ids-{compression}.parquet', compression=compression)
";

/// Files that NumPy and pyarrow have written, where Python has them.
#[test]
fn files_of_numpy_and_pyarrow_are_read() {
    let folder = folder();
    let python = std::env::var("PIPEPLAN_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let written = Command::new(&python).args(["-c", WRITER]).arg(folder.path()).output();
    if !written.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no numpy and pyarrow; PIPEPLAN_PYTHON names one that has");
        return;
    }
    let read = |name: &str| {
        let source = open(&folder.path().join(name));
        source.read(0, source.tokens as usize, u64::MAX).expect("read")
    };
    assert_eq!((read("a.npy"), read("b.npy")), (vec![1, 2, 60_000], vec![1, 2, 3, 4]));
    for compression in ["none", "snappy", "lz4", "gzip", "brotli", "zstd"] {
        assert_eq!(read(&format!("text-{compression}.parquet")), [97, 98, 0, 99, 0]);
        assert_eq!(read(&format!("ids-{compression}.parquet")), [5, 6, 7]);
    }
}
