//! The reference: pages that the program's own help, schemas and catalogs give.

use std::fmt::Write;

use pipeplan_core::hardware::cluster;
use pipeplan_core::model::{ModelConfig, catalog};
use pipeplan_core::schedule::published;
use pipeplan_tests::process::top;
use serde_json::Value;

use crate::commands::programs;
use crate::pages::{book, write_or_compare};

const GENERATED: &str =
    "<!-- Written by tests/book/reference.rs: PIPEPLAN_UPDATE=1 cargo test -p pipeplan-tests --test readme -->\n";

fn write(page: &str, content: &str) {
    write_or_compare(&book().join("reference").join(page), &format!("{GENERATED}\n{content}"));
}

/// What `pipeplan` prints, at the width that help has outside of a terminal.
fn printed(arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(programs().join("pipeplan"));
    let output = command.args(arguments).env("NO_COLOR", "1").env_remove("COLUMNS").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[test]
fn commands_are_as_their_help_says() {
    let help = printed(&["--help"]);
    // All commands end with what they share.
    let shared = help.find("Exit codes:").expect("exit codes");
    let mut page = String::from(
        "# Commands\n\nWhat `--help` prints for each command. The [how-to pages](../howto/index.md) have an example of each.\n",
    );
    write!(page, "\n## pipeplan\n\n```text\n{}\n```\n", trimmed(&help[..shared])).unwrap();
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = names.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).collect();
    assert!(names.len() >= 20, "{names:?}");
    for name in names.iter().filter_map(|line| line.split_whitespace().next()) {
        let how_to = book().join(format!("howto/{name}.md"));
        assert!(how_to.exists(), "{} is missing: purpose, one example, what to do with it", how_to.display());
        let help = printed(&[name, "--help"]);
        let help = help.split("Exit codes:").next().unwrap_or_default();
        write!(page, "\n## pipeplan {name}\n\n```text\n{}\n```\n", trimmed(help)).unwrap();
    }
    write!(page, "\n## What all commands share\n\n```text\n{}\n```\n", trimmed(&help[shared..])).unwrap();
    write("commands.md", &page);
}

/// `text` without blanks at the ends of lines.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[test]
fn fields_of_specs_are_as_the_crate_says() {
    let mut files: Vec<_> =
        std::fs::read_dir(top().join("core/src/spec")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let sources = files.iter().filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let head = "//! | Field | Meaning | Default |";
    let source =
        sources.into_iter().find(|source| source.contains(head)).expect("the table of fields in core/src/spec");
    let table = source.lines().skip_while(|line| *line != head).take_while(|line| line.starts_with("//! |"));
    let rows: Vec<String> = table.map(|line| without_links(line.trim_start_matches("//! "))).collect();
    assert!(rows.len() > 50, "{} rows", rows.len());
    // Every field of the schema has a word in the table.
    let schema: Value = serde_json::from_str(&printed(&["schema", "spec"])).unwrap();
    let others = pipeplan_core::spec::aliases().map(|(alias, field)| format!("| `{field}` | `{alias}` |\n"));
    let text = format!(
        "{}\n\n## Other names\n\nA spec may use these names of Megatron-LM, Hugging Face and DeepSpeed in the place of the \
         field. Both at once are an error.\n\n| Field | Other name |\n|---|---|\n{}",
        rows.join("\n"),
        others.collect::<String>().trim_end()
    );
    for (section, fields) in schema["$defs"]["spec"]["properties"].as_object().unwrap() {
        for field in fields["properties"].as_object().into_iter().flatten().map(|(field, _)| field) {
            assert!(section == "problem" || text.contains(field.as_str()), "no word on {section}.{field}");
        }
    }
    let page = format!(
        "# Fields of a spec\n\nA spec is TOML or JSON. [Specs](../specs.md) has examples. Bytes may be text: `80 GiB`. \
         Instead of a model, a table `problem` holds [typed costs](files.md#problem).\n\n{text}\n"
    );
    write("spec.md", &page);
}

/// Markdown without links into the crate's documentation: `[text](crate::path)` is `text`, and nothing where it stands in
/// parentheses by itself.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('[') {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        // A pair of brackets within code is no link.
        let in_code = out.matches('`').count() % 2 == 1;
        let end = from.find(']').filter(|_| !in_code);
        let Some(end) = end else {
            out.push('[');
            rest = &from[1..];
            continue;
        };
        let after = &from[end + 1..];
        let is_link = after.starts_with('(');
        rest = if is_link { after.find(')').map_or("", |close| &after[close + 1..]) } else { after };
        if is_link && out.ends_with(" (") && rest.starts_with(')') {
            out.truncate(out.len() - 2);
            rest = &rest[1..];
        } else {
            out.push_str(&from[1..end]);
        }
    }
    out + rest
}

#[test]
fn fields_of_files_are_as_their_schemas_say() {
    let mut page = String::from(
        "# Fields of files\n\nEach file is JSON. `pipeplan schema KIND` prints its JSON Schema, for editors and programs.\n",
    );
    for kind in ["problem", "plan", "trace", "profile", "proof"] {
        let schema: Value = serde_json::from_str(&printed(&["schema", kind])).unwrap();
        let (name, first) = kind.split_at(1);
        let top = if schema["properties"].is_object() { &schema } else { &schema["$defs"][kind] };
        write!(page, "\n## {}{first}\n\n", name.to_uppercase()).unwrap();
        if let Some(text) = top["description"].as_str() {
            write!(page, "{text}\n\n").unwrap();
        }
        page.push_str("| Field | Type | Meaning |\n|---|---|---|\n");
        write_fields(&mut page, &schema, top, "", 0);
    }
    write("files.md", &page);
}

/// A row for each field of `object`, and of the objects in it.
fn write_fields(page: &mut String, schema: &Value, object: &Value, path: &str, depth: usize) {
    let needed: Vec<&str> = object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in object["properties"].as_object().into_iter().flatten() {
        let reference = field["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let target = reference.map_or(field, |name| &schema["$defs"][name]);
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let text = field["description"].as_str().or(target["description"].as_str()).unwrap_or_default();
        let mut meaning = cell(text);
        if let Some(default) = field.get("default") {
            write!(meaning, "{}Default: `{default}`.", if meaning.is_empty() { "" } else { " " }).unwrap();
        }
        let optional = if needed.is_empty() || needed.contains(&name.as_str()) { "" } else { ", optional" };
        writeln!(page, "| `{path}` | {}{optional} | {meaning} |", type_of(schema, field)).unwrap();
        // The spec and the problem have a table each.
        let has_its_own = matches!(reference, Some("spec" | "problem"));
        if depth < 4 && !has_its_own {
            write_parts(page, schema, target, &path, depth + 1);
        }
    }
}

/// Rows for the fields of the object that `target` is, lists, or gives a choice of.
fn write_parts(page: &mut String, schema: &Value, target: &Value, path: &str, depth: usize) {
    let target = resolved(schema, target);
    let items = resolved(schema, &target["items"]);
    let choices = ["oneOf", "anyOf"].into_iter().find_map(|choice| target[choice].as_array());
    if target["properties"].is_object() {
        write_fields(page, schema, target, path, depth);
    } else if items["properties"].is_object() {
        write_fields(page, schema, items, &format!("{path}[]"), depth);
    } else if let Some(choice) = choices.and_then(|choices| choices.first()) {
        // One of them, or a list of the same.
        write_parts(page, schema, choice, path, depth);
    }
}

fn resolved<'a>(schema: &'a Value, field: &'a Value) -> &'a Value {
    let reference = field["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
    reference.map_or(field, |name| &schema["$defs"][name])
}

/// What may stand in a field, in a few words.
fn type_of(schema: &Value, field: &Value) -> String {
    match field["$ref"].as_str() {
        Some("#/$defs/spec") => return String::from("[spec](spec.md)"),
        Some("#/$defs/problem") => return String::from("[problem](#problem)"),
        _ => {}
    }
    let field = resolved(schema, field);
    if let Some(value) = field.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(" or ");
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = field[choice].as_array() {
            let mut types: Vec<String> = choices.iter().map(|choice| type_of(schema, choice)).collect();
            types.dedup();
            return types.join(" or ");
        }
    }
    match &field["type"] {
        Value::String(name) if name == "array" => match type_of(schema, &field["items"]).as_str() {
            "any" => String::from("list"),
            of => format!("list of {of}"),
        },
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ if field["properties"].is_object() => String::from("object"),
        _ => String::from("any"),
    }
}

#[test]
fn models_are_those_of_the_catalog() {
    let mut page = String::from(
        "# Models\n\nThe models that `model.name` takes. Parameters are counted from the sizes, without multi-token prediction \
         modules. Any other model comes from a `config.json` ([specs](../specs.md)) or from sizes in the spec.\n\n\
         | `model.name` | Model | Parameters | Active | Layers | Hidden | Heads / KV | Sequence | Kind | Source |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for entry in catalog::catalog() {
        let ModelConfig { layers, hidden, heads, kv_heads, .. } = entry.config;
        let variant = &entry.config.variant;
        let kinds = [
            (variant.experts.is_some(), "experts"),
            (variant.latent.is_some(), "MLA"),
            (variant.window.is_some(), "sliding window"),
            (variant.multi_token > 0, "MTP"),
        ];
        let kinds: Vec<&str> = kinds.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
        let kind = if kinds.is_empty() { "dense" } else { &kinds.join(", ") };
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {layers} | {hidden} | {heads} / {kv_heads} | {} | {kind} | {} |",
            entry.name,
            entry.title,
            billions(entry.config.parameters()),
            billions(entry.config.active_parameters()),
            entry.sequence,
            cell(entry.source),
        )
        .unwrap();
    }
    write("models.md", &page);
}

/// A count in billions, with three digits after the point; small ones in millions.
fn billions(count: u64) -> String {
    if count < 100_000_000 { format!("{:.3} M", count as f64 / 1e6) } else { format!("{:.3} B", count as f64 / 1e9) }
}

#[test]
fn devices_and_links_are_those_of_the_catalog() {
    let tera = |rate: u64| if rate == 0 { String::from("–") } else { format!("{}", rate as f64 / 1e12) };
    let giga = |rate: u64| format!("{}", rate as f64 / 1e9);
    let mut page = String::from(
        "# Devices and links\n\n## Devices\n\nThe devices that `cluster.device` takes. Rates are dense TFLOP/s of the data \
         sheet. GEMM is the part of them that the best matrix products reach. Memory is what programs get.\n\n\
         | `cluster.device` | Device | bf16 | FP8 | FP4 | f32 | GEMM | Memory | GB/s | Host GB/s | GPUs per node | Intra-node GB/s | Inter-node GB/s | Source |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for entry in cluster::catalog() {
        let memory = entry.memory_bytes as f64 / f64::from(1 << 30);
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} | {:.1} % | {memory:.2} GiB | {} | {} | {} | {} | {} | {} |",
            entry.name,
            entry.title,
            tera(entry.matmul_flops.bf16),
            tera(entry.matmul_flops.fp8),
            tera(entry.matmul_flops.fp4),
            tera(entry.matmul_flops.f32),
            entry.matmul_permille as f64 / 10.0,
            giga(entry.memory_bytes_per_s),
            giga(entry.host_bytes_per_s),
            entry.devices_per_node,
            giga(entry.link.bytes_per_s),
            giga(entry.node_link.bytes_per_s),
            cell(entry.source),
        )
        .unwrap();
    }
    page.push_str(
        "\n## Links\n\nThe links that `cluster.link` and `cluster.node_link` take. Rates are of one direction. Latencies are \
         assumed: those of one message of a collective library.\n\n\
         | Link | Name | GB/s | Latency | Source |\n|---|---|---|---|---|\n",
    );
    for entry in cluster::links() {
        let (rate, latency) = (giga(entry.link.bytes_per_s), entry.link.latency_ns as f64 / 1e3);
        writeln!(page, "| `{}` | {} | {rate} | {latency} µs | {} |", entry.name, entry.title, cell(entry.source))
            .unwrap();
    }
    write("hardware.md", &page);
}

#[test]
fn schedules_are_those_that_are_published() {
    let mut page = String::from(
        "# Schedules\n\nThe schedules that `schedule` of a spec and `--schedule` take, next to `best`. `interleaved-1f1b`, \
         `combined-1f1b`, `interleaved-zb` and `gis` take a group size: `gis:6`. [Schedules explained](../explanation/schedules.md) has a picture \
         of each.\n\n| Name | Schedule | What it does | Backward | Source |\n|---|---|---|---|---|\n",
    );
    for schedule in published() {
        let backward = if schedule.splits_backward { "B and W" } else { "BW" };
        writeln!(
            page,
            "| [`{name}`](../pictures/{name}.svg) | {} | {} | {backward} | {} |",
            schedule.title,
            cell(schedule.idea),
            cell(schedule.source),
            name = schedule.name,
        )
        .unwrap();
    }
    write("schedules.md", &page);
}
