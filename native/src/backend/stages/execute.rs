//! One operator of a job: takes its inputs, gives its outputs their memory, runs it.

use pipeplan_core::graph::{Graph, Kernel, Needs, Operator};

use super::collective::PeerOperators;
use super::processor::{Held, Input, Processor};
use super::sliced::Slice;
use crate::backend::arena::Lane;
use crate::backend::{BackendError, Meter};

/// Runs one operator; an error without a reason where a tensor that it needs is not there.
#[allow(clippy::too_many_arguments, reason = "the parts of a stage, borrowed one by one")]
pub(super) fn execute<P: Processor>(
    processor: &mut P,
    graph: &Graph,
    operator: &Operator,
    takes_over: bool,
    brief: &[bool],
    (persistent, stale): (&mut [Option<P::Data>], &mut [bool]),
    lane: &mut Lane<P::Data>,
    meter: &mut Meter,
    together: &mut PeerOperators<'_>,
    slice: Option<&mut Slice<'_, P::Data>>,
) -> Result<(), Option<BackendError>> {
    let taken_over = operator.in_place.filter(|_| takes_over).and_then(|input| operator.inputs.get(input as usize));
    let taken_over = taken_over.map(|input| input.tensor);
    let mut outputs = Vec::with_capacity(operator.outputs.len());
    for (position, id) in operator.outputs.iter().enumerate() {
        let lent = match taken_over.filter(|_| position == 0) {
            _ if graph[*id].role.is_persistent() => persistent[id.index()].take().ok_or(None)?,
            Some(input) => lane.lend(input).ok_or(None)?,
            None => {
                // Counted now; the buffer itself goes in when the operator has filled it.
                let briefly = brief.get(id.index()).copied().unwrap_or(false);
                let data = processor.allocate(&graph[*id], briefly).map_err(|error| Some(error.into()))?;
                lane.put(graph, *id, data, meter);
                lane.lend(*id).ok_or(None)?
            }
        };
        outputs.push((&graph[*id], lent));
    }
    let mut inputs = Vec::with_capacity(operator.inputs.len());
    for input in &operator.inputs {
        let tensor = &graph[input.tensor];
        let output = match taken_over == Some(input.tensor) {
            true => Some(0),
            false => operator.outputs.iter().position(|output| *output == input.tensor),
        };
        let data = match (output, input.needs) {
            (Some(output), _) => Held::InOutput(output),
            (None, Needs::Shape) => Held::Nowhere,
            (None, Needs::Data) => {
                let here = match tensor.role.is_persistent() {
                    true => persistent[input.tensor.index()].as_ref(),
                    false => lane.get(input.tensor),
                };
                Held::Here(here.ok_or(None)?)
            }
        };
        inputs.push(Input { tensor, data });
    }
    let mut kernel = operator.kernel;
    if let (Kernel::MatMul { accumulate, .. }, [output]) = (&mut kernel, &operator.outputs[..])
        && std::mem::take(&mut stale[output.index()])
    {
        *accumulate = false;
        inputs.truncate(2);
    }
    if let Some(slice) = slice {
        let run = processor.run_in_slice(&kernel, &inputs, &mut outputs, slice);
        run.map_err(|error| Some(error.into()))?;
    } else if !together.run(processor, operator, &inputs, &mut outputs)? {
        together.run_overlapped(processor, &kernel, &inputs, &mut outputs)?;
    }
    for (id, (tensor, data)) in operator.outputs.iter().zip(outputs) {
        if tensor.role.is_persistent() {
            persistent[id.index()] = Some(data);
        } else {
            lane.give_back(*id, data);
        }
    }
    Ok(())
}
