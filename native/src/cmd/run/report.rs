//! What a run reports: measured times and bytes, and the planned ones.

use pipeplan::runner::{Restart, RunReport, Source};
use serde_json::{Value, json};

use crate::cmd::format;

/// Row `at` of the memory: its replica, its part of sequences, its rank in its pipeline and its part of matrices, each with
/// its name and whether there are several.
pub(super) fn place(report: &RunReport, at: usize) -> [(&'static str, usize, bool); 4] {
    let (replicas, parts, members) = (report.replicas.max(1), report.parts.max(1), report.members.max(1));
    let ranks = (report.memory.len() / (replicas * parts * members)).max(1);
    let pipeline = at / ranks;
    [
        ("replica", pipeline / members / parts, replicas > 1),
        ("context", pipeline / members % parts, parts > 1),
        ("rank", at % ranks, true),
        ("part", pipeline % members, members > 1),
    ]
}

/// A restart, for a person.
pub(super) fn of_restart(restart: &Restart) -> String {
    let Restart { generation, ranks, replicas, source, step, redone, lost } = restart;
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let failed = format!("{} {} failed", if names.len() == 1 { "rank" } else { "ranks" }, names.join(", "));
    let after = match source {
        Source::Overtaken => "another failure came before the ranks had a state".to_string(),
        Source::Memory => format!("went on after step {step} from memory"),
        Source::Checkpoint => format!("went on after step {step} from the checkpoint"),
        Source::Start => format!("started again after step {step}, since nothing was saved"),
    };
    let again =
        if *redone > 0 { format!(", {} made again", format::count(*redone as usize, "step")) } else { String::new() };
    let on = replicas.map_or_else(String::new, |replicas| format!(", on {}", format::count(replicas, "replica")));
    let lost = match lost.as_nanos() as u64 {
        // It is not over yet.
        0 => String::new(),
        lost => format!(", {} lost", format::duration(lost)),
    };
    format!("restart {generation:<5} {failed}; {after}{on}{again}{lost}")
}

pub(super) fn summary(report: &RunReport) -> Value {
    let memory: Vec<Value> = report
        .memory
        .iter()
        .enumerate()
        .map(|(at, rank)| {
            let [replica, context, of_pipeline, part] = place(report, at).map(|(_, number, _)| number);
            json!({
                "replica": replica, "context": context, "rank": of_pipeline, "part": part,
                "high_water_bytes": rank.high_water_bytes, "predicted_bytes": rank.predicted_bytes,
                "persistent_bytes": rank.persistent_bytes, "activation_bytes": rank.activation_bytes,
                "transfer_bytes": rank.transfer_bytes, "host_bytes": rank.host_bytes,
                "device_bytes": rank.device_bytes,
            })
        })
        .collect();
    let restarts: Vec<Value> = report
        .restarts
        .iter()
        .map(|restart| {
            json!({
                "generation": restart.generation, "ranks": restart.ranks, "state_from": restart.source.name(),
                "replicas": restart.replicas, "step": restart.step, "steps_redone": restart.redone, "lost_ns": restart.lost.as_nanos() as u64,
            })
        })
        .collect();
    json!({
        "steps": report.steps.len(),
        "first_step": report.steps.first().map(|step| step.step),
        "restarts": restarts,
        "stopped": report.stopped,
        "checkpoint": report.checkpoint,
        "losses": report.losses(),
        "duration_ns": report.duration_ns,
        "tokens_per_s": report.tokens_per_s(),
        "makespan_ns": report.makespan_ns,
        "predicted_makespan_ns": report.predicted_makespan_ns,
        "step_ns": report.step_ns,
        "predicted_step_ns": report.predicted_step_ns,
        "overhead_ns": report.overhead.map(|overhead| {
            json!({ "ops": overhead.ops, "mean": overhead.mean_ns, "median": overhead.median_ns, "most": overhead.most_ns })
        }),
        "bubble_ratio": report.bubble_ratio,
        "predicted_bubble_ratio": report.predicted_bubble_ratio,
        "shared_processors": report.processors,
        "plan_digest": report.trace.plan_digest,
        "memory": memory,
    })
}

pub(super) fn drawn(report: &RunReport) -> String {
    let mut text = format!("\n{} steps in {}", report.steps.len(), format::duration(report.duration_ns));
    if !report.losses().is_empty() {
        text.push_str(&format!(", {:.0} tokens/s", report.tokens_per_s()));
    }
    text.push('\n');
    let losses = report.losses();
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        text.push_str(&format!("loss          {first:.4} to {last:.4}\n"));
    }
    // Of times in another type than the plan's nothing is predicted.
    let predicted = |predicted_ns| match predicted_ns {
        0 => String::new(),
        predicted_ns => format!(", {} predicted", format::duration(predicted_ns)),
    };
    text.push_str(&format!(
        "makespan      {} measured{}\n",
        format::duration(report.makespan_ns),
        predicted(report.predicted_makespan_ns)
    ));
    text.push_str(&format!(
        "step          {} measured{}\n",
        format::duration(report.step_ns),
        predicted(report.predicted_step_ns)
    ));
    if let Some(overhead) = report.overhead.filter(|_| report.trace.backend == "modelled") {
        text.push_str(&format!(
            "overhead      {:.1} us per op on average, median {:.1} us, 99th percentile {:.1} us, at {} times the planned times\n",
            overhead.mean_ns / 1e3,
            overhead.median_ns as f64 / 1e3,
            overhead.most_ns as f64 / 1e3,
            report.slowdown
        ));
    }
    let predicted = report.predicted_bubble_ratio.map(|ratio| format!(", {} predicted", format::percent(ratio)));
    let predicted = predicted.unwrap_or_default();
    text.push_str(&format!("bubble        {} measured{predicted}\n", format::percent(report.bubble_ratio)));
    if let Some(processors) = report.processors {
        let ranks = format::count(report.memory.len(), "rank");
        let on = match report.trace.backend.as_str() {
            "cpu" => format::count(processors, "core"),
            _ => String::from("one GPU (--split-gpu gives each rank a part)"),
        };
        let predicted = if report.predicted_step_ns > 0 { ", and the prediction includes it" } else { "" };
        text.push_str(&format!("time-sliced   {ranks} on {on}{predicted}\n"));
    }
    text.push('\n');
    let told = |at: usize, of: fn(&(&'static str, usize, bool)) -> String| {
        place(report, at).iter().filter(|(.., several)| *several).map(of).collect::<Vec<_>>().join(".")
    };
    let of_card = report.memory.iter().any(|memory| memory.device_bytes > 0);
    let on_host = report.memory.iter().any(|memory| memory.host_bytes > 0);
    let rows: Vec<Vec<String>> = report
        .memory
        .iter()
        .enumerate()
        .map(|(rank, memory)| {
            let error = match memory.predicted_bytes {
                0 => String::new(),
                predicted => format!("{:+.2} %", 100.0 * (memory.high_water_bytes as f64 / predicted as f64 - 1.0)),
            };
            let mut row = vec![
                told(rank, |(_, number, _)| number.to_string()),
                format::bytes(memory.high_water_bytes),
                if memory.predicted_bytes > 0 { format::bytes(memory.predicted_bytes) } else { String::new() },
                error,
                format::bytes(memory.persistent_bytes),
                format::bytes(memory.activation_bytes),
                format::bytes(memory.transfer_bytes),
            ];
            row.extend(on_host.then(|| format::bytes(memory.host_bytes)));
            row.extend(of_card.then(|| format::bytes(memory.device_bytes)));
            row
        })
        .collect();
    let first = told(0, |(name, ..)| (*name).to_string());
    let mut header =
        vec![first.as_str(), "peak memory", "predicted", "difference", "persistent", "activations", "transfers"];
    header.extend(on_host.then_some("host memory"));
    header.extend(of_card.then_some("taken from the GPU"));
    text.push_str(&format::table(&header, &rows, header.len() - 1));
    text
}
