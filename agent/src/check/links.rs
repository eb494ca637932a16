//! Checks of physical links and uplinks.

use berth_api::infra_node::LinkState;
use berth_api::mtu::ETHERNET_MTU;

use super::definition::Check;
use super::input::Input;
use berth_host_facts::links::{Link, LinkKind};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "link.uplink",
        title: "an uplink is up",
        explanation: "Tenant networks leave the host through an uplink: a physical link or a bond. At least one \
            must exist and be up.",
        run: check_uplink,
    },
    Check {
        id: "link.mtu",
        title: "MTU of uplinks",
        explanation: "An MTU below 1500 bytes breaks guests that assume the MTU of Ethernet, and the ports of a \
            bond must have the same MTU. The uplink of a VXLAN network needs an MTU that is at least 50 bytes \
            larger than that of the network.",
        run: check_mtu,
    },
    Check {
        id: "link.driver",
        title: "drivers of network cards",
        explanation: "Every network function should be bound to a driver. Emulated cards (e1000, 8139cp) have \
            one queue and no offloads, and indicate that the host is a virtual machine.",
        run: check_driver,
    },
];

/// Drivers of emulated cards that have neither multiple queues nor SR-IOV.
const EMULATED_DRIVERS: [&str; 5] = ["e1000", "8139cp", "8139too", "pcnet32", "ne2k_pci"];

fn uplinks<'a>(input: &'a Input) -> Vec<&'a Link> {
    input.facts.links.uplinks().collect()
}

fn check_uplink(input: &Input) -> Outcome {
    let uplinks = uplinks(input);
    if uplinks.is_empty() {
        return if input.facts.links.all.is_empty() {
            Outcome::skip("no network link was found")
        } else {
            Outcome::warn("no physical link and no bond in this network namespace")
                .with_evidence("/sys/class/net", "virtual links only")
                .remedy("run berth-agent in the host's network namespace (hostNetwork: true)")
        };
    }
    let up: Vec<&str> = uplinks
        .iter()
        .filter(|link| link.state == Some(LinkState::Up))
        .map(|link| link.name.as_str())
        .collect();
    if up.is_empty() {
        // Some virtual NICs work, although their state is unknown.
        let is_unknown = uplinks.iter().any(|link| link.state == Some(LinkState::Unknown));
        let name = uplinks.first().map_or("eth0", |link| link.name.as_str());
        let outcome = if is_unknown {
            return Outcome::skip("the drivers do not report the state of their links");
        } else {
            Outcome::fail("no uplink is up")
        };
        return outcome
            .with_evidence(format!("/sys/class/net/{name}/operstate"), "not up")
            .remedy(format!("ip link set {name} up; check cable and switch port"));
    }
    Outcome::pass(up.join(", ")).with_evidence(format!("/sys/class/net/{}/operstate", up[0]), "up")
}

fn check_mtu(input: &Input) -> Outcome {
    let known: Vec<(&Link, u32)> = uplinks(input)
        .into_iter()
        .filter(|link| link.state != Some(LinkState::Down))
        .filter_map(|link| Some((link, link.mtu?)))
        .collect();
    if known.is_empty() {
        return Outcome::skip("no uplink has a known MTU");
    }
    let path = |link: &Link| format!("/sys/class/net/{}/mtu", link.name);
    if let Some((link, mtu)) = known.iter().find(|(_, mtu)| *mtu < ETHERNET_MTU) {
        return Outcome::warn(format!(
            "the MTU of {} is {mtu}, less than {ETHERNET_MTU}",
            link.name
        ))
        .with_evidence(path(link), mtu)
        .remedy(format!(
            "ip link set {} mtu {ETHERNET_MTU}, if the network supports it",
            link.name
        ));
    }
    for (link, mtu) in &known {
        let peer = known.iter().find(|(other, other_mtu)| {
            link.master.is_some() && other.master == link.master && other_mtu != mtu
        });
        if let Some((other, other_mtu)) = peer
            && link.kind == LinkKind::Physical
        {
            return Outcome::warn(format!(
                "{} and {} are ports of one link but have different MTUs",
                link.name, other.name
            ))
            .with_evidence(path(link), mtu)
            .with_evidence(path(other), other_mtu)
            .remedy("set the MTU of the bond, which also sets the MTU of its ports");
        }
    }
    let mut outcome = Outcome::pass("the MTU of every uplink is 1500 or more");
    for (link, mtu) in known.iter().take(8) {
        outcome = outcome.with_evidence(path(link), mtu);
    }
    outcome
}

fn check_driver(input: &Input) -> Outcome {
    let functions: Vec<_> =
        input.facts.pci.iter().filter(|device| device.is_network() && !device.is_virtual).collect();
    let uplinks = uplinks(input);
    if functions.is_empty() && uplinks.is_empty() {
        return Outcome::skip("no network card was found");
    }
    let path = |address| format!("/sys/bus/pci/devices/{address}/driver");
    if let Some(emulated) = uplinks.iter().find(|link| {
        link.driver.as_deref().is_some_and(|driver| EMULATED_DRIVERS.contains(&driver))
    }) {
        return Outcome::warn(format!("{} is an emulated card", emulated.name))
            .with_evidence(
                format!("/sys/class/net/{}/device/driver", emulated.name),
                emulated.driver.clone().unwrap_or_default(),
            )
            .remedy(
                "give this virtual machine a virtio or passed-through card, or use bare metal",
            );
    }
    // A captured tree may contain no driver links, and then no driver is known.
    let unbound = functions.iter().find(|device| device.driver.is_none());
    if let Some(device) = unbound
        && functions.iter().any(|device| device.driver.is_some())
    {
        let id = format!("{:04x}:{:04x}", device.vendor.unwrap_or(0), device.device.unwrap_or(0));
        return Outcome::warn(format!("network card {} has no driver", device.address))
            .with_evidence(path(device.address), "none")
            .with_evidence("PCI id", id)
            .remedy(format!(
                "lspci -nnk -s {}   # shows the module; load it or install its firmware",
                device.address
            ));
    }
    let mut drivers: Vec<&str> =
        functions.iter().filter_map(|device| device.driver.as_deref()).collect();
    drivers.extend(uplinks.iter().filter_map(|link| link.driver.as_deref()));
    drivers.sort_unstable();
    drivers.dedup();
    if drivers.is_empty() {
        return Outcome::skip("the captured tree does not show which drivers are bound");
    }
    Outcome::pass(drivers.join(", "))
        .with_evidence("/sys/class/net/*/device/driver", drivers.join(", "))
}
