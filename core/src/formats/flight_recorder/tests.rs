//! Made-up hangs of which the cause is known, in the form in which torch 2.15 writes dumps.

use alloc::vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A collective of a rank. Times in milliseconds.
fn entry(record: u64, group: &str, number: u64, op: &str, state: &str, sizes: &[u64]) -> Value {
    let done = state == "completed";
    json!({
        "record_id": record, "pg_id": 0, "process_group": [group, if group == "0" { "default_pg" } else { "mesh_dp" }],
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": format!("nccl:{op}"),
        "time_created_ns": 1_000_000_000_000_u64 + number * 1_000_000, "input_sizes": [sizes], "input_dtypes": ["BFloat16"],
        "output_sizes": [sizes], "output_dtypes": ["BFloat16"], "state": state,
        "time_discovered_started_ns": if done { json!(1_000_000_000_001_u64) } else { Value::Null },
        "time_discovered_completed_ns": if done { json!(1_000_000_000_002_u64 + number * 1_000_000) } else { Value::Null },
        "retired": done, "timeout_ms": 600_000, "is_p2p": false,
        "frames": [
            { "name": "all_reduce", "filename": "/env/torch/distributed/distributed_c10d.py", "line": 4174 },
            { "name": "train_step", "filename": "train.py", "line": 40 + number },
        ],
    })
}

fn transfer(record: u64, op: &str, state: &str) -> Value {
    let mut value = entry(record, "0", 0, op, state, &[16]);
    value["is_p2p"] = json!(true);
    value["time_created_ns"] = json!(1_000_500_000_000_u64);
    value
}

fn dump(entries: Vec<Value>) -> Dump {
    let groups = json!({
        "0": { "name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]" },
        "1": { "name": "1", "desc": "mesh_dp", "ranks": "[0, 2]" },
    });
    let text =
        json!({ "version": "2.10", "pg_config": groups, "pg_status": {}, "nccl_comm_state": {}, "entries": entries })
            .to_string();
    assert!(looks_like_one(&text));
    read_json(&text).unwrap_or_else(|fault| panic!("{fault}"))
}

fn report(of_ranks: Vec<(usize, Vec<Value>)>) -> Report {
    let named = |(rank, entries)| (format!("nccl_trace_rank_{rank}"), rank, dump(entries));
    let dumps: Vec<(String, usize, Dump)> = of_ranks.into_iter().map(named).collect();
    waits(&dumps).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Rank 3 has left the loop; the others wait for it in their third all-reduce.
#[test]
fn a_rank_that_is_not_there_is_the_cause() {
    let all = |third: &str| {
        vec![
            entry(0, "0", 1, "all_reduce", "completed", &[8]),
            entry(1, "0", 2, "all_reduce", "completed", &[8]),
            entry(2, "0", 3, "all_reduce", third, &[8]),
        ]
    };
    let mut ranks: Vec<_> = (0..3).map(|rank| (rank, all("started"))).collect();
    ranks.push((3, all("started")[..2].to_vec()));
    let found = report(ranks);
    let [wait] = &found.waits[..] else { panic!("{found:?}") };
    assert_eq!((wait.op.as_str(), wait.group.as_str()), ("all_reduce number 3", "group 0 (default_pg)"));
    assert_eq!((wait.waiting.as_slice(), wait.shape.as_str()), (&[0, 1, 2][..], "[8] BFloat16"));
    assert_eq!(wait.place.as_deref(), Some("train.py:43 train_step"));
    let last = Instead::Idle {
        last: "all_reduce number 2 of group 0 (default_pg)".to_string(),
        place: Some("train.py:42 train_step".to_string()),
    };
    assert_eq!(wait.missing, [(3, last.clone())]);
    assert_eq!(found.causes, [(3, last)]);
}

/// Ranks 0 and 2 reduce in their own group while 1 and 3 are in the group of all: both wait for each other, and rank 2 has begun
/// the other one first.
#[test]
fn ranks_in_two_groups_in_another_order_wait_for_each_other() {
    let of_all = |record, state| entry(record, "0", 1, "all_reduce", state, &[8]);
    let of_two = |record, state| entry(record, "1", 1, "reduce_scatter", state, &[4]);
    let found = report(vec![
        (0, vec![of_two(0, "started")]),
        (1, vec![of_all(0, "started")]),
        (2, vec![of_all(0, "started")]),
        (3, vec![of_all(0, "scheduled")]),
    ]);
    assert_eq!(found.waits.len(), 2);
    let missing: Vec<(usize, bool)> = found
        .waits
        .iter()
        .flat_map(|wait| &wait.missing)
        .map(|(rank, instead)| (*rank, matches!(instead, Instead::Waits { .. })))
        .collect();
    assert_eq!(missing, [(0, true), (2, true)]);
    assert!(found.causes.is_empty(), "{found:?}");
}

/// The first op, type or size that differs, by the ranks that have it.
#[test]
fn what_ranks_do_not_agree_on_is_told() {
    let with = |op: &str, sizes: &[u64]| vec![entry(0, "1", 1, op, "scheduled", sizes)];
    let differs = |other: Vec<Value>| {
        let found = report(vec![(0, with("all_reduce", &[8])), (2, other)]);
        found.waits[0].difference.clone().expect("a difference")
    };
    let op = differs(with("all_gather", &[8]));
    assert_eq!((op.what, op.one, op.other), ("op", (0, "all_reduce".to_string()), (2, "all_gather".to_string())));
    let sizes = differs(with("all_reduce", &[9]));
    assert_eq!((sizes.what, sizes.other), ("sizes", (2, "[[9]] to [[9]]".to_string())));
    let mut typed = with("all_reduce", &[8]);
    typed[0]["input_dtypes"] = json!(["Float"]);
    assert_eq!(differs(typed).what, "types");
}

/// A send whose receive was never begun, and one that both ends are in.
#[test]
fn transfers_wait_for_their_other_end() {
    let alone = report(vec![(0, vec![transfer(0, "send 0->1", "started")]), (1, vec![])]);
    let [wait] = &alone.waits[..] else { panic!("{alone:?}") };
    assert_eq!((wait.op.as_str(), wait.missing[0].0), ("send 0->1", 1));
    assert_eq!(alone.causes.len(), 1);
    let both =
        report(vec![(0, vec![transfer(0, "send 0->1", "started")]), (1, vec![transfer(0, "recv 1<-0", "started")])]);
    let [wait] = &both.waits[..] else { panic!("{both:?}") };
    assert_eq!((wait.waiting.as_slice(), wait.missing.len()), (&[0, 1][..], 0));
}

/// NCCL's watchdog retires what has timed out; a ring that has lost the beginning says so; a rank may have no dump.
#[test]
fn timeouts_lost_entries_and_missing_dumps_are_told() {
    let mut timed_out = entry(0, "0", 1, "all_reduce", "started", &[8]);
    timed_out["retired"] = json!(true);
    let found = report(vec![(0, vec![timed_out]), (1, vec![entry(7, "0", 9, "all_reduce", "completed", &[8])])]);
    let wait = &found.waits[0];
    assert_eq!(wait.waited_ns, 600_000_000_000);
    assert_eq!(wait.missing, [(1, Instead::Forgotten), (2, Instead::NoDump), (3, Instead::NoDump)]);
    assert_eq!(found.without_dump, [2, 3]);
}

/// What Python's `pickle.dumps(value, 2)` gives, with lists that are shared, and what only objects need.
#[test]
fn pickles_are_read_as_python_reads_them() {
    // {'a': [1, -2, 300, None, True, 2**40], 'b': the same list, 3: ('x', 1.5)}
    let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01N\x88\x8a\x06\x00\x00\x00\x00\x00\x01e\
        X\x01\x00\x00\x00bq\x03h\x02K\x03X\x01\x00\x00\x00xq\x04G?\xf8\x00\x00\x00\x00\x00\x00\x86q\x05u.";
    let list = json!([1, -2, 300, null, true, 1_u64 << 40]);
    assert_eq!(pickle::read(bytes), Ok(json!({ "a": list, "b": list, "3": ["x", 1.5] })));
    for (bytes, told) in [
        (&b"\x80\x02}q\x00"[..], "the end of the file"),
        (b"\x80\x02cos\nsystem\n.", "the instruction 0x63, which dumps do not have"),
        (b"\x80\x02h\x07.", "a reference to value 7, which is not there"),
        (b"\x80\x02u.", "values without a mark"),
        // A list in itself.
        (b"\x80\x02]q\x00h\x00a.", "more than 32 lists within each other"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "the end of the file"),
    ] {
        let fault = pickle::read(bytes).expect_err(told).to_string();
        assert!(fault.contains(told), "{fault}");
    }
    // Lists of the same list twice: two to the power of 31.
    let mut doubled = b"\x80\x02]q\x00".to_vec();
    for place in 0..31_u8 {
        doubled.extend([b'h', place, 0x86, b'q', place + 1]);
    }
    doubled.push(b'.');
    let fault = pickle::read(&doubled).expect_err("too many").to_string();
    assert!(fault.contains("too often") || fault.contains("within each other"), "{fault}");
    // As many lists within each other as no stack has room for, whether they are read or given back.
    let deep = [&b"\x80\x02]"[..], &[0x85; 1 << 20], b"."].concat();
    let fault = pickle::read(&deep).expect_err("too deep").to_string();
    assert!(fault.contains("more than 32 lists within each other"), "{fault}");
    assert!(pickle::read(&deep[..deep.len() - 1]).is_err());
}

proptest! {
    /// Whatever is damaged, a dump is read or refused.
    #[test]
    fn damaged_pickles_are_read_or_refused(wounds in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01N\x88\x8a\x02\x00\x01e\
            X\x01\x00\x00\x00bq\x03h\x02K\x03X\x01\x00\x00\x00xq\x04G?\xf8\x00\x00\x00\x00\x00\x00\x86q\x05u.".to_vec();
        for (place, byte) in wounds {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = read_pickle(&bytes);
    }
}

#[test]
fn what_is_no_dump_is_told() {
    for (text, told) in [
        ("{}", "the dump: found missing field"),
        ("{\"version\": \"1.4\", \"entries\": []}", "version: found `1.4`"),
        ("{\"version\": \"2.4\", \"entries\": [{\"state\": \"started\"}]}", "missing field `process_group`"),
    ] {
        let fault = read_json(text).expect_err(text).to_string();
        assert!(fault.contains(told), "{fault}");
    }
    let twice = || ("dump_1".to_string(), 1, dump(Vec::new()));
    assert!(waits(&[twice(), twice()]).expect_err("twice").to_string().contains("another dump of rank 1"));
    assert!(waits(&[]).is_err());
    assert_eq!(rank_of("/tmp/nccl_trace_rank_12"), Some(12));
    assert_eq!(rank_of("dumps/comm_lib_trace_rank_3.json"), Some(3));
    assert_eq!(rank_of("dump"), None);
}
