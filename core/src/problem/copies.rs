//! Copies of activations between a rank and its host.

use core::fmt;
use core::str::FromStr;

use super::op::OpSyntax;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyWay {
    /// To the host's memory.
    Offload,
    /// Back to the rank.
    Reload,
}

/// What a copy moves: what F of a stage keeps of one microbatch and may leave to the host
/// ([`StageCost::offload_bytes`](super::StageCost::offload_bytes)). Its text form is stage, way, microbatch: `0OFFLOAD3`,
/// `0RELOAD3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moved {
    /// The way.
    pub way: CopyWay,
    /// The stage, 0-based in model order.
    pub stage: u16,
    /// The microbatch, 0-based.
    pub microbatch: u32,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            CopyWay::Offload => "OFFLOAD",
            CopyWay::Reload => "RELOAD",
        };
        write!(f, "{}{way}{}", self.stage, self.microbatch)
    }
}

impl FromStr for Moved {
    type Err = OpSyntax;

    fn from_str(text: &str) -> Result<Moved, OpSyntax> {
        let parse = || {
            let (stage, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
            let (way, microbatch) = rest.split_at(rest.find(|c: char| c.is_ascii_digit())?);
            let way = match way {
                "OFFLOAD" => CopyWay::Offload,
                "RELOAD" => CopyWay::Reload,
                _ => return None,
            };
            Some(Moved { way, stage: stage.parse().ok()?, microbatch: microbatch.parse().ok()? })
        };
        parse().ok_or_else(|| OpSyntax { text: text.chars().take(40).collect() })
    }
}

/// A copy in the op list of a rank.
///
/// It starts when the op before the position `starts` has ended and the copy before it in the rank's list has ended: a rank
/// has one link to its host, and both ways share it. The op at `ends` waits for it. Between the two it takes none of the
/// rank's time.
///
/// A reload takes its bytes at `starts`. An offload gives its bytes back at `ends`. So what a rank holds follows from the
/// order alone, however long ops and copies take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostCopy {
    /// What it moves.
    pub moved: Moved,
    /// The position in the rank's op list before which it starts.
    pub starts: u32,
    /// The position of the op that waits for it.
    pub ends: u32,
}

/// What is copied, and both positions: `0OFFLOAD3:4-9`.
impl fmt::Display for HostCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.moved, self.starts, self.ends)
    }
}

impl FromStr for HostCopy {
    type Err = OpSyntax;

    fn from_str(text: &str) -> Result<HostCopy, OpSyntax> {
        let parse = || {
            let (moved, places) = text.split_once(':')?;
            let (starts, ends) = places.split_once('-')?;
            let place = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
            Some(HostCopy { moved: moved.parse().ok()?, starts: place(starts)?, ends: place(ends)? })
        };
        parse().ok_or_else(|| OpSyntax { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_text_of_a_copy_is_read_back() {
        for text in ["0OFFLOAD3:4-9", "65535RELOAD4294967295:0-0"] {
            assert_eq!(text.parse::<HostCopy>().map(|copy| copy.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            "OFFLOAD3:4-9",
            "0OFFLOAD:4-9",
            "0OFFLOAD3:4",
            "0OFFLOAD3:-4",
            "0BW3:1-2",
            "70000RELOAD0:0-0",
            "0RELOAD0:+1-2",
        ] {
            assert!(text.parse::<HostCopy>().is_err(), "{text}");
        }
    }
}
