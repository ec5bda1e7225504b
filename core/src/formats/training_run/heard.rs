//! What is done with each argument, told.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Arguments;
use super::arguments::{self, Class};
use super::source::argument;
use super::spec::Reader;
use crate::base::fields::Fault;

impl Reader<'_> {
    /// Sorts the arguments by what they decide.
    pub fn hear(&mut self) {
        for (name, value) in &self.run.arguments {
            let typed = listed(name);
            let Some(known) = arguments::find(name) else {
                self.heard.not_known.push(typed);
                continue;
            };
            if known.is_neutral(value) {
                self.heard.harmless.push(typed);
                continue;
            }
            match known.class {
                Class::Used => self.heard.used.push(typed),
                Class::Harmless => self.heard.harmless.push(typed),
                Class::Told(how) => {
                    self.heard.not_modelled.insert(typed, how.into());
                }
                Class::Refused(_) if self.run.asked.contains(name) => {}
                Class::Refused(why) => {
                    let found = if value.is_empty() { "it".into() } else { format!("\"{value}\"") };
                    self.faults.push(Fault::new(argument(name), found, format!("nothing: {why}")));
                }
            }
        }
    }

    /// An argument that is planned otherwise, and how.
    pub fn tell(&mut self, name: &str, how: &str) {
        let from = self.derived.get(name).map(|(_, from)| from.as_str()).filter(|from| !from.is_empty());
        let typed = listed(from.unwrap_or(name));
        self.heard.used.retain(|used| *used != typed);
        self.heard.not_modelled.insert(typed, how.into());
    }
}

impl Arguments {
    /// A line for a person on each kind of argument but those that are used; the most common kind is shortened.
    pub fn told(&self) -> Vec<String> {
        let typed = |names: &[String], most: usize| {
            let shown: Vec<String> = names.iter().take(most).map(|name| arguments::typed(name)).collect();
            let more = names.len().saturating_sub(most);
            if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
        };
        let mut lines: Vec<String> =
            self.not_modelled.iter().map(|(name, how)| format!("{}: {how}", arguments::typed(name))).collect();
        if !self.not_known.is_empty() {
            lines.push(format!("not known, and left out: {}", typed(&self.not_known, 40)));
        }
        if !self.harmless.is_empty() {
            lines.push(format!("do not change the plan: {}", typed(&self.harmless, 8)));
        }
        lines
    }
}

/// The name in the lists of arguments: as it is typed, without dashes before it.
fn listed(name: &str) -> String {
    arguments::typed(name).trim_start_matches('-').into()
}
