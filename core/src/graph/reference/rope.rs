//! Rotary positions, and columns that are split for them.

use std::vec;
use std::vec::Vec;

use super::given::Given;
use crate::graph::Kernel;

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let columns = |of: usize| given.columns(of);
    let h = given.columns(0);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    let sizes = &given.sizes;
    match given.kernel {
        Kernel::Rope { sequence, width, angles, inverse, .. } => {
            let (d, half) = (width as usize, width as usize / 2);
            vec![by_element(&|e| {
                let (position, j) = ((e / h) % sequence as usize, e % d);
                let power = -2.0 * (j % half) as f64 / d as f64;
                let sign = if inverse { -1.0 } else { 1.0 };
                let turned = if angles.turns((j % half) as u64) { sign } else { 0.0 };
                let angle = position as f64 * (angles.base as f64).powf(power) * turned;
                if j < half {
                    x[0][e] * angle.cos() - x[0][e + half] * angle.sin()
                } else {
                    x[0][e] * angle.cos() + x[0][e - half] * angle.sin()
                }
            })]
        }
        Kernel::RopeTail { sequence, width, tail, angles, inverse, .. } => {
            let (width, tail) = (width as usize, tail as usize);
            let turned = |e: usize| {
                let (position, column) = ((e / h) % sequence as usize, e % width);
                let Some(j) = column.checked_sub(width - tail) else { return x[0][e] };
                let half = tail / 2;
                let angle = position as f64 * (angles.base as f64).powf(-2.0 * (j % half) as f64 / tail as f64);
                let angle = if inverse { -angle } else { angle };
                match j < half {
                    true => x[0][e] * angle.cos() - x[0][e + half] * angle.sin(),
                    false => x[0][e] * angle.cos() + x[0][e - half] * angle.sin(),
                }
            };
            vec![(0..x[0].len()).map(turned).collect()]
        }
        Kernel::SplitColumns => {
            let first = sizes[0] * h / x[0].len();
            let part = |left: bool| {
                (0..x[0].len()).filter(|e| (e % h < first) == left).map(|e| x[0][e]).collect::<Vec<f64>>()
            };
            vec![part(true), part(false)]
        }
        Kernel::JoinColumns => {
            let both = x[0].chunks(h).zip(x[1].chunks(columns(1)));
            vec![both.flat_map(|(left, right)| [left, right].concat()).collect()]
        }
        Kernel::LatentKeys { heads } => {
            let (heads, shared) = (heads as usize, columns(1));
            let (rows, own) = (x[0].len() / h, h / heads);
            let first = sizes[0] / (rows * heads) - shared;
            let head = |at: usize| (&x[0][at * own..(at + 1) * own], &x[1][at / heads * shared..][..shared]);
            let keys = (0..rows * heads).flat_map(|at| [&head(at).0[..first], head(at).1].concat()).collect();
            vec![keys, (0..rows * heads).flat_map(|at| head(at).0[first..].to_vec()).collect()]
        }
        Kernel::LatentKeysGrad { heads } => {
            let heads = heads as usize;
            let (rows, width, value) = (x[0].len() / h, h / heads, columns(1) / heads);
            let shared = sizes[1] / rows;
            let first = width - shared;
            let own = |at: usize| [&x[0][at * width..][..first], &x[1][at * value..][..value]].concat();
            let sum =
                |row: usize, j: usize| (0..heads).map(|head| x[0][(row * heads + head) * width + first + j]).sum();
            let rotated = (0..rows).flat_map(|row| (0..shared).map(move |j| (row, j))).map(|(row, j)| sum(row, j));
            vec![(0..rows * heads).flat_map(own).collect(), rotated.collect()]
        }
        other => panic!("{} is of another family", other.name()),
    }
}
