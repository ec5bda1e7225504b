//! The clock of a run: when its start was on the clock that all processes of a host share.
//!
//! Linux counts CLOCK_MONOTONIC from the start of the system, for every process alike. So times of two processes of one host
//! compare without any message between them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use pipeplan_core::base::units::Nanos;

/// The start of a run, on this process's clock and on its host's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Which host: the same number for processes that share its clock.
    pub host: u64,
    /// When the run started, by the host's clock.
    pub start_ns: Nanos,
}

impl Clock {
    /// Of a run that started at `start`, which is now. Without a clock that hosts share, every process is a host.
    pub fn of(start: Instant) -> Clock {
        let host = host().unwrap_or_else(|| hash(std::process::id()));
        // The read that took the shortest time says best what both clocks show at once.
        let reads = (0..READS).filter_map(|_| {
            let before = start.elapsed();
            let shown = monotonic_ns()?;
            let after = start.elapsed();
            let middle = (before + after) / 2;
            Some((after - before, shown.saturating_sub(middle.as_nanos() as Nanos)))
        });
        Clock { host, start_ns: reads.min().map_or(0, |(_, ns)| ns) }
    }
}

const READS: usize = 16;

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(target_os = "linux")]
fn monotonic_ns() -> Option<Nanos> {
    use nix::time::{ClockId, clock_gettime};
    let shown = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
    Some((shown.tv_sec() as Nanos).saturating_mul(1_000_000_000).saturating_add(shown.tv_nsec() as Nanos))
}

#[cfg(not(target_os = "linux"))]
fn monotonic_ns() -> Option<Nanos> {
    None
}

/// The start of the system, and the space of time that the process is in: containers may have one each.
fn host() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/time").ok();
    Some(hash((boot, space)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clocks_of_a_process_agree() {
        let first = Instant::now();
        let one = Clock::of(first);
        std::thread::sleep(std::time::Duration::from_millis(3));
        let second = Instant::now();
        let other = Clock::of(second);
        let apart = (second - first).as_nanos() as i128;
        let told = i128::from(other.start_ns) - i128::from(one.start_ns);
        assert_eq!(one.host, other.host);
        assert!((told - apart).abs() < 100_000, "{told} for {apart}");
    }
}
