//! Verifies that the switches carry the VLANs of tenants: exchanges probe frames with the agents of other hosts,
//! and receives the LLDP frames of switches.
//!
//! For each host network, one task runs a [`berth_trunk_probe::TrunkProbe`] on the uplink; for each link, one task
//! receives LLDP frames. The cycle of the daemon sets the targets of these tasks, and publishes their results.

mod key_file;
mod link_probe;
mod lldp_task;
mod monitor;
mod probe_task;
mod results;
mod targets;
mod vlan_socket;
mod wake_timer;

pub use link_probe::LinkProbe;
pub(crate) use monitor::TrunkMonitor;
pub(crate) use results::TrunkReport;
