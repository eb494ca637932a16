//! Answers DHCP requests and router solicitations of the VMs on this host.
//!
//! Every guest gets its address from the agent of its own host, through the bridge port of its VM: no pod and no leader
//! is involved. The leases come from the HostLeases object of the Node. They are saved on disk, so the agent also
//! answers after a restart while the API server is unreachable. [`port_plan`] selects the ports, [`service`] opens a
//! packet socket for each port, and [`port_task`] passes the frames to `berth-dhcp-responder`, which decides about each
//! answer.
//!
//! A new address is served only after its [`prober`] found no other machine that uses it.

mod advertisement_timer;
mod conflicts;
mod declines;
mod egress_plan;
mod file_limit;
mod frame_filters;
mod metrics;
mod network_probes;
mod port;
mod port_plan;
mod port_task;
mod prober;
mod problems;
mod served_network;
mod service;

pub(crate) use conflicts::AddressConflicts;
pub use metrics::DhcpMetrics;
pub use service::{DhcpHandle, run_service};
