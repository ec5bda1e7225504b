//! What became of the ways that have a second one, over the life of the process: how often the first was taken, and why it
//! was not. A run goes on by the second without a word; the selftest tells.

use std::sync::Mutex;

use super::device::lock;

/// Counts and reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// CUDA graphs that were made.
    pub graphs: u64,
    /// How often one of them was started.
    pub repeats: u64,
    /// Why lists of work were started piece by piece from then on: the first reason.
    pub no_graphs: Option<String>,
    /// Shapes of products that cuBLASLt has an algorithm for.
    pub products: u64,
    /// Shapes that went to cuBLAS.
    pub plain_products: u64,
    /// Why none went to cuBLASLt: the first reason.
    pub no_products: Option<String>,
    /// Why attention does not go by groups of warps on a card that has them: they were tried out.
    pub no_groups: Option<String>,
    /// Whether it does not on such a card since the environment says not to try.
    pub groups_left: bool,
}

static TALLY: Mutex<Tally> = Mutex::new(Tally {
    graphs: 0,
    repeats: 0,
    no_graphs: None,
    products: 0,
    plain_products: 0,
    no_products: None,
    no_groups: None,
    groups_left: false,
});

/// Lets `change` count.
pub(super) fn count(change: impl FnOnce(&mut Tally)) {
    change(&mut lock(&TALLY));
}

/// So far.
pub fn so_far() -> Tally {
    lock(&TALLY).clone()
}
