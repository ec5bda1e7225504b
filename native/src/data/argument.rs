//! Data as a command line says it: `FILE`, or `FILE:WEIGHT`.

use std::path::PathBuf;

/// One `--data`.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// The file.
    pub path: PathBuf,
    /// Its share of a blend, if one is said.
    pub weight: Option<f64>,
}

impl Argument {
    /// Reads `FILE` or `FILE:WEIGHT`. A file that is there under the whole name is meant by it.
    ///
    /// # Errors
    /// What is wrong with the weight.
    pub fn read(text: &str) -> Result<Argument, String> {
        let whole = Argument { path: PathBuf::from(text), weight: None };
        if whole.path.exists() {
            return Ok(whole);
        }
        let Some((path, weight)) = text.rsplit_once(':') else { return Ok(whole) };
        match weight.parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => {
                Ok(Argument { path: PathBuf::from(path), weight: Some(weight) })
            }
            Ok(_) => Err(format!("the weight {weight} is not a number above 0")),
            Err(_) => Ok(whole),
        }
    }
}

/// The share of each source of a blend, of which each has `sizes` sequences. Weights of all are taken in proportion. Where some
/// have none, weights are shares of the whole, and the rest goes to the others by their size; without weights, all goes by
/// size.
///
/// # Errors
/// Where the weights leave nothing for the others.
pub fn shares(weights: &[Option<f64>], sizes: &[u64]) -> Result<Vec<f64>, String> {
    let said: f64 = weights.iter().flatten().sum();
    let without = weights.iter().zip(sizes).filter(|(weight, _)| weight.is_none());
    let without: u64 = without.map(|(_, size)| *size).sum();
    if weights.iter().all(Option::is_some) {
        return Ok(weights.iter().flatten().map(|weight| weight / said).collect());
    }
    if said >= 1.0 {
        return Err(format!(
            "the weights of --data add up to {said} and leave nothing for data without a weight: give every --data a \
             weight, or weights below 1 in all"
        ));
    }
    let share =
        |(weight, size): (&Option<f64>, &u64)| weight.unwrap_or((1.0 - said) * *size as f64 / without.max(1) as f64);
    Ok(weights.iter().zip(sizes).map(share).collect())
}
