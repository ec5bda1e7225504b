//! `pipeplan import`

use std::path::Path;

use pipeplan_core::api::{AgainstPlan, refused_run};
use pipeplan_core::formats::megatron_run::{Given, MegatronRun};
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
  ps -o args= -p PID | pipeplan import - --device a100-80 --devices 8";

/// Make a spec from a run of Megatron-LM: from its log, its command line, its launch script or its YAML. A script is
/// read, never run. If a log gives step times and memory, compare them with the plan.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A log, a command line, a script or YAML; - for standard input
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
    let given = Given { variables: args.set.into_iter().collect(), command: args.command };
    let run = MegatronRun::read_with(&text, &given);
    if !run.is_any() && order::looks_like_one(&text) {
        return Err(Failure::input(format!("{} is an order of ops, not a run", args.run))
            .with_help("`pipeplan plan SPEC --order FILE` plans it, and `pipeplan check` judges it."));
    }
    if !run.is_any() {
        return Err(Failure::input(format!("{} contains no arguments of Megatron-LM", args.run)).with_help(
            "Accepted are the argument lines at the start of a log, such as `num_layers ...... 32`, and arguments \
             such as --num-layers 32, on a command line, in a script or in YAML. For a Hugging Face model, write `model.config = \"config.json\"` in a spec.",
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
    let text = written(&imported.value, &args.run)?;
    output::write(&args.output, text.as_bytes())?;
    match args.output.as_str() {
        "-" => output::tell(drawn(&against).trim_end()),
        path => output::print(&format!("{}spec          {path}\n", drawn(&against)))?,
    }
    Ok(())
}

/// The spec in the form that a person writes.
fn written(value: &Value, from: &str) -> Result<String, Failure> {
    let text = toml::to_string_pretty(value)
        .map_err(|error| Failure::work(format!("the spec cannot be written as TOML: {error}")))?;
    let name = Path::new(from).file_name().map_or_else(|| "standard input".into(), |name| name.to_string_lossy());
    Ok(format!("# From a run of Megatron-LM: {}\n{text}", name.escape_debug()))
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
