//! The table `parallel`: read, written and linked, and faults that name a degree that works.

use std::string::ToString;
use std::{format, vec};

use super::{SHORT, faults, model_work};
use crate::graph::layout::Partition;
use crate::spec::{Spec, Work};

#[test]
fn a_partition_is_read_in_megatron_s_form() {
    let read = |layout: &str| {
        Spec::read(&format!(
            "[model]\nname = \"tiny-llama\"\nlayers = 7\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 4\n\
             partition = \"{layout}\"\n[training]\nmicrobatches = 8"
        ))
    };
    let Ok(Spec { work: Work::Model(work), .. }) = read("Et*3|(tt|)*2,L") else { panic!("a model") };
    assert_eq!(work.layout.partition, Partition::ByHand(vec![3, 2, 2, 0]));
    for (layout, part) in [
        ("Et*3|(tt|)*2,m|L", "0 `m`"),
        ("Et*3|(tt|)*2,mL", "multi_token"),
        ("Ett|ttL|t|t", "one `L`"),
        ("Et*|L", "character"),
    ] {
        let error = read(layout).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("parallel.partition") && error.contains(part), "{error}");
    }
}

/// DeepSeek-V3 as it was trained: 61 layers and one module of multi-token prediction on 16 ranks of 2 chunks, the
/// module beside the loss.
#[test]
fn a_layout_has_as_many_modules_as_the_model() {
    let read = |layout: &str| {
        Spec::read(&format!(
            "[model]\nname = \"deepseek-v3\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 16\n\
             partition = \"{layout}\"\n[training]\nmicrobatches = 32"
        ))
    };
    let Ok(Spec { work: Work::Model(work), .. }) = read("Et*3|(tt|)*29,|mL") else { panic!("a model") };
    let Partition::ByHand(counts) = &work.layout.partition else { panic!("by hand") };
    assert_eq!((counts.len(), counts[0], counts[1], counts[29], counts[31]), (32, 3, 2, 2, 0));
    for layout in ["Et*3|(tt|)*29,|L", "Et*3|(tt|)*29,|mmL"] {
        let error = read(layout).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("a layout with 1 `m`"), "{error}");
    }
}

/// The layout that Megatron-LM documents for DeepSeek-V3, with the module on a stage of its own; and others of its kind.
#[test]
fn modules_on_stages_of_their_own_are_read_and_written() {
    let read = |layout: &str, modules: u32| {
        Spec::read(&format!(
            "[model]\nname = \"deepseek-v3\"\nmulti_token = {modules}\n[cluster]\ndevice = \"h100\"\n[parallel]\n\
             pipeline = 16\nchunks = 2\npartition = \"{layout}\"\n[training]\nmicrobatches = 32"
        ))
    };
    for (layout, modules, at) in [
        ("Et*3|(tt|)*29,m|L", 1, [[2, 0], [0, 1], [0, 0]]),
        ("Et*4|(tt|)*28,t|mm|L", 2, [[1, 0], [0, 2], [0, 0]]),
        ("Ett|(tt|)*29,tm|L", 1, [[2, 0], [1, 1], [0, 0]]),
        ("Et*5|(tt|)*28,m|m|mL", 3, [[0, 1], [0, 1], [0, 1]]),
    ] {
        let spec = read(layout, modules).unwrap_or_else(|faults| panic!("{layout}: {faults}"));
        let Work::Model(work) = &spec.work else { panic!("a model") };
        let Partition::WithModules(counts) = &work.layout.partition else { panic!("{layout}") };
        assert_eq!((counts.len(), &counts[29..]), (32, &at[..]), "{layout}");
        assert_eq!(spec.to_value()["parallel"]["partition"], layout);
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    }
    for (layout, part) in [
        ("Et*5|(tt|)*27,tt|m|LL", "not 2 from stage 30 on: losses on stages of their own are not supported"),
        ("Et*5|(tt|)*27,tt|mL|L", "Write `L` once, on the last stage, and leave out the others"),
        ("Et*5|(tt|)*27,m|tt|L", "every `t` before the first `m`, unlike stage 29"),
        ("Et*5|(tt|)*28,mt|L", "every `t` before the first `m`, unlike stage 29"),
        ("Et*5m|(tt|)*28,t|L", "every `t` before the first `m`, unlike stage 1"),
    ] {
        let error = read(layout, 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("parallel.partition") && error.contains(part), "{error}");
    }
}

#[test]
fn a_partition_within_the_limit_and_a_shared_gate_are_written_and_linked() {
    let text = "[model]\nname = \"qwen-3-30b-a3b\"\nexperts = { shared_ffn = 512, shared_gate = true }\n\
        [cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\npartition = \"within-limit\"\n[training]\nmicrobatches = 8";
    let spec = Spec::read(text).unwrap();
    let Work::Model(work) = &spec.work else { panic!("a model") };
    assert_eq!(work.layout.partition, Partition::WithinLimit);
    assert!(work.model.variant.experts.is_some_and(|experts| experts.shared_gate && experts.count == 128));
    assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
    assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    let error = Spec::read(&text.replace("shared_ffn = 512, ", "")).unwrap_err().to_string();
    assert!(error.contains("model.experts.shared_gate"), "{error}");
}

/// Degrees that do not go into a model are refused with the nearest one that does.
#[test]
fn degrees_that_do_not_fit_name_one_that_does() {
    let faults = |model: &str, parallel: &str| {
        let text = format!(
            "[model]\nname = \"{model}\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n{parallel}\n\
             [training]\nmicrobatches = 8\nsequence = 4096"
        );
        Spec::read(&text).map(|_| ()).unwrap_err().to_string()
    };
    for (model, parallel, field, works) in [
        ("mixtral-8x7b", "expert = 3\ndata = 3", "parallel.expert", "such as 2"),
        ("mixtral-8x7b", "expert = 8\ndata = 2", "parallel.expert", "such as 2"),
        ("llama-2-7b", "expert = 2\ndata = 2", "parallel.expert", "no experts"),
        ("llama-2-7b", "overlap_exchanges = true", "parallel.overlap_exchanges", "no experts"),
        ("llama-2-7b", "context = 3", "parallel.context", "such as 2"),
        ("llama-2-7b", "tensor = 5", "parallel.tensor", "such as 4"),
        ("mixtral-8x7b", "tensor = 2\nwhole_experts = true", "parallel.whole_experts", "sequence_parallel"),
    ] {
        let error = faults(model, parallel);
        assert!(error.contains(field) && error.contains(works), "{error}");
    }
}

/// The group size divides the replicas, and the replicas of experts where there are more of them.
#[test]
fn sharding_groups_divide_the_replicas() {
    let with = |model: &str, parallel: &str| {
        SHORT.replace("llama-3-8b", model).replace("pipeline = 4", &format!("pipeline = 4\n{parallel}"))
    };
    let shard = |parallel: &str| model_work(&with("mixtral-8x7b", parallel)).layout.shard;
    assert_eq!(shard("data = 16\nzero = 1"), None);
    assert_eq!(shard("data = 16\nzero = 1\nshard = \"all\""), None);
    assert_eq!(shard("data = 16\nzero = 1\nexpert = 4\nshard = 8"), Some(8), "of experts there are four copies");
    assert_eq!(shard("data = 8\nzero = 3\ncontext = 2\nshard = \"16\""), Some(16));
    for (parallel, says) in [
        (
            "data = 8\nzero = 1\nshard = 3",
            "parallel.shard: found 3, accepted is all, or at least 2 and a divisor of the 8",
        ),
        ("data = 8\nzero = 1\nshard = 16", ""),
        ("data = 24\nzero = 1\nexpert = 2\nshard = 8", "and the 12 replicas of experts"),
        (
            "data = 8\nzero = 1\nshard = 1",
            "parallel.shard: found 1, accepted is all, or the number of data-parallel replicas in a group, at least 2",
        ),
        ("data = 8\nzero = 1\nshard = \"some\"", "parallel.shard: found \"some\""),
    ] {
        let said = Spec::read(&with("mixtral-8x7b", parallel));
        match says {
            "" => assert!(said.is_ok(), "{parallel}: more than there are is all of them"),
            says => assert!(faults(&with("mixtral-8x7b", parallel))[0].contains(says), "{said:?}"),
        }
    }
}
