use super::*;

#[test]
fn units_change_before_the_number_grows_a_fourth_digit() {
    for (ns, text) in [
        (0.0, "0 ns"),
        (999.0, "999 ns"),
        (999.9, "1 µs"),
        (1_500.0, "1.5 µs"),
        (999_949.0, "999.9 µs"),
        (999_960.0, "1 ms"),
        (12_345_678.0, "12.35 ms"),
        (61e9, "61 s"),
    ] {
        assert_eq!(duration(ns), text);
    }
    for (amount, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1024 * 1024 - 1, "1 MiB"),
        (80 << 30, "80 GiB"),
        (u64::MAX, "16 EiB"),
    ] {
        assert_eq!(bytes(amount), text);
    }
}

#[test]
fn a_small_share_is_not_shown_as_none() {
    assert_eq!(percent(0.0), "0.0 %");
    assert_eq!(percent(9.0 / 33.0), "27.3 %");
    assert_eq!(percent(0.00004), "0.004 %");
}

#[test]
fn numbers_in_sentences_become_readable() {
    assert_eq!(
        readable("rank 3 has 4200000 ns of work, and 90000 ns must follow (1024 bytes)."),
        "rank 3 has 4.2 ms of work, and 90 µs must follow (1 KiB)."
    );
}

/// As both say it that know how little a rank can do with.
#[test]
fn no_limit_is_to_be_raised_above_the_device() {
    use pipeplan_core::bounds::Infeasible;
    use pipeplan_core::problem::op::{Op, OpKind};
    use pipeplan_core::search;
    let op = Op::new(0, OpKind::F, 0);
    let least = Infeasible { rank: 1, needed_bytes: 90, limit_bytes: 80, op }.to_string();
    let search = search::Infeasible { rank: 1, least_bytes: 90, limit_bytes: 80 }.to_string();
    for said in [least, search] {
        assert_eq!(within_device(&said, 90), said);
        let within = within_device(&said, 89);
        assert!(!within.contains("raise") && within.contains("; a device has 89 bytes, so "), "{within}");
    }
}

#[test]
fn messages_become_sentences() {
    assert_eq!(sentence("rank 3 has work"), "Rank 3 has work.");
    assert_eq!(sentence("Done."), "Done.");
    assert_eq!(sentence("operators[0].ns: found -1"), "operators[0].ns: found -1.");
    assert_eq!(sentence(""), "");
}

#[test]
fn a_file_that_cannot_be_read_is_taken_for_what_it_is_most_like() {
    use pipeplan_core::spec::Spec;
    for (text, said) in [
        ("F0 F1 B0 B1\nF0 B0 F1 B1", "These ops have no stage numbers"),
        ("0 | F0 F1 .. B0 W0 F2\n1 | .. F0 B0 F1 W0 B1", "These ops have no stage numbers"),
        ("parallel.pipeline = -8\ntraining.microbatchs = 32", "This file is a spec with errors:"),
        ("[1, 2]", "This file is not a plan"),
        ("Dear Sir or Madam", "This file is not a plan"),
    ] {
        let told = unreadable_file(text, &Spec::read(text).unwrap_err());
        assert!(told.starts_with(said), "{text}: {told}");
    }
}

/// What a plan that was changed is told, without an option of the command.
#[test]
fn the_page_is_told_of_without_options_of_the_command() {
    use pipeplan_core::plan::Plan;
    use pipeplan_core::plan::planner;
    use pipeplan_core::spec::Spec;
    let spec =
        Spec::read(r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1, "backward_input_ns": 1 } }"#);
    let plan = planner::plan(&spec.unwrap(), "1f1b").unwrap().to_json();
    let changed = Plan::from_json(&plan.replace("1f1b", "gpipe")).unwrap_err().to_string();
    let told = for_page(&changed);
    assert!(changed.contains("--order") && !told.contains("--order"), "{told}");
    assert!(told.contains("open its op lists as a text file"), "{told}");
}

#[test]
fn what_is_counted_is_named_by_its_number() {
    assert_eq!(counted(1, "rank"), "1 rank");
    assert_eq!(counted(2, "rank"), "2 ranks");
    assert_eq!(counted(10, "microbatch"), "10 microbatches");
}

#[test]
fn groups_of_three() {
    assert_eq!(count(7), "7");
    assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
}

#[test]
fn differences_have_a_sign_and_few_digits() {
    assert_eq!(rate_change(128.0, 100.0), "+28 %");
    assert_eq!(rate_change(95.04, 100.0), "−5.0 %");
    assert_eq!(rate_change(100.01, 100.0), "same");
    assert_eq!(bytes_change(70 << 30, 80 << 30), "−10 GiB");
    assert_eq!(bytes_change(7, 7), "same");
    assert_eq!(share_change(0.25, 0.218), "+3.2 pp");
    assert_eq!(share_change(0.2, 0.218), "−1.8 pp");
}
