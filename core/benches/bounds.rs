//! How long a lower bound takes. Throughput is in ops.

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::bounds::{least_memory, lower_bound};
use pipeplan_core::problem::Objective;
use pipeplan_core::problem::placement::Placement;

fn bounds(criterion: &mut Criterion) {
    let wide = (Placement::Looped, 64, vec![(1024, 6)]);
    let placements = [(Placement::Linear, 1), (Placement::V, 2), (Placement::Bidirectional, 1)];
    let usual = placements.map(|(placement, chunks)| (placement, chunks, vec![(8, 24), (32, 256), (64, 2048)]));
    for (placement, chunks, sizes) in usual.into_iter().chain([wide]) {
        for objective in [Objective::Makespan, Objective::LongestSpan] {
            let name = format!("bound {} {}", placement.name().unwrap_or_default(), objective.name());
            let mut group = criterion.benchmark_group(name);
            group.sample_size(10);
            for &(ranks, microbatches) in &sizes {
                let problem = common::problem(placement.clone(), ranks, chunks, microbatches, Some(750));
                let problem = problem.with_objective(objective);
                group.throughput(Throughput::Elements((3 * ranks * chunks * microbatches) as u64));
                let shape = format!("p={ranks} m={microbatches}");
                group.bench_function(BenchmarkId::from_parameter(shape), |bench| {
                    bench.iter(|| (lower_bound(&problem), least_memory(&problem)));
                });
            }
        }
    }
}

criterion_group!(benches, bounds);
criterion_main!(benches);
