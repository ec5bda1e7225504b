//! Rotary positions that are scaled, so that a model sees longer sequences than it was first trained on.

use pipeplan_core::graph::Angles;

/// How the angles of rotary positions are scaled. Sources: the papers named, and `modeling_rope_utils.py` of
/// `transformers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are divided by `factor` (arXiv:2306.15595).
    Linear {
        /// By how much.
        factor: f64,
    },
    /// Llama 3.1's: angles that turn less than `low` times in `original` tokens are divided by `factor`, those that
    /// turn more than `high` times are left, and those between are mixed of both.
    Llama3 {
        /// By how much.
        factor: f64,
        /// Turns below which all of the scaling applies.
        low: f64,
        /// Turns above which none does.
        high: f64,
        /// Tokens of the sequences before.
        original: f64,
    },
    /// YaRN (arXiv:2309.00071 §3): as between `slow` and `fast` turns in `original` tokens, along a line of columns;
    /// sines and cosines are multiplied with `attention`.
    Yarn {
        /// By how much.
        factor: f64,
        /// Turns below which all of the scaling applies.
        slow: f64,
        /// Turns above which none does.
        fast: f64,
        /// Tokens of the sequences before.
        original: f64,
        /// What sines and cosines are multiplied with.
        attention: f64,
        /// Whether the line begins and ends at whole columns.
        whole_columns: bool,
    },
}

/// How the angles of a run are scaled, by kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LayerScaling {
    /// Those of layers that see all tokens. None: plain.
    pub full: Option<RopeScaling>,
    /// Those of layers with a window.
    pub windowed: Option<RopeScaling>,
}

impl LayerScaling {
    /// The same in all layers.
    pub const fn of_all(scaling: Option<RopeScaling>) -> LayerScaling {
        LayerScaling { full: scaling, windowed: scaling }
    }

    /// Whether no layer scales.
    pub fn is_plain(&self) -> bool {
        *self == LayerScaling::default()
    }

    /// That of the layers of `angles`.
    pub fn of(&self, angles: &Angles) -> Option<RopeScaling> {
        if angles.windowed { self.windowed } else { self.full }
    }
}

impl RopeScaling {
    /// What sines and cosines are multiplied with.
    pub fn attention(&self) -> f64 {
        match self {
            RopeScaling::Yarn { attention, .. } => *attention,
            RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    /// The angle by which a position turns column `column` of the first half of `width`, instead of `base^(-2 ·
    /// column / width)`.
    pub fn inverse_frequency(&self, column: u64, width: u64, base: u64) -> f64 {
        let (width, base) = (width as f64, base as f64);
        let plain = libm::pow(base, -2.0 * column as f64 / width);
        let turn = 2.0 * std::f64::consts::PI;
        match *self {
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Llama3 { factor, low, high, original } => {
                let turns = original * plain / turn;
                if turns < low {
                    plain / factor
                } else if turns > high {
                    plain
                } else {
                    let kept = (turns - low) / (high - low);
                    (1.0 - kept) * plain / factor + kept * plain
                }
            }
            RopeScaling::Yarn { factor, slow, fast, original, whole_columns, .. } => {
                let column_of = |turns: f64| width * libm::log(original / (turns * turn)) / (2.0 * libm::log(base));
                let (first, last) = match whole_columns {
                    true => (libm::floor(column_of(fast)), libm::ceil(column_of(slow))),
                    false => (column_of(fast), column_of(slow)),
                };
                let (first, last) = (first.max(0.0), last.min(width - 1.0));
                // As the library keeps two ends apart that fall on one column.
                let last = if first == last { last + 0.001 } else { last };
                let scaled = ((column as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain / factor * scaled + plain * (1.0 - scaled)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Angles of `transformers` 5.24 (`ROPE_INIT_FUNCTIONS`), which has them in f32: of Llama 3.2 1B, of Qwen's YaRN
    /// for four times the tokens, and of gpt-oss.
    #[test]
    fn angles_are_those_of_the_library() {
        let llama = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
        let qwen = RopeScaling::Yarn {
            factor: 4.0,
            slow: 1.0,
            fast: 32.0,
            original: 32768.0,
            attention: 1.0 + 0.1 * 4f64.ln(),
            whole_columns: true,
        };
        let gpt_oss = RopeScaling::Yarn {
            factor: 32.0,
            slow: 1.0,
            fast: 32.0,
            original: 4096.0,
            attention: 1.0 + 0.1 * 32f64.ln(),
            whole_columns: false,
        };
        for (scaling, width, base, expected, attention) in [
            (llama, 64, 500_000, LLAMA, 1.0),
            (qwen, 128, 1_000_000, QWEN, 1.138_629_436_111_989),
            (gpt_oss, 64, 150_000, GPT_OSS, 1.346_573_590_279_972_6),
        ] {
            assert!((scaling.attention() - attention).abs() < 1e-12);
            for (column, expected) in expected {
                let found = scaling.inverse_frequency(column, width, base);
                assert!(
                    (found - expected).abs() < 2e-6 * expected,
                    "{scaling:?}, column {column}: {found}, {expected}"
                );
            }
        }
    }

    const LLAMA: [(u64, f64); 10] = [
        (0, 1.00000000e+00),
        (8, 3.76060307e-02),
        (13, 4.83942125e-03),
        (14, 3.21144611e-03),
        (15, 1.29054801e-03),
        (16, 4.29556705e-04),
        (17, 9.70828623e-05),
        (18, 1.94616387e-05),
        (20, 8.57025589e-06),
        (31, 9.41830649e-08),
    ];
    const QWEN: [(u64, f64); 10] = [
        (0, 1.00000000e+00),
        (10, 1.15478203e-01),
        (23, 6.97830599e-03),
        (24, 5.37532149e-03),
        (28, 1.84827659e-03),
        (33, 4.50323569e-04),
        (39, 6.49039430e-05),
        (40, 4.44569851e-05),
        (50, 5.13381246e-06),
        (63, 3.10234441e-07),
    ];
    const GPT_OSS: [(u64, f64); 10] = [
        (0, 1.00000000e+00),
        (5, 1.55322984e-01),
        (8, 5.08132726e-02),
        (9, 3.17056961e-02),
        (12, 6.79495931e-03),
        (15, 1.05260219e-03),
        (17, 1.29318694e-04),
        (18, 3.83088118e-05),
        (25, 2.82506676e-06),
        (31, 3.02351140e-07),
    ];
}
