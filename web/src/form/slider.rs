//! The range of a slider: the part of the range of a field that people explore.

use pipeplan_core::problem::Statement;
use pipeplan_core::spec::{Spec, Work};

use super::Form;

/// A slider of a field, in the field's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slider {
    /// Left end.
    pub least: f64,
    /// Right end.
    pub most: f64,
    /// The smallest movement.
    pub step: f64,
    /// Its state.
    pub value: f64,
    /// The right end means an empty field.
    pub most_is_empty: bool,
}

/// The slider of a field, if it has one. `spec` is the last valid one: it bounds memory.
pub fn slider(form: &Form, spec: Option<&Spec>, path: &str) -> Option<Slider> {
    let work = spec.map(|spec| &spec.work);
    let typed: Option<f64> = form.text(path).trim().parse().ok().filter(|value: &f64| value.is_finite());
    let counting = |most: f64, default: f64| {
        let value = typed.unwrap_or(default);
        Slider { least: 1.0, most: most.max(value), step: 1.0, value, most_is_empty: false }
    };
    match (path, work) {
        // It may be one that was found.
        ("parallel.pipeline", Some(Work::Model(work))) => {
            Some(counting(f64::from(work.model.layers.min(64)), f64::from(work.pipeline)))
        }
        ("parallel.pipeline" | "problem.ranks", _) => Some(counting(32.0, 1.0)),
        // It may follow from the global batch.
        ("training.microbatches", Some(Work::Model(work))) => Some(counting(128.0, f64::from(work.microbatches))),
        ("training.microbatches" | "problem.microbatches", _) => Some(counting(128.0, 1.0)),
        ("memory.limit_bytes", Some(Work::Model(work))) => {
            const GIB: f64 = (1u64 << 30) as f64;
            let most = work.device.memory_bytes as f64 / GIB;
            let step = step_of(most, 400.0);
            let value = typed.unwrap_or(most);
            Some(Slider { least: step, most: most.max(value), step, value, most_is_empty: value <= most })
        }
        ("problem.limit_bytes", Some(Work::Typed(statement))) => {
            let (least, most) = memory_range(statement)?;
            let step = ((most - least) / 200.0).ceil().max(1.0);
            let value = typed.unwrap_or(most);
            // A list has no single place on a slider.
            (statement.limit_bytes.len() == 1).then_some(Slider {
                least,
                most: most.max(value),
                step,
                value,
                most_is_empty: value <= most,
            })
        }
        _ => None,
    }
}

/// A round step, about `parts` of which make up `whole`.
fn step_of(whole: f64, parts: f64) -> f64 {
    let rough = (whole / parts).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough).unwrap_or(rough)
}

/// From the bytes of one microbatch on the fullest rank to those of all microbatches, static bytes included.
fn memory_range(statement: &Statement) -> Option<(f64, f64)> {
    let held = statement.static_bytes.iter().copied().max().unwrap_or(0) as f64;
    let forward = statement.stages.iter().map(|stage| stage.forward_bytes.max(0)).max()? as f64;
    let chunks = statement.chunks as f64;
    let most = held + forward * chunks * statement.microbatches as f64;
    (most > held).then_some((held + forward, most))
}

impl Slider {
    /// The field's text for a position.
    pub fn text_at(&self, position: f64) -> String {
        // The last step is as good as the end: a hand seldom meets it exactly.
        if self.most_is_empty && position >= self.most - self.step / 2.0 {
            return String::new();
        }
        let decimals = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        crate::text::trimmed(position, decimals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::Kind;

    #[test]
    fn the_right_end_of_memory_is_no_limit() {
        let mut form = Form::default();
        form.set("memory.limit_bytes", "");
        let spec = Spec::from_value(&form.to_value()).unwrap();
        let memory = slider(&form, Some(&spec), "memory.limit_bytes").unwrap();
        assert_eq!(memory.value, memory.most);
        assert_eq!(memory.text_at(memory.most), "");
        assert_eq!(memory.text_at(40.0), "40");
    }

    #[test]
    fn typed_memory_reaches_from_one_microbatch_to_all() {
        let form = Form { kind: Kind::Typed, ..Form::default() };
        let spec = Spec::from_value(&form.to_value()).unwrap();
        let memory = slider(&form, Some(&spec), "problem.limit_bytes").unwrap();
        assert_eq!((memory.least, memory.most), (2.0, 16.0));
        assert_eq!(memory.text_at(5.0), "5");
    }

    #[test]
    fn a_value_beyond_the_usual_stretches_the_slider() {
        let mut form = Form::default();
        form.set("training.microbatches", "500");
        let microbatches = slider(&form, None, "training.microbatches").unwrap();
        assert_eq!((microbatches.most, microbatches.value), (500.0, 500.0));
        assert_eq!(slider(&form, None, "model.layers"), None);
        form.set("training.microbatches", "NaN");
        assert_eq!(slider(&form, None, "training.microbatches").unwrap().value, 1.0);
    }
}
