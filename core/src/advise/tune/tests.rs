use alloc::string::ToString;
use alloc::vec;

use super::*;
use crate::graph::form::Offload;
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::plan::Plan;
use crate::plan::planner;
use crate::spec::ModelWork;
use alloc::collections::BTreeSet;

/// A model of 8 small layers on 8 devices.
fn tiny(model: &str, limit: &str) -> Spec {
    let text = format!(
        "[model]\nname = \"tiny-llama\"\n{model}\n[cluster]\ndevice = \"cpu\"\ndevices_per_node = 4\n[parallel]\n\
         pipeline = 4\ndata = 2\n[training]\nmicrobatches = 8\nmicrobatch_size = 2\nsequence = 64\n[memory]\n\
         limit_bytes = \"{limit}\""
    );
    Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn usual() -> Spec {
    tiny("", "10 MiB")
}

fn only(names: &[&str]) -> Question {
    Question { schedules: names.iter().map(ToString::to_string).collect(), ..Question::default() }
}

fn run(spec: &Spec, question: &Question) -> Tuner {
    let mut tuner = Tuner::new(spec, question).unwrap_or_else(|faults| panic!("{faults}"));
    while tuner.step(Effort(2_000), &mut |_| Flow::Continue) {}
    tuner
}

fn work_of(spec: &Spec) -> &ModelWork {
    let Work::Model(work) = &spec.work else { panic!("a model") };
    work
}

fn step_of(plan: &Plan) -> Nanos {
    plan.step().unwrap().step_ns
}

/// Searches that went on elsewhere, all or some of them, change no answer.
#[test]
fn what_is_learned_is_what_is_found() {
    let given = usual();
    // One rank alone is not searched.
    let question = Question { keep: vec![Field::Pipeline], ..only(&["1f1b", BEST]) };
    let alone = run(&given, &question);
    for kept in [1, 2, 3] {
        let mut tuner = Tuner::new(&given, &question).unwrap_or_else(|faults| panic!("{faults}"));
        let mut learned = 0;
        loop {
            for (at, mut search) in tuner.searches().into_iter().enumerate() {
                if at % kept == 0 {
                    while search.step(Effort(2_000), &mut |_| Flow::Continue) {}
                    learned += 1;
                }
                tuner.learn(search);
            }
            if !tuner.step(Effort(2_000), &mut |_| Flow::Continue) {
                break;
            }
        }
        assert!(learned > 2, "{learned}");
        assert_eq!(tuner.to_value(true), alone.to_value(true), "{kept}");
    }
}

/// Who names a schedule is compared with that one, and told what another makes of the same layout.
#[test]
fn a_named_schedule_is_what_was_given() {
    let named = Spec { schedule: "1f1b".into(), ..usual() };
    let tuner = run(&named, &Question { most: 1, ..Question::default() });
    let given = tuner.given().unwrap().as_ref().unwrap();
    let published = schedule::find("1f1b").unwrap();
    let step = planner::answer(&named, &published).unwrap().step(&named).unwrap();
    assert_eq!((given.spec.schedule.as_str(), given.step), ("1f1b", step));
    assert!(given.changes(&named).is_empty());
    assert!(tuner.rows()[0].step.step_ns <= step.step_ns);
}

/// A layout is what its spec says, read again from its text; and its changes, typed into the given spec, make that spec.
#[test]
fn a_layout_is_what_its_spec_plans() {
    let given = usual();
    let tuner = run(&given, &Question { most: 3, ..Question::default() });
    assert_eq!(tuner.rows().len(), 3);
    let now = tuner.given().unwrap().as_ref().unwrap();
    for row in tuner.rows().iter().chain([now]) {
        let read = Spec::read(&row.spec.to_json()).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(read, row.spec);
        let plan = planner::plan_with(&read, &read.schedule, Effort(2_000), &mut |_| Flow::Continue).unwrap();
        assert_eq!(step_of(&plan), row.step.step_ns, "{row:?}");
        assert!(row.peak <= work_of(&given).limit_bytes.unwrap());
        let (before, after) = (work_of(&given), work_of(&row.spec));
        assert_eq!(after.devices(), before.devices());
        let sequences = |work: &ModelWork| work.layout.data * work.microbatches * work.microbatch_size;
        assert_eq!(sequences(after), sequences(before), "as many tokens a step");

        let mut value = given.to_value();
        for change in row.changes(&given) {
            let typed = serde_json::from_str(&change.to).unwrap_or_else(|_| change.to.clone().into());
            match change.field.split_once('.') {
                Some((table, key)) => value[table][key] = typed,
                None => value[change.field] = typed,
            }
        }
        assert_eq!(Spec::from_value(&value).as_ref(), Ok(&row.spec));
    }
    assert!(tuner.rows().is_sorted_by_key(|row| row.step.step_ns));
    assert!(tuner.rows()[0].step.step_ns <= now.step.step_ns, "the given layout is one of those that are tried");
}

/// With room for all layouts none is passed over; so what passes over may change nothing but how long it takes.
#[test]
fn nothing_faster_is_passed_over() {
    let given = usual();
    let names = ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe"];
    let few = run(&given, &Question { most: 2, ..only(&names) });
    let all = run(&given, &Question { most: usize::MAX, ..only(&names) });
    assert!(few.tally().slower > 0 && all.tally().slower == 0, "{:?}", few.tally());
    assert_eq!(few.rows(), &all.rows()[..2]);
    for tuner in [&few, &all] {
        assert_eq!(tuner.tally().settled(), tuner.tally().layouts);
    }
    assert_eq!(all.rows().len(), all.tally().planned - all.tally().unfit);
}

/// A spec that gathers weights beside the forward, as scripts of Megatron-LM do, is tuned over every ZeRO stage: where one
/// gathers none at the end of a step, none are gathered beside the forward.
#[test]
fn overlapped_gathers_leave_no_zero_stage_out() {
    let refused = |overlaps: bool| {
        let mut given = usual();
        if let Work::Model(work) = &mut given.work {
            (work.layout.zero, work.layout.overlap_param_gather) = (1, overlaps);
        }
        run(&given, &Question { most: usize::MAX, ..only(&["1f1b"]) }).tally().refused
    };
    assert_eq!(refused(true), refused(false));
}

/// What is called hopeless has no plan, and no plan has a step below its floor: by every schedule, whatever is
/// computed again.
#[test]
fn slow_floors_hold() {
    let mut spread = tiny("", "5 MiB");
    if let Work::Model(work) = &mut spread.work {
        work.layout.zero = 3;
    }
    let mut paired = tiny("experts = { count = 8, active = 2, ffn = 64 }", "64 MiB");
    if let Work::Model(work) = &mut paired.work {
        (work.layout.form.expert, work.layout.overlap_exchanges) = (2, true);
    }
    let models = [usual(), spread, tiny("tied = true", "1500 KiB"), paired];
    let mut hopeless = 0;
    for given in models {
        let tuner = Tuner::new(&given, &Question::default()).unwrap();
        let mut fit = 0;
        for (turn, degrees) in tuner.fresh.iter().enumerate() {
            let floor = tuner.floor(*degrees);
            hopeless += usize::from(floor.is_err());
            let recomputes = [RecomputeLayers::All, RecomputeLayers::Fit];
            let pairs =
                schedule::published().iter().flat_map(|published| recomputes.clone().map(|one| (published, one)));
            // A third of the pairs for each layout, in turns: all of them for all layouts take minutes.
            for (published, recompute) in pairs.skip(turn % 3).step_by(3) {
                let mut work = tuner.with_degrees(*degrees).unwrap();
                work.layout.recompute_layers = recompute;
                let spec = Spec { work: Work::Model(work), ..given.clone() };
                let Ok(answer) = planner::answer(&spec, published) else { continue };
                let step = answer.step(&spec).unwrap().step_ns;
                assert!(
                    floor.as_ref().is_ok_and(|floor| *floor <= step),
                    "{degrees:?} {} {floor:?} {step}",
                    published.name
                );
                fit += 1;
            }
        }
        assert!(fit > 7, "{fit} plans");
    }
    assert!(hopeless > 0);
}

/// Seven devices cannot share four heads, nor can any more than four: where tensor parallelism is all that is left, the
/// reason is told, and what can be dealt.
#[test]
fn what_is_not_allowed_is_told_apart_from_what_is_too_large() {
    let mut given = usual();
    let Work::Model(work) = &mut given.work else { panic!("a model") };
    (work.pipeline, work.layout.data, work.devices_per_node) = (1, 1, 64);
    let keep = vec![Field::Pipeline, Field::Data, Field::Context];
    let question = |devices| Question { devices: Some(devices), keep: keep.clone(), ..only(&["1f1b"]) };
    let seven = run(&given, &question(7));
    assert!(seven.rows().is_empty());
    assert_eq!(
        seven.tally(),
        Tally { layouts: seven.tally().layouts, refused: seven.tally().layouts, ..Tally::default() }
    );
    assert!(
        seven.refusal().is_some_and(|reason| reason.starts_with("parallel.tensor: found 7")),
        "{:?}",
        seven.refusal()
    );
    assert_eq!(nearest_numbers(&given, &question(7)), [4]);
    assert_eq!(nearest_numbers(&given, &question(3)), [2, 4]);
    let small = run(&tiny("", "1 KiB"), &only(&["1f1b"]));
    assert_eq!((small.tally().refused, small.tally().too_large), (0, small.tally().layouts));
}

#[test]
fn what_is_kept_stays_and_what_is_not_allowed_is_not_used() {
    let given = usual();
    let question = Question { keep: vec![Field::Tensor, Field::MicrobatchSize, Field::Recompute], ..only(&["1f1b"]) };
    let tuner = run(&given, &question);
    assert!(!tuner.rows().is_empty());
    for row in tuner.rows() {
        assert_eq!((row.degrees.tensor, row.degrees.microbatch_size), (1, 2));
        assert_eq!((row.recompute.as_str(), row.spec.schedule.as_str()), ("none", "1f1b"));
    }
    let pipelines: BTreeSet<u32> = tuner.rows().iter().map(|row| row.degrees.pipeline).collect();
    assert!(pipelines.len() > 1, "{pipelines:?}");
    let mut given = given;
    if let Work::Model(work) = &mut given.work {
        work.layout.partition = Partition::WithinLimit;
    }
    for kept in [false, true] {
        let keep = match kept {
            true => vec![Field::Zero, Field::SequenceParallel, Field::Partition],
            false => Vec::new(),
        };
        let tuner = run(&given, &Question { keep, most: 1000, ..only(&["1f1b"]) });
        // The given one is as it is.
        let works = || tuner.rows().iter().filter(|row| row.spec != given).map(|row| work_of(&row.spec));
        let of_copies = works().filter(|work| work.layout.copies() > 1);
        let of_tensor = works().filter(|work| work.layout.form.tensor > 1);
        assert!(of_copies.clone().count() > 0 && of_tensor.clone().count() > 0, "{:?}", tuner.tally());
        assert!(of_copies.clone().all(|work| (work.layout.zero == 0) == kept));
        assert!(of_tensor.clone().all(|work| work.layout.form.sequence_parallel != kept));
        assert!(works().all(|work| (work.layout.partition == Partition::WithinLimit) == kept));
    }
    let given = usual();
    let tuner = run(&given, &Question { devices: Some(16), most: 1, ..only(&["1f1b"]) });
    assert_eq!(work_of(&tuner.rows()[0].spec).devices(), 16);
}

/// Without a pipeline, copies that share out weights hold less: a limit at which no other layout without one fits leaves
/// those.
#[test]
fn weights_are_shared_out_where_there_is_no_pipeline() {
    let keep = vec![Field::Pipeline, Field::Tensor, Field::Context, Field::Recompute];
    let of = |limit: &str| {
        let mut given = tiny("", limit);
        let Work::Model(work) = &mut given.work else { panic!("a model") };
        (work.pipeline, work.layout.data) = (1, 8);
        run(&given, &Question { keep: keep.clone(), most: 1000, ..only(&["1f1b"]) })
    };
    let zeros = |tuner: &Tuner| tuner.rows().iter().map(|row| row.degrees.zero).collect::<BTreeSet<_>>();
    let roomy = of("1 GiB");
    assert_eq!(zeros(&roomy), BTreeSet::from([1, 3]));
    let least = |zero| {
        let rows = roomy.rows().iter().filter(|row| row.degrees.zero == zero);
        rows.map(|row| row.peak).min().expect("some")
    };
    assert!(least(3) < least(1));
    let tight = of(&format!("{} B", least(1) - 1));
    assert_eq!(zeros(&tight), BTreeSet::from([3]));
    assert!(tight.rows()[0].saved().ends_with("; ZeRO 3"), "{}", tight.rows()[0].saved());
}

/// Groups of copies stay as they are where copies come out even in them; else all share out, which is said.
#[test]
fn groups_of_copies_stay_where_they_come_out_even() {
    let mut given = tiny("", "1 GiB");
    let Work::Model(work) = &mut given.work else { panic!("a model") };
    (work.pipeline, work.layout.data, work.layout.zero, work.layout.shard) = (1, 12, 1, Some(3));
    let tuner = run(&given, &Question { most: 1000, ..only(&["1f1b"]) });
    let (even, uneven): (Vec<&Tuned>, Vec<&Tuned>) = tuner.rows().iter().partition(|row| {
        let copies = row.degrees.data * row.degrees.context;
        copies.is_multiple_of(3.min(copies))
    });
    assert!(even.iter().all(|row| work_of(&row.spec).layout.shard == Some(3)));
    assert!(even.len() > 3 && uneven.len() > 3, "{} {}", even.len(), uneven.len());
    for row in uneven {
        assert_eq!(work_of(&row.spec).layout.shard, None);
        let says = |change: &Change| (change.field, &*change.from, &*change.to) == ("parallel.shard", "3", "all");
        assert!(row.changes(&given).iter().any(says), "{:?}", row.degrees);
    }
}

/// Who leaves it to the limit what waits in the host's memory gets steps that are at least as fast, and whose specs say it;
/// who does not gets none.
#[test]
fn slow_the_host_s_memory_is_used_by_who_says_so() {
    let given = |offload: &str| {
        let text = format!(
            "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ntensor = 2\n\
             [training]\nmicrobatches = 16\nsequence = 4096\noffload = \"{offload}\"\n[memory]\nlimit_bytes = \"34 GiB\""
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    };
    let keep = vec![Field::MicrobatchSize, Field::Context, Field::Chunks];
    let question = Question { keep, most: 100, ..only(&["1f1b", "zb-h1"]) };
    let [without, with] = ["none", "fit"].map(|offload| run(&given(offload), &question));
    assert!(without.rows().iter().all(|row| row.offload == Offload::None));
    let mut faster = 0;
    for row in without.rows() {
        let other = with.rows().iter().find(|other| other.degrees == row.degrees);
        let other = other.unwrap_or_else(|| panic!("{:?}", row.degrees));
        assert!(other.step.step_ns <= row.step.step_ns, "{:?}", row.degrees);
        faster += usize::from(other.step.step_ns < row.step.step_ns);
    }
    assert!(faster > 0);
    let offloads = with.rows().iter().filter(|row| row.offload != Offload::None);
    assert!(offloads.clone().count() > 0);
    for row in offloads {
        let work = work_of(&row.spec);
        assert!(!work.layout.fits() && work.layout.form.offload == row.offload);
        assert!(row.saved().contains("offload: "), "{}", row.saved());
        assert!(row.changes(&given("fit")).iter().any(|change| change.field == "training.offload"));
        assert_eq!(step_of(&planner::plan(&row.spec, &row.spec.schedule).unwrap()), row.step.step_ns);
    }
}

/// DeepSeek's experts are dealt to devices that hold other tokens, by numbers that divide both.
#[test]
fn experts_are_dealt() {
    let given = Spec::read(
        "[model]\nname = \"mixtral-8x7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ndata = 4\n\
         [training]\nmicrobatches = 8\n",
    )
    .unwrap_or_else(|faults| panic!("{faults}"));
    let tuner = run(&given, &Question { keep: vec![Field::MicrobatchSize], ..only(&["1f1b"]) });
    assert!(tuner.rows().iter().any(|row| row.degrees.expert > 1), "{:?}", tuner.tally());
    for row in tuner.rows() {
        let work = work_of(&row.spec);
        let shares = if row.degrees.whole_experts { row.degrees.tensor } else { 1 };
        assert!((work.layout.copies() as u32 * shares).is_multiple_of(row.degrees.expert));
    }
}

/// Devices that share matrices may hold whole experts or parts of each: both are tried, unless that is to be kept. With parts
/// each of them sends and takes all tokens, so of what fits whole ones are faster.
#[test]
fn experts_stay_whole_or_are_cut() {
    let given = Spec::read(
        "[model]\nname = \"mixtral-8x7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ntensor = 2\ndata = 2\n\
         zero = 1\n[training]\nmicrobatches = 16\nsequence = 4096\nrecompute = \"full\"",
    )
    .unwrap_or_else(|faults| panic!("{faults}"));
    let mut keep = vec![Field::MicrobatchSize, Field::Context, Field::Chunks, Field::Tensor, Field::Recompute];
    let [both, kept] = [None, Some(Field::WholeExperts)].map(|more| {
        keep.extend(more);
        run(&given, &Question { keep: keep.clone(), most: 100, ..only(&["1f1b"]) })
    });
    assert!(kept.rows().iter().all(|row| !row.degrees.whole_experts));
    for row in kept.rows() {
        assert!(both.rows().iter().any(|other| other.degrees == row.degrees), "{:?}", row.degrees);
    }
    let fastest = &both.rows()[0];
    assert!(fastest.degrees.whole_experts && fastest.degrees.expert > 1, "{:?}", fastest.degrees);
    assert!(fastest.step.step_ns < kept.rows()[0].step.step_ns);
    assert!(fastest.changes(&given).iter().any(|change| change.field == "parallel.whole_experts"));
}

/// Parts of sequences that neither gain nor hold less are told once.
#[test]
fn no_row_is_another_with_sequences_cut_for_nothing() {
    let given = Spec::read(
        "[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 2\ndata = 8\nzero = 1\n\
         [training]\nmicrobatches = 4\nsequence = 8192\nrecompute = \"selective\"",
    )
    .unwrap_or_else(|faults| panic!("{faults}"));
    let tuner = run(&given, &Question { keep: vec![Field::Tensor], most: 100, ..only(&["1f1b"]) });
    let rows = tuner.rows();
    assert!(rows.iter().all(|row| !rows.iter().any(|other| is_same_by_context(row, other))));
    assert!(rows.iter().any(|row| row.degrees.context == 1));
}

#[test]
fn what_cannot_be_tuned_says_why() {
    let typed = Spec::read(
        r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1 } }"#,
    )
    .unwrap();
    let says = |spec: &Spec, question: Question, text: &str| {
        let faults = Tuner::new(spec, &question).err().map(|faults| faults.to_string()).unwrap_or_default();
        assert!(faults.contains(text), "{faults} should say {text}");
    };
    says(&typed, Question::default(), "a model: layouts follow from its operators");
    says(&usual(), only(&["1f1c"]), "schedule: found 1f1c, accepted is one of best, gpipe");
    says(&usual(), Question { devices: Some(0), ..Question::default() }, "devices: found 0");
    says(&usual(), Question { devices: Some(1 << 40), ..Question::default() }, "a whole number from 1 to");
    // 7 copies of 32 sequences, and a tensor degree beyond a node, are no layouts; 7 ranks are one.
    let keep = vec![Field::Pipeline, Field::Tensor];
    says(&usual(), Question { devices: Some(28), keep, ..Question::default() }, "the 32 sequences of a step");
}
