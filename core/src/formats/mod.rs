//! Files of other programs, and drawings for people: plans and timelines in other forms.
//!
//! - In: plans, traces and timelines; files of other programs.
//! - Out: Chrome and Perfetto traces, SVG, text drawings, Megatron-LM arguments; specs read from Megatron-LM, traces from what runs
//!   left behind, of whichever program, and lengths of documents.
//! - Knows: plans and traces. Nothing of search or advice.

pub mod colour;
pub mod events;
pub mod export;
pub mod flight_recorder;
pub mod frameworks;
pub mod lengths;
pub mod megatron_args;
pub mod paddle_log;
pub mod profile;
pub mod run_files;
pub mod sentence;
mod shell;
pub mod svg;
pub mod text;
pub mod torch_profile;
pub mod training_run;
