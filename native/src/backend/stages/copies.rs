//! Activations of whole microbatches that wait in the host's memory, as copies of the schedule.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::passes::offload_activations::may_leave;
use pipeplan_core::graph::{Graph, TensorId};
use pipeplan_core::problem::copies::{CopyWay, Moved};

use super::Processor;
use crate::backend::arena::Lane;
use crate::backend::{BackendError, Kind, Meter};

/// What of a stage may go, and what is in the host's memory.
pub(super) struct HostCopies<D> {
    may_leave: Vec<TensorId>,
    /// By microbatch, in the order of `may_leave`.
    on_host: BTreeMap<u32, Vec<D>>,
}

impl<D> HostCopies<D> {
    pub(super) fn of(graph: &Graph) -> HostCopies<D> {
        HostCopies { may_leave: may_leave(graph), on_host: BTreeMap::new() }
    }

    fn bytes(&self, graph: &Graph) -> Bytes {
        self.may_leave.iter().map(|id| graph[*id].bytes()).sum()
    }

    /// Begins a copy: what it makes is held from here on.
    pub(super) fn start<P: Processor<Data = D>>(
        &mut self,
        moved: Moved,
        graph: &Graph,
        lane: Option<&mut Lane<D>>,
        processor: &mut P,
        meter: &mut Meter,
    ) -> Result<(), BackendError> {
        let out_of_order = || BackendError::CopyOutOfOrder { moved };
        let lane = lane.ok_or_else(out_of_order)?;
        let none = || BackendError::NoCopies { moved };
        match moved.way {
            CopyWay::Offload => {
                let mut copies = Vec::with_capacity(self.may_leave.len());
                for id in &self.may_leave {
                    let data = lane.get(*id).ok_or_else(out_of_order)?;
                    copies.push(processor.copied(data).ok_or_else(none)?);
                }
                meter.take(Kind::Host, self.bytes(graph));
                self.on_host.insert(moved.microbatch, copies);
            }
            CopyWay::Reload => {
                let copies = self.on_host.get(&moved.microbatch).ok_or_else(out_of_order)?;
                for (id, data) in self.may_leave.iter().zip(copies) {
                    lane.put(graph, *id, processor.copied(data).ok_or_else(none)?, meter);
                }
            }
        }
        Ok(())
    }

    /// Ends a copy: what it was made of is given back.
    pub(super) fn end(
        &mut self,
        moved: Moved,
        graph: &Graph,
        lane: Option<&mut Lane<D>>,
        meter: &mut Meter,
    ) -> Result<(), BackendError> {
        let out_of_order = || BackendError::CopyOutOfOrder { moved };
        match moved.way {
            CopyWay::Offload => {
                let lane = lane.ok_or_else(out_of_order)?;
                for id in &self.may_leave {
                    lane.remove(graph, *id, meter).ok_or_else(out_of_order)?;
                }
            }
            CopyWay::Reload => {
                self.on_host.remove(&moved.microbatch).ok_or_else(out_of_order)?;
                meter.give(Kind::Host, self.bytes(graph));
            }
        }
        Ok(())
    }
}
