//! Declines of addresses (DHCPDECLINE, DHCPv6 Decline). A decline counts only if it arrives through the port on which
//! the bridge has learned the Ethernet address of the lease. Otherwise a VM could block the addresses of other VMs.
//!
//! The agent's sockets receive a frame before the bridge drops frames with a spoofed source address (`macSpoofCheck`).
//! The bridge learns addresses only from frames that pass this check, so its forwarding database has the port of the VM
//! itself.

use std::io;
use std::net::IpAddr;

use berth_api::MacAddress;
use berth_host_facts::links::read_forwarding_entry;

use super::port_plan::ServedPort;

/// A decline that a guest sent.
#[derive(Debug, Clone)]
pub(super) struct Decline {
    pub(super) address: IpAddr,
    /// Source of the frame, and Ethernet address of the lease.
    pub(super) mac: MacAddress,
    /// Machine that has the lease.
    pub(super) machine: String,
}

/// Sender of a decline, according to the bridge's forwarding database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeclineSender {
    /// The VM that has the lease.
    Owner,
    /// Another VM: the bridge has learned the Ethernet address on another port.
    OtherVm,
    /// The bridge has not learned the address. A guest sends other frames before it declines an address.
    Unknown,
}

impl Decline {
    /// Returns the sender of a decline that arrived through the port with this interface index.
    ///
    /// # Errors
    /// If the forwarding database cannot be read.
    pub(super) async fn sender(&self, index: u32, port: &ServedPort) -> io::Result<DeclineSender> {
        let (mac, vlan) = (self.mac, port.vlan);
        // The kernel may wait a long time for the RTNL lock, so the request is made on a thread that may block.
        let known =
            tokio::task::spawn_blocking(move || read_forwarding_entry(index, mac, vlan)).await;
        Ok(sender_from(index, known.map_err(io::Error::other).flatten()?))
    }
}

/// Returns the sender of a frame that arrived through `port`. `known` is the port on which the bridge has learned the
/// source address of the frame.
fn sender_from(port: u32, known: Option<u32>) -> DeclineSender {
    match known {
        Some(known) if known == port => DeclineSender::Owner,
        Some(_) => DeclineSender::OtherVm,
        None => DeclineSender::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_port_of_the_vm_declines_its_address() {
        assert_eq!(sender_from(7, Some(7)), DeclineSender::Owner);
        assert_eq!(sender_from(7, Some(8)), DeclineSender::OtherVm);
        // Before the VM has sent a frame, another VM must not be able to block its address.
        assert_eq!(sender_from(7, None), DeclineSender::Unknown);
    }
}
