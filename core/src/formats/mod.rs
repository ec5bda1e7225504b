//! Other forms of a plan or a timeline: for people, and for other people's programs.

pub mod chrome_trace;
pub mod colour;
pub mod export;
pub mod megatron_args;
pub mod megatron_run;
pub mod sentence;
pub mod svg;
pub mod text;
pub mod torch_profile;
