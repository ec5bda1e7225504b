//! What a batch job of Slurm asks for.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

/// What a batch job asks Slurm for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchJob {
    nodes: Option<u64>,
    tasks: Option<u64>,
    tasks_per_node: Option<u64>,
    gpus_per_node: Option<u64>,
    gpus: Option<u64>,
}

impl BatchJob {
    /// By the lines `#SBATCH` of a script.
    pub fn of(text: &str) -> BatchJob {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("#SBATCH"));
        lines.fold(BatchJob::default(), |batch, options| BatchJob::of_options(options, batch))
    }

    /// By a command's options, before those of `batch`.
    pub fn of_options(text: &str, mut batch: BatchJob) -> BatchJob {
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                // `-N4` is `-N 4`.
                None if word.len() > 2 && word.starts_with('-') && !word.starts_with("--") => {
                    (word.get(..2).unwrap_or(word), word.get(2..))
                }
                None => (word, words.peek().copied()),
            };
            // `gpu:h100:8`, and `4(x2)`.
            let number = value.and_then(|value| value.rsplit(':').next()?.parse::<u64>().ok());
            let slot = match name {
                "--nodes" | "-N" => &mut batch.nodes,
                "--ntasks" | "-n" => &mut batch.tasks,
                "--ntasks-per-node" | "--tasks-per-node" => &mut batch.tasks_per_node,
                "--gpus-per-node" => &mut batch.gpus_per_node,
                "--gres" if value.is_some_and(|value| value.starts_with("gpu")) => &mut batch.gpus_per_node,
                "--gpus" | "-G" => &mut batch.gpus,
                _ => continue,
            };
            *slot = number.or(*slot);
        }
        batch
    }

    /// One for each task; where tasks are not said, all that the job has.
    pub fn devices(&self) -> Option<u64> {
        let nodes = self.nodes.unwrap_or(1);
        let tasks = self.tasks.or(self.tasks_per_node.map(|each| each.saturating_mul(nodes)));
        tasks
            .filter(|tasks| *tasks > nodes)
            .or(self.gpus)
            .or(self.gpus_per_node.map(|each| each.saturating_mul(nodes)))
            .or(tasks)
    }

    /// What Slurm sets in the job.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let tasks =
            self.tasks.or(self.tasks_per_node.zip(self.nodes).map(|(each, nodes)| each.saturating_mul(nodes)));
        let named: [(&[&str], Option<u64>); 4] = [
            (&["SLURM_NNODES", "SLURM_JOB_NUM_NODES"], self.nodes),
            (&["SLURM_NTASKS", "SLURM_NPROCS"], tasks),
            (&["SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"], self.tasks_per_node),
            (&["SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"], self.gpus_per_node),
        ];
        let each = named.into_iter().flat_map(|(names, number)| names.iter().map(move |name| (*name, number)));
        each.filter_map(|(name, number)| Some((name.to_string(), number?.to_string()))).collect()
    }
}
