//! Tests of frames that only switches may send: the host drops such frames of a guest in every scenario, and the
//! agent restores the nftables rules after changes by another program. `tests/host/frames.pl` sends real frames.

use std::collections::BTreeSet;

use berth_tests::host::Host;

use crate::daemon::wait_until;
use crate::{MANIFEST_PATH, UPLINK_NAME, join_lines, manifest, write_manifest};

/// Returns the frames that the second host receives on the cable: sender, kind of frame, and tags.
fn received_frames(hosts: &mut [Host; 2], sends: &str) -> BTreeSet<String> {
    hosts[1]
        .run_checked(&format!(
            "rm -f /run/frames.heard; setsid frames listen {UPLINK_NAME} /run/frames.heard >/run/frames.log 2>&1 & \
             echo $! >/run/frames.pid; for i in $(seq 300); do grep -q listening /run/frames.heard && exit 0; sleep 0.1; \
             done; cat /run/frames.log; exit 1"
        ))
        .unwrap();
    hosts[0].run_checked(sends).unwrap();
    // The host sends the last frame, so all other frames have arrived before it.
    let output = hosts[1]
        .run_checked(
            "for i in $(seq 300); do grep -q '^end:unicast' /run/frames.heard && break; sleep 0.1; done; \
             kill $(cat /run/frames.pid); cat /run/frames.heard",
        )
        .unwrap();
    assert!(output.contains("end:unicast:"), "the host's own frames did not arrive:\n{output}");
    output.lines().map(str::to_owned).collect()
}

/// Sends a guest's switch frames untagged, tagged and tagged twice, with and without `bridge-nf-call-iptables`.
pub(crate) fn switch_frames_are_dropped(hosts: &mut [Host; 2], vlan: &str) {
    let names = hosts[0].run_checked("frames names").unwrap();
    let lists: Vec<Vec<&str>> = names.lines().map(|line| line.split(' ').collect()).collect();
    let [reserved, ordinary] = lists.as_slice() else { unreachable!("{names}") };
    for calls_iptables in [0, 1] {
        let received = received_frames(
            hosts,
            &format!(
                "sysctl -q net.bridge.bridge-nf-call-iptables={calls_iptables}; \
                 ip netns exec a1 frames send net1 guest {vlan} {vlan},200 {vlan},1 200 && \
                 frames send {UPLINK_NAME} host && frames send {UPLINK_NAME} end"
            ),
        );
        for name in reserved {
            let guests = received.iter().find(|frame| frame.starts_with(&format!("guest:{name}:")));
            assert_eq!(
                guests, None,
                "a frame left the host with bridge-nf-call-iptables={calls_iptables}"
            );
        }
        for name in ordinary {
            assert!(
                received.contains(&format!("guest:{name}:untagged")),
                "{name} is missing in {received:?}"
            );
        }
        for name in reserved.iter().chain(ordinary) {
            assert!(
                received.contains(&format!("host:{name}:untagged")),
                "{name} is missing in {received:?}"
            );
        }
    }
    hosts[0].run_checked("sysctl -q net.bridge.bridge-nf-call-iptables=0").unwrap();
}

/// Shell commands that change Berth's table as another program might, each with a shell condition that holds after the
/// agent has restored the table.
pub(crate) const TABLE_CHANGES: [(&str, &str); 5] = [
    // `systemctl reload nftables` also deletes the rules of the CNI plugin, and restores them from a file.
    (
        "nft list table bridge nat >/run/nat.nft; nft flush ruleset; nft -f /run/nat.nft",
        "nft list set bridge berth uplinks | grep -q trunk0",
    ),
    ("nft delete table bridge berth", "nft list chain bridge berth leaving | grep -q drop"),
    (
        "nft insert rule bridge berth forward accept",
        "! nft list chain bridge berth forward | grep -q '^[[:space:]]*accept'",
    ),
    (
        "nft 'add table bridge berth { flags dormant; }'",
        "! nft list table bridge berth | grep -q dormant",
    ),
    (
        "nft 'delete element bridge berth uplinks { trunk0 }'",
        "nft list set bridge berth uplinks | grep -q trunk0",
    ),
];

/// Asserts that Berth does not change the tables of other programs.
pub(crate) fn other_tables_are_kept(host: &mut Host) {
    const OTHERS: &str = "nft -s list table bridge other; nft -s list table inet berth";
    host.run_checked(
        "nft 'table bridge other { set uplinks { type ifname; elements = { trunk0 }; }; \
         chain forward { type filter hook forward priority -200; }; }; \
         table inet berth { chain forward { type filter hook forward priority 0; }; }'",
    )
    .unwrap();
    let before = host.run_checked(OTHERS).unwrap();
    host.run_checked("nft delete table bridge berth").unwrap();
    wait_until(host, "nft list table bridge berth");
    assert_eq!(host.run_checked(OTHERS).unwrap(), before);
    host.run_checked("nft delete table bridge other; nft delete table inet berth").unwrap();
}

/// Tests a kernel without nf_tables: no network is created, and the error gives the reason. The agent would not remove
/// existing networks.
pub(crate) fn networks_are_not_created_without_nftables(host: &mut Host) {
    host.run_checked(
        "mkdir -p /run/modprobe.d; echo 'install nf_tables /bin/false' >/run/modprobe.d/berth-test.conf; \
         nft flush ruleset 2>/dev/null; modprobe -r nf_tables 2>/dev/null; ! lsmod | grep -q '^nf_tables'",
    )
    .unwrap();
    let network = "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}";
    write_manifest(
        host,
        &manifest(&[network], &["{name: cluster-a, network: tenants, vlan: 100}"]),
    );
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 3, "{}", result.output);
    let output = join_lines(&result.output);
    assert!(output.contains("this kernel has no nf_tables for bridges"), "{}", result.output);
    host.run_checked(&format!(
        "! ip link show br-tenant && ! ip link show {UPLINK_NAME} | grep -q master"
    ))
    .unwrap();
    host.run_checked("rm /run/modprobe.d/berth-test.conf").unwrap();
    host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    // `nft` lists the rules with their intended meaning.
    let listed = host.run_checked("nft -s list table bridge berth").unwrap();
    for line in [
        "type ether_addr",
        "01:80:c2:00:00:00",
        "elements = { \"trunk0\" }",
        "type filter hook forward priority filter; policy accept;",
        "ether daddr & ff:ff:ff:ff:ff:f0 == @reserved jump leaving",
        "oifgroup 48679 counter drop",
        "oifname @uplinks counter drop",
    ] {
        assert!(listed.contains(line), "`{line}` is not in:\n{listed}");
    }
    host.run_checked("berth-agent revert && ! nft list table bridge berth").unwrap();
}
