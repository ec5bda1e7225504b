//! Commands, one after the other.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::arithmetic::Number;
use super::state::{Branch, Done, Flow, Shell, State, Status, Variable};
use super::syntax::{Assign, Assigned, Command, List, Node, Redirect, Word};
use super::{BatchJob, Ran, mark, only_unknown, pattern, unknown_in};

/// Exported variables that launchers read in the place of arguments.
const OF_LAUNCHERS: [&str; 5] = ["NPROC_PER_NODE", "NNODES", "WORLD_SIZE", "PET_NPROC_PER_NODE", "PET_NNODES"];

impl<'g> Shell<'g> {
    pub(super) fn list(&mut self, list: &List) -> Done<Flow> {
        for command in list {
            let flow = self.command(command)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn command(&mut self, command: &Command) -> Done<Flow> {
        self.line = command.line;
        self.spend(0)?;
        let redirects: &[Redirect] = &command.redirects;
        let simple = match &command.node {
            Node::Simple { .. } => &[],
            _ => redirects,
        };
        self.redirected(simple, |this| this.node(command))
    }

    /// With what it reads, and with its output where a file takes that.
    fn redirected(&mut self, redirects: &[Redirect], run: impl FnOnce(&mut Self) -> Done<Flow>) -> Done<Flow> {
        let mut target = None;
        let input = self.input.clone();
        for redirect in redirects {
            match redirect {
                Redirect::Document(number) => {
                    let document = self.documents.get(*number).cloned().unwrap_or_default();
                    self.input = Some(self.text(&document)?);
                }
                Redirect::Text(word) => self.input = Some(format!("{}\n", self.text(word)?)),
                Redirect::To { target: word, append } => target = Some((self.text(word)?, *append)),
                Redirect::Other => {}
            }
        }
        let Some((target, append)) = target else {
            let flow = run(self);
            self.input = input;
            return flow;
        };
        let outer = self.state.out.replace(String::new());
        let flow = run(self)?;
        let text = core::mem::replace(&mut self.state.out, outer).unwrap_or_default();
        self.input = input;
        let mut whole = if append { self.state.files.remove(&target).unwrap_or_default() } else { String::new() };
        whole.push_str(&text);
        self.spend(whole.len())?;
        if self.state.files.len() < 1_000 {
            self.state.files.insert(target, whole);
        }
        Ok(flow)
    }

    fn node(&mut self, command: &Command) -> Done<Flow> {
        match &command.node {
            Node::Simple { before, words, declared } => self.simple(command, before, words, declared),
            Node::Pipe(commands) => self.pipe(commands),
            Node::And(left, right) => self.then(left, Status::Ok, &|this| this.command(right)),
            Node::Or(left, right) => self.then(left, Status::Failed, &|this| this.command(right)),
            Node::Not(inner) => {
                let flow = self.command(inner)?;
                self.status = match self.status {
                    Status::Ok => Status::Failed,
                    Status::Failed => Status::Ok,
                    unknown => unknown,
                };
                Ok(flow)
            }
            Node::If { arms, otherwise } => self.branch(arms, otherwise),
            Node::Case { word, arms } => {
                let text = self.text(word)?;
                self.case(&text, arms)
            }
            Node::For { name, words, body } => {
                let values = match words {
                    Some(words) => self.words(words)?,
                    None => self.state.called_with.clone(),
                };
                self.over(name, &values, body)
            }
            Node::Count { first, test, next, body } => self.count([first, test, next], body),
            Node::While { test, until, body } => self.repeat(test, *until, body),
            Node::Function { name, body } => {
                self.state.functions.insert(name.clone(), Rc::clone(body));
                self.status = Status::Ok;
                Ok(Flow::Next)
            }
            Node::Group(list) => self.list(list),
            Node::Subshell(list) => self.apart(&|this| this.list(list)),
            Node::Test(tokens) => {
                self.status = self.test_tokens(tokens)?;
                Ok(Flow::Next)
            }
            Node::Arithmetic(word) => {
                let text = self.text(word)?;
                self.status = self.truth(&text)?;
                Ok(Flow::Next)
            }
        }
    }

    pub(super) fn truth(&mut self, text: &str) -> Done<Status> {
        Ok(match self.calculate(text, 0)? {
            Number::Known(0) => Status::Failed,
            Number::Known(_) => Status::Ok,
            Number::Unknown(unknown) => Status::Unknown(unknown),
        })
    }

    /// `&&` and `||`.
    fn then(&mut self, left: &Command, on: Status, right: Branch<'_, 'g>) -> Done<Flow> {
        let flow = self.command(left)?;
        if flow != Flow::Next {
            return Ok(flow);
        }
        match self.status {
            Status::Unknown(unknown) => self.fork(unknown, &[right, &|_| Ok(Flow::Next)]),
            status if status == on => right(self),
            _ => Ok(Flow::Next),
        }
    }

    fn branch(&mut self, arms: &[(List, List)], otherwise: &List) -> Done<Flow> {
        let Some(((test, body), rest)) = arms.split_first() else {
            self.status = Status::Ok;
            return self.list(otherwise);
        };
        let outer = core::mem::replace(&mut self.is_asked, true);
        let flow = self.list(test)?;
        self.is_asked = outer;
        if flow != Flow::Next {
            return Ok(flow);
        }
        match self.status {
            Status::Ok => self.list(body),
            Status::Failed => self.branch(rest, otherwise),
            Status::Unknown(unknown) => {
                self.fork(unknown, &[&|this| this.list(body), &|this| this.branch(rest, otherwise)])
            }
        }
    }

    fn case(&mut self, text: &str, arms: &[(Vec<Word>, List)]) -> Done<Flow> {
        let Some(((patterns, body), rest)) = arms.split_first() else { return Ok(Flow::Next) };
        let mut read = Vec::new();
        for pattern in patterns {
            read.push(self.pattern(pattern)?);
        }
        let subject = if self.is_unset(text) && read.iter().any(String::is_empty) { "" } else { text };
        if read.iter().any(|pattern| pattern == "*") {
            return self.list(body);
        }
        if let Some(unknown) = unknown_in(subject) {
            let plain: Vec<String> = read.into_iter().filter(|pattern| !pattern.contains(['*', '?', '['])).collect();
            self.compared(subject, &plain);
            return self.fork(unknown, &[&|this| this.list(body), &|this| this.case(text, rest)]);
        }
        self.spend(read.iter().map(|pattern| pattern.len() * subject.len()).sum())?;
        match read.iter().any(|pattern| pattern::fits(pattern, subject)) {
            true => self.list(body),
            false => self.case(text, rest),
        }
    }

    /// Runs a loop's body; what it says of the loop is for the loop.
    fn once(&mut self, body: &List) -> Done<Option<Flow>> {
        self.spend(0)?;
        Ok(match self.list(body)? {
            Flow::Next | Flow::Continue(0 | 1) => None,
            Flow::Break(0 | 1) => Some(Flow::Next),
            Flow::Break(more) => Some(Flow::Break(more - 1)),
            Flow::Continue(more) => Some(Flow::Continue(more - 1)),
            other => Some(other),
        })
    }

    fn over(&mut self, name: &str, values: &[String], body: &List) -> Done<Flow> {
        for value in values {
            self.set(name, Variable::Text(value.clone()))?;
            if let Some(flow) = self.once(body)? {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn count(&mut self, [first, test, next]: [&Word; 3], body: &List) -> Done<Flow> {
        let text = self.text(first)?;
        self.calculate(&text, 0)?;
        loop {
            let text = self.text(test)?;
            match self.truth(&text)? {
                _ if text.trim().is_empty() => {}
                Status::Ok => {}
                Status::Failed => return Ok(Flow::Next),
                Status::Unknown(unknown) => return self.perhaps_once(unknown, body),
            }
            if let Some(flow) = self.once(body)? {
                return Ok(flow);
            }
            let text = self.text(next)?;
            self.calculate(&text, 0)?;
        }
    }

    /// A loop that runs nobody knows how often: what it sets is unknown afterwards.
    fn perhaps_once(&mut self, unknown: usize, body: &List) -> Done<Flow> {
        self.fork(unknown, &[&|this| Ok(this.once(body)?.unwrap_or(Flow::Next)), &|_| Ok(Flow::Next)])
    }

    fn repeat(&mut self, test: &List, until: bool, body: &List) -> Done<Flow> {
        loop {
            let before = self.state.ran.len();
            let flow = self.list(test)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
            match (self.status, until) {
                (Status::Ok, false) | (Status::Failed, true) => {}
                (Status::Unknown(unknown), _) if self.unknowns.get(unknown).is_some_and(|one| one.name == "#") => {
                    self.notes.insert("what the script is called with ($@) is taken as nothing".into());
                    self.status = Status::Ok;
                    return Ok(Flow::Next);
                }
                (Status::Unknown(unknown), _) => return self.perhaps_once(unknown, body),
                _ => {
                    self.status = Status::Ok;
                    return Ok(Flow::Next);
                }
            }
            if let Some(flow) = self.once(body)? {
                return Ok(flow);
            }
            // `while true` starts the same run again and again.
            if self.state.ran.len() > before {
                return Ok(Flow::Next);
            }
        }
    }

    /// In a shell of its own: what it sets is gone afterwards.
    fn apart(&mut self, run: Branch<'_, 'g>) -> Done<Flow> {
        let before = self.state.clone();
        self.spend(before.variables.len() * 16)?;
        let flow = run(self)?;
        let after = core::mem::replace(&mut self.state, before);
        let State { files, ran, out, has_sourced, .. } = after;
        (self.state.files, self.state.ran, self.state.out) = (files, ran, out);
        self.state.has_sourced |= has_sourced;
        if flow == Flow::Exit {
            self.ended = None;
        }
        Ok(Flow::Next)
    }

    fn pipe(&mut self, commands: &[Command]) -> Done<Flow> {
        let outer = self.input.clone();
        for (index, command) in commands.iter().enumerate() {
            if index + 1 == commands.len() {
                self.apart(&|this| this.command(command))?;
                break;
            }
            let wanted = self.state.out.replace(String::new());
            self.apart(&|this| this.command(command))?;
            self.input = core::mem::replace(&mut self.state.out, wanted);
        }
        self.input = outer;
        Ok(Flow::Next)
    }

    pub(super) fn assign(&mut self, assign: &Assign) -> Done<()> {
        let name = assign.name.as_str();
        let before = self.state.variables.get(name).cloned();
        let value = match (&assign.value, &assign.index) {
            (Assigned::Text(word), None) => {
                self.grows = (word.0.len() > 1).then(|| name.into());
                let text = self.text(word)?;
                self.grows = None;
                match (before, assign.append) {
                    (Some(Variable::List(mut list)), append) => {
                        let known = list.entry(0).or_default();
                        *known = if append { format!("{known}{text}") } else { text };
                        Variable::List(list)
                    }
                    (Some(Variable::Text(before)), true) => {
                        let whole = format!("{before}{text}");
                        Variable::Text(self.within(&whole)?.into())
                    }
                    _ => Variable::Text(text),
                }
            }
            (Assigned::Text(word), Some(index)) => {
                let (key, text) = (self.text(index)?, self.text(word)?);
                self.with_element(before, &key, text, assign.append)?
            }
            (Assigned::List(elements), _) => {
                let mut value = match before {
                    Some(Variable::Map(map)) => Variable::Map(if assign.append { map } else { BTreeMap::new() }),
                    Some(Variable::List(list)) if assign.append => Variable::List(list),
                    Some(Variable::Text(text)) if assign.append => Variable::List(BTreeMap::from([(0, text)])),
                    _ => Variable::List(BTreeMap::new()),
                };
                for (key, word) in elements {
                    match key {
                        Some(key) => {
                            let (key, text) = (self.text(key)?, self.text(word)?);
                            value = self.with_element(Some(value), &key, text, false)?;
                        }
                        None => {
                            let words = self.words(core::slice::from_ref(word))?;
                            value = extended(value, words);
                        }
                    }
                }
                value
            }
        };
        self.set(name, value)
    }

    fn with_element(&mut self, value: Option<Variable>, key: &str, text: String, append: bool) -> Done<Variable> {
        let put = |known: &mut String| *known = if append { format!("{known}{text}") } else { text.clone() };
        match value {
            Some(Variable::Map(mut map)) => {
                put(map.entry(key.into()).or_default());
                Ok(Variable::Map(map))
            }
            other => {
                let mut list = match other {
                    Some(Variable::List(list)) => list,
                    Some(Variable::Text(text)) => BTreeMap::from([(0, text)]),
                    _ => BTreeMap::new(),
                };
                match self.calculate(key, 0)? {
                    Number::Known(at) if (0..100_000).contains(&at) => {
                        put(list.entry(at as u64).or_default());
                        Ok(Variable::List(list))
                    }
                    Number::Known(at) => self.wrong(format!("element {at} of a list")),
                    Number::Unknown(_) => self.wrong("an element of a list whose place depends on the environment"),
                }
            }
        }
    }

    fn simple(&mut self, command: &Command, before: &[Assign], words: &[Word], declared: &[Assign]) -> Done<Flow> {
        let line = command.line;
        let words = self.words(words)?;
        let Some((name, arguments)) = words.split_first() else {
            self.status = Status::Ok;
            before.iter().try_for_each(|assign| self.assign(assign))?;
            return Ok(Flow::Next);
        };
        // A command's own assignments hold for it alone.
        let hidden: Vec<(String, Option<Variable>)> = before
            .iter()
            .map(|assign| (assign.name.clone(), self.state.variables.get(&assign.name).cloned()))
            .collect();
        before.iter().try_for_each(|assign| self.assign(assign))?;
        let flow = self.redirected(&command.redirects, |this| {
            if let Some(body) = this.state.functions.get(name).cloned() {
                return this.call(&body, arguments);
            }
            if let Some(flow) = this.builtin(name, arguments, declared)? {
                return Ok(flow);
            }
            this.line = line;
            this.run(&words)
        })?;
        for (name, value) in hidden {
            match value {
                Some(value) => self.state.variables.insert(name, value),
                None => self.state.variables.remove(&name),
            };
        }
        Ok(flow)
    }

    fn call(&mut self, body: &Command, arguments: &[String]) -> Done<Flow> {
        if self.depth >= super::DEEPEST {
            return self.wrong("functions call each other too deep");
        }
        let called_with = core::mem::replace(&mut self.state.called_with, arguments.to_vec());
        let hidden = core::mem::take(&mut self.state.hidden);
        self.depth += 1;
        let flow = self.command(body)?;
        self.depth -= 1;
        self.state.called_with = called_with;
        for (name, value) in core::mem::replace(&mut self.state.hidden, hidden).into_iter().rev() {
            match value {
                Some(value) => self.state.variables.insert(name, value),
                None => self.state.variables.remove(&name),
            };
        }
        Ok(if flow == Flow::Exit { flow } else { Flow::Next })
    }

    /// A program: what it is called with is kept where that may be arguments.
    pub(super) fn run(&mut self, words: &[String]) -> Done<Flow> {
        self.status = Status::Ok;
        let name = words.first().map_or("", String::as_str);
        if let Some(script) = self.script_of(words) {
            let is_batch = words.iter().any(|word| word.rsplit('/').next() == Some("sbatch"));
            return self.apart(&|this| {
                let outer = this.state.ran.len();
                if is_batch {
                    this.begin_batch(BatchJob::of_options(this.batch_options(words), BatchJob::of(&script)));
                }
                this.nested(&script, this.line)?;
                // The launcher's own arguments hold for what it runs.
                let launcher: Vec<String> = words.iter().take_while(|word| !is_shell(word)).cloned().collect();
                for ran in this.state.ran.iter_mut().skip(outer) {
                    ran.words.splice(0..0, launcher.iter().cloned());
                }
                Ok(Flow::Next)
            });
        }
        let has_arguments =
            words.iter().any(|word| word.starts_with("--") || word.ends_with(".py") || is_override(word));
        if has_arguments || only_unknown(name).is_some() {
            let environment = OF_LAUNCHERS.iter().filter_map(|name| {
                let value = self.variable(name)?;
                Some((String::from(*name), value))
            });
            let environment = environment.collect();
            let (batch, only_if) = (self.state.batch.clone(), self.only_if);
            let ran = Ran { line: self.line, words: words.to_vec(), environment, only_if, batch };
            self.spend(words.iter().map(String::len).sum())?;
            self.state.ran.push(ran);
        }
        if self.state.out.is_some() {
            let printed = mark(self.unknown(&format!("the output of `{name}`"), false));
            self.print(&printed)?;
        }
        // What trains is taken to succeed: a script goes on behind it. Not where just that is asked.
        let trains = !self.is_asked
            && (words.iter().any(|word| word.ends_with(".py"))
                || has_arguments && words.iter().any(|word| word == "-m"));
        if !trains && !name.is_empty() {
            let name = format!("whether `{name}` succeeds");
            self.status = Status::Unknown(self.unknown(&name, false));
        }
        Ok(Flow::Next)
    }

    /// What `sbatch` is called with before the job's script; all but a job that is given as text.
    fn batch_options<'w>(&self, words: &'w [String]) -> &'w [String] {
        let from = words.iter().position(|word| word.rsplit('/').next() == Some("sbatch")).map_or(0, |at| at + 1);
        let options = &words[from..];
        let is_job =
            |word: &String| word == "--wrap" || word.starts_with("--wrap=") || self.state.files.contains_key(word);
        &options[..options.iter().position(is_job).unwrap_or(options.len())]
    }

    /// The commands that a shell is started with: `bash -c '…'`, `sbatch --wrap='…'`, a here-document, or a file that
    /// the script has written.
    fn script_of(&mut self, words: &[String]) -> Option<String> {
        if let Some(text) = words.iter().find_map(|word| word.strip_prefix("--wrap=")) {
            return Some(text.to_string());
        }
        if let Some(at) = words.iter().position(|word| word == "--wrap") {
            return words.get(at + 1).cloned();
        }
        let at = words.iter().position(|word| is_shell(word))?;
        // Its options have values.
        if words[at].ends_with("sbatch")
            && let Some(known) = words[at + 1..].iter().find_map(|word| self.state.files.get(word))
        {
            return Some(known.clone());
        }
        let mut rest = words[at + 1..].iter();
        loop {
            match rest.next() {
                Some(word) if word.starts_with('-') && !word.starts_with("--") && word.ends_with('c') => {
                    return rest.next().cloned();
                }
                Some(word) if word.starts_with('-') => {}
                Some(word) => {
                    let known = self.state.files.get(word).cloned();
                    if known.is_none() && at == 0 {
                        self.notes.insert(format!("`{word}`, which the script starts, is not read"));
                    }
                    return known;
                }
                None => return self.input.clone(),
            }
        }
    }

    pub(super) fn print(&mut self, text: &str) -> Done<()> {
        self.spend(text.len())?;
        let Some(out) = &mut self.state.out else { return Ok(()) };
        if out.len() + text.len() > super::MOST_OF_SCRIPT {
            return self.wrong("commands print more than is read");
        }
        out.push_str(text);
        Ok(())
    }
}

fn is_shell(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("bash" | "sh" | "zsh" | "dash" | "sbatch"))
}

/// A list with more elements behind its last.
pub(super) fn extended(value: Variable, words: Vec<String>) -> Variable {
    let mut list = match value {
        Variable::List(list) => list,
        Variable::Text(text) => BTreeMap::from([(0, text)]),
        Variable::Map(_) => BTreeMap::new(),
    };
    let from = list.keys().next_back().map_or(0, |last| last + 1);
    list.extend((from..).zip(words));
    Variable::List(list)
}

/// Whether a word is an argument as Hydra has it: `trainer.nnodes=2`, `+actor.optim.lr=1e-6`.
fn is_override(word: &str) -> bool {
    let name = word.trim_start_matches('+').split_once('=').map_or("", |(name, _)| name);
    name.contains('.')
        && name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| super::in_name(letter) || letter == '.')
}
