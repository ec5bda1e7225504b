//! How long an operator takes on a device, by a roofline: the longer of its arithmetic, its bytes at the memory's
//! rate, and its launch. What arithmetic takes follows from the shapes of its products, where the device's
//! multiprocessors are known (`rates`), else from a share of the matmul rate. An estimate until a measured profile
//! replaces it.
//!
//! Whole numbers throughout, rounded up, so that every machine gets the same nanoseconds.
//!
//! # How near that is
//! The shares below are the same for every model and, but for what the best matmuls reach, for every device. What
//! others measured, and the error of ours, on average and at most, as `core/tests/published_runs.rs` holds it; over all
//! steps the mean is 6.7 %, of either sign:
//!
//! | Measured | Error |
//! |---|---|
//! | iterations of GPT 22B to 1T on A100, tensor parallel 8 (arXiv:2205.05198, table 5) | 3.5 %, 7.4 % |
//! | passes of stages without tensor parallelism on A100 (arXiv:2401.10241, tables 3 and 9) | 5.3 %, 9.0 % |
//! | throughput of three schedules on 8 to 32 A100 (the same, table 4) | 4.9 %, 11.7 % |
//! | rates of GPT 1.7B to 1T on 32 to 3072 A100 (arXiv:2104.04473, table 1), whose microbatches it does not say: low for tensor parallelism of a small model, high for the largest | 5.3 %, 9.8 % |
//! | rates of Llama 3 405B on 8192 and 16384 H100 (arXiv:2407.21783, table 4): always high, as slow devices and stalls of a cluster are not counted | 6.6 %, 8.7 % |
//! | utilisation of five schedules for 98.5B on 40 A100 (arXiv:2405.15362, table 3): always high | 18.2 %, 25.3 % |
//! | steps of Qwen 3 235B-A22B, DeepSeek-V3 and Kimi K2 on 256 and 1024 H100, experts on several nodes by DeepEP (Megatron MoE model zoo, NeMo AutoModel) | 7.2 %, 9.1 % |
//! | rates of Llama 3 70B and 405B with products in fp8 on 64 to 1024 H100, B200, GB200 and GB300 (Megatron Bridge): 16 % high for 70B on GB200 | 5.5 %, 16.5 % |
//! | Megatron-LM's own runs of GPT 15B, Mixtral 8x7B and 8x22B and a small DeepSeek-V3 on 64 to 256 A100 and H100, read from their arguments: 9 to 15 % short for 8x7B without chunks | 4.9 %, 14.9 % |
//! | the mean step of DeepSeek-V3's whole training on 2048 H800, stops included, with pairs that hide exchanges (arXiv:2412.19437): short | 12.3 %, 12.3 % |
//! | steps without a pipeline whose devices share out weights: Llama 3 on 64 A100 and H100, Qwen 3 30B-A3B on 8 H100 (torchtitan, NeMo AutoModel) | 9.1 %, 13.0 % |
//!
//! What a framework's host cannot launch fast enough takes longer: two more rows of the model zoo's table, with small
//! microbatches and experts within a node, took 1.6 and 1.8 times what is estimated. So do kernels that give the same
//! bits each time (`--deterministic-mode` of Megatron-LM). Nor are cards counted that run below their data sheet,
//! such as torchtitan's H100 of 500 W and 2.4 TB/s, on which Llama 3 8B took 1.6 times as long.

use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::graph::{
    Axis, Graph, Heads, Job, Kernel, Needs, Operator, Recurring, Spread, Stream, Tensor, TensorId, Use,
};
use crate::hardware::cluster::{Device, Link};
use crate::hardware::rates::{self, Attends, Products, Shape};
use crate::model::{Dtype, RecurrenceKind};

/// Share of what the device's best matmuls reach ([`Device::matmul_permille`]) that the largest ones of a model come
/// near, in thousandths, where their shapes or the device's multiprocessors are not known: 840 of an A100's data
/// sheet. Smaller ones reach less of it (a ramp): 700 for 2·10¹¹ operations on an A100, 770 for 10¹². Both this and
/// the ramp are fitted to the iteration times of arXiv:2205.05198, table 5.
pub const MATMUL_PER_MILLE: u64 = 967;
/// Launches that the ramp of a matmul is worth.
const RAMP_LAUNCHES: u64 = 10;
/// Share of a link's rate that collectives reach, in thousandths: 230 to 240 of 300 GB/s on eight A100 by NCCL's own
/// tests.
pub const COLLECTIVE_PER_MILLE: u64 = 780;
/// Share of the matmul rate that the forward of flash attention reaches, where its shape or the device's
/// multiprocessors are not known. Up to 730 on A100 (arXiv:2307.08691 §4.1), with a causal mask and common widths
/// less.
pub const ATTENTION_PER_MILLE: u64 = 550;
/// The same for its gradient: up to 630 there.
pub const ATTENTION_GRAD_PER_MILLE: u64 = 450;
/// Share of the memory's rate that operators reach which only pass over their tensors. A copy reaches 880 on an H100;
/// operators of a model also reduce, and read what lies apart. Fitted to the iteration times of arXiv:2205.05198,
/// table 5.
pub const MEMORY_PER_MILLE: u64 = 680;

/// Share of an exchange of tokens that is hidden by what computes beside it, in thousandths: the exchange takes 20 of
/// an H800's 132 multiprocessors (arXiv:2412.19437 §3.2.2), so that this takes so much longer.
pub const EXCHANGE_PER_MILLE: u64 = 848;

/// By how much a collective of `time` slows what computes beside it: by the multiprocessors that it takes, which are
/// about as many for a gather by NCCL as for an exchange of tokens ([`EXCHANGE_PER_MILLE`]).
pub fn slowed_by(time: Nanos) -> Nanos {
    (u128::from(time) * u128::from(1000 - EXCHANGE_PER_MILLE) / 1000) as Nanos
}

/// What joins the devices of one rank in their collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Those that share matrices.
    pub tensor: Link,
    /// Those that hold parts of a sequence.
    pub context: Link,
    /// Expert parallel.
    pub expert: Link,
}

impl Peers {
    /// The same link for all.
    pub const fn all(link: Link) -> Peers {
        Peers { tensor: link, context: link, expert: link }
    }

    fn link(&self, kernel: &Kernel) -> &Link {
        match kernel.axis() {
            Some(Axis::Context) => &self.context,
            Some(Axis::Expert) => &self.expert,
            Some(Axis::Tensor) | None => &self.tensor,
        }
    }
}

/// What an operator does, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Load {
    /// Floating-point operations of its matrix products: a multiplication and an addition count 2. Work by
    /// element is not counted, because memory bounds it.
    pub flops: u128,
    /// Bytes read and written, each tensor once.
    pub bytes: Bytes,
    /// Bytes that a collective sends from each device, in a ring (Patarasuk and Yuan, JPDC 69, 2009).
    pub sent: Bytes,
    /// Bytes that are copied to the host's memory or back.
    pub copied: Bytes,
    /// The format of its operands, where a pass has quantized them.
    pub quantized: Option<Dtype>,
}

impl Load {
    /// What `operator` of `graph` does.
    pub fn of(graph: &Graph, operator: &Operator) -> Load {
        let reads = operator.inputs.iter().filter(|input| input.needs == Needs::Data);
        let bytes = match operator.kernel {
            // Only the rows of its tokens: read once, and written (or read and written) once.
            Kernel::Embedding => operator.outputs.first().map_or(0, |id| graph[*id].bytes().saturating_mul(2)),
            Kernel::EmbeddingGrad => {
                operator.inputs.first().map_or(0, |dy| graph[dy.tensor].bytes().saturating_mul(3))
            }
            _ => reads
                .map(|input| input.tensor)
                .chain(operator.outputs.iter().copied())
                .fold(0, |sum: Bytes, id| sum.saturating_add(graph[id].bytes())),
        };
        let format = operator.inputs.first().map(|input| graph[input.tensor].dtype);
        let quantized = format
            .filter(|dtype| !matches!(operator.kernel, Kernel::Quantize { .. }) && Dtype::OF_MATMULS.contains(dtype));
        let copied = match (operator.kernel.copies(), operator.outputs.first()) {
            (true, Some(copy)) => graph[*copy].bytes(),
            _ => 0,
        };
        Load { flops: flops(graph, operator), bytes, sent: sent(graph, operator), copied, quantized }
    }

    /// The time on `device`, whose peers in a collective are reached as `peers` says: for one that starts a
    /// collective, that of the collective. Only an operator without effect of its own takes none. The shapes of
    /// products are not known here, so that small ones take what a ramp says: [`operator_time`] has them.
    pub fn time(&self, kernel: &Kernel, device: &Device, peers: &Peers) -> Nanos {
        self.time_of_shape(kernel, None, device, peers)
    }

    fn time_of_shape(&self, kernel: &Kernel, shape: Option<Shape>, device: &Device, peers: &Peers) -> Nanos {
        if matches!(kernel, Kernel::Replicate { .. }) || kernel.waits() {
            return 0;
        }
        let collective = match self.sent {
            0 => 0,
            sent => collective_time(sent, peers.link(kernel), COLLECTIVE_PER_MILLE),
        };
        if kernel.copies() {
            return device.host_link().time(self.copied);
        }
        let per_mille = match kernel {
            Kernel::Attention(_) | Kernel::SpreadAttention(_) | Kernel::FullAttention(_) => ATTENTION_PER_MILLE,
            Kernel::AttentionGrad(_) | Kernel::SpreadAttentionGrad(_) | Kernel::FullAttentionGrad(_) => {
                ATTENTION_GRAD_PER_MILLE
            }
            // Fused like attention, with as small products.
            Kernel::SinkAttention(_) | Kernel::SparseAttention(_) | Kernel::IndexKeys(_) | Kernel::Recurrence(_) => {
                ATTENTION_PER_MILLE
            }
            Kernel::SparseAttentionGrad(_) | Kernel::IndexKeysGrad(_) | Kernel::RecurrenceGrad(_) => {
                ATTENTION_GRAD_PER_MILLE
            }
            _ => device.matmul_permille * MATMUL_PER_MILLE / 1000,
        };
        let rate = self.quantized.map_or(device.matmul_flops, |dtype| device.quantized_flops(dtype));
        let arithmetic = match (shape.filter(|_| device.multiprocessors > 0), kernel) {
            (Some(Shape::Products(both)), _) => both
                .iter()
                .fold(0, |sum: Nanos, products| sum.saturating_add(rates::products_time(products, rate, device))),
            (Some(Shape::Attends(attends)), _) => {
                at_rate(self.flops, rate, rates::attention_per_mille(&attends, device))
            }
            (
                None,
                Kernel::MatMul { .. }
                | Kernel::DetachedMatMul
                | Kernel::ExpertMatMul { .. }
                | Kernel::ExpertMatMulGrad,
            ) => {
                let arithmetic = at_rate(self.flops, rate, per_mille);
                arithmetic.saturating_add(ramp(arithmetic, device.launch_ns))
            }
            (None, _) => at_rate(self.flops, rate, per_mille),
        };
        let traffic = traffic_time(self.bytes, device);
        // What is sent to experts is put in their order before, and what comes back in that of tokens.
        if kernel.axis() == Some(Axis::Expert) {
            return collective.saturating_add(traffic).max(device.launch_ns);
        }
        arithmetic.max(traffic).max(collective).max(device.launch_ns)
    }
}

/// What a matmul that takes `time` at the best rate loses by tiles that do not fill the device: the geometric mean of
/// that time and of a few launches, so that twice the work never takes less, nor more than twice the time.
fn ramp(time: Nanos, launch_ns: Nanos) -> Nanos {
    let product = u128::from(time) * u128::from(launch_ns.saturating_mul(RAMP_LAUNCHES));
    product.isqrt() as Nanos
}

/// Time of matrix products of so many operations in the training's number format, at the best rate.
pub fn matmul_time(flops: u128, device: &Device) -> Nanos {
    at_rate(flops, device.matmul_flops, device.matmul_permille * MATMUL_PER_MILLE / 1000)
}

/// Time of reading or writing `bytes` once.
pub fn traffic_time(bytes: Bytes, device: &Device) -> Nanos {
    at_rate(bytes.into(), device.memory_bytes_per_s, MEMORY_PER_MILLE)
}

/// Time of a collective that sends `bytes` from each device, at `per_mille` thousandths of the link's rate.
pub fn collective_time(bytes: Bytes, link: &Link, per_mille: u64) -> Nanos {
    let rate = u128::from(link.bytes_per_s) * u128::from(per_mille) / 1000;
    Link { bytes_per_s: u64::try_from(rate).unwrap_or(u64::MAX), ..*link }.time(bytes)
}

/// `amount` at `per_mille` thousandths of `rate` a second, in nanoseconds, rounded up.
fn at_rate(amount: u128, rate: u64, per_mille: u64) -> Nanos {
    const NS_AND_MILLE: u128 = 1_000_000_000 * 1000;
    let rate = u128::from(rate.max(1)) * u128::from(per_mille);
    // A u128 holds 10^26 operations times this; more than that takes longer than any plan may.
    let time = amount.saturating_mul(NS_AND_MILLE).div_ceil(rate);
    Nanos::try_from(time).unwrap_or(Nanos::MAX)
}

/// Bytes that a collective sends from each of its devices. In a ring, its large side once over the ring for a gather or
/// a scatter, twice for a reduction that all get; of what all exchange, everything but its own part; around a ring of
/// devices that attend, everybody's keys and values, and in the backward their gradients too.
fn sent(graph: &Graph, operator: &Operator) -> Bytes {
    let (Some(input), Some(output)) = (operator.inputs.first(), operator.outputs.first()) else { return 0 };
    if let Kernel::SpreadAttention(spread) | Kernel::SpreadAttentionGrad(spread) = operator.kernel {
        let forward = matches!(operator.kernel, Kernel::SpreadAttention(_));
        let (first, blocks) = if forward { (1, 1) } else { (2, 2) };
        let kept = operator.inputs.get(first..first + 2).unwrap_or_default();
        let part = kept.iter().fold(0, |sum: Bytes, input| sum.saturating_add(graph[input.tensor].bytes()));
        return part.saturating_mul(blocks * spread.ways.saturating_sub(1));
    }
    let (large, ways, rounds) = match operator.kernel {
        Kernel::Dispatch { ways } | Kernel::CombineGrad { ways } => (*output, ways, 1),
        Kernel::DispatchGrad { ways } | Kernel::Combine { ways } => (input.tensor, ways, 1),
        Kernel::AllReduce { ways } | Kernel::AllReduceMax { ways } | Kernel::AllReduceStart { ways } => {
            (input.tensor, ways, 2)
        }
        Kernel::ReduceScatter { ways } | Kernel::ReduceScatterStart { ways } => (input.tensor, ways, 1),
        Kernel::AllGather { ways } => (*output, ways, 1),
        _ => return 0,
    };
    let ways = u128::from(ways.max(1));
    let sent = (u128::from(graph[large].bytes()) * rounds * (ways - 1)).div_ceil(ways);
    Bytes::try_from(sent).unwrap_or(Bytes::MAX)
}

/// Floating-point operations of the matrix products of `operator`.
fn flops(graph: &Graph, operator: &Operator) -> u128 {
    let elements = |at: usize| operator.inputs.get(at).map_or(0, |input| u128::from(graph[input.tensor].elements()));
    match operator.kernel {
        Kernel::MatMul { transpose_a, .. } => {
            let Some(a) = operator.inputs.first().map(|input| &graph[input.tensor]) else { return 0 };
            let Some(out) = operator.outputs.first().map(|id| &graph[*id]) else { return 0 };
            let inner = if transpose_a { a.shape.first() } else { a.shape.last() };
            2 * u128::from(out.elements()) * u128::from(inner.copied().unwrap_or(1))
        }
        Kernel::DetachedMatMul => {
            let out = operator.outputs.first().and_then(|id| graph[*id].shape.last()).copied().unwrap_or(0);
            2 * elements(0) * u128::from(out)
        }
        // Scores and output: 2 products. Its gradient: the scores again, dV, dP, dQ and dK: 5.
        Kernel::Attention(heads) => attention_product(elements(0), heads.sequence, heads.sequence).saturating_mul(2),
        Kernel::AttentionGrad(heads) => {
            attention_product(elements(1), heads.sequence, heads.sequence).saturating_mul(5)
        }
        // The same products of whole matrices.
        Kernel::FullAttention(heads) => whole_product(elements(0), heads).saturating_mul(2),
        Kernel::FullAttentionGrad(heads) => whole_product(elements(1), heads).saturating_mul(5),
        Kernel::SpreadAttention(spread) | Kernel::SinkAttention(spread) | Kernel::SparseAttention(spread) => {
            spread_product(elements(0), spread, [1, 1])
        }
        Kernel::SpreadAttentionGrad(spread) | Kernel::SparseAttentionGrad(spread) => {
            spread_product(elements(1), spread, [3, 2])
        }
        // Each head's scores with every key before; in the gradient three products over what was chosen.
        Kernel::IndexKeys(of) => attention_product(elements(0), of.sequence, of.sequence),
        Kernel::IndexKeysGrad(of) => attention_product(elements(0), of.sequence, of.tokens).saturating_mul(3),
        Kernel::Recurrence(of) => recurrence_flops(graph, operator.outputs.first().copied(), of),
        // The forward's products again, and two of each.
        Kernel::RecurrenceGrad(of) => {
            let of_output = operator.inputs.first().map(|input| input.tensor);
            recurrence_flops(graph, of_output, of).saturating_mul(3)
        }
        // Each row meets one expert's matrix.
        Kernel::ExpertMatMul { .. } | Kernel::ExpertMatMulGrad => {
            let columns = |id: TensorId| u128::from(graph[id].shape.last().copied().unwrap_or(0));
            let other = match operator.kernel {
                Kernel::ExpertMatMul { .. } => operator.outputs.first().copied(),
                _ => operator.inputs.get(1).map(|input| input.tensor),
            };
            2 * elements(0).saturating_mul(other.map_or(0, columns))
        }
        // Materialised products are whole matrices: 2 operations for every position.
        Kernel::Scores(heads) => whole_product(elements(0), heads),
        Kernel::ScoresGrad(heads) => whole_product(elements(1), heads).saturating_mul(2),
        Kernel::Attend(heads) => {
            let attended = operator.outputs.first().map_or(0, |id| u128::from(graph[*id].elements()));
            whole_product(attended, heads)
        }
        Kernel::AttendGrad(heads) => whole_product(elements(0), heads).saturating_mul(2),
        _ => 0,
    }
}

/// Pairs of a token and one that it sees, over `length` tokens under the causal mask: itself and those before it, at
/// most `window` in all.
pub(crate) fn causal_pairs(length: u64, window: u64) -> u128 {
    let [length, window] = [length, window.min(length)].map(u128::from);
    window * (window + 1) / 2 + (length - window) * window
}

/// Operations of one product of attention under the causal mask: for each element of Q, 2 for each position up to its
/// own, of which there are `(sequence + 1) / 2` on average. Within a window, no token sees more than `window` of
/// them.
fn attention_product(query_elements: u128, sequence: u64, window: u64) -> u128 {
    if window >= sequence {
        return query_elements.saturating_mul(u128::from(sequence) + 1);
    }
    let [sequence, window] = [sequence, window].map(u128::from);
    // The first tokens see fewer; the others a whole window each. Twice the sum over a sequence.
    let seen = window * (window + 1) + 2 * (sequence - window) * window;
    query_elements.saturating_mul(seen).div_ceil(sequence)
}

/// Operations of products with queries and keys, and of products with values, from the elements of Q.
fn spread_product(query_elements: u128, spread: Spread, [with_keys, with_values]: [u128; 2]) -> u128 {
    let keys = attention_product(query_elements, spread.heads.sequence, spread.window);
    let values = keys / u128::from(spread.heads.width.max(1)) * u128::from(spread.value_width);
    keys.saturating_mul(with_keys).saturating_add(values.saturating_mul(with_values))
}

/// Operations of a recurrence in chunks of `c` tokens, whose output is `output`: for each token and head of width
/// `e`, with keys of width `d`, twice the multiplications of its products. Tiles within a chunk are whole, whatever
/// of them is hidden.
fn recurrence_flops(graph: &Graph, output: Option<TensorId>, of: Recurring) -> u128 {
    let rows = output.and_then(|id| graph[id].shape.first().copied()).unwrap_or(0);
    let [rows, c, heads, key_heads, d, e] =
        [rows, of.chunk().min(of.sequence), of.heads, of.key_heads, of.key_width, of.width].map(u128::from);
    let products = match of.kind {
        // Keys with keys, queries with keys, what a chunk corrects of keys and of values, its output; a read of the
        // state by keys and by queries, and what is written to it (arXiv:2412.06464 §3.3).
        RecurrenceKind::DeltaNet => heads * (c * (3 * d + 2 * e) + 3 * d * e),
        // C with B for each group, that with x; the state of the chunk, and the read of it (arXiv:2405.21060 §6).
        RecurrenceKind::Mamba2 => key_heads * c * d + heads * (c * e + 2 * d * e),
    };
    (2 * rows).saturating_mul(products)
}

/// Operations of one product of attention that materialises its scores, from the elements of Q.
fn whole_product(query_elements: u128, heads: Heads) -> u128 {
    query_elements.saturating_mul(2 * u128::from(heads.sequence))
}

/// Times of one microbatch's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct JobTimes {
    /// Of F, B and W apart.
    pub jobs: [Nanos; 3],
    /// Of the fused BW: no more than B's and W's together, and less where operators of W run beside a collective of B.
    pub fused: Nanos,
    /// What of F and of B, fused or not, exchanges of tokens with experts leave to what computes beside them.
    pub exchanges: [Nanos; 2],
}

impl JobTimes {
    /// By what each operator takes, in the order of the list: compute in that order, and beside it the collectives in
    /// theirs, and copies to the host's memory and back in theirs. One begins when compute has reached it and the one
    /// before has ended, and compute stands still where it waits for one that has not ended. That either slows the
    /// operators that run beside it is not counted.
    pub fn of_times(graph: &Graph, times: &[Nanos]) -> JobTimes {
        let mut ends: Vec<Nanos> = vec![0; graph.tensors.len()];
        let mut walk = |belongs: &dyn Fn(Job) -> bool| {
            let (mut compute, mut collectives, mut copies): (Nanos, Nanos, Nanos) = (0, 0, 0);
            for (operator, time) in graph.operators.iter().zip(times).filter(|(operator, _)| belongs(operator.job)) {
                let beside = match operator.stream {
                    Stream::Compute => None,
                    Stream::Collective => Some(&mut collectives),
                    Stream::Copies => Some(&mut copies),
                };
                if let Some(beside) = beside {
                    *beside = compute.max(*beside).saturating_add(*time);
                    operator.outputs.iter().for_each(|output| ends[output.index()] = *beside);
                    continue;
                }
                if operator.kernel.waits() {
                    let started = operator.inputs.first().map_or(0, |input| ends[input.tensor.index()]);
                    compute = compute.max(started);
                }
                compute = compute.saturating_add(*time);
            }
            compute
        };
        let (jobs, fused) = (Job::ALL.map(|job| walk(&|of| of == job)), walk(&|of| of != Job::F));
        let exchanges = [Job::F, Job::B].map(|job| {
            let of_job = graph.operators.iter().zip(times).filter(|(operator, _)| operator.job == job);
            let exchanges = of_job.filter(|(operator, _)| operator.kernel.axis() == Some(Axis::Expert));
            let all = exchanges.fold(0, |sum: Nanos, (_, time)| sum.saturating_add(*time));
            (u128::from(all) * u128::from(EXCHANGE_PER_MILLE) / 1000) as Nanos
        });
        JobTimes { jobs, fused, exchanges }
    }
}

/// The time of `operator` of `graph` on `device`, as [`Load::time`], with the shapes of its products and of its
/// attention.
pub fn operator_time(graph: &Graph, operator: &Operator, device: &Device, peers: &Peers) -> Nanos {
    let shape = shape_of(graph, operator);
    Load::of(graph, operator).time_of_shape(&operator.kernel, shape, device, peers)
}

/// By operator of `graph` its time by the roofline. Devices of a rank are joined as `peers` says.
pub fn operator_times(graph: &Graph, device: &Device, peers: &Peers) -> Vec<Nanos> {
    graph.operators.iter().map(|operator| operator_time(graph, operator, device, peers)).collect()
}

/// The shape of what `operator` multiplies or attends to; none where its time depends on its operations alone.
fn shape_of(graph: &Graph, operator: &Operator) -> Option<Shape> {
    let input = |at: usize| operator.inputs.get(at).map(|input| &graph[input.tensor]);
    let output = operator.outputs.first().map(|id| &graph[*id]);
    let last = |tensor: &Tensor| tensor.shape.last().copied().unwrap_or(1);
    let rows = |tensor: &Tensor| tensor.elements() / last(tensor).max(1);
    let one = |products: Products| Some(Shape::Products([products, Products { count: 0, ..products }]));
    match operator.kernel {
        Kernel::MatMul { transpose_a, .. } => {
            let (a, out) = (input(0)?, output?);
            let inner = if transpose_a { a.shape.first().copied().unwrap_or(1) } else { last(a) };
            one(Products { count: 1, rows: rows(out), columns: last(out), inner })
        }
        Kernel::DetachedMatMul => {
            let (x, out) = (input(0)?, output?);
            one(Products { count: 1, rows: rows(out), columns: last(out), inner: last(x) })
        }
        // Each expert has its part of the rows.
        Kernel::ExpertMatMul { .. } => {
            let (x, out) = (input(0)?, output?);
            let count = input(1)?.shape.first().copied().unwrap_or(1).max(1);
            let rows = rows(out).div_ceil(count);
            one(Products { count, rows, columns: last(out), inner: last(x) })
        }
        Kernel::ExpertMatMulGrad => {
            let (dy, x, gradient) = (input(0)?, input(1)?, output?);
            let count = gradient.shape.first().copied().unwrap_or(1).max(1);
            let inner = rows(dy).div_ceil(count);
            one(Products { count, rows: last(dy), columns: last(x), inner })
        }
        Kernel::Scores(heads) | Kernel::Attend(heads) => {
            let scored = matches!(operator.kernel, Kernel::Scores(_));
            one(batched(heads, if scored { input(0)? } else { output? }, scored))
        }
        Kernel::ScoresGrad(heads) => {
            let to_queries = batched(heads, output?, false);
            Some(Shape::Products([to_queries, to_queries]))
        }
        Kernel::AttendGrad(heads) => {
            let dy = input(0)?;
            Some(Shape::Products([batched(heads, dy, true), batched(heads, dy, false)]))
        }
        _ => attends(graph, operator),
    }
}

/// The products of materialised attention, one for each sequence and head: of scores, `[sequence, sequence]` over the
/// width of a head, or to what is as wide as `by_token`, over the sequence.
fn batched(heads: Heads, by_token: &Tensor, scores: bool) -> Products {
    let Heads { sequence, query, width, .. } = heads;
    let count = by_token.elements() / (sequence * query.max(1) * width).max(1);
    let (columns, inner) = if scores { (sequence, width) } else { (width, sequence) };
    Products { count: count.max(1) * query.max(1), rows: sequence, columns, inner }
}

/// The shape of fused attention.
fn attends(graph: &Graph, operator: &Operator) -> Option<Shape> {
    let (spread, backward) = spread_of(&operator.kernel)?;
    let queries = operator.inputs.get(usize::from(backward)).map(|input| graph[input.tensor].elements())?;
    let of_device = spread.heads.sequence / spread.ways.max(1);
    let blocks = (queries / spread.heads.width.max(1)).div_ceil(rates::QUERY_BLOCK);
    let keys = spread.window.min(of_device);
    Some(Shape::Attends(Attends { keys, width: spread.value_width, blocks, backward }))
}

/// The heads of fused attention, and whether it is the backward.
fn spread_of(kernel: &Kernel) -> Option<(Spread, bool)> {
    let alone = |heads: Heads| Spread { heads, value_width: heads.width, ways: 1, window: heads.sequence };
    match *kernel {
        Kernel::Attention(heads) | Kernel::FullAttention(heads) => Some((alone(heads), false)),
        Kernel::AttentionGrad(heads) | Kernel::FullAttentionGrad(heads) => Some((alone(heads), true)),
        Kernel::SpreadAttention(spread) | Kernel::SinkAttention(spread) => Some((spread, false)),
        Kernel::SpreadAttentionGrad(spread) => Some((spread, true)),
        _ => None,
    }
}

/// The keys and values of fused attention, or of its gradient: what slices behind this one read, too. None of other
/// operators.
pub fn keys_and_values(operator: &Operator) -> Option<&[Use]> {
    let (_, backward) = spread_of(&operator.kernel)?;
    let first = 1 + usize::from(backward);
    operator.inputs.get(first..first + 2)
}

/// The time of fused attention on a slice of sequences behind `before` slices as long, where a token sees `window`
/// tokens: operations for its pairs of tokens, and the keys and values of all these slices read, and sent around a
/// ring. The backward also adds to the gradients of those before. None for other operators.
pub(crate) fn slice_time(
    graph: &Graph,
    operator: &Operator,
    [before, window]: [u64; 2],
    device: &Device,
    peers: &Peers,
) -> Option<Nanos> {
    let (spread, backward) = spread_of(&operator.kernel)?;
    let Some(Shape::Attends(own)) = attends(graph, operator) else { return None };
    let tokens = spread.heads.sequence;
    let seen = |slices: u64| causal_pairs(tokens.saturating_mul(slices), window);
    let pairs = seen(before + 1) - seen(before);
    let load = Load::of(graph, operator);
    let read = keys_and_values(operator)?
        .iter()
        .fold(0, |sum: Bytes, input| sum.saturating_add(graph[input.tensor].bytes()));
    // Gradients are read and written.
    let read = read.saturating_mul(if backward { 3 } else { 1 }).saturating_mul(before);
    let load = Load {
        flops: load.flops.saturating_mul(pairs) / seen(1).max(1),
        bytes: load.bytes.saturating_add(read),
        sent: load.sent.saturating_mul(before + 1),
        ..load
    };
    let keys = window.min(tokens.saturating_mul(before + 1) / spread.ways.max(1));
    let shape = Shape::Attends(Attends { keys, ..own });
    Some(load.time_of_shape(&operator.kernel, Some(shape), device, peers))
}

/// Floating-point operations of F, B and W of one microbatch.
pub fn job_flops(graph: &Graph) -> [u128; 3] {
    let mut all = [0; 3];
    for job in Job::ALL {
        all[job as usize] = graph.job(job).fold(0, |sum: u128, operator| sum.saturating_add(flops(graph, operator)));
    }
    all
}

/// Floating-point operations of one microbatch that the gradients of what trains need, where nothing is recomputed: the
/// gradient of attention counts twice its forward, without the scores that a fused kernel computes again.
pub fn needed_flops(graph: &Graph) -> u128 {
    let forward_of = |query: TensorId| {
        let forward = graph.job(Job::F).find(|operator| {
            let is_attention = matches!(
                operator.kernel,
                Kernel::Attention(_)
                    | Kernel::SpreadAttention(_)
                    | Kernel::SinkAttention(_)
                    | Kernel::SparseAttention(_)
                    | Kernel::FullAttention(_)
            );
            is_attention && operator.inputs.first().is_some_and(|input| input.tensor == query)
        });
        forward.map(|operator| flops(graph, operator).saturating_mul(2))
    };
    let of_operator = |operator: &Operator| match operator.kernel {
        Kernel::AttentionGrad(_)
        | Kernel::SpreadAttentionGrad(_)
        | Kernel::SparseAttentionGrad(_)
        | Kernel::FullAttentionGrad(_) => {
            let query = operator.inputs.get(1).map(|input| input.tensor);
            query.and_then(forward_of).unwrap_or_else(|| flops(graph, operator))
        }
        // As for any matmul: two gradients.
        Kernel::RecurrenceGrad(_) => flops(graph, operator) / 3 * 2,
        _ => flops(graph, operator),
    };
    graph.operators.iter().fold(0, |sum: u128, operator| sum.saturating_add(of_operator(operator)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::stage_graph;
    use crate::graph::form::StageShape;
    use crate::graph::form::{Form, Offload};
    use crate::hardware::cluster;
    use crate::model::catalog;

    fn whole_model(name: &str, sequence: u32) -> Graph {
        let model = catalog::find(name).map(|entry| entry.config).unwrap();
        let shape = StageShape {
            layers: 0..model.layers,
            has_embedding: true,
            has_head: true,
            modules: crate::model::Modules::default(),
            microbatch_size: 1,
            sequence,
            dtype: Dtype::Bf16,
            form: Form::default(),
        };
        stage_graph(&model, &shape, 1)
    }

    /// 2 operations a token for each parameter of a matrix in F, the same in B and in W (arXiv:2001.08361 §2.1);
    /// the embedding is no matrix product. Attention over `s` tokens adds `2 · layers · hidden · (s + 1)` a token in
    /// F, with the causal mask, and 2.5 times that in B.
    #[test]
    fn operations_are_those_of_the_closed_form() {
        for name in ["llama-2-7b", "llama-2-13b"] {
            let model = catalog::find(name).map(|entry| entry.config).unwrap();
            let sequence = 512u32;
            let [f, b, w] = job_flops(&whole_model(name, sequence));
            let gains = u64::from(model.hidden) * (2 * u64::from(model.layers) + 1);
            let table = u64::from(model.vocab) * u64::from(model.hidden);
            let matrices = u128::from(model.parameters() - gains - table) * u128::from(sequence) * 2;
            let [layers, hidden, s] = [model.layers, model.hidden, sequence].map(u128::from);
            let attention = 2 * layers * hidden * (s + 1) * s;
            assert_eq!(f, matrices + attention, "{name}");
            assert_eq!(b, matrices + attention * 5 / 2, "{name}");
            assert_eq!(w, matrices, "{name}");
        }
    }

    /// Within a window of `w` tokens, token `i` sees `min(i, w)`: of `s` tokens `w(w + 1)/2 + (s − w)w` pairs instead
    /// of `s(s + 1)/2`. Gemma 2's every other layer has one.
    #[test]
    fn a_window_saves_the_pairs_that_it_hides() {
        let flops = |sequence: u32, window| {
            let model = catalog::find("gemma-2-9b").map(|entry| entry.config).unwrap();
            let model =
                crate::model::ModelConfig { variant: crate::model::Variant { window, ..model.variant }, ..model };
            let shape = StageShape {
                layers: 0..2,
                has_embedding: false,
                has_head: false,
                modules: crate::model::Modules::default(),
                microbatch_size: 1,
                sequence,
                dtype: Dtype::Bf16,
                form: Form::default(),
            };
            job_flops(&stage_graph(&model, &shape, 1))
        };
        let windowed = |tokens| Some(crate::model::Window::sliding(tokens, 2));
        assert_eq!(flops(4096, windowed(4096)), flops(4096, None));
        let ([f, b, w], [all_f, all_b, all_w]) = (flops(8192, windowed(4096)), flops(8192, None));
        let (s, window) = (8192u128, 4096u128);
        let hidden_pairs = s * (s + 1) / 2 - (window * (window + 1) / 2 + (s - window) * window);
        // Two operations for each pair and column of queries, in F's two products and B's five, of one layer.
        let product = 2 * hidden_pairs * 16 * 256;
        assert_eq!((all_f - f, all_b - b, all_w - w), (2 * product, 5 * product, 0));
    }

    #[test]
    fn a_faster_device_takes_no_longer() {
        let graph = whole_model("tiny-llama", 64);
        let device = |name| cluster::find(name).map(|entry| entry.device(Dtype::Bf16)).unwrap();
        for (slow, fast) in [("cpu", "a100-80"), ("a100-40", "a100-80"), ("a100-80", "h100"), ("h100", "h200")] {
            let (mut slow, mut fast) = (device(slow), device(fast));
            (slow.launch_ns, fast.launch_ns) = (0, 0);
            let link = Peers::all(Link { bytes_per_s: 1, latency_ns: 0 });
            let [slow, fast] =
                [slow, fast].map(|device| JobTimes::of_times(&graph, &operator_times(&graph, &device, &link)));
            assert!(slow.jobs.iter().zip(&fast.jobs).all(|(slow, fast)| slow >= fast));
        }
    }

    /// Jobs take what they take without copies where these take next to nothing, never less, no less than their
    /// copies, and less the faster those are. Copies of half the layers take no longer than those of all.
    #[test]
    fn copies_take_what_compute_leaves_uncovered() {
        let model = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
        let mut device = cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap();
        let link = Peers::all(Link { bytes_per_s: 1, latency_ns: 0 });
        let graph = |offload| {
            let shape = StageShape {
                layers: 4..12,
                has_embedding: false,
                has_head: true,
                modules: crate::model::Modules::default(),
                microbatch_size: 1,
                sequence: 2048,
                dtype: Dtype::Bf16,
                form: Form { offload, ..Form::default() },
            };
            stage_graph(&model, &shape, 1)
        };
        let times = |graph: &Graph, device: &Device| JobTimes::of_times(graph, &operator_times(graph, device, &link));
        let plain = graph(Offload::None);
        let kept = times(&plain, &device);
        for (offload, copied) in [(Offload::First(1), 1), (Offload::First(4), 4), (Offload::All, 8)] {
            let graph = graph(offload);
            let copies = |job: Job| graph.job(job).filter(|operator| operator.kernel.copies()).count() as u64;
            let mut before: Option<JobTimes> = None;
            for rate in [5, 25, 52, 150, 1_000_000].map(|rate| rate * 1_000_000_000) {
                (device.host_bytes_per_s, device.launch_ns) = (rate, if rate > 1 << 50 { 0 } else { 3000 });
                let at = JobTimes { exchanges: [0; 2], ..times(&graph, &device) };
                let all = [at.jobs[0], at.jobs[1], at.jobs[2], at.fused];
                let free = [kept.jobs[0], kept.jobs[1], kept.jobs[2], kept.fused];
                if device.launch_ns > 0 {
                    assert!(all.iter().zip(free).all(|(time, free)| *time >= free), "{offload:?}: {all:?} {free:?}");
                }
                for job in Job::ALL {
                    let of_job = graph.job(job).filter(|operator| operator.kernel.copies());
                    let bytes: u64 = of_job.map(|operator| Load::of(&graph, operator).copied).sum();
                    let least = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
                    assert!(u128::from(at.jobs[job as usize]) >= least, "{offload:?} {job:?}");
                }
                if let Some(before) = before.filter(|_| device.launch_ns > 0) {
                    assert!(at.jobs.iter().zip(before.jobs).all(|(time, before)| *time <= before), "{offload:?}");
                }
                before = Some(at);
            }
            let (layer_copies, all) = (copies(Job::F), copies(Job::B) + copies(Job::W));
            assert!(
                layer_copies == all && layer_copies >= 8 * copied && layer_copies <= 12 * copied,
                "{layer_copies}"
            );
            // Without a latency, and as fast as may be: each a nanosecond at most, as times are rounded up.
            device.host_bytes_per_s = cluster::MAX_RATE;
            let (none, at) = (times(&plain, &device), times(&graph, &device));
            let all = none.jobs.iter().zip(at.jobs).chain([(&none.fused, at.fused)]);
            assert!(all.into_iter().all(|(none, at)| at - none <= layer_copies), "{none:?} {at:?}");
        }
    }

    #[test]
    fn times_round_up_and_never_overflow() {
        assert_eq!(at_rate(1, 3, 1000), 333_333_334);
        assert_eq!(at_rate(0, 0, 1000), 0);
        assert_eq!(at_rate(u128::MAX, 1, 1), Nanos::MAX);
    }
}
