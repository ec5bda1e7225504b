//! Checks in one call that a device computes correct results, holds the bytes that plans predict, and how fast it is.
//!
//! - In: a device or a transport, and a time limit.
//! - Out: rows of a table, each passed or failed.
//! - Knows: backends, the runner and transports. Nothing depends on this folder.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pipeplan_core::hardware::profile::Profile;
use serde::{Deserialize, Serialize};

use crate::runner::Device;

pub mod collectives;
#[cfg(feature = "cuda")]
pub mod operators;
#[cfg(feature = "cuda")]
pub mod ring_attention;
#[cfg(feature = "cuda")]
pub(crate) mod speed;
pub mod subprocess;
pub(crate) mod training_runs;
#[cfg(feature = "cuda")]
mod warp_group_attention;

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it belongs to.
    pub group: Cow<'static, str>,
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
    pub fn error(group: impl Into<Cow<'static, str>>, name: impl Into<String>, error: f64, limit: f64) -> Row {
        let (found, against) = (format!("{error:.2e}"), format!("at most {limit:.0e}"));
        Row { group: group.into(), name: name.into(), found, against, passed: Some(error <= limit) }
    }

    /// Something that holds or not.
    pub fn fact(
        group: impl Into<Cow<'static, str>>,
        name: impl Into<String>,
        found: impl Into<String>,
        against: &str,
        holds: bool,
    ) -> Row {
        Row {
            group: group.into(),
            name: name.into(),
            found: found.into(),
            against: against.to_string(),
            passed: Some(holds),
        }
    }

    /// A figure that only informs.
    pub fn figure(
        group: impl Into<Cow<'static, str>>,
        name: impl Into<String>,
        found: String,
        against: String,
    ) -> Row {
        Row { group: group.into(), name: name.into(), found, against, passed: None }
    }

    /// Something that could not be done.
    pub fn broken(
        group: impl Into<Cow<'static, str>>,
        name: impl Into<String>,
        error: &dyn std::fmt::Display,
    ) -> Row {
        let found = error.to_string();
        Row { group: group.into(), name: name.into(), found, against: String::new(), passed: Some(false) }
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum News {
    /// The device has been opened, for people.
    Device(String),
    /// This section begins.
    Begins(String),
    /// This was found in it.
    Found(Row),
    /// The times of a model's operators, as the text of a profile.
    Profile(String),
    /// Tokens a second of one rank.
    Rate(f64),
    /// This section is over, and nothing that comes needs its result.
    Ended(String),
    /// Since the section that began last the device answers nothing that this process asks: the rest is for another one.
    Lost,
}

/// Collects rows and what was measured, and tells of each as it comes.
pub struct Rows<F> {
    rows: Vec<Row>,
    profile: Option<Profile>,
    rate: Option<f64>,
    tell: F,
    /// When no further section begins.
    deadline: Instant,
    /// Sections that are left out.
    past: BTreeSet<String>,
    /// Which of the others are done here.
    share: Share,
    /// How many there have been.
    seen: usize,
    /// Whether the device still answers.
    is_well: Box<dyn Fn() -> bool>,
    is_lost: bool,
}

impl<F: FnMut(News)> Rows<F> {
    /// None yet; sections that would begin after `deadline` fail instead.
    pub fn new(deadline: Instant, tell: F) -> Rows<F> {
        let is_well = Box::new(|| true);
        let (past, share) = (BTreeSet::new(), Share::ALL);
        let (rows, profile, rate, seen, is_lost) = (Vec::new(), None, None, 0, false);
        Rows { rows, profile, rate, tell, deadline, past, share, seen, is_well, is_lost }
    }

    /// Does only this share of the sections on which nothing builds.
    #[must_use]
    pub fn sharing(self, share: Share) -> Rows<F> {
        Rows { share, ..self }
    }

    /// Leaves out the sections in `past`, and all that come after one that failed and behind which `is_well` says no.
    #[must_use]
    pub fn going_on(self, past: BTreeSet<String>, is_well: impl Fn() -> bool + 'static) -> Rows<F> {
        Rows { past, is_well: Box::new(is_well), ..self }
    }

    /// Adds one.
    pub fn push(&mut self, row: Row) {
        (self.tell)(News::Found(row.clone()));
        self.rows.push(row);
    }

    /// Keeps the times of a model's operators: whatever becomes of what follows, they are known.
    pub fn measured(&mut self, profile: Profile) {
        (self.tell)(News::Profile(profile.to_json()));
        self.profile = Some(profile);
    }

    /// Keeps the tokens a second of one rank.
    pub fn reached(&mut self, rate: f64) {
        (self.tell)(News::Rate(rate));
        self.rate = Some(rate);
    }

    /// All that came together.
    fn report(self, device: String) -> Report {
        Report { device, rows: self.rows, profile: self.profile, rate: self.rate }
    }

    /// Whether no further section begins.
    pub fn is_over(&self) -> bool {
        self.is_lost || Instant::now() >= self.deadline
    }

    /// A part of the test that fails alone: what goes wrong in it, a panic too, is a row, and the others go on. Nothing where
    /// it failed or was left out.
    pub fn section<T, E: Display>(
        &mut self,
        group: &'static str,
        name: &str,
        work: impl FnOnce(&mut Rows<F>) -> Result<T, E>,
    ) -> Option<T> {
        self.begin(group, name, true, work)
    }

    /// A section on which others build: a process that goes on with the test does it again, unless it failed.
    pub fn groundwork<T, E: Display>(
        &mut self,
        group: &'static str,
        name: &str,
        work: impl FnOnce(&mut Rows<F>) -> Result<T, E>,
    ) -> Option<T> {
        self.begin(group, name, false, work)
    }

    fn begin<T, E: Display>(
        &mut self,
        group: &'static str,
        name: &str,
        once: bool,
        work: impl FnOnce(&mut Rows<F>) -> Result<T, E>,
    ) -> Option<T> {
        let section = format!("{group}: {name}");
        if self.is_lost || self.past.contains(&section) {
            return None;
        }
        if once {
            self.seen += 1;
            if self.seen % self.share.of != self.share.number {
                return None;
            }
        }
        if Instant::now() >= self.deadline {
            self.push(Row::broken(group, name, &"not begun: the time for all is over"));
            return None;
        }
        (self.tell)(News::Begins(section.clone()));
        let before = self.rows.len();
        let error = match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                Err(format!("it panicked: {}", text.unwrap_or_default()))
            }
        };
        let result = error.map_err(|error| self.push(Row::broken(group, name, &error))).ok();
        if self.rows[before..].iter().any(|row| row.passed == Some(false)) && !(self.is_well)() {
            self.is_lost = true;
            (self.tell)(News::Lost);
        } else if once || result.is_none() {
            (self.tell)(News::Ended(section));
        }
        result
    }
}

/// One of several shares of the sections, for a process each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Below `of`.
    pub number: usize,
    /// At least 1.
    pub of: usize,
}

impl Share {
    /// All of them.
    pub const ALL: Share = Share { number: 0, of: 1 };
}

/// A part of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Every operator.
    Operators,
    /// Those that are not made of products, once each and on short sequences: for a checker, under which that takes minutes.
    Kernels,
    /// Runs of whole plans, and NCCL.
    Runs,
    /// Times, of a GPU.
    Speed,
}

/// How much of the operators is tested.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All of them, more than once, so that what is no function of its inputs shows.
    Whole,
    /// [`Part::Kernels`].
    Briefly,
}

/// What is to be tested.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The device.
    pub device: Device,
    /// Only this part of it.
    pub only: Option<Part>,
    /// Every tensor of the operators lies in its own memory, as checkers of memory want it.
    pub apart: bool,
    /// When no further section begins.
    pub deadline: Instant,
    /// Sections that another process has done.
    pub past: BTreeSet<String>,
    /// Which of the others are asked for.
    pub share: Share,
}

/// Tests what is asked for, telling of each row as it comes. Where the device is lost on the way it stops there.
///
/// # Errors
/// Why the device cannot be used at all.
pub fn run(asked: Asked, tell: impl FnMut(News)) -> Result<Report, String> {
    match asked.device {
        Device::Cpu => {
            let mut rows = Rows::new(asked.deadline, tell).going_on(asked.past, || true);
            training_runs::check(asked.device, &mut rows);
            Ok(rows.report("CPU".to_string()))
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err("this binary was built without the feature `cuda`".to_string()),
        #[cfg(feature = "cuda")]
        _ => on_card(asked, tell),
    }
}

#[cfg(feature = "cuda")]
fn on_card(asked: Asked, mut tell: impl FnMut(News)) -> Result<Report, String> {
    use crate::backend::cuda::{Opening, open_as};
    let Asked { device, only, apart, deadline, past, share } = asked;
    let has = |part| only.is_none_or(|only| only == part);
    let opening = Opening { apart, ..Opening::default() };
    let card = open_as(device, opening).map_err(|error| error.to_string())?;
    let name = card.name();
    tell(News::Device(name.clone()));
    let asked = std::sync::Arc::clone(&card);
    let mut rows = Rows::new(deadline, tell).going_on(past, move || operators::answers(&asked)).sharing(share);
    if has(Part::Operators) || has(Part::Kernels) {
        // Other devices have none.
        if let Device::Cuda(_) = device {
            warp_group_attention::check(&card, apart, &mut rows);
        }
        let extent = if only == Some(Part::Kernels) { Extent::Briefly } else { Extent::Whole };
        operators::check(&card, extent, &mut rows);
        ring_attention::check(&card, extent, &mut rows);
    }
    if has(Part::Runs) {
        training_runs::check(device, &mut rows);
    }
    if let Device::Cuda(_) = device {
        if has(Part::Runs) {
            nccl(&card, &mut rows);
        }
        if has(Part::Speed) {
            match speed::Sizes::suiting(card.device_memory().map(|(_, all)| all)) {
                Some(sizes) => speed::check(device, &card, &mut rows, &sizes),
                None => rows.push(Row::broken("speed", "sizes", &"the catalog has no cpu")),
            }
        }
    }
    Ok(rows.report(name))
}

/// PyTorch's speed on the model of the report, where python3 has it, beside the report's; until `deadline`.
#[cfg(feature = "cuda")]
pub fn compare_with_torch(device: Device, ours: f64, deadline: Instant) -> Row {
    speed::compare_with_torch(device, ours, deadline)
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;

    /// Sections fail alone while the device answers; from where it does not, none begins; those of an earlier process are
    /// left out.
    #[test]
    fn sections_end_where_the_device_is_lost() {
        let told = Rc::new(std::cell::RefCell::new(Vec::new()));
        let (tell, asked) = (Rc::clone(&told), Rc::new(Cell::new(0)));
        let count = Rc::clone(&asked);
        let mut rows = Rows::new(Instant::now() + Duration::from_secs(600), move |news| tell.borrow_mut().push(news))
            .going_on(BTreeSet::from(["g: past".to_string()]), move || {
                count.set(count.get() + 1);
                count.get() < 3
            });
        assert_eq!(rows.section("g", "past", |_| Ok::<_, String>(1)), None);
        assert_eq!(rows.groundwork("g", "ground", |_| Ok::<_, String>(2)), Some(2));
        assert_eq!(rows.section("g", "fails", |_| Err::<u8, _>("why")), None);
        let failing = |rows: &mut Rows<_>| {
            rows.push(Row::error("g", "row", 1.0, 0.5));
            Ok::<_, String>(3)
        };
        assert_eq!(rows.section("g", "has a failing row", failing), Some(3));
        assert_eq!(asked.get(), 2, "a device is asked only where something failed");
        assert_eq!(rows.section("g", "lost", |_| -> Result<u8, String> { panic!("it breaks") }), None);
        assert_eq!(rows.section("g", "behind", |_| Ok::<_, String>(4)), None);
        let names: Vec<String> = told
            .borrow()
            .iter()
            .map(|news| match news {
                News::Begins(name) => format!("begins {name}"),
                News::Ended(name) => format!("ended {name}"),
                News::Found(row) => format!("{}: {}", row.name, row.found),
                other => format!("{other:?}"),
            })
            .collect();
        let expected = [
            "begins g: ground",
            "begins g: fails",
            "fails: why",
            "ended g: fails",
            "begins g: has a failing row",
            "row: 1.00e0",
            "ended g: has a failing row",
            "begins g: lost",
            "lost: it panicked: it breaks",
            "Lost",
        ];
        assert_eq!(names, expected);
    }
}
