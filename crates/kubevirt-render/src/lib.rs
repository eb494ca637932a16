//! Rendering for KubeVirt: from a MachineDeployment to VirtualMachines, and from a VirtualMachine to its launcher pod.
//!
//! All of it is pure: the reconciler, `berth-controller render` and `berth-controller plan` share it.

pub mod launcher;
pub mod machines;
pub mod stable_hash;
