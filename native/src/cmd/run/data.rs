//! What a run trains and evaluates on, as the command line says it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pipeplan::data::argument::Argument;
use pipeplan::data::tokenizer::Tokenizer;
use pipeplan::data::{self, Source};
use pipeplan::runner::data::Sources;
use pipeplan::runner::{Computation, Workload};

use super::TEXT;
use crate::cmd::failure::Failure;

/// Options on data.
#[derive(clap::Args)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// What to train on, several times for a blend; default: a text of this project
    ///
    /// The content decides: Megatron-LM's indexed data (NAME.bin and NAME.idx, also as NAME), tokens in .bin, .u16 or .u32,
    /// llm.c's files, .npy, JSON lines, Parquet, or a text. `pipeplan data FILE` shows what is found. FILE:WEIGHT gives data
    /// a share of a blend; without weights each is taken as often as it is long.
    #[arg(long, visible_alias = "data-path", value_name = "FILE[:WEIGHT]", value_parser = Argument::read)]
    data: Vec<Argument>,
    /// Makes tokens of text: a tokenizer.json, or a folder with one; default: each byte is a token
    #[arg(long, visible_alias = "tokenizer-model", value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Evaluate on this data
    #[arg(long, visible_alias = "valid-data-path", value_name = "FILE")]
    validation: Vec<PathBuf>,
    /// Evaluate on this share of the data, its end, which is not trained on
    #[arg(long, value_name = "SHARE", conflicts_with = "validation")]
    validation_split: Option<f64>,
    /// Evaluate after every N steps
    #[arg(long, visible_alias = "eval-interval", value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..))]
    pub evaluate_every: Option<u32>,
    /// Most batches of one evaluation, each as large as that of a step
    #[arg(long, visible_alias = "eval-iters", value_name = "BATCHES", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub evaluate_steps: u32,
}

impl DataArgs {
    /// Each option, and whether it was given.
    pub fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--data", !self.data.is_empty()),
            ("--tokenizer", self.tokenizer.is_some()),
            ("--validation", !self.validation.is_empty()),
            ("--validation-split", self.validation_split.is_some()),
            ("--evaluate-every", self.evaluate_every.is_some()),
        ]
    }

    /// Opens them.
    pub fn sources(&self, workload: &Workload) -> Result<Sources, Failure> {
        let Computation::Model(model) = &workload.computation else {
            return Ok(Sources::of_text(TEXT.to_vec()));
        };
        let has_validation = !self.validation.is_empty() || self.validation_split.is_some();
        if has_validation && self.evaluate_every.is_none() {
            return Err(Failure::input("validation data is given, but no evaluation is asked for")
                .with_help("Give --evaluate-every STEPS with it."));
        }
        let split = self.validation_split.unwrap_or(0.0);
        if self.validation_split.is_some() && !(split > 0.0 && split < 1.0) {
            return Err(Failure::input(format!("--validation-split is {split}; give a number above 0 and below 1")));
        }
        let tokenizer = tokenizer(self.tokenizer.as_deref())?;
        tokenizer.fits(model.model.vocab.into()).map_err(Failure::input)?;
        let open = |path: &Path| -> Result<Arc<Source>, Failure> {
            data::open(path, &tokenizer).map(Arc::new).map_err(Failure::input)
        };
        let mut sources = match self.data.is_empty() {
            true => Sources::of_text(TEXT.to_vec()),
            false => {
                let open = |data: &Argument| Ok((open(&data.path)?, data.weight));
                Sources::new(self.data.iter().map(open).collect::<Result<_, Failure>>()?)
            }
        };
        sources.validation = self.validation.iter().map(|path| open(path)).collect::<Result<_, Failure>>()?;
        sources.split = split;
        Ok(sources)
    }
}

/// The tokenizer in a file, or bytes.
pub fn tokenizer(path: Option<&Path>) -> Result<Tokenizer, Failure> {
    path.map_or(Ok(Tokenizer::Bytes), |path| Tokenizer::load(path).map_err(Failure::input))
}
