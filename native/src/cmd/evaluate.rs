//! `pipeplan evaluate`

use std::path::PathBuf;

use pipeplan::backend::cpu::element::Element;
use pipeplan::data::Source;
use pipeplan::runner::checkpoint::Checkpoint;
use pipeplan::runner::evaluate::{Evaluation, evaluate_on};
use serde_json::json;

use super::failure::Failure;
use super::{format, output, run};

const EXAMPLES: &str = "\
Examples:
  pipeplan evaluate run
  pipeplan evaluate run/step-000020 --data book.txt --windows 100
  pipeplan evaluate run --logits logits.safetensors";

/// Evaluate the weights of a checkpoint on a text: print the loss and write the logits of every token to a file.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A checkpoint of a run, or a folder of checkpoints; the latest one is used
    checkpoint: PathBuf,
    /// The text or tokens, as for `run`; default: a text of this project
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Makes tokens of text: a tokenizer.json, or a folder with one; default: each byte is a token
    #[arg(long, value_name = "FILE", requires = "data")]
    tokenizer: Option<PathBuf>,
    /// Sequences from the start of the data, each of the sequence length of the training
    #[arg(long, visible_alias = "sequences", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,
    /// Precision; default: that of the checkpoint
    #[arg(long, value_name = "TYPE")]
    precision: Option<run::Type>,
    /// Write the tensors `logits`, `windows` and `loss` into this file, as safetensors; - for standard output
    #[arg(long, value_name = "FILE")]
    logits: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let prints_logits = args.logits.as_deref() == Some("-");
    output::expect_one_document([("--logits -", prints_logits), ("--json", args.json)])?;
    if let Some(path) = &args.logits {
        output::expect_room_at(path)?;
    }
    let checkpoint = Checkpoint::open(&args.checkpoint).map_err(Failure::input)?;
    let data = match &args.data {
        Some(path) => {
            let tokenizer = run::data::tokenizer(args.tokenizer.as_deref())?;
            pipeplan::data::open(path, &tokenizer).map_err(Failure::input)?
        }
        None => Source::of_text(run::TEXT.to_vec()),
    };
    let wide = match args.precision {
        Some(precision) => matches!(precision, run::Type::F64),
        None => checkpoint.manifest.precision == "f64",
    };
    if wide { show::<f64>(&args, &checkpoint, &data) } else { show::<f32>(&args, &checkpoint, &data) }
}

fn show<T: Element>(args: &Args, checkpoint: &Checkpoint, data: &Source) -> Result<(), Failure> {
    let evaluation: Evaluation<T> =
        evaluate_on(checkpoint, data, args.windows as usize).map_err(|error| Failure::input(&error))?;
    if let Some(path) = &args.logits {
        let tensors = evaluation.to_safetensors().map_err(|error| Failure::work(format!("the logits: {error}")))?;
        output::write(path, &tensors)?;
        if path == "-" {
            return Ok(());
        }
    }
    let (step, windows) = (checkpoint.manifest.step, evaluation.windows.len());
    if args.json {
        return output::print_json(&json!({
            "checkpoint": checkpoint.folder, "step": step, "windows": windows,
            "sequence": checkpoint.manifest.sequence, "loss": evaluation.loss, "logits": args.logits,
        }));
    }
    let of = format::count(windows, "sequence");
    let mut shown = format!("loss          {:.6} after {step} steps, over {of}\n", evaluation.loss);
    if let Some(path) = &args.logits {
        shown.push_str(&format!("logits        {path}\n"));
    }
    output::print(&shown)
}
