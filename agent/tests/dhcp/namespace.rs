//! Network namespaces of the tests: the host of the agent, another host, and guests on the bridges of two tenants.
//!
//! ```text
//! namespace of the test                          namespace of each guest
//! agent ── packet sockets ── port-NAME ═════════ eth0
//!            bridge tn5001 ──┘   (tenant cluster-a; cluster-b has the bridge tn5002)
//! up0 ═════ peer0 of the namespace host2
//! ```

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::skip;

/// Start of each script. It runs in a separate network and mount namespace, and ends with the start of the agent.
/// `$agent` is the program, `$1` a folder with the manifest.
const PRELUDE: &str = r#"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
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
metric_is() { [ "$(metric "$1")" = "$2" ]; }
metric() { curl -s http://127.0.0.1:9477/metrics | sed -n "s/^$1 //p"; }

ip link set lo up
ip link add up0 type veth peer name peer0
ip link set up0 up
ip netns add host2
ip link set peer0 netns host2
ip -n host2 address add 172.16.0.2/24 dev peer0
ip -n host2 link set peer0 up
ip address add 172.16.0.1/24 dev up0
start_agent
wait_for ip link show tn5001
wait_for ip link show tn5002
"#;

/// Script that udhcpc calls with a lease, and that writes the lease to a file.
const LEASE_SCRIPT: &str = "#!/bin/sh
[ \"$1\" != bound ] || echo \"$ip/$mask $dns $hostname\" >\"$LEASE\"
";

/// Manifest of the host. The networks of the HostLeases are appended to it.
const MANIFEST: &str = "\
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: a}
spec:
  networks:
  - {name: tenants, scenario: Vxlan, vxlan: {localAddress: 172.16.0.1, peers: [172.16.0.2]}}
  tenantNetworks:
  - {name: cluster-a, network: tenants, vni: 5001, dhcpGuard: true}
  - {name: cluster-b, network: tenants, vni: 5002}
---
apiVersion: berth.dev/v1alpha1
kind: HostLeases
metadata: {name: a}
spec:
  networks:";

/// Time limit of a script, in seconds.
const MAX_SECONDS: &str = "600";

/// Runs a script after [`PRELUDE`]. `networks` is the YAML of the networks in the HostLeases. Skips the test if the
/// user is not root or one of the programs is missing.
pub(crate) fn run_script(test: &str, programs: &[&str], networks: &str, script: &str) {
    let is_installed = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    let programs = [&["curl", "ip", "unshare"][..], programs].concat();
    if !nix::unistd::geteuid().is_root() || !programs.iter().all(is_installed) {
        return skip::skip(test, &format!("needs root, and the programs {}", programs.join(", ")));
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("host.yaml"), MANIFEST.to_owned() + networks).unwrap();
    write_program(&folder.path().join("lease.sh"), LEASE_SCRIPT);
    let output = Command::new("timeout")
        .args([MAX_SECONDS, "unshare", "--net", "--mount", "--propagation", "private"])
        .args(["bash", "-exc", &format!("{PRELUDE}{script}"), "bash"])
        .arg(folder.path())
        .env("agent", env!("CARGO_BIN_EXE_berth-agent"))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let agent_log = std::fs::read_to_string(folder.path().join("agent.log")).unwrap_or_default();
    assert!(output.status.success(), "{log}\nlog of the agent:\n{agent_log}");
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
