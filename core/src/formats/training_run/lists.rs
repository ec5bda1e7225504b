//! Lists of layers, as arguments have them.

use alloc::string::String;
use alloc::vec::Vec;

/// What a list says of each layer, as Python has it.
pub(super) fn layers_of(list: &str, layers: u64) -> Option<Vec<bool>> {
    if list.trim().parse::<u64>().is_ok() { None } else { layers_of_experts(list, layers) }
}

/// Which layers have experts: every how many layers one, or a list as Python has it, such as `([0]*3+[1]*58)`.
pub(super) fn layers_of_experts(frequency: &str, layers: u64) -> Option<Vec<bool>> {
    let frequency: String = frequency.chars().filter(|letter| !matches!(letter, ' ' | '\'' | '"')).collect();
    if let Ok(every) = frequency.parse::<u64>() {
        return (every > 0).then(|| (0..layers).map(|layer| layer.is_multiple_of(every)).collect());
    }
    let mut reader = PythonList { letters: frequency.chars().collect(), at: 0, most: layers as usize };
    let said = reader.sum(0)?;
    (reader.at == reader.letters.len()).then_some(said).filter(|said| said.len() as u64 == layers)
}

/// Sums and multiples of lists of 0 and 1, `([0]*3+[1])*2`.
struct PythonList {
    letters: Vec<char>,
    at: usize,
    most: usize,
}

impl PythonList {
    fn eat(&mut self, letter: char) -> bool {
        let is_there = self.letters.get(self.at) == Some(&letter);
        self.at += usize::from(is_there);
        is_there
    }

    fn sum(&mut self, depth: usize) -> Option<Vec<bool>> {
        let mut all = self.multiple(depth)?;
        while self.eat('+') {
            all.extend(self.multiple(depth)?);
        }
        (all.len() <= self.most).then_some(all)
    }

    fn multiple(&mut self, depth: usize) -> Option<Vec<bool>> {
        let mut list = if self.eat('(') && depth < 16 {
            let inner = self.sum(depth + 1)?;
            self.eat(')').then_some(inner)?
        } else {
            self.items()?
        };
        while self.eat('*') {
            let digits: String =
                self.letters.iter().skip(self.at).take_while(|letter| letter.is_ascii_digit()).collect();
            self.at += digits.len();
            let times: usize = digits.parse().ok()?;
            if list.len().saturating_mul(times) > self.most {
                return None;
            }
            list = list.repeat(times);
        }
        Some(list)
    }

    fn items(&mut self) -> Option<Vec<bool>> {
        let mut items = Vec::new();
        if !self.eat('[') {
            return None;
        }
        loop {
            let is_one = self.eat('1');
            if !is_one && !self.eat('0') {
                return None;
            }
            items.push(is_one);
            if self.eat(']') {
                return Some(items);
            }
            if !self.eat(',') {
                return None;
            }
        }
    }
}
