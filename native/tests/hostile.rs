//! Files from anywhere: the readers of the runner, on mutations of their corpora.

#[path = "../../fuzz/mutations.rs"]
#[allow(dead_code, reason = "tests of the planner use it all")]
mod mutations;
#[path = "../../fuzz/native/targets.rs"]
mod targets;

/// On what no run before has tried. A find is written to `fuzz/found`, and goes into the corpus with the mend.
#[test]
fn fresh_mutations_of_the_corpus_hurt_nothing() {
    mutations::try_fresh_ones(&targets::TARGETS);
}
