//! Kernels and launches on the emulated card, if there is a C++ compiler.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::card::Card;
use super::emulated::Host;
use crate::runner::Device;
use crate::selftest::{self, Asked, News, Part, Row, Share};

/// A card, or nothing (said plainly) where there is no compiler.
pub fn host() -> Option<Arc<dyn Card>> {
    match Host::new() {
        Ok(host) => Some(Arc::new(host)),
        Err(error) if error.to_string().contains("cannot be started") => {
            eprintln!("SKIPPED: kernels are not run: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// All that a GPU's selftest does of `part`, on the emulated card, if there is one: at least `least` rows, all of which pass.
fn holds(part: Part, rows: usize) {
    if host().is_none() {
        return;
    }
    let tell = |news| {
        if let News::Found(row) = news {
            println!("{:70} {:50} {}", row.name, row.found, row.against);
        }
    };
    let deadline = Instant::now() + Duration::from_secs(3600);
    let asked = Asked {
        device: Device::Emulated,
        only: Some(part),
        apart: false,
        deadline,
        past: BTreeSet::new(),
        share: Share::ALL,
    };
    let report = selftest::run(asked, tell);
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    let failed: Vec<&Row> = report.rows.iter().filter(|row| row.passed != Some(true)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(report.rows.len() > rows, "{} rows", report.rows.len());
}

#[test]
fn slow_every_kernel_computes_what_the_cpu_does() {
    holds(Part::Operators, 60);
}

#[test]
fn slow_whole_plans_train_as_the_cpu_does() {
    holds(Part::Runs, 20);
}
