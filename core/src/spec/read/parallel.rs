//! The table `parallel`: degrees of parallelism, and how layers are assigned to stages.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use crate::base::fields::{Fault, Table, one_of, shown, whole};
use crate::graph::form::{Form, MAX_DEGREE};
use crate::graph::layout::{Dispatch, Layout, MAX_SLICES, Partition, ReduceGradients};
use crate::model::MAX_LAYERS;
use crate::notation::megatron_layout::{self, Part};
use crate::problem::{MAX_CHUNKS, MAX_RANKS};

/// The degrees other than the pipeline's.
pub(super) fn read_layout(parallel: &mut Table<'_>, multi_token: u32, faults: &mut Vec<Fault>) -> Layout {
    let mut degree = |key, least, most, otherwise| {
        parallel.whole(key, least..=most, faults).map_or(otherwise, |degree| degree as u32)
    };
    let tensor = degree("tensor", 1, MAX_DEGREE.into(), 1);
    let data = degree("data", 1, MAX_DEGREE.into(), 1);
    let zero = degree("zero", 0, 3, 0);
    let context = degree("context", 1, MAX_DEGREE.into(), 1);
    let slices = degree("sequence_slices", 1, MAX_SLICES.into(), 1);
    let expert = degree("expert", 1, MAX_DEGREE.into(), 1);
    let shard = read_shard(parallel, faults);
    let sequence_parallel = parallel.flag("sequence_parallel", faults).unwrap_or(false);
    let whole_experts = parallel.flag("whole_experts", faults).unwrap_or(false);
    let expert_tensor = parallel.whole("expert_tensor", 1..=MAX_DEGREE.into(), faults).map(|ways| ways as u32);
    // The ends have a word of their own.
    let (whole_experts, expert_tensor) = match expert_tensor {
        Some(ways) if ways == tensor => (whole_experts, 0),
        Some(1) => (true, 0),
        Some(ways) => (whole_experts, ways),
        None => (whole_experts, 0),
    };
    let async_reduce = parallel.flag("async_reduce", faults).unwrap_or(false);
    let named = ReduceGradients::ALL.map(|reduce| (reduce.name(), reduce));
    let reduce_gradients = parallel.choice("reduce_gradients", &named, faults);
    let named = Dispatch::ALL.map(|dispatch| (dispatch.name(), dispatch));
    let dispatch = parallel.choice("dispatch", &named, faults).unwrap_or(Dispatch::EachCopy);
    let overlap_exchanges = parallel.flag("overlap_exchanges", faults).unwrap_or(false);
    let overlap_grad_reduce = parallel.flag("overlap_grad_reduce", faults).unwrap_or(false);
    let overlap_param_gather = parallel.flag("overlap_param_gather", faults).unwrap_or(false);
    let form = Form {
        tensor,
        sequence_parallel,
        async_reduce,
        context,
        expert,
        whole_experts,
        expert_tensor,
        ..Form::default()
    };
    let partition = read_partition(parallel, multi_token, faults);
    Layout {
        form,
        data,
        slices,
        zero,
        shard,
        reduce_gradients,
        dispatch,
        overlap_exchanges,
        overlap_grad_reduce,
        overlap_param_gather,
        partition,
        ..Layout::default()
    }
}

/// The sharding group size: a number, or `all`.
fn read_shard(parallel: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<u32> {
    let value = parallel.get("shard")?;
    if value.as_str() == Some("all") {
        return None;
    }
    let number = whole(value).or_else(|| value.as_str()?.parse().ok());
    let shard = number.filter(|shard| (2..=MAX_DEGREE.into()).contains(shard));
    if shard.is_none() {
        faults.push(Fault::new(
            parallel.path("shard"),
            shown(value),
            "all, or the number of data-parallel replicas in a group, at least 2",
        ));
    }
    shard.map(|shard| shard as u32)
}

fn read_partition(parallel: &mut Table<'_>, multi_token: u32, faults: &mut Vec<Fault>) -> Partition {
    let named = [Partition::Balanced, Partition::Layers, Partition::LayersAndEnds, Partition::WithinLimit];
    let Some(value) = parallel.get("partition") else { return Partition::default() };
    let read = match value {
        Value::Array(counts) if counts.len() <= MAX_RANKS * MAX_CHUNKS => {
            let count = |count| whole(count).filter(|count| *count <= MAX_LAYERS.into()).map(|count| count as u32);
            counts.iter().map(count).collect::<Option<Vec<u32>>>().map(Partition::ByHand)
        }
        // Every layout has an `E`, and no name of a rule has a capital.
        Value::String(layout) if layout.contains('E') => match of_layout(layout, multi_token) {
            Ok(partition) => Some(partition),
            Err(wrong) => {
                faults.push(Fault::new(parallel.path("partition"), shown(value), wrong));
                return Partition::default();
            }
        },
        Value::String(name) => named.iter().find(|partition| partition.name() == Some(name)).cloned(),
        _ => None,
    };
    if read.is_none() {
        let names: Vec<&str> = named.iter().filter_map(Partition::name).collect();
        let accepted = format!(
            "{}, the number of layers of each stage as a list, or a layout in Megatron-LM's form, such as Et*3|t*4|t*3L",
            one_of(&names)
        );
        faults.push(Fault::new(parallel.path("partition"), shown(value), accepted));
    }
    read.unwrap_or_default()
}

/// The partition of a layout in Megatron-LM's form, for a model with `multi_token` MTP modules.
fn of_layout(layout: &str, multi_token: u32) -> Result<Partition, String> {
    let stages = megatron_layout::read(layout)
        .map_err(|error| format!("a layout in Megatron-LM's form, such as Et*3|t*4|t*3L ({error})"))?;
    let parts = || stages.iter().flatten();
    let all = |wanted| parts().filter(|part| **part == wanted).count();
    let with_loss = stages.iter().position(|stage| stage.contains(&Part::Loss));
    if let Some(stage) = with_loss.filter(|_| all(Part::MultiToken) > 0 && all(Part::Loss) > 1) {
        return Err(format!(
            "a layout with one `L`, at its end, for the losses of the model and of all `m`, not {} from stage {stage} on: \
             losses on stages of their own are not supported (Megatron-LM's releases have one `L`; several are a proposal). \
             Write `L` once, on the last stage, and leave out the others",
            all(Part::Loss)
        ));
    }
    if all(Part::MultiToken) != multi_token as usize {
        return Err(format!("a layout with {multi_token} `m`, the model's number of MTP modules (multi_token)"));
    }
    let once = |wanted| parts().filter(|part| **part == wanted).count() == 1;
    let ends = (parts().next(), parts().next_back());
    if ends != (Some(&Part::Embedding), Some(&Part::Loss)) || !once(Part::Embedding) || !once(Part::Loss) {
        return Err("a layout that starts with its one `E` and ends with its one `L`".to_string());
    }
    // The first stage has the embedding and the last one the loss. Other empty stages are refused later, with their
    // number.
    if stages.first().is_some_and(Vec::is_empty) || stages.last().is_some_and(Vec::is_empty) {
        return Err("a layout whose first and last stage are not empty".to_string());
    }
    let count = |stage: &[Part], wanted| stage.iter().filter(|part| **part == wanted).count() as u32;
    let counts: Vec<[u32; 2]> =
        stages.iter().map(|stage| [Part::Layer, Part::MultiToken].map(|wanted| count(stage, wanted))).collect();
    let Some(first) = counts.iter().position(|[_, modules]| *modules > 0).filter(|first| first + 1 < counts.len())
    else {
        return Ok(Partition::ByHand(counts.iter().map(|[layers, _]| *layers).collect()));
    };
    let disordered = |at: &usize| !stages[*at].is_sorted() || (*at > first && counts[*at][0] > 0);
    match (0..stages.len()).find(disordered) {
        Some(at) => Err(format!("a layout with every `t` before the first `m`, unlike stage {at}")),
        None if first == 0 => Err("a layout without `m` on the stage of `E`".to_string()),
        None => Ok(Partition::WithModules(counts)),
    }
}
