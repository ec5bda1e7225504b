//! Attention over keys and values that ranks pass around a ring, all of them on one card, against the CPU in `f64`
//! over whole sequences.

use std::sync::Arc;
use std::thread;

use pipeplan_core::graph::{Heads, SequencePart, Spread};
use pipeplan_core::model::Dtype;

use super::operators::{Case, Tensor, attention_cases};
use super::{Extent, News, Row, Rows};
use crate::backend::BackendError;
use crate::backend::cuda::card::{Card, CardError, Memory};
use crate::backend::cuda::format_of;
use crate::backend::cuda::launch::Context;
use crate::backend::cuda::ring_attention::{Ring, Seen};
use crate::runner::gradients::Position;
use crate::runner::peer_groups::PeerGroups;
use crate::runner::status::StatusBoard;
use crate::transport::threads;

const GROUP: &str = "rings";

/// What a ring is checked with: attention, in a format.
#[derive(Clone, Copy, Debug)]
pub struct RingCase {
    spread: Spread,
    format: Dtype,
}

/// In both formats: pieces that fill no tile, of several tiles and of less than one; windows shorter and longer than
/// a piece; caps; grouped-query attention; values of another width than keys; kernels with and without tensor cores.
pub fn cases() -> Vec<RingCase> {
    let spread = |parts, sequence, heads: [u64; 2], [width, value_width]: [u64; 2], window: Option<u64>| Spread {
        heads: Heads { cap_e12: window.map(|_| 3_000_000_000_000), ..Heads::usual(sequence, heads, width) },
        value_width,
        ways: parts,
        window: window.unwrap_or(sequence),
    };
    let small = [
        spread(2, 52, [4, 2], [6, 6], None),
        spread(3, 30, [2, 1], [8, 5], None),
        spread(2, 160, [2, 2], [6, 6], Some(50)),
        spread(4, 40, [2, 1], [6, 6], Some(4)),
    ];
    let tensor = [
        spread(2, 268, [2, 1], [32, 32], None),
        spread(3, 300, [2, 2], [32, 32], Some(90)),
        spread(2, 148, [2, 1], [64, 64], Some(12)),
        // Whole blocks see nothing of the piece before.
        spread(2, 600, [1, 1], [64, 64], Some(12)),
        spread(2, 44, [1, 1], [192, 128], None),
        spread(2, 44, [2, 1], [256, 256], None),
    ];
    let in_both =
        small.into_iter().flat_map(|spread| [Dtype::F32, Dtype::Bf16].map(|format| RingCase { spread, format }));
    in_both.chain(tensor.map(|spread| RingCase { spread, format: Dtype::Bf16 })).collect()
}

/// What the ranks' parts of tensors hold, by rank and tensor.
type Parts = Vec<Vec<Vec<u8>>>;

impl RingCase {
    /// Attention as `spread` says, in `format`.
    pub const fn new(spread: Spread, format: Dtype) -> RingCase {
        RingCase { spread, format }
    }

    fn sequence(&self) -> u64 {
        self.spread.heads.sequence
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        let Spread { heads: Heads { query, key_value, width, .. }, value_width, ways, window, .. } = self.spread;
        let sequence = self.sequence();
        let within = if window < sequence { format!(" within {window}") } else { String::new() };
        let heads = format!("{query}/{key_value} heads {width}/{value_width} wide");
        format!("{ways} ranks, {} {sequence} tokens{within}, {heads}", self.format.name())
    }

    /// Attention, and its gradient, twice each.
    pub fn check(&self, card: &Arc<dyn Card>) -> [Row; 2] {
        self.checked(card, Extent::Whole)
    }

    fn checked(&self, card: &Arc<dyn Card>, extent: Extent) -> [Row; 2] {
        let whole = attention_cases(self.format, Spread { ways: 1, ..self.spread });
        let names = ["attention", "its gradient"].map(|what| format!("{what} of {}", self.name()));
        let mut names = names.into_iter();
        whole.map(|case| {
            let name = names.next().unwrap_or_default();
            let repeats = |once: &Parts| match extent {
                Extent::Briefly => Ok(true),
                Extent::Whole => self.ran(&case, card).map(|again| again == *once),
            };
            let outcome = self.ran(&case, card).and_then(|once| Ok((repeats(&once)?, once)));
            match outcome {
                Ok((repeats, parts)) => {
                    let error = case.error(&case.reference(), &self.joined(&case, &parts));
                    let limit = if self.format == Dtype::Bf16 { 5e-3 } else { 1e-5 };
                    let row = Row::error(GROUP, name, error, limit);
                    if repeats { row } else { row.failed("a second run gives other bits") }
                }
                Err(error) => Row::broken(GROUP, name, &error),
            }
        })
    }

    fn part(&self, part: u64) -> SequencePart {
        SequencePart { part, parts: self.spread.ways }
    }

    /// What every rank makes of its part of the inputs of `case`, as bytes.
    fn ran(&self, case: &Case, card: &Arc<dyn Card>) -> Result<Parts, BackendError> {
        let parts = self.spread.ways as usize;
        let position = |part| Position {
            rank: 0,
            ranks: 1,
            replica: 0,
            replicas: 1,
            part,
            parts,
            member: 0,
            members: 1,
            experts: 1,
            whole_experts: false,
            sharding: Default::default(),
        };
        let board = StatusBoard::new((0..parts).map(position).collect());
        let ends = threads::world(parts, Default::default());
        thread::scope(|scope| {
            let ranks: Vec<_> = ends
                .into_iter()
                .enumerate()
                .map(|(part, mut end)| {
                    let (board, position) = (&board, position(part));
                    scope.spawn(move || {
                        let mut groups = PeerGroups::new(position);
                        let made = self.part_of(case, card, part as u64, &mut groups.over(&mut end, board, part));
                        // The others would wait for what does not come.
                        made.inspect_err(|_| crate::transport::Transport::abort(&end))
                    })
                })
                .collect();
            let ended = |rank: thread::ScopedJoinHandle<'_, Result<_, BackendError>>| {
                rank.join().unwrap_or_else(|_| Err(CardError::call("a rank of a ring", "it panicked").into()))
            };
            ranks.into_iter().map(ended).collect()
        })
    }

    /// What the rank with `part` of every sequence makes of `case` with its peers.
    fn part_of(
        &self,
        case: &Case,
        card: &Arc<dyn Card>,
        part: u64,
        peers: &mut dyn crate::backend::peers::Peers,
    ) -> Result<Vec<Vec<u8>>, BackendError> {
        let mut context = Context::new(Arc::clone(card));
        context.part = self.part(part);
        let dealt = |tensor: &Tensor| {
            let bytes = tensor.bytes();
            let rows: Vec<u8> = self
                .rows_of(part, tensor.rows())
                .flat_map(|row| of_row(&bytes, tensor.rows(), row).to_vec())
                .collect();
            Memory::holding(card, &rows)
        };
        let inputs = case.inputs.iter().map(dealt).collect::<Result<Vec<_>, _>>()?;
        let share =
            |(shape, dtype): &(Vec<u64>, Dtype)| shape.iter().product::<u64>() * dtype.bytes() / self.spread.ways;
        let outputs =
            case.outputs.iter().map(|output| Memory::new(card, share(output))).collect::<Result<Vec<_>, _>>()?;
        let rows = case.inputs[0].rows() / self.spread.ways;
        let (format, spread, context) = (format_of(self.format), &self.spread, &context);
        let mut ring = Ring { card, context, spread, format, rows, peers };
        let room =
            |blocks: u64, k: &Memory, v: &Memory| Memory::new(card, blocks * (k.bytes() + v.bytes())).map(Arc::new);
        match (&inputs[..], &outputs[..]) {
            ([q, k, v], [o, l]) => ring.attention([q, k, v], [o, l], &room(2, k, v)?)?,
            ([d_o, q, k, v, o, l], [dq, dk, dv]) => {
                ring.attention_grad(&Seen { d_o, q, o, l }, [k, v], [dq, dk, dv], &room(4, k, v)?)?;
            }
            _ => return Err(CardError::call("a ring", "attention has other tensors").into()),
        }
        Ok(outputs.iter().map(Memory::read).collect::<Result<Vec<_>, _>>()?)
    }

    /// The rows, among `rows` of whole sequences, that the rank with `part` has.
    fn rows_of(&self, part: u64, rows: u64) -> impl Iterator<Item = u64> {
        let (part, sequence) = (self.part(part), self.sequence());
        (0..rows / self.spread.ways).map(move |row| part.row(sequence, row))
    }

    /// The outputs of `case`, of what the ranks have made.
    fn joined(&self, case: &Case, parts: &Parts) -> Vec<Vec<u8>> {
        let joined = |(at, (shape, dtype)): (usize, &(Vec<u64>, Dtype))| {
            let rows = shape[0];
            let mut all = vec![0; (shape.iter().product::<u64>() * dtype.bytes()) as usize];
            let width = all.len() / rows as usize;
            for (part, made) in (0..).zip(parts) {
                for (own, row) in (0..).zip(self.rows_of(part, rows)) {
                    let to = row as usize * width;
                    all[to..to + width].copy_from_slice(of_row(&made[at], rows / self.spread.ways, own));
                }
            }
            all
        };
        case.outputs.iter().enumerate().map(joined).collect()
    }
}

/// Row `row` of the `rows` in `bytes`.
fn of_row(bytes: &[u8], rows: u64, row: u64) -> &[u8] {
    let width = bytes.len() / rows as usize;
    &bytes[row as usize * width..][..width]
}

/// Every ring on `card`, each as a separate section.
pub(super) fn check<F: FnMut(News)>(card: &Arc<dyn Card>, extent: Extent, rows: &mut Rows<F>) {
    for case in cases() {
        rows.section(GROUP, &case.name(), |rows| {
            case.checked(card, extent).into_iter().for_each(|row| rows.push(row));
            Ok::<_, CardError>(())
        });
    }
}
