//! Words as what they stand for.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::arithmetic::Number;
use super::state::{Done, Shell, Variable};
use super::syntax::{Change, List, Parameter, Piece, Word};
use super::words::braces;
use super::{mark, only_unknown, pattern, unknown_in};

/// What a parameter stands for.
enum Values {
    One(String),
    /// The elements of a list, and whether they become one word: `"${A[*]}"`.
    Many(Vec<String>, bool),
}

/// Words that are being made.
#[derive(Default)]
struct Fields {
    done: Vec<String>,
    open: Option<String>,
}

impl Fields {
    fn push(&mut self, text: &str) {
        self.open.get_or_insert_default().push_str(text);
    }

    fn close(&mut self) {
        self.done.extend(self.open.take());
    }

    /// An unquoted value: each of these letters ends a word.
    fn split(&mut self, text: &str, separators: &str) {
        let mut behind_blank = false;
        for letter in text.chars() {
            match separators.contains(letter) {
                true if letter.is_whitespace() => {
                    self.close();
                    behind_blank = true;
                }
                true => {
                    if !behind_blank || self.open.is_some() {
                        self.open.get_or_insert_default();
                    }
                    self.close();
                    behind_blank = false;
                }
                false => {
                    self.open.get_or_insert_default().push(letter);
                    behind_blank = false;
                }
            }
        }
    }
}

impl Shell<'_> {
    /// The words that `words` become.
    pub(super) fn words(&mut self, words: &[Word]) -> Done<Vec<String>> {
        let mut all = Vec::new();
        for word in words {
            self.braced(word, 0, &mut all)?;
        }
        Ok(all)
    }

    fn braced(&mut self, word: &Word, depth: usize, all: &mut Vec<String>) -> Done<()> {
        if let Some(words) = braces(word).filter(|_| depth < 4) {
            for word in &words {
                self.braced(word, depth + 1, all)?;
            }
            return Ok(());
        }
        let fields = self.fields(word)?;
        self.spend(fields.iter().map(String::len).sum())?;
        all.extend(fields);
        match all.len() > 100_000 {
            true => self.wrong("a command of more than 100000 words"),
            false => Ok(()),
        }
    }

    fn separators(&self) -> String {
        match self.state.variables.get("IFS") {
            Some(Variable::Text(text)) => text.clone(),
            _ => " \t\n".into(),
        }
    }

    fn fields(&mut self, word: &Word) -> Done<Vec<String>> {
        let mut fields = Fields::default();
        let separators = self.separators();
        for piece in &word.0 {
            let (values, quoted) = match piece {
                Piece::Text { text, .. } => {
                    fields.push(text);
                    continue;
                }
                Piece::Parameter { parameter, quoted } => (self.parameter(parameter)?, *quoted),
                Piece::Output { list, source, quoted } => (Values::One(self.output(list, source)?), *quoted),
                piece => {
                    let text = self.piece(piece)?;
                    fields.push(&text);
                    continue;
                }
            };
            match values {
                Values::One(text) if quoted => fields.push(&text),
                Values::One(text) => fields.split(&text, &separators),
                Values::Many(values, true) if quoted => fields.push(&self.joined(&values)),
                Values::Many(values, _) => {
                    // `"$@"` of nothing is no word, though quotes alone are one.
                    if values.is_empty() && quoted && word.0.len() == 2 && fields.open.as_deref() == Some("") {
                        fields.open = None;
                    }
                    for (index, value) in values.iter().enumerate() {
                        if index > 0 {
                            fields.close();
                        }
                        match quoted {
                            true => fields.push(value),
                            false => fields.split(value, &separators),
                        }
                    }
                }
            }
        }
        fields.close();
        Ok(fields.done)
    }

    /// By the first letter of `IFS`.
    fn joined(&self, values: &[String]) -> String {
        let separators = self.separators();
        let first: String = separators.chars().take(1).collect();
        values.join(&first)
    }

    /// One text: of an assignment, or between quotes.
    pub(super) fn text(&mut self, word: &Word) -> Done<String> {
        let mut all = String::new();
        for piece in &word.0 {
            let text = self.piece(piece)?;
            all.push_str(&text);
            self.within(&all)?;
        }
        Ok(all)
    }

    fn piece(&mut self, piece: &Piece) -> Done<String> {
        Ok(match piece {
            Piece::Text { text, .. } => text.clone(),
            Piece::Parameter { parameter, .. } => match self.parameter(parameter)? {
                Values::One(text) => text,
                Values::Many(values, true) => self.joined(&values),
                Values::Many(values, false) => values.join(" "),
            },
            Piece::Arithmetic(word) => {
                let text = self.text(word)?;
                match self.calculate(&text, 0)? {
                    Number::Known(number) => number.to_string(),
                    Number::Unknown(unknown) => mark(unknown),
                }
            }
            Piece::Output { list, source, .. } => self.output(list, source)?,
            Piece::Process => mark(self.unknown("<(…)", false)),
        })
    }

    /// A pattern, with a backslash before what is quoted.
    pub(super) fn pattern(&mut self, word: &Word) -> Done<String> {
        let mut all = String::new();
        for piece in &word.0 {
            let is_plain = match piece {
                Piece::Text { quoted, .. } | Piece::Parameter { quoted, .. } | Piece::Output { quoted, .. } => {
                    !quoted
                }
                _ => false,
            };
            for letter in self.piece(piece)?.chars() {
                if !is_plain && "*?[]\\".contains(letter) {
                    all.push('\\');
                }
                all.push(letter);
            }
        }
        Ok(self.within(&all)?.into())
    }

    /// What commands print, without the ends of lines behind it.
    fn output(&mut self, list: &List, source: &str) -> Done<String> {
        let before = self.state.clone();
        self.spend(source.len() + before.variables.len())?;
        let (status, ended, input) = (self.status, self.ended, self.input.take());
        self.state.out = Some(String::new());
        self.depth += 1;
        if self.depth > super::DEEPEST {
            return self.wrong("commands are nested too deep");
        }
        self.list(list)?;
        self.depth -= 1;
        let printed = core::mem::replace(&mut self.state, before).out.unwrap_or_default();
        (self.status, self.ended, self.input) = (status, ended, input);
        let text = printed.trim_end_matches('\n');
        let is_other = |unknown: usize| self.unknowns.get(unknown).is_some_and(|one| !one.is_variable);
        Ok(match unknown_in(text).is_some_and(is_other) {
            true => {
                mark(self.unknown(&format!("$({})", source.split_whitespace().collect::<Vec<_>>().join(" ")), false))
            }
            false => text.into(),
        })
    }

    /// A variable's text: for a list its first element.
    pub(super) fn variable(&mut self, name: &str) -> Option<String> {
        self.is_given(name);
        match self.state.variables.get(name)? {
            Variable::Text(text) => Some(text.clone()),
            Variable::List(list) => list.get(&0).cloned(),
            Variable::Map(map) => map.get("0").cloned(),
        }
    }

    fn parameter(&mut self, of: &Parameter) -> Done<Values> {
        if of.sign == Some('!') {
            return self.indirect(of);
        }
        let (values, is_set) = self.values(of)?;
        if of.sign == Some('#') {
            return Ok(Values::One(match &values {
                Values::Many(values, _) => values.len().to_string(),
                Values::One(text) => match unknown_in(text) {
                    Some(unknown) => mark(unknown),
                    None => text.chars().count().to_string(),
                },
            }));
        }
        match &of.change {
            None => Ok(values),
            Some(Change::Otherwise { sign, or_empty, word }) => {
                self.otherwise(of, (values, is_set), (*sign, *or_empty), word)
            }
            Some(Change::Slice { from, length }) if matches!(values, Values::Many(..)) => {
                let Values::Many(values, star) = values else { return Ok(values) };
                let (from, to) = self.slice(values.len(), from, length.as_ref())?;
                Ok(Values::Many(values.get(from..to).unwrap_or_default().to_vec(), star))
            }
            Some(change) => Ok(match values {
                Values::One(text) => Values::One(self.changed(&text, change)?),
                Values::Many(values, star) => {
                    let changed: Done<Vec<String>> = values.iter().map(|value| self.changed(value, change)).collect();
                    Values::Many(changed?, star)
                }
            }),
        }
    }

    /// `${!X}`, or the keys of a list.
    fn indirect(&mut self, of: &Parameter) -> Done<Values> {
        let at = of.index.as_ref().and_then(Word::plain);
        if matches!(at, Some("@" | "*")) {
            return Ok(Values::Many(
                match self.state.variables.get(&of.name) {
                    Some(Variable::List(list)) => list.keys().map(u64::to_string).collect(),
                    Some(Variable::Map(map)) => map.keys().cloned().collect(),
                    Some(Variable::Text(_)) => alloc::vec!["0".into()],
                    None => Vec::new(),
                },
                at == Some("*"),
            ));
        }
        let name = self.variable(&of.name).unwrap_or_else(|| self.unset(&of.name));
        if unknown_in(&name).is_some() {
            return Ok(Values::One(name));
        }
        let (name, index) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
            Some((name, index)) => (name.to_string(), Some(Word::of(index))),
            None => (name, None),
        };
        let inner = Parameter { name, index, sign: None, change: of.change.clone() };
        self.parameter(&inner)
    }

    /// All that the script is called with is read.
    fn use_numbers(&mut self) {
        let is_number = |name: &&String| name.chars().all(|letter| letter.is_ascii_digit());
        self.used.extend(self.given.keys().filter(is_number).cloned());
    }

    /// The values of a parameter, and whether it is set.
    fn values(&mut self, of: &Parameter) -> Done<(Values, bool)> {
        let one = |text: &str| Ok((Values::One(text.into()), true));
        match of.name.as_str() {
            "@" | "*" => {
                self.use_numbers();
                let values = self.state.called_with.clone();
                let is_set = !values.is_empty();
                if !is_set && self.depth <= 1 {
                    self.notes.insert("what the script is called with ($@) is taken as nothing".into());
                }
                return Ok((Values::Many(values, of.name == "*"), is_set));
            }
            "#" => {
                self.use_numbers();
                return match self.state.called_with.is_empty() {
                    true => Ok((Values::One(self.unset("#")), true)),
                    false => one(&self.state.called_with.len().to_string()),
                };
            }
            "?" => return one(if self.status == super::state::Status::Failed { "1" } else { "0" }),
            "$" | "!" => return one("1"),
            "-" => return one(""),
            "0" => return one("script"),
            name if name.starts_with(|letter: char| letter.is_ascii_digit()) => {
                let number: usize = name.parse().unwrap_or(usize::MAX);
                let value = self.state.called_with.get(number.wrapping_sub(1)).cloned();
                self.is_given(name);
                let is_set = value.is_some();
                return Ok((Values::One(value.unwrap_or_else(|| self.unset(name))), is_set));
            }
            _ => {}
        }
        let name = of.name.as_str();
        let Some(index) = &of.index else {
            let value = self.variable(name);
            let is_set = value.is_some();
            if !is_set && self.grows.as_deref() == Some(name) {
                return Ok((Values::One(String::new()), false));
            }
            return Ok((Values::One(value.unwrap_or_else(|| self.unset(name))), is_set));
        };
        self.is_given(name);
        let index = self.text(index)?;
        if index == "@" || index == "*" {
            let values: Vec<String> = match self.state.variables.get(name) {
                Some(Variable::List(list)) => list.values().cloned().collect(),
                Some(Variable::Map(map)) => map.values().cloned().collect(),
                Some(Variable::Text(text)) => alloc::vec![text.clone()],
                None if self.state.has_sourced => alloc::vec![self.unset(name)],
                None => Vec::new(),
            };
            let is_set = !values.is_empty();
            return Ok((Values::Many(values, index == "*"), is_set));
        }
        let value = self.element(name, &index)?;
        let is_set = value.is_some();
        Ok((Values::One(value.unwrap_or_default()), is_set))
    }

    fn element(&mut self, name: &str, index: &str) -> Done<Option<String>> {
        let unknown = unknown_in(index);
        let list: BTreeMap<u64, String> = match self.state.variables.get(name) {
            Some(Variable::Map(map)) => {
                let known: Vec<String> = map.keys().cloned().collect();
                return Ok(match unknown {
                    Some(unknown) => {
                        self.compared(index, &known);
                        Some(mark(unknown))
                    }
                    None => map.get(index).cloned(),
                });
            }
            Some(Variable::List(list)) => list.clone(),
            Some(Variable::Text(text)) => BTreeMap::from([(0, text.clone())]),
            None => BTreeMap::new(),
        };
        self.spend(list.len())?;
        let at = match self.calculate(index, 0)? {
            Number::Known(at) => at,
            Number::Unknown(unknown) => return Ok(Some(mark(unknown))),
        };
        let end = list.keys().next_back().map_or(0, |last| *last as i64 + 1);
        let at = if at < 0 { at + end } else { at };
        Ok(u64::try_from(at).ok().and_then(|at| list.get(&at).cloned()))
    }

    /// What a person may give for an unknown that is compared with these.
    pub(super) fn compared(&mut self, text: &str, values: &[String]) {
        if let Some(unknown) = only_unknown(text).and_then(|unknown| self.unknowns.get_mut(unknown)) {
            let room = 50usize.saturating_sub(unknown.values.len());
            let plain = values.iter().filter(|value| !value.is_empty() && unknown_in(value).is_none());
            unknown.values.extend(plain.take(room).cloned());
        }
    }

    fn otherwise(
        &mut self,
        of: &Parameter,
        (values, is_set): (Values, bool),
        (sign, or_empty): (char, bool),
        word: &Word,
    ) -> Done<Values> {
        let is_empty = match &values {
            Values::One(text) => text.is_empty(),
            Values::Many(values, _) => values.iter().all(String::is_empty),
        };
        let of_unset = matches!(&values, Values::One(text) if self.is_unset(text));
        let is_there = is_set && !of_unset && !(or_empty && is_empty);
        let other = |this: &mut Self| match word.0.as_slice() {
            [Piece::Parameter { parameter, .. }] => this.parameter(parameter),
            _ => this.text(word).map(Values::One),
        };
        Ok(match sign {
            '+' if is_there => other(self)?,
            '+' => match &values {
                Values::Many(_, star) => Values::Many(Vec::new(), *star),
                Values::One(_) => Values::One(String::new()),
            },
            _ if is_there => values,
            '?' => Values::One(self.unset(&of.name)),
            sign => {
                let value = other(self)?;
                if let (Values::One(text), '=') = (&value, sign) {
                    self.set(&of.name, Variable::Text(text.clone()))?;
                }
                value
            }
        })
    }

    fn slice(&mut self, count: usize, from: &Word, length: Option<&Word>) -> Done<(usize, usize)> {
        let mut number = |word: &Word| -> Done<i64> {
            let text = self.text(word)?;
            match self.calculate(&text, 0)? {
                Number::Known(number) => Ok(number),
                Number::Unknown(_) => self.wrong("a piece of a text whose place depends on the environment"),
            }
        };
        let count = count as i64;
        let from = number(from)?;
        let from = if from < 0 { from.saturating_add(count) } else { from }.clamp(0, count);
        let to = match length {
            Some(length) => {
                let length = number(length)?;
                if length < 0 { length.saturating_add(count) } else { from.saturating_add(length) }
            }
            None => count,
        };
        Ok((from as usize, to.clamp(from, count) as usize))
    }

    fn changed(&mut self, text: &str, change: &Change) -> Done<String> {
        if let Some(unknown) = unknown_in(text) {
            return Ok(mark(unknown));
        }
        let letters: Vec<char> = text.chars().collect();
        // Each try of a pattern reads what is left.
        self.spend(letters.len().saturating_mul(letters.len()) / 8)?;
        Ok(match change {
            Change::Otherwise { .. } => text.into(),
            Change::Slice { from, length } => {
                let (from, to) = self.slice(letters.len(), from, length.as_ref())?;
                letters[from..to].iter().collect()
            }
            Change::Case { upper, all } => {
                let one = |(index, letter): (usize, &char)| match (index == 0 || *all, *upper) {
                    (true, true) => letter.to_ascii_uppercase(),
                    (true, false) => letter.to_ascii_lowercase(),
                    _ => *letter,
                };
                letters.iter().enumerate().map(one).collect()
            }
            Change::Cut { at_end, longest, pattern } => {
                let pattern = self.pattern(pattern)?;
                let cut = |at: usize| -> (String, String) {
                    (letters[..at].iter().collect(), letters[at..].iter().collect())
                };
                let places = 0..=letters.len();
                let fits = |at: &usize| {
                    let (before, behind) = cut(*at);
                    pattern::fits(&pattern, if *at_end { &behind } else { &before })
                };
                // The longest start ends last, the longest end begins first.
                let at = match *at_end == *longest {
                    true => places.clone().find(fits),
                    false => places.clone().rev().find(fits),
                };
                match at.map(cut) {
                    Some((before, _)) if *at_end => before,
                    Some((_, behind)) => behind,
                    None => text.into(),
                }
            }
            Change::Replace { all, at, pattern, with } => {
                let (pattern, with) = (self.pattern(pattern)?, self.text(with)?);
                self.within(&replaced(&letters, (*all, *at), &pattern, &with))?.into()
            }
        })
    }
}

fn replaced(letters: &[char], (all, place): (bool, Option<char>), pattern: &str, with: &str) -> String {
    let (mut made, mut at) = (String::new(), 0);
    // Long texts are searched for what is no longer than this.
    const MOST: usize = 4_096;
    while at <= letters.len() {
        let ends = (at + 1..=letters.len().min(at + MOST)).rev();
        let found = ends
            .filter(|end| place != Some('%') || *end == letters.len())
            .find(|end| pattern::fits(pattern, &letters[at..*end].iter().collect::<String>()));
        match found {
            Some(end) => {
                made.push_str(with);
                at = end;
                if !all {
                    break;
                }
            }
            None if place == Some('#') => break,
            None => {
                made.extend(letters.get(at));
                at += 1;
            }
        }
    }
    made.extend(letters.get(at..).unwrap_or_default());
    made
}
