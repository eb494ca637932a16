//! The decision of a kubelet about an arriving pod: the same result, the same CPUs, memory and devices.
//!
//! The scheduler counts totals. The kubelet then checks zones, and rejects a pod that does not fit them for good; a
//! scheduler of VMs therefore must predict this decision. These are the kubelet's rules, one file per rule, each with
//! the file of the kubelet's source that it follows (pkg/kubelet/cm unless stated otherwise), surprises included:
//!
//! ```text
//! pod ─► request (QoS, whole CPUs, sums) ─► trial, container by container ─► totals ─► Admission or Refusal
//!                                             │ hints: devices, cpu, memory ─► merged by the topology policy
//!                                             └ allocation: devices, cpu (take, distribute, take_old), memory
//! ```
//!
//! Not included: pod-level resources (alpha for the managers), dynamic resource allocation, ephemeral storage, taints
//! and preemption by critical pods.

mod bits;
mod by_uid;
mod cpu;
mod devices;
mod distribute;
mod free;
mod grant;
mod hints;
mod host;
mod kubelet;
mod memory;
mod passthrough;
pub mod pod;
mod pools;
mod refusal;
mod request;
mod restart;
mod state;
mod take;
mod take_old;
mod totals;
mod trial;
mod view;
mod zones;

pub use free::FreeZone;
pub use host::{CoreSpec, DevicePool, HostFault, HostSpec, KubeletHost, ZoneSpec};
pub use kubelet::{
    CpuOptions, CpuPolicy, Kubelet, MemoryPolicy, ParseKubeletError, ReservedMemory,
    TopologyOptions, TopologyPolicy, TopologyScope, Version,
};
pub use memory::MemoryKind;
pub use refusal::{Refusal, RefusedBy};
pub use restart::Restart;
pub use state::{Admission, Restored, RestoredContainer, RestoredDevices, State};
pub use view::{MemoryBlock, MemoryView, Placement};
pub use zones::ZoneMask;
