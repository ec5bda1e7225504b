//! Words: quotes, parameters, arithmetic and the output of commands.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::in_name;
use super::parse::{Parsed, Parser};
use super::syntax::{Change, Parameter, Piece, Word};

/// Where a piece of a word stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Bare,
    Quoted,
    /// In `"${…}"`: a double quote begins a quote, a single one is a letter.
    BracedQuoted,
    Document,
}

impl Parser {
    /// A word, up to what ends it.
    pub(super) fn word(&mut self) -> Parsed<Word> {
        let (mut word, from) = (Word::default(), self.at);
        while let Some(letter) = self.peek() {
            match letter {
                '<' | '>' if self.letters.get(self.at + 1) == Some(&'(') => {
                    self.at += 2;
                    self.list(&[")"])?;
                    self.expect(")")?;
                    word.0.push(Piece::Process);
                }
                // No shell has a parenthesis within a word: what `ps` prints has lost its quotes.
                '(' if self.in_arguments => self.in_parentheses(&mut word)?,
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                _ => self.piece(Mode::Bare, &mut word)?,
            }
        }
        match self.at == from {
            true => self.wrong(match self.peek() {
                Some(letter) => format!("`{letter}` where a word should be"),
                None => String::from("the script ends where a word should be"),
            }),
            false => Ok(word),
        }
    }

    fn in_parentheses(&mut self, word: &mut Word) -> Parsed<()> {
        let mut open = 0;
        loop {
            match self.bump() {
                None | Some('\n') => return self.wrong("a `(` within a word is not closed"),
                Some(letter) => {
                    word.push_text(letter, true);
                    match letter {
                        '(' => open += 1,
                        ')' => open -= 1,
                        _ => {}
                    }
                }
            }
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// A word that only a blank ends.
    pub(super) fn until_blank(&mut self) -> Parsed<Word> {
        let mut word = Word::default();
        while self.peek().is_some_and(|letter| !letter.is_whitespace()) {
            self.piece(Mode::Bare, &mut word)?;
        }
        Ok(word)
    }

    /// What stands before one of these letters.
    pub(super) fn until(&mut self, stops: &[char]) -> Parsed<Word> {
        self.until_in(Mode::Bare, stops)
    }

    fn until_in(&mut self, mode: Mode, stops: &[char]) -> Parsed<Word> {
        let mut word = Word::default();
        while self.peek().is_some_and(|letter| !stops.contains(&letter)) {
            self.piece(mode, &mut word)?;
        }
        Ok(word)
    }

    pub(super) fn rest_of_document(&mut self) -> Parsed<Word> {
        self.until_in(Mode::Document, &[])
    }

    /// Arithmetic up to its `))`.
    pub(super) fn arithmetic(&mut self) -> Parsed<Word> {
        let mut word = Word::default();
        let end = self.arithmetic_until(&mut word, false)?;
        match end {
            ')' => Ok(word),
            _ => self.wrong("`))` is missing"),
        }
    }

    /// Behind `$[`, an older form of `$((`.
    fn old_arithmetic(&mut self) -> Parsed<Word> {
        let (mut word, mut open) = (Word::default(), 0);
        loop {
            match self.peek() {
                None => return self.wrong("the script ends where `]` of `$[` is missing"),
                Some(']') if open == 0 => {
                    self.bump();
                    return Ok(word);
                }
                Some(letter @ ('[' | ']')) => {
                    open = if letter == '[' { open + 1 } else { open - 1 };
                    self.bump();
                    word.push_text(letter, true);
                }
                _ => self.piece(Mode::Quoted, &mut word)?,
            }
        }
    }

    /// The three parts of `for ((…; …; …))`.
    pub(super) fn counted(&mut self) -> Parsed<[Word; 3]> {
        let mut words = [Word::default(), Word::default(), Word::default()];
        let last = words.len() - 1;
        for (index, word) in words.iter_mut().enumerate() {
            let end = self.arithmetic_until(word, true)?;
            if (end == ')') != (index == last) {
                return self.wrong("`for ((` needs three parts with `;` between them");
            }
        }
        Ok(words)
    }

    fn arithmetic_until(&mut self, word: &mut Word, in_parts: bool) -> Parsed<char> {
        let mut open = 0;
        loop {
            match self.peek() {
                None => return self.wrong("the script ends where `))` is missing"),
                Some(';') if in_parts && open == 0 => {
                    self.bump();
                    return Ok(';');
                }
                Some(')') if open == 0 && self.eat("))") => return Ok(')'),
                Some(')') if open == 0 => return self.wrong("`)` without its `(` in arithmetic"),
                Some(letter @ ('(' | ')')) => {
                    open = if letter == '(' { open + 1 } else { open - 1 };
                    self.bump();
                    word.push_text(letter, true);
                }
                Some('"') => {
                    self.bump();
                }
                _ => self.piece(Mode::Quoted, word)?,
            }
        }
    }

    fn piece(&mut self, mode: Mode, into: &mut Word) -> Parsed<()> {
        let quoted = mode != Mode::Bare;
        let Some(letter) = self.peek() else { return Ok(()) };
        match letter {
            '\\' => self.escaped(mode, into),
            '\'' if mode == Mode::Bare => {
                self.bump();
                self.single(into)?;
            }
            '"' if matches!(mode, Mode::Bare | Mode::BracedQuoted) => {
                self.bump();
                self.double(into)?;
            }
            '`' => {
                self.bump();
                self.back_quoted(quoted, into)?;
            }
            '$' => self.dollar(mode, into)?,
            _ => {
                self.bump();
                into.push_text(letter, quoted);
            }
        }
        Ok(())
    }

    fn escaped(&mut self, mode: Mode, into: &mut Word) {
        self.bump();
        match self.peek() {
            Some('\n') => {
                self.bump();
            }
            Some(next) => {
                let is_escape = match mode {
                    Mode::Bare => true,
                    Mode::Document => matches!(next, '$' | '`' | '\\'),
                    _ => matches!(next, '$' | '`' | '\\' | '"' | '}'),
                };
                if !is_escape {
                    into.push_text('\\', true);
                }
                self.bump();
                into.push_text(next, true);
            }
            None => into.push_text('\\', true),
        }
    }

    fn single(&mut self, into: &mut Word) -> Parsed<()> {
        let line = self.line;
        into.0.push(Piece::Text { text: String::new(), quoted: true });
        loop {
            match self.bump() {
                Some('\'') => return Ok(()),
                Some(letter) => into.push_text(letter, true),
                None => {
                    self.line = line;
                    return self.wrong("a quote `'` is not closed");
                }
            }
        }
    }

    fn double(&mut self, into: &mut Word) -> Parsed<()> {
        let line = self.line;
        into.0.push(Piece::Text { text: String::new(), quoted: true });
        self.deeper(|this| {
            loop {
                match this.peek() {
                    Some('"') => {
                        this.bump();
                        return Ok(());
                    }
                    Some(_) => this.piece(Mode::Quoted, into)?,
                    None => {
                        this.line = line;
                        return this.wrong("a quote `\"` is not closed");
                    }
                }
            }
        })
    }

    fn back_quoted(&mut self, quoted: bool, into: &mut Word) -> Parsed<()> {
        let (mut source, line) = (String::new(), self.line);
        loop {
            match self.bump() {
                Some('`') => break,
                Some('\\') if matches!(self.peek(), Some('`' | '\\' | '$')) => source.extend(self.bump()),
                Some(letter) => source.push(letter),
                None => {
                    self.line = line;
                    return self.wrong("a back quote is not closed");
                }
            }
        }
        let list = self.deeper(|this| {
            let documents = core::mem::take(&mut this.documents);
            let (list, documents) = Parser::new(&source, line, this.depth, documents).script()?;
            this.documents = documents;
            Ok(list)
        })?;
        into.0.push(Piece::Output { list, source, quoted });
        Ok(())
    }

    fn dollar(&mut self, mode: Mode, into: &mut Word) -> Parsed<()> {
        let quoted = mode != Mode::Bare;
        self.bump();
        if self.eat("((") {
            let word = self.deeper(Self::arithmetic)?;
            into.0.push(Piece::Arithmetic(word));
        } else if self.eat("[") {
            let word = self.deeper(Self::old_arithmetic)?;
            into.0.push(Piece::Arithmetic(word));
        } else if self.eat("(") {
            let from = self.at;
            let list = self.list(&[")"])?;
            let source = self.letters[from..self.at].iter().collect();
            self.expect(")")?;
            into.0.push(Piece::Output { list, source, quoted });
        } else if self.eat("{") {
            let parameter = Box::new(self.deeper(|this| this.parameter(quoted))?);
            into.0.push(Piece::Parameter { parameter, quoted });
        } else if mode == Mode::Bare && self.eat("'") {
            self.ansi(into)?;
        } else if mode == Mode::Bare && self.eat("\"") {
            self.double(into)?;
        } else if let Some(name) = self.short_name() {
            let parameter = Box::new(Parameter { name, index: None, sign: None, change: None });
            into.0.push(Piece::Parameter { parameter, quoted });
        } else {
            into.push_text('$', true);
        }
        Ok(())
    }

    /// The name behind a `$` without braces: one digit, one sign, or letters.
    fn short_name(&mut self) -> Option<String> {
        let first = self.peek()?;
        if first.is_ascii_digit() || "@*#?$!-".contains(first) {
            self.bump();
            return Some(first.into());
        }
        let name: String = self.letters[self.at..].iter().take_while(|letter| in_name(**letter)).collect();
        self.eat(&name);
        (!name.is_empty()).then_some(name)
    }

    /// `$'…'`.
    fn ansi(&mut self, into: &mut Word) -> Parsed<()> {
        into.0.push(Piece::Text { text: String::new(), quoted: true });
        loop {
            match self.bump() {
                Some('\'') => return Ok(()),
                Some('\\') => match self.bump() {
                    Some('n') => into.push_text('\n', true),
                    Some('t') => into.push_text('\t', true),
                    Some(letter @ ('\\' | '\'' | '"')) => into.push_text(letter, true),
                    _ => return self.wrong("an escape in $'…' that is not read: \\n, \\t, \\\\, \\' and \\\" are"),
                },
                Some(letter) => into.push_text(letter, true),
                None => return self.wrong("a quote `$'` is not closed"),
            }
        }
    }

    fn parameter(&mut self, quoted: bool) -> Parsed<Parameter> {
        let next = self.letters.get(self.at + 1).copied();
        let sign = match self.peek() {
            Some(sign @ ('#' | '!')) if next.is_some_and(|next| in_name(next) || "@*".contains(next)) => {
                self.bump();
                Some(sign)
            }
            _ => None,
        };
        let mut name: String = self.letters[self.at..].iter().take_while(|letter| in_name(**letter)).collect();
        if name.starts_with(|letter: char| letter.is_ascii_digit()) {
            name.retain(|letter| letter.is_ascii_digit());
        }
        self.eat(&name);
        if name.is_empty() {
            match self.bump() {
                Some(letter) if "@*#?$!-".contains(letter) => name.push(letter),
                _ => return self.wrong("`${` without a name"),
            }
        }
        let mut index = None;
        if self.eat("[") {
            index = Some(self.until(&[']', '\n'])?);
            self.expect("]")?;
        }
        let change = self.change(if quoted { Mode::BracedQuoted } else { Mode::Bare })?;
        if !self.eat("}") {
            return self.wrong(format!("`${{{name}…}}` has a form that is not read"));
        }
        Ok(Parameter { name, index, sign, change })
    }

    fn change(&mut self, mode: Mode) -> Parsed<Option<Change>> {
        let or_empty = self.ahead(":") && self.letters.get(self.at + 1).is_some_and(|next| "-=+?".contains(*next));
        if or_empty {
            self.bump();
        }
        let Some(sign) = self.peek() else { return self.wrong("`${` is not closed") };
        Ok(Some(match sign {
            '-' | '=' | '+' | '?' => {
                self.bump();
                Change::Otherwise { sign, or_empty, word: self.until_in(mode, &['}'])? }
            }
            '#' | '%' => {
                self.bump();
                let longest = self.peek() == Some(sign);
                self.at += usize::from(longest);
                Change::Cut { at_end: sign == '%', longest, pattern: self.until_in(Mode::Bare, &['}'])? }
            }
            '/' => {
                self.bump();
                let all = self.eat("/");
                let at = self.peek().filter(|letter| !all && matches!(letter, '#' | '%'));
                self.at += usize::from(at.is_some());
                let pattern = self.until_in(Mode::Bare, &['/', '}'])?;
                let with = if self.eat("/") { self.until_in(mode, &['}'])? } else { Word::default() };
                Change::Replace { all, at, pattern, with }
            }
            ':' => {
                self.bump();
                let from = self.until_in(Mode::Quoted, &[':', '}'])?;
                let length = if self.eat(":") { Some(self.until_in(Mode::Quoted, &['}'])?) } else { None };
                Change::Slice { from, length }
            }
            '^' | ',' => {
                self.bump();
                let all = self.peek() == Some(sign);
                self.at += usize::from(all);
                Change::Case { upper: sign == '^', all }
            }
            _ => return Ok(None),
        }))
    }
}

/// `a{b,c}d` as `abd` and `acd`, and `{1..3}` as its numbers, where the braces are unquoted and in one piece of text.
pub(super) fn braces(word: &Word) -> Option<Vec<Word>> {
    let (at, text) = word.0.iter().enumerate().find_map(|(at, piece)| match piece {
        Piece::Text { text, quoted: false } if text.contains('{') => Some((at, text)),
        _ => None,
    })?;
    let (before, rest) = text.split_once('{')?;
    let (inner, behind) = rest.split_once('}')?;
    let choices: Vec<String> = match inner.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
            if first.abs_diff(last) > 10_000 {
                return None;
            }
            match first <= last {
                true => (first..=last).map(|number| format!("{number}")).collect(),
                false => (last..=first).rev().map(|number| format!("{number}")).collect(),
            }
        }
        None if inner.contains(',') => inner.split(',').map(String::from).collect(),
        None => return None,
    };
    let with = |choice: &String| {
        let mut pieces = word.0.clone();
        pieces[at] = Piece::Text { text: format!("{before}{choice}{behind}"), quoted: false };
        Word(pieces)
    };
    Some(choices.iter().map(with).collect())
}
