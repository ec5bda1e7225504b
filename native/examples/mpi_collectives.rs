//! What MPI's own collectives would give: their time beside ours, and whether their sums have the documented order.
//!
//! `cargo build --release --features mpi --example mpi_collectives`, then `mpirun -n 4 target/release/examples/mpi_collectives`.

use std::time::{Duration, Instant};

use ::mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::Communicator;
use pipeplan::runner::StopFlag;
use pipeplan::runner::random::SplitMix64;
use pipeplan::transport::Transport;
use pipeplan::transport::collectives::{Collectives, Group, Reduction, even_counts, reduced};
use pipeplan::transport::mpi::Mpi;
use pipeplan::transport::processes::Processes;

/// The least disturbed of some rounds, in microseconds.
fn least(world: &SimpleCommunicator, mut round: impl FnMut()) -> f64 {
    let mut least = Duration::MAX;
    for _ in 0..15 {
        world.barrier();
        let started = Instant::now();
        round();
        least = least.min(started.elapsed());
    }
    least.as_secs_f64() * 1e6
}

fn values(rank: usize, length: usize) -> Vec<f32> {
    let mut random = SplitMix64::named(length as u64, &format!("values of rank {rank}"));
    (0..length).map(|_| (random.normal() * libm::pow(10.0, random.below(9) as f64 - 4.0)) as f32).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn main() {
    let Ok(link) = Mpi::start(StopFlag::default()) else { return };
    let mut end = Processes::new(link, Duration::from_secs(60));
    let world = SimpleCommunicator::world();
    let (rank, size) = (end.rank(), end.world());
    let mut group = Group::world(&end);
    if rank == 0 {
        println!("{size} ranks; microseconds, ours and MPI's; whether MPI's sums are ours, and the same twice");
    }
    for length in [4usize, 1024, 65_536, 1 << 20] {
        let mine = values(rank, length);
        let all: Vec<Vec<f32>> = (0..size).map(|rank| values(rank, length)).collect();
        let expected = reduced(&all, Reduction::Sum);
        let counts = even_counts(length, size);
        let share = length / size;

        let mut sum = mine.clone();
        let ours = least(&world, || {
            sum.copy_from_slice(&mine);
            let _ = end.all_reduce(&mut group, &mut sum, Reduction::Sum);
        });
        let mut theirs_sum = vec![0f32; length];
        let theirs = least(&world, || world.all_reduce_into(&mine[..], &mut theirs_sum[..], SystemOperation::sum()));
        let first = theirs_sum.clone();
        world.all_reduce_into(&mine[..], &mut theirs_sum[..], SystemOperation::sum());
        let (ordered, repeats) = (same_bits(&theirs_sum, &expected), same_bits(&theirs_sum, &first));
        let line = |name: &str, ours: f64, theirs: f64, more: String| {
            if rank == 0 {
                println!("{name:<15} {length:>8}  {ours:>9.0} {theirs:>9.0}  {more}");
            }
        };
        line("all-reduce", ours, theirs, format!("in order: {ordered}, repeats: {repeats}"));

        let ours = least(&world, || {
            let _ = end.reduce_scatter(&mut group, &mine, &counts, Reduction::Sum);
        });
        let mut piece = vec![0f32; share];
        let theirs = least(&world, || {
            world.reduce_scatter_block_into(&mine[..share * size], &mut piece[..], SystemOperation::sum());
        });
        let ordered = same_bits(&piece, &expected[rank * share..(rank + 1) * share]);
        line("reduce-scatter", ours, theirs, format!("in order: {ordered}"));

        let ours = least(&world, || {
            let _ = end.all_gather(&mut group, &mine[..counts[rank]], &counts);
        });
        let mut gathered = vec![0f32; share * size];
        let theirs = least(&world, || world.all_gather_into(&mine[..share], &mut gathered[..]));
        line("all-gather", ours, theirs, String::new());

        let mut sent = mine.clone();
        let ours = least(&world, || {
            let _ = end.broadcast(&mut group, 0, &mut sent);
        });
        let theirs = least(&world, || world.process_at_rank(0).broadcast_into(&mut sent[..]));
        line("broadcast", ours, theirs, String::new());
    }
    let ours = least(&world, || {
        let _ = end.group_barrier(&mut group);
    });
    let theirs = least(&world, || world.barrier());
    if rank == 0 {
        println!("{:<15} {:>8}  {ours:>9.0} {theirs:>9.0}", "barrier", "");
    }
    end.control().leave();
}
