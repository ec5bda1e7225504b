//! Documents of a step, from a file of their lengths.

use std::path::Path;

use pipeplan::data::tokenizer::Tokenizer;
use pipeplan::data::{self, MASKED};
use pipeplan_core::problem::packing::MAX_DOCUMENTS;
use pipeplan_core::spec::{Documents, Spec, Work};
use serde_json::Value;

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
        Spec::from_value(&spec.to_value())
            .map_err(|faults| Failure::input(format!("{from} does not fit the spec:\n{faults}")))
    }
}

fn too_many(from: &str) -> Failure {
    Failure::input(format!("{from} has more than {MAX_DOCUMENTS} lengths: give those of one step"))
}

/// The numbers of an array of NumPy.
fn of_array(from: &str) -> Result<Vec<u32>, Failure> {
    let source = data::open(Path::new(from), &Tokenizer::Bytes).map_err(Failure::input)?;
    if source.tokens > MAX_DOCUMENTS as u64 {
        return Err(too_many(from));
    }
    let mut lengths = Vec::new();
    let take = |piece: &[u32]| {
        lengths.extend(piece.iter().map(|length| length & !MASKED));
        Ok(())
    };
    source.each_piece(take).map_err(Failure::input)?;
    Ok(lengths)
}

/// The numbers of a JSON list, or of lines.
fn of_text(source: &input::Source) -> Result<Vec<u32>, Failure> {
    let input::Source { name, text } = source;
    let wrong = |place: String, found: &str| {
        let found: String = found.chars().take(40).collect();
        Failure::input(format!("{name}, {place}: {found:?} is no length"))
            .with_help("give whole numbers of tokens, one on each line, or as a JSON list")
    };
    if text.trim_start().starts_with('[') {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| wrong(format!("line {}", error.line()), &error.to_string()))?;
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        if items.len() > MAX_DOCUMENTS {
            return Err(too_many(name));
        }
        let length = |(at, item): (usize, &Value)| {
            let length = item.as_u64().and_then(|length| u32::try_from(length).ok());
            length.ok_or_else(|| wrong(format!("entry {at}"), &item.to_string()))
        };
        return items.iter().enumerate().map(length).collect();
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    if lines.clone().take(MAX_DOCUMENTS + 1).count() > MAX_DOCUMENTS {
        return Err(too_many(name));
    }
    let length =
        |(at, line): (usize, &str)| line.trim().parse().map_err(|_| wrong(format!("line {}", at + 1), line.trim()));
    lines.map(length).collect()
}
