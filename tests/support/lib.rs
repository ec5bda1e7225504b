//! What the tests share: an independent judge of plans, readers of the reference tables, problems drawn by chance, and
//! drivers of the command and of a browser.

pub mod browser;
pub mod judge;
pub mod process;
pub mod random;
pub mod tables;
pub mod torch;
