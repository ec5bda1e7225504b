//! Numbers and names as a person reads them.

use pipeplan_core::spec::SpecError;

use crate::form::FIELDS;
use crate::message::FieldFault;

/// What MFU is, in a tip.
pub const MFU: &str = "Model FLOPs utilisation: see How to read this";

/// A duration with three or four significant digits: `12.35 ms`.
pub fn duration(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        ns_abs if ns_abs < 999.5 => return format!("{} ns", trimmed(ns, 1)),
        ns_abs if ns_abs < 999.95e3 => (ns / 1e3, "µs"),
        ns_abs if ns_abs < 999.95e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// Whether a duration is less than another, and reads so.
pub fn is_less(ns: u64, than_ns: u64) -> bool {
    ns < than_ns && duration(ns as f64) != duration(than_ns as f64)
}

/// An amount of memory in binary units: `12.4 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", significant(value), UNITS[unit])
}

/// A share as a percentage: `27.3 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    // A bubble of 0.004 % is not none.
    if percent > 0.0 && percent < 0.05 { format!("{} %", trimmed(percent, 3)) } else { format!("{percent:.1} %") }
}

/// Model FLOPs utilisation. Above 100 % it is of another device than the one that was measured.
pub fn mfu(share: f64) -> String {
    if share > 1.0 { "over 100 %".to_owned() } else { percent(share) }
}

/// How much more or less than `of`.
pub fn change(ns: u64, of: u64) -> String {
    let share = ns as f64 / of.max(1) as f64 - 1.0;
    match ns.cmp(&of) {
        core::cmp::Ordering::Equal => "0".to_owned(),
        core::cmp::Ordering::Greater => format!("+{:.2} %", 100.0 * share),
        core::cmp::Ordering::Less => format!("−{:.2} %", -100.0 * share),
    }
}

/// A whole number with thin gaps between groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// `1 core`, `2 cores`: a whole number of what `thing` names.
pub fn counted(number: usize, thing: &str) -> String {
    let end = match number {
        1 => "",
        _ if thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {thing}{end}")
}

/// A sentence of the planner with its raw numbers as a person reads them: `4200000 ns` becomes `4.2 ms`.
pub fn humanised(text: &str) -> String {
    pipeplan_core::formats::sentence::spelled(text, &|ns| duration(ns as f64), &bytes)
}

/// As [`humanised`], of what is wrong with a form: with the names of its fields, so that `limit_bytes` becomes
/// `“Limit a rank”`.
pub fn worded(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut said = String::new();
    for piece in humanised(text).split_inclusive(|c| !is_name(c)) {
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

/// A sentence of the planner that does not advise to raise a limit where a rank needs more than its device has: what the
/// limit of a real device is raised above is not there.
pub fn within_device(text: &str, device_bytes: u64) -> String {
    const ADVICE: &str = "; raise limit_bytes, or ";
    let needed = || text.split_once("at least ")?.1.split_once(" bytes")?.0.parse::<u64>().ok();
    match text.split_once(ADVICE) {
        Some((said, other)) if needed().is_some_and(|needed| needed > device_bytes) => {
            format!("{said}; a device has {device_bytes} bytes, so {other}")
        }
        _ => text.to_owned(),
    }
}

/// The fault of a field of the form that a sentence of the planner tells of, as faults are written: `FIELD: found …, accepted
/// is …`.
pub fn fault_of(sentence: &str) -> Option<FieldFault> {
    let (field, fault) = sentence.split_once(": found ")?;
    let (found, accepted) = fault.split_once(", accepted is ")?;
    FIELDS.iter().find(|known| known.path == field)?;
    Some(FieldFault { field: field.to_owned(), found: found.to_owned(), accepted: accepted.to_owned() })
}

/// What a file is taken for that cannot be read as a spec, after all else has been tried.
pub fn no_file(text: &str, error: &SpecError) -> String {
    // As drawings have ops, and as papers do: of which stage they are is said by the row.
    let is_bare = |word: &str| {
        let number = word.trim_start_matches(['F', 'B', 'W', 'I']);
        number.len() < word.len() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let bare = words.clone().filter(|word| is_bare(word)).count();
    match error {
        _ if 2 * bare > words.count() => {
            "These ops do not say their stage: an order has one line a rank, such as `0F0 0F1 0BW0 0BW1`, where the first              number is the stage."
        }
        SpecError::Faults(faults) if faults.0.iter().all(|fault| fault.field != "the whole input") => {
            "This file reads as a spec, with faults:"
        }
        _ => "This file is no plan, no trace, no profile, no order of ops and no spec.",
    }
    .to_owned()
}

/// A sentence of the planner that tells of the command, for those who have the page before them.
pub fn on_page(sentence: &str) -> String {
    sentence.replace("give it with `--order` to a spec", "open its rows as a text file over the form of its spec")
}

/// What the form calls a field, by its path or, where it is no word of a sentence, by the last part of it.
fn label_of(name: &str) -> Option<&'static str> {
    let is_it = |path: &str| path == name || name.contains('_') && path.rsplit('.').next() == Some(name);
    let known = name.contains(['_', '.']).then(|| FIELDS.iter().find(|field| is_it(field.path))).flatten();
    known.map(|field| field.label)
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
    // `operators[0].ns: found …` is to be found in a file as it stands here.
    let is_field = first.strip_suffix(':').is_some_and(|name| name.contains(['.', '_', '[']));
    let mut sentence = if is_field { message.to_owned() } else { capital(message) };
    if !sentence.is_empty() && !sentence.ends_with(['.', '!', '?', ':']) {
        sentence.push('.');
    }
    sentence
}

/// Three to four digits, whatever the size.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 1,
        value if value >= 10.0 => 2,
        _ => 3,
    };
    trimmed(value, decimals)
}

/// At most `decimals` places, without trailing zeros.
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_before_the_number_grows_a_fourth_digit() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (999.0, "999 ns"),
            (999.9, "1 µs"),
            (1_500.0, "1.5 µs"),
            (999_949.0, "999.9 µs"),
            (999_960.0, "1 ms"),
            (12_345_678.0, "12.35 ms"),
            (61e9, "61 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
        for (amount, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1024 * 1024 - 1, "1 MiB"),
            (80 << 30, "80 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
    }

    #[test]
    fn a_small_share_is_not_shown_as_none() {
        assert_eq!(percent(0.0), "0.0 %");
        assert_eq!(percent(9.0 / 33.0), "27.3 %");
        assert_eq!(percent(0.00004), "0.004 %");
    }

    #[test]
    fn numbers_in_sentences_become_readable() {
        assert_eq!(
            humanised("rank 3 has 4200000 ns of work, and 90000 ns must follow (1024 bytes)."),
            "rank 3 has 4.2 ms of work, and 90 µs must follow (1 KiB)."
        );
    }

    #[test]
    fn fields_in_sentences_are_called_what_the_form_calls_them() {
        for (said, read) in [
            ("raise limit_bytes, or take less.", "raise “Limit a rank”, or take less."),
            ("training.microbatches: found 0; accepted is 1", "“Microbatches”: found 0; accepted is 1"),
            ("its model holds 1.5 GiB... and x_y", "its model holds 1.5 GiB... and x_y"),
            ("ranks of this name", "ranks of this name"),
            ("model.layers.*.weight, as jitter_permille.", "model.layers.*.weight, as “Jitter”."),
        ] {
            assert_eq!(worded(said), read);
        }
    }

    /// As both say it that know how little a rank can do with.
    #[test]
    fn no_limit_is_to_be_raised_above_the_device() {
        use pipeplan_core::bounds::Infeasible;
        use pipeplan_core::problem::op::{Op, OpKind};
        use pipeplan_core::search;
        let op = Op::new(0, OpKind::F, 0);
        let least = Infeasible { rank: 1, needed_bytes: 90, limit_bytes: 80, op }.to_string();
        let search = search::Infeasible { rank: 1, least_bytes: 90, limit_bytes: 80 }.to_string();
        for said in [least, search] {
            assert_eq!(within_device(&said, 90), said);
            let within = within_device(&said, 89);
            assert!(!within.contains("raise") && within.contains("; a device has 89 bytes, so "), "{within}");
        }
    }

    #[test]
    fn messages_become_sentences() {
        assert_eq!(sentence("rank 3 has work"), "Rank 3 has work.");
        assert_eq!(sentence("Done."), "Done.");
        assert_eq!(sentence("operators[0].ns: found -1"), "operators[0].ns: found -1.");
        assert_eq!(sentence(""), "");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_taken_for_what_it_is_most_like() {
        use pipeplan_core::spec::Spec;
        for (text, said) in [
            ("F0 F1 B0 B1\nF0 B0 F1 B1", "These ops do not say their stage"),
            ("0 | F0 F1 .. B0 W0 F2\n1 | .. F0 B0 F1 W0 B1", "These ops do not say their stage"),
            ("parallel.pipeline = -8\ntraining.microbatchs = 32", "This file reads as a spec, with faults:"),
            ("[1, 2]", "This file is no plan"),
            ("Dear Sir or Madam", "This file is no plan"),
        ] {
            let told = no_file(text, &Spec::read(text).unwrap_err());
            assert!(told.starts_with(said), "{text}: {told}");
        }
    }

    /// What a plan that was changed is told, without an option of the command.
    #[test]
    fn the_page_is_told_of_without_options_of_the_command() {
        use pipeplan_core::plan::Plan;
        use pipeplan_core::plan::planner;
        use pipeplan_core::spec::Spec;
        let spec =
            Spec::read(r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1, "backward_input_ns": 1 } }"#);
        let plan = planner::plan(&spec.unwrap(), "1f1b").unwrap().to_json();
        let changed = Plan::from_json(&plan.replace("1f1b", "gpipe")).unwrap_err().to_string();
        let told = on_page(&changed);
        assert!(changed.contains("--order") && !told.contains("--order"), "{told}");
        assert!(told.contains("open its rows as a text file"), "{told}");
    }

    #[test]
    fn what_is_counted_is_named_by_its_number() {
        assert_eq!(counted(1, "rank"), "1 rank");
        assert_eq!(counted(2, "rank"), "2 ranks");
        assert_eq!(counted(10, "microbatch"), "10 microbatches");
    }

    #[test]
    fn groups_of_three() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
