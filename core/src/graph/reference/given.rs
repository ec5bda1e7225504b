//! The inputs of one operator on one device.

use std::vec::Vec;

use crate::graph::{Graph, Kernel, Operator, Use};

/// The inputs of an operator, with the sizes of its outputs.
pub(super) struct Given<'a> {
    pub(super) kernel: Kernel,
    /// The device's number among the TP devices.
    pub(super) member: usize,
    /// The numbers of each input; empty where only its shape is needed.
    pub(super) x: Vec<&'a Vec<f64>>,
    /// The columns of each input; 1 for a vector.
    columns: Vec<usize>,
    /// Elements of each output.
    pub(super) sizes: Vec<usize>,
}

impl<'a> Given<'a> {
    /// The inputs of `operator` of `graph`; `data` gives their numbers.
    pub(super) fn of(
        graph: &Graph,
        operator: &Operator,
        member: usize,
        data: impl Fn(&Use) -> &'a Vec<f64>,
    ) -> Given<'a> {
        let columns = |input: &Use| match graph[input.tensor].shape[..] {
            [.., _, columns] => columns as usize,
            _ => 1,
        };
        Given {
            kernel: operator.kernel,
            member,
            x: operator.inputs.iter().map(data).collect(),
            columns: operator.inputs.iter().map(columns).collect(),
            sizes: operator.outputs.iter().map(|id| graph[*id].elements() as usize).collect(),
        }
    }

    /// Columns of the input `of`.
    pub(super) fn columns(&self, of: usize) -> usize {
        self.columns[of]
    }

    /// Rows of the first input.
    pub(super) fn rows(&self) -> usize {
        self.x[0].len() / self.columns[0]
    }

    /// Row `i` of the input `of`.
    pub(super) fn row(&self, of: usize, i: usize) -> &[f64] {
        &self.x[of][i * self.columns[of]..(i + 1) * self.columns[of]]
    }

    /// As many numbers as the first input has, each by its place.
    pub(super) fn by_element(&self, f: &dyn Fn(usize) -> f64) -> Vec<f64> {
        (0..self.x[0].len()).map(f).collect()
    }

    /// The place of this device's element `e` of `len` in the whole tensor, of which the device holds every `ways`-th
    /// block.
    pub(super) fn place(&self, e: usize, len: usize, ways: u64, blocks: u64) -> usize {
        let block = len / blocks as usize;
        let member = if ways > 1 { self.member } else { 0 };
        (e / block * ways as usize + member) * block + e % block
    }
}
