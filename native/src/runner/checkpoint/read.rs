//! Reading from a checkpoint what one rank holds, whatever the layout that wrote it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};

use super::{Checkpoint, CheckpointError};
use crate::backend::cpu::element::Element;
use crate::backend::{Backend, Part, Values};
use crate::runner::gradients::{Places, Position, lend};
use crate::runner::report::Cause;

/// The tensors of a checkpoint.
pub struct Reader {
    folder: PathBuf,
    /// By weight.
    weights: BTreeMap<String, Piece>,
    /// By weight: pieces of the mean and of the mean square, by first element.
    means: BTreeMap<String, Vec<(usize, Piece)>>,
    squares: BTreeMap<String, Vec<(usize, Piece)>>,
}

/// Where a tensor lies on disk.
#[derive(Clone)]
struct Piece {
    path: PathBuf,
    start: u64,
    wide: bool,
    shape: Vec<usize>,
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
        let width = if self.wide { 8 } else { 4 };
        let failed = CheckpointError::file(&self.path, "read");
        let mut file = File::open(&self.path).map_err(&failed)?;
        file.seek(SeekFrom::Start(self.start + (first * width) as u64)).map_err(&failed)?;
        let mut bytes = vec![0; values.len() * width];
        file.read_exact(&mut bytes).map_err(&failed)?;
        if self.wide {
            let (numbers, _) = bytes.as_chunks::<8>();
            values.iter_mut().zip(numbers).for_each(|(value, number)| *value = T::of(f64::from_le_bytes(*number)));
        } else {
            let (numbers, _) = bytes.as_chunks::<4>();
            let wide = |number: &[u8; 4]| f64::from(f32::from_le_bytes(*number));
            values.iter_mut().zip(numbers).for_each(|(value, number)| *value = T::of(wide(number)));
        }
        Ok(())
    }
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
            weights: BTreeMap::new(),
            means: BTreeMap::new(),
            squares: BTreeMap::new(),
        };
        let mut files: Vec<&String> = manifest.weights.values().collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            reader.weights.extend(tensors(&folder.join(file))?);
        }
        for file in &manifest.optimizer_state {
            for (name, piece) in tensors(&folder.join(file))? {
                let mut words = name.splitn(3, '/');
                let parts = (words.next(), words.next().and_then(|start| start.parse().ok()), words.next());
                let (list, start, weight) = match parts {
                    (Some("mean"), Some(start), Some(weight)) => (&mut reader.means, start, weight),
                    (Some("square"), Some(start), Some(weight)) => (&mut reader.squares, start, weight),
                    _ => return Err(piece.damaged(format!("`{name}` names no piece of the optimizer's state"))),
                };
                list.entry(weight.to_string()).or_default().push((start, piece));
            }
        }
        Ok(reader)
    }

    /// Whether it has every weight in `shapes`, in that shape, and its optimizer state.
    ///
    /// # Errors
    /// [`CheckpointError`] that names the first weight for which it has not.
    pub fn check(&self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<(), CheckpointError> {
        let other = |what: String| CheckpointError::OtherRun { path: self.folder.clone(), what };
        for (name, shape) in shapes {
            let piece = self.weights.get(name).ok_or_else(|| other(format!("it has no weight `{name}`")))?;
            if piece.shape != *shape {
                let found = &piece.shape;
                return Err(other(format!("`{name}` has the shape {found:?} there, and {shape:?} in the plan")));
            }
            for (pieces, what) in [(&self.means, "mean"), (&self.squares, "mean square")] {
                let mut covered: Vec<Range<usize>> = Vec::new();
                for (start, piece) in pieces.get(name).into_iter().flatten() {
                    covered.push(*start..start.saturating_add(piece.elements()));
                }
                covered.sort_by_key(|range| (range.start, range.end));
                let end =
                    covered.iter().fold(0, |end, range| if range.start <= end { end.max(range.end) } else { end });
                if end != piece.elements() {
                    return Err(other(format!("it has not all of the optimizer's {what} of `{name}`")));
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
        for (name, places) in places {
            let missing = || self.missing(name);
            let weight = self.weights.get(name).ok_or_else(missing)?;
            let mine = position.share().of(weight.elements());
            for (_, stage) in places.iter().filter(|(rank, _)| *rank == position.rank) {
                let whole = [(0, weight.clone())];
                let parts = [
                    (Part::Weight, &whole[..], 0..weight.elements()),
                    (Part::Mean, self.means.get(name).ok_or_else(missing)?, mine.clone()),
                    (Part::Square, self.squares.get(name).ok_or_else(missing)?, mine.clone()),
                ];
                for (part, pieces, range) in parts {
                    lend(backend, *stage, name, part, |values| {
                        match values {
                            Values::F32(values) => fill(values, range.clone(), pieces)?,
                            Values::F64(values) => fill(values, range.clone(), pieces)?,
                        }
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }

    fn missing(&self, name: &str) -> CheckpointError {
        CheckpointError::OtherRun { path: self.folder.clone(), what: format!("it has no weight `{name}`") }
    }
}

/// Fills `values`, which are the elements `range` of a weight, from pieces and the element at which each starts.
fn fill<T: Element>(values: &mut [T], range: Range<usize>, pieces: &[(usize, Piece)]) -> Result<(), CheckpointError> {
    for (start, piece) in pieces {
        let from = range.start.max(*start);
        let to = range.end.min(start.saturating_add(piece.elements())).min(range.start + values.len());
        if from < to {
            piece.read(from - start, &mut values[from - range.start..to - range.start])?;
        }
    }
    Ok(())
}

/// Longest header that is read: as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of one file.
fn tensors(path: &Path) -> Result<Vec<(String, Piece)>, CheckpointError> {
    let failed = CheckpointError::file(path, "read");
    let damaged = |what: String| CheckpointError::Damaged { path: path.to_path_buf(), what };
    let mut file = File::open(path).map_err(&failed)?;
    let size = file.metadata().map_err(&failed)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(&failed)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > size.saturating_sub(8) {
        return Err(damaged(format!("its header is said to have {length} bytes, and the file has {size}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(&failed)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
    let mut found = Vec::new();
    for (name, info) in metadata.tensors() {
        let wide = match info.dtype {
            Dtype::F32 => false,
            Dtype::F64 => true,
            other => return Err(damaged(format!("`{name}` is in {other:?}, and F32 or F64 are read"))),
        };
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let width = if wide { 8 } else { 4 };
        let bytes = info.shape.iter().try_fold(width, |bytes: u64, size| bytes.checked_mul(*size as u64));
        if bytes.is_none() || bytes != end.checked_sub(start) || end > size - 8 - length {
            return Err(damaged(format!("`{name}` goes beyond the file or is not as large as its shape")));
        }
        let start = 8 + length + start;
        found.push((name, Piece { path: path.to_path_buf(), start, wide, shape: info.shape.clone() }));
    }
    Ok(found)
}
