//! The documented formulas, written down as plainly as possible in `f64`, on an arena that takes and gives back
//! buffers by the graph's rules. Gradients are held against differences of the loss, bytes against liveness, and devices
//! that share matrices against one that does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::format;
use std::vec;
use std::vec::Vec;

use super::build::{stage_graph, stage_graph_with};
use super::form::StageShape;
use super::form::{AttentionForm, Form, Offload, Recompute};
use super::liveness::{Lifetimes, fused_order};
use super::*;
use crate::model::{
    Activation, Caps, E12, Experts, Factors, Family, Latent, ModelConfig, Routing, Scores, Variant, Window,
};

mod newer;

/// One stage's buffers on one device. Reading one that is not there is a panic, and so a failed test.
struct Arena<'g> {
    graph: &'g Graph,
    /// The device's number among those that share matrices.
    member: usize,
    lifetimes: Lifetimes,
    values: BTreeMap<TensorId, Vec<f64>>,
    /// Results of collectives that have started, by the started tensor.
    under_way: RefCell<BTreeMap<TensorId, Vec<f64>>>,
    held: u64,
}

impl<'g> Arena<'g> {
    fn new(graph: &'g Graph, member: usize, weights: &BTreeMap<String, Vec<f64>>, lifetimes: Lifetimes) -> Arena<'g> {
        let mut values = BTreeMap::new();
        for (id, tensor) in graph.tensors() {
            match tensor.role {
                Role::Weight { .. } => values.insert(id, held(tensor, member, &weights[&tensor.name])),
                Role::WeightCopy { of } => values.insert(id, held(&graph[of], member, &weights[&graph[of].name])),
                Role::WeightGradient { .. } => values.insert(id, vec![0.0; tensor.elements() as usize]),
                _ => None,
            };
        }
        Arena { graph, member, lifetimes, values, under_way: RefCell::default(), held: 0 }
    }

    /// Takes what arrives for a job.
    fn begin(&mut self, job: Job, arriving: &BTreeMap<Border, Vec<f64>>) {
        for id in self.lifetimes.arrive[job as usize].clone() {
            self.values.insert(id, arriving[&Border::of(self.graph[id].role)].clone());
            self.held += self.graph[id].device_bytes();
        }
    }

    /// Puts in what an operator has made and frees what it was the last to need. The most bytes held meanwhile.
    fn settle(&mut self, at: usize, outputs: Vec<Vec<f64>>) -> u64 {
        let operator = &self.graph.operators[at];
        if let (Kernel::OffloadWait | Kernel::ReloadWait, [copy, from]) = (operator.kernel, &operator.inputs[..]) {
            let copied = self.under_way.borrow_mut().remove(&copy.tensor).unwrap();
            assert_eq!(copied, self.values[&from.tensor], "somebody wrote what is copied");
            let before = self.values.insert(copy.tensor, copied);
            assert!(before.is_some_and(|before| before.iter().all(|number| number.is_nan())));
        }
        if self.lifetimes.takes_over[at] {
            let given = operator.inputs[operator.in_place.unwrap() as usize].tensor;
            self.values.remove(&given).unwrap();
            self.held -= self.graph[given].device_bytes();
        }
        for (id, value) in operator.outputs.iter().zip(outputs) {
            assert_eq!(value.len() as u64, self.graph[*id].elements(), "{}", self.graph[*id].name);
            let before = self.values.insert(*id, value);
            if !self.graph[*id].role.is_persistent() {
                assert!(before.is_none());
                self.held += self.graph[*id].device_bytes();
            }
        }
        let most = self.held;
        for id in self.lifetimes.free_after[at].clone() {
            self.values.remove(&id).unwrap();
            self.held -= self.graph[id].device_bytes();
        }
        most
    }

    /// Gives what leaves after a job.
    fn end(&mut self, job: Job) -> BTreeMap<Border, Vec<f64>> {
        let mut leaving = BTreeMap::new();
        for id in self.lifetimes.end[job as usize].clone() {
            let value = self.values.remove(&id).unwrap();
            self.held -= self.graph[id].device_bytes();
            leaving.insert(Border::of(self.graph[id].role), value);
        }
        leaving
    }

    /// Where this device's element `e` of `len` stands among all devices', of which it holds every `ways`-th block.
    fn place(&self, e: usize, len: usize, ways: u64, blocks: u64) -> usize {
        let block = len / blocks as usize;
        let member = if ways > 1 { self.member } else { 0 };
        (e / block * ways as usize + member) * block + e % block
    }

    fn compute(&self, operator: &Operator) -> Vec<Vec<f64>> {
        let nothing = Vec::new();
        let data = |input: &Use| match input.needs {
            Needs::Data => &self.values[&input.tensor],
            Needs::Shape => &nothing,
        };
        let x: Vec<&Vec<f64>> = operator.inputs.iter().map(data).collect();
        let columns = |at: usize| {
            let shape = &self.graph[operator.inputs[at].tensor].shape;
            if shape.len() > 1 { shape[shape.len() - 1] as usize } else { 1 }
        };
        let h = columns(0);
        let n = x[0].len() / h;
        let row = |of: usize, i: usize| &x[of][i * columns(of)..(i + 1) * columns(of)];
        let by_element = |f: &dyn Fn(usize) -> f64| (0..x[0].len()).map(f).collect::<Vec<f64>>();
        let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
        match operator.kernel {
            Kernel::OwnTokens { rows } => vec![by_element(&|e| {
                let own = x[0][e] - (self.member as u64 * rows) as f64;
                if own >= 0.0 && own < rows as f64 { own } else { -1.0 }
            })],
            Kernel::Embedding => {
                let of =
                    |token: &f64| if *token < 0.0 { vec![0.0; columns(1)] } else { row(1, *token as usize).to_vec() };
                vec![x[0].iter().flat_map(of).collect()]
            }
            Kernel::EmbeddingGrad => {
                let mut sum = x[2].clone();
                for i in (0..n).filter(|i| x[1][*i] >= 0.0) {
                    for j in 0..h {
                        sum[x[1][i] as usize * h + j] += x[0][i * h + j];
                    }
                }
                vec![sum]
            }
            Kernel::Positions { sequence, ways } => {
                let position = |e: usize| self.place(e / h, n, ways, 1) % sequence as usize;
                vec![by_element(&|e| x[0][e] + x[1][position(e) * h + e % h])]
            }
            Kernel::PositionsGrad { sequence, ways } => {
                let position = |e: usize| self.place(e / h, n, ways, 1) % sequence as usize;
                let mut sum = x[1].clone();
                (0..x[0].len()).for_each(|e| sum[position(e) * h + e % h] += x[0][e]);
                vec![sum]
            }
            Kernel::RmsNorm { eps_e12, offset } => {
                let r: Vec<f64> = (0..n)
                    .map(|i| {
                        let mean = row(0, i).iter().map(|x| x * x).sum::<f64>() / h as f64;
                        (mean + of_e12(eps_e12)).sqrt().recip()
                    })
                    .collect();
                vec![by_element(&|e| x[0][e] * r[e / h] * (x[1][e % h] + one_more(offset))), r]
            }
            Kernel::RmsNormInputGrad { offset } => {
                let (dy, x, r, gain) = (x[0], x[1], x[2], x[3]);
                let gain: Vec<f64> = gain.iter().map(|gain| gain + one_more(offset)).collect();
                let mean =
                    |i: usize| (i * h..(i + 1) * h).map(|e| dy[e] * gain[e % h] * x[e]).sum::<f64>() / h as f64;
                vec![by_element(&|e| {
                    let (i, j) = (e / h, e % h);
                    r[i] * (dy[e] * gain[j] - x[e] * r[i] * r[i] * mean(i))
                })]
            }
            Kernel::RmsNormGainGrad => {
                let mut sum = x[3].clone();
                (0..x[0].len()).for_each(|e| sum[e % h] += x[0][e] * x[1][e] * x[2][e / h]);
                vec![sum]
            }
            Kernel::LayerNorm { eps_e12 } => {
                let mean: Vec<f64> = (0..n).map(|i| row(0, i).iter().sum::<f64>() / h as f64).collect();
                let r: Vec<f64> = (0..n)
                    .map(|i| {
                        let variance = row(0, i).iter().map(|x| (x - mean[i]).powi(2)).sum::<f64>() / h as f64;
                        (variance + of_e12(eps_e12)).sqrt().recip()
                    })
                    .collect();
                vec![by_element(&|e| (x[0][e] - mean[e / h]) * r[e / h] * x[1][e % h] + x[2][e % h]), mean, r]
            }
            Kernel::LayerNormInputGrad => {
                let (dy, x, mean, r, gain) = (x[0], x[1], x[2], x[3], x[4]);
                let u = |e: usize| dy[e] * gain[e % h];
                let z = |e: usize| (x[e] - mean[e / h]) * r[e / h];
                vec![by_element(&|e| {
                    let i = e / h;
                    let of_row = || i * h..(i + 1) * h;
                    let mean_u = of_row().map(u).sum::<f64>() / h as f64;
                    let mean_uz = of_row().map(|k| u(k) * z(k)).sum::<f64>() / h as f64;
                    r[i] * (u(e) - mean_u - z(e) * mean_uz)
                })]
            }
            Kernel::LayerNormGainGrad => {
                let mut sum = x[4].clone();
                (0..x[0].len()).for_each(|e| sum[e % h] += x[0][e] * (x[1][e] - x[2][e / h]) * x[3][e / h]);
                vec![sum]
            }
            Kernel::AddBias => vec![by_element(&|e| x[0][e] + x[1][e % h])],
            Kernel::BiasGrad => {
                let mut sum = x[1].clone();
                (0..x[0].len()).for_each(|e| sum[e % h] += x[0][e]);
                vec![sum]
            }
            Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
                let at = |of: usize, transposed: bool, i: usize, j: usize| {
                    if transposed { row(of, j)[i] } else { row(of, i)[j] }
                };
                let sizes = |of: usize, transposed: bool| {
                    let (columns, rows) = (columns(of), x[of].len() / columns(of));
                    if transposed { (columns, rows) } else { (rows, columns) }
                };
                let ((rows, inner), (inner_b, out)) = (sizes(0, transpose_a), sizes(1, transpose_b));
                assert_eq!(inner, inner_b);
                let mut sum = if accumulate { x[2].clone() } else { vec![0.0; rows * out] };
                for i in 0..rows {
                    for j in 0..out {
                        sum[i * out + j] +=
                            (0..inner).map(|k| at(0, transpose_a, i, k) * at(1, transpose_b, k, j)).sum::<f64>();
                    }
                }
                vec![sum]
            }
            Kernel::Rope { sequence, width, base, inverse, .. } => {
                let (d, half) = (width as usize, width as usize / 2);
                vec![by_element(&|e| {
                    let (position, j) = ((e / h) % sequence as usize, e % d);
                    let power = -2.0 * (j % half) as f64 / d as f64;
                    let angle = position as f64 * (base as f64).powf(power) * if inverse { -1.0 } else { 1.0 };
                    if j < half {
                        x[0][e] * angle.cos() - x[0][e + half] * angle.sin()
                    } else {
                        x[0][e] * angle.cos() + x[0][e - half] * angle.sin()
                    }
                })]
            }
            Kernel::Attention(heads) => attention(heads, x[0], x[1], x[2]),
            Kernel::AttentionGrad(heads) => attention_grad(heads, &x),
            Kernel::Scores(heads) => vec![scores(heads, x[0], x[1])],
            Kernel::ScoresGrad(heads) => scores_grad(heads, &x),
            Kernel::Softmax => vec![by_element(&|e| {
                let sum: f64 = row(0, e / h).iter().map(|x| x.exp()).sum();
                x[0][e].exp() / sum
            })],
            Kernel::SoftmaxGrad => vec![by_element(&|e| x[1][e] * (x[0][e] - dot(row(0, e / h), row(1, e / h))))],
            Kernel::Attend(heads) => vec![attend(heads, x[0], x[1])],
            Kernel::AttendGrad(heads) => attend_grad(heads, &x),
            Kernel::Dropout { site, ways, blocks, .. } => {
                let place = |e| self.place(e, x[0].len(), ways, blocks) as u64;
                let kept = by_element(&|e| f64::from(number(site * 1000 + place(e)) < 0.8));
                vec![by_element(&|e| x[0][e] * kept[e] / 0.9), kept]
            }
            Kernel::DropoutGrad => vec![by_element(&|e| x[0][e] * x[1][e] / 0.9)],
            Kernel::Replicate { .. } => vec![x[0].clone()],
            Kernel::AllReduce { .. }
            | Kernel::AllReduceMax { .. }
            | Kernel::AllReduceStart { .. }
            | Kernel::ReduceScatterStart { .. }
            | Kernel::AllGather { .. }
            | Kernel::ReduceScatter { .. } => panic!("not one device's alone"),
            Kernel::SpreadAttention(_)
            | Kernel::SpreadAttentionGrad(_)
            | Kernel::HeadNorm { .. }
            | Kernel::HeadNormInputGrad { .. }
            | Kernel::HeadNormGainGrad { .. }
            | Kernel::RopeTail { .. }
            | Kernel::SplitColumns
            | Kernel::JoinColumns
            | Kernel::LatentKeys { .. }
            | Kernel::LatentKeysGrad { .. }
            | Kernel::Route { .. }
            | Kernel::RouteGrad { .. }
            | Kernel::Dispatch { .. }
            | Kernel::DispatchGrad { .. }
            | Kernel::Combine { .. }
            | Kernel::CombineGrad { .. }
            | Kernel::WeightedGlu { .. }
            | Kernel::WeightedGluGrad { .. }
            | Kernel::ExpertMatMul { .. }
            | Kernel::RowGate
            | Kernel::RowGateGrad
            | Kernel::ExpertMatMulGrad
            | Kernel::GeGlu
            | Kernel::GeGluGrad => {
                let sizes: Vec<usize> =
                    operator.outputs.iter().map(|id| self.graph[*id].elements() as usize).collect();
                newer::compute(operator.kernel, &x, &columns, &sizes)
            }
            Kernel::SwiGlu => vec![by_element(&|e| x[0][e] * sigma(x[0][e]) * x[1][e])],
            Kernel::SwiGluGrad => {
                let (dy, gate, up) = (x[0], x[1], x[2]);
                let dgate = by_element(&|e| {
                    let s = sigma(gate[e]);
                    dy[e] * up[e] * s * (1.0 + gate[e] * (1.0 - s))
                });
                vec![dgate, by_element(&|e| dy[e] * gate[e] * sigma(gate[e]))]
            }
            Kernel::Gelu => vec![by_element(&|e| x[0][e] * (1.0 + libm::erf(x[0][e] / 2f64.sqrt())) / 2.0)],
            Kernel::GeluGrad => vec![by_element(&|e| {
                let v = x[1][e];
                let bell = (-v * v / 2.0).exp() / (2.0 * core::f64::consts::PI).sqrt();
                x[0][e] * ((1.0 + libm::erf(v / 2f64.sqrt())) / 2.0 + v * bell)
            })],
            // The copy stays aside until the wait, as what collectives make.
            Kernel::Offload | Kernel::Reload => {
                self.under_way.borrow_mut().insert(operator.outputs[0], x[0].clone());
                vec![vec![f64::NAN; x[0].len()]]
            }
            Kernel::OffloadWait | Kernel::ReloadWait => vec![],
            Kernel::AllReduceWait | Kernel::ReduceScatterWait => {
                assert!(x[0].iter().all(|number| number.is_nan()), "somebody wrote what is under way");
                vec![self.under_way.borrow_mut().remove(&operator.inputs[0].tensor).unwrap()]
            }
            Kernel::Cast => vec![x[0].clone()],
            Kernel::Quantize => vec![x[0].clone(), x[0].clone()],
            Kernel::Add => vec![by_element(&|e| x[0][e] + x[1][e])],
            Kernel::Scale { factor_e12 } => vec![by_element(&|e| x[0][e] * factor_e12 as f64 * 1e-12)],
            Kernel::SoftCap { cap_e12 } => {
                let hidden = |x: f64| x == f64::NEG_INFINITY;
                vec![by_element(&|e| if hidden(x[0][e]) { x[0][e] } else { capped(x[0][e], Some(cap_e12)) })]
            }
            Kernel::SoftCapGrad { cap_e12 } => vec![by_element(&|e| match x[1][e] {
                f64::NEG_INFINITY => 0.0,
                y => x[0][e] * slope_within(y, Some(cap_e12)),
            })],
            Kernel::CrossEntropy { microbatches } => {
                let l: Vec<f64> = (0..n).map(|i| row(0, i).iter().map(|x| x.exp()).sum::<f64>().ln()).collect();
                let sum: f64 = (0..n).map(|i| l[i] - row(0, i)[x[1][i] as usize]).sum();
                vec![vec![sum / (n as f64 * microbatches as f64)], l]
            }
            Kernel::HidePadding { vocab } => {
                let column = |e: usize| (self.member * h + e % h) as u64;
                vec![by_element(&|e| if column(e) < vocab { x[0][e] } else { f64::NEG_INFINITY })]
            }
            Kernel::RowMax => {
                vec![(0..n).map(|i| row(0, i).iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect()]
            }
            Kernel::ExpSums => {
                let sum = |i: usize| row(0, i).iter().map(|logit| (logit - x[1][i]).exp()).sum::<f64>();
                let own = |i: usize| if x[2][i] < 0.0 { 0.0 } else { row(0, i)[x[2][i] as usize] };
                vec![(0..n).flat_map(|i| [sum(i), own(i)]).collect()]
            }
            Kernel::SharedCrossEntropy { microbatches } => {
                let l: Vec<f64> = (0..n).map(|i| x[0][i] + row(1, i)[0].ln()).collect();
                let sum: f64 = (0..n).map(|i| l[i] - row(1, i)[1]).sum();
                vec![vec![sum / (n as f64 * microbatches as f64)], l]
            }
            Kernel::CrossEntropyGrad { microbatches, weight_e12 } => vec![by_element(&|e| {
                let (i, j) = (e / h, e % h);
                let target = if j as f64 == x[1][i] { 1.0 } else { 0.0 };
                of_e12(weight_e12) * ((x[0][e] - x[2][i]).exp() - target) / (n as f64 * microbatches as f64)
            })],
        }
    }
}

/// What each of `arenas`, the devices that share matrices, makes by operator `at`.
fn computed(arenas: &[&mut Arena], at: usize) -> Vec<Vec<Vec<f64>>> {
    let operator = &arenas[0].graph.operators[at];
    let rows: Vec<&Vec<f64>> = arenas.iter().map(|arena| &arena.values[&operator.inputs[0].tensor]).collect();
    let all = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let over = |e: usize| rows.iter().map(|values| values[e]).reduce(f).unwrap();
        (0..rows[0].len()).map(over).collect()
    };
    let ways = match operator.kernel {
        Kernel::AllReduce { ways } | Kernel::AllReduceMax { ways } => ways,
        Kernel::AllGather { ways } | Kernel::ReduceScatter { ways } => ways,
        Kernel::AllReduceStart { ways } | Kernel::ReduceScatterStart { ways } => ways,
        _ => return arenas.iter().map(|arena| arena.compute(operator)).collect(),
    };
    assert_eq!(ways as usize, arenas.len());
    let member = |member: usize| match operator.kernel {
        Kernel::AllReduceMax { .. } => all(&f64::max),
        Kernel::AllGather { .. } => rows.iter().flat_map(|rows| rows.iter().copied()).collect(),
        Kernel::ReduceScatter { .. } | Kernel::ReduceScatterStart { .. } => {
            let part = rows[0].len() / arenas.len();
            all(&|a, b| a + b)[member * part..(member + 1) * part].to_vec()
        }
        _ => all(&|a, b| a + b),
    };
    if operator.kernel.starts() {
        // The result stays aside until the wait. Whoever reads the buffer before, or writes it, would show.
        return (0..arenas.len())
            .map(|at| {
                let result = member(at);
                let started = vec![f64::NAN; result.len()];
                arenas[at].under_way.borrow_mut().insert(operator.outputs[0], result);
                vec![started]
            })
            .collect();
    }
    (0..arenas.len()).map(|at| vec![member(at)]).collect()
}

/// Where the elements that a device holds of `tensor` stand in the whole weight; none for padding.
fn places_held(tensor: &Tensor, member: usize) -> Vec<Option<usize>> {
    let elements = 0..tensor.elements() as usize;
    let Some(split) = tensor.split() else { return elements.map(Some).collect() };
    let (inner, own): (usize, usize) = {
        let after = &tensor.shape[split.dimension as usize + 1..];
        (after.iter().product::<u64>() as usize, tensor.shape[split.dimension as usize] as usize)
    };
    let first = split.piece_of(member as u64) as usize * own;
    let place = |e: usize| {
        let (outer, index, rest) = (e / inner / own, first + e / inner % own, e % inner);
        (index < split.whole as usize).then_some((outer * split.whole as usize + index) * inner + rest)
    };
    elements.map(place).collect()
}

/// What a device holds of the weight `whole`.
fn held(tensor: &Tensor, member: usize, whole: &[f64]) -> Vec<f64> {
    places_held(tensor, member).into_iter().map(|place| place.map_or(0.0, |place| whole[place])).collect()
}

/// Indices of what attention reads: sequence by sequence, head by head.
struct Reads {
    sequence: usize,
    heads: usize,
    key_value: usize,
    width: usize,
}

impl Reads {
    fn of(heads: Heads) -> Reads {
        let [sequence, query, key_value, width] =
            [heads.sequence, heads.query, heads.key_value, heads.width].map(|size| size as usize);
        Reads { sequence, heads: query, key_value, width }
    }

    fn query(&self, row: usize, head: usize) -> core::ops::Range<usize> {
        let from = (row * self.heads + head) * self.width;
        from..from + self.width
    }

    fn key(&self, row: usize, head: usize) -> core::ops::Range<usize> {
        let from = (row * self.key_value + head * self.key_value / self.heads) * self.width;
        from..from + self.width
    }

    /// The rows that row `i` looks at.
    fn seen(&self, i: usize) -> core::ops::RangeInclusive<usize> {
        i / self.sequence * self.sequence..=i
    }
}

/// What is added to the weight of a norm.
fn one_more(offset: bool) -> f64 {
    if offset { 1.0 } else { 0.0 }
}

/// `x` within a soft cap, written otherwise than with a hyperbolic tangent.
fn capped(x: f64, cap_e12: Option<u64>) -> f64 {
    let Some(cap) = cap_e12.map(|cap| cap as f64 * 1e-12) else { return x };
    let (up, down) = ((x / cap).exp(), (-x / cap).exp());
    cap * (up - down) / (up + down)
}

/// The slope of a soft cap where it gives `y`.
fn slope_within(y: f64, cap_e12: Option<u64>) -> f64 {
    cap_e12.map_or(1.0, |cap| 1.0 - (y / (cap as f64 * 1e-12)).powi(2))
}

/// What products of queries and keys are multiplied with.
fn scale_of(heads: &Heads) -> f64 {
    heads.scale_e12.map_or((heads.width as f64).powf(-0.5), |scale| scale as f64 * 1e-12)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn attention(heads: Heads, q: &[f64], k: &[f64], v: &[f64]) -> Vec<Vec<f64>> {
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let (mut o, mut l) = (vec![0.0; q.len()], vec![0.0; rows * at.heads]);
    for i in 0..rows {
        for head in 0..at.heads {
            let score = |j| capped(dot(&q[at.query(i, head)], &k[at.key(j, head)]) * scale_of(&heads), heads.cap_e12);
            let sum: f64 = at.seen(i).map(|j| score(j).exp()).sum();
            l[i * at.heads + head] = sum.ln();
            for j in at.seen(i) {
                for (o, v) in o[at.query(i, head)].iter_mut().zip(&v[at.key(j, head)]) {
                    *o += score(j).exp() / sum * v;
                }
            }
        }
    }
    vec![o, l]
}

fn attention_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (grad, q, k, v, o, l) = (x[0], x[1], x[2], x[3], x[4], x[5]);
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let scale = scale_of(&heads);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for i in 0..rows {
        for head in 0..at.heads {
            let here = at.query(i, head);
            let delta = dot(&grad[here.clone()], &o[here.clone()]);
            for j in at.seen(i) {
                let there = at.key(j, head);
                let score = capped(dot(&q[here.clone()], &k[there.clone()]) * scale, heads.cap_e12);
                let p = (score - l[i * at.heads + head]).exp();
                let slope = slope_within(score, heads.cap_e12);
                let ds = p * (dot(&grad[here.clone()], &v[there.clone()]) - delta) * slope;
                for c in 0..at.width {
                    dv[there.start + c] += p * grad[here.start + c];
                    dq[here.start + c] += ds * k[there.start + c] * scale;
                    dk[there.start + c] += ds * q[here.start + c] * scale;
                }
            }
        }
    }
    vec![dq, dk, dv]
}

/// The rows of scores: sequence by sequence, head by head, position by position.
fn score_row(at: &Reads, i: usize, head: usize) -> usize {
    ((i / at.sequence * at.heads + head) * at.sequence + i % at.sequence) * at.sequence
}

fn scores(heads: Heads, q: &[f64], k: &[f64]) -> Vec<f64> {
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let mut s = vec![f64::NEG_INFINITY; rows * at.heads * at.sequence];
    for i in 0..rows {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let product = dot(&q[at.query(i, head)], &k[at.key(j, head)]);
                s[score_row(&at, i, head) + column] = product * scale_of(&heads);
            }
        }
    }
    s
}

fn scores_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (ds, q, k, at) = (x[0], x[1], x[2], Reads::of(heads));
    let (mut dq, mut dk) = (vec![0.0; q.len()], vec![0.0; k.len()]);
    for i in 0..q.len() / (at.heads * at.width) {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let ds = ds[score_row(&at, i, head) + column] * scale_of(&heads);
                for c in 0..at.width {
                    dq[at.query(i, head).start + c] += ds * k[at.key(j, head).start + c];
                    dk[at.key(j, head).start + c] += ds * q[at.query(i, head).start + c];
                }
            }
        }
    }
    vec![dq, dk]
}

fn attend(heads: Heads, p: &[f64], v: &[f64]) -> Vec<f64> {
    let at = Reads::of(heads);
    let rows = v.len() / (at.key_value * at.width);
    let mut o = vec![0.0; rows * at.heads * at.width];
    for i in 0..rows {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let p = p[score_row(&at, i, head) + column];
                for (o, v) in o[at.query(i, head)].iter_mut().zip(&v[at.key(j, head)]) {
                    *o += p * v;
                }
            }
        }
    }
    o
}

fn attend_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (grad, p, v, at) = (x[0], x[1], x[2], Reads::of(heads));
    let (mut dp, mut dv) = (vec![0.0; p.len()], vec![0.0; v.len()]);
    for i in 0..v.len() / (at.key_value * at.width) {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let place = score_row(&at, i, head) + column;
                dp[place] = dot(&grad[at.query(i, head)], &v[at.key(j, head)]);
                for c in 0..at.width {
                    dv[at.key(j, head).start + c] += p[place] * grad[at.query(i, head).start + c];
                }
            }
        }
    }
    vec![dp, dv]
}

/// What crosses a stage's border, as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Border {
    Tokens { ahead: u32 },
    Activation,
    Gradient,
    Loss { weight_e12: u64, ahead: u32 },
    Nothing,
}

impl Border {
    fn of(role: Role) -> Border {
        match role {
            Role::Tokens { ahead } => Border::Tokens { ahead },
            Role::ActivationIn | Role::ActivationOut => Border::Activation,
            Role::GradientIn | Role::GradientOut => Border::Gradient,
            Role::Loss { ahead, weight_e12 } => Border::Loss { weight_e12, ahead },
            _ => Border::Nothing,
        }
    }
}

/// A number in −1..1 that depends on nothing but its seeds.
fn number(seed: u64) -> f64 {
    let mixed = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

struct Run {
    loss: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// One microbatch through `stages`, all F, then all B, then all W, with bytes held against liveness.
fn run(stages: &[Graph], weights: &BTreeMap<String, Vec<f64>>, tokens: &[Vec<f64>]) -> Run {
    let apart = run_as(stages, weights, tokens, false);
    let fused = run_as(stages, weights, tokens, true);
    assert_eq!(apart.loss.to_bits(), fused.loss.to_bits());
    assert_eq!(apart.gradients, fused.gradients, "fused or not, not a bit may differ");
    apart
}

fn run_as(stages: &[Graph], weights: &BTreeMap<String, Vec<f64>>, tokens: &[Vec<f64>], fused: bool) -> Run {
    let lifetimes = |graph: &Graph| if fused { Lifetimes::fused(graph) } else { Lifetimes::of(graph) };
    let splits = stages.iter().flat_map(|graph| graph.weights().filter_map(|(_, weight)| weight.split()));
    let devices = splits.map(|split| split.ways as usize).max().unwrap_or(1);
    let of_stage = |graph| -> Vec<Arena> {
        (0..devices).map(|member| Arena::new(graph, member, weights, lifetimes(graph))).collect()
    };
    let mut arenas: Vec<Vec<Arena>> = stages.iter().map(of_stage).collect();
    let border: BTreeMap<Border, Vec<f64>> =
        (0..).zip(tokens).map(|(ahead, tokens)| (Border::Tokens { ahead }, tokens.clone())).collect();
    let mut borders = vec![border; devices];
    for job in if fused { &Job::ALL[..2] } else { &Job::ALL[..] } {
        let job = *job;
        let mut order: Vec<usize> = (0..stages.len()).collect();
        if job == Job::B {
            order.reverse();
        }
        for stage in order {
            let graph = &stages[stage];
            let (memory, operators) = if fused && job == Job::B {
                (arenas[stage][0].lifetimes.memory_fused(graph), fused_order(graph))
            } else {
                let of_job = |at: &u32| graph.operators[*at as usize].job == job;
                let operators = (0..graph.operators.len() as u32).filter(of_job).collect();
                (arenas[stage][0].lifetimes.memory(graph)[job as usize], operators)
            };
            let mut devices: Vec<&mut Arena> = arenas[stage].iter_mut().collect();
            let found = devices[0].held;
            devices.iter_mut().zip(&borders).for_each(|(device, border)| device.begin(job, border));
            let mut peak = devices[0].held;
            for at in operators.iter().map(|at| *at as usize) {
                let outputs = computed(&devices, at);
                for (device, outputs) in devices.iter_mut().zip(outputs) {
                    peak = peak.max(device.settle(at, outputs));
                }
            }
            devices.iter_mut().zip(&mut borders).for_each(|(device, border)| border.extend(device.end(job)));
            assert_eq!(peak - found, memory.peak, "{job:?} of stage {stage}");
            assert_eq!(devices[0].held as i64 - found as i64, memory.net, "{job:?} of stage {stage}");
        }
    }
    let mut gradients: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for stage in &arenas {
        for (id, tensor) in stage[0].graph.weights() {
            let whole = tensor.whole_shape().iter().product::<u64>() as usize;
            let gradient = stage[0].graph.gradient_of(id).unwrap();
            // Tied tables on two stages: both gradients together.
            let sum = gradients.entry(tensor.name.clone()).or_insert_with(|| vec![0.0; whole]);
            for (place, value) in gathered(stage, tensor, gradient) {
                sum[place] += value;
            }
        }
        assert!(stage.iter().all(|arena| arena.held == 0));
    }
    let loss = |border: &BTreeMap<Border, Vec<f64>>| -> f64 {
        let weighted = |(border, values): (&Border, &Vec<f64>)| match border {
            Border::Loss { weight_e12, .. } => of_e12(*weight_e12) * values[0],
            _ => 0.0,
        };
        border.iter().map(weighted).sum()
    };
    let losses: Vec<f64> = borders.iter().map(loss).collect();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "devices that share matrices have one loss");
    Run { loss: losses[0], gradients }
}

/// The gradient of a whole weight from those of all devices, by place: a sum where it is said to be one, and elsewhere
/// what all holders of an element must agree on to the bit.
fn gathered(devices: &[Arena], tensor: &Tensor, gradient: TensorId) -> BTreeMap<usize, f64> {
    let Role::Weight { partial, .. } = tensor.role else { panic!("a weight") };
    let mut whole: BTreeMap<usize, f64> = BTreeMap::new();
    for device in devices {
        for (place, value) in places_held(tensor, device.member).into_iter().zip(&device.values[&gradient]) {
            let Some(place) = place else {
                assert_eq!(*value, 0.0, "padding of {}", tensor.name);
                continue;
            };
            let known = whole.get(&place).copied();
            assert!(partial || known.is_none_or(|known| known == *value), "{}", tensor.name);
            whole.insert(place, if partial { known.unwrap_or(0.0) + value } else { *value });
        }
    }
    whole
}

type Prepared = (Vec<Graph>, BTreeMap<String, Vec<f64>>, Vec<Vec<f64>>);

/// Stages cut before the layers `cuts`, and numbers for their weights, tokens and targets.
fn prepare(model: ModelConfig, form: Form, cuts: &[u32]) -> Prepared {
    let (microbatch_size, sequence) = (4, 3);
    let bounds: Vec<u32> = [0].into_iter().chain(cuts.iter().copied()).chain([model.layers]).collect();
    let stages: Vec<Graph> = (0..bounds.len() - 1)
        .map(|stage| {
            let shape = StageShape {
                layers: bounds[stage]..bounds[stage + 1],
                has_embedding: stage == 0,
                has_head: stage + 2 == bounds.len(),
                microbatch_size,
                sequence,
                dtype: Dtype::F64,
                form,
            };
            stage_graph(&model, &shape, 2)
        })
        .collect();
    let mut weights = BTreeMap::new();
    for graph in &stages {
        for (_, tensor) in graph.weights() {
            let seed = tensor.name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
            let elements = tensor.whole_shape().iter().product();
            let values = (0..elements).map(|e| 0.7 * number(seed.wrapping_add(e))).collect();
            weights.insert(tensor.name.clone(), values);
        }
    }
    let rows = u64::from(microbatch_size * sequence);
    let vocab = f64::from(model.vocab);
    // Nothing here asks that tokens further ahead are those of the rows that follow.
    let token = |i: u64| ((number(i) + 1.0) / 2.0 * vocab).floor();
    let ahead = u64::from(model.variant.multi_token) + 2;
    let tokens = (0..ahead).map(|ahead| (0..rows).map(|i| token(i + 100 * ahead)).collect()).collect();
    (stages, weights, tokens)
}

fn check_gradients(model: ModelConfig, form: Form, cuts: &[u32]) {
    let (stages, mut weights, tokens) = prepare(model, form, cuts);
    let Run { gradients, .. } = run(&stages, &weights, &tokens);
    for (name, gradient) in &gradients {
        // A bias of all keys that are not turned shifts all scores of a query alike, which the softmax does not see.
        let reaches = gradient.iter().any(|slope| slope.abs() > 1e-5);
        let unseen = name.ends_with("k_proj.bias") && model.variant.rotary.is_none();
        assert_ne!(reaches, unseen, "{name} of {:?}: {gradient:?}", model.variant);
        for element in [0, gradient.len() / 2, gradient.len() - 1] {
            let step = 1e-5;
            let mut loss_at = |shift: f64| {
                let kept = weights[name][element];
                weights.get_mut(name).unwrap()[element] = kept + shift;
                let loss = run_as(&stages, &weights, &tokens, false).loss;
                weights.get_mut(name).unwrap()[element] = kept;
                loss
            };
            let slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
            let found = gradient[element];
            // The difference is exact to about step² and 1e-16/step.
            assert!((slope - found).abs() < 1e-8 + 1e-6 * slope.abs(), "{name}[{element}]: {found} against {slope}");
        }
    }
}

fn tiny(family: Family, tied: bool) -> ModelConfig {
    ModelConfig {
        family,
        layers: 2,
        hidden: 6,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        ffn: 5,
        vocab: 7,
        positions: 4,
        rope_base: 100,
        norm_eps_e12: 10_000_000,
        tied,
        variant: crate::model::Variant::USUAL,
    }
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    for family in [Family::Llama, Family::Gpt] {
        for (tied, cuts) in [(false, &[][..]), (true, &[]), (false, &[1]), (true, &[1])] {
            check_gradients(tiny(family, tied), Form::default(), cuts);
        }
    }
}

#[test]
fn so_they_are_in_newer_families() {
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 5,
        shared_ffn: 0,
        shared_gate: false,
        dense_layers: 0,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 5, key_value_rank: 6, rope_width: 2, value_width: 3 };
    let window = Some(Window { tokens: 2, full_every: 2 });
    let deepseek_v2 = Routing { factor: Some(3 * E12), groups: 2, active_groups: 1, ..Routing::USUAL };
    let deepseek_v3 = Routing { scores: Scores::Sigmoid, normed: true, ..deepseek_v2 };
    for variant in [
        Variant { qk_norm: true, ..Variant::USUAL },
        Variant { post_norms: true, activation: Activation::Gelu, window, ..Variant::USUAL },
        Variant { experts: Some(experts), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { shared_ffn: 3, dense_layers: 1, ..experts }),
            latent: Some(latent),
            ..Variant::USUAL
        },
        Variant { experts: Some(Experts { shared_ffn: 3, shared_gate: true, ..experts }), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { routing: Routing { normed: true, ..Routing::USUAL }, ..experts }),
            ..Variant::USUAL
        },
        Variant { experts: Some(Experts { routing: deepseek_v2, ..experts }), ..Variant::USUAL },
        Variant { experts: Some(Experts { routing: deepseek_v3, ..experts }), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { routing: Routing { normed: false, ..deepseek_v3 }, ..experts }),
            ..Variant::USUAL
        },
        Variant { latent: Some(Latent { query_rank: 0, ..latent }), ..Variant::USUAL },
        Variant { multi_token: 2, ..Variant::USUAL },
        Variant { multi_token: 1, experts: Some(experts), ..Variant::USUAL },
    ] {
        let kv_heads = if variant.latent.is_some() { 4 } else { 2 };
        let model = ModelConfig { variant, kv_heads, ..tiny(Family::Llama, false) };
        check_gradients(model, Form::default(), &[]);
        check_gradients(model, Form { imbalance_permille: 1250, ..Form::default() }, &[1]);
    }
}

/// Gemma 2 with caps that bind, and Granite: as they are, with scores held, and made again.
#[test]
fn so_they_are_with_factors_and_caps() {
    for variant in [gemma_2(), granite()] {
        for tied in [false, true] {
            let model = ModelConfig { variant, ..tiny(Family::Llama, tied) };
            check_gradients(model, Form::default(), &[]);
            check_gradients(model, Form::default(), &[1]);
        }
    }
    for variant in [Variant { window: None, qk_norm: true, ..gemma_2() }, granite()] {
        let model = ModelConfig { variant, ..tiny(Family::Llama, true) };
        for recompute in Recompute::ALL {
            let form = Form { attention: AttentionForm::Materialised, dropout: true, recompute, ..Form::default() };
            check_gradients(model, form, &[1]);
        }
    }
}

/// A soft cap leaves what is small as it is, bounds what is large, and keeps what is hidden.
#[test]
fn a_soft_cap_bounds() {
    let cap = Some(3 * E12);
    assert!((capped(1e-4, cap) - 1e-4).abs() < 1e-12 && (capped(2.0, cap) - 3.0 * (2f64 / 3.0).tanh()).abs() < 1e-14);
    assert!((capped(90.0, cap) - 3.0).abs() < 1e-12 && (capped(-90.0, cap) + 3.0).abs() < 1e-12);
    assert_eq!((capped(7.0, None), slope_within(7.0, None)), (7.0, 1.0));
}

fn gemma_2() -> Variant {
    Variant {
        post_norms: true,
        activation: Activation::Gelu,
        window: Some(Window { tokens: 2, full_every: 2 }),
        norm_offset: true,
        factors: Factors { embedding: Some(E12 * 5 / 2), attention: Some(E12 * 2 / 5), ..Factors::default() },
        caps: Caps { attention: Some(E12 / 2), logits: Some(E12 * 3 / 2) },
        ..Variant::USUAL
    }
}

fn granite() -> Variant {
    let (embedding, residual) = (Some(E12 * 3), Some(E12 * 7 / 5));
    let (attention, logits) = (Some(E12 * 4 / 5), Some(E12 * 9 / 10));
    Variant { factors: Factors { embedding, residual, attention, logits }, ..Variant::USUAL }
}

#[test]
fn so_they_are_in_newer_gpts() {
    use crate::model::Arrangement;
    let window = Some(Window { tokens: 2, full_every: 2 });
    for variant in [
        Variant { rotary: Some(2), arrangement: Arrangement::Beside, ..Variant::USUAL },
        Variant { rotary: Some(4), arrangement: Arrangement::BesideOneNorm, no_bias: true, ..Variant::USUAL },
        Variant { rotary: Some(4), window, ..Variant::USUAL },
        Variant { no_bias: true, ..Variant::USUAL },
    ] {
        for kv_heads in [1, 2] {
            let model = ModelConfig { variant, kv_heads, ..tiny(Family::Gpt, false) };
            check_gradients(model, Form::default(), &[1]);
        }
    }
    let half_turned = Variant { rotary: Some(2), ..Variant::USUAL };
    check_gradients(ModelConfig { variant: half_turned, ..tiny(Family::Llama, false) }, Form::default(), &[]);
}

#[test]
fn so_they_are_with_scores_held_and_dropout() {
    for (family, dropout) in [(Family::Llama, false), (Family::Llama, true), (Family::Gpt, true)] {
        let form = Form { attention: AttentionForm::Materialised, dropout, ..Form::default() };
        check_gradients(tiny(family, false), form, &[1]);
    }
}

/// The same operators on the same numbers: not a bit may differ.
#[test]
fn computing_again_changes_nothing() {
    for family in [Family::Llama, Family::Gpt] {
        for attention in [AttentionForm::Flash, AttentionForm::Materialised] {
            let plain = Form { attention, dropout: true, ..Form::default() };
            let (stages, weights, tokens) = prepare(tiny(family, true), plain, &[1]);
            let kept = run(&stages, &weights, &tokens);
            for recompute in [Recompute::Selective, Recompute::Cheap, Recompute::Full] {
                let form = Form { recompute, ..plain };
                let (stages, ..) = prepare(tiny(family, true), form, &[1]);
                let again = run(&stages, &weights, &tokens);
                assert_eq!(kept.loss.to_bits(), again.loss.to_bits());
                assert_eq!(kept.gradients, again.gradients, "{family:?} {attention:?} {recompute:?}");
            }
        }
    }
}

/// Nor where layers differ in what they compute again, or keep only what a group of them takes in.
#[test]
fn computing_again_by_layer_changes_nothing() {
    use super::passes::recompute::Choices;
    use Recompute::{Cheap, Full, None, Selective};
    let model = ModelConfig { layers: 3, ..tiny(Family::Llama, true) };
    let form = Form { attention: AttentionForm::Materialised, dropout: true, ..Form::default() };
    let (stages, weights, tokens) = prepare(model, form, &[]);
    let kept = run(&stages, &weights, &tokens);
    let shape = StageShape {
        layers: 0..3,
        has_embedding: true,
        has_head: true,
        microbatch_size: 4,
        sequence: 3,
        dtype: Dtype::F64,
        form,
    };
    let each = |by_layer: [Recompute; 3]| Choices { by_layer: by_layer.to_vec(), ..Choices::same(None) };
    let groups = |group| Choices { group, ..Choices::same(Full) };
    for choices in
        [each([Full, Cheap, None]), each([None, Selective, Full]), each([Full, None, Full]), groups(2), groups(3)]
    {
        // Also where what is kept waits in the host's memory.
        for offload in [Offload::None, Offload::First(2), Offload::All] {
            let shape = StageShape { form: Form { offload, ..form }, ..shape.clone() };
            let (graph, _) = stage_graph_with(&model, &shape, 2, &choices);
            let again = run(&[graph], &weights, &tokens);
            assert_eq!(kept.loss.to_bits(), again.loss.to_bits());
            assert_eq!(kept.gradients, again.gradients, "{choices:?} {offload:?}");
        }
    }
}

/// What waits in the host's memory is the same when it comes back, whatever is computed again from it, shared, quantized or
/// run beside; and nobody touches it on its way.
#[test]
fn waiting_in_the_host_s_memory_changes_nothing() {
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 8,
        shared_gate: true,
        dense_layers: 1,
        routing: Routing::USUAL,
    };
    let dropout = Form { attention: AttentionForm::Materialised, dropout: true, ..Form::default() };
    let shared = Form { tensor: 2, sequence_parallel: true, async_reduce: true, ..Form::default() };
    for (family, variant, plain) in [
        (Family::Llama, Variant::USUAL, dropout),
        (Family::Llama, Variant::USUAL, shared),
        (Family::Llama, gemma_2(), Form { fp8: true, ..Form::default() }),
        (Family::Llama, Variant { experts: Some(experts), multi_token: 1, ..Variant::USUAL }, Form::default()),
        (Family::Gpt, Variant::USUAL, dropout),
        (Family::Gpt, Variant::USUAL, shared),
    ] {
        let model = ModelConfig { layers: 3, ffn: 8, variant, ..tiny(family, true) };
        for recompute in Recompute::ALL {
            let form = Form { recompute, ..plain };
            let (stages, weights, tokens) = prepare(model, form, &[1]);
            let kept = run(&stages, &weights, &tokens);
            for offload in [Offload::First(1), Offload::First(2), Offload::All] {
                let (stages, ..) = prepare(model, Form { offload, ..form }, &[1]);
                let what = format!("{variant:?} {recompute:?} {offload:?}");
                for graph in &stages {
                    let copies = graph.operators.iter().filter(|operator| operator.kernel == Kernel::Offload).count();
                    assert!(copies >= 1, "{what}");
                }
                let away = run(&stages, &weights, &tokens);
                assert_eq!(kept.loss.to_bits(), away.loss.to_bits(), "{what}");
                assert_eq!(kept.gradients, away.gradients, "{what}");
            }
        }
    }
}

/// A reduction that runs beside dW changes no bit, whether W runs apart or fused with B.
#[test]
fn reducing_beside_dw_changes_nothing() {
    for family in [Family::Llama, Family::Gpt] {
        let model = ModelConfig { ffn: 8, ..tiny(family, true) };
        for (tensor, sequence_parallel, recompute) in
            [(2, false, Recompute::None), (4, true, Recompute::None), (2, true, Recompute::Full)]
        {
            let form = Form { tensor, sequence_parallel, recompute, ..Form::default() };
            let (stages, weights, tokens) = prepare(model, form, &[1]);
            let waiting = run(&stages, &weights, &tokens);
            let (stages, ..) = prepare(model, Form { async_reduce: true, ..form }, &[1]);
            let starts = stages.iter().flat_map(|graph| &graph.operators).filter(|operator| operator.kernel.starts());
            assert_eq!(starts.count(), 5, "two a layer, and that of the head's input");
            let beside = run(&stages, &weights, &tokens);
            assert_eq!(waiting.loss.to_bits(), beside.loss.to_bits());
            assert_eq!(waiting.gradients, beside.gradients, "{family:?} {form:?}");
        }
    }
}

/// Programs of devices that share matrices, all together, against that of one device: the same loss and gradients but for
/// rounding, the bytes of liveness on each, and the same numbers wherever devices hold the same thing.
#[test]
fn devices_that_share_matrices_compute_what_one_does() {
    let usual = Variant::USUAL;
    let part_turned = Variant { rotary: Some(2), ..usual };
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 8,
        shared_gate: true,
        dense_layers: 1,
        routing: Routing::USUAL,
    };
    for (family, variant) in [
        (Family::Llama, usual),
        (Family::Llama, gemma_2()),
        (Family::Llama, Variant { caps: gemma_2().caps, rotary: Some(2), ..granite() }),
        (Family::Llama, Variant { experts: Some(experts), ..usual }),
        (Family::Llama, Variant { multi_token: 2, ..usual }),
        (Family::Gpt, usual),
        (Family::Gpt, part_turned),
        (Family::Gpt, Variant { arrangement: crate::model::Arrangement::Beside, ..part_turned }),
    ] {
        for (tied, attention, dropout) in
            [(false, AttentionForm::Flash, false), (true, AttentionForm::Materialised, true)]
        {
            if variant.window.is_some() && attention == AttentionForm::Materialised {
                continue;
            }
            // Neither 2 nor 4 divides the vocabulary, and with 4 devices two hold each head of keys.
            let model = ModelConfig { ffn: 8, variant, ..tiny(family, tied) };
            let whole = Form { attention, dropout, ..Form::default() };
            let (stages, weights, tokens) = prepare(model, whole, &[1]);
            let expected = run(&stages, &weights, &tokens);
            for (tensor, sequence_parallel) in [(2, false), (4, false), (2, true), (4, true)] {
                for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
                    let form = Form { tensor, sequence_parallel, recompute, ..whole };
                    let what = format!("{family:?} {variant:?} {form:?}");
                    let (stages, shared_weights, ..) = prepare(model, form, &[1]);
                    assert_eq!(shared_weights, weights, "names and whole shapes");
                    let found = run(&stages, &weights, &tokens);
                    assert!((found.loss - expected.loss).abs() < 1e-13, "{what}");
                    for (name, gradient) in &expected.gradients {
                        for (found, expected) in found.gradients[name].iter().zip(gradient) {
                            assert!((found - expected).abs() < 1e-12, "{name} of {what}: {found} {expected}");
                        }
                    }
                }
            }
        }
    }
}

/// Where quantizing rounds nothing, products in fp8 change not a bit, whatever is computed again, shared or run beside; and
/// every operand of theirs is quantized along what they sum over.
#[test]
fn products_in_fp8_take_the_same_numbers() {
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 64,
        shared_ffn: 64,
        shared_gate: true,
        dense_layers: 1,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 16, key_value_rank: 16, rope_width: 2, value_width: 4 };
    let usual = Variant::USUAL;
    for (family, variant) in [
        (Family::Llama, usual),
        (Family::Llama, Variant { qk_norm: true, post_norms: true, ..usual }),
        (Family::Llama, Variant { experts: Some(experts), multi_token: 1, ..usual }),
        (Family::Llama, Variant { experts: Some(experts), latent: Some(latent), ..usual }),
        (Family::Gpt, usual),
    ] {
        let kv_heads = if variant.latent.is_some() { 4 } else { 2 };
        let model = ModelConfig { hidden: 16, head_dim: 16, ffn: 64, kv_heads, variant, ..tiny(family, false) };
        for (tensor, sequence_parallel, async_reduce) in
            [(1, false, false), (2, false, true), (2, true, false), (4, true, true)]
        {
            if tensor > 1 && variant.latent.is_some() {
                continue;
            }
            for recompute in Recompute::ALL {
                let form = Form { tensor, sequence_parallel, async_reduce, recompute, ..Form::default() };
                let (stages, weights, tokens) = prepare(model, form, &[1]);
                let plain = run(&stages, &weights, &tokens);
                let (stages, ..) = prepare(model, Form { fp8: true, ..form }, &[1]);
                let quantized = run(&stages, &weights, &tokens);
                let what = format!("{variant:?} {form:?}");
                assert_eq!(plain.loss.to_bits(), quantized.loss.to_bits(), "{what}");
                assert_eq!(plain.gradients, quantized.gradients, "{what}");
                let products = stages.iter().map(fp8_products).sum::<usize>();
                assert!(products >= 2 * 3 * 4, "{products} products of {what}");
            }
        }
    }
}

/// Products of `graph` that take fp8, each of whose operands says along what it is quantized: the one that the product sums
/// over.
fn fp8_products(graph: &Graph) -> usize {
    let mut found = 0;
    for operator in &graph.operators {
        let along = |at: usize| {
            let name = &graph[operator.inputs[at].tensor].name;
            let name = name.strip_suffix(" again").unwrap_or(name);
            ["rows", "columns"].into_iter().find(|along| name.ends_with(&format!("in fp8, {along}")))
        };
        let expected = match operator.kernel {
            Kernel::MatMul { transpose_a: false, transpose_b: true, .. } => ["rows", "rows"],
            Kernel::ExpertMatMul { transpose_b: true } => ["rows", "rows"],
            Kernel::MatMul { transpose_a: false, transpose_b: false, .. } => ["rows", "columns"],
            Kernel::ExpertMatMul { transpose_b: false } => ["rows", "columns"],
            Kernel::MatMul { transpose_a: true, .. } | Kernel::ExpertMatMulGrad => ["columns", "columns"],
            _ => continue,
        };
        match [along(0), along(1)] {
            [None, None] => {}
            operands => {
                assert_eq!(operands, expected.map(Some), "{:?}", operator.kernel);
                found += 1;
            }
        }
    }
    found
}
