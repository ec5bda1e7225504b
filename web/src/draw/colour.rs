//! Colours of op kinds and chunks.
//!
//! On a light page they are those of all drawings, [`pipeplan_core::formats::colour`]; on a dark one, the same hues
//! lighter. Wide blocks carry their text, so no reading depends on hue alone.

use pipeplan_core::formats::colour::{self, SHADES, TOWARDS_WHITE};
use pipeplan_core::problem::op::OpKind;

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(pub u8, pub u8, pub u8);

impl Rgb {
    const fn of([red, green, blue]: [u8; 3]) -> Rgb {
        Rgb(red, green, blue)
    }

    /// The four bytes of an opaque pixel as a canvas stores them.
    pub const fn pixel(self) -> [u8; 4] {
        [self.0, self.1, self.2, 255]
    }

    /// CSS text.
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// `share` of `other` mixed in, 0 to 1.
    pub fn mixed(self, other: Rgb, share: f64) -> Rgb {
        let mix = |one: u8, other: u8| (f64::from(one) + (f64::from(other) - f64::from(one)) * share + 0.5) as u8;
        Rgb(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }

    /// Relative luminance (WCAG 2.2, “relative luminance”), 0 to 1.
    pub fn luminance(self) -> f64 {
        let linear = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2)
    }

    /// Contrast ratio to `other`, 1 to 21.
    pub fn contrast(self, other: Rgb) -> f64 {
        let (one, other) = (self.luminance() + 0.05, other.luminance() + 0.05);
        one.max(other) / one.min(other)
    }

    /// Black or white, whichever can be read on this colour.
    pub fn ink(self) -> Rgb {
        const DARK: Rgb = Rgb(12, 18, 28);
        const LIGHT: Rgb = Rgb(255, 255, 255);
        if self.contrast(DARK) >= self.contrast(LIGHT) { DARK } else { LIGHT }
    }
}

/// The colours of one theme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Palette {
    /// Behind everything.
    pub panel: Rgb,
    /// A rank that waits.
    pub idle: Rgb,
    /// Ruler text and rank names.
    pub text: Rgb,
    /// Ruler lines.
    pub line: Rgb,
    /// A memory limit.
    pub limit: Rgb,
    /// The area under a memory curve.
    pub memory: Rgb,
    /// The part of it that is held throughout.
    pub held: Rgb,
    /// Memory at its limit, in a heat map.
    pub full: Rgb,
    /// Gradient sync.
    pub sync: Rgb,
    /// The optimizer.
    pub optimizer: Rgb,
    forward: Rgb,
    backward_input: Rgb,
    backward_weight: Rgb,
    backward: Rgb,
    /// Later chunks go towards this.
    chunk_towards: Rgb,
}

/// All block colours of a palette, mixed once for a picture of many blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shades {
    plain: [[Rgb; SHADES]; 4],
    faded: [[Rgb; SHADES]; 4],
}

/// How much of a colour that fades is that of the panel: enough to stand back, little enough to be seen as its kind.
const FADED: f64 = 0.78;

impl Shades {
    /// Those of `palette`.
    pub fn of(palette: &Palette) -> Shades {
        let of = |kind| core::array::from_fn(|chunk| palette.block(kind, chunk));
        let plain: [[Rgb; SHADES]; 4] = [of(OpKind::F), of(OpKind::B), of(OpKind::W), of(OpKind::BW)];
        Shades { plain, faded: plain.map(|kind| kind.map(|colour| colour.mixed(palette.panel, FADED))) }
    }

    /// A block that stands back behind others.
    pub fn faded(&self, kind: OpKind, chunk: usize) -> Rgb {
        self.faded[kind as usize][chunk % SHADES]
    }

    /// As [`Palette::block`].
    pub fn block(&self, kind: OpKind, chunk: usize) -> Rgb {
        self.plain[kind as usize][chunk % SHADES]
    }
}

impl Palette {
    /// On a light page.
    pub const LIGHT: Palette = Palette {
        panel: Rgb(255, 255, 255),
        idle: Rgb(233, 237, 242),
        text: Rgb(71, 82, 99),
        line: Rgb(214, 220, 228),
        limit: Rgb(196, 43, 43),
        memory: Rgb(146, 168, 209),
        held: Rgb(104, 122, 158),
        full: Rgb(24, 48, 104),
        sync: Rgb(126, 87, 194),
        optimizer: Rgb(92, 99, 112),
        forward: Rgb::of(colour::of_kind(OpKind::F)),
        backward_input: Rgb::of(colour::of_kind(OpKind::B)),
        backward_weight: Rgb::of(colour::of_kind(OpKind::W)),
        backward: Rgb::of(colour::of_kind(OpKind::BW)),
        chunk_towards: Rgb(255, 255, 255),
    };

    /// On a dark page.
    pub const DARK: Palette = Palette {
        panel: Rgb(20, 25, 33),
        idle: Rgb(38, 46, 58),
        text: Rgb(168, 179, 194),
        line: Rgb(49, 58, 72),
        limit: Rgb(255, 107, 107),
        memory: Rgb(84, 110, 158),
        held: Rgb(58, 76, 112),
        full: Rgb(206, 224, 255),
        sync: Rgb(171, 140, 230),
        optimizer: Rgb(150, 158, 170),
        forward: Rgb(63, 150, 216),
        backward_input: Rgb(232, 172, 48),
        backward_weight: Rgb(32, 168, 128),
        backward: Rgb(226, 112, 58),
        chunk_towards: Rgb(255, 255, 255),
    };

    /// The palette of a dark or light page.
    pub const fn of(dark: bool) -> Palette {
        if dark { Palette::DARK } else { Palette::LIGHT }
    }

    /// The colour of `bytes` in a heat map from the least to the most bytes of `scale`.
    pub fn heat(&self, bytes: u64, scale: (u64, u64)) -> Rgb {
        let (least, most) = scale;
        let share = bytes.saturating_sub(least) as f64 / most.saturating_sub(least).max(1) as f64;
        match share.min(1.0) {
            share if share < 0.5 => self.idle.mixed(self.memory, 0.15 + 1.7 * share),
            share => self.memory.mixed(self.full, 2.0 * share - 1.0),
        }
    }

    /// The colour of an op kind of the n-th chunk of a rank.
    pub fn block(&self, kind: OpKind, chunk: usize) -> Rgb {
        let base = match kind {
            OpKind::F => self.forward,
            OpKind::B => self.backward_input,
            OpKind::W => self.backward_weight,
            OpKind::BW => self.backward,
        };
        base.mixed(self.chunk_towards, f64::from(TOWARDS_WHITE[chunk % SHADES]) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [OpKind; 4] = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW];

    #[test]
    fn text_can_be_read_on_every_block() {
        for palette in [Palette::LIGHT, Palette::DARK] {
            for kind in KINDS {
                for chunk in 0..4 {
                    let colour = palette.block(kind, chunk);
                    assert!(colour.contrast(colour.ink()) >= 4.5, "{kind} of chunk {chunk}: {colour:?}");
                }
            }
            assert!(palette.text.contrast(palette.panel) >= 4.5);
        }
    }

    #[test]
    fn a_block_is_told_from_waiting_and_from_other_kinds_and_neighbour_chunks() {
        let apart = |one: Rgb, other: Rgb| {
            let distance = |one: u8, other: u8| (f64::from(one) - f64::from(other)).powi(2);
            (distance(one.0, other.0) + distance(one.1, other.1) + distance(one.2, other.2)).sqrt()
        };
        for palette in [Palette::LIGHT, Palette::DARK] {
            for (index, kind) in KINDS.iter().enumerate() {
                for chunk in 0..4 {
                    let colour = palette.block(*kind, chunk);
                    assert!(apart(colour, palette.idle) > 60.0, "{kind} {chunk} on idle");
                    assert!(apart(colour, palette.block(*kind, chunk + 1)) > 20.0, "{kind} {chunk}");
                    for other in &KINDS[index + 1..] {
                        assert!(apart(colour, palette.block(*other, chunk)) > 25.0, "{kind} {other} {chunk}");
                    }
                }
            }
        }
    }

    #[test]
    fn shades_mixed_once_are_the_same() {
        for palette in [Palette::LIGHT, Palette::DARK] {
            let shades = Shades::of(&palette);
            for kind in KINDS {
                (0..9).for_each(|chunk| assert_eq!(shades.block(kind, chunk), palette.block(kind, chunk)));
            }
        }
    }

    /// Towards the contrast of text, on light and dark pages.
    #[test]
    fn more_memory_stands_out_more() {
        for palette in [Palette::LIGHT, Palette::DARK] {
            let contrast = |percent: u64| palette.heat(1000 + percent * 10, (1000, 2000)).contrast(palette.panel);
            assert!((0..100).all(|percent| contrast(percent + 1) >= contrast(percent)));
            assert!(contrast(100) > 3.0 * contrast(0), "{} and {}", contrast(0), contrast(100));
            assert_eq!(palette.heat(5000, (1000, 2000)), palette.full);
            assert_eq!(palette.heat(0, (0, 0)), palette.heat(0, (0, 1)));
        }
    }

    #[test]
    fn mixing_ends_at_its_ends() {
        let (one, other) = (Rgb(0, 100, 255), Rgb(255, 0, 7));
        assert_eq!((one.mixed(other, 0.0), one.mixed(other, 1.0)), (one, other));
    }
}
