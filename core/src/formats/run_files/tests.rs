use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::*;

const TRACE: &str = r#"{ "format": "pipeplan-trace", "version": 1, "plan_digest": "", "backend": "cpu",
    "transport": "threads", "peak_bytes": [0], "steps": [{ "step": 0, "loss": null, "tokens": 0, "rows": [
    { "steps": "0F0 0BW0", "start_ns": [0, 3], "end_ns": [3, 7] }] }] }"#;
const PROFILE: &str = r#"{ "traceEvents": [
    { "ph": "X", "cat": "user_annotation", "name": "PP:0F0", "ts": 10, "dur": 5, "tid": 1 },
    { "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 5, "tid": 1 }] }"#;
const LOG: &str = "noise\nI0101 00:00:00.0 1 e.cc:1] Profiler Info: Job (0), type = forward, micro_batch_id = 0, \
                   job_start_time = 1.0, job_end_time = 2.0\nmore noise";
const DUMP: &str = r#"{ "version": "2.4", "pg_config": {}, "entries": [{ "process_group": ["0", "default_pg"],
    "collective_seq_id": 3, "profiling_name": "nccl:all_reduce", "state": "started" }] }"#;

fn read(path: &str, bytes: &[u8], piece: usize) -> Result<Contents, Faults> {
    let mut reader = Reader::new(path, bytes.len() as u64);
    bytes.chunks(piece).try_for_each(|piece| reader.push(piece))?;
    reader.finish()
}

fn log(path: &str) -> Worker {
    match read(path, LOG.as_bytes(), 9) {
        Ok(Contents::Log(log)) => log,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_known_by_its_name_and_its_beginning() {
    let of = |path: &str, text: &str| Kind::of(path, text.as_bytes());
    assert_eq!(of("a.json", TRACE), Some(Kind::Trace));
    // As it is written, with names of collectives that fill the head.
    let names = format!("{{\"backend\":\"nccl\",\"collectives\":[{}", "{},".repeat(HEAD));
    assert_eq!(of("a.json", &names), Some(Kind::Trace));
    assert_eq!(of("rank0.json", PROFILE), Some(Kind::Torch));
    assert_eq!((of("log/workerlog.12", "noise"), of("renamed.txt", LOG)), (Some(Kind::Paddle), Some(Kind::Paddle)));
    assert_eq!(of("rank_0", DUMP), Some(Kind::FlightRecorder));
    assert_eq!(Kind::of("rank_0", b"\x80\x02}q\x00"), Some(Kind::FlightRecorder));
    assert_eq!(of("report", "SQLite format 3\0"), Some(Kind::Nsight));
    for other in ["", "{}", "ranks = 4", r#"{"format":"pipeplan-plan"}"#] {
        assert_eq!(of("other", other), None, "{other}");
    }
}

/// However its bytes come, a file holds the same.
#[test]
fn pieces_of_any_length_make_the_same_file() {
    for (path, text) in [("a.json", TRACE), ("r.json", PROFILE), ("workerlog.3", LOG), ("fr_rank_7", DUMP)] {
        let whole = format!("{:?}", read(path, text.as_bytes(), text.len()).expect(path));
        for piece in [1, 7, 100] {
            assert_eq!(format!("{:?}", read(path, text.as_bytes(), piece).expect(path)), whole, "{path}");
        }
    }
    let Ok(Contents::Dump(7, _)) = read("dumps/fr_rank_7.json", DUMP.as_bytes(), 50) else { panic!("rank 7") };
}

#[test]
fn what_cannot_be_read_says_what_is_accepted() {
    let said = |path: &str, bytes: &[u8]| read(path, bytes, 64).expect_err("refused").to_string();
    assert!(said("a.txt", b"non\nsense").contains("found `nonsense`"));
    assert!(said("empty", b"").contains("found nothing"));
    assert!(said("report", b"SQLite format 3\0").contains("pipeplan trace"));
    assert!(said("dump.json", DUMP.as_bytes()).contains("the rank at its end"));
    assert!(said("a.json", &TRACE.as_bytes()[..90]).contains("line 2"));
    assert!(said("rank_0", b"\x80\x02}q\x00").contains("found"));
}

#[test]
fn logs_stand_by_machine_and_device_and_those_between_are_named() {
    let at = |path: &str| log(path);
    let logs = ["run/machine10/workerlog.0", "run/machine2/workerlog.2", "run/machine2/workerlog.0"].map(at);
    let mut logs = placed(logs.into()).expect("apart");
    let places: Vec<(usize, usize)> = logs.iter().map(|log| (log.machine, log.device)).collect();
    assert_eq!(places, [(0, 0), (0, 2), (1, 0)]);
    let missing = add_missing(&mut logs);
    let named: Vec<&str> = missing.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(named, ["run/machine2/workerlog.1"]);
    assert_eq!((logs.len(), logs[1].jobs.len()), (4, 0));
    let twice = placed(vec![log("a/workerlog.1"), log("b/workerlog.1")]).expect_err("one device");
    assert!(twice.to_string().starts_with("b/workerlog.1: found a second log"), "{twice}");
    let mut alone = vec![log("workerlog.3")];
    assert!(add_missing(&mut alone).is_empty() && alone.len() == 1);
    // A number that is wrong takes no more than a bounded list.
    let mut far = vec![log("workerlog.0"), log("workerlog.4000000000")];
    let told = add_missing(&mut far);
    assert_eq!((far.len(), told.len()), (MOST_MISSING + 2, MOST_MISSING + 1));
    assert!(told[MOST_MISSING].to_string().contains("beyond 1024"), "{:?}", told[MOST_MISSING]);
    // Of all machines together.
    let far = (0..2000).map(|machine| log(&format!("machine{machine}/workerlog.99999")));
    let mut far = placed(far.collect()).expect("each once");
    let told = add_missing(&mut far);
    assert_eq!((far.len(), told.len()), (2000 + MOST_MISSING, MOST_MISSING + 1));
}

#[test]
fn files_of_several_programs_are_refused() {
    let mut files = Files::default();
    assert!(files.is_empty() && files.expect_one_program().is_ok());
    for (path, text) in [("r.json", PROFILE), ("workerlog.0", LOG)] {
        files.add(String::from(path), read(path, text.as_bytes(), 99).expect(path));
    }
    let refused = files.expect_one_program().expect_err("two programs");
    assert!(refused.to_string().starts_with("workerlog.0: found a log of PaddlePaddle"), "{refused}");
}
