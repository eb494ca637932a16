//! Rendering for KubeVirt: renders a MachineDeployment as VirtualMachines, and predicts the launcher pod of a
//! VirtualMachine.
//!
//! The crate is pure; the reconciler, `berth-controller render` and `berth-controller plan` share its code.

mod hex_digest;
pub mod images;
pub mod launcher;
pub mod machines;
pub mod stable_hash;
