//! Launches for the optimizer and for sums of gradients over ranks.

use super::Context;
use super::grid::{MOST_BLOCKS, THREADS, args};
use crate::backend::cuda::card::{Address, CardError, Format, Held, Memory};
use crate::backend::cuda::values::floats;
use crate::runner::optimizer::AdamW;

/// Members that [`Context::combine`] takes: a kernel's buffers but one.
pub const MOST_MEMBERS: usize = 9;

impl Context {
    /// AdamW on one parameter; clears its gradient where `clear`. `places` are weight, master weight, gradient, mean,
    /// mean square.
    ///
    /// # Errors
    /// [`CardError`].
    #[allow(clippy::too_many_arguments, reason = "what one update is")]
    pub fn adamw(
        &self,
        optimizer: &AdamW,
        step: u32,
        format: Format,
        places: [Address; 5],
        elements: u64,
        decay: bool,
        clear: bool,
    ) -> Result<(), CardError> {
        let count = f64::from(step) + 1.0;
        let AdamW { beta1, beta2, epsilon, weight_decay, .. } = *optimizer;
        let learning_rate = optimizer.rate(step);
        let floats = [
            beta1,
            beta2,
            1.0 - beta1,
            1.0 - beta2,
            1.0 / (1.0 - libm::pow(beta1, count)),
            1.0 / (1.0 - libm::pow(beta2, count)),
            1.0 - learning_rate * if decay { weight_decay } else { 0.0 },
            learning_rate,
            epsilon,
        ];
        let args = args(&places.map(|place| place.0), &[elements, clear.into()], &floats.map(|float| float as f32));
        // A thread takes four elements at once.
        let blocks = elements.div_ceil(4 * u64::from(THREADS)).min(MOST_BLOCKS);
        self.launch("adamw", format, [blocks, 1, 1], THREADS, args)
    }

    /// The sum of squares of `elements` floats: of float sums that no order of the work changes. Waits for it.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn squares(&self, at: Address, elements: u64) -> Result<f64, CardError> {
        const BLOCKS: u64 = 1024;
        if elements == 0 {
            return Ok(0.0);
        }
        let blocks = elements.div_ceil(THREADS.into()).min(BLOCKS);
        // Given back at once: jobs find their places as they were.
        let sums = Memory::held(&self.card, 4 * blocks, Held::Briefly)?;
        let args = args(&[at.0, sums.at().0], &[elements], &[]);
        self.launch("sum_squares", Format::F32, [blocks, 1, 1], THREADS, args)?;
        Ok(floats(&sums.read()?).into_iter().map(f64::from).sum())
    }

    /// What members of a group have, combined in their order into `to`, which is none of `from`. At most
    /// [`MOST_MEMBERS`].
    ///
    /// # Errors
    /// [`CardError`].
    pub fn combine(
        &self,
        greatest: bool,
        format: Format,
        from: &[Address],
        to: Address,
        elements: u64,
    ) -> Result<(), CardError> {
        let buffers: Vec<u64> = [to].iter().chain(from).map(|place| place.0).collect();
        let name = if greatest { "max_members" } else { "sum_members" };
        self.over_elements(name, format, elements, args(&buffers, &[elements, from.len() as u64], &[]))
    }

    /// Multiplies `elements` floats.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn scale(&self, at: Address, elements: u64, factor: f64) -> Result<(), CardError> {
        let args = args(&[at.0, at.0], &[elements], &[factor as f32]);
        self.over_elements("scale", Format::F32, elements, args)
    }
}
