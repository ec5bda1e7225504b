//! Every placement reaches every other, with the values and the transfers that it should.

use Placement::{Partial, Replicate, Shard};

use super::{mesh, run};
use crate::mesh::*;
use crate::runner::random::SplitMix64;
use crate::transport::Transport;
use crate::transport::collectives::Reduction::{Avg, Max, Sum};

fn matrix(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Matrix {
    (rows, columns, (0..rows * columns).map(|at| value(at / columns, at % columns)).collect())
}

fn lengths(total: usize, pieces: usize) -> Vec<usize> {
    let mut lengths = vec![0; pieces];
    (0..total).for_each(|at| lengths[at % pieces] += 1);
    lengths
}

/// What each rank holds of `whole`, by the definition of placements: the outermost axis first.
fn spread(random: &mut SplitMix64, whole: &Matrix, sizes: &[usize], placements: &[Placement]) -> Vec<Matrix> {
    let Some((size, inner_sizes)) = sizes.split_first() else { return vec![whole.clone()] };
    let (height, width, values) = whole;
    let mut parts: Vec<Matrix> = match placements[0] {
        Shard(dimension) => {
            let mut start = 0;
            let piece = |length| {
                let at = start;
                start += length;
                match dimension {
                    0 => matrix(length, *width, |row, column| values[(at + row) * width + column]),
                    _ => matrix(*height, length, |row, column| values[row * width + at + column]),
                }
            };
            lengths(if dimension == 0 { *height } else { *width }, *size).into_iter().map(piece).collect()
        }
        _ => vec![whole.clone(); *size],
    };
    for (at, value) in values.iter().copied().enumerate() {
        // Random parts first; the last one makes the reduction right.
        let mut sum = 0.0;
        for (place, part) in parts.iter_mut().enumerate() {
            let last = place + 1 == *size;
            let other = random.below(17) as f64 - 8.0;
            match placements[0] {
                Partial(Sum) => part.2[at] = if last { value - sum } else { other },
                Partial(Avg) => part.2[at] = if last { value * *size as f64 - sum } else { other },
                Partial(Max) => part.2[at] = if last { value } else { value - random.below(3) as f64 },
                Replicate | Shard(_) => break,
            }
            sum += part.2[at];
        }
    }
    if placements[0] == Replicate {
        let one = spread(random, whole, inner_sizes, &placements[1..]);
        return std::iter::repeat_n(one, *size).flatten().collect();
    }
    parts.iter().flat_map(|part| spread(random, part, inner_sizes, &placements[1..])).collect()
}

/// The whole, from what each rank holds: the innermost axis is put together first.
fn assembled(parts: &[Matrix], sizes: &[usize], placements: &[Placement]) -> Matrix {
    let Some((size, inner_sizes)) = sizes.split_first() else { return parts[0].clone() };
    let inner: Vec<Matrix> =
        parts.chunks(parts.len() / size).map(|parts| assembled(parts, inner_sizes, &placements[1..])).collect();
    let (height, width, _) = inner[0];
    let reduced = |reduce: &dyn Fn(&[f64]) -> f64| {
        matrix(height, width, |row, column| {
            let values: Vec<f64> = inner.iter().map(|part| part.2[row * width + column]).collect();
            reduce(&values)
        })
    };
    match placements[0] {
        Replicate => {
            assert!(inner.iter().all(|part| *part == inner[0]), "copies differ");
            inner[0].clone()
        }
        Partial(Sum) => reduced(&|values| values.iter().sum()),
        Partial(Avg) => reduced(&|values| values.iter().sum::<f64>() / values.len() as f64),
        Partial(Max) => reduced(&|values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        Shard(0) => {
            let heights: Vec<usize> = inner.iter().map(|part| part.0).collect();
            assert_eq!(heights, lengths(heights.iter().sum(), *size));
            (heights.iter().sum(), width, inner.iter().flat_map(|part| part.2.clone()).collect())
        }
        Shard(_) => {
            let widths: Vec<usize> = inner.iter().map(|part| part.1).collect();
            assert_eq!(widths, lengths(widths.iter().sum(), *size));
            let mut values = Vec::new();
            for row in 0..height {
                for part in &inner {
                    values.extend_from_slice(&part.2[row * part.1..(row + 1) * part.1]);
                }
            }
            (height, widths.iter().sum(), values)
        }
    }
}

fn close(one: &Matrix, other: &Matrix) -> bool {
    (one.0, one.1) == (other.0, other.1) && one.2.iter().zip(&other.2).all(|(one, other)| (one - other).abs() < 1e-9)
}

/// Reshards a matrix between each pair and compares with the definition.
fn check_pairs(axes: &[(&str, usize)], shape: (usize, usize), pairs: &[(Vec<Placement>, Vec<Placement>)]) {
    let mesh = mesh(axes);
    let sizes = mesh.sizes();
    let mut random = SplitMix64::named(3, &format!("{axes:?} {shape:?}"));
    let numbers: Vec<f64> = (0..shape.0 * shape.1).map(|_| random.below(100) as f64 - 50.0).collect();
    let whole = matrix(shape.0, shape.1, |row, column| numbers[row * shape.1 + column]);
    let starts: Vec<Vec<Matrix>> = pairs.iter().map(|(from, _)| spread(&mut random, &whole, &sizes, from)).collect();
    let ends: Vec<Vec<Matrix>> = run(mesh.ranks().len(), |end| {
        let rank = end.rank();
        let resharded = pairs.iter().zip(&starts).map(|((from, to), start)| {
            let (height, width, values) = start[rank].clone();
            let local = Tensor::new(vec![height, width], values).expect("a tensor");
            let tensor = DistTensor::from_local_of(rank, &mesh, from, vec![shape.0, shape.1], local).expect("placed");
            let tensor = tensor.reshard(end, to).unwrap_or_else(|error| panic!("{from:?} {to:?}: {error}"));
            assert_eq!(tensor.placements(), &to[..]);
            let local = tensor.local();
            (local.shape()[0], local.shape()[1], local.values().to_vec())
        });
        resharded.collect()
    });
    for (place, (from, to)) in pairs.iter().enumerate() {
        let parts: Vec<Matrix> = ends.iter().map(|end| end[place].clone()).collect();
        let found = assembled(&parts, &sizes, to);
        assert!(close(&found, &whole), "{from:?} to {to:?} on {axes:?}: {found:?}, not {whole:?}");
    }
}

/// A matrix by rows: what the tests check tensors with, on their own terms.
type Matrix = (usize, usize, Vec<f64>);

const ALL: [Placement; 6] = [Replicate, Shard(0), Shard(1), Partial(Sum), Partial(Avg), Partial(Max)];

/// Every row of `axes` placements.
fn rows(axes: usize) -> Vec<Vec<Placement>> {
    (0..axes).fold(vec![Vec::new()], |rows, _| {
        rows.iter().flat_map(|row| ALL.map(|placement| [&row[..], &[placement]].concat())).collect()
    })
}

#[test]
fn every_placement_reaches_every_other_on_one_axis_with_uneven_and_empty_pieces() {
    let rows = rows(1);
    let pairs: Vec<_> = rows.iter().flat_map(|from| rows.iter().map(|to| (from.clone(), to.clone()))).collect();
    for size in 1..=6 {
        for shape in [(6, 6), (7, 5), (1, 4), (3, 0)] {
            check_pairs(&[("dp", size)], shape, &pairs);
        }
    }
}

#[test]
fn every_placement_reaches_every_other_on_two_axes() {
    let rows = rows(2);
    let pairs: Vec<_> = rows.iter().flat_map(|from| rows.iter().map(|to| (from.clone(), to.clone()))).collect();
    check_pairs(&[("dp", 2), ("tp", 3)], (7, 5), &pairs);
    check_pairs(&[("dp", 3), ("tp", 2)], (5, 8), &pairs);
}

#[test]
fn three_axes_may_cut_one_dimension_and_change_at_once() {
    let rows = rows(3);
    let mut random = SplitMix64::new(11);
    let mut any = || rows[random.below(rows.len() as u64) as usize].clone();
    let mut pairs: Vec<_> = (0..1500).map(|_| (any(), any())).collect();
    pairs.push((vec![Shard(0); 3], vec![Shard(1); 3]));
    pairs.push((vec![Shard(0); 3], vec![Replicate, Shard(0), Shard(0)]));
    check_pairs(&[("pp", 2), ("dp", 2), ("tp", 2)], (9, 11), &pairs);
}

#[test]
fn moves_send_no_more_than_they_must() {
    let moves = |from: &[Placement], to: &[Placement]| {
        reshard::plan(from, to).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(moves(&[Shard(0), Replicate], &[Shard(0), Replicate]), "");
    assert_eq!(moves(&[Replicate], &[Shard(1)]), "slice of dimension 1 along axis 0");
    assert_eq!(moves(&[Partial(Sum)], &[Replicate]), "all-reduce (sum) along axis 0");
    assert_eq!(moves(&[Partial(Avg)], &[Shard(0)]), "reduce-scatter (avg) to dimension 0 along axis 0");
    assert_eq!(moves(&[Shard(0)], &[Shard(1)]), "all-to-all from dimension 0 to 1 along axis 0");
    // The inner axis is not concerned where it cuts another dimension …
    assert_eq!(moves(&[Shard(0), Shard(1)], &[Replicate, Shard(1)]), "all-gather of dimension 0 along axis 0");
    // … and makes way where it cuts the same.
    assert_eq!(
        moves(&[Shard(0), Shard(0)], &[Replicate, Shard(0)]),
        "all-gather of dimension 0 along axis 1; all-gather of dimension 0 along axis 0; slice of dimension 0 along \
         axis 1"
    );
    // The outer axis is not concerned by what the inner one does.
    assert_eq!(moves(&[Shard(0), Shard(0)], &[Shard(0), Replicate]), "all-gather of dimension 0 along axis 1");
    // A maximum of sums is not a sum of maxima.
    assert_eq!(
        moves(&[Partial(Sum), Partial(Max)], &[Replicate, Partial(Max)]),
        "all-reduce (max) along axis 1; all-reduce (sum) along axis 0; spread as partial (max) along axis 1"
    );
}

#[test]
fn a_sum_spread_and_gathered_keeps_every_bit() {
    let mesh = mesh(&[("dp", 3)]);
    let values = vec![-0.0f32, 0.0, f32::MIN_POSITIVE, -1.5e-38, f32::MAX, f32::INFINITY, 0.1];
    let results = run(3, |end| {
        let whole = Tensor::vector(values.clone());
        let tensor = DistTensor::of_whole(end.rank(), &mesh, &[Partial(Sum)], &whole).expect("placed");
        tensor.whole(end).expect("reduced").values().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    });
    let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    assert!(results.iter().all(|result| *result == bits));
}
