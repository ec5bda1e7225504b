//! The planner's sentences for people: raw numbers get units that a person reads.
//!
//! Core writes exact numbers, which programs and tests rely on. The caller decides how many digits a person sees.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// `text` with its times and bytes as `duration` (of nanoseconds) and `bytes` write them: `4200000 ns` becomes
/// `4.2 ms`. The number in `the limit is 80` is bytes too.
pub fn spelled(text: &str, duration: &dyn Fn(u64) -> String, bytes: &dyn Fn(u64) -> String) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| spelled_line(line, duration, bytes)).collect();
    lines.join("\n")
}

fn spelled_line(sentence: &str, duration: &dyn Fn(u64) -> String, bytes: &dyn Fn(u64) -> String) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest_of = sentence.split(' ').peekable();
    while let Some(word) = rest_of.next() {
        let unit = word.trim_end_matches(['.', ',', ';', ':', ')']);
        let rest = &word[unit.len()..];
        let number = words.last().and_then(|number| number.trim_start_matches('(').parse::<u64>().ok());
        let readable = match (number, unit) {
            (Some(number), "ns") => Some(duration(number)),
            (Some(number), "bytes" | "byte") => Some(bytes(number)),
            _ => None,
        };
        // “the limit is 80”: the unit stands earlier in the sentence. A number with a unit is readable already.
        if rest_of.peek().is_none_or(|next| !next.starts_with(['b', 'B', 'K', 'M', 'G', 'T', 'P', 'E']))
            && let [.., limit, is] = words.as_slice()
            && (limit.as_str(), is.as_str()) == ("limit", "is")
            && let Ok(number) = unit.parse::<u64>()
        {
            words.push(bytes(number) + rest);
            continue;
        }
        match (readable, words.last_mut()) {
            (Some(readable), Some(last)) => {
                let opened = if last.starts_with('(') { "(" } else { "" };
                *last = [opened, &readable, rest].concat();
            }
            _ => words.push(word.to_string()),
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn numbers_with_units_are_spelled_and_others_stay() {
        let spelled = |text: &str| spelled(text, &|ns| format!("<{ns} t>"), &|bytes| format!("<{bytes} b>"));
        for (text, wanted) in [
            (
                "rank 3 has 4200000 ns of work, and 90000 ns must follow (1024 bytes).",
                "rank 3 has <4200000 t> of work, and <90000 t> must follow (<1024 b>).",
            ),
            ("no ns here", "no ns here"),
            ("the limit is 20 GiB; raise it", "the limit is 20 GiB; raise it"),
            (
                "rank 0 needs 2048 bytes; the limit is 1024: raise it\n  or",
                "rank 0 needs <2048 b>; the limit is <1024 b>: raise it\n  or",
            ),
            ("", ""),
        ] {
            assert_eq!(spelled(text), wanted);
        }
    }
}
