//! What of a graph does not train ([`post_training`](crate::graph::post_training)). It changes nothing: the
//! [`backward`](crate::graph::backward) has left out what would follow.

use alloc::collections::BTreeMap;

use super::{Entry, PassReport};
use crate::graph::builder::statistics_of;
use crate::graph::{Graph, Job, Role, TensorId};

/// What the report of what does not train is called.
pub const NAME: &str = "frozen weights";

/// What of `graph` does not train, where its form has something that does not. The bytes of an entry are those of a
/// gradient of it. Where the backward ends, that is said too: B and W are then ops without operators, and the messages
/// of gradients between such stages are empty.
pub fn account(graph: &Graph) -> PassReport {
    let mut account = PassReport::new(NAME);
    let mut layers: BTreeMap<TensorId, Option<u32>> = BTreeMap::new();
    for operator in graph.job(Job::F) {
        operator.inputs.iter().for_each(|input| {
            layers.entry(input.tensor).or_insert(operator.layer);
        });
    }
    for (id, weight) in graph.weights() {
        let layer = layers.get(&id).copied().flatten();
        let bytes = statistics_of(weight.dtype).bytes_of(weight.elements());
        match weight.is_frozen() {
            true => account.done.push(Entry::new(&weight.name, layer, "frozen: no gradient and no states", bytes)),
            false => account.skipped.push(Entry::new(&weight.name, layer, "trains", 0)),
        }
    }
    let has = |role| graph.with_role(role).is_some();
    if has(Role::ActivationOut) && !has(Role::GradientIn) {
        account.done.push(Entry::new("backward", None, "none: nothing up to the end of this stage trains", 0));
    } else if has(Role::ActivationIn) && !has(Role::GradientOut) {
        account.done.push(Entry::new("gradient of the input", None, "none: nothing before this stage trains", 0));
    }
    account
}
