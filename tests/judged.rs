//! Every schedule is judged again by code that shares nothing with the planner: validity, times, bytes.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::check_schedule;
use pipeplan_core::plan::planner;
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::copies::HostCopy;
use pipeplan_core::problem::op::Op;
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::schedule;
use pipeplan_core::search::{self, Effort, Flow};
use pipeplan_core::simulate::simulate;
use pipeplan_core::simulate::timeline::schedule_peak_bytes;
use pipeplan_core::spec::Spec;
use pipeplan_tests::judge::{self, Verdict};
use pipeplan_tests::random::{self, Random};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

/// Problem files of every kind: placements, unequal stages, hops by link, static bytes, workspace, both
/// objectives, fused and split backward; no limit. Where asked for, W leaves some bytes held for good.
fn problems(leaves_bytes: bool) -> impl Strategy<Value = Value> {
    let placements =
        prop_oneof![Just("linear"), Just("looped"), Just("v"), Just("wave"), Just("two-way"), Just("list")];
    (placements, 1usize..6, 1usize..4, 1usize..12, any::<[bool; 3]>(), any::<u64>()).prop_map(
        move |(placement, ranks, chunks, microbatches, [fused, span, links], seed)| {
            let mut random = Random(seed);
            let (ranks, chunks, microbatches) = match placement {
                "linear" => (ranks, 1, microbatches),
                "v" => (ranks, 2, microbatches),
                "two-way" => (2 * ranks.min(3), 1, 2 * microbatches.min(5)),
                _ => (ranks, chunks, microbatches),
            };
            let stages: Vec<Value> = (0..ranks * chunks).map(|_| stage(&mut random, leaves_bytes)).collect();
            let transfers = if links {
                json!((0..ranks).map(|_| (0..ranks).map(|_| random.below(30)).collect()).collect::<Vec<Vec<u64>>>())
            } else {
                json!(random.below(30))
            };
            let placed = match placement {
                // Each rank as often as it has chunks, in an order that means nothing.
                "list" => json!(random.shuffled((0..ranks * chunks).map(|stage| stage % ranks).collect())),
                name => json!(name),
            };
            json!({
                "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placed,
                "stages": stages, "transfer_ns": transfers,
                "static_bytes": (0..ranks).map(|_| random.below(50)).collect::<Vec<_>>(), "limit_bytes": null,
                "objective": if span { "longest_span" } else { "makespan" },
                // Half of the problems let pairs hide nothing.
                "overlap_permille": random.below(2000).saturating_sub(1000),
                "backward": if fused { "fused" } else { "split" },
            })
        },
    )
}

/// The same with microbatches that differ: each in all alike, each in its own way, or by stage too.
fn differing(leaves_bytes: bool) -> impl Strategy<Value = Value> {
    (problems(leaves_bytes), any::<u64>()).prop_map(|(mut file, seed)| {
        file["microbatch_factors"] = factors(&file, &mut Random(seed));
        file
    })
}

/// The same with sequences cut into slices, alike or not. Two directions have none.
fn sliced(leaves_bytes: bool) -> impl Strategy<Value = Value> {
    (problems(leaves_bytes), any::<bool>(), any::<u64>()).prop_map(|(mut file, alike, seed)| {
        let mut random = Random(seed);
        let slices = 2 + random.below(3);
        file["microbatches"] = json!(slices * (1 + random.below(4)));
        if file["placement"] == "two-way" {
            file["placement"] = json!("linear");
        }
        file["slices"] = json!(slices);
        for stage in file["stages"].as_array_mut().into_iter().flatten() {
            stage["slice_gradient_bytes"] = json!(random.below(20));
        }
        if !alike {
            file["microbatch_factors"] = factors(&file, &mut random);
        }
        file
    })
}

/// The same with activations that may go to the host, all of them or a part, on some stages.
fn offloading(leaves_bytes: bool) -> impl Strategy<Value = Value> {
    (problems(leaves_bytes), any::<u64>()).prop_map(|(mut file, seed)| {
        let mut random = Random(seed);
        for stage in file["stages"].as_array_mut().into_iter().flatten() {
            let bytes = stage["forward_bytes"].as_u64().map_or(0, |bytes| random.below(bytes + 1));
            if bytes > 0 {
                (stage["offload_bytes"], stage["offload_ns"]) = (json!(bytes), json!(random.below(150)));
            }
        }
        file
    })
}

fn factors(file: &Value, random: &mut Random) -> Value {
    let count = |key: &str| file[key].as_u64().unwrap_or(1);
    let stages = count("ranks") * count("chunks");
    let way = random.below(3);
    let mut one = |stage: u64| match way + stage.min(1) {
        0 => json!(1 + random.below(3000)),
        _ => json!({
            "forward": 1 + random.below(3000), "backward_input": 1 + random.below(3000), "backward_weight": 500,
            "bytes": 1 + random.below(2000), "messages": 1 + random.below(5000),
        }),
    };
    let entry = |_| if way == 2 { json!((0..stages).map(&mut one).collect::<Vec<_>>()) } else { one(0) };
    json!((0..count("microbatches")).map(entry).collect::<Vec<_>>())
}

/// Times from 0 to 99; bytes that B and W give back in some division, or B takes first.
fn stage(random: &mut Random, leaves_bytes: bool) -> Value {
    let forward = random.below(20) as i64;
    let after_b = random.below(forward as u64 + 6) as i64;
    let after_w = if leaves_bytes { random.below(after_b as u64 / 4 + 1) as i64 } else { 0 };
    let (f, b, w) = (random.below(100), random.below(100), random.below(100));
    let fused = b + w - random.below(b.min(w) + 1);
    let mut stage = random::stage([f, b, w], [forward, after_b, after_w]);
    stage["backward_ns"] = json!(fused);
    // In half of them pairs compute while one of them exchanges.
    if random.below(2) == 0 {
        stage["forward_exchange_ns"] = json!(random.below(f + 1));
        stage["backward_exchange_ns"] = json!(random.below(b + 1));
    }
    for key in ["forward_workspace_bytes", "backward_input_workspace_bytes", "backward_weight_workspace_bytes"] {
        stage[key] = json!(random.below(5));
    }
    stage
}

fn problem(file: &Value) -> Problem {
    let statement = Statement::read(file).unwrap_or_else(|faults| panic!("{faults}\n{file}"));
    let placement = statement.placements().remove(0);
    statement.problem(placement).unwrap_or_else(|fault| panic!("{fault}\n{file}"))
}

fn judged(file: &Value, schedule: &Schedule) -> Result<Verdict, String> {
    let rows = schedule.text_rows();
    let places = |pairs: &Vec<u32>| pairs.iter().map(|place| *place as usize).collect();
    let pairs: Vec<Vec<usize>> = schedule.pairs.iter().map(places).collect();
    let copies = |row: &Vec<HostCopy>| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let copies: Vec<String> = schedule.copies.iter().map(copies).collect();
    let [rows, copies] = [&rows, &copies].map(|texts| texts.iter().map(String::as_str).collect::<Vec<_>>());
    judge::Problem::read(file)?.judge_schedule(&rows, &pairs, &copies)
}

/// The judge and the planner agree on `schedule`, and no bound is broken.
fn agree(name: &str, file: &Value, problem: &Problem, schedule: &Schedule) -> Verdict {
    let verdict = judged(file, schedule).unwrap_or_else(|refusal| panic!("{name}: {refusal}\n{file}"));
    let timeline = simulate(problem, schedule).unwrap_or_else(|deadlock| panic!("{name}: {deadlock}\n{file}"));
    assert_eq!(timeline.makespan_ns(), verdict.makespan_ns, "{name} {file}");
    for rank in 0..problem.ranks() {
        assert_eq!(timeline.span_ns(rank), verdict.span_ns[rank], "{name}, rank {rank} {file}");
        assert_eq!(timeline.busy_ns(rank), verdict.busy_ns[rank], "{name}, rank {rank} {file}");
        assert_eq!(timeline.peak_bytes(problem, rank) as i64, verdict.peak_bytes[rank], "{name}, rank {rank} {file}");
    }
    let (bound, cost) = (lower_bound(problem).value_ns, timeline.cost_ns(problem.objective()));
    assert!(bound <= cost, "{name}: bound {bound} above a valid cost {cost} {file}");
    verdict
}

/// The same problems every time; `PIPEPLAN_SEED` asks for others.
fn config(cases: u32) -> ProptestConfig {
    let seed = std::env::var("PIPEPLAN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(2026);
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..ProptestConfig::default() }
}

/// Under limits `share` eighths of the way from the least with which anything runs to plenty.
fn the_best_is_valid_and_beats_every_published_schedule(mut file: Value, share: u64) -> Result<(), TestCaseError> {
    let free = problem(&file);
    let effort = Effort(60_000);
    let best = |file: &Value| search::best(&problem(file), effort, &mut |_| Flow::Continue);
    let unlimited = best(&file).unwrap();
    let plenty = agree("best", &file, &free, &unlimited.schedule);
    // With a limit of 0 the planner names what it needs, rank by rank.
    let mut least = vec![0u64; free.ranks()];
    file["limit_bytes"] = json!(least);
    while let Err(infeasible) = best(&file) {
        prop_assert!(infeasible.least_bytes > least[infeasible.rank], "{infeasible}");
        least[infeasible.rank] = infeasible.least_bytes;
        file["limit_bytes"] = json!(least);
    }
    let limits: Vec<u64> = least
        .iter()
        .zip(&plenty.peak_bytes)
        .map(|(least, most)| least + (*most as u64).saturating_sub(*least) * share / 8)
        .collect();
    file["limit_bytes"] = json!(limits);
    let limited = problem(&file);
    let found = best(&file).unwrap();
    agree("best", &file, &limited, &found.schedule);
    prop_assert_eq!(simulate(&limited, &found.schedule).unwrap().cost_ns(limited.objective()), found.cost_ns);
    for published in schedule::published() {
        let Ok(schedule) = published.build(&limited) else { continue };
        if judged(&file, &schedule).is_ok() {
            let cost = simulate(&limited, &schedule).unwrap().cost_ns(limited.objective());
            prop_assert!(found.cost_ns <= cost, "best {} is worse than {} {}", found.cost_ns, published.name, cost);
        }
    }
    Ok(())
}

// Two halves, which run side by side.
proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn the_best_is_valid_and_beats_every_published_schedule_in_little_memory(file in problems(false), share in 0u64..=3) {
        the_best_is_valid_and_beats_every_published_schedule(file, share)?;
    }

    #[test]
    fn the_best_is_valid_and_beats_every_published_schedule_in_much_memory(file in problems(false), share in 4u64..=8) {
        the_best_is_valid_and_beats_every_published_schedule(file, share)?;
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn the_best_with_copies_to_the_host_is_valid_and_beats_every_published_schedule(
        file in offloading(false), share in 0u64..=8,
    ) {
        the_best_is_valid_and_beats_every_published_schedule(file, share)?;
    }
}

proptest! {
    #![proptest_config(config(200))]

    /// Published schedules, with the copies that half of the memory that they hold asks for.
    #[test]
    fn copies_of_published_schedules_are_valid_and_cost_what_is_said(mut file in offloading(true)) {
        let free = problem(&file);
        for published in schedule::published() {
            let Ok(order) = published.build(&free) else { continue };
            let half = |rank: usize| (free.static_bytes(rank) + schedule_peak_bytes(&free, &order, rank)).div_ceil(2);
            file["limit_bytes"] = json!((0..free.ranks()).map(half).collect::<Vec<_>>());
            let limited = problem(&file);
            let copied = search::within_limits(&limited, order);
            if copied.has_copies() {
                agree(published.name, &file, &limited, &copied);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn the_best_of_differing_microbatches_is_valid_and_beats_every_published_schedule(
        file in differing(false), share in 0u64..=8,
    ) {
        the_best_is_valid_and_beats_every_published_schedule(file, share)?;
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn published_schedules_of_differing_microbatches_are_valid_and_cost_what_is_said(file in differing(true)) {
        let problem = problem(&file);
        for published in schedule::published() {
            if let Ok(schedule) = published.build(&problem) {
                agree(published.name, &file, &problem, &schedule);
            }
        }
    }

    #[test]
    fn published_schedules_of_slices_are_valid_and_cost_what_is_said(file in sliced(true)) {
        let problem = problem(&file);
        for published in schedule::published() {
            if let Ok(schedule) = published.build(&problem) {
                agree(published.name, &file, &problem, &schedule);
            }
        }
    }

    /// Slices exchanged at random: the planner's check and the judge agree on what is left.
    #[test]
    fn damaged_schedules_of_slices_are_refused_alike(file in sliced(false), seed in any::<u64>()) {
        let problem = problem(&file);
        let schedule = schedule::find("looped-bfs").expect("published").build(&problem);
        let schedule = schedule.or_else(|_| schedule::find("1f1b").expect("published").build(&problem));
        let Ok(mut schedule) = schedule else { return Ok(()) };
        let mut random = Random(seed);
        for row in &mut schedule.rows {
            let (a, b) = (random.below(row.len() as u64) as usize, random.below(row.len() as u64) as usize);
            row.swap(a, b);
        }
        let says = judged(&file, &schedule).map(|_| ());
        prop_assert_eq!(check_schedule(&problem, &schedule).is_ok(), says.is_ok(), "{:?}", says);
    }

    /// An order keeps the op lists, costs what is said, and no more than the order as given or any sorted one.
    #[test]
    fn an_order_of_microbatches_is_valid_and_no_worse_than_the_one_given(
        file in prop_oneof![differing(false), sliced(false)], which in any::<prop::sample::Index>(),
    ) {
        let problem = problem(&file);
        let built: Vec<Schedule> = schedule::published().iter().filter_map(|published| published.build(&problem).ok()).collect();
        if built.is_empty() || !problem.differs() {
            return Ok(());
        }
        let schedule = which.get(&built);
        let effort = Effort(20_000);
        let ordered = search::order_microbatches(&problem, schedule, effort, &mut |_| Flow::Continue);
        let ordered = ordered.expect("there is no limit");
        let cost = |schedule: &Schedule| simulate(&problem, schedule).unwrap().cost_ns(problem.objective());
        agree("ordered", &file, &problem, &ordered.schedule);
        prop_assert_eq!(cost(&ordered.schedule), ordered.cost_ns);
        prop_assert_eq!(Some(cost(schedule)), ordered.given_ns);
        prop_assert!(Some(ordered.cost_ns) <= ordered.given_ns && Some(ordered.cost_ns) <= ordered.sorted_ns);
        for (row, before) in ordered.schedule.rows.iter().zip(&schedule.rows) {
            let kinds = |row: &[Op]| row.iter().map(|op| (op.stage(), op.kind())).collect::<Vec<_>>();
            prop_assert_eq!(kinds(row), kinds(before));
        }
    }

    /// Factors that are all 1000 say nothing.
    #[test]
    fn usual_factors_change_nothing(file in problems(true)) {
        let mut said = file.clone();
        let stages = file["ranks"].as_u64().unwrap() * file["chunks"].as_u64().unwrap();
        let one = json!([1000, {}, { "bytes": 1000 }]);
        let entry = |n: u64| if n % 4 == 3 { json!(vec![1000; stages as usize]) } else { one[n as usize % 4].clone() };
        said["microbatch_factors"] = json!((0..file["microbatches"].as_u64().unwrap()).map(entry).collect::<Vec<_>>());
        prop_assert_eq!(Statement::read(&said), Statement::read(&file));
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn published_schedules_are_valid_and_cost_what_is_said(file in problems(true)) {
        let problem = problem(&file);
        for published in schedule::published() {
            match published.build(&problem) {
                Ok(schedule) => {
                    agree(published.name, &file, &problem, &schedule);
                }
                Err(absent) => prop_assert!(!absent.reason.is_empty(), "{} is absent without a reason", published.name),
            }
        }
    }

    /// One op dropped, doubled, moved or exchanged: the planner's check and the judge agree on what is left.
    #[test]
    fn the_check_and_the_judge_refuse_the_same(
        file in prop_oneof![problems(true), differing(true)], which in any::<prop::sample::Index>(), lie in any::<u64>(),
    ) {
        let problem = problem(&file);
        let built: Vec<Schedule> = schedule::published().iter().filter_map(|published| published.build(&problem).ok()).collect();
        if built.is_empty() {
            return Ok(());
        }
        let mut schedule = which.get(&built).clone();
        let mut random = Random(lie);
        let rank = random.below(schedule.rows.len() as u64) as usize;
        let row = &mut schedule.rows[rank];
        let at = random.below(row.len() as u64) as usize;
        let other = random.below(row.len() as u64) as usize;
        match random.below(4) {
            0 => { row.remove(at); }
            1 => row.insert(other, row[at]),
            2 => row.swap(at, other),
            _ => { let op = row.remove(at); row.insert(other.min(row.len()), op); }
        }
        let verdict = judged(&file, &schedule);
        let checked = check_schedule(&problem, &schedule);
        prop_assert_eq!(verdict.is_ok(), checked.is_ok(), "{:?} {:?}\n{}", verdict, checked, file);
    }
}

/// Every order of the ops of one stage with its microbatches first in, first out, which loses nothing where
/// microbatches are alike: each job's n-th microbatch after its n-th of the job before.
fn orders(jobs: &[&str], stage: usize, microbatches: usize) -> Vec<String> {
    fn extend(
        jobs: &[&str],
        stage: usize,
        microbatches: usize,
        done: &mut Vec<usize>,
        row: &str,
        all: &mut Vec<String>,
    ) {
        if done.iter().all(|done| *done == microbatches) {
            all.push(row.to_string());
        }
        for job in 0..jobs.len() {
            let ready = if job == 0 { microbatches } else { done[job - 1] };
            if done[job] < ready {
                let longer = format!("{row}{stage}{}{} ", jobs[job], done[job]);
                done[job] += 1;
                extend(jobs, stage, microbatches, done, &longer, all);
                done[job] -= 1;
            }
        }
    }
    let mut all = Vec::new();
    extend(jobs, stage, microbatches, &mut vec![0; jobs.len()], "", &mut all);
    all
}

/// The least cost of any order at all, by trying every one. `None` where none fits the limits.
fn least_cost(problem: &judge::Problem) -> Option<u64> {
    let jobs: &[&str] = if problem.fused { &["F", "BW"] } else { &["F", "B", "W"] };
    let choices: Vec<Vec<String>> = (0..problem.ranks).map(|rank| orders(jobs, rank, problem.microbatches)).collect();
    least_of(problem, &choices)
}

/// The least cost of one order of each rank. `None` where none fits the limits.
fn least_of(problem: &judge::Problem, choices: &[Vec<String>]) -> Option<u64> {
    let mut picked = vec![0; problem.ranks];
    let mut least = None;
    loop {
        let rows: Vec<&str> = picked.iter().zip(choices).map(|(at, rows)| rows[*at].as_str()).collect();
        if let Ok(verdict) = problem.judge(&rows) {
            let cost = verdict.cost_ns(problem);
            least = Some(least.map_or(cost, |least: u64| least.min(cost)));
        }
        let Some(next) = (0..problem.ranks).find(|rank| picked[*rank] + 1 < choices[*rank].len()) else {
            return least;
        };
        picked[next] += 1;
        picked[..next].fill(0);
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// On problems so small that every order can be tried: the bound is below the best of all orders, the
    /// search is not, and a problem is infeasible only where no order fits.
    #[test]
    fn bounds_and_search_keep_to_what_trying_everything_finds(
        file in problems(false), shape in 0usize..4, squeeze in 0u64..=4,
    ) {
        let mut file = file;
        let fused = file["backward"] == "fused";
        let (ranks, microbatches) = match (shape, fused) {
            (0, false) => (2, 3),
            (1, false) => (3, 2),
            (2, false) => (4, 2),
            (0, true) => (2, 4),
            (1, true) => (3, 3),
            (2, true) => (4, 2),
            _ => (1, 3),
        };
        let mut random = Random(file["stages"].to_string().len() as u64 + squeeze);
        let mut stages: Vec<Value> = (0..ranks).map(|_| stage(&mut random, false)).collect();
        // No whole backwards, which are not tried.
        for stage in &mut stages {
            stage["backward_ns"] = Value::Null;
            (stage["forward_exchange_ns"], stage["backward_exchange_ns"]) = (json!(0), json!(0));
        }
        for (key, value) in [
            ("ranks", json!(ranks)), ("microbatches", json!(microbatches)), ("chunks", json!(1)),
            ("placement", json!("linear")), ("stages", json!(stages)), ("transfer_ns", json!(random.below(40))),
            ("static_bytes", json!(3)), ("overlap_permille", json!(0)), // no pairs, which are not tried
            // From hardly anything to about two microbatches.
            ("limit_bytes", json!(3 + 12 * (squeeze + 1))),
        ] {
            file[key] = value;
        }
        let problem = problem(&file);
        let least = least_cost(&judge::Problem::read(&file).unwrap());
        let found = search::best(&problem, Effort::default(), &mut |_| Flow::Continue);
        prop_assert_eq!(least.is_some(), found.is_ok(), "{:?} {:?} {}", least, found, file);
        if let (Some(least), Ok(found)) = (least, found) {
            let bound = lower_bound(&problem).value_ns;
            prop_assert!(bound <= least, "bound {bound} above the least cost {least} {file}");
            prop_assert!(found.bound_ns <= least, "bound {} above the least cost {least} {file}", found.bound_ns);
            prop_assert!(found.cost_ns >= least, "{} below the least cost {least} {file}", found.cost_ns);
            prop_assert!(found.cost_ns <= least + least / 4, "{} far above the least cost {least} {file}", found.cost_ns);
        }
    }
}

/// Every order of the ops of one stage, whichever microbatch comes first.
fn all_orders(jobs: &[&str], stage: usize, microbatches: usize) -> Vec<String> {
    fn extend(jobs: &[&str], stage: usize, done: &mut Vec<usize>, row: &str, all: &mut Vec<String>) {
        if done.iter().all(|done| *done == jobs.len()) {
            all.push(row.to_string());
        }
        for microbatch in 0..done.len() {
            if done[microbatch] < jobs.len() {
                let longer = format!("{row}{stage}{}{microbatch} ", jobs[done[microbatch]]);
                done[microbatch] += 1;
                extend(jobs, stage, done, &longer, all);
                done[microbatch] -= 1;
            }
        }
    }
    let mut all = Vec::new();
    extend(jobs, stage, &mut vec![0; microbatches], "", &mut all);
    all
}

proptest! {
    #![proptest_config(config(60))]

    /// As above for microbatches that differ: on problems so small that every order of every microbatch can be tried.
    #[test]
    fn bounds_of_differing_microbatches_keep_to_what_trying_everything_finds(
        seed in any::<u64>(), shape in 0usize..3, limited in any::<bool>(), span in any::<bool>(),
    ) {
        let mut random = Random(seed);
        let (ranks, microbatches, fused) = [(2, 3, true), (2, 2, false), (3, 2, true)][shape];
        let mut stages: Vec<Value> = (0..ranks).map(|_| stage(&mut random, false)).collect();
        for stage in &mut stages {
            stage["backward_ns"] = Value::Null;
            (stage["forward_exchange_ns"], stage["backward_exchange_ns"]) = (json!(0), json!(0));
        }
        let mut file = json!({
            "ranks": ranks, "microbatches": microbatches, "chunks": 1, "placement": "linear", "stages": stages,
            "transfer_ns": random.below(40), "backward": if fused { "fused" } else { "split" },
            "objective": if span { "longest_span" } else { "makespan" },
        });
        file["microbatch_factors"] = factors(&file, &mut random);
        if limited {
            file["limit_bytes"] = json!(10 + random.below(60));
        }
        let problem = problem(&file);
        let judge = judge::Problem::read(&file).unwrap();
        let jobs: &[&str] = if fused { &["F", "BW"] } else { &["F", "B", "W"] };
        let choices: Vec<Vec<String>> = (0..ranks).map(|rank| all_orders(jobs, rank, microbatches)).collect();
        let least = least_of(&judge, &choices);
        let found = search::best(&problem, Effort(100_000), &mut |_| Flow::Continue);
        if let Some(least) = least {
            let bound = lower_bound(&problem).value_ns;
            prop_assert!(bound <= least, "bound {bound} above the least cost {least} {file}");
            let cost = found.map(|found| found.cost_ns).map_err(|why| TestCaseError::fail(format!("{why} {file}")))?;
            prop_assert!(cost <= least + least / 2, "{cost} far above the least cost {least} {file}");
            // A whole BW, which is not tried for split backwards, may hold less.
            prop_assert!(cost >= least || !fused, "{cost} below the least cost {least} {file}");
        }
    }
}

/// The judge computes what a plan says of each data parallel replica: its schedule with the factors of the replica.
#[test]
fn replicas_with_different_documents_take_what_their_plan_says() {
    let text = "model.name = \"llama-3-8b\"\ncluster.device = \"h100\"\nmemory.limit_bytes = \"900 GiB\"\n\
                parallel = { pipeline = 4, data = 3 }\n[training]\nmicrobatches = 6\nsequence = 4096\n\
                documents = { distribution = \"log-normal\", median = 700, sigma = 1.5, seed = 5 }\n";
    let spec = Spec::read(text).unwrap_or_else(|error| panic!("{error}"));
    for name in ["1f1b", "zb-h1", "best"] {
        let plan = planner::plan_with(&spec, name, Effort(200_000), &mut |_| Flow::Continue)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = plan.to_value();
        let replicas = file["packing"]["replicas"].as_array().expect("a list");
        assert_eq!(replicas.len(), 3);
        for replica in replicas {
            let mut problem = file["problem"].clone();
            problem["microbatch_factors"] = replica["microbatch_factors"].clone();
            let verdict = judged(&problem, &plan.schedule).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            assert_eq!(json!(verdict.makespan_ns), replica["makespan_ns"], "{name}");
            assert_eq!(json!(verdict.longest_span_ns()), replica["longest_span_ns"], "{name}");
        }
    }
}
