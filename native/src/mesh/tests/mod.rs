//! Meshes, the placements of tensors over them, and their errors.

use std::sync::Arc;
use std::thread;

use Placement::{Replicate, Shard};

use super::*;
use crate::transport::Transport;
use crate::transport::threads::{ThreadOptions, Threads, world};

mod local_map;
mod redistribute;

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
        "the axes (dp=2, tp=2) have 4 ranks, but 3 are given: give as many ranks as the axes have"
    );
    assert!(text(Mesh::new(&[("dp", 1), ("dp", 1)], vec![0])).contains("`dp`"));
    assert!(text(Mesh::new(&[("dp", 2)], vec![3, 3])).contains("rank 3 is twice"));
    assert!(text(Mesh::new(&[("dp", 0)], vec![])).contains("dp=0"));
    assert!(Mesh::of_sizes(&[("a", usize::MAX), ("b", usize::MAX)]).is_err());
    let mesh = mesh(&[("dp", 2)]);
    assert!(mesh.axis("tp").expect_err("none").to_string().contains("no axis `tp`; it has (dp=2)"));
    assert!(matches!(mesh.coordinates(2), Err(MeshError::NoRank { rank: 2, .. })));
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
        "the shards along axis tp have the lengths [1, 1, 9] in dimension 0; they must be as equal as possible, \
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
        "the placements [Replicate, Shard(0)] do not match the 1 axes of the mesh: give one per axis"
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
