//! What a command takes for deeper and deeper models: `memory` of a model that fits and of one that does not, and `import` of a run,
//! which plans it.
//! The time should grow no faster than the layers.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipeplan_core::advise::explanation::explain;
use pipeplan_core::api::AgainstPlan;
use pipeplan_core::formats::training_run::TrainingRun;
use pipeplan_core::plan::planner;
use pipeplan_core::search::{Effort, Flow};
use pipeplan_core::spec::Spec;

const LAYERS: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];

fn spec(layers: u32, limit: &str) -> Spec {
    let text = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"llama-3-8b\"\nlayers = {layers}\n[cluster]\ndevice = \"h100\"\n\
         [parallel]\npipeline = 8\ntensor = 8\n[training]\nmicrobatches = 16\nsequence = 4096\n\
         [memory]\nlimit_bytes = \"{limit}\"\n"
    );
    Spec::read(&text).expect("a spec")
}

fn memory(criterion: &mut Criterion) {
    for (what, limit) in [("fits", "4 TiB"), ("does not fit", "8 GiB")] {
        let mut group = criterion.benchmark_group(format!("memory of a model that {what}"));
        group.sample_size(10);
        for layers in LAYERS {
            let spec = spec(layers, limit);
            group.throughput(Throughput::Elements(layers.into()));
            group.bench_function(BenchmarkId::new("layers", layers), |bench| {
                bench.iter(|| explain(&spec, "1f1b", Effort::default(), &mut |_| Flow::Continue).is_ok());
            });
        }
    }
}

fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan of a model that fits");
    group.sample_size(10);
    for layers in LAYERS {
        let spec = spec(layers, "4 TiB");
        group.throughput(Throughput::Elements(layers.into()));
        group.bench_function(BenchmarkId::new("layers", layers), |bench| {
            bench.iter(|| planner::plan(&spec, "1f1b").expect("a plan"));
        });
    }
}

fn import(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("import of a run");
    group.sample_size(10);
    for layers in LAYERS {
        let text = format!(
            "pretrain_gpt.py --num-layers {layers} --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
             --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 \
             --pipeline-model-parallel-size 8"
        );
        group.throughput(Throughput::Elements(layers.into()));
        group.bench_function(BenchmarkId::new("layers", layers), |bench| {
            bench.iter(|| {
                let run = TrainingRun::read(&text);
                let imported = run.spec("h100", Some(64)).expect("a run");
                AgainstPlan::of(&run, &imported, &mut |_| Flow::Continue).expect("a plan")
            });
        });
    }
}

criterion_group!(benches, memory, plan, import);
criterion_main!(benches);
