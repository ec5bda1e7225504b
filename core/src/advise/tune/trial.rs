//! The schedules of one layout, planned one after the other.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use super::floor::{floor_of, without_offload};
use super::question::{Degrees, Field};
use super::tuned::{Tuned, is_faster, tuned};
use super::{CHUNKS, MOST_SEARCHED_CHUNKS, Tuner, without_jitter};
use crate::base::units::Nanos;
use crate::estimate::derive::derive;
use crate::graph::layout::RecomputeLayers;
use crate::plan::planner;
use crate::problem::MAX_BYTES;
use crate::problem::placement::Placement;
use crate::schedule::{self, Published};
use crate::spec::{ModelWork, Spec, Work};

/// A layout whose schedules are being planned.
pub(super) struct Trial {
    pub(super) spec: Spec,
    pub(super) floor_ns: Nanos,
    /// Whether it is the spec as it was given.
    pub(super) is_given: bool,
    /// Schedules with the chunks that they are tried with, the next one last.
    left: Vec<(Published, u32)>,
    /// Those that do not fit without recomputation or offload, with their step time without the limit; the next one
    /// last once `left` is empty.
    pub(super) unfit: Vec<(Nanos, Published, u32)>,
    pub(super) best: Option<Tuned>,
    /// The best of those from which a search may begin.
    pub(super) start: Option<Tuned>,
    /// Chunks of the spec.
    pub(super) chunks: u32,
    /// Why the first of them has no plan.
    pub(super) reason: Option<String>,
}

impl Trial {
    pub(super) fn new(spec: Spec, floor_ns: Nanos, is_given: bool, left: Vec<(Published, u32)>) -> Trial {
        let chunks = match &spec.work {
            Work::Model(work) => work.chunks,
            Work::Typed(_) => 1,
        };
        Trial { spec, floor_ns, is_given, left, unfit: Vec::new(), best: None, start: None, chunks, reason: None }
    }

    fn spec_of(&self, published: &Published, chunks: u32) -> Spec {
        let mut spec = Spec { schedule: published.name.to_string(), ..self.spec.clone() };
        if let Work::Model(work) = &mut spec.work {
            work.chunks = chunks;
        }
        spec
    }

    fn plan(&mut self, spec: Spec, published: &Published) {
        match planner::answer(&without_jitter(&spec), published) {
            Ok(answer) => self.keep(tuned(spec, &answer, self.floor_ns)),
            Err(absent) => {
                self.reason.get_or_insert_with(|| format!("{}: {}", published.name, absent.reason));
            }
        }
    }

    /// Plans without the limit: where the limit is missed, the step time is a lower bound for any recomputation.
    fn plan_without_recomputation(&mut self, published: &Published, chunks: u32) {
        let spec = self.spec_of(published, chunks);
        let Work::Model(work) = &spec.work else { return };
        let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
        let unlimited = ModelWork { limit_bytes: Some(MAX_BYTES), ..work.clone() };
        let unlimited = Spec { work: Work::Model(unlimited), ..spec.clone() };
        let Ok(answer) = planner::answer(&without_jitter(&unlimited), published) else { return };
        match tuned(spec, &answer, self.floor_ns) {
            Some(found) if found.peak > limit => self.unfit.push((found.step.step_ns, *published, chunks)),
            found => self.keep(found),
        }
    }

    pub(super) fn keep(&mut self, found: Option<Tuned>) {
        let Some(found) = found else { return };
        let is_new = |best: &Option<Tuned>| best.as_ref().is_none_or(|best| is_faster(&found, best));
        let may_start = found.chunks <= self.chunks.max(MOST_SEARCHED_CHUNKS) as usize;
        if may_start && is_new(&self.start) {
            self.start = Some(found.clone());
        }
        if is_new(&self.best) {
            self.best = Some(found);
        }
    }
}

impl Tuner {
    pub(super) fn trial_of(&self, degrees: Degrees, floor_ns: Nanos) -> Option<Trial> {
        let work = self.with_degrees(degrees)?;
        let left = self.schedules_to_try(&work);
        let spec = Spec { work: Work::Model(work), ..self.spec.clone() };
        Some(Trial::new(spec, floor_ns, false, left))
    }

    pub(super) fn trial_of_given(&self, work: &ModelWork) -> Trial {
        let bare = without_offload(work);
        let floor_ns = derive(&bare, Placement::Linear, 1).map_or(0, |derived| floor_of(&bare, &derived));
        let left = match schedule::find(&self.spec.schedule) {
            Some(named) => vec![(named, work.chunks)],
            None => self.schedules.iter().rev().map(|published| (*published, work.chunks)).collect(),
        };
        Trial::new(self.spec.clone(), floor_ns, true, left)
    }

    /// Each schedule that may be used, with every number of chunks that makes another problem of it. The last is the first.
    fn schedules_to_try(&self, work: &ModelWork) -> Vec<(Published, u32)> {
        let mut chunks = vec![work.chunks];
        if !self.question.keep.contains(&Field::Chunks) {
            let room = work.model.layers / work.pipeline.max(1);
            chunks.extend(CHUNKS.into_iter().filter(|chunks| *chunks != work.chunks && *chunks <= room));
        }
        // A rank alone has no bubble that chunks could shorten.
        let is_alone = work.pipeline == 1 && work.chunks == 1;
        let mut tried: Vec<(Published, u32)> = Vec::new();
        for chunks in chunks {
            for published in &self.schedules {
                let shape = (published.shape)(chunks as usize);
                if is_alone && shape.1 > 1 {
                    continue;
                }
                let is_known = |(other, chunks): &(Published, u32)| {
                    other.name == published.name && (other.shape)(*chunks as usize) == shape
                };
                if !tried.iter().any(is_known) {
                    tried.push((*published, chunks));
                }
            }
        }
        tried.reverse();
        tried
    }

    pub(super) fn plan_next(&mut self, mut trial: Trial) {
        if let Some((published, chunks)) = trial.left.pop() {
            if trial.is_given || self.question.keep.contains(&Field::Recompute) {
                trial.plan(trial.spec_of(&published, chunks), &published);
            } else {
                trial.plan_without_recomputation(&published, chunks);
            }
            if trial.left.is_empty() {
                // The fastest last. Only the step counts, so that equal ones stay in the order of schedules.
                trial.unfit.sort_by_key(|(step, ..)| *step);
                trial.unfit.reverse();
            }
            self.trial = Some(trial);
            return;
        }
        let best =
            trial.start.as_ref().filter(|_| self.searches).or(trial.best.as_ref()).map(|best| best.step.step_ns);
        let enough = best.into_iter().chain(self.worst_kept()).min().unwrap_or(Nanos::MAX);
        if let Some((_, published, chunks)) = trial.unfit.pop().filter(|(step, ..)| *step < enough) {
            let mut spec = trial.spec_of(&published, chunks);
            if let Work::Model(work) = &mut spec.work {
                work.layout.recompute_layers = RecomputeLayers::Fit;
                work.layout.offload_fits = self.work().is_some_and(|work| work.layout.offload_fits);
            }
            trial.plan(spec, &published);
            self.trial = Some(trial);
            return;
        }
        if trial.is_given {
            self.given = Some(trial.best.ok_or_else(|| trial.reason.unwrap_or_default()));
            return;
        }
        self.tally.planned += 1;
        match trial.best {
            Some(tuned) => {
                self.starts.extend(trial.start.map(|start| (start.degrees, start)));
                self.keep(tuned);
            }
            None => self.tally.unfit += 1,
        }
    }
}
