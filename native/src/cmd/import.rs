//! `pipeplan import`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pipeplan_core::api::{AgainstPlan, refused_run};
use pipeplan_core::formats::training_run::{self, Given, TrainingRun};
use pipeplan_core::notation::order;
use serde_json::Value;

use super::failure::Failure;
use super::search::{self, Effort};
use super::{format, input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan import train.log --device h100 -o spec.toml             and measured against planned figures
  pipeplan import launch.sh --device h100 --devices 64 -o spec.toml
  pipeplan import launch.sh --device h100 --set MODEL_SIZE=7B --set NNODES=4
  pipeplan import llama3_70b.toml --device h100 --devices 256      the job config of torchtitan
  ps -o args= -p PID | pipeplan import - --device a100-80 --devices 8";

/// Make a spec from a run of Megatron-LM, torchtitan or verl: from its log, its command line, its launch script or its config. A
/// script is read, never run, and so are the files beside it that it takes variables from. If a log gives step times and
/// memory, compare them with the plan.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A log, a command line, a script, YAML or the TOML of torchtitan; - for standard input
    run: String,
    /// The device of the run, from the catalog, such as h100
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Number of devices, if the text does not give it
    #[arg(long, value_name = "COUNT")]
    devices: Option<u64>,
    /// The value of a variable of the script, whatever it assigns; 1 is the first thing that it is called with
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    set: Vec<(String, String)>,
    /// Which training command, if the text has several
    #[arg(long, value_name = "NUMBER")]
    command: Option<usize>,
    /// The config.json of the model, if the text names one that is not in the catalog
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Write the spec here, as TOML; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: String,
    /// Print JSON: the spec, the differences from the text, what was done with each argument, and measured against planned
    /// figures; of a run that is refused, what is wrong and the arguments
    #[arg(long)]
    json: bool,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let named = text.split_once('=').filter(|(name, _)| is_name(name));
    let (name, value) = named.ok_or("accepted is a variable's name, = and its value, such as MODEL_SIZE=7B")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A log of weeks.
const MAX_LOG_BYTES: u64 = 1 << 30;

pub fn run(args: Args) -> Result<(), Failure> {
    if args.output != "-" {
        output::expect_room_at(&args.output)?;
    }
    let bytes = match args.run.as_str() {
        "-" => input::bounded("standard input", MAX_LOG_BYTES, Ok(std::io::stdin().lock())),
        path => input::file(path, MAX_LOG_BYTES),
    }?;
    let text = String::from_utf8_lossy(&bytes);
    let config = match &args.config {
        Some(path) => Some(String::from_utf8_lossy(&input::file(path, MOST_FILE_BYTES)?).into_owned()),
        None => None,
    };
    let variables = args.set.into_iter().collect();
    let given = Given { variables, command: args.command, config, ..Given::default() };
    let run = with_files(&text, given, &args.run)?;
    if !run.is_any() && order::looks_like_one(&text) {
        return Err(Failure::input(format!("{} is an order of ops, not a run", args.run))
            .with_help("`pipeplan plan SPEC --order FILE` plans it, and `pipeplan check` judges it."));
    }
    if !run.is_any() {
        if let Some((what, advice)) = training_run::likely(&text) {
            let failure = Failure::input(format!("{} is {what}, and contains no arguments of a run", args.run));
            return Err(failure.with_help(format!("{advice}.")));
        }
        return Err(Failure::input(format!("{} contains no arguments of Megatron-LM, torchtitan or verl", args.run)).with_help(
            "Accepted are the argument lines at the start of a log, such as `num_layers ...... 32`, arguments such as \
             --num-layers 32, on a command line, in a script or in YAML, and the job config of torchtitan. For a Hugging \
             Face model, write `model.config = \"config.json\"` in a spec.",
        ));
    }
    let imported = run.spec(&args.device, args.devices).map_err(|faults| {
        // A program reads the lists of arguments, and a person the error behind them.
        if args.json
            && let Err(failure) = output::print_json(&refused_run(&run, &faults))
        {
            return failure;
        }
        Failure::input(format!("{}: {faults}", args.run)).with_help(
            "--device and --devices give what the text lacks, --set NAME=VALUE a variable of a script; add other \
                arguments to the text, such as --vocab-size 50257",
        )
    })?;
    let against = search::watched(Effort::default(), |observer| AgainstPlan::of(&run, &imported, observer));
    let against = against.map_err(Failure::input)?;
    if args.json {
        return output::print_json(&against.to_value(&imported));
    }
    imported.notes.iter().chain(&imported.arguments.told()).for_each(|note| output::tell(note));
    let text = written(&imported.value, run.framework(), &args.run)?;
    output::write(&args.output, text.as_bytes())?;
    match args.output.as_str() {
        "-" => output::tell(drawn(&against).trim_end()),
        path => output::print(&format!("{}spec          {path}\n", drawn(&against)))?,
    }
    Ok(())
}

/// Most files that a script takes variables from, and bytes of each.
const MOST_FILES: usize = 64;
const MOST_FILE_BYTES: u64 = 1 << 20;

/// The run of a text, with the files that it takes variables or a job config from: those in its folder, or in one above it up
/// to the folder of its repository.
fn with_files(text: &str, mut given: Given, from: &str) -> Result<TrainingRun, Failure> {
    let folder = match from {
        "-" => None,
        path => Path::new(path).canonicalize().ok().and_then(|path| Some(path.parent()?.to_path_buf())),
    };
    let mut tried = BTreeSet::new();
    loop {
        let run = TrainingRun::read_with(text, &given);
        let Some(folder) = &folder else { return Ok(run) };
        let before = given.files.len();
        for name in run.wanted_files() {
            if tried.len() >= MOST_FILES || !tried.insert(name.clone()) {
                continue;
            }
            let Some(path) = found(folder, name) else { continue };
            let Ok(bytes) = input::file(&path.to_string_lossy(), MOST_FILE_BYTES) else {
                output::tell(&format!(
                    "{name}, which the text takes in, cannot be read, or is longer than {MOST_FILE_BYTES} bytes"
                ));
                continue;
            };
            given.files.insert(name.clone(), String::from_utf8_lossy(&bytes).into_owned());
        }
        // What is read may want more.
        if given.files.len() == before {
            return Ok(run);
        }
    }
}

/// The plain file of this name, from `folder` or from one above it within its repository.
fn found(folder: &Path, name: &str) -> Option<PathBuf> {
    let root = folder.ancestors().find(|above| above.join(".git").exists()).unwrap_or(folder);
    let within = folder.ancestors().take_while(|above| above.starts_with(root));
    within
        .filter_map(|above| above.join(name).canonicalize().ok())
        .find(|path| path.starts_with(root) && path.is_file())
}

/// The spec in the form that a person writes.
fn written(value: &Value, framework: &str, from: &str) -> Result<String, Failure> {
    let text = toml::to_string_pretty(value)
        .map_err(|error| Failure::work(format!("the spec cannot be written as TOML: {error}")))?;
    let name = Path::new(from).file_name().map_or_else(|| "standard input".into(), |name| name.to_string_lossy());
    Ok(format!("# From a run of {framework}: {}\n{text}", name.escape_debug()))
}

/// What a log tells, and what is planned.
fn drawn(against: &AgainstPlan) -> String {
    let (measured, planned) = (against.step_ns, against.planned_step_ns);
    let difference = |measured: f64, planned: f64| format!("{:+.1} %", 100.0 * (planned / measured - 1.0));
    let mut rows: Vec<Vec<String>> = Vec::new();
    if let (Some(measured), Some(planned)) = (measured, planned) {
        let of = match against.steps {
            1 => String::from("step"),
            steps => format!("step, median of {steps}"),
        };
        rows.push(vec![
            of,
            format::duration(measured),
            format::duration(planned),
            difference(measured as f64, planned as f64),
        ]);
    }
    for (rank, measured, planned) in &against.peaks {
        rows.push(vec![
            format!("memory of rank {rank}"),
            format::bytes(*measured),
            format::bytes(*planned),
            difference(*measured as f64, *planned as f64),
        ]);
    }
    let mut text = String::new();
    if rows.is_empty() {
        if let Some(planned) = planned {
            text.push_str(&format!("step          {} planned, as {}\n", format::duration(planned), against.schedule));
        }
    } else {
        text.push_str(&format::table(&["", "measured", "planned", "difference"], &rows, 3));
        text.push_str(&format!("planned as {}; memory is the peak of allocated tensors", against.schedule));
        text.push_str(match against.of_first_step {
            true => ", reported after the first step, before optimizer states exist\n",
            false => "\n",
        });
    }
    if !against.fits {
        text.push_str("the plan does not fit the device: `pipeplan memory` shows why\n");
    }
    text
}
