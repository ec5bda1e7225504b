//! All that a person says about a training run: model, cluster, degrees of parallelism, training, memory
//! and which schedule. Small, so that it fits a link.

use alloc::string::String;

use crate::cluster::{Device, Link};
use crate::model::{Dtype, ModelConfig};
use crate::problem::{Objective, Statement};
use crate::units::Bytes;

/// What a person says.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// A name for people; may be empty.
    pub name: String,
    /// What is to be trained, or the typed costs of it.
    pub work: Work,
    /// A published schedule's name, or `best`.
    pub schedule: String,
}

/// What is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A model on a cluster: costs and bytes follow from its operators.
    Model(ModelWork),
    /// Costs and bytes as typed.
    Typed(Statement),
}

/// A model on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelWork {
    /// The catalog's name of the model, or empty for sizes by hand.
    pub model_name: String,
    /// The model's sizes, from the catalog where `model_name` is given.
    pub model: ModelConfig,
    /// The device of every rank.
    pub device: Device,
    /// Devices that share one node.
    pub devices_per_node: u32,
    /// The link within a node.
    pub link: Link,
    /// The link between nodes.
    pub node_link: Link,
    /// Pipeline ranks, P.
    pub pipeline: u32,
    /// Chunks a rank for schedules that may choose, V.
    pub chunks: u32,
    /// Microbatches of one step, M.
    pub microbatches: u32,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Number format of weights and activations.
    pub dtype: Dtype,
    /// The memory limit of a rank; the device's memory where none is given.
    pub limit_bytes: Option<Bytes>,
    /// What a schedule is judged by.
    pub objective: Objective,
}

impl Spec {
    /// A spec of typed costs, to be solved as well as possible: what a bare problem file means.
    pub fn typed(statement: Statement) -> Spec {
        Spec { name: String::new(), work: Work::Typed(statement), schedule: String::from("best") }
    }

    /// What a schedule is judged by.
    pub fn objective(&self) -> Objective {
        match &self.work {
            Work::Model(model) => model.objective,
            Work::Typed(statement) => statement.objective,
        }
    }
}
