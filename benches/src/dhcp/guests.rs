//! The emulated guests of one host, and the files that configure the two DHCP servers and the guests' links.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use berth_api::MacAddress;
use serde::{Deserialize, Serialize};

/// A DHCP server to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Server {
    Agent,
    Dnsmasq,
}

impl Server {
    /// Returns the second byte of the guests' MAC and IP addresses, which differs between the servers.
    const fn number(self) -> u8 {
        match self {
            Self::Agent => 1,
            Self::Dnsmasq => 2,
        }
    }

    /// Returns the name of the server's program.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Agent => "berth-agent",
            Self::Dnsmasq => "dnsmasq",
        }
    }

    /// Returns the name of the bridge to which the server's guests are attached. The agent derives the name of its
    /// bridge from the VNI.
    const fn bridge(self) -> &'static str {
        match self {
            Self::Agent => "tn5001",
            Self::Dnsmasq => "peer0",
        }
    }

    /// Returns all guests of the server.
    pub(super) fn guests(self, count: u16) -> impl Iterator<Item = Guest> {
        (1..=count).map(move |number| Guest { server: self, number })
    }
}

/// A guest: one end of a veth pair, whose other end is a port of the server's bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guest {
    server: Server,
    /// Number from 1 to 1,000.
    number: u16,
}

impl Guest {
    pub(super) const fn mac(self) -> MacAddress {
        let [high, low] = self.number.to_be_bytes();
        MacAddress([2, self.server.number(), 0, 0, high, low])
    }

    /// Returns the address that the guest must get. The first 256 addresses of the network are reserved for other
    /// machines.
    pub(super) const fn address(self) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(10, self.server.number(), high + 1, low)
    }

    /// Returns the name of the guest's link.
    pub(super) fn link(self) -> String {
        format!("guest-{}-{}", self.server.number(), self.number)
    }

    fn port(self) -> String {
        format!("port-{}-{}", self.server.number(), self.number)
    }

    fn hostname(self) -> String {
        format!("worker-{}", self.number)
    }
}

/// Manifest with a VXLAN network, because not every kernel supports VLANs.
const INFRA_NODE: &str = "\
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: a}
spec:
  networks:
  - {name: tenants, scenario: Vxlan, vxlan: {localAddress: 172.16.0.1, peers: [172.16.0.2]}}
  tenantNetworks:
  - {name: cluster-a, network: tenants, vni: 5001}
";

const HOST_LEASES: &str = "\
---
apiVersion: berth.dev/v1alpha1
kind: HostLeases
metadata: {name: a}
spec:
  networks:
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 16, gateway: 10.1.0.1, nameservers: [10.1.0.53]}
    leases:
";

/// Configuration of dnsmasq with the same leases as the agent's. dnsmasq does not ping an address before its first
/// use and does not log each answer, so it answers faster than with its default settings.
const DNSMASQ_CONF: &str = "\
port=0
no-resolv
no-hosts
no-ping
quiet-dhcp
log-facility=-
user=root
interface=peer0
bind-interfaces
dhcp-authoritative
dhcp-lease-max=4096
dhcp-leasefile=/run/dnsmasq.leases
dhcp-range=10.2.0.0,static,255.255.0.0,168h
dhcp-option=option:router,10.2.0.1
dhcp-option=option:dns-server,10.2.0.53
";

/// Writes the files for this number of guests of each server:
///
/// * `network.yaml`: the agent's manifest without leases
/// * `leases.yaml`: the agent's manifest with a lease for each guest
/// * `dnsmasq.conf`
/// * `agent-ports`, `agent-guests`, `dnsmasq-ports`, `dnsmasq-guests`: commands for `ip -batch` that create the
///   ports of the bridge, and set the links of the guests up
pub(super) fn write_files(folder: &Path, count: u16) -> Result<()> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("network.yaml", INFRA_NODE.to_owned())?;
    write("leases.yaml", leases_manifest(count)?)?;
    write("dnsmasq.conf", dnsmasq_conf(count)?)?;
    for (server, name) in [(Server::Agent, "agent"), (Server::Dnsmasq, "dnsmasq")] {
        let (mut ports, mut links) = (String::new(), String::new());
        for guest in server.guests(count) {
            let (port, link, mac) = (guest.port(), guest.link(), guest.mac());
            writeln!(
                ports,
                "link add {port} type veth peer name {link} address {mac} netns guests"
            )?;
            writeln!(ports, "link set {port} up master {}", server.bridge())?;
            writeln!(links, "link set {link} up")?;
        }
        write(&format!("{name}-ports"), ports)?;
        write(&format!("{name}-guests"), links)?;
    }
    Ok(())
}

fn leases_manifest(count: u16) -> Result<String> {
    let mut text = INFRA_NODE.to_owned() + HOST_LEASES;
    for guest in Server::Agent.guests(count) {
        let (mac, name, address) = (guest.mac(), guest.hostname(), guest.address());
        writeln!(
            text,
            "    - {{mac: \"{mac}\", machine: cluster-a/{name}, hostname: {name}, ipv4: {address}}}"
        )?;
    }
    Ok(text)
}

fn dnsmasq_conf(count: u16) -> Result<String> {
    let mut text = DNSMASQ_CONF.to_owned();
    for guest in Server::Dnsmasq.guests(count) {
        writeln!(text, "dhcp-host={},{},{}", guest.mac(), guest.address(), guest.hostname())?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use berth_agent::manifest::Manifest;

    use super::*;

    #[test]
    fn guests_have_different_addresses_and_short_names() {
        let all = [Server::Agent, Server::Dnsmasq].into_iter().flat_map(|one| one.guests(1000));
        let all: Vec<Guest> = all.collect();
        let count = |keys: BTreeSet<String>| keys.len();
        assert_eq!(count(all.iter().map(|guest| guest.mac().to_string()).collect()), 2000);
        assert_eq!(count(all.iter().map(|guest| guest.address().to_string()).collect()), 2000);
        assert!(all.iter().all(|guest| guest.link().len() <= 15 && guest.port().len() <= 15));
        assert_eq!(all[999].address(), Ipv4Addr::new(10, 1, 4, 232));
    }

    #[test]
    fn both_servers_get_all_leases() {
        assert_eq!(Manifest::parse(INFRA_NODE).unwrap().faults, []);
        let manifest = Manifest::parse(&leases_manifest(1000).unwrap()).unwrap();
        assert_eq!(manifest.faults, []);
        let leases = manifest.leases.unwrap();
        assert_eq!(leases.networks[0].leases.len(), 1000);
        assert_eq!(leases.networks[0].leases[999].ipv4, Some(Ipv4Addr::new(10, 1, 4, 232)));
        let conf = dnsmasq_conf(2).unwrap();
        assert!(conf.ends_with("dhcp-host=02:02:00:00:00:02,10.2.1.2,worker-2\n"), "{conf}");
    }
}
