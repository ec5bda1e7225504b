//! What a batch job of Slurm asks for.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::unknown_in;

/// What a batch job asks Slurm for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchJob {
    nodes: Option<u64>,
    tasks: Option<u64>,
    tasks_per_node: Option<u64>,
    gpus_per_node: Option<u64>,
    gpus: Option<u64>,
    /// What is asked for by a value that is no known number, with its marks, by the option's first letter.
    unknown: BTreeMap<char, String>,
}

impl BatchJob {
    /// By the lines `#SBATCH` of a script: those before its first command, as Slurm reads them.
    pub fn of(text: &str) -> BatchJob {
        let is_comment = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let lines = text.lines().take_while(is_comment);
        let options = lines.filter_map(|line| line.trim_start().strip_prefix("#SBATCH"));
        options.fold(BatchJob::default(), |batch, options| {
            let words: Vec<&str> = options.split_whitespace().collect();
            BatchJob::of_options(&words, batch)
        })
    }

    /// By a command's options, before those of `batch`.
    pub fn of_options<W: AsRef<str>>(words: &[W], mut batch: BatchJob) -> BatchJob {
        let mut words = words.iter().map(AsRef::as_ref).peekable();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                // `-N4` is `-N 4`.
                None if word.len() > 2 && word.starts_with('-') && !word.starts_with("--") => {
                    (word.get(..2).unwrap_or(word), word.get(2..))
                }
                None => (word, words.peek().copied()),
            };
            // `gpu:h100:8,nvme:1`.
            let value = match name {
                "--gres" => value.and_then(|value| value.split(',').find(|entry| entry.starts_with("gpu"))),
                _ => value,
            };
            let Some(value) = value else { continue };
            let slot = match name {
                "--nodes" | "-N" => &mut batch.nodes,
                "--ntasks" | "-n" => &mut batch.tasks,
                "--ntasks-per-node" | "--tasks-per-node" => &mut batch.tasks_per_node,
                "--gpus-per-node" => &mut batch.gpus_per_node,
                "--gres" => &mut batch.gpus_per_node,
                "--gpus" | "-G" => &mut batch.gpus,
                _ => continue,
            };
            let number = value.rsplit(':').next().unwrap_or_default();
            // `--gres=gpu:h100` is one of them.
            let is_kind = name == "--gres" && !number.starts_with(|letter: char| letter.is_ascii_digit());
            *slot = if is_kind && unknown_in(value).is_none() { Some(1) } else { number.parse().ok() };
            let what = match name {
                "--nodes" | "-N" => 'N',
                "--ntasks" | "-n" => 'n',
                "--gpus" | "-G" => 'G',
                "--ntasks-per-node" | "--tasks-per-node" => 't',
                _ => 'g',
            };
            match slot {
                Some(_) => batch.unknown.remove(&what),
                None => batch.unknown.insert(what, value.to_string()),
            };
        }
        batch
    }

    /// What it asks for that is no known number.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.values().next().map(String::as_str)
    }

    /// One for each task; where tasks are not said, all that the job has. None where part of it is unknown.
    pub fn devices(&self) -> Option<u64> {
        if !self.unknown.is_empty() {
            return None;
        }
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
