//! Traces of clusters: written, read, and what is found in them. Throughput is in spans, so equal figures for 10⁵ and 10⁶ spans say
//! that the cost is in proportion.

mod common;
#[path = "common/trace.rs"]
mod made;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::analysis::analyse;
use pipeplan_core::trace::calibrate::calibrate;
use pipeplan_core::trace::clocks::align;
use pipeplan_core::trace::select::Selection;

use common::problem;

/// Ranks of a pipeline, copies, microbatches, steps: more of each.
const SHAPES: [(usize, usize, usize, u64); 5] =
    [(16, 4, 64, 2), (16, 4, 64, 20), (16, 40, 64, 2), (16, 4, 640, 2), (160, 4, 64, 2)];

fn traces(criterion: &mut Criterion) {
    for (ranks, copies, microbatches, steps) in SHAPES {
        let (problem, schedule, trace) = made::made(ranks, copies, microbatches, steps);
        let text = trace.to_json();
        let mut group =
            criterion.benchmark_group(format!("{ranks} ranks, {copies} copies, {microbatches}, {steps} steps"));
        let spans = made::spans(&trace);
        group.sample_size(10).throughput(Throughput::Elements(spans));
        group.bench_function(BenchmarkId::new("write", spans), |bench| bench.iter(|| trace.to_json().len()));
        group.bench_function(BenchmarkId::new("read", spans), |bench| {
            bench.iter(|| Trace::from_json(&text).expect("a trace"));
        });
        group.bench_function(BenchmarkId::new("select", spans), |bench| {
            let selection =
                Selection { ranks: Some(std::iter::once(0..ranks / 2).collect()), ..Selection::default() };
            bench.iter_batched(
                || trace.clone(),
                |trace| selection.of(trace).expect("its ranks"),
                criterion::BatchSize::LargeInput,
            );
        });
        group.bench_function(BenchmarkId::new("clocks", spans), |bench| {
            let clocks: Vec<usize> = (0..ranks * copies).collect();
            bench.iter_batched(
                || {
                    // Every other clock is ahead: every message contradicts another.
                    let mut trace = trace.clone();
                    for step in &mut trace.steps {
                        for span in step.rows.iter_mut().step_by(2).flatten() {
                            (span.start_ns, span.end_ns) = (span.start_ns + 50_000_000, span.end_ns + 50_000_000);
                        }
                    }
                    trace
                },
                |mut trace| align(&mut trace, &clocks).broken,
                criterion::BatchSize::LargeInput,
            );
        });
        group.bench_function(BenchmarkId::new("analysis", spans), |bench| {
            bench.iter(|| analyse(&trace, None).expect("ops"));
        });
        group.bench_function(BenchmarkId::new("calibrate", spans), |bench| {
            bench.iter(|| calibrate(&problem, &schedule, &trace).expect("its plan"));
        });
        group.finish();
    }
}

criterion_group!(benches, traces);
criterion_main!(benches);
