//! The page.
mod browser;
mod courier;

/// Starts it.
pub fn start() {}
