//! `pipeplan tune`

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pipeplan_core::advise::suggest::Change;
use pipeplan_core::advise::tune::{self, Field, Question, Tally, Tuned, Tuner};
use pipeplan_core::estimate::step::Training;
use pipeplan_core::search::Flow;
use pipeplan_core::spec::{Spec, Work};

use super::failure::Failure;
use super::search::{Effort, Measured};
use super::{format, input, interrupt, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan tune examples/llama-2-70b.toml                    the fastest layouts on its 40 devices
  pipeplan tune spec.toml --devices 512 -o fastest.json      on 512 devices; writes the fastest as a spec
  pipeplan tune spec.toml --keep parallel.tensor --keep training.recompute
  pipeplan tune spec.toml --profile h100.json                with measured times
  pipeplan tune spec.toml --schedule 1f1b --schedule interleaved-1f1b    schedules of a framework
  pipeplan tune spec.toml --json | jq '.layouts[0].changes'";

/// Find the fastest layouts of a model on a number of devices: parallel degrees, microbatches, recomputation, schedule.
///
/// The global batch size stays the same, and no device holds more than the memory limit. All schedules are planned
/// for every layout that divides the devices, until no other layout can be among the fastest.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec of a model, or a link; - for standard input
    spec: String,
    /// Number of devices; default: that of the spec
    #[arg(long, value_name = "N")]
    devices: Option<u64>,
    /// A field that does not change, such as parallel.tensor; may be given again
    #[arg(long, value_name = "FIELD", value_parser = field)]
    keep: Vec<Field>,
    /// A schedule to use, or `best` for a search among all; may be given again. Default: all
    #[arg(long, value_name = "NAME")]
    schedule: Vec<String>,
    /// Number of layouts to show
    #[arg(long, value_name = "N", default_value_t = Question::default().most)]
    most: usize,
    /// Write the fastest layout here as a spec; - for standard output
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    output: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    measured: Measured,
}

fn field(text: &str) -> Result<Field, String> {
    let names: Vec<&str> = Field::ALL.iter().map(|field| field.name()).collect();
    Field::named(text).ok_or_else(|| format!("accepted is one of {}", names.join(", ")))
}

pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        output::expect_room_at(path)?;
    }
    let spec = args.measured.apply(input::spec(&args.spec)?)?;
    let question = Question {
        devices: args.devices,
        keep: args.keep,
        schedules: args.schedule,
        most: args.most.max(1),
        ..Question::default()
    };
    let mut tuner = Tuner::new(&spec, &question).map_err(|faults| {
        let failure = Failure::input(faults.to_string());
        match faults.0.iter().any(|fault| fault.field == "devices") {
            true => with_numbers(failure, &spec, &question),
            false => failure,
        }
    })?;
    let is_whole = find(&mut tuner, args.effort);
    if args.json {
        output::print_json(&tuner.to_value(is_whole))?;
    } else if args.output.as_deref() != Some("-") {
        output::print(&drawn(&spec, &tuner, is_whole))?;
    }
    let Some(fastest) = tuner.rows().first() else {
        let Tally { layouts, refused, .. } = tuner.tally();
        if let Some(reason) = tuner.refusal().filter(|_| refused == layouts) {
            let all = format::count(layouts, "layout");
            let failure =
                Failure::input(format!("the model allows none of {all}; the reason for the first:\n{reason}"));
            return Err(with_numbers(failure, &spec, &question));
        }
        let text = "no layout fits: in each, a rank needs more than its memory limit, or no schedule exists";
        return Err(Failure::input(text).with_help(
            "try more devices (--devices), a higher memory.limit_bytes, or fewer fields with --keep; `pipeplan \
             memory` shows what one layout needs",
        ));
    };
    match &args.output {
        Some(path) => output::write(path, fastest.spec.to_json().as_bytes()),
        None => Ok(()),
    }
}

/// `failure` with the nearest numbers of devices that the model can be split over.
fn with_numbers(failure: Failure, spec: &Spec, question: &Question) -> Failure {
    match tune::nearest_numbers(spec, question).as_slice() {
        [] => failure.with_help("try fewer fields with --keep or another number of devices (--devices)"),
        [one] => failure.with_help(format!("it can be split over {one} devices")),
        numbers => {
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            failure.with_help(format!("it can be split over {} devices", numbers.join(" or ")))
        }
    }
}

/// Lets `tuner` do all that it can, with progress on standard error. False where Ctrl-C ended it early.
fn find(tuner: &mut Tuner, effort: Effort) -> bool {
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {pos} of {len} layouts; {msg}") {
        bar.set_style(style);
    }
    let (stop, started) = (interrupt::flag(), std::time::Instant::now());
    let observe = |_| if stop.is_raised() { Flow::Stop } else { Flow::Continue };
    let mut more = true;
    while more && !stop.is_raised() {
        // What is soon done shows nothing.
        if bar.is_hidden() && started.elapsed().as_millis() > 300 {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        let tally = tuner.tally();
        bar.set_length(tally.layouts as u64);
        bar.set_position(tally.settled() as u64);
        let fastest = tuner.rows().first().map(|row| format!("fastest {}", format::duration(row.step.step_ns)));
        bar.set_message(format!(
            "{}; Ctrl-C keeps the fastest so far",
            fastest.as_deref().unwrap_or("none fits yet")
        ));
        let searches = tuner.searches();
        if !searches.is_empty() {
            bar.enable_steady_tick(Duration::from_millis(100));
            bar.set_message(format!("the best schedule on {} of them", searches.len()));
        }
        let searched =
            side_by_side(
                searches,
                |search| {
                    while !stop.is_raised() && search.step(effort.ops(), &mut { observe }) {}
                },
            );
        searched.into_iter().for_each(|search| tuner.learn(search));
        more = tuner.step(effort.ops(), &mut { observe });
    }
    tuner.settle_learned();
    bar.finish_and_clear();
    !more
}

/// Does `work` on each of `all`, as many at a time as there are cores.
fn side_by_side<T: Send>(mut all: Vec<T>, work: impl Fn(&mut T) + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(all.len());
    let next = Mutex::new(all.iter_mut());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(one) = take() {
                    work(one)
                }
            });
        }
    });
    all
}

fn drawn(spec: &Spec, tuner: &Tuner, is_whole: bool) -> String {
    let mut text = String::new();
    let given = tuner.given();
    let fits = given.and_then(|given| given.as_ref().ok());
    let shown: Vec<(String, &Tuned)> = fits
        .map(|given| (String::from("as given"), given))
        .into_iter()
        .chain(tuner.rows().iter().enumerate().map(|(at, row)| ((at + 1).to_string(), row)))
        .collect();
    if !shown.is_empty() {
        text.push_str(&table(&shown));
        text.push_str(
            "PP, TP, CP, DP, EP: pipeline, tensor, context, data and expert parallel; microbatches: \
            number per data-parallel replica by micro-batch size; whole experts: expert tensor parallel (ETP) is \
            1; peak memory: of the fullest rank; recompute: number of layers\n",
        );
        if shown.iter().any(|(_, row)| row.degrees.zero >= 2) {
            text.push_str(
                "ZeRO 3 shards gradients and weights, as FSDP does; for four published runs the planned \
                step is 2 to 17 % too short\n",
            );
        }
    }
    if let Some(Err(reason)) = given {
        text.push_str(&format!("\nthe spec as given does not run: {}\n", format::spelled(reason)));
    }
    if let Some(fastest) = tuner.rows().first() {
        text.push_str(&advice(spec, fits, fastest));
    }
    text.push_str(&account(tuner.tally(), is_whole));
    text
}

/// Columns in which all layouts say 1 are left out.
fn table(shown: &[(String, &Tuned)]) -> String {
    let some = |of: fn(&Tuned) -> u32| shown.iter().any(|(_, row)| of(row) > 1);
    let context = some(|row| row.degrees.context);
    let expert = some(|row| row.degrees.expert);
    let mut header = vec!["", "PP", "TP"];
    header.extend(context.then_some("CP"));
    header.push("DP");
    header.extend(expert.then_some("EP"));
    header.extend(["microbatches", "step"]);
    let training = |row: &Tuned| match &row.spec.work {
        Work::Model(work) => Training::of(work, row.step.step_ns),
        Work::Typed(_) => None,
    };
    let trained = shown.iter().any(|(_, row)| training(row).is_some());
    header.extend(trained.then_some("training"));
    header.extend(["tokens/s", "MFU", "peak memory", "schedule", "recompute"]);
    let right = header.len() - 3;
    let cells = |(name, row): &(String, &Tuned)| {
        let degrees = &row.degrees;
        let mut cells = vec![name.clone(), degrees.pipeline.to_string(), degrees.tensor.to_string()];
        cells.extend(context.then(|| degrees.context.to_string()));
        cells.push(degrees.data.to_string());
        cells.extend(expert.then(|| match degrees.whole_experts && degrees.tensor > 1 {
            true => format!("{} whole", degrees.expert),
            false => degrees.expert.to_string(),
        }));
        cells.extend([
            format!("{} × {}", degrees.microbatches, degrees.microbatch_size),
            format::duration(row.step.step_ns),
        ]);
        cells.extend(training(row).map(|training| training.time()));
        cells.extend([
            row.step.tokens_per_s.round().to_string(),
            format::mfu(row.step.mfu),
            format::bytes(row.peak),
            row.spec.schedule.clone(),
            row.saved(),
        ]);
        cells
    };
    format::table(&header, &shown.iter().map(cells).collect::<Vec<_>>(), right)
}

fn devices(row: &Tuned) -> u64 {
    match &row.spec.work {
        Work::Model(work) => work.devices(),
        Work::Typed(_) => 0,
    }
}

/// Characters of the longest value that is shown; only choices by layer are longer.
const LONGEST_VALUE: usize = 120;

/// What to write into the spec for the fastest.
fn advice(spec: &Spec, given: Option<&Tuned>, fastest: &Tuned) -> String {
    let changes = fastest.changes(spec);
    let faster = |given: &&Tuned| given.step.step_ns > fastest.step.step_ns;
    if changes.iter().all(|change| change.field == "schedule") && given.is_some_and(|given| !faster(&given)) {
        return format!("\nno layout is faster than the given one, with schedule = \"{}\"\n", fastest.spec.schedule);
    }
    let mut text = match given {
        Some(given) => {
            let times = given.step.step_ns as f64 / fastest.step.step_ns.max(1) as f64;
            let [before, after] = [given, fastest].map(devices);
            let elsewhere = if before == after {
                String::new()
            } else {
                let each = times * before as f64 / after.max(1) as f64;
                format!(" on {after} devices instead of {before}, with {each:.2} times the throughput per device")
            };
            format!("\nthe first is {times:.2} times as fast as the given spec{elsewhere}, with\n")
        }
        None => String::from("\nthe first is the spec with\n"),
    };
    for Change { field, from, to } in changes {
        if to.len() > LONGEST_VALUE {
            let what = &fastest.recompute;
            text.push_str(&format!("  {field} = …   # was {from}; {what}; too long to show, -o FILE writes it\n"));
            continue;
        }
        // As it stands in TOML.
        let to = if to.parse::<u64>().is_ok() || to == "true" || to == "false" { to } else { format!("\"{to}\"") };
        text.push_str(&format!("  {field} = {to}   # was {from}\n"));
    }
    text
}

fn account(tally: Tally, is_whole: bool) -> String {
    let Tally { layouts, refused, too_large, planned, unfit, slower, .. } = tally;
    let without = if unfit > 0 { format!(", for {unfit} of them none fits") } else { String::new() };
    let mut said = vec![format!("{planned} planned with every schedule{without}")];
    if refused > 0 {
        said.push(format!("{refused} not allowed by the model"));
    }
    if too_large > 0 {
        said.push(format!("{too_large} too large for their ranks"));
    }
    if slower > 0 {
        said.push(format!("{slower} skipped, because their steps cannot be faster than the last one shown"));
    }
    let mut text = format!("\n{}: {}\n", format::count(layouts, "layout"), said.join("; "));
    if !is_whole {
        text.push_str("ended early: faster layouts may exist\n");
    }
    text
}
