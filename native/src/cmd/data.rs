//! `pipeplan data`

use std::path::{Path, PathBuf};

use pipeplan::data::tokenizer::Tokenizer;
use pipeplan::data::{self, MASKED, Source, megatron};
use pipeplan_core::spec::{Distribution, Draw};
use serde_json::{Value, json};

use super::failure::Failure;
use super::{output, run};

const EXAMPLES: &str = "\
Examples:
  pipeplan data book.txt
  pipeplan data web.bin code.npy --json
  pipeplan data chats.jsonl --tokenizer tokenizer.json
  pipeplan data documents.parquet --tokenizer tokenizer.json -o documents";

/// Show what files of training data hold: format, documents, tokens, the largest token and the lengths of documents
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// Files of tokens or of text
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Makes tokens of text: a tokenizer.json, or a folder with one; default: each byte is a token
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Write the tokens of text as NAME.bin and NAME.idx, Megatron-LM's indexed data, so that runs need not make them again
    #[arg(short, long, value_name = "NAME")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let tokenizer = run::data::tokenizer(args.tokenizer.as_deref())?;
    let open = |path: &PathBuf| data::open(path, &tokenizer).map_err(Failure::input);
    let sources: Vec<Source> = args.files.iter().map(open).collect::<Result<_, _>>()?;
    let found: Vec<Found> = sources.iter().map(Found::of).collect::<Result<_, _>>()?;
    if let Some(name) = &args.output {
        write(name, &sources, &tokenizer, &found)?;
    }
    if args.json {
        return output::print_json(&json!(found.iter().map(Found::json).collect::<Vec<Value>>()));
    }
    let mut text = found.iter().map(Found::text).collect::<Vec<_>>().join("\n");
    if let Some(name) = &args.output {
        let name = name.display();
        text.push_str(&format!("written       {name}.bin, {name}.idx\n"));
    }
    output::print(&text)
}

/// All documents of `sources`, as indexed data.
fn write(name: &Path, sources: &[Source], tokenizer: &Tokenizer, found: &[Found]) -> Result<(), Failure> {
    if let Some(source) = sources.iter().find(|source| source.is_masked) {
        let what = format!("{} has loss masks, which indexed data cannot hold", source.path.display());
        return Err(Failure::input(what).with_help("Train on the file itself."));
    }
    let vocabulary = match tokenizer {
        Tokenizer::Bytes => data::tokenizer::BYTE_VOCABULARY,
        Tokenizer::File(loaded) => loaded.vocabulary,
    };
    let largest = found.iter().map(|found| u64::from(found.largest) + 1).max().unwrap_or(0);
    let mut writer = megatron::Writer::new(name, vocabulary.max(largest)).map_err(Failure::work)?;
    for source in sources {
        source.each_document(|document| writer.add(document)).map_err(Failure::input)?;
    }
    writer.finish().map_err(Failure::work)
}

/// What was found in a file.
struct Found<'a> {
    source: &'a Source,
    largest: u32,
    /// Tokens that are to be predicted.
    predicted: u64,
}

/// A table in one line of TOML.
fn inline(table: &Value) -> String {
    let fields = table.as_object().into_iter().flatten().map(|(name, value)| format!("{name} = {value}"));
    format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
}

/// The quantiles that are shown, in hundredths.
const QUANTILES: [u64; 7] = [0, 10, 25, 50, 75, 90, 100];

impl Found<'_> {
    fn of(source: &Source) -> Result<Found<'_>, Failure> {
        let (mut largest, mut predicted) = (0, 0);
        let look = |tokens: &[u32]| {
            largest = tokens.iter().map(|token| token & !MASKED).max().unwrap_or(0).max(largest);
            predicted += tokens.iter().filter(|token| **token & MASKED == 0).count() as u64;
            Ok(())
        };
        source.each_piece(look).map_err(Failure::input)?;
        Ok(Found { source, largest, predicted })
    }

    fn documents(&self) -> u64 {
        self.source.lengths.values().sum()
    }

    /// The length that so many hundredths of the documents have at most.
    fn quantile(&self, hundredths: u64) -> u64 {
        let rank = (self.documents().saturating_sub(1) * hundredths).div_ceil(100);
        let mut before = 0;
        let found = self.source.lengths.iter().find(|(_, count)| {
            before += **count;
            before > rank
        });
        found.map_or(0, |(length, _)| *length)
    }

    /// The distribution of the lengths of documents, as `training.documents` takes it.
    fn distribution(&self) -> Option<Value> {
        let lengths: Vec<(u64, u64)> = self.source.lengths.iter().map(|(length, count)| (*length, *count)).collect();
        Some(Draw { lengths: Distribution::of_lengths(&lengths)?, seed: 1 }.to_value())
    }

    fn text(&self) -> String {
        let Source { path, format, width, tokens, is_masked, end, .. } = self.source;
        let mut text = format!("{}\n", path.display());
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<14}{value}\n"));
        let stored = match format {
            data::Format::Megatron | data::Format::Flat | data::Format::LlmC | data::Format::Numpy => {
                format!(", {}", width.name())
            }
            _ => String::new(),
        };
        line("format", format!("{}{stored}", format.name()));
        line("tokens", tokens.to_string());
        if *is_masked {
            line("predicted", format!("{} (the others are masked)", self.predicted));
        }
        line(
            "largest token",
            format!("{}: a model needs a vocabulary of {} or more", self.largest, self.largest + 1),
        );
        if self.documents() > 0 {
            line("documents", self.documents().to_string());
            let mean = *tokens as f64 / self.documents() as f64;
            let shown: Vec<String> = QUANTILES.iter().map(|at| self.quantile(*at).to_string()).collect();
            let [least, tenth, quarter, half, three, nine, most] = &shown[..] else { return text };
            line("lengths", format!("{least} to {most} tokens, {mean:.1} on average"));
            line("quantiles", format!("10 % {tenth}, 25 % {quarter}, 50 % {half}, 75 % {three}, 90 % {nine}"));
        }
        if let Some(distribution) = self.distribution() {
            line("as spec", format!("training.documents = {}", inline(&distribution)));
        }
        if let Some(end) = end {
            line("end", format!("token {end} behind each document"));
        }
        text
    }

    fn json(&self) -> Value {
        let Source { path, format, width, tokens, is_masked, end, .. } = self.source;
        let quantiles: Vec<Value> =
            QUANTILES.iter().map(|at| json!({ "percent": at, "tokens": self.quantile(*at) })).collect();
        let has_documents = self.documents() > 0;
        json!({
            "file": path, "format": format.name(), "type": width.name(), "tokens": tokens,
            "documents": has_documents.then(|| self.documents()), "largest_token": self.largest,
            "masked": is_masked, "predicted_tokens": self.predicted, "end_token": end,
            "document_lengths": has_documents.then_some(quantiles), "training_documents": self.distribution(),
        })
    }
}
