//! Figures and drawings for people.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use owo_colors::{AnsiColors, OwoColorize};
use pipeplan_core::base::units::Nanos;
use pipeplan_core::check::check_program;
use pipeplan_core::estimate::step::Training;
use pipeplan_core::formats::{sentence, text};
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner;
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::spec::{Messages, ModelWork, Work};

/// A duration with three or four digits: `1.234 ms`.
pub fn duration(ns: u64) -> String {
    scaled(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")], "ns")
}

/// An amount of memory with three or four digits: `1.234 GiB`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, &[(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")], "B")
}

fn scaled(number: u64, units: &[(u64, &str)], one: &str) -> String {
    match units.iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => {
            let value = number as f64 / *unit as f64;
            let digits = if value >= 100.0 {
                1
            } else if value >= 10.0 {
                2
            } else {
                3
            };
            format!("{value:.digits$} {name}")
        }
        None => format!("{number} {one}"),
    }
}

/// A sentence of the planner with its raw numbers as a person reads them: `4200000 ns` becomes `4.200 ms`.
pub fn spelled(text: &str) -> String {
    sentence::spelled(text, &duration, &bytes)
}

/// What is trained, and on what: `llama-2-70b, 68.98 billion parameters, on 40 devices; 131072 tokens a step`.
pub fn trained(work: &ModelWork) -> String {
    let billions = |parameters: u64| {
        let units = [
            (1_000_000_000_000, "trillion"),
            (1_000_000_000, "billion"),
            (1_000_000, "million"),
            (1_000, "thousand"),
        ];
        scaled(parameters, &units, "")
    };
    let (all, active) = (work.model.parameters(), work.model.active_parameters());
    format!(
        "{}{} parameters{}, on {}{}; {} tokens a step",
        if work.model_name.is_empty() { String::new() } else { format!("{}, ", work.model_name) },
        billions(all).trim_end(),
        if active < all { format!(", {} active", billions(active).trim_end()) } else { String::new() },
        count(work.devices() as usize, "device"),
        match work.layout.devices_per_rank() {
            1 => String::new(),
            of_rank => format!(", {of_rank} for each rank"),
        },
        work.step_tokens()
    )
}

/// `1 rank`, `2 ranks`.
pub fn count(number: usize, name: &str) -> String {
    match (number, name.ends_with('h')) {
        (1, _) => format!("1 {name}"),
        (_, true) => format!("{number} {name}es"),
        (_, false) => format!("{number} {name}s"),
    }
}

/// A share in percent: `12.34 %`.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Model FLOPs utilisation. Above 100 % it is of another device than the one that was measured.
pub fn mfu(share: f64) -> String {
    if share > 1.0 { "over 100 %".to_owned() } else { percent(share) }
}

/// Characters of a line: those of the terminal, or 100 where there is none.
pub fn width() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0)).max(40)
}

/// Characters of what is no sentence.
const SHORT: usize = 16;

/// A table with a header, its first column to the left and `right` of the others to the right.
pub fn table(header: &[&str], rows: &[Vec<String>], right: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Text in the last column goes on in a further line; figures broken in two could not be read.
    let arrangement = match right + 1 < header.len() {
        true => ContentArrangement::Dynamic,
        false => ContentArrangement::Disabled,
    };
    table.set_content_arrangement(arrangement).set_width(width() as u16);
    let align = |column: usize| match column {
        column if (1..=right).contains(&column) => CellAlignment::Right,
        _ => CellAlignment::Left,
    };
    table.set_header(header.iter().enumerate().map(|(column, name)| Cell::new(name).set_alignment(align(column))));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(column, text)| Cell::new(text).set_alignment(align(column))));
    }
    // A figure, or a word, in two lines could not be read: only sentences go on in a further line.
    for at in 0..header.len() {
        let is_long = rows.iter().any(|row| row.get(at).is_some_and(|text| text.contains(' ') && text.len() > SHORT));
        let constraint = match (1..=right).contains(&at) || !is_long {
            true => ColumnConstraint::ContentWidth,
            // Where that is too wide for the screen, too: words in pieces could not be read either.
            false => ColumnConstraint::LowerBoundary(Width::Fixed(SHORT as u16)),
        };
        table.column_mut(at).map(|column| column.set_constraint(constraint));
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        // The style without lines still pads the first column.
        let _ = writeln!(text, "{}", line.strip_prefix(' ').unwrap_or(line).trim_end());
    }
    text
}

/// A timeline as coloured text, with its last line of figures.
pub fn drawing(timeline: &Timeline) -> String {
    let mut text = String::new();
    for line in text::lines(timeline, width()) {
        for piece in line {
            let colour = match piece.kind {
                Some(OpKind::F) => AnsiColors::Blue,
                // The nearest to the page's colours.
                Some(OpKind::B) => AnsiColors::Yellow,
                Some(OpKind::W) => AnsiColors::Green,
                Some(OpKind::BW) => AnsiColors::Red,
                None => AnsiColors::BrightBlack,
            };
            let _ = write!(text, "{}", piece.text.color(colour));
        }
        text.push('\n');
    }
    text.push_str(&figures(timeline));
    text
}

/// The line under a drawing: whole numbers where they are short, else shares.
fn figures(timeline: &Timeline) -> String {
    let makespan = timeline.makespan_ns();
    if makespan < 100_000 {
        return format!("{}\n", text::summary(timeline));
    }
    let list = |values: Vec<String>| match values.len() {
        0..=16 => values.join(" "),
        more => format!("{} … ({more} ranks)", values[..16].join(" ")),
    };
    let idle = |rank| percent(1.0 - timeline.busy_ns(rank) as f64 / makespan as f64);
    format!(
        "makespan {}, idle {}, in-flight {}\n",
        duration(makespan),
        list((0..timeline.rows.len()).map(idle).collect()),
        list(text::in_flight(timeline).iter().map(ToString::to_string).collect())
    )
}

/// A plan in a few lines: what it costs, what it holds, how far it is from the best. `proved_ns` is what an exact search
/// has proved that no schedule goes under, where there was one.
pub fn summary(plan: &Plan, proved_ns: Option<Nanos>) -> String {
    let (problem, prediction) = (&plan.problem, &plan.prediction);
    let objective = problem.objective();
    let (cost, other) = match objective {
        pipeplan_core::problem::Objective::Makespan => {
            (prediction.makespan_ns, ("longest span", prediction.longest_span_ns))
        }
        pipeplan_core::problem::Objective::LongestSpan => {
            (prediction.longest_span_ns, ("makespan", prediction.makespan_ns))
        }
    };
    let whole = cost as f64 * problem.ranks() as f64;
    let busy: f64 = prediction.busy_ns.iter().map(|ns| *ns as f64).sum();
    let bubble = if whole > 0.0 { 1.0 - busy / whole } else { 0.0 };
    let mut text = String::new();
    let title = match (pipeplan_core::schedule::find(&plan.schedule_name), plan.schedule_name.as_str()) {
        (Some(known), _) => known.title,
        (None, planner::BEST) => "found by search",
        (None, _) => "custom schedule",
    };
    let _ = writeln!(
        text,
        "{} ({title}) on {}, {} each, {}",
        plan.schedule_name.bold(),
        count(problem.ranks(), "rank"),
        count(problem.chunks(), "chunk"),
        count(problem.microbatches(), "microbatch")
    );
    if let Work::Model(work) = &plan.spec.work {
        let _ = writeln!(text, "trains        {}", trained(work));
    }
    let name = objective.name().replace('_', " ");
    // What ends a step may differ between two schedules, and counts where one of them is chosen.
    let with_end = if plan.ends.is_some() { " with the step epilogue" } else { "" };
    let _ = writeln!(
        text,
        "{name:<13} {}, the objective{with_end}; {} {}",
        duration(cost).bold(),
        other.0,
        duration(other.1)
    );
    let Messages { lowering, transport } = plan.spec.messages;
    let carried = execute(problem, &plan.program, &plan.schedule.pairs, Carrier::of(transport))
        .map(|timeline| timeline.cost_ns(objective));
    if let Some(carried) = carried.filter(|carried| *carried > cost) {
        // What could be done about it.
        let overlapped = Lowering::Overlapped { prefetch: 0 };
        let program = lower_as(problem, &plan.schedule, overlapped).ok();
        let program = program.filter(|program| check_program(problem, program, transport).is_ok());
        let beside =
            program.and_then(|program| execute(problem, &program, &plan.schedule.pairs, Carrier::of(transport)));
        let beside = beside.map(|timeline| timeline.cost_ns(objective)).filter(|beside| *beside < carried);
        let _ = writeln!(
            text,
            "with P2P      {}, waits for transfers included{}: {lowering} transfers on {transport} transport{}",
            duration(carried),
            if plan.schedule.pairs.iter().any(|pairs| !pairs.is_empty()) && !lowering.keeps_pairs() {
                " and pairs run one op after the other"
            } else {
                ""
            },
            beside.map_or_else(String::new, |ns| format!("; {} with `--lowering {overlapped}`", duration(ns)))
        );
    }
    if let Some(outcomes) = plan.outcomes() {
        let _ = writeln!(
            text,
            "with jitter   {} typical, more than {} in 1 of 20 steps: op times vary by {}",
            duration(outcomes.typical_ns),
            duration(outcomes.late_ns),
            percent(f64::from(plan.spec.jitter_permille) / 1000.0)
        );
    }
    let _ = writeln!(text, "bubble        {} of the {name}", percent(bubble));
    let (bound_ns, by_search) = match proved_ns {
        Some(proved_ns) if proved_ns > prediction.bound_ns => (proved_ns, ", by exact search"),
        _ => (prediction.bound_ns, ""),
    };
    let gap = planner::gap(cost, bound_ns);
    let gap = gap.map_or_else(String::new, |gap| match gap {
        0.0 => ": proven the best for this placement".to_owned(),
        gap => format!(": at most {} from the best for this placement", percent(gap)),
    });
    let _ = writeln!(text, "bound         {}{by_search}{gap}", duration(bound_ns));
    let most = (0..problem.ranks()).max_by_key(|rank| prediction.peak_bytes[*rank]).unwrap_or(0);
    let limit = match problem.limit_bytes(most) {
        Some(limit) => format!("of {}", bytes(limit)),
        None => "without a limit".to_owned(),
    };
    if let Some(step) = plan.step() {
        let _ = writeln!(
            text,
            "step          {} with its optimizer: {} tokens/s{}, MFU {}{}",
            duration(step.step_ns),
            step.tokens_per_s.round(),
            match &plan.spec.work {
                Work::Model(work) if work.devices() > 1 => {
                    format!(", {} a device", (step.tokens_per_s / work.devices() as f64).round())
                }
                _ => String::new(),
            },
            mfu(step.mfu),
            match &plan.spec.work {
                Work::Model(work) if work.layout.form.fp8 => format!(" of the rate in {}", work.dtype.name()),
                _ => String::new(),
            }
        );
    }
    if let (Some(step), Work::Model(work)) = (plan.step(), &plan.spec.work)
        && let Some(whole) = Training::of(work, step.step_ns)
    {
        let _ = writeln!(text, "training      {whole}");
    }
    if let Some(accounts) = plan.accounts() {
        let _ = writeln!(text, "passes        {}", accounts.line());
    }
    let _ = writeln!(text, "peak memory   {} on rank {most}, {limit}", bytes(prediction.peak_bytes[most]));
    text
}
