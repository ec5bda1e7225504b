//! Operators on a card, timed by its own events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::graph::{Graph, Operator, TensorId};
use pipeplan_core::hardware::profile::Signature;
use pipeplan_core::model::Dtype;
use pipeplan_core::search::Flow;

use super::shared_card::{measure_shared, measure_while_others_run};
use super::{Observer, Stopwatch, Times, Wanted, drawn, kept, pieces, signature_of, wanted, whole_numbers};
use crate::backend::cuda::card::{Address, Card, CardError, Format, Held, Memory, Portion};
use crate::backend::cuda::launch::{Context, Place};
use crate::backend::cuda::{Opening, open_as, packed};
use crate::runner::Device;
use crate::runner::optimizer::AdamW;

/// How often something runs for one time, and how long before any counts: a card that has been at work for a while clocks
/// lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Launches for one time, at least.
    pub repeats: u32,
    /// How long something runs before its time is taken.
    pub warming: Nanos,
    /// How long it runs for one time, at least, where others are at work beside it: so long that it meets all that they do.
    pub beside_others: Nanos,
    /// How long the stages of ranks that share a card run, at least, to find what they take together.
    pub together: Nanos,
}

impl Pace {
    /// What gives the same times again.
    pub const STEADY: Pace =
        Pace { repeats: 10, warming: 100_000_000, beside_others: 30_000_000, together: 300_000_000 };
    /// Once, cold.
    pub const ONCE: Pace = Pace { repeats: 1, warming: 0, beside_others: 0, together: 0 };

    /// That of `device`.
    pub fn of(device: Device) -> Pace {
        // What the processor does in the place of a card takes long, and its times mean nothing.
        if device == Device::Emulated { Pace::ONCE } else { Pace::STEADY }
    }
}

/// A card that runs operators one by one.
pub struct Gpu {
    card: Arc<dyn Card>,
    context: Context,
    pace: Pace,
    shared: Option<Shared>,
}

/// How ranks have a card that share it.
struct Shared {
    /// That of each rank: the first is the one that is measured.
    cards: Vec<Arc<dyn Card>>,
    /// What each of them is at work on.
    stages: Arc<[Graph]>,
    way: Way,
    /// Of what the operators of the stages take one by one, what they take in a run; once it is known.
    share: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Each has a part of the multiprocessors, and works for such a share of a step: then the others do, too, for as much of
    /// the time.
    Parts { busy: f64 },
    /// Each has all of it, in turns.
    Turns,
}

impl Gpu {
    /// That of `device`.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn open(device: Device) -> Result<Gpu, CardError> {
        Ok(Gpu::new(&open_as(device, Opening::default())?, Pace::of(device)))
    }

    /// `card`.
    pub fn new(card: &Arc<dyn Card>, pace: Pace) -> Gpu {
        let pace = Pace { beside_others: 0, ..pace };
        Gpu { card: Arc::clone(card), context: Context::new(Arc::clone(card)), pace, shared: None }
    }

    /// One of as many equal parts of `device` as there are `stages`, of which each rank has one, for `busy` of a step.
    ///
    /// # Errors
    /// Where it cannot be used, or the driver cannot share it out so.
    pub fn part(device: Device, stages: Arc<[Graph]>, busy: f64, pace: Pace) -> Result<Gpu, CardError> {
        let parts = stages.len();
        let portion = |part| (parts > 1).then_some(Portion { part, parts });
        let open = |part| open_as(device, Opening { portion: portion(part), ..Opening::default() });
        let cards: Vec<Arc<dyn Card>> = (0..parts.max(1)).map(open).collect::<Result<_, _>>()?;
        let alone = Gpu::new(&cards[0], pace);
        Ok(Gpu { pace, shared: Some(Shared { cards, stages, way: Way::Parts { busy }, share: None }), ..alone })
    }

    /// `device` as ranks have it that are time-sliced on all of it, each at work on its one of `stages`.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn in_turns(device: Device, stages: Arc<[Graph]>, pace: Pace) -> Result<Gpu, CardError> {
        let open = |_| open_as(device, Opening::default());
        let cards: Vec<Arc<dyn Card>> = (0..stages.len().max(1)).map(open).collect::<Result<_, _>>()?;
        let alone = Gpu::new(&cards[0], pace);
        Ok(Gpu { shared: Some(Shared { cards, stages, way: Way::Turns, share: None }), ..alone })
    }

    /// Of what the operators of ranks that share the card take one by one, what they take in a run; once that is known.
    pub fn share(&self) -> Option<f64> {
        self.shared.as_ref().and_then(|shared| shared.share)
    }

    /// `measure` with the card, the other parts at work meanwhile if there are any.
    fn among_others<R>(
        &mut self,
        measure: impl FnOnce(&Arc<dyn Card>, &mut Context, Pace) -> R,
    ) -> Result<R, CardError> {
        let Gpu { card, context, pace, shared } = self;
        let measure = || measure(card, context, *pace);
        match shared {
            Some(Shared { cards, stages, way: Way::Parts { .. }, .. }) => {
                measure_while_others_run(&cards[1..], stages.get(1..).unwrap_or_default(), measure)
            }
            _ => Ok(measure()),
        }
    }

    /// What each of `wanted` takes by itself.
    fn one_by_one(&mut self, wanted: &[Wanted<'_>], observe: &mut Observer<'_>) -> Times {
        let all = wanted.len();
        let times = self.among_others(|card, context, pace| {
            let mut is_stopped = false;
            let each = wanted.iter().enumerate().map(|(done, wanted)| {
                is_stopped |= observe(done, all, &wanted.signature.kernel) == Flow::Stop;
                let mut time = || operator_time(card, context, wanted.graph, wanted.operators, pace);
                (!is_stopped).then(|| time().map_err(|error| error.to_string()))
            });
            each.collect()
        });
        times.unwrap_or_else(|error| wanted.iter().map(|_| Some(Err(error.to_string()))).collect())
    }
}

impl Shared {
    /// Of what the operators of the stages take one by one, `times` of each, what they take in a run.
    fn found_share(&self, times: &BTreeMap<Signature, Nanos>, pace: Pace) -> Result<f64, String> {
        let Shared { cards, stages, way, .. } = self;
        let of_piece = |(graph, piece): (&Graph, &[Operator])| {
            let signature = signature_of(graph, piece);
            times
                .get(&signature)
                .copied()
                .ok_or_else(|| format!("{} of {} has no time", signature.kernel, signature.operands))
        };
        let all = stages.iter().flat_map(|graph| pieces(graph).into_iter().map(move |piece| (graph, piece)));
        let one_by_one = all.map(of_piece).sum::<Result<Nanos, String>>()?.max(1);
        let at_once = |cards: &[Arc<dyn Card>], stages: &[Graph]| {
            measure_shared(cards, stages, pace.together).map_err(|error| error.to_string())
        };
        let taken = match way {
            Way::Turns => at_once(cards, stages)?.all as f64,
            Way::Parts { busy } => {
                let among_others: Nanos = at_once(cards, stages)?.each.iter().sum();
                let each = cards.iter().zip(stages.iter());
                let each = each.map(|(card, stage)| at_once(std::slice::from_ref(card), std::slice::from_ref(stage)));
                let alone = each.map(|found| Ok(found?.all)).sum::<Result<Nanos, String>>()?;
                busy * among_others as f64 + (1.0 - busy) * alone as f64
            }
        };
        Ok(taken / one_by_one as f64)
    }
}

impl Stopwatch for Gpu {
    /// Without the number that the machine has given it: times of one card are those of another like it.
    fn name(&self) -> String {
        let name = self.card.name();
        let rest = name.strip_prefix("GPU ").and_then(|numbered| numbered.split_once(", "));
        let name = rest.map_or_else(|| name.clone(), |(_, rest)| rest.to_string());
        let Some(Shared { cards, way, .. }) = &self.shared else { return name };
        match (way, cards.len() - 1) {
            (_, 0) => name,
            (Way::Turns, 1) => format!("{name}, in turns with another"),
            (Way::Turns, others) => format!("{name}, in turns with {others} others"),
            (Way::Parts { busy }, 1) => format!("{name}, another at work {:.0} % of the time", 100.0 * busy),
            (Way::Parts { busy }, others) => {
                format!("{name}, {others} others at work {:.0} % of the time", 100.0 * busy)
            }
        }
    }

    fn workspace_bytes(&self) -> Bytes {
        self.card.workspace_bytes()
    }

    fn joins_sums(&self) -> bool {
        true
    }

    fn update_time(&mut self, dtype: Dtype, elements: u64) -> Result<Nanos, String> {
        let format = if dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 };
        let time = self.among_others(|card, _, pace| update_time(card, format, elements, pace));
        time.flatten().map_err(|error| error.to_string())
    }

    /// As much as no cache holds; little where times mean nothing.
    fn most_weights(&self) -> u64 {
        if self.pace == Pace::ONCE { 1 << 16 } else { 1 << 26 }
    }

    /// Of a card that ranks share, what an operator takes one by one is scaled by what all of the stages' take in a run.
    fn times(&mut self, asked: &[Wanted<'_>], observe: &mut Observer<'_>) -> Times {
        let Some(shared) = &self.shared else { return self.one_by_one(asked, observe) };
        let stages = Arc::clone(&shared.stages);
        let mut all = asked.to_vec();
        if shared.share.is_none() {
            let known: BTreeSet<&Signature> = asked.iter().map(|wanted| &wanted.signature).collect();
            all.extend(
                wanted(&stages, self.joins_sums()).into_iter().filter(|wanted| !known.contains(&wanted.signature)),
            );
        }
        let mut times = self.one_by_one(&all, observe);
        if times.iter().any(Option::is_none) {
            return vec![None; asked.len()];
        }
        let pace = self.pace;
        let found = self.shared.as_mut().map_or(Ok(1.0), |shared| {
            let known = all.iter().zip(&times).filter_map(|(wanted, time)| match time {
                Some(Ok(ns)) => Some((wanted.signature.clone(), *ns)),
                _ => None,
            });
            let share = shared.share.map_or_else(|| shared.found_share(&known.collect(), pace), Ok)?;
            shared.share = Some(share);
            Ok::<_, String>(share)
        });
        times.truncate(asked.len());
        let scaled = |time: Result<Nanos, String>| {
            let (ns, share) = (time?, found.clone()?);
            Ok(((ns as f64 * share).round() as Nanos).max(1))
        };
        times.into_iter().map(|time| time.map(scaled)).collect()
    }
}

/// The median time of one of `repeats` calls or more, five times over, after some that warm up.
pub fn time(
    card: &Arc<dyn Card>,
    Pace { repeats, warming, beside_others, .. }: Pace,
    mut call: impl FnMut() -> Result<(), CardError>,
) -> Result<Nanos, CardError> {
    let mut once = |repeats: u64| {
        // Not counted: behind it the watch starts when the first call's turn comes, and not while the host still makes it.
        call()?;
        card.start_watch()?;
        (0..repeats).try_for_each(|_| call())?;
        card.stop_watch()
    };
    let repeats = u64::from(repeats.max(1));
    let mut last = once(repeats)?.max(1);
    let mut warmed = last;
    while warmed < warming {
        last = once(repeats)?.max(1);
        warmed += last;
    }
    let repeats = repeats.max((beside_others * repeats).div_ceil(last));
    let mut times = (0..5).map(|_| once(repeats)).collect::<Result<Vec<Nanos>, CardError>>()?;
    times.sort_unstable();
    Ok((times[times.len() / 2] / repeats).max(1))
}

/// AdamW over `elements` weights in `format`, those of a matrix: its gradient is written anew in each step.
pub fn update_time(card: &Arc<dyn Card>, format: Format, elements: u64, pace: Pace) -> Result<Nanos, CardError> {
    let context = Context::new(Arc::clone(card));
    let weight = numbers(card, 0, elements, format)?;
    let [master, gradient] = [numbers(card, 0, elements, Format::F32)?, numbers(card, 0, elements, Format::F32)?];
    let [mean, square] = [Memory::zeros(card, 4 * elements)?, Memory::zeros(card, 4 * elements)?];
    // Weights in f32 are their own masters.
    let master = if format == Format::F32 { &weight } else { &master };
    let places = [&weight, master, &gradient, &mean, &square].map(Memory::at);
    time(card, pace, || context.adamw(&AdamW::default(), 0, format, places, elements, true, false))
}

/// What `operators` find in the tensor `id`.
pub(super) fn content(
    card: &Arc<dyn Card>,
    graph: &Graph,
    operators: &[Operator],
    id: TensorId,
) -> Result<Memory, CardError> {
    let elements = graph[id].elements();
    match graph[id].dtype {
        Dtype::I32 => {
            let whole = whole_numbers(graph, operators, id);
            Memory::holding(card, &whole.into_iter().flat_map(i32::to_ne_bytes).collect::<Vec<u8>>())
        }
        Dtype::U8 => Memory::holding(card, &kept(elements as usize).collect::<Vec<u8>>()),
        Dtype::Bf16 => numbers(card, id.0, elements, Format::Bf16),
        Dtype::F32 | Dtype::F64 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => {
            numbers(card, id.0, elements, Format::F32)
        }
    }
}

/// So many made-up numbers in `format`, others for each `seed`.
///
/// # Errors
/// As [`Memory::new`].
pub fn numbers(card: &Arc<dyn Card>, seed: u32, elements: u64, format: Format) -> Result<Memory, CardError> {
    Memory::repeating(card, elements * format.bytes(), &packed(&drawn(seed, elements as usize), format))
}

/// What a card's cache may keep of operands; those of a run come from memory, past which many others have gone since.
const BEYOND_CACHES: Bytes = 192 << 20;
/// How many operators make a job long enough that nearly all of them go out in lists, as those of a model do.
const OF_JOB: usize = 40;
/// Of what takes less, what it takes to go out is a share that can be seen.
const SHORT: Nanos = 50_000;

/// One operator, or a product and the sum behind it, with its own operands.
pub(super) struct Bench<'g> {
    operators: &'g [Operator],
    /// By operator: what it reads and what it writes.
    places: Vec<[Vec<Place<'g>>; 2]>,
    memory: Vec<Memory>,
}

impl<'g> Bench<'g> {
    /// `operators` of `graph`, whose operands are made up.
    pub fn new(card: &Arc<dyn Card>, graph: &'g Graph, operators: &'g [Operator]) -> Result<Bench<'g>, CardError> {
        // By tensor: its buffer. An operator that runs in place has one for both ends.
        let mut buffer_of: BTreeMap<TensorId, usize> = BTreeMap::new();
        let mut buffers: Vec<TensorId> = Vec::new();
        let mut new = |id: TensorId| {
            buffers.push(id);
            buffers.len() - 1
        };
        for operator in operators {
            let in_place =
                operator.in_place.and_then(|at| operator.inputs.get(at as usize)).map(|input| input.tensor);
            for (position, output) in operator.outputs.iter().enumerate() {
                let before = in_place.filter(|_| position == 0);
                let there = before.and_then(|input| buffer_of.get(&input)).copied();
                let at = there.unwrap_or_else(|| new(*output));
                before.into_iter().chain([*output]).for_each(|id| _ = buffer_of.insert(id, at));
            }
            for input in &operator.inputs {
                buffer_of.entry(input.tensor).or_insert_with(|| new(input.tensor));
            }
        }
        let content = |id: &TensorId| content(card, graph, operators, *id);
        let memory: Vec<Memory> = buffers.iter().map(content).collect::<Result<_, _>>()?;
        let place = |id: TensorId| Place {
            at: buffer_of.get(&id).and_then(|at| memory.get(*at)).map(Memory::at),
            shape: &graph[id].shape,
            dtype: graph[id].dtype,
        };
        let of_operator = |operator: &Operator| {
            let inputs = operator.inputs.iter().map(|input| place(input.tensor)).collect();
            [inputs, operator.outputs.iter().map(|id| place(*id)).collect()]
        };
        Ok(Bench { operators, places: operators.iter().map(of_operator).collect(), memory })
    }

    /// `operators`, where what they read and write lies at `places`, in memory of others: by operator.
    pub fn at(operators: &'g [Operator], places: Vec<[Vec<Place<'g>>; 2]>) -> Bench<'g> {
        Bench { operators, places, memory: Vec::new() }
    }

    /// The same with other memory.
    fn another(&self, card: &Arc<dyn Card>) -> Result<Bench<'g>, CardError> {
        let copy = |one: &Memory| one.copied_to(card, Held::Kept);
        let memory: Vec<Memory> = self.memory.iter().map(copy).collect::<Result<_, _>>()?;
        let moved: BTreeMap<Address, Address> =
            self.memory.iter().map(Memory::at).zip(memory.iter().map(Memory::at)).collect();
        let place = |place: &Place<'g>| Place { at: place.at.and_then(|at| moved.get(&at).copied()), ..*place };
        let each = |places: &[Vec<Place<'g>>; 2]| places.each_ref().map(|places| places.iter().map(place).collect());
        Ok(Bench { operators: self.operators, places: self.places.iter().map(each).collect(), memory })
    }

    /// By operator: where it finds what it reads, and puts what it writes.
    #[cfg(test)]
    pub fn places(&self) -> &[[Vec<Place<'g>>; 2]] {
        &self.places
    }

    /// Puts them on the queue of `context`.
    pub fn run(&self, context: &mut Context) -> Result<(), CardError> {
        let each = self.operators.iter().zip(&self.places);
        each.into_iter().try_for_each(|(operator, [inputs, outputs])| context.run(&operator.kernel, inputs, outputs))
    }

    fn bytes(&self) -> Bytes {
        self.memory.iter().map(Memory::bytes).sum()
    }
}

/// The time of one operator, or a product and the sum behind it, with so many operands that none is in a cache when its turn
/// comes.
fn operator_time(
    card: &Arc<dyn Card>,
    context: &mut Context,
    graph: &Graph,
    operators: &[Operator],
    pace: Pace,
) -> Result<Nanos, CardError> {
    let repeats = pace.repeats.max(1);
    let mut sets = vec![Bench::new(card, graph, operators)?];
    let wanted = BEYOND_CACHES.div_ceil(sets[0].bytes().max(1)).clamp(1, repeats.into());
    for _ in 1..wanted {
        sets.push(sets[0].another(card)?);
    }
    // All sets in one job, as in a run: what goes out together may be done in one go, and the host's calls hide behind it.
    let mut timed = |rounds: usize, pace: Pace| {
        let all = sets.len() * rounds;
        let ns = time(card, Pace { repeats: repeats.div_ceil(all as u32), ..pace }, || {
            card.begin_job();
            (0..rounds).try_for_each(|_| sets.iter().try_for_each(|bench| bench.run(context)))?;
            card.end_job()
        })?;
        Ok::<_, CardError>((ns / all as Nanos).max(1))
    };
    let ns = timed(1, pace)?;
    let rounds = OF_JOB.div_ceil(sets.len());
    if ns >= SHORT || rounds < 2 || pace == Pace::ONCE {
        return Ok(ns);
    }
    timed(rounds, Pace { warming: 0, ..pace })
}
