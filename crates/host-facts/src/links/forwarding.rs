//! Reads entries of bridges' forwarding databases.

use std::io;

use berth_api::{MacAddress, VlanId};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use nix::errno::Errno;

use crate::netlink::NetlinkReader;

/// Returns the interface index of the bridge port to which a bridge forwards frames for an Ethernet address; `None` if
/// the bridge has no entry for the address. `port` is the interface index of any port of the bridge. `vlan` is the VLAN
/// of the frames if the bridge filters VLANs.
///
/// # Errors
/// Returns an error if `port` is not a port of a bridge, or if the kernel is older than 5.0 and cannot return a single
/// entry.
pub fn read_forwarding_entry(
    port: u32,
    mac: MacAddress,
    vlan: Option<VlanId>,
) -> io::Result<Option<u32>> {
    let request = Message::GetNeighbour(entry_request(port, mac, vlan));
    match NetlinkReader::open()?.get_object(request) {
        Ok(Some(Message::NewNeighbour(entry))) => Ok(Some(entry.header.ifindex)),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

fn entry_request(port: u32, mac: MacAddress, vlan: Option<VlanId>) -> NeighbourMessage {
    let mut request = NeighbourMessage::default();
    request.header.family = AddressFamily::Bridge;
    request.header.ifindex = port;
    request.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    request.attributes.extend(vlan.map(|vlan| NeighbourAttribute::Vlan(vlan.into())));
    request
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourState};

    use super::*;

    #[test]
    fn a_request_has_no_field_that_the_kernel_refuses() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let request = entry_request(7, mac, VlanId::try_from(120).ok());
        let header = &request.header;
        assert_eq!((header.state, header.flags), (NeighbourState::None, NeighbourFlags::empty()));
        let lladdr = NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]);
        assert_eq!(request.attributes, [lladdr.clone(), NeighbourAttribute::Vlan(120)]);
        assert_eq!(entry_request(7, mac, None).attributes, [lladdr]);
    }
}
