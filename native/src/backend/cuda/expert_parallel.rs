//! Operators of expert parallel, on a card: routed tokens lie one behind the other in the order in which they leave, go
//! to the ranks that hold their experts, and from there to their rows; and the same way back.
//!
//! The host knows how many go where before anything is asked for, so every size is said and none is guessed. What is on its
//! way has memory of its own for as long as the operator runs, always as much as could come: so places follow from the row
//! alone, as all of a rank's do.

use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Axis, Kernel};

use super::card::{Address, CardError, Format, Held, Memory};
use super::launch::{Context, Place, RoutedTokens, Strided, place_bytes};
use super::{packed, unpacked};
use crate::backend::BackendError;
use crate::backend::cpu::kernels::experts::Arrivals;
use crate::backend::expert_parallel::{arrivals, to_each};
use crate::backend::peers::{Peers, Reach};
use crate::backend::stages::ExpertOverflow;
use crate::transport::{Buffer, OnCard};

/// Runs `kernel`, one of those that are dealt, with the ranks that hold the other experts.
///
/// # Errors
/// Where another rank does not come, or a device or the transport fails.
pub fn run(
    context: &Context,
    kernel: &Kernel,
    inputs: &[Place<'_>],
    outputs: &[Place<'_>],
    peers: &mut dyn Peers,
) -> Result<Option<ExpertOverflow>, BackendError> {
    let dealt = Dealt::of(kernel, inputs, outputs);
    let Dealt { rows, chosen, arrived } = dealt;
    // The choice of experts is read by the host.
    peers.settle()?;
    let order = context.order(&chosen, &arrived)?;
    let counts = match kernel {
        Kernel::Dispatch { .. } => match arrivals::<f32>(&order, rows.rows() as usize, peers)? {
            Ok(counts) => {
                context.write_numbers(&arrived, counts.iter().copied())?;
                counts
            }
            Err(overflow) => return Ok(Some(overflow)),
        },
        _ => context.numbers(&arrived)?,
    };
    let arrivals = Arrivals::new(&counts, arrived.columns() as usize);
    let places = arrivals.places();
    let (left, came) = (order.places.len() as u64, places.len() as u64);

    let reach = peers.reach(Axis::Expert);
    let staging = Staging::new(context, kernel, &dealt, matches!(reach, Reach::Members(_)))?;
    // Both in one: every write waits for the card.
    let both = [place_bytes(&order.places), place_bytes(&places)].concat();
    context.card.write(staging.places.at(), &both)?;
    let format = rows.format();
    let leaving = RoutedTokens::of(&chosen, format, staging.places.at());
    let arriving = RoutedTokens { format, places: staging.places.after(4 * left), count: came, active: 1 };
    let copies = |of: &[usize]| of.iter().map(|copies| *copies as u64).collect();
    let ranks = arrivals.by_device().len();
    let mut way = Way {
        context,
        format,
        reach,
        peers,
        sent: copies(&to_each(&order, ranks)),
        come: copies(&arrivals.by_device()),
    };

    let input = |at: usize| Address::new(inputs[at].at());
    let output = |at: usize| Address::new(outputs[at].at());
    let [from, to] = &staging.trip;
    let columns = rows.columns();
    let apart = |at: Address, row: u64| Strided::new(at.0, row);
    match kernel {
        // Behind each copy of a token travels its weight, and on the way back what its share has come to.
        Kernel::Dispatch { .. } => {
            let (row, behind) = (columns + 1, columns * format.bytes());
            let weights = (apart(input(2), 1), apart(from.after(behind), row));
            context.spread(leaving, columns, (apart(input(0), columns), apart(from.at(), row)), Some(weights))?;
            way.out(from, to, row)?;
            [&outputs[0], &outputs[2]].into_iter().try_for_each(|rows| context.clear_behind(rows, came))?;
            let shares = (apart(to.after(behind), row), apart(output(2), 1));
            context.spread(arriving, columns, (apart(to.at(), row), apart(output(0), columns)), Some(shares))?;
        }
        Kernel::DispatchGrad { .. } => {
            let (row, behind) = (columns + 1, columns * format.bytes());
            let shares = (apart(input(3), 1), apart(from.after(behind), row));
            context.gather(arriving, columns, (apart(input(0), columns), apart(from.at(), row)), Some(shares))?;
            way.back(from, to, row)?;
            let weights = (apart(to.after(behind), row), apart(output(1), 1));
            context.gather(leaving, columns, (apart(to.at(), row), apart(output(0), columns)), Some(weights))?;
        }
        Kernel::Combine { .. } => {
            context.gather(arriving, columns, (apart(input(0), columns), apart(from.at(), columns)), None)?;
            way.back(from, to, columns)?;
            context.gather(leaving, columns, (apart(to.at(), columns), apart(output(0), columns)), None)?;
        }
        Kernel::CombineGrad { .. } => {
            context.spread(leaving, columns, (apart(input(0), columns), apart(from.at(), columns)), None)?;
            way.out(from, to, columns)?;
            context.clear_behind(&outputs[0], came)?;
            context.spread(arriving, columns, (apart(to.at(), columns), apart(output(0), columns)), None)?;
        }
        _ => panic!("`{}` is not dealt", kernel.name()),
    }
    Ok(None)
}

/// What operators that are dealt have in common.
struct Dealt<'a> {
    /// The rows of this rank's experts.
    rows: Place<'a>,
    /// The experts of this rank's tokens.
    chosen: Place<'a>,
    /// What comes for this rank's experts.
    arrived: Place<'a>,
}

impl<'a> Dealt<'a> {
    fn of(kernel: &Kernel, inputs: &[Place<'a>], outputs: &[Place<'a>]) -> Dealt<'a> {
        let (rows, chosen, arrived) = match kernel {
            Kernel::Dispatch { .. } => (outputs[0], inputs[1], outputs[1]),
            Kernel::DispatchGrad { .. } | Kernel::Combine { .. } => (inputs[0], inputs[1], inputs[2]),
            Kernel::CombineGrad { .. } => (outputs[0], inputs[1], inputs[2]),
            _ => panic!("`{}` is not dealt", kernel.name()),
        };
        Dealt { rows, chosen, arrived }
    }

    /// The most bytes that leave this rank, and that come to it.
    fn trip(&self, kernel: &Kernel) -> [Bytes; 2] {
        let width = self.rows.columns();
        let of = |copies: u64, width: u64| copies * width * self.rows.format().bytes();
        let (copies, rows) = (self.chosen.elements(), self.rows.rows());
        match kernel {
            Kernel::Dispatch { .. } => [of(copies, width + 1), of(rows, width + 1)],
            Kernel::DispatchGrad { .. } => [of(rows, width + 1), of(copies, width + 1)],
            Kernel::Combine { .. } => [of(rows, width), of(copies, width)],
            _ => [of(copies, width), of(rows, width)],
        }
    }

    /// Bytes of the places of all copies.
    fn place_bytes(&self) -> Bytes {
        4 * (self.chosen.elements() + self.rows.rows())
    }
}

/// Bytes that `kernel` takes for as long as it runs, in the order in which it does. What others read and give back is not
/// among them, where a rank `shows` what leaves it.
pub fn taken(kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>], shows: bool) -> Vec<Bytes> {
    let dealt = Dealt::of(kernel, inputs, outputs);
    let of_trip = dealt.trip(kernel).into_iter().skip(usize::from(shows));
    [dealt.place_bytes()].into_iter().chain(of_trip).collect()
}

/// Memory in addition to the operator's tensors.
struct Staging {
    places: Memory,
    /// What leaves and what comes.
    trip: [Arc<Memory>; 2],
}

impl Staging {
    /// All of it, as [`taken`] has it.
    fn new(context: &Context, kernel: &Kernel, dealt: &Dealt<'_>, shows: bool) -> Result<Staging, CardError> {
        let new = |bytes: Bytes, held: Held| Memory::held(&context.card, bytes, held);
        let leaves = if shows { Held::ByOthers } else { Held::Briefly };
        let places = new(dealt.place_bytes(), Held::Briefly)?;
        let [from, to] = dealt.trip(kernel);
        let trip = [Arc::new(new(from, leaves)?), Arc::new(new(to, Held::Briefly)?)];
        Ok(Staging { places, trip })
    }
}

/// What a rank shows the others.
struct Shown {
    memory: Arc<Memory>,
    /// By rank: where its piece begins, and its length.
    pieces: Vec<(Bytes, Bytes)>,
}

/// The way to the other ranks and back.
struct Way<'a> {
    context: &'a Context,
    format: Format,
    reach: Reach,
    peers: &'a mut dyn Peers,
    /// By rank: copies of this one's tokens for its experts.
    sent: Vec<u64>,
    /// By rank: copies of its tokens for this one's experts.
    come: Vec<u64>,
}

impl Way<'_> {
    /// Copies of `width` elements to the ranks of their experts; what comes lies by rank.
    fn out(&mut self, from: &Arc<Memory>, to: &Arc<Memory>, width: u64) -> Result<(), BackendError> {
        let [sent, come] = [&self.sent, &self.come].map(|copies| self.bytes(copies, width));
        self.travel((from, &sent), (to, &come))
    }

    /// The same back to where they came from.
    fn back(&mut self, from: &Arc<Memory>, to: &Arc<Memory>, width: u64) -> Result<(), BackendError> {
        let [sent, come] = [&self.come, &self.sent].map(|copies| self.bytes(copies, width));
        self.travel((from, &sent), (to, &come))
    }

    fn bytes(&self, copies: &[u64], width: u64) -> Vec<Bytes> {
        copies.iter().map(|copies| copies * width * self.format.bytes()).collect()
    }

    /// Pieces that lie one behind the other, each to its rank.
    fn travel(
        &mut self,
        (from, sent): (&Arc<Memory>, &[Bytes]),
        (to, come): (&Arc<Memory>, &[Bytes]),
    ) -> Result<(), BackendError> {
        let card = &self.context.card;
        let on_card = |memory: &Arc<Memory>| OnCard::new(memory.clone(), memory.bytes());
        match self.reach {
            Reach::Host => {
                let mut bytes = vec![0; sent.iter().sum::<Bytes>() as usize];
                card.read(from.at(), &mut bytes)?;
                let mut rest = &bytes[..];
                let pieces = sent.iter().map(|length| {
                    let (piece, after) = rest.split_at(*length as usize);
                    rest = after;
                    Buffer::F32(unpacked(piece, self.format))
                });
                let pieces = pieces.collect();
                let counts: Vec<usize> = come.iter().map(|bytes| (bytes / self.format.bytes()) as usize).collect();
                let all = self.peers.expert_all_to_all(Axis::Expert, pieces, &counts)?;
                let all = all.into_iter().flat_map(|piece| match piece {
                    Buffer::F32(values) => packed(&values, self.format),
                    // No member has anything else: a different length is reported.
                    _ => Vec::new(),
                });
                card.write(to.at(), &all.collect::<Vec<u8>>())?;
            }
            Reach::Members(_) => {
                // What is shown is complete.
                card.finish()?;
                let shown = Arc::new(Shown { memory: from.clone(), pieces: pieces(sent) });
                let all = self.peers.show(Axis::Expert, OnCard::new(shown, from.bytes()))?;
                let (_, own) = self.peers.group(Axis::Expert);
                for (other, (at, length)) in all.iter().zip(pieces(come)) {
                    let failed = |what: &str| CardError::call("the expert-parallel all-to-all", what);
                    let shown = other.content().downcast::<Shown>();
                    let shown = shown.map_err(|_| failed("another rank is not on such a GPU"))?;
                    let (start, found) = shown.pieces[own];
                    if found != length {
                        return Err(failed(&format!("{found} bytes arrived; expected are {length}")).into());
                    }
                    card.copy(shown.memory.after(start), to.after(at), length)?;
                }
                // The others' memory is let go of behind this.
                card.finish()?;
            }
            Reach::Engine => {
                let begun = self.peers.deal_on_card(Axis::Expert, (&on_card(from), sent), (&on_card(to), come))?;
                self.peers.join(begun)?;
            }
        }
        Ok(())
    }
}

/// Where consecutive pieces of these lengths begin, and the lengths.
fn pieces(lengths: &[Bytes]) -> Vec<(Bytes, Bytes)> {
    let next = |start: &mut Bytes, length: &Bytes| {
        *start += length;
        Some((*start - length, *length))
    };
    lengths.iter().scan(0, next).collect()
}
