//! Patterns of file names, which `case`, `[[` and `${X%…}` use.

use alloc::vec::Vec;

/// Whether `text` is what `pattern` says, where a backslash takes the next letter as it is.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut here) = (0, 0);
    // Where the last star stands, and how much it takes.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, here));
            at += 1;
            continue;
        }
        match (one(&pattern, at, text.get(here).copied()), text.get(here)) {
            (Some(next), Some(_)) => {
                (at, here) = (next, here + 1);
                continue;
            }
            (_, None) if at == pattern.len() => return true,
            _ => {}
        }
        match star {
            Some((of, taken)) if taken < text.len() => {
                star = Some((of, taken + 1));
                (at, here) = (of + 1, taken + 1);
            }
            _ => return false,
        }
    }
}

/// Where the pattern goes on behind what takes `letter`.
fn one(pattern: &[char], at: usize, letter: Option<char>) -> Option<usize> {
    let letter = letter?;
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '\\' => (pattern.get(at + 1) == Some(&letter)).then_some(at + 2),
        '[' => {
            // A bracket right behind the first one is a letter.
            let rest = pattern.get(at + 2..).unwrap_or_default();
            let Some(length) = rest.iter().position(|letter| *letter == ']') else {
                return (letter == '[').then_some(at + 1);
            };
            let inside = &pattern[at + 1..at + 2 + length];
            let (negated, inside) = match inside.first() {
                Some('!' | '^') => (true, &inside[1..]),
                _ => (false, inside),
            };
            let mut has = false;
            let mut index = 0;
            while let Some(first) = inside.get(index) {
                if inside.get(index + 1) == Some(&'-')
                    && let Some(last) = inside.get(index + 2)
                {
                    has |= (*first..=*last).contains(&letter);
                    index += 3;
                } else {
                    has |= *first == letter;
                    index += 1;
                }
            }
            (has != negated).then_some(at + 3 + length)
        }
        literal => (*literal == letter).then_some(at + 1),
    }
}
