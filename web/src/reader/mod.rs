//! The reader: what a text is that a person opened, where that takes the readers of other programs' files.
//!
//! - In: the text of a file, and what its reading needs of the form.
//! - Out: [`Found`], which goes into the form.
//! - Knows: the planner and [`text`](crate::text). No browser, no form.
//!
//! It is a part of its own, so that a visit without files does not load it; QR codes are in it, too. The page reads specs in JSON and `config.json`.

mod qr;

use pipeplan_core::base::fields::Faults;
use pipeplan_core::formats::training_run::{Arguments, Given, TrainingRun, arguments};
use pipeplan_core::notation::order;
use pipeplan_core::spec;
use serde::{Deserialize, Serialize};

use crate::text;

pub use qr::{MOST_CHARS, qr_code};

/// What the reading of a text needs of the form.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Asked {
    /// The device, which no log names.
    pub device: String,
    /// The number of devices, for logs that do not give it.
    pub devices: Option<u64>,
    /// What a person gives a script's variables: `NAME=VALUE NAME=VALUE`.
    pub values: String,
    /// Which training command of a script is taken, as typed.
    pub command: String,
}

/// What a text is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// A custom schedule.
    Order,
    /// A run of Megatron-LM or torchtitan: a log, a command line, a script or a config.
    Run(Run),
    /// A spec: all that it says, as JSON.
    Spec(String),
    /// Nothing that has a plan, and why, in sentences.
    Unreadable(Vec<String>),
}

/// Such a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// What was done with each argument: refused ones first.
    pub rows: Vec<ArgumentRow>,
    /// Its spec as JSON and what to say about it, behind its name, or the reasons why there is none.
    pub spec: Result<(String, Vec<String>), Vec<String>>,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentRow {
    /// As it is typed.
    pub argument: String,
    /// What was done with it.
    pub treatment: Treatment,
    /// How, or why.
    pub how: String,
}

/// What was done with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Treatment {
    /// It decides the plan.
    Used,
    /// It changes the plan, and is planned otherwise.
    Otherwise,
    /// No spec can express it.
    Refused,
    /// Nobody knows it.
    NotKnown,
    /// It does not change the plan.
    Harmless,
}

impl Treatment {
    /// As the table of arguments says it.
    pub const fn title(self) -> &'static str {
        match self {
            Treatment::Used => "used",
            Treatment::Otherwise => "planned otherwise",
            Treatment::Refused => "refused",
            Treatment::NotKnown => "not known, left out",
            Treatment::Harmless => "does not change the plan",
        }
    }
}

/// What a text is.
pub fn read(text: &str, asked: &Asked) -> Found {
    if order::looks_like_one(text) {
        return Found::Order;
    }
    let run = TrainingRun::read_with(text, &given(&asked.values, &asked.command));
    if run.is_any() {
        return Found::Run(read_run(&run, asked));
    }
    let read = spec::Spec::read(text).and_then(|spec| match spec::link::looks_like_one(text) {
        true => Ok(spec.to_value()),
        false => spec::parse(text),
    });
    match read {
        Ok(value) => Found::Spec(value.to_string()),
        Err(error) => {
            let why = error.to_string();
            let lines = why.lines().take(6).map(str::to_owned);
            Found::Unreadable([text::unreadable_file(text, &error)].into_iter().chain(lines).collect())
        }
    }
}

fn read_run(run: &TrainingRun, asked: &Asked) -> Run {
    let device = &asked.device;
    let lacks_devices = |faults: &Faults| faults.0.iter().any(|one| one.field == "devices" && one.found == "nothing");
    let read = match run.spec(device, None) {
        Err(faults) if lacks_devices(&faults) => run.spec(device, asked.devices),
        read => read,
    };
    match read {
        Ok(imported) => {
            let mut said = vec![format!(
                "is a run of {}. It does not name the device; the plan uses {device}.",
                run.framework()
            )];
            if let Some(step_ns) = run.typical_step_ns() {
                said.push(format!("Its measured step time is {}.", text::duration(step_ns as f64)));
            }
            said.extend(imported.notes.iter().chain(&imported.arguments.told()).map(|note| text::sentence(note)));
            Run { rows: rows(&imported.arguments, None), spec: Ok((imported.spec.to_json(), said)) }
        }
        Err(faults) => {
            let reasons = faults.0.iter().take(6).map(|fault| text::sentence(&fault.to_string())).collect();
            Run { rows: rows(&run.sorted_arguments(), Some(&faults)), spec: Err(reasons) }
        }
    }
}

/// The rows of a table: what is refused and planned otherwise first.
fn rows(arguments: &Arguments, faults: Option<&Faults>) -> Vec<ArgumentRow> {
    let row = |name: &String, treatment, how: &str| ArgumentRow {
        argument: arguments::typed(name),
        treatment,
        how: how.into(),
    };
    let refused: Vec<ArgumentRow> = faults
        .into_iter()
        .flat_map(|faults| &faults.0)
        .map(|fault| ArgumentRow {
            argument: fault.field.clone(),
            treatment: Treatment::Refused,
            how: text::sentence(&format!("found {}, accepted is {}", fault.found, fault.accepted)),
        })
        .collect();
    let otherwise = arguments.not_modelled.iter().map(|(name, how)| row(name, Treatment::Otherwise, how));
    let others = [
        (&arguments.not_known, Treatment::NotKnown),
        (&arguments.used, Treatment::Used),
        (&arguments.harmless, Treatment::Harmless),
    ];
    let others = others.into_iter().flat_map(|(names, treatment)| names.iter().map(move |name| (name, treatment)));
    let accepted: Vec<ArgumentRow> = otherwise
        .chain(others.map(|(name, treatment)| row(name, treatment, "")))
        .filter(|row| refused.iter().all(|refused| refused.argument != row.argument))
        .collect();
    [refused, accepted].concat()
}

/// `NAME=VALUE NAME=VALUE`, and a number.
fn given(values: &str, command: &str) -> Given {
    let pairs = values.split_whitespace().filter_map(|pair| pair.split_once('='));
    Given {
        variables: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        command: command.trim().parse().ok(),
        ..Given::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked { device: "h100".into(), devices: Some(64), ..Asked::default() }
    }

    #[test]
    fn a_text_is_what_it_looks_like() {
        assert_eq!(read("0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1 1BW1\n", &asked()), Found::Order);
        let toml = "[problem]\nranks = 2\nmicrobatches = 4\nstages = { forward_ns = 1, backward_input_ns = 2 }\n";
        let Found::Spec(json) = read(toml, &asked()) else { panic!("a spec") };
        assert_eq!(
            json,
            r#"{"problem":{"microbatches":4,"ranks":2,"stages":{"backward_input_ns":2,"forward_ns":1}}}"#
        );
        let Found::Unreadable(lines) = read("[problem]\nranks = 0\nmicrobatches = 4\n", &asked()) else {
            panic!("no spec")
        };
        assert!(
            lines[0].contains("a spec with errors") && lines.iter().any(|line| line.contains("ranks")),
            "{lines:?}"
        );
        assert!(matches!(read("no plan at all", &asked()), Found::Unreadable(_)));
    }

    #[test]
    fn a_run_says_what_became_of_its_arguments() {
        let script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 4096 \
                      --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \
                      --global-batch-size 64 --pipeline-model-parallel-size 4 --vocab-size 32000 --lr 1e-4";
        let of = |values: &str| match read(script, &Asked { values: values.into(), ..asked() }) {
            Found::Run(run) => run,
            other => panic!("a run: {other:?}"),
        };
        let run = of("LAYERS=32");
        let (spec, said) = run.spec.expect("a spec");
        let read: serde_json::Value = serde_json::from_str(&spec).unwrap();
        assert_eq!(read["parallel"]["pipeline"], 4);
        assert!(said[0].contains("the plan uses h100"), "{said:?}");
        let treatment = |name: &str| run.rows.iter().find(|row| row.argument == name).map(|row| row.treatment);
        assert_eq!(treatment("--num-layers"), Some(Treatment::Used));
        assert_eq!(treatment("--lr"), Some(Treatment::Harmless));
        let run = of("");
        assert!(run.spec.is_err() && run.rows[0].treatment == Treatment::Refused, "{run:?}");
    }
}
