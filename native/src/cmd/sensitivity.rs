//! `pipeplan sensitivity`

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pipeplan::runner::StopFlag;
use pipeplan_core::advise::sensitivity::{Effect, MAX_PERMILLE, Sensitivity, What};
use pipeplan_core::base::units::Nanos;
use pipeplan_core::plan::Plan;
use pipeplan_core::search::{Flow, Progress};

use super::custom_schedule::Order;
use super::failure::Failure;
use super::search::Effort;
use super::{format, input, interrupt, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan sensitivity plan.json
  pipeplan sensitivity spec.toml --by 5
  pipeplan sensitivity examples/problem.json --anew 4      a new schedule for the four largest effects
  pipeplan sensitivity measured.json --json | jq '.effects[] | select(.what == \"rank\")'";

/// Rows of one kind that are shown.
const MOST_ROWS: usize = 8;

/// Show the sensitivity of a plan: its time if a rank, a stage, a job or transfers take more or less time.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    /// Change of each time, in percent, up and down
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = permille)]
    by: u32,
    /// Search for a new schedule for this many changes, in order of their effect, and for more and less memory. Each
    /// takes two searches; Ctrl-C ends them early
    #[arg(long, visible_alias = "replan", value_name = "CHANGES", default_value_t = 0)]
    anew: usize,
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    effort: Effort,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// For arguments.
fn permille(text: &str) -> Result<u32, String> {
    search::permille(text, 1..=MAX_PERMILLE)
}

pub fn run(args: Args) -> Result<(), Failure> {
    let plan = args.order.plan_of(&input::read(&args.plan)?)?;
    let found = Sensitivity::new(&plan.problem, &plan.schedule, args.by);
    let mut found = found.map_err(|fault| Failure::input(format!("--by: {fault}")))?;
    let watch = Watch::new(found.left() as u64, "changes");
    while !watch.is_stopped() && found.step(&plan.problem, &plan.schedule) {
        watch.went_on();
    }
    watch.finish();
    plan_anew(&mut found, &plan, &args)?;
    if args.json {
        return output::print_json(&found.to_value());
    }
    output::print(&report(&plan, &found))
}

/// Plans those changes anew that matter most, and memory.
fn plan_anew(found: &mut Sensitivity, plan: &Plan, args: &Args) -> Result<(), Failure> {
    if args.anew == 0 {
        return Ok(());
    }
    // A person who has ended what came before does not wait for what takes longest.
    if found.left() > 0 || interrupt::ending().is_raised() {
        output::tell("ended early: no new schedule was searched");
        return Ok(());
    }
    let mut at = found.most_first();
    at.truncate(args.anew);
    let watch = Watch::new(at.len() as u64, "planned anew");
    for at in at {
        let mut observer = |_: Progress| if watch.is_stopped() { Flow::Stop } else { Flow::Continue };
        let planned = found.plan_anew((&plan.problem, &plan.schedule), at, args.effort.ops(), &mut observer);
        planned.map_err(|error| Failure::input(format::spelled(&error.to_string())))?;
        if watch.is_stopped() {
            break;
        }
        watch.went_on();
    }
    watch.finish();
    if watch.is_stopped() {
        output::tell("the search ended early: a better schedule may exist");
    }
    Ok(())
}

fn report(plan: &Plan, found: &Sensitivity) -> String {
    let objective = plan.problem.objective().name().replace('_', " ");
    let by = format::percent(f64::from(found.permille) / 1000.0);
    // Nothing takes less than nothing.
    let less = if found.permille < 1000 { format!("{by} less") } else { "zero".to_owned() };
    let mut text = format!(
        "{}: {objective} {}. Time of the same order if one cost is {by} longer, or {less}:\n\n",
        plan.schedule_name,
        format::duration(found.cost_ns)
    );
    let anew = found.effects.iter().any(|effect| effect.anew.is_some());
    let mut header = vec!["", "longer", "less"];
    if anew {
        header.extend(["longer, new schedule", "less, new schedule"]);
    }
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for group in found.kinds() {
        let (shown, left) = group.split_at(group.len().min(MOST_ROWS));
        rows.extend(shown.iter().map(|effect| row(plan, found, effect, anew)));
        let most = left.iter().map(|effect| effect.longer_ns).max();
        if let (Some(most), Some(first)) = (most, left.first()) {
            let kind = first.what.to_string();
            let kind = kind.split(' ').next().unwrap_or_default();
            let kind = if kind == "messages" { "link" } else { kind };
            let more = format::count(left.len(), kind).replacen(' ', " more ", 1);
            notes.push(format!("{more}: at most {}; --json lists all", change(most, found.cost_ns)));
        }
    }
    // Memory alone says nothing of an order.
    rows.retain(|row| row.iter().skip(1).any(|cell| !cell.is_empty()));
    text.push_str(&format::table(&header, &rows, header.len() - 1));
    if let Some(best_ns) = found.best_ns {
        notes.push(format!(
            "new schedule: the best that a search finds for the changed costs on the same placement; unchanged: {}",
            format::duration(best_ns)
        ));
    }
    if found.left() > 0 {
        notes.push(format!("ended early: {} not examined", format::count(found.left(), "change")));
    }
    for note in notes {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

fn row(plan: &Plan, found: &Sensitivity, effect: &Effect, anew: bool) -> Vec<String> {
    let of_order = |ns: Nanos| match effect.what {
        What::Memory => String::new(),
        _ => change(ns, found.cost_ns),
    };
    let name = match effect.what {
        What::Memory => "memory (more, less)".to_owned(),
        what => what.name_on(&plan.problem),
    };
    let mut row = vec![name, of_order(effect.longer_ns), of_order(effect.less_ns)];
    if anew {
        let best_ns = found.best_ns.unwrap_or(found.cost_ns);
        let planned = effect.anew.map(|anew| [anew.longer_ns, anew.less_ns]);
        row.extend(match planned {
            Some(both) => both.map(|ns| ns.map_or_else(|| "no plan".to_owned(), |ns| change(ns, best_ns))),
            None => [String::new(), String::new()],
        });
    }
    row
}

/// `ns` against `of`, in percent.
fn change(ns: Nanos, of: Nanos) -> String {
    match (ns == of, of) {
        (true, _) => "0".to_owned(),
        (_, 0) => format::duration(ns),
        _ => format!("{:+.2} %", 100.0 * (ns as f64 / of as f64 - 1.0)),
    }
}

/// Progress on standard error where it takes a while, and Ctrl-C.
struct Watch {
    bar: ProgressBar,
    stop: StopFlag,
    started: Instant,
}

impl Watch {
    fn new(length: u64, what: &'static str) -> Watch {
        let bar = ProgressBar::hidden();
        bar.set_length(length);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {bar:30} {pos} of {len} {msg}; Ctrl-C ends it early")
        {
            bar.set_style(style);
        }
        bar.set_message(what);
        Watch { bar, stop: interrupt::flag(), started: Instant::now() }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_raised()
    }

    fn went_on(&self) {
        if self.bar.is_hidden() && self.started.elapsed() > Duration::from_millis(300) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(1);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
