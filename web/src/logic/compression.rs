//! Files as compressed texts: the storage of a browser holds only text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Longest text that is packed: to compress more would be felt.
const MOST_BYTES: usize = 24 << 20;
/// Compresses well enough, and does not take long.
const LEVEL: u8 = 3;

/// A text made short; none for one that is too long.
pub fn pack(text: &str) -> Option<String> {
    (text.len() <= MOST_BYTES)
        .then(|| STANDARD_NO_PAD.encode(miniz_oxide::deflate::compress_to_vec(text.as_bytes(), LEVEL)))
}

/// The text of `packed`; none if `packed` was not made here.
pub fn unpack(packed: &str) -> Option<String> {
    let bytes = STANDARD_NO_PAD.decode(packed).ok()?;
    String::from_utf8(miniz_oxide::inflate::decompress_to_vec_with_limit(&bytes, MOST_BYTES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_text_comes_back(text in ".{0,400}") {
            prop_assert_eq!(pack(&text).and_then(|packed| unpack(&packed)), Some(text));
        }

        #[test]
        fn a_text_from_elsewhere_is_refused_or_read(text in "[A-Za-z0-9+/]{0,400}") {
            if let Some(read) = unpack(&text) {
                prop_assert!(read.len() <= MOST_BYTES);
            }
        }
    }

    #[test]
    fn what_repeats_becomes_short_and_what_is_too_long_is_left_out() {
        let packed = pack(&"0F0 0F1 1F0 1B0 ".repeat(10_000)).map(|packed| packed.len());
        assert!(packed.is_some_and(|length| length < 4_000), "{packed:?}");
        assert_eq!(pack(&" ".repeat(MOST_BYTES + 1)), None);
        // A few bytes that would unpack to more than is ever stored.
        let bomb = STANDARD_NO_PAD.encode(miniz_oxide::deflate::compress_to_vec(&vec![b' '; MOST_BYTES + 1], LEVEL));
        assert_eq!(unpack(&bomb), None);
    }
}
