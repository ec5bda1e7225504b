//! Microbatches that differ: orders, bounds and memory.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::check_schedule;
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::schedule::find;
use pipeplan_core::search::{self, Effort, Flow, order_microbatches};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Spec, link};
use serde_json::{Value, json};

/// Uniform numbers between 0 and 1.
struct Draws(u64);

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A normal number (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// Documents of log-normal length, one after the other, cut where a microbatch of `TOKENS` is full. Half of the time
    /// of the longest possible document is attention, which grows with the square of its length.
    fn microbatches(&mut self, count: usize) -> Vec<u64> {
        const TOKENS: f64 = 32_768.0;
        let mut rest: f64 = 0.0;
        let mut times = Vec::new();
        for _ in 0..count {
            let (mut free, mut squares) = (TOKENS, 0.0);
            while free >= 1.0 {
                if rest < 1.0 {
                    rest = (8.3 + 1.5 * self.normal()).exp().clamp(1.0, 4.0 * TOKENS);
                }
                let taken = rest.min(free);
                squares += taken * taken;
                (rest, free) = (rest - taken, free - taken);
            }
            times.push(1.0 + squares / (TOKENS * TOKENS));
        }
        let mean = times.iter().sum::<f64>() / count as f64;
        times.iter().map(|time| (1000.0 * time / mean).round() as u64).collect()
    }

    /// As [`Draws::microbatches`], drawn again until the longest is 1.38 times the mean or more, as in the field.
    fn uneven(&mut self, count: usize) -> Vec<u64> {
        loop {
            let times = self.microbatches(count);
            if times.iter().max() >= Some(&1380) {
                return times;
            }
        }
    }
}

/// What F, B and W take on average.
const MEAN_NS: u64 = 1_000_000;

fn problem(ranks: usize, factors: &[Value], more: Value) -> Problem {
    let mut file = json!({
        "ranks": ranks, "microbatches": factors.len(), "microbatch_factors": factors,
        "stages": {
            "forward_ns": MEAN_NS, "backward_input_ns": MEAN_NS, "backward_weight_ns": MEAN_NS,
            "forward_bytes": 1, "backward_input_bytes": -1,
        },
        "backward": "fused",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        file[key] = value.clone();
    }
    let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}"));
    statement.problem(statement.placements()[0].clone()).unwrap()
}

/// Time over work: as they come, the best sorted order, the best order found for 1F1B, the best schedule found within
/// the memory of 1F1B and without a limit, and the bound; then whether each stays in its place.
fn figures(ranks: usize, factors: &[u64], effort: Effort) -> [f64; 6] {
    // As many tokens in each microbatch: they hold the same bytes.
    let times: Vec<Value> = factors
        .iter()
        .map(|time| json!({ "forward": time, "backward_input": time, "backward_weight": time }))
        .collect();
    let free = problem(ranks, &times, json!({}));
    let limited = problem(ranks, &times, json!({ "limit_bytes": ranks }));
    let schedule = find("1f1b").expect("published").build(&free).expect("linear");
    let watch = &mut |_| Flow::Continue;
    let ordered = order_microbatches(&limited, &schedule, effort, watch).expect("1F1B fits its own memory");
    let [within, best] = [&limited, &free].map(|problem| {
        let found = search::best(problem, effort, &mut |_| Flow::Continue).expect("it fits");
        assert_eq!(check_schedule(problem, &found.schedule), Ok(()));
        assert_eq!(simulate(problem, &found.schedule).expect("it runs").makespan_ns(), found.cost_ns);
        found.cost_ns
    });
    let bound = lower_bound(&free).value_ns;
    let [given, sorted] = [ordered.given_ns, ordered.sorted_ns].map(|ns| ns.expect("it fits"));
    let order = [bound, best, ordered.cost_ns, sorted.min(given), given];
    assert!(order.is_sorted() && within <= given && bound <= within, "{order:?} {within} {factors:?}");
    let work = 3 * MEAN_NS * factors.iter().sum::<u64>() / 1000;
    [given, sorted, ordered.cost_ns, within, best, bound].map(|ns| ns as f64 / work as f64)
}

fn means(ranks: usize, microbatches: usize, draws: usize, effort: Effort) -> [f64; 6] {
    let mut source = Draws(7);
    let mut sums = [0.0; 6];
    for _ in 0..draws {
        let figures = figures(ranks, &source.uneven(microbatches), effort);
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure / draws as f64);
    }
    sums
}

/// The table of the docs. `EFFORT` is that of each search; 50,000,000 takes about a second of one core.
#[test]
#[ignore = "prints a table; for a release build"]
fn a_table_of_orders() {
    let read = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    println!("ranks, microbatches: given, sorted, 1F1B ordered, best in its memory, best without a limit, bound");
    for (ranks, microbatches) in [(4, 16), (8, 32), (8, 16)] {
        let effort = Effort(read("EFFORT", 50_000_000));
        println!("{ranks} {microbatches}: {:.3?}", means(ranks, microbatches, read("DRAWS", 20) as usize, effort));
    }
}

/// What an order gains: at least half of the distance from the order as given to the bound, in 1F1B alone.
#[test]
fn an_order_closes_half_of_the_distance_to_the_bound() {
    let draws = if cfg!(debug_assertions) { 3 } else { 20 };
    let [given, _, ordered, within, best, bound] = means(8, 32, draws, Effort(400_000));
    let closed = |ours: f64| (given - ours) / (given - bound);
    assert!(closed(ordered) >= 0.5, "{given} {ordered} {bound}");
    assert!(closed(within) >= 0.5 && closed(best) >= 0.5, "{given} {within} {best} {bound}");
}

/// Where bytes differ too, an order is one that the very microbatches fit in.
#[test]
fn an_order_fits_the_bytes_of_its_microbatches() {
    let mut draws = Draws(11);
    for limit in [1400, 2100, 3000, 5000] {
        // Shorter microbatches hold less.
        let factors: Vec<Value> = (0..12).map(|_| json!(300 + (1100.0 * draws.uniform()) as u64)).collect();
        let bytes = json!({
            "stages": {
                "forward_ns": MEAN_NS, "backward_input_ns": MEAN_NS, "backward_weight_ns": MEAN_NS,
                "forward_bytes": 1000, "backward_input_bytes": -400, "backward_weight_bytes": -600,
            },
            "limit_bytes": limit, "backward": "split", "transfer_ns": 10_000,
        });
        let problem = problem(4, &factors, bytes);
        let found = search::best(&problem, Effort(200_000), &mut |_| Flow::Continue).expect("one fits");
        assert_eq!(check_schedule(&problem, &found.schedule), Ok(()));
        assert!(found.bound_ns <= found.cost_ns);
    }
}

/// With a limit below the largest microbatch there is no schedule, and the refusal says what it needs.
#[test]
fn the_largest_microbatch_decides_what_fits() {
    let factors = [json!(500), json!(1700), json!(900), json!({ "bytes": 1701 })];
    let limited = |limit: u64| {
        problem(
            2,
            &factors,
            json!({ "limit_bytes": limit, "stages": {
        "forward_ns": 1, "backward_input_ns": 1, "forward_bytes": 1000, "backward_input_bytes": -1000 } }),
        )
    };
    let best = |limit| search::best(&limited(limit), Effort::default(), &mut |_| Flow::Continue);
    assert!(best(1701).is_ok());
    assert_eq!(best(1700).map_err(|why| (why.least_bytes, why.limit_bytes)), Err((1701, 1700)));
}

/// An observer ends the search; what was found stays.
#[test]
fn a_search_stops_when_it_is_told() {
    let factors: Vec<Value> = Draws(3).uneven(32).iter().map(|factor| json!(factor)).collect();
    let problem = problem(8, &factors, json!({}));
    let found = search::best(&problem, Effort(u64::MAX / 2), &mut |_| Flow::Stop).expect("no limit");
    assert_eq!(check_schedule(&problem, &found.schedule), Ok(()));
    // The same effort gives the same answer.
    let again = || search::best(&problem, Effort(300_000), &mut |_| Flow::Continue);
    assert_eq!(again(), again());
}

/// A spec of such a problem is the same through its text, its link and its plan file.
#[test]
fn factors_pass_through_text_link_and_plan() {
    let by_stage = json!([[1380, 900, { "messages": 700 }, 1], 620, { "bytes": 40 }, 1000]);
    for factors in [json!([1380, 620, 1000, 1000]), by_stage] {
        let spec = json!({
            "ranks": 4, "microbatches": 4, "microbatch_factors": factors, "transfer_ns": 5,
            "stages": { "forward_ns": 10, "backward_input_ns": 11, "forward_bytes": 7, "backward_input_bytes": -7 },
        });
        let spec = Spec::read(&spec.to_string()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(link::read(&link::write(&spec)).as_ref(), Ok(&spec));
        let plan = planner::plan(&spec, "best").unwrap_or_else(|error| panic!("{error}"));
        assert!(plan.problem.differs());
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));
        let fixed = planner::plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"));
        let ordered = planner::reorder(&fixed, Effort::default(), &mut |_| Flow::Continue).expect("it fits");
        assert!(ordered.prediction.makespan_ns <= fixed.prediction.makespan_ns);
        assert_eq!(Plan::from_json(&ordered.to_json()).as_ref(), Ok(&ordered));
        let rows = planner::compare(&spec).rows;
        let row = rows.iter().find(|row| row.schedule == "1f1b").expect("published");
        assert_eq!(row.makespan_ns, Some(fixed.prediction.makespan_ns));
        assert!(row.ordered_ns <= row.sorted_ns && row.ordered_ns <= row.makespan_ns && row.ordered_ns.is_some());
    }
}

#[test]
fn faults_name_the_entry() {
    let read = |factors: Value| {
        let file = json!({
            "ranks": 2, "microbatches": 2, "microbatch_factors": factors,
            "stages": { "forward_ns": 10, "backward_input_ns": 11 },
        });
        Statement::read(&file).map(|_| ()).map_err(|faults| faults.to_string())
    };
    for (factors, part) in [
        (json!([1000]), "a list of 2, one for each microbatch"),
        (json!(5), "a list of 2, one for each microbatch"),
        (json!([1000, 0]), "microbatch_factors[1]"),
        (json!([1000, 1.5]), "microbatch_factors[1]"),
        (json!([1000, [1000, 1000, 1000]]), "microbatch_factors[1]"),
        (json!([{ "forward": 100_001 }, 1000]), "microbatch_factors[0].forward"),
        (json!([{ "fwd": 10 }, 1000]), "microbatch_factors[0].fwd"),
        (json!([[1000, "x"], 1000]), "microbatch_factors[0][1]"),
    ] {
        let told = read(factors.clone()).expect_err("refused");
        assert!(told.contains(part), "{factors}: {told}");
    }
}

/// Tokens of a document see those of their chunk (Llama 4): as many pairs as chunks of the document have, and never more than
/// without documents.
#[test]
fn documents_longer_than_a_chunk_take_what_their_chunks_take() {
    let plan = |full_every: u32, documents: &str| {
        let text = format!(
            "schedule = \"1f1b\"\nmodel.name = \"llama-3-8b\"\ncluster.device = \"h100\"\nparallel.pipeline = 2\n\
             model.window = {{ tokens = 2048, full_every = {full_every}, chunked = true }}\n\
             memory.limit_bytes = \"900 GiB\"\n[training]\nmicrobatches = 4\nsequence = 8192\n{documents}"
        );
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
        planner::plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}")).problem
    };
    let (usual, with_full) =
        (plan(0, ""), plan(4, "documents = [[8192], [4096, 4096], [2048, 2048, 2048, 2048], [1024]]"));
    let problem = plan(0, "documents = [[8192], [4096, 4096], [2048, 2048, 2048, 2048], [3000, 1000, 1024]]");
    for kind in [OpKind::F, OpKind::B] {
        let ns = |m| problem.duration(Op::new(0, kind, m));
        // Whole chunks have the pairs of the sequence without documents.
        assert_eq!([ns(0), ns(1), ns(2)], [usual.duration(Op::new(0, kind, 0)); 3]);
        assert!(ns(3) < ns(2));
        // Layers with full attention take less of them.
        let ns = |m| with_full.duration(Op::new(0, kind, m));
        assert!(ns(0) > ns(1) && ns(1) > ns(2) && ns(2) > ns(3), "{kind}");
    }
    // 3000 tokens are a chunk and 952 more. The difference to 1024 alone is as that of pairs, to the thousandth.
    let other = plan(0, "documents = [[8192], [1024], [2048], [3000, 1000, 1024]]");
    let ns = |m| other.duration(Op::new(0, OpKind::F, m)) as f64;
    let pairs = |lengths: &[f64]| lengths.iter().map(|n| n * (n + 1.0) / 2.0).sum::<f64>();
    let [all, least, more] = [pairs(&[2048.0; 4]), pairs(&[1024.0]), pairs(&[2048.0, 952.0, 1000.0, 1024.0])];
    let (found, expected) = (ns(3) - ns(1), (more - least) / (all - least) * (ns(0) - ns(1)));
    assert!((found - expected).abs() <= 2.0e-3 * ns(0), "{found} {expected}");
}

/// Documents change the time of attention alone: by the pairs of tokens that see each other.
#[test]
fn documents_of_a_model_change_the_time_of_attention() {
    let text = |batch: &str| {
        format!(
            "schedule = \"1f1b\"\nmodel.name = \"llama-3-8b\"\ncluster.device = \"h100\"\nparallel.pipeline = 2\n\
             memory.limit_bytes = \"900 GiB\"\n[training]\nmicrobatches = 4\nsequence = 8192\n{batch}"
        )
    };
    let plan = |batch: &str| {
        let spec = Spec::read(&text(batch)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(link::read(&link::write(&spec)).as_ref(), Ok(&spec));
        let plan = planner::plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));
        plan.problem
    };
    let usual = plan("");
    assert!(!usual.differs());
    assert_eq!(plan("documents = [[8192], [8192], [8192], [8192]]"), usual);
    let problem = plan("documents = [[8192], [4096, 4096], [4096, 1024], [64, 8000]]");
    for stage in 0..2 {
        for kind in [OpKind::F, OpKind::B] {
            let ns = |m| problem.duration(Op::new(stage, kind, m));
            // Two halves have half of the pairs; less than that, less; nearly one, nearly all.
            assert!(ns(2) < ns(1) && ns(1) < ns(3) && ns(3) <= ns(0), "{stage} {kind}");
            assert_eq!(ns(0), usual.duration(Op::new(stage, kind, 0)));
            // n(n+1)/2 pairs of 8192, of two halves, and of 4096 and 1024: the differences are as theirs, to the thousandth.
            let pairs = |lengths: &[f64]| lengths.iter().map(|n| n * (n + 1.0) / 2.0).sum::<f64>();
            let [one, halves, less] = [pairs(&[8192.0]), pairs(&[4096.0; 2]), pairs(&[4096.0, 1024.0])];
            let (found, expected) = ((ns(0) - ns(1)) as f64, (one - halves) / (one - less) * (ns(0) - ns(2)) as f64);
            assert!((found - expected).abs() <= 2.0e-3 * ns(0) as f64, "{found} {expected}");
        }
        // W has no attention.
        assert_eq!(problem.duration(Op::new(stage, OpKind::W, 2)), usual.duration(Op::new(stage, OpKind::W, 2)));
        assert_eq!(problem.cost_of(stage, 2).forward_bytes, usual.cost(stage).forward_bytes);
    }
    let factors = plan("microbatch_factors = [1380, 900, { backward_input = 1200 }, 1000]");
    assert_eq!(factors.duration(Op::new(0, OpKind::F, 2)), usual.duration(Op::new(0, OpKind::F, 2)));
    assert!(factors.duration(Op::new(0, OpKind::F, 0)) > usual.duration(Op::new(0, OpKind::F, 0)));
    for (batch, part) in [
        ("documents = [[8192], [8192]]", "training.documents"),
        ("documents = [[8193], [1], [1], [1]]", "training.documents[0]"),
        ("documents = [[1], [], [1], [1]]", "training.documents[1]"),
        ("documents = [[1], [4096, 4096, 1], [1], [1]]", "training.documents[1]"),
        ("documents = [[1], 5, [1], [1]]", "training.documents[1]"),
        ("documents = [[1], [2], [1], [1]]\nattention = \"materialised\"", "materialised attention"),
        ("documents = [[1], [2], [1], [1]]\nrecompute = \"fit\"", "training.recompute"),
        ("microbatch_factors = [1380, 900]", "training.microbatch_factors"),
        ("microbatch_factors = [1380, 900, 1000, { bytes = 5 }]", "training.microbatch_factors[3].bytes"),
        ("documents = [[1], [2], [1], [1]]\nmicrobatch_factors = [1380, 900, 1, 1]", "one of both"),
    ] {
        let told = Spec::read(&text(batch)).map(|_| ()).expect_err(batch).to_string();
        assert!(told.contains(part), "{batch}: {told}");
    }
}
