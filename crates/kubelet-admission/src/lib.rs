//! Predicts a kubelet's decision about a pod that is bound to its Node, including the CPUs, memory and devices that the
//! kubelet allocates.
//!
//! The scheduler compares only totals. The kubelet then checks zones, and permanently rejects a pod that does not fit
//! in them. Therefore a scheduler of VMs must predict the kubelet's decision. This crate implements the kubelet's
//! rules, including surprising ones. Each rule has its own file, which names the kubelet's source file that it
//! follows (in pkg/kubelet/cm unless stated otherwise).
//!
//! ```text
//! pod ─► request (QoS, whole CPUs, sums) ─► trial, container by container ─► totals ─► Admission or Refusal
//!                                             │ hints: devices, cpu, memory ─► merged by the topology policy
//!                                             └ allocation: devices, cpu (take, distribute, take_legacy), memory
//! ```
//!
//! Not included: pod-level resources (alpha for the managers), dynamic resource allocation, ephemeral storage, taints
//! and preemption by critical pods.

mod cpu;
mod cpu_bits;
mod devices;
mod distribute;
mod free_zones;
mod grant;
mod hints;
mod host;
mod kubelet;
mod memory;
mod passthrough;
mod placement_view;
pub mod pod;
mod refusal;
mod request;
mod restart;
mod state;
mod take_legacy;
mod take_packed;
mod totals;
mod trial;
mod uid_map;
mod zone_memory;
mod zones;

pub use free_zones::FreeZone;
pub use host::{CoreSpec, DevicePool, HostError, HostSpec, KubeletHost, ZoneSpec};
pub use kubelet::{
    CpuOptions, CpuPolicy, Kubelet, KubeletVersion, MemoryPolicy, ParseKubeletError,
    ReservedMemory, TopologyOptions, TopologyPolicy, TopologyScope,
};
pub use memory::MemoryKind;
pub use placement_view::{MemoryBlock, Placement, ZoneMemoryView};
pub use refusal::{Refusal, RefusingComponent};
pub use restart::RestartPrediction;
pub use state::{Admission, HostState, ReportedContainer, ReportedDevices, ReportedPod};
pub use zones::ZoneMask;
