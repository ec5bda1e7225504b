//! Documents of a step, from a file of their lengths.

use std::path::Path;

use pipeplan::data::tokenizer::Tokenizer;
use pipeplan::data::{self, Format, MASKED};
use pipeplan_core::formats::lengths::{self, LengthsError};
use pipeplan_core::problem::packing::MAX_DOCUMENTS;
use pipeplan_core::spec::{Documents, Spec, Work};

use super::failure::Failure;
use super::input;

/// The lengths of the documents of the step.
#[derive(clap::Args)]
pub struct Lengths {
    /// Pack the documents of this file into the microbatches of all data parallel replicas: their lengths in tokens, as text
    /// with one on each line, a JSON list, or an array of NumPy (.npy); - for standard input. Default: `training.documents`
    /// of the spec
    #[arg(long, value_name = "FILE")]
    documents: Option<String>,
}

impl Lengths {
    /// `spec` with these documents.
    pub fn apply(&self, mut spec: Spec) -> Result<Spec, Failure> {
        let Some(from) = &self.documents else { return Ok(spec) };
        let lengths = match from.ends_with(".npy") {
            true => of_array(from)?,
            false => of_text(&input::file_or_standard_input(from)?)?,
        };
        let Work::Model(work) = &mut spec.work else {
            return Err(Failure::input(
                "--documents needs a model: with typed costs `microbatch_factors` says what differs",
            ));
        };
        work.batch.documents = Documents::OfStep(lengths);
        // What is read again has no measured times, so it is a check alone.
        match Spec::from_value(&spec.to_value()) {
            Ok(_) => Ok(spec),
            Err(faults) => Err(Failure::input(format!("{from} does not fit the spec:\n{faults}"))),
        }
    }
}

/// The numbers of an array of NumPy.
fn of_array(from: &str) -> Result<Vec<u32>, Failure> {
    let source = data::open(Path::new(from), &Tokenizer::Bytes).map_err(Failure::input)?;
    let is_array = source.format == Format::Numpy;
    // Rows of a table are told as documents of one length.
    if !is_array || !source.lengths.is_empty() {
        let found = if is_array { "an array of two dimensions" } else { source.format.name() };
        return Err(Failure::input(format!("{from}: found {found}"))
            .with_help("give a NumPy array of one dimension with whole numbers of tokens, one for each document"));
    }
    if source.tokens > MAX_DOCUMENTS as u64 {
        let error = LengthsError::TooMany;
        return Err(Failure::input(format!("{from}: {error}")).with_help(error.help()));
    }
    let mut lengths = Vec::new();
    let take = |piece: &[u32]| {
        lengths.extend(piece.iter().map(|length| length & !MASKED));
        Ok(())
    };
    source.each_piece(take).map_err(Failure::input)?;
    Ok(lengths)
}

/// The numbers of a text.
fn of_text(input::Source { name, text }: &input::Source) -> Result<Vec<u32>, Failure> {
    lengths::read(text).map_err(|error| match error {
        LengthsError::NoLength { .. } => Failure::input(format!("{name}, {error}")).with_help(error.help()),
        _ => Failure::input(format!("{name}: {error}")).with_help(error.help()),
    })
}
