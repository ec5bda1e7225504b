//! Colours of ops in drawings on white, those of the page included.
//!
//! Hues follow Okabe and Ito's set ("Color universal design", 2008), which people with the common colour-vision deficiencies can
//! tell apart. Kinds also differ in lightness, so no reading depends on hue alone.

use crate::problem::op::OpKind;

/// Chunks that are told apart; later ones repeat, as no one tells more apart.
pub const SHADES: usize = 4;
/// How far the shade of each goes towards white, in percent: neighbours differ most.
pub const TOWARDS_WHITE: [u8; SHADES] = [0, 42, 20, 55];

/// In bidirectional schedules, microbatches that go up the ranks have the shade of a second chunk, which no rank of
/// such a schedule has.
pub const UP_SHADE: usize = 1;
/// What a legend says of it.
pub const UP_TITLE: &str = "light, underlined: up the ranks";

/// Red, green and blue of an op kind.
pub const fn of_kind(kind: OpKind) -> [u8; 3] {
    match kind {
        OpKind::F => [0, 104, 173],
        OpKind::B => [230, 159, 0],
        OpKind::W => [0, 142, 104],
        OpKind::BW => [189, 66, 10],
    }
}

/// The same for the n-th chunk of a rank.
pub fn of_block(kind: OpKind, chunk: usize) -> [u8; 3] {
    let share = u32::from(TOWARDS_WHITE[chunk % SHADES]);
    of_kind(kind).map(|value| ((u32::from(value) * (100 - share) + 255 * share + 50) / 100) as u8)
}

/// Whether text on this colour is white: where it is the darker half, by its luminance with squares for sRGB's curve.
pub fn takes_white_text([red, green, blue]: [u8; 3]) -> bool {
    let square = |value: u8, weight: u32| u32::from(value) * u32::from(value) * weight;
    square(red, 2126) + square(green, 7152) + square(blue, 722) < 255 * 255 * 2000
}
