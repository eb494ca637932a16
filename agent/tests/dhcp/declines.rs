//! Tests that a decline (DHCPDECLINE, DHCPv6 Decline) blocks an address only if it arrives on the port on which the
//! kernel's bridge has learned the MAC address of the lease.

use std::path::Path;

use crate::namespace::run_script;
use crate::skip;

/// Script that runs after the prelude of [`crate::namespace`].
const SCRIPT: &str = r#"
# Sends a decline of an address with the Ethernet address of the guest's link.
decline() { # NAME MAC ADDRESS
    ip netns exec "$1" perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 0) or die; setsockopt(S, SOL_SOCKET, SO_BROADCAST, 1) or die;
        bind(S, sockaddr_in(68, INADDR_ANY)) or die; my ($mac, $address) = @ARGV; $mac =~ tr/://d;
        my $header = pack("C4 N x20 H12 x202 H8", 1, 1, 6, 0, 7, $mac, "63825363");
        my $options = pack("C3 C2 a4 C2 a4 C", 53, 1, 4, 50, 4, inet_aton($address), 54, 4, inet_aton("169.254.255.67"), 255);
        send(S, $header . $options, 0, sockaddr_in(67, inet_aton("10.1.0.255"))) or die' "$2" "$3"
}
is_behind() { bridge fdb show br tn5001 | grep -q "^$1 dev $2 "; }
logged() { grep -q "$1" agent.log; }

guest a1 02:00:00:00:00:a1 tn5001
guest a2 02:00:00:00:00:a2 tn5001
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 '
wait_for lease_is a2 '10.1.0.11/24 10.1.0.53 '
metric_is berth_dhcp_declined_total 0

# A machine uses the address after the agent has probed it. The client of the guest finds it, and declines the address.
guest squatter 02:00:00:00:00:99 tn5001
ip -n squatter address add 10.1.0.10/24 dev eth0
LEASE="$PWD/a1.declined" timeout 20 ip netns exec a1 udhcpc -i eth0 -f -q -a -t 5 -T 1 -s "$PWD/lease.sh" &
wait_for metric_is berth_dhcp_declined_total 1
is_behind 02:00:00:00:00:a1 port-a1
wait_for metric_is berth_dhcp_addresses_in_use 1
wait_for logged 'the VM at port port-a1 declined its address 10.1.0.10'
[ ! -e a1.declined ]
gets_no_answer a1
"$agent" check network.addresses | grep -q 'in use'
curl -sf http://127.0.0.1:9477/report | grep -q '10.1.0.10'
# The neighbour keeps its address, and the guest gets its own when the machine no longer uses it.
lease_is a2 '10.1.0.11/24 10.1.0.53 '
ip -n squatter address flush dev eth0
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 '
wait_for metric_is berth_dhcp_addresses_in_use 0

# A guest declines the address of its neighbour, with the neighbour's Ethernet address. As with macSpoofCheck, the
# bridge does not learn from its frames.
declined="$(metric berth_dhcp_declined_total)"
guest thief 02:00:00:00:00:98 tn5001
ip link set port-thief type bridge_slave learning off
ip -n thief address add 10.1.0.98/24 dev eth0
ip -n thief link set eth0 address 02:00:00:00:00:a2
lease_is a2 '10.1.0.11/24 10.1.0.53 '
is_behind 02:00:00:00:00:a2 port-a2
decline thief 02:00:00:00:00:a2 10.1.0.11
wait_for metric_is 'berth_dhcp_ignored_total{reason="foreign_decline"}' 1
is_behind 02:00:00:00:00:a2 port-a2
wait_for logged 'the VM at port port-thief declined the address 10.1.0.11 of cluster-a/worker-b, which is at another port'
# The same message by the neighbour's own port would have withheld the address at once.
sleep 1
metric_is berth_dhcp_declined_total "$declined"
metric_is berth_dhcp_addresses_in_use 0
lease_is a2 '10.1.0.11/24 10.1.0.53 '

# Nor can it decline the address of a guest that has not sent a frame.
ip -n thief link set eth0 address 02:00:00:00:00:a3
decline thief 02:00:00:00:00:a3 10.1.0.12
wait_for metric_is 'berth_dhcp_ignored_total{reason="unknown_sender"}' 1
metric_is berth_dhcp_declined_total "$declined"
guest a3 02:00:00:00:00:a3 tn5001
wait_for lease_is a3 '10.1.0.12/24 10.1.0.53 '
metric_is berth_dhcp_addresses_in_use 0

# The message itself is valid: the bridge has the guest behind its own port, and its decline has an effect.
ip -n a3 address add 10.1.0.12/24 dev eth0
is_behind 02:00:00:00:00:a3 port-a3
decline a3 02:00:00:00:00:a3 10.1.0.12
wait_for metric_is berth_dhcp_declined_total "$((declined + 1))"
wait_for metric_is berth_dhcp_addresses_in_use 1
"#;

/// The networks in the HostLeases.
const NETWORKS: &str = r#"
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 24, gateway: 10.1.0.1, nameservers: [10.1.0.53]}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-a/worker-a, ipv4: 10.1.0.10}
    - {mac: "02:00:00:00:00:a2", machine: cluster-a/worker-b, ipv4: 10.1.0.11}
    - {mac: "02:00:00:00:00:a3", machine: cluster-a/worker-c, ipv4: 10.1.0.12}
"#;

#[test]
fn only_the_guest_of_a_lease_declines_its_address() {
    let test = "only_the_guest_of_a_lease_declines_its_address";
    run_script(test, &["bridge", "perl", "udhcpc"], NETWORKS, SCRIPT);
}

/// Script of the DHCPv6 test, which also runs after the prelude of [`crate::namespace`].
const IPV6_SCRIPT: &str = r#"
# Sends a DHCPv6 Decline of an address to the agent, whose identifier has its Ethernet address.
decline() { # NAME MAC ADDRESS
    ip netns exec "$1" perl -MSocket=:DEFAULT,inet_pton -e 'socket(S, PF_INET6, SOCK_DGRAM, 0) or die;
        bind(S, pack_sockaddr_in6(546, inet_pton(AF_INET6, "::"))) or die;
        my ($mac, $address, $link) = @ARGV; $mac =~ tr/://d;
        my $identifiers = pack("n4 H12 n4 H12", 1, 10, 3, 1, $mac, 2, 10, 3, 1, "026265727468");
        $address = inet_pton(AF_INET6, $address);
        my $association = pack("n2 N3 n2 a16 N2", 3, 40, 1, 0, 0, 5, 24, $address, 0, 0);
        my $servers = pack_sockaddr_in6(547, inet_pton(AF_INET6, "ff02::1:2"), $link);
        send(S, pack("C4", 9, 0, 0, 7) . $identifiers . $association, 0, $servers) or die' \
        "$2" "$3" "$(ip -n "$1" -o link show dev eth0 | cut -d: -f1)"
}
is_behind() { bridge fdb show br tn5001 | grep -q "^$1 dev $2 "; }
logged() { grep -q "$1" agent.log; }
has_link_local() { ip -n "$1" -6 -o address show dev eth0 scope link | grep -v tentative | grep -q fe80::; }

guest a2 02:00:00:00:00:a2 tn5001
guest thief 02:00:00:00:00:98 tn5001
wait_for has_link_local a2
wait_for has_link_local thief
wait_for is_behind 02:00:00:00:00:a2 port-a2

# A guest declines the address of its neighbour, with the neighbour's Ethernet address. As with macSpoofCheck, the
# bridge does not learn from its frames.
ip link set port-thief type bridge_slave learning off
ip -n thief link set eth0 address 02:00:00:00:00:a2
decline thief 02:00:00:00:00:a2 fd00:1::11
wait_for metric_is 'berth_dhcp_ignored_total{reason="foreign_decline"}' 1
is_behind 02:00:00:00:00:a2 port-a2
wait_for logged 'the VM at port port-thief declined the address fd00:1::11 of cluster-a/worker-b, which is at another port'
sleep 1
metric_is berth_dhcp_declined_total 0
metric_is berth_dhcp_addresses_in_use 0

# The same message by the neighbour's own port has an effect.
decline a2 02:00:00:00:00:a2 fd00:1::11
wait_for metric_is berth_dhcp_declined_total 1
wait_for metric_is berth_dhcp_addresses_in_use 1
"#;

/// The networks in the HostLeases of the DHCPv6 test.
const IPV6_NETWORKS: &str = r#"
  - name: cluster-a
    vni: 5001
    ipv6: {prefixLength: 64, gateway: "fe80::1", nameservers: ["fd00:1::53"]}
    leases:
    - {mac: "02:00:00:00:00:a2", machine: cluster-a/worker-b, ipv6: "fd00:1::11"}
"#;

#[test]
fn only_the_guest_of_a_lease_declines_its_ipv6_address() {
    let test = "only_the_guest_of_a_lease_declines_its_ipv6_address";
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return skip::skip(test, "the kernel has no IPv6");
    }
    run_script(test, &["bridge", "perl"], IPV6_NETWORKS, IPV6_SCRIPT);
}
