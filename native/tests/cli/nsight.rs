//! Reports of Nsight Systems, made up in the tables of NVIDIA's documentation, with a run whose times are known.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, params};

use super::{folder, path};
use crate::command::{printed, refused};

const RANKS: usize = 3;
const MICROBATCHES: usize = 4;
/// A forward; a backward takes twice as long.
const FORWARD_NS: i64 = 100_000;

/// 1F1B: with a place in the pipeline, as many forwards first as ranks follow.
fn order(rank: usize) -> Vec<(bool, usize)> {
    let ahead = (RANKS - rank).min(MICROBATCHES);
    let mut order: Vec<(bool, usize)> = (0..ahead).map(|microbatch| (false, microbatch)).collect();
    for microbatch in 0..MICROBATCHES {
        order.push((true, microbatch));
        if ahead + microbatch < MICROBATCHES {
            order.push((false, ahead + microbatch));
        }
    }
    order
}

/// When each op of a rank starts and ends where transfers take no time.
fn times() -> BTreeMap<(usize, bool, usize), (i64, i64)> {
    let mut times: BTreeMap<(usize, bool, usize), (i64, i64)> = BTreeMap::new();
    let mut next = [0; RANKS];
    let mut free = [0; RANKS];
    while (0..RANKS).any(|rank| next[rank] < order(rank).len()) {
        for rank in 0..RANKS {
            let Some(&(is_backward, microbatch)) = order(rank).get(next[rank]) else { continue };
            let input = match (is_backward, rank) {
                (false, 0) => Some(0),
                (false, _) => times.get(&(rank - 1, false, microbatch)).map(|span| span.1),
                (true, rank) if rank + 1 == RANKS => Some(0),
                (true, _) => times.get(&(rank + 1, true, microbatch)).map(|span| span.1),
            };
            let Some(input) = input else { continue };
            let start: i64 = input.max(free[rank]);
            let end = start + if is_backward { 2 * FORWARD_NS } else { FORWARD_NS };
            times.insert((rank, is_backward, microbatch), (start, end));
            (free[rank], next[rank]) = (end, next[rank] + 1);
        }
    }
    times
}

const TABLES: &str = "
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
    CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
        globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_SendRecv'), (3, 'forward_step'), (4, 'cudaLaunchKernel');
    INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790857026000000000, '', '');
";

/// Writes a report of all ranks, with two steps; a launcher stands beside them.
fn write_report(path: &Path) {
    let _ = std::fs::remove_file(path);
    let mut file = Connection::open(path).unwrap();
    file.execute_batch(TABLES).unwrap();
    let times = times();
    let rows = file.transaction().unwrap();
    let global = |process: usize| ((1_i64 << 24) + process as i64) << 24;
    rows.execute("INSERT INTO NVTX_EVENTS VALUES (5, 9, 59, 0, 'launch', ?1, NULL, NULL, 0)", [global(90)]).unwrap();
    // Processes have other numbers than ranks.
    for (rank, process) in [(0, 103), (1, 101), (2, 102)] {
        let thread = global(process) + process as i64;
        for step in 0..2 {
            let base = 10_000_000 * (step + 1);
            for (place, (is_backward, microbatch)) in order(rank).into_iter().enumerate() {
                let (start, end) = times[&(rank, is_backward, microbatch)];
                let host = base - 5_000_000 + 20_000 * place as i64;
                let correlation = 1000 * step + place as i64;
                // One range has its name in the table of strings, the other in its row.
                let (text, id) = if is_backward { (Some("backward_step"), None) } else { (None, Some(3)) };
                rows.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, 0, ?3, ?4, NULL, ?5, 0)",
                    params![host, host + 15_000, text, thread, id],
                )
                .unwrap();
                // Those of a backward are launched by another thread.
                let by = if is_backward { thread + 1 } else { thread };
                rows.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?1, ?2, 0, ?3, ?4, 4, 0)",
                    params![host + 5000, host + 6000, by, correlation],
                )
                .unwrap();
                rows.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, 0, 1, 7, ?3, ?4, 1, 1)",
                    params![base + start, base + end, correlation, global(process)],
                )
                .unwrap();
            }
        }
    }
    rows.commit().unwrap();
}

#[test]
fn a_report_of_several_processes_gives_the_order_and_times_that_were_made_up() {
    let folder = folder();
    let [report, trace, order] = ["report.sqlite", "trace.json", "order.txt"].map(|name| path(&folder, name));
    write_report(Path::new(&report));
    let said = printed(&["trace", &report, "-o", &trace, "--write-order", &order], "");
    // The formula of 1F1B: (microbatches + ranks - 1) · (forward + backward).
    assert!(said.contains("makespan      1.800 ms to 1.800 ms"), "{said}");
    assert!(said.contains("ranks in the order in which the first microbatch passes them"), "{said}");
    let rows = std::fs::read_to_string(order).unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    assert_eq!(rows[1..], ["1F0 1F1 1BW0 1F2 1BW1 1F3 1BW2 1BW3", "2F0 2BW0 2F1 2BW1 2F2 2BW2 2F3 2BW3"], "{rows:?}");
}

#[test]
fn what_is_missing_or_damaged_is_named() {
    let folder = folder();
    let whole = path(&folder, "whole.sqlite");
    write_report(Path::new(&whole));
    let told = |path: &str| refused(&["trace", path, "-o", "-"], "");
    for (change, words) in [
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "the table CUPTI_ACTIVITY_KIND_KERNEL is missing"),
        ("DROP TABLE NVTX_EVENTS", "the table NVTX_EVENTS is missing"),
        ("DROP TABLE StringIds", "the table StringIds is missing"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN correlationId", "no column correlationId"),
        ("DELETE FROM NVTX_EVENTS", "and no such range"),
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "no process with kernels"),
        ("UPDATE NVTX_EVENTS SET end = NULL WHERE text = 'backward_step'", "no step with all its backwards"),
    ] {
        let changed = path(&folder, "changed.sqlite");
        std::fs::copy(&whole, &changed).unwrap();
        Connection::open(&changed).unwrap().execute_batch(change).unwrap();
        let said = told(&changed).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("changed.sqlite") && said.contains(words), "{change}: {said}");
    }
    let bytes = std::fs::read(&whole).unwrap();
    let cut = path(&folder, "cut.sqlite");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(told(&cut).contains("cannot be read as SQLite"));
    let text = path(&folder, "text.sqlite");
    std::fs::write(&text, "no database").unwrap();
    assert!(told(&text).contains("cannot be read as SQLite"));
    let report = path(&folder, "report.nsys-rep");
    std::fs::write(&report, "a report").unwrap();
    assert!(told(&report).contains("nsys export --type sqlite"));
}
