//! Every `config.json` of the reference tables makes a plan: of published models, and of the classes of `transformers`.

use std::fs;
use std::path::Path;

use pipeplan_core::plan::planner;
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;
use serde_json::{Value, json};

/// Each plan has eight ranks, with a small step of short sequences that any chunk or window fits.
#[test]
fn each_model_of_the_tables_is_planned() {
    let published = schedule::find("1f1b").unwrap();
    let mut planned = 0;
    for table in ["parameter_counts.json", "model_types.json"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference").join(table);
        let table: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        for row in table["models"].as_array().unwrap() {
            let Some(config) = row.get("config") else { continue };
            let layers = |config: &Value| config["num_hidden_layers"].as_u64().or(config["n_layer"].as_u64());
            let layers = layers(config).or(config.get("text_config").and_then(layers)).unwrap_or(4);
            let spec = json!({
                "model": { "config": config },
                "cluster": { "device": "h100" },
                "parallel": { "pipeline": layers.min(8) },
                "training": { "microbatches": 8, "sequence": 256 },
                "memory": { "limit_bytes": "100 TB" },
            });
            let spec = Spec::read(&spec.to_string()).unwrap_or_else(|error| panic!("{}: {error}", row["name"]));
            let answer = planner::answer(&spec, &published);
            assert!(answer.is_ok(), "{}: {:?}", row["name"], answer.err().map(|absent| absent.reason));
            planned += 1;
        }
    }
    assert!(planned > 100, "{planned} models");
}
