//! A custom schedule: an order of compute that a person or another scheduler wrote, or that was taken from a plan.
//!
//! The form is detected:
//!
//! | Form | Such as | Detected by |
//! |---|---|---|
//! | one line per rank | `0F0 0F1 0B0 0W0 0BW1` | neither of the others; empty lines and text after a `#` are left out, and so is a rank's number before a bar: `0 \| 0F0` |
//! | [torch's compute-only CSV](super::torch_csv) | `0F0,0F1,0I0,0W0,0B1` | a comma; kinds are torch's, whose B is our BW |
//! | JSON | `["0F0 0BW0", "1F0 1BW0"]`, or a plan file, of which only the order is read | `[` or `{` at the start |

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_json::Value;

use super::torch_csv::{self, CsvSyntax, LeftOut};
use crate::base::json::{self, Syntax};
use crate::problem::MAX_RANKS;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind, OpSyntax};

/// An order, with notes for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The order.
    pub schedule: Schedule,
    /// By row: where its ops stand in the text; none where rows are strings of JSON.
    pub rows: Vec<Row>,
    /// What the text has besides.
    pub left_out: LeftOut,
}

/// Where the ops of a row stand in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its line, from 1.
    pub line: usize,
    /// By op: its cell, from 1; nothing where blanks keep ops apart, and each word is one.
    pub cells: Vec<u32>,
}

impl From<Schedule> for Order {
    fn from(schedule: Schedule) -> Order {
        Order { schedule, rows: Vec::new(), left_out: LeftOut::default() }
    }
}

impl Order {
    /// Where op `index` of `rank` stands, as far as the text has places: `line 1, cell 3`.
    pub fn place(&self, rank: usize, index: usize) -> Option<String> {
        let Row { line, cells } = self.rows.get(rank)?;
        Some(match cells.get(index) {
            Some(cell) => format!("line {line}, cell {cell}"),
            None => format!("line {line}, word {}", index + 1),
        })
    }
}

/// Why a text is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderSyntax {
    /// A word that is no op.
    Word {
        /// Its line, or its entry of a JSON array, from 1.
        line: usize,
        /// The word.
        word: OpSyntax,
    },
    /// A cell that torch would not read.
    Csv(CsvSyntax),
    /// Not JSON, although it begins like it.
    Syntax(Syntax),
    /// JSON that holds no rows.
    Json(String),
    /// Not a single op.
    Empty,
    /// More op lists than a problem may have ranks.
    TooManyRows,
    /// A row of torch's CSV with a W of a B that already includes it.
    Whole(Op),
}

impl fmt::Display for OrderSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderSyntax::Word { line, word } => write!(f, "line {line}: {word}"),
            OrderSyntax::Csv(csv) => fmt::Display::fmt(csv, f),
            OrderSyntax::Syntax(syntax) => fmt::Display::fmt(syntax, f),
            OrderSyntax::Json(found) => {
                write!(f, "found {found}; accepted is an array with one string of ops per rank, or a plan file")
            }
            OrderSyntax::Empty => {
                f.write_str("found no op; accepted is one line per rank, such as `0F0 0F1 0BW0 0BW1`")
            }
            OrderSyntax::Whole(op) => {
                let (stage, microbatch) = (op.stage(), op.microbatch());
                write!(
                    f,
                    "found {stage}W{microbatch} and {stage}B{microbatch}: with commas this is torch's CSV, \
                     where B is the whole backward; accepted is {stage}I{microbatch} for the half before \
                     {stage}W{microbatch}, or blanks between ops"
                )
            }
            OrderSyntax::TooManyRows => write!(
                f,
                "found more than {MAX_RANKS} op lists; accepted is one op \
                 list per rank"
            ),
        }
    }
}

impl core::error::Error for OrderSyntax {}

/// Whether a text begins like an order, for a file without a format.
pub fn looks_like_one(text: &str) -> bool {
    let first = lines(text).next().map_or("", |(_, line)| line);
    let first =
        first.split(|c: char| c == ',' || c.is_whitespace()).find(|word| !word.is_empty()).unwrap_or_default();
    read(first.trim_matches('"')).is_ok() || torch_csv::read(first).is_ok_and(|order| order.op_count() > 0)
}

/// Reads an order without the places in its text.
///
/// # Errors
/// As [`read_whole`].
pub fn read(text: &str) -> Result<Schedule, OrderSyntax> {
    read_whole(text).map(|order| order.schedule)
}

/// Reads an order.
///
/// # Errors
/// [`OrderSyntax`] with the first place that is wrong.
pub fn read_whole(text: &str) -> Result<Order, OrderSyntax> {
    let order = match text.trim_start().chars().next() {
        Some('[' | '{') => of_json(text)?.into(),
        _ if lines(text).any(|(_, line)| line.contains(',')) => {
            let (numbers, rows): (Vec<usize>, Vec<&str>) = lines(text).take(MAX_RANKS + 1).unzip();
            if rows.len() > MAX_RANKS {
                return Err(OrderSyntax::TooManyRows);
            }
            let line = |row: usize| numbers.get(row - 1).copied().unwrap_or(row);
            let file = torch_csv::read_file(&rows.join("\n"))
                .map_err(|csv| OrderSyntax::Csv(CsvSyntax { row: line(csv.row), ..csv }))?;
            if let Some(op) = twice(&file.order) {
                return Err(OrderSyntax::Whole(op));
            }
            let rows = numbers.into_iter().zip(file.cells).map(|(line, cells)| Row { line, cells }).collect();
            Order { schedule: file.order, rows, left_out: file.left_out }
        }
        _ => {
            let rows = lines(text).map(|(line, _)| Row { line, cells: Vec::new() });
            Order { rows: rows.take(MAX_RANKS).collect(), ..of_rows(lines(text))?.into() }
        }
    };
    match order.schedule.op_count() {
        0 => Err(OrderSyntax::Empty),
        _ => Ok(order),
    }
}

/// A W whose backward is whole already.
fn twice(order: &Schedule) -> Option<Op> {
    let whole: BTreeSet<(usize, usize)> =
        order.rows.iter().flatten().filter(|op| op.kind() == OpKind::BW).map(key).collect();
    order.rows.iter().flatten().find(|op| op.kind() == OpKind::W && whole.contains(&key(op))).copied()
}

fn key(op: &Op) -> (usize, usize) {
    (op.stage(), op.microbatch())
}

/// Lines with something in them, by their number from 1, without comments and numbers of ranks.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = without_rank(line.split('#').next().unwrap_or_default()).trim();
        (!line.is_empty()).then_some((index + 1, line))
    })
}

/// A line without a rank's number before a bar, as drawings have it.
fn without_rank(line: &str) -> &str {
    match line.split_once('|') {
        Some((rank, row)) if rank.trim().bytes().all(|byte| byte.is_ascii_digit()) => row,
        _ => line,
    }
}

fn of_rows<'t>(rows: impl Iterator<Item = (usize, &'t str)>) -> Result<Schedule, OrderSyntax> {
    let (numbers, rows): (Vec<usize>, Vec<&str>) = rows.take(MAX_RANKS + 1).unzip();
    if rows.len() > MAX_RANKS {
        return Err(OrderSyntax::TooManyRows);
    }
    Schedule::from_text_rows(&rows)
        .map_err(|(row, word)| OrderSyntax::Word { line: numbers.get(row).copied().unwrap_or(row + 1), word })
}

fn of_json(text: &str) -> Result<Schedule, OrderSyntax> {
    let value = json::parse(text).map_err(OrderSyntax::Syntax)?;
    let table = value.get("schedule").unwrap_or(&value);
    let rows = table.get("rows").unwrap_or(table);
    let strings = |rows: &'_ Value| -> Option<Vec<String>> {
        rows.as_array()?.iter().map(|row| row.as_str().map(ToString::to_string)).collect()
    };
    let found = || OrderSyntax::Json(crate::base::fields::shown(rows));
    let rows = strings(rows).ok_or_else(found)?;
    let order = of_rows(rows.iter().enumerate().map(|(index, row)| (index + 1, row.as_str())))?;
    let places = |row: &Value| -> Option<Vec<u32>> {
        row.as_array()?.iter().map(|place| u32::try_from(place.as_u64()?).ok()).collect()
    };
    Ok(match table.get("pairs").filter(|pairs| !pairs.is_null()) {
        None => order,
        Some(pairs) => {
            let pairs: Option<Vec<Vec<u32>>> = pairs.as_array().and_then(|pairs| pairs.iter().map(places).collect());
            let wrong = || OrderSyntax::Json("`pairs` that are no places".to_string());
            Schedule { pairs: pairs.ok_or_else(wrong)?, ..order }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::schedule::published;
    use crate::spec::Spec;
    use proptest::prelude::*;

    /// DualPipe's pairs, cut backwards and fused ones: every form says the same of them.
    #[test]
    fn every_published_order_reads_the_same_in_each_form() {
        let spec = Spec::read(
            "ranks = 4\nmicrobatches = 8\nplacement = \"two-way\"\noverlap_permille = 100\n\
             stages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }\n",
        )
        .unwrap();
        let mut read_back = 0;
        for published in published() {
            let Ok(plan) = planner::plan(&spec, published.name) else { continue };
            assert_eq!(read(&plan.to_json()), Ok(plan.schedule.clone()), "{}", published.name);
            let rows = plan.schedule.text_rows();
            let bare = Schedule::of(plan.schedule.rows.clone());
            let drawn: String =
                rows.iter().enumerate().map(|(rank, row)| format!(" {rank} | {row}  # {rank}\n\n")).collect();
            assert_eq!(read(&format!("# by hand\n{drawn}")), Ok(bare.clone()), "{}", published.name);
            assert_eq!(read(&serde_json::to_string(&rows).unwrap()), Ok(bare), "{}", published.name);
            assert!(looks_like_one(&drawn) && looks_like_one(&rows.join("\n")));
            read_back += 1;
        }
        assert!(read_back >= 2, "{read_back}");
    }

    #[test]
    fn a_comma_makes_it_torchs() {
        assert_eq!(read("0F0,0I0,0W0\n").unwrap().text_rows(), ["0F0 0B0 0W0"]);
        assert_eq!(read("0F0,,0B0\n\n1F0,1B0").unwrap().text_rows(), ["0F0 0BW0", "1F0 1BW0"]);
        assert_eq!(read("0F0 0B0 0W0").unwrap().text_rows(), ["0F0 0B0 0W0"]);
        assert!(looks_like_one("0F0,0I0") && looks_like_one("\"0F0\",0B0"));
    }

    /// An editor goes there, whatever stands between the ops.
    #[test]
    fn every_op_has_its_place_in_the_text() {
        for (text, places) in [
            ("# by hand\n\n 0 | 0F0  0BW0\n1F0 1BW0\n", ["line 3, word 1", "line 3, word 2", "line 4, word 2"]),
            (",0F0,,0B0\n\n1RECV_F0,1F0,,1B0\n", ["line 1, cell 2", "line 1, cell 4", "line 3, cell 4"]),
            ("0UNSHARD,(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n", ["line 1, cell 2", "line 1, cell 2", "line 2, cell 2"]),
        ] {
            let order = read_whole(text).unwrap();
            let found = [(0, 0), (0, 1), (1, 1)].map(|(rank, index)| order.place(rank, index).unwrap());
            assert_eq!(found, places, "{text}");
            assert_eq!((order.place(2, 0), read(text).as_ref()), (None, Ok(&order.schedule)), "{text}");
        }
        assert_eq!(read_whole("[\"0F0 0BW0\"]").unwrap().place(0, 0), None);
    }

    #[test]
    fn what_is_left_out_of_torchs_file_is_counted() {
        for (text, says) in [
            ("0F0 0BW0", ""),
            ("0F0,,0B0", ""),
            ("0F0,0SEND_F0,0B0\n1F0,1B0", "1 transfer"),
            (
                "0UNSHARD,0F0,0SEND_F0,0WAIT_SEND_F0,0B0\n1RECV_F0,1F0,1B0,1UNSHARD",
                "2 transfers, 2 UNSHARD, 1 WAIT_SEND_F",
            ),
            ("0F0,0B0,0REDUCE_GRAD", "1 REDUCE_GRAD"),
        ] {
            let order = read_whole(text).unwrap();
            assert_eq!(
                (order.left_out.to_string().as_str(), order.left_out.is_empty()),
                (says, says.is_empty()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_order_is_told_with_its_place() {
        for (text, says) in [
            ("0F0 0BW0\n\n1F0 1X0", "line 3: `1X0` is not an op"),
            ("0F0,0SEND_X0", "line 1, cell 2"),
            ("# torch\n\n0F0,0SEND_X0", "line 3, cell 2"),
            ("0F0,0B0,0W0", "found 0W0 and 0B0: with commas this is torch's CSV"),
            ("[[1]]", "found a list of 1"),
            ("{}", "found a table"),
            ("[\"0F0\", \"1G0\"]", "line 2: `1G0`"),
            ("{\"rows\": [\"0F0\"], \"pairs\": [[-1]]}", "`pairs`"),
            ("{\"rows\": [\"0F0\"], \"pairs\": {\"0\": [1]}}", "`pairs`"),
            ("", "found no op"),
            ("# nothing\n", "found no op"),
            ("[", "this is not JSON: line 1"),
            ("{\"rows\": [\"0F0\"],\n\"rows\": [\"0F1\"]}", "the field \"rows\" is given twice"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(read(&"0F0\n".repeat(MAX_RANKS + 1)), Err(OrderSyntax::TooManyRows));
        assert_eq!(read(&"0F0,0B0\n".repeat(MAX_RANKS + 1)), Err(OrderSyntax::TooManyRows));
        for text in
            ["", "name = \"x\"", "[model]\nname = \"1F1B\"", "{ \"ranks\": 4 }", "1F1B is a schedule", "ranks = 4"]
        {
            assert!(!looks_like_one(text) || text.starts_with("1F1B"), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "[0-9FBWI,;()| #\\[\\]{}\":a-z\n]{0,60}") {
            let _ = (read(&text), looks_like_one(&text));
        }
    }
}
