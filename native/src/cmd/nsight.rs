//! What Nsight Systems recorded, exported to SQLite: `nsys export --type sqlite`.
//!
//! Tables and columns are those of the "SQLite Export Schema Reference" in NVIDIA's documentation. Tables that would be empty are
//! absent. A file may hold several processes; each is a rank.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use pipeplan_core::base::fields::Fault;
use pipeplan_core::formats::profile::{Capture, Recording};
use rusqlite::{Connection, OpenFlags, Row};

use super::failure::Failure;

/// What a file of SQLite begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Most rows of one table that are read.
const MAX_ROWS: u64 = 200_000_000;
/// The kinds of ranges in `NVTX_EVENTS`: of a thread's stack, and those with a start and an end anywhere.
const RANGES: &str = "(59, 60, 70, 71)";
/// A `globalTid` without its thread is a `globalPid`.
const THREAD: i64 = 0xff_ffff;

const EXPORT: &str =
    "give the export of a report: nsys profile --trace=cuda,nvtx ..., then nsys export --type sqlite REPORT.nsys-rep";

/// Whether `path` is such a file, or a report that is not exported.
pub fn looks_like_one(path: &Path) -> bool {
    // A pipe is not read twice.
    if !path.is_file() {
        return false;
    }
    let mut head = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    is_report(path)
        || path.extension().is_some_and(|extension| extension == "sqlite")
        || read.is_ok() && head == MAGIC
}

fn is_report(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["nsys-rep", "qdrep", "qdstrm"].iter().any(|known| extension == *known))
}

/// The recording of each process in a file, with its name.
pub fn read(name: &str) -> Result<Vec<(String, Recording)>, Failure> {
    if is_report(Path::new(name)) {
        return Err(
            Failure::input(format!("{name} is a report of Nsight Systems that is not exported")).with_help(EXPORT)
        );
    }
    let file = File::open(name)?;
    let mut processes: BTreeMap<i64, Capture> = BTreeMap::new();
    let base_ns = file.session_start()?;
    file.kernels(&mut processes)?;
    file.launches(&mut processes)?;
    file.ranges(&mut processes)?;
    let mut recordings = Vec::new();
    let mut faults = Vec::new();
    for (global, mut capture) in processes {
        // Launchers and workers that load data compute nothing.
        if !capture.has_kernels() {
            continue;
        }
        let process = global >> 24 & THREAD;
        let who = format!("{name} (process {process})");
        capture.set_base(base_ns);
        capture.set_clock(name);
        match capture.finish("NVTX_EVENTS") {
            Ok(recording) => recordings.push((who, recording)),
            Err(Fault { found, accepted, .. }) => {
                faults.push(Fault::new(format!("{who}: NVTX_EVENTS"), found, accepted))
            }
        }
    }
    if !faults.is_empty() {
        return Err(Failure::input(pipeplan_core::base::fields::Faults(faults)));
    }
    if recordings.is_empty() {
        return Err(Failure::input(format!("{name} has no process with kernels of a GPU")).with_help(EXPORT));
    }
    Ok(recordings)
}

/// A file that is open, and its tables.
struct File<'a> {
    name: &'a str,
    connection: Connection,
    /// By table, its columns.
    tables: BTreeMap<String, Vec<String>>,
}

impl<'a> File<'a> {
    fn open(name: &'a str) -> Result<File<'a>, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(name, flags).map_err(|error| unread(name, "", &error))?;
        let mut file = File { name, connection, tables: BTreeMap::new() };
        let mut tables = BTreeMap::new();
        file.rows(
            "sqlite_master",
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c",
            |row| {
                tables.entry(row.get::<_, String>(0)?).or_insert_with(Vec::new).push(row.get(1)?);
                Ok(())
            },
        )?;
        file.tables = tables;
        Ok(file)
    }

    /// Calls `take` with every row of a query.
    fn rows(
        &self,
        table: &str,
        query: &str,
        mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), Failure> {
        let cannot = |error: rusqlite::Error| unread(self.name, table, &error);
        let mut statement = self.connection.prepare(query).map_err(cannot)?;
        let mut rows = statement.query([]).map_err(cannot)?;
        let mut count = 0_u64;
        while let Some(row) = rows.next().map_err(cannot)? {
            take(row).map_err(cannot)?;
            count += 1;
            if count > MAX_ROWS {
                let text = format!("{}: {table} has more than {MAX_ROWS} rows", self.name);
                return Err(Failure::input(text).with_help("profile fewer steps"));
            }
        }
        Ok(())
    }

    fn has(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.iter().any(|known| known == column))
    }

    /// A fault where a table or one of its columns is missing.
    fn expect(&self, table: &str, columns: &[&str], instead: &str) -> Result<(), Failure> {
        if !self.tables.contains_key(table) {
            let text = format!("{}: the table {table} is missing", self.name);
            return Err(Failure::input(text).with_help(instead));
        }
        match columns.iter().find(|column| !self.has(table, column)) {
            None => Ok(()),
            Some(column) => {
                let text = format!("{}: the table {table} has no column {column}", self.name);
                Err(Failure::input(text).with_help("export the report with a newer version of Nsight Systems"))
            }
        }
    }

    /// What times count from, in nanoseconds of the epoch; 0 where the file does not say.
    fn session_start(&self) -> Result<u64, Failure> {
        const TABLE: &str = "TARGET_INFO_SESSION_START_TIME";
        let mut start_ns = 0;
        if self.has(TABLE, "utcEpochNs") {
            self.rows(TABLE, &format!("SELECT utcEpochNs FROM {TABLE} LIMIT 1"), |row| {
                start_ns = whole(row.get(0)?);
                Ok(())
            })?;
        }
        Ok(start_ns)
    }

    fn kernels(&self, processes: &mut BTreeMap<i64, Capture>) -> Result<(), Failure> {
        const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
        const COLUMNS: [&str; 4] = ["start", "end", "correlationId", "globalPid"];
        self.expect("StringIds", &["id", "value"], EXPORT)?;
        self.expect(KERNELS, &COLUMNS, "profile with --trace=cuda,nvtx: nothing says what the GPU ran")?;
        let name = ["shortName", "demangledName"].into_iter().find(|column| self.has(KERNELS, column));
        let Some(name) = name else { return self.expect(KERNELS, &["shortName"], EXPORT) };
        let names = format!(
            "SELECT k.start, k.\"end\", k.correlationId, k.globalPid, s.value FROM {KERNELS} k \
             LEFT JOIN StringIds s ON s.id = k.{name}"
        );
        let mut take = |row: &Row<'_>| {
            let name: Option<String> = row.get(4)?;
            let (start, end): (i64, i64) = (row.get(0)?, row.get(1)?);
            let capture = processes.entry(row.get(3)?).or_default();
            capture.count();
            let name = name.unwrap_or_default();
            capture.kernel(&name, Some(whole(row.get(2)?)), whole(start), whole(end));
            capture.together(&name, None, None, whole(start), whole(end));
            Ok(())
        };
        self.rows(KERNELS, &names, &mut take)?;
        for table in ["CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"] {
            if COLUMNS.iter().all(|column| self.has(table, column)) {
                let copies = format!("SELECT start, \"end\", correlationId, globalPid, 'copy' FROM {table}");
                self.rows(table, &copies, &mut take)?;
            }
        }
        Ok(())
    }

    fn launches(&self, processes: &mut BTreeMap<i64, Capture>) -> Result<(), Failure> {
        const TABLE: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
        self.expect(
            TABLE,
            &["start", "correlationId", "globalTid"],
            "profile with --trace=cuda,nvtx: nothing says who launched a kernel",
        )?;
        self.rows(TABLE, &format!("SELECT start, correlationId, globalTid FROM {TABLE}"), |row| {
            let (start, thread): (i64, i64) = (row.get(0)?, row.get(2)?);
            if let Some(capture) = processes.get_mut(&(thread & !THREAD)) {
                capture.launch(whole(row.get(1)?), whole(start));
            }
            Ok(())
        })
    }

    fn ranges(&self, processes: &mut BTreeMap<i64, Capture>) -> Result<(), Failure> {
        const TABLE: &str = "NVTX_EVENTS";
        self.expect(
            TABLE,
            &["start", "end", "globalTid"],
            "profile with --trace=cuda,nvtx, a program that marks ranges",
        )?;
        let text = match (self.has(TABLE, "text"), self.has(TABLE, "textId")) {
            (true, true) => "coalesce(n.text, s.value)",
            (true, false) => "n.text",
            (false, _) => "s.value",
        };
        let id = if self.has(TABLE, "textId") { "n.textId" } else { "NULL" };
        let kinds = if self.has(TABLE, "eventType") { format!("n.eventType IN {RANGES}") } else { "1".to_owned() };
        // A range that has not ended has none.
        let query = format!(
            "SELECT n.start, n.\"end\", n.globalTid, {text} FROM {TABLE} n LEFT JOIN StringIds s ON s.id = {id} \
             WHERE {kinds} AND n.\"end\" IS NOT NULL AND n.\"end\" >= n.start"
        );
        self.rows(TABLE, &query, |row| {
            let (start, end, thread): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let name: Option<String> = row.get(3)?;
            let (Some(capture), Some(name)) = (processes.get_mut(&(thread & !THREAD)), name) else { return Ok(()) };
            capture.count();
            let (thread, start, end) = (whole(thread & THREAD), whole(start), whole(end));
            if !capture.nvtx_operator(&name, thread, start, end) {
                capture.range(&name, false, thread, start, end);
            }
            Ok(())
        })
    }
}

/// Of a column that holds no negative numbers; no clock shows more than half of what `u64` holds.
fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn unread(name: &str, table: &str, error: &rusqlite::Error) -> Failure {
    let place = if table.is_empty() { String::new() } else { format!(" {table}") };
    Failure::input(format!("{name}:{place} cannot be read as SQLite: {error}")).with_help(EXPORT)
}
