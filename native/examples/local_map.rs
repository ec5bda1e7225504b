//! A tensor spread over ranks, and a function of the parts that each rank holds: an MLP whose first matrix is cut by columns and
//! whose second by rows, as tensor parallel ranks have them (Megatron-LM, arXiv:1909.08053, section 3).
//!
//! `cargo run -p pipeplan --example local_map [RANKS]`

use std::error::Error;
use std::sync::Arc;
use std::thread;

use Placement::{Partial, Replicate, Shard};
use pipeplan::mesh::{DistTensor, Item, LocalMapError, Mesh, Placement, Tensor, Tree, Value, local_map};
use pipeplan::transport::collectives::Reduction;
use pipeplan::transport::threads::{ThreadOptions, Threads, world};

/// Rows of the input.
const ROWS: usize = 3;
/// Width of input and output.
const WIDTH: usize = 4;
/// Width between the matrices.
const INNER: usize = 8;

fn matrix(seed: usize, rows: usize, columns: usize) -> Result<Tensor<f64>, Failed> {
    let values = (0..rows * columns).map(|at| ((at * 7 + seed * 5) % 11) as f64 - 5.0).collect();
    Ok(Tensor::new(vec![rows, columns], values)?)
}

fn product(a: &Tensor<f64>, b: &Tensor<f64>) -> Tensor<f64> {
    let (rows, inner, columns) = (a.shape()[0], a.shape()[1], b.shape()[1]);
    let entry = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        (0..inner).map(|inside| a.values()[row * inner + inside] * b.values()[inside * columns + column]).sum()
    };
    Tensor::new(vec![rows, columns], (0..rows * columns).map(entry).collect()).unwrap_or(Tensor::scalar(0.0))
}

/// `relu(x · A) · B`, of whatever parts of A and B there are.
fn mlp(x: &Tensor<f64>, a: &Tensor<f64>, b: &Tensor<f64>) -> Tensor<f64> {
    let mut inner = product(x, a);
    inner.values_mut().iter_mut().for_each(|value| *value = value.max(0.0));
    product(&inner, b)
}

/// Whatever goes wrong on a rank.
pub type Failed = Box<dyn Error + Send + Sync>;

/// What one of the ranks does; returns the whole output.
fn rank(transport: &mut Threads, ranks: usize) -> Result<Vec<f64>, Failed> {
    let mesh = Arc::new(Mesh::of_sizes(&[("tp", ranks)])?);
    let spread = |transport: &mut Threads, tensor: Tensor<f64>, placement: Placement| {
        let whole = DistTensor::from_local(transport, &mesh, &[Replicate], tensor)?;
        whole.reshard(transport, &[placement])
    };
    let x = spread(transport, matrix(0, ROWS, WIDTH)?, Replicate)?;
    let a = spread(transport, matrix(1, WIDTH, INNER)?, Shard(1))?;
    let b = spread(transport, matrix(2, INNER, WIDTH)?, Shard(0))?;
    let of_parts = |_: &mut Threads, parts: Vec<Item<f64>>| match &parts[..] {
        [Tree::Leaf(Value::Plain(x)), Tree::Leaf(Value::Plain(a)), Tree::Leaf(Value::Plain(b))] => {
            mlp(x, a, b).into()
        }
        _ => Tensor::scalar(0.0).into(),
    };
    // Each rank's product is a summand of the output.
    let (outs, ins) = (vec![Some(vec![Partial(Reduction::Sum)])], None);
    let mut mapped = local_map(of_parts, outs, ins, Some(Arc::clone(&mesh)), false);
    let output: Result<Item<f64>, LocalMapError> = mapped(transport, vec![x.into(), a.into(), b.into()]);
    match output? {
        Tree::Leaf(Value::Distributed(output)) => Ok(output.whole(transport)?.values().to_vec()),
        other => Err(format!("no distributed tensor: {other:?}").into()),
    }
}

/// The output on each of `ranks`, and that of one rank alone.
///
/// # Errors
/// Where a tensor cannot be spread over so many.
pub fn outputs(ranks: usize) -> Result<(Vec<Vec<f64>>, Vec<f64>), Failed> {
    let found = thread::scope(|scope| {
        let ends = world(ranks, ThreadOptions::default());
        let running: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || rank(&mut end, ranks))).collect();
        running
            .into_iter()
            .map(|running| running.join().unwrap_or_else(|_| Err("a rank has died".into())))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let alone = mlp(&matrix(0, ROWS, WIDTH)?, &matrix(1, WIDTH, INNER)?, &matrix(2, INNER, WIDTH)?);
    Ok((found, alone.values().to_vec()))
}

#[allow(dead_code, reason = "tests use the rest")]
fn main() -> Result<(), Failed> {
    let ranks = std::env::args().nth(1).map_or(Ok(2), |word| word.parse())?;
    let (found, alone) = outputs(ranks)?;
    println!("one rank:  {alone:?}");
    for (rank, found) in found.iter().enumerate() {
        println!("rank {rank} of {ranks}: {found:?}");
    }
    Ok(())
}
