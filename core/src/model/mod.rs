//! Models as a person names them: sizes of a decoder, and a [`catalog`] of public ones.
//!
//! - In: a name of the catalog, or a `config.json`.
//! - Out: sizes and variants of a transformer, its parameter count.
//! - Knows: units and faults. Nothing of devices or stages.

pub mod catalog;
mod config;
mod dtype;
mod faults;
pub mod hf_config;
mod pattern;
mod stage;
mod variant;
pub mod vision;

pub use config::{MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_LAYERS, MAX_MULTI_TOKEN, MAX_SIZE, ModelConfig};
pub use dtype::Dtype;
pub(crate) use faults::no_width;
pub use pattern::{LayerPattern, MAX_PATTERN};
pub use stage::{Modules, StageLayout};
pub use variant::{
    Activation, Arrangement, Caps, E12, Experts, Factors, Family, Global, Indexer, Latent, MAX_FACTOR, Norm, QkNorm,
    Recurrence, RecurrenceKind, Routing, Scores, Temperature, Variant, Window, to_e12,
};
pub use vision::Vision;
