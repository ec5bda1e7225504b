//! The documents of a step: in microbatches, or still to be packed.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use serde_json::{Value, json};

use crate::base::fields::{Fault, Table, shown, whole};
use crate::base::random::Random;
use crate::problem::packing::{Bins, Filling, MAX_BINS, MAX_DOCUMENTS};

/// The lengths of the documents of a step, in tokens.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Documents {
    /// Each sequence is one document.
    #[default]
    Sequences,
    /// By microbatch; all data parallel replicas have the same.
    OfMicrobatches(Vec<Vec<u32>>),
    /// By data parallel replica, then by microbatch. The problem is that of the first replica: in a plan, the slowest.
    OfReplicas(Vec<Vec<Vec<u32>>>),
    /// Of the whole step: the planner packs them.
    OfStep(Vec<u32>),
    /// Drawn until the microbatches of all replicas are full; those without room wait for another step. The planner packs them.
    Drawn(Draw),
}

/// Documents that are drawn, the same ones for the same seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    /// What they are drawn from.
    pub lengths: Distribution,
    /// Another seed draws others.
    pub seed: u64,
}

/// How long documents are. Longer ones than a sequence are cut to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The logarithms of their lengths have a normal distribution.
    LogNormal {
        /// The median length, in tokens.
        median: u32,
        /// Thousandths of the standard deviation of the natural logarithms.
        sigma_permille: u32,
    },
    /// By rising length: how many documents have it or a shorter one that is above the length before. Lengths between
    /// two are as likely.
    Histogram(Vec<[u32; 2]>),
}

/// The largest standard deviation: nine tenths of documents within a factor of 10⁷.
const MAX_SIGMA: f64 = 10.0;
/// Most lengths of a histogram.
pub const MAX_LENGTHS: usize = 10_000;
/// Documents in a row that have no room, and wait for another step, before the step is full.
const MOST_WAITING: usize = 16;
/// Lengths of a histogram that is made of documents.
const FEW_LENGTHS: usize = 20;
const MAX_SEED: u64 = (1 << 53) - 1;

const LOG_NORMAL: &str = "log-normal";
const HISTOGRAM: &str = "histogram";

const ACCEPTED: &str = "a list of lists: by microbatch, the tokens of its documents; a list of the tokens of all documents \
                        of the step; by data parallel replica lists of lists; or a table with `distribution`";

impl Documents {
    /// Reads `training.documents`.
    pub(super) fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Documents {
        if value.is_object() {
            return read_draw(value, path, faults).map_or(Documents::Sequences, Documents::Drawn);
        }
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            faults.push(Fault::new(path, shown(value), ACCEPTED));
            return Documents::Sequences;
        };
        let is_list_of_lists = |item: &Value| item.as_array().is_some_and(|of| of.iter().any(Value::is_array));
        if items.iter().any(is_list_of_lists) {
            let of_replica = |(replica, item): (usize, &Value)| {
                let path = format!("{path}[{replica}]");
                match item.as_array() {
                    Some(microbatches) => read_lists(microbatches, &path, faults),
                    None => {
                        faults.push(Fault::new(path, shown(item), "a list of the microbatches of a replica"));
                        Vec::new()
                    }
                }
            };
            return Documents::OfReplicas(items.iter().enumerate().map(of_replica).collect());
        }
        if items.iter().any(Value::is_array) {
            return Documents::OfMicrobatches(read_lists(items, path, faults));
        }
        Documents::OfStep(read_lengths(items, path, faults))
    }

    /// As JSON; none for whole sequences.
    pub(super) fn to_value(&self) -> Option<Value> {
        match self {
            Documents::Sequences => None,
            Documents::OfMicrobatches(lists) => Some(json!(lists)),
            Documents::OfReplicas(lists) => Some(json!(lists)),
            Documents::OfStep(lengths) => Some(json!(lengths)),
            Documents::Drawn(draw) => Some(draw.to_value()),
        }
    }

    /// Whether the planner packs them.
    pub fn are_open(&self) -> bool {
        matches!(self, Documents::OfStep(_) | Documents::Drawn(_))
    }

    /// Whether data parallel replicas have different ones.
    pub fn differ_by_replica(&self) -> bool {
        self.are_open() || matches!(self, Documents::OfReplicas(_))
    }

    /// The lengths of all documents of a step that the planner packs into `bins`, each of a sequence at most; none where they
    /// are packed.
    pub fn of_step(&self, bins: Bins, sequence: u32) -> Option<Vec<u32>> {
        match self {
            Documents::OfStep(lengths) => Some(lengths.clone()),
            Documents::Drawn(draw) => Some(draw.lengths(bins, sequence).0),
            _ => None,
        }
    }

    /// The same in microbatches: those that the planner packs are packed in their order, and the replica with the most work is
    /// the first.
    pub fn packed(&self, bins: Bins, sequence: u32) -> Documents {
        let Some(lengths) = self.of_step(bins, sequence) else { return self.clone() };
        let mut packing = bins.packed(&lengths).unwrap_or_default();
        packing.sort_by_cached_key(|replica| {
            let square = |document: &u32| u128::from(lengths[*document as usize]).pow(2);
            Reverse(replica.iter().flatten().map(square).sum::<u128>())
        });
        Documents::OfReplicas(packing.iter().map(|replica| lengths_of(replica, &lengths)).collect())
    }

    /// The documents of each microbatch of the replica whose problem is planned; none for whole sequences.
    pub fn of_problem(&self, bins: Bins, sequence: u32) -> Vec<Vec<u32>> {
        match self.packed(bins, sequence) {
            Documents::OfMicrobatches(lists) => lists,
            Documents::OfReplicas(replicas) => replicas.into_iter().next().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// What does not fit microbatches that have room for `bins.tokens`, and sequences.
    pub(super) fn find_faults(&self, bins: Bins, sequence: u32, faults: &mut Vec<Fault>) {
        let path = "training.documents";
        if bins.count() > MAX_BINS && self.differ_by_replica() {
            let found = format!("documents for {} microbatches of all replicas", bins.count());
            faults.push(Fault::new(path, found, format!("at most {MAX_BINS}")));
            return;
        }
        match self {
            Documents::Sequences => {}
            Documents::Drawn(draw) => {
                if !draw.is_sound() {
                    faults.push(Fault::new(path, "another distribution", "one with sizes above 0, by rising length"));
                } else if draw.lengths(bins, sequence).1 {
                    let found = format!("{MAX_DOCUMENTS} documents that leave room in {} microbatches", bins.count());
                    let accepted = format!(
                        "at most {MAX_DOCUMENTS} documents: longer ones, or fewer of training.microbatches or parallel.data"
                    );
                    faults.push(Fault::new(path, found, accepted));
                }
            }
            Documents::OfMicrobatches(lists) => find_list_faults(lists, path, bins, sequence, true, faults),
            Documents::OfReplicas(replicas) => {
                if replicas.len() != bins.replicas {
                    let accepted = format!("a list of {}, one for each data parallel replica", bins.replicas);
                    faults.push(Fault::new(path, format!("a list of {}", replicas.len()), accepted));
                    return;
                }
                for (replica, lists) in replicas.iter().enumerate() {
                    find_list_faults(lists, &format!("{path}[{replica}]"), bins, sequence, false, faults);
                }
            }
            Documents::OfStep(lengths) => find_step_faults(lengths, path, bins, sequence, faults),
        }
    }
}

/// The lengths of the documents of each microbatch of a replica.
pub fn lengths_of(replica: &[Vec<u32>], lengths: &[u32]) -> Vec<Vec<u32>> {
    let of = |documents: &Vec<u32>| documents.iter().map(|document| lengths[*document as usize]).collect();
    replica.iter().map(of).collect()
}

fn find_list_faults(
    lists: &[Vec<u32>],
    path: &str,
    bins: Bins,
    sequence: u32,
    is_each_filled: bool,
    faults: &mut Vec<Fault>,
) {
    if lists.len() != bins.microbatches {
        let accepted = format!("a list of {}, one for each microbatch", bins.microbatches);
        faults.push(Fault::new(path, format!("a list of {}", lists.len()), accepted));
    }
    for (index, lengths) in lists.iter().enumerate() {
        let tokens: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let is_missing = is_each_filled && lengths.is_empty();
        if is_missing || lengths.contains(&0) || longest > sequence || tokens > bins.tokens {
            let found = format!("{} documents, the longest of {longest} tokens, {tokens} in all", lengths.len());
            let accepted =
                format!("lengths from 1 to {sequence} (training.sequence), at most {} in all", bins.tokens);
            faults.push(Fault::new(format!("{path}[{index}]"), found, accepted));
            return;
        }
    }
}

fn find_step_faults(lengths: &[u32], path: &str, bins: Bins, sequence: u32, faults: &mut Vec<Fault>) {
    if lengths.len() > MAX_DOCUMENTS {
        faults.push(Fault::new(path, format!("{} documents", lengths.len()), format!("at most {MAX_DOCUMENTS}")));
        return;
    }
    if let Some(index) = lengths.iter().position(|length| !(1..=sequence).contains(length)) {
        let accepted = format!("1 to {sequence} tokens (training.sequence): cut longer documents");
        faults.push(Fault::new(format!("{path}[{index}]"), lengths[index], accepted));
        return;
    }
    if bins.packed(lengths).is_none() {
        let tokens: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let found = format!("{} documents of {tokens} tokens in all", lengths.len());
        let accepted = format!(
            "documents that fit into {} microbatches of {} tokens each: fewer, or more of training.microbatches",
            bins.count(),
            bins.tokens
        );
        faults.push(Fault::new(path, found, accepted));
    }
}

fn read_lists(items: &[Value], path: &str, faults: &mut Vec<Fault>) -> Vec<Vec<u32>> {
    let mut lists = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let lengths = item.as_array().and_then(|items| items.iter().map(length).collect::<Option<Vec<u32>>>());
        match lengths {
            Some(lengths) => lists.push(lengths),
            None => {
                let accepted = "a list of whole numbers of tokens, one for each document";
                faults.push(Fault::new(format!("{path}[{index}]"), shown(item), accepted));
            }
        }
    }
    lists
}

fn read_lengths(items: &[Value], path: &str, faults: &mut Vec<Fault>) -> Vec<u32> {
    let wrong = items.iter().enumerate().find(|(_, item)| length(item).is_none());
    if let Some((index, item)) = wrong {
        faults.push(Fault::new(format!("{path}[{index}]"), shown(item), "a whole number of tokens"));
    }
    items.iter().filter_map(length).collect()
}

fn length(value: &Value) -> Option<u32> {
    whole(value).and_then(|length| u32::try_from(length).ok())
}

fn read_draw(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Draw> {
    let before = faults.len();
    let mut table = Table::of(value, path, faults)?;
    if table.get("distribution").is_none() {
        faults.push(Fault::new(table.path("distribution"), "nothing", format!("`{LOG_NORMAL}` or `{HISTOGRAM}`")));
        return None;
    }
    let is_histogram = table.choice("distribution", &[(LOG_NORMAL, false), (HISTOGRAM, true)], faults)?;
    let lengths = if is_histogram {
        let path = table.path("lengths");
        let lengths = table.get("lengths");
        let read = lengths.and_then(read_histogram).map(Distribution::Histogram);
        if read.is_none() {
            let found = lengths.map_or_else(|| String::from("nothing"), shown);
            let accepted = format!(
                "a list of 1 to {MAX_LENGTHS} pairs [length, documents], by rising length, as `pipeplan data` writes it"
            );
            faults.push(Fault::new(path, found, accepted));
        }
        read
    } else {
        let median = table.needed_whole("median", 1..=u64::from(u32::MAX), faults);
        let sigma = table.positive("sigma", MAX_SIGMA, faults);
        if sigma.is_none() && faults.len() == before {
            faults.push(Fault::new(table.path("sigma"), "nothing", format!("a number above 0, at most {MAX_SIGMA}")));
        }
        let sigma_permille = sigma.map(|sigma| (libm::round(sigma * 1000.0) as u32).max(1));
        median
            .zip(sigma_permille)
            .map(|(median, sigma_permille)| Distribution::LogNormal { median: median as u32, sigma_permille })
    };
    let seed = table.whole("seed", 0..=MAX_SEED, faults).unwrap_or(DEFAULT_SEED);
    table.finish(faults);
    lengths.filter(|_| faults.len() == before).map(|lengths| Draw { lengths, seed })
}

const DEFAULT_SEED: u64 = 1;

/// Pairs of rising lengths and how many documents have them; none where they are something else.
fn read_histogram(value: &Value) -> Option<Vec<[u32; 2]>> {
    let pairs = value.as_array().filter(|pairs| (1..=MAX_LENGTHS).contains(&pairs.len()))?;
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([most, documents]) => Some([length(most)?, length(documents)?]),
        _ => None,
    };
    let pairs = pairs.iter().map(pair).collect::<Option<Vec<[u32; 2]>>>()?;
    is_histogram(&pairs).then_some(pairs)
}

/// Whether the lengths rise and there are documents.
fn is_histogram(pairs: &[[u32; 2]]) -> bool {
    pairs.first().is_some_and(|[least, _]| *least > 0)
        && pairs.is_sorted_by(|[one, _], [next, _]| one < next)
        && pairs.iter().any(|[_, documents]| *documents > 0)
}

impl Draw {
    /// As JSON.
    pub fn to_value(&self) -> Value {
        let mut value = match &self.lengths {
            Distribution::LogNormal { median, sigma_permille } => {
                json!({ "distribution": LOG_NORMAL, "median": median, "sigma": f64::from(*sigma_permille) / 1000.0 })
            }
            Distribution::Histogram(lengths) => json!({ "distribution": HISTOGRAM, "lengths": lengths }),
        };
        value["seed"] = json!(self.seed);
        value
    }

    /// Whether a spec may have it.
    pub(super) fn is_sound(&self) -> bool {
        self.seed <= MAX_SEED
            && match &self.lengths {
                Distribution::LogNormal { median, sigma_permille } => {
                    *median > 0 && (1..=(MAX_SIGMA * 1000.0) as u32).contains(sigma_permille)
                }
                Distribution::Histogram(pairs) => pairs.len() <= MAX_LENGTHS && is_histogram(pairs),
            }
    }

    /// Documents of at most `sequence` tokens, until several in a row have no room in any microbatch; or as many as a step may
    /// have, and whether there is room for more.
    fn lengths(&self, bins: Bins, sequence: u32) -> (Vec<u32>, bool) {
        let mut random = Random::new(self.seed);
        let mut filling = Filling::new(bins);
        let mut lengths = Vec::new();
        let mut waiting = 0;
        while waiting < MOST_WAITING {
            let length = self.lengths.draw(&mut random).clamp(1, sequence.max(1));
            match filling.take(length) {
                Some(_) if lengths.len() == MAX_DOCUMENTS => return (lengths, true),
                Some(_) => {
                    lengths.push(length);
                    waiting = 0;
                }
                None => waiting += 1,
            }
        }
        (lengths, false)
    }
}

impl Distribution {
    /// That of documents, by rising length how many have it. A length that many of them have stands for
    /// itself; between the others are about as many documents. None without documents.
    pub fn of_lengths(lengths: &[(u64, u64)]) -> Option<Distribution> {
        let mut known: Vec<(u32, u64)> = Vec::with_capacity(lengths.len());
        for (length, documents) in lengths {
            let length = u32::try_from(*length).unwrap_or(u32::MAX).max(1);
            match known.last_mut() {
                Some((last, sum)) if *last == length => *sum = sum.saturating_add(*documents),
                _ => known.push((length, *documents)),
            }
        }
        let all: u128 = known.iter().map(|(_, documents)| u128::from(*documents)).sum();
        let is_share = |documents: u64| u128::from(documents) * FEW_LENGTHS as u128 >= all;
        let mut pairs: Vec<(u32, u64)> = Vec::new();
        let (mut last, mut since) = (0, 0);
        for (index, (length, documents)) in known.iter().copied().enumerate() {
            let is_peak = known.len() <= FEW_LENGTHS || is_share(documents);
            // Lengths between two are as likely, so none lies between far ones.
            if is_peak || length / 2 > last {
                if since > 0 {
                    pairs.push((last, core::mem::take(&mut since)));
                }
                if length > pairs.last().map_or(0, |(length, _)| *length) + 1 {
                    pairs.push((length - 1, 0));
                }
            }
            (last, since) = (length, since.saturating_add(documents));
            if is_peak || is_share(since) || index + 1 == known.len() {
                pairs.push((length, core::mem::take(&mut since)));
            }
        }
        let most = pairs.iter().map(|(_, documents)| *documents).max().unwrap_or(0);
        let scale = most.div_ceil(u32::MAX.into()).max(1);
        let pairs: Vec<[u32; 2]> =
            pairs.into_iter().map(|(length, documents)| [length, documents.div_ceil(scale) as u32]).collect();
        is_histogram(&pairs).then_some(Distribution::Histogram(pairs))
    }

    fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Distribution::LogNormal { median, sigma_permille } => {
                // Of libm, which has the same bits on all machines.
                let sigma = f64::from(*sigma_permille) / 1000.0;
                libm::round(f64::from(*median) * libm::exp(sigma * normal(random))) as u32
            }
            Distribution::Histogram(pairs) => {
                let all: u64 = pairs.iter().map(|[_, documents]| u64::from(*documents)).sum();
                let mut at = random.below(all.max(1));
                let mut before = 0;
                for [most, documents] in pairs {
                    if at < u64::from(*documents) {
                        return before + 1 + random.below(u64::from(most - before)) as u32;
                    }
                    at -= u64::from(*documents);
                    before = *most;
                }
                before
            }
        }
    }
}

/// A normal number (Box and Muller, Annals of Mathematical Statistics 29, 1958).
fn normal(random: &mut Random) -> f64 {
    let mut uniform = || ((random.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (radius, angle) = (uniform(), uniform());
    libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(core::f64::consts::TAU * angle)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;

    use super::*;

    fn read(value: Value) -> Result<Documents, String> {
        let mut faults = Vec::new();
        let documents = Documents::read(&value, "d", &mut faults);
        match faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(documents),
        }
    }

    const BINS: Bins = Bins { replicas: 2, microbatches: 50, tokens: 32_768 };

    /// Half of the documents are below the median, and the logarithms have the standard deviation.
    #[test]
    fn lengths_have_the_distribution() {
        let documents = read(json!({ "distribution": "log-normal", "median": 400, "sigma": 1.5 })).unwrap();
        let many = Bins { replicas: 1, microbatches: 1, tokens: 1 << 25 };
        let lengths = documents.of_step(many, u32::MAX).unwrap();
        assert!(lengths.len() > 10_000, "{}", lengths.len());
        let below = lengths.iter().filter(|length| **length < 400).count() as f64 / lengths.len() as f64;
        assert!((below - 0.5).abs() < 0.02, "{below}");
        let logs: Vec<f64> = lengths.iter().map(|length| libm::log(f64::from(*length))).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let sigma = libm::sqrt(logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / logs.len() as f64);
        assert!((sigma - 1.5).abs() < 0.05, "{sigma}");
        let histogram = json!({ "distribution": "histogram", "lengths": [[9, 0], [10, 300], [500, 100]], "seed": 3 });
        let lengths = read(histogram).unwrap().of_step(many, 1000).unwrap();
        let tens = lengths.iter().filter(|length| **length == 10).count() as f64 / lengths.len() as f64;
        assert!((tens - 0.75).abs() < 0.02, "{tens}");
        assert!(lengths.iter().all(|length| (10..=500).contains(length)));
        let mean = lengths.iter().map(|length| f64::from(*length)).sum::<f64>() / lengths.len() as f64;
        assert!((mean - (0.75 * 10.0 + 0.25 * 255.5)).abs() < 3.0, "{mean}");
    }

    /// A histogram of lengths has all documents, from the least length to the greatest; of few lengths it has each.
    #[test]
    fn histograms_have_all_documents() {
        let few = [(3, 5), (4, 1), (900, 2)];
        let expected = vec![[2, 0], [3, 5], [4, 1], [899, 0], [900, 2]];
        assert_eq!(Distribution::of_lengths(&few), Some(Distribution::Histogram(expected)));
        let many: Vec<(u64, u64)> = (10..1000).map(|length| (length, 1 + length % 7)).collect();
        let Some(Distribution::Histogram(pairs)) = Distribution::of_lengths(&many) else { panic!("documents") };
        let all: u64 = many.iter().map(|(_, documents)| documents).sum();
        assert_eq!(pairs.iter().map(|[_, documents]| u64::from(*documents)).sum::<u64>(), all);
        assert_eq!((pairs[0], pairs.last().map(|[most, _]| *most)), ([9, 0], Some(999)));
        assert!(pairs[1..].iter().all(|[_, documents]| u64::from(*documents) < all / 15), "{pairs:?}");
        assert_eq!(Distribution::of_lengths(&[]), None);
    }

    /// Mean and mean square of what is drawn from a histogram: within a pair all lengths are as likely.
    fn moments(pairs: &[[u32; 2]]) -> [f64; 2] {
        let (mut sums, mut all, mut before) = ([0.0; 2], 0.0, 0);
        for [most, documents] in pairs {
            let (low, high, documents) = (f64::from(before) + 1.0, f64::from(*most), f64::from(*documents));
            let mean = (low + high) / 2.0;
            // The variance of n whole numbers in a row is (n² − 1) / 12.
            let count = high - low + 1.0;
            sums[0] += documents * mean;
            sums[1] += documents * (mean * mean + (count * count - 1.0) / 12.0);
            all += documents;
            before = *most;
        }
        sums.map(|sum| sum / all)
    }

    /// A histogram has the mean length of its documents and the mean square, to which attention is proportional, also where many
    /// have one length that is far from the others, as cut documents have that of a sequence, and where few are long.
    #[test]
    fn histograms_have_the_moments_of_their_documents() {
        let spread = || (10..1000).map(|length| (length, 1));
        let tails: [&[(u64, u64)]; 4] = [
            &[(8192, 1000)],
            &[(8192, 40)],
            &[(1000, 1000), (1001, 1), (1002, 1)],
            &[(100_000, 1), (300_000, 2), (1_000_000, 1)],
        ];
        for tail in tails {
            let lengths: Vec<(u64, u64)> = spread().chain(tail.iter().copied()).collect();
            let all: f64 = lengths.iter().map(|(_, documents)| *documents as f64).sum();
            let moment = |power: i32| {
                let of = |(length, documents): &(u64, u64)| {
                    *documents as f64 * libm::pow(*length as f64, f64::from(power))
                };
                lengths.iter().map(of).sum::<f64>() / all
            };
            let Some(Distribution::Histogram(pairs)) = Distribution::of_lengths(&lengths) else {
                panic!("documents")
            };
            for (found, expected) in moments(&pairs).into_iter().zip([moment(1), moment(2)]) {
                assert!((found / expected - 1.0).abs() < 0.01, "{tail:?}: {found} for {expected}: {pairs:?}");
            }
        }
    }

    /// Lengths and counts beyond 32 bits are cut and scaled, and none gets lost.
    #[test]
    fn histograms_of_any_lengths_and_counts_are_sound() {
        let most = u64::from(u32::MAX);
        let cut = [(most - 1, 1), (most, 1), (most + 1, 1), (1 << 40, 2)];
        let expected = vec![[u32::MAX - 2, 0], [u32::MAX - 1, 1], [u32::MAX, 4]];
        assert_eq!(Distribution::of_lengths(&cut), Some(Distribution::Histogram(expected)));
        // As many of each: the counts have the shares of the documents.
        let many = [(1, 1 << 40), (2, 1 << 39), (3, 1)];
        let Some(Distribution::Histogram(pairs)) = Distribution::of_lengths(&many) else { panic!("documents") };
        assert!(pairs.iter().all(|[_, documents]| *documents > 0), "{pairs:?}");
        assert!((f64::from(pairs[0][1]) / f64::from(pairs[1][1]) - 2.0).abs() < 1e-6, "{pairs:?}");
    }

    /// A step that has room for more documents than may be planned is refused and not planned half empty.
    #[test]
    fn more_documents_than_a_step_may_have_are_refused() {
        let value = json!({ "distribution": "log-normal", "median": 64, "sigma": 0.3 });
        let documents = read(value).unwrap();
        // A mean of 67 tokens: 64 · 16 · 32,768 tokens are half a million documents; a quarter of them is allowed.
        for (replicas, is_refused) in [(16, false), (64, true)] {
            let mut faults = Vec::new();
            let bins = Bins { replicas, microbatches: 16, tokens: 32_768 };
            documents.find_faults(bins, 32_768, &mut faults);
            assert_eq!(!faults.is_empty(), is_refused, "{replicas}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.to_string().contains("parallel.data")), "{faults:?}");
        }
    }

    /// Microbatches are nearly full; the same seed gives the same documents.
    #[test]
    fn documents_are_drawn_until_several_have_no_room() {
        let of = |seed: u64| {
            let value = json!({ "distribution": "log-normal", "median": 900, "sigma": 1.5, "seed": seed });
            read(value).unwrap().of_step(BINS, 8192).unwrap()
        };
        let lengths = of(1);
        assert!(lengths.iter().all(|length| (1..=8192).contains(length)));
        let tokens: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        assert!(tokens > 97 * 32_768, "{tokens}");
        assert!(BINS.packed(&lengths).is_some());
        assert_eq!(of(1), lengths);
        assert_ne!(of(2), lengths);
    }

    #[test]
    fn forms_are_told_apart_and_written_as_they_are_read() {
        for value in [
            json!([[1, 2], [3]]),
            json!([[[1, 2], []], [[], [3]]]),
            json!([1, 2, 3]),
            json!({ "distribution": "log-normal", "median": 900, "sigma": 1.5, "seed": 0 }),
            json!({ "distribution": "histogram", "lengths": [[10, 2], [300, 5]], "seed": 7 }),
        ] {
            assert_eq!(read(value.clone()).unwrap().to_value(), Some(value));
        }
        for (value, part) in [
            (json!(5), "d"),
            (json!([]), "a list of lists"),
            (json!([1, -2]), "d[1]"),
            (json!([[1], 2]), "d[1]"),
            (json!([[[1]], 2]), "d[1]"),
            (json!([[[1], [2.5]]]), "d[0][1]"),
            (json!({}), "d.distribution"),
            (json!({ "distribution": "normal" }), "log-normal"),
            (json!({ "distribution": "log-normal", "median": 0, "sigma": 1 }), "d.median"),
            (json!({ "distribution": "log-normal", "median": 9 }), "d.sigma"),
            (json!({ "distribution": "log-normal", "median": 9, "sigma": 11 }), "d.sigma"),
            (json!({ "distribution": "log-normal", "median": 9, "sigma": 1, "mean": 2 }), "d.mean"),
            (json!({ "distribution": "histogram" }), "d.lengths"),
            (json!({ "distribution": "histogram", "lengths": [[5, 1], [5, 1]] }), "d.lengths"),
            (json!({ "distribution": "histogram", "lengths": [[5, 0]] }), "d.lengths"),
            (json!({ "distribution": "histogram", "lengths": [[0, 3]] }), "d.lengths"),
        ] {
            let told = read(value.clone()).expect_err(&value.to_string());
            assert!(told.contains(part), "{value}: {told}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        let bins = Bins { replicas: 2, microbatches: 2, tokens: 100 };
        let told = |documents: Documents| {
            let mut faults = Vec::new();
            documents.find_faults(bins, 80, &mut faults);
            faults.first().map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(told(Documents::OfStep(vec![80, 80, 60, 20, 20, 40])), "");
        assert!(told(Documents::OfStep(vec![80, 81])).contains("training.documents[1]"));
        assert!(told(Documents::OfStep(vec![80; 5])).contains("4 microbatches of 100 tokens"));
        assert_eq!(told(Documents::OfReplicas(vec![vec![vec![80, 20], vec![]], vec![vec![1], vec![2]]])), "");
        assert!(
            told(Documents::OfReplicas(vec![vec![vec![80], vec![]]])).contains("one for each data parallel replica")
        );
        let uneven = vec![vec![vec![80], vec![]], vec![vec![80]]];
        assert!(told(Documents::OfReplicas(uneven)).contains("training.documents[1]"));
    }
}
