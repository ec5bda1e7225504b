//! Reads a trace while its text is parsed: columns become spans row by row, so that next to the trace only the columns of one row
//! take memory.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::de::{Error, MapAccess, SeqAccess};
use serde_json::Value;

use super::collectives::{self, Collective, Named, NumberedRow};
use super::{FORMAT, MAX_FILE_BYTES, MAX_NS, MAX_PROCESSORS, MAX_STEPS, StepTrace, Trace, TraceSpan, VERSION};
use crate::base::fields::{Fault, Faults, Table, shown, whole};
use crate::base::json::{self, Syntax};
use crate::base::stream::{Entry, Fields, Found, ListOf, Path, Reader, TableOf, Wanted};
use crate::problem::MAX_RANKS;
use crate::program::steps_of;

/// A file's text as a trace.
pub(super) fn trace(text: &str) -> Result<Trace, Faults> {
    if text.len() > MAX_FILE_BYTES {
        let accepted = format!("a trace of at most {MAX_FILE_BYTES} bytes");
        return Err(Fault::new("the whole input", format!("{} bytes", text.len()), accepted).into());
    }
    let (mut found, mut file) = (Found::default(), File::default());
    let table = TableOf { fields: &mut file, path: &Path::Top, found: &mut found };
    let others = match (json::read(text, Reader(table)), found.too_many()) {
        (_, Some(faults)) => return Err(Faults(faults)),
        (Ok(others), None) => others,
        (Err(Syntax { line, column, message, .. }), None) => {
            let found = format!("{message} at line {line} column {column}");
            return Err(Fault::new("the whole input", found, "a trace file in JSON").into());
        }
    };
    file.finish(others.as_ref(), found)
}

/// The lists of the top.
#[derive(Default)]
struct File<'de> {
    names: Named,
    peak_bytes: Vec<u64>,
    hosts: Vec<u64>,
    steps: Steps<'de>,
}

impl<'de> Fields<'de> for File<'de> {
    const TAKEN: &'static [&'static str] = &["collectives", "hosts", "peak_bytes", "steps"];

    fn field<A: MapAccess<'de>>(
        &mut self,
        field: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error> {
        match field {
            0 => {
                let entry = core::mem::take(&mut self.names);
                self.names =
                    fields.next_value_seed(Reader(ListOf { most: collectives::MAX_NAMES, path, found, entry }))?;
            }
            1 => self.hosts = column(Vec::new(), MAX_RANKS, path, fields, found)?,
            2 => self.peak_bytes = column(Vec::new(), MAX_RANKS, path, fields, found)?,
            _ => {
                let entry = core::mem::take(&mut self.steps);
                self.steps = fields.next_value_seed(Reader(ListOf { most: MAX_STEPS, path, found, entry }))?;
            }
        }
        Ok(())
    }
}

impl File<'_> {
    fn finish(self, others: Option<&Value>, mut found: Found) -> Result<Trace, Faults> {
        let faults = found.faults();
        let Some(mut table) = others.and_then(|others| Table::of(others, "", faults)) else {
            return Err(Faults(core::mem::take(faults)));
        };
        expect_format(&mut table)?;
        Self::TAKEN.iter().for_each(|taken| _ = table.get(taken));
        let mut text = |table: &mut Table<'_>, key| table.text(key, faults).unwrap_or_default().to_string();
        let plan_digest = text(&mut table, "plan_digest");
        let backend = text(&mut table, "backend");
        let transport = text(&mut table, "transport");
        let replicas = table.whole("replicas", 1..=MAX_RANKS as u64, faults).unwrap_or(1) as usize;
        let context = table.whole("context", 1..=MAX_RANKS as u64, faults).unwrap_or(1) as usize;
        let tensor = table.whole("tensor", 1..=MAX_RANKS as u64, faults).unwrap_or(1) as usize;
        let overhead_ns = table.whole("overhead_ns", 0..=MAX_NS, faults);
        let processors = table.whole("shared_processors", 1..=MAX_PROCESSORS, faults);
        let shared_processors = processors.map(|processors| processors as usize);
        table.finish(faults);
        let (mut steps, numbered) = self.steps.whole();
        let pipelines = replicas * context * tensor;
        for (at, host) in self.hosts.iter().enumerate().filter(|(_, host)| **host >= MAX_RANKS as u64) {
            faults.push(Fault::new(format!("hosts[{at}]"), *host, format!("a number below {MAX_RANKS}")));
        }
        for (index, step) in steps.iter().enumerate().filter(|(_, step)| !step.rows.len().is_multiple_of(pipelines)) {
            let mut accepted = format!("as many ranks in each of the {replicas} replicas");
            for (ways, what) in [(context, "each sequence"), (tensor, "each matrix")] {
                if ways > 1 {
                    accepted.push_str(&format!(", {ways} to share {what}"));
                }
            }
            faults.push(Fault::new(format!("steps[{index}].rows"), format!("{} rows", step.rows.len()), accepted));
        }
        for Numbered { step, row, of } in numbered {
            let path = |at: usize| format!("steps[{step}].rows[{row}].collectives.of[{at}]");
            let unknown = of.iter().position(|of| self.names.get(*of).is_none());
            if let Some(at) = unknown {
                let accepted = format!("the number of one of the {} entries of `collectives`", self.names.len());
                faults.push(Fault::new(path(at), of[at], accepted));
            } else if faults.is_empty() {
                let named = steps[step].collectives[row].iter_mut().zip(&of);
                named.for_each(|(collective, of)| {
                    if let Some(name) = self.names.get(*of) {
                        collective.name = name;
                    }
                });
            }
        }
        if !faults.is_empty() {
            return Err(Faults(core::mem::take(faults)));
        }
        Ok(Trace {
            plan_digest,
            backend,
            transport,
            replicas,
            context,
            tensor,
            overhead_ns,
            shared_processors,
            peak_bytes: self.peak_bytes,
            hosts: self.hosts.into_iter().map(|host| host as u32).collect(),
            steps,
        })
    }
}

fn expect_format(table: &mut Table<'_>) -> Result<(), Fault> {
    let nothing = || String::from("no layer");
    let format = table.get("format");
    if format.and_then(Value::as_str) != Some(FORMAT) {
        return Err(Fault::new("format", format.map_or_else(nothing, shown), format!("\"{FORMAT}\"")));
    }
    let version = table.get("version");
    if version.and_then(whole) != Some(VERSION) {
        return Err(Fault::new(
            "version",
            version.map_or_else(nothing, shown),
            format!("{VERSION}, the only version so far"),
        ));
    }
    Ok(())
}

/// Whole numbers up to [`MAX_NS`].
pub(super) struct Column(pub(super) Vec<u64>);

impl<'de> Entry<'de> for Column {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error> {
        let number = entries.next_element_seed(Reader(Number { path, found }))?;
        self.0.extend(number.flatten());
        Ok(number.is_some())
    }
}

struct Number<'a> {
    path: &'a Path<'a>,
    found: &'a mut Found,
}

impl Wanted<'_> for Number<'_> {
    type Out = Option<u64>;

    fn number<E: Error>(self, number: u64) -> Result<Self::Out, E> {
        if number > MAX_NS { self.other(Value::from(number)) } else { Ok(Some(number)) }
    }

    fn other<E: Error>(self, value: Value) -> Result<Self::Out, E> {
        let number = whole(&value).filter(|number| *number <= MAX_NS);
        if number.is_none() {
            let accepted = format!("a whole number up to {MAX_NS}");
            self.found.fault(Fault::new(self.path.to_string(), shown(&value), accepted))?;
        }
        Ok(number)
    }
}

/// The column that comes next, in the room of another that is not needed any more.
pub(super) fn column<'de, A: MapAccess<'de>>(
    mut room: Vec<u64>,
    most: usize,
    path: &Path<'_>,
    fields: &mut A,
    found: &mut Found,
) -> Result<Vec<u64>, A::Error> {
    room.clear();
    fields.next_value_seed(Reader(ListOf { most, path, found, entry: Column(room) })).map(|column| column.0)
}

/// The numbers that a row's collectives have among the names.
struct Numbered {
    step: usize,
    row: usize,
    of: Vec<u64>,
}

/// The training steps.
#[derive(Default)]
struct Steps<'de> {
    /// Those before, in lists of [`TOGETHER`]: a list that grows is copied again and again.
    before: Vec<Vec<StepTrace>>,
    steps: Vec<StepTrace>,
    numbered: Vec<Numbered>,
    /// Room for the columns of a row.
    row: Row<'de>,
}

impl<'de> Entry<'de> for Steps<'de> {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error> {
        let mut fields = Step { rows: Rows { row: core::mem::take(&mut self.row), ..Rows::default() } };
        let table = TableOf { fields: &mut fields, path, found };
        let Some(others) = entries.next_element_seed(Reader(table))? else { return Ok(false) };
        let Rows { rows, mut collectives, numbered, row } = fields.rows;
        self.row = row;
        let (path, faults) = (path.to_string(), found.faults());
        let Some(mut table) = others.as_ref().and_then(|others| Table::of(others, &path, faults)) else {
            return Ok(true);
        };
        Step::TAKEN.iter().for_each(|taken| _ = table.get(taken));
        let number = table.needed_whole("step", 0..=u64::MAX, faults);
        let loss = table.get("loss").map(|value| {
            let loss = value.as_f64();
            if loss.is_none() {
                faults.push(Fault::new(table.path("loss"), shown(value), "a number, or null"));
            }
            loss
        });
        let tokens = table.whole("tokens", 0..=1 << 62, faults).unwrap_or(0);
        let began_ns = table.whole("began_ns", 0..=MAX_NS, faults);
        table.finish(faults);
        let at = self.before.len() * TOGETHER + self.steps.len();
        self.numbered.extend(numbered.into_iter().map(|(row, of)| Numbered { step: at, row, of }));
        let with_any = collectives.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
        match with_any {
            0 => collectives = Vec::new(),
            _ => collectives.truncate(with_any),
        }
        // One that has no number is a fault, and its place stays.
        let step = number.unwrap_or_default();
        let loss = loss.flatten();
        if self.steps.len() == TOGETHER {
            self.before.push(core::mem::take(&mut self.steps));
        }
        self.steps.push(StepTrace { step, loss, tokens, began_ns, rows, collectives });
        Ok(true)
    }
}

/// Steps of a list.
const TOGETHER: usize = 1 << 12;

impl Steps<'_> {
    /// All of them, and the numbers of their collectives.
    fn whole(self) -> (Vec<StepTrace>, Vec<Numbered>) {
        if self.before.is_empty() {
            return (self.steps, self.numbered);
        }
        let mut all = Vec::with_capacity(self.before.len() * TOGETHER + self.steps.len());
        self.before.into_iter().for_each(|steps| all.extend(steps));
        all.extend(self.steps);
        (all, self.numbered)
    }
}

struct Step<'de> {
    rows: Rows<'de>,
}

impl<'de> Fields<'de> for Step<'de> {
    const TAKEN: &'static [&'static str] = &["rows"];

    fn field<A: MapAccess<'de>>(
        &mut self,
        _: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error> {
        let entry = core::mem::take(&mut self.rows);
        self.rows = fields.next_value_seed(Reader(ListOf { most: MAX_RANKS, path, found, entry }))?;
        Ok(())
    }
}

/// The rows of a step.
#[derive(Default)]
struct Rows<'de> {
    rows: Vec<Vec<TraceSpan>>,
    collectives: Vec<Vec<Collective>>,
    /// By row with collectives: the numbers of their names.
    numbered: Vec<(usize, Vec<u64>)>,
    row: Row<'de>,
}

impl<'de> Entry<'de> for Rows<'de> {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error> {
        let Row { starts, ends, steps, collectives } = &mut self.row;
        starts.clear();
        ends.clear();
        (*steps, *collectives) = (None, None);
        let table = TableOf { fields: &mut self.row, path, found };
        let Some(others) = entries.next_element_seed(Reader(table))? else { return Ok(false) };
        let mut spans = None;
        if let Some(others) = others {
            finish::<Row<'_>>(&others, path, found);
            spans = self.row.spans(path, found)?;
        }
        // A row with a fault keeps its place.
        self.rows.push(spans.unwrap_or_default());
        let (collectives, of) = self.row.collectives.take().unwrap_or_default();
        if !of.is_empty() {
            self.numbered.push((self.collectives.len(), of));
        }
        self.collectives.push(collectives);
        Ok(true)
    }
}

/// Tells of the fields of a table that `F` does not take, all of which are unknown.
pub(super) fn finish<'de, F: Fields<'de>>(others: &Value, path: &Path<'_>, found: &mut Found) {
    if others.as_object().is_some_and(|others| !others.is_empty()) {
        let (path, faults) = (path.to_string(), found.faults());
        if let Some(mut table) = Table::of(others, &path, faults) {
            F::TAKEN.iter().for_each(|taken| _ = table.get(taken));
            table.finish(faults);
        }
    }
}

/// What a rank did.
#[derive(Default)]
struct Row<'de> {
    steps: Option<Result<Cow<'de, str>, Value>>,
    starts: Vec<u64>,
    ends: Vec<u64>,
    collectives: Option<NumberedRow>,
}

impl<'de> Fields<'de> for Row<'de> {
    const TAKEN: &'static [&'static str] = &["steps", "start_ns", "end_ns", "collectives"];

    fn field<A: MapAccess<'de>>(
        &mut self,
        field: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error> {
        match field {
            0 => self.steps = Some(fields.next_value_seed(Reader(Text))?),
            1 => self.starts = column(core::mem::take(&mut self.starts), usize::MAX, path, fields, found)?,
            2 => self.ends = column(core::mem::take(&mut self.ends), usize::MAX, path, fields, found)?,
            _ => self.collectives = collectives::read_row(path, fields, found)?,
        }
        Ok(())
    }
}

impl Row<'_> {
    /// Its spans; none where the columns do not fit together.
    fn spans<E: Error>(&self, path: &Path<'_>, found: &mut Found) -> Result<Option<Vec<TraceSpan>>, E> {
        let steps_path = || Path::Field(path, "steps").to_string();
        let text = match &self.steps {
            Some(Ok(text)) => text,
            other => {
                let other = other.as_ref().and_then(|text| text.as_ref().err()).filter(|value| !value.is_null());
                let other = other.map_or_else(|| String::from("nothing"), shown);
                found.fault(Fault::new(steps_path(), other, "a row of steps as text"))?;
                return Ok(None);
            }
        };
        // As many as there are times: a text alone takes no more memory than it is long.
        let mut spans = Vec::with_capacity(self.starts.len().min(self.ends.len()));
        let (mut count, mut before, mut wrong) = (0usize, 0, None);
        for step in steps_of(text) {
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    let accepted = "steps such as `0F3`, `(1SEND_F0)` or `OPTIMIZER`";
                    found.fault(Fault::new(steps_path(), &error.text, accepted))?;
                    return Ok(None);
                }
            };
            if let (Some(&start_ns), Some(&end_ns)) = (self.starts.get(count), self.ends.get(count)) {
                if (start_ns < before || end_ns < start_ns) && wrong.is_none() {
                    wrong = Some(format!("{step} from {start_ns} to {end_ns} after {before}"));
                }
                before = end_ns;
                spans.push(TraceSpan { step, start_ns, end_ns });
            }
            count += 1;
        }
        if self.starts.len() != count || self.ends.len() != count {
            let columns = format!("{count} steps, {} starts and {} ends", self.starts.len(), self.ends.len());
            found.fault(Fault::new(path.to_string(), columns, "one start and one end for each step"))?;
            return Ok(None);
        }
        if let Some(wrong) = wrong {
            found.fault(Fault::new(path.to_string(), wrong, "spans in order of time that do not overlap"))?;
            return Ok(None);
        }
        Ok(Some(spans))
    }
}

/// A text, or what stands there instead.
struct Text;

impl<'de> Wanted<'de> for Text {
    type Out = Result<Cow<'de, str>, Value>;

    fn text<E: Error>(self, text: &str) -> Result<Self::Out, E> {
        Ok(Ok(Cow::Owned(text.to_string())))
    }

    fn borrowed<E: Error>(self, text: &'de str) -> Result<Self::Out, E> {
        Ok(Ok(Cow::Borrowed(text)))
    }

    fn other<E: Error>(self, value: Value) -> Result<Self::Out, E> {
        Ok(Err(value))
    }
}
