//! List of all parsers of host files and kernel messages, for the fuzz targets in `fuzz/` and for the test that replays
//! their corpus.
//!
//! A parser must return for any input: no panic, no endless loop, and memory of at most a small multiple of the input's
//! size.

use std::hint::black_box;

use crate::daemon;
use crate::manifest::Manifest;
use berth_api::{Bytes, CpuSet, LinkName, MacAddress, PageSize, PciAddress, VlanId, VlanSet};
use berth_host_facts::cpuinfo::CpuInfo;
use berth_host_facts::kubelet::{
    CpuManagerState, KubeletConfig, MemoryManagerState, StartRecord, config, flags, memory_state,
};
use berth_host_facts::ledger::Ledger;
use berth_host_facts::links::{
    is_managed_by_network_manager, is_managed_by_networkd, parse_link_message, proc_net,
};
use berth_host_facts::netlink;
use berth_host_facts::nftables;
use berth_host_facts::notes::Notes;
use berth_host_facts::setting::Setting;
use berth_host_facts::{cgroup, hugepages, identity, machine, memory, mounts, nvme, pci};
use berth_trunk_probe::lldp;
use rtnetlink::packet_core::NetlinkMessage;
use rtnetlink::packet_route::RouteNetlinkMessage;

/// Name of a parser, and a function that calls the parser.
pub type Parser = (&'static str, fn(&[u8]));

pub const PARSERS: &[Parser] = &[
    ("cpuinfo", |bytes| {
        black_box(CpuInfo::parse(&mut &*bytes));
    }),
    ("cpu_list", |bytes| check_round_trip::<CpuSet>(&to_text(bytes))),
    ("cpu_mask", |bytes| {
        black_box(CpuSet::from_mask(&to_text(bytes)).ok());
    }),
    ("values", |bytes| {
        let text = to_text(bytes);
        check_round_trip::<Bytes>(&text);
        check_round_trip::<PageSize>(&text);
        check_round_trip::<PciAddress>(&text);
        check_round_trip::<VlanId>(&text);
        check_round_trip::<LinkName>(&text);
        check_round_trip::<MacAddress>(&text);
        check_round_trip::<VlanSet>(&text);
    }),
    ("meminfo", |bytes| {
        let text = to_text(bytes);
        black_box(memory::MemInfo::parse(&text));
        black_box(memory::bracketed_word(&text).map(str::len));
    }),
    ("mounts", |bytes| {
        let text = to_text(bytes);
        black_box((mounts::parse_mounts(&text), mounts::parse_mountinfo(&text)));
    }),
    ("kubelet_config", |bytes| {
        if let Ok(tree) = config::parse_config(&to_text(bytes)) {
            let config = KubeletConfig::from_tree(&tree, "/config", &mut Notes::default());
            black_box(config.node_reserved_memory(Some(Bytes(u64::MAX))));
            let mut merged = tree.clone();
            config::merge_drop_in(&mut merged, tree);
        }
    }),
    ("kubelet_flags", |bytes| {
        let mut config = KubeletConfig::default();
        config.apply_flags(&flags::parse_cmdline(bytes), &mut Notes::default());
        black_box(config.node_reserved_memory(Some(Bytes(u64::MAX))));
    }),
    ("cpu_manager_state", |bytes| {
        if let Ok(state) = serde_json::from_slice::<CpuManagerState>(bytes) {
            black_box((state.all_cpus(), state.exclusive_cpus_by_pod()));
        }
    }),
    ("memory_manager_state", |bytes| {
        if let Ok(state) = serde_json::from_slice::<MemoryManagerState>(bytes) {
            black_box(
                state
                    .blocks()
                    .filter_map(|(_, b)| memory_state::parse_page_size(&b.resource))
                    .count(),
            );
        }
    }),
    ("routes", |bytes| {
        let text = to_text(bytes);
        black_box((
            proc_net::parse_routes_v4(&text),
            proc_net::parse_routes_v6(&text),
            proc_net::parse_vlans(&text),
        ));
        black_box(proc_net::parse_udp_ports(&text));
    }),
    ("names", |bytes| {
        let text = to_text(bytes);
        black_box((
            hugepages::parse_folder_name(&text),
            pci::parse_hexadecimal(&text),
            pci::last_address_in_path(&text),
        ));
        black_box((nvme::is_namespace(&text), identity::is_machine_id(&text)));
    }),
    ("tables", |bytes| {
        let text = to_text(bytes);
        black_box(cgroup::legacy_controllers(&text));
        black_box(identity::parse_arp_table(&text).count());
        black_box(machine::os_release_field(&text, "PRETTY_NAME"));
        black_box((is_managed_by_networkd(&text), is_managed_by_network_manager(&text)));
    }),
    ("manifest", |bytes| {
        if let Ok(manifest) = Manifest::parse(&to_text(bytes)) {
            black_box(manifest.faults.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }),
    ("ledger", |bytes| {
        let text = to_text(bytes);
        if let Ok(ledger) = Ledger::parse(&text, Some("boot")) {
            let reparsed = Ledger::parse(&ledger.render("boot"), Some("boot")).ok();
            assert_eq!(reparsed, Some(ledger), "{text:?}");
        }
        check_round_trip::<Setting>(&text);
        black_box(serde_json::from_str::<StartRecord>(&text).ok());
    }),
    ("lldp", |bytes| {
        black_box(lldp::parse(bytes).ok());
    }),
    ("uevent", |bytes| {
        black_box(daemon::is_relevant_uevent(bytes));
    }),
    ("netlink", |bytes| {
        black_box(daemon::is_about_link(bytes, 2, "eth0"));
        black_box(netlink::extended_ack_text(bytes));
        black_box(nftables::is_about_table(bytes, nftables::TABLE_NAME));
        for part in netlink::split_messages(bytes) {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(part);
            black_box(message.ok().and_then(|message| parse_link_message(&message)));
        }
    }),
];

/// Converts bytes to text as `Root` does: bytes that are not UTF-8 are replaced by a marker.
fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the `Display` of a parsed value parses to the same value. Input that cannot be parsed is skipped.
fn check_round_trip<T: std::str::FromStr + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value), "{text:?}");
    }
}
