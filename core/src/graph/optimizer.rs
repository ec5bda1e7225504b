//! Optimizers: what each keeps of a weight, and what its step multiplies.
//!
//! - In: the shape of a weight, and whether it is a weight of a layer.
//! - Out: elements of state, and operations beyond the work by element.
//! - Knows: shapes. Number formats and sharding are those of [`estimate::memory`](crate::estimate::memory).

/// Which optimizer updates the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Optimizer {
    /// AdamW: two moments of each element (arXiv:1711.05101).
    #[default]
    AdamW,
    /// Stochastic gradient descent without momentum: no state.
    Sgd,
    /// Stochastic gradient descent with momentum: one moment of each element.
    SgdMomentum,
    /// Muon for the matrices of layers, with one moment (Jordan et al., "Muon: An optimizer for hidden layers in neural
    /// networks", 2024; arXiv:2502.16982), and AdamW for all other weights.
    Muon,
    /// Adafactor without momentum: of a matrix the second moment's sums along rows and along columns, of any other weight
    /// the second moment of each element (arXiv:1804.04235, section 3).
    Adafactor,
}

/// Steps of Muon's Newton-Schulz iteration, as its authors and Megatron-LM have them (`--muon-num-ns-steps`).
const NEWTON_SCHULZ_STEPS: u128 = 5;

impl Optimizer {
    /// Every optimizer.
    pub const ALL: [Optimizer; 5] =
        [Optimizer::AdamW, Optimizer::Sgd, Optimizer::SgdMomentum, Optimizer::Muon, Optimizer::Adafactor];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Optimizer::AdamW => "adamw",
            Optimizer::Sgd => "sgd",
            Optimizer::SgdMomentum => "sgd-momentum",
            Optimizer::Muon => "muon",
            Optimizer::Adafactor => "adafactor",
        }
    }

    /// Whether it keeps moments of the size of the weight, which may have another number format.
    pub const fn has_moments(self) -> bool {
        !matches!(self, Optimizer::Sgd | Optimizer::Adafactor)
    }

    /// Elements that it keeps of a weight of this shape; `in_layer` tells whether a layer has it, and not the embedding,
    /// the head or the norm before the head.
    pub fn state_elements(self, shape: &[u64], in_layer: bool) -> u64 {
        let elements = shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size));
        match self {
            Optimizer::Sgd => 0,
            Optimizer::SgdMomentum => elements,
            Optimizer::Muon if in_layer && shape.len() >= 2 => elements,
            Optimizer::AdamW | Optimizer::Muon => elements.saturating_mul(2),
            Optimizer::Adafactor => match matrices(shape) {
                Some((count, rows, columns)) => count.saturating_mul(rows.saturating_add(columns)),
                None => elements,
            },
        }
    }

    /// Floating-point operations of its matrix products in the update of such a weight: Muon's iteration, which takes
    /// `X Xᵀ`, the square of that, and its product with `X`, of a matrix with the shorter side first.
    pub fn update_flops(self, shape: &[u64], in_layer: bool) -> u128 {
        let Some((count, rows, columns)) = matrices(shape).filter(|_| self == Optimizer::Muon && in_layer) else {
            return 0;
        };
        let (short, long) = (u128::from(rows.min(columns)), u128::from(rows.max(columns)));
        let step = 4 * short * short * long + 2 * short * short * short;
        u128::from(count) * NEWTON_SCHULZ_STEPS * step
    }
}

/// The matrices of a weight, as many as it has experts, with their rows and columns; none where it is no matrix.
fn matrices(shape: &[u64]) -> Option<(u64, u64, u64)> {
    let [experts @ .., rows, columns] = shape else { return None };
    Some((experts.iter().fold(1, |product: u64, size| product.saturating_mul(*size)), *rows, *columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a matrix of 4 rows and 6 columns, of three of them, and of a vector; in a layer and outside.
    #[test]
    fn what_is_kept_is_counted_by_shape() {
        let kept = |optimizer: Optimizer| {
            [(&[4, 6][..], true), (&[3, 4, 6], true), (&[5], true), (&[4, 6], false)]
                .map(|(shape, in_layer)| optimizer.state_elements(shape, in_layer))
        };
        assert_eq!(kept(Optimizer::AdamW), [48, 144, 10, 48]);
        assert_eq!(kept(Optimizer::Sgd), [0; 4]);
        assert_eq!(kept(Optimizer::SgdMomentum), [24, 72, 5, 24]);
        assert_eq!(kept(Optimizer::Muon), [24, 72, 10, 48]);
        assert_eq!(kept(Optimizer::Adafactor), [10, 30, 5, 10]);
    }

    /// The products written out: X Xᵀ and B X are 2·4·4·6 each, A A is 2·4·4·4, five times.
    #[test]
    fn muon_multiplies_the_shorter_side() {
        let step = 2 * (4 * 4 * 6) + 2 * (4 * 4 * 4) + 2 * (4 * 4 * 6);
        for shape in [[4, 6], [6, 4]] {
            assert_eq!(Optimizer::Muon.update_flops(&shape, true), 5 * step);
        }
        assert_eq!(Optimizer::Muon.update_flops(&[3, 4, 6], true), 3 * 5 * step);
        assert_eq!(Optimizer::Muon.update_flops(&[4, 6], false) + Optimizer::Muon.update_flops(&[5], true), 0);
        assert_eq!(Optimizer::AdamW.update_flops(&[4, 6], true), 0);
    }
}
