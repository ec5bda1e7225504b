//! The rank and the chunk of a decoder layer, where layers are assigned by their number alone.
//!
//! The rule of PaddlePaddle's pipeline helper: `parts` = ranks, or ranks · chunks where ranks hold several; the first
//! `layers mod parts` parts get one layer more than the others; part `i` is chunk `i div ranks` of rank `i mod ranks`.

use alloc::string::String;
use alloc::vec::Vec;

/// Where a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerPlace {
    /// The rank in the pipeline, from 0.
    pub rank: u32,
    /// Which of the rank's chunks, from 0.
    pub chunk: u32,
}

/// Why layers cannot be assigned to ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerMapError {
    /// A schedule without a rule for layers.
    #[error("the schedule `{schedule}` is not supported here: write 1F1B, GPipe or VPP")]
    Schedule {
        /// What was asked for.
        schedule: String,
    },
    /// Interleaved, and nobody says how many chunks.
    #[error("VPP needs the number of chunks on each rank, from 1")]
    NoChunks,
    /// Fewer layers than parts.
    #[error(
        "{layers} layers are too few for {ranks} ranks of {chunks} chunks: each of the {parts} parts needs one, so \
         use {parts} layers or more"
    )]
    TooFewLayers {
        /// Layers of the model.
        layers: u32,
        /// Ranks of the pipeline.
        ranks: u32,
        /// Chunks of a rank.
        chunks: u32,
        /// Their product.
        parts: u64,
    },
    /// No rank at all.
    #[error("a pipeline has at least 1 rank")]
    NoRanks,
    /// No such layer.
    #[error("the model has no layer {layer}: it has {layers} layers, and layers count from 0")]
    NoLayer {
        /// The layer asked for.
        layer: u32,
        /// Layers of the model.
        layers: u32,
    },
}

/// Where `layer` of `layers` is. `schedule` is `1F1B`, `GPipe` or `VPP` in any case; `chunks` counts for VPP only.
///
/// # Errors
/// [`LayerMapError`].
pub fn layer_place(
    layer: u32,
    layers: u32,
    ranks: u32,
    schedule: &str,
    chunks: Option<u32>,
) -> Result<LayerPlace, LayerMapError> {
    let parts = parts(layers, ranks, schedule, chunks)?;
    if layer >= layers {
        return Err(LayerMapError::NoLayer { layer, layers });
    }
    let (base, longer) = (layers / parts, layers % parts);
    // The longer parts come first and hold this many layers together; less than `layers`, so nothing overflows.
    let in_longer = longer * (base + 1);
    let part = if layer < in_longer { layer / (base + 1) } else { longer + (layer - in_longer) / base };
    Ok(LayerPlace { rank: part % ranks, chunk: part / ranks })
}

/// Where each layer is, in order.
///
/// # Errors
/// As [`layer_place`].
pub fn layer_map(
    layers: u32,
    ranks: u32,
    schedule: &str,
    chunks: Option<u32>,
) -> Result<Vec<LayerPlace>, LayerMapError> {
    // Refused first, also for a model without layers.
    parts(layers, ranks, schedule, chunks)?;
    (0..layers).map(|layer| layer_place(layer, layers, ranks, schedule, chunks)).collect()
}

/// The number of parts, which is at most the number of layers and at least 1.
fn parts(layers: u32, ranks: u32, schedule: &str, chunks: Option<u32>) -> Result<u32, LayerMapError> {
    let chunks = match schedule.to_ascii_lowercase().as_str() {
        "1f1b" | "gpipe" => 1,
        "vpp" => chunks.filter(|chunks| *chunks > 0).ok_or(LayerMapError::NoChunks)?,
        _ => return Err(LayerMapError::Schedule { schedule: schedule.chars().take(40).collect() }),
    };
    if ranks == 0 {
        return Err(LayerMapError::NoRanks);
    }
    match ranks.checked_mul(chunks).filter(|parts| *parts <= layers) {
        Some(parts) => Ok(parts),
        None => {
            let parts = u64::from(ranks) * u64::from(chunks);
            Err(LayerMapError::TooFewLayers { layers, ranks, chunks, parts })
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use proptest::prelude::*;

    fn rank(layer: u32, layers: u32, schedule: &str, chunks: Option<u32>) -> u32 {
        layer_place(layer, layers, 4, schedule, chunks).expect("it is assigned").rank
    }

    #[test]
    fn the_helpers_own_examples_hold() {
        assert_eq!(rank(3, 8, "1F1B", None), 1);
        assert_eq!(rank(3, 8, "VPP", Some(2)), 3);
        assert_eq!(rank(5, 7, "1F1B", None), 2);
        assert_eq!(rank(6, 7, "1F1B", None), 3);
        assert_eq!(rank(8, 9, "VPP", Some(2)), 3);
        assert_eq!(layer_place(8, 9, 4, "VPP", Some(2)), Ok(LayerPlace { rank: 3, chunk: 1 }));
    }

    #[test]
    fn case_does_not_matter_and_plain_schedules_have_one_chunk() {
        assert_eq!(layer_map(9, 4, "vpp", Some(2)), layer_map(9, 4, "VPP", Some(2)));
        assert_eq!(layer_map(9, 4, "gpipe", Some(2)), layer_map(9, 4, "1f1b", None));
    }

    #[test]
    fn each_mistake_is_named() {
        let text = |error: LayerMapError| error.to_string();
        assert!(text(layer_map(8, 4, "zbv", None).unwrap_err()).contains("`zbv`"));
        assert_eq!(layer_map(8, 4, "VPP", None), Err(LayerMapError::NoChunks));
        assert_eq!(layer_map(8, 4, "VPP", Some(0)), Err(LayerMapError::NoChunks));
        assert_eq!(layer_map(8, 0, "1F1B", None), Err(LayerMapError::NoRanks));
        assert_eq!(layer_place(8, 8, 4, "1F1B", None), Err(LayerMapError::NoLayer { layer: 8, layers: 8 }));
        assert_eq!(
            text(layer_map(7, 4, "VPP", Some(2)).unwrap_err()),
            "7 layers are too few for 4 ranks of 2 chunks: each of the 8 parts needs one, so use 8 layers or more"
        );
        assert!(layer_map(u32::MAX, u32::MAX, "VPP", Some(u32::MAX)).is_err());
        assert!(layer_map(0, 4, "1F1B", None).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn layers_go_to_parts_in_order_and_evenly(ranks in 1u32..9, chunks in 1u32..5, more in 0u32..60) {
            let (parts, layers) = (ranks * chunks, ranks * chunks + more);
            let places = layer_map(layers, ranks, "VPP", Some(chunks)).unwrap();
            let part = |place: &LayerPlace| place.chunk * ranks + place.rank;
            prop_assert!(places.windows(2).all(|pair| (0..=1).contains(&(part(&pair[1]) - part(&pair[0])))));
            let count = |wanted: u32| places.iter().filter(|place| part(place) == wanted).count() as u32;
            for wanted in 0..parts {
                prop_assert_eq!(count(wanted), layers / parts + u32::from(wanted < layers % parts));
            }
        }
    }
}
