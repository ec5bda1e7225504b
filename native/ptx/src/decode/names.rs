//! The names of a kernel: registers, variables, labels, and operands that are made of them.

use std::collections::BTreeMap;

use super::Decoded;
use super::op::{Address, Either, Long, Truth, Word};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bank {
    Truth,
    Word,
    Long,
}

/// Names and what they mean.
#[derive(Default)]
pub(super) struct Names {
    pub(super) scopes: Vec<BTreeMap<String, (Bank, u32)>>,
    /// Series such as `%r<12>`.
    pub(super) series: Vec<(String, Bank, u32, u32)>,
    pub(super) counts: [u32; 3],
    /// Addresses of parameters and arrays.
    pub(super) symbols: BTreeMap<String, u64>,
    pub(super) labels: BTreeMap<String, u32>,
}

impl Names {
    pub(super) fn declare(&mut self, kind: &str, list: &str) -> Decoded<()> {
        let bank = match kind {
            ".pred" => Bank::Truth,
            ".b16" | ".u16" | ".s16" | ".b32" | ".u32" | ".s32" | ".f32" => Bank::Word,
            ".b64" | ".u64" | ".s64" => Bank::Long,
            _ => return Err(format!("registers of {kind} are not known")),
        };
        for name in list.split(',').map(str::trim) {
            let count = &mut self.counts[bank as usize];
            match name.strip_suffix('>').and_then(|name| name.split_once('<')) {
                Some((series, size)) => {
                    let size: u32 = size.parse().map_err(|_| format!("registers {name} are not known"))?;
                    self.series.push((series.to_string(), bank, *count, size));
                    *count += size;
                }
                None => {
                    self.scopes.last_mut().ok_or("no scope")?.insert(name.to_string(), (bank, *count));
                    *count += 1;
                }
            }
        }
        Ok(())
    }

    fn register(&self, name: &str) -> Option<(Bank, u32)> {
        if let Some(found) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Some(*found);
        }
        let letters = name.trim_end_matches(|character: char| character.is_ascii_digit());
        let number: u32 = name[letters.len()..].parse().ok()?;
        let (_, bank, start, size) = self.series.iter().find(|(series, ..)| series == letters)?;
        (number < *size).then_some((*bank, start + number))
    }

    pub(super) fn of(&self, bank: Bank, name: &str) -> Decoded<u32> {
        match self.register(name) {
            Some((found, number)) if found == bank => Ok(number),
            _ => Err(format!("{name} is no register of this kind")),
        }
    }

    pub(super) fn number(&self, text: &str) -> Decoded<i128> {
        let unknown = || format!("{text} is neither a register nor a number");
        let hex = |digits: &str| i128::from_str_radix(digits, 16).map_err(|_| unknown());
        if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
            return hex(bits);
        }
        if let Some((symbol, offset)) = self.symbols.get(text).map(|symbol| (symbol, 0)) {
            return Ok(i128::from(*symbol) + offset);
        }
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let digits = digits.trim_end_matches('U');
        match digits.strip_prefix("0x") {
            Some(digits) => hex(digits).map(|number| sign * number),
            None => digits.parse::<i128>().map(|number| sign * number).map_err(|_| unknown()),
        }
    }

    pub(super) fn word(&self, text: &str) -> Decoded<Word> {
        match self.register(text) {
            Some((Bank::Word, number)) => Ok(Word::Reg(number)),
            Some(_) => Err(format!("{text} is no register of 32 bits")),
            None => self.number(text).map(|number| Word::Fixed(number as u32)),
        }
    }

    /// Of `bits` bits: what is above them is 0.
    pub(super) fn narrow(&self, text: &str, bits: u32) -> Decoded<Word> {
        self.word(text).map(|word| match word {
            Word::Fixed(number) if bits == 16 => Word::Fixed(number & 0xffff),
            other => other,
        })
    }

    pub(super) fn long(&self, text: &str) -> Decoded<Long> {
        match self.register(text) {
            Some((Bank::Long, number)) => Ok(Long::Reg(number)),
            Some(_) => Err(format!("{text} is no register of 64 bits")),
            None => self.number(text).map(|number| Long::Fixed(number as u64)),
        }
    }

    pub(super) fn either(&self, text: &str, bits: u32) -> Decoded<Either> {
        match (self.register(text), bits) {
            (Some((Bank::Word, number)), _) => Ok(Either::Word(Word::Reg(number))),
            (Some((Bank::Long, number)), _) => Ok(Either::Long(Long::Reg(number))),
            (Some((Bank::Truth, _)), _) => Err(format!("{text} is a predicate")),
            (None, 64) => self.long(text).map(Either::Long),
            (None, _) => self.narrow(text, bits).map(Either::Word),
        }
    }

    pub(super) fn truth(&self, text: &str) -> Decoded<Truth> {
        let (name, negated) = text.strip_prefix('!').map_or((text, false), |name| (name, true));
        match name {
            "0" => Ok(Truth::Fixed(negated)),
            "-1" | "1" => Ok(Truth::Fixed(!negated)),
            _ => self.of(Bank::Truth, name).map(|reg| Truth::Reg { reg, negated }),
        }
    }

    pub(super) fn words<const N: usize>(&self, texts: &[&str]) -> Decoded<[Word; N]> {
        let words: Vec<Word> = texts.iter().map(|text| self.word(text)).collect::<Result<_, _>>()?;
        words.try_into().map_err(|_| format!("there should be {N} of {texts:?}"))
    }

    pub(super) fn address(&self, text: &str) -> Decoded<Address> {
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inside = inside.ok_or_else(|| format!("{text} is no address"))?;
        let (base, offset) = match inside.split_once('+') {
            Some((base, offset)) => (base.trim(), self.number(offset.trim())? as i64),
            None => (inside.trim(), 0),
        };
        Ok(Address { base: self.either(base, 64)?, offset })
    }
}
