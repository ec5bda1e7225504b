//! Documents packed into the microbatches of data parallel replicas, against every packing of small steps, against packings that
//! need no search, and in whole plans.

use pipeplan_core::bounds::packing_bound;
use pipeplan_core::check::check_schedule;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::formats::export;
use pipeplan_core::plan::{PackingFigures, Plan, Prediction, planner};
use pipeplan_core::problem::factors::MicrobatchFactors;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::packing::{Bins, Document, DocumentTimes, Packing, Shares};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::schedule::find;
use pipeplan_core::search::{self, Batch, Effort, Flow};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Distribution, Documents, Draw, Spec, Work, link};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Tokens of a microbatch.
const TOKENS: u32 = 100;

/// A problem, and microbatches that take half of the time of each stage without documents, and all of it with one document of
/// `TOKENS`: what a document adds grows with the square of its length.
fn step(ranks: usize, microbatches: usize, more: Value) -> (Problem, DocumentTimes) {
    let mut file = json!({
        "ranks": ranks, "microbatches": microbatches, "placement": "linear",
        "stages": { "forward_ns": 1000, "backward_input_ns": 1200, "backward_weight_ns": 800,
            "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 },
        "transfer_ns": 30,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        file[key] = value.clone();
    }
    let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}"));
    let problem = statement.problem(statement.placements()[0].clone()).unwrap();
    let usual_ns = [1000, 1200, 800];
    let half = usual_ns.map(|ns| ns / 2);
    let shares = Shares { usual_ns, fixed_ns: half, by_load_ns: half.map(|ns| [ns, 0]) };
    let times = DocumentTimes { stages: vec![shares; problem.stage_count()], whole: [u64::from(TOKENS).pow(2), 1] };
    (problem, times)
}

fn documents(lengths: &[u32]) -> Vec<Document> {
    lengths.iter().map(|tokens| Document { tokens: *tokens, loads: [u64::from(*tokens).pow(2), 0] }).collect()
}

/// The problem of a replica, from the rule alone.
fn of_replica(problem: &Problem, lengths: &[u32], microbatches: &[Vec<u32>]) -> Problem {
    let squares =
        |documents: &Vec<u32>| documents.iter().map(|of| u64::from(lengths[*of as usize]).pow(2)).sum::<u64>();
    let whole = u64::from(TOKENS).pow(2);
    let permille: Vec<u64> =
        microbatches.iter().map(|documents| (500 * whole + 500 * squares(documents)).div_ceil(whole)).collect();
    let mut file = problem.statement().to_value();
    let times = |of: &u64| json!({ "forward": of, "backward_input": of, "backward_weight": of });
    file["microbatch_factors"] = permille.iter().map(times).collect();
    let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}"));
    statement.problem(problem.placement().clone()).unwrap()
}

/// The slowest replica under a schedule.
fn slowest(problem: &Problem, lengths: &[u32], packing: &Packing, name: &str) -> u64 {
    let schedule = find(name).expect("published").build(problem).expect("linear");
    let cost = |of: &Vec<Vec<u32>>| {
        let own = of_replica(problem, lengths, of);
        simulate(&own, &schedule).expect("it runs").cost_ns(own.objective())
    };
    packing.iter().map(cost).max().unwrap_or(0)
}

/// Every packing of `lengths` into `bins`, with every order.
fn every_packing(lengths: &[u32], bins: Bins, see: &mut dyn FnMut(&Packing)) {
    fn place(at: usize, lengths: &[u32], bins: Bins, packing: &mut Packing, see: &mut dyn FnMut(&Packing)) {
        if at == lengths.len() {
            return see(packing);
        }
        for replica in 0..bins.replicas {
            for microbatch in 0..bins.microbatches {
                let tokens: u32 = packing[replica][microbatch].iter().map(|of| lengths[*of as usize]).sum();
                if u64::from(tokens + lengths[at]) <= bins.tokens {
                    packing[replica][microbatch].push(at as u32);
                    place(at + 1, lengths, bins, packing, see);
                    packing[replica][microbatch].pop();
                }
            }
        }
    }
    let mut packing = vec![vec![Vec::new(); bins.microbatches]; bins.replicas];
    place(0, lengths, bins, &mut packing, see);
}

fn lengths(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let length = prop_oneof![3 => 1u32..30, 2 => 30u32..=TOKENS];
    prop::collection::vec(length, 1..=most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing that all packings and orders reach is below the bound, nor is the search, which is at most 3 % above the best.
    #[test]
    fn no_packing_of_a_small_step_is_below_the_bound(
        lengths in lengths(6), ranks in 1usize..4, replicas in 1usize..3, microbatches in 2usize..4,
        name in prop::sample::select(vec!["1f1b", "gpipe"]),
    ) {
        let bins = Bins { replicas, microbatches, tokens: TOKENS.into() };
        let (problem, times) = step(ranks, microbatches, json!({}));
        let documents = documents(&lengths);
        let bound = packing_bound(&problem, bins, &documents, &times);
        let Some(given) = bins.packed(&lengths) else { return Ok(()) };
        let mut best = u64::MAX;
        every_packing(&lengths, bins, &mut |packing| best = best.min(slowest(&problem, &lengths, packing, name)));
        let batch = Batch { problem: &problem, bins, documents: &documents, times: &times };
        let schedule = find(name).expect("published").build(&problem).expect("linear");
        let found = batch.search(&schedule, &given, Effort(300_000), &mut |_| Flow::Continue).expect("it runs");
        prop_assert_eq!(found.cost_ns, slowest(&problem, &lengths, &found.packing, name));
        prop_assert!(bound <= best && best <= found.cost_ns, "{} {} {}", bound, best, found.cost_ns);
        prop_assert!(found.cost_ns * 100 <= best * 103, "{} {}", best, found.cost_ns);
        // Schedules that follow the times do not get below it either.
        let any = given.iter().map(|of| {
            let own = of_replica(&problem, &lengths, of);
            search::best(&own, Effort(20_000), &mut |_| Flow::Continue).map(|found| found.cost_ns)
        });
        prop_assert!(any.map(|cost| cost.expect("no limit")).max() >= Some(bound));
    }

    /// Every document once, within the tokens; no work is lost; never worse than packings that need no search.
    #[test]
    fn a_search_keeps_documents_and_is_never_worse_than_simple_packings(
        lengths in lengths(60), ranks in 1usize..5, replicas in 1usize..4, microbatches in 2usize..9,
        effort in 0u64..100_000, fused: bool,
    ) {
        let bins = Bins { replicas, microbatches, tokens: TOKENS.into() };
        let backward = if fused { "fused" } else { "split" };
        let (problem, times) = step(ranks, microbatches, json!({ "backward": backward, "limit_bytes": ranks }));
        let documents = documents(&lengths);
        let Some(given) = bins.packed(&lengths) else { return Ok(()) };
        let batch = Batch { problem: &problem, bins, documents: &documents, times: &times };
        let schedule = find("1f1b").expect("published").build(&problem).expect("linear");
        let found = batch.search(&schedule, &given, Effort(effort), &mut |_| Flow::Continue).expect("it runs");
        let mut all: Vec<u32> = found.packing.iter().flatten().flatten().copied().collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<u32>>());
        let tokens = |of: &Vec<u32>| of.iter().map(|document| lengths[*document as usize]).sum::<u32>();
        prop_assert!(found.packing.iter().flatten().all(|of| tokens(of) <= TOKENS));
        prop_assert!(found.packing.len() == replicas && found.packing.iter().all(|of| of.len() == microbatches));
        let dealt = batch.dealt(&given);
        let simple = [
            given.clone(), batch.sorted(&schedule, &given).unwrap(), batch.sorted(&schedule, &dealt).unwrap(), dealt,
        ];
        for packing in &simple {
            prop_assert!(found.cost_ns <= batch.cost_ns(&schedule, packing).unwrap());
        }
        prop_assert!(found.cost_ns >= packing_bound(&problem, bins, &documents, &times));
        for replica in &found.packing {
            prop_assert_eq!(check_schedule(&of_replica(&problem, &lengths, replica), &schedule), Ok(()));
        }
    }
}

/// Documents of one length: the bound of as many microbatches that are alike, and every packing reaches it or is worse.
#[test]
fn the_bound_of_even_documents_is_that_of_alike_microbatches() {
    let bins = Bins { replicas: 2, microbatches: 4, tokens: TOKENS.into() };
    let (problem, times) = step(1, 4, json!({}));
    let lengths = [50; 16];
    let bound = packing_bound(&problem, bins, &documents(&lengths), &times);
    // Two halves add half of what a whole one adds, so each microbatch takes three quarters.
    assert_eq!(bound, 4 * 3000 * 3 / 4);
}

const MODEL: &str = "model.name = \"llama-3-8b\"\ncluster.device = \"h100\"\nparallel.pipeline = 4\n\
                     memory.limit_bytes = \"900 GiB\"\ntraining.microbatches = 8\ntraining.sequence = 8192\n";

fn spec(more: &str) -> Spec {
    Spec::read(&format!("{MODEL}{more}")).unwrap_or_else(|error| panic!("{error}"))
}

fn packed(plan: &Plan) -> &Vec<Vec<Vec<u32>>> {
    match &plan.spec.work {
        Work::Model(work) => match &work.batch.documents {
            Documents::OfReplicas(replicas) => replicas,
            other => panic!("{other:?}"),
        },
        Work::Typed(_) => panic!("of a model"),
    }
}

const DRAWN: &str = "training.documents = { distribution = \"log-normal\", median = 900, sigma = 1.5, seed = 1 }\n";

/// A plan has every document of its spec once, passes through its file, and its first replica is the slowest.
#[test]
fn plans_say_which_replica_has_which_documents() {
    for (name, data) in [("1f1b", 1), ("1f1b", 4), ("zb-h1", 2), ("best", 2)] {
        let spec = spec(&format!("schedule = \"{name}\"\nparallel.data = {data}\n{DRAWN}"));
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(link::read(&link::write(&spec)).as_ref(), Ok(&spec));
        let Work::Model(work) = &spec.work else { panic!("of a model") };
        let mut lengths = work.batch.documents.of_step(work.bins(), work.sequence).expect("drawn");
        let plan = planner::plan_with(&spec, name, Effort(400_000), &mut |_| Flow::Continue)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));
        assert_eq!(link::read(&link::write(&plan.spec)).as_ref(), Ok(&plan.spec));
        let replicas = packed(&plan);
        assert!(replicas.len() == data && replicas.iter().all(|of| of.len() == 8), "{name}");
        let mut all: Vec<u32> = replicas.iter().flatten().flatten().copied().collect();
        all.sort_unstable();
        lengths.sort_unstable();
        assert_eq!(all, lengths);
        assert!(replicas.iter().flatten().all(|of| of.iter().sum::<u32>() <= 8192));
        assert_eq!(plan.replicas.len(), data);
        assert!(plan.replicas.iter().all(|of| of.makespan_ns <= plan.prediction.makespan_ns), "{:?}", plan.replicas);
        let figures = plan.packing.expect("packed");
        let simple = [figures.given_ns, figures.sorted_ns, figures.dealt_ns].map(|ns| ns.expect("it runs"));
        assert!(
            figures.bound_ns <= figures.found_ns && simple.iter().all(|ns| figures.found_ns <= *ns),
            "{figures:?}"
        );
        // Documents stay where a plan has them.
        let again = planner::plan(&plan.spec, &plan.schedule_name).unwrap_or_else(|error| panic!("{error}"));
        if name != "best" {
            assert_eq!(again.prediction, plan.prediction);
            assert_eq!(packed(&again), replicas);
        }
        let moved = planner::replan(&plan, "mine", plan.schedule.clone()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(moved.replicas, plan.replicas);
    }
}

/// With all documents as long as a sequence there is nothing to choose: the plan is that of whole sequences.
#[test]
fn documents_of_whole_sequences_are_the_usual_step() {
    let usual = planner::plan(&spec("parallel.data = 2\n"), "1f1b").unwrap_or_else(|error| panic!("{error}"));
    let documents = format!("parallel.data = 2\ntraining.documents = {:?}\n", [8192; 16]);
    let plan = planner::plan(&spec(&documents), "1f1b").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((plan.problem, plan.prediction), (usual.problem, usual.prediction));
}

/// A comparison packs documents for each schedule.
#[test]
fn a_comparison_tells_what_packings_gain() {
    let spec = spec(&format!("parallel.data = 2\n{DRAWN}"));
    let rows = planner::compare_with(&spec, Vec::new(), Effort(400_000), &mut |_| Flow::Continue).rows;
    let row = |name: &str| rows.iter().find(|row| row.schedule == name).expect("a row");
    let one = row("1f1b");
    let [given, sorted, dealt, ordered] = [one.makespan_ns, one.sorted_ns, one.longest_first_ns, one.ordered_ns];
    assert!(ordered <= dealt && ordered <= sorted && sorted <= given && ordered.is_some(), "{one:?}");
    assert!(one.bound_ns.is_some() && one.bound_ns <= ordered, "{one:?}");
    let best = row("best");
    assert!(best.step_ns <= one.step_ns && best.makespan_ns >= best.bound_of_all_ns, "{best:?}");
}

/// A file that says something else of a replica is refused.
#[test]
fn untrue_replicas_are_refused() {
    let plan = planner::plan(&spec(&format!("parallel.data = 2\n{DRAWN}")), "1f1b").unwrap();
    let mut longer = plan.clone();
    longer.replicas[1].makespan_ns += 1;
    let mut fewer = plan.clone();
    fewer.replicas.pop();
    let mut other = plan.clone();
    other.replicas.swap(0, 1);
    let mut faster = plan.clone();
    faster.replicas.swap(0, 1);
    faster.problem = plan.problem.with_factors(plan.replicas[1].factors.clone()).unwrap();
    faster.prediction = Prediction::of(&faster.problem, &simulate(&faster.problem, &plan.schedule).unwrap());
    let figures = plan.packing.expect("packed");
    let with = |packing: PackingFigures| Plan { packing: Some(packing), ..plan.clone() };
    let cheaper = with(PackingFigures { found_ns: figures.found_ns - 1, ..figures });
    let unbound = with(PackingFigures { bound_ns: figures.found_ns + 1, ..figures });
    let given = with(PackingFigures { given_ns: Some(figures.bound_ns - 1), ..figures });
    let none = Plan { replicas: Vec::new(), ..plan.clone() };
    for (untrue, part) in [
        (longer, "replica"),
        (fewer, "packing.replicas"),
        (other, "packing.replicas[0]"),
        (faster, "the slowest replica is packing.replicas[0]; its content gives packing.replicas[1]"),
        (cheaper, "packing.found_ns"),
        (unbound, "packing.bound_ns"),
        (given, "packing.bound_ns"),
        (none, "the length of packing.replicas"),
    ] {
        let told = Plan::from_json(&untrue.to_json()).expect_err("refused").to_string();
        assert!(told.contains(part), "{told}");
    }
}

/// Of two replicas the first has more work; the other one has long documents at both ends, which all stages wait for. What a
/// replica takes beyond its tokens are the squares of the lengths.
fn even_and_uneven() -> [Vec<Vec<u32>>; 2] {
    let short = vec![512; 16];
    [vec![vec![5632, 2560]; 4], vec![vec![8192], short.clone(), short, vec![8192]]]
}

fn of_replicas(first: usize) -> Spec {
    let [even, uneven] = even_and_uneven();
    let documents = if first == 0 { [even, uneven] } else { [uneven, even] };
    let text = MODEL.replace("microbatches = 8", "microbatches = 4");
    let text = format!("{text}parallel.data = 2\ntraining.documents = {documents:?}\n");
    Spec::read(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Every microbatch runs to its end before the next begins.
fn one_by_one(ranks: usize, microbatches: usize) -> Schedule {
    let row = |rank: usize| {
        let of = |m: usize| [Op::new(rank, OpKind::F, m), Op::new(rank, OpKind::BW, m)];
        (0..microbatches).flat_map(of).collect()
    };
    Schedule::of((0..ranks).map(row).collect())
}

/// The step waits for the slowest replica, whichever the spec has first: forwards of GPipe take the sum of the microbatches on one
/// stage and a microbatch at an end on the others, and so do its backwards, so the uneven replica is slower; one microbatch at a time, all take P times
/// their sum, so that with more work is.
#[test]
fn plans_are_of_the_slowest_replica_under_their_schedule() {
    let [even, uneven] = even_and_uneven();
    let pipelined = find("gpipe").expect("published");
    let plans = |first: usize| -> Vec<(Plan, &Vec<Vec<u32>>)> {
        let spec = of_replicas(first);
        let planned = |plan: Result<Plan, planner::PlanError>| plan.unwrap_or_else(|error| panic!("{error}"));
        let answer = planner::answer(&spec, &pipelined).expect("it fits");
        let schedule = answer.schedule.clone();
        let serial = planned(planner::plan_order(&spec, "mine", one_by_one(4, 4)));
        let again = planned(planner::replan(&serial, "mine", schedule.clone()));
        vec![
            (planned(planner::plan_of(&spec, answer)), &uneven),
            (planned(planner::plan(&spec, "gpipe")), &uneven),
            (planned(planner::plan_order(&spec, "mine", schedule)), &uneven),
            (again.clone(), &uneven),
            (serial, &even),
            (planned(planner::replan(&again, "mine", one_by_one(4, 4))), &even),
        ]
    };
    for (at, ((one, slowest), (other, _))) in plans(0).into_iter().zip(plans(1)).enumerate() {
        assert_eq!(&packed(&one)[0], slowest, "{at}");
        assert_eq!(
            (&one.replicas, &one.prediction, packed(&one)),
            (&other.replicas, &other.prediction, packed(&other))
        );
        assert_eq!(one.replicas[0].makespan_ns, one.prediction.makespan_ns, "{at}");
        assert!(one.replicas[1].makespan_ns < one.prediction.makespan_ns, "{at}: {:?}", one.replicas);
        assert_eq!(Plan::from_json(&one.to_json()).as_ref(), Ok(&one), "{at}");
    }
    // What a comparison says of them is of the slowest too.
    let rows =
        planner::compare_with(&of_replicas(0), vec![("mine".into(), one_by_one(4, 4))], Effort(0), &mut |_| {
            Flow::Continue
        })
        .rows;
    for (name, (plan, _)) in [("gpipe", &plans(0)[1]), ("mine", &plans(0)[4])] {
        let row = rows.iter().find(|row| row.schedule == name).expect("a row");
        assert_eq!(row.makespan_ns, Some(plan.prediction.makespan_ns), "{name}");
        // Documents stay where they are, so no order is found.
        assert_eq!((row.sorted_ns, row.ordered_ns), (None, None), "{name}");
    }
}

/// A schedule keeps the size of its groups, which exports write.
#[test]
fn a_plan_of_packed_documents_keeps_the_name_that_makes_it_again() {
    let spec = spec(&format!("parallel.data = 2\nparallel.chunks = 2\n{DRAWN}"));
    let plan = planner::plan_with(&spec, "interleaved-1f1b:8", Effort(10_000), &mut |_| Flow::Continue);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plan.schedule_name, "interleaved-1f1b:8");
    let text = export::of_plan(&plan, export::Format::MegatronArgs).unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains("--microbatch-group-size-per-virtual-pipeline-stage 8"), "{text}");
}

/// Replicas that together have more ops than a problem may have are refused before anything is worked out for them.
#[test]
fn more_ops_than_a_problem_may_have_are_refused_at_once() {
    let many = MODEL.replace("\"llama-3-8b\"", "\"llama-3-8b\"\nmodel.layers = 1024");
    let many = many.replace("pipeline = 4", "pipeline = 1024").replace("microbatches = 8", "microbatches = 16");
    // 3 · 1024 · 16 ops are 49,152 of 8,000,000, so 162 replicas are the most.
    for (data, is_refused) in [(162, false), (163, true), (2048, true)] {
        let spec =
            Spec::read(&format!("{many}parallel.data = {data}\n{DRAWN}")).unwrap_or_else(|error| panic!("{error}"));
        let Work::Model(work) = &spec.work else { panic!("of a model") };
        let refused = derive(work, Placement::Linear, 1).err().map(|faults| faults.to_string());
        assert_eq!(refused.is_some(), is_refused, "{data}: {refused:?}");
        let accepted = "at most 162 with 1024 stages and 16 microbatches";
        assert!(refused.is_none_or(|told| told.contains(accepted)), "{data}");
    }
}

/// Time over work of one step with 1F1B: as given, sorted, longest first, and as the search packs; then the best schedule found with
/// its packing, and the bound. Last, the seconds of both searches.
fn figures(ranks: usize, microbatches: usize, replicas: usize, seed: u64, effort: Effort) -> [f64; 8] {
    const LONG: u32 = 32_768;
    let bins = Bins { replicas, microbatches, tokens: LONG.into() };
    let draw = Draw { lengths: Distribution::LogNormal { median: 4024, sigma_permille: 1500 }, seed };
    let lengths = Documents::Drawn(draw).of_step(bins, LONG).expect("drawn");
    let usual_ns = [2_000_000; 3];
    let half = [1_000_000; 3];
    let file = json!({
        "ranks": ranks, "microbatches": microbatches, "backward": "fused",
        "stages": { "forward_ns": usual_ns[0], "backward_input_ns": usual_ns[1], "backward_weight_ns": usual_ns[2] },
    });
    let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}"));
    let problem = statement.problem(statement.placements()[0].clone()).unwrap();
    let shares = Shares { usual_ns, fixed_ns: half, by_load_ns: half.map(|ns| [ns, 0]) };
    let times = DocumentTimes { stages: vec![shares; ranks], whole: [u64::from(LONG).pow(2), 1] };
    let documents = documents(&lengths);
    let batch = Batch { problem: &problem, bins, documents: &documents, times: &times };
    let schedule = find("1f1b").expect("published").build(&problem).expect("linear");
    let given = bins.packed(&lengths).expect("drawn until full");
    let watch = &mut |_| Flow::Continue;
    let cost = |packing: &Packing| batch.cost_ns(&schedule, packing).expect("it runs");
    let [sorted, dealt] =
        [given.clone(), batch.dealt(&given)].map(|of| batch.sorted(&schedule, &of).expect("it runs"));
    let began = std::time::Instant::now();
    let ours = batch.search(&schedule, &given, effort, watch).expect("it runs").cost_ns;
    let packing_s = began.elapsed().as_secs_f64();
    // As the planner does for `best`.
    let even = batch.evened_out(&given, effort);
    let factors = even[0].iter().flat_map(|of| {
        let squares = of.iter().map(|document| documents[*document as usize].loads[0]).sum();
        times.factors([squares, 0]).take(1).collect::<Vec<_>>()
    });
    let own = problem.with_factors(Some(MicrobatchFactors::of_all_stages(factors.collect()))).expect("sound");
    let found = search::best(&own, Effort(effort.0 / 2), watch).expect("no limit");
    let best = batch.search(&found.schedule, &even, Effort(effort.0 / 2), watch).expect("it runs").cost_ns.min(ours);
    let best_s = began.elapsed().as_secs_f64() - packing_s;
    let bound = packing_bound(&problem, bins, &documents, &times);
    let loads: u64 = documents.iter().map(|document| document.loads[0]).sum();
    let all = bins.count() as f64 * 3.0e6 + 3.0e6 * loads as f64 / f64::from(LONG).powi(2);
    let over = |ns: u64| ns as f64 / (all / replicas as f64);
    let costs = [cost(&given), cost(&sorted), cost(&dealt), ours, best, bound].map(over);
    assert!(costs.is_sorted_by(|one, next| one >= next || costs[1] == *one), "{costs:?}");
    [costs[0], costs[1], costs[2], costs[3], costs[4], costs[5], packing_s, best_s]
}

/// The table of the docs.
#[test]
#[ignore = "prints a table"]
fn a_table_of_packings() {
    let read = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    println!(
        "ranks, microbatches, replicas: given, sorted, longest first, packed, best, bound; seconds of both searches"
    );
    for (ranks, microbatches) in [(4, 16), (8, 32), (8, 16)] {
        for replicas in [1, 4] {
            let draws = read("DRAWS", 10);
            let mut means = [0.0; 8];
            for seed in 1..=draws {
                let figures = figures(ranks, microbatches, replicas, seed, Effort(read("EFFORT", 20_000_000)));
                means.iter_mut().zip(figures).for_each(|(mean, figure)| *mean += figure / draws as f64);
            }
            println!("{ranks} {microbatches} {replicas}: {means:.3?}");
        }
    }
}
