//! The exact search behind the plan on screen.

use leptos::prelude::*;
use pipeplan_core::schedule::BEST;

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
        // A schedule that a person has chosen stays until they take the better one.
        let is_searched = self.form.with_untracked(|form| matches!(form.text("schedule"), "" | BEST));
        if is_searched || self.open_plan_file.with_value(Option::is_some) {
            self.show_better();
        }
    }

    /// Shows the better plan that the exact search has found.
    pub fn show_better(self) {
        if let Some(better) = self.proof.with_untracked(|proof| proof.better.clone()) {
            self.open_text(&better);
        }
    }

    /// The cost of a better plan than the one on screen that the exact search has found.
    pub fn better_ns(self) -> Option<u64> {
        let better = self.proof.with(|proof| proof.better.clone().filter(|_| proof.state == State::Over))?;
        // Read with the plan on screen: it changes when the better one is shown.
        self.scene.with(|_| ());
        (!self.shows_file(&better)).then(|| self.proof.with(|proof| proof.value_ns))
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
