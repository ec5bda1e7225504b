//! Proves in one call that a device computes what it should, holds the bytes that plans predict, and how fast it is.

use pipeplan_core::profile::Profile;

use crate::runner::Device;

pub mod collectives;
#[cfg(feature = "cuda")]
pub mod operators;
#[cfg(feature = "cuda")]
mod speed;
mod whole;

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
}

/// Collects rows, and tells of each as it comes.
struct Rows<F> {
    rows: Vec<Row>,
    tell: F,
}

impl<F: FnMut(&Row)> Rows<F> {
    fn push(&mut self, row: Row) {
        (self.tell)(&row);
        self.rows.push(row);
    }
}

/// Tests `device`, telling of each row as it comes.
///
/// # Errors
/// Why the device cannot be used at all.
pub fn run(device: Device, tell: impl FnMut(&Row)) -> Result<Report, String> {
    let mut rows = Rows { rows: Vec::new(), tell };
    match device {
        Device::Cpu => {
            whole::check(device, &mut rows);
            Ok(Report { device: "CPU".to_string(), rows: rows.rows, profile: None })
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err("this binary was built without the feature `cuda`".to_string()),
        #[cfg(feature = "cuda")]
        _ => {
            let card = crate::backend::cuda::open(device).map_err(|error| error.to_string())?;
            let name = card.name();
            for case in operators::cases() {
                rows.push(case.check(&card));
            }
            whole::check(device, &mut rows);
            let mut profile = None;
            if let Device::Cuda(_) = device {
                nccl(&card, &mut rows);
                profile = speed::Sizes::large().and_then(|sizes| speed::check(device, &card, &mut rows, &sizes));
            }
            Ok(Report { device: name, rows: rows.rows, profile })
        }
    }
}

/// A communicator of one rank through the real library: sums, and a message to itself.
#[cfg(feature = "cuda")]
fn nccl<F: FnMut(&Row)>(card: &std::sync::Arc<dyn crate::backend::cuda::card::Card>, rows: &mut Rows<F>) {
    const GROUP: &str = "NCCL";
    match crate::transport::nccl::Library::load() {
        Err(error) => rows.push(Row::figure(GROUP, "library", "not found".to_string(), error.to_string())),
        Ok(library) => {
            let name = format!("one rank through NCCL {}", library.version());
            match crate::transport::nccl::selftest(library, card) {
                Ok(error) => rows.push(Row::error(GROUP, name, error, 0.0)),
                Err(error) => rows.push(Row::broken(GROUP, name, &error)),
            }
        }
    }
}
