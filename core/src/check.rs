//! Whether a schedule or a program is valid.
