//! Launches for mixtures of experts: the router, the dispatch of tokens, the matmuls of experts and their combination.

use std::ops::Range;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Kernel, of_e12};
use pipeplan_core::model::{Routing, Scores};

use super::grid::{THREADS, args};
use super::place::Place;
use super::{Call, Context};
use crate::backend::cpu::kernels::experts;
use crate::backend::cuda::card::{Address, Args, CardError, Format, Held, Memory};
use crate::backend::cuda::matmuls;

/// Routed tokens, each of which lies somewhere among rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutedTokens {
    /// The format of all that they are made of.
    pub format: Format,
    /// By copy: the number of its row.
    pub places: Address,
    /// How many there are.
    pub count: u64,
    /// Copies of each token, which follow each other.
    pub active: u64,
}

impl RoutedTokens {
    /// One for each choice of `chosen`.
    pub fn of(chosen: &Place<'_>, format: Format, places: Address) -> RoutedTokens {
        RoutedTokens { format, places, count: chosen.elements(), active: chosen.columns() }
    }
}

/// Rows that need not lie directly behind each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided {
    pub(super) at: u64,
    /// Elements from the first of one row to that of the next.
    next: u64,
}

impl Strided {
    pub fn new(at: u64, next: u64) -> Strided {
        Strided { at, next }
    }
}

/// What a kernel between tokens and their copies is called with.
fn routed_args(
    copies: &RoutedTokens,
    columns: u64,
    (from, to): (Strided, Strided),
    numbers: Option<(Strided, Strided)>,
) -> Args {
    let nowhere = Strided::new(0, 0);
    let (numbers_from, numbers_to) = numbers.unwrap_or((nowhere, nowhere));
    let buffers = [from.at, copies.places.0, to.at, numbers_from.at, numbers_to.at];
    args(&buffers, &[columns, copies.active, from.next, to.next, numbers_from.next, numbers_to.next], &[])
}

/// As a card holds them.
pub(crate) fn place_bytes(places: &[usize]) -> Vec<u8> {
    places.iter().flat_map(|place| (*place as i32).to_ne_bytes()).collect()
}

/// Whether scores are each by themselves, and whether those chosen are divided by their sum; what weights are
/// multiplied with.
fn of_routing(routing: Routing) -> ([u64; 2], f32) {
    let flags = [routing.scores == Scores::Sigmoid, routing.normed].map(u64::from);
    (flags, routing.factor.map_or(1.0, of_e12) as f32)
}

impl Context {
    /// The router, and the dispatch, the matmuls and the combination of experts.
    pub(super) fn run_experts(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, inputs, outputs, format, rows, columns, .. } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        match *kernel {
            Kernel::Route { active, routing } => {
                let (flags, factor) = of_routing(routing);
                let groups = [routing.groups, routing.active_groups].map(u64::from);
                let numbers = [rows, columns, active, flags[0], flags[1], groups[0], groups[1]];
                let args = args(&[input(0), output(0), output(1)], &numbers, &[factor]);
                self.launch("route", format, [rows.div_ceil(THREADS.into()), 1, 1], THREADS, args)
            }
            Kernel::RouteGrad { routing } => {
                let buffers = [input(0), input(1), input(2), output(0)];
                let (flags, factor) = of_routing(routing);
                let numbers = [rows, inputs[1].columns(), columns, flags[0], flags[1]];
                let args = args(&buffers, &numbers, &[factor]);
                self.launch("route_grad", format, [rows.div_ceil(THREADS.into()), 1, 1], THREADS, args)
            }
            Kernel::Dispatch { .. } => {
                let order = self.order(&inputs[1], &outputs[1])?;
                self.write_numbers(&outputs[1], order.arrivals())?;
                let places = self.places(&order)?;
                let copies = RoutedTokens::of(&inputs[1], format, places.at());
                [&outputs[0], &outputs[2]].into_iter().try_for_each(|rows| self.clear_behind(rows, copies.count))?;
                let weights = (Strided::new(input(2), 1), Strided::new(output(2), 1));
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.spread(copies, columns, rows, Some(weights))
            }
            Kernel::CombineGrad { .. } => {
                let places = self.places(&self.order(&inputs[1], &inputs[2])?)?;
                let copies = RoutedTokens::of(&inputs[1], format, places.at());
                self.clear_behind(&outputs[0], copies.count)?;
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.spread(copies, columns, rows, None)
            }
            Kernel::DispatchGrad { .. } | Kernel::Combine { .. } => {
                let places = self.places(&self.order(&inputs[1], &inputs[2])?)?;
                let copies = RoutedTokens::of(&inputs[1], format, places.at());
                let shares = inputs.get(3).map(|_| (Strided::new(input(3), 1), Strided::new(output(1), 1)));
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.gather(copies, columns, rows, shares)
            }
            Kernel::ExpertMatMul { transpose_b } => self.expert_matmul(transpose_b, inputs, outputs),
            Kernel::ExpertMatMulGrad => self.expert_matmul_grad(inputs, outputs),
            _ => Err(call.has_no_kernel()),
        }
    }

    /// The order of the experts' tokens, of as many experts as `arrivals` counts: waits for the choice.
    pub(crate) fn order(&self, chosen: &Place<'_>, arrivals: &Place<'_>) -> Result<experts::Order, CardError> {
        Ok(experts::Order::new(&self.numbers(chosen)?, arrivals.elements() as usize))
    }

    /// By expert of `experts`: its rows. Waits for the dispatch.
    fn rows_of_experts(&self, arrivals: &Place<'_>, experts: u64) -> Result<Vec<Range<usize>>, CardError> {
        Ok(experts::Arrivals::new(&self.numbers(arrivals)?, experts as usize).rows())
    }

    /// Whole numbers from the card. Waits for them.
    pub(crate) fn numbers(&self, place: &Place<'_>) -> Result<Vec<i32>, CardError> {
        let mut bytes = vec![0; 4 * place.elements() as usize];
        self.card.read(Address(place.at()), &mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok(numbers.iter().map(|number| i32::from_ne_bytes(*number)).collect())
    }

    /// Writes whole numbers to the card.
    pub(crate) fn write_numbers(
        &self,
        to: &Place<'_>,
        numbers: impl IntoIterator<Item = i32>,
    ) -> Result<(), CardError> {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_ne_bytes).collect();
        self.card.write(Address(to.at()), &bytes)
    }

    /// The places of copies, on the card. Given back behind the work that is queued by then.
    fn places(&self, order: &experts::Order) -> Result<Memory, CardError> {
        let bytes = place_bytes(&order.places);
        let memory = Memory::held(&self.card, bytes.len() as Bytes, Held::Briefly)?;
        self.card.write(memory.at(), &bytes)?;
        Ok(memory)
    }

    /// Each token's row of so many columns to its copies' places, from the first of a pair to the second; and where there are
    /// `weights`, each copy's to its place.
    pub(crate) fn spread(
        &self,
        copies: RoutedTokens,
        columns: u64,
        rows: (Strided, Strided),
        weights: Option<(Strided, Strided)>,
    ) -> Result<(), CardError> {
        let size = [copies.count, columns];
        self.over_rows("dispatch", copies.format, size, routed_args(&copies, columns, rows, weights))
    }

    /// For each token the sum of its copies among rows of so many columns, from the first of a pair to the second; and where
    /// there are `shares`, what those of the copies' rows are, by copy.
    pub(crate) fn gather(
        &self,
        copies: RoutedTokens,
        columns: u64,
        rows: (Strided, Strided),
        shares: Option<(Strided, Strided)>,
    ) -> Result<(), CardError> {
        let size = [copies.count / copies.active, columns];
        self.over_rows("combine", copies.format, size, routed_args(&copies, columns, rows, shares))
    }

    /// Sets the rows behind the first `filled` to 0.
    pub(crate) fn clear_behind(&self, rows: &Place<'_>, filled: u64) -> Result<(), CardError> {
        let row = rows.columns() * rows.format().bytes();
        self.card.zero(Address(rows.at() + filled * row), (rows.rows() - filled) * row)
    }

    fn expert_matmul(&self, transpose: bool, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let of_experts = self.rows_of_experts(&inputs[2], inputs[1].rows())?;
        // Rows beyond those of all experts are nobody's.
        self.clear_behind(&outputs[0], of_experts.last().map_or(0, |rows| rows.end) as u64)?;
        (0..).zip(of_experts).try_for_each(|(expert, rows)| {
            let product = matmuls::of_expert(transpose, expert, rows, inputs, outputs);
            product.map_or(Ok(()), |product| self.card.product(&product))
        })
    }

    fn expert_matmul_grad(&self, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let of_experts = self.rows_of_experts(&inputs[2], outputs[0].rows())?;
        (0..).zip(of_experts).try_for_each(|(expert, rows)| {
            let product = matmuls::of_expert_grad(expert, rows, inputs, outputs);
            product.map_or(Ok(()), |product| self.card.product(&product))
        })
    }
}
