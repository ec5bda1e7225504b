//! The optimizers of the runner: AdamW, Adam with weight decay that does not pass through the moments (arXiv:1711.05101);
//! SGD with and without momentum, with the same decay; Muon (arXiv:2502.16982).

use pipeplan_core::graph::optimizer::Optimizer;
use serde::{Deserialize, Serialize};

use crate::backend::cpu::element::Element;
use crate::backend::cpu::gemm::{Gemm, Operand, Size, Tuned};

/// The settings of AdamW. The other optimizers have its rates and its decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// The step size.
    pub learning_rate: f64,
    /// Steps of linear warm-up of the learning rate; the first step has `1 / warm_up` of it.
    pub warm_up: u32,
    /// From the end of the warm-up to this step the step size falls as `schedule` says to `final_share` of it, and stays there;
    /// 0: it does not fall.
    pub decay_until: u32,
    /// How it falls.
    #[serde(default, skip_serializing_if = "Schedule::is_cosine")]
    pub schedule: Schedule,
    /// Of warmup-stable-decay: the steps before `decay_until` in which it falls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decay_steps: u32,
    /// The share of the step size that is left at `decay_until`.
    pub final_share: f64,
    /// How slowly the mean of gradients forgets.
    pub beta1: f64,
    /// How slowly the mean of squared gradients forgets.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// Decay of matrices, a share of the learning rate.
    pub weight_decay: f64,
}

/// How the step size falls after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Along half a cosine (arXiv:1608.03983, without restarts).
    #[default]
    Cosine,
    /// In a line.
    Linear,
    /// Not at all.
    Constant,
    /// Warmup-stable-decay (arXiv:2404.06395): it stays, and falls in a line over the last steps.
    Wsd,
}

impl Schedule {
    fn is_cosine(&self) -> bool {
        *self == Schedule::Cosine
    }
}

fn is_zero(steps: &u32) -> bool {
    *steps == 0
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW {
            learning_rate: 1e-3,
            warm_up: 0,
            decay_until: 0,
            schedule: Schedule::Cosine,
            decay_steps: 0,
            final_share: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
        }
    }
}

/// How one weight is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// By AdamW.
    AdamW,
    /// By the gradient alone.
    Sgd,
    /// By the sum of gradients, each older one times [`AdamW::beta1`] as often as it is steps old.
    Momentum,
    /// By Muon, each matrix for itself.
    Muon {
        /// Of a matrix.
        rows: usize,
        /// Of a matrix.
        columns: usize,
    },
}

impl Rule {
    /// How `optimizer` updates a weight of this shape, which is one of a layer or not. Adafactor, which the runner refuses
    /// before it starts, counts as AdamW.
    pub fn of(optimizer: Optimizer, shape: &[u64], in_layer: bool) -> Rule {
        match (optimizer, shape) {
            (Optimizer::Sgd, _) => Rule::Sgd,
            (Optimizer::SgdMomentum, _) => Rule::Momentum,
            (Optimizer::Muon, [.., rows, columns]) if in_layer => {
                Rule::Muon { rows: *rows as usize, columns: *columns as usize }
            }
            _ => Rule::AdamW,
        }
    }

    /// How many values it remembers of each element.
    pub const fn moments(self) -> usize {
        match self {
            Rule::AdamW => 2,
            Rule::Sgd => 0,
            Rule::Momentum | Rule::Muon { .. } => 1,
        }
    }
}

/// What the optimizer remembers of one parameter: for each element as many values as its [`Rule`] says.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments<T> {
    rule: Rule,
    mean: Vec<T>,
    square: Vec<T>,
}

impl<T: Element> Moments<T> {
    /// Of a parameter that has had no update.
    pub fn new(rule: Rule, elements: usize) -> Moments<T> {
        let of = |wanted: bool| vec![T::ZERO; if wanted { elements } else { 0 }];
        Moments { rule, mean: of(rule.moments() > 0), square: of(rule.moments() > 1) }
    }

    /// Of a parameter whose values are remembered elsewhere between updates.
    pub(crate) const fn of(rule: Rule, mean: Vec<T>, square: Vec<T>) -> Moments<T> {
        Moments { rule, mean, square }
    }

    /// The rule, and the values as [`Moments::of`] takes them.
    pub(crate) fn into_values(self) -> (Rule, [Vec<T>; 2]) {
        (self.rule, [self.mean, self.square])
    }

    /// The bytes of what is remembered.
    pub fn bytes(&self) -> u64 {
        (self.mean.len() + self.square.len()) as u64 * T::DTYPE.bytes()
    }

    /// The mean of gradients, or their sum; empty where it is not remembered.
    pub fn mean_mut(&mut self) -> &mut [T] {
        &mut self.mean
    }

    /// The mean of squared gradients; empty where it is not remembered.
    pub fn square_mut(&mut self) -> &mut [T] {
        &mut self.square
    }
}

impl AdamW {
    /// Whether the settings are such as steps can be made with.
    ///
    /// # Errors
    /// The first that is not, and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let AdamW { learning_rate, final_share, beta1, beta2, epsilon, weight_decay, .. } = *self;
        let share = |value: f64| (0.0..1.0).contains(&value);
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let fields = [
            ("learning_rate", learning_rate, positive(learning_rate), "above 0"),
            ("final_share", final_share, (0.0..=1.0).contains(&final_share), "from 0 to 1"),
            ("beta1", beta1, share(beta1), "from 0 to less than 1"),
            ("beta2", beta2, share(beta2), "from 0 to less than 1"),
            ("epsilon", epsilon, positive(epsilon), "above 0"),
            ("weight_decay", weight_decay, weight_decay == 0.0 || positive(weight_decay), "0 or more"),
        ];
        match fields.into_iter().find(|(_, _, is_good, _)| !is_good) {
            Some((name, value, _, accepted)) => Err(format!("{name} is {value}, and it must be a number {accepted}")),
            None => Ok(()),
        }
    }

    /// The step size of training step `step` (from 0).
    pub fn rate(&self, step: u32) -> f64 {
        if step < self.warm_up {
            return self.learning_rate * (f64::from(step) + 1.0) / f64::from(self.warm_up);
        }
        if self.decay_until == 0 || self.schedule == Schedule::Constant {
            return self.learning_rate;
        }
        let start = match self.schedule {
            Schedule::Wsd => self.decay_until.saturating_sub(self.decay_steps).max(self.warm_up),
            _ => self.warm_up,
        };
        let length = f64::from(self.decay_until.saturating_sub(start).max(1));
        let done = (f64::from(step.saturating_sub(start)) / length).min(1.0);
        let left = match self.schedule {
            Schedule::Cosine => 0.5 * (1.0 + libm::cos(core::f64::consts::PI * done)),
            _ => 1.0 - done,
        };
        self.learning_rate * (self.final_share + (1.0 - self.final_share) * left)
    }

    /// The update after training step `step` (from 0), in the type of the weights.
    pub fn update<T: Element>(
        &self,
        step: u32,
        weight: &mut [T],
        gradient: &[T],
        moments: &mut Moments<T>,
        decay: bool,
    ) {
        let rate = self.rate(step);
        let kept = T::of(1.0 - rate * if decay { self.weight_decay } else { 0.0 });
        match moments.rule {
            Rule::AdamW => self.update_adamw(step, kept, weight, gradient, moments),
            Rule::Sgd => {
                for (weight, gradient) in weight.iter_mut().zip(gradient) {
                    *weight = kept * *weight - T::of(rate) * *gradient;
                }
            }
            Rule::Momentum => {
                let beta = T::of(self.beta1);
                for ((weight, gradient), sum) in weight.iter_mut().zip(gradient).zip(&mut moments.mean) {
                    *sum = beta * *sum + *gradient;
                    *weight = kept * *weight - T::of(rate) * *sum;
                }
            }
            Rule::Muon { rows, columns } => {
                let beta = T::of(MUON_MOMENTUM);
                // The scale gives the update the root mean square of an update of AdamW (arXiv:2502.16982, section 2.2).
                let scale = T::of(rate * 0.2 * (rows.max(columns) as f64).sqrt());
                let size = (rows * columns).max(1);
                let matrices = weight.chunks_mut(size).zip(gradient.chunks(size)).zip(moments.mean.chunks_mut(size));
                for ((weight, gradient), sum) in matrices {
                    let mut update = Vec::with_capacity(size);
                    for (sum, gradient) in sum.iter_mut().zip(gradient) {
                        *sum = beta * *sum + *gradient;
                        update.push(*gradient + beta * *sum);
                    }
                    let update = orthogonal(update, rows, columns);
                    for (weight, update) in weight.iter_mut().zip(update) {
                        *weight = kept * *weight - scale * update;
                    }
                }
            }
        }
    }

    fn update_adamw<T: Element>(
        &self,
        step: u32,
        kept: T,
        weight: &mut [T],
        gradient: &[T],
        moments: &mut Moments<T>,
    ) {
        let count = f64::from(step) + 1.0;
        // Both means start at 0 and are divided by the weight that they have gathered so far.
        let mean_share = T::of(1.0 / (1.0 - libm::pow(self.beta1, count)));
        let square_share = T::of(1.0 / (1.0 - libm::pow(self.beta2, count)));
        let (rate, epsilon) = (T::of(self.rate(step)), T::of(self.epsilon));
        let (beta1, beta2) = (T::of(self.beta1), T::of(self.beta2));
        let (new1, new2) = (T::of(1.0 - self.beta1), T::of(1.0 - self.beta2));
        let moments = moments.mean.iter_mut().zip(&mut moments.square);
        for ((weight, gradient), (mean, square)) in weight.iter_mut().zip(gradient).zip(moments) {
            *mean = beta1 * *mean + new1 * *gradient;
            *square = beta2 * *square + new2 * *gradient * *gradient;
            let direction = *mean * mean_share / ((*square * square_share).sqrt() + epsilon);
            *weight = kept * *weight - rate * direction;
        }
    }
}

/// How slowly Muon's sum of gradients forgets (Jordan et al., 2024).
const MUON_MOMENTUM: f64 = 0.95;

/// Coefficients of Muon's iteration, which bring singular values from above 0 to about 1 in five steps (Jordan et al., 2024).
const NEWTON_SCHULZ: [f64; 3] = [3.4445, -4.7750, 2.0315];
const NEWTON_SCHULZ_STEPS: usize = 5;

/// The matrix, row by row, with all singular values near 1: Newton-Schulz steps `X ← aX + (bA + cA²)X` with `A = XXᵀ`, of
/// the matrix over its Frobenius norm, its shorter side first.
fn orthogonal<T: Element>(matrix: Vec<T>, rows: usize, columns: usize) -> Vec<T> {
    let (short, long) = (rows.min(columns), rows.max(columns));
    let turned = |matrix: &[T], rows: usize, columns: usize| -> Vec<T> {
        (0..rows * columns).map(|at| matrix[at % rows * columns + at / rows]).collect()
    };
    let mut x = if rows > columns { turned(&matrix, rows, columns) } else { matrix };
    let norm = x.iter().fold(0.0, |sum, value| sum + value.wide() * value.wide()).sqrt() + 1e-7;
    x.iter_mut().for_each(|value| *value = T::of(value.wide() / norm));
    let [a, b, c] = NEWTON_SCHULZ.map(T::of);
    let (mut products, mut polynomial) = (vec![T::ZERO; short * short], vec![T::ZERO; short * short]);
    let mut next = vec![T::ZERO; x.len()];
    let square = Size { rows: short, inner: short, columns: short };
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let of_x = Operand::rows(&x, long);
        let size = Size { rows: short, inner: long, columns: short };
        Tuned.gemm(size, T::ONE, of_x, of_x.transposed(), T::ZERO, &mut products, short);
        let of_products = Operand::rows(&products, short);
        polynomial.copy_from_slice(&products);
        Tuned.gemm(square, c, of_products, of_products, b, &mut polynomial, short);
        next.copy_from_slice(&x);
        let size = Size { rows: short, inner: short, columns: long };
        Tuned.gemm(size, T::ONE, Operand::rows(&polynomial, short), of_x, a, &mut next, long);
        std::mem::swap(&mut x, &mut next);
    }
    if rows > columns { turned(&x, columns, rows) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of gradients and decay written out: g₀ and g₁ + β g₀.
    #[test]
    fn momentum_adds_older_gradients() {
        let settings = AdamW { learning_rate: 0.1, beta1: 0.5, weight_decay: 0.0, ..AdamW::default() };
        let after = |rule| {
            let (mut weight, mut moments) = ([1.0f64], Moments::new(rule, 1));
            settings.update(0, &mut weight, &[2.0], &mut moments, true);
            settings.update(1, &mut weight, &[4.0], &mut moments, true);
            (weight[0], moments.bytes())
        };
        let close = |(found, bytes): (f64, u64), expected: f64| ((found - expected).abs() < 1e-15).then_some(bytes);
        assert_eq!(close(after(Rule::Sgd), 1.0 - 0.1 * (2.0 + 4.0)), Some(0));
        assert_eq!(close(after(Rule::Momentum), 1.0 - 0.1 * (2.0 + 4.0 + 0.5 * 2.0)), Some(8));
    }

    /// A matrix with orthogonal rows of lengths 3, 2 and 0.5 gets rows of the same directions with lengths near 1: the
    /// polynomial of each singular value, from its share of the norm, five times.
    #[test]
    fn muon_brings_singular_values_near_one() {
        let lengths = [3.0f64, 2.0, 0.5];
        let norm = lengths.iter().map(|length| length * length).sum::<f64>().sqrt();
        let of = |length: f64| {
            let [a, b, c] = NEWTON_SCHULZ;
            (0..NEWTON_SCHULZ_STEPS).fold(length / norm, |x, _| a * x + b * x.powi(3) + c * x.powi(5))
        };
        // Rows: unit vectors of four columns, turned.
        let units = [[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5]];
        let tall: Vec<f64> = (0..12).map(|at| lengths[at % 3] * units[at % 3][at / 3]).collect();
        let wide: Vec<f64> = (0..12).map(|at| lengths[at / 4] * units[at / 4][at % 4]).collect();
        let (tall, wide) = (orthogonal(tall, 4, 3), orthogonal(wide, 3, 4));
        for row in 0..3 {
            let expected = of(lengths[row]);
            assert!((0.6..1.3).contains(&expected), "{expected}");
            for column in 0..4 {
                let right = expected * units[row][column];
                assert!((wide[4 * row + column] - right).abs() < 1e-6, "{row} {column}");
                assert!((tall[3 * column + row] - right).abs() < 1e-6, "{row} {column}");
            }
        }
    }

    #[test]
    fn the_first_update_is_one_learning_rate_against_the_sign() {
        // With bias correction the first direction is g / (|g| + ε).
        let adam = AdamW { learning_rate: 0.01, ..AdamW::default() };
        let mut weight = [1.0f64, 1.0, 1.0];
        adam.update(0, &mut weight, &[3.0, -0.5, 0.0], &mut Moments::new(Rule::AdamW, 3), false);
        for (weight, expected) in weight.iter().zip([0.99, 1.01, 1.0]) {
            assert!((weight - expected).abs() < 1e-9, "{weight} {expected}");
        }
    }

    #[test]
    fn the_step_size_rises_in_a_line_and_falls_along_a_cosine() {
        let adam = AdamW { learning_rate: 1.0, warm_up: 4, decay_until: 12, final_share: 0.2, ..AdamW::default() };
        let rates = [0, 3, 4, 8, 12, 100].map(|step| adam.rate(step));
        // Half way down a cosine is half way between its ends.
        for (rate, expected) in rates.iter().zip([0.25, 1.0, 1.0, 0.6, 0.2, 0.2]) {
            assert!((rate - expected).abs() < 1e-15, "{rates:?}");
        }
        assert_eq!(AdamW::default().rate(1_000_000), AdamW::default().learning_rate);
    }

    /// Points of lines, written out; and what is not said in a manifest is as before.
    #[test]
    fn the_step_size_falls_as_its_schedule_says() {
        let of = |schedule, decay_steps| AdamW {
            learning_rate: 1.0,
            warm_up: 4,
            decay_until: 12,
            final_share: 0.2,
            schedule,
            decay_steps,
            ..AdamW::default()
        };
        let rates = |adam: AdamW| [3, 4, 8, 10, 11, 12, 100].map(|step| adam.rate(step));
        for (adam, expected) in [
            (of(Schedule::Linear, 0), [1.0, 1.0, 0.6, 0.4, 0.3, 0.2, 0.2]),
            (of(Schedule::Constant, 0), [1.0; 7]),
            (of(Schedule::Wsd, 4), [1.0, 1.0, 1.0, 0.6, 0.4, 0.2, 0.2]),
        ] {
            let found = rates(adam);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?}");
            let written = serde_json::to_string(&adam).expect("written");
            assert_eq!(serde_json::from_str::<AdamW>(&written).expect("read"), adam);
        }
        let before = serde_json::to_value(AdamW::default()).expect("written");
        assert!(before.get("schedule").is_none() && before.get("decay_steps").is_none());
    }

    #[test]
    fn decay_shrinks_by_its_share_of_the_learning_rate_alone() {
        let adam = AdamW { learning_rate: 0.01, weight_decay: 0.1, ..AdamW::default() };
        let mut weight = [2.0f64];
        adam.update(0, &mut weight, &[0.0], &mut Moments::new(Rule::AdamW, 1), true);
        assert!((weight[0] - 2.0 * (1.0 - 0.001)).abs() < 1e-15);
    }

    #[test]
    fn settings_that_make_no_steps_are_named() {
        let usual = AdamW::default();
        assert_eq!(usual.check(), Ok(()));
        assert_eq!(AdamW { beta1: 0.0, weight_decay: 0.0, ..usual }.check(), Ok(()));
        for (settings, says) in [
            (AdamW { beta1: 1.0, ..usual }, "beta1 is 1, and it must be a number from 0 to less than 1"),
            (AdamW { beta2: -0.1, ..usual }, "beta2 is -0.1"),
            (AdamW { epsilon: 0.0, ..usual }, "epsilon is 0"),
            (AdamW { weight_decay: -0.1, ..usual }, "weight_decay is -0.1"),
            (AdamW { learning_rate: f64::NAN, ..usual }, "learning_rate is NaN"),
            (AdamW { final_share: 2.0, ..usual }, "final_share is 2"),
        ] {
            let error = settings.check().expect_err("refused");
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn steps_follow_the_recurrence_written_out() {
        let adam = AdamW { learning_rate: 0.1, beta2: 0.99, weight_decay: 0.0, ..AdamW::default() };
        let mut weight = [0.0f64];
        let mut moments = Moments::new(Rule::AdamW, 1);
        let gradients = [1.0, -2.0, 0.5];
        for (step, gradient) in gradients.iter().enumerate() {
            adam.update(step as u32, &mut weight, &[*gradient], &mut moments, false);
        }
        // The means as weighted sums over all gradients, instead of one after the other.
        let mut expected = 0.0;
        for last in 0..gradients.len() {
            let mean = |beta: f64, power: i32| {
                let weights: Vec<f64> = (0..=last).map(|at| beta.powi((last - at) as i32)).collect();
                let sum: f64 =
                    weights.iter().zip(gradients).map(|(weight, gradient)| weight * gradient.powi(power)).sum();
                sum / weights.iter().sum::<f64>()
            };
            expected -= 0.1 * mean(0.9, 1) / (mean(0.99, 2).sqrt() + 1e-8);
        }
        assert!((weight[0] - expected).abs() < 1e-12, "{} {expected}", weight[0]);
    }
}
