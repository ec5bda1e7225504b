//! Which layers of a model have a part: the first ones one by one, then a list that repeats.

use alloc::string::String;

/// Most layers that a [`LayerPattern`] tells one by one.
pub const MAX_PATTERN: usize = 256;

/// The layers that have a part, such as experts or a window. The first layers are told one by one, all others by a list that
/// repeats. The text of it is `000(1)` for all but the first three layers, and `(0001)` for every fourth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerPattern {
    bits: [u64; MAX_PATTERN / 64],
    first: u16,
    period: u16,
}

impl LayerPattern {
    /// The shortest pattern that says of each layer what `layers` says. None for an empty list, or for one that does not
    /// repeat and has more than [`MAX_PATTERN`] layers.
    pub fn from_list(layers: &[bool]) -> Option<LayerPattern> {
        let shortest = (1..=layers.len().min(MAX_PATTERN)).map(|period| {
            // Behind the last layer that differs from the one a period later.
            let differs = (0..layers.len() - period).rev().find(|at| layers.get(*at) != layers.get(at + period));
            (differs.map_or(0, |at| at + 1), period)
        });
        let (first, period) = shortest.min_by_key(|(first, period)| (first + period, *period))?;
        let mut bits = [0; MAX_PATTERN / 64];
        if first + period > MAX_PATTERN {
            return None;
        }
        for (at, _) in layers.iter().take(first + period).enumerate().filter(|(_, has)| **has) {
            bits[at / 64] |= 1 << (at % 64);
        }
        Some(LayerPattern { bits, first: first as u16, period: period as u16 })
    }

    /// The pattern of the first `layers` layers, which `has` tells one by one. None as for [`LayerPattern::from_list`].
    pub fn of(layers: u32, has: impl Fn(u32) -> bool) -> Option<LayerPattern> {
        let list: alloc::vec::Vec<bool> = (0..layers).map(has).collect();
        LayerPattern::from_list(&list)
    }

    /// Whether `layer` has the part.
    pub fn has(&self, layer: u32) -> bool {
        let (first, period) = (u32::from(self.first), u32::from(self.period).max(1));
        let at = if layer < first { layer } else { first + (layer - first) % period };
        self.bits.get(at as usize / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    /// The number of first layers without the part, where all others have it.
    pub fn behind_first(&self) -> Option<u32> {
        let first = u32::from(self.first);
        let is_so = self.period == 1 && self.has(first) && (0..first).all(|layer| !self.has(layer));
        is_so.then_some(first)
    }

    /// The text in a spec.
    pub fn text(&self) -> String {
        let (first, all) = (u32::from(self.first), u32::from(self.first) + u32::from(self.period));
        let digit = |layer: u32| if self.has(layer) { '1' } else { '0' };
        let repeated = (first..all).map(digit);
        (0..first).map(digit).chain(['(']).chain(repeated).chain([')']).collect()
    }

    /// The pattern of such a text; none for any other text.
    pub fn read_text(text: &str) -> Option<LayerPattern> {
        let (first, repeated) = text.strip_suffix(')')?.split_once('(')?;
        let all = first.len() + repeated.len();
        if repeated.is_empty() || all > MAX_PATTERN {
            return None;
        }
        let digit = |digit: u8| match digit {
            b'0' => Some(false),
            b'1' => Some(true),
            _ => None,
        };
        // Three times as long as any shorter form of it, so that a shorter form that fits is the same pattern.
        let digits = first.bytes().chain(repeated.bytes().cycle().take(3 * all));
        let list: Option<alloc::vec::Vec<bool>> = digits.map(digit).collect();
        LayerPattern::from_list(&list?)
    }
}

#[cfg(test)]
mod tests {
    use super::LayerPattern;

    fn text_of(list: &str) -> Option<alloc::string::String> {
        let list: alloc::vec::Vec<bool> = list.bytes().map(|digit| digit == b'1').collect();
        LayerPattern::from_list(&list).map(|pattern| pattern.text())
    }

    #[test]
    fn a_list_has_one_shortest_text() {
        for (list, text) in [
            ("000111111", "000(1)"),
            ("01010101", "(01)"),
            ("0001000100", "(0001)"),
            ("1", "(1)"),
            ("0000010000000001000000000100000", "(0000010000)"),
            ("110100101", "1(10100)"),
        ] {
            let found = text_of(list);
            let of = found.as_deref().and_then(LayerPattern::read_text).unwrap();
            for (layer, digit) in list.bytes().enumerate() {
                assert_eq!(of.has(layer as u32), digit == b'1', "{list} {layer}");
            }
            assert_eq!(found.as_deref(), Some(text), "{list}");
        }
        assert_eq!(text_of(""), None);
    }

    #[test]
    fn texts_are_read_as_their_shortest_form() {
        let text = |text: &str| LayerPattern::read_text(text).map(|pattern| pattern.text());
        assert_eq!(text("(0101)").as_deref(), Some("(01)"));
        assert_eq!(text("0001(1)").as_deref(), Some("000(1)"));
        assert_eq!(text("01(01)").as_deref(), Some("(01)"));
        for wrong in ["", "01", "()", "(2)", "(1", "1)", "((1))"] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
        assert_eq!(LayerPattern::read_text("000(1)").and_then(|pattern| pattern.behind_first()), Some(3));
        assert_eq!(LayerPattern::read_text("(01)").and_then(|pattern| pattern.behind_first()), None);
        let long = alloc::vec![true; 4096];
        assert!(LayerPattern::from_list(&long).is_some());
        let irregular: alloc::vec::Vec<bool> = (0..300u32).map(|at| at.is_power_of_two() || at % 7 == 3).collect();
        assert!(LayerPattern::from_list(&irregular).is_none());
    }
}
