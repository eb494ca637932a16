//! Removal of machines.

pub mod mark;
