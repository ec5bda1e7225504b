//! Public models by name.

use super::{Family, ModelConfig};

/// One model of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in a spec.
    pub name: &'static str,
    /// The name a person reads.
    pub title: &'static str,
    /// Its sizes.
    pub config: ModelConfig,
    /// Tokens of the sequences that it was trained with.
    pub sequence: u32,
    /// Where the sizes are from.
    pub source: &'static str,
}

/// Every model that a spec may name.
pub fn catalog() -> &'static [Entry] {
    CATALOG
}

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOG.iter().find(|entry| entry.name == name)
}

const fn llama(layers: u32, hidden: u32, heads: u32, kv_heads: u32, ffn: u32, vocab: u32) -> ModelConfig {
    ModelConfig { family: Family::Llama, layers, hidden, heads, kv_heads, head_dim: hidden / heads, ffn, vocab }
}

static CATALOG: &[Entry] = &[
    Entry {
        name: "tiny-llama",
        title: "Tiny Llama on bytes",
        // Small enough that a CPU trains it in seconds; 8 layers, so that 4 ranks can hold 2 chunks each.
        config: llama(8, 64, 4, 2, 176, 256),
        sequence: 64,
        source: "this project",
    },
    Entry {
        name: "llama-2-7b",
        title: "Llama 2 7B",
        config: llama(32, 4096, 32, 32, 11008, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-2-13b",
        title: "Llama 2 13B",
        config: llama(40, 5120, 40, 40, 13824, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-2-70b",
        title: "Llama 2 70B",
        config: llama(80, 8192, 64, 8, 28672, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-3-8b",
        title: "Llama 3 8B",
        config: llama(32, 4096, 32, 8, 14336, 128_256),
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3",
    },
    Entry {
        name: "llama-3-70b",
        title: "Llama 3 70B",
        config: llama(80, 8192, 64, 8, 28672, 128_256),
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3",
    },
    Entry {
        name: "gpt-3-175b",
        title: "GPT-3 175B",
        config: ModelConfig {
            family: Family::Gpt,
            layers: 96,
            hidden: 12288,
            heads: 96,
            kv_heads: 96,
            head_dim: 128,
            ffn: 49152,
            vocab: 50257,
        },
        sequence: 2048,
        source: "arXiv:2005.14165, Table 2.1",
    },
];
