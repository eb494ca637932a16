//! Reads the gateways of the running kernel's default routes.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::route::{RouteAttribute, RouteMessage};

use super::netlink::{is_default_route, route_requests, to_ip_address};
use crate::netlink::NetlinkReader;

/// A gateway of a default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    pub address: IpAddr,
    /// Interface index of the link through which the gateway is reached.
    pub link_index: u32,
}

/// Reads the gateways of all default routes.
///
/// # Errors
/// Returns an error if the kernel does not answer.
pub fn read_default_gateways(netlink: &mut NetlinkReader) -> io::Result<Vec<Gateway>> {
    let mut found = Vec::new();
    for route in read_default_route_messages(netlink)? {
        let mut link = None;
        let mut gateways = Vec::new();
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => link = Some(*index),
                RouteAttribute::Gateway(address) => gateways.extend(to_ip_address(address)),
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops {
                        let address = hop.attributes.iter().find_map(|attribute| match attribute {
                            RouteAttribute::Gateway(address) => to_ip_address(address),
                            _ => None,
                        });
                        found.extend(
                            address.map(|address| Gateway {
                                address,
                                link_index: hop.interface_index,
                            }),
                        );
                    }
                }
                _ => {}
            }
        }
        found.extend(link.into_iter().flat_map(|link| {
            gateways.iter().map(move |address| Gateway { address: *address, link_index: link })
        }));
    }
    found.sort_by_key(|gateway| (gateway.link_index, gateway.address));
    found.dedup();
    Ok(found)
}

/// Reads the messages about the default routes of both address families.
fn read_default_route_messages(netlink: &mut NetlinkReader) -> io::Result<Vec<RouteMessage>> {
    let mut found = Vec::new();
    for request in route_requests() {
        found.extend(netlink.dump(&request, |answer| {
            let Message::NewRoute(route) = answer else { return None };
            is_default_route(route).then(|| route.clone())
        })?);
    }
    Ok(found)
}
