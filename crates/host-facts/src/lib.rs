//! Facts about a bare-metal host, which are read from its files and its kernel.
//!
//! [`root`] opens the host's files, and [`observe`](mod@observe) reads them into [`HostFacts`] and [`notes`]. Each
//! module reads one kind of fact; the module of the agent that reports or checks this kind has the same name. Facts
//! that only a running machine has (ioctls, CPUID, netlink, O_DIRECT) are read only if the root is live; otherwise they
//! are unknown, and the reason is noted.
//!
//! This crate neither writes files of the host nor changes anything through netlink; the agent does both.

pub mod cgroup;
pub mod cpu;
pub mod cpuinfo;
pub mod devices;
pub mod direct_io;
pub mod disks;
pub mod facts;
pub mod host_settings;
pub mod hugepages;
pub mod identity;
pub mod iommu;
pub mod irqs;
pub mod isolation;
pub mod kernel;
pub mod kernel_files;
pub mod ksm;
pub mod kubelet;
pub mod kvm;
pub mod ledger;
pub mod links;
pub mod machine;
pub mod memory;
pub mod mounts;
pub mod netlink;
pub mod nftables;
pub mod notes;
pub mod nvme;
pub mod observe;
pub mod pci;
pub mod pod_allocations;
mod pod_cgroups;
pub mod pod_names;
pub mod pods;
pub mod processes;
pub mod root;
pub mod sanitize;
pub mod services;
pub mod setting;
pub mod topology;
pub mod units;
pub mod uptime;
pub mod vfio;
pub mod zones;

pub use facts::HostFacts;
pub use observe::{ObserveOptions, observe, observe_links};
