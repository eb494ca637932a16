//! Network links of the host: physical links, the links stacked on other links, and the links that the host needs for
//! its own network.
//!
//! On a running machine, netlink returns all links in one dump. In a captured tree, sysfs has one file for each
//! attribute. Facts that only sysfs has (driver, PCI function, speed) are read for physical links in both cases.

mod bridge_filter;
mod bridge_options;
mod conflicting_settings;
pub mod filter;
mod forwarding;
mod gateways;
mod link;
mod netlink;
pub mod observe;
mod other_namespaces;
mod physical;
pub mod proc_net;
mod routes;
mod stacked_links;
mod sysfs;
mod table;

pub use bridge_filter::BridgeFilter;
pub use bridge_options::{BridgeOptions, IpOptions, PortVlans, VxlanTunnel};
pub use conflicting_settings::{
    ConflictingSettings, LinkManager, is_managed_by_network_manager, is_managed_by_networkd,
};
pub use filter::read_filter;
pub use forwarding::read_forwarding_entry;
pub use gateways::{Gateway, read_default_gateways};
pub use link::{Link, LinkKind};
pub use netlink::{parse_link_message, read_link_indexes};
pub use observe::{observe_live, observe_ports};
pub use routes::Routes;
pub use stacked_links::read_stacked_links;
pub use table::Links;
