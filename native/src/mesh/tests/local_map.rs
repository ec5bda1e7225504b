//! `local_map`: functions of the local tensors, their mistakes and their gradients.

use std::sync::Arc;

use Placement::{Partial, Replicate, Shard};

use super::{mesh, run};
use crate::mesh::local_map::Placements;
use crate::mesh::*;
use crate::transport::Transport;
use crate::transport::collectives::Reduction::Sum;
use crate::transport::threads::Threads;

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
        "in_placements has 1 entries, but the arguments have 2 leaves: give one entry per leaf, and `None` for a leaf \
         that is not a distributed tensor"
    );
    assert_eq!(
        refusal(mapped(keep(), Some(vec![some(Replicate), None]), false, first)),
        "argument 0 has placement [Shard(0)], but in_placements has [Replicate]: reshard it first, or set \
         reshard_inputs"
    );
    assert_eq!(
        refusal(mapped([keep(), keep()].concat(), None, false, first)),
        "the function returns 1 leaves, but out_placements has 2 entries: give one per leaf"
    );
    assert_eq!(
        refusal(mapped(keep(), None, false, |_, _| number())),
        "output 0 is a number, but out_placements has [Shard(0)]: only a tensor has a placement; write `None`"
    );
    for entry in [some(Shard(0)), None] {
        let text = refusal(mapped(vec![entry.clone()], None, false, |end, _| {
            let whole = Tensor::scalar(1.0);
            DistTensor::of_whole(end.rank(), &mesh(&[("x", 2)]), &[Replicate], &whole).expect("placed").into()
        }));
        assert!(text.starts_with("output 0 is already a distributed tensor with placement [Replicate]"), "{text}");
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
            "output 0 has placement [Shard(0)], but no argument is distributed and no mesh is given: give \
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
            "argument 1 is on the mesh (y=2) of ranks [0, 1], but the call is on the mesh (x=2) of ranks [0, 1]: use \
             one mesh"
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
        format!("{what} 0 with placement [{placed}] has no gradient: reshard it to Replicate or Shard first")
    };
    assert_eq!(refused(Partial(Reduction::Max), Shard(0)), Some(through("output", "Partial(max)")));
    assert_eq!(refused(Shard(0), Partial(Sum)), Some(through("argument", "Partial(sum)")));
    assert_eq!(refused(Replicate, Partial(Sum)), None);
}
