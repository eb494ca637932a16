//! Berth's node agent. Its modules, in the order of the data flow:
//!
//! [`observe`] reads the host into facts with `berth-host-facts`, [`report`] converts the facts to an InfraNode,
//! and [`check`] evaluates the facts. [`plan`] compares the facts with the desired state, [`apply`] changes the
//! host, and [`daemon`] repeats these steps and publishes the results through [`cluster`]. [`dhcp`] gives VMs their
//! addresses, and [`trunk`] verifies their VLANs. [`cli`] is the only module that prints.

pub mod apply;
pub mod check;
pub mod cli;
#[cfg(feature = "daemon")]
pub mod cluster;
#[cfg(feature = "daemon")]
pub mod conditions;
pub mod credential;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "daemon")]
pub mod dhcp;
pub mod document;
pub mod fault;
mod host_leases;
pub mod host_write;
pub mod manifest;
pub mod netlink;
pub mod nftables;
pub mod observe;
#[cfg(feature = "daemon")]
mod packet_socket;
#[cfg(feature = "daemon")]
pub mod parsers;
pub mod plan;
#[cfg(feature = "daemon")]
pub mod publish;
pub mod report;
pub mod state_folder;
pub mod systemd;
#[cfg(feature = "daemon")]
pub mod trunk;
mod trunk_reasons;
