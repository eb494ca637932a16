//! Tests that guests get their addresses from the agent, with a real DHCP client on the kernel of this machine, in
//! separate network namespaces. Two tenants have the same addresses. Tests with VLANs run on emulated hosts
//! (`tests/tests/networks/addresses.rs`), as not every kernel supports VLANs.

#![cfg(feature = "daemon")]
#![expect(clippy::disallowed_methods, reason = "the test runs programs")]

#[path = "../../tests/src/skip.rs"]
mod skip;

use std::process::Command;

/// Script that runs in a network and a mount namespace: `$agent` is the program, `$1` a folder with the manifest.
const SCRIPT: &str = r#"
trap 'kill $(jobs -p)' EXIT
mount -t sysfs none /sys
mkdir -p /var/lib/berth
mount -t tmpfs none /var/lib/berth
mount -t tmpfs none /run
cd "$1"
wait_for() { for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; echo "failed: $*"; cat agent.log; exit 1; }
start_agent() {
    "$agent" run --standalone host.yaml --node-name a --interval 3600 2>>agent.log &
    pid=$!
    wait_for curl -sf http://127.0.0.1:9477/readyz
}
guest() { # NAME MAC BRIDGE
    ip netns add "$1"
    ip link add "port-$1" type veth peer name eth0 address "$2" netns "$1"
    ip -n "$1" link set eth0 up
    ip link set "port-$1" up master "$3"
}
request() { # NAME: writes the lease to NAME.lease
    rm -f "$1.lease"
    LEASE="$PWD/$1.lease" ip netns exec "$1" udhcpc -i eth0 -f -q -n -t 3 -T 1 -s "$PWD/lease.sh"
}
lease_is() { request "$1" && grep -qx "$2" "$1.lease"; }
gets_no_answer() { if request "$1"; then echo "unexpected answer for $1"; cat "$1.lease"; exit 1; fi; }
metric() { curl -s http://127.0.0.1:9477/metrics | sed -n "s/^$1 //p"; }

ip link set lo up
ip link add up0 type veth peer name peer0
ip link set up0 up
ip link set peer0 up
ip address add 172.16.0.1/24 dev up0
start_agent
wait_for ip link show tn5001
wait_for ip link show tn5002

# Both tenants use the same address. A guest without a lease gets none.
guest a1 02:00:00:00:00:a1 tn5001
guest b1 02:00:00:00:00:b1 tn5002
guest a2 02:00:00:00:00:a2 tn5001
guest other 02:00:00:00:00:ff tn5001
# The address of a guest of the other tenant has no lease here.
guest wrong 02:00:00:00:00:a1 tn5002
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 worker-a'
lease_is b1 '10.1.0.10/24 10.2.0.53 worker-b'
lease_is a2 '10.1.0.11/24 10.1.0.53 '
gets_no_answer other
gets_no_answer wrong
[ "$(metric berth_dhcp_ports)" = 5 ]
[ "$(metric berth_dhcp_leases)" = 3 ]
# The bridge sent the broadcasts of each guest to the ports of the others, but the kernel rejected them there.
[ -z "$(metric 'berth_dhcp_ignored_total{reason="unrelated"}')" ]

# The answers stay the same after the agent was killed.
kill -9 $pid
wait $pid || true
start_agent
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 worker-a'

# A port that is moved to the other tenant gets that tenant's leases only.
ip link set port-a2 master tn5002
sleep 1
gets_no_answer a2

# Leases that are removed from the manifest get no answer, and new ones get one.
sed s/02:00:00:00:00:b1/02:00:00:00:00:ff/ host.yaml >host.new
sed -i s/10.1.0.11/10.1.0.12/ host.new
mv host.new host.yaml
ip link set port-a2 master tn5001
ip link set port-other master tn5002
wait_for lease_is other '10.1.0.10/24 10.2.0.53 worker-b'
wait_for lease_is a2 '10.1.0.12/24 10.1.0.53 '
gets_no_answer b1
"#;

const LEASE_SCRIPT: &str = "#!/bin/sh
[ \"$1\" != bound ] || echo \"$ip/$mask $dns $hostname\" >\"$LEASE\"
";

const MANIFEST: &str = r#"
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: a}
spec:
  networks:
  - {name: tenants, scenario: Vxlan, vxlan: {localAddress: 172.16.0.1, peers: [172.16.0.2]}}
  tenantNetworks:
  - {name: cluster-a, network: tenants, vni: 5001}
  - {name: cluster-b, network: tenants, vni: 5002}
---
apiVersion: berth.dev/v1alpha1
kind: HostLeases
metadata: {name: a}
spec:
  networks:
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 24, gateway: 10.1.0.1, nameservers: [10.1.0.53]}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-a/worker-a, hostname: worker-a, ipv4: 10.1.0.10}
    - {mac: "02:00:00:00:00:a2", machine: cluster-a/worker-c, ipv4: 10.1.0.11}
  - name: cluster-b
    vni: 5002
    ipv4: {prefixLength: 24, gateway: 10.1.0.1, nameservers: [10.2.0.53]}
    leases:
    - {mac: "02:00:00:00:00:b1", machine: cluster-b/worker-b, hostname: worker-b, ipv4: 10.1.0.10}
"#;

#[test]
fn guests_get_the_addresses_of_their_leases() {
    use std::os::unix::fs::PermissionsExt as _;
    let is_installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let programs = ["curl", "ip", "udhcpc", "unshare"];
    if !nix::unistd::geteuid().is_root() || !programs.into_iter().all(is_installed) {
        return skip::skip(
            "guests_get_the_addresses_of_their_leases",
            "needs root, curl, iproute2, udhcpc and unshare",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("host.yaml"), MANIFEST).unwrap();
    let script = folder.path().join("lease.sh");
    std::fs::write(&script, LEASE_SCRIPT).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("timeout")
        .args(["300", "unshare", "--net", "--mount", "--propagation", "private"])
        .args(["bash", "-exc", SCRIPT, "bash"])
        .arg(folder.path())
        .env("agent", env!("CARGO_BIN_EXE_berth-agent"))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let agent_log = std::fs::read_to_string(folder.path().join("agent.log")).unwrap_or_default();
    assert!(output.status.success(), "{log}\nlog of the agent:\n{agent_log}");
}
