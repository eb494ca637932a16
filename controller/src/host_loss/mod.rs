//! Decides when a host is lost, and what happens to the machines on it.
//!
//! A host is lost if its Node is not ready and its agent is unresponsive for the time of `spec.replaceAfter` of a
//! tenant. The host may still run VMs: it may only have lost its network. Therefore a machine is replaced under another
//! name, with disks of its own, and its VirtualMachine is deleted only after proof that the host is off or controlled
//! by its kubelet again ([`deletion`]). A machine with data disks waits.

pub mod away_host_limit;
pub mod deletion;
pub mod disks;
pub mod evidence;
pub mod machine_hosts;
pub mod report;
pub mod verdict;
