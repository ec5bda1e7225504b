//! The memory that the host can still give, and what a run keeps there.

use std::path::Path;
use std::time::Duration;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::{Graph, Tensor, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::plan::verdict;
use pipeplan_core::program::Step;
use pipeplan_core::simulate::timeline::copied_bytes;

use super::{Computation, ModelStages, Workload};
use crate::runner::gradients::{Position, stages_held};
use crate::runner::optimizer::Rule;
use crate::runner::{Device, RunOptions};

/// Memory that Linux can still give to programs, and their container to this one; elsewhere unknown.
pub(crate) fn available_bytes() -> Option<Bytes> {
    let machine = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kibibytes: Bytes = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    machine().into_iter().chain(left_in_container(Path::new("/sys/fs/cgroup"))).min()
}

/// What the control group (version 2) whose files are in `group` may still take; none where it has no limit. Files
/// that are kept in memory make room.
fn left_in_container(group: &Path) -> Option<Bytes> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let limit: Bytes = read("memory.max")?.trim().parse().ok()?;
    let taken: Bytes = read("memory.current")?.trim().parse().ok()?;
    let files = |stat: String| -> Bytes {
        let of = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            matches!(name, "inactive_file" | "active_file").then(|| bytes.trim().parse().ok())?
        };
        stat.lines().filter_map(of).fold(0, Bytes::saturating_add)
    };
    let files = read("memory.stat").map_or(0, files);
    Some(limit.saturating_sub(taken.saturating_sub(files)))
}

impl Workload {
    /// By rank of a pipeline: the most of host memory that its stages keep at once, and what its optimizer keeps there.
    pub fn host_bytes(&self) -> Vec<Bytes> {
        let Computation::Model(model) = &self.computation else { return vec![0; self.problem.ranks()] };
        let behind: Vec<_> = model.graphs.iter().map(|graph| Lifetimes::of(graph).on_host(graph)).collect();
        let copies = self.program.copies();
        let of_rank = |(rank, row): (usize, &Vec<Step>)| {
            let ops = row.iter().filter_map(|step| if let Step::Compute(op) = step { Some(*op) } else { None });
            let copied = copies.get(rank).map_or(0, |copies| copied_bytes(&self.problem, copies));
            let kept = verdict::on_host(&behind, ops).saturating_add(copied);
            kept.saturating_add(if model.optimizer_on_host { self.state_bytes(model, rank) } else { 0 })
        };
        self.program.rows.iter().enumerate().map(of_rank).collect()
    }

    /// What the optimizer of `rank` of a pipeline keeps of its share: its moments, and the master weights of bf16 ones.
    fn state_bytes(&self, model: &ModelStages, rank: usize) -> Bytes {
        let of = |weight: &Tensor, moments: u64| match weight.dtype {
            Dtype::Bf16 if model.bf16_moments => Dtype::F32.bytes() + Dtype::Bf16.bytes() * moments,
            Dtype::Bf16 => Dtype::F32.bytes() * (1 + moments),
            dtype => dtype.bytes() * moments,
        };
        self.optimizer_bytes(model, rank, of)
    }

    /// The same without master weights, as it is lent: in f32 where it is in 16 bits.
    fn moment_bytes(&self, model: &ModelStages, rank: usize) -> Bytes {
        self.optimizer_bytes(model, rank, |weight, moments| weight.dtype.bytes().max(Dtype::F32.bytes()) * moments)
    }

    /// The share of `rank` of a pipeline, with so many bytes of each element of a weight that has so many moments.
    fn optimizer_bytes(&self, model: &ModelStages, rank: usize, of: impl Fn(&Tensor, u64) -> u64) -> Bytes {
        let shardings = Position { rank, ..self.position(0) }.shardings();
        let stages = stages_held(&self.problem, rank);
        let graphs = stages.iter().filter_map(|stage| model.graphs.get(*stage));
        let of_graph = |graph: &Graph| -> Bytes {
            let of_layers = graph.weights_of_layers();
            let state = |(id, weight): (TensorId, &Tensor)| {
                let mine = shardings.of(weight).share.of(weight.elements() as usize).len() as u64;
                let rule = Rule::of(model.optimizer, &weight.shape, of_layers.contains(&id));
                mine * of(weight, rule.moments() as u64)
            };
            graph.weights().filter(|(_, weight)| !weight.is_frozen()).map(state).sum()
        };
        graphs.map(of_graph).sum()
    }

    /// By rank of a pipeline: what it copies of its weights and optimizer states for restarts, where another rank
    /// holds the same. The copy of the step before is kept until that of the next one is whole.
    pub fn restart_bytes(&self, options: &RunOptions) -> Vec<Bytes> {
        const COPIES: Bytes = 2;
        let keeps = options.restarting.kept.is_some() && self.has_replicas();
        let model = match &self.computation {
            Computation::Model(model) if keeps => model,
            Computation::Stages(staged) if keeps => {
                let of_rank = |rank| COPIES.saturating_mul(staged.state_bytes(&self.problem, rank));
                return (0..self.problem.ranks()).map(of_rank).collect();
            }
            _ => return vec![0; self.problem.ranks()],
        };
        let of_rank = |rank: usize| {
            let graphs = stages_held(&self.problem, rank).into_iter().filter_map(|stage| model.graphs.get(stage));
            let weights = graphs.flat_map(Graph::weights).map(|(_, weight)| {
                // Those that train in 16 bits are lent in 32.
                weight.elements() * weight.dtype.bytes().max(Dtype::F32.bytes())
            });
            COPIES * weights.sum::<Bytes>().saturating_add(self.moment_bytes(model, rank))
        };
        (0..self.problem.ranks()).map(of_rank).collect()
    }

    /// Whether a layer of `rank` of a pipeline keeps what it keeps in host memory.
    pub fn copies_to_host(&self, rank: usize) -> bool {
        let Computation::Model(model) = &self.computation else { return false };
        let stages = stages_held(&self.problem, rank);
        let graphs = stages.iter().filter_map(|stage| model.graphs.get(*stage));
        graphs.flat_map(|graph| &graph.operators).any(|operator| operator.kernel.copies())
    }

    /// How much longer ranks may need to get ready than others that keep nothing on the host: its memory is pinned
    /// page by page, some gigabytes a second, perhaps for all ranks of a machine in turn.
    pub fn pinning(&self, device: Device) -> Duration {
        const BYTES_PER_S: Bytes = 2_000_000_000;
        const OF_MACHINE: usize = 8;
        let most = self.host_bytes().into_iter().max().unwrap_or(0);
        match device {
            Device::Cuda(_) => {
                Duration::from_secs(most.saturating_mul(self.world().min(OF_MACHINE) as u64) / BYTES_PER_S)
            }
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pipeplan_core::model::catalog;
    use pipeplan_core::plan::planner;
    use pipeplan_core::spec::Spec;

    use super::*;
    use crate::runner::restart::{Kept, Restarting};

    /// A rank that holds all of a model keeps two copies of its weights and of both moments, each in f32, and none
    /// where nobody else holds the same or where nothing is kept.
    #[test]
    fn copies_for_restarts_are_weights_and_moments() {
        let model = catalog::find("tiny-llama").expect("a model").config;
        for (data, zero, keeps) in [(2, 0, true), (1, 0, false), (2, 1, false)] {
            let text = format!(
                "schedule = \"gpipe\"\nmodel.name = \"tiny-llama\"\ncluster.device = \"cpu\"\n[parallel]\npipeline = 1\n\
                 data = {data}\nzero = {zero}\n[training]\nmicrobatches = 2\nsequence = 16\n"
            );
            let plan = planner::plan(&Spec::read(&text).expect("a spec"), "gpipe").expect("a plan");
            let workload = Workload::of_plan(&plan, None).expect("it runs");
            let restarting = Restarting { kept: Some(Arc::new(Kept::new(&workload))), ..Restarting::default() };
            let bytes = workload.restart_bytes(&RunOptions { restarting, ..RunOptions::default() });
            assert_eq!(bytes, [if keeps { 2 * 3 * 4 * model.parameters() } else { 0 }], "data {data}, zero {zero}");
            assert_eq!(workload.restart_bytes(&RunOptions::default()), [0]);
        }
    }

    /// What a container has left is its limit without what programs hold; what it keeps of files makes room. One
    /// without a limit,
    /// and a machine without containers, say nothing.
    #[test]
    fn a_container_says_what_it_has_left() {
        let group = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).expect("written");
        assert_eq!(left_in_container(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(left_in_container(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(left_in_container(group.path()), Some(300));
        write("memory.stat", "anon 400\nfile 300\nactive_file 100\ninactive_file 150\nshmem 50\n");
        assert_eq!(left_in_container(group.path()), Some(550));
        write("memory.current", "1500\n");
        write("memory.stat", "active_file none\n");
        assert_eq!(left_in_container(group.path()), Some(0));
    }
}
