//! `[ … ]` and `[[ … ]]`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::arithmetic::Number;
use super::pattern;
use super::state::{Done, Shell, Status};
use super::syntax::TestToken;
use super::unknown_in;

/// A token with its text, as a pattern too.
#[derive(Clone, Debug)]
enum Token {
    Sign(&'static str),
    Text { text: String, pattern: Option<String> },
}

impl Token {
    fn is(&self, sign: &str) -> bool {
        match self {
            Token::Sign(own) => *own == sign,
            // In `[`, signs are words.
            Token::Text { text, pattern: None } => text == sign,
            Token::Text { .. } => false,
        }
    }

    fn text(&self) -> &str {
        match self {
            Token::Sign(sign) => sign,
            Token::Text { text, .. } => text,
        }
    }
}

impl Shell<'_> {
    /// `[ … ]` or `test …`, of its words.
    pub(super) fn test_words(&mut self, words: &[String]) -> Done<Status> {
        let tokens = words.iter().map(|text| Token::Text { text: text.clone(), pattern: None }).collect();
        self.test(tokens)
    }

    /// `[[ … ]]`.
    pub(super) fn test_tokens(&mut self, tokens: &[TestToken]) -> Done<Status> {
        let mut made = Vec::new();
        for token in tokens {
            made.push(match token {
                TestToken::Sign(sign) => Token::Sign(sign),
                TestToken::Word(word) => Token::Text { text: self.text(word)?, pattern: Some(self.pattern(word)?) },
            });
        }
        self.test(made)
    }

    fn test(&mut self, tokens: Vec<Token>) -> Done<Status> {
        if tokens.is_empty() {
            return Ok(Status::Failed);
        }
        let mut reader = Reader { shell: self, tokens, at: 0, depth: 0 };
        let status = reader.any()?;
        match reader.at == reader.tokens.len() {
            true => Ok(status),
            false => reader.wrong(),
        }
    }
}

struct Reader<'s, 'g> {
    shell: &'s mut Shell<'g>,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

fn status(is_so: bool) -> Status {
    if is_so { Status::Ok } else { Status::Failed }
}

impl Reader<'_, '_> {
    fn wrong<T>(&self) -> Done<T> {
        let words: Vec<&str> = self.tokens.iter().map(Token::text).collect();
        self.shell.wrong(format!("`{}` is no condition", words.join(" ")))
    }

    fn eat(&mut self, signs: [&str; 2]) -> bool {
        let is_there = self.tokens.get(self.at).is_some_and(|token| signs.iter().any(|sign| token.is(sign)));
        self.at += usize::from(is_there);
        is_there
    }

    fn any(&mut self) -> Done<Status> {
        let mut left = self.all()?;
        while self.eat(["||", "-o"]) {
            let right = self.all()?;
            left = match (left, right) {
                (Status::Ok, _) | (_, Status::Ok) => Status::Ok,
                (Status::Failed, other) | (other, Status::Failed) => other,
                _ => left,
            };
        }
        Ok(left)
    }

    fn all(&mut self) -> Done<Status> {
        let mut left = self.one()?;
        while self.eat(["&&", "-a"]) {
            let right = self.one()?;
            left = match (left, right) {
                (Status::Failed, _) | (_, Status::Failed) => Status::Failed,
                (Status::Ok, other) | (other, Status::Ok) => other,
                _ => left,
            };
        }
        Ok(left)
    }

    fn one(&mut self) -> Done<Status> {
        self.depth += 1;
        if self.depth > super::DEEPEST {
            return self.wrong();
        }
        let read = self.inner();
        self.depth -= 1;
        read
    }

    fn inner(&mut self) -> Done<Status> {
        let left = self.tokens.len() - self.at;
        if left > 1 && self.eat(["!", "!"]) {
            return Ok(match self.one()? {
                Status::Ok => Status::Failed,
                Status::Failed => Status::Ok,
                unknown => unknown,
            });
        }
        if left > 2 && self.eat(["(", "("]) {
            let inner = self.any()?;
            return if self.eat([")", ")"]) { Ok(inner) } else { self.wrong() };
        }
        let Some(first) = self.tokens.get(self.at).cloned() else { return self.wrong() };
        let second = self.tokens.get(self.at + 1).cloned();
        let third = self.tokens.get(self.at + 2).cloned();
        if let (Some(sign), Some(third)) = (&second, third)
            && ["=", "==", "!=", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "<", ">", "-nt", "-ot", "-ef"]
                .contains(&sign.text())
        {
            self.at += 3;
            return self.compare(first.text(), sign.text(), &third);
        }
        let is_unary = first.text().len() == 2 && first.text().starts_with('-');
        if let (Some(second), true) = (&second, is_unary)
            && !["&&", "||", ")", "-a", "-o"].iter().any(|sign| second.is(sign))
        {
            self.at += 2;
            return self.unary(first.text(), second.text());
        }
        self.at += 1;
        self.has_text(first.text())
    }

    fn has_text(&mut self, text: &str) -> Done<Status> {
        if self.shell.is_unset(text) {
            return Ok(Status::Failed);
        }
        // A text is not empty where a part of it is known.
        let is_known = super::parts(text).any(|part| matches!(part, super::Part::Text(_)));
        Ok(match unknown_in(text) {
            Some(unknown) if !is_known => Status::Unknown(unknown),
            _ => status(!text.is_empty()),
        })
    }

    fn unary(&mut self, sign: &str, text: &str) -> Done<Status> {
        match sign {
            "-n" => self.has_text(text),
            "-z" => Ok(match self.has_text(text)? {
                Status::Ok => Status::Failed,
                Status::Failed => Status::Ok,
                unknown => unknown,
            }),
            "-v" => Ok(status(self.shell.variable(text).is_some())),
            _ => {
                // Files, and what else only a running shell sees.
                let name = format!("[ {sign} {text} ]");
                Ok(Status::Unknown(self.shell.unknown(&name, false)))
            }
        }
    }

    fn compare(&mut self, left: &str, sign: &str, right: &Token) -> Done<Status> {
        if sign.starts_with('-') {
            return self.compare_numbers(left, sign, right.text());
        }
        let text = right.text();
        self.shell.compared(left, &[text.into()]);
        self.shell.compared(text, &[left.into()]);
        // A variable that nothing sets is empty.
        let empty = |shell: &Shell<'_>, side: &str, other: &str| {
            if other.is_empty() && shell.is_unset(side) { String::new() } else { side.into() }
        };
        let (one, other) = (empty(self.shell, left, text), empty(self.shell, text, left));
        if let Some(unknown) = unknown_in(&one).or(unknown_in(&other)) {
            return Ok(Status::Unknown(unknown));
        }
        let fits = match right {
            Token::Text { pattern: Some(pattern), .. } => pattern::fits(pattern, &one),
            _ => one == other,
        };
        Ok(match sign {
            "=" | "==" => status(fits),
            "!=" => status(!fits),
            "<" => status(one < other),
            ">" => status(one > other),
            "=~" if matches!(text, "^[0-9]+$" | "^[0-9]*$") => {
                status(one.chars().all(|letter| letter.is_ascii_digit()) && (text.contains('*') || !one.is_empty()))
            }
            // Without signs of its own it is a part of the text.
            "=~" if text.chars().all(|letter| letter.is_alphanumeric() || letter == '_') => {
                status(one.contains(text))
            }
            _ => {
                let name = format!("[[ {left} {sign} {text} ]]");
                Status::Unknown(self.shell.unknown(&name, false))
            }
        })
    }

    fn compare_numbers(&mut self, left: &str, sign: &str, right: &str) -> Done<Status> {
        if matches!(sign, "-nt" | "-ot" | "-ef") {
            let name = format!("[ {left} {sign} {right} ]");
            return Ok(Status::Unknown(self.shell.unknown(&name, false)));
        }
        self.shell.compared(left, &[right.into()]);
        let numbers = (self.shell.calculate(left, 0)?, self.shell.calculate(right, 0)?);
        let (left, right) = match numbers {
            (Number::Known(left), Number::Known(right)) => (left, right),
            (Number::Unknown(unknown), _) | (_, Number::Unknown(unknown)) => return Ok(Status::Unknown(unknown)),
        };
        Ok(status(match sign {
            "-eq" => left == right,
            "-ne" => left != right,
            "-lt" => left < right,
            "-le" => left <= right,
            "-gt" => left > right,
            _ => left >= right,
        }))
    }
}
