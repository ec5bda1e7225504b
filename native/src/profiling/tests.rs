use pipeplan_core::graph::form::{AttentionForm, Form, Recompute};
use pipeplan_core::graph::layout::Layout;
use pipeplan_core::hardware::cost::JobTimes;

use super::*;
use crate::selftest::training_runs::{Like, work};

const ALL: [Like; 6] = [Like::Llama, Like::Gpt, Like::Qwen3, Like::Gemma2, Like::Mixtral, Like::DeepSeek];

/// Models of every kind, in forms that have every operator.
fn works(dtype: Dtype) -> Vec<(String, ModelWork)> {
    let usual = Form::default();
    let forms = [
        usual,
        Form { attention: AttentionForm::Materialised, dropout: true, recompute: Recompute::Full, ..usual },
        Form { tensor: 2, sequence_parallel: true, imbalance_permille: 1500, ..usual },
        Form { tensor: 2, async_reduce: true, expert: 2, imbalance_permille: 2000, ..usual },
    ];
    let of = |like: Like, form: Form| {
        let work = work(like, dtype, 2)?;
        let materialised = form.attention == AttentionForm::Materialised;
        let may = like == Like::Llama || like == Like::Gpt || !materialised;
        let form = if work.model.variant.experts.is_some() { form } else { Form { expert: 1, ..form } };
        // Keys and values of one head cannot be shared.
        let model = pipeplan_core::model::ModelConfig { kv_heads: 2, ..work.model };
        let layout = Layout { form, data: form.expert, ..work.layout };
        let work = ModelWork { model, layout, sequence: 20, ..work };
        may.then(|| (format!("{like:?}, {form:?}"), work))
    };
    ALL.into_iter().flat_map(|like| forms.map(|form| of(like, form))).flatten().collect()
}

/// What is measured is all that the stages of a plan do alone, on one core and on the emulated card of a card: nothing is
/// left to be estimated but what devices do together.
#[test]
fn slow_all_that_a_device_does_alone_is_measured() {
    let hasty = |work: &ModelWork, stopwatch: &mut dyn Stopwatch, name: &str| {
        let (profile, missed) =
            measure(stopwatch, (&whole(work), work.dtype), Profile::new("test"), &mut |_, _, _| Flow::Continue);
        assert!(missed.is_empty(), "{name}: {missed:?}");
        let layers = work.model.layers;
        for (layers, embedding, head) in
            [(0..1, true, false), (1..layers, false, false), (layers - 1..layers, false, true)]
        {
            let graph = graph_of(work, &StageLayout { layers, embedding, head, ..StageLayout::default() });
            for operator in graph.operators.iter().filter(|operator| works_alone(operator)) {
                let what = Signature::of(&graph, operator);
                assert!(profile.time(&graph, operator).is_some(), "{name}: {what:?}");
            }
            let (_, load) = update_of(&graph, u64::MAX).expect("weights");
            assert!(profile.update_time(work.dtype, load.bytes, &work.device).is_some(), "{name}: the optimizer");
        }
    };
    for (name, work) in works(Dtype::F32) {
        hasty(&work, &mut cpu::Cpu::<f32>::hasty(&work), &name);
    }
    #[cfg(feature = "cuda")]
    if let Some(card) = crate::backend::cuda::tests::host() {
        for (name, work) in works(Dtype::Bf16) {
            hasty(&work, &mut card::Gpu::new(&card, card::Pace::ONCE), &name);
        }
    }
}

/// As plans count on it: each expert sees as many tokens as the next, or one more, and what arrives is what was chosen.
#[test]
fn tokens_are_dealt_evenly() {
    let work = work(Like::Mixtral, Dtype::F32, 2).expect("a cpu is in the catalog");
    let graph = whole(&work);
    let experts = work.model.variant.experts.expect("experts");
    let find =
        |wanted: fn(&Kernel) -> bool| graph.operators.iter().find(|operator| wanted(&operator.kernel)).unwrap();
    let route = find(|kernel| matches!(kernel, Kernel::Route { .. }));
    let dispatch = find(|kernel| matches!(kernel, Kernel::Dispatch { .. }));
    let read = |tensor| whole_numbers(&graph, std::slice::from_ref(dispatch), tensor);
    let (chosen, arrivals) = (read(route.outputs[1]), read(dispatch.outputs[1]));
    assert_eq!(chosen.len() as u64, u64::from(experts.active) * u64::from(work.sequence * work.microbatch_size));
    assert!(chosen.chunks(experts.active as usize).all(|of_token| of_token[0] != of_token[1]), "one expert twice");
    let of_expert = |expert: usize| chosen.iter().filter(|one| **one == expert as i32).count() as i32;
    assert_eq!(arrivals, (0..experts.count as usize).map(of_expert).collect::<Vec<i32>>());
}

/// What is known is not measured again, and what was stopped is what was done by then.
#[cfg(feature = "cuda")]
#[test]
fn a_profile_goes_on_where_it_was_stopped() {
    let Some(card) = crate::backend::cuda::tests::host() else { return };
    let work = work(Like::Llama, Dtype::F32, 2).expect("a cpu is in the catalog");
    let graph = whole(&work);
    let mut gpu = card::Gpu::new(&card, card::Pace::ONCE);
    let mut stop_at_5 = |done: usize, _: usize, _: &str| if done == 5 { Flow::Stop } else { Flow::Continue };
    let (some, _) = measure(&mut gpu, (&graph, work.dtype), Profile::new("test"), &mut stop_at_5);
    assert_eq!(some.len(), 5);
    let mut left = 0;
    let mut count = |_: usize, all: usize, _: &str| {
        left = all;
        Flow::Continue
    };
    let (all, _) = measure(&mut gpu, (&graph, work.dtype), some.clone(), &mut count);
    assert_eq!(left, all.len() - 5);
    for wanted in wanted(std::slice::from_ref(&graph), true).iter().take(5) {
        assert!(some.has(&wanted.signature));
    }
}

/// A core is stopped between any two operators, and what is known then is what whole microbatches took.
#[test]
fn a_core_is_stopped_between_operators() {
    let work = work(Like::Llama, Dtype::F32, 2).expect("a cpu is in the catalog");
    let graph = whole(&work);
    let mut all = 0;
    let mut count = |_: usize, of: usize, _: &str| {
        all = of;
        Flow::Stop
    };
    measure(&mut cpu::Cpu::<f32>::new(&work), (&graph, work.dtype), Profile::new("test"), &mut count);
    // The first of four microbatches counts for nothing.
    for (after, is_known) in
        [(0, false), (all / 4 + 5, false), (all / 2 - 1, false), (all / 2, true), (all / 2 + 5, true)]
    {
        let mut stop = |done: usize, _: usize, _: &str| if done >= after { Flow::Stop } else { Flow::Continue };
        let (profile, missed) =
            measure(&mut cpu::Cpu::<f32>::new(&work), (&graph, work.dtype), Profile::new("test"), &mut stop);
        assert_eq!((profile.is_empty(), missed.len()), (!is_known, 0), "after {after} of {all}");
    }
}

/// Lines and jobs are two ways to add up the same: with every time measured, and with products that take in sums.
#[test]
fn lines_add_up_to_the_jobs() {
    let work = work(Like::Gpt, Dtype::F32, 2).expect("a cpu is in the catalog");
    let graph = whole(&work);
    for pairs in [false, true] {
        let mut profile = Profile::new("test");
        for (at, wanted) in wanted(std::slice::from_ref(&graph), pairs).into_iter().enumerate() {
            profile.insert(wanted.signature.clone(), wanted.load(), 10 + at as Nanos);
        }
        let (lines, jobs) = account(&work, &graph, &profile);
        let of_jobs = |which: usize| jobs.iter().map(|job| job[which]).sum::<Nanos>();
        assert_eq!(lines.iter().filter_map(|line| line.measured_ns).sum::<Nanos>(), of_jobs(0));
        assert_eq!(lines.iter().map(|line| line.estimated_ns).sum::<Nanos>(), of_jobs(1));
        let joined = takes_sum(&graph).into_iter().filter(|takes| pairs && *takes).count();
        assert_eq!(lines.iter().map(|line| line.count).sum::<usize>() + joined, graph.operators.len());
        assert!(lines.is_sorted_by_key(|line| std::cmp::Reverse(line.measured_ns)));
        // The sum of a stage's jobs is what a plan counts.
        let times = profile.operator_times(&graph, &work.device, &Peers::all(work.link));
        let times = JobTimes::of_times(&graph, &times);
        assert_eq!(jobs.map(|job| job[0]), times.jobs);
    }
}
