//! `pipeplan compare`

use pipeplan_core::notation::order::Order;
use pipeplan_core::plan::planner::{self, Comparison, PlanError, Row, Status};
use pipeplan_core::problem::Objective;
use pipeplan_core::program::lower::Lowering;
use pipeplan_core::spec::{Documents, Messages, Spec, Work};

use super::documents::Lengths;
use super::failure::Failure;
use super::search::{Effort, Jitter, Measured};
use super::{custom_schedule, format, input, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan compare examples/llama-2-70b.toml
  pipeplan compare examples/two-ranks.toml --order examples/own-order.txt
  pipeplan compare spec.toml --jitter 5                      op times vary by 5 %
  pipeplan compare problem.json --json | jq '.rows[] | select(.status == \"ok\") | [.schedule, .gap]'";

/// Compare every published schedule, and the best schedule that a search finds, for one spec.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec, a bare problem or a link; - for standard input
    spec: String,
    /// A custom schedule to compare with them, in the form of `plan --order`; may be given again
    #[arg(long, visible_alias = "custom-schedule", value_name = "FILE")]
    order: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    documents: Lengths,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    jitter: Jitter,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let spec = args.documents.apply(input::spec(&args.spec)?)?;
    let spec = args.jitter.apply(args.measured.apply(spec)?);
    let own: Vec<(String, Order)> =
        args.order.iter().map(|from| custom_schedule::read(from)).collect::<Result<_, _>>()?;
    let orders = own.iter().map(|(name, order)| (name.clone(), order.schedule.clone())).collect();
    let mut comparison = search::compare(&spec, orders, args.effort);
    for row in comparison.rows.iter_mut().filter(|row| row.status == Status::Absent) {
        // The same reason, with places in the text.
        let order = own.iter().find(|(name, _)| *name == row.schedule);
        let planned = order.map(|(name, order)| planner::plan_order(&spec, name, order.clone()));
        if let Some(Err(PlanError::Absent { reason, .. })) = planned {
            row.reason = Some(reason);
        }
    }
    if args.json {
        let mut text = serde_json::to_string_pretty(&comparison)
            .map_err(|error| Failure::work(format!("the comparison cannot be written: {error}")))?;
        text.push('\n');
        output::print_bytes(text.as_bytes())?;
    } else {
        output::print(&drawn(&comparison, &spec))?;
        search::tell_price_of_limit(&spec, comparison.rows.last().and_then(|best| best.step_ns));
    }
    let absent = comparison
        .rows
        .iter()
        .find(|row| row.status == Status::Absent && own.iter().any(|(name, _)| *name == row.schedule));
    if let Some(absent) = absent {
        return Err(Failure::input(format!("{} has no valid plan; the reason is above", absent.schedule)));
    }
    if comparison.rows.iter().any(|row| row.status == Status::Ok) {
        return Ok(());
    }
    // For scripts: the table was printed, and still there is nothing to plan.
    Err(Failure::input("no schedule is valid for this spec; the table gives the reason for each"))
}

fn drawn(comparison: &Comparison, spec: &Spec) -> String {
    let jitter_permille = spec.jitter_permille;
    let is_makespan = comparison.objective == Objective::Makespan.name();
    // Whether waits at transfers cost any row anything.
    let waits = comparison
        .rows
        .iter()
        .any(|row| row.carried_ns > if is_makespan { row.makespan_ns } else { row.longest_span_ns });
    let objective = comparison.objective.replace('_', " ");
    // With columns for jitter or transfers there is room only for the objective.
    let costs: Costs = match (jitter_permille > 0 || waits, is_makespan) {
        (false, _) => &[("makespan", |row| row.makespan_ns), ("longest span", |row| row.longest_span_ns)],
        (true, true) => &[("makespan", |row| row.makespan_ns)],
        (true, false) => &[("longest span", |row| row.longest_span_ns)],
    };
    let differs = Differs::of(comparison, spec);
    let mut rows: Vec<Vec<String>> = Vec::new();
    // Schedules that are absent for the same reason share a line.
    let mut absent: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &comparison.rows {
        match (row.status, row.reason.as_deref()) {
            (Status::Ok, _) => rows.push(cells(row, costs, waits, differs)),
            (Status::Absent, reason) => {
                let reason = format::spelled(reason.unwrap_or_default());
                match absent.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, names)) => names.push(&row.schedule),
                    None => absent.push((reason, vec![&row.schedule])),
                }
            }
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        let mut header = vec!["schedule"];
        header.extend(costs.iter().map(|(name, _)| name));
        header.extend(["bubble", "peak memory", "bound", "gap"]);
        if jitter_permille > 0 {
            header.extend(["typical", "1 in 20"]);
        }
        header.extend(differs.columns());
        if waits {
            header.push("with communication");
        }
        let of_a_model = comparison.rows.iter().any(|row| row.step_ns.is_some());
        if of_a_model {
            header.extend(["tokens/s", "MFU"]);
        }
        text.push_str(&format::table(&header, &rows, header.len() - 1));
        text.push_str(&format!(
            "bubble, bound and gap refer to the {objective}; peak memory is that of the fullest rank\n"
        ));
        if jitter_permille > 0 {
            text.push_str(&format!(
                "op times vary by {}: half of the steps take at most the typical time, and 1 in 20 takes more than \
                 the last column{}\n",
                format::percent(f64::from(jitter_permille) / 1000.0),
                if waits { "\nboth without waits for transfers" } else { "\n`best` has the lowest of these" }
            ));
        }
        text.push_str(&differs.told(&objective));
        if waits {
            let Messages { lowering, transport } = spec.messages;
            text.push_str(&format!(
                "with communication: includes waits for {lowering} transfers on {transport} transport; `best` has \
                 the lowest{}; steps include these waits, other figures do not",
                if jitter_permille > 0 { ",\ntogether with the excess of 1 in 20 steps" } else { "" }
            ));
            text.push_str(match lowering {
                Lowering::Overlapped { .. } => "\n",
                _ => "\n`messages.lowering = \"overlapped\"` overlaps them with compute\n",
            });
        }
        if of_a_model {
            let best = match (jitter_permille > 0, is_makespan) {
                (true, _) => "",
                (false, true) => "; `best` has the shortest step",
                (false, false) => "\n`best` has the lowest longest span of a rank, step epilogue included",
            };
            text.push_str(&format!(
                "tokens/s and MFU{} are of whole steps, with gradient sync and optimizer{best}\n",
                match &spec.work {
                    Work::Model(work) if work.layout.form.matmul_dtype.is_some() =>
                        format!(", of the rate in {},", work.dtype.name()),
                    _ => String::new(),
                }
            ));
        }
    }
    if !absent.is_empty() {
        text.push_str("\nabsent:\n");
    }
    for (reason, names) in absent {
        text.push_str(&format!("  {}: {}\n", names.join(", "), reason.replace('\n', "\n    ")));
    }
    text
}

/// How microbatches differ.
#[derive(Clone, Copy, PartialEq)]
enum Differs {
    Not,
    /// Their order is chosen.
    Ordered,
    /// They are slices of sequences, whose order is chosen.
    Sliced,
    /// Their documents are chosen.
    Packed,
    /// Their documents stay where the spec has them, by data parallel replica.
    Fixed,
}

impl Differs {
    fn of(comparison: &Comparison, spec: &Spec) -> Differs {
        let any = |of: fn(&Row) -> Option<u64>| comparison.rows.iter().any(|row| of(row).is_some());
        let are_fixed =
            matches!(&spec.work, Work::Model(work) if matches!(work.batch.documents, Documents::OfReplicas(_)));
        match (any(|row| row.ordered_ns), any(|row| row.longest_first_ns)) {
            (_, true) => Differs::Packed,
            (true, false) if spec.slices() > 1 => Differs::Sliced,
            (true, false) => Differs::Ordered,
            (false, false) if are_fixed => Differs::Fixed,
            (false, false) => Differs::Not,
        }
    }

    fn columns(self) -> &'static [&'static str] {
        match self {
            Differs::Not | Differs::Fixed => &[],
            Differs::Ordered | Differs::Sliced => &["sorted", "ordered"],
            Differs::Packed => &["sorted", "longest first", "packed"],
        }
    }

    fn cells(self, row: &Row) -> Vec<Option<u64>> {
        match self {
            Differs::Not | Differs::Fixed => Vec::new(),
            Differs::Ordered | Differs::Sliced => vec![row.sorted_ns, row.ordered_ns],
            Differs::Packed => vec![row.sorted_ns, row.longest_first_ns, row.ordered_ns],
        }
    }

    /// What the columns say.
    fn told(self, objective: &str) -> String {
        match self {
            Differs::Not => String::new(),
            Differs::Ordered => format!(
                "microbatches differ: the {objective} of a schedule is of the order as given; sorted, that of the best of \
                 six sorted orders;\nordered, that of the best order found (`plan --schedule NAME --reorder`); `best` \
                 chooses order and schedule\n"
            ),
            Differs::Sliced => format!(
                "microbatches are slices of sequences: the {objective} of a schedule is of the sequences in the order as \
                 given; sorted, of\nthe best of six sorted orders of whole sequences; ordered, of the best one found \
                 (`plan --schedule NAME --reorder`);\nwhere all sequences are alike, so are these\n"
            ),
            Differs::Fixed => format!(
                "data parallel replicas have different documents, which stay where the spec has them: the {objective} of a \
                 schedule is\nof the slowest replica\n"
            ),
            Differs::Packed => format!(
                "documents are packed: the {objective} of a schedule is of the slowest replica with documents packed in \
                 their order;\nsorted, with microbatches in the best of six sorted orders; longest first, assigned \
                 to replicas by their work, then sorted;\npacked, as `plan` packs them; no packing is below the bound\n"
            ),
        }
    }
}

/// Columns of times, by name.
type Costs = &'static [(&'static str, fn(&Row) -> Option<u64>)];

fn cells(row: &Row, costs: Costs, waits: bool, differs: Differs) -> Vec<String> {
    let duration = |ns: Option<u64>| ns.map_or_else(String::new, format::duration);
    let percent = |share: Option<f64>| share.map_or_else(String::new, format::percent);
    let peak = row.peak_bytes.as_ref().and_then(|by_rank| by_rank.iter().max());
    let mut cells = vec![row.schedule.clone()];
    cells.extend(costs.iter().map(|(_, of)| duration(of(row))));
    cells.extend([
        percent(row.bubble_ratio),
        peak.map_or_else(String::new, |bytes| format::bytes(*bytes)),
        duration(row.bound_ns),
        percent(row.gap),
    ]);
    if row.late_ns.is_some() {
        cells.extend([duration(row.typical_ns), duration(row.late_ns)]);
    }
    cells.extend(differs.cells(row).into_iter().map(duration));
    if waits {
        cells.push(row.carried_ns.map_or_else(|| "hangs".to_owned(), format::duration));
    }
    if let (Some(tokens), Some(mfu)) = (row.tokens_per_s, row.mfu) {
        cells.extend([tokens.round().to_string(), format::mfu(mfu)]);
    }
    cells
}
