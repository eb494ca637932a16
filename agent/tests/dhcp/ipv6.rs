//! Tests of DHCPv6 and router advertisements. In one test, the kernel of each guest sends router solicitations and
//! gets its default route from the agent's router advertisements, and dhclient gets the address. In the other test,
//! systemd-networkd gets both. One of the tenants has only IPv6.

use std::path::Path;

use crate::namespace::run_script;
use crate::skip;

/// Shell functions that both scripts use.
const FUNCTIONS: &str = r#"
router() { # NAME MAC BRIDGE ADDRESS: the gateway of a tenant, with an address outside of the tenant's network
    guest "$1" "$2" "$3"
    ip netns exec "$1" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
    ip -n "$1" link set lo up
    ip -n "$1" address add fe80::1/64 dev eth0 nodad
    ip -n "$1" address add fd00:1::1/64 dev eth0 nodad
    ip -n "$1" address add "$4/128" dev lo nodad
}
has_default_route() { ip -n "$1" -6 route show default | grep -q '^default via fe80::1 dev eth0 .*proto ra'; }
has_prefix_route() { ip -n "$1" -6 route show | grep -q '^fd00:1::/64 dev eth0 '; }
# A closed port refuses the connection, so this succeeds only if the address is reached, and its answer returns.
reaches() { # NAME ADDRESS
    ip netns exec "$1" perl -MSocket=:DEFAULT,inet_pton -MErrno=ECONNREFUSED -e 'alarm 3; socket(S, PF_INET6, SOCK_STREAM, 0) or die;
        connect(S, pack_sockaddr_in6(9, inet_pton(AF_INET6, $ARGV[0]))) and die; exit($! == ECONNREFUSED ? 0 : 1)' "$2"
}
"#;

/// Script that runs after the prelude of [`crate::namespace`] and after [`FUNCTIONS`].
const SCRIPT: &str = r#"
cat >dhclient.conf <<'END'
request dhcp6.name-servers, dhcp6.domain-search;
END
cat >lease6.sh <<'END'
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
case $reason in
BOUND6 | RENEW6 | REBIND6)
    ip -6 address replace "$new_ip6_address/128" dev "$interface"
    echo "$new_ip6_address $new_dhcp6_name_servers" >"$LEASE"
    ;;
esac
END
chmod 755 lease6.sh
has_link_local() { ip -n "$1" -6 -o address show dev eth0 scope link | grep -v tentative | grep -q fe80::; }
# dhclient uses the link-local address, which must be valid before it starts.
start_client() { # NAME: writes the lease to NAME.lease6
    wait_for has_link_local "$1"
    ip netns exec "$1" dhclient -6 -d -cf "$PWD/dhclient.conf" -sf "$PWD/lease6.sh" -e "LEASE=$PWD/$1.lease6" \
        -lf "$PWD/$1.leases6" -pf "$PWD/$1.pid6" eth0 2>>"$1.dhclient" &
}
lease6_is() { grep -qx "$2" "$1.lease6"; }
count() { value="$(metric "$1")"; echo "${value:-0}"; }

router router-a 02:00:00:00:00:01 tn5001 2001:db8:a::1
router router-b 02:00:00:00:00:02 tn5002 2001:db8:b::1
guest a1 02:00:00:00:00:a1 tn5001
guest b1 02:00:00:00:00:b1 tn5002
guest b2 02:00:00:00:00:b2 tn5002

# The default route is that of the gateway, whose Ethernet address the guest resolves itself. The prefix is on the link,
# and no address is derived from it.
for name in a1 b1 b2; do
    wait_for has_default_route "$name"
    wait_for has_prefix_route "$name"
    [ -z "$(ip -n "$name" -6 -o address show dev eth0 scope global)" ]
done
# Without a new port, a route that was removed returns only by the answer to a router solicitation: the next unsolicited
# advertisement is due after half an hour.
advertisements='berth_dhcp_answers_total{kind="router_advertisement"}'
before="$(count "$advertisements")"
ip -n b1 link set eth0 down
if has_default_route b1; then exit 1; fi
ip -n b1 link set eth0 up
wait_for has_default_route b1
[ "$(count "$advertisements")" -gt "$before" ]

# The tenants have the same address. It has the length 128, because the prefix is on the link by the advertisement.
start_client a1
start_client b1
wait_for lease6_is a1 'fd00:1::10 fd00:1::53'
wait_for lease6_is b1 'fd00:1::10 fd00:1::54'
for name in a1 b1; do
    [ "$(ip -n "$name" -6 -o address show dev eth0 scope global | wc -l)" = 1 ]
    ip -n "$name" -6 -o address show dev eth0 scope global | grep -q ' fd00:1::10/128 '
done
wait_for reaches a1 2001:db8:a::1
wait_for reaches b1 2001:db8:b::1
if reaches a1 2001:db8:b::1; then exit 1; fi
if reaches b1 2001:db8:a::1; then exit 1; fi

# The guest of the tenant with both families also has IPv4. In the network with IPv6 only, DHCPv4 gets no answer.
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 worker-a'
not_configured='berth_dhcp_ignored_total{reason="not_configured"}'
[ "$(count "$not_configured")" = 0 ]
gets_no_answer b1
[ "$(count "$not_configured")" -gt 0 ]

# A guest without a lease, and one with the Ethernet address of the other tenant's guest, get no address.
guest other 02:00:00:00:00:ff tn5002
guest wrong 02:00:00:00:00:a1 tn5002
start_client other
start_client wrong
sleep 8
[ ! -e other.lease6 ]
[ ! -e wrong.lease6 ]

# Guests keep their addresses and routes while the agent is absent. After its start, it answers as before.
kill -9 $pid
wait $pid || true
reaches b1 2001:db8:b::1
has_default_route b1
start_agent
start_client b2
wait_for lease6_is b2 'fd00:1::11 fd00:1::54'
wait_for reaches b2 2001:db8:b::1
wait_for reaches b1 fd00:1::11
metric_is berth_dhcp_addresses_in_use 0
[ -z "$(metric 'berth_dhcp_foreign_servers_total{kind="router_advertisement"}')" ]
"#;

/// Steps with systemd-networkd, which run after the kernel of the guest was configured to ignore router
/// advertisements.
const NETWORKD_SCRIPT: &str = r#"
trap 'cat networkd.log || true; kill $(jobs -p) 2>/dev/null || true' EXIT
router router-b 02:00:00:00:00:02 tn5002 2001:db8:b::1
guest b1 02:00:00:00:00:b1 tn5002
ip netns exec b1 sh -c 'echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra'
ip -n b1 link set eth0 down
ip -n b1 link set eth0 up
sleep 3
if has_default_route b1; then exit 1; fi

# systemd-networkd runs with its own /run/systemd/netif and a read-only /sys, as in a container.
mkdir -p /run/networkd
printf '[Match]\nName=eth0\n[Network]\nIPv6AcceptRA=yes\n[DHCPv6]\nDUIDType=link-layer\n' >/run/networkd/eth0.network
ip netns exec b1 unshare --mount sh -ec 'mkdir -p /run/systemd/network /run/systemd/netif
    mount --bind /run/networkd /run/systemd/network
    mount -t tmpfs -o mode=755 none /run/systemd/netif
    chown systemd-network: /run/systemd/netif
    mount -o remount,ro /sys
    exec /usr/lib/systemd/systemd-networkd' >networkd.log 2>&1 &
has_address() { ip -n b1 -6 -o address show dev eth0 scope global | grep -q ' fd00:1::10/'; }
wait_for has_default_route b1
wait_for has_address
wait_for reaches b1 2001:db8:b::1
[ "$(ip -n b1 -6 -o address show dev eth0 scope global | wc -l)" = 1 ]
"#;

/// The networks in the HostLeases. The tenants have the same prefix and the same gateway.
const NETWORKS: &str = r#"
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 24, gateway: 10.1.0.1, nameservers: [10.1.0.53]}
    ipv6: {prefixLength: 64, gateway: "fe80::1", nameservers: ["fd00:1::53"]}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-a/worker-a, hostname: worker-a, ipv4: 10.1.0.10, ipv6: "fd00:1::10"}
  - name: cluster-b
    vni: 5002
    ipv6: {prefixLength: 64, gateway: "fe80::1", nameservers: ["fd00:1::54"]}
    leases:
    - {mac: "02:00:00:00:00:b1", machine: cluster-b/worker-b, ipv6: "fd00:1::10"}
    - {mac: "02:00:00:00:00:b2", machine: cluster-b/worker-c, ipv6: "fd00:1::11"}
"#;

#[test]
fn guests_get_ipv6_addresses_and_default_routes() {
    let test = "guests_get_ipv6_addresses_and_default_routes";
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return skip::skip(test, "the kernel has no IPv6");
    }
    let script = format!("{FUNCTIONS}{SCRIPT}");
    run_script(test, &["dhclient", "perl", "udhcpc"], NETWORKS, &script);
}

#[test]
fn networkd_gets_its_ipv6_address_and_default_route() {
    let test = "networkd_gets_its_ipv6_address_and_default_route";
    let paths = ["/proc/sys/net/ipv6", "/usr/lib/systemd/systemd-networkd"];
    if !paths.iter().all(|path| Path::new(path).exists()) {
        return skip::skip(test, "needs IPv6 and systemd-networkd (package systemd)");
    }
    run_script(test, &["perl"], NETWORKS, &format!("{FUNCTIONS}{NETWORKD_SCRIPT}"));
}
