//! What a shell knows while it reads a script.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::parse::Parser;
use super::syntax::{Command, Word};
use super::{BatchJob, DEEPEST, MOST_OF_VALUE, MOST_WORK, Ran, ShellFault, Unknown, mark, only_unknown, unknown_in};

pub(super) type Done<T> = Result<T, ShellFault>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    Text(String),
    List(BTreeMap<u64, String>),
    Map(BTreeMap<String, String>),
}

impl Variable {
    fn len(&self) -> usize {
        match self {
            Variable::Text(text) => text.len(),
            Variable::List(list) => list.values().map(|value| value.len() + 16).sum(),
            Variable::Map(map) => map.iter().map(|(key, value)| key.len() + value.len() + 16).sum(),
        }
    }
}

/// What commands change. A branch on an unknown has a copy for each way.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub variables: BTreeMap<String, Variable>,
    pub functions: BTreeMap<String, Rc<Command>>,
    pub called_with: Vec<String>,
    /// What `local` hides until the function ends.
    pub hidden: Vec<(String, Option<Variable>)>,
    /// Files that the script writes, with their text.
    pub files: BTreeMap<String, String>,
    pub ran: Vec<Ran>,
    /// What commands print, where it is wanted.
    pub out: Option<String>,
    /// Whether the script reads another one.
    pub has_sourced: bool,
    /// The batch job that runs.
    pub batch: BatchJob,
}

impl State {
    fn len(&self) -> usize {
        let variables = self.variables.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>();
        let ran = self.ran.iter().flat_map(|ran| &ran.words).map(|word| word.len() + 16).sum::<usize>();
        variables
            + ran
            + self.files.values().map(String::len).sum::<usize>()
            + self.out.as_ref().map_or(0, String::len)
    }

    /// Lists and texts that hold arguments.
    pub fn lists(&self) -> Vec<Vec<String>> {
        let words = |value: &Variable| -> Vec<String> {
            match value {
                Variable::List(list) => list.values().cloned().collect(),
                Variable::Text(text) => text.split_whitespace().map(String::from).collect(),
                Variable::Map(_) => Vec::new(),
            }
        };
        let all = self.variables.values().map(words);
        all.filter(|words| words.first().is_some_and(|word| word.starts_with("--"))).collect()
    }
}

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    Failed,
    Unknown(usize),
}

/// Where a script goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break(u32),
    Continue(u32),
    Return,
    Exit,
}

pub(super) type Branch<'b, 'g> = &'b dyn Fn(&mut Shell<'g>) -> Done<Flow>;

pub(super) struct Shell<'g> {
    pub given: &'g BTreeMap<String, String>,
    /// Texts of files that the script may take variables from, by path.
    pub texts: &'g BTreeMap<String, String>,
    /// The files that are read now, each from the one before it.
    pub sourcing: Vec<String>,
    /// Files that the script takes variables from, without their text.
    pub wanted: BTreeSet<String>,
    pub used: BTreeSet<String>,
    pub state: State,
    pub unknowns: Vec<Unknown>,
    pub documents: Vec<Word>,
    pub line: usize,
    pub left: u64,
    pub depth: usize,
    pub notes: BTreeSet<String>,
    pub input: Option<String>,
    pub status: Status,
    /// The unknown on which it depends whether commands run.
    pub only_if: Option<usize>,
    /// Whether an `if` asks whether commands succeed.
    pub is_asked: bool,
    pub ended: Option<usize>,
    /// The variable whose new text is read: in `A="$A more"` what nothing has set is empty.
    pub grows: Option<String>,
}

impl<'g> Shell<'g> {
    pub fn new(given: &'g BTreeMap<String, String>, texts: &'g BTreeMap<String, String>) -> Shell<'g> {
        let mut state = State::default();
        for (name, value) in given {
            state.variables.insert(name.clone(), Variable::Text(value.clone()));
        }
        state.called_with = (1..).map_while(|number: u32| given.get(&number.to_string()).cloned()).collect();
        Shell {
            given,
            texts,
            sourcing: Vec::new(),
            wanted: BTreeSet::new(),
            used: BTreeSet::new(),
            state,
            unknowns: Vec::new(),
            documents: Vec::new(),
            line: 1,
            left: MOST_WORK,
            depth: 0,
            notes: BTreeSet::new(),
            input: None,
            status: Status::Ok,
            only_if: None,
            is_asked: false,
            ended: None,
            grows: None,
        }
    }

    /// Reads a script, at this line of the whole; returns the line on which it ends by itself.
    pub fn script(&mut self, text: &str, line: usize) -> Done<Option<usize>> {
        self.nested(text, line)?;
        Ok(self.ended)
    }

    /// A text as commands of the same shell.
    pub fn nested(&mut self, text: &str, line: usize) -> Done<Flow> {
        if self.depth >= DEEPEST {
            return self.wrong(format!("commands are nested deeper than {DEEPEST}"));
        }
        self.spend(text.len())?;
        let documents = core::mem::take(&mut self.documents);
        let (list, documents) = Parser::new(text, line, self.depth, documents).script()?;
        self.documents = documents;
        self.depth += 1;
        let flow = self.list(&list);
        self.depth -= 1;
        flow
    }

    pub fn wrong<T>(&self, problem: impl Into<String>) -> Done<T> {
        Err(ShellFault { line: self.line, problem: problem.into() })
    }

    /// From here on commands are part of `batch`.
    pub fn begin_batch(&mut self, batch: BatchJob) {
        for (name, value) in batch.variables() {
            if !self.given.contains_key(&name) {
                self.state.variables.insert(name, Variable::Text(value));
            }
        }
        self.state.batch = batch;
    }

    /// Counts a step that makes so many bytes.
    pub fn spend(&mut self, bytes: usize) -> Done<()> {
        match self.left.checked_sub(64 + bytes as u64) {
            Some(left) => self.left = left,
            None => return self.wrong("the script takes more steps than are read: a loop without end?"),
        }
        Ok(())
    }

    pub fn within<'t>(&mut self, text: &'t str) -> Done<&'t str> {
        self.spend(text.len())?;
        if text.len() > MOST_OF_VALUE {
            return self.wrong(format!("a value of more than {MOST_OF_VALUE} bytes"));
        }
        Ok(text)
    }

    /// What only a running shell knows.
    pub fn unknown(&mut self, name: &str, is_variable: bool) -> usize {
        let known = self.unknowns.iter().position(|one| {
            one.name == name && one.is_variable == is_variable && one.base.is_none() && !one.is_unset
        });
        known.unwrap_or_else(|| {
            self.unknowns.push(Unknown { name: name.into(), is_variable, ..Unknown::default() });
            self.unknowns.len() - 1
        })
    }

    /// The mark of a variable that nothing sets.
    pub fn unset(&mut self, name: &str) -> String {
        let known = self.unknowns.iter().position(|one| one.is_unset && one.name == name);
        let number = known.unwrap_or_else(|| {
            let unknown = Unknown { name: name.into(), is_variable: true, is_unset: true, ..Unknown::default() };
            self.unknowns.push(unknown);
            self.unknowns.len() - 1
        });
        mark(number)
    }

    /// Whether a text is a variable that nothing sets.
    pub fn is_unset(&self, text: &str) -> bool {
        only_unknown(text).and_then(|unknown| self.unknowns.get(unknown)).is_some_and(|unknown| unknown.is_unset)
    }

    pub fn is_given(&mut self, name: &str) -> bool {
        let is_given = self.given.contains_key(name);
        if is_given {
            self.used.insert(name.into());
        }
        is_given
    }

    /// Sets a variable, unless a person has given its value.
    pub fn set(&mut self, name: &str, value: Variable) -> Done<()> {
        self.spend(value.len())?;
        if value.len() > 16 * MOST_OF_VALUE || self.state.variables.len() > 10_000 {
            return self.wrong(format!("more than can be held in `{name}`"));
        }
        if self.is_given(name) {
            return Ok(());
        }
        let value = match value {
            // A person cannot give the output of a command, but the variable that holds it.
            Variable::Text(text) => Variable::Text(self.named(name, text)),
            value => value,
        };
        self.state.variables.insert(name.into(), value);
        Ok(())
    }

    fn named(&mut self, name: &str, text: String) -> String {
        let is_other = |unknown: usize| self.unknowns.get(unknown).is_some_and(|one| !one.is_variable);
        if !unknown_in(&text).is_some_and(is_other) {
            return text;
        }
        let number = self.unknown(name, true);
        mark(number)
    }

    /// Reads each way, and makes what differs afterwards unknown.
    pub fn fork(&mut self, unknown: usize, ways: &[Branch<'_, 'g>]) -> Done<Flow> {
        let before = self.state.clone();
        let outer = self.only_if;
        self.only_if = outer.or(Some(unknown));
        let mut ends: Vec<(Flow, State, Status)> = Vec::new();
        for way in ways {
            self.spend(before.len())?;
            self.state = before.clone();
            let flow = way(self)?;
            ends.push((flow, core::mem::take(&mut self.state), self.status));
        }
        self.only_if = outer;
        let ran: Vec<Ran> =
            ends.iter().flat_map(|(_, state, _)| state.ran.iter().skip(before.ran.len())).cloned().collect();
        // A way that ends the script is not the one that trains, unless all do.
        let goes_on = ends.iter().any(|(flow, ..)| *flow != Flow::Exit);
        ends.retain(|(flow, ..)| !goes_on || *flow != Flow::Exit);
        if goes_on {
            self.ended = None;
        }
        let flow = ends.first().map_or(Flow::Next, |(flow, ..)| *flow);
        if ends.iter().any(|(other, ..)| *other != flow) {
            let name = self.unknowns.get(unknown).map_or("?", |unknown| unknown.name.as_str());
            return self.wrong(format!("it depends on {name} where the script goes on: --set gives a variable"));
        }
        let status = ends.first().map_or(Status::Ok, |(.., status)| *status);
        self.status = if ends.iter().all(|(.., other)| *other == status) { status } else { Status::Unknown(unknown) };
        let states: Vec<State> = ends.into_iter().map(|(_, state, _)| state).collect();
        self.state = self.merged(unknown, states);
        self.state.ran = before.ran;
        self.state.ran.extend(ran);
        Ok(flow)
    }

    fn merged(&mut self, unknown: usize, mut states: Vec<State>) -> State {
        let mut merged = states.pop().unwrap_or_default();
        for state in states {
            let mut names: Vec<String> = state.variables.keys().chain(merged.variables.keys()).cloned().collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let both = [state.variables.get(&name), merged.variables.get(&name)];
                if both[0] != both[1] {
                    let value = self.either(unknown, both);
                    merged.variables.insert(name, value);
                }
            }
            if state.out != merged.out {
                let texts = [&state.out, &merged.out].map(|out| out.clone().unwrap_or_default());
                merged.out = Some(self.either_text(unknown, [&texts[0], &texts[1]]));
            }
            merged.functions.extend(state.functions);
            merged.files.extend(state.files);
            merged.has_sourced |= state.has_sourced;
            if state.called_with != merged.called_with {
                merged.called_with = alloc::vec![mark(unknown)];
            }
        }
        merged
    }

    fn either(&mut self, unknown: usize, both: [Option<&Variable>; 2]) -> Variable {
        let words = |value: Option<&Variable>| -> Vec<String> {
            match value {
                Some(Variable::Text(text)) => alloc::vec![text.clone()],
                Some(Variable::List(list)) => list.values().cloned().collect(),
                Some(Variable::Map(map)) => map.values().cloned().collect(),
                None => Vec::new(),
            }
        };
        match both {
            [Some(Variable::List(_)), _] | [_, Some(Variable::List(_))] => {
                let lists = both.map(words);
                let same = lists[0].iter().zip(&lists[1]).take_while(|(one, other)| one == other).count();
                let mut list: Vec<String> = lists[0].iter().take(same).cloned().collect();
                let alternatives = lists.iter().map(|list| list.iter().skip(same).cloned().collect()).collect();
                list.push(mark(self.alternative(unknown, alternatives)));
                Variable::List((0..).zip(list).collect())
            }
            [Some(Variable::Map(one)), Some(Variable::Map(other))] => {
                let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
                let of = |key: &String| match one.get(key) == other.get(key) {
                    true => one.get(key).cloned().unwrap_or_default(),
                    false => mark(unknown),
                };
                Variable::Map(keys.into_iter().map(|key| (key.clone(), of(key))).collect())
            }
            _ => {
                let texts = both.map(|value| words(value).concat());
                Variable::Text(self.either_text(unknown, [&texts[0], &texts[1]]))
            }
        }
    }

    /// What both begin with, up to a blank, and a mark.
    fn either_text(&mut self, unknown: usize, [one, other]: [&str; 2]) -> String {
        let same: usize = one
            .chars()
            .zip(other.chars())
            .take_while(|(one, other)| one == other)
            .map(|(one, _)| one.len_utf8())
            .sum();
        // A text that ends where the other goes on with a blank has its last word whole.
        let is_whole = |text: &str| text[same..].is_empty() || text[same..].starts_with(char::is_whitespace);
        let cut = match is_whole(one) && is_whole(other) {
            true => same,
            false => one[..same].rfind(char::is_whitespace).map_or(0, |at| at + 1),
        };
        let words = |text: &str| text[cut..].split_whitespace().map(String::from).collect::<Vec<_>>();
        let number = self.alternative(unknown, alloc::vec![words(one), words(other)]);
        let blank = if cut == 0 || one[..cut].ends_with(char::is_whitespace) { "" } else { " " };
        format!("{}{blank}{}", &one[..cut], mark(number))
    }

    fn alternative(&mut self, base: usize, alternatives: Vec<Vec<String>>) -> usize {
        let is_variable = self.unknowns.get(base).is_some_and(|base| base.is_variable);
        let name = self.unknowns.get(base).map(|base| base.name.clone()).unwrap_or_default();
        let unknown = Unknown { name, is_variable, alternatives, base: Some(base), ..Unknown::default() };
        // The same choice is made again and again in a loop.
        if let Some(known) = self.unknowns.iter().position(|known| *known == unknown) {
            return known;
        }
        self.unknowns.push(unknown);
        self.unknowns.len() - 1
    }
}
