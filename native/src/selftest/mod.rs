//! Proves in one call that a device computes what it should, holds the bytes that plans predict, and how fast it is.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pipeplan_core::profile::Profile;

use crate::runner::Device;

pub mod child;
pub mod collectives;
#[cfg(feature = "cuda")]
pub mod operators;
#[cfg(feature = "cuda")]
pub(crate) mod speed;
pub(crate) mod whole;

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it belongs to.
    pub group: &'static str,
    /// What was checked.
    pub name: String,
    /// What was found, for people.
    pub found: String,
    /// What it is held against, for people.
    pub against: String,
    /// Whether it holds; none where it only informs.
    pub passed: Option<bool>,
}

impl Row {
    /// A relative error and what it may be.
    pub fn error(group: &'static str, name: impl Into<String>, error: f64, limit: f64) -> Row {
        let (found, against) = (format!("{error:.2e}"), format!("at most {limit:.0e}"));
        Row { group, name: name.into(), found, against, passed: Some(error <= limit) }
    }

    /// Something that holds or not.
    pub fn fact(
        group: &'static str,
        name: impl Into<String>,
        found: impl Into<String>,
        against: &str,
        holds: bool,
    ) -> Row {
        Row { group, name: name.into(), found: found.into(), against: against.to_string(), passed: Some(holds) }
    }

    /// A figure that only informs.
    pub fn figure(group: &'static str, name: impl Into<String>, found: String, against: String) -> Row {
        Row { group, name: name.into(), found, against, passed: None }
    }

    /// Something that could not be done.
    pub fn broken(group: &'static str, name: impl Into<String>, error: &dyn std::fmt::Display) -> Row {
        let found = error.to_string();
        Row { group, name: name.into(), found, against: String::new(), passed: Some(false) }
    }

    /// This row, failed for another reason.
    pub fn failed(self, reason: &str) -> Row {
        Row { against: reason.to_string(), passed: Some(false), ..self }
    }
}

/// All that was checked.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was tested, for people.
    pub device: String,
    /// In the order in which it was checked.
    pub rows: Vec<Row>,
    /// The measured times of operators, of a GPU.
    pub profile: Option<Profile>,
    /// Tokens a second of one rank on a GPU, where they were measured.
    pub rate: Option<f64>,
}

/// What is told while a test goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The device has been opened, for people.
    Device(String),
    /// This begins.
    Begins(String),
    /// This was found.
    Found(Row),
}

/// Collects rows, and tells of each as it comes.
pub struct Rows<F> {
    rows: Vec<Row>,
    tell: F,
    /// When no further section begins.
    deadline: Instant,
}

impl<F: FnMut(News)> Rows<F> {
    /// None yet; sections that would begin after `deadline` fail instead.
    pub fn new(deadline: Instant, tell: F) -> Rows<F> {
        Rows { rows: Vec::new(), tell, deadline }
    }

    /// Adds one.
    pub fn push(&mut self, row: Row) {
        (self.tell)(News::Found(row.clone()));
        self.rows.push(row);
    }

    /// A part of the test that fails alone: what goes wrong in it, a panic too, is a row, and the others go on.
    pub fn section<T, E: Display>(
        &mut self,
        group: &'static str,
        name: &str,
        work: impl FnOnce(&mut Rows<F>) -> Result<T, E>,
    ) -> Option<T> {
        if Instant::now() >= self.deadline {
            self.push(Row::broken(group, name, &"not begun: the time for all is over"));
            return None;
        }
        (self.tell)(News::Begins(format!("{group}: {name}")));
        let error = match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                format!("it panicked: {}", text.unwrap_or_default())
            }
        };
        self.push(Row::broken(group, name, &error));
        None
    }
}

/// A part of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Every operator.
    Operators,
    /// Runs of whole plans, and NCCL.
    Runs,
    /// Times, of a GPU.
    Speed,
}

/// Tests `device` until `deadline`, all or only a part, telling of each row as it comes. With `apart` every tensor of the
/// operators lies in memory of its own, as checkers of memory want it.
///
/// # Errors
/// Why the device cannot be used at all.
pub fn run(
    device: Device,
    only: Option<Part>,
    apart: bool,
    deadline: Instant,
    mut tell: impl FnMut(News),
) -> Result<Report, String> {
    let has = |part| only.is_none_or(|only| only == part);
    let _ = apart;
    match device {
        Device::Cpu => {
            let mut rows = Rows::new(deadline, tell);
            whole::check(device, &mut rows);
            Ok(Report { device: "CPU".to_string(), rows: rows.rows, profile: None, rate: None })
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err("this binary was built without the feature `cuda`".to_string()),
        #[cfg(feature = "cuda")]
        _ => {
            use crate::backend::cuda::{Opening, open_as};
            let opening = Opening { apart, ..Opening::default() };
            let card = open_as(device, opening).map_err(|error| error.to_string())?;
            let name = card.name();
            tell(News::Device(name.clone()));
            let mut rows = Rows::new(deadline, tell);
            if has(Part::Operators) {
                rows.section("operators", "all", |rows| {
                    operators::cases().iter().for_each(|case| rows.push(case.check(&card)));
                    operators::fused(&card).into_iter().for_each(|row| rows.push(row));
                    Ok::<_, String>(())
                });
                rows.section("operators", "giving memory back", |_| card.trim());
            }
            if has(Part::Runs) {
                whole::check(device, &mut rows);
            }
            let mut speed = speed::Speed::default();
            if let Device::Cuda(_) = device {
                if has(Part::Runs) {
                    nccl(&card, &mut rows);
                }
                if has(Part::Speed) {
                    match speed::Sizes::suiting(card.device_memory().map(|(_, all)| all)) {
                        Some(sizes) => speed = speed::check(device, &card, &mut rows, &sizes),
                        None => rows.push(Row::broken("speed", "sizes", &"the catalog has no cpu")),
                    }
                }
            }
            Ok(Report { device: name, rows: rows.rows, profile: speed.profile, rate: speed.rate })
        }
    }
}

/// PyTorch's speed on the model of the report, where python3 has it, beside the report's; until `deadline`.
#[cfg(feature = "cuda")]
pub fn beside_torch(device: Device, ours: f64, deadline: Instant) -> Row {
    speed::beside_torch(device, ours, deadline)
}

/// A communicator of one rank through the real library: sums, and a message to itself.
#[cfg(feature = "cuda")]
fn nccl<F: FnMut(News)>(card: &std::sync::Arc<dyn crate::backend::cuda::card::Card>, rows: &mut Rows<F>) {
    const GROUP: &str = "NCCL";
    match crate::transport::nccl::Library::load() {
        Err(error) => rows.push(Row::figure(GROUP, "library", "not found".to_string(), error.to_string())),
        Ok(library) => {
            let name = format!("one rank through NCCL {}", library.version());
            rows.section(GROUP, &name, |rows| {
                let error = crate::transport::nccl::selftest(library, card)?;
                rows.push(Row::error(GROUP, name.clone(), error, 0.0));
                Ok::<_, crate::transport::nccl::NcclError>(())
            });
        }
    }
}
