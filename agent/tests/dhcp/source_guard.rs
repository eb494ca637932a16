//! Tests that frames of guests from foreign addresses are dropped, and that frames from the addresses of their leases
//! arrive. Frames are sent from packet sockets, so a guest can use any address.

use crate::namespace::run_script;

/// Script that runs after the prelude of [`crate::namespace`].
const SCRIPT: &str = r#"
index_of() { ip -n "$1" -o link show "$2" | cut -d: -f1; }
# Sends a broadcast frame. The receivers recognize the frame by its mark.
frame() { # NAMESPACE LINK MARK BYTES: the bytes after the destination, in hexadecimal
    ip netns exec "$1" perl -MSocket -e 'my ($index, $mark, $bytes) = @ARGV; socket(S, 17, SOCK_RAW, 0) or die;
        my $frame = pack("H*", "ffffffffffff$bytes") . "mark:$mark;"; $frame .= "\0" x (60 - length $frame) if length $frame < 60;
        send(S, $frame, 0, pack("S n i S C C a8", 17, 3, $index, 0, 0, 6, "")) or die' "$(index_of "$1" "$2")" "$3" "$4"
}
listen() { # NAMESPACE: writes the marks of the frames that eth0 receives to NAMESPACE.heard
    ip netns exec "$1" perl -MSocket -MIO::Handle -e 'socket(S, 17, SOCK_RAW, unpack("S", pack("n", 3))) or die;
        bind(S, pack("S n i S C C a8", 17, 3, $ARGV[0], 0, 0, 6, "")) or die; STDOUT->autoflush(1); print "listening\n";
        while (defined recv(S, my $frame, 65535, 0)) { print "$1\n" while $frame =~ /mark:([^;]+);/g }' "$(index_of "$1" eth0)" >"$1.heard" &
    wait_for grep -q listening "$1.heard"
}
heard() { grep -qx "$2" "$1.heard"; }
mac_a1=0200000000a1
# NAME MARK ADDRESS: sends as a1, or with its Ethernet address, from an IPv4 or IPv6 address in hexadecimal.
arp() { frame "$1" eth0 "$2" "${mac_a1}08060001080006040001$mac_a1${3}0000000000000a01000b"; }
ipv4() { frame "$1" eth0 "$2" "${mac_a1}0800450000280000000040fd0000${3}0a01000b"; }
ipv6() { frame "$1" eth0 "$2" "${mac_a1}86dd6000000000083b40${3}ff020000000000000000000000000001"; }
advertise() { frame "$1" eth0 "$2" "${mac_a1}86dd6000000000183aff${3}ff0200000000000000000000000000018800000020000000$4"; }
zero=00000000000000000000000000000000
own6=fd000001000000000000000000000010
foreign6=fd000001000000000000000000000011
link_local=fe8000000000000000000000000000a1

# br_netfilter drops IPv4 packets with wrong checksums.
for key in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e "$key" ] || echo 0 >"$key"; done
guest a1 02:00:00:00:00:a1 tn5001
guest a2 02:00:00:00:00:a2 tn5001
guest a3 02:00:00:00:00:a3 tn5001
guest a4 02:00:00:00:00:a4 tn5001
guest b1 02:00:00:00:00:a1 tn5002
guest b2 02:00:00:00:00:b2 tn5002
listen a2
listen b2
has_port() { bridge link show dev "port-$1" | grep -q 'state forwarding'; }
for name in a1 a2 a3 a4 b1 b2; do wait_for has_port "$name"; done
is_applied() { "$agent" plan --node-name a -f host.yaml | grep -q 'nothing to do'; }
wait_for is_applied

# Without source guard, a frame from a foreign address arrives.
arp a1 unguarded 0a01000b
wait_for heard a2 unguarded

sed 's/dhcpGuard: true/dhcpGuard: true, sourceGuard: true/' host.yaml >host.new
mv host.new host.yaml
wait_for is_applied
if grep -q NFT_BRIDGE_META agent.log; then
    # A kernel that cannot compare the bridge of a frame drops no frame, and this is reported.
    grep -q 'foreign addresses of VMs, and DHCP servers and routers among VMs are not dropped' agent.log
    "$agent" check network.guest-frames | grep -q 'foreign addresses of VMs'
    arp a1 unsupported 0a01000b
    wait_for heard a2 unsupported
    exit 0
fi

# Of each pair, the foreign address is sent first, so it would have arrived before the own address.
arp a1 foreign-arp 0a01000b
arp a1 own-arp 0a01000a
arp a1 probe 00000000
ipv4 a1 foreign-ipv4 0a01000b
ipv4 a1 own-ipv4 0a01000a
ipv4 a1 request 00000000
ipv6 a1 foreign-ipv6 "$foreign6"
ipv6 a1 own-ipv6 "$own6"
ipv6 a1 link-local "$link_local"
ipv6 a1 unspecified "$zero"
frame a1 eth0 foreign-tagged "${mac_a1}8100000081000000080600010800060400010200000000a10a01000b0000000000000a01000b"
frame a1 eth0 foreign-snap "${mac_a1}0024aaaa03000000080600010800060400010200000000a10a01000b0000000000000a01000b"
frame a1 eth0 other-type "${mac_a1}88b5"
# The network of the other tenant has no source guard, although its guest has the same Ethernet address.
arp b1 other-tenant 0a01000b
# A guest without a lease is not restricted. The lease of a3 has no IPv6 address.
frame a4 eth0 no-lease 0200000000a4080600010800060400010200000000a40a0100630000000000000a01000b
frame a3 eth0 foreign-a3 0200000000a3080600010800060400010200000000a30a0100630000000000000a01000b
frame a3 eth0 no-ipv6-lease "0200000000a386dd6000000000083b40${foreign6}ff020000000000000000000000000001"
for mark in own-arp probe own-ipv4 request own-ipv6 link-local unspecified other-type no-lease no-ipv6-lease; do wait_for heard a2 "$mark"; done
wait_for heard b2 other-tenant
if grep foreign a2.heard; then exit 1; fi
# The header of ICMPv6 can be found only by a kernel with IPv6.
if [ -e /proc/sys/net/ipv6 ]; then
    advertise a1 foreign-advertisement "$link_local" "$foreign6"
    advertise a1 own-advertisement "$link_local" "$own6"
    wait_for heard a2 own-advertisement
    if grep foreign a2.heard; then exit 1; fi
fi

# The agent knows no leases of the guests of other hosts.
ip -n host2 link add vx5001 address 02:00:00:00:00:98 type vxlan id 5001 dstport 4790 local 172.16.0.2 remote 172.16.0.1 dev peer0
ip -n host2 link set vx5001 up
frame host2 vx5001 other-host 020000000098080600010800060400010200000000980a0100630000000000000a01000b
wait_for heard a2 other-host

# A guest gets another address.
sed 's/ipv4: 10.1.0.10, /ipv4: 10.1.0.12, /' host.yaml >host.new
mv host.new host.yaml
wait_for is_applied
arp a1 foreign-old 0a01000a
arp a1 new-address 0a01000c
wait_for heard a2 new-address
if grep foreign a2.heard; then exit 1; fi

# The rules stay while the agent is absent, and after its restart.
kill -9 $pid
wait $pid || true
arp a1 foreign-absent 0a01000b
start_agent
arp a1 foreign-restart 0a01000b
arp a1 after-restart 0a01000c
wait_for heard a2 after-restart
if grep foreign a2.heard; then exit 1; fi

sed 's/, sourceGuard: true//' host.yaml >host.new
mv host.new host.yaml
wait_for is_applied
arp a1 removed 0a01000b
wait_for heard a2 removed
"#;

/// Networks of the HostLeases.
const NETWORKS: &str = r#"
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 24, gateway: 10.1.0.1}
    ipv6: {prefixLength: 64}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-a/worker-a, ipv4: 10.1.0.10, ipv6: "fd00:1::10"}
    - {mac: "02:00:00:00:00:a2", machine: cluster-a/worker-b, ipv4: 10.1.0.11, ipv6: "fd00:1::11"}
    - {mac: "02:00:00:00:00:a3", machine: cluster-a/worker-c, ipv4: 10.1.0.13}
  - name: cluster-b
    vni: 5002
    ipv4: {prefixLength: 24, gateway: 10.1.0.1}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-b/worker-a, ipv4: 10.1.0.10}
"#;

#[test]
fn frames_of_guests_from_foreign_addresses_are_dropped() {
    let test = "frames_of_guests_from_foreign_addresses_are_dropped";
    run_script(test, &["bridge", "perl"], NETWORKS, SCRIPT);
}
