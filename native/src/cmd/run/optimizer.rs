//! The settings of the optimizer, as the command line says them.

use pipeplan::runner::optimizer::{AdamW, Schedule};

use crate::cmd::failure::Failure;

/// Options on the optimizer. Where one is not given, that of the checkpoint counts.
#[derive(clap::Args)]
#[command(next_help_heading = "Optimizer")]
pub struct OptimizerArgs {
    /// Learning rate of AdamW; default: that of the checkpoint, else 0.001
    #[arg(long, visible_alias = "lr", value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Learning rate at the end of the decay; default: a tenth of the learning rate
    #[arg(long, visible_alias = "min-learning-rate", value_name = "RATE")]
    min_lr: Option<f64>,
    /// Steps of linear learning-rate warm-up; 0: none
    #[arg(long, visible_aliases = ["lr-warmup-steps", "lr-warmup-iters"], value_name = "STEPS")]
    warm_up: Option<u32>,
    /// Decay of the learning rate ends at this step, which comes after the warm-up; 0: no decay
    #[arg(long, visible_aliases = ["lr-decay-steps", "lr-decay-iters"], value_name = "STEP")]
    decay_until: Option<u32>,
    /// How the learning rate falls: along a cosine, in a line, not at all, or in a line over the last steps (WSD); default:
    /// that of the checkpoint, else cosine
    #[arg(long, visible_alias = "lr-decay-style", value_name = "SCHEDULE")]
    schedule: Option<Shape>,
    /// With --schedule wsd: the steps before --decay-until in which the learning rate falls
    #[arg(long, visible_alias = "lr-wsd-decay-iters", value_name = "STEPS")]
    wsd_decay: Option<u32>,
    /// Decay of the mean of gradients; default: that of the checkpoint, else 0.9
    #[arg(long, visible_alias = "adam-beta1", value_name = "SHARE")]
    beta1: Option<f64>,
    /// Decay of the mean of squared gradients; default: that of the checkpoint, else 0.95
    #[arg(long, visible_alias = "adam-beta2", value_name = "SHARE")]
    beta2: Option<f64>,
    /// Added to the root of the mean square; default: that of the checkpoint, else 1e-8
    #[arg(long, visible_alias = "adam-eps", value_name = "NUMBER")]
    eps: Option<f64>,
    /// Weight decay, of matrices and not of norms and biases; default: that of the checkpoint, else 0.1
    #[arg(long, value_name = "SHARE")]
    weight_decay: Option<f64>,
    /// Clip gradients to this global norm
    #[arg(long, visible_alias = "clip-grad", value_name = "NORM")]
    pub clip_norm: Option<f64>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shape {
    Cosine,
    Linear,
    Constant,
    #[value(alias = "WSD")]
    Wsd,
}

impl OptimizerArgs {
    /// Each option, and whether it was given.
    pub fn given(&self) -> [(&'static str, bool); 11] {
        [
            ("--learning-rate", self.learning_rate.is_some()),
            ("--min-lr", self.min_lr.is_some()),
            ("--warm-up", self.warm_up.is_some()),
            ("--decay-until", self.decay_until.is_some()),
            ("--schedule", self.schedule.is_some()),
            ("--wsd-decay", self.wsd_decay.is_some()),
            ("--beta1", self.beta1.is_some()),
            ("--beta2", self.beta2.is_some()),
            ("--eps", self.eps.is_some()),
            ("--weight-decay", self.weight_decay.is_some()),
            ("--clip-norm", self.clip_norm.is_some()),
        ]
    }

    /// The settings, where the command line says none those of `before`.
    pub fn read(&self, before: AdamW) -> Result<AdamW, Failure> {
        let learning_rate = self.learning_rate.unwrap_or(before.learning_rate);
        if !(learning_rate > 0.0 && learning_rate.is_finite()) {
            return Err(Failure::input(format!("--learning-rate is {learning_rate}; give a number above 0")));
        }
        if let Some(min_lr) = self.min_lr.filter(|min_lr| !(0.0..=learning_rate).contains(min_lr)) {
            let what = format!("--min-lr is {min_lr}; give a number from 0 to the learning rate, {learning_rate}");
            return Err(Failure::input(what));
        }
        let optimizer = AdamW {
            learning_rate,
            final_share: self.min_lr.map_or(before.final_share, |min_lr| min_lr / learning_rate),
            warm_up: self.warm_up.unwrap_or(before.warm_up),
            decay_until: self.decay_until.unwrap_or(before.decay_until),
            decay_steps: self.wsd_decay.unwrap_or(before.decay_steps),
            schedule: self.schedule.map_or(before.schedule, |shape| match shape {
                Shape::Cosine => Schedule::Cosine,
                Shape::Linear => Schedule::Linear,
                Shape::Constant => Schedule::Constant,
                Shape::Wsd => Schedule::Wsd,
            }),
            beta1: self.beta1.unwrap_or(before.beta1),
            beta2: self.beta2.unwrap_or(before.beta2),
            epsilon: self.eps.unwrap_or(before.epsilon),
            weight_decay: self.weight_decay.unwrap_or(before.weight_decay),
        };
        self.check(&optimizer)?;
        Ok(optimizer)
    }

    /// Refuses settings that make no steps, and options that have no effect.
    fn check(&self, optimizer: &AdamW) -> Result<(), Failure> {
        optimizer.check().map_err(|what| Failure::input(format!("the optimizer's {what}")))?;
        let AdamW { decay_until, decay_steps, warm_up, schedule, .. } = *optimizer;
        // What a checkpoint says was run as it is.
        let is_asked = self.warm_up.is_some() || self.decay_until.is_some();
        if is_asked && decay_until > 0 && decay_until <= warm_up {
            let what = format!("warm-up takes {warm_up} steps, but decay ends at step {decay_until}");
            return Err(
                Failure::input(what).with_help("Give --decay-until a step after --warm-up, or 0 for no decay.")
            );
        }
        let shape = self.schedule.is_some();
        let idle = [
            (
                shape && decay_until == 0 && schedule != Schedule::Constant,
                "--schedule says how the learning rate falls, but not until when",
                "Give --decay-until STEP with it.",
            ),
            (
                schedule == Schedule::Constant && self.decay_until.is_some_and(|step| step > 0),
                "--decay-until says when the learning rate has fallen, but --schedule constant lets it stay",
                "Leave one of them out.",
            ),
            (
                self.wsd_decay.is_some() && schedule != Schedule::Wsd,
                "--wsd-decay applies to --schedule wsd",
                "Give --schedule wsd with it.",
            ),
            (
                schedule == Schedule::Wsd && (shape || self.wsd_decay.is_some()) && decay_steps == 0,
                "--schedule wsd lets the learning rate fall over the last steps, but not over how many",
                "Give --wsd-decay STEPS with it.",
            ),
            (
                self.min_lr.is_some() && (decay_until == 0 || schedule == Schedule::Constant),
                "--min-lr is the learning rate at the end of the decay, but there is no decay",
                "Give --decay-until STEP with it.",
            ),
        ];
        match idle.into_iter().find(|(is_idle, ..)| *is_idle) {
            Some((_, what, help)) => Err(Failure::input(what).with_help(help)),
            None => Ok(()),
        }
    }
}
