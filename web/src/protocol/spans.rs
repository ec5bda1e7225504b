//! The spans of a rank as they travel: small, and in messages that the page reads quickly.

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::simulate::timeline::{CopySpan, Span};
use serde::{Deserialize, Serialize};

use super::{Reply, Response};

const KINDS: [OpKind; 4] = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW];

/// One op in time. Gaps instead of start times keep the numbers, and so the bytes, small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSpan {
    /// Stage.
    pub stage: u16,
    /// Kind: position in F, B, W, BW.
    pub kind: u8,
    /// Microbatch.
    pub microbatch: u32,
    /// From the end of the one before it.
    pub gap_ns: u64,
    /// The step time.
    pub duration_ns: u64,
}

/// A copy to or from the host, in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireCopy {
    /// Its text form in a plan file.
    pub copy: String,
    /// When it starts.
    pub start_ns: u64,
    /// When it ends.
    pub end_ns: u64,
}

/// The copies of ranks as they travel.
pub fn pack_copies(ranks: &[Vec<CopySpan>]) -> Vec<Vec<WireCopy>> {
    let copy =
        |span: &CopySpan| WireCopy { copy: span.copy.to_string(), start_ns: span.start_ns, end_ns: span.end_ns };
    ranks.iter().map(|copies| copies.iter().map(copy).collect()).collect()
}

/// The copies of ranks that have travelled.
pub fn unpack_copies(ranks: &[Vec<WireCopy>]) -> Vec<Vec<CopySpan>> {
    let copy = |wire: &WireCopy| {
        let copy = wire.copy.parse().ok()?;
        Some(CopySpan { copy, start_ns: wire.start_ns, end_ns: wire.end_ns })
    };
    ranks.iter().map(|copies| copies.iter().filter_map(copy).collect()).collect()
}

/// An op as it travels: stage, kind (its position in F, B, W, BW) and microbatch.
pub fn wire_op(op: Op) -> (u16, u8, u32) {
    let kind = KINDS.iter().position(|kind| *kind == op.kind()).unwrap_or(0) as u8;
    (op.stage() as u16, kind, op.microbatch() as u32)
}

/// An op that has travelled.
pub fn op_of((stage, kind, microbatch): (u16, u8, u32)) -> Op {
    let kind = KINDS.get(usize::from(kind)).copied().unwrap_or(OpKind::F);
    Op::new(usize::from(stage), kind, microbatch as usize)
}

/// The spans of a row as they travel.
pub fn pack(row: &[Span]) -> Vec<WireSpan> {
    let mut free_ns = 0;
    let mut packed = Vec::with_capacity(row.len());
    for span in row {
        let (stage, kind, microbatch) = wire_op(span.op);
        packed.push(WireSpan {
            stage,
            kind,
            microbatch,
            gap_ns: span.start_ns.saturating_sub(free_ns),
            duration_ns: span.end_ns.saturating_sub(span.start_ns.max(free_ns)),
        });
        free_ns = span.end_ns.max(free_ns);
    }
    packed
}

/// The spans of a row that has travelled.
pub fn unpack(row: &[WireSpan]) -> Vec<Span> {
    let mut free_ns: u64 = 0;
    row.iter()
        .map(|span| {
            let start_ns = free_ns.saturating_add(span.gap_ns);
            free_ns = start_ns.saturating_add(span.duration_ns);
            Span { op: op_of((span.stage, span.kind, span.microbatch)), start_ns, end_ns: free_ns }
        })
        .collect()
}

/// Spans of one message, unless a single rank has more: some milliseconds of the page's time.
const SPANS_A_MESSAGE: usize = 30_000;

/// A reply in messages that the page reads quickly: first rows, last the picture that they belong to.
pub fn in_parts(reply: Reply) -> Vec<Reply> {
    let Reply { id, mut response } = reply;
    let (Response::Planned(picture) | Response::Opened { picture, .. } | Response::KeptOpened { picture }) =
        &mut response
    else {
        return vec![Reply { id, response }];
    };
    let mut parts = grouped(core::mem::take(&mut picture.rows));
    picture.rows = parts.pop().unwrap_or_default();
    let ahead = parts.into_iter().map(|rows| Reply { id, response: Response::Rows(rows) });
    ahead.collect::<Vec<_>>().into_iter().chain([Reply { id, response }]).collect()
}

/// Rows in groups that are read quickly.
pub fn grouped<T>(rows: Vec<Vec<T>>) -> Vec<Vec<Vec<T>>> {
    let mut parts = Vec::new();
    let mut part: Vec<Vec<T>> = Vec::new();
    let mut spans = 0;
    for row in rows {
        if spans > 0 && spans + row.len() > SPANS_A_MESSAGE {
            parts.push(core::mem::take(&mut part));
            spans = 0;
        }
        spans += row.len();
        part.push(row);
    }
    parts.push(part);
    parts
}

/// What a rank did beside its ops, in the order of starts. They may lie over each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireMark {
    /// What it is: position in the names of the step.
    pub name: u32,
    /// From the start of the one before it.
    pub gap_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_sent_ahead_are_the_same_rows_in_the_same_order(lengths in prop::collection::vec(0usize..40_000, 0..6)) {
            let span = WireSpan { stage: 0, kind: 0, microbatch: 0, gap_ns: 0, duration_ns: 1 };
            let rows: Vec<Vec<WireSpan>> = lengths.iter().map(|length| vec![span; *length]).collect();
            let mut seen = Vec::new();
            for rows in grouped(rows) {
                let spans: usize = rows.iter().map(Vec::len).sum();
                let filled = rows.iter().filter(|row| !row.is_empty()).count();
                prop_assert!(spans <= SPANS_A_MESSAGE || filled == 1);
                seen.extend(rows.iter().map(Vec::len));
            }
            prop_assert_eq!(seen, lengths);
        }

        #[test]
        fn spans_travel_unchanged(pieces in prop::collection::vec((0u64..1 << 50, 0u64..1 << 50, 0usize..4, 0usize..65536, 0usize..1 << 20), 0..50)) {
            let mut now = 0;
            let row: Vec<Span> = pieces.into_iter().map(|(wait, work, kind, stage, microbatch)| {
                let start_ns = now + wait;
                now = start_ns + work;
                Span { op: Op::new(stage, KINDS[kind], microbatch), start_ns, end_ns: now }
            }).collect();
            prop_assert_eq!(unpack(&pack(&row)), row);
        }
    }
}
