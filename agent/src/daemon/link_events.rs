//! Watches the kernel's events of the links and addresses that tenant networks use.
//!
//! On a host with pods, links are created and deleted all day, so an event is filtered by its bytes before it is
//! parsed. Thousands of events may arrive at once; if some are lost (ENOBUFS), all links are read.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_api::InfraNodeSpec;
use berth_api::infra_node::UplinkSelector;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::packet_core::NlasIterator;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::trigger::Trigger;
use crate::dhcp::DhcpHandle;
use berth_host_facts::links::Links;
use berth_host_facts::netlink::{RTM_NEWLINK, read_link_index, read_message_type, split_messages};

/// Links whose events start a cycle.
#[derive(Debug, Default)]
pub(super) struct WatchedLinks {
    /// Indexes of the links that Berth created, of uplinks, and of ports of its bridges.
    indexes: BTreeSet<u32>,
    /// Names of desired links that may be created.
    names: BTreeSet<String>,
    /// True if any new link may be a desired uplink, because an uplink that is selected by address does not
    /// exist yet.
    watches_any_new_link: bool,
    /// Notified when a host network is desired.
    pub(super) network_desired: Arc<Notify>,
}

/// Multicast groups of the watched events (`enum rtnetlink_groups`). The event of a link includes its VLANs as a bridge
/// port.
const MULTICAST_GROUPS: [u32; 3] = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
/// Multicast group of events of links.
const RTNLGRP_LINK: u32 = 1;
/// Multicast group of events of IPv4 addresses.
const RTNLGRP_IPV4_IFADDR: u32 = 5;
/// Multicast group of events of IPv6 addresses.
const RTNLGRP_IPV6_IFADDR: u32 = 9;
/// Type of the message that a link was deleted.
const RTM_DELLINK: u16 = 17;
/// Type of the message that an address was added.
const RTM_NEWADDR: u16 = 20;
/// Attribute with the name of a link.
const IFLA_IFNAME: u16 = 3;
/// Attribute with the index of the link on which a link is stacked.
const IFLA_LINK: u16 = 5;
/// Attribute with the index of the bridge or bond that a link is a port of.
const IFLA_MASTER: u16 = 10;

/// Size of the receive buffer. When an uplink with a thousand VLAN links goes down, the kernel
/// sends about 20 MB.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Delay before links are read again after the socket overflowed, because more events of the same cause may follow.
pub(super) const OVERFLOW_DELAY: Duration = Duration::from_millis(100);

impl WatchedLinks {
    /// Returns a `WatchedLinks` that contains a single link.
    pub(super) fn for_link(index: u32, name: &str) -> Self {
        Self { indexes: [index].into(), names: [name.to_owned()].into(), ..Self::default() }
    }

    /// Replaces the watched links by those of this host and this desired spec.
    pub(super) fn update(&mut self, links: &Links, spec: &InfraNodeSpec) {
        let network_desired = Arc::clone(&self.network_desired);
        if !spec.networks.is_empty() {
            network_desired.notify_one();
        }
        *self = Self { network_desired, ..Self::new(links, spec) };
    }

    /// Returns the links to watch on this host with this desired spec.
    fn new(links: &Links, spec: &InfraNodeSpec) -> Self {
        let uplinks = || spec.networks.iter().filter_map(|network| network.uplink.as_ref());
        let by_name = |selector: &UplinkSelector| selector.name.as_ref().map(ToString::to_string);
        let mut names: BTreeSet<String> = uplinks().filter_map(by_name).collect();
        names.extend(
            spec.networks.iter().filter_map(|n| n.bridge.as_ref().map(ToString::to_string)),
        );
        let has_networks = !spec.networks.is_empty();
        let berth_links: BTreeSet<&str> = links
            .all
            .iter()
            .filter(|link| link.is_created_by_berth())
            .map(|link| link.name.as_str())
            .collect();
        names.extend(berth_links.iter().map(|name| (*name).to_owned()));
        let is_watched = |link: &&berth_host_facts::links::Link| {
            let is_berth_port =
                link.master.as_ref().is_some_and(|master| berth_links.contains(master.as_str()));
            link.is_created_by_berth()
                || is_berth_port
                || names.contains(link.name.as_str())
                || (has_networks && link.is_uplink())
        };
        let indexes = links.all.iter().filter(is_watched).filter_map(|link| link.index).collect();
        let exists = |selector: &UplinkSelector| {
            links.uplinks().any(|link| {
                let mac = selector.mac.map(|mac| mac.to_string());
                (selector.mac.is_some() && (link.permanent_mac == selector.mac || link.mac == mac))
                    || (selector.pci_address.is_some() && link.pci_address == selector.pci_address)
            })
        };
        let any_new_link = uplinks().any(|selector| selector.name.is_none() && !exists(selector));
        Self { indexes, names, watches_any_new_link: any_new_link, ..Self::default() }
    }
}

/// Opens a socket for events. Without root the kernel limits its buffer, and overflows occur earlier.
pub(super) fn open_socket() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    let inner = socket.socket_mut();
    inner.bind(&SocketAddr::new(0, 0))?;
    for group in MULTICAST_GROUPS {
        inner.add_membership(group)?;
    }
    if setsockopt(&*inner, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        setsockopt(&*inner, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// Sends a trigger for each relevant message, until the receiver is dropped. Also notifies the service that answers
/// DHCP requests at once, so that VMs on new ports do not wait for the cycle.
pub(super) async fn watch(
    socket: TokioSocket,
    watched_links: Arc<Mutex<WatchedLinks>>,
    dhcp: DhcpHandle,
    events: Sender<Trigger>,
) {
    loop {
        let is_relevant = match socket.recv_from_full().await {
            Ok((datagram, _)) => {
                let watched_links = watched_links.lock().unwrap_or_else(PoisonError::into_inner);
                split_messages(&datagram)
                    .any(|message| is_about_watched_link(message, &watched_links))
            }
            // The socket overflowed, and events were lost, so all links must be read.
            Err(_) => {
                tokio::time::sleep(OVERFLOW_DELAY).await;
                true
            }
        };
        if is_relevant {
            dhcp.notify_links_changed();
        }
        if is_relevant && events.try_send(Trigger::Links).is_err() && events.is_closed() {
            return;
        }
    }
}

/// Returns true if a message of the kernel is about a watched link.
pub(super) fn is_about_watched_link(message: &[u8], watched_links: &WatchedLinks) -> bool {
    let Some(kind) = read_message_type(message) else { return false };
    let is_watched_index =
        read_link_index(message).is_some_and(|index| watched_links.indexes.contains(&index));
    if is_watched_index || !(RTM_NEWLINK..=RTM_DELLINK).contains(&kind) {
        return is_watched_index && kind <= RTM_NEWADDR + 1;
    }
    if watched_links.watches_any_new_link {
        return true;
    }
    let attributes = NlasIterator::new(message.get(32..).unwrap_or_default()).flatten();
    for attribute in attributes {
        let value = attribute.value();
        let index = || value.get(..4)?.try_into().ok().map(u32::from_ne_bytes);
        match attribute.kind() {
            IFLA_MASTER | IFLA_LINK
                if index().is_some_and(|i| watched_links.indexes.contains(&i)) =>
            {
                return true;
            }
            IFLA_IFNAME => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = std::str::from_utf8(name).unwrap_or_default();
                if watched_links.names.contains(name) {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(u16::try_from(4 + value.len()).unwrap_or_default().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn only_messages_about_selected_links_are_relevant() {
        let watched_links = WatchedLinks::for_link(7, "bond0");
        let index_bytes = 7_u32.to_ne_bytes();
        for (event, expected) in [
            (message(RTM_NEWLINK, 7, &[]), true),
            (message(RTM_NEWADDR, 7, &[]), true),
            (message(RTM_DELLINK, 8, &[]), false),
            (message(RTM_NEWADDR, 8, &[(IFLA_MASTER, &index_bytes)]), false),
            (
                message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"veth1\0"), (IFLA_MASTER, &index_bytes)]),
                true,
            ),
            (message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"bond0\0")]), true),
            (message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"veth1\0")]), false),
        ] {
            assert_eq!(is_about_watched_link(&event, &watched_links), expected, "{event:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_not_relevant(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(!is_about_watched_link(&bytes, &WatchedLinks::default()));
        }
    }
}
