//! Where documents begin in the sequences of a microbatch, for kernels that look at other tokens.

/// For each token of a microbatch the first one of its document: queries see no key before it, and positions count from it.
/// Tokens are counted over all sequences of the microbatch, also where devices hold parts of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentStarts(Vec<u32>);

impl DocumentStarts {
    /// Adds a sequence of `tokens`, in which documents begin at `firsts`, in order. What comes before the first of them is the
    /// rest of one that began in another sequence.
    pub fn add(&mut self, tokens: usize, firsts: &[usize]) {
        let sequence = self.0.len();
        let mut start = sequence;
        let mut firsts = firsts.iter().copied().peekable();
        for token in 0..tokens {
            if firsts.next_if_eq(&token).is_some() {
                start = sequence + token;
            }
            self.0.push(start as u32);
        }
    }

    /// The first token of the document of `token`.
    pub fn of(&self, token: usize) -> usize {
        self.0[token] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_knows_its_document() {
        let mut starts = DocumentStarts::default();
        starts.add(4, &[2, 3, 4]);
        starts.add(4, &[]);
        starts.add(4, &[0, 1]);
        let all: Vec<usize> = (0..12).map(|token| starts.of(token)).collect();
        assert_eq!(all, [0, 0, 2, 3, 4, 4, 4, 4, 8, 9, 9, 9]);
    }
}
