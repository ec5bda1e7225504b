//! Readers of `reference/`, and the problem files that their rows stand for.

use serde_json::{Value, json};

use crate::judge::{Problem, Verdict};

/// A table of `reference/` by its file name.
///
/// # Panics
/// Where the file is missing or no JSON: a broken checkout.
pub fn read(name: &str) -> Value {
    let path = format!("{}/reference/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The items of a list, or none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A whole number of a table, 0 where there is none.
pub fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or(0) as usize
}

/// Milliseconds of a table as whole nanoseconds.
pub fn ms(value: &Value) -> u64 {
    (value.as_f64().unwrap_or(0.0) * 1e6).round() as u64
}

/// A problem with equal stages, as a table states it.
#[derive(Clone, Copy, Debug)]
pub struct Even {
    /// Ranks.
    pub p: usize,
    /// Microbatches.
    pub m: usize,
    /// Chunks a rank.
    pub v: usize,
    /// Durations of F, B and W of one chunk.
    pub times: [u64; 3],
    /// One hop.
    pub hop: u64,
    /// Bytes that F, B and W of one chunk add.
    pub bytes: [i64; 3],
}

impl Even {
    /// The problem file, with the placement of that name, judged by the longest span.
    pub fn file(&self, placement: &str) -> Value {
        let Even { p, m, v, times, hop, bytes } = *self;
        json!({
            "ranks": p, "chunks": v, "microbatches": m, "placement": placement,
            "stages": {
                "forward_ns": times[0], "backward_input_ns": times[1], "backward_weight_ns": times[2],
                "forward_bytes": bytes[0], "backward_input_bytes": bytes[1], "backward_weight_bytes": bytes[2],
            },
            "transfer_ns": hop, "static_bytes": 0, "limit_bytes": null, "objective": "longest_span",
        })
    }
}

/// What the judge says of `rows` for the problem in `file`.
///
/// # Errors
/// The judge's refusal.
pub fn judge<S: AsRef<str>>(file: &Value, rows: &[S]) -> Result<Verdict, String> {
    Problem::read(file)?.judge(&rows.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

/// An order of `torch_reference.json` in our words: its `I` is our B, its `B` our BW, `a+b` a pair of ops.
pub fn torch_rows(order: &Value) -> Vec<String> {
    let word = |word: &str| word.replace('B', "BW").replace('I', "B");
    let row = |row: &Value| row.as_str().unwrap_or("").replace('+', " ").split(' ').map(word).collect::<Vec<_>>();
    list(order).iter().map(|text| row(text).join(" ")).collect()
}

/// An order of `zero_bubble_reference.json` in our words. Its letters name the chunk by their case and the
/// job as F, B, W, or X for the fused backward; only rows of at most two chunks are written that way.
pub fn public_rows(orders: &Value, ranks: usize, placement: &str) -> Vec<String> {
    let word = |rank: usize, word: &str| {
        let (letter, microbatch) = word.split_at(1);
        let chunk = usize::from(letter.chars().all(char::is_lowercase));
        let stage = match (chunk, placement) {
            (0, _) => rank,
            (_, "v") => 2 * ranks - 1 - rank,
            _ => ranks + rank,
        };
        let job = letter.to_uppercase().replace('X', "BW");
        format!("{stage}{job}{microbatch}")
    };
    let row = |(rank, text): (usize, &Value)| {
        text.as_str().unwrap_or("").split(' ').map(|text| word(rank, text)).collect::<Vec<_>>().join(" ")
    };
    list(orders).iter().enumerate().map(row).collect()
}
