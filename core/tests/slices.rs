//! Sequences cut into slices: schedules, their constraint, memory, bounds and the search.

use pipeplan_core::bounds::{least_memory, lower_bound};
use pipeplan_core::check::{Violation, check_program, check_schedule};
use pipeplan_core::estimate::derive::{Derived, derive};
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::schedule::{find, published};
use pipeplan_core::search::{self, Effort, Flow};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Spec, Work, link};
use serde_json::{Value, json};

/// F, B and W of one slice of a stage.
const TIMES: [u64; 3] = [50, 55, 45];

fn statement(ranks: usize, chunks: usize, sequences: usize, slices: usize, more: Value) -> Value {
    let [forward, input, weight] = TIMES;
    let mut file = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": sequences * slices, "slices": slices, "placement": "any",
        "stages": {
            "forward_ns": forward, "backward_input_ns": input, "backward_weight_ns": weight,
            "forward_bytes": 3, "backward_input_bytes": -1, "backward_weight_bytes": -2,
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        file[key] = value.clone();
    }
    file
}

/// A problem of the schedule's own shape; none where the shape does not exist.
fn problem(name: &str, [ranks, chunks, sequences, slices]: [usize; 4], more: Value) -> Option<Problem> {
    let (placement, chunks) = (find(name).expect("a published schedule").shape)(chunks);
    let mut file = statement(ranks, chunks, sequences, slices, more);
    if name == "combined-1f1b" {
        // It has pairs alone, which hide exchanges.
        (file["stages"]["forward_exchange_ns"], file["stages"]["backward_exchange_ns"]) = (json!(20), json!(30));
    }
    let statement = Statement::read(&file);
    statement.unwrap_or_else(|faults| panic!("{faults}")).problem(placement).ok()
}

fn built(name: &str, problem: &Problem) -> Option<Schedule> {
    find(name).expect("a published schedule").build(problem).ok()
}

/// Causal attention: of the second half of a slice's time, slice `i` of `n` takes `(2i + 1) / n`.
fn causal(sequences: usize, slices: usize) -> Value {
    let factor = |slice: usize| 500 + 500 * (2 * slice + 1) / slices;
    json!((0..sequences * slices).map(|slice| factor(slice % slices)).collect::<Vec<_>>())
}

#[test]
fn every_schedule_of_slices_is_valid_and_lowers_to_a_program_that_completes() {
    let mut counts = std::collections::BTreeMap::new();
    for published in published() {
        for ranks in [1, 2, 3, 4] {
            for chunks in 1..=3 {
                for (sequences, slices) in [(1, 2), (2, 3), (3, 4), (4, 2), (2, 8), (5, 4)] {
                    for hop in [0, 7] {
                        let name = published.name;
                        let more = json!({ "microbatch_factors": causal(sequences, slices), "transfer_ns": hop });
                        let Some(problem) = problem(name, [ranks, chunks, sequences, slices], more) else { continue };
                        let Some(schedule) = built(name, &problem) else { continue };
                        *counts.entry(name).or_insert(0) += 1;
                        let shape = format!("{name} P={ranks} V={chunks} M={sequences} N={slices}");
                        if let Err(violations) = check_schedule(&problem, &schedule) {
                            panic!("{shape}: {}\n{}", violations[0], schedule.text_rows().join("\n"));
                        }
                        let program =
                            lower_as(&problem, &schedule, Lowering::Grouped).expect("checked, so it lowers");
                        assert_eq!(check_program(&problem, &program, Transport::Rendezvous), Ok(()), "{shape}");
                    }
                }
            }
        }
    }
    // All but those that need two directions.
    let absent: Vec<&str> =
        published().iter().map(|one| one.name).filter(|name| !counts.contains_key(name)).collect();
    assert_eq!(absent, ["chimera", "dualpipe"]);
}

/// Schedules of slices are absent where sequences are whole, with a reason.
#[test]
fn schedules_of_slices_need_slices() {
    for name in ["terapipe", "seq1f1b", "seq1f1b-i", "slimpipe"] {
        let whole = problem(name, [4, 2, 8, 1], json!({})).expect("it exists");
        let reason = find(name).expect("published").build(&whole).expect_err("sequences are whole").reason;
        assert!(reason.contains("slices"), "{reason}");
    }
}

/// The closed forms of the papers, with equal slices and free hops: what ranks idle, in F + B + W of one slice of a stage.
#[test]
fn bubbles_are_those_of_the_papers() {
    let one: u64 = TIMES.iter().sum();
    for ranks in [2usize, 4, 8] {
        for slices in [2, 4, 8] {
            for sequences in [2 * ranks / slices.min(ranks), 4 * ranks / slices.min(ranks)] {
                for (name, chunks) in [
                    ("terapipe", 1),
                    ("seq1f1b", 1),
                    ("slimpipe", 1),
                    ("seq1f1b-i", 2),
                    ("slimpipe", 2),
                    ("slimpipe", 3),
                ] {
                    // Seq1F1B-I and SlimPipe's interleaved form want whole rounds of the ranks.
                    if chunks > 1 && !(slices * sequences).is_multiple_of(ranks.next_multiple_of(slices))
                        || name == "slimpipe" && slices < ranks
                        || name == "seq1f1b-i" && !ranks.is_multiple_of(slices)
                    {
                        continue;
                    }
                    let problem = problem(name, [ranks, chunks, sequences, slices], json!({})).expect("it exists");
                    let timeline = simulate(&problem, &built(name, &problem).expect("it exists")).expect("valid");
                    let work = (sequences * slices * chunks) as u64 * one;
                    let shape = format!("{name} P={ranks} V={chunks} M={sequences} N={slices}");
                    assert_eq!(timeline.makespan_ns(), work + (ranks as u64 - 1) * one, "{shape}");
                    // No schedule is shorter: the first rank waits for the last slice to come back, or the last one for
                    // the first slice, and all ranks have as much to do.
                    assert!(lower_bound(&problem).value_ns <= timeline.makespan_ns(), "{shape}");
                }
            }
        }
    }
}

#[test]
fn slices_in_flight_are_those_of_the_papers() {
    let peaks = |name: &str, shape: [usize; 4]| -> Vec<u64> {
        let problem = problem(name, shape, json!({})).expect("it exists");
        let timeline = simulate(&problem, &built(name, &problem).expect("it exists")).expect("valid");
        // F takes 3 bytes and the backward gives 3 back.
        (0..shape[0]).map(|rank| timeline.peak_bytes(&problem, rank).div_ceil(3)).collect()
    };
    assert_eq!(peaks("terapipe", [4, 1, 3, 4]), [12; 4]);
    // P − 1 − r + N.
    assert_eq!(peaks("seq1f1b", [4, 1, 8, 4]), [7, 6, 5, 4]);
    // 1F1B holds P sequences there: 16 slices.
    assert_eq!(peaks("1f1b", [4, 1, 8, 4]), [16, 12, 8, 4]);
    // The warm-up of interleaved 1F1B and N − 1 more: (V − 1)P + 2(P − 1 − r) + N − 1, and one.
    assert_eq!(peaks("seq1f1b-i", [4, 2, 8, 4]), [14, 12, 10, 8]);
    // N · V + 2(P − 1 − r): (1 + 2(P − 1) / (N · V)) / P of a sequence's activations on the first rank.
    assert_eq!(peaks("slimpipe", [4, 1, 3, 8]), [14, 12, 10, 8]);
    assert_eq!(peaks("slimpipe", [4, 2, 3, 8]), [22, 20, 18, 16]);
}

/// The first rank of Seq1F1B and of SlimPipe's interleaved form, as the papers draw them.
#[test]
fn the_first_rows_are_those_of_the_papers() {
    let row = |name: &str, shape: [usize; 4], rank: usize| {
        let problem = problem(name, shape, json!({})).expect("it exists");
        built(name, &problem).expect("it exists").text_rows().swap_remove(rank)
    };
    assert_eq!(row("seq1f1b", [2, 1, 2, 2], 1), "1F0 1F1 1BW1 1F2 1BW0 1F3 1BW3 1BW2");
    assert_eq!(row("seq1f1b", [2, 1, 2, 2], 0), "0F0 0F1 0F2 0BW1 0F3 0BW0 0BW3 0BW2");
    // Slices 0 and 1 through both chunks, then 2 and 3; back in reverse.
    assert_eq!(
        row("slimpipe", [2, 2, 1, 4], 1),
        "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3 3BW3 3BW2 1BW3 1BW2 3BW1 3BW0 1BW1 1BW0"
    );
}

/// Slices out of their order are refused, forwards and backwards, and no time is given for them.
#[test]
fn slices_keep_their_order() {
    let problem = problem("seq1f1b", [1, 1, 1, 3], json!({})).expect("it exists");
    let right = "0F0 0F1 0F2 0B2 0B1 0W2 0BW0 0W1";
    let verdict = |row: &str| {
        let schedule = Schedule::from_text_rows(&[row]).expect("ops");
        let verdict = check_schedule(&problem, &schedule).map_err(|mut violations| violations.swap_remove(0));
        assert_eq!(verdict.is_ok(), simulate(&problem, &schedule).is_ok(), "{row}");
        verdict
    };
    assert_eq!(verdict(right), Ok(()));
    for (row, waits, needed) in [
        ("0F1 0F0 0F2 0BW2 0BW1 0BW0", Op::new(0, OpKind::F, 1), Op::new(0, OpKind::F, 0)),
        ("0F0 0F1 0BW1 0F2 0BW2 0BW0", Op::new(0, OpKind::BW, 1), Op::new(0, OpKind::B, 2)),
        ("0F0 0F1 0F2 0B2 0B0 0W2 0BW1 0W0", Op::new(0, OpKind::B, 0), Op::new(0, OpKind::B, 1)),
    ] {
        let Err(Violation::Circle { waits: circle }) = verdict(row) else { panic!("{row} is valid") };
        assert_eq!((circle[0].op, circle[0].needs), (waits, needed), "{row}");
    }
}

/// Gradients of keys and values: B of the last slice takes those of all slices before it, and each gives its own back.
#[test]
fn gradients_of_keys_and_values_are_held_from_the_last_slice_to_their_own() {
    let stage = json!({ "forward_ns": 1, "backward_input_ns": 1, "forward_bytes": 10, "backward_input_bytes": -10,
        "slice_gradient_bytes": 4 });
    let problem = problem("seq1f1b", [1, 1, 2, 3], json!({ "stages": stage })).expect("it exists");
    let timeline = simulate(&problem, &built("terapipe", &problem).expect("it exists")).expect("valid");
    let held: Vec<u64> = timeline.memory(&problem, 0).into_iter().map(|(_, held)| held).collect();
    // Two sequences forwards; then 8 more with the last slice's B, which gives its 10 back at its end; then 14 a slice. The
    // end of one sequence is the begin of the next, which takes 8 and holds 38.
    assert_eq!(held, [10, 20, 30, 40, 50, 60, 68, 58, 44, 38, 28, 14, 0]);
    // One sequence at a time holds 30, and 8 at its first backward. Less does not exist.
    let least = least_memory(&problem)[0];
    assert_eq!((least.needed_bytes, least.serial_bytes), (38, 38));
    let best = |limit: u64| {
        let limited = problem.with_limits(vec![Some(limit)]);
        search::best(&limited, Effort(10_000), &mut |_| Flow::Continue).map(|found| (limited, found))
    };
    let (limited, found) = best(38).expect("one sequence at a time fits");
    assert_eq!(check_schedule(&limited, &found.schedule), Ok(()));
    assert_eq!(best(37).map(|_| ()).map_err(|why| why.least_bytes), Err(38));
}

/// The best schedule is valid, never longer than a published one that fits, and never shorter than the bound.
#[test]
fn the_best_is_no_worse_than_what_is_published() {
    for (shape, limit) in [
        ([4, 1, 3, 4], None),
        ([4, 1, 3, 4], Some(24)),
        ([3, 1, 4, 2], Some(18)),
        ([2, 2, 2, 4], None),
        ([4, 2, 2, 4], Some(60)),
    ] {
        for even in [true, false] {
            let mut more = json!({ "transfer_ns": 3, "limit_bytes": limit });
            if !even {
                more["microbatch_factors"] = causal(shape[2], shape[3]);
            }
            let name = if shape[1] > 1 { "seq1f1b-i" } else { "seq1f1b" };
            let problem = problem(name, shape, more).expect("it exists");
            let found = search::best(&problem, Effort(60_000), &mut |_| Flow::Continue).expect("it fits");
            assert_eq!(check_schedule(&problem, &found.schedule), Ok(()), "{shape:?} {limit:?}");
            let bound = lower_bound(&problem).value_ns;
            assert!(bound <= found.cost_ns && bound == found.bound_ns, "{shape:?}: {bound} {}", found.cost_ns);
            for published in published() {
                let Ok(schedule) = published.build(&problem) else { continue };
                if check_schedule(&problem, &schedule).is_ok() {
                    let cost = simulate(&problem, &schedule).expect("valid").cost_ns(problem.objective());
                    assert!(found.cost_ns <= cost, "{shape:?} {limit:?}: {} is shorter", published.name);
                }
            }
        }
    }
}

/// A problem of slices is the same through its text, its link and its plan's problem; faults name their field.
#[test]
fn slices_pass_through_text_and_link() {
    let stage = json!({ "forward_ns": 10, "backward_input_ns": 11, "forward_bytes": 7, "backward_input_bytes": -7,
        "slice_gradient_bytes": 5 });
    for stages in [stage.clone(), json!([stage.clone(), stage, { "forward_ns": 3, "backward_input_ns": 3 }])] {
        let file = statement(3, 1, 2, 4, json!({ "stages": stages, "microbatch_factors": causal(2, 4) }));
        let spec = Spec::read(&file.to_string()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(link::read(&link::write(&spec)).as_ref(), Ok(&spec));
    }
    for (more, field) in [
        (json!({ "slices": 3 }), "slices"),
        (json!({ "slices": 0 }), "slices"),
        (json!({ "slices": 1.5 }), "slices"),
        (json!({ "placement": "two-way" }), "placement"),
    ] {
        let faults = Statement::read(&statement(2, 1, 2, 4, more)).expect_err("a fault");
        assert_eq!(faults.0[0].field, field, "{faults}");
    }
    let whole = statement(2, 1, 2, 1, json!({}));
    let mut without = whole.clone();
    without.as_object_mut().expect("an object").remove("slices");
    assert_eq!(Statement::read(&whole), Statement::read(&without));
}

const MODEL: &str = "model.name = \"llama-3-8b\"\nmodel.positions = 131072\ncluster.device = \"h100\"\nmemory.limit_bytes = \"2 TB\"\n\
                     training = { microbatches = 4, sequence = 65536";

fn model(slices: u32, parallel: &str, training: &str) -> Spec {
    let text = format!("{MODEL}{training} }}\nparallel = {{ pipeline = 4, sequence_slices = {slices}{parallel} }}");
    Spec::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn derived(spec: &Spec) -> Derived {
    let Work::Model(work) = &spec.work else { panic!("a model") };
    derive(work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}"))
}

/// All slices together take what the whole sequence takes, and hold the same; each later one takes longer.
#[test]
fn slices_of_a_model_add_up_to_its_sequences() {
    for parallel in ["", ", tensor = 2", ", context = 4", ", tensor = 2, context = 2, sequence_parallel = true"] {
        let (whole, sliced) = (derived(&model(1, parallel, "")), derived(&model(8, parallel, "")));
        assert_eq!(whole.step_flops, sliced.step_flops, "{parallel}");
        let [whole, sliced] = [whole, sliced].map(|of| of.statement.problem(Placement::Linear).expect("linear"));
        assert_eq!((sliced.microbatches(), sliced.slices()), (32, 8));
        for stage in 0..4 {
            let of = |problem: &Problem, kind, microbatch| problem.duration(Op::new(stage, kind, microbatch));
            for kind in [OpKind::F, OpKind::B] {
                let slices: Vec<u64> = (8..16).map(|slice| of(&sliced, kind, slice)).collect();
                assert!(slices.is_sorted_by(|a, b| a < b), "{slices:?}");
                let (sum, all) = (slices.iter().sum::<u64>(), of(&whole, kind, 1));
                // Shorter keys reach a little less of the device's rate. A ring sends 4.5 times as much in all.
                let more = if parallel.contains("context") { all / 4 } else { all / 8 };
                assert!((all..all + more).contains(&sum), "{parallel} stage {stage} {kind}: {sum} of {all}");
            }
            let (one, all) = (sliced.cost(stage), whole.cost(stage));
            assert_eq!(8 * one.forward_bytes, all.forward_bytes, "{parallel}");
        }
        let (one, all) = (sliced.hop(0, 1), whole.hop(0, 1));
        assert!(all / 8 <= one && one <= all / 7, "{one} of {all}");
    }
}

/// What recomputation would drop and later slices read stays: keys and values of every layer, and so many gradients.
#[test]
fn keys_and_values_stay_for_later_slices() {
    // 8 layers a stage, 8 heads of 128 for keys and values, in bf16, over tensor and context parallel devices.
    let kept = |devices: i64| 8 * 2 * 8 * 128 * 2 * 65536 / devices;
    for (parallel, devices) in [("", 1), (", tensor = 2", 2), (", tensor = 2, context = 2", 4)] {
        for (recompute, dropped) in [("", false), (", recompute = \"full\"", true)] {
            let parallel = format!("{parallel}, partition = \"layers\"");
            let [whole, sliced] = [1, 8].map(|slices| derived(&model(slices, &parallel, recompute)).statement);
            let (one, all) = (&sliced.stages[1], &whole.stages[1]);
            let more = if dropped { kept(devices) } else { 0 };
            assert_eq!(8 * one.forward_bytes, all.forward_bytes + more, "{parallel}{recompute}");
            assert_eq!(8 * one.slice_gradient_bytes, kept(devices) as u64, "{parallel}{recompute}");
            assert_eq!(all.slice_gradient_bytes, 0);
            // Nothing stays behind.
            let left = one.forward_bytes + one.backward_input_bytes + one.backward_weight_bytes;
            assert_eq!(left, 0);
        }
    }
}

/// A plan of slices is shorter where microbatches are few, is read back, and says its slices.
#[test]
fn a_plan_of_slices_has_a_smaller_bubble() {
    let planned = |slices: u32, name: &str| {
        let spec = model(slices, ", context = 2, chunks = 1", "");
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(link::read(&link::write(&spec)).as_ref(), Ok(&spec));
        let plan = planner::plan_with(&spec, name, Effort(20_000), &mut |_| Flow::Continue);
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan), "{name}");
        plan
    };
    let timeline = |plan: &Plan| simulate(&plan.problem, &plan.schedule).expect("checked");
    let bubble = |plan: &Plan| timeline(plan).bubble_ratio(plan.problem.objective());
    let whole = planned(1, "1f1b");
    let sliced = planned(4, "seq1f1b");
    // Half of the time is attention, of which later slices have more: the bubble shrinks by less than their number.
    assert!(bubble(&sliced) < 0.8 * bubble(&whole), "{} {}", bubble(&sliced), bubble(&whole));
    let peak = |plan: &Plan| timeline(plan).peak_bytes(&plan.problem, 0);
    assert!(peak(&sliced) < peak(&whole));
    let best = planned(4, "best");
    assert!(best.prediction.makespan_ns <= sliced.prediction.makespan_ns);
}

/// What a slice is not planned with is refused by name.
#[test]
fn slices_are_refused_where_they_mean_nothing() {
    for (slices, parallel, training, what) in [
        (3, "", "", "a divisor of the 65536 tokens"),
        (8, "", ", attention = \"materialised\"", "materialised"),
        (8, "", ", recompute = \"fit\"", "fit"),
        (8, "", ", offload = \"all\"", "offload"),
        (8, ", partition = \"within-limit\"", "", "within-limit"),
        (8, "", ", microbatch_factors = [1000, 900, 1000, 1000]", "microbatches that differ"),
        (16384, ", context = 4", "", "from 1 to 1024"),
    ] {
        let text =
            format!("{MODEL}{training} }}\nparallel = {{ pipeline = 4, sequence_slices = {slices}{parallel} }}");
        let error = Spec::read(&text).map(|_| ()).expect_err("it is refused").to_string();
        assert!(error.contains("sequence_slices") && error.contains(what), "{error}");
    }
    for name in ["deepseek-v3", "qwen3-next-80b-a3b"] {
        let text =
            format!("{MODEL} }}\nparallel = {{ pipeline = 4, sequence_slices = 8 }}").replace("llama-3-8b", name);
        if let Ok(spec) = Spec::read(&text) {
            let Work::Model(work) = &spec.work else { panic!("a model") };
            assert!(work.model.variant.multi_token == 0 && work.model.variant.recurrence.is_none(), "{name}");
        }
    }
}

/// A small link may ask for a billion slices: they are refused before the times of each are worked out.
#[test]
fn more_slices_than_a_problem_may_have_are_refused_at_once() {
    let text = "model = { name = \"llama-3-8b\", positions = 131072 }\ncluster.device = \"h100\"\n\
                parallel = { pipeline = 2, sequence_slices = 1024 }\n\
                training = { microbatches = 1000000, sequence = 131072 }\n";
    let spec = Spec::read(text).unwrap_or_else(|error| panic!("{error}"));
    let told = planner::plan(&spec, "1f1b").expect_err("refused").to_string();
    // 8,000,000 ops are 3 for each of 2 stages and 1,333,333 slices: 1,302 microbatches of 1,024.
    assert!(told.contains("found 1000000, accepted is at most 1302 with 2 stages and 1024 slices"), "{told}");
}
