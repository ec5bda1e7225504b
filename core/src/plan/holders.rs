//! Which part of the model each stage holds, and which ranks have the stage.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use serde_json::{Value, json};

use super::Plan;
use crate::estimate::derive::{Derived, derive};
use crate::model::{ModelConfig, StageLayout};
use crate::problem::Problem;
use crate::spec::Work;

/// One stage: its part of the model, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageHolder {
    /// The stage, from 0 in model order.
    pub stage: usize,
    /// The ranks that hold it: one, or two where microbatches come from both ends; first the one for the first half of them.
    pub ranks: Vec<usize>,
    /// Which of its rank's chunks it is, from 0 in model order.
    pub chunk: usize,
    /// Its part of the model.
    pub layout: StageLayout,
}

/// The stages of a problem that `derived` belongs to, in model order.
pub fn holders(derived: &Derived, problem: &Problem) -> Vec<StageHolder> {
    let last = problem.microbatches().saturating_sub(1);
    let holder = |(stage, layout): (usize, &StageLayout)| {
        let (first, second) = (problem.rank_of(stage, 0), problem.rank_of(stage, last));
        let ranks = if first == second { vec![first] } else { vec![first, second] };
        let chunk = problem.stages_of(first).iter().filter(|other| **other < stage).count();
        StageHolder { stage, ranks, chunk, layout: layout.clone() }
    };
    derived.stages.iter().enumerate().map(holder).collect()
}

impl Plan {
    /// Which layers each stage and rank holds; none where costs are typed.
    pub fn holders(&self) -> Option<Vec<StageHolder>> {
        let Work::Model(work) = &self.spec.work else { return None };
        let derived = derive(work, self.problem.placement().clone(), self.problem.chunks()).ok()?;
        Some(holders(&derived, &self.problem))
    }
}

impl StageHolder {
    /// The modules of multi-token prediction (MTP) of the stage.
    pub fn modules(&self, model: &ModelConfig) -> Range<u32> {
        self.layout.modules.of_stage(self.layout.head, model.variant.multi_token)
    }

    /// What the stage holds besides layers, in model order: `vision tower`, `embedding`, `MTP module 0`, `head`.
    pub fn others(&self, model: &ModelConfig) -> Vec<String> {
        let mut others = Vec::new();
        if self.layout.embedding {
            others.extend(model.variant.vision.map(|_| "vision tower".to_string()));
            others.push("embedding".to_string());
        }
        others.extend(self.modules(model).map(|module| format!("MTP module {module}")));
        if self.layout.head {
            others.push("head".to_string());
        }
        others
    }

    /// For programs: `stage`, `ranks`, `chunk`, `layers` (each by the model's own number, from 0), `embedding`, `vision`,
    /// `mtp_modules`, `head`.
    pub fn to_value(&self, model: &ModelConfig) -> Value {
        json!({
            "stage": self.stage,
            "ranks": self.ranks,
            "chunk": self.chunk,
            "layers": self.layout.layers.clone().collect::<Vec<_>>(),
            "embedding": self.layout.embedding,
            "vision": self.layout.embedding && model.variant.vision.is_some(),
            "mtp_modules": self.modules(model).collect::<Vec<_>>(),
            "head": self.layout.head,
        })
    }
}

/// The layers that `rank` holds, in model order: `0-3, 28-31`; `none` where it holds none.
pub fn layers_of_rank(holders: &[StageHolder], rank: usize) -> String {
    let of_rank = holders.iter().filter(|holder| holder.ranks.contains(&rank));
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for layers in of_rank.map(|holder| holder.layout.layers.clone()).filter(|layers| !layers.is_empty()) {
        match ranges.last_mut().filter(|last| last.end == layers.start) {
            Some(last) => last.end = layers.end,
            None => ranges.push(layers),
        }
    }
    match ranges.is_empty() {
        true => "none".to_string(),
        false => ranges.iter().map(written).collect::<Vec<_>>().join(", "),
    }
}

/// What `rank` holds of `model`: its layers, then all else of its stages: `0-3, 28-31, embedding, head`.
pub fn holding_of_rank(holders: &[StageHolder], rank: usize, model: &ModelConfig) -> String {
    let of_rank = holders.iter().filter(|holder| holder.ranks.contains(&rank));
    let others = of_rank.flat_map(|holder| holder.others(model));
    core::iter::once(layers_of_rank(holders, rank)).chain(others).collect::<Vec<_>>().join(", ")
}

/// A range of layers as people write it, both ends named: `0-3`, or `7`.
pub fn written(layers: &Range<u32>) -> String {
    match layers.len() {
        0 => "none".to_string(),
        1 => layers.start.to_string(),
        _ => format!("{}-{}", layers.start, layers.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::search::Effort;
    use crate::spec::Spec;

    fn plan(schedule: &str, layers: &str) -> Plan {
        let text = format!(
            "schedule = \"{schedule}\"\n[model]\nname = \"tiny-llama\"\n{layers}\n[cluster]\ndevice = \"cpu\"\n\
             [parallel]\npipeline = 2\n[training]\nmicrobatches = 4\nsequence = 64\n"
        );
        let spec = Spec::read(&text).expect("a spec");
        planner::plan_with(&spec, schedule, Effort::default(), &mut |_| crate::search::Flow::Continue)
            .expect("a plan")
    }

    /// By the figures of the papers: interleaved stages go round the ranks (arXiv:2104.04473, figure 4), those of ZB-V go there
    /// and back (arXiv:2401.10241, figure 6), and with DualPipe each rank holds two stages, from either end.
    #[test]
    fn ranks_hold_what_their_papers_figures_show() {
        let ranks = |schedule: &str| -> Vec<Vec<usize>> {
            plan(schedule, "layers = 8").holders().expect("a model").into_iter().map(|holder| holder.ranks).collect()
        };
        assert_eq!(ranks("1f1b"), [[0], [1]]);
        assert_eq!(ranks("interleaved-1f1b"), [[0], [1], [0], [1]]);
        assert_eq!(ranks("zb-v"), [[0], [1], [1], [0]]);
        assert_eq!(ranks("dualpipe"), [[0, 1], [1, 0]]);
    }

    #[test]
    fn every_layer_is_held_once_and_told_by_its_number() {
        let plan = plan("zb-v", "layers = 9");
        let holders = plan.holders().expect("a model");
        let layers: Vec<u32> = holders.iter().flat_map(|holder| holder.layout.layers.clone()).collect();
        assert_eq!(layers, (0..9).collect::<Vec<_>>());
        // The first rank has both ends.
        let first = layers_of_rank(&holders, 0);
        assert!(first.starts_with("0") && first.ends_with('8') && first.contains(", "), "{first}");
        assert!(!layers_of_rank(&holders, 1).contains(", "), "its two stages follow each other");
        let Work::Model(work) = &plan.spec.work else { panic!("a model") };
        assert_eq!(holders[0].others(&work.model), ["embedding"]);
        assert_eq!(holders[3].others(&work.model), ["head"]);
    }
}
