//! Network links of the host: what is physical, what is stacked on what, and which of them the host
//! cannot do without.
//!
//! On a live machine netlink gives all links in one dump; from a captured tree sysfs does, file by
//! file. What only sysfs has (driver, PCI function, speed) is read for physical links in both cases.

mod bridge_filter;
mod bridging;
mod elsewhere;
pub mod filter;
mod link;
mod nearby;
mod netlink;
pub mod observe;
mod physical;
pub mod proc_net;
mod routes;
mod sysfs;
mod table;
mod trouble;

pub use bridge_filter::BridgeFilter;
pub use bridging::{BridgeOptions, IpOptions, PortVlans, Tunnel};
pub use filter::read as read_filter;
pub use link::{Link, LinkKind};
pub use nearby::nearby;
pub use netlink::{Gateway, default_gateways, indexes, link_of};
pub use observe::live;
pub use routes::Routes;
pub use table::Links;
pub use trouble::{Manager, Trouble, networkd_manages, nm_manages};
