//! Ranks that share a card, each at work on its stage: they fill what each of them alone leaves empty, and share the memory's
//! rate and the card's power.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::{Graph, Operator, TensorId};

use super::card::{Bench, content};
use super::pieces;
use crate::backend::cuda::card::{Card, CardError, Mark, Memory};
use crate::backend::cuda::launch::{Context, Place};

/// Pieces of work that go out as one job.
const JOB: usize = 32;
/// Jobs that a queue is ahead of its card.
const AHEAD: usize = 2;
/// How often a queue does all of its work before anything counts: what comes again is launched in another way.
const BEFORE: usize = 2;

/// A rank at work on its stage: forward and backward of a microbatch, over and over, each operator on what those
/// before it have
/// left, in the caches, too, as in a run.
struct Queue<'g> {
    card: Arc<dyn Card>,
    context: Context,
    work: Vec<Bench<'g>>,
    ahead: VecDeque<Box<dyn Mark>>,
    /// Of all its tensors.
    _memory: Vec<Memory>,
}

impl<'g> Queue<'g> {
    fn new(card: &Arc<dyn Card>, graph: &'g Graph) -> Result<Queue<'g>, CardError> {
        let mut rooms = Rooms { card, graph, of: BTreeMap::new(), free: BTreeMap::new(), memory: Vec::new() };
        let lifetimes = Lifetimes::fused(graph);
        let mut work = Vec::new();
        for piece in pieces(graph) {
            let first = graph.operators.element_offset(&piece[0]).unwrap_or_default();
            let mut places = Vec::with_capacity(piece.len());
            for (at, operator) in (first..).zip(piece) {
                places.push(rooms.places(piece, operator, lifetimes.takes_over[at])?);
                rooms.give_back(&lifetimes.free_after[at]);
            }
            work.push(Bench::at(piece, places));
        }
        let (context, ahead) = (Context::new(Arc::clone(card)), VecDeque::new());
        Ok(Queue { card: Arc::clone(card), context, work, ahead, _memory: rooms.memory })
    }

    /// All of its work, or until `is_over`.
    fn pass(&mut self, is_over: impl Fn() -> bool) -> Result<(), CardError> {
        for job in self.work.chunks(JOB) {
            if is_over() {
                break;
            }
            self.card.begin_job();
            job.iter().try_for_each(|bench| bench.run(&mut self.context))?;
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

/// Where the tensors of a stage lie: those that live one after the other share room, as in a run.
struct Rooms<'a, 'g> {
    card: &'a Arc<dyn Card>,
    graph: &'g Graph,
    /// By tensor: its place in `memory`.
    of: BTreeMap<TensorId, usize>,
    /// By bytes: what nobody needs any more, the latest last.
    free: BTreeMap<Bytes, Vec<usize>>,
    memory: Vec<Memory>,
}

impl<'g> Rooms<'_, 'g> {
    /// Where `operator`, of `piece`, finds what it reads and puts what it writes; the first of that in the place of an input
    /// where it `takes_over`.
    fn places(
        &mut self,
        piece: &[Operator],
        operator: &Operator,
        takes_over: bool,
    ) -> Result<[Vec<Place<'g>>; 2], CardError> {
        for input in &operator.inputs {
            if !self.of.contains_key(&input.tensor) {
                self.add(piece, input.tensor)?;
            }
        }
        for (position, output) in operator.outputs.iter().enumerate() {
            if self.of.contains_key(output) {
                continue;
            }
            let before = operator.in_place.and_then(|input| operator.inputs.get(input as usize));
            let before = before.map(|input| input.tensor).filter(|_| takes_over && position == 0);
            let room = match before.filter(|input| !self.comes_again(*input)) {
                Some(input) => self.of.get(&input).copied(),
                None => self.free.get_mut(&self.graph[*output].bytes()).and_then(Vec::pop),
            };
            match room {
                Some(room) => _ = self.of.insert(*output, room),
                None => self.add(piece, *output)?,
            }
        }
        let place = |id: TensorId| Place {
            at: self.of.get(&id).and_then(|room| self.memory.get(*room)).map(Memory::at),
            shape: &self.graph[id].shape,
            dtype: self.graph[id].dtype,
        };
        let inputs = operator.inputs.iter().map(|input| place(input.tensor)).collect();
        Ok([inputs, operator.outputs.iter().map(|id| place(*id)).collect()])
    }

    fn add(&mut self, piece: &[Operator], id: TensorId) -> Result<(), CardError> {
        self.memory.push(content(self.card, self.graph, piece, id)?);
        self.of.insert(id, self.memory.len() - 1);
        Ok(())
    }

    /// Whether `id` comes from outside. The next round reads it as it was: what is added to it again and again would grow
    /// beyond all numbers.
    fn comes_again(&self, id: TensorId) -> bool {
        self.graph[id].role.arrives_in().is_some()
    }

    fn give_back(&mut self, ids: &[TensorId]) {
        for id in ids {
            if let Some(room) = self.of.get(id).filter(|_| !self.comes_again(*id)) {
                self.free.entry(self.graph[*id].bytes()).or_default().push(*room);
            }
        }
    }
}

/// Says that it is over when it goes, also where what is measured panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a thread does with `card`, after which the next one may have it: the context of a part is current to one thread at a
/// time.
fn lent<T>(card: &Arc<dyn Card>, work: impl FnOnce(&Arc<dyn Card>) -> Result<T, CardError>) -> Result<T, CardError> {
    let result = work(card);
    card.choose()?;
    result
}

fn ended<T>(queue: ScopedJoinHandle<'_, Result<T, CardError>>) -> Result<T, CardError> {
    queue.join().unwrap_or_else(|_| Err(CardError::call("another queue on the measured card", "its thread died")))
}

/// `measure`, while each of `others` is at work on its stage, that of the same place in `stages`.
///
/// # Errors
/// Of one of them, for example if the card's memory does not hold what they work on: then what was measured says nothing.
pub fn measure_while_others_run<R>(
    others: &[Arc<dyn Card>],
    stages: &[Graph],
    measure: impl FnOnce() -> R,
) -> Result<R, CardError> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = End(&is_over);
        let begin = |(card, stage): (&Arc<dyn Card>, _)| {
            let (ready, is_ready) = channel();
            let (is_over, card) = (&is_over, Arc::clone(card));
            let work = move |card: &Arc<dyn Card>| {
                let mut queue = Queue::new(card, stage)?;
                let is_over = || is_over.load(Ordering::Relaxed);
                (0..BEFORE).try_for_each(|_| queue.pass(is_over))?;
                // Whoever asks may have gone.
                let _ = ready.send(());
                while !is_over() {
                    queue.pass(is_over)?;
                }
                card.finish()
            };
            (is_ready, scope.spawn(move || lent(&card, work)))
        };
        let (ready, queues): (Vec<Receiver<()>>, Vec<_>) = others.iter().zip(stages).map(begin).unzip();
        // Whose thread has failed says nothing, and below why.
        let result = ready.iter().all(|ready| ready.recv().is_ok()).then(measure);
        drop(end);
        queues.into_iter().try_for_each(ended)?;
        result.ok_or_else(|| CardError::call("another queue on the measured card", "it ended early"))
    })
}

/// What ranks with a card each take for a microbatch, all at work at the same time and none waiting for another.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// By rank.
    pub each: Vec<Nanos>,
    /// From the first that begins to the last that ends.
    pub all: Nanos,
}

/// What each of `cards` takes for its stage, that of the same place in `stages`, where all of them are at work; found
/// from times
/// of `least` or more.
///
/// # Errors
/// [`CardError`], as [`measure_while_others_run`].
pub fn measure_shared(cards: &[Arc<dyn Card>], stages: &[Graph], least: Nanos) -> Result<Together, CardError> {
    const MOST_ROUNDS: Nanos = 1000;
    let once = rounds_of(cards, stages, 1)?;
    let rounds = (least / once.all.max(1)).clamp(1, MOST_ROUNDS);
    if rounds == 1 {
        return Ok(once);
    }
    let Together { each, all } = rounds_of(cards, stages, rounds as u32)?;
    Ok(Together { each: each.into_iter().map(|ns| ns / rounds).collect(), all: all / rounds })
}

/// The time of `rounds` rounds.
fn rounds_of(cards: &[Arc<dyn Card>], stages: &[Graph], rounds: u32) -> Result<Together, CardError> {
    // This thread may have been the last to use one.
    cards.iter().try_for_each(|card| card.choose())?;
    let times: Vec<Option<[Instant; 2]>> = thread::scope(|scope| {
        let mut begun = Vec::new();
        for (card, stage) in cards.iter().zip(stages) {
            let ((ready, is_ready), (go, may_go)) = (channel(), channel());
            let work = move |card: &Arc<dyn Card>| {
                let mut queue = Queue::new(card, stage)?;
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
            begun.push((is_ready, go, scope.spawn(move || lent(card, work))));
        }
        if begun.iter().all(|(is_ready, ..)| is_ready.recv().is_ok()) {
            begun.iter().for_each(|(_, go, _)| _ = go.send(()));
        }
        let queues: Vec<_> = begun.into_iter().map(|(_, _, queue)| queue).collect();
        queues.into_iter().map(ended).collect::<Result<_, _>>()
    })?;
    let between = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as Nanos;
    let first = times.iter().flatten().map(|[started, _]| *started).min();
    let last = times.iter().flatten().map(|[_, ended]| *ended).max();
    let each = times.iter().flatten().map(|[started, ended]| between(*started, *ended)).collect();
    Ok(Together { each, all: first.zip(last).map_or(0, |(first, last)| between(first, last)) })
}

#[cfg(test)]
mod tests {
    use pipeplan_core::model::Dtype;

    use super::*;
    use crate::backend::cuda::{Opening, open_as, tests::host};
    use crate::profiling::card::{Gpu, Pace};
    use crate::profiling::{Stopwatch, stages_of_ranks, wanted};
    use crate::runner::Device;
    use crate::selftest::training_runs::{Like, work};
    use pipeplan_core::search::Flow;

    fn stages(like: Like, ranks: usize) -> Arc<[Graph]> {
        let work = work(like, Dtype::F32, ranks).expect("a cpu is in the catalog");
        stages_of_ranks(&work, ranks).expect("stages")
    }

    /// Tensors share room, and nobody writes where another tensor lies that is still read.
    #[test]
    fn a_stage_reads_what_it_has_written() {
        let Some(card) = host() else { return };
        for like in [Like::Llama, Like::Gpt, Like::Gemma2, Like::Mixtral, Like::DeepSeek] {
            for graph in stages(like, 2).iter() {
                let queue = Queue::new(&card, graph).expect("room");
                let places = queue.work.iter().flat_map(Bench::places);
                let operators = pieces(graph).into_iter().flatten();
                let mut lies_at = BTreeMap::new();
                for (operator, [inputs, outputs]) in operators.zip(places) {
                    for (input, place) in operator.inputs.iter().zip(inputs) {
                        let there = lies_at.entry(place.at).or_insert(input.tensor);
                        assert_eq!(*there, input.tensor, "{like:?}: {:?}", operator.kernel);
                    }
                    for (output, place) in operator.outputs.iter().zip(outputs) {
                        lies_at.insert(place.at, *output);
                    }
                }
                let rooms = queue._memory.len();
                assert!(rooms < graph.tensors().count(), "{like:?}: {rooms} rooms");
            }
        }
    }

    /// Every operator has a time where others are at work, and they end with what is measured, or when it is stopped.
    #[test]
    fn slow_operators_are_measured_among_others() {
        if host().is_none() {
            return;
        }
        let stages = stages(Like::Llama, 3);
        let wanted = wanted(&stages, true);
        let in_parts =
            || Gpu::part(Device::Emulated, Arc::clone(&stages), 0.5, Pace::ONCE).expect("the emulated card");
        let in_turns =
            || Gpu::in_turns(Device::Emulated, Arc::clone(&stages), Pace::ONCE).expect("the emulated card");
        for (gpu, name) in [
            (&in_parts as &dyn Fn() -> Gpu, ", 2 others at work 50 % of the time"),
            (&in_turns, ", in turns with 2 others"),
        ] {
            let mut all = gpu();
            assert!(all.name().ends_with(name), "{}", all.name());
            // One operator has the share of all in its time, too.
            let one = gpu().times(&wanted[..1], &mut |_, _, _| Flow::Continue);
            assert!(matches!(one[..], [Some(Ok(1..))]), "{one:?}");
            let times = all.times(&wanted, &mut |_, _, _| Flow::Continue);
            assert!(
                times.len() == wanted.len() && times.iter().all(|time| matches!(time, Some(Ok(1..)))),
                "{times:?}"
            );
            assert!(all.update_time(Dtype::F32, 100).is_ok());
            // Without all of them nothing is known of what they take together.
            let stopped = gpu().times(&wanted, &mut |done, _, _| if done < 2 { Flow::Continue } else { Flow::Stop });
            assert_eq!(stopped, vec![None; wanted.len()]);
        }
        let card = |_| open_as(Device::Emulated, Opening::default()).expect("the emulated card");
        let cards: Vec<Arc<dyn Card>> = (0..2).map(card).collect();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            measure_while_others_run(&cards, &stages, || panic!("what is measured breaks"))
        }));
        assert!(panics.is_err(), "and the others do not go on for ever");
        let found = measure_shared(&cards, &stages, 0).expect("times");
        assert!(found.each.len() == 2 && found.each.iter().all(|ns| (1..=found.all).contains(ns)), "{found:?}");
    }
}
