//! The first free slots of a period, as bits of a word.

/// The first `length` free slots from `first` on of those that come again every `slots`, and their bits.
macro_rules! first_free {
    ($name:ident, $word:ty) => {
        pub(super) fn $name(busy: $word, first: usize, length: usize, slots: usize) -> Option<(usize, $word)> {
            let all = <$word>::MAX >> (<$word>::BITS as usize - slots);
            let rotate =
                |bits: $word, by: usize| if by == 0 { bits } else { (bits >> by | bits << (slots - by)) & all };
            // Bit i: whether the slots from `first + i` on are free, for a length that doubles.
            let mut free = rotate(!busy & all, first % slots);
            let mut known = 1;
            while known < length {
                let more = known.min(length - known);
                free &= rotate(free, more);
                known += more;
            }
            if free == 0 {
                return None;
            }
            let slot = first + free.trailing_zeros() as usize;
            let ones = <$word>::MAX >> (<$word>::BITS as usize - length);
            Some((slot, rotate(ones, (slots - slot % slots) % slots)))
        }
    };
}

first_free!(first_free, u64);
first_free!(first_free_of_many, u128);
