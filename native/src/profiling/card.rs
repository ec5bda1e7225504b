//! Operators on a card, timed by its own events.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipeplan_core::graph::{Graph, Operator, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::search::Flow;
use pipeplan_core::units::{Bytes, Nanos};

use super::{Observer, Stopwatch, Times, Wanted, floats, kept, whole_numbers};
use crate::backend::cuda::card::{Card, CardError, Format, Held, Memory};
use crate::backend::cuda::launch::{Context, Place};
use crate::backend::cuda::{Opening, open_as, packed};
use crate::runner::Device;
use crate::runner::optimizer::AdamW;

/// How often something runs for one time, and how long before any counts: a card that has been at work for a while clocks
/// lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Launches for one time.
    pub repeats: u32,
    /// How long something runs before its time is taken.
    pub warming: Nanos,
}

impl Pace {
    /// What gives the same times again.
    pub const STEADY: Pace = Pace { repeats: 10, warming: 100_000_000 };
    /// Once, cold.
    pub const ONCE: Pace = Pace { repeats: 1, warming: 0 };
}

/// A card that runs operators one by one.
pub struct Gpu {
    card: Arc<dyn Card>,
    context: Context,
    pace: Pace,
}

impl Gpu {
    /// That of `device`.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn open(device: Device) -> Result<Gpu, CardError> {
        // What the processor does in the place of a card takes long, and its times mean nothing.
        let pace = if device == Device::Emulated { Pace::ONCE } else { Pace::STEADY };
        Ok(Gpu::new(&open_as(device, Opening::default())?, pace))
    }

    /// `card`.
    pub fn new(card: &Arc<dyn Card>, pace: Pace) -> Gpu {
        Gpu { card: Arc::clone(card), context: Context::new(Arc::clone(card)), pace }
    }
}

impl Stopwatch for Gpu {
    /// Without the number that the machine has given it: times of one card are those of another like it.
    fn name(&self) -> String {
        let name = self.card.name();
        let rest = name.strip_prefix("GPU ").and_then(|numbered| numbered.split_once(", "));
        rest.map_or_else(|| name.clone(), |(_, rest)| rest.to_string())
    }

    fn workspace_bytes(&self) -> Bytes {
        self.card.workspace_bytes()
    }

    fn joins_sums(&self) -> bool {
        true
    }

    fn update_time(&mut self, dtype: Dtype, elements: u64) -> Result<Nanos, String> {
        let format = if dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 };
        update_time(&self.card, format, elements, self.pace).map_err(|error| error.to_string())
    }

    /// As much as no cache holds; little where times mean nothing.
    fn most_weights(&self) -> u64 {
        if self.pace == Pace::ONCE { 1 << 16 } else { 1 << 26 }
    }

    fn times(&mut self, wanted: &[Wanted<'_>], observe: &mut Observer<'_>) -> Times {
        let mut time = |wanted: &Wanted<'_>| {
            let time = operator_time(&self.card, &mut self.context, wanted.graph, wanted.operators, self.pace);
            time.map_err(|error| error.to_string())
        };
        let all = wanted.len();
        let mut is_stopped = false;
        let each = wanted.iter().enumerate().map(|(done, wanted)| {
            is_stopped |= observe(done, all, &wanted.signature.kernel) == Flow::Stop;
            (!is_stopped).then(|| time(wanted))
        });
        each.collect()
    }
}

/// The median time of one of `repeats` calls, five times over, after some that warm up.
pub fn time(
    card: &Arc<dyn Card>,
    Pace { repeats, warming }: Pace,
    mut call: impl FnMut() -> Result<(), CardError>,
) -> Result<Nanos, CardError> {
    let mut once = || {
        // Not counted: behind it the watch starts when the first call's turn comes, and not while the host still makes it.
        call()?;
        card.start_watch()?;
        (0..repeats).try_for_each(|_| call())?;
        card.stop_watch()
    };
    let mut warmed = once()?.max(1);
    while warmed < warming {
        warmed += once()?.max(1);
    }
    let mut times = (0..5).map(|_| once()).collect::<Result<Vec<Nanos>, CardError>>()?;
    times.sort_unstable();
    Ok((times[times.len() / 2] / Nanos::from(repeats.max(1))).max(1))
}

/// AdamW over `elements` weights in `format`.
pub fn update_time(card: &Arc<dyn Card>, format: Format, elements: u64, pace: Pace) -> Result<Nanos, CardError> {
    let context = Context::new(Arc::clone(card));
    let numbers: Vec<f32> = floats(0, elements as usize).collect();
    let weight = Memory::holding(card, &packed(&numbers, format))?;
    let wide = packed(&numbers, Format::F32);
    let [master, gradient] = [Memory::holding(card, &wide)?, Memory::holding(card, &wide)?];
    let [mean, square] = [Memory::zeros(card, 4 * elements)?, Memory::zeros(card, 4 * elements)?];
    // Weights in f32 are their own masters.
    let master = if format == Format::F32 { &weight } else { &master };
    let places = [&weight, master, &gradient, &mean, &square].map(Memory::at);
    time(card, pace, || context.adamw(&AdamW::default(), 0, format, places, elements, true))
}

/// What `operators` find in the tensor `id`.
fn content(graph: &Graph, operators: &[Operator], id: TensorId) -> Vec<u8> {
    let elements = graph[id].elements() as usize;
    let numbers = |format| packed(&floats(id.0, elements).collect::<Vec<f32>>(), format);
    match graph[id].dtype {
        Dtype::I32 => whole_numbers(graph, operators, id).into_iter().flat_map(i32::to_ne_bytes).collect(),
        Dtype::U8 => kept(elements).collect(),
        Dtype::Bf16 => numbers(Format::Bf16),
        Dtype::F32 | Dtype::F64 => numbers(Format::F32),
    }
}

/// Numbers for a product in bf16, others for each `seed`.
pub fn operand(seed: u32, elements: u64) -> Vec<u8> {
    packed(&floats(seed, elements as usize).collect::<Vec<f32>>(), Format::Bf16)
}

/// What a card's cache may keep of operands; those of a run come from memory, past which many others have gone since.
const BEYOND_CACHES: Bytes = 192 << 20;

/// One operator, or a product and the sum behind it, with operands of its own, so many of them that none is in a cache when
/// its turn comes.
fn operator_time(
    card: &Arc<dyn Card>,
    context: &mut Context,
    graph: &Graph,
    operators: &[Operator],
    Pace { repeats, warming }: Pace,
) -> Result<Nanos, CardError> {
    // By tensor: its buffer. An operator that runs in place has one for both ends.
    let mut buffer_of: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut buffers: Vec<TensorId> = Vec::new();
    let mut new = |id: TensorId| {
        buffers.push(id);
        buffers.len() - 1
    };
    for operator in operators {
        let in_place = operator.in_place.and_then(|at| operator.inputs.get(at as usize)).map(|input| input.tensor);
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
    let bytes: Bytes = buffers.iter().map(|id| graph[*id].bytes()).sum();
    let sets = BEYOND_CACHES.div_ceil(bytes.max(1)).clamp(1, u64::from(repeats.max(1)));
    let first: Vec<Memory> =
        buffers.iter().map(|id| Memory::holding(card, &content(graph, operators, *id))).collect::<Result<_, _>>()?;
    let mut memory = vec![first];
    for _ in 1..sets {
        memory.push(memory[0].iter().map(|one| one.copied_to(card, Held::Kept)).collect::<Result<_, _>>()?);
    }
    let place = |id: TensorId, set: &[Memory]| Place {
        at: buffer_of.get(&id).and_then(|at| set.get(*at)).map(Memory::at),
        shape: &graph[id].shape,
        dtype: graph[id].dtype,
    };
    let places = |set: &[Memory], operator: &Operator| -> [Vec<Place<'_>>; 2] {
        let inputs = operator.inputs.iter().map(|input| place(input.tensor, set)).collect();
        [inputs, operator.outputs.iter().map(|id| place(*id, set)).collect()]
    };
    let sets: Vec<Vec<[Vec<Place<'_>>; 2]>> =
        memory.iter().map(|set| operators.iter().map(|operator| places(set, operator)).collect()).collect();
    // All sets in one job, as in a run: what goes out together may be done in one go, and the host's calls hide behind it.
    let jobs = repeats.div_ceil(sets.len().max(1) as u32);
    let ns = time(card, Pace { repeats: jobs, warming }, || {
        card.begin_job();
        for places in &sets {
            for (operator, [inputs, outputs]) in operators.iter().zip(places) {
                context.run(&operator.kernel, inputs, outputs)?;
            }
        }
        card.end_job()
    })?;
    Ok((ns / sets.len().max(1) as Nanos).max(1))
}
