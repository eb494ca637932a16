//! Tests that the nftables rules drop the control frames of guests, with real frames and the kernel of this
//! machine, in a separate network namespace. Tests with VLANs run on emulated hosts
//! (`tests/tests/networks/frames.rs`), because not every kernel supports VLANs.

#![expect(clippy::disallowed_methods, reason = "the test runs programs")]

#[path = "../../tests/src/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::process::Command;

/// Script that runs in a network and a mount namespace: `$agent` is the program, `$frames` the helper, `$1` a folder.
const SCRIPT: &str = r#"
trap 'kill $(jobs -p)' EXIT
mount -t sysfs none /sys
mkdir -p /var/lib/berth
mount -t tmpfs none /var/lib/berth
cd "$1"
frames() { perl "$frames" "$@"; }
# A pair of links: one end is a port or has the host's address, and the other end belongs to the cable or the guest.
pair() { ip link add "$1" type veth peer name "$2"; ip link set "$1" up; ip link set "$2" up; }
listen() {
    perl "$frames" listen "$1" "$1.heard" >/dev/null 2>&1 &
    until [ -s "$1.heard" ]; do sleep 0.05; done
}
settle() { sleep 0.3; }

ip link set lo up
pair up0 peer0
ip address add 172.16.0.1/24 dev up0
ip neigh add 172.16.0.2 lladdr 02:00:00:00:00:02 dev up0
"$agent" apply --node-name a -f tunnel.yaml
"$agent" plan --node-name a -f tunnel.yaml | grep -q 'nothing to do'
pair port0 guest0
ip link set port0 master tn5001
# A bridge of another program, which has an uplink too.
ip link add br-other type bridge
ip link set br-other up
pair up1 peer1
pair port1 guest1
ip link set up1 master br-other
ip link set port1 master br-other
settle
listen peer0
listen peer1
frames send guest0 guest 100 100,200
frames send up0 host
frames send guest1 other
settle

ip link delete port0
"$agent" revert
"$agent" plan --node-name a -f nothing.yaml | grep -q 'nothing to do'
# If the rules still existed, they would apply to a link of this group.
pair up2 peer2
pair port2 guest2
ip link set up2 master br-other group 48679
ip link set port2 master br-other
settle
listen peer2
frames send guest2 after
settle

# An uplink that is a port is matched by its name. On a kernel without VLAN filtering the bridge is not created, but the
# rules that were created before it stay.
pair up3 peer3
pair port3 guest3
"$agent" apply --node-name a -f shared.yaml || true
ip link add br-name type bridge
ip link set br-name up
ip link set up3 master br-name
ip link set port3 master br-name
settle
listen peer3
frames send guest3 guest 100
frames send up3 host
settle
"#;

const TUNNEL_MANIFEST: &str = "\
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: a}
spec:
  networks:
  - {name: tenants, scenario: Vxlan, vxlan: {localAddress: 172.16.0.1, peers: [172.16.0.2]}}
  tenantNetworks:
  - {name: cluster-a, network: tenants, vni: 5001}
";

const SHARED_BRIDGE_MANIFEST: &str = "\
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: a}
spec:
  networks:
  - {name: tenants, scenario: VlanAwareBridge, uplink: {name: up3}, bridge: br-tenant}
  tenantNetworks:
  - {name: cluster-a, network: tenants, vlan: 100}
";

const EMPTY_MANIFEST: &str =
    "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: a}\nspec: {}\n";

#[test]
fn switch_frames_of_guests_are_dropped() {
    let is_installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !nix::unistd::geteuid().is_root() || !["perl", "ip", "unshare"].into_iter().all(is_installed)
    {
        return skip::skip(
            "switch_frames_of_guests_are_dropped",
            "needs root, perl, iproute2 and unshare",
        );
    }
    let frames = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/host/frames.pl");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tunnel.yaml"), TUNNEL_MANIFEST).unwrap();
    std::fs::write(folder.path().join("shared.yaml"), SHARED_BRIDGE_MANIFEST).unwrap();
    std::fs::write(folder.path().join("nothing.yaml"), EMPTY_MANIFEST).unwrap();
    let output = Command::new("timeout")
        .args([
            "300",
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-exc",
            SCRIPT,
            "bash",
        ])
        .arg(folder.path())
        .env("agent", env!("CARGO_BIN_EXE_berth-agent"))
        .env("frames", frames)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");

    let names = Command::new("perl").args([frames, "names"]).output().unwrap().stdout;
    let names = String::from_utf8(names).unwrap();
    let lists: Vec<BTreeSet<&str>> = names.lines().map(|line| line.split(' ').collect()).collect();
    let [reserved, anyones] = lists.as_slice() else { unreachable!("{names}") };
    let received = |link: &str, who: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(folder.path().join(format!("{link}.heard"))).unwrap();
        let frames = text.lines().filter_map(|line| line.strip_prefix(who)?.strip_prefix(':'));
        frames.map(|frame| frame.split(':').next().unwrap().to_owned()).collect()
    };
    let all_of = |names: &BTreeSet<&str>| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    let all = all_of(&reserved.union(anyones).copied().collect());
    for (link, by) in [("peer0", "the tunnel"), ("peer3", "an uplink that is a port")] {
        assert_eq!(
            received(link, "guest"),
            all_of(anyones),
            "only permitted frames of a guest should arrive through {by}\n{log}"
        );
        assert_eq!(
            received(link, "host"),
            all,
            "all frames of the host should arrive through {by}\n{log}"
        );
    }
    // Frames that a Linux bridge does not forward even without the rules (`is_link_local_ether_addr`), except
    // BPDUs.
    let not_forwarded = ["pause-frame", "lacp", "eapol", "provider", "lldp"];
    let passed =
        reserved.union(anyones).copied().filter(|name| !not_forwarded.contains(name)).collect();
    assert_eq!(
        received("peer1", "other"),
        all_of(&passed),
        "a bridge of another program should forward all frames\n{log}"
    );
    assert_eq!(
        received("peer2", "after"),
        all_of(&passed),
        "after revert, all frames should be forwarded\n{log}"
    );
}
