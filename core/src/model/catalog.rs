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
    ModelConfig {
        family: Family::Llama,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn,
        vocab,
        positions: 4096,
        rope_base: 10_000,
        norm_eps_e12: 10_000_000,
        tied: false,
    }
}

const fn llama_3(layers: u32, hidden: u32, heads: u32, ffn: u32) -> ModelConfig {
    ModelConfig { positions: 8192, rope_base: 500_000, ..llama(layers, hidden, heads, 8, ffn, 128_256) }
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
        config: llama_3(32, 4096, 32, 14336),
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3",
    },
    Entry {
        name: "llama-3-70b",
        title: "Llama 3 70B",
        config: llama_3(80, 8192, 64, 28672),
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
            positions: 2048,
            rope_base: 10_000,
            norm_eps_e12: 10_000_000,
            tied: true,
        },
        sequence: 2048,
        source: "arXiv:2005.14165, Table 2.1; vocabulary of GPT-2",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Llama: the count of the public checkpoints (`total_size / 2` of `model.safetensors.index.json`).
    /// GPT-3: 174,600 million, arXiv:2005.14165, table D.1.
    pub(crate) const PUBLISHED: [(&str, u64, u64); 6] = [
        ("llama-2-7b", 6_738_415_616, 0),
        ("llama-2-13b", 13_015_864_320, 0),
        ("llama-2-70b", 68_976_648_192, 0),
        ("llama-3-8b", 8_030_261_248, 0),
        ("llama-3-70b", 70_553_706_496, 0),
        ("gpt-3-175b", 174_600_000_000, 50_000_000),
    ];

    #[test]
    fn counts_are_the_published_ones() {
        for (name, published, within) in PUBLISHED {
            let counted = find(name).map(|entry| entry.config.parameters());
            assert!(counted.is_some_and(|counted| counted.abs_diff(published) <= within), "{name}: {counted:?}");
        }
    }

    #[test]
    fn entries_are_sound_and_named_once() {
        for (index, entry) in CATALOG.iter().enumerate() {
            let mut faults = Vec::new();
            entry.config.find_faults("", &mut faults);
            assert!(faults.is_empty(), "{}: {faults:?}", entry.name);
            assert!(CATALOG[..index].iter().all(|other| other.name != entry.name));
            assert!(entry.sequence <= entry.config.positions, "{}", entry.name);
        }
    }
}
