//! Other forms of a plan or a timeline: for people, and for other people's programs.

pub mod text;
