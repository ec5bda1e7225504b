//! The products that operators are made of: which matrices of which tensors, in which order.

use std::ops::Range;

use pipeplan_core::graph::{Heads, Kernel};

use super::card::{Address, Matrix, Product};
use super::launch::Place;

impl Matrix {
    fn transposed(self, transposed: bool) -> Matrix {
        Matrix { transposed, ..self }
    }
}

/// All products of `kernel`, in their order. Those of experts follow from a choice that is made later: here, so many that
/// nothing else than what they need is needed for whatever is chosen, one for each power of two of tokens.
pub fn of(kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Vec<Product> {
    let ladder = |rows: u64| {
        let powers = (0..u64::BITS).map(|power| 1 << power).take_while(move |power| *power < rows);
        powers.chain([rows]).map(|rows| 0..rows as usize)
    };
    match *kernel {
        Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
            vec![matmul([transpose_a, transpose_b, accumulate], inputs, outputs)]
        }
        Kernel::ExpertMatMul { transpose_b } => {
            let product = |rows| of_expert(transpose_b, 0, rows, inputs, outputs);
            ladder(inputs[0].rows()).filter_map(product).collect()
        }
        Kernel::ExpertMatMulGrad => {
            let product = |rows| of_expert_grad(0, rows, inputs, outputs);
            ladder(inputs[0].rows()).filter_map(product).collect()
        }
        Kernel::Scores(heads) => scores(&heads, inputs, outputs),
        Kernel::ScoresGrad(heads) => scores_grad(&heads, inputs, outputs),
        Kernel::Attend(heads) => attend(&heads, inputs, outputs),
        Kernel::AttendGrad(heads) => attend_grad(&heads, inputs, outputs),
        _ => Vec::new(),
    }
}

/// With these transposes of a and b, and whether it adds to what is there or lies elsewhere.
fn matmul([transpose_a, transpose_b, accumulate]: [bool; 3], inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Product {
    let [a, b] = [inputs[0].whole().transposed(transpose_a), inputs[1].whole().transposed(transpose_b)];
    let sizes = |place: &Place<'_>, transposed: bool| match transposed {
        true => (place.columns(), place.rows()),
        false => (place.rows(), place.columns()),
    };
    let ((rows, inner), (_, columns)) = (sizes(&inputs[0], transpose_a), sizes(&inputs[1], transpose_b));
    let beta = if accumulate { 1.0 } else { 0.0 };
    let c = outputs[0].whole();
    let addend = inputs.get(2).filter(|addend| accumulate && addend.at() != outputs[0].at());
    let addend = addend.map(|addend| Address(addend.at()));
    Product { addend, ..plain([rows, inner, columns], [a, b, c], beta) }
}

/// One product, whose operands are apart.
fn plain([rows, inner, columns]: [u64; 3], [a, b, c]: [Matrix; 3], beta: f32) -> Product {
    Product { rows, inner, columns, a, b, c, alpha: 1.0, beta, count: 1, addend: None, bias: None }
}

/// The product of `expert` with the `rows` that are its own; nothing where it has none.
pub fn of_expert(
    transpose: bool,
    expert: u64,
    rows: Range<usize>,
    inputs: &[Place<'_>],
    outputs: &[Place<'_>],
) -> Option<Product> {
    let (start, count) = (rows.start as u64, rows.len() as u64);
    let [outer, inner] = [1, 2].map(|axis| inputs[1].shape.get(axis).copied().unwrap_or(1));
    let (from, to) = if transpose { (inner, outer) } else { (outer, inner) };
    (count > 0).then(|| {
        let a = inputs[0].matrix(start * from, [count, from], from, (1, 0));
        let b = inputs[1].matrix(expert * outer * inner, [outer, inner], inner, (1, 0)).transposed(transpose);
        let c = outputs[0].matrix(start * to, [count, to], to, (1, 0));
        plain([count, from, to], [a, b, c], 0.0)
    })
}

/// What the `rows` of `expert` add to the gradient of its weight; nothing where it has none.
pub fn of_expert_grad(
    expert: u64,
    rows: Range<usize>,
    inputs: &[Place<'_>],
    outputs: &[Place<'_>],
) -> Option<Product> {
    let (start, count) = (rows.start as u64, rows.len() as u64);
    let (outer, inner) = (inputs[0].columns(), inputs[1].columns());
    (count > 0).then(|| {
        let a = inputs[0].matrix(start * outer, [count, outer], outer, (1, 0)).transposed(true);
        let b = inputs[1].matrix(start * inner, [count, inner], inner, (1, 0));
        let c = outputs[0].matrix(expert * outer * inner, [outer, inner], inner, (1, 0));
        plain([outer, count, inner], [a, b, c], 1.0)
    })
}

fn scores(heads: &Heads, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Vec<Product> {
    let of = |group: Group| {
        let (q, k) = (group.queries(&inputs[0]), group.keys(&inputs[1]).transposed(true));
        group.onto_scores(q, k, group.scores(&outputs[0]), heads.scale() as f32)
    };
    Group::all(heads, inputs[0].rows()).map(of).collect()
}

fn scores_grad(heads: &Heads, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Vec<Product> {
    let of = |group: Group| {
        let ds = group.scores(&inputs[0]);
        let (q, k) = (group.queries(&inputs[1]), group.keys(&inputs[2]));
        let alpha = heads.scale() as f32;
        let of_queries = group.onto_heads(ds, k, group.queries(&outputs[0]), alpha);
        [of_queries].into_iter().chain(group.summed_over_heads(ds, q, group.keys(&outputs[1]), alpha))
    };
    Group::all(heads, inputs[1].rows()).flat_map(of).collect()
}

fn attend(heads: &Heads, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Vec<Product> {
    let of = |group: Group| {
        let (p, v) = (group.scores(&inputs[0]), group.keys(&inputs[1]));
        group.onto_heads(p, v, group.queries(&outputs[0]), 1.0)
    };
    Group::all(heads, inputs[1].rows()).map(of).collect()
}

fn attend_grad(heads: &Heads, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Vec<Product> {
    let of = |group: Group| {
        let (d_o, p) = (group.queries(&inputs[0]), group.scores(&inputs[1]));
        let v = group.keys(&inputs[2]).transposed(true);
        let of_scores = group.onto_scores(d_o, v, group.scores(&outputs[0]), 1.0);
        [of_scores].into_iter().chain(group.summed_over_heads(p, d_o, group.keys(&outputs[1]), 1.0))
    };
    Group::all(heads, inputs[0].rows()).flat_map(of).collect()
}

/// The query heads of one sequence that share a key head.
struct Group {
    heads: Heads,
    sequence: u64,
    key_head: u64,
    /// Query heads.
    size: u64,
}

impl Group {
    fn all(heads: &Heads, rows: u64) -> impl Iterator<Item = Group> + use<> {
        let heads = *heads;
        let size = heads.query / heads.key_value;
        (0..rows / heads.sequence).flat_map(move |sequence| {
            (0..heads.key_value).map(move |key_head| Group { heads, sequence, key_head, size })
        })
    }

    fn queries(&self, place: &Place<'_>) -> Matrix {
        let Heads { sequence, query, width, .. } = self.heads;
        let offset = self.sequence * sequence * query * width + self.key_head * self.size * width;
        place.matrix(offset, [sequence, width], query * width, (self.size, width))
    }

    fn keys(&self, place: &Place<'_>) -> Matrix {
        let Heads { sequence, key_value, width, .. } = self.heads;
        let offset = self.sequence * sequence * key_value * width + self.key_head * width;
        place.matrix(offset, [sequence, width], key_value * width, (1, 0))
    }

    fn scores(&self, place: &Place<'_>) -> Matrix {
        let Heads { sequence, query, .. } = self.heads;
        let square = sequence * sequence;
        let offset = (self.sequence * query + self.key_head * self.size) * square;
        place.matrix(offset, [sequence, sequence], sequence, (self.size, square))
    }

    fn onto_scores(&self, a: Matrix, b: Matrix, c: Matrix, alpha: f32) -> Product {
        let Heads { sequence, width, .. } = self.heads;
        let (rows, inner, columns, count) = (sequence, width, sequence, self.size);
        Product { rows, inner, columns, a, b, c, alpha, beta: 0.0, count, addend: None, bias: None }
    }

    fn onto_heads(&self, a: Matrix, b: Matrix, c: Matrix, alpha: f32) -> Product {
        let Heads { sequence, width, .. } = self.heads;
        let (rows, inner, columns, count) = (sequence, sequence, width, self.size);
        Product { rows, inner, columns, a, b, c, alpha, beta: 0.0, count, addend: None, bias: None }
    }

    /// `c = alpha · Σ over its heads of sᵀ · x`, one head after the other.
    fn summed_over_heads(
        &self,
        s: Matrix,
        x: Matrix,
        c: Matrix,
        alpha: f32,
    ) -> impl Iterator<Item = Product> + use<> {
        let all = self.onto_heads(s.transposed(true), x, c, alpha);
        (0..self.size).map(move |head| {
            let of = |matrix: Matrix| Matrix {
                at: Address(matrix.at.0 + head * matrix.step * matrix.format.bytes()),
                ..matrix
            };
            let beta = if head == 0 { 0.0 } else { 1.0 };
            Product { a: of(all.a), b: of(all.b), beta, count: 1, ..all }
        })
    }
}
