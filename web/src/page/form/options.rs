//! The options of lists: the value in a spec and its label.

use pipeplan_core::hardware::cluster;
use pipeplan_core::model::catalog;

use crate::text;

pub(super) type Choices = Vec<(String, String)>;

pub(super) fn named(choices: &[(&str, &str)]) -> Choices {
    choices.iter().map(|(name, title)| ((*name).to_owned(), (*title).to_owned())).collect()
}

/// The options of a feature that each model of the catalog sets.
pub(super) fn flag() -> Choices {
    named(&[("", "as the model"), ("true", "on"), ("false", "off")])
}

/// The options of a feature with several fields.
pub(super) fn or_none() -> Choices {
    named(&[("", "as the model, or as below"), ("none", "none")])
}

pub(super) fn objectives() -> Choices {
    named(&[("", "makespan over all ranks"), ("longest_span", "longest span of a rank")])
}

pub(super) fn models() -> Choices {
    let mut choices: Choices =
        catalog::catalog().iter().map(|entry| (entry.name.to_owned(), entry.title.to_owned())).collect();
    choices.push((String::new(), "Custom sizes".to_owned()));
    choices
}

pub(super) fn devices() -> Choices {
    let mut choices: Choices =
        cluster::catalog().iter().map(|entry| (entry.name.to_owned(), entry.title.to_owned())).collect();
    choices.push((String::new(), "Custom device".to_owned()));
    choices
}

pub(super) fn schedules() -> Choices {
    pipeplan_core::schedule::schedule_names()
        .into_iter()
        .map(|name| (name.to_owned(), text::schedule_title(name)))
        .collect()
}
