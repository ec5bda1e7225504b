//! An exact search after planning: it finds a better plan, or proves that none exists.

use std::time::Duration;

use indicatif::ProgressBar;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::{Spec, Work};
use pipeplan_exact::{Budget, MOST_OPS, NoProof, Proof, Refused};

use super::failure::Failure;
use super::{format, interrupt};

/// The schema of [`Proof::to_value`].
pub const SCHEMA: &str = include_str!("proof.schema.json");

/// How much less than `of` `ns` is.
fn less(ns: Nanos, of: Nanos) -> String {
    format!("{:.2} % less", 100.0 * (1.0 - ns as f64 / of.max(1) as f64))
}

/// Refuses what [`prove`] could not do with any plan of `spec`, before one is searched for.
pub fn expect_provable(spec: &Spec, seconds: f64) -> Result<(), Failure> {
    if !(seconds > 0.0 && seconds <= 86_400.0) {
        return Err(Failure::input(format!(
            "--prove is {seconds}; give a number of seconds above 0 and up to 86400"
        )));
    }
    let [ranks, chunks, microbatches] = match &spec.work {
        Work::Typed(statement) => [statement.ranks, statement.chunks, statement.microbatches],
        // How many stages each rank has, the schedule says: one at least.
        Work::Model(work) => [work.pipeline as usize, 1, work.microbatches as usize * spec.slices()],
    };
    let ops = [chunks, microbatches].iter().fold(3 * ranks, |ops, count| ops.saturating_mul(*count));
    if ops > MOST_OPS {
        return Err(Failure::input(Refused::TooLarge { ops, most: MOST_OPS }).with_help("leave --prove out"));
    }
    Ok(())
}

/// Runs an exact search for a better plan of the same problem and placement, for at most `seconds`.
pub fn prove(plan: &Plan, seconds: f64) -> Result<Proof, Failure> {
    let stop = interrupt::flag();
    let bar = ProgressBar::new_spinner().with_message("exact search; Ctrl-C keeps what is proved so far");
    bar.enable_steady_tick(Duration::from_millis(200));
    let budget = Budget { stop: Some(stop.shared()), ..Budget::seconds(seconds) };
    let proof = pipeplan_exact::prove(plan, &budget, &mut |_| {});
    bar.finish_and_clear();
    proof.map_err(|error| match error {
        NoProof::Refused(refused) => Failure::input(refused),
        NoProof::Found(found) => Failure::work(found),
    })
}

/// What was proved of `plan`, which is the one that was given or the better one, as a line of a summary.
pub fn sentence(proof: &Proof, plan: &Plan) -> String {
    let cost_ns = plan.prediction.cost_ns(plan.problem.objective());
    let bound = format::duration(proof.lower_ns);
    let text = if proof.lower_ns >= cost_ns {
        "no schedule on this placement costs less".to_owned()
    } else if proof.value_ns < cost_ns {
        let found = format!(
            "a schedule on this placement costs {}, {}",
            format::duration(proof.value_ns),
            less(proof.value_ns, cost_ns)
        );
        match proof.lower_ns >= proof.value_ns {
            true => format!("{found}, and none costs less"),
            false => format!("{found}, and none costs less than {bound}"),
        }
    } else {
        format!("no schedule on this placement costs less than {bound}, {}", less(proof.lower_ns, cost_ns))
    };
    format!("proved        {text}\n")
}
