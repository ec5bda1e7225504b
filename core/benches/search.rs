//! How long the search for the best schedule takes, and time against memory over the whole range.

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::placement::Placement;
use pipeplan_core::search::{Effort, Flow, best, frontier};

fn search(criterion: &mut Criterion) {
    for (ranks, microbatches) in [(8, 24), (32, 256)] {
        for (placement, chunks) in [(Placement::Linear, 1), (Placement::V, 2)] {
            let name = placement.name().unwrap_or_default();
            let mut group = criterion.benchmark_group(format!("best {name} p={ranks} m={microbatches}"));
            group.sample_size(10).throughput(Throughput::Elements((3 * ranks * chunks * microbatches) as u64));
            for permille in [500, 1000, 2000] {
                let problem = common::problem(placement.clone(), ranks, chunks, microbatches, Some(permille));
                group.bench_function(BenchmarkId::new("limit in permille of 1F1B", permille), |bench| {
                    bench.iter(|| best(&problem, Effort::default(), &mut |_| Flow::Continue).expect("a schedule"));
                });
            }
        }
    }
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

criterion_group!(benches, search, whole_frontier);
criterion_main!(benches);
