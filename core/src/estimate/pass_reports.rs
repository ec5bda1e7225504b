//! Reports of the passes over all stages of a plan: the passes over operators, the pass over gradients, the
//! recomputation that is fitted to a limit, and the partition within it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::estimate::derive::{Derived, PartitionQuality, graph_and_reports};
use crate::estimate::fit::Fitted;
use crate::graph::passes::PassReport;
use crate::model::StageLayout;
use crate::spec::ModelWork;

/// The pass reports of a plan's stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReports {
    /// The recomputation and offload that were fitted to the limit.
    pub fit: Option<PassReport>,
    /// How good the partition is, where it is `within-limit`.
    pub dealt: Option<PartitionQuality>,
    /// For each stage that was asked for: its first layer, and the reports of the passes.
    pub stages: Vec<(usize, u32, Vec<PassReport>)>,
}

impl PassReports {
    /// Of `derived`, which follows from `work` with what was `fitted`, for the stages that `wanted` says. Builds
    /// their graphs.
    pub fn of(
        work: &ModelWork,
        derived: &Derived,
        fitted: Option<&Fitted>,
        wanted: impl Fn(usize) -> bool,
    ) -> PassReports {
        let applied = fitted.map(|fitted| fitted.applied_to(work));
        let work = applied.as_ref().unwrap_or(work);
        let of_stage =
            |(stage, layout): (usize, &StageLayout)| (stage, layout.layers.start, graph_and_reports(work, layout).1);
        let stages = derived.stages.iter().enumerate().filter(|(stage, _)| wanted(*stage)).map(of_stage);
        PassReports {
            fit: fitted.map(|fitted| fitted.account.clone()),
            dealt: derived.dealt,
            stages: stages.collect(),
        }
    }

    /// All of it. Stages with the same account are said once, with layers counted from the stage's first.
    pub fn text(&self) -> String {
        let mut text = self.dealt.map_or_else(String::new, |dealt| format!("{dealt}\n\n"));
        if let Some(fit) = &self.fit {
            text.push_str(&format!("{fit}\n"));
        }
        let said: Vec<(usize, String)> = self.stages.iter().map(|stage| (stage.0, within(stage))).collect();
        for alike in said.chunk_by(|a, b| a.1 == b.1) {
            let numbers: Vec<String> = alike.iter().map(|(stage, _)| stage.to_string()).collect();
            let word = if alike.len() == 1 { "stage" } else { "stages" };
            text.push_str(&format!("{word} {}\n", numbers.join(", ")));
            alike.first().iter().for_each(|(_, said)| text.push_str(said));
        }
        text
    }

    /// In one line: of each pass, how often it applied over all stages, and how often not.
    pub fn line(&self) -> String {
        let mut order: Vec<&str> = Vec::new();
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for account in self.fit.iter().chain(self.stages.iter().flat_map(|(_, _, reports)| reports)) {
            let so_far = counts.entry(account.pass).or_insert_with(|| {
                order.push(account.pass);
                (0, 0)
            });
            *so_far = (so_far.0 + account.done.len(), so_far.1 + account.skipped.len());
        }
        let said = order.iter().filter_map(|pass| {
            let (done, skipped) = counts.get(pass)?;
            let skipped = if *skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
            Some(format!("{pass}: {done} done{skipped}"))
        });
        said.collect::<Vec<_>>().join("; ")
    }
}

/// The reports of a stage, with layers counted from its first.
fn within((_, first, reports): &(usize, u32, Vec<PassReport>)) -> String {
    let lines = reports.iter().map(|pass| {
        let mut pass = pass.clone();
        for entry in pass.done.iter_mut().chain(&mut pass.skipped) {
            entry.layer = entry.layer.map(|layer| layer.saturating_sub(*first));
        }
        pass.to_string()
    });
    lines.collect()
}
