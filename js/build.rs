//! Makes TypeScript types from the JSON Schema of plan files, so that specs, problems and plans are described in one place.

use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value};

const SCHEMA: &str = "../core/schema/plan.schema.json";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={SCHEMA}");
    println!("cargo::rerun-if-changed=build.rs");
    let file: Value = serde_json::from_str(&fs::read_to_string(SCHEMA)?)?;
    let schema = with_fields(&file, &file);
    let mut text = declaration("Plan", &schema);
    for (name, part) in schema["$defs"].as_object().into_iter().flatten() {
        text.push_str(&declaration(&capitalised(name), part));
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("schema.d.ts"), text)?;
    Ok(())
}

/// The schema with what a reference to a field stands for: only the parts of `$defs` become types with names. Other names of
/// a field refer to it so.
fn with_fields(part: &Value, file: &Value) -> Value {
    match part {
        Value::Object(fields) => {
            let target = fields.get("$ref").and_then(Value::as_str).filter(|path| path.contains("/properties/"));
            let mut merged = Map::new();
            if let Some(Value::Object(of_field)) = target.and_then(|path| file.pointer(path.trim_start_matches('#')))
            {
                merged.clone_from(of_field);
            }
            let own = fields.iter().filter(|(key, _)| target.is_none() || key.as_str() != "$ref");
            merged.extend(own.map(|(key, value)| (key.clone(), value.clone())));
            merged.into_iter().map(|(key, value)| (key, with_fields(&value, file))).collect()
        }
        Value::Array(items) => items.iter().map(|item| with_fields(item, file)).collect(),
        other => other.clone(),
    }
}

fn declaration(name: &str, schema: &Value) -> String {
    let described = comment(schema, 0);
    match schema["properties"].as_object() {
        Some(fields) => format!("{described}export interface {name} {}\n\n", block(fields, schema, 0)),
        None => format!("{described}export type {name} = {};\n\n", type_of(schema, 0)),
    }
}

/// The type that a schema describes. Facts that a type cannot express, such as ranges, are left out.
fn type_of(schema: &Value, level: usize) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return capitalised(reference.rsplit('/').next().unwrap_or(reference));
    }
    if let Some(only) = schema.get("const") {
        return only.to_string();
    }
    if let Some(choices) = schema["enum"].as_array() {
        return union(choices.iter().map(Value::to_string));
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        return union(choices.iter().map(|choice| type_of(choice, level)));
    }
    match &schema["type"] {
        Value::Array(types) => union(types.iter().map(|one| named(one.as_str().unwrap_or_default(), schema, level))),
        one => named(one.as_str().unwrap_or_default(), schema, level),
    }
}

fn named(name: &str, schema: &Value, level: usize) -> String {
    match name {
        "integer" | "number" => "number".to_owned(),
        "string" | "boolean" | "null" => name.to_owned(),
        "array" => match type_of(&schema["items"], level) {
            item if item.contains(" | ") && !item.starts_with('{') => format!("({item})[]"),
            item => format!("{item}[]"),
        },
        "object" => match schema["properties"].as_object() {
            Some(fields) => block(fields, schema, level),
            None => "Record<string, unknown>".to_owned(),
        },
        _ => "unknown".to_owned(),
    }
}

fn block(fields: &Map<String, Value>, schema: &Value, level: usize) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let indent = "    ".repeat(level + 1);
    let mut text = String::from("{\n");
    for (name, field) in fields {
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        text.push_str(&comment(field, level + 1));
        text.push_str(&format!("{indent}{name}{optional}: {};\n", type_of(field, level + 1)));
    }
    text.push_str(&format!("{}}}", "    ".repeat(level)));
    text
}

fn comment(schema: &Value, level: usize) -> String {
    let described = schema["description"].as_str().map(str::to_owned);
    let default = schema.get("default").map(|value| format!("Default: {value}."));
    let said: Vec<String> = described.into_iter().chain(default).collect();
    if said.is_empty() {
        return String::new();
    }
    format!("{}/** {} */\n", "    ".repeat(level), said.join(" ").replace("*/", "* /"))
}

fn union(types: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for one in types {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all.join(" | ")
}

fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
