//! What operators compute: the one list of kernels that graphs are made of.

mod heads;
mod properties;

pub use self::heads::{Angles, Heads, ImageRows, Indexing, Recurring, Spread};

use super::form::RouterLosses;
use crate::model::{Activation, Routing, Scores};

/// Devices of one pipeline rank that communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Tensor parallel.
    Tensor,
    /// Context parallel.
    Context,
    /// Expert parallel.
    Expert,
}

impl Axis {
    /// All of them, in the order of their numbers.
    pub const ALL: [Axis; 3] = [Axis::Tensor, Axis::Context, Axis::Expert];
}

/// What an operator computes, with its attributes. Inputs and outputs are given as
/// `(inputs) → (outputs)`, with `n` tokens (rows), `·` for a matrix product and `∘` for one by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Which rows of this member's part of a table tokens ask for: `(tokens [n]) → (own [n])`. With `first = member ·
    /// rows`, `own[i] = tokens[i] − first` where that is one of its rows, and −1 elsewhere. May run in place. Source:
    /// arXiv:1909.08053 §3.
    OwnTokens {
        /// Rows of one member's part.
        rows: u64,
    },
    /// `(tokens [n], table [vocab, h]) → (y [n, h])`: row `i` of `y` is row `tokens[i]` of the table, and 0 for −1.
    Embedding,
    /// `(dy [n, h], tokens [n], G [vocab, h]) → (G)`: `G[tokens[i]] += dy[i]`, by rising `i`, but for −1.
    EmbeddingGrad,
    /// Learned positions: `(x [n, h], table [positions, h]) → (y [n, h])`: `y[i] = x[i] + table[t(first + i)]`, `t`
    /// being a row's position in its sequence and `first` `member · n` with rows split over more than one device,
    /// else 0. May run in place of `x`.
    Positions {
        /// Tokens of one sequence.
        sequence: u64,
        /// Devices that the rows are split over.
        ways: u64,
    },
    /// `(dy [n, h], G [positions, h]) → (G)`: `G[t(first + i)] += dy[i]`, by rising `i`.
    PositionsGrad {
        /// Tokens of one sequence.
        sequence: u64,
        /// Devices that the rows are split over.
        ways: u64,
    },
    /// `(x [n, h], gain [h]) → (y [n, h], r [n])`: `r[i] = (mean over j of x[i,j]² + eps)^(−1/2)`, `y[i,j] = x[i,j] ·
    /// r[i] · gain[j]`, or with `1 + gain[j]`. `r` is kept for the gradient. Source: arXiv:1910.07467.
    RmsNorm {
        /// `eps` in units of 10⁻¹²: 10 000 000 for 10⁻⁵. See [`of_e12`].
        eps_e12: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy [n, h], x [n, h], r [n], gain [h]) → (dx [n, h])`: with `u[i,j] = dy[i,j] · gain[j]`,
    /// `dx[i,j] = r[i] · (u[i,j] − x[i,j] · r[i]² · mean over k of u[i,k] · x[i,k])`. May run in place of `dy`.
    RmsNormInputGrad {
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy [n, h], x [n, h], r [n], G [h]) → (G)`: `G[j] += Σ over i of dy[i,j] · x[i,j] · r[i]`.
    RmsNormGainGrad,
    /// `(x [n, h], gain [h], bias [h]) → (y [n, h], mean [n], r [n])`: `mean[i]` over the row,
    /// `r[i] = (variance of the row, over h, + eps)^(−1/2)`,
    /// `y[i,j] = (x[i,j] − mean[i]) · r[i] · gain[j] + bias[j]`. Source: arXiv:1607.06450.
    LayerNorm {
        /// `eps` in units of 10⁻¹². See [`of_e12`].
        eps_e12: u64,
    },
    /// `(dy [n, h], x [n, h], mean [n], r [n], gain [h]) → (dx [n, h])`: with `u[i,j] = dy[i,j] · gain[j]` and
    /// `z[i,j] = (x[i,j] − mean[i]) · r[i]`,
    /// `dx[i,j] = r[i] · (u[i,j] − mean over k of u[i,k] − z[i,j] · mean over k of u[i,k] · z[i,k])`. May run in
    /// place of `dy`.
    LayerNormInputGrad,
    /// `(dy [n, h], x [n, h], mean [n], r [n], G [h]) → (G)`:
    /// `G[j] += Σ over i of dy[i,j] · (x[i,j] − mean[i]) · r[i]`. The bias's gradient is [`Kernel::BiasGrad`].
    LayerNormGainGrad,
    /// LayerNorm of each head, or of whole rows as one head, with fewer or other weights than [`Kernel::LayerNorm`] (of `[a·d]`
    /// columns, or of `[d]` that all heads share):
    /// `(x [n, a·d]) → (y [n, a·d], mean [n, a], r [n, a])`, or with gains `[a·d]` `(x, gain)`, or with both `(x, gain,
    /// bias [a·d])`. Sources: arXiv:2402.00838 §2.1 (without weights); the code of Command R and Nemotron.
    HeadLayerNorm {
        /// `eps` in units of 10⁻¹². See [`of_e12`].
        eps_e12: u64,
        /// Width of one head, `d`.
        width: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy, x, mean, r) → (dx)`, or with gains `(dy, x, mean, r, gain)`. May run in place of `dy`.
    HeadLayerNormInputGrad {
        /// Width of one head.
        width: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy, x, mean, r, G [a·d]) → (G)`. The bias's gradient is [`Kernel::BiasGrad`].
    HeadLayerNormGainGrad {
        /// Width of one head.
        width: u64,
    },
    /// `(x [n, h], bias [h]) → (y [n, h])`: `y[i,j] = x[i,j] + bias[j]`. May run in place of `x`. Its gradient
    /// for `x` is `dy` itself.
    AddBias,
    /// `(dy [n, h], G [h]) → (G)`: `G[j] += Σ over i of dy[i,j]`, by rising `i`.
    BiasGrad,
    /// `(a, b) → (c)` or, accumulating, `(a, b, addend) → (c)`: `c = op(a) · op(b)` (`+ addend`), `op` being
    /// the transpose where so marked. A linear layer is `y [n, out] = x [n, in] · w [out, in]ᵀ`, its input's
    /// gradient `dx = dy · w`, its weight's `G += dyᵀ · x`. Only the addend may give its buffer to the output;
    /// where it does not, and is not the output itself, it is copied.
    MatMul {
        /// Whether `a` is transposed.
        transpose_a: bool,
        /// Whether `b` is transposed.
        transpose_b: bool,
        /// Whether there is an addend.
        accumulate: bool,
    },
    /// Rotary positions, in the rotate-half form of Hugging Face's Llama:
    /// `(x [n, heads · d]) → (y [n, heads · d])`. For row `i` at position `t` of its sequence, each head and
    /// `j < d/2`: `θ = t · base^(−2j/d)`, or 0 for pairs that are not turned, `y[j] = x[j] · cos θ − x[j + d/2] · sin θ`,
    /// `y[j + d/2] = x[j + d/2] · cos θ + x[j] · sin θ`. With `inverse`, `θ` is negated: that is the gradient.
    /// `θ`, its sine and its cosine are worked out in `f64` and rounded to the type computed in. May run in
    /// place. Source: arXiv:2104.09864.
    Rope {
        /// Tokens of one sequence.
        sequence: u64,
        /// Heads of `x`.
        heads: u64,
        /// Width of one head, even.
        width: u64,
        /// The angles, of the whole head.
        angles: Angles,
        /// Whether the rotation goes back.
        inverse: bool,
    },
    /// Causal attention within each sequence:
    /// `(q [n, a·d], k [n, g·d], v [n, g·d]) → (o [n, a·d], l [n, a])`. For each sequence, query head and
    /// position `i`: `s[j] = q[i] · k[j] · scale` for `j ≤ i`, or, capped, `c · tanh` of this over `c`;
    /// `l[i] = ln Σ over j ≤ i of exp s[j]`,
    /// `o[i] = Σ over j ≤ i of exp(s[j] − l[i]) · v[j]`. Scores are never all held: only `o` and the log-sum-exp
    /// `l` are kept (arXiv:2205.14135).
    Attention(Heads),
    /// `(do [n, a·d], q, k, v, o, l) → (dq [n, a·d], dk [n, g·d], dv [n, g·d])`. With `p[i,j] = exp(s[i,j] − l[i])`
    /// computed anew and `D[i] = Σ over columns of do[i] ∘ o[i]`: `dv[j] = Σ_i p[i,j] · do[i]`, `ds[i,j] = p[i,j] ·
    /// (do[i] · v[j] − D[i])`, where scores are capped times `1 − (s[i,j] / c)²`, `dq[i] = Σ_j ds[i,j] · k[j] ·
    /// scale`, `dk[j] = Σ_i ds[i,j] · q[i] · scale`; `dk` and `dv` also sum over the query heads that share them.
    /// What is capped is computed anew with the scores: nothing more is kept.
    AttentionGrad(Heads),
    /// As [`Kernel::Attention`], with values of their own width `e`, over `ways` devices and within a window:
    /// `(q [n, a·d], k [n, g·d], v [n, g·e]) → (o [n, a·e], l [n, a], ring)`. `ring` is there where there is more than
    /// one device: two blocks of keys and values, one in use and one arriving.
    SpreadAttention(Spread),
    /// As [`Kernel::AttentionGrad`]: `(do, q, k, v, o, l) → (dq, dk, dv, ring)`, the ring also with the gradients of
    /// both.
    SpreadAttentionGrad(Spread),
    /// The scores of attention that materialises them: `(q [n, a·d], k [n, g·d]) → (s [n·a, sequence])`, one row for
    /// each sequence `b`, query head `h` and position `i`, in this order: `s[b,h,i,j] = q[i] · k[j] · scale` for
    /// `j ≤ i`, `−∞` beyond. Not capped: [`Kernel::SoftCap`] follows where they are.
    Scores(Heads),
    /// `(ds [n·a, sequence], q, k) → (dq, dk)`: `dq[i] = Σ over j ≤ i of ds[i,j] · k[j] · scale`,
    /// `dk[j] = Σ over i ≥ j of ds[i,j] · q[i] · scale`, also over the query heads that share `k`.
    ScoresGrad(Heads),
    /// `(s [m, k]) → (p [m, k])`: `p[i,j] = exp(s[i,j]) / Σ over j of exp(s[i,j])`. May run in place.
    Softmax,
    /// `(dp [m, k], p [m, k]) → (ds [m, k])`: `ds = p ∘ (dp − Σ over j of dp[i,j] · p[i,j])`. May run in place of `dp`.
    SoftmaxGrad,
    /// `(p [n·a, sequence], v [n, g·d]) → (o [n, a·d])`: `o[i] = Σ over j of p[b,h,i,j] · v[j]`.
    Attend(Heads),
    /// `(do [n, a·d], p, v) → (dp [n·a, sequence], dv [n, g·d])`: `dp[b,h,i,j] = do[i] · v[j]` for `j ≤ i` and 0
    /// beyond, `dv[j] = Σ over i of p[b,h,i,j] · do[i]`, also over the query heads that share `v`.
    AttendGrad(Heads),
    /// `(x) → (y, kept)`: with `kept` 1 for an element with probability 9/10 and else 0, `y = x ∘ kept / (9/10)`.
    /// Which are kept depends on the run's seed, the microbatch, `site` and the element's place in what all devices
    /// hold together, so that a second run keeps the same, and so does one on other devices. May run in place.
    /// Source: Srivastava et al., JMLR 15 (2014).
    Dropout {
        /// Which dropout of the model this is.
        site: u64,
        /// Devices that hold other elements; 1 where all hold the same.
        ways: u64,
        /// Equal blocks of this device's elements: block `k` is block `k · ways + member` of the whole.
        blocks: u64,
        /// Tokens of one sequence: where devices hold parts of it, each row's place is its token's.
        sequence: u64,
    },
    /// `(dy, kept) → (dx)`: `dx = dy ∘ kept / (9/10)`. May run in place of `dy`.
    DropoutGrad,
    /// Where work split over `ways` devices begins, on what they all hold: `(x) → (y)`, `y = x`, always in place and so
    /// without effect. Its gradient is the all-reduce.
    Replicate {
        /// Devices.
        ways: u64,
    },
    /// `(x) → (y)`: the sum of `x` over `ways` devices. May run in place.
    AllReduce {
        /// Devices.
        ways: u64,
    },
    /// `(x) → (y)`: the greatest of each element of `x` over `ways` devices. May run in place.
    AllReduceMax {
        /// Devices.
        ways: u64,
    },
    /// `(x [n/ways, h]) → (y [n, h])`: the rows of all `ways` devices, in their order.
    AllGather {
        /// Devices.
        ways: u64,
    },
    /// `(x [n, h]) → (y [n/ways, h])`: this device's rows of the sum over `ways` devices.
    ReduceScatter {
        /// Devices.
        ways: u64,
    },
    /// `(x) → (p)`: begins [`Kernel::AllReduce`] once `x` is complete and does not wait for it. Runs on
    /// [`Stream::Collective`](super::Stream::Collective), may run in place. Until its wait, `p` is nobody's to read or
    /// write: see [the module](super) for what an executor does.
    AllReduceStart {
        /// Devices.
        ways: u64,
    },
    /// `(p) → (y)`: waits for what began as `p`; `y` is then the sum. May run in place.
    AllReduceWait,
    /// `(x [n, h]) → (p [n/ways, h])`: begins [`Kernel::ReduceScatter`], as [`Kernel::AllReduceStart`]. `x` is read
    /// until the wait.
    ReduceScatterStart {
        /// Devices.
        ways: u64,
    },
    /// `(p, x) → (y)`: waits for what began as `p` from `x`. May run in place of `p`.
    ReduceScatterWait,
    /// RMSNorm of each head: `(x [n, a·d], gain [d]) → (y [n, a·d], r [n, a])`, or with gains `[a·d]`, as
    /// [`Kernel::RmsNorm`] on the `a` heads of each row. Source: arXiv:2505.09388 §2 (on queries and keys).
    HeadNorm {
        /// `eps` in units of 10⁻¹². See [`of_e12`].
        eps_e12: u64,
        /// Width of one head, `d`.
        width: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy, x, r, gain) → (dx)`. May run in place of `dy`.
    HeadNormInputGrad {
        /// Width of one head.
        width: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy, x, r, G) → (G)`, which is as long as the gain.
    HeadNormGainGrad {
        /// Width of one head.
        width: u64,
    },
    /// Rotary positions on the last `tail` columns of each head only: `(x [n, heads · width]) → (y)`. May run in place.
    /// Source: arXiv:2405.04434 §2.1.3.
    RopeTail {
        /// Tokens of one sequence.
        sequence: u64,
        /// Heads of `x`.
        heads: u64,
        /// Width of one head.
        width: u64,
        /// Columns of each head that are turned, even.
        tail: u64,
        /// The angles, of these columns.
        angles: Angles,
        /// Whether the rotation goes back.
        inverse: bool,
    },
    /// `(x [n, i + j]) → (left [n, i], right [n, j])`.
    SplitColumns,
    /// `(dleft [n, i], dright [n, j]) → (dx [n, i + j])`.
    JoinColumns,
    /// Keys and values of every head from what was expanded for each and from the rotated part that all share:
    /// `(up [n, a·(c + e)], rotated [n, d − c]) → (k [n, a·d], v [n, a·e])`. Source: arXiv:2405.04434 §2.1.
    LatentKeys {
        /// Heads of one device, `a`.
        heads: u64,
    },
    /// `(dk, dv) → (dup, drotated)`, the second summed over the heads.
    LatentKeysGrad {
        /// Heads of one device.
        heads: u64,
    },
    /// Which experts see a token, and with what weight: `(logits [n, experts]) → (weights [n, active], chosen [n,
    /// active])`, the `active` greatest scores of each row, or of the groups in it that are chosen from, weighted as
    /// [`Routing`] says. Of equals the first. Source: arXiv:2101.03961, arXiv:2401.04088 §2.1, arXiv:2412.19437
    /// §2.1.2.
    Route {
        /// Experts that see a token.
        active: u64,
        /// How they are chosen and weighted.
        routing: Routing,
    },
    /// `(dweights, logits, chosen) → (dlogits)`. No gradient passes through the choice.
    RouteGrad {
        /// How experts were weighted.
        routing: Routing,
    },
    /// What a router is trained on besides the loss of its tokens, for one microbatch: `(logits [n, experts], chosen
    /// [n, active]) → (loss [1])`. Of the experts' shares `p` of a token and the tokens `c` of an expert,
    ///
    /// - load balancing, `balance · experts / (active · n²) · Σ c(e) · Σ p(t, e)` (arXiv:2101.03961 §2.2; with `active`
    ///   and the sum over tokens as Megatron-LM's `switch_load_balancing_loss_func`). `p` are the softmax of the
    ///   logits, or their sigmoids over the sum of these (arXiv:2412.19437 §2.1.2). No gradient passes through `c`;
    /// - z-loss, `z / n · Σ logsumexp(logits(t))²` (arXiv:2202.08906 §2.2).
    ///
    /// Divided by the step's microbatches, as the loss is.
    RouterLoss {
        /// Their coefficients.
        losses: RouterLosses,
        /// What logits become.
        scores: Scores,
        /// Microbatches of the step.
        microbatches: u64,
        /// Devices that route the same tokens, whose gradients of the logits add up.
        sharers: u64,
    },
    /// `(logits, chosen) → (dlogits)`
    RouterLossGrad {
        /// Their coefficients.
        losses: RouterLosses,
        /// What logits become.
        scores: Scores,
        /// Microbatches of the step, times the devices whose gradients add up.
        parts: u64,
    },
    /// Copies of tokens on the devices that hold their experts, ordered by expert, then by the device that they come
    /// from, and then by token: `(x [n, h], chosen, weights) → (rows [m, h], arrivals [ways, experts / ways], shares
    /// [m, 1])`. `m` is `n · active` times the imbalance that the spec names; rows that no copy fills are 0.
    /// `arrivals[d, e]` is how many copies came from device `d` for this device's expert `e`: where rows begin and
    /// where they came from follows. The weight of a copy travels with it, and is its row's share. Devices hold
    /// experts that follow each other, and have a number among them as those that share matrices have.
    Dispatch {
        /// Devices that the experts are spread over.
        ways: u64,
    },
    /// `(drows [m, h], chosen, arrivals, dshares [m, 1]) → (dx [n, h], dweights [n, active])`: the sum over a token's
    /// copies, back from where they are, and what each one's share has come to.
    DispatchGrad {
        /// Devices that the experts are spread over.
        ways: u64,
    },
    /// Back to their tokens: `(rows [m, h], chosen, arrivals) → (y [n, h])`, the sum of a token's copies.
    Combine {
        /// Devices that the experts are spread over.
        ways: u64,
    },
    /// `(dy [n, h], chosen, arrivals) → (drows [m, h])`.
    CombineGrad {
        /// Devices that the experts are spread over.
        ways: u64,
    },
    /// As [`Kernel::SwiGlu`] or [`Kernel::GeGlu`], each row times its share: `(gate [m, f], up [m, f], shares [m, 1])
    /// → (y [m, f])`. What an expert gives is linear in this, so that shares may be applied here, where their
    /// gradient needs nothing that is not kept anyway, and not to what experts give. Source: Megatron-LM does so.
    WeightedGlu {
        /// What the gate passes through.
        activation: Activation,
    },
    /// `(dy [m, f], gate, up, shares) → (dgate, dup, dshares [m, 1])`. `dgate` may take the place of `dy`.
    WeightedGluGrad {
        /// What the gate passed through.
        activation: Activation,
    },
    /// Each row weighted by its gate: `(x [n, h], g [n, 1]) → (y [n, h])`, `y[i,j] = σ(g[i]) · x[i,j]`.
    RowGate,
    /// `(dy, x, g) → (dx, dg)`.
    RowGateGrad,
    /// Weights of experts, each times a number of its expert: `(weights [n, k], chosen [n, k], scales [e]) → (y [n, k])`.
    /// It is its own gradient for the weights.
    ExpertScale,
    /// `(dy, weights, chosen, G [e]) → (G)`: `G[chosen[i,j]] += dy[i,j] · weights[i,j]`, by rising `i`.
    ExpertScaleGrad,
    /// Each row times its expert's matrix: `(x [m, i], w [experts, o, i], arrivals) → (y [m, o])`, `y = x · wᵀ`; not
    /// transposed, `(x [m, o], w, arrivals) → (y [m, i])`, `y = x · w`. `experts` are those of this device, and
    /// `arrivals`, as of [`Kernel::Dispatch`], says which rows are whose. Rows that are nobody's are 0.
    ExpertMatMul {
        /// Whether the matrix is transposed.
        transpose_b: bool,
    },
    /// `(dy [m, o], x [m, i], arrivals, G [experts, o, i]) → (G)`: each expert's `G += dyᵀ · x` over its rows.
    ExpertMatMulGrad,
    /// As [`Kernel::SwiGlu`] with the tanh form of GELU for the gate: `y = gelu(gate) ∘ up`. Source: arXiv:2002.05202.
    GeGlu,
    /// `(dy [n, f], gate, up) → (dgate, dup)`. `dgate` may take the place of `dy`.
    GeGluGrad,
    /// `(gate [n, f], up [n, f]) → (y [n, f])`: `y = gate ∘ σ(gate) ∘ up`, `σ(x) = 1/(1 + e^(−x))`.
    /// Source: arXiv:2002.05202.
    SwiGlu,
    /// `(dy [n, f], gate, up) → (dgate, dup)`: `dgate = dy ∘ up ∘ σ(gate) ∘ (1 + gate ∘ (1 − σ(gate)))`,
    /// `dup = dy ∘ gate ∘ σ(gate)`. `dgate` may take the place of `dy`.
    SwiGluGrad,
    /// `(x [n, f]) → (y [n, f])`: `y = x · (1 + erf(x/√2)) / 2`. Source: arXiv:1606.08415.
    Gelu,
    /// `(dy [n, f], x [n, f]) → (dx [n, f])`: `dx = dy ∘ ((1 + erf(x/√2)) / 2 + x · e^(−x²/2) / √(2π))`. May run
    /// in place of `dy`.
    GeluGrad,
    /// `(x [n, f]) → (y [n, f])`: GELU in its tanh form, `y = x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`. Source:
    /// arXiv:1606.08415 §2.
    GeluTanh,
    /// `(dy [n, f], x [n, f]) → (dx [n, f])`. May run in place of `dy`.
    GeluTanhGrad,
    /// `(gate [n, f], up [n, f]) → (y [n, f])`: with `g` the gate, at most 7, and `u` between −7 and 7,
    /// `y = g ∘ σ(1.702 g) ∘ (1 + u)`. Source: gpt-oss's own code.
    ClampedGlu,
    /// `(dy [n, f], gate, up) → (dgate, dup)`, 0 where the limits hold. `dgate` may take the place of `dy`.
    ClampedGluGrad,
    /// `(x [n, f]) → (y [n, f])`: `y = max(x, 0)²`. Source: arXiv:2109.08668.
    SquaredRelu,
    /// `(dy, x) → (dx)`: `dx = 2 dy ∘ max(x, 0)`. May run in place of `dy`.
    SquaredReluGrad,
    /// As [`Kernel::SquaredRelu`], each row times its share: `(x [m, f], shares [m, 1]) → (y [m, f])`, where experts
    /// have no gate; see [`Kernel::WeightedGlu`].
    WeightedSquaredRelu,
    /// `(dy, x, shares) → (dx, dshares [m, 1])`. `dx` may take the place of `dy`.
    WeightedSquaredReluGrad,
    /// xIELU: `(x [n, f], p [1], m [1]) → (y [n, f])`: with `a = ln(1 + e^p)` and `b = ½ + ln(1 + e^m)`,
    /// `y = a x² + x/2` for `x > 0`, and else `y = b (e^x − 1 − x) + x/2`. Source: arXiv:2411.13010.
    Xielu,
    /// `(dy, x, p, m) → (dx)`: `dx = dy ∘ (2 a x + ½)` for `x > 0`, and else `dy ∘ (b (e^x − 1) + ½)`. May run in
    /// place of `dy`.
    XieluGrad,
    /// `(dy, x, w [1], G [1]) → (G)`, `w` being `p`, or with `below` `m`: `G += σ(w) · Σ dy ∘ x²` over `x > 0`, or
    /// `G += σ(w) · Σ dy ∘ (e^x − 1 − x)` over the others.
    XieluWeightGrad {
        /// Whether it is the weight of what is not above 0.
        below: bool,
    },
    /// Each element weighted by its gate: `(x [n, w], g [n, w]) → (y [n, w])`: `y = x ∘ σ(g)`. Source:
    /// arXiv:2505.06708.
    SigmoidGate,
    /// `(dy, x, g) → (dx, dg)`. `dx` may take the place of `dy`.
    SigmoidGateGrad,
    /// `(x [n, w]) → (s [n, 1])`: `s[i] = Σ over j of x[i,j]²`, the share of one device in what
    /// [`Kernel::SharedRmsNorm`] takes.
    RowSquares,
    /// `(ds [n, 1], x [n, w]) → (dx [n, w])`: `dx[i,j] = 2 · ds[i] · x[i,j]`.
    RowSquaresGrad,
    /// RMSNorm of rows that devices share, with the squares of all: `(x [n, w], gain [w], s [n, 1]) → (y [n, w], r
    /// [n])`: `r[i] = (s[i] / columns + eps)^(−1/2)`, `y[i,j] = x[i,j] · r[i] · gain[j]`, or with `1 + gain[j]`.
    SharedRmsNorm {
        /// `eps` in units of 10⁻¹².
        eps_e12: u64,
        /// Columns over all devices.
        columns: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// `(dy, x, r, gain) → (dx, ds [n, 1])`: with `u[i,j] = dy[i,j] · gain[j]`, `dx[i,j] = u[i,j] · r[i]` and
    /// `ds[i] = −r[i]³ / (2 · columns) · Σ over j of u[i,j] · x[i,j]`. The gain's is [`Kernel::RmsNormGainGrad`].
    SharedRmsNormGrad {
        /// Columns over all devices.
        columns: u64,
        /// Whether gains are one more than what is held.
        offset: bool,
    },
    /// As [`Kernel::HeadNorm`] without gains: `(x [n, a·d]) → (y [n, a·d], r [n, a])`. Source: Llama 4's own code.
    HeadLength {
        /// `eps` in units of 10⁻¹².
        eps_e12: u64,
        /// Width of one head.
        width: u64,
    },
    /// `(dy, x, r) → (dx)`. May run in place of `dy`.
    HeadLengthGrad {
        /// Width of one head.
        width: u64,
    },
    /// Attention temperature: `(x [n, w]) → (y [n, w])`: row `i` at position `t` of its sequence times
    /// `1 + scale · ln(1 + ⌊(t + 1) / tokens⌋)`; its gradient is the same of `dy`. May run in place. Source:
    /// arXiv:2501.19399, Llama 4's own code.
    PositionScale {
        /// Tokens of one sequence.
        sequence: u64,
        /// Positions with the same factor.
        tokens: u64,
        /// The scale in units of 10⁻¹².
        scale_e12: u64,
    },
    /// As [`Kernel::SpreadAttention`] on one device, with a sink: `(q, k, v, s [a]) → (o, l)`: the sum of
    /// exponentials of query head `h` also has `exp s[h]`, which attends to nothing. Its gradient is
    /// [`Kernel::SpreadAttentionGrad`] with this `l`, and [`Kernel::SinkGrad`]. Source: arXiv:2309.17453; gpt-oss's
    /// own code.
    SinkAttention(Spread),
    /// `(do [n, a·e], o [n, a·e], l [n, a], s [a], G [a]) → (G)`:
    /// `G[h] −= Σ over i of exp(s[h] − l[i,h]) · (do[i] · o[i])` of head `h`.
    SinkGrad,
    /// The bias of each row's expert: `(x [m, o], b [experts, o], arrivals) → (y [m, o])` with `shared` also of the
    /// row's share: `(x, b, arrivals, shares [m, 1])`: `y[i] = x[i] + shares[i] · b[e] / ways`. Rows that are
    /// nobody's stay. May run in place.
    ExpertBias {
        /// Devices that each add a part to the same sum.
        ways: u64,
        /// Whether rows have shares.
        shared: bool,
    },
    /// `(dy [m, o], arrivals, G [experts, o]) → (G)`, with `shared` `(dy, arrivals, shares, G)`: the sum over each
    /// expert's rows of `shares[i] · dy[i] / ways`.
    ExpertBiasGrad {
        /// Devices that each add a part to the same sum.
        ways: u64,
        /// Whether rows have shares.
        shared: bool,
    },
    /// `(dy [m, o], b [experts, o], arrivals) → (dshares [m, 1])`: `dy[i] · b[e] / ways`, 0 for rows that are nobody's.
    ExpertBiasShareGrad {
        /// Devices that each add a part to the same sum.
        ways: u64,
    },
    /// `(x [n, in], w [out, in]) → (y [n, out])`: `y = x · wᵀ`, a linear layer that no gradient passes through to `x`.
    DetachedMatMul,
    /// The tokens that each token attends to: `(q [m, h·d], k [n, d], w [m, h]) → (chosen [m, tokens])`, those with the
    /// greatest `Σ over heads of w · max(q · k, 0)` among the tokens up to each of the `m` rows of one device. Source:
    /// the report of DeepSeek-V3.2 §2.1.
    IndexKeys(Indexing),
    /// `(q, k, w, chosen) → (dq, dk, dw)`: by the divergence between attention over what was chosen and the index's
    /// own.
    IndexKeysGrad(Indexing),
    /// As [`Kernel::SpreadAttention`] over the tokens that were chosen, as many as its window: `(q, k, v, chosen) →
    /// (o, l)`.
    SparseAttention(Spread),
    /// `(do, q, k, v, o, l, chosen) → (dq, dk, dv)`.
    SparseAttentionGrad(Spread),
    /// A convolution over the tokens before each, channel by channel, and SiLU: `(x [n, c], w [c, t]) → (y [n, c])`,
    /// or with a bias `(x, w, b [c])`: `y[i,j] = silu(b[j] + Σ over s < t of w[j,s] · x[i − t + 1 + s, j])` within a
    /// sequence.
    Convolution {
        /// Tokens of one sequence.
        sequence: u64,
    },
    /// `(dy, x, w) → (dx)`, or with a bias `(dy, x, w, b)`.
    ConvolutionGrad {
        /// Tokens of one sequence.
        sequence: u64,
    },
    /// `(dy, x, w, G [c, t]) → (G)`, or with a bias `(dy, x, w, b, G)`: of the weight, or of the bias.
    ConvolutionWeightGrad {
        /// Tokens of one sequence.
        sequence: u64,
        /// Whether `G` is that of the bias.
        bias: bool,
    },
    /// A recurrence over the tokens of a sequence in chunks: of a gated delta net `(q [n, g·d], k [n, g·d], v [n,
    /// a·e], steps [n, a], rates [n, a], decay [a], bias [a]) → (o [n, a·e], states)`, of Mamba 2 `(C [n, g·d], B [n,
    /// g·d], x [n, a·e], steps [n, a], decay [a], bias [a], skip [a]) → (o, states)`. `states` are those between
    /// chunks, which the gradient computes again. Sources: arXiv:2412.06464 §3, arXiv:2405.21060 §6.
    Recurrence(Recurring),
    /// `(do, …) → (dq, dk, dv, dsteps, …)`: gradients of all that depends on the token, and by token and head those of
    /// `decay` and `skip`.
    RecurrenceGrad(Recurring),
    /// As [`Kernel::Attention`] without a mask: each row of an image, or of a window of it, attends to all of its rows.
    /// Only planned: no backend runs it. Source: arXiv:2010.11929 §3.1.
    FullAttention(Heads),
    /// As [`Kernel::AttentionGrad`], without a mask.
    FullAttentionGrad(Heads),
    /// Moves rows of images, each number of them read and written once, as [`ImageRows`] says. Only planned.
    ImageRows(ImageRows),
    /// Its gradient: of what it writes, to what it reads.
    ImageRowsGrad(ImageRows),
    /// `(x) → (y)`: the same numbers in another format.
    Cast,
    /// `(x) → (h)`: begins to copy `x` to the host's memory, where `h` is ([`Role::OnHost`](super::Role::OnHost)),
    /// once `x` is complete, and does not wait for it. Runs on [`Stream::Copies`](super::Stream::Copies). Until its
    /// wait, `x` stays and `h` is nobody's to read.
    Offload,
    /// `(h, x) → ()`: waits for what began as `h` from `x`.
    OffloadWait,
    /// `(h) → (x)`: begins to copy `h` back, as [`Kernel::Offload`]. Until its wait, `h` stays and `x` is nobody's to
    /// read or write.
    Reload,
    /// `(x, h) → ()`: waits for what began as `x` from `h`.
    ReloadWait,
    /// Operands of matrix products in fp8: `(x [n, w]) → (rows [n, w], columns [n, w])`, both the numbers of `x`,
    /// scaled so that they fill the format: `rows` for products that sum along rows of `x`, `columns`, which lies
    /// transposed, for those that sum along its columns. Run on the CPU, where both lie as `x` does. Source:
    /// arXiv:2412.19437 §3.3.
    Quantize {
        /// Whether `x` is the gradient of an activation, of which FP8 with one scale keeps the wider format E5M2
        /// (arXiv:2209.05433 §3).
        of_gradient: bool,
    },
    /// `(a, b) → (c)`: `c = a + b`, by element. May run in place of either.
    Add,
    /// `(x) → (y)`: `y = factor · x`, by element; its gradient is the same of `dy`. May run in place.
    Scale {
        /// The factor in units of 10⁻¹². See [`of_e12`].
        factor_e12: u64,
    },
    /// `(x) → (y)`: `y = c · tanh(x / c)`, by element; −∞, which hides an element, stays. May run in place: the
    /// gradient needs `y` alone. Source: arXiv:2408.00118 §2.
    SoftCap {
        /// `c` in units of 10⁻¹². See [`of_e12`].
        cap_e12: u64,
    },
    /// `(dy, y) → (dx)`: `dx = dy · (1 − (y / c)²)`, and 0 where `y` is −∞. May run in place of `dy`.
    SoftCapGrad {
        /// `c` in units of 10⁻¹².
        cap_e12: u64,
    },
    /// `(x) → (y)`: `y = x` within ±`limit`, and the nearer of both beyond. May run in place: the gradient needs `y`
    /// alone. Source: arXiv:2402.00838, on queries, keys and values.
    Clip {
        /// The limit in units of 10⁻¹². See [`of_e12`].
        limit_e12: u64,
    },
    /// `(dy, y) → (dx)`: `dx = dy` within the limits, and 0 at them. May run in place of `dy`.
    ClipGrad {
        /// The limit in units of 10⁻¹².
        limit_e12: u64,
    },
    /// `(logits [n, vocab], targets [n]) → (loss [1], l [n])`: `l[i] = ln Σ over j of exp logits[i,j]`, `loss = Σ
    /// over i, rising, of (l[i] − logits[i, targets[i]]) / (n · microbatches)`, on the CPU in f64. `l` is kept.
    CrossEntropy {
        /// Microbatches of a step, so that their losses add up to the step's mean.
        microbatches: u64,
    },
    /// Hides the columns of logits that no token has, where devices do not share the vocabulary evenly:
    /// `(logits [n, v]) → (y [n, v])`: −∞ from column `vocab − member · v` on. May run in place.
    HidePadding {
        /// Tokens that there are.
        vocab: u64,
    },
    /// The first step of [`Kernel::CrossEntropy`] over a vocabulary that devices share (arXiv:1909.08053 §3):
    /// `(logits [n, v]) → (m [n])`, the greatest of each row.
    RowMax,
    /// The second, with `m` over all devices: `(logits [n, v], m [n], targets [n]) → (s [n, 2])`:
    /// `s[i,0] = Σ over j of exp(logits[i,j] − m[i])`, `s[i,1] = logits[i, targets[i]]`, or 0 where the target is −1.
    ExpSums,
    /// The last, with `m` and `s` over all devices: `(m [n], s [n, 2], logits, targets) → (loss [1], l [n])`:
    /// `l[i] = m[i] + ln s[i,0]`, `loss = Σ over i, rising, of (l[i] − s[i,1]) / (n · microbatches)`. Of logits and
    /// targets only the sizes are needed; they stand here for the gradient, which is [`Kernel::CrossEntropyGrad`].
    SharedCrossEntropy {
        /// Microbatches of a step.
        microbatches: u64,
    },
    /// `(logits [n, vocab], targets [n], l [n]) → (dlogits [n, vocab])`:
    /// `dlogits[i,j] = weight · (exp(logits[i,j] − l[i]) − [j = targets[i]]) / (n · microbatches)`. May run in place of
    /// the logits.
    CrossEntropyGrad {
        /// Microbatches of a step.
        microbatches: u64,
        /// What the loss counts for, in units of 10⁻¹². See [`of_e12`].
        weight_e12: u64,
    },
}

/// A number given in units of 10⁻¹²; the division rounds correctly, so 10 000 000 is 10⁻⁵ to the last bit.
pub const fn of_e12(e12: u64) -> f64 {
    e12 as f64 / 1e12
}
