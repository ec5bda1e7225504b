//! The exact search behind the plan on screen.

use leptos::prelude::*;

use super::Planner;
use crate::logic::proof::{Proof, State};
use crate::page::panels::figures::PROOF;
use crate::page::{browser, prover};
use crate::protocol::{Ask, Purpose};

impl Planner {
    /// Starts an exact search for a better plan, or for a proof that there is none.
    pub fn prove(self) {
        if let Some(text) = self.open_plan_file.get_value() {
            self.proof.set(Proof::begun());
            self.start_prover(&text);
        } else if let Some(text) = self.read_form() {
            self.proof.set(Proof::begun());
            self.ask(Ask::Export { spec: text, purpose: Purpose::Proof }, false);
        } else {
            self.report(vec![
                "The form has errors, so there is nothing to prove. Correct the marked fields.".to_owned(),
            ]);
        }
    }

    pub(super) fn start_prover(self, plan: &str) {
        // The form may have changed since the plan was asked for.
        if self.proof.with_untracked(|proof| proof.state != State::Running) {
            return;
        }
        match prover::start(self, plan) {
            Some(worker) => self.prover.set_value(Some(worker)),
            None => self.end_proof(State::Failed("this browser cannot start a web worker".to_owned())),
        }
    }

    /// Ends the exact search, and shows the better plan that it found.
    pub fn end_proof(self, state: State) {
        // The stop button disappears.
        if browser::has_focus("[data-test='stop-proof']") {
            browser::focus(PROOF);
        }
        self.stop_prover();
        self.proof.update(|proof| proof.state = state);
        if let Some(better) = self.proof.with_untracked(|proof| proof.better.clone()) {
            self.open_text(&better);
        }
    }

    pub(super) fn stop_prover(self) {
        if let Some(worker) = self.prover.try_update_value(Option::take).flatten() {
            worker.terminate();
        }
    }

    /// Drops the proof: another plan will be on screen.
    pub(super) fn forget_proof(self) {
        self.stop_prover();
        if self.proof.with_untracked(|proof| proof.state != State::None) {
            self.proof.set(Proof::default());
        }
    }
}
