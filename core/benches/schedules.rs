//! From a problem to times: a schedule generated, checked and simulated. Throughput is in ops of the schedule,
//! so equal figures for 10⁴ and 10⁶ ops say that the cost is in proportion.

mod common;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::check::check_schedule;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::program::lower::lower;
use pipeplan_core::schedule::find;
use pipeplan_core::simulate::simulate;

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];

/// Name, placement, chunks, ranks, ops of a microbatch on a stage.
const GENERATORS: [(&str, Placement, usize, usize, usize); 5] = [
    ("1f1b", Placement::Linear, 1, 8, 2),
    ("interleaved-1f1b", Placement::Looped, 2, 8, 2),
    ("zb-h1", Placement::Linear, 1, 8, 3),
    ("zb-v", Placement::V, 2, 8, 3),
    ("v-half", Placement::V, 2, 8, 3),
];

fn built(name: &str, problem: &Problem) -> Schedule {
    let published = find(name).expect("a published schedule");
    published.build(problem).unwrap_or_else(|absent| panic!("{name}: {}", absent.reason))
}

fn schedules(criterion: &mut Criterion) {
    for (name, placement, chunks, ranks, kinds) in GENERATORS {
        for size in SIZES {
            let microbatches = size / (ranks * chunks * kinds);
            let problem = common::problem(placement.clone(), ranks, chunks, microbatches, None);
            let schedule = built(name, &problem);
            let ops = schedule.op_count() as u64;
            let mut group = criterion.benchmark_group(name);
            group.sample_size(10).throughput(Throughput::Elements(ops));
            group.bench_function(BenchmarkId::new("all", ops), |bench| {
                bench.iter(|| {
                    let schedule = built(name, &problem);
                    check_schedule(&problem, &schedule).expect("a valid schedule");
                    simulate(&problem, &schedule).expect("no deadlock")
                });
            });
            group.bench_function(BenchmarkId::new("generate", ops), |bench| {
                bench.iter_batched(|| (), |()| built(name, &problem), BatchSize::LargeInput);
            });
            group.bench_function(BenchmarkId::new("check", ops), |bench| {
                bench.iter(|| check_schedule(&problem, &schedule).expect("a valid schedule"));
            });
            group.bench_function(BenchmarkId::new("simulate", ops), |bench| {
                bench.iter(|| simulate(&problem, &schedule).expect("no deadlock"));
            });
            group.bench_function(BenchmarkId::new("lower", ops), |bench| {
                bench.iter(|| lower(&problem, &schedule));
            });
        }
    }
}

/// The same million ops over more and more ranks.
fn ranks(criterion: &mut Criterion) {
    for ranks in [8, 64, 512] {
        let problem = common::problem(Placement::Linear, ranks, 1, 1_000_000 / (3 * ranks), None);
        let mut group = criterion.benchmark_group("zb-h1 by ranks");
        let ops = built("zb-h1", &problem).op_count() as u64;
        group.sample_size(10).throughput(Throughput::Elements(ops));
        group.bench_function(BenchmarkId::from_parameter(ranks), |bench| {
            bench.iter(|| {
                let schedule = built("zb-h1", &problem);
                check_schedule(&problem, &schedule).expect("a valid schedule");
                simulate(&problem, &schedule).expect("no deadlock")
            });
        });
    }
}

criterion_group!(benches, schedules, ranks);
criterion_main!(benches);
