//! Commands of the shell itself, and small programs that only print.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::arithmetic::Number;
use super::state::{Done, Flow, Shell, Status, Variable};
use super::syntax::Assign;
use super::{mark, only_unknown, unknown_in};

impl Shell<'_> {
    /// Runs a builtin; none where `name` is no builtin.
    pub(super) fn builtin(&mut self, name: &str, arguments: &[String], declared: &[Assign]) -> Done<Option<Flow>> {
        let status = core::mem::replace(&mut self.status, Status::Ok);
        let count = |at: usize| arguments.get(at).and_then(|count| count.parse().ok()).unwrap_or(1u32);
        match name {
            ":" | "true" | "cd" | "trap" | "ulimit" | "umask" | "wait" | "sleep" | "mkdir" | "rm" | "cp" | "mv"
            | "touch" | "ln" | "chmod" | "module" | "conda" | "ml" | "alias" | "shopt" | "hash" | "disown"
            | "kill" | "pushd" | "popd" | "sync" => {}
            "false" => self.status = Status::Failed,
            "break" => return Ok(Some(Flow::Break(count(0)))),
            "continue" => return Ok(Some(Flow::Continue(count(0)))),
            "return" | "exit" => {
                self.status = match arguments.first().map(String::as_str) {
                    None => status,
                    Some("0") => Status::Ok,
                    Some(_) => Status::Failed,
                };
                if name == "exit" {
                    self.ended = Some(self.line);
                }
                return Ok(Some(if name == "exit" { Flow::Exit } else { Flow::Return }));
            }
            "export" | "declare" | "local" | "readonly" | "typeset" => self.declare(name, arguments, declared)?,
            "unset" => {
                for name in arguments.iter().filter(|name| !name.starts_with('-')) {
                    if !self.is_given(name) {
                        self.state.variables.remove(name);
                    }
                }
            }
            "[" => {
                let Some((last, words)) = arguments.split_last().filter(|(last, _)| *last == "]") else {
                    return self.wrong("`[` without its `]`");
                };
                let _ = last;
                self.status = self.test_words(words)?;
            }
            "test" => self.status = self.test_words(arguments)?,
            "let" => {
                for expression in arguments {
                    self.status = self.truth(expression)?;
                }
            }
            "set" => self.set_options(arguments),
            "shift" => {
                let count = (count(0) as usize).min(self.state.called_with.len());
                self.state.called_with.drain(..count);
            }
            "getopts" => self.status = Status::Failed,
            "eval" => return self.nested(&arguments.join(" "), self.line).map(Some),
            "exec" | "command" | "time" | "nohup" | "builtin" => return self.prefixed(arguments, declared),
            "env" => {
                let is_other = |word: &&String| !word.contains('=') && !word.starts_with('-');
                let from = arguments.iter().position(|word| is_other(&word)).unwrap_or(arguments.len());
                return self.prefixed(&arguments[from..], declared);
            }
            "source" | "." => return self.source(arguments).map(Some),
            "read" | "mapfile" | "readarray" => self.read_input(name, arguments)?,
            _ => return self.printing(name, arguments),
        }
        Ok(Some(Flow::Next))
    }

    fn prefixed(&mut self, words: &[String], declared: &[Assign]) -> Done<Option<Flow>> {
        let from = words.iter().position(|word| !word.starts_with('-')).unwrap_or(words.len());
        let words = &words[from..];
        let Some((name, arguments)) = words.split_first() else { return Ok(Some(Flow::Next)) };
        if from > 0 {
            // `command -v name` asks whether there is such a program.
            let name = format!("whether there is `{name}`");
            self.status = Status::Unknown(self.unknown(&name, false));
            return Ok(Some(Flow::Next));
        }
        match self.builtin(name, arguments, declared)? {
            Some(flow) => Ok(Some(flow)),
            None => self.run(words).map(Some),
        }
    }

    fn declare(&mut self, kind: &str, arguments: &[String], declared: &[Assign]) -> Done<()> {
        let is_map = arguments.iter().any(|word| word.starts_with('-') && word.contains('A'));
        let names = arguments.iter().filter(|word| !word.starts_with('-') && !word.contains('='));
        let names: Vec<String> = names.cloned().chain(declared.iter().map(|assign| assign.name.clone())).collect();
        for name in names {
            if kind == "local" {
                let before = self.state.variables.get(&name).cloned();
                self.state.hidden.push((name.clone(), before));
            }
            if is_map && !matches!(self.state.variables.get(&name), Some(Variable::Map(_))) {
                self.state.variables.insert(name, Variable::Map(BTreeMap::new()));
            }
        }
        // `export $NAME=value` is a word first.
        for word in arguments.iter().filter(|word| !word.starts_with('-')) {
            if let Some((name, value)) = word.split_once('=').filter(|(name, _)| name.chars().all(super::in_name)) {
                self.set(name, Variable::Text(value.into()))?;
            }
        }
        declared.iter().try_for_each(|assign| self.assign(assign))
    }

    fn set_options(&mut self, arguments: &[String]) {
        let from = arguments.iter().position(|word| word == "--").map(|at| at + 1);
        let plain = || arguments.first().filter(|word| !word.starts_with(['-', '+'])).map(|_| 0);
        if let Some(from) = from.or_else(plain) {
            self.state.called_with = arguments[from..].to_vec();
        }
    }

    fn source(&mut self, arguments: &[String]) -> Done<Flow> {
        let name = arguments.first().map_or("", String::as_str);
        if let Some(text) = self.state.files.get(name).cloned() {
            let flow = self.nested(&text, self.line)?;
            return Ok(if flow == Flow::Return { Flow::Next } else { flow });
        }
        if let Some(path) = self.wanted_path(name) {
            return self.source_file(path, &arguments[1..]);
        }
        self.state.has_sourced = true;
        let shown: String = super::parts(name)
            .map(|part| match part {
                super::Part::Text(text) => text.to_string(),
                super::Part::Unknown(unknown) => {
                    self.unknowns.get(unknown).map_or(String::new(), |unknown| format!("${}", unknown.name))
                }
            })
            .collect();
        self.notes.insert(format!("`{shown}`, which the script takes variables from, is not read"));
        Ok(Flow::Next)
    }

    /// The path of a file whose text is given: beside the file that names it, or beside the script. Others are wanted.
    fn wanted_path(&mut self, name: &str) -> Option<String> {
        let path = super::path_of(name)?;
        let folder = self.sourcing.last().and_then(|file| file.rsplit_once('/'));
        let beside = folder.map(|(folder, _)| format!("{folder}/{path}"));
        let paths: Vec<String> = beside.into_iter().chain([path.to_string()]).collect();
        match paths.iter().find(|path| self.texts.contains_key(*path)) {
            Some(path) => Some(path.clone()).filter(|path| !self.sourcing.contains(path)),
            None => {
                self.wanted.extend(paths);
                None
            }
        }
    }

    fn source_file(&mut self, path: String, arguments: &[String]) -> Done<Flow> {
        let texts = self.texts;
        let Some(text) = texts.get(&path) else { return Ok(Flow::Next) };
        self.notes.insert(format!("`{path}`, which the script takes variables from, is read, too"));
        let text: String = text.chars().map(super::plain_letter).collect();
        let outer = self.state.called_with.clone();
        if !arguments.is_empty() {
            self.state.called_with = arguments.to_vec();
        }
        let line = self.line;
        self.sourcing.push(path);
        let read = self.nested(&text, 1);
        let path = self.sourcing.pop().unwrap_or_default();
        self.line = line;
        if !arguments.is_empty() {
            self.state.called_with = outer;
        }
        match read {
            Ok(Flow::Return) => Ok(Flow::Next),
            Ok(flow) => Ok(flow),
            Err(fault) => Err(super::ShellFault { line, problem: format!("{path}, {fault}") }),
        }
    }

    /// `read A B`, `mapfile A`, of a here-string or of what is piped.
    fn read_input(&mut self, command: &str, arguments: &[String]) -> Done<()> {
        let mut names = Vec::new();
        let (mut words, mut is_list) = (arguments.iter(), command != "read");
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some(options) => {
                    is_list |= options.contains('a') && command == "read";
                    if options.ends_with(['d', 'p', 'n', 't', 'u']) && !(command != "read" && options.ends_with('t'))
                    {
                        words.next();
                    }
                }
                None => names.push(word.clone()),
            }
        }
        let Some(input) = self.input.clone() else {
            for name in names {
                let unknown = mark(self.unknown(&name, true));
                self.set(&name, Variable::Text(unknown))?;
            }
            return Ok(());
        };
        let separators = match self.state.variables.get("IFS") {
            Some(Variable::Text(text)) => text.clone(),
            _ => " \t\n".into(),
        };
        let (line, rest) = input.split_once('\n').unwrap_or((&input, ""));
        let is_at_end = input.is_empty();
        let is_separator = |letter: char| separators.contains(letter);
        if is_list {
            let values: Vec<String> = match command {
                "read" => line.split(is_separator).filter(|word| !word.is_empty()).map(String::from).collect(),
                _ => input.lines().map(String::from).collect(),
            };
            let name = names.first().map_or("MAPFILE", String::as_str);
            return self.set(name, Variable::List((0..).zip(values).collect()));
        }
        let mut left = line.trim_matches(|letter: char| letter.is_whitespace() && is_separator(letter));
        for (index, name) in names.iter().enumerate() {
            let (value, rest) = match index + 1 == names.len() {
                true => (left, ""),
                false => left.split_once(is_separator).unwrap_or((left, "")),
            };
            left = rest.trim_start_matches(|letter: char| letter.is_whitespace() && is_separator(letter));
            self.set(name, Variable::Text(value.into()))?;
        }
        self.input = Some(rest.into());
        self.status = if is_at_end { Status::Failed } else { Status::Ok };
        Ok(())
    }

    /// What small programs print.
    fn printing(&mut self, name: &str, arguments: &[String]) -> Done<Option<Flow>> {
        let is_unknown = arguments.iter().chain(&self.input).find_map(|text| unknown_in(text));
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = match name {
            "echo" => Some(echo(&texts)),
            "printf" => return self.printf(arguments).map(Some),
            "grep" if is_unknown.is_none() => match self.grep(&texts) {
                Some(lines) => {
                    self.status = if lines.is_empty() { Status::Failed } else { Status::Ok };
                    let is_quiet = texts.iter().any(|word| is_letters(word) && word.contains('q'));
                    Some(if is_quiet { String::new() } else { lines })
                }
                None => None,
            },
            "cat" | "tee" => self.cat(name, &texts),
            // What a script is called with is nothing where nobody says it, as for `$#`.
            "getopt"
                if texts.iter().position(|word| *word == "--").is_some_and(|at| are_unknown(&texts[at + 1..])) =>
            {
                Some(" --\n".into())
            }
            "seq" | "expr" | "bc" | "wc" | "tr" | "basename" | "dirname" => match is_unknown {
                Some(unknown) => Some(mark(unknown)),
                None => self.small(name, &texts)?,
            },
            _ => None,
        };
        Ok(match printed {
            Some(text) => {
                self.print(&text)?;
                Some(Flow::Next)
            }
            None => None,
        })
    }

    fn cat(&mut self, name: &str, files: &[&str]) -> Option<String> {
        if name == "tee" {
            let text = self.input.clone()?;
            if let Some(file) = files.iter().find(|file| !file.starts_with('-')) {
                self.state.files.insert((*file).into(), text.clone());
            }
            return Some(text);
        }
        match files.iter().find(|file| !file.starts_with('-')) {
            Some(file) => self.state.files.get(*file).cloned(),
            None => self.input.clone(),
        }
    }

    /// The lines of what is read that have a plain text in them; none where it is more than that, or where files are looked at.
    fn grep(&self, words: &[&str]) -> Option<String> {
        let input = self.input.as_deref()?;
        let options: Vec<&str> = words.iter().copied().take_while(|word| is_letters(word)).collect();
        let pattern = match &words[options.len()..] {
            ["--", pattern] | [pattern] => *pattern,
            _ => return None,
        };
        let has = |letter: char| options.iter().any(|option| option.contains(letter));
        let is_known = options.iter().all(|option| option[1..].chars().all(|letter| "qFEiv".contains(letter)));
        let special = match (has('F'), has('E')) {
            (true, _) => "",
            (_, true) => ".*[]^$\\+?(){}|",
            _ => ".*[]^$\\",
        };
        if !is_known || pattern.contains(|letter| special.contains(letter)) {
            return None;
        }
        let folded = |text: &str| if has('i') { text.to_lowercase() } else { text.to_string() };
        let pattern = folded(pattern);
        let lines = input.lines().filter(|line| folded(line).contains(&pattern) != has('v'));
        Some(lines.map(|line| format!("{line}\n")).collect())
    }

    fn small(&mut self, name: &str, words: &[&str]) -> Done<Option<String>> {
        let input = self.input.clone().unwrap_or_default();
        Ok(match (name, words) {
            ("seq", _) => seq(words),
            ("expr", _) => match self.calculate(&words.join(" ").replace('\\', ""), 0) {
                Ok(Number::Known(number)) => Some(format!("{number}\n")),
                _ => None,
            },
            // Whole numbers alone: others depend on its scale.
            ("bc", []) if input.chars().all(|letter| letter.is_ascii_digit() || "+-*()% \n".contains(letter)) => {
                match self.calculate(input.trim(), 0)? {
                    Number::Known(number) => Some(format!("{number}\n")),
                    Number::Unknown(_) => None,
                }
            }
            ("wc", ["-w"]) => Some(format!("{}\n", input.split_whitespace().count())),
            ("wc", ["-l"]) => Some(format!("{}\n", input.matches('\n').count())),
            ("tr", ["-d", letters]) if !letters.contains(['[', '\\', '-']) => {
                Some(input.chars().filter(|letter| !letters.contains(*letter)).collect())
            }
            ("tr", [from, to]) if from.chars().count() == 1 && to.chars().count() == 1 => {
                Some(input.replace(from, to))
            }
            ("basename", [path]) => {
                Some(format!("{}\n", path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)))
            }
            ("basename", [path, end]) => {
                let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
                Some(format!("{}\n", name.strip_suffix(end).unwrap_or(name)))
            }
            ("dirname", [path]) => Some(match path.trim_end_matches('/').rsplit_once('/') {
                Some(("", _)) => "/\n".into(),
                Some((folder, _)) => format!("{folder}\n"),
                None => ".\n".into(),
            }),
            _ => None,
        })
    }

    fn printf(&mut self, arguments: &[String]) -> Done<Flow> {
        let (target, rest) = match arguments {
            [option, name, rest @ ..] if option == "-v" => (Some(name.clone()), rest),
            rest => (None, rest),
        };
        let rest = if rest.first().is_some_and(|word| word == "--") { &rest[1..] } else { rest };
        let Some((format, values)) = rest.split_first() else { return Ok(Flow::Next) };
        let Some(text) = formatted(format, values) else {
            return self.wrong("a printf with a format that is not read: %s, %d and %% are");
        };
        match target {
            Some(name) => self.set(&name, Variable::Text(text))?,
            None => self.print(&text)?,
        }
        Ok(Flow::Next)
    }
}

fn are_unknown(words: &[&str]) -> bool {
    words.iter().all(|word| only_unknown(word).is_some())
}

/// Whether a word is options of one letter each.
fn is_letters(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word.starts_with("--")
}

fn echo(words: &[&str]) -> String {
    let options = words.iter().take_while(|word| {
        word.len() > 1 && word.starts_with('-') && word[1..].chars().all(|letter| "neE".contains(letter))
    });
    let options: Vec<&&str> = options.collect();
    let text = words[options.len()..].join(" ");
    let has = |letter: char| options.iter().any(|option| option.contains(letter));
    let text = if has('e') { text.replace("\\n", "\n").replace("\\t", "\t") } else { text };
    if has('n') { text } else { format!("{text}\n") }
}

fn seq(words: &[&str]) -> Option<String> {
    let (separator, words) = match words {
        ["-s", separator, words @ ..] => (*separator, words),
        words => ("\n", words),
    };
    let numbers: Vec<i64> = words.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let (first, step, last) = match numbers[..] {
        [last] => (1, 1, last),
        [first, last] => (first, 1, last),
        [first, step, last] if step != 0 => (first, step, last),
        _ => return None,
    };
    let count = last.checked_sub(first)?.checked_div(step)?.checked_add(1)?;
    if count > 10_000 {
        return None;
    }
    let all: Vec<String> = (0..count.max(0)).map(|at| (first + at * step).to_string()).collect();
    Some(format!("{}\n", all.join(separator)))
}

/// A format is used again while there are values.
fn formatted(format: &str, values: &[String]) -> Option<String> {
    let (mut made, mut left) = (String::new(), values.iter());
    loop {
        let before = left.len();
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => match letters.next()? {
                    'n' => made.push('\n'),
                    't' => made.push('\t'),
                    other => made.push(other),
                },
                '%' => match letters.next()? {
                    '%' => made.push('%'),
                    's' | 'd' | 'i' | 'q' => made.push_str(left.next().map_or("", String::as_str)),
                    _ => return None,
                },
                _ => made.push(letter),
            }
        }
        if left.len() == 0 || left.len() == before || made.len() > super::MOST_OF_VALUE {
            return Some(made);
        }
    }
}
