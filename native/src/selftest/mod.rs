//! Proves in one call that a device computes what the CPU does, holds the bytes that plans predict, and how fast it is.

#[cfg(feature = "cuda")]
pub mod operators;

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
    pub fn error(group: &'static str, name: String, error: f64, limit: f64) -> Row {
        let against = format!("at most {limit:.0e}");
        Row { group, name, found: format!("{error:.2e}"), against, passed: Some(error <= limit) }
    }

    /// Something that holds or not.
    pub fn fact(
        group: &'static str,
        name: impl Into<String>,
        found: impl Into<String>,
        against: impl Into<String>,
        passed: bool,
    ) -> Row {
        Row { group, name: name.into(), found: found.into(), against: against.into(), passed: Some(passed) }
    }

    /// A figure that only informs.
    pub fn figure(
        group: &'static str,
        name: impl Into<String>,
        found: impl Into<String>,
        against: impl Into<String>,
    ) -> Row {
        Row { group, name: name.into(), found: found.into(), against: against.into(), passed: None }
    }

    /// Something that could not be done.
    pub fn broken(group: &'static str, name: String, error: &dyn std::fmt::Display) -> Row {
        Row { group, name, found: error.to_string(), against: String::new(), passed: Some(false) }
    }

    /// This row, failed for another reason.
    pub fn failed(self, reason: &str) -> Row {
        Row { against: reason.to_string(), passed: Some(false), ..self }
    }
}
