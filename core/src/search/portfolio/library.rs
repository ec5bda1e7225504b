//! The published schedules that exist for a problem, built once. They do not depend on limits.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::OnceCell;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::schedule::{Published, published};
use crate::search::flat_problem::{Flat, Rows};
use crate::search::makespan::{Cost, Eval};

/// A published schedule: its op lists, cost and memory, whatever the limits.
pub(in crate::search) struct Known {
    pub(super) name: &'static str,
    pub(super) rows: Rows,
    pub(super) cost: Cost,
    /// By rank, the most bytes above the static ones.
    peaks: Vec<i64>,
}

impl Known {
    /// Whether it keeps to the limits.
    pub fn fits(&self, flat: &Flat) -> bool {
        self.peaks.iter().zip(&flat.limit).all(|(peak, limit)| peak <= limit)
    }

    /// Its objective.
    pub fn cost_ns(&self) -> Nanos {
        self.cost.objective
    }
}

/// The published schedules that exist for a problem.
pub(in crate::search) struct Library {
    /// The best first.
    pub known: Vec<Known>,
    /// Those for the problem with fewer microbatches that stands for it where it has very many.
    pub(super) fewer: OnceCell<Box<Library>>,
}

impl Library {
    pub fn of(problem: &Problem) -> Library {
        Library { known: known(problem), fewer: OnceCell::new() }
    }
}

/// All published schedules that exist for `problem` and run, the best first.
pub(super) fn known(problem: &Problem) -> Vec<Known> {
    let flat = Flat::new(problem);
    let mut eval = Eval::new(&flat);
    let know = |which: &'static Published| {
        let rows = flat.rows(&which.build(problem).ok()?)?;
        let cost = eval.run(&flat, &rows, u64::MAX)?;
        Some(Known { name: which.name, cost, peaks: rows.iter().map(|row| flat.peak(row)).collect(), rows })
    };
    let mut known: Vec<Known> = published().iter().filter_map(know).collect();
    known.sort_by_key(|known| known.cost);
    known
}
