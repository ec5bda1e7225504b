use std::thread;

use super::local_map::Placements;
use super::*;
use crate::runner::random::SplitMix64;
use crate::transport::Transport;
use crate::transport::collectives::Reduction::{Avg, Max, Sum};
use crate::transport::threads::{ThreadOptions, Threads, world};
use Placement::{Partial, Replicate, Shard};
use std::sync::Arc;

/// Runs `row` as each rank of a world of `ranks`.
fn run<R: Send>(ranks: usize, row: impl Fn(&mut Threads) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let row = &row;
        let ends = world(ranks, ThreadOptions::default());
        let handles: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || row(&mut end))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a rank panicked")).collect()
    })
}

fn mesh(axes: &[(&str, usize)]) -> Arc<Mesh> {
    Arc::new(Mesh::of_sizes(axes).expect("a mesh"))
}

#[test]
fn coordinates_ranks_and_groups_agree() {
    let mesh =
        Mesh::new(&[("pp", 2), ("dp", 3), ("tp", 2)], (0..12).map(|rank| 11 - rank).collect()).expect("a mesh");
    assert_eq!(mesh.coordinates(11), Ok(vec![0, 0, 0]));
    assert_eq!(mesh.coordinates(10), Ok(vec![0, 0, 1]), "the last axis runs fastest");
    for rank in 0..12 {
        let coordinates = mesh.coordinates(rank).expect("in the mesh");
        assert_eq!(mesh.rank_at(&coordinates), Some(rank));
        for axis in 0..3 {
            let group = mesh.group(axis, rank).expect("in the mesh");
            assert_eq!(group.size(), mesh.axes()[axis].1);
            assert_eq!(group.member(), coordinates[axis]);
            for (place, other) in group.ranks().iter().enumerate() {
                let mut moved = coordinates.clone();
                moved[axis] = place;
                assert_eq!(mesh.coordinates(*other), Ok(moved));
            }
        }
    }
    assert_eq!(mesh.axis("dp"), Ok(1));
    assert_eq!(mesh.rank_at(&[2, 0, 0]), None);
    assert_eq!(mesh.rank_at(&[0, 0]), None);
}

#[test]
fn a_layer_is_held_by_all_ranks_at_its_place_in_the_pipeline() {
    let mesh = mesh(&[("dp", 2), ("pp", 4)]);
    assert_eq!(mesh.ranks_of_layer(3, 8, "1F1B", None), Ok(vec![1, 5]));
    assert_eq!(mesh.ranks_of_layer(3, 8, "vpp", Some(2)), Ok(vec![3, 7]));
    assert!(mesh.ranks_of_layer(3, 8, "VPP", None).is_err());
    let without = Mesh::of_sizes(&[("dp", 2)]).expect("a mesh");
    let text = without.ranks_of_layer(0, 8, "1F1B", None).expect_err("no pipeline").to_string();
    assert_eq!(text, "the mesh has no axis `pp`; it has (dp=2)");
    assert_eq!(mesh.slice(0, 1), [4, 5, 6, 7]);
    assert_eq!(mesh.slice(2, 0), Vec::<usize>::new());
}

#[test]
fn a_mesh_that_is_none_says_why() {
    let text = |result: Result<Mesh, MeshError>| result.expect_err("refused").to_string();
    assert_eq!(
        text(Mesh::new(&[("dp", 2), ("tp", 2)], vec![0, 1, 2])),
        "the axes (dp=2, tp=2) hold 4 ranks, and 3 are given: give as many ranks as the axes hold"
    );
    assert!(text(Mesh::new(&[("dp", 1), ("dp", 1)], vec![0])).contains("`dp`"));
    assert!(text(Mesh::new(&[("dp", 2)], vec![3, 3])).contains("rank 3 is twice"));
    assert!(text(Mesh::new(&[("dp", 0)], vec![])).contains("dp=0"));
    assert!(Mesh::of_sizes(&[("a", usize::MAX), ("b", usize::MAX)]).is_err());
    let mesh = mesh(&[("dp", 2)]);
    assert!(mesh.axis("tp").expect_err("none").to_string().contains("no axis `tp`; it has (dp=2)"));
    assert!(matches!(mesh.coordinates(2), Err(MeshError::NoRank { rank: 2, .. })));
}

const ALL: [Placement; 6] = [Replicate, Shard(0), Shard(1), Partial(Sum), Partial(Avg), Partial(Max)];

/// Every row of `axes` placements.
fn rows(axes: usize) -> Vec<Vec<Placement>> {
    (0..axes).fold(vec![Vec::new()], |rows, _| {
        rows.iter().flat_map(|row| ALL.map(|placement| [&row[..], &[placement]].concat())).collect()
    })
}

/// A matrix by rows: what the tests check tensors with, on their own terms.
type Matrix = (usize, usize, Vec<f64>);

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

#[test]
fn the_whole_shape_follows_from_the_pieces() {
    let mesh = mesh(&[("dp", 2), ("tp", 3)]);
    // 7 rows over dp as 4 and 3, and those over tp as 2 1 1 and 1 1 1.
    let heights = [2usize, 1, 1, 1, 1, 1];
    let shapes = run(6, |end| {
        let local = Tensor::filled(vec![heights[end.rank()], 2], 1.0f32);
        let tensor = DistTensor::from_local(end, &mesh, &[Shard(0), Shard(0)], local).expect("fits");
        tensor.shape().to_vec()
    });
    assert!(shapes.iter().all(|shape| *shape == [7, 2]));

    let errors = run(6, |end| {
        let local = Tensor::filled(vec![if end.rank() % 3 == 2 { 9 } else { 1 }, 2], 1.0f32);
        DistTensor::from_local(end, &mesh, &[Replicate, Shard(0)], local).expect_err("uneven").to_string()
    });
    assert_eq!(
        errors[0],
        "the pieces along axis tp have the lengths [1, 1, 9] in dimension 0; they must be as equal as can be, the \
         longer ones first: [4, 4, 3]"
    );
}

#[test]
fn placements_that_do_not_fit_are_refused() {
    let mesh = mesh(&[("dp", 1)]);
    let whole = Tensor::vector(vec![1.0f32, 2.0]);
    let refused = |placements: &[Placement]| {
        DistTensor::of_whole(0, &mesh, placements, &whole).expect_err("refused").to_string()
    };
    assert_eq!(
        refused(&[Replicate, Shard(0)]),
        "the placements [Replicate, Shard(0)] are not one for each of the mesh's 1 axes"
    );
    assert_eq!(
        refused(&[Shard(1)]),
        "Shard(1) names a dimension that a tensor with 1 dimensions does not have; they count from 0"
    );
    assert!(Tensor::new(vec![2, 2], vec![1.0f32; 3]).is_err());
    assert!(Tensor::new(vec![usize::MAX, 2], vec![1.0f32; 3]).is_err());
    let wrong = DistTensor::from_local_of(0, &mesh, &[Shard(0)], vec![3], whole.clone());
    assert!(wrong.expect_err("2 values are not 3").to_string().contains("shape [2]"));
}

// local_map

type Leaf = Item<f32>;

fn plain(tree: &Leaf) -> &Tensor<f32> {
    match tree {
        Tree::Leaf(Value::Plain(tensor)) => tensor,
        other => panic!("no plain tensor: {other:?}"),
    }
}

fn distributed(tree: Leaf) -> DistTensor<f32> {
    match tree {
        Tree::Leaf(Value::Distributed(tensor)) => tensor,
        other => panic!("no distributed tensor: {other:?}"),
    }
}

fn some(placement: Placement) -> Placements {
    Some(vec![placement])
}

fn number() -> Leaf {
    Tree::Leaf(Value::Number(3.0))
}

/// Rank `r` holds `0 + r, 1 + r, …, 9 + r` as its piece.
fn shifted(end: &mut Threads, mesh: &Arc<Mesh>) -> DistTensor<f32> {
    let rank = end.rank() as f32;
    let local = Tensor::vector((0..10).map(|value| value as f32 + rank).collect());
    DistTensor::from_local(end, mesh, &[Shard(0)], local).expect("even pieces")
}

#[test]
fn the_masked_mean_of_the_documentation() {
    let mesh = mesh(&[("x", 2)]);
    let results = run(2, |end| {
        let masked_mean = |end: &mut Threads, arguments: Vec<Leaf>| {
            let masked = if end.rank() == 0 { 1..3 } else { 4..7 };
            let chosen = &plain(&arguments[0]).values()[masked];
            Tensor::scalar(chosen.iter().sum::<f32>() / chosen.len() as f32).into()
        };
        let (outs, ins) = (vec![some(Partial(Sum))], Some(vec![some(Shard(0))]));
        let mut mapped = local_map(masked_mean, outs, ins, Some(Arc::clone(&mesh)), false);
        let input = shifted(end, &mesh);
        assert_eq!(input.shape(), [20]);
        let mean = distributed(mapped(end, vec![input.into()]).expect("it maps"));
        assert_eq!(mean.placements(), [Partial(Sum)]);
        let local = mean.local().values()[0];
        (local, mean.whole(end).expect("reduced").values()[0])
    });
    assert_eq!(results, [(1.5, 7.5), (6.0, 7.5)]);
}

/// Calls `local_map` on each of two ranks with the documentation's input and a function that gives back `outputs`.
fn mapped(
    outs: Vec<Placements>,
    ins: Option<Vec<Placements>>,
    reshard: bool,
    outputs: impl Fn(&mut Threads, Vec<Leaf>) -> Leaf + Sync,
) -> Vec<Result<Leaf, LocalMapError>> {
    let mesh = mesh(&[("x", 2)]);
    run(2, |end| {
        let input = shifted(end, &mesh);
        let mut call = local_map(&outputs, outs.clone(), ins.clone(), None, reshard);
        call(end, vec![input.into(), number()])
    })
}

fn refusal(results: Vec<Result<Leaf, LocalMapError>>) -> String {
    let texts: Vec<String> = results.into_iter().map(|result| result.expect_err("refused").to_string()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "every rank refuses alike: {texts:?}");
    texts[0].clone()
}

fn first(_: &mut Threads, arguments: Vec<Leaf>) -> Leaf {
    arguments.into_iter().next().expect("two arguments")
}

#[test]
fn each_mistake_has_its_own_words() {
    let keep = || vec![some(Shard(0))];
    assert_eq!(
        refusal(mapped(keep(), Some(keep()), false, first)),
        "in_placements has 1 entries, and the arguments have 2 leaves: give one entry for each, `None` where it is no \
         distributed tensor"
    );
    assert_eq!(
        refusal(mapped(keep(), Some(vec![some(Replicate), None]), false, first)),
        "argument 0 is placed as [Shard(0)], and in_placements asks for [Replicate]: reshard it first, or set \
         reshard_inputs"
    );
    assert_eq!(
        refusal(mapped([keep(), keep()].concat(), None, false, first)),
        "the function gave back 1 leaves, and out_placements has 2 entries: give one for each"
    );
    assert_eq!(
        refusal(mapped(keep(), None, false, |_, _| number())),
        "output 0 is a number, and out_placements gives it [Shard(0)]: only a tensor can be placed; say `None`"
    );
    for entry in [some(Shard(0)), None] {
        let text = refusal(mapped(vec![entry.clone()], None, false, |end, _| {
            let whole = Tensor::scalar(1.0);
            DistTensor::of_whole(end.rank(), &mesh(&[("x", 2)]), &[Replicate], &whole).expect("placed").into()
        }));
        assert!(text.starts_with("output 0 is a distributed tensor already, placed as [Replicate]"), "{text}");
    }
}

#[test]
fn reshard_inputs_brings_an_argument_to_where_it_is_asked_for() {
    let results = mapped(vec![some(Replicate)], Some(vec![some(Replicate), None]), true, first);
    for result in results {
        let tensor = distributed(result.expect("it maps"));
        let expected: Vec<f32> = (0..10).map(|value| value as f32).chain((1..11).map(|value| value as f32)).collect();
        assert_eq!(tensor.local().values(), expected);
    }
}

#[test]
fn without_in_placements_arguments_are_taken_as_they_lie() {
    for ins in [None, Some(vec![None, None])] {
        let results = mapped(vec![some(Shard(0))], ins, false, first);
        assert!(results.into_iter().all(|result| distributed(result.expect("it maps")).shape() == [20]));
    }
}

#[test]
fn outputs_may_be_nested_and_mixed() {
    let outs = vec![some(Partial(Sum)), None, None, some(Shard(0))];
    let results = mapped(outs, None, false, |end, arguments| {
        let local = plain(&arguments[0]).clone();
        let mean = Tensor::scalar(end.rank() as f32 + 1.0);
        Tree::Node(vec![
            mean.clone().into(),
            Tree::Node(vec![mean.into(), Tree::Leaf(Value::Text("a note".to_string()))]),
            local.into(),
        ])
    });
    for (rank, result) in results.into_iter().enumerate() {
        let tree = result.expect("it maps");
        let kinds: Vec<&str> = tree.leaves().iter().map(|leaf| leaf.kind()).collect();
        assert_eq!(kinds, ["a distributed tensor", "a plain tensor", "a text", "a distributed tensor"]);
        let Tree::Node(outer) = &tree else { panic!("the nesting is lost") };
        let Tree::Node(inner) = &outer[1] else { panic!("the nesting is lost") };
        assert_eq!(plain(&inner[0]).values(), [rank as f32 + 1.0]);
        assert_eq!((outer.len(), inner.len()), (3, 2));
    }
}

#[test]
fn nested_arguments_count_by_leaf() {
    let mesh = mesh(&[("x", 2)]);
    run(2, |end| {
        let one = shifted(end, &mesh);
        let two = one.clone().reshard(end, &[Replicate]).expect("resharded");
        let ins = Some(vec![None, some(Shard(0)), some(Replicate)]);
        let sum = |_: &mut Threads, arguments: Vec<Leaf>| {
            let kinds: Vec<usize> = arguments.iter().map(|tree| tree.leaves().len()).collect();
            assert_eq!(kinds, [3], "the nesting is kept");
            let tree = &arguments[0];
            let lengths: Vec<usize> = tree
                .leaves()
                .iter()
                .filter_map(|leaf| match leaf {
                    Value::Plain(tensor) => Some(tensor.values().len()),
                    _ => None,
                })
                .collect();
            Tensor::vector(lengths.iter().map(|length| *length as f32).collect()).into()
        };
        let mut call = local_map(sum, vec![some(Replicate)], ins, None, false);
        let arguments = vec![Tree::Node(vec![number(), Tree::Node(vec![one.into(), two.into()])])];
        assert_eq!(distributed(call(end, arguments).expect("it maps")).local().values(), [10.0, 20.0]);
    });
}

#[test]
fn without_a_distributed_argument_the_mesh_must_be_given() {
    let mesh = mesh(&[("x", 2)]);
    run(2, |end| {
        let arguments = || vec![Tensor::vector(vec![1.0f32; 3]).into()];
        let mut call = local_map(first, vec![some(Shard(0))], None, None, false);
        let error = call(end, arguments()).expect_err("no mesh").to_string();
        assert_eq!(
            error,
            "output 0 is to be placed as [Shard(0)], and neither is an argument distributed nor a mesh given: give \
             process_mesh"
        );
        let mut call = local_map(first, vec![some(Shard(0))], None, Some(Arc::clone(&mesh)), false);
        assert_eq!(distributed(call(end, arguments()).expect("it maps")).shape(), [6]);
        // Nothing to wrap needs no mesh, and the number of entries is not looked at.
        for outs in [vec![None], vec![], vec![None, some(Shard(0))]] {
            let mut call = local_map(first, outs, None, None, false);
            assert_eq!(plain(&call(end, arguments()).expect("it maps")).values(), [1.0; 3]);
        }
    });
}

#[test]
fn arguments_on_two_meshes_are_refused() {
    let (one, two) = (mesh(&[("x", 2)]), mesh(&[("y", 2)]));
    run(2, |end| {
        let arguments = vec![shifted(end, &one).into(), shifted(end, &two).into()];
        let error = local_map(first, vec![None], None, None, false)(end, arguments).expect_err("two meshes");
        assert_eq!(
            error.to_string(),
            "argument 1 is on the mesh (y=2) of ranks [0, 1], and the call is on the mesh (x=2) of ranks [0, 1]: all \
             must share one"
        );
    });
}

/// The gradient of the documentation's mean of means: a share for each value that a mask lets through, whatever its
/// placement.
#[test]
fn the_gradient_of_the_masked_mean_is_each_value_s_share() {
    let mesh = mesh(&[("x", 2)]);
    for (reduction, whole) in [(Sum, 1.0), (Reduction::Avg, 0.5)] {
        let results = run(2, |end| {
            let backward = |end: &mut Threads, leaves: Vec<Leaf>| {
                let masked = if end.rank() == 0 { 1..3 } else { 4..7 };
                let share = plain(&leaves[1]).values()[0] / masked.len() as f32;
                let share_of = |at: usize| if masked.contains(&at) { share } else { 0.0 };
                Tensor::vector((0..10).map(share_of).collect()).into()
            };
            let (outs, ins) = ([some(Partial(reduction))], [some(Shard(0))]);
            let mut mapped = local_map_backward(backward, &outs, &ins, &mesh).expect("it has one");
            let gradient =
                DistTensor::of_whole(end.rank(), &mesh, &[Replicate], &Tensor::scalar(1.0)).expect("replicated");
            let input = shifted(end, &mesh);
            let gradient = distributed(mapped(end, vec![input.into(), gradient.into()]).expect("it maps"));
            assert_eq!((gradient.placements(), gradient.shape()), (&[Shard(0)][..], &[20][..]));
            gradient.whole(end).expect("gathered").values().to_vec()
        });
        let share = |at: usize| match at {
            1..3 => whole / 2.0,
            14..17 => whole / 3.0,
            _ => 0.0,
        };
        assert_eq!(results, [(0..20).map(share).collect::<Vec<f32>>(), (0..20).map(share).collect()], "{reduction}");
    }
}

/// Rows spread, a weight held by all: `Σ (w · x)²` over the rows. Each rank has its rows' part of the weight's gradient.
#[test]
fn the_gradient_of_what_all_hold_is_summed_over_those_who_used_it() {
    let mesh = mesh(&[("x", 2)]);
    let (weight, rows) = ([0.5f32, -2.0], [[1.0f32, 2.0], [3.0, -1.0], [0.25, 4.0]]);
    let dot = |row: &[f32]| row[0] * weight[0] + row[1] * weight[1];
    let by_hand: Vec<f32> = (0..2).map(|at| rows.iter().map(|row| 2.0 * dot(row) * row[at]).sum()).collect();
    let results = run(2, |end| {
        let backward = |_: &mut Threads, leaves: Vec<Leaf>| {
            let (weight, rows, scale) = (plain(&leaves[0]), plain(&leaves[1]), plain(&leaves[2]).values()[0]);
            let twice = |row: &[f32]| 2.0 * scale * row.iter().zip(weight.values()).map(|(x, w)| x * w).sum::<f32>();
            let of_weight = |at: usize| rows.values().chunks(2).map(|row| twice(row) * row[at]).sum();
            let of_rows = rows.values().chunks(2).flat_map(|row| weight.values().iter().map(move |w| twice(row) * w));
            let of_rows = Tensor::new(rows.shape().to_vec(), of_rows.collect()).expect("the same shape");
            Tree::Node(vec![Tensor::vector((0..2).map(of_weight).collect()).into(), of_rows.into()])
        };
        let (outs, ins) = ([some(Partial(Sum))], [some(Replicate), some(Shard(0))]);
        let mut mapped = local_map_backward(backward, &outs, &ins, &mesh).expect("it has one");
        let whole = |placement, tensor: &Tensor<f32>| {
            DistTensor::of_whole(end.rank(), &mesh, &[placement], tensor).expect("it fits")
        };
        let inputs = [
            whole(Replicate, &Tensor::vector(weight.to_vec())),
            whole(Shard(0), &Tensor::new(vec![3, 2], rows.concat()).expect("three rows")),
            whole(Replicate, &Tensor::scalar(1.0)),
        ];
        let gradients = mapped(end, inputs.into_iter().map(Into::into).collect()).expect("it maps");
        let Tree::Node(gradients) = gradients else { panic!("two gradients") };
        let mut gradients = gradients.into_iter().map(distributed);
        let (of_weight, of_rows) = (gradients.next().expect("of the weight"), gradients.next().expect("of the rows"));
        assert_eq!((of_weight.placements(), of_rows.placements()), (&[Partial(Sum)][..], &[Shard(0)][..]));
        let of_rows = of_rows.whole(end).expect("gathered").values().to_vec();
        (of_weight.whole(end).expect("summed").values().to_vec(), of_rows)
    });
    let of_rows: Vec<f32> = rows.iter().flat_map(|row| weight.map(|weight| 2.0 * dot(row) * weight)).collect();
    assert_eq!(results[0], (by_hand, of_rows));
    assert_eq!(results[0], results[1]);
}

#[test]
fn no_gradient_goes_through_a_maximum_or_what_was_not_yet_summed() {
    let mesh = mesh(&[("x", 2)]);
    let refused = |outs: Placement, ins: Placement| {
        let backward = |_: &mut Threads, leaves: Vec<Leaf>| leaves[0].clone();
        local_map_backward(backward, &[some(outs)], &[some(ins)], &mesh).err().map(|error| error.to_string())
    };
    let through = |what: &str, placed: &str| {
        format!("no gradient goes through {what} 0, placed as [{placed}]: reshard it to Replicate or Shard first")
    };
    assert_eq!(refused(Partial(Reduction::Max), Shard(0)), Some(through("output", "Partial(max)")));
    assert_eq!(refused(Shard(0), Partial(Sum)), Some(through("argument", "Partial(sum)")));
    assert_eq!(refused(Replicate, Partial(Sum)), None);
}
