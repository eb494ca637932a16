//! Removal of machines: the mark on a VirtualMachine that Berth wants to remove.

pub mod mark;
