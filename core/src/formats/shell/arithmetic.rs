//! `$((…))`: whole numbers of 64 bits, as Bash has them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::state::{Done, Shell, Variable};
use super::{MARK, MARK_END, in_name};

/// A number, or what it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Known(i64),
    Unknown(usize),
}

/// Variables of variables, and parentheses.
const DEEPEST: usize = 32;

/// Operators of two sides, by how strongly they bind.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];
/// Longer ones first.
const SIGNS: [&str; 37] = [
    "<<=", ">>=", "**", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "+=", "-=", "*=", "/=", "%=", "&=", "|=",
    "^=", "++", "--", "=", "<", ">", "+", "-", "*", "/", "%", "!", "~", "&", "|", "^", "?", ":", ",",
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(Number),
    Name(String),
    Sign(&'static str),
    Open,
    Close,
}

impl Shell<'_> {
    /// The value of an expression; nothing is zero.
    pub(super) fn calculate(&mut self, text: &str, depth: usize) -> Done<Number> {
        self.spend(text.len())?;
        let tokens = self.tokens(text)?;
        if tokens.is_empty() {
            return Ok(Number::Known(0));
        }
        let mut reader = Reader { shell: self, tokens, at: 0, depth, skips: false, text };
        let number = reader.comma()?;
        match reader.at == reader.tokens.len() {
            true => Ok(number),
            false => reader.wrong(),
        }
    }

    fn tokens(&mut self, text: &str) -> Done<Vec<Token>> {
        let letters: Vec<char> = text.chars().collect();
        let (mut tokens, mut at) = (Vec::new(), 0);
        while let Some(letter) = letters.get(at).copied() {
            let run = |from: usize, fits: &dyn Fn(char) -> bool| -> String {
                letters[from..].iter().take_while(|letter| fits(**letter)).collect()
            };
            match letter {
                MARK => {
                    let number = run(at + 1, &|letter| letter != MARK_END);
                    at += number.len() + 2;
                    // A number within a longer name is no number.
                    tokens.push(Token::Number(Number::Unknown(number.parse().unwrap_or(usize::MAX))));
                }
                letter if letter.is_whitespace() => at += 1,
                letter if letter.is_ascii_digit() => {
                    let digits = run(at, &|letter| letter.is_ascii_alphanumeric() || letter == '#');
                    at += digits.chars().count();
                    let Some(number) = whole(&digits) else {
                        return self.wrong(format!("`{digits}` is no whole number of arithmetic"));
                    };
                    tokens.push(Token::Number(Number::Known(number)));
                }
                letter if in_name(letter) => {
                    let name = run(at, &in_name);
                    at += name.len();
                    tokens.push(Token::Name(name));
                }
                '$' | '"' | '{' | '}' | '\\' => at += 1,
                '(' | ')' => {
                    tokens.push(if letter == '(' { Token::Open } else { Token::Close });
                    at += 1;
                }
                _ => {
                    let rest: String = letters[at..].iter().take(3).collect();
                    let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
                        return self.wrong(format!("`{letter}` is no sign of arithmetic"));
                    };
                    at += sign.len();
                    tokens.push(Token::Sign(sign));
                }
            }
        }
        Ok(tokens)
    }
}

/// Decimal, `0x…`, `0…` in eights, or `base#…`.
fn whole(digits: &str) -> Option<i64> {
    if let Some((base, digits)) = digits.split_once('#') {
        return i64::from_str_radix(digits, base.parse().ok().filter(|base| (2..=36).contains(base))?).ok();
    }
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}

struct Reader<'s, 'g, 't> {
    shell: &'s mut Shell<'g>,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Whether a side is read that is not worked out.
    skips: bool,
    text: &'t str,
}

impl Reader<'_, '_, '_> {
    fn wrong<T>(&self) -> Done<T> {
        self.shell.wrong(format!(
            "`{}` is no arithmetic",
            super::parts(self.text)
                .map(|part| match part {
                    super::Part::Text(text) => text.to_string(),
                    super::Part::Unknown(_) => "?".into(),
                })
                .collect::<String>()
        ))
    }

    fn eat(&mut self, sign: &str) -> bool {
        let is_there = matches!(self.tokens.get(self.at), Some(Token::Sign(found)) if *found == sign);
        self.at += usize::from(is_there);
        is_there
    }

    fn comma(&mut self) -> Done<Number> {
        let mut number = self.choice()?;
        while self.eat(",") {
            number = self.choice()?;
        }
        Ok(number)
    }

    /// An assignment, `a ? b : c`, or less.
    fn choice(&mut self) -> Done<Number> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.shell.wrong("arithmetic is nested too deep: do variables stand for each other?");
        }
        let read = match (self.tokens.get(self.at).cloned(), self.tokens.get(self.at + 1).cloned()) {
            (Some(Token::Name(name)), Some(Token::Sign(sign)))
                if sign.ends_with('=') && !matches!(sign, "==" | "!=" | "<=" | ">=") =>
            {
                self.at += 2;
                let right = self.choice()?;
                let value = match sign.strip_suffix('=').filter(|sign| !sign.is_empty()) {
                    Some(sign) => {
                        let left = self.variable(&name)?;
                        self.both(sign, left, right)?
                    }
                    None => right,
                };
                self.store(&name, value)?;
                value
            }
            _ => self.condition()?,
        };
        self.depth -= 1;
        Ok(read)
    }

    fn condition(&mut self) -> Done<Number> {
        let test = self.level(0)?;
        if !self.eat("?") {
            return Ok(test);
        }
        let outer = self.skips;
        self.skips = outer || test == Number::Known(0);
        let yes = self.choice()?;
        if !self.eat(":") {
            return self.wrong();
        }
        self.skips = outer || matches!(test, Number::Known(number) if number != 0);
        let no = self.choice()?;
        self.skips = outer;
        Ok(match test {
            Number::Known(0) => no,
            Number::Known(_) => yes,
            Number::Unknown(_) if yes == no => yes,
            Number::Unknown(unknown) => Number::Unknown(unknown),
        })
    }

    fn level(&mut self, level: usize) -> Done<Number> {
        let Some(signs) = LEVELS.get(level) else { return self.power() };
        let mut left = self.level(level + 1)?;
        loop {
            let found = match self.tokens.get(self.at) {
                Some(Token::Sign(found)) => signs.iter().find(|sign| *sign == found),
                _ => None,
            };
            let Some(sign) = found else { return Ok(left) };
            self.at += 1;
            let outer = self.skips;
            let decided = match (*sign, left) {
                ("&&", Number::Known(0)) => Some(0),
                ("||", Number::Known(number)) if number != 0 => Some(1),
                _ => None,
            };
            self.skips = outer || decided.is_some();
            let right = self.level(level + 1)?;
            self.skips = outer;
            left = match decided {
                Some(number) => Number::Known(number),
                None => self.both(sign, left, right)?,
            };
        }
    }

    fn power(&mut self) -> Done<Number> {
        let base = self.unary()?;
        match self.eat("**") {
            true => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return self.wrong();
                }
                let exponent = self.power()?;
                self.depth -= 1;
                self.both("**", base, exponent)
            }
            false => Ok(base),
        }
    }

    fn unary(&mut self) -> Done<Number> {
        let mut signs = Vec::new();
        let number = loop {
            let token = self.tokens.get(self.at).cloned();
            self.at += 1;
            match token {
                Some(Token::Sign(sign @ ("-" | "+" | "!" | "~"))) => signs.push(sign),
                Some(Token::Sign(step @ ("++" | "--"))) => {
                    let Some(Token::Name(name)) = self.tokens.get(self.at).cloned() else { return self.wrong() };
                    self.at += 1;
                    break self.step(&name, step)?.1;
                }
                Some(Token::Number(number)) => break number,
                Some(Token::Name(name)) => {
                    let step = ["++", "--"].into_iter().find(|step| self.eat(step));
                    break match step {
                        Some(step) => self.step(&name, step)?.0,
                        None => self.variable(&name)?,
                    };
                }
                Some(Token::Open) => {
                    let inner = self.comma_deeper()?;
                    if self.tokens.get(self.at) != Some(&Token::Close) {
                        return self.wrong();
                    }
                    self.at += 1;
                    break inner;
                }
                _ => return self.wrong(),
            }
        };
        Ok(signs.into_iter().rev().fold(number, |number, sign| match (number, sign) {
            (Number::Known(number), "-") => Number::Known(number.wrapping_neg()),
            (Number::Known(number), "!") => Number::Known(i64::from(number == 0)),
            (Number::Known(number), "~") => Number::Known(!number),
            (number, _) => number,
        }))
    }

    fn comma_deeper(&mut self) -> Done<Number> {
        self.depth += 1;
        let read = self.comma();
        self.depth -= 1;
        read
    }

    /// Before and after the step.
    fn step(&mut self, name: &str, step: &str) -> Done<(Number, Number)> {
        let before = self.variable(name)?;
        let after = self.both(&step[..1], before, Number::Known(1))?;
        self.store(name, after)?;
        Ok((before, after))
    }

    fn store(&mut self, name: &str, value: Number) -> Done<()> {
        if self.skips {
            return Ok(());
        }
        let text = match value {
            Number::Known(number) => number.to_string(),
            Number::Unknown(unknown) => super::mark(unknown),
        };
        self.shell.set(name, Variable::Text(text))
    }

    /// A variable's text is arithmetic again.
    fn variable(&mut self, name: &str) -> Done<Number> {
        self.shell.is_given(name);
        let text = match self.shell.state.variables.get(name) {
            Some(Variable::Text(text)) => text.clone(),
            Some(Variable::List(list)) => list.get(&0).cloned().unwrap_or_default(),
            Some(Variable::Map(_)) => String::new(),
            None => self.shell.unset(name),
        };
        if self.depth >= DEEPEST {
            return self.shell.wrong(format!("the variable `{name}` stands for itself"));
        }
        self.shell.calculate(&text, self.depth + 1)
    }

    fn both(&mut self, sign: &str, left: Number, right: Number) -> Done<Number> {
        let (left, right) = match (left, right) {
            (Number::Known(left), Number::Known(right)) => (left, right),
            (Number::Unknown(unknown), _) | (_, Number::Unknown(unknown)) => return Ok(Number::Unknown(unknown)),
        };
        let truth = |is_so: bool| Some(i64::from(is_so));
        let result = match sign {
            "||" => truth(left != 0 || right != 0),
            "&&" => truth(left != 0 && right != 0),
            "|" => Some(left | right),
            "^" => Some(left ^ right),
            "&" => Some(left & right),
            "==" => truth(left == right),
            "!=" => truth(left != right),
            "<=" => truth(left <= right),
            ">=" => truth(left >= right),
            "<" => truth(left < right),
            ">" => truth(left > right),
            "<<" => Some(left.wrapping_shl(right as u32)),
            ">>" => Some(left.wrapping_shr(right as u32)),
            "+" => Some(left.wrapping_add(right)),
            "-" => Some(left.wrapping_sub(right)),
            "*" => Some(left.wrapping_mul(right)),
            "/" => left.checked_div(right),
            "%" => left.checked_rem(right),
            "**" => u32::try_from(right).ok().map(|right| left.wrapping_pow(right)),
            _ => None,
        };
        match result {
            Some(number) => Ok(Number::Known(number)),
            None if self.skips => Ok(Number::Known(0)),
            None => self.shell.wrong(format!("{left} {sign} {right} has no value")),
        }
    }
}
