//! Faults of a spec that hide its problem, and sizes beyond what a problem may hold.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::fields::Fault;
use crate::model::{Dtype, Family, MAX_SIZE};
use crate::problem::{MAX_BYTES, MAX_CHUNKS, MAX_MICROBATCHES, MAX_NS, MAX_OPS, MAX_RANKS, Statement, Transfers};
use crate::spec::ModelWork;

/// Faults of the model, the layout, the number formats and the cluster.
pub(super) fn find_faults(work: &ModelWork, chunks: usize, faults: &mut Vec<Fault>) {
    work.model.find_faults("model", faults);
    work.device.find_faults("cluster.device", faults);
    if faults.is_empty() {
        work.layout.find_faults(&work.model, work.sequence, faults);
    }
    work.find_format_faults(faults);
    work.link.find_faults("cluster.link", faults);
    work.node_link.find_faults("cluster.node_link", faults);
    for (field, value, most) in [
        ("cluster.devices_per_node", work.devices_per_node.into(), u64::from(u32::MAX)),
        ("parallel.pipeline", work.pipeline.into(), MAX_RANKS as u64),
        ("parallel.chunks", chunks as u64, MAX_CHUNKS as u64),
        ("training.microbatches", work.microbatches.into(), MAX_MICROBATCHES as u64),
        ("training.microbatch_size", work.microbatch_size.into(), MAX_SIZE.into()),
        ("training.sequence", work.sequence.into(), MAX_SIZE.into()),
    ] {
        if value == 0 || value > most {
            faults.push(Fault::new(field, value, format!("a whole number from 1 to {most}")));
        }
    }
    find_count_faults(work, chunks, faults);
    if work.dtype == Dtype::I32 {
        faults.push(Fault::new("training.dtype", work.dtype.name(), "one of bf16, f32, f64"));
    }
    let learned = work.model.family == Family::Gpt && work.model.variant.rotary.is_none();
    if learned && work.sequence > work.model.positions {
        let accepted = format!("at most {}, the model's learned positions", work.model.positions);
        faults.push(Fault::new("training.sequence", work.sequence, accepted));
    }
}

/// Refuses more ops than a problem may have, before something is worked out for each of them; with replicas that have
/// different documents, more ops of all of them.
fn find_count_faults(work: &ModelWork, chunks: usize, faults: &mut Vec<Fault>) {
    let stages = u128::from(work.pipeline) * chunks as u128;
    let microbatches = u128::from(work.microbatches) * u128::from(work.layout.slices);
    let most = MAX_OPS as u128 / (3 * stages).max(1);
    if microbatches > most {
        let slices = work.layout.slices.max(1);
        let of_each = if slices > 1 { format!(" and {slices} slices") } else { String::new() };
        let most = most / u128::from(slices);
        let accepted = format!("at most {most} with {stages} stages{of_each} ({MAX_OPS} ops)");
        faults.push(Fault::new("training.microbatches", work.microbatches, accepted));
        return;
    }
    let replicas = work.bins().replicas as u128;
    let most = most / microbatches.max(1);
    if replicas > most && work.batch.documents.differ_by_replica() {
        let found = format!("documents of {replicas} data parallel replicas, each with its own");
        let accepted = format!("at most {most} with {stages} stages and {microbatches} microbatches ({MAX_OPS} ops)");
        faults.push(Fault::new("training.documents", found, accepted));
    }
}

/// Refuses times and bytes that saturated, before sums rely on them.
pub(super) fn check_sizes(statement: &Statement, faults: &mut Vec<Fault>) {
    for (stage, cost) in statement.stages.iter().enumerate() {
        let longest = cost.forward_ns.max(cost.backward_input_ns).max(cost.backward_weight_ns);
        if longest > MAX_NS {
            let found = format!("an op of {longest} ns on stage {stage}");
            let accepted = format!(
                "ops of at most {MAX_NS} ns: a device of a higher rate (cluster.device.matmul_flops is operations a second), \
                 or fewer tokens"
            );
            faults.push(Fault::new("training.microbatch_size", found, accepted));
        }
        let nets = [cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes];
        let workspaces = [
            cost.forward_workspace_bytes,
            cost.backward_input_workspace_bytes,
            cost.backward_weight_workspace_bytes,
            cost.backward_workspace_bytes.unwrap_or(0),
        ];
        let most = nets.iter().map(|net| net.unsigned_abs()).chain(workspaces).max().unwrap_or(0);
        if most > MAX_BYTES {
            let found = format!("{most} bytes for one microbatch on stage {stage}");
            faults.push(Fault::new("training.microbatch_size", found, format!("at most {MAX_BYTES} bytes")));
        }
        if !faults.is_empty() {
            return;
        }
    }
    let hop = match &statement.transfers {
        Transfers::Uniform(hop) => *hop,
        Transfers::Links(links) => links.iter().flatten().copied().max().unwrap_or(0),
    };
    if hop > MAX_NS {
        faults.push(Fault::new("cluster.link", format!("a hop of {hop} ns"), format!("hops of at most {MAX_NS} ns")));
    }
}
