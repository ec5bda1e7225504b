//! Operators on a card while its other queues are at work, as where ranks share one: they share the memory's rate and the
//! card's power, so that each takes longer than alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use pipeplan_core::graph::{Graph, Operator};
use pipeplan_core::profile::Signature;
use pipeplan_core::units::Nanos;

use super::card::Bench;
use super::pieces;
use crate::backend::cuda::card::{Card, CardError, Mark};
use crate::backend::cuda::launch::Context;

/// Pieces of work that go out as one job.
const JOB: usize = 32;
/// Jobs that a queue is ahead of its card.
const AHEAD: usize = 2;
/// The most pieces that a queue has to do over and over: enough to be like all of a model's.
const MOST: usize = 8 * JOB;
/// How often a queue does all of them before others are measured: what comes again is launched in another way.
const BEFORE: usize = 2;

/// A queue with a list of work.
struct Queue<'g> {
    card: Arc<dyn Card>,
    context: Context,
    /// Each different one once.
    benches: Vec<Bench<'g>>,
    /// The places of those in the order of the work.
    list: Vec<usize>,
    ahead: VecDeque<Box<dyn Mark>>,
}

impl<'g> Queue<'g> {
    fn new(card: &Arc<dyn Card>, graph: &'g Graph, list: &[&'g [Operator]]) -> Result<Queue<'g>, CardError> {
        let mut known: BTreeMap<Signature, usize> = BTreeMap::new();
        let (mut benches, mut places) = (Vec::new(), Vec::new());
        for operators in list {
            let signature = match operators {
                [product, sum] => Signature::of_both(graph, product, sum),
                [operator, ..] => Signature::of(graph, operator),
                [] => continue,
            };
            let place = known.get(&signature).copied();
            places.push(match place {
                Some(place) => place,
                None => {
                    benches.push(Bench::new(card, graph, operators)?);
                    known.insert(signature, benches.len() - 1);
                    benches.len() - 1
                }
            });
        }
        let (context, ahead) = (Context::new(Arc::clone(card)), VecDeque::new());
        Ok(Queue { card: Arc::clone(card), context, benches, list: places, ahead })
    }

    /// All of the list, or until `is_over`.
    fn pass(&mut self, is_over: impl Fn() -> bool) -> Result<(), CardError> {
        for job in self.list.chunks(JOB) {
            if is_over() {
                break;
            }
            self.card.begin_job();
            for place in job {
                self.benches[*place].run(&mut self.context)?;
            }
            self.card.end_job()?;
            self.ahead.push_back(self.card.mark()?);
            while self.ahead.len() > AHEAD {
                match self.ahead.front().map_or(Ok(true), |mark| mark.is_past())? {
                    true => drop(self.ahead.pop_front()),
                    false => thread::sleep(Duration::from_micros(20)),
                }
            }
        }
        Ok(())
    }
}

/// What a device does of `graph` for a microbatch, or a part of it, in an order in which any few of it are like all of it: so
/// that what is measured beside it meets the same whenever that is.
fn mixed(graph: &Graph) -> Vec<&[Operator]> {
    let pieces = pieces(graph);
    let count = pieces.len();
    // Multiples of the golden ratio lie evenly between 0 and 1, wherever one begins and ends; those of a number without
    // common factor come to each place once.
    let mut stride = (count as f64 * 0.618_034) as usize;
    while stride > 1 && common_factor(stride, count) > 1 {
        stride -= 1;
    }
    (0..count.min(MOST)).map(|at| pieces[at * stride.max(1) % count]).collect()
}

fn common_factor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { common_factor(other, one % other) }
}

/// Says that it is over when it goes, also where what is measured panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ended<T>(queue: ScopedJoinHandle<'_, Result<T, CardError>>) -> Result<T, CardError> {
    queue
        .join()
        .unwrap_or_else(|_| Err(CardError::call("a queue beside the one that is measured", "its thread died")))
}

/// `measure`, while each of `others` is at work on `graph`.
///
/// # Errors
/// Of one of them, such as where the card's memory does not hold what they work on: then what was measured says nothing.
pub fn measured_beside<R>(
    others: &[Arc<dyn Card>],
    graph: &Graph,
    measure: impl FnOnce() -> R,
) -> Result<R, CardError> {
    let is_over = AtomicBool::new(false);
    let list = mixed(graph);
    thread::scope(|scope| {
        let end = End(&is_over);
        let begin = |(number, card)| {
            let (ready, is_ready) = channel();
            let (is_over, mut list) = (&is_over, list.clone());
            // No two do the same at the same time.
            let from = list.len() * (number + 1) / (others.len() + 1);
            list.rotate_left(from);
            let work = move || {
                let mut queue = Queue::new(card, graph, &list)?;
                let is_over = || is_over.load(Ordering::Relaxed);
                (0..BEFORE).try_for_each(|_| queue.pass(is_over))?;
                // Whoever asks may have gone.
                let _ = ready.send(());
                while !is_over() {
                    queue.pass(is_over)?;
                }
                card.finish()?;
                // A part's context is for whoever asks next, which will be another thread.
                card.choose()
            };
            (is_ready, scope.spawn(work))
        };
        let (ready, queues): (Vec<Receiver<()>>, Vec<_>) = others.iter().enumerate().map(begin).unzip();
        // Whose thread has failed says nothing, and below why.
        let result = ready.iter().all(|ready| ready.recv().is_ok()).then(measure);
        drop(end);
        queues.into_iter().try_for_each(ended)?;
        result.ok_or_else(|| CardError::call("a queue beside the one that is measured", "it ended early"))
    })
}

/// What work on `graph` takes where a queue on each of `cards`, which are one, does its own at the same time, as a share of
/// what it takes with the card for itself: less than 1 where they fill what each of them leaves empty. Found from times of
/// `least` or more.
///
/// # Errors
/// [`CardError`], as [`measured_beside`].
pub fn share_in_turns(cards: &[Arc<dyn Card>], graph: &Graph, least: Nanos) -> Result<f64, CardError> {
    const MOST_ROUNDS: Nanos = 1000;
    let one = &cards[..cards.len().min(1)];
    let once = side_by_side(one, graph, 1)?.max(1);
    let rounds = (least / once).clamp(1, MOST_ROUNDS) as u32;
    let alone = side_by_side(one, graph, rounds)?.max(1);
    let all = side_by_side(cards, graph, rounds)?;
    Ok(all as f64 / (alone as f64 * cards.len().max(1) as f64))
}

/// How long queues on `cards` take to go through what `graph` has so many `rounds`, all at the same time and none waiting for
/// another.
fn side_by_side(cards: &[Arc<dyn Card>], graph: &Graph, rounds: u32) -> Result<Nanos, CardError> {
    let list = mixed(graph);
    let times: Vec<Option<[Instant; 2]>> = thread::scope(|scope| {
        let mut begun = Vec::new();
        for (number, card) in cards.iter().enumerate() {
            let ((ready, is_ready), (go, may_go)) = (channel(), channel());
            let mut list = list.clone();
            // No two do the same at the same time.
            let from = list.len() * number / cards.len();
            list.rotate_left(from);
            let work = move || {
                let mut queue = Queue::new(card, graph, &list)?;
                (0..BEFORE).try_for_each(|_| queue.pass(|| false))?;
                card.finish()?;
                // Whoever asks may have gone, and says nothing where another has failed.
                let _ = ready.send(());
                if may_go.recv().is_err() {
                    return Ok(None);
                }
                let started = Instant::now();
                (0..rounds).try_for_each(|_| queue.pass(|| false))?;
                card.finish()?;
                Ok(Some([started, Instant::now()]))
            };
            begun.push((is_ready, go, scope.spawn(work)));
        }
        if begun.iter().all(|(is_ready, ..)| is_ready.recv().is_ok()) {
            begun.iter().for_each(|(_, go, _)| _ = go.send(()));
        }
        let queues: Vec<_> = begun.into_iter().map(|(_, _, queue)| queue).collect();
        queues.into_iter().map(ended).collect::<Result<_, _>>()
    })?;
    let first = times.iter().flatten().map(|[started, _]| *started).min();
    let last = times.iter().flatten().map(|[_, ended]| *ended).max();
    Ok(first.zip(last).map_or(0, |(first, last)| last.duration_since(first).as_nanos() as Nanos))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pipeplan_core::model::Dtype;

    use super::*;
    use crate::backend::cuda::{Opening, open_as, tests::host};
    use crate::profiling::card::{Gpu, Pace};
    use crate::profiling::{Stopwatch, wanted, whole};
    use crate::runner::Device;
    use crate::selftest::whole::{Like, work};
    use pipeplan_core::search::Flow;
    use pipeplan_core::spec::ModelWork;

    fn graph(layers: u32) -> Graph {
        let work = work(Like::Llama, Dtype::F32, 2).expect("a cpu is in the catalog");
        let model = pipeplan_core::model::ModelConfig { layers, ..work.model };
        whole(&ModelWork { model, ..work })
    }

    /// All of a microbatch's work once, and in any job of it about as much of each kind as in all: products are counted.
    #[test]
    fn a_few_pieces_are_like_all_of_them() {
        for layers in [2, 3, 7] {
            let graph = graph(layers);
            let (all, mixed) = (pieces(&graph), mixed(&graph));
            let places = |list: &[&[Operator]]| list.iter().map(|piece| piece.as_ptr()).collect::<BTreeSet<_>>();
            assert_eq!(mixed.len(), all.len().min(MOST));
            assert_eq!(places(&mixed).len(), mixed.len(), "none twice");
            let products = |list: &[&[Operator]]| {
                list.iter().filter(|piece| piece[0].kernel.name() == "matmul").count() as f64 / list.len() as f64
            };
            let usual = products(&all);
            assert!(usual > 0.2, "{usual}");
            for job in mixed.chunks_exact(JOB) {
                assert!((products(job) / usual - 1.0).abs() < 0.4, "{} of {usual}, {layers} layers", products(job));
            }
        }
        assert!(mixed(&Graph { operators: Vec::new(), ..graph(1) }).is_empty());
    }

    /// Every operator has a time where others are at work, and they end with what is measured, or when it is stopped.
    #[test]
    fn operators_are_measured_among_others() {
        if host().is_none() {
            return;
        }
        let graph = graph(2);
        let mut gpu = Gpu::part(Device::Emulated, 3, &graph, Pace::ONCE).expect("the stand-in");
        assert!(gpu.name().ends_with(", 2 others at work"), "{}", gpu.name());
        let wanted = wanted(std::slice::from_ref(&graph), true);
        let times = gpu.times(&wanted, &mut |_, _, _| Flow::Continue);
        assert!(times.iter().all(|time| matches!(time, Some(Ok(1..)))), "{times:?}");
        assert!(gpu.update_time(Dtype::F32, 100).is_ok());
        let stopped = gpu.times(&wanted, &mut |done, _, _| if done < 2 { Flow::Continue } else { Flow::Stop });
        assert_eq!(stopped.iter().flatten().count(), 2);
        let card = |_| open_as(Device::Emulated, Opening::default()).expect("the stand-in");
        let cards: Vec<Arc<dyn Card>> = (0..2).map(card).collect();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            measured_beside(&cards, &graph, || panic!("what is measured breaks"))
        }));
        assert!(panics.is_err(), "and the others do not go on for ever");
        let share = share_in_turns(&cards, &graph, 0).expect("a share");
        assert!(share > 0.0 && share.is_finite(), "{share}");
        let mut gpu = Gpu::in_turns(Device::Emulated, 3, &graph, Pace::ONCE).expect("the stand-in");
        assert!(gpu.name().ends_with(", in turns with 2 others"), "{}", gpu.name());
        let times = gpu.times(&wanted, &mut |_, _, _| Flow::Continue);
        assert!(times.iter().all(|time| matches!(time, Some(Ok(1..)))), "{times:?}");
    }
}
