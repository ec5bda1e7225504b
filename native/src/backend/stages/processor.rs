//! What a device does for the stages of a rank: holds tensors, runs operators, updates weights.

use std::ops::Range;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Init, Kernel, SequencePart, Tensor};
use pipeplan_core::model::Dtype;

use super::Training;
use super::sliced::Slice;
use crate::backend::documents::DocumentStarts;
use crate::backend::peers::{Collective, Peers, Ticket};
use crate::backend::{BackendError, Part, Values};
use crate::runner::optimizer::{AdamW, Rule};
use crate::transport::{Buffer, OnCard};

/// An input of an operator.
#[derive(Debug)]
pub struct Input<'a, D> {
    /// What it is.
    pub tensor: &'a Tensor,
    /// Where its data is.
    pub data: Held<'a, D>,
}

/// Where an input's data is.
#[derive(Debug)]
pub enum Held<'a, D> {
    /// Here.
    Here(&'a D),
    /// In the output of this position, which is the same tensor or has taken over its buffer.
    InOutput(usize),
    /// Perhaps nowhere: only its sizes are needed.
    Nowhere,
}

/// What became of a collective that is to stay on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveOutcome {
    /// Nothing: it goes through host memory.
    Not,
    /// It is done.
    Done,
    /// It has begun, and is to be [joined](Peers::join).
    Begun(Ticket),
}

/// A rank that more routed tokens come to than it has room for: the fullest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertOverflow {
    /// Its number among the expert-parallel ranks.
    pub member: usize,
    /// What comes.
    pub come: usize,
    /// Rows for it.
    pub room: usize,
    /// Copies that leave each rank.
    pub copies: usize,
}

impl ExpertOverflow {
    /// The least imbalance for which there is room, in thousandths: rows are rounded up.
    pub(super) fn enough_permille(&self) -> usize {
        1000 * (self.come - 1) / self.copies.max(1) + 1
    }
}

/// A weight as a run starts with it.
pub struct NewParameter<D, S> {
    /// The weight.
    pub weight: D,
    /// Its gradient, all 0.
    pub gradient: D,
    /// The optimizer states.
    pub state: S,
    /// The bytes of that.
    pub state_bytes: Bytes,
}

/// Holds tensors and runs operators.
pub trait Processor {
    /// The data of a tensor.
    type Data;
    /// The optimizer states of a weight: of this rank's [share](crate::backend::Share) alone.
    type State;
    /// Why something could not be done.
    type Error: Into<BackendError>;

    /// Room for `tensor`, at most until the end of the job where `briefly`.
    ///
    /// # Errors
    /// If there is none.
    fn allocate(&mut self, tensor: &Tensor, briefly: bool) -> Result<Self::Data, Self::Error>;

    /// A copy of `data` that waits in the host's memory, or is back from there; none where this processor has no such copies.
    fn copied(&mut self, _data: &Self::Data) -> Option<Self::Data> {
        None
    }

    /// Tokens of a microbatch.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn tokens(&mut self, tokens: Vec<i32>) -> Result<Self::Data, Self::Error>;

    /// `weight` as a run of `training` starts, with state for so many of its elements, by the rule that
    /// updates them: `ruled`.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn parameter(
        &mut self,
        training: &Training,
        init: Init,
        weight: &Tensor,
        gradient: &Tensor,
        ruled: (Rule, usize),
    ) -> Result<NewParameter<Self::Data, Self::State>, Self::Error>;

    /// What a parcel holds, or host memory has, of `tensor`; nothing where that is not this processor's.
    fn unpack(&mut self, buffer: Buffer, tensor: &Tensor) -> Option<Self::Data>;

    /// What a transfer has brought, made this processor's own.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, Self::Error> {
        Ok(buffer)
    }

    /// A parcel of `data`, for this rank or (else) for another.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn pack(&mut self, data: Self::Data, tensor: &Tensor, stays: bool) -> Result<Buffer, Self::Error>;

    /// The number in `data`.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn number(&mut self, data: &Self::Data) -> Result<f64, Self::Error>;

    /// Runs or begins a collective of the tensor-parallel ranks without host memory, where that can be done. All of
    /// them come to the same answer. The input is `from`, or lies where the output `to` does.
    ///
    /// # Errors
    /// Where the device or the transport fails.
    fn run_collective(
        &mut self,
        _what: Collective,
        _from: (&Tensor, Option<&Self::Data>),
        _to: (&Tensor, &Self::Data),
        _peers: &mut dyn Peers,
    ) -> Result<CollectiveOutcome, BackendError> {
        Ok(CollectiveOutcome::Not)
    }

    /// Whether running `kernel` waits for the device.
    fn waits_for_device(&self, _kernel: &Kernel) -> bool {
        false
    }

    /// A copy of `data` in host memory, for the tensor-parallel ranks.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn to_host(&mut self, data: &Self::Data, tensor: &Tensor) -> Result<Buffer, Self::Error>;

    /// Writes what those ranks have made of it to `data`.
    ///
    /// # Errors
    /// Where it cannot be written.
    fn fill(&mut self, data: &mut Self::Data, tensor: &Tensor, values: Buffer) -> Result<(), Self::Error>;

    /// A weight in the formats `to`, the operands of products along its rows and along its columns
    /// ([`Role::WeightCopy`](pipeplan_core::graph::Role::WeightCopy)). Runs on processors that have no such products are
    /// refused.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn quantize(&mut self, _from: (&Tensor, &Self::Data), to: [&Tensor; 2]) -> Result<[Self::Data; 2], Self::Error> {
        Ok([self.allocate(to[0], false)?, self.allocate(to[1], false)?])
    }

    /// A job starts whose dropouts draw from `dropout_seed`, on the rank with the number `member` among the
    /// tensor-parallel ranks, and with `part` of every sequence.
    fn begin(&mut self, dropout_seed: u64, member: u64, part: SequencePart);

    /// What losses of the job are divided by, where some targets are not to be predicted: those are below 0. Else by
    /// all of the step's tokens. Runs on processors that do not know it are refused.
    fn divide_losses(&mut self, _divisor: Option<f64>) {}

    /// Attention of the job stays within the documents that begin so. Runs on processors that do not know it are
    /// refused.
    fn stay_within(&mut self, _documents: Option<DocumentStarts>) {}

    /// The job is of a slice of its sequences, whose first token has the first of these positions, of all that slices
    /// have; or of whole sequences. Runs on processors that do not know it are refused.
    fn slice(&mut self, _positions: Option<[u64; 2]>) {}

    /// As [`Processor::run`], of attention or its gradient in a slice. Runs on processors that do not know it are
    /// refused.
    ///
    /// # Errors
    /// As [`Processor::run`].
    fn run_in_slice(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        _slice: &mut Slice<'_, Self::Data>,
    ) -> Result<(), Self::Error> {
        self.run(kernel, inputs, outputs)
    }

    /// Runs `kernel`. An output that adds to an input, or runs in its place, holds that input's data.
    ///
    /// # Errors
    /// Where it cannot.
    fn run(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
    ) -> Result<(), Self::Error>;

    /// As [`Processor::run`], and calls `between` now and then while the operator runs, where it can, and when it has
    /// run.
    ///
    /// # Errors
    /// As [`Processor::run`].
    fn run_in_pieces(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        between: &mut dyn FnMut(),
    ) -> Result<(), Self::Error> {
        self.run(kernel, inputs, outputs)?;
        between();
        Ok(())
    }

    /// As [`Processor::run`], of a kernel that talks with `peers`, along its [axis](Kernel::axis), while it runs.
    ///
    /// # Errors
    /// As [`Processor::run`], and where a peer does not come.
    fn run_among(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        _peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        self.run(kernel, inputs, outputs).map_err(Into::into)
    }

    /// Runs `kernel`, whose experts are split over ranks, together with these. Gives the fullest of them where not all
    /// have room for what comes to them, which then all learn.
    ///
    /// # Errors
    /// Where one does not come, or the device fails.
    fn expert_all_to_all(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        peers: &mut dyn Peers,
    ) -> Result<Option<ExpertOverflow>, BackendError>;

    /// Waits until all is done that was asked for.
    ///
    /// # Errors
    /// What has failed since the last wait.
    fn finish(&mut self) -> Result<(), Self::Error>;

    /// Updates the elements `mine` of a weight after training step `step`, and sets its gradient to 0 where it is to be
    /// [cleared](Updated::clear).
    ///
    /// # Errors
    /// Where it cannot.
    fn update(
        &mut self,
        optimizer: &AdamW,
        step: u32,
        parameter: Updated<'_, Self::Data, Self::State>,
    ) -> Result<(), Self::Error>;

    /// The weight as the optimizer has it; nothing where it cannot be read any more.
    fn weight(&self, weight: &Self::Data, state: &Self::State) -> Option<Buffer>;

    /// The numbers of a weight's gradient, in the widest format; nothing where they cannot be read any more.
    fn gradient(&self, gradient: &Self::Data) -> Option<Buffer>;

    /// Lends `part` to `work`, which may change it.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    fn lend(
        &mut self,
        part: Part,
        parameter: Updated<'_, Self::Data, Self::State>,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), Self::Error>;

    /// As [`Backend::device_bytes`](crate::backend::Backend::device_bytes).
    fn device_bytes(&self) -> Option<Bytes> {
        None
    }

    /// The device's memory that holds `part`, as [`Backend::on_card`](crate::backend::Backend::on_card).
    fn on_card(&mut self, _part: Part, _parameter: Updated<'_, Self::Data, Self::State>) -> Option<(OnCard, Dtype)> {
        None
    }

    /// Multiplies `part`, as [`Backend::scale_on_card`](crate::backend::Backend::scale_on_card).
    ///
    /// # Errors
    /// Where it cannot.
    fn scale_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _factor: f64,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// As [`Backend::copied_on_card`](crate::backend::Backend::copied_on_card).
    ///
    /// # Errors
    /// Where it cannot.
    fn copied_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _range: Range<usize>,
    ) -> Result<Option<OnCard>, Self::Error> {
        Ok(None)
    }

    /// As [`Backend::sum_on_card`](crate::backend::Backend::sum_on_card).
    ///
    /// # Errors
    /// Where it cannot.
    fn sum_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _start: usize,
        _from: &[OnCard],
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// As [`Backend::squares_on_card`](crate::backend::Backend::squares_on_card).
    ///
    /// # Errors
    /// Where it cannot.
    fn squares_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _range: Range<usize>,
    ) -> Result<Option<f64>, Self::Error> {
        Ok(None)
    }

    /// As [`Backend::most_on_card`](crate::backend::Backend::most_on_card).
    fn most_on_card(&self) -> usize {
        0
    }
}

/// A weight with all that belongs to it.
pub struct Updated<'a, D, S> {
    /// What the weight is.
    pub tensor: &'a Tensor,
    /// The weight.
    pub weight: &'a mut D,
    /// Its gradient.
    pub gradient: &'a mut D,
    /// The optimizer states.
    pub state: &'a mut S,
    /// The elements of this rank's share, in `weight`.
    pub mine: Range<usize>,
    /// The same elements in `gradient`: other ones where one of the two is sharded and the other is whole.
    pub of_gradient: Range<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether the next step adds to the gradient as it stands. Where it begins with a product, that writes it anew.
    pub clear: bool,
}
