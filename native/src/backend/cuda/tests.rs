//! Kernels and launches on the host's stand-in, where there is a C++ compiler.

use std::sync::Arc;

use super::card::Card;
use super::host::Host;
use crate::selftest::operators::cases;

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

#[test]
fn every_operator_is_the_cpus() {
    let Some(card) = host() else { return };
    let mut failed = Vec::new();
    for case in cases() {
        let row = case.check(&card);
        println!("{:60} {:10} {}", row.name, row.found, row.against);
        if row.passed != Some(true) {
            failed.push(row);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
