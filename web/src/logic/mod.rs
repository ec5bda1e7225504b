//! Decisions of the page that need no browser.
//!
//! - In: what the page shows, and what a person did.
//! - Out: decisions and sentences: which rows are still true, in which order they stand, what is drawn, what is one step of the
//!   history, what is remembered.
//! - Knows: [`protocol`](crate::protocol), [`scene`](crate::scene), [`text`](crate::text). No browser, so that all of it is
//!   tested natively.

pub mod comparison;
pub mod compression;
pub mod documents;
pub mod edits;
pub mod kept_plan;
pub mod layouts;
pub mod playback;
pub mod proof;
pub mod shown;
pub mod sorting;
pub mod versus;
