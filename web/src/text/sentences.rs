//! Messages of the planner, adapted to the page.

use pipeplan_core::spec::SpecError;

use super::{bytes, duration};

/// A sentence of the planner with its raw numbers as a person reads them: `4200000 ns` becomes `4.2 ms`.
pub fn readable(text: &str) -> String {
    pipeplan_core::formats::sentence::spelled(text, &|ns| duration(ns as f64), &bytes)
}

/// A message of the planner without the advice to raise a limit above the memory of the device.
pub fn within_device(text: &str, device_bytes: u64) -> String {
    const ADVICE: &str = ": raise limit_bytes, or ";
    let needed = || text.split_once("at least ")?.1.split_once(" bytes")?.0.parse::<u64>().ok();
    match text.split_once(ADVICE) {
        Some((said, other)) if needed().is_some_and(|needed| needed > device_bytes) => {
            format!("{said}; a device has {device_bytes} bytes, so {other}")
        }
        _ => text.to_owned(),
    }
}

/// The message for a file that cannot be read as a spec or as any other file.
pub fn unreadable_file(text: &str, error: &SpecError) -> String {
    // Ops as in drawings of papers: the row gives the stage.
    let is_bare = |word: &str| {
        let number = word.trim_start_matches(['F', 'B', 'W', 'I']);
        number.len() < word.len() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let bare = words.clone().filter(|word| is_bare(word)).count();
    match error {
        _ if 2 * bare > words.count() => {
            "These ops have no stage numbers. A custom schedule has one line per rank, such as `0F0 0F1 0BW0 0BW1`; the first number is the stage."
        }
        SpecError::Faults(faults) if faults.0.iter().all(|fault| fault.field != "the whole input") => {
            "This file is a spec with errors:"
        }
        _ => "This file is not a plan, trace, profile, custom schedule, list of document lengths or spec.",
    }
    .to_owned()
}

/// A message about the command, adapted to the page.
pub fn for_page(sentence: &str) -> String {
    sentence
        .replace("pass it with `--order` and a spec", "open its op lists as a text file over the form of its spec")
}

/// A text that begins with a capital.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// A message of the planner as a sentence: with a capital, unless it begins with the name of a field, and a full stop.
pub fn sentence(message: &str) -> String {
    let message = message.trim();
    let first = message.split_whitespace().next().unwrap_or_default();
    // `operators[0].ns: found …` names a place in a file and stays as it is.
    let is_field = first.strip_suffix(':').is_some_and(|name| name.contains(['.', '_', '[']));
    let mut sentence = if is_field { message.to_owned() } else { capital(message) };
    if !sentence.is_empty() && !sentence.ends_with(['.', '!', '?', ':']) {
        sentence.push('.');
    }
    sentence
}
