//! Labels of the form in messages of the planner.

use pipeplan_core::base::fields::Fault;

use super::FIELDS;
use crate::text::readable;

/// As [`readable`], with the labels of the form in place of field names: `limit_bytes` becomes `“Memory limit per
/// GPU”`.
pub fn with_labels(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut said = String::new();
    for piece in readable(text).split_inclusive(|c| !is_name(c)) {
        // A full stop is no part of a name; a point before more of the name is.
        let name = piece.trim_end_matches(|c| !is_name(c) || c == '.');
        let after = &piece[name.len()..];
        let is_whole = !after.starts_with('.') || after.trim_end() == ".";
        match label_of(name).filter(|_| is_whole) {
            Some(label) => said.push_str(&format!("“{label}”")),
            None => said.push_str(name),
        }
        said.push_str(after);
    }
    said
}

/// The label of a field, by its path or by the last part of its path.
fn label_of(name: &str) -> Option<&'static str> {
    let is_it = |path: &str| path == name || name.contains('_') && path.rsplit('.').next() == Some(name);
    let known = name.contains(['_', '.']).then(|| FIELDS.iter().find(|field| is_it(field.path))).flatten();
    known.map(|field| field.label)
}

/// The fault of a field of the form in a message of the planner, which has the form `FIELD: found …, accepted is …`.
pub fn fault_of(sentence: &str) -> Option<Fault> {
    let (field, fault) = sentence.split_once(": found ")?;
    let (found, accepted) = fault.split_once(", accepted is ")?;
    FIELDS.iter().find(|known| known.path == field)?;
    Some(Fault::new(field, found, accepted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_sentences_are_called_what_the_form_calls_them() {
        for (said, read) in [
            ("raise limit_bytes, or take less.", "raise “Memory limit per GPU”, or take less."),
            ("training.microbatches: found 0; accepted is 1", "“Microbatches”: found 0; accepted is 1"),
            ("its model holds 1.5 GiB... and x_y", "its model holds 1.5 GiB... and x_y"),
            ("ranks of this name", "ranks of this name"),
            ("model.layers.*.weight, as jitter_permille.", "model.layers.*.weight, as “Jitter”."),
        ] {
            assert_eq!(with_labels(said), read);
        }
    }
}
