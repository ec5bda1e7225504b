//! The state of the run that is open, beside the timeline's.

use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;

use super::files::Origin;
use crate::page::trace_client::{Long, TraceClient};
use crate::protocol::{AnalysisRows, HangReport, Place, WhatIfRow};
use crate::scene::Ahead;

/// What the best order for the measured times would save.
#[derive(Clone, Debug, PartialEq)]
pub enum BestOrder {
    /// It was not asked for.
    Unasked,
    /// It is searched: the cost of the best so far and the bound, where they are known.
    Searching(Option<(u64, u64)>),
    /// Found; none where no order can be planned.
    Found(Option<WhatIfRow>),
}

/// Something that takes long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Working {
    /// What.
    pub what: Long,
    /// Its question.
    pub id: u32,
    /// Steps that are done, and how many there are.
    pub steps: Option<[usize; 2]>,
}

/// A round of the loop: a plan, its run, and the plan of the same spec with what the run took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The plan that ran: its schedule and its cost.
    pub first: (String, u64),
    /// The mean step that was measured.
    pub measured_ns: u64,
    /// What the run took, as a file.
    pub profile: String,
}

/// The signals of the run that is open.
#[derive(Clone, Copy)]
pub struct Measuring {
    /// Which file is read, and how many bytes of all of them.
    pub reading: RwSignal<Option<(String, [u64; 2])>>,
    /// How many files were looked at, and how many there are; 0 where that is not known.
    pub looking: RwSignal<Option<[usize; 2]>>,
    /// Who waits in a run that hangs.
    pub hang: RwSignal<Option<Arc<HangReport>>>,
    /// Whether the run is shown without the plan on screen.
    pub alone: RwSignal<bool>,
    /// Whether what the run means is of the shown step, and not of all steps.
    pub of_step: RwSignal<bool>,
    /// The position of the step that was asked for and is not drawn so far.
    pub asked: RwSignal<Option<u32>>,
    /// What the run means.
    pub analysis: RwSignal<Option<Arc<AnalysisRows>>>,
    /// The question of that which is under way.
    pub analysing: RwSignal<Option<u32>>,
    /// How many replays of a step are done of that, and how many there will be at most.
    pub replayed: RwSignal<Option<[usize; 2]>>,
    /// What else takes long and can be stopped, with its question and how far it has come, where that is known.
    pub working: RwSignal<Vec<Working>>,
    /// The best order for the measured times.
    pub best: RwSignal<BestOrder>,
    /// The round of the loop that is shown.
    pub round: RwSignal<Option<Round>>,
    /// Grows with each time that a person gives files: an older look at files ends.
    pub(super) looks: StoredValue<u32>,
    /// Where the files of the run come from that is being read, and the name where it is one file.
    pub(super) opening: StoredValue<Option<(Origin, String)>>,
    /// Whether it is still to be decided whether the run is shown alone: its plan may be on its way.
    pub(super) undecided: StoredValue<bool>,
    /// The question of a search for the best order that is under way.
    pub(super) searching: StoredValue<Option<u32>>,
    /// The op to go to when its step is there.
    pub(super) go_to: StoredValue<Option<Place>>,
    /// Rows that came before their step, and their question.
    pub(super) ahead: StoredValue<(u32, Ahead)>,
    /// The connection to the worker.
    pub(super) client: StoredValue<Option<Rc<TraceClient>>, LocalStorage>,
}

impl Measuring {
    /// Without a run.
    pub(super) fn new() -> Measuring {
        Measuring {
            reading: RwSignal::new(None),
            looking: RwSignal::new(None),
            hang: RwSignal::new(None),
            alone: RwSignal::new(false),
            of_step: RwSignal::new(false),
            asked: RwSignal::new(None),
            analysis: RwSignal::new(None),
            analysing: RwSignal::new(None),
            replayed: RwSignal::new(None),
            working: RwSignal::new(Vec::new()),
            best: RwSignal::new(BestOrder::Unasked),
            round: RwSignal::new(None),
            looks: StoredValue::new(0),
            opening: StoredValue::new(None),
            undecided: StoredValue::new(false),
            searching: StoredValue::new(None),
            go_to: StoredValue::new(None),
            ahead: StoredValue::new((0, Ahead::default())),
            client: StoredValue::new_local(None),
        }
    }

    /// Drops what was said of the run before.
    pub(super) fn forget(self) {
        self.hang.set(None);
        self.of_step.set(false);
        self.asked.set(None);
        self.analysis.set(None);
        self.analysing.set(None);
        self.working.update(Vec::clear);
        self.searching.set_value(None);
        self.best.set(BestOrder::Unasked);
        self.round.set(None);
        self.undecided.set_value(false);
        self.go_to.set_value(None);
    }
}
