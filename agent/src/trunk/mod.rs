//! Verifies that the switches carry the VLANs of tenants: exchanges probe frames with the agents of other hosts, and
//! reads the LLDP frames of switches.
//!
//! One task per host network runs a [`berth_trunk_probe::TrunkProbe`] on the uplink, and one task per link receives
//! LLDP. The cycle of the daemon sets their targets, and publishes their results.

mod key_file;
mod link_probe;
mod lldp_task;
mod monitor;
mod probe_task;
mod results;
mod targets;
mod vlan_socket;

pub use link_probe::LinkProbe;
pub(crate) use monitor::TrunkMonitor;
pub(crate) use results::TrunkReport;
