//! What a kubelet does with a pod that arrives: the same decision, the same CPUs, memory and devices.
//!
//! The scheduler counts totals. The kubelet then looks at zones, and refuses for good what does not fit them; so whoever
//! assigns VMs must know beforehand what it will say. These are its rules, one file a rule, each with the file
//! of the kubelet's source (pkg/kubelet/cm unless said otherwise) it is from, surprises included:
//!
//! ```text
//! pod ─► request (QoS, whole CPUs, sums) ─► trial, container by container ─► totals ─► Admission or Refusal
//!                                             │ hints: devices, cpu, memory ─► merged by the topology policy
//!                                             └ allocation: devices, cpu (take, distribute, take_old), memory
//! ```
//!
//! Not here: pod-level resources (alpha as far as managers go), dynamic resource allocation, ephemeral storage,
//! taints and preemption by critical pods.

mod bits;
mod by_uid;
mod cpu;
mod devices;
mod distribute;
mod free;
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
pub use host::{CoreSpec, DevicePool, Host, HostFault, HostSpec, ZoneSpec};
pub use kubelet::{
    CpuOptions, CpuPolicy, Kubelet, MemoryPolicy, ParseKubeletError, ReservedMemory,
    TopologyOptions, TopologyPolicy, TopologyScope, Version,
};
pub use refusal::{Refusal, RefusedBy};
pub use restart::Restart;
pub use state::{Admission, Restored, RestoredContainer, RestoredDevices, State};
pub use view::{MemoryBlock, MemoryKind, MemoryView, Placement};
pub use zones::ZoneMask;
