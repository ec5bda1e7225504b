//! The part of Python's pickles that dumps consist of: dictionaries, lists, tuples, texts and numbers. Nothing in them is run, and
//! what makes objects is refused.
//!
//! `serde-pickle` 1.2 takes dictionaries that a dump holds several times for recursive: it counts how often their texts are
//! referred to, and torch shares the lines of stack traces.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Map, Value};

use crate::base::fields::Fault;

/// Most bytes of values for each byte of a dump, each value counted as often as it is referred to: entries share stack traces.
const MAX_FACTOR: usize = 64;
/// Beyond that, for short ones.
const LEAST_BYTES: usize = 16 << 20;
/// Most of them in all.
const MOST_BYTES: usize = 2 << 30;
/// Most lists and dictionaries within each other.
const MAX_DEPTH: usize = 32;

/// A value that others may refer to.
#[derive(Clone)]
enum Node {
    Plain(Value),
    /// A list or tuple, by its place among [`Machine::contents`].
    List(usize),
    /// A dictionary, likewise: keys and values in turn.
    Dictionary(usize),
}

/// The value of a pickle.
///
/// # Errors
/// The byte at which it stops being one, or an instruction that makes objects.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Fault> {
    let mut machine =
        Machine { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new(), contents: Vec::new() };
    let node = machine.run().map_err(|found| Fault::new(format!("byte {}", machine.at), found, super::ACCEPTED))?;
    let mut budget = bytes.len().saturating_mul(MAX_FACTOR).saturating_add(LEAST_BYTES).min(MOST_BYTES);
    plain(&node, &machine.contents, MAX_DEPTH, &mut budget)
        .map_err(|found| Fault::new("the pickle", found, super::ACCEPTED))
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Node>,
    marks: Vec<usize>,
    memo: Vec<Option<Node>>,
    /// What lists and dictionaries hold. Here, and not in each other, since a million of them within each other could not be
    /// given back without as deep a recursion.
    contents: Vec<Vec<Node>>,
}

impl Machine<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| "the end of the file".to_string())?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A number of `count` bytes, the least first.
    fn number(&mut self, count: usize) -> Result<u64, String> {
        Ok(self.take(count)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self, length_bytes: usize) -> Result<Node, String> {
        let length =
            usize::try_from(self.number(length_bytes)?).map_err(|_| "a text of too many bytes".to_string())?;
        let text = core::str::from_utf8(self.take(length)?).map_err(|_| "a text that is not UTF-8".to_string())?;
        Ok(Node::Plain(Value::from(text)))
    }

    /// An integer of so many bytes in two's complement.
    fn integer(&mut self, count: usize) -> Result<Node, String> {
        let bytes = self.take(count)?;
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 16];
        let Some(place) = wide.get_mut(..count) else { return Err(format!("an integer of {count} bytes")) };
        place.copy_from_slice(bytes);
        let number = i128::from_le_bytes(wide);
        let small = i64::try_from(number).map(Value::from).or_else(|_| u64::try_from(number).map(Value::from));
        small.map(Node::Plain).map_err(|_| format!("the integer {number}"))
    }

    fn pop(&mut self) -> Result<Node, String> {
        self.stack.pop().ok_or_else(|| "an instruction without a value".to_string())
    }

    /// What was put since the last mark.
    fn marked(&mut self) -> Result<Vec<Node>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        mark.map(|mark| self.stack.split_off(mark)).ok_or_else(|| "values without a mark".to_string())
    }

    fn last(count: usize, stack: &mut Vec<Node>) -> Result<Vec<Node>, String> {
        let from = stack.len().checked_sub(count).ok_or_else(|| "an instruction without its values".to_string())?;
        Ok(stack.split_off(from))
    }

    /// Puts values into the list or dictionary on top.
    fn extend(&mut self, values: Vec<Node>, is_dictionary: bool) -> Result<(), String> {
        let into = match self.stack.last() {
            Some(Node::Dictionary(into)) if is_dictionary && values.len().is_multiple_of(2) => *into,
            Some(Node::List(into)) if !is_dictionary => *into,
            _ => return Err("values without what they belong to".to_string()),
        };
        self.contents[into].extend(values);
        Ok(())
    }

    /// The place of a new list or dictionary.
    fn hold(&mut self, values: Vec<Node>) -> usize {
        self.contents.push(values);
        self.contents.len() - 1
    }

    fn remember(&mut self, place: usize) -> Result<(), String> {
        if place > self.bytes.len() {
            return Err(format!("a reference to value {place}"));
        }
        let top = self.stack.last().cloned();
        if self.memo.len() <= place {
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = top;
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Result<Node, String> {
        let known = usize::try_from(place).ok().and_then(|place| self.memo.get(place).cloned().flatten());
        known.ok_or_else(|| format!("a reference to value {place}, which is not there"))
    }

    fn run(&mut self) -> Result<Node, String> {
        loop {
            let code = self.take(1)?[0];
            let node = match code {
                b'.' => return self.pop(),
                // The version, and a frame's length.
                0x80 => self.number(1).map(|_| None),
                0x95 => self.number(8).map(|_| None),
                b'(' => {
                    self.marks.push(self.stack.len());
                    Ok(None)
                }
                b'}' => Ok(Some(Node::Dictionary(self.hold(Vec::new())))),
                b']' | b')' => Ok(Some(Node::List(self.hold(Vec::new())))),
                b'N' => Ok(Some(Node::Plain(Value::Null))),
                0x88 => Ok(Some(Node::Plain(Value::Bool(true)))),
                0x89 => Ok(Some(Node::Plain(Value::Bool(false)))),
                b'X' => self.text(4).map(Some),
                0x8c => self.text(1).map(Some),
                b'K' => self.number(1).map(|number| Some(Node::Plain(Value::from(number)))),
                b'M' => self.number(2).map(|number| Some(Node::Plain(Value::from(number)))),
                b'J' => self.integer(4).map(Some),
                0x8a => self.number(1).and_then(|count| self.integer(count as usize)).map(Some),
                b'G' => {
                    let bits = self.number(8)?.swap_bytes();
                    Ok(Some(Node::Plain(Value::from(f64::from_bits(bits)))))
                }
                b't' => self.marked().map(|values| Some(Node::List(self.hold(values)))),
                0x85..=0x87 => Self::last(usize::from(code - 0x84), &mut self.stack)
                    .map(|values| Some(Node::List(self.hold(values)))),
                b'q' => self.number(1).and_then(|place| self.remember(place as usize)).map(|()| None),
                b'r' => self.number(4).and_then(|place| self.remember(place as usize)).map(|()| None),
                0x94 => self.remember(self.memo.len()).map(|()| None),
                b'h' => self.number(1).and_then(|place| self.recall(place)).map(Some),
                b'j' => self.number(4).and_then(|place| self.recall(place)).map(Some),
                b'a' => Self::last(1, &mut self.stack).and_then(|values| self.extend(values, false)).map(|()| None),
                b'e' => self.marked().and_then(|values| self.extend(values, false)).map(|()| None),
                b's' => Self::last(2, &mut self.stack).and_then(|values| self.extend(values, true)).map(|()| None),
                b'u' => self.marked().and_then(|values| self.extend(values, true)).map(|()| None),
                other => Err(format!("the instruction {other:#04x}, which dumps do not have")),
            };
            self.stack.extend(node?);
        }
    }
}

/// A value with everything that it refers to.
fn plain(node: &Node, contents: &[Vec<Node>], depth: usize, budget: &mut usize) -> Result<Value, String> {
    let text = if let Node::Plain(Value::String(text)) = node { text.len() } else { 0 };
    let size = size_of::<Value>() + text;
    *budget = budget.checked_sub(size).ok_or_else(|| "values that are referred to too often".to_string())?;
    let deeper = || depth.checked_sub(1).ok_or_else(|| format!("more than {MAX_DEPTH} lists within each other"));
    match node {
        Node::Plain(value) => Ok(value.clone()),
        Node::List(list) => {
            let deeper = deeper()?;
            let values = contents[*list].iter().map(|node| plain(node, contents, deeper, budget));
            values.collect::<Result<_, _>>().map(Value::Array)
        }
        Node::Dictionary(pairs) => {
            let deeper = deeper()?;
            let mut map = Map::new();
            for pair in contents[*pairs].chunks_exact(2) {
                let key = match plain(&pair[0], contents, 0, budget) {
                    Ok(Value::String(key)) => key,
                    Ok(Value::Number(key)) => key.to_string(),
                    _ => return Err("a key that is neither a text nor a number".to_string()),
                };
                map.insert(key, plain(&pair[1], contents, deeper, budget)?);
            }
            Ok(Value::Object(map))
        }
    }
}
