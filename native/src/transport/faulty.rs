//! A transport that breaks on purpose, the same way for the same seed: for tests of what a run does when
//! the world breaks its promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use half::bf16;

use super::collectives::{Call, Operation};
use super::{Buffer, Incoming, Outgoing, Transport, TransportError};
use crate::runner::random::SplitMix64;

/// What goes wrong on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of delays and losses; mixed with the rank.
    pub seed: u64,
    /// Each exchange starts late by up to this much.
    pub delay: Duration,
    /// How many of 1000 sends are lost without a word.
    pub lost_per_mille: u32,
    /// How many of 1000 sends lose their last element.
    pub short_per_mille: u32,
    /// At this exchange (0-based) the rank stands still for this long.
    pub stall: Option<(u64, Duration)>,
    /// At this exchange (0-based) the rank's thread dies.
    pub death: Option<u64>,
    /// At this exchange (0-based), or the first after it that sends, one send is lost.
    pub lost: Option<u64>,
    /// At this exchange (0-based), or the first after it that sends, one send loses its last element.
    pub short: Option<u64>,
    /// At this exchange (0-based), or the first after it that sends, one send is sent twice.
    pub twice: Option<u64>,
    /// At this exchange (0-based), or the first after it that sends, one send is held back until the next one to the same rank
    /// has gone.
    pub late: Option<u64>,
    /// At this exchange (0-based), or the first after it that sends values, a bit of one value turns: before a transport makes
    /// its checksum, as in a faulty memory.
    pub corrupt: Option<u64>,
    /// The rank computes so many thousandths slower: 300 is 1.3 times the time. No transport does this, but who runs its ops.
    pub slower_permille: u32,
}

impl Faults {
    /// Whether something goes wrong that is not only slow.
    pub fn breaks(&self) -> bool {
        *self != Faults { seed: self.seed, slower_permille: self.slower_permille, ..Faults::default() }
    }
}

/// What goes wrong on which rank, as text: `2:death@9` (the rank dies at its tenth exchange), `1:stall@9/30` (stands still
/// there for 30 s), `1:short@9` (a message then loses its last value), `1:lost@9` (one is lost), `1:twice@9` (one is sent twice),
/// `1:late@9` (one comes after the next), `1:corrupt@9` (a bit of one turns), `0:delay@5` (each exchange is up to 5 ms late),
/// `2:slow@1.3` (each op takes 1.3 times as long).
///
/// # Errors
/// What would do.
pub fn read(text: &str) -> Result<(usize, Faults), String> {
    let parse = || {
        let (rank, what) = text.split_once(':')?;
        let (kind, number) = what.split_once('@')?;
        let rank = rank.parse().ok()?;
        if kind == "slow" {
            let times = number.parse::<f64>().ok().filter(|times| (1.0..=1000.0).contains(times))?;
            return Some((rank, Faults { slower_permille: (1000.0 * times) as u32 - 1000, ..Faults::default() }));
        }
        let (number, seconds) = number.split_once('/').map_or((number, None), |(number, rest)| (number, Some(rest)));
        let number = number.parse::<u64>().ok()?;
        let seconds = seconds.map(|seconds| seconds.parse::<u64>().ok());
        let none = Faults::default();
        let faults = match (kind, seconds) {
            ("death", None) => Faults { death: Some(number), ..none },
            ("stall", Some(Some(seconds))) => Faults { stall: Some((number, Duration::from_secs(seconds))), ..none },
            ("short", None) => Faults { short: Some(number), ..none },
            ("lost", None) => Faults { lost: Some(number), ..none },
            ("twice", None) => Faults { twice: Some(number), ..none },
            ("late", None) => Faults { late: Some(number), ..none },
            ("corrupt", None) => Faults { corrupt: Some(number), ..none },
            ("delay", None) => Faults { delay: Duration::from_millis(number.min(60_000)), ..none },
            _ => return None,
        };
        Some((rank, faults))
    };
    parse().ok_or_else(|| {
        "give a rank and a failure: 2:death@9, 2:stall@9/30, 2:short@9, 2:lost@9, 2:twice@9, 2:late@9, 2:corrupt@9, \
         2:delay@5 or 2:slow@1.3"
            .to_string()
    })
}

/// The text with which a rank dies that was told to.
pub const DEATH: &str = "injected failure: this rank dies here";

/// Whether a fault still has to come, for callers without the transport.
#[derive(Clone, Debug)]
pub struct Missed(Arc<AtomicU64>);

impl Missed {
    const NOTHING: u64 = u64::MAX;

    /// The exchanges that the rank has made, where a fault has not come in them.
    pub fn exchanges(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|exchanges| *exchanges != Missed::NOTHING)
    }
}

impl Default for Missed {
    fn default() -> Missed {
        Missed(Arc::new(AtomicU64::new(Missed::NOTHING)))
    }
}

/// `inner` with `faults`.
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
    missed: Missed,
    random: SplitMix64,
    exchanges: u64,
    /// Held back until another one to the same rank has gone.
    held: Option<Outgoing>,
}

impl<T: Transport> Faulty<T> {
    /// Wraps `inner`.
    pub fn new(inner: T, faults: Faults) -> Faulty<T> {
        let random = SplitMix64::new(faults.seed ^ (inner.rank() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let faulty = Faulty { inner, faults, missed: Missed::default(), random, exchanges: 0, held: None };
        faulty.note_missed();
        faulty
    }

    /// What still has to come, now and later.
    pub fn missed(&self) -> Missed {
        self.missed.clone()
    }

    fn note_missed(&self) {
        let Faults { stall, death, lost, short, twice, late, corrupt, .. } = self.faults;
        let later = [death, stall.map(|(at, _)| at)].into_iter().flatten().any(|at| at >= self.exchanges);
        // The others are taken when they come.
        let is_missed = later || [lost, short, twice, late, corrupt].iter().any(Option::is_some);
        self.missed.0.store(if is_missed { self.exchanges } else { Missed::NOTHING }, Ordering::SeqCst);
    }

    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.random.below(1000) < u64::from(per_mille)
    }
}

/// Whether `at` has come; it comes once.
fn is_due(at: &mut Option<u64>, exchange: u64) -> bool {
    at.take_if(|at| *at <= exchange).is_some()
}

fn shortened(buffer: Buffer) -> Buffer {
    match buffer {
        Buffer::F32(mut values) => {
            values.pop();
            Buffer::F32(values)
        }
        Buffer::F64(mut values) => {
            values.pop();
            Buffer::F64(values)
        }
        Buffer::Bf16(mut values) => {
            values.pop();
            Buffer::Bf16(values)
        }
        unchanged @ (Buffer::OnCard(_) | Buffer::Nothing) => unchanged,
    }
}

/// With the highest bit of an exponent turned, in the value in the middle; whether there was one.
fn corrupted(buffer: &mut Buffer) -> bool {
    match buffer {
        Buffer::F32(values) if !values.is_empty() => {
            let middle = values.len() / 2;
            values[middle] = f32::from_bits(values[middle].to_bits() ^ 1 << 30);
            true
        }
        Buffer::F64(values) if !values.is_empty() => {
            let middle = values.len() / 2;
            values[middle] = f64::from_bits(values[middle].to_bits() ^ 1 << 62);
            true
        }
        Buffer::Bf16(values) if !values.is_empty() => {
            let middle = values.len() / 2;
            values[middle] = bf16::from_bits(values[middle].to_bits() ^ 1 << 14);
            true
        }
        _ => false,
    }
}

impl<T: Transport> Faulty<T> {
    /// Dies, stalls or waits if it is time to, and loses, shortens, doubles, turns or holds back some of `sends`.
    fn damage(&mut self, sends: Vec<Outgoing>) -> Vec<Outgoing> {
        let exchange = self.exchanges;
        self.exchanges += 1;
        if self.faults.death == Some(exchange) {
            // As a panic, but without the message on standard error: it is no news.
            std::panic::resume_unwind(Box::new(DEATH));
        }
        if let Some((at, pause)) = self.faults.stall
            && at == exchange
        {
            thread::sleep(pause);
        }
        if !self.faults.delay.is_zero() {
            let most = self.faults.delay.as_nanos() as u64;
            thread::sleep(Duration::from_nanos(self.random.below(most.saturating_add(1).max(1))));
        }
        let mut kept = Vec::with_capacity(sends.len());
        for mut send in sends {
            if is_due(&mut self.faults.lost, exchange) || self.happens(self.faults.lost_per_mille) {
                continue;
            }
            if is_due(&mut self.faults.short, exchange) || self.happens(self.faults.short_per_mille) {
                send.buffer = shortened(send.buffer);
            }
            if self.faults.corrupt.is_some_and(|at| at <= exchange) && corrupted(&mut send.buffer) {
                self.faults.corrupt = None;
            }
            if is_due(&mut self.faults.twice, exchange) {
                kept.push(send.clone());
            }
            if is_due(&mut self.faults.late, exchange) {
                self.held = Some(send);
                continue;
            }
            let peer = send.peer;
            kept.push(send);
            kept.extend(self.held.take_if(|held| held.peer == peer));
        }
        self.note_missed();
        kept
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        let kept = self.damage(sends);
        self.inner.exchange(kept, receives)
    }

    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        let kept = self.damage(sends);
        self.inner.post(kept)
    }

    /// Not an exchange: how often a rank looks differs from run to run, and faults come at a place.
    fn take_arrived(&mut self, receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        self.inner.take_arrived(receives)
    }

    fn check(&mut self) -> Result<(), TransportError> {
        self.inner.check()
    }

    fn barrier(&mut self) -> Result<(), TransportError> {
        self.inner.barrier()
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn has_own(&self, operation: Operation) -> bool {
        self.inner.has_own(operation)
    }

    fn suits_own(&self, ranks: &[usize], values: usize) -> bool {
        self.inner.suits_own(ranks, values)
    }

    fn carries_memory(&self) -> bool {
        self.inner.carries_memory()
    }

    /// Counts as an exchange without sends: the engine's own values are out of reach.
    fn own_collective(&mut self, call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        self.damage(Vec::new());
        self.inner.own_collective(call, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let none = Faults::default();
        for (text, rank, faults) in [
            ("2:death@9", 2, Faults { death: Some(9), ..none }),
            ("0:stall@3/30", 0, Faults { stall: Some((3, Duration::from_secs(30))), ..none }),
            ("1:short@1000", 1, Faults { short: Some(1000), ..none }),
            ("3:twice@4", 3, Faults { twice: Some(4), ..none }),
            ("3:late@4", 3, Faults { late: Some(4), ..none }),
            ("3:corrupt@4", 3, Faults { corrupt: Some(4), ..none }),
            ("1:lost@0", 1, Faults { lost: Some(0), ..none }),
            ("7:delay@5", 7, Faults { delay: Duration::from_millis(5), ..none }),
            ("2:slow@1.3", 2, Faults { slower_permille: 300, ..none }),
        ] {
            assert_eq!(read(text), Ok((rank, faults)), "{text}");
        }
        for text in
            ["", "death@9", "2:death", "2:death@", "2:stall@9", "2:short@-1", "2:fire@1", "x:death@1", "2:death@9/1"]
                .into_iter()
                .chain(["2:slow@0.5", "2:slow@x", "2:slow@1.3/2", "2:slow@inf"])
        {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
