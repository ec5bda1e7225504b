//! What processes say to each other, as bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind: 0 message, 1 part of a collective, 2 last words, 3 goodbye |
//! | 1 | format of the values: 0 none, 1 `f32`, 2 `f64`, 3 bf16 |
//! | 2 | message: way and payload; part: operation; last words: state |
//! | 3 | part: the channel of collectives, 0 to 2; else 0 |
//! | 4–7 | training step |
//! | 8–11 | message: microbatch; part: call; last words: position in the row |
//! | 12–15 | message: stage; part: group |
//! | 16– | values, or text |
//!
//! All numbers are little-endian. The length of a frame is known from what carries it.

use half::bf16;
use pipeplan_core::program::{P2pOp, Payload, Way};

use super::collectives::{Channel, Operation, Part, Reduction};
use super::{Buffer, Tag, What};

/// The bytes before the values.
const HEADER: usize = 16;

/// One thing said.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A parcel.
    Parcel(Tag, Buffer),
    /// Why a rank ends the run.
    Words(LastWords),
    /// A rank has ended well: when its connection closes, nothing is wrong.
    Goodbye,
}

/// Where a rank was when it ended the run, and why it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastWords {
    /// The training step.
    pub training_step: u32,
    /// The position in its op list.
    pub index: u32,
    /// What it was doing, as a number of the runner's.
    pub state: u8,
    /// Why; empty where another rank had ended the run before.
    pub cause: String,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes arrived that are not a frame: the two ranks run different versions")]
pub struct NoFrame {
    /// How many.
    pub length: usize,
}

const OPERATIONS: [Operation; 15] = [
    Operation::AllReduce(Reduction::Sum),
    Operation::AllReduce(Reduction::Avg),
    Operation::AllReduce(Reduction::Max),
    Operation::Reduce(Reduction::Sum),
    Operation::Reduce(Reduction::Avg),
    Operation::Reduce(Reduction::Max),
    Operation::ReduceScatter(Reduction::Sum),
    Operation::ReduceScatter(Reduction::Avg),
    Operation::ReduceScatter(Reduction::Max),
    Operation::AllGather,
    Operation::Broadcast,
    Operation::Gather,
    Operation::AllToAll,
    Operation::Barrier,
    Operation::PassOn,
];

impl Frame {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let values = if let Frame::Parcel(_, buffer) = self { buffer.bytes() as usize } else { 0 };
        let mut bytes = Vec::with_capacity(HEADER + values);
        bytes.resize(HEADER, 0);
        let mut put = |at: usize, number: u32| bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let (kind, format, detail, channel) = match self {
            Frame::Parcel(tag, buffer) => {
                put(4, tag.step);
                let (kind, detail, channel) = match tag.what {
                    What::P2pOp(message) => {
                        put(8, message.microbatch);
                        put(12, message.stage.into());
                        let way = u8::from(message.way == Way::Receive);
                        (0, way + 2 * u8::from(message.payload == Payload::Gradient), Channel::InOrder)
                    }
                    What::Part(part) => {
                        put(8, part.call);
                        put(12, part.group);
                        let operation = OPERATIONS.iter().position(|operation| *operation == part.operation);
                        (1, operation.unwrap_or(OPERATIONS.len()) as u8, part.channel)
                    }
                };
                let format = match buffer {
                    // A device's memory means nothing to another process: its backend hands out the host's.
                    Buffer::Nothing | Buffer::OnCard(_) => 0,
                    Buffer::F32(_) => 1,
                    Buffer::F64(_) => 2,
                    Buffer::Bf16(_) => 3,
                };
                (kind, format, detail, channel)
            }
            Frame::Words(words) => {
                put(4, words.training_step);
                put(8, words.index);
                (2, 0, words.state, Channel::InOrder)
            }
            Frame::Goodbye => (3, 0, 0, Channel::InOrder),
        };
        bytes[..4].copy_from_slice(&[kind, format, detail, channel as u8]);
        match self {
            Frame::Parcel(_, Buffer::F32(values)) => {
                put_numbers(&mut bytes, values, |value| value.to_le_bytes());
            }
            Frame::Parcel(_, Buffer::F64(values)) => {
                put_numbers(&mut bytes, values, |value| value.to_le_bytes());
            }
            Frame::Parcel(_, Buffer::Bf16(values)) => {
                put_numbers(&mut bytes, values, |value| value.to_le_bytes());
            }
            Frame::Words(words) => bytes.extend_from_slice(words.cause.as_bytes()),
            Frame::Parcel(_, Buffer::Nothing | Buffer::OnCard(_)) | Frame::Goodbye => {}
        }
        bytes
    }

    /// What it is, for messages.
    pub fn name(&self) -> String {
        match self {
            Frame::Parcel(tag, _) => tag.to_string(),
            Frame::Words(_) => "last words".to_string(),
            Frame::Goodbye => "a goodbye".to_string(),
        }
    }

    /// Read back.
    ///
    /// # Errors
    /// [`NoFrame`] for anything that [`Frame::to_bytes`] does not write.
    pub fn of_bytes(bytes: &[u8]) -> Result<Frame, NoFrame> {
        read(bytes).ok_or(NoFrame { length: bytes.len() })
    }
}

fn read(bytes: &[u8]) -> Option<Frame> {
    let (header, body) = bytes.split_at_checked(HEADER)?;
    let number = |at: usize| header.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (step, second, third) = (number(4)?, number(8)?, number(12)?);
    let channel = match (header[0], header[3]) {
        (_, 0) => Channel::InOrder,
        (1, channel) => *Channel::ALL.get(usize::from(channel))?,
        _ => return None,
    };
    let what = match (header[0], header[2]) {
        (0, detail @ 0..4) => What::P2pOp(P2pOp {
            way: if detail % 2 == 1 { Way::Receive } else { Way::Send },
            payload: if detail >= 2 { Payload::Gradient } else { Payload::Activation },
            stage: third.try_into().ok()?,
            microbatch: second,
        }),
        (1, detail) => {
            let operation = *OPERATIONS.get(usize::from(detail))?;
            What::Part(Part { operation, call: second, group: third, channel })
        }
        (2, state) => {
            let cause = String::from_utf8_lossy(body).into_owned();
            return Some(Frame::Words(LastWords { training_step: step, index: second, state, cause }));
        }
        (3, 0) if body.is_empty() => return Some(Frame::Goodbye),
        _ => return None,
    };
    // A message names a stage before its own only if there is one.
    if let What::P2pOp(P2pOp { way, payload, stage: 0, .. }) = what
        && (way == Way::Receive) == (payload == Payload::Activation)
    {
        return None;
    }
    let buffer = match header[1] {
        0 if body.is_empty() => Buffer::Nothing,
        1 => Buffer::F32(numbers(body, f32::from_le_bytes)?),
        2 => Buffer::F64(numbers(body, f64::from_le_bytes)?),
        3 => Buffer::Bf16(numbers(body, bf16::from_le_bytes)?),
        _ => return None,
    };
    Some(Frame::Parcel(Tag { step, what }, buffer))
}

/// In one go, which becomes a copy of memory.
fn put_numbers<const N: usize, T: Copy>(bytes: &mut Vec<u8>, values: &[T], to: impl Fn(T) -> [u8; N]) {
    bytes.resize(HEADER + N * values.len(), 0);
    let (chunks, _) = bytes[HEADER..].as_chunks_mut::<N>();
    for (chunk, value) in chunks.iter_mut().zip(values) {
        *chunk = to(*value);
    }
}

fn numbers<const N: usize, T>(body: &[u8], of: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let (chunks, rest) = body.as_chunks::<N>();
    rest.is_empty().then(|| chunks.iter().map(|chunk| of(*chunk)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = What> {
        (any::<bool>(), any::<bool>(), 1u16.., any::<u32>()).prop_map(|(receive, gradient, stage, microbatch)| {
            let way = if receive { Way::Receive } else { Way::Send };
            let payload = if gradient { Payload::Gradient } else { Payload::Activation };
            What::P2pOp(P2pOp { way, payload, stage, microbatch })
        })
    }

    fn part() -> impl Strategy<Value = What> {
        let channel = proptest::sample::select(&Channel::ALL[..]);
        (proptest::sample::select(&OPERATIONS[..]), any::<u32>(), any::<u32>(), channel)
            .prop_map(|(operation, call, group, channel)| What::Part(Part { operation, call, group, channel }))
    }

    fn buffer() -> impl Strategy<Value = Buffer> {
        prop_oneof![
            Just(Buffer::Nothing),
            proptest::collection::vec(-1e30f32..1e30, 0..40).prop_map(Buffer::F32),
            proptest::collection::vec(-1e300f64..1e300, 0..40).prop_map(Buffer::F64),
            proptest::collection::vec((-1e30f32..1e30).prop_map(bf16::from_f32), 0..40).prop_map(Buffer::Bf16),
        ]
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let words =
            (any::<u32>(), any::<u32>(), any::<u8>(), ".{0,30}").prop_map(|(training_step, index, state, cause)| {
                Frame::Words(LastWords { training_step, index, state, cause })
            });
        prop_oneof![
            (any::<u32>(), prop_oneof![message(), part()], buffer())
                .prop_map(|(step, what, buffer)| Frame::Parcel(Tag { step, what }, buffer)),
            words,
            Just(Frame::Goodbye),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_read_back(frame in frame()) {
            prop_assert_eq!(Frame::of_bytes(&frame.to_bytes()), Ok(frame));
        }

        #[test]
        fn what_reads_is_what_would_be_written(mut bytes in frame().prop_map(|frame| frame.to_bytes()),
                                               at in 0usize..20, value in any::<u8>(), cut in 0usize..60) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(bytes.len().saturating_sub(cut % 9));
            // Nothing panics, and a parcel's bytes have one meaning.
            if let Ok(frame @ Frame::Parcel(..)) = Frame::of_bytes(&bytes) {
                prop_assert_eq!(frame.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_nan_keeps_its_bits() {
        let tag = Tag::of(0, "0SEND_F0".parse().expect("a message"));
        let nan = f32::from_bits(0x7fc1_2345);
        let bytes = Frame::Parcel(tag, Buffer::F32(vec![nan])).to_bytes();
        let Ok(Frame::Parcel(_, Buffer::F32(values))) = Frame::of_bytes(&bytes) else { panic!("it reads back") };
        assert_eq!(values[0].to_bits(), nan.to_bits());
    }
}
