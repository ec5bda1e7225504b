//! The vision tower of a `config.json`. What the file leaves out is what the family's library fills in.

use alloc::string::String;

use serde_json::Value;

use crate::model::MAX_SIZE;
use crate::model::vision::{Encoder, Projector, Vision};

/// Models with a tower, by the `model_type` of the whole: the tower that they have where the file does not say one.
const MODELS: [(&str, Encoder); 8] = [
    ("gemma3", Encoder::Siglip),
    ("llama4", Encoder::Llama4),
    ("llava", Encoder::Clip),
    ("llava_next", Encoder::Clip),
    ("mistral3", Encoder::Pixtral),
    ("qwen2_5_vl", Encoder::Qwen25),
    ("qwen3_vl", Encoder::Qwen3),
    ("qwen3_vl_moe", Encoder::Qwen3),
];

/// Towers by the `model_type` of their own table.
const TOWERS: [(&str, Encoder); 10] = [
    ("clip_vision_model", Encoder::Clip),
    ("siglip_vision_model", Encoder::Siglip),
    ("pixtral", Encoder::Pixtral),
    ("llama4_vision_model", Encoder::Llama4),
    ("qwen2_5_vl", Encoder::Qwen25),
    ("qwen2_5_vl_vision", Encoder::Qwen25),
    ("qwen3_vl", Encoder::Qwen3),
    ("qwen3_vl_vision", Encoder::Qwen3),
    ("qwen3_vl_moe", Encoder::Qwen3),
    ("qwen3_vl_moe_vision", Encoder::Qwen3),
];

/// The sizes that the library fills in: layers, hidden size, heads, MLP, patch and image.
const fn usual(encoder: Encoder, is_llava_or_mistral: bool) -> [u64; 6] {
    match encoder {
        Encoder::Clip if is_llava_or_mistral => [24, 1024, 16, 4096, 14, 336],
        Encoder::Clip => [12, 768, 12, 3072, 32, 224],
        Encoder::Siglip => [12, 768, 12, 3072, 16, 224],
        Encoder::Qwen25 => [32, 3584, 16, 3420, 14, 0],
        Encoder::Qwen3 => [27, 1152, 16, 4304, 16, 0],
        Encoder::Pixtral if is_llava_or_mistral => [24, 1024, 16, 4096, 14, 0],
        Encoder::Pixtral => [24, 1024, 16, 4096, 16, 0],
        Encoder::Llama4 => [34, 768, 16, 5632, 14, 448],
    }
}

/// The tower of the model that `value` describes, without images; none where it has none, or one that is not known. It has
/// no tokens where its images have many sizes.
pub fn tower(value: &Value) -> Option<Vision> {
    let kind = |value: &Value| value.get("model_type").and_then(Value::as_str).map(String::from);
    let model = kind(value)?;
    let table = value.get("vision_config").filter(|table| table.is_object());
    let (_, usually) = *MODELS.iter().find(|(name, _)| *name == model)?;
    let encoder = match table.and_then(kind) {
        Some(name) => TOWERS.iter().find(|(tower, _)| *tower == name)?.1,
        None => usually,
    };
    let number = |keys: &[&str]| {
        let said = keys.iter().find_map(|key| table?.get(*key).and_then(Value::as_u64));
        said.filter(|number| *number <= MAX_SIZE.into())
    };
    let [layers, hidden, heads, ffn, patch, image] = usual(encoder, table.is_none());
    let layers = number(&["num_hidden_layers", "depth"]).unwrap_or(layers);
    let hidden = number(&["hidden_size"]).unwrap_or(hidden);
    let heads = number(&["num_attention_heads", "num_heads"]).unwrap_or(heads);
    let ffn = number(&["intermediate_size"]).unwrap_or(ffn);
    let patch = number(&["patch_size"]).unwrap_or(patch).max(1);
    let image = number(&["image_size"]).unwrap_or(image);
    let side = image / patch;
    let outside = |key: &str| value.get(key).and_then(Value::as_u64).filter(|number| *number > 0);
    let projector = match model.as_str() {
        "llava" | "llava_next" => Projector::Mlp,
        "mistral3" => Projector::PatchMerger,
        "gemma3" => Projector::Pooled,
        _ => encoder.usual_projector(),
    };
    // Towers that take images of many sizes do not say how many tokens one has.
    let patches = if encoder.has_table() && encoder != Encoder::Qwen3 { side * side } else { 0 };
    let (merge, tokens) = match projector {
        Projector::Mlp => (1, patches),
        Projector::Pooled => {
            let tokens = outside("mm_tokens_per_image").unwrap_or(256);
            (patches / tokens, tokens)
        }
        Projector::Merger => {
            let side = number(&["spatial_merge_size"]).unwrap_or(2);
            (side * side, 0)
        }
        Projector::PatchMerger => {
            let side = outside("spatial_merge_size").unwrap_or(2);
            (side * side, 0)
        }
        Projector::Shuffle => {
            let ratio = table.and_then(|table| table.get("pixel_shuffle_ratio")).and_then(Value::as_f64);
            let merge = libm::round(1.0 / (ratio.unwrap_or(0.5) * ratio.unwrap_or(0.5)).max(1e-6)) as u64;
            (merge, patches / merge.max(1))
        }
    };
    let class = u64::from(encoder.has_class_token());
    let positions = match encoder {
        Encoder::Qwen3 => number(&["num_position_embeddings"]).unwrap_or(2304),
        _ if encoder.has_table() => patches + class,
        _ => 0,
    };
    let layers_of = |key: &str, usual: u64| {
        let list = table.and_then(|table| table.get(key)).and_then(Value::as_array);
        list.map_or(usual, |list| list.len() as u64)
    };
    let (window, full_layers) = match encoder {
        Encoder::Qwen25 => {
            let side = number(&["window_size"]).unwrap_or(112) / patch;
            (side * side, layers_of("fullatt_block_indexes", 4))
        }
        _ => (0, 0),
    };
    let deepstack = if encoder == Encoder::Qwen3 { layers_of("deepstack_visual_indexes", 3) } else { 0 };
    let (width, output) = match projector {
        Projector::Shuffle => {
            (number(&["projector_input_dim"]).unwrap_or(4096), number(&["vision_output_dim"]).unwrap_or(7680))
        }
        Projector::Merger => (0, number(&["out_hidden_size"]).unwrap_or(3584)),
        _ => (0, 0),
    };
    // A library that is not told otherwise makes a pooling head.
    let uses_head = table.and_then(|table| table.get("vision_use_head")).and_then(Value::as_bool);
    let [layers, hidden, heads, ffn, patch, merge, tokens, positions, window, full_layers, deepstack, width, output] =
        [layers, hidden, heads, ffn, patch, merge, tokens, positions, window, full_layers, deepstack, width, output]
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
    Some(Vision {
        encoder,
        projector,
        layers,
        hidden,
        heads,
        ffn,
        patch,
        merge,
        tokens,
        images: 0,
        positions,
        window,
        full_layers,
        deepstack,
        width,
        output,
        head: encoder == Encoder::Siglip && uses_head.unwrap_or(true),
    })
}
