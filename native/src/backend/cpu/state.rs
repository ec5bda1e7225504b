//! What the optimizer keeps of a weight: its moments, and of a weight in bf16 the numbers that rounding would lose.

use std::ops::Range;

use half::bf16;
use pipeplan_core::base::units::Bytes;
use pipeplan_core::model::Dtype;

use super::element::Element;
use super::kernels::Data;
use super::storage::{nearest, widen};
use crate::runner::optimizer::{Moments, Rule};

/// The optimizer states of this rank's share of a weight.
#[derive(Clone, Debug)]
pub struct State<T> {
    kept: Kept<T>,
    /// The master weights of a share of bf16 weights, and where the share begins in the weight.
    master: Option<(Vec<T>, usize)>,
}

/// The moments.
#[derive(Clone, Debug)]
enum Kept<T> {
    Wide(Moments<T>),
    Bf16(Rule, [Vec<bf16>; 2]),
}

impl<T: Element> State<T> {
    /// Of the share `mine` of a weight in `dtype` that starts as `values`, before the first update.
    pub fn new(rule: Rule, values: &[T], mine: Range<usize>, dtype: Dtype, bf16_moments: bool) -> State<T> {
        let moments = Moments::new(rule, mine.len());
        let kept = match dtype {
            Dtype::Bf16 if bf16_moments => rounded(moments),
            _ => Kept::Wide(moments),
        };
        let start = mine.start;
        // What does not train is as exact as it is kept.
        let has_master = dtype == Dtype::Bf16 && !mine.is_empty();
        State { kept, master: has_master.then(|| (values[mine].to_vec(), start)) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Bytes {
        let moments = match &self.kept {
            Kept::Wide(moments) => moments.bytes(),
            Kept::Bf16(_, values) => values.iter().map(|values| values.len() as Bytes * Dtype::Bf16.bytes()).sum(),
        };
        moments + self.master.as_ref().map_or(0, |(values, _)| values.len() as Bytes * T::DTYPE.bytes())
    }

    /// Has `work` change the moments.
    pub fn moments<R>(&mut self, work: impl FnOnce(&mut Moments<T>) -> R) -> R {
        match &mut self.kept {
            Kept::Wide(moments) => work(moments),
            Kept::Bf16(rule, values) => {
                let [mean, square] = &*values;
                let mut moments = Moments::of(*rule, widen(mean), widen(square));
                let done = work(&mut moments);
                self.kept = rounded(moments);
                done
            }
        }
    }

    /// Has `work` change the share `mine` of `weight`, by its moments.
    pub fn update(&mut self, weight: &mut Data<T>, mine: Range<usize>, work: impl FnOnce(&mut [T], &mut Moments<T>)) {
        let Some((mut master, start)) = self.master.take() else {
            return self.moments(|moments| weight.change(|values| work(&mut values[mine], moments)));
        };
        self.moments(|moments| work(&mut master, moments));
        weight.change(|values| values[mine].copy_from_slice(&master));
        self.master = Some((master, start));
    }

    /// The numbers of `weight`, those of the share as exactly as they are kept.
    pub fn exact(&self, weight: &Data<T>) -> Vec<T> {
        let mut values = weight.wide().into_owned();
        if let Some((master, start)) = &self.master {
            // A weight may be there as this share alone.
            let start = if values.len() == master.len() { 0 } else { *start };
            values[start..start + master.len()].copy_from_slice(master);
        }
        values
    }

    /// Has `work` change the numbers of `weight`, of which `mine` are the share.
    pub fn lend(&mut self, weight: &mut Data<T>, mine: Range<usize>, work: impl FnOnce(&mut [T])) {
        if self.master.is_none() {
            return weight.change(work);
        }
        let mut values = self.exact(weight);
        work(&mut values);
        if let Some((master, _)) = &mut self.master {
            master.copy_from_slice(&values[mine]);
        }
        weight.change(|kept| kept.copy_from_slice(&values));
    }
}

fn rounded<T: Element>(moments: Moments<T>) -> Kept<T> {
    let (rule, values) = moments.into_values();
    Kept::Bf16(rule, values.map(|values| values.into_iter().map(nearest).collect()))
}
