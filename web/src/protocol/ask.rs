//! What the page asks the worker.

use serde::{Deserialize, Serialize};

/// From the page to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Grows with each question.
    pub id: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What the page may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Plan this spec with its schedule, then compare all schedules.
    Plan {
        /// The spec as JSON, as a person typed it: it may be full of faults.
        spec: String,
    },
    /// End the search for the best with what it has found.
    Stop,
    /// A search goes on as long as this address can be read: while it computes, no question reaches it.
    SearchWhileReadable {
        /// The address.
        url: String,
    },
    /// The plan file of this spec.
    Export {
        /// The spec as JSON.
        spec: String,
        /// What it is for.
        purpose: Purpose,
    },
    /// Read the file of a plan that was kept before the page was loaded anew.
    OpenKept {
        /// The file.
        text: String,
    },
    /// Read a plan file and show it.
    OpenPlan {
        /// The file.
        text: String,
    },
    /// Plan this spec with an order of compute from elsewhere.
    OpenOrder {
        /// The spec as JSON.
        spec: String,
        /// The order, as a file has it.
        text: String,
    },
    /// The order behind a point of the chart, where this spec has room for it and it is judged by less than `below_ns`.
    OpenPoint {
        /// The spec as JSON.
        spec: String,
        /// What the point holds.
        bytes: u64,
        /// What the plan on screen is judged by.
        below_ns: u64,
    },
    /// Read a trace file and show its last step.
    OpenTrace {
        /// The file.
        text: String,
    },
    /// Take in what torch.profiler wrote of a rank.
    Record {
        /// The files that were opened together: those of an earlier batch are forgotten.
        batch: u32,
        /// What the file is called.
        name: String,
        /// The file.
        text: String,
    },
    /// Make a trace of all that was recorded in a batch.
    Trace {
        /// Which.
        batch: u32,
        /// What ran.
        order: Order,
    },
    /// Take measured times from this profile from now on, or estimates alone.
    Measure {
        /// The file; none: estimates alone.
        profile: Option<String>,
    },
    /// What the passes did to the stages of this spec's plan.
    Passes {
        /// The spec as JSON.
        spec: String,
    },
    /// Look for the fastest layouts of this spec's model, or end the search under way.
    Tune {
        /// The spec as JSON; none ends the search.
        spec: Option<String>,
        /// Devices to use; those of the spec where not said.
        devices: Option<u64>,
    },
    /// Hold the open trace against the plan on screen.
    Calibrate(Order),
    /// Show a step of the open trace, by its position in the file.
    TraceStep {
        /// The position.
        index: u32,
    },
    /// What the time of this order hangs on; nothing any more.
    Sensitivity(Option<Order>),
}

/// The order of a plan, with what it stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The plan's problem, as the JSON of a problem file.
    pub problem: String,
    /// A row of ops for each rank.
    pub rows: Vec<String>,
    /// By rank: where pairs begin in it.
    pub pairs: Vec<Vec<u32>>,
}

impl Ask {
    /// Whether a newer question of this sort makes older ones pointless.
    pub fn supersedes(&self, older: &Ask) -> bool {
        match self {
            Ask::Plan { .. } | Ask::OpenPlan { .. } | Ask::OpenOrder { .. } | Ask::OpenPoint { .. } => matches!(
                older,
                Ask::Plan { .. } | Ask::OpenPlan { .. } | Ask::OpenOrder { .. } | Ask::OpenPoint { .. }
            ),
            Ask::TraceStep { .. } | Ask::OpenTrace { .. } => {
                matches!(older, Ask::TraceStep { .. } | Ask::OpenTrace { .. })
            }
            Ask::Passes { .. } => matches!(older, Ask::Passes { .. }),
            Ask::Calibrate(_) => matches!(older, Ask::Calibrate(_)),
            Ask::Sensitivity(_) => matches!(older, Ask::Sensitivity(_)),
            Ask::Stop | Ask::SearchWhileReadable { .. } => false,
            // Each is a part of what follows.
            Ask::Record { .. } | Ask::Trace { .. } => false,
            Ask::Tune { .. } => matches!(older, Ask::Tune { .. }),
            Ask::Export { purpose, .. } => {
                matches!(older, Ask::Export { purpose: older, .. } if older == purpose)
            }
            Ask::OpenKept { .. } => matches!(older, Ask::OpenKept { .. }),
            Ask::Measure { .. } => matches!(older, Ask::Measure { .. }),
        }
    }
}

/// What a plan file is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A person saves it.
    Download,
    /// An exact search begins with it.
    Proof,
    /// The plan is kept to be compared with others, also after the page is loaded anew.
    Keep,
}
