//! `pipeplan memory`

use pipeplan_core::advise::explanation::Explanation;
use pipeplan_core::advise::suggest::{Shorter, Suggestion, Suggestions};
use pipeplan_core::base::units::Bytes;
use pipeplan_core::plan::layers_of_rank;
use pipeplan_core::plan::verdict::RankMemory;
use pipeplan_core::spec::{Spec, Work};

use super::failure::Failure;
use super::search::{Effort, Measured};
use super::{format, input, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan memory examples/llama-2-70b.toml
  pipeplan memory spec.toml --schedule zb-h1
  pipeplan memory spec.toml --json | jq '.ranks[0].static_bytes'";

/// Show the memory of each rank by kind, and suggest changes if it does not fit.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec of a model, or a link; - for standard input
    spec: String,
    /// A published schedule or `best`; default: that of the spec
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    measured: Measured,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let spec = args.measured.apply(input::spec(&args.spec)?)?;
    let name = args.schedule.as_ref().unwrap_or(&spec.schedule);
    let shown = search::explain(&spec, name, args.effort)?;
    if args.json {
        return output::print_json(&shown.to_value());
    }
    output::print(&drawn(&shown, &spec))
}

fn drawn(shown: &Explanation, spec: &Spec) -> String {
    let mut text = String::new();
    if let Some(note) = &shown.note {
        text.push_str(&format!("{note}\n\n"));
    }
    let Work::Model(work) = &spec.work else { return text };
    text.push_str(&format!("{}\n\n", format::trained(work)));
    text.push_str(&table(shown));
    text.push_str(&verdict_line(shown));
    if work.layout.overhead_bytes == 0 {
        text.push_str(
            "framework overhead (contexts, communicators, fragmentation) is not included: reserve it with \
             memory.overhead_bytes\n",
        );
    }
    if shown.cuts_backwards() {
        let held = shown.held_for_w();
        let range = |at: usize| {
            let (least, most) = (held.iter().map(|held| held[at]).min(), held.iter().map(|held| held[at]).max());
            let [least, most] = [least, most].map(|bytes| format::bytes(bytes.unwrap_or(0)));
            if least == most { most } else { format!("{least} to {most}") }
        };
        text.push_str(&format!(
            "per microbatch, a stage keeps {} after F, and {} after B until W\n",
            range(0),
            range(1)
        ));
    }
    if let Some(most) = shown.ranks.iter().map(|rank| rank.on_host).max().filter(|most| *most > 0) {
        let of_node = u64::from(work.devices_per_node).min(work.devices());
        text.push_str(&format!(
            "activation and optimizer offload: at most {} of host memory per device",
            format::bytes(most)
        ));
        if of_node > 1 {
            let all = format::bytes(most.saturating_mul(of_node));
            text.push_str(&format!(", up to {all} for the {of_node} devices of a node"));
        }
        text.push('\n');
    }
    if let Some(dealt) = shown.answer.case.derived.as_ref().and_then(|derived| derived.dealt) {
        text.push_str(&format!("{}\n", format::spelled(&dealt.to_string())));
    }
    if let Some(fitted) = &shown.answer.case.fitted {
        text.push_str(&format!("\n{}", format::spelled(&fitted.account.to_string())));
    }
    if let Some(found) = &shown.suggestions {
        text.push_str(&advice(shown, found));
    }
    if let Some(shorter) = &shown.shorter {
        text.push_str(&price(shown, shorter));
    }
    text
}

/// What the limit costs, and what costs less.
fn price(shown: &Explanation, shorter: &Shorter) -> String {
    let now = shown.step_ns.unwrap_or(shown.answer.cost_ns());
    let mut text = format!("\n{}\n", search::price_of_limit(now, shorter.without_limit_ns));
    if shorter.single.is_empty() {
        text.push_str(
            "none of the changes tried makes the step shorter on these devices; `pipeplan tune` tries other \
             layouts\n",
        );
        return text;
    }
    text.push_str(
        "these changes make the step shorter on the same devices (times of a first schedule; a search can improve \
         them):\n",
    );
    let together: Vec<Suggestion> = shorter.together.iter().chain(&shorter.single).cloned().collect();
    text.push_str(&options(shown, &together, ""));
    text
}

/// One row a rank; kinds of which no rank holds anything have no column.
fn table(shown: &Explanation) -> String {
    let (ranks, holders) = (&shown.ranks, shown.holders());
    let kinds: Vec<(usize, &str)> = ranks.first().map_or_else(Vec::new, |first| {
        let named = first.fixed.kinds();
        let held = |at: usize| ranks.iter().any(|rank| rank.fixed.kinds()[at].1 > 0);
        named.iter().enumerate().filter(|(at, _)| held(*at)).map(|(at, (name, _))| (at, *name)).collect()
    });
    let header: Vec<&str> = std::iter::once("rank")
        .chain(kinds.iter().map(|(_, name)| *name))
        .chain(["activations", "peak", "left", "peak during", "layers"])
        .collect();
    // One unit for all, so that columns stay narrow and can be compared.
    let most = ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
    let (unit, name) = if most >= 1 << 30 { (1u64 << 30, "GiB") } else { (1 << 20, "MiB") };
    let scaled = |bytes: Bytes| format!("{:.2}", bytes as f64 / unit as f64);
    let row = |rank: &RankMemory| {
        let fixed = rank.fixed.kinds();
        let mut cells = vec![rank.rank.to_string()];
        cells.extend(kinds.iter().map(|(at, _)| scaled(fixed[*at].1)));
        cells.extend([scaled(rank.activations), scaled(rank.peak), left(rank, &scaled)]);
        cells.push(rank.at.map_or_else(String::new, |op| op.to_string()));
        cells.push(layers_of_rank(&holders, rank.rank));
        cells
    };
    let rows: Vec<Vec<String>> = ranks.iter().map(row).collect();
    format!("{}all in {name}\n", format::table(&header, &rows, kinds.len() + 4))
}

/// What the limit leaves, below 0 where it does not suffice.
fn left(rank: &RankMemory, scaled: &dyn Fn(Bytes) -> String) -> String {
    match rank.limit {
        None => "no limit".to_owned(),
        Some(limit) if rank.fits() => scaled(limit - rank.peak),
        Some(limit) => format!("-{}", scaled(rank.peak - limit)),
    }
}

fn verdict_line(shown: &Explanation) -> String {
    let over = shown.ranks.iter().filter(|rank| !rank.fits()).count();
    let fullest: Bytes = shown.ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
    let verdict = match over {
        0 => "fits".to_owned(),
        over => format!("does not fit {}", format::count(over, "rank")),
    };
    let objective = shown.answer.case.problem.objective().name().replace('_', " ");
    let limit = shown.ranks.iter().filter_map(|rank| rank.limit).min();
    let limit = limit.map_or_else(String::new, |limit| format!(" of {}", format::bytes(limit)));
    format!(
        "\n{} {verdict}: the fullest rank needs {}{limit}; {objective} {}\n",
        shown.answer.name,
        format::bytes(fullest),
        format::duration(shown.answer.cost_ns())
    )
}

/// What to change, each option with its cost in time, and which is the cheapest.
fn advice(shown: &Explanation, found: &Suggestions) -> String {
    let mut text = String::new();
    if !found.single.is_empty() {
        text.push_str("\nsuggestions:\n");
        text.push_str(&options(shown, &found.single, "not enough alone"));
    }
    if !found.combined.is_empty() {
        text.push_str("\nno single change on the same devices is enough. Suggested together:\n");
        text.push_str(&options(shown, &found.combined[..found.combined.len().min(MOST_COMBINED)], ""));
    }
    match (found.cheapest(), &found.all) {
        (Some(cheapest), _) => text.push_str(&format!("\ncheapest: {}\n", cheapest.words())),
        (None, Some(all)) => text.push_str(&format!(
            "\nnone of the changes tried fits. All {} together need {} on the fullest rank. Use fewer layers per \
             rank, or more memory\n",
            all.words(),
            format::bytes(all.peak)
        )),
        (None, None) => {
            text.push_str("\nnone of the changes tried fits. Use fewer layers per rank, or more memory\n");
        }
    }
    text
}

/// More combinations than these tell a person nothing.
const MOST_COMBINED: usize = 8;

fn options(shown: &Explanation, suggestions: &[Suggestion], too_little: &str) -> String {
    let now = shown.step_ns.unwrap_or(shown.answer.cost_ns());
    let row = |suggestion: &Suggestion| {
        let longer = suggestion.step_ns as f64 / now.max(1) as f64 - 1.0;
        vec![
            suggestion.words(),
            format::bytes(suggestion.peak),
            format::duration(suggestion.step_ns),
            format!("{:+.1} %", 100.0 * longer),
            if suggestion.fits { "fits" } else { too_little }.to_owned(),
        ]
    };
    let peak = shown.ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
    let fits_now = shown.ranks.iter().all(RankMemory::fits);
    let verdict = if fits_now { "fits" } else { "does not fit" };
    let as_it_is =
        ["unchanged".to_owned(), format::bytes(peak), format::duration(now), String::new(), verdict.to_owned()]
            .to_vec();
    let mut rows: Vec<Vec<String>> = std::iter::once(as_it_is).chain(suggestions.iter().map(row)).collect();
    let mut header = vec!["change", "peak", "step", "against now", "verdict"];
    if fits_now && suggestions.iter().all(|suggestion| suggestion.fits) {
        // A column that says the same of all says nothing.
        header.pop();
        rows.iter_mut().for_each(|row| row.truncate(header.len()));
    }
    format::table(&header, &rows, 0)
}
