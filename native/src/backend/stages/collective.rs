//! Operators that need other ranks: collectives, their start and their wait.

use std::collections::BTreeMap;

use pipeplan_core::graph::{Axis, Kernel, Operator, Tensor, TensorId};

use super::processor::{CollectiveOutcome, ExpertOverflow, Held, Input, Processor};
use crate::backend::BackendError;
use crate::backend::peers::{Collective, Peers, Ticket};

/// A collective that has begun in this job.
pub(super) enum Begun {
    /// It is done already.
    Done,
    /// Through host memory.
    ByHost(Ticket),
    /// On devices.
    OnDevices(Ticket),
}

/// The tensor-parallel ranks, and what has begun with them in this job, by the tensor that stands for it.
pub(super) struct PeerOperators<'a> {
    pub(super) peers: &'a mut dyn Peers,
    pub(super) begun: &'a mut BTreeMap<TensorId, Begun>,
    pub(super) microbatch: u32,
}

impl PeerOperators<'_> {
    /// Runs `operator` where it talks with other ranks, begins a collective or waits for one; says whether it does.
    /// Values go through host memory where the processor has no shorter way. An error without a reason where a collective
    /// was not begun.
    pub(super) fn run<P: Processor>(
        &mut self,
        processor: &mut P,
        operator: &Operator,
        inputs: &[Input<'_, P::Data>],
        outputs: &mut [(&Tensor, P::Data)],
    ) -> Result<bool, Option<BackendError>> {
        if operator.kernel.axis() == Some(Axis::Expert) {
            let overflow =
                processor.expert_all_to_all(&operator.kernel, inputs, outputs, &mut *self.peers).map_err(Some)?;
            return overflow.map_or(Ok(true), |overflow| Err(Some(self.no_room(operator, &overflow))));
        }
        let what = match operator.kernel {
            Kernel::AllReduce { .. } | Kernel::AllReduceStart { .. } => Collective::Sum,
            Kernel::AllReduceMax { .. } => Collective::Max,
            Kernel::AllGather { .. } => Collective::Gather,
            Kernel::ReduceScatter { .. } | Kernel::ReduceScatterStart { .. } => Collective::Scatter,
            Kernel::AllReduceWait | Kernel::ReduceScatterWait => {
                let begun = operator.inputs.first().and_then(|input| self.begun.remove(&input.tensor));
                let begun = begun.ok_or(None)?;
                if let Begun::OnDevices(ticket) = begun {
                    self.peers.join(ticket).map_err(Some)?;
                }
                let Begun::ByHost(ticket) = begun else {
                    // What is there already stays where it is, or goes where the output is.
                    let copied = processor.run(&Kernel::Replicate { ways: 1 }, &inputs[..1], outputs);
                    return copied.map(|()| true).map_err(|error| Some(error.into()));
                };
                let result = self.peers.wait(ticket).map_err(Some)?;
                let (tensor, output) = outputs.first_mut().ok_or(None)?;
                processor.fill(output, tensor, result).map_err(|error| Some(error.into()))?;
                return Ok(true);
            }
            _ if operator.kernel.axis().is_some() => {
                let run = processor.run_among(&operator.kernel, inputs, outputs, &mut *self.peers);
                return run.map(|()| true).map_err(Some);
            }
            _ => return Ok(false),
        };
        let (input, (tensor, output)) = (inputs.first().ok_or(None)?, outputs.first_mut().ok_or(None)?);
        let own = if let Held::Here(data) = input.data { Some(data) } else { None };
        let together =
            processor.run_collective(what, (input.tensor, own), (tensor, output), &mut *self.peers).map_err(Some)?;
        let begun = match together {
            CollectiveOutcome::Not => None,
            CollectiveOutcome::Done => Some(Begun::Done),
            CollectiveOutcome::Begun(ticket) if operator.kernel.starts() => Some(Begun::OnDevices(ticket)),
            CollectiveOutcome::Begun(ticket) => {
                self.peers.join(ticket).map_err(Some)?;
                Some(Begun::Done)
            }
        };
        if let Some(begun) = begun {
            if operator.kernel.starts() {
                self.begun.insert(*operator.outputs.first().ok_or(None)?, begun);
            }
            return Ok(true);
        }
        let values = match input.data {
            Held::Here(data) => processor.to_host(data, input.tensor),
            _ => processor.to_host(output, tensor),
        };
        let values = values.map_err(|error| Some(error.into()))?;
        if operator.kernel.starts() {
            // The buffer is the result's from here on; what is sent is a copy.
            let begun = self.peers.start(Axis::Tensor, what, values).map_err(Some)?;
            self.begun.insert(*operator.outputs.first().ok_or(None)?, Begun::ByHost(begun));
            return Ok(true);
        }
        let result = self.peers.run(Axis::Tensor, what, values).map_err(Some)?;
        processor.fill(output, tensor, result).map_err(|error| Some(error.into()))?;
        Ok(true)
    }

    fn no_room(&self, operator: &Operator, overflow: &ExpertOverflow) -> BackendError {
        let (ranks, _) = self.peers.group(Axis::Expert);
        BackendError::ExpertOverflow {
            rank: ranks.get(overflow.member).copied().unwrap_or(overflow.member),
            layer: operator.layer.unwrap_or(0),
            microbatch: self.microbatch,
            come: overflow.come,
            rows: overflow.room,
            enough: (overflow.enough_permille() as f64 / 1000.0).to_string(),
            always: ranks.len(),
        }
    }

    /// Runs `kernel`, which needs no other rank. Collectives that have started continue at the same time.
    pub(super) fn run_overlapped<P: Processor>(
        &mut self,
        processor: &mut P,
        kernel: &Kernel,
        inputs: &[Input<'_, P::Data>],
        outputs: &mut [(&Tensor, P::Data)],
    ) -> Result<(), Option<BackendError>> {
        if processor.waits_for_device(kernel) {
            self.peers.settle().map_err(Some)?;
        }
        if self.begun.is_empty() {
            return processor.run(kernel, inputs, outputs).map_err(|error| Some(error.into()));
        }
        let mut going = Ok(());
        let mut go_on = || {
            if going.is_ok() {
                going = self.peers.go_on();
            }
        };
        let run = processor.run_in_pieces(kernel, inputs, outputs, &mut go_on);
        run.map_err(|error| Some(error.into()))?;
        going.map_err(Some)
    }
}
