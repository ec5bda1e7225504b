//! How the field writes orders and layouts as text: reader and writer together.
//!
//! - In: text of a person or another program; ops, schedules, layers of stages.
//! - Out: the same, read or written: the op list of each rank in the short form ([`order`]), the CSV of
//!   torch.distributed.pipelining ([`torch_csv`]),
//!   the layout string of Megatron-LM ([`megatron_layout`]).
//! - Knows: ops, placements, schedules, which layers a stage holds. Nothing of specs, plans or times, so specs and plans can hold these texts.

pub mod megatron_layout;
pub mod order;
pub mod torch_csv;
