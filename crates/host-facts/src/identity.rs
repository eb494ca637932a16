//! Ids of the host, and evidence that another host has the same ids because both hosts were cloned from one image.

use std::collections::BTreeSet;

use super::links::Links;
use crate::root::Root;

/// Ids of the host, and evidence that other hosts have the same ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Machine id (`/etc/machine-id`); `None` if the file could not be read.
    pub machine_id: Option<String>,
    /// Machine id of D-Bus, if D-Bus has it in a separate file.
    pub dbus_machine_id: Option<String>,
    /// Machine ids for which the root file system has a journal folder (`/var/log/journal/ID`).
    pub journal_machine_ids: BTreeSet<String>,
    /// UUID of the machine from its firmware (`product_uuid`); only root can read it.
    pub product_uuid: Option<String>,
    /// Entries of the ARP table (`/proc/net/arp`) whose hardware address is the address of a link of this host.
    pub neighbours_with_host_mac: Vec<Neighbour>,
}

/// An entry of the ARP table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// IP address of the neighbour.
    pub address: String,
    /// Hardware address of the neighbour.
    pub mac: String,
    /// Name of the link on which the host receives frames of the neighbour.
    pub link: String,
}

/// Reads the ids, and searches the ARP table for neighbours with a hardware address of this host.
///
/// Two kinds of entries are ignored, because they occur without a second host: entries whose hardware address belongs
/// to several links of this host (VLANs, ipvlan, bonds), and entries for the host's own IP addresses.
pub fn observe(root: &Root, links: &Links) -> Identity {
    let mut macs: Vec<&str> = links.all.iter().filter_map(|link| link.mac.as_deref()).collect();
    macs.sort_unstable();
    let unique_macs: BTreeSet<&str> = macs
        .chunk_by(|a, b| a == b)
        .filter(|same| same.len() == 1)
        .flatten()
        .copied()
        .filter(|mac| *mac != "00:00:00:00:00:00")
        .collect();
    let is_own_address = |address: &str| {
        let all = links.all.iter().flat_map(|link| &link.addresses);
        all.filter_map(|own| own.split('/').next()).any(|own| own == address)
    };
    let journals = root.list("var/log/journal").unwrap_or_default();
    let table = root.read_large("proc/net/arp").unwrap_or_default();
    Identity {
        machine_id: root.read("etc/machine-id").ok(),
        dbus_machine_id: root.read("var/lib/dbus/machine-id").ok(),
        journal_machine_ids: journals.into_iter().filter(|name| is_machine_id(name)).collect(),
        product_uuid: root.read("sys/class/dmi/id/product_uuid").ok(),
        neighbours_with_host_mac: parse_arp_table(&table)
            .filter(|n| unique_macs.contains(n.mac.as_str()) && !is_own_address(&n.address))
            .collect(),
    }
}

/// Returns true if the text consists of 32 lower-case hexadecimal digits, the format of machine-id(5).
#[must_use]
pub fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Parses the ARP table and returns its complete entries. The columns are `IP address  HW type  Flags  HW address  Mask
/// Device`.
pub fn parse_arp_table(table: &str) -> impl Iterator<Item = Neighbour> {
    table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, mac, _, link] = words.as_slice() else { return None };
        (*mac != "00:00:00:00:00:00").then(|| Neighbour {
            address: (*address).to_owned(),
            mac: mac.to_lowercase(),
            link: (*link).to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_arp_entries_are_ignored() {
        let table = "IP address HW type Flags HW address Mask Device\n\
            10.0.0.1 0x1 0x2 AC:1F:6B:8A:5F:C8 * eth0\n10.0.0.2 0x1 0x0 00:00:00:00:00:00 * eth0\nx\n";
        let found: Vec<Neighbour> = parse_arp_table(table).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mac, "ac:1f:6b:8a:5f:c8");
    }

    #[test]
    fn machine_id_has_32_lower_case_digits() {
        assert!(is_machine_id("0123456789abcdef0123456789abcdef"));
        assert!(!is_machine_id("uninitialized"));
        assert!(!is_machine_id("0123456789ABCDEF0123456789ABCDEF"));
    }
}
