//! Every parallel layout of a number of devices.

use super::question::{Degrees, Field, Question};
use super::{LEAST_PART, MOST_DEVICES, MOST_LAYOUTS, MOST_SEQUENCES, Tuner};
use crate::base::fields::{Fault, Faults};
use crate::graph::form::MAX_DEGREE;
use crate::spec::{ModelWork, Spec, Work};
use alloc::format;
use alloc::vec::Vec;

/// Every layout of `devices` devices with the same number of sequences per step as `work`.
pub(super) fn layouts(work: &ModelWork, devices: u64, question: &Question) -> Result<Vec<Degrees>, Faults> {
    let keep = &question.keep;
    let now = Degrees::of(work);
    let sequences =
        u64::from(now.data.max(1)) * u64::from(now.microbatch_size).saturating_mul(now.microbatches.into());
    let may = |field: Field, value: u32, now: u32| !keep.contains(&field) || value == now;
    let tensors = divisors(devices).filter(|tensor| {
        may(Field::Tensor, *tensor, now.tensor) && (*tensor <= work.devices_per_node || *tensor == now.tensor)
    });
    let mut found = Vec::new();
    for tensor in tensors {
        let left = devices / u64::from(tensor);
        let contexts = divisors(left).filter(|context| {
            let is_long = *context == 1 || work.sequence / context >= LEAST_PART;
            may(Field::Context, *context, now.context) && (is_long || *context == now.context)
        });
        for context in contexts {
            let left = left / u64::from(context);
            let least = if keep.contains(&Field::Pipeline) { 1 } else { question.least_pipeline };
            let pipelines = divisors(left).filter(|pipeline| {
                may(Field::Pipeline, *pipeline, now.pipeline) && (least..=work.model.layers).contains(pipeline)
            });
            for pipeline in pipelines {
                let Ok(data) = u32::try_from(left / u64::from(pipeline)) else { continue };
                if !may(Field::Data, data, now.data) || !sequences.is_multiple_of(data.into()) {
                    continue;
                }
                let of_copy = sequences / u64::from(data);
                let mut sizes: Vec<u32> = (0..=MOST_SEQUENCES.ilog2()).map(|power| 1 << power).collect();
                sizes.push(now.microbatch_size);
                sizes.sort_unstable();
                sizes.dedup();
                sizes.retain(|size| {
                    may(Field::MicrobatchSize, *size, now.microbatch_size) && of_copy.is_multiple_of((*size).into())
                });
                for microbatch_size in sizes {
                    let Ok(microbatches) = u32::try_from(of_copy / u64::from(microbatch_size)) else { continue };
                    let experts = work.model.variant.experts.map_or(1, |experts| experts.count);
                    let expert = divisors(experts.into()).filter(|expert| may(Field::Expert, *expert, now.expert));
                    // Experts that are split by tensor parallelism take all tokens on each of their devices; whole
                    // experts are spread over more devices.
                    let may_differ = experts > 1 && tensor > 1 && !keep.contains(&Field::WholeExperts);
                    let whole: &[bool] = if may_differ { &[false, true] } else { &[now.whole_experts] };
                    let each = expert.flat_map(|expert| whole.iter().map(move |whole| (expert, *whole)));
                    // The effect of fp8 on gathered weights is not modelled.
                    let shares_weights =
                        pipeline == 1 && data > 1 && now.zero < 3 && work.layout.form.matmul_dtype.is_none();
                    let zeros: &[u32] =
                        if shares_weights && !keep.contains(&Field::Zero) { &[now.zero, 3] } else { &[now.zero] };
                    let each = each.flat_map(|each| zeros.iter().map(move |zero| (each, *zero)));
                    for ((expert, whole_experts), zero) in each {
                        found.push(Degrees {
                            pipeline,
                            tensor,
                            context,
                            data,
                            zero,
                            expert,
                            whole_experts,
                            microbatch_size,
                            microbatches,
                        });
                        if found.len() > MOST_LAYOUTS {
                            let accepted = format!(
                                "a number of devices with at most {MOST_LAYOUTS} layouts: keep some fields as \
                                 they are"
                            );
                            return Err(Fault::new("devices", devices, accepted).into());
                        }
                    }
                }
            }
        }
    }
    if found.is_empty() {
        let accepted = format!(
            "a number of devices that is a product of parallel degrees, which split the {sequences} sequences \
             of a step evenly over the data-parallel copies and leave the kept fields as they are"
        );
        return Err(Fault::new("devices", devices, accepted).into());
    }
    Ok(found)
}

/// The numbers of devices next to that of `question` for which the model has a layout: the next lower and the next
/// higher, if near.
pub fn nearest_numbers(spec: &Spec, question: &Question) -> Vec<u64> {
    const NEAR: u64 = 64;
    // Of each number only some layouts are looked at: this is for a message.
    const LOOKED_AT: usize = 100;
    let Work::Model(work) = &spec.work else { return Vec::new() };
    let devices = question.devices.unwrap_or_else(|| work.devices());
    let can_be = |number: &u64| {
        let question = Question { devices: Some(*number), ..question.clone() };
        Tuner::new(spec, &question)
            .is_ok_and(|tuner| tuner.fresh.iter().take(LOOKED_AT).any(|degrees| tuner.derived(*degrees).is_ok()))
    };
    let fewer = (1..devices).rev().take(NEAR as usize).find(can_be);
    let more = (devices.saturating_add(1)..=MOST_DEVICES).take(NEAR as usize).find(can_be);
    fewer.into_iter().chain(more).collect()
}

/// Divisors up to what a degree may be, ascending.
pub(super) fn divisors(number: u64) -> impl Iterator<Item = u32> {
    let most = number.min(MAX_DEGREE.into()) as u32;
    (1..=most).filter(move |divisor| number.is_multiple_of((*divisor).into()))
}
