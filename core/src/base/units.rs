//! Units. A field's suffix names its unit: `_ns`, `_bytes`.

/// A time or a duration in whole nanoseconds.
pub type Nanos = u64;

/// An amount of memory in bytes.
pub type Bytes = u64;

/// A change of memory in bytes: positive is taken, negative is given back.
pub type ByteDelta = i64;
