//! Questions of the page.

use serde::{Deserialize, Serialize};

use crate::form::LayoutQuestion;

/// From the page to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Grows with each question.
    pub id: u32,
    /// The question.
    pub ask: Ask,
}

/// The questions of the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Plan this spec with its schedule, then compare all schedules.
    Plan {
        /// The spec as JSON, as a person typed it. It can have faults.
        spec: String,
    },
    /// Stop the search for the best and keep the best so far.
    Stop,
    /// A search continues while this address can be read. The worker receives no question while it computes.
    SearchWhileReadable {
        /// The address.
        url: String,
    },
    /// The plan file of this spec.
    Export {
        /// The spec as JSON.
        spec: String,
        /// The purpose.
        purpose: Purpose,
    },
    /// Read the file of a plan that was kept before a reload of the page.
    OpenKept {
        /// The file.
        text: String,
    },
    /// Read a plan file and show it.
    OpenPlan {
        /// The file.
        text: String,
    },
    /// Plan this spec with a custom schedule.
    OpenOrder {
        /// The spec as JSON.
        spec: String,
        /// The schedule, as text of a file.
        text: String,
    },
    /// The schedule of a point of the chart, if it fits this spec and costs less than `below_ns`.
    OpenPoint {
        /// The spec as JSON.
        spec: String,
        /// The memory of the point.
        bytes: u64,
        /// The cost of the plan on screen, by the criterion of `best`.
        below_ns: u64,
    },
    /// Use the measured times of this profile from now on, or estimates only.
    Measure {
        /// The file; none: estimates only.
        profile: Option<String>,
    },
    /// The reports of the compiler passes for the plan of this spec.
    Passes {
        /// The spec as JSON.
        spec: String,
    },
    /// Search the fastest layouts of this spec's model, or stop the search.
    Tune {
        /// The spec as JSON; none stops the search.
        spec: Option<String>,
        /// Number of devices; none: that of the spec.
        devices: Option<u64>,
    },
    /// Find the layout of a form whose degrees follow, or stop finding it.
    FindLayout(Option<LayoutQuestion>),
    /// The sensitivity of this schedule; none: stop.
    Sensitivity(Option<Order>),
    /// The plan of this spec, to be kept beside the plan on screen.
    PlanKept {
        /// The spec as JSON.
        spec: String,
    },
    /// As [`Ask::Plan`], while a hand drags: the first plan comes sooner, and a better one after it.
    PlanByHand {
        /// The spec as JSON.
        spec: String,
    },
}

/// The schedule of a plan, with its problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The plan's problem, as the JSON of a problem file.
    pub problem: String,
    /// The op list of each rank.
    pub rows: Vec<String>,
    /// By rank: the positions where pairs begin.
    pub pairs: Vec<Vec<u32>>,
    /// By rank: its copies to and from the host.
    pub copies: Vec<Vec<String>>,
}

impl Ask {
    /// Whether a newer question of this kind replaces the older one.
    pub fn supersedes(&self, older: &Ask) -> bool {
        match self {
            Ask::Plan { .. }
            | Ask::PlanByHand { .. }
            | Ask::OpenPlan { .. }
            | Ask::OpenOrder { .. }
            | Ask::OpenPoint { .. } => matches!(
                older,
                Ask::Plan { .. }
                    | Ask::PlanByHand { .. }
                    | Ask::OpenPlan { .. }
                    | Ask::OpenOrder { .. }
                    | Ask::OpenPoint { .. }
            ),
            Ask::FindLayout(_) => matches!(older, Ask::FindLayout(_)),
            Ask::Passes { .. } => matches!(older, Ask::Passes { .. }),
            Ask::Sensitivity(_) => matches!(older, Ask::Sensitivity(_)),
            Ask::Stop | Ask::SearchWhileReadable { .. } => false,
            Ask::Tune { .. } => matches!(older, Ask::Tune { .. }),
            Ask::Export { purpose, .. } => {
                matches!(older, Ask::Export { purpose: older, .. } if older == purpose)
            }
            Ask::OpenKept { .. } | Ask::PlanKept { .. } => {
                matches!(older, Ask::OpenKept { .. } | Ask::PlanKept { .. })
            }
            Ask::Measure { .. } => matches!(older, Ask::Measure { .. }),
        }
    }
}

/// The purpose of a plan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A person saves it.
    Download,
    /// An exact search starts from it.
    Proof,
    /// The plan is kept for comparison, also after a reload of the page.
    Keep,
    /// A profile is made of it and of the open trace.
    Profile,
}
