//! Mutations of a target's corpus, for tests that have no coverage to go by.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// A name, which is that of a corpus, and what takes any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Where bytes are changed, how, and to what.
pub type Wounds = Vec<(prop::sample::Index, u8, u8)>;

/// A text with some of its bytes changed, cut out, doubled or exchanged.
pub fn damaged_bytes(from: &[u8], wounds: &Wounds) -> Vec<u8> {
    let mut bytes = from.to_vec();
    for (at, how, to) in wounds {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match how % 5 {
            0 => bytes[at] = *to,
            1 => {
                bytes.remove(at);
            }
            2 => bytes.truncate(at),
            3 => bytes.insert(at, *to),
            _ => {
                // A digit for a digit: the likeliest way to a number that is out of range.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    bytes[at + digit] = b'0' + to % 10;
                }
            }
        }
    }
    bytes
}

/// One wound to three.
pub fn wounds() -> impl Strategy<Value = Wounds> {
    proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 1..4)
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name)
}

/// The files in the corpus of `target`, in the order of their names. Scripts have those of the tests of runs too.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let more = (target == "script").then(|| folder("../tests/runs"));
    let files = |folder: PathBuf| {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    };
    let mut paths: Vec<_> = std::iter::once(folder("corpus").join(target)).chain(more).flat_map(files).collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    paths.iter().map(read).collect()
}

/// Each target on its corpus, and on mutations of it that no run before has tried. `PIPEPLAN_FUZZ_SECONDS` says for how long each,
/// `PIPEPLAN_FUZZ_TARGETS` names some of them, and `PIPEPLAN_FUZZ_SEED` tries those of another run again.
pub fn try_fresh_ones(targets: &[Target]) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = number("PIPEPLAN_FUZZ_SEED").unwrap_or_else(fresh);
    let seconds = Duration::from_secs(number("PIPEPLAN_FUZZ_SECONDS").unwrap_or(1));
    let named = std::env::var("PIPEPLAN_FUZZ_TARGETS").unwrap_or_default();
    let is_named = |name: &str| named.is_empty() || named.split(',').any(|target| target == name);
    for (name, target) in targets.iter().filter(|(name, _)| is_named(name)) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name} has a corpus");
        corpus.iter().for_each(|input| target(input));
        let (started, mut executions, mut last) = (Instant::now(), 0u64, Vec::new());
        while started.elapsed() < seconds {
            // What was changed before is changed once more, at times.
            let drawn = (wounds(), any::<prop::sample::Index>(), 0u8..4).new_tree(&mut runner);
            let (wounds, which, again) = drawn.expect("no draw is refused").current();
            let base: &[u8] = if again == 0 && !last.is_empty() { &last } else { which.get(&corpus).as_slice() };
            let input = damaged_bytes(base, &wounds);
            executions += 1;
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                let found = folder("found");
                let file = found.join(format!("{name}-{seed}-{executions}"));
                let _ = std::fs::create_dir_all(&found).and_then(|()| std::fs::write(&file, &input));
                panic!("{name}, seed {seed}, execution {executions}: the input is in {file:?}");
            }
            last = input;
        }
        println!("{name}: {executions} executions, seed {seed}");
    }
}
