//! The pass that runs the matmuls of layers in FP8 or FP4, in the forward and for both gradients, as DeepSeek-V3 was
//! trained (arXiv:2412.19437 §3.3.1) and as Transformer Engine does, with MXFP8 (arXiv:2506.08027) and NVFP4
//! (arXiv:2509.25149) too. The input of a matmul is quantized once for all matmuls
//! that read it, and weights once per step. Outputs keep their format, and gradients of weights accumulate as before.
//!
//! The backward then needs a byte or less for each element of a matrix's input, and of the gradient of its output from B
//! until W. Where another operator reads one of them, such as the gradient of attention, the original is kept, too.
//!
//! The embedding, the head, routers, gates, and matrices with widths that no such matmul takes stay as they are.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::{Entry, PassReport};
use crate::graph::builder::operator;
use crate::graph::{Graph, Job, Kernel, Operator, Role, TensorId};
use crate::model::Dtype;

/// What the pass is called in its [`PassReport`].
pub const fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::MxFp8 => "MXFP8 matmuls",
        Dtype::MxFp4 => "MXFP4 matmuls",
        Dtype::NvFp4 => "NVFP4 matmuls",
        _ => "FP8 matmuls",
    }
}

/// What both widths of a matrix are multiples of: rows of operands start at multiples of 16 bytes (cuBLAS,
/// "cublasLtMatmul regular API", of FP8 and FP4 kernels), and blocks that share a scale are whole.
const fn widths(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => 32,
        _ => 16,
    }
}

/// A quantized tensor: for sums along its rows, and along its columns.
type Quantized = [TensorId; 2];
const ROWS: usize = 0;
const COLUMNS: usize = 1;

/// Gives the matmuls of layers operands in `dtype`. Runs after B and W are split, and before recomputation.
/// The bytes of an entry are those of one microbatch's operand.
pub fn run(graph: &mut Graph, dtype: Dtype) -> PassReport {
    let mut account = PassReport::new(name(dtype));
    let weights = weights_of(graph, dtype, &mut account);
    let operators = core::mem::take(&mut graph.operators);
    let mut pass =
        Pass { graph, dtype, account, known: BTreeMap::new(), operators: Vec::with_capacity(operators.len()) };
    for mut operator in operators {
        for (at, along) in operands(pass.graph, &operator, &weights) {
            let operand = &mut operator.inputs[at].tensor;
            *operand = pass.quantized(*operand, operator.job, operator.layer)[along];
        }
        pass.operators.push(operator);
    }
    let Pass { graph, account, operators, .. } = pass;
    graph.operators = operators;
    account
}

/// The matrices whose products take operands in `dtype`.
fn weights_of(graph: &Graph, dtype: Dtype, account: &mut PassReport) -> BTreeSet<TensorId> {
    let decides = |operator: &&Operator| matches!(operator.kernel, Kernel::Route { .. } | Kernel::RowGate);
    let mut deciding: BTreeSet<TensorId> = graph
        .job(Job::F)
        .filter(decides)
        .flat_map(|operator| operator.inputs.iter().map(|input| input.tensor))
        .collect();
    // A router's bias stands between its product and the choice.
    for operator in graph.job(Job::F).filter(|operator| operator.kernel == Kernel::AddBias) {
        if operator.outputs.iter().any(|output| deciding.contains(output)) {
            deciding.extend(operator.inputs.first().map(|input| input.tensor));
        }
    }
    let mut weights = BTreeSet::new();
    for operator in graph.job(Job::F) {
        let product = matches!(operator.kernel, Kernel::MatMul { .. } | Kernel::ExpertMatMul { .. });
        let (Some(weight), Some(output)) = (operator.inputs.get(1), operator.outputs.first()) else { continue };
        let weight = weight.tensor;
        if !product || weights.contains(&weight) {
            continue;
        }
        let sizes = &graph[weight].shape;
        let widths = widths(dtype);
        let why = if graph[weight].is_adapter() {
            "stays: an adapter"
        } else if operator.layer.is_none() {
            "stays: outside of layers"
        } else if deciding.contains(output) {
            "stays: it routes tokens or weights their experts"
        } else if sizes.iter().rev().take(2).any(|size| !size.is_multiple_of(widths)) {
            if widths == 16 {
                "stays: a size is not a multiple of 16"
            } else {
                "stays: a size is not a multiple of 32"
            }
        } else {
            weights.insert(weight);
            continue;
        };
        account.skipped.push(Entry::new(&graph[weight].name, operator.layer, why, 0));
    }
    weights
}

/// Which inputs of `operator` are operands of a product with one of `weights`, or of its gradient, and along what
/// they are summed.
fn operands(graph: &Graph, operator: &Operator, weights: &BTreeSet<TensorId>) -> Vec<(usize, usize)> {
    let is_ours = |id: TensorId| weights.contains(&id);
    let with_weight = operator.inputs.get(1).is_some_and(|input| is_ours(input.tensor));
    let of_weight = operator.outputs.first().is_some_and(|output| match graph[*output].role {
        Role::WeightGradient { of } => is_ours(of),
        _ => false,
    });
    match operator.kernel {
        // A matrix is [out, in]: the forward sums along its rows, the gradient of its input along its columns.
        Kernel::MatMul { transpose_a: false, transpose_b, .. } | Kernel::ExpertMatMul { transpose_b }
            if with_weight =>
        {
            vec![(0, ROWS), (1, if transpose_b { ROWS } else { COLUMNS })]
        }
        // Over tokens.
        Kernel::MatMul { transpose_a: true, .. } | Kernel::ExpertMatMulGrad if of_weight => {
            vec![(0, COLUMNS), (1, COLUMNS)]
        }
        _ => Vec::new(),
    }
}

struct Pass<'g> {
    graph: &'g mut Graph,
    dtype: Dtype,
    account: PassReport,
    /// By tensor of before.
    known: BTreeMap<TensorId, Quantized>,
    /// The operators so far.
    operators: Vec<Operator>,
}

impl Pass<'_> {
    /// `id` in the format of matmuls, made right here where it is not yet: of a weight a copy, of anything else by an operator.
    fn quantized(&mut self, id: TensorId, job: Job, layer: Option<u32>) -> Quantized {
        if let Some(known) = self.known.get(&id) {
            return *known;
        }
        let tensor = &self.graph[id];
        let is_weight = matches!(tensor.role, Role::Weight { .. });
        let role = if is_weight { Role::WeightCopy { of: id } } else { Role::Intermediate };
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        let dtype = self.dtype;
        let made = ["rows", "columns"]
            .map(|along| self.graph.add(format!("{name} in {}, {along}", dtype.name()), shape.clone(), dtype, role));
        self.known.insert(id, made);
        if !is_weight {
            // W's gradient of a matrix stands before B's of its input in the list, and B runs first.
            let job = if job == Job::W { Job::B } else { job };
            // What a product of the forward reads is quantized there.
            let of_gradient = job != Job::F;
            self.operators.push(operator(Kernel::Quantize { of_gradient }, job, layer, &[id], &made));
            let bytes = self.graph[made[ROWS]].bytes();
            self.account.done.push(Entry::new(&name, layer, "is quantized", bytes));
        }
        made
    }
}
