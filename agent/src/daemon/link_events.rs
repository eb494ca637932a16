//! The kernel's events of links and addresses, of those that tenant networks are made of.
//!
//! A host with pods has links come and go all day, so an event is looked at in its bytes first; and thousands
//! may come at once, so what is lost (ENOBUFS) is made up for by a look at everything.

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

use super::watch::Event;
use crate::netlink::{RTM_NEWLINK, kind, link_number, parts};
use crate::observe::links::Links;

/// Which links matter.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// By the kernel's number: ours, the uplinks, and ports of our bridges.
    indexes: BTreeSet<u32>,
    /// By name: what is asked for and may come.
    names: BTreeSet<String>,
    /// Whether any link that comes may be meant: an uplink that is not there and is known by its address.
    any: bool,
    /// Notified once a host network is asked for.
    pub(super) asked: Arc<Notify>,
}

/// Multicast groups (`enum rtnetlink_groups`). A bridge port's VLANs come with its link.
const GROUPS: [u32; 3] = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
/// Message types after [`RTM_NEWLINK`].
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
/// Attributes of a link.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;

/// An uplink that goes down with a thousand VLAN links on it sends some 20 MB.
const BUFFER: usize = 16 << 20;
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Interest {
    /// In one link.
    pub(super) fn in_one(index: u32, name: &str) -> Self {
        Self { indexes: [index].into(), names: [name.to_owned()].into(), ..Self::default() }
    }

    /// Follows the links of a host that is asked for this.
    pub(super) fn update(&mut self, links: &Links, spec: &InfraNodeSpec) {
        let asked = Arc::clone(&self.asked);
        if !spec.networks.is_empty() {
            asked.notify_one();
        }
        *self = Self { asked, ..Self::of(links, spec) };
    }

    /// What matters on a host with these links that is asked for this.
    fn of(links: &Links, spec: &InfraNodeSpec) -> Self {
        let uplinks = || spec.networks.iter().filter_map(|network| network.uplink.as_ref());
        let by_name = |selector: &UplinkSelector| selector.name.as_ref().map(ToString::to_string);
        let mut names: BTreeSet<String> = uplinks().filter_map(by_name).collect();
        names.extend(
            spec.networks.iter().filter_map(|n| n.bridge.as_ref().map(ToString::to_string)),
        );
        let asked = !spec.networks.is_empty();
        let ours: BTreeSet<&str> =
            links.all.iter().filter(|link| link.is_ours()).map(|link| link.name.as_str()).collect();
        names.extend(ours.iter().map(|name| (*name).to_owned()));
        let matters = |link: &&crate::observe::links::Link| {
            let on_ours = link.master.as_ref().is_some_and(|master| ours.contains(master.as_str()));
            link.is_ours()
                || on_ours
                || names.contains(link.name.as_str())
                || (asked && link.is_uplink())
        };
        let indexes = links.all.iter().filter(matters).filter_map(|link| link.index).collect();
        let there = |selector: &UplinkSelector| {
            links.uplinks().any(|link| {
                let mac = selector.mac.map(|mac| mac.to_string());
                (selector.mac.is_some() && (link.permanent_mac == selector.mac || link.mac == mac))
                    || (selector.pci_address.is_some() && link.pci_address == selector.pci_address)
            })
        };
        let any = uplinks().any(|selector| selector.name.is_none() && !there(selector));
        Self { indexes, names, any, ..Self::default() }
    }
}

/// Opens a socket for events. Without root its buffer is as small as the kernel's limit, and overruns come
/// sooner.
pub(super) fn socket() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    let inner = socket.socket_mut();
    inner.bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        inner.add_membership(group)?;
    }
    if setsockopt(&*inner, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(&*inner, sockopt::RcvBuf, &BUFFER)?;
    }
    Ok(socket)
}

/// Tells of events that matter, until nobody listens.
pub(super) async fn watch(
    socket: TokioSocket,
    interest: Arc<Mutex<Interest>>,
    events: Sender<Event>,
) {
    loop {
        let matters = match socket.recv_from_full().await {
            Ok((datagram, _)) => {
                let interest = interest.lock().unwrap_or_else(PoisonError::into_inner);
                parts(&datagram).any(|message| concerns(message, &interest))
            }
            // More came than the socket holds; what, only a look at everything can tell.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                true
            }
        };
        if matters && events.try_send(Event::Links).is_err() && events.is_closed() {
            return;
        }
    }
}

/// Whether a message of the kernel is about a link that matters.
pub(super) fn concerns(message: &[u8], interest: &Interest) -> bool {
    let Some(kind) = kind(message) else { return false };
    let known = link_number(message).is_some_and(|index| interest.indexes.contains(&index));
    if known || !(RTM_NEWLINK..=RTM_DELLINK).contains(&kind) {
        return known && kind <= RTM_NEWADDR + 1;
    }
    if interest.any {
        return true;
    }
    let attributes = NlasIterator::new(message.get(32..).unwrap_or_default()).flatten();
    for attribute in attributes {
        let value = attribute.value();
        let index = || value.get(..4)?.try_into().ok().map(u32::from_ne_bytes);
        match attribute.kind() {
            IFLA_MASTER | IFLA_LINK if index().is_some_and(|i| interest.indexes.contains(&i)) => {
                return true;
            }
            IFLA_IFNAME => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = std::str::from_utf8(name).unwrap_or_default();
                if interest.names.contains(name) {
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
    fn only_links_that_matter_count() {
        let interest = Interest::in_one(7, "bond0");
        let seven = 7_u32.to_ne_bytes();
        for (event, expected) in [
            (message(RTM_NEWLINK, 7, &[]), true),
            (message(RTM_NEWADDR, 7, &[]), true),
            (message(RTM_DELLINK, 8, &[]), false),
            (message(RTM_NEWADDR, 8, &[(IFLA_MASTER, &seven)]), false),
            (message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"veth1\0"), (IFLA_MASTER, &seven)]), true),
            (message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"bond0\0")]), true),
            (message(RTM_NEWLINK, 8, &[(IFLA_IFNAME, b"veth1\0")]), false),
        ] {
            assert_eq!(concerns(&event, &interest), expected, "{event:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_no_event_of_ours(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(!concerns(&bytes, &Interest::default()));
        }
    }
}
