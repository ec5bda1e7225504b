//! `pipeplan calibrate`

use pipeplan_core::api::measured_profile;
use pipeplan_core::plan::Plan;
use pipeplan_core::problem::PlacementChoice;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::simulate::jitter::MAX_PERMILLE;
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::calibrate::{Calibration, Causes, HopTimes, JobTimes, calibrate};

use super::failure::Failure;
use super::{format, input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan run plan.json --trace trace.json
  pipeplan calibrate plan.json trace.json
  pipeplan calibrate plan.json trace.json --write-profile run.json
  pipeplan plan spec.toml --profile run.json -o next.json    plan the same model with what was measured
  pipeplan calibrate plan.json trace.json -o measured.json
  pipeplan compare measured.json      the published schedules with the times that were measured
  pipeplan calibrate plan.json trace.json --json | jq .makespan";

/// More rows of jobs than this are cut to those that decide the most.
const MOST_ROWS: usize = 32;

/// Show where a run lost time against its plan, and write the plan's problem with the measured times.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// The plan that ran
    plan: String,
    /// What the run measured: the file of `run --trace`; - for standard input
    trace: String,
    /// Write the problem with measured times here, for `plan`, `compare` and the page; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// For the plan of a model: write a profile of what the run took here, for `plan --profile` with the plan's spec: the next
    /// plan keeps the model, and chooses placement and partition anew
    #[arg(long, value_name = "FILE")]
    write_profile: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    if args.plan == "-" && args.trace == "-" {
        return Err(Failure::input("only one of the plan and the trace can come from standard input"));
    }
    let plan = input::plan(&args.plan)?;
    let trace = input::trace_of(&input::file_or_standard_input(&args.trace)?)?;
    let calibration = calibrate(&plan.problem, &plan.schedule, &trace).map_err(|faults| {
        Failure::input(format!("{}: {faults}", args.trace))
            .with_help("give the plan that ran, and the trace of its run")
    })?;
    if let Some(path) = &args.write_profile {
        let (_, profile) = measured_profile(&plan, &trace).map_err(Failure::input)?;
        output::write(path, profile.to_json().as_bytes())?;
        if path == "-" {
            return Ok(());
        }
    }
    if args.json {
        return output::print_json(&calibration.to_value());
    }
    if let Some(path) = &args.output {
        let problem = format!("{:#}\n", calibration.statement.to_value());
        if path == "-" {
            return output::print(&problem);
        }
        output::write(path, problem.as_bytes())?;
    }
    let mut shown = report(&plan, &trace, &calibration, args.output.as_deref());
    if let Some(path) = &args.write_profile {
        shown
            .push_str(&format!("{path} holds the times by rank, stage and job, for `plan SPEC --profile {path}`.\n"));
    }
    output::print(&shown)
}

fn report(plan: &Plan, trace: &Trace, calibration: &Calibration, written: Option<&str>) -> String {
    let steps = format::count(calibration.steps, "step");
    let mut text = format!("{steps} of {} on {} over {}", plan.schedule_name, trace.backend, trace.transport);
    if trace.steps.len() > calibration.steps {
        text.push_str(", without the first one, which fills caches");
    }
    text.push_str("\n\n");
    text.push_str(&causes(&calibration.causes));
    text.push('\n');
    text.push_str(&jobs(plan, calibration));
    if !calibration.hops.is_empty() {
        text.push('\n');
        text.push_str(&hops(&calibration.hops));
    }
    let mut notes = Vec::new();
    let instant = calibration.hops.iter().filter(|hop| hop.median_ns == 0 && hop.planned_ns > 0).count();
    if instant > 0 {
        notes.push(format!(
            "{} took no time by the trace, which no transfer does: the clocks of the ranks differ, or a rank's times are of \
             another step. Hops of a plan with these times are too short.",
            format::count(instant, "hop")
        ));
    }
    if !trace.plan_digest.is_empty() && trace.plan_digest != plan.digest() {
        notes.push(
            "The trace is from another plan with the same order. The planned times here are those of the plan that \
             you gave."
                .to_owned(),
        );
    }
    if let Some(processors) = trace.shared_processors {
        let on = format::count(processors, "processor");
        notes.push(format!(
            "The ranks were time-sliced on {on}: the time of an op includes the time slices of other ranks. A plan \
             with these times is valid only for ranks that share processors in this way."
        ));
    }
    if calibration.jitter_permille > 0 {
        let percent = calibration.jitter_permille as f64 / 10.0;
        let differ = format!("Op times differ from the mean of their stage and job by {percent} %");
        notes.push(match calibration.jitter_permille <= u64::from(MAX_PERMILLE) {
            true => format!("{differ}. `compare --jitter {percent}` shows the effect on other schedules."),
            false => {
                format!("{differ}. This is too much for a plan: some ops took many times as long as others.")
            }
        });
    }
    let fixed = match &calibration.statement.placement {
        PlacementChoice::Fixed(Placement::List(_)) | PlacementChoice::Any => "placement".to_owned(),
        PlacementChoice::Fixed(placement) => format!("{} placement", placement.name().unwrap_or("same")),
    };
    notes.push(match written {
        Some(path) => format!("{path} holds the problem with these times, on the same {fixed}."),
        None => {
            format!("`-o FILE` writes a problem with these times on the same {fixed}, for `plan` and `compare`.")
        }
    });
    text.push('\n');
    for note in notes {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

/// How the planned makespan became the measured one.
fn causes(causes: &Causes) -> String {
    let share = |ns: i64| match causes.planned_ns {
        0 => String::new(),
        planned => format!("{:+.2} %", 100.0 * ns as f64 / planned as f64),
    };
    let more = |ns: i64| format!("{}{}", if ns < 0 { "-" } else { "+" }, format::duration(ns.unsigned_abs()));
    let row = |name: &str, ns: i64, why: &str| vec![name.to_owned(), more(ns), share(ns), why.to_owned()];
    let whole = causes.measured_ns as i64 - causes.planned_ns as i64;
    let rows = vec![
        vec![
            "planned".to_owned(),
            format::duration(causes.planned_ns),
            String::new(),
            "the order with planned times".to_owned(),
        ],
        row("ops", causes.ops_ns, "each op takes the mean of its stage and job"),
        row("hops", causes.hops_ns, "P2P transfers take their measured times"),
        row("spread", causes.spread_ns, "each op takes its own measured time"),
        row("rest", causes.rest_ns, "overhead of the runner, and waits between ranks"),
        vec![
            "measured".to_owned(),
            format::duration(causes.measured_ns),
            share(whole),
            "from the first op to the last".to_owned(),
        ],
    ];
    format::table(&["makespan", "", "of planned", ""], &rows, 2)
}

fn jobs(plan: &Plan, calibration: &Calibration) -> String {
    let mut shown: Vec<&JobTimes> = calibration.jobs.iter().collect();
    let whole: u64 = shown.iter().map(|job| job.path_ns).sum::<u64>().saturating_add(calibration.path_hops_ns);
    shown.sort_by_key(|job| std::cmp::Reverse(job.path_ns));
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_by_key(|job| (job.stage, job.kind));
    let difference = |job: &JobTimes| match job.planned_ns {
        0 => String::new(),
        planned => format!("{:+.1} %", 100.0 * (job.mean_ns as f64 / planned as f64 - 1.0)),
    };
    let on_path = |ns: u64| if whole == 0 { String::new() } else { format::percent(ns as f64 / whole as f64) };
    let row = |job: &&JobTimes| {
        vec![
            job.name(),
            ranks(plan, job.stage),
            format::duration(job.planned_ns),
            format::duration(job.mean_ns),
            difference(job),
            format!("{} to {}", format::duration(job.least_ns), format::duration(job.most_ns)),
            on_path(job.path_ns),
        ]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let mut text =
        format::table(&["op", "rank", "planned", "measured", "difference", "between", "on the path"], &rows, 6);
    if left > 0 {
        text.push_str(&format!("and {left} more with less time on the path; --json lists all\n"));
    }
    if calibration.path_hops_ns > 0 {
        text.push_str(&format!("transfers are {} of the path\n", on_path(calibration.path_hops_ns)));
    }
    text.push_str(
        "the path: the ops that decide the makespan, each at its mean; a shorter op off the path does not shorten \
         the makespan\n",
    );
    text
}

/// Who holds a stage: in bidirectional placements two ranks, for microbatches that come from either end.
fn ranks(plan: &Plan, stage: usize) -> String {
    let of = |microbatch: usize| plan.problem.rank_of(stage, microbatch);
    match (of(0), of(plan.problem.microbatches() - 1)) {
        (one, other) if one == other => one.to_string(),
        (one, other) => format!("{one}, {other}"),
    }
}

fn hops(hops: &[HopTimes]) -> String {
    let mut shown: Vec<&HopTimes> = hops.iter().collect();
    shown.sort_by_key(|hop| std::cmp::Reverse(hop.median_ns));
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_by_key(|hop| (hop.from, hop.to));
    let row = |hop: &&HopTimes| {
        vec![
            format!("{} to {}", hop.from, hop.to),
            hop.messages.to_string(),
            format::duration(hop.planned_ns),
            format::duration(hop.median_ns),
        ]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let mut text = format::table(&["hop", "waited for", "planned", "median"], &rows, 3);
    if left > 0 {
        text.push_str(&format!("and {left} shorter ones; --json lists all\n"));
    }
    text
}
