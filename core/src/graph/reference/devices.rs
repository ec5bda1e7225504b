//! Collectives, and the parts of a weight that each device holds.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::arena::Arena;
use crate::graph::{Kernel, Role, Tensor, TensorId};

/// The outputs of operator `at` on each of `arenas`, the TP devices.
pub(super) fn computed(arenas: &[&mut Arena], at: usize) -> Vec<Vec<Vec<f64>>> {
    let operator = &arenas[0].graph.operators[at];
    let rows: Vec<&Vec<f64>> = arenas.iter().map(|arena| &arena.values[&operator.inputs[0].tensor]).collect();
    let all = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let over = |e: usize| rows.iter().map(|values| values[e]).reduce(f).unwrap();
        (0..rows[0].len()).map(over).collect()
    };
    let ways = match operator.kernel {
        Kernel::AllReduce { ways } | Kernel::AllReduceMax { ways } => ways,
        Kernel::AllGather { ways } | Kernel::ReduceScatter { ways } => ways,
        Kernel::AllReduceStart { ways } | Kernel::ReduceScatterStart { ways } => ways,
        _ => return arenas.iter().map(|arena| arena.compute(operator)).collect(),
    };
    assert_eq!(ways as usize, arenas.len());
    let member = |member: usize| match operator.kernel {
        Kernel::AllReduceMax { .. } => all(&f64::max),
        Kernel::AllGather { .. } => rows.iter().flat_map(|rows| rows.iter().copied()).collect(),
        Kernel::ReduceScatter { .. } | Kernel::ReduceScatterStart { .. } => {
            let part = rows[0].len() / arenas.len();
            all(&|a, b| a + b)[member * part..(member + 1) * part].to_vec()
        }
        _ => all(&|a, b| a + b),
    };
    if operator.kernel.starts() {
        // The result stays aside until the wait. Whoever reads the buffer before, or writes it, would show.
        return (0..arenas.len())
            .map(|at| {
                let result = member(at);
                let started = vec![f64::NAN; result.len()];
                arenas[at].under_way.borrow_mut().insert(operator.outputs[0], result);
                vec![started]
            })
            .collect();
    }
    (0..arenas.len()).map(|at| vec![member(at)]).collect()
}

/// The places in the whole weight of the elements that a device holds of `tensor`; none for padding.
pub(super) fn places_held(tensor: &Tensor, member: usize) -> Vec<Option<usize>> {
    let elements = 0..tensor.elements() as usize;
    let Some(split) = tensor.split() else { return elements.map(Some).collect() };
    let (inner, own): (usize, usize) = {
        let after = &tensor.shape[split.dimension as usize + 1..];
        (after.iter().product::<u64>() as usize, tensor.shape[split.dimension as usize] as usize)
    };
    let first = split.piece_of(member as u64) as usize * own;
    let place = |e: usize| {
        let (outer, index, rest) = (e / inner / own, first + e / inner % own, e % inner);
        (index < split.whole as usize).then_some((outer * split.whole as usize + index) * inner + rest)
    };
    elements.map(place).collect()
}

/// The part of the weight `whole` that a device holds.
pub(super) fn held(tensor: &Tensor, member: usize, whole: &[f64]) -> Vec<f64> {
    places_held(tensor, member).into_iter().map(|place| place.map_or(0.0, |place| whole[place])).collect()
}

/// The gradient of a whole weight from those of all devices, by place: a sum where it is said to be one, and elsewhere
/// what all holders of an element must agree on to the bit.
pub(super) fn gathered(devices: &[Arena], tensor: &Tensor, gradient: TensorId) -> BTreeMap<usize, f64> {
    let Role::Weight { partial, .. } = tensor.role else { panic!("a weight") };
    let mut whole: BTreeMap<usize, f64> = BTreeMap::new();
    for device in devices {
        for (place, value) in places_held(tensor, device.member).into_iter().zip(&device.values[&gradient]) {
            let Some(place) = place else {
                assert_eq!(*value, 0.0, "padding of {}", tensor.name);
                continue;
            };
            let known = whole.get(&place).copied();
            assert!(partial || known.is_none_or(|known| known == *value), "{}", tensor.name);
            whole.insert(place, if partial { known.unwrap_or(0.0) + value } else { *value });
        }
    }
    whole
}
