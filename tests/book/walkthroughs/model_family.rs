//! Walk-through: add a model family.

use pipeplan_core::model::{Family, ModelConfig, Variant, catalog};
use serde_json::{Value, json};

// ANCHOR: read
/// The `params.json` that stands next to Meta's own Llama checkpoints. Its names differ from those of a `config.json`, and
/// the inner width of the feed-forward part follows from a rule. None where a size is missing.
pub fn read_params(params: &Value, positions: u32) -> Option<ModelConfig> {
    let size = |key: &str| params[key].as_u64().and_then(|size| u32::try_from(size).ok());
    let (hidden, heads) = (size("dim")?, size("n_heads")?);
    // Two thirds of four times the width, times a factor, up to the next multiple: the rule of Meta's reference code.
    let two_thirds = hidden * 4 * 2 / 3;
    let wanted = (f64::from(two_thirds) * params["ffn_dim_multiplier"].as_f64().unwrap_or(1.0)) as u32;
    let ffn = wanted.next_multiple_of(size("multiple_of")?);
    Some(ModelConfig {
        family: Family::Llama,
        layers: size("n_layers")?,
        hidden,
        heads,
        // As many as heads, where attention is not grouped.
        kv_heads: size("n_kv_heads").unwrap_or(heads),
        head_dim: hidden / heads,
        ffn,
        vocab: size("vocab_size")?,
        positions,
        rope_base: params["rope_theta"].as_f64().unwrap_or(10_000.0) as u32,
        norm_eps_e12: (params["norm_eps"].as_f64()? * 1e12).round() as u64,
        tied: false,
        variant: Variant::USUAL,
    })
}
// ANCHOR_END: read

// ANCHOR: judge
#[test]
fn it_gives_the_sizes_and_the_parameters_of_published_models() {
    let llama_3_8b = json!({
        "dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
        "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0,
    });
    let llama_2_7b = json!({
        "dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000, "multiple_of": 256, "norm_eps": 1e-05,
    });
    // Parameters as the public checkpoints count them.
    for (params, positions, name, parameters) in
        [(llama_3_8b, 8192, "llama-3-8b", 8_030_261_248), (llama_2_7b, 4096, "llama-2-7b", 6_738_415_616)]
    {
        let config = read_params(&params, positions).expect("all sizes");
        assert_eq!(config, catalog::find(name).expect("a model of the catalog").config);
        assert_eq!(config.parameters(), parameters);
    }
}

#[test]
fn a_size_that_is_missing_is_never_a_guess() {
    assert_eq!(read_params(&json!({ "dim": 4096, "n_heads": 32 }), 4096), None);
}
// ANCHOR_END: judge
