//! The framework that is to run a plan.

/// A framework with rules of its own, which refuses some plans that are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Megatron-LM: `validate_args` and its interleaved schedule.
    Megatron,
    /// torch.distributed.pipelining.
    Torch,
}

impl Target {
    /// Every framework with its name in a spec.
    pub const NAMED: [(&'static str, Target); 2] = [("megatron", Target::Megatron), ("torch", Target::Torch)];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Megatron => "megatron",
            Target::Torch => "torch",
        }
    }

    /// The name for people.
    pub const fn title(self) -> &'static str {
        match self {
            Target::Megatron => "Megatron-LM",
            Target::Torch => "torch.distributed.pipelining",
        }
    }
}
