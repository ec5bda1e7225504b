//! Readers of files that only the runner has: data, weights, checkpoints; and what processes say to each other. As in `fuzz/targets.rs`,
//! each takes any bytes and panics only where something is wrong. `native/tests/hostile.rs` calls them with mutations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pipeplan::data::{self, tokenizer::Tokenizer};
use pipeplan::runner::checkpoint::{Checkpoint, Pretrained, Reader, rope_scaling};
use pipeplan::transport::wire::Frame;
use pipeplan_core::model::hf_config;
use serde_json::Value;
use tempfile::TempDir;

/// A name, which is that of a corpus, and what takes any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 4] = [("data", data), ("weights", weights), ("manifest", manifest), ("frame", frame)];

/// Most tokens that are read of what a file says to have.
const MOST_TOKENS: u64 = 1 << 16;

/// `config.json` of a model with few weights.
const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4,
    "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "vocab_size": 8, "max_position_embeddings": 8, "tie_word_embeddings": false}"#;

/// A folder of this process, with `bytes` in its file `name`.
fn written(name: &str, bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        // The tokens that an index is of, and the model that weights are of.
        fs::write(folder.path().join("m.bin"), [1, 0, 2, 0, 3, 0, 4, 0]).expect("written");
        fs::write(folder.path().join("config.json"), CONFIG).expect("written");
        folder
    });
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("written");
    path
}

/// A file of data, by a name that the first byte chooses. What is refused is refused by that name. Parquet is left out: a panic of
/// its reader is an error of the file, and libFuzzer ends with any panic.
pub fn data(bytes: &[u8]) {
    let [which, bytes @ ..] = bytes else { return };
    if bytes.starts_with(b"PAR1") {
        return;
    }
    let name = ["a.npy", "l.bin", "m.idx", "j.jsonl", "t.txt"][usize::from(*which) % 5];
    let path = written(name, bytes);
    match data::open(&path, &Tokenizer::Bytes) {
        Ok(source) => {
            let count = source.tokens.min(MOST_TOKENS) as usize;
            let _ = (source.read(0, count, u64::MAX), source.first_tokens(0, count), source.digest());
            let _ = source.each_document(|_| Ok(()));
        }
        Err(error) => assert!(error.to_string().contains(&name[..1]), "{error}"),
    }
}

/// `model.safetensors` of a folder as `transformers` writes it.
pub fn weights(bytes: &[u8]) {
    let path = written("model.safetensors", bytes);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut faults = Vec::new();
    let config: Value = serde_json::from_str(CONFIG).expect("JSON");
    let model = hf_config::read(&config, "config.json", &mut faults).unwrap_or_else(|| panic!("{faults:?}"));
    let pretrained = Pretrained::open(folder).expect("a folder with weights");
    if let Ok(reader) = Reader::of_pretrained(&pretrained, &model) {
        for name in reader.unused(&BTreeMap::new()) {
            let _ = reader.weight::<f32>(&name);
        }
    }
}

/// What a checkpoint says of itself, and the scaled rotary positions of its model.
pub fn manifest(bytes: &[u8]) {
    let path = written("manifest.json", bytes);
    if let Ok(checkpoint) = Checkpoint::open(path.parent().unwrap_or(Path::new("."))) {
        let _ = (checkpoint.check_files(true, 0, 1), Reader::open(&checkpoint).is_ok());
    }
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        let _ = (rope_scaling(&value), rope_scaling(&value["model"]));
    }
}

/// A frame that is read is written as the same bytes, but for texts that are no UTF-8.
pub fn frame(bytes: &[u8]) {
    if let Ok(frame @ Frame::Parcel(..)) = Frame::of_bytes(bytes) {
        assert_eq!(frame.to_bytes(), bytes);
    }
}
