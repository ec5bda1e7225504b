//! The embedding, learned positions, and their gradients.

use std::vec;
use std::vec::Vec;

use super::given::Given;
use crate::graph::Kernel;

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let columns = |of: usize| given.columns(of);
    let h = given.columns(0);
    let n = given.rows();
    let row = |of: usize, i: usize| given.row(of, i);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::OwnTokens { rows } => vec![by_element(&|e| {
            let own = x[0][e] - (given.member as u64 * rows) as f64;
            if own >= 0.0 && own < rows as f64 { own } else { -1.0 }
        })],
        Kernel::Embedding => {
            let of =
                |token: &f64| if *token < 0.0 { vec![0.0; columns(1)] } else { row(1, *token as usize).to_vec() };
            vec![x[0].iter().flat_map(of).collect()]
        }
        Kernel::EmbeddingGrad => {
            let mut sum = x[2].clone();
            for i in (0..n).filter(|i| x[1][*i] >= 0.0) {
                for j in 0..h {
                    sum[x[1][i] as usize * h + j] += x[0][i * h + j];
                }
            }
            vec![sum]
        }
        Kernel::Positions { sequence, ways } => {
            let position = |e: usize| given.place(e / h, n, ways, 1) % sequence as usize;
            vec![by_element(&|e| x[0][e] + x[1][position(e) * h + e % h])]
        }
        Kernel::PositionsGrad { sequence, ways } => {
            let position = |e: usize| given.place(e / h, n, ways, 1) % sequence as usize;
            let mut sum = x[1].clone();
            (0..x[0].len()).for_each(|e| sum[position(e) * h + e % h] += x[0][e]);
            vec![sum]
        }
        other => panic!("{} is of another family", other.name()),
    }
}
