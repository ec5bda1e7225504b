//! Megatron-LM's pipeline layout, `--pipeline-model-parallel-layout`: which parts of a model each stage holds.
//!
//! One letter for each part: `E` embedding, `t` decoder layer, `m` multi-token-prediction layer, `L` loss. `|` ends a stage and
//! starts the next; a stage may be empty. `*n` repeats the letter or the group in parentheses before it, and a group may hold
//! `|`. Commas and blanks mean nothing. So `Et*3|(tt|)*29,m|L` has 32 stages. Stage `i` of a pipeline of `p` ranks is chunk
//! `i div p` of rank `i mod p`.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::model::StageLayout;

/// One part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// `E`: the embedding.
    Embedding,
    /// `t`: a decoder layer.
    Layer,
    /// `m`: a multi-token prediction (MTP) layer.
    MultiToken,
    /// `L`: the head and the loss.
    Loss,
}

impl Part {
    const fn letter(self) -> char {
        match self {
            Part::Embedding => 'E',
            Part::Layer => 't',
            Part::MultiToken => 'm',
            Part::Loss => 'L',
        }
    }

    fn of(letter: char) -> Option<Part> {
        [Part::Embedding, Part::Layer, Part::MultiToken, Part::Loss].into_iter().find(|part| part.letter() == letter)
    }
}

/// Text that is no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {position} of the layout: {problem}")]
pub struct LayoutSyntax {
    /// The character, from 1; one beyond the last where the text ends too early.
    pub position: usize,
    /// What is wrong there, and what is accepted.
    pub problem: String,
}

/// Most parts and stages of a layout together.
const MOST: usize = 100_000;
/// The deepest nesting of groups.
const DEEPEST: usize = 16;

/// The parts of `stages` of a model with `multi_token` modules of multi-token prediction: [`write()`] writes them for a
/// plan.
pub fn of_stages(stages: &[StageLayout], multi_token: u32) -> Vec<Vec<Part>> {
    let parts = |stage: &StageLayout| {
        let embedding = stage.embedding.then_some(Part::Embedding);
        let layers = stage.layers.clone().map(|_| Part::Layer);
        let modules = stage.modules.of_stage(stage.head, multi_token).map(|_| Part::MultiToken);
        embedding.into_iter().chain(layers).chain(modules).chain(stage.head.then_some(Part::Loss)).collect()
    };
    stages.iter().map(parts).collect()
}

/// The parts of stages with these numbers of layers and modules, the embedding on the first and the loss on the last.
pub fn of_counts(counts: &[[u32; 2]]) -> Vec<Vec<Part>> {
    let last = counts.len().saturating_sub(1);
    let parts = |(stage, [layers, modules]): (usize, &[u32; 2])| {
        let embedding = (stage == 0).then_some(Part::Embedding);
        let layers = core::iter::repeat_n(Part::Layer, *layers as usize);
        let modules = core::iter::repeat_n(Part::MultiToken, *modules as usize);
        embedding.into_iter().chain(layers).chain(modules).chain((stage == last).then_some(Part::Loss)).collect()
    };
    counts.iter().enumerate().map(parts).collect()
}

/// The parts of each stage.
///
/// # Errors
/// [`LayoutSyntax`] at the first character that does not fit.
pub fn read(text: &str) -> Result<Vec<Vec<Part>>, LayoutSyntax> {
    let mut reader = Reader { letters: text.chars().collect(), at: 0 };
    let tokens = reader.sequence(0)?;
    let mut stages = vec![Vec::new()];
    for token in tokens {
        match (token, stages.last_mut()) {
            (Some(part), Some(stage)) => stage.push(part),
            _ => stages.push(Vec::new()),
        }
    }
    Ok(stages)
}

struct Reader {
    letters: Vec<char>,
    at: usize,
}

impl Reader {
    fn wrong<T>(&self, problem: impl Into<String>) -> Result<T, LayoutSyntax> {
        Err(LayoutSyntax { position: self.at + 1, problem: problem.into() })
    }

    /// The next letter that means something.
    fn peek(&mut self) -> Option<char> {
        while self.letters.get(self.at).is_some_and(|letter| *letter == ',' || letter.is_whitespace()) {
            self.at += 1;
        }
        self.letters.get(self.at).copied()
    }

    /// Parts, and nothing for `|`, up to the end or to the parenthesis that closes this depth.
    fn sequence(&mut self, depth: usize) -> Result<Vec<Option<Part>>, LayoutSyntax> {
        let mut tokens = Vec::new();
        loop {
            let mut unit = match self.peek() {
                None if depth == 0 => return Ok(tokens),
                None => return self.wrong("a `(` is not closed: add `)`"),
                Some(')') if depth > 0 => return Ok(tokens),
                Some(')') => return self.wrong("this `)` has no `(`"),
                Some('(') if depth == DEEPEST => {
                    return self.wrong(format!("groups are nested deeper than {DEEPEST}"));
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.sequence(depth + 1)?;
                    self.at += 1;
                    inner
                }
                Some('|') => {
                    self.at += 1;
                    vec![None]
                }
                Some('*') => return self.wrong("`*` repeats nothing: write a letter or a group before it"),
                Some(letter) => match Part::of(letter) {
                    Some(part) => {
                        self.at += 1;
                        vec![Some(part)]
                    }
                    None => return self.wrong(format!("`{letter}` is not a part: write E, t, m, L, |, ( ) or *n")),
                },
            };
            let times = self.times()?;
            let total = unit.len().saturating_mul(times).saturating_add(tokens.len());
            if total > MOST {
                return self.wrong(format!("more than {MOST} parts"));
            }
            // Nothing stays nothing, however often it is said to be repeated.
            if times > 0 && !unit.is_empty() {
                for _ in 1..times {
                    tokens.extend_from_slice(&unit);
                }
                tokens.append(&mut unit);
            }
        }
    }

    /// The number after `*`, or 1 where there is none.
    fn times(&mut self) -> Result<usize, LayoutSyntax> {
        if self.peek() != Some('*') {
            return Ok(1);
        }
        self.at += 1;
        let digits: String = match self.peek() {
            Some(_) => self.letters.iter().skip(self.at).take_while(|letter| letter.is_ascii_digit()).collect(),
            None => String::new(),
        };
        match digits.parse() {
            Ok(times) if times <= MOST => {
                self.at += digits.len();
                Ok(times)
            }
            _ => self.wrong(format!("`*` needs a whole number up to {MOST} after it")),
        }
    }
}

/// The short form of `stages`: equal parts of a stage, and equal stages, are written once with their number.
pub fn write(stages: &[Vec<Part>]) -> String {
    let mut text = String::new();
    let texts: Vec<String> = stages.iter().map(|stage| stage_text(stage)).collect();
    let mut rest = &texts[..];
    while let [first, others @ ..] = rest {
        let equal = 1 + others.iter().take_while(|other| *other == first).count();
        // The last stage has no `|` to repeat.
        let repeated = if equal == rest.len() { equal - 1 } else { equal };
        let long = (first.len() + 1) * repeated;
        let group = format!("({first}|)*{repeated}");
        let taken = if repeated > 1 && group.len() < long {
            append(&mut text, &group);
            repeated
        } else {
            append(&mut text, first);
            if !others.is_empty() {
                text.push('|');
            }
            1
        };
        rest = &rest[taken..];
    }
    text
}

/// A comma keeps a number apart from what follows.
fn append(text: &mut String, more: &str) {
    if text.ends_with(|letter: char| letter.is_ascii_digit()) && !more.is_empty() {
        text.push(',');
    }
    text.push_str(more);
}

fn stage_text(stage: &[Part]) -> String {
    let mut text = String::new();
    for run in stage.chunk_by(|one, other| one == other) {
        let letter = run[0].letter();
        if run.len() > 2 {
            append(&mut text, &format!("{letter}*{}", run.len()));
        } else {
            append(&mut text, &core::iter::repeat_n(letter, run.len()).collect::<String>());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use proptest::prelude::*;

    fn counts(text: &str) -> Vec<usize> {
        read(text).unwrap().iter().map(Vec::len).collect()
    }

    #[test]
    fn the_documented_layouts_read() {
        // DeepSeek-V3 on 16 ranks of 2 chunks.
        let text = "Et*3|(tt|)*29,m|L";
        let stages = read(text).unwrap();
        assert_eq!(stages.len(), 32);
        assert_eq!(stages[0], [Part::Embedding, Part::Layer, Part::Layer, Part::Layer]);
        assert!(stages[1..30].iter().all(|stage| *stage == [Part::Layer, Part::Layer]));
        assert_eq!(stages[30..], [vec![Part::MultiToken], vec![Part::Loss]]);
        assert_eq!(write(&stages), text);
        assert_eq!(counts("E|(t|)*3,m|m||L"), [1, 1, 1, 1, 1, 1, 0, 1]);
    }

    #[test]
    fn groups_repeat_and_nest() {
        assert_eq!(counts("((t|)*2 tt|)*2L"), [1, 1, 2, 1, 1, 2, 1]);
        assert_eq!(counts("t*0E"), [1]);
        assert_eq!(counts(""), [0]);
        // Nothing, a hundred billion times.
        assert_eq!(counts(&"()*99999".repeat(1_000_000)), [0]);
    }

    #[test]
    fn what_is_wrong_is_pointed_at() {
        let text = |layout: &str| read(layout).unwrap_err().to_string();
        assert_eq!(text("Etx"), "character 3 of the layout: `x` is not a part: write E, t, m, L, |, ( ) or *n");
        assert_eq!(text("(t|"), "character 4 of the layout: a `(` is not closed: add `)`");
        assert!(text("t)").starts_with("character 2"));
        assert!(text("*3").contains("repeats nothing"));
        assert!(text("t*").contains("whole number"));
        assert!(text("t*999999999999999999999").contains("whole number"));
        assert!(text("((t*99999)*99999)*99999").contains("more than 100000 parts"));
        assert!(text(&"(".repeat(100_000)).contains("nested deeper than"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_reads_back(stages in proptest::collection::vec(
            proptest::collection::vec(
                proptest::sample::select(vec![Part::Embedding, Part::Layer, Part::Layer, Part::MultiToken, Part::Loss]),
                0..4,
            ),
            1..20,
        )) {
            prop_assert_eq!(read(&write(&stages)), Ok(stages));
        }

        #[test]
        fn no_text_panics(text in "[Etm L|()*0-9,]{0,30}") {
            let _ = read(&text);
        }
    }
}
