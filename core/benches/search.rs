//! The time of the search for the best schedule: by size and limit, with more and more microbatches, and for a model that leaves
//! the placement open; and the frontier over the whole range of memory.

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::plan::planner;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::search::{Effort, Flow, best, frontier};
use pipeplan_core::spec::Spec;

fn search(criterion: &mut Criterion) {
    for (ranks, microbatches) in [(8, 24), (32, 256)] {
        for (placement, chunks) in [(Placement::Linear, 1), (Placement::V, 2)] {
            let name = placement.name().unwrap_or_default();
            let mut group = criterion.benchmark_group(format!("best {name} p={ranks} m={microbatches}"));
            group.sample_size(10).throughput(Throughput::Elements((3 * ranks * chunks * microbatches) as u64));
            for permille in [500, 750, 1000, 2000] {
                let problem = common::problem(placement.clone(), ranks, chunks, microbatches, Some(permille));
                group.bench_function(BenchmarkId::new("limit in permille of 1F1B", permille), |bench| {
                    bench.iter(|| best(&problem, Effort::default(), &mut |_| Flow::Continue).expect("a schedule"));
                });
            }
        }
    }
}

/// The time should grow by writing the answer out, and hardly else.
fn microbatches(criterion: &mut Criterion) {
    for (placement, chunks) in [(Placement::Linear, 1), (Placement::V, 2)] {
        let name = placement.name().unwrap_or_default();
        let mut group = criterion.benchmark_group(format!("best {name} p=8 in half of 1F1B's memory"));
        for microbatches in [64, 256, 1024, 4096] {
            let problem = common::problem(placement.clone(), 8, chunks, microbatches, Some(500));
            group.sample_size(10).throughput(Throughput::Elements((3 * 8 * chunks * microbatches) as u64));
            group.bench_function(BenchmarkId::new("microbatches", microbatches), |bench| {
                bench.iter(|| best(&problem, Effort::default(), &mut |_| Flow::Continue).expect("a schedule"));
            });
        }
    }
}

fn model(criterion: &mut Criterion) {
    let spec = Spec::read(include_str!("../../examples/llama-2-70b.toml")).expect("a spec");
    let mut group = criterion.benchmark_group("best of a model");
    group.sample_size(10);
    group.bench_function("llama-2-70b", |bench| {
        bench.iter(|| planner::best(&spec, Effort::default(), &mut |_| Flow::Continue).expect("a schedule"));
    });
}

fn whole_frontier(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frontier of 24 points");
    group.sample_size(10);
    for (placement, chunks) in [(Placement::Linear, 1), (Placement::V, 2)] {
        let name = placement.name().unwrap_or_default();
        let problem = common::problem(placement.clone(), 8, chunks, 24, None);
        group.bench_function(BenchmarkId::new(name, "p=8 m=24"), |bench| {
            bench.iter(|| frontier(&problem, 24, Effort(200_000), &mut |_| Flow::Continue));
        });
    }
}

criterion_group!(benches, search, microbatches, model, whole_frontier);
criterion_main!(benches);
