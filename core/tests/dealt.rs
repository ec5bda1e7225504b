//! How layers are assigned to stages, tested through whole plans.

use pipeplan_core::notation::megatron_layout;
use pipeplan_core::plan::planner::{self, Answer};
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;

fn spec(pipeline: u32, partition: &str, limit: u64) -> Spec {
    let text = format!(
        "[model]\nname = \"llama-2-7b\"\nlayers = 14\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = {pipeline}\n\
         chunks = 2\npartition = {partition}\ndata = 8\nzero = 1\n[training]\nmicrobatches = 12\n\
         microbatch_size = 4\n[memory]\nlimit_bytes = {limit}\n\
         overhead_bytes = 1000000000"
    );
    Spec::read(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn answer(name: &str, spec: &Spec) -> Result<Answer, String> {
    let published = schedule::find(name).unwrap_or_else(|| panic!("{name}"));
    planner::answer(spec, &published).map_err(|absent| absent.reason)
}

fn layers(answer: &Answer) -> Vec<u32> {
    let stages = answer.case.derived.as_ref().map(|derived| derived.stages.clone()).unwrap_or_default();
    stages.iter().map(|stage| stage.layers.end - stage.layers.start).collect()
}

/// The slowest stage, and the squares of all.
fn figures(answer: &Answer) -> (u64, u128) {
    let stages = answer.case.derived.as_ref().map(|derived| derived.statement.stages.clone()).unwrap_or_default();
    let times = stages.iter().map(|cost| cost.forward_ns + cost.backward_input_ns + cost.backward_weight_ns);
    times.fold((0, 0), |(most, squares), time| (most.max(time), squares + u128::from(time) * u128::from(time)))
}

fn peak(answer: &Answer, rank: usize) -> u64 {
    answer.timeline.peak_bytes(&answer.case.problem, rank)
}

/// Over limits that fewer and fewer deals keep: of all deals that 1F1B runs within the limit, `within-limit` finds the
/// fastest and evenest, and it says so where there is none.
#[test]
fn no_deal_within_the_limit_is_faster() {
    let ample = 900_000_000_000;
    let balanced = answer("1f1b", &spec(3, "\"balanced\"", ample)).unwrap();
    let most = (0..3).map(|rank| peak(&balanced, rank)).max().unwrap();
    let mut all = Vec::new();
    for first in 1..=12u32 {
        for second in 1..=13 - first {
            let deal = format!("[{first}, {second}, {}]", 14 - first - second);
            all.push(answer("1f1b", &spec(3, &deal, ample)).unwrap());
        }
    }
    let (mut unlike, mut none) = (0, 0);
    for share in [1100, 1000, 980, 950, 900, 850, 800, 750, 700, 600, 300] {
        let limit = most / 1000 * share;
        let kept = |answer: &&Answer| (0..3).all(|rank| peak(answer, rank) <= limit);
        let best = all.iter().filter(kept).map(figures).min();
        match (answer("1f1b", &spec(3, "\"within-limit\"", limit)), best) {
            (Ok(answer), Some(best)) => {
                assert_eq!(figures(&answer), best, "{limit}: {:?}", layers(&answer));
                unlike += u32::from(layers(&answer) != layers(&balanced));
            }
            (Err(reason), None) => {
                assert!(reason.contains("no assignment of layers to stages fits"), "{reason}");
                none += 1;
            }
            (found, best) => panic!("{limit}: {found:?} {best:?}"),
        }
    }
    assert!(unlike > 0 && none > 0, "{unlike} {none}");
}

/// With several chunks a rank, too, a deal is found and kept where the limit is 10 % above what the leanest of all deals
/// needs, and the balanced one needs more.
#[test]
fn chunks_share_a_rank_s_limit() {
    let ample = 900_000_000_000;
    for name in ["interleaved-1f1b", "zb-v"] {
        let fullest = |answer: &Answer| (0..2).map(|rank| peak(answer, rank)).max().unwrap_or(0);
        let mut leanest = u64::MAX;
        for first in 1..=11u32 {
            for second in 1..=12 - first {
                for third in 1..=13 - first - second {
                    let deal = format!("[{first}, {second}, {third}, {}]", 14 - first - second - third);
                    leanest = leanest.min(fullest(&answer(name, &spec(2, &deal, ample)).unwrap()));
                }
            }
        }
        let free = answer(name, &spec(2, "\"balanced\"", ample)).unwrap();
        let limit = leanest / 100 * 110;
        let dealt =
            answer(name, &spec(2, "\"within-limit\"", limit)).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        println!("{name}: {:?} for {:?}, {} for {}", layers(&dealt), layers(&free), fullest(&dealt), fullest(&free));
        assert!(fullest(&dealt) <= limit, "{name}");
    }
}

/// What a plan's stages are written as in Megatron's form deals them so again.
#[test]
fn a_layout_that_is_written_is_read() {
    for (pipeline, name) in [(4, "1f1b"), (2, "interleaved-1f1b"), (5, "interleaved-1f1b")] {
        let first = answer(name, &spec(pipeline, "\"balanced\"", 900_000_000_000)).unwrap();
        let stages = &first.case.derived.as_ref().unwrap().stages;
        let text = megatron_layout::write(&megatron_layout::of_stages(stages, 0));
        assert!(text.starts_with('E') && text.ends_with('L'), "{text}");
        let again = answer(name, &spec(pipeline, &format!("\"{text}\""), 900_000_000_000)).unwrap();
        assert_eq!(layers(&again), layers(&first), "{text}");
    }
}
