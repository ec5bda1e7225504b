//! `pipeplan profile`

use indicatif::{ProgressBar, ProgressStyle};
use pipeplan::profiling::{self, JOBS, Line, Sharing};
use pipeplan::runner::Device;
use pipeplan_core::hardware::cost;
use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::plan::Prediction;
use pipeplan_core::search::Flow;
use pipeplan_core::spec::Work;
use serde_json::{Value, json};

use super::failure::Failure;
use super::{format, input, interrupt, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan profile spec.toml --device cuda -o h100.json      each operator of the model, on one GPU of this machine
  pipeplan plan spec.toml --profile h100.json                plans with these times
  pipeplan profile spec.toml --device cuda --share-gpu -o turns.json        for all ranks on one GPU, time-sliced
  pipeplan profile spec.toml --device cuda --split-gpu -o part.json         for all ranks on one GPU: run --split-gpu
  pipeplan profile other.toml --device cuda --add h100.json -o h100.json    add the missing operators of another spec
  pipeplan profile examples/tiny-llama.toml --json | jq '.operators[0]'";

/// Measure each operator of a model on a device of this machine, so that plans use measured times.
///
/// It measures the operators of one microbatch, in the precision, the sizes and the parallel degrees of the spec,
/// each distinct one once, and the optimizer step. One device is enough for any number of devices in the spec.
/// Collectives and transfers stay estimated. `plan`, `compare`, `memory` and `tune` read the file with --profile.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec of a model, or a link; - for standard input
    spec: String,
    /// The device: one core of the CPU, a GPU, or, as a test, the GPU kernels compiled for the CPU
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Choice,
    /// Which GPU
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    gpu: usize,
    /// Split the GPU into one equal part per rank of the spec and measure one part while the others run the same
    /// model, as busy as in a plan of the spec. The times suit plans for `run --split-gpu`
    #[arg(long)]
    split_gpu: bool,
    /// With --split-gpu: the schedule of that plan, or `best`; default: that of the spec
    #[arg(long, value_name = "NAME", requires = "split_gpu")]
    schedule: Option<String>,
    /// Measure the GPU while all ranks of the spec share it, time-sliced and overlapping. The times suit plans for
    /// `run` on one GPU
    #[arg(long, conflicts_with = "split_gpu")]
    share_gpu: bool,
    /// Start from this profile of the same device, and measure only missing operators
    #[arg(long, value_name = "FILE")]
    add: Option<String>,
    /// Write the profile here; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// Print the profile as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Choice {
    Cpu,
    Cuda,
    Emulated,
}

/// Lines of the table for people.
const LINES: usize = 24;

pub fn run(args: Args) -> Result<(), Failure> {
    output::expect_one_document([("-o -", args.output.as_deref() == Some("-")), ("--json", args.json)])?;
    if let Some(path) = &args.output {
        output::expect_room_at(path)?;
    }
    let spec = input::spec(&args.spec)?;
    let Work::Model(work) = &spec.work else {
        return Err(Failure::input("a profile needs a model, but this spec has typed costs"));
    };
    let known = args.add.as_deref().map(search::read_profile).transpose()?;
    let device = match args.device {
        Choice::Cpu => Device::Cpu,
        Choice::Cuda => Device::Cuda(args.gpu),
        Choice::Emulated => Device::Emulated,
    };
    let sharing = match (args.split_gpu, args.share_gpu) {
        (true, _) => {
            let schedule = args.schedule.as_ref().unwrap_or(&spec.schedule);
            let plan = search::plan(&spec, schedule, search::Effort::default())?;
            let Prediction { busy_ns, makespan_ns, .. } = &plan.prediction;
            let mean = busy_ns.iter().sum::<u64>() as f64 / busy_ns.len().max(1) as f64;
            Sharing::Parts { busy: mean / (*makespan_ns).max(1) as f64 }
        }
        (_, true) => Sharing::Turns,
        _ => Sharing::Alone,
    };
    let mut stopwatch = profiling::on(device, work, sharing).map_err(Failure::input)?;
    let name = stopwatch.name();
    if let Some(known) = known.as_ref().filter(|known| known.device != name) {
        let text = format!("--add: the profile is for \"{}\", but this device is \"{name}\"", known.device);
        return Err(Failure::input(text).with_help("one profile holds the times of one device"));
    }
    let graph = profiling::whole(work);
    let known = known.unwrap_or_else(|| Profile::new(&name));
    let before = known.len();
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {pos} of {len}; {msg}") {
        bar.set_style(style);
    }
    let (stop, started) = (interrupt::flag(), std::time::Instant::now());
    let mut is_whole = true;
    let (profile, missed) =
        profiling::measure(stopwatch.as_mut(), (&graph, work.dtype), known, &mut |done, all, next| {
            if bar.is_hidden() && started.elapsed().as_millis() > 300 {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(next.to_owned());
            is_whole = !stop.is_raised();
            if is_whole { Flow::Continue } else { Flow::Stop }
        });
    bar.finish_and_clear();
    let (lines, jobs) = profiling::account(work, &graph, &profile);
    let update = profiling::update_of(&graph, u64::MAX).map(|(_, load)| {
        let estimated = cost::traffic_time(load.bytes, &work.device);
        [profile.update_time(work.dtype, load.bytes, &work.device).unwrap_or(estimated), estimated]
    });
    let update = update.unwrap_or_default();
    if let Some(path) = &args.output {
        output::write(path, profile.to_json().as_bytes())?;
    }
    let new = profile.len() - before;
    if args.json {
        output::print_json(&as_json(&profile, &lines, (jobs, update), is_whole))?;
    } else if args.output.as_deref() != Some("-") {
        let mut text = drawn(&lines, jobs, update);
        text.push_str(&format!("\n{name}: {} measured", format::count(new, "operator")));
        if before > 0 {
            text.push_str(&format!(", {before} from the profile of --add"));
        }
        let place =
            args.output.as_ref().map_or_else(|| String::from("; -o FILE writes them"), |path| format!(", {path}"));
        text.push_str(&format!("{place}\n"));
        output::print(&text)?;
    }
    for (signature, reason) in &missed {
        output::tell(&format!("{} of {}: {reason}", signature.kernel, signature.operands));
    }
    if !missed.is_empty() {
        let text = format!(
            "{} could not be measured; plans use estimates for them",
            format::count(missed.len(), "operator")
        );
        return Err(Failure::work(text));
    }
    if !is_whole {
        return Err(Failure::stopped("stopped before every operator was measured"));
    }
    Ok(())
}

fn as_json(profile: &Profile, lines: &[Line], (jobs, update): ([[u64; 2]; 3], [u64; 2]), is_whole: bool) -> Value {
    let line = |line: &Line| {
        let Line { signature, count, measured_ns, estimated_ns } = line;
        let (kernel, operands) = (&signature.kernel, &signature.operands);
        json!({
            "kernel": kernel, "operands": operands, "count": count, "measured_ns": measured_ns, "estimated_ns": estimated_ns,
        })
    };
    let job = |[measured, estimated]: [u64; 2]| json!({ "measured_ns": measured, "estimated_ns": estimated });
    let [forward, input, weight] = jobs.map(job);
    json!({
        "device": profile.device,
        "complete": is_whole,
        "operators": lines.iter().map(line).collect::<Vec<_>>(),
        "microbatch": { "forward": forward, "backward_input": input, "backward_weight": weight },
        "optimizer": job(update),
    })
}

/// A microbatch of the whole model, by operator and by job, and the optimizer's step over all of it.
fn drawn(lines: &[Line], jobs: [[u64; 2]; 3], update: [u64; 2]) -> String {
    let all = jobs.iter().fold(0, |sum: u64, [measured, _]| sum.saturating_add(*measured));
    let ratio = |measured: u64, estimated: u64| match estimated {
        0 => String::new(),
        estimated => format!("{:.2}", measured as f64 / estimated as f64),
    };
    let row = |line: &Line| {
        let Line { signature, count, measured_ns, estimated_ns } = line;
        let time = measured_ns.unwrap_or(*estimated_ns);
        vec![
            signature.kernel.clone(),
            sizes(&signature.operands),
            count.to_string(),
            measured_ns.map_or_else(|| String::from("not measured"), format::duration),
            format::duration(*estimated_ns),
            measured_ns.map_or_else(String::new, |measured| ratio(measured, *estimated_ns)),
            format::percent(time as f64 / all.max(1) as f64),
        ]
    };
    let header = ["operator", "sizes", "count", "measured", "estimated", "ratio", "share"];
    let mut text = format::table(&header, &lines.iter().take(LINES).map(row).collect::<Vec<_>>(), header.len());
    if lines.len() > LINES {
        text.push_str(&format!("and {} with shorter times; --json lists all\n", lines.len() - LINES));
    }
    text.push_str(
        "\ntotals for one microbatch through the whole model, and for the optimizer step on all weights:\n",
    );
    let row = |(job, [measured, estimated]): (String, [u64; 2])| {
        vec![job, format::duration(measured), format::duration(estimated), ratio(measured, estimated)]
    };
    let rows: Vec<Vec<String>> = JOBS
        .into_iter()
        .map(|job| format!("{job:?}"))
        .zip(jobs)
        .chain([(String::from("optimizer"), update)])
        .map(row)
        .collect();
    text.push_str(&format::table(&["job", "measured", "estimated", "ratio"], &rows, 4));
    text
}

/// The sizes of the first two inputs and the first output: `256x64 176x64 → 256x176`.
fn sizes(operands: &str) -> String {
    let (inputs, outputs) = operands.split_once(" -> ").unwrap_or((operands, ""));
    let size = |operand: &str| {
        let shape = operand.split_once('[').map_or(operand, |(_, shape)| shape);
        shape.trim_end_matches(']').replace(',', "x")
    };
    let inputs: Vec<String> = inputs.split(' ').take(2).map(size).collect();
    format!("{} → {}", inputs.join(" "), size(outputs.split(' ').next().unwrap_or_default()))
}
