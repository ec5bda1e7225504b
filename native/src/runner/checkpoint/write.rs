//! Writing a checkpoint, every rank its part.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::{Value, json};

use super::names::{self, Names};
use super::read::stored;
use super::{Adapters, CheckpointError, MANIFEST, Manifest, Saving, Sum, folder_name, manifest_of_ours, step_of};
use crate::backend::{Backend, Part};
use crate::runner::gradients::{Gradients, Placed, Places, Position, copy_of};
use crate::runner::report::Cause;
use crate::runner::shard::{Cut, Run, Shard, ShardOwner};
use crate::transport::collectives::{Collectives, Group};
use crate::transport::{Buffer, Transport};

/// One rank's part in writing checkpoints.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Where and how often.
    pub saving: Saving,
    /// Where the rank stands.
    pub position: Position,
    /// Where weights lie; owners write them.
    pub places: Places,
    /// All ranks, which tell the first what they have written.
    pub everyone: Group,
    /// The ranks that hold whole weights together, of which the first writes them.
    pub together: WholeWeights,
    /// The same for weights of experts, where those are others.
    pub experts_together: Option<WholeWeights>,
    /// What all checkpoints of the run say alike.
    pub manifest: Manifest,
    /// The step of the last one.
    pub written: u32,
    /// How many stay in the folder; 0: all.
    pub keep: u32,
}

/// Ranks that hold whole weights together.
#[derive(Clone, Debug)]
pub struct WholeWeights {
    group: Group,
    /// The part of each.
    seats: Vec<ShardOwner>,
}

impl WholeWeights {
    /// Those that the rank at `position` is among, for weights of experts or, else, for all others.
    pub fn new(position: Position, of_experts: bool) -> WholeWeights {
        let all = position.whole_weight_group(of_experts);
        let ranks = all.iter().map(|position| position.world_rank()).collect();
        // A rank stands among them once.
        let group = Group::new(ranks, position.world_rank()).unwrap_or_else(|error| unreachable!("{error}"));
        WholeWeights { group, seats: all.into_iter().map(Position::seat).collect() }
    }

    /// The whole weight on the first of them, from what each one holds; nothing on the others.
    fn whole(&mut self, held: Buffer, shard: &Shard, transport: &mut dyn Transport) -> Result<Buffer, Cause> {
        let group = &mut self.group;
        let parts: Option<Vec<Buffer>> = match held {
            Buffer::F32(held) => {
                transport.gather(group, 0, held)?.map(|all| all.into_iter().map(Buffer::F32).collect())
            }
            Buffer::F64(held) => {
                transport.gather(group, 0, held)?.map(|all| all.into_iter().map(Buffer::F64).collect())
            }
            Buffer::OnCard(_) | Buffer::Nothing => None,
        };
        let mut whole = Buffer::Nothing;
        for (seat, part) in self.seats.iter().zip(parts.into_iter().flatten()) {
            shard.put(*seat, part, &mut whole);
        }
        Ok(whole)
    }
}

impl Writer {
    /// Writes one where it is due after `step` steps. Gives its folder once it is whole.
    ///
    /// # Errors
    /// Where the disk, a weight or another rank fails.
    pub fn after_step(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<Option<PathBuf>, Cause> {
        let due = self.saving.every > 0 && step.is_multiple_of(self.saving.every);
        if due { self.write(step, backend, gradients, transport).map(Some) } else { Ok(None) }
    }

    /// Writes one at the end of a run of `step` steps, unless it is there.
    ///
    /// # Errors
    /// As [`Writer::after_step`].
    pub fn finish(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<Option<PathBuf>, Cause> {
        if step == self.written { Ok(None) } else { self.write(step, backend, gradients, transport).map(Some) }
    }

    fn write(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<PathBuf, Cause> {
        let folder = self.saving.folder.join(folder_name(step));
        let partial = self.saving.folder.join(format!(".{}.partial", folder_name(step)));
        let is_first = self.position.world_rank() == 0;
        if is_first {
            remove(&partial)?;
            fs::create_dir_all(&partial).map_err(CheckpointError::file(&partial, "made"))?;
        }
        transport.barrier()?;
        let written = self.write_part(&partial, backend, gradients, transport)?;
        self.everyone.begin(step);
        let numbers: Vec<f64> = written.iter().flat_map(Written::numbers).collect();
        // Nobody's has come before its files are on disk.
        if let Some(all) = transport.gather(&mut self.everyone, 0, numbers)? {
            let mut files = BTreeMap::new();
            for (rank, numbers) in all.iter().enumerate() {
                files.extend(named(rank, numbers, &weight_files(&self.places))?);
            }
            self.publish(step, files, &partial, &folder)?;
            self.remove_old()?;
        }
        transport.barrier()?;
        self.written = step;
        Ok(folder)
    }

    /// The weights that this rank owns, gathered over copies that share out the optimizer states of them and over
    /// tensor-parallel ranks, and its share of their optimizer state; then what the files are that it has written.
    fn write_part(
        &mut self,
        partial: &Path,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<Vec<Written>, Cause> {
        let mut written = Vec::new();
        let Writer { position, places, together, experts_together, manifest, .. } = self;
        let names = Names::of(&manifest.model);
        let Position { rank, member, members, shares_optimizer, .. } = *position;
        // Of ranks that hold the same, which one it is.
        let copy = |shard: &Shard| match shard.experts {
            Some(_) => position.expert_copy(),
            None => position.copy(),
        };
        let owned: Vec<(&String, u16, &Shard)> = places
            .iter()
            .filter_map(|(name, placed)| {
                let (_, stage) = placed.at.first().filter(|(owner, _)| *owner == rank)?;
                Some((name, *stage, &placed.shard))
            })
            .collect();
        if let Some(file) = weight_files(places).get(&rank) {
            let writes = position.copy() == 0 && member == 0;
            let mut tensors = BTreeMap::new();
            for (name, _, shard) in &owned {
                let (is_first, is_whole) = (copy(shard) == 0, shard.cuts(position.seat()).is_empty());
                let is_needed = is_first && (writes || !is_whole);
                if !is_needed && !gradients.is_shared_out(name) {
                    continue;
                }
                let held = gradients.exact(name, backend, transport)?;
                if !is_needed {
                    continue;
                }
                let values = match (is_whole, shard.experts.and(experts_together.as_mut())) {
                    (true, _) => held,
                    (false, Some(together)) => together.whole(held, shard, transport)?,
                    (false, None) => together.whole(held, shard, transport)?,
                };
                if writes {
                    for (name, stored) in tensors_of(&names, name, &shard.shape, &values) {
                        join(&mut tensors, name, stored);
                    }
                }
            }
            if writes {
                let sum = save(&partial.join(file), tensors.into_iter().collect())?;
                written.push(Written { of_optimizer: false, copy: 0, rank, member, sum });
            }
        }
        if position.copy() < copies_that_write(*position) && !owned.is_empty() {
            let mut tensors = Vec::new();
            for (name, stage, shard) in owned {
                // Of ranks that hold the same, the first writes it.
                let is_first = shard.experts.is_some() || shard.holders(member, members).start == member;
                if !(is_first && (copy(shard) == 0 || shares_optimizer)) {
                    continue;
                }
                let start = position.share_of(shard).of(shard.held).start;
                let cut = |Cut { piece, pieces, dimension }| format!("{piece}.{pieces}.{dimension}/");
                let piece: String = shard.cuts(position.seat()).into_iter().map(cut).collect();
                for (part, what) in [(Part::Mean, "mean"), (Part::Square, "square")] {
                    let values = copy_of(backend, stage, name, part)?;
                    if values.values() == 0 && !position.share_of(shard).of(shard.held).is_empty() {
                        // The optimizer does not remember it.
                        continue;
                    }
                    let stored = Stored { shape: vec![values.values()], values };
                    tensors.push((format!("{what}/{start}/{piece}{name}"), stored));
                }
            }
            let copy = position.copy();
            let sum = save(&partial.join(optimizer_file(copy, rank, member)), tensors)?;
            written.push(Written { of_optimizer: true, copy, rank, member, sum });
        }
        Ok(written)
    }

    /// Of checkpoints in the folder, whole ones of this program, keeps the last ones.
    fn remove_old(&self) -> Result<(), CheckpointError> {
        if self.keep == 0 {
            return Ok(());
        }
        let path = &self.saving.folder;
        let entries = fs::read_dir(path).map_err(CheckpointError::file(path, "read"))?;
        let step = |folder: &PathBuf| step_of(folder.file_name()?.to_str()?);
        let folders = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|folder| manifest_of_ours(folder));
        let mut folders: Vec<(u32, PathBuf)> = folders.filter_map(|folder| Some((step(&folder)?, folder))).collect();
        folders.sort();
        let old = folders.len().saturating_sub(self.keep as usize);
        folders[..old].iter().try_for_each(|(step, folder)| {
            // Under a name that no reader takes, so that one that is removed in part is none.
            let gone = path.join(format!(".{}.old", folder_name(*step)));
            remove(&gone)?;
            fs::rename(folder, &gone).map_err(CheckpointError::file(folder, "removed"))?;
            remove(&gone)
        })
    }

    /// Once all ranks have written: what describes it, and its name.
    fn publish(
        &self,
        step: u32,
        files: BTreeMap<String, Sum>,
        partial: &Path,
        folder: &Path,
    ) -> Result<(), CheckpointError> {
        let of_weights = weight_files(&self.places);
        let file_of = |placed: &Placed| of_weights.get(&placed.at.first()?.0).cloned();
        let names = Names::of(&self.manifest.model);
        let mut weights: BTreeMap<String, String> = BTreeMap::new();
        for (name, placed) in &self.places {
            let Some(file) = file_of(placed) else { continue };
            let stored = names.stored(name, &placed.shard.shape).into_iter().map(|stored| stored.name);
            weights.extend(stored.chain(names.correction(name)).map(|name| (name, file.clone())));
        }
        let mut optimizer_state: Vec<String> = Vec::new();
        for copy in 0..copies_that_write(self.position) {
            for rank in of_weights.keys() {
                optimizer_state.extend((0..self.position.members).map(|member| optimizer_file(copy, *rank, member)));
            }
        }
        let mut total = 0;
        for file in of_weights.values().chain(&optimizer_state) {
            let path = partial.join(file);
            let size = fs::metadata(&path)
                .map_err(CheckpointError::file(&path, "found: all ranks must write to one folder"))?;
            total += if file.starts_with("model") { size.len() } else { 0 };
        }
        if of_weights.len() > 1 {
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weights });
            write_json(&partial.join("model.safetensors.index.json"), &index)?;
        }
        write_json(&partial.join("config.json"), &self.manifest.model)?;
        if let Some(adapters) = &self.manifest.lora {
            write_adapters(partial, adapters, &weights)?;
        }
        let manifest = Manifest { step, weights, optimizer_state, files, ..self.manifest.clone() };
        let path = partial.join(MANIFEST);
        let value = serde_json::to_value(&manifest)
            .map_err(|error| CheckpointError::Damaged { path: path.clone(), what: error.to_string() })?;
        write_json(&path, &value)?;
        sync(partial)?;
        // There was nothing when the run began, so somebody has put it there since: it is not this run's to remove. A
        // folder that is empty would be replaced without a word.
        if folder.symlink_metadata().is_ok() {
            let what = format!("{} appeared there after the run started: move it away", folder_name(step));
            return Err(CheckpointError::Occupied { path: self.saving.folder.clone(), what });
        }
        fs::rename(partial, folder).map_err(CheckpointError::file(folder, "named"))?;
        sync(&self.saving.folder)
    }
}

/// The adapters once more, in a folder that PEFT reads: its names, and its description. Where the checkpoint has the
/// experts of a layer in one tensor, PEFT has no name for their adapters, and there is no such folder.
fn write_adapters(
    partial: &Path,
    adapters: &Adapters,
    weights: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let is_adapter = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
    let found = stored(partial, weights, is_adapter)?;
    if found.iter().any(|(_, shape, _)| shape.len() != 2) {
        return Ok(());
    }
    let module = |name: &str| Some(name.split_once(".lora_")?.0.rsplit('.').next()?.to_string());
    let modules: BTreeSet<String> = found.iter().filter_map(|(name, ..)| module(name)).collect();
    let tensors =
        found.into_iter().map(|(name, shape, values)| (format!("base_model.model.{name}"), Stored { shape, values }));
    let folder = partial.join(ADAPTER_FOLDER);
    fs::create_dir_all(&folder).map_err(CheckpointError::file(&folder, "made"))?;
    save(&folder.join("adapter_model.safetensors"), tensors.collect())?;
    let about = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": null, "inference_mode": true,
        "r": adapters.rank, "lora_alpha": adapters.alpha, "target_modules": modules, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": false,
    });
    write_json(&folder.join("adapter_config.json"), &about)?;
    sync(&folder)
}

/// The folder of the adapters in a checkpoint. A library that finds them beside the weights would take these for the base
/// of another place.
const ADAPTER_FOLDER: &str = "adapter";

/// A file that a rank has written.
struct Written {
    /// Of the optimizer states; else of weights.
    of_optimizer: bool,
    copy: usize,
    rank: usize,
    member: usize,
    sum: Sum,
}

impl Written {
    /// As it is told: ranks, bytes and sums are exact as f64.
    fn numbers(&self) -> [f64; 6] {
        let Written { of_optimizer, copy, rank, member, sum } = self;
        let kind = f64::from(u8::from(*of_optimizer));
        [kind, *copy as f64, *rank as f64, *member as f64, sum.bytes as f64, f64::from(sum.crc32)]
    }
}

/// The files that a rank of the world tells of, by name; those of weights are called as `of_weights` says.
fn named(teller: usize, numbers: &[f64], of_weights: &BTreeMap<usize, String>) -> Result<Vec<(String, Sum)>, Cause> {
    let (told, rest) = numbers.as_chunks::<6>();
    let file = |[kind, copy, rank, member, bytes, crc32]: &[f64; 6]| {
        let name = match *kind > 0.0 {
            true => Some(optimizer_file(*copy as usize, *rank as usize, *member as usize)),
            false => of_weights.get(&(*rank as usize)).cloned(),
        };
        Some((name?, Sum { bytes: *bytes as u64, crc32: *crc32 as u32 }))
    };
    let files: Option<Vec<_>> = told.iter().map(file).collect();
    files.filter(|_| rest.is_empty()).ok_or_else(|| {
        let expected = "six for each file that it has written".to_string();
        Cause::WrongRecord { rank: teller, found: numbers.len(), expected }
    })
}

/// The file of the weights of each rank that owns some.
fn weight_files(places: &Places) -> BTreeMap<usize, String> {
    let mut owners: Vec<usize> = places.values().filter_map(|placed| Some(placed.at.first()?.0)).collect();
    owners.sort_unstable();
    owners.dedup();
    let count = owners.len();
    let name = |(at, rank): (usize, usize)| match count {
        1 => (rank, "model.safetensors".to_string()),
        _ => (rank, format!("model-{:05}-of-{count:05}.safetensors", at + 1)),
    };
    owners.into_iter().enumerate().map(name).collect()
}

fn optimizer_file(copy: usize, rank: usize, member: usize) -> String {
    format!("optimizer-{copy}-{rank}-{member}.safetensors")
}

/// The copies, from the first on, whose ranks write what they hold of the optimizer states: all that share it out; else
/// those of replicas and parts that hold all experts.
fn copies_that_write(position: Position) -> usize {
    match position.shares_optimizer {
        true => position.copies(),
        false if position.whole_experts => position.experts.div_ceil(position.members),
        false => position.experts,
    }
}

/// The tensors that hold the weight `name`, whose elements are `values`, and its metadata.
fn tensors_of(names: &Names, name: &str, shape: &[usize], values: &Buffer) -> Vec<(String, Stored)> {
    let part = |names::Stored { name, shape, runs }: names::Stored| {
        let values = match values {
            Buffer::F32(values) => Buffer::F32(gathered(values, &runs, shape.iter().product())),
            Buffer::F64(values) => Buffer::F64(gathered(values, &runs, shape.iter().product())),
            Buffer::Nothing | Buffer::OnCard(_) => Buffer::Nothing,
        };
        (name, Stored { shape, values })
    };
    let correction = names.correction(name).map(|name| {
        let count = shape.first().copied().unwrap_or(0);
        (name, Stored { shape: vec![count], values: Buffer::F32(vec![0.0; count]) })
    });
    names.stored(name, shape).into_iter().map(part).chain(correction).collect()
}

/// Puts a tensor among `tensors`. One that holds several weights comes once for each, with 0 where the others are.
fn join(tensors: &mut BTreeMap<String, Stored>, name: String, part: Stored) {
    let Some(known) = tensors.get_mut(&name) else {
        tensors.insert(name, part);
        return;
    };
    match (&mut known.values, part.values) {
        (Buffer::F32(sum), Buffer::F32(part)) => sum.iter_mut().zip(part).for_each(|(sum, more)| *sum += more),
        (Buffer::F64(sum), Buffer::F64(part)) => sum.iter_mut().zip(part).for_each(|(sum, more)| *sum += more),
        _ => {}
    }
}

/// What `runs` of `whole` hold, among as many `elements`; the others are 0.
fn gathered<T: Copy + Default>(whole: &[T], runs: &[Run], elements: usize) -> Vec<T> {
    let mut held = vec![T::default(); elements];
    for Run { held: to, whole: from, length } in runs {
        held[*to..to + length].copy_from_slice(&whole[*from..from + length]);
    }
    held
}

/// A tensor to be written.
struct Stored {
    shape: Vec<usize>,
    values: Buffer,
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        if matches!(self.values, Buffer::F64(_)) { Dtype::F64 } else { Dtype::F32 }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match &self.values {
            Buffer::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Buffer::F64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Buffer::Nothing | Buffer::OnCard(_) => Cow::Borrowed(&[]),
        }
    }

    fn data_len(&self) -> usize {
        self.values.bytes() as usize
    }
}

/// Writes a file, and says what it is then.
fn save(path: &Path, tensors: Vec<(String, Stored)>) -> Result<Sum, CheckpointError> {
    // Readers of other frameworks ask for it.
    let about = HashMap::from([("format".to_string(), "pt".to_string())]);
    let failed = |error: String| CheckpointError::File { path: path.to_path_buf(), done: "written", error };
    serialize_to_file(tensors, Some(about), path).map_err(|error| failed(error.to_string()))?;
    sync(path)?;
    Sum::of(path)
}

fn write_json(path: &Path, value: &Value) -> Result<(), CheckpointError> {
    fs::write(path, format!("{value:#}\n")).map_err(CheckpointError::file(path, "written"))?;
    sync(path)
}

/// Waits until a file or folder is on disk, so that a name never comes before what it names.
fn sync(path: &Path) -> Result<(), CheckpointError> {
    // Not every system lets a folder be opened.
    if path.is_dir() && cfg!(not(unix)) {
        return Ok(());
    }
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(CheckpointError::file(path, "put on disk"))
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::file(folder, "removed")(error))
        }
        _ => Ok(()),
    }
}
