//! Reading from a checkpoint what one rank holds, whatever the layout that wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::ModelConfig;
use safetensors::tensor::{Dtype, Metadata};

use super::fused::Held;
use super::names::{ADAPTER, Names};
use super::pretrained::{Pretrained, of_decoder};
use super::{Checkpoint, CheckpointError};
use crate::backend::cpu::element::Element;
use crate::backend::{Backend, Part, Values};
use crate::runner::gradients::{Placed, Places, Position, lend};
use crate::runner::report::Cause;
use crate::runner::shard::{Run, Shard, runs};
use crate::transport::Buffer;

/// The tensors of a checkpoint.
pub struct Reader {
    folder: PathBuf,
    /// Whether AdamW has trained, which remembers both means of each weight.
    of_adamw: bool,
    /// Whether there are no optimizer states, and adapters start as they are.
    weights_alone: bool,
    /// By weight.
    weights: BTreeMap<String, Whole>,
    /// By weight: pieces of the mean and of the mean square.
    means: BTreeMap<String, Vec<Extent>>,
    squares: BTreeMap<String, Vec<Extent>>,
}

/// Where a tensor lies on disk.
#[derive(Clone)]
struct Piece {
    path: PathBuf,
    start: u64,
    format: Format,
    shape: Vec<usize>,
}

/// How a number lies in a file.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    F64,
    F32,
    F16,
    Bf16,
}

impl Format {
    fn width(self) -> usize {
        match self {
            Format::F64 => 8,
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
        }
    }
}

/// A weight, and the tensors that hold it.
struct Whole {
    shape: Vec<usize>,
    pieces: Vec<Extent>,
}

/// A piece of a weight, or of the optimizer states of it.
#[derive(Clone)]
struct Extent {
    piece: Piece,
    /// Where its elements lie in the whole weight, in order.
    runs: Vec<Run>,
}

impl Whole {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Piece {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn damaged(&self, what: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// Fills `values` with the elements from `first` on.
    fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<(), CheckpointError> {
        let width = self.format.width();
        let failed = CheckpointError::file(&self.path, "read");
        let mut file = File::open(&self.path).map_err(&failed)?;
        file.seek(SeekFrom::Start(self.start + (first * width) as u64)).map_err(&failed)?;
        let mut bytes = vec![0; values.len() * width];
        file.read_exact(&mut bytes).map_err(&failed)?;
        match self.format {
            Format::F64 => put(values, &bytes, f64::from_le_bytes),
            Format::F32 => put(values, &bytes, |number| f64::from(f32::from_le_bytes(number))),
            Format::F16 => put(values, &bytes, |number| half::f16::from_le_bytes(number).to_f64()),
            Format::Bf16 => put(values, &bytes, |number| half::bf16::from_le_bytes(number).to_f64()),
        }
        Ok(())
    }
}

/// The numbers of `bytes`, each of `N` of them.
fn put<T: Element, const N: usize>(values: &mut [T], bytes: &[u8], of: impl Fn([u8; N]) -> f64) {
    let (numbers, _) = bytes.as_chunks::<N>();
    values.iter_mut().zip(numbers).for_each(|(value, number)| *value = T::of(of(*number)));
}

impl Reader {
    /// Reads what the files of `checkpoint` say of themselves.
    ///
    /// # Errors
    /// [`CheckpointError`] where one is missing or damaged.
    pub fn open(checkpoint: &Checkpoint) -> Result<Reader, CheckpointError> {
        let Checkpoint { folder, manifest } = checkpoint;
        let mut reader = Reader {
            folder: folder.clone(),
            of_adamw: manifest.kind == Optimizer::AdamW.name(),
            weights_alone: false,
            weights: BTreeMap::new(),
            means: BTreeMap::new(),
            squares: BTreeMap::new(),
        };
        let mut files: Vec<&String> = manifest.weights.values().collect();
        files.sort_unstable();
        files.dedup();
        let mut stored = BTreeMap::new();
        for file in files {
            stored.extend(tensors(&folder.join(file))?);
        }
        reader.weights = weights(&Names::of(&manifest.model), stored)?;
        for file in &manifest.optimizer_state {
            for (name, piece) in tensors(&folder.join(file))? {
                let (weight, runs) = placed(&name, &piece, &reader.weights)
                    .ok_or_else(|| piece.damaged(format!("`{name}` is not the name of an optimizer state")))?;
                let list = if name.starts_with("mean") { &mut reader.means } else { &mut reader.squares };
                list.entry(weight).or_default().push(Extent { piece, runs });
            }
        }
        Ok(reader)
    }

    /// Reads what the files of `pretrained` say of themselves, which hold `model`.
    ///
    /// # Errors
    /// [`CheckpointError`] where one is missing or damaged.
    pub fn of_pretrained(pretrained: &Pretrained, model: &ModelConfig) -> Result<Reader, CheckpointError> {
        let mut stored = BTreeMap::new();
        for file in &pretrained.files {
            let found = tensors(&pretrained.folder.join(file))?;
            stored.extend(found.into_iter().map(|(name, piece)| (of_decoder(&name), piece)));
        }
        Ok(Reader {
            folder: pretrained.folder.clone(),
            of_adamw: false,
            weights_alone: true,
            weights: weights(&Names::of(&pretrained.described(model)), stored)?,
            means: BTreeMap::new(),
            squares: BTreeMap::new(),
        })
    }

    /// Weights that are none of `places`.
    pub fn unused(&self, places: &Places) -> Vec<String> {
        self.weights.keys().filter(|name| !places.contains_key(*name)).cloned().collect()
    }

    fn other(&self, what: String) -> CheckpointError {
        let path = self.folder.clone();
        match self.weights_alone {
            true => CheckpointError::OtherModel { path, what },
            false => CheckpointError::OtherRun { path, what },
        }
    }

    /// Whether the weight is an adapter, which only a run of ours has.
    fn starts_as_it_is(&self, name: &str) -> bool {
        self.weights_alone && name.contains(ADAPTER)
    }

    /// Whether it has every weight of `places`, in its whole shape, and its optimizer state.
    ///
    /// # Errors
    /// [`CheckpointError`] that names the first weight for which it has not.
    pub fn check(&self, places: &Places) -> Result<(), CheckpointError> {
        let other = |what: String| self.other(what);
        for (name, Placed { shard: Shard { shape, frozen, .. }, .. }) in places {
            if self.starts_as_it_is(name) {
                continue;
            }
            let weight = self.weights.get(name).ok_or_else(|| other(format!("it has no weight `{name}`")))?;
            if weight.shape != *shape {
                let found = &weight.shape;
                return Err(other(format!("`{name}` has the shape {found:?} there and {shape:?} in the plan")));
            }
            for (pieces, what) in [(&self.means, "mean"), (&self.squares, "mean square")] {
                // Frozen weights have none. Other optimizers than AdamW remember less, and `fill` finds what is missing.
                if *frozen || !self.of_adamw && !pieces.contains_key(name) {
                    continue;
                }
                let mut covered: Vec<Range<usize>> = Vec::new();
                for run in pieces.get(name).into_iter().flatten().flat_map(|extent| &extent.runs) {
                    covered.push(run.whole..run.whole.saturating_add(run.length));
                }
                covered.sort_by_key(|range| (range.start, range.end));
                let end =
                    covered.iter().fold(0, |end, range| if range.start <= end { end.max(range.end) } else { end });
                if end != weight.elements() {
                    return Err(other(format!("the optimizer states ({what}) of `{name}` are incomplete")));
                }
            }
        }
        Ok(())
    }

    /// Gives `backend`, the rank at `position`, the weights and the optimizer state that it holds.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn fill(&self, position: Position, places: &Places, backend: &mut dyn Backend) -> Result<(), Cause> {
        for (name, Placed { at, shard }) in places {
            if self.starts_as_it_is(name) {
                continue;
            }
            let missing = || self.missing(name);
            let weight = self.weights.get(name).ok_or_else(missing)?;
            let held = shard.runs(position.seat());
            let mine = within(&held, position.share_of(shard).of(shard.held));
            for (_, stage) in at.iter().filter(|(rank, _)| *rank == position.rank) {
                let parts = [
                    (Part::Weight, &weight.pieces[..], &held),
                    (Part::Mean, self.means.get(name).map_or(&[][..], Vec::as_slice), &mine),
                    (Part::Square, self.squares.get(name).map_or(&[][..], Vec::as_slice), &mine),
                ];
                for (part, pieces, runs) in parts {
                    lend(backend, *stage, name, part, |values| {
                        match values {
                            // What the optimizer does not remember.
                            Values::F32([]) | Values::F64([]) => {}
                            // Nor what no optimizer has made yet.
                            _ if self.weights_alone && part != Part::Weight => {}
                            _ if pieces.is_empty() => return Err(missing().into()),
                            Values::F32(values) => fill(values, runs, pieces)?,
                            Values::F64(values) => fill(values, runs, pieces)?,
                        }
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }

    /// All of the weight `name`.
    ///
    /// # Errors
    /// Where it is not there or cannot be read.
    pub fn weight<T: Element>(&self, name: &str) -> Result<Vec<T>, CheckpointError> {
        let weight = self.weights.get(name).ok_or_else(|| self.missing(name))?;
        let length = weight.elements();
        let mut values = vec![T::ZERO; length];
        fill(&mut values, &[Run { held: 0, whole: 0, length }], &weight.pieces)?;
        Ok(values)
    }

    fn missing(&self, name: &str) -> CheckpointError {
        self.other(format!("it has no weight `{name}`"))
    }
}

/// The tensors of the files `weights` of `folder` whose names are `wanted`: name, shape and values.
///
/// # Errors
/// Where a file cannot be read.
pub(super) fn stored(
    folder: &Path,
    weights: &BTreeMap<String, String>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Vec<usize>, Buffer)>, CheckpointError> {
    let files: BTreeSet<&String> = weights.iter().filter(|(name, _)| wanted(name)).map(|(_, file)| file).collect();
    let mut found = Vec::new();
    for file in files {
        for (name, piece) in tensors(&folder.join(file))?.into_iter().filter(|(name, _)| wanted(name)) {
            let values = match piece.format == Format::F64 {
                true => {
                    let mut values = vec![0f64; piece.elements()];
                    piece.read(0, &mut values)?;
                    Buffer::F64(values)
                }
                false => {
                    let mut values = vec![0f32; piece.elements()];
                    piece.read(0, &mut values)?;
                    Buffer::F32(values)
                }
            };
            found.push((name, piece.shape, values));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// The weights that the tensors `stored` hold, each by its own name.
fn weights(names: &Names, stored: BTreeMap<String, Piece>) -> Result<BTreeMap<String, Whole>, CheckpointError> {
    let mut parts: BTreeMap<String, BTreeMap<Option<usize>, &str>> = BTreeMap::new();
    let mut weights = BTreeMap::new();
    for (name, piece) in &stored {
        if let Some(held) = names.held(name, &piece.shape) {
            for Held { name, shape } in held {
                let of_part = names.stored(&name, &shape).into_iter();
                let pieces = of_part.map(|part| Extent { piece: piece.clone(), runs: part.runs }).collect();
                weights.insert(name, Whole { shape, pieces });
            }
            continue;
        }
        let (own, expert) = names.own(name);
        parts.entry(own).or_default().insert(expert, name);
    }
    for (own, parts) in parts {
        let Some((first, piece)) =
            parts.first_key_value().and_then(|(expert, name)| Some((expert, stored.get(*name)?)))
        else {
            continue;
        };
        let experts = first.map(|_| parts.len());
        let shape = names.whole(&own, experts, &piece.shape);
        let mut pieces = Vec::new();
        for part in names.stored(&own, &shape) {
            let damaged = |what: &str| piece.damaged(format!("`{}` {what}", part.name));
            let piece = stored.get(&part.name).ok_or_else(|| damaged("is missing, but others like it are there"))?;
            if piece.shape != part.shape {
                return Err(damaged("does not have the shape of the others like it"));
            }
            pieces.push(Extent { piece: piece.clone(), runs: part.runs });
        }
        weights.insert(own, Whole { shape, pieces });
    }
    Ok(weights)
}

/// The weight that the piece called `name` belongs to, and where its elements lie in it; nothing for another name.
fn placed(name: &str, piece: &Piece, weights: &BTreeMap<String, Whole>) -> Option<(String, Vec<Run>)> {
    let rest = name.strip_prefix("mean/").or_else(|| name.strip_prefix("square/"))?;
    let (start, rest) = rest.split_once('/')?;
    let (start, length): (usize, usize) = (start.parse().ok()?, piece.elements());
    let Some((cuts, weight)) = rest.rsplit_once('/') else {
        let is_within = start.checked_add(length)? <= weights.get(rest)?.elements();
        return is_within.then(|| (rest.to_string(), vec![Run { held: 0, whole: start, length }]));
    };
    let whole = weights.get(weight)?;
    let (mut shape, mut lies) = (whole.shape.clone(), vec![Run { held: 0, whole: 0, length: whole.elements() }]);
    let cuts: Vec<&str> = cuts.split('/').collect();
    // Of experts that are dealt out, and of matrices that are shared.
    if cuts.len() > 2 {
        return None;
    }
    for cut in cuts {
        let numbers: Vec<usize> = cut.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [at, pieces, dimension] = numbers[..] else { return None };
        if at >= pieces {
            return None;
        }
        let own = shape.get(dimension)?.div_ceil(pieces);
        lies = runs(&shape, dimension, own, at).into_iter().flat_map(|run| within_run(&lies, run)).collect();
        shape[dimension] = own;
    }
    Some((weight.to_string(), within(&lies, start..start.checked_add(length)?)))
}

/// Where `run` of a piece lies in the whole, if the piece lies there as `lies` says.
fn within_run(lies: &[Run], run: Run) -> Vec<Run> {
    let part = within(lies, run.whole..run.whole + run.length);
    part.into_iter().map(|part| Run { held: part.held + run.held, ..part }).collect()
}

/// The part of `runs` that is held at `range`, which then counts from its start.
fn within(runs: &[Run], range: Range<usize>) -> Vec<Run> {
    let part = |run: &Run| {
        let (from, to) = (run.held.max(range.start), (run.held + run.length).min(range.end));
        (from < to).then(|| Run { held: from - range.start, whole: run.whole + from - run.held, length: to - from })
    };
    runs.iter().filter_map(part).collect()
}

/// Fills `values`, which lie in a weight as `runs` says, from pieces of it.
fn fill<T: Element>(values: &mut [T], runs: &[Run], pieces: &[Extent]) -> Result<(), CheckpointError> {
    for Extent { piece, runs: there } in pieces {
        // Where both lie: in `values`, in the piece, and how many.
        let mut common: Vec<(usize, usize, usize)> = Vec::new();
        let (mut here, mut there) = (runs.iter().peekable(), there.iter().peekable());
        while let (Some(one), Some(other)) = (here.peek(), there.peek()) {
            let (one_end, other_end) = (one.whole + one.length, other.whole + other.length);
            let (from, to) = (one.whole.max(other.whole), one_end.min(other_end));
            if from < to {
                common.push((one.held + from - one.whole, other.held + from - other.whole, to - from));
            }
            if one_end <= other_end {
                here.next().map(|_| ())
            } else {
                there.next().map(|_| ())
            };
        }
        let first = common.iter().map(|(_, from, _)| *from).min();
        let last = common.iter().map(|(_, from, length)| from + length).max();
        let (Some(first), Some(last)) = (first, last) else { continue };
        if let [(to, from, length)] = common[..] {
            piece.read(from, &mut values[to..to + length])?;
            continue;
        }
        let mut all = vec![T::ZERO; last - first];
        piece.read(first, &mut all)?;
        for (to, from, length) in common {
            values[to..to + length].copy_from_slice(&all[from - first..from - first + length]);
        }
    }
    Ok(())
}

/// Longest header that is read: as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// How names of masks and wavelengths end that old checkpoints have beside weights. They follow from the model.
const BUFFERS: [&str; 6] = [
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.causal_mask",
    ".rotary_emb.inv_freq",
];

/// How names of numbers end that scale layers of Gemma 4 and are not trained.
const LAYER_SCALE: &str = ".layer_scalar";

/// Refuses a scale of a layer that is not 1, with which layers are run.
fn check_layer_scale(path: &Path, name: &str, piece: &Piece) -> Result<(), CheckpointError> {
    let mut scale = [0f64];
    if piece.shape.iter().product::<usize>() == 1 {
        piece.read(0, &mut scale)?;
    }
    if scale == [1.0] {
        return Ok(());
    }
    let what = format!("`{name}` is {}: layers are run with a scale of 1 alone, and planned with any", scale[0]);
    Err(CheckpointError::OtherModel { path: path.to_path_buf(), what })
}

/// The tensors of one file, without [`BUFFERS`].
///
/// # Errors
/// Where it is damaged, or scales a layer.
fn tensors(path: &Path) -> Result<Vec<(String, Piece)>, CheckpointError> {
    let failed = CheckpointError::file(path, "read");
    let damaged = |what: String| CheckpointError::Damaged { path: path.to_path_buf(), what };
    let mut file = File::open(path).map_err(&failed)?;
    let size = file.metadata().map_err(&failed)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(&failed)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > size.saturating_sub(8) {
        return Err(damaged(format!("its header claims {length} bytes, but the file has {size}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(&failed)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
    let mut found = Vec::new();
    let is_weight = |name: &str| !BUFFERS.iter().any(|end| name.ends_with(end));
    for (name, info) in metadata.tensors().into_iter().filter(|(name, _)| is_weight(name)) {
        let format = match info.dtype {
            Dtype::F64 => Format::F64,
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            other => return Err(damaged(format!("`{name}` is in {other:?}; accepted are F64, F32, F16 and BF16"))),
        };
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let width = format.width() as u64;
        let bytes = info.shape.iter().try_fold(width, |bytes: u64, size| bytes.checked_mul(*size as u64));
        if bytes.is_none() || bytes != end.checked_sub(start) || end > size - 8 - length {
            return Err(damaged(format!(
                "`{name}` ends after the end of the file, or its size does not match its shape"
            )));
        }
        let start = 8 + length + start;
        let piece = Piece { path: path.to_path_buf(), start, format, shape: info.shape.clone() };
        if name.ends_with(LAYER_SCALE) {
            check_layer_scale(path, &name, &piece)?;
            continue;
        }
        found.push((name, piece));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(shape: &[usize]) -> Piece {
        Piece { path: PathBuf::new(), start: 0, format: Format::F32, shape: shape.to_vec() }
    }

    fn lies(name: &str, length: usize) -> Option<Vec<Run>> {
        let weights = BTreeMap::from([("w".to_string(), Whole { shape: vec![4, 6], pieces: Vec::new() })]);
        placed(name, &piece(&[length]), &weights).map(|(_, runs)| runs)
    }

    /// Of a weight of 4 rows and 6 columns: its last 4 elements; and of its right half, which holds 3 of each row, 6 from
    /// the second row on.
    #[test]
    fn a_piece_lies_where_its_name_says() {
        assert_eq!(lies("mean/20/w", 4), Some(vec![Run { held: 0, whole: 20, length: 4 }]));
        let rows = vec![Run { held: 0, whole: 9, length: 3 }, Run { held: 3, whole: 15, length: 3 }];
        assert_eq!(lies("square/3/1.2.1/w", 6), Some(rows));
        // The right half of the lower half.
        let rows = vec![Run { held: 0, whole: 15, length: 3 }, Run { held: 3, whole: 21, length: 3 }];
        assert_eq!(lies("mean/0/1.2.0/1.2.1/w", 6), Some(rows));
    }

    /// Names come from a file: numbers beyond the weight are no reason to end the rank.
    #[test]
    fn a_piece_beyond_its_weight_is_refused() {
        let most = usize::MAX;
        for (name, length) in [
            (String::from("mean/20/w"), 5),
            (format!("mean/{most}/w"), 8),
            (String::from("mean/0/unknown"), 1),
            (format!("square/{most}/0.2.0/w"), 2),
            (String::from("square/0/2.2.0/w"), 1),
            (String::from("square/0/0.2.7/w"), 1),
            (String::from("mean/0/0.1.0/0.1.0/0.1.0/w"), 1),
            (String::from("other/0/w"), 1),
        ] {
            assert_eq!(lies(&name, length), None, "{name}");
        }
        // A cut of more pieces than there are rows has nothing, and what lacks is said later, by the weight's name.
        assert_eq!(lies(&format!("mean/0/{}.{most}.0/w", most - 1), 1), Some(Vec::new()));
    }
}
