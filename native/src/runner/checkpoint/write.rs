//! Writing a checkpoint, every rank its part.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::{Value, json};

use super::beside::{self, PAUSE, Saves};
use super::checksums::{UNSUMMED, summed};
use super::names::{self, Names};
use super::read::stored;
use super::{
    Adapters, CONFIG, CheckpointError, INDEX, MANIFEST, Manifest, Saving, Sum, folder_name, manifest_of_ours, step_of,
};
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
    /// The ranks that hold whole weights together, of which the first writes them.
    pub together: WholeWeights,
    /// The same for weights of experts, where those are others.
    pub experts_together: Option<WholeWeights>,
    /// What all checkpoints of the run say alike.
    pub manifest: Manifest,
    /// The step of the last one, whole or begun.
    pub written: u32,
    /// The folder of the one that was begun and has not been seen whole.
    pub begun: Option<PathBuf>,
    /// What this process is writing.
    pub saves: Arc<Saves>,
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
            // Weights are lent in f32 or f64.
            Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => None,
        };
        let mut whole = Buffer::Nothing;
        for (seat, part) in self.seats.iter().zip(parts.into_iter().flatten()) {
            shard.put(*seat, part, &mut whole);
        }
        Ok(whole)
    }
}

/// The tensors of a file by name.
type Tensors = Vec<(String, Stored)>;

impl Writer {
    /// Begins one where it is due after `step` steps: what it holds is copied, and written beside the steps to come.
    /// Gives the folder of one that has become whole since.
    ///
    /// # Errors
    /// Where the disk, a weight or another rank fails, now or since one was begun.
    pub fn after_step(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<Option<PathBuf>, Cause> {
        let whole = self.look()?;
        let due = self.saving.every > 0 && step.is_multiple_of(self.saving.every);
        if !due {
            return Ok(whole);
        }
        let started = Instant::now();
        let before = self.wait(transport)?;
        self.begin(step, backend, gradients, transport)?;
        if self.position.world_rank() == 0 {
            self.saves.note_pause(started.elapsed());
        }
        Ok(before.or(whole))
    }

    /// Writes one at the end of a run of `step` steps, unless it is there or under way, and waits until all is on disk.
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
        let mut whole = self.wait(transport)?;
        if step != self.written {
            self.begin(step, backend, gradients, transport)?;
            whole = self.wait(transport)?.or(whole);
        }
        // Rank 0 comes when the checkpoint has its name.
        transport.barrier()?;
        Ok(self.begun.take().or(whole))
    }

    /// The checkpoint that was begun, where it has become whole.
    fn look(&mut self) -> Result<Option<PathBuf>, CheckpointError> {
        self.saves.take(self.position.world_rank())?;
        Ok(self.begun.take_if(|folder| folder.join(MANIFEST).is_file()))
    }

    /// Waits until this rank's part of the one before is on disk.
    fn wait(&mut self, transport: &mut dyn Transport) -> Result<Option<PathBuf>, Cause> {
        while self.saves.is_writing(self.position.world_rank()) {
            transport.check()?;
            std::thread::sleep(PAUSE);
        }
        Ok(self.look()?)
    }

    fn begin(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        let folder = self.saving.folder.join(folder_name(step));
        let partial = self.saving.folder.join(format!(".{}.partial", folder_name(step)));
        let (rank, world) = (self.position.world_rank(), transport.world());
        if rank == 0 {
            remove(&partial)?;
            fs::create_dir_all(&partial).map_err(CheckpointError::file(&partial, "made"))?;
        }
        transport.barrier()?;
        let files = self.copy(backend, gradients, transport)?;
        let publisher = (rank == 0).then(|| self.clone());
        let named = folder.clone();
        self.saves.begin(rank, &folder, move |given_up| {
            let written = save_all(&partial, files).and_then(|sums| beside::note(&partial, rank, &sums));
            written.inspect_err(|_| beside::note_failure(&partial, rank))?;
            let Some(publisher) = publisher else { return Ok(()) };
            let Some(files) = beside::gather(&partial, world, given_up)? else { return Ok(()) };
            publisher.publish(step, files, &partial, &named)?;
            publisher.remove_old()
        })?;
        (self.written, self.begun) = (step, Some(folder));
        Ok(())
    }

    /// What this rank writes, file by file: the weights that it owns, gathered over copies that share out the
    /// optimizer states of them and over tensor-parallel ranks, and its share of their optimizer state.
    fn copy(
        &mut self,
        backend: &mut dyn Backend,
        gradients: &mut Gradients,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(String, Tensors)>, Cause> {
        let mut files = Vec::new();
        let Writer { position, places, together, experts_together, manifest, .. } = self;
        let names = Names::of(&manifest.model);
        let Position { rank, member, members, .. } = *position;
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
                files.push((file.clone(), tensors.into_iter().collect()));
            }
        }
        if position.copy() < copies_that_write(*position) && !owned.is_empty() {
            let mut tensors = Vec::new();
            for (name, stage, shard) in owned {
                // Of ranks that hold the same, the first writes it.
                let is_first = shard.experts.is_some() || shard.holders(member, members).start == member;
                if !is_first || copy(shard) >= position.share_of(shard).members {
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
            files.push((optimizer_file(position.copy(), rank, member), tensors));
        }
        Ok(files)
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
        mut files: BTreeMap<String, Sum>,
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
            files.insert(INDEX.to_string(), write_json(&partial.join(INDEX), &index)?);
        }
        files.insert(CONFIG.to_string(), write_json(&partial.join(CONFIG), &self.manifest.model)?);
        if let Some(adapters) = &self.manifest.lora {
            files.extend(write_adapters(partial, adapters, &weights)?);
        }
        let manifest = Manifest { step, weights, optimizer_state, files, ..self.manifest.clone() };
        let path = partial.join(MANIFEST);
        let manifest = Manifest { manifest_crc32: Some(UNSUMMED.to_string()), ..manifest };
        let value = serde_json::to_value(&manifest)
            .map_err(|error| CheckpointError::Damaged { path: path.clone(), what: error.to_string() })?;
        write_text(&path, &summed(&format!("{value:#}\n")))?;
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
) -> Result<Vec<(String, Sum)>, CheckpointError> {
    let is_adapter = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
    let found = stored(partial, weights, is_adapter)?;
    if found.iter().any(|(_, shape, _)| shape.len() != 2) {
        return Ok(Vec::new());
    }
    let module = |name: &str| Some(name.split_once(".lora_")?.0.rsplit('.').next()?.to_string());
    let modules: BTreeSet<String> = found.iter().filter_map(|(name, ..)| module(name)).collect();
    let tensors =
        found.into_iter().map(|(name, shape, values)| (format!("base_model.model.{name}"), Stored { shape, values }));
    let folder = partial.join(ADAPTER_FOLDER);
    fs::create_dir_all(&folder).map_err(CheckpointError::file(&folder, "made"))?;
    let (model, config) = ("adapter_model.safetensors", "adapter_config.json");
    let model_sum = save(&folder.join(model), tensors.collect())?;
    let about = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": null, "inference_mode": true,
        "r": adapters.rank, "lora_alpha": adapters.alpha, "target_modules": modules, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": false,
    });
    let config_sum = write_json(&folder.join(config), &about)?;
    sync(&folder)?;
    let named = |(name, sum)| (format!("{ADAPTER_FOLDER}/{name}"), sum);
    Ok([(model, model_sum), (config, config_sum)].map(named).into())
}

/// The folder of the adapters in a checkpoint. A library that finds them beside the weights would take these for the
/// base of another place.
const ADAPTER_FOLDER: &str = "adapter";

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

/// The copies, from the first on, whose ranks write what they hold of the optimizer states: those of a sharding
/// group, and those that hold all experts.
fn copies_that_write(position: Position) -> usize {
    let sharers = |copies| position.sharding.sharers(copies);
    let routers = sharers(position.expert_copies()) * position.experts;
    let of_experts = if position.whole_experts { routers.div_ceil(position.members) } else { routers };
    sharers(position.copies()).max(of_experts)
}

/// The tensors that hold the weight `name`, whose elements are `values`, and its metadata.
fn tensors_of(names: &Names, name: &str, shape: &[usize], values: &Buffer) -> Vec<(String, Stored)> {
    let part = |names::Stored { name, shape, runs }: names::Stored| {
        let values = match values {
            Buffer::F32(values) => Buffer::F32(gathered(values, &runs, shape.iter().product())),
            Buffer::F64(values) => Buffer::F64(gathered(values, &runs, shape.iter().product())),
            Buffer::Nothing | Buffer::Bf16(_) | Buffer::OnCard(_) => Buffer::Nothing,
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
            Buffer::F32(values) => bytes_of(values, f32::to_le_bytes).into(),
            Buffer::F64(values) => bytes_of(values, f64::to_le_bytes).into(),
            Buffer::Nothing | Buffer::Bf16(_) | Buffer::OnCard(_) => Cow::Borrowed(&[]),
        }
    }

    fn data_len(&self) -> usize {
        self.values.bytes() as usize
    }
}

/// The bytes of `values`, taken at once: training goes on beside it.
fn bytes_of<T: Copy, const N: usize>(values: &[T], of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    let (places, _) = bytes.as_chunks_mut::<N>();
    places.iter_mut().zip(values).for_each(|(place, value)| *place = of(*value));
    bytes
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

/// Writes the files of a rank, and says what they are then.
fn save_all(partial: &Path, files: Vec<(String, Tensors)>) -> Result<BTreeMap<String, Sum>, CheckpointError> {
    let written = |(name, tensors): (String, Tensors)| {
        let sum = save(&partial.join(&name), tensors)?;
        Ok((name, sum))
    };
    files.into_iter().map(written).collect()
}

fn write_json(path: &Path, value: &Value) -> Result<Sum, CheckpointError> {
    write_text(path, &format!("{value:#}\n"))
}

/// Writes a file, and says what it is then.
fn write_text(path: &Path, text: &str) -> Result<Sum, CheckpointError> {
    fs::write(path, text).map_err(CheckpointError::file(path, "written"))?;
    sync(path)?;
    Ok(Sum::of_bytes(text.as_bytes()))
}

/// Waits until a file or folder is on disk, so that a name never comes before what it names.
pub(super) fn sync(path: &Path) -> Result<(), CheckpointError> {
    // Not every system lets a folder be opened.
    if path.is_dir() && cfg!(not(unix)) {
        return Ok(());
    }
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(CheckpointError::file(path, "put on disk"))
}

pub(super) fn remove(folder: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::file(folder, "removed")(error))
        }
        _ => Ok(()),
    }
}
