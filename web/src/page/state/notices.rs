//! Messages above the picture.

use leptos::prelude::*;

use super::Planner;
use crate::protocol::FieldFault;

/// A message above the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Whether it is an error.
    pub wrong: bool,
    /// The lines of the message.
    pub lines: Vec<String>,
}

impl Planner {
    /// Adds a line that is not an error.
    pub fn notify(self, line: &str) {
        self.notice.update(|notice| match notice {
            Some(Notice { lines, .. }) => {
                if !lines.iter().any(|said| said == line) {
                    lines.push(line.to_owned());
                }
            }
            None => *notice = Some(Notice { wrong: false, lines: vec![line.to_owned()] }),
        });
    }

    /// Removes lines.
    pub(super) fn withdraw(self, is_it: impl Fn(&str) -> bool) {
        if self
            .notice
            .with_untracked(|notice| notice.as_ref().is_some_and(|said| said.lines.iter().any(|line| is_it(line))))
        {
            self.notice.update(|notice| {
                *notice = notice.take().and_then(|Notice { wrong, mut lines }| {
                    lines.retain(|line| !is_it(line));
                    (!lines.is_empty()).then_some(Notice { wrong, lines })
                });
            });
        }
    }

    pub fn report(self, lines: Vec<String>) {
        self.notice.set(Some(Notice { wrong: true, lines }));
    }

    /// Adds errors to those that are shown.
    pub fn report_also(self, lines: Vec<String>) {
        let before = self.notice.get_untracked().map(|notice| notice.lines).unwrap_or_default();
        self.report([before, lines].concat());
    }

    /// Says that a file is not text.
    pub fn report_unreadable(self, name: &str) {
        self.report_also(vec![format!("{name} is not a text file.")]);
    }
}

pub(super) fn sentences(faults: &[FieldFault]) -> Vec<String> {
    let sentence = |fault: &FieldFault| match (&fault.field, &fault.accepted) {
        (field, _) if field.is_empty() => fault.found.clone(),
        (field, accepted) => format!("{field}: found {}, accepted is {accepted}.", fault.found),
    };
    faults.iter().take(8).map(sentence).collect()
}
