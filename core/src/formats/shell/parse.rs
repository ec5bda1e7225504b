//! Text as commands, by the grammar of Bash.

use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::syntax::{Assign, Assigned, Command, List, Node, Redirect, TestToken, Word};
use super::{DEEPEST, ShellFault};

pub(super) type Parsed<T> = Result<T, ShellFault>;

/// Reads letters one by one.
pub(super) struct Parser {
    pub(super) letters: Vec<char>,
    pub(super) at: usize,
    pub(super) line: usize,
    pub(super) depth: usize,
    /// Whether a word is read that is an argument of a command.
    pub(super) in_arguments: bool,
    /// Here-documents that begin behind this line: number, end, whether tabs are cut, whether it is plain.
    waiting: Vec<(usize, String, bool, bool)>,
    pub(super) documents: Vec<Word>,
}

/// The commands that make assignments of their arguments.
const DECLARES: [&str; 5] = ["export", "declare", "local", "readonly", "typeset"];
/// Words that end a list of commands.
const RESERVED: [&str; 9] = ["then", "else", "elif", "fi", "do", "done", "esac", "}", "in"];

impl Parser {
    pub fn new(text: &str, line: usize, depth: usize, documents: Vec<Word>) -> Parser {
        let letters = text.chars().filter(|letter| *letter != '\r').collect();
        Parser { letters, at: 0, line, depth, in_arguments: false, waiting: Vec::new(), documents }
    }

    pub fn script(mut self) -> Parsed<(List, Vec<Word>)> {
        let list = self.list(&[])?;
        self.read_documents()?;
        Ok((list, self.documents))
    }

    pub(super) fn wrong<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(ShellFault { line: self.line, problem: problem.into() })
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    pub(super) fn ahead(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, letter)| self.letters.get(self.at + offset) == Some(&letter))
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += 1;
        self.line += usize::from(letter == '\n');
        Some(letter)
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let is_there = self.ahead(text);
        if is_there {
            text.chars().for_each(|_| {
                self.bump();
            });
        }
        is_there
    }

    /// One level deeper; a script that nests without end takes no stack.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEEPEST {
            return self.wrong(format!("commands are nested deeper than {DEEPEST}"));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Blanks, continued lines and comments.
    pub(super) fn skip_blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => {
                    self.bump();
                }
                Some('\\') if self.letters.get(self.at + 1) == Some(&'\n') => {
                    self.eat("\\\n");
                }
                // A backslash with blanks behind it is meant to continue.
                Some('\\') if self.is_blank_line_end() => while self.bump().is_some_and(|letter| letter != '\n') {},
                Some('#') if self.at == 0 || self.letters[self.at - 1].is_whitespace() || self.is_behind_sign() => {
                    while self.peek().is_some_and(|letter| letter != '\n') {
                        self.bump();
                    }
                }
                _ => return,
            }
        }
    }

    fn is_blank_line_end(&self) -> bool {
        let behind = self.letters[self.at + 1..].iter().take_while(|letter| **letter != '\n');
        let mut count = 0;
        behind.inspect(|_| count += 1).all(|letter| matches!(letter, ' ' | '\t')) && count > 0
    }

    fn is_behind_sign(&self) -> bool {
        matches!(self.letters.get(self.at.wrapping_sub(1)), Some(';' | '&' | '|' | '(' | ')'))
    }

    fn skip_lines(&mut self) -> Parsed<()> {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some('\n') => {
                    self.bump();
                    self.read_documents()?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// The word at which it stands, where it is plain.
    fn word_ahead(&self) -> String {
        let rest = self.letters[self.at..].iter();
        rest.take_while(|letter| {
            !letter.is_whitespace() && !matches!(letter, ';' | '&' | '|' | '(' | ')' | '<' | '>')
        })
        .take(64)
        .collect()
    }

    /// Commands up to the end, or to one of `closers`, which is left.
    pub(super) fn list(&mut self, closers: &[&str]) -> Parsed<List> {
        self.deeper(|this| {
            let mut list = Vec::new();
            loop {
                this.skip_lines()?;
                let ahead = this.word_ahead();
                match this.peek() {
                    None if closers.is_empty() => return Ok(list),
                    None => {
                        return this
                            .wrong(format!("the script ends where `{}` is missing", closers[closers.len() - 1]));
                    }
                    Some(';') if this.ahead(";;") => {
                        return if closers.contains(&";;") { Ok(list) } else { this.wrong("`;;` outside of a case") };
                    }
                    Some(';' | '&') => {
                        this.bump();
                        continue;
                    }
                    Some(')') if closers.contains(&")") => return Ok(list),
                    _ if closers.contains(&ahead.as_str()) => return Ok(list),
                    _ if RESERVED.contains(&ahead.as_str()) => {
                        return this.wrong(format!("`{ahead}` belongs to nothing"));
                    }
                    _ => {}
                }
                list.push(this.and_or()?);
            }
        })
    }

    fn and_or(&mut self) -> Parsed<Command> {
        let mut left = self.pipeline()?;
        loop {
            self.skip_blanks();
            let is_and = self.ahead("&&");
            if !is_and && !self.ahead("||") {
                return Ok(left);
            }
            self.at += 2;
            self.skip_lines()?;
            let line = left.line;
            let both = (Box::new(left), Box::new(self.pipeline()?));
            let node = if is_and { Node::And(both.0, both.1) } else { Node::Or(both.0, both.1) };
            left = Command { line, node, redirects: Vec::new() };
        }
    }

    fn pipeline(&mut self) -> Parsed<Command> {
        self.skip_blanks();
        let line = self.line;
        if self.peek() == Some('!') && self.letters.get(self.at + 1).is_some_and(|next| next.is_whitespace()) {
            self.bump();
            let inner = self.deeper(Self::pipeline)?;
            return Ok(Command { line, node: Node::Not(Box::new(inner)), redirects: Vec::new() });
        }
        let mut commands = vec![self.command()?];
        loop {
            self.skip_blanks();
            if self.peek() != Some('|') || self.ahead("||") {
                break;
            }
            self.bump();
            self.eat("&");
            self.skip_lines()?;
            commands.push(self.command()?);
        }
        match commands.len() {
            1 => Ok(commands.remove(0)),
            _ => Ok(Command { line, node: Node::Pipe(commands), redirects: Vec::new() }),
        }
    }

    fn command(&mut self) -> Parsed<Command> {
        self.skip_blanks();
        let line = self.line;
        let ahead = self.word_ahead();
        let node = match ahead.as_str() {
            _ if self.eat("((") => {
                let inside = self.arithmetic()?;
                Node::Arithmetic(inside)
            }
            _ if self.eat("(") => {
                let list = self.list(&[")"])?;
                self.expect(")")?;
                Node::Subshell(list)
            }
            "{" => {
                self.eat("{");
                let list = self.list(&["}"])?;
                self.expect("}")?;
                Node::Group(list)
            }
            "[[" => self.test()?,
            "if" => self.branches()?,
            "case" => self.cases()?,
            "for" => self.loop_over()?,
            "while" | "until" => {
                self.eat(&ahead);
                let test = self.list(&["do"])?;
                self.expect("do")?;
                Node::While { test, until: ahead == "until", body: self.body()? }
            }
            "select" | "coproc" => {
                return self.wrong(format!("`{ahead}` is not read: write the commands without it"));
            }
            "function" => {
                self.eat("function");
                self.skip_blanks();
                let name = self.word_ahead();
                self.eat(&name);
                self.skip_blanks();
                if self.eat("(") {
                    self.skip_blanks();
                    self.expect(")")?;
                }
                self.function(name)?
            }
            _ => return self.simple(),
        };
        let mut redirects = Vec::new();
        loop {
            self.skip_blanks();
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => return Ok(Command { line, node, redirects }),
            }
        }
    }

    pub(super) fn expect(&mut self, text: &str) -> Parsed<()> {
        match self.eat(text) {
            true => Ok(()),
            false => self.wrong(format!("`{text}` is missing")),
        }
    }

    fn function(&mut self, name: String) -> Parsed<Node> {
        self.skip_lines()?;
        let body = self.deeper(Self::command)?;
        Ok(Node::Function { name, body: Rc::new(body) })
    }

    fn body(&mut self) -> Parsed<List> {
        let body = self.list(&["done"])?;
        self.expect("done")?;
        Ok(body)
    }

    fn branches(&mut self) -> Parsed<Node> {
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        self.expect("if")?;
        loop {
            let test = self.list(&["then"])?;
            self.expect("then")?;
            arms.push((test, self.list(&["elif", "else", "fi"])?));
            if self.eat("elif") {
                continue;
            }
            if self.eat("else") {
                otherwise = self.list(&["fi"])?;
            }
            self.expect("fi")?;
            return Ok(Node::If { arms, otherwise });
        }
    }

    fn cases(&mut self) -> Parsed<Node> {
        self.expect("case")?;
        self.skip_blanks();
        let word = self.word()?;
        self.skip_lines()?;
        self.expect("in")?;
        let mut arms = Vec::new();
        loop {
            self.skip_lines()?;
            if self.word_ahead() == "esac" {
                self.eat("esac");
                return Ok(Node::Case { word, arms });
            }
            self.eat("(");
            let mut patterns = Vec::new();
            loop {
                self.skip_blanks();
                patterns.push(self.word()?);
                self.skip_blanks();
                if self.eat(")") {
                    break;
                }
                self.expect("|")?;
            }
            arms.push((patterns, self.list(&[";;", "esac"])?));
            if self.ahead(";;&") || self.ahead(";&") {
                return self.wrong("a case that goes on in the next branch is not read: end it with `;;`");
            }
            self.eat(";;");
        }
    }

    fn loop_over(&mut self) -> Parsed<Node> {
        self.expect("for")?;
        self.skip_blanks();
        if self.eat("((") {
            let [first, test, next] = self.counted()?;
            self.skip_lines()?;
            self.eat(";");
            self.skip_lines()?;
            self.expect("do")?;
            return Ok(Node::Count { first, test, next, body: self.body()? });
        }
        let name = self.word_ahead();
        self.eat(&name);
        self.skip_lines()?;
        let mut words = None;
        if self.word_ahead() == "in" {
            self.eat("in");
            let mut list = Vec::new();
            loop {
                self.skip_blanks();
                match self.peek() {
                    None | Some('\n' | ';') => break,
                    _ => list.push(self.word()?),
                }
            }
            words = Some(list);
        }
        self.skip_lines()?;
        self.eat(";");
        self.skip_lines()?;
        self.expect("do")?;
        Ok(Node::For { name, words, body: self.body()? })
    }

    fn test(&mut self) -> Parsed<Node> {
        self.expect("[[")?;
        let mut tokens = Vec::new();
        let mut is_expression = false;
        loop {
            self.skip_lines()?;
            if self.ahead("]]") {
                self.at += 2;
                return Ok(Node::Test(tokens));
            }
            if self.peek().is_none() {
                return self.wrong("the script ends where `]]` is missing");
            }
            let sign = ["&&", "||", "(", ")", "<", ">"].into_iter().find(|sign| self.ahead(sign));
            if let Some(sign) = sign.filter(|_| !is_expression) {
                self.eat(sign);
                tokens.push(TestToken::Sign(sign));
                continue;
            }
            if is_expression {
                tokens.push(TestToken::Word(self.until_blank()?));
                is_expression = false;
                continue;
            }
            let word = self.word()?;
            is_expression = word.plain() == Some("=~");
            tokens.push(if word.plain() == Some("!") { TestToken::Sign("!") } else { TestToken::Word(word) });
        }
    }

    fn simple(&mut self) -> Parsed<Command> {
        let line = self.line;
        let (mut before, mut words, mut declared, mut redirects) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        loop {
            self.skip_blanks();
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | ')') => break,
                Some('(') if words.len() == 1 && self.closes_at_once() => {
                    let name = words.first().and_then(Word::plain).map(String::from);
                    let Some(name) = name else { return self.wrong("a function whose name is no plain text") };
                    while self.bump() != Some(')') {}
                    return Ok(Command { line, node: self.function(name)?, redirects });
                }
                _ => {}
            }
            let declares = words.first().and_then(Word::plain).is_some_and(|name| DECLARES.contains(&name));
            if (words.is_empty() || declares)
                && let Some(assign) = self.assignment()?
            {
                if declares { &mut declared } else { &mut before }.push(assign);
                continue;
            }
            // What `ps` prints has lost its quotes.
            let is_layout = words.last().and_then(Word::plain).is_some_and(|name| {
                name.trim_start_matches('-').replace('_', "-") == "pipeline-model-parallel-layout"
            });
            if is_layout && self.peek() == Some('E') {
                words.push(self.until_blank()?);
                continue;
            }
            self.in_arguments = !words.is_empty();
            let word = self.word();
            self.in_arguments = false;
            words.push(word?);
        }
        if before.is_empty() && words.is_empty() && redirects.is_empty() {
            return self.wrong(match self.peek() {
                Some(letter) => format!("`{letter}` where a command should be"),
                None => String::from("the script ends where a command should be"),
            });
        }
        Ok(Command { line, node: Node::Simple { before, words, declared }, redirects })
    }

    fn closes_at_once(&self) -> bool {
        self.letters[self.at + 1..].iter().find(|letter| !matches!(letter, ' ' | '\t')) == Some(&')')
    }

    /// `NAME=`, `NAME+=` or `NAME[…]=` and what follows.
    fn assignment(&mut self) -> Parsed<Option<Assign>> {
        let (from, line) = (self.at, self.line);
        let name: String = self.letters[self.at..].iter().take_while(|l| super::in_name(**l)).collect();
        if name.is_empty() || name.starts_with(|letter: char| letter.is_ascii_digit()) {
            return Ok(None);
        }
        self.eat(&name);
        let mut index = None;
        if self.peek() == Some('[') {
            self.bump();
            index = Some(self.until(&[']', '\n'])?);
            if !self.eat("]") {
                (self.at, self.line) = (from, line);
                return Ok(None);
            }
        }
        let append = self.ahead("+=");
        if !append && self.peek() != Some('=') {
            (self.at, self.line) = (from, line);
            return Ok(None);
        }
        self.at += 1 + usize::from(append);
        let value = match self.peek() {
            Some('(') => Assigned::List(self.elements()?),
            Some(letter) if !letter.is_whitespace() && !matches!(letter, ';' | '&' | '|' | ')') => {
                Assigned::Text(self.word()?)
            }
            _ => Assigned::Text(Word::default()),
        };
        Ok(Some(Assign { name, index, append, value }))
    }

    fn elements(&mut self) -> Parsed<Vec<(Option<Word>, Word)>> {
        self.expect("(")?;
        let mut elements = Vec::new();
        loop {
            self.skip_lines()?;
            match self.peek() {
                None => return self.wrong("the script ends where the `)` of a list is missing"),
                Some(')') => {
                    self.bump();
                    return Ok(elements);
                }
                Some('[') => {
                    let (from, line) = (self.at, self.line);
                    self.bump();
                    let key = self.until(&[']', '\n'])?;
                    if self.eat("]=") {
                        let is_empty = self.peek().is_none_or(|letter| letter.is_whitespace() || letter == ')');
                        let value = if is_empty { Word::default() } else { self.word()? };
                        elements.push((Some(key), value));
                        continue;
                    }
                    (self.at, self.line) = (from, line);
                }
                _ => {}
            }
            elements.push((None, self.word()?));
        }
    }

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let digits = self.letters[self.at..].iter().take_while(|letter| letter.is_ascii_digit()).count();
        let sign = self.letters.get(self.at + digits).copied();
        let both = self.ahead("&>");
        if !both && !matches!(sign, Some('<' | '>')) {
            return Ok(None);
        }
        if self.letters.get(self.at + digits + 1) == Some(&'(') {
            return Ok(None);
        }
        let descriptor: String = self.letters[self.at..self.at + digits].iter().collect();
        self.at += digits + usize::from(both);
        if self.eat("<<<") {
            self.skip_blanks();
            return Ok(Some(Redirect::Text(self.word()?)));
        }
        if self.eat("<<") {
            let cut = self.eat("-");
            self.skip_blanks();
            return Ok(Some(self.document(cut)?));
        }
        let writes = self.peek() == Some('>');
        self.bump();
        let append = writes && self.eat(">");
        self.eat("|");
        let is_copy = self.eat("&");
        self.skip_blanks();
        let target = self.word()?;
        let is_output = writes && !is_copy && matches!(descriptor.as_str(), "" | "1");
        Ok(Some(if is_output { Redirect::To { target, append } } else { Redirect::Other }))
    }

    fn document(&mut self, cut: bool) -> Parsed<Redirect> {
        let (mut end, mut plain) = (String::new(), false);
        while let Some(letter) = self.peek().filter(|letter| !letter.is_whitespace() && !";&|<>)".contains(*letter)) {
            self.bump();
            match letter {
                '\'' | '"' | '\\' => plain = true,
                _ => end.push(letter),
            }
        }
        let number = self.documents.len();
        self.documents.push(Word::default());
        self.waiting.push((number, end, cut, plain));
        Ok(Redirect::Document(number))
    }

    /// Here-documents begin on the line behind the command.
    fn read_documents(&mut self) -> Parsed<()> {
        for (number, end, cut, plain) in core::mem::take(&mut self.waiting) {
            let (mut text, line) = (String::new(), self.line);
            loop {
                if self.peek().is_none() {
                    return self.wrong(format!("a here-document without its end, `{end}`"));
                }
                let mut one = String::new();
                while let Some(letter) = self.bump().filter(|letter| *letter != '\n') {
                    one.push(letter);
                }
                let one = if cut { one.trim_start_matches('\t') } else { one.as_str() };
                if one == end {
                    break;
                }
                text.push_str(one);
                text.push('\n');
            }
            self.documents[number] = match plain {
                true => Word(vec![super::syntax::Piece::Text { text, quoted: true }]),
                false => {
                    let mut inner = Parser::new(&text, line, self.depth, core::mem::take(&mut self.documents));
                    let word = inner.rest_of_document()?;
                    self.documents = inner.documents;
                    word
                }
            };
        }
        Ok(())
    }
}
