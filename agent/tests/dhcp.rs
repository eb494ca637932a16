//! Tests that guests get their addresses from the agent, with real DHCP clients and the kernel of this machine, in
//! separate network namespaces. Two tenants have the same addresses. Tests with VLANs run on emulated hosts
//! (`tests/tests/networks/addresses.rs`), because not every kernel supports VLANs.

#![cfg(feature = "daemon")]
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests run programs, and fail by panicking"
)]

#[path = "../../tests/src/skip.rs"]
mod skip;

#[path = "dhcp/declines.rs"]
mod declines;
#[path = "dhcp/flood.rs"]
mod flood;
#[path = "dhcp/ipv6.rs"]
mod ipv6;
#[path = "dhcp/namespace.rs"]
mod namespace;
#[path = "dhcp/source_guard.rs"]
mod source_guard;

/// Script that runs after the prelude of [`namespace`].
const SCRIPT: &str = r#"
# Sends what a DHCP server would send to all machines of the network 10.1.0.0/24, from a guest with an address.
send_as_server() {
    ip netns exec "$1" perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 0) or die; setsockopt(S, SOL_SOCKET, SO_BROADCAST, 1) or die;
        bind(S, sockaddr_in(67, INADDR_ANY)) or die; send(S, "\x02" . "\0" x 299, 0, sockaddr_in(68, inet_aton("10.1.0.255"))) or die'
}

# Both tenants use the same address. A guest without a lease gets none.
guest a1 02:00:00:00:00:a1 tn5001
guest b1 02:00:00:00:00:b1 tn5002
guest a2 02:00:00:00:00:a2 tn5001
guest other 02:00:00:00:00:ff tn5001
# The address of a guest of the other tenant has no lease here.
guest wrong 02:00:00:00:00:a1 tn5002
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 worker-a'
wait_for lease_is b1 '10.1.0.10/24 10.2.0.53 worker-b'
wait_for lease_is a2 '10.1.0.11/24 10.1.0.53 '
gets_no_answer other
gets_no_answer wrong
[ "$(metric berth_dhcp_ports)" = 5 ]
[ "$(metric berth_dhcp_leases)" = 3 ]
[ "$(metric berth_dhcp_address_probes_total)" = 9 ]
[ "$(metric berth_dhcp_addresses_in_use)" = 0 ]
# The bridge sent the broadcasts of each guest to the ports of the others, but the kernel rejected them there.
[ -z "$(metric 'berth_dhcp_ignored_total{reason="unrelated"}')" ]

# The answers stay the same after the agent was killed. The guest itself, which has its address now, is no conflict.
ip -n a1 address add 10.1.0.10/24 dev eth0
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

# Addresses that other machines use are not served: a guest without a lease, and a machine on another host.
guest squatter 02:00:00:00:00:99 tn5001
ip -n squatter address add 10.1.0.13/24 dev eth0
ip -n host2 link add vx5001 address 02:00:00:00:00:98 type vxlan id 5001 dstport 4790 local 172.16.0.2 remote 172.16.0.1 dev peer0
ip -n host2 link set vx5001 up
ip -n host2 address add 10.1.0.14/24 dev vx5001
in_use_is() { [ "$(metric berth_dhcp_addresses_in_use)" = "$1" ]; }
wait_for [ -e /sys/class/net/port-squatter/brport ]
sleep 1
sed "s/^    leases:$/&\n    - {mac: \"02:00:00:00:00:a3\", machine: cluster-a\/worker-d, ipv4: 10.1.0.13}\n\
    - {mac: \"02:00:00:00:00:a4\", machine: cluster-a\/worker-e, ipv4: 10.1.0.14}/" host.yaml >host.new
# Only the first network gets the leases.
sed -i '/^  - name: cluster-b/,$ { /worker-[de],/d }' host.new
mv host.new host.yaml
guest a3 02:00:00:00:00:a3 tn5001
guest a4 02:00:00:00:00:a4 tn5001
wait_for in_use_is 2
gets_no_answer a3
gets_no_answer a4
grep -q 'address 10.1.0.13 of cluster-a/worker-d is in use by a machine with MAC address 02:00:00:00:00:99 at port-squatter' agent.log
grep -q 'address 10.1.0.14 of cluster-a/worker-e is in use by a machine with MAC address 02:00:00:00:00:98 at tn5001-x' agent.log
"$agent" check network.addresses | grep -q 'in use'
curl -sf http://127.0.0.1:9477/report | grep -q '10.1.0.13'
lease_is a2 '10.1.0.12/24 10.1.0.53 '
# They are served after the other machines have left the addresses.
ip -n squatter address flush dev eth0
ip -n host2 address flush dev vx5001
wait_for lease_is a3 '10.1.0.13/24 10.1.0.53 '
wait_for lease_is a4 '10.1.0.14/24 10.1.0.53 '
wait_for in_use_is 0

# Messages of DHCP servers among VMs are dropped in the guarded network, if the kernel can compare the bridge of a frame.
# They are reported where they arrive.
ip -n squatter address add 10.1.0.66/24 dev eth0
guest server 02:00:00:00:00:97 tn5002
ip -n server address add 10.1.0.66/24 dev eth0
sleep 1
foreign() { metric 'berth_dhcp_foreign_servers_total{kind="dhcpv4"}'; }
[ -z "$(foreign)" ]
send_as_server squatter
sleep 1
if grep -q NFT_BRIDGE_META agent.log; then [ -n "$(foreign)" ]; else [ -z "$(foreign)" ]; fi
before="$(foreign)"
send_as_server server
sleep 1
[ "$(foreign)" -gt "${before:-0}" ]
"#;

/// The networks in the HostLeases.
const NETWORKS: &str = r#"
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
    namespace::run_script(
        "guests_get_the_addresses_of_their_leases",
        &["perl", "udhcpc"],
        NETWORKS,
        SCRIPT,
    );
}
