#!/bin/bash
# Simulates tenants' VMs on an emulated host with network namespaces. The real CNI `bridge` plugin attaches them
# with the NetworkAttachmentDefinition's configuration, as Multus does. Debian's version 1.1.1 of the plugin silently
# ignores preserveDefaultVlan, disableContainerInterface and portIsolation: a port also stays in the bridge's default
# VLAN, if the bridge has one.
#
#   tenants add NAME BRIDGE ADDRESS [VLAN]   creates a VM with this address
#   tenants boot NAME BRIDGE MAC CLIENT [VLAN]  creates a VM that gets its address with dhclient, udhcpc or networkd
#   tenants renew NAME CLIENT                gets the address again, as after a restart of the VM
#   tenants delete NAME BRIDGE [VLAN]
#   tenants attach NAME ADDRESS MAC FILE     creates a VM with these addresses and the configuration in a file
#   tenants detach NAME FILE
#   tenants ping NAME ADDRESS                exits with 0 as soon as the address responds
#   tenants unreachable NAME ADDRESS...      exits with 0 if none of these addresses responds; pings all at the same time
#   tenants shout NAME [TAG...]              a VM sends two broadcast frames with these 802.1Q tags, outermost first
#   tenants listen FILTER NAME...            starts to capture, in these VMs, frames that match a tcpdump filter
#   tenants heard NAME...                    prints the VMs that received such a frame
#   tenants watch NAME ADDRESS FILE          pings five times a second until `tenants unwatch FILE`
#   tenants unwatch FILE                     ends the pings when one that was sent after this call is answered; prints their output
#   tenants links                            prints the host's links and Berth's nftables table, without counters and timers
set -eu
export CNI_PATH=/usr/lib/cni CNI_IFNAME=net1

configuration() { # NAME BRIDGE [VLAN]
    vlan=${3:+\"vlan\":$3,}
    printf '{"cniVersion":"0.3.1","name":"%s","type":"bridge","bridge":"%s",%s"preserveDefaultVlan":false,"mtu":1400,' \
        "$1" "$2" "$vlan"
    printf '"macspoofchk":true,"disableContainerInterface":true,"ipam":{}}'
}

cni() { # COMMAND NAME [MAC], with the configuration on standard input
    arguments="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=virt-launcher-$2${3:+;MAC=$3}"
    CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_ARGS=$arguments $CNI_PATH/bridge >/run/cni.log ||
        { cat /run/cni.log && exit 1; }
}

# Configures the address and the link as the guest of a VM does, because the plugin assigns no address.
raise() { # NAME ADDRESS
    ip -n "$1" address add "$2/24" dev net1
    ip -n "$1" link set net1 up
    ip -n "$1" link set lo up
}

# Gets an address by DHCP. networkd runs with its own /run/systemd/netif and a read-only /sys, as in a container.
request() { # NAME CLIENT
    ip -n "$1" address flush dev net1 scope global
    case $2 in
    dhclient)
        [ ! -e "/run/dhclient.$1.pid" ] || kill "$(cat "/run/dhclient.$1.pid")" 2>/dev/null || true
        rm -f "/run/dhclient.$1.leases"
        timeout 30 ip netns exec "$1" dhclient -1 -lf "/run/dhclient.$1.leases" -pf "/run/dhclient.$1.pid" net1
        ;;
    udhcpc)
        # Programs in /run cannot be executed. Another client may execute the file now, so it is written once.
        [ -x /usr/local/sbin/udhcpc-script ] || {
            cat >/usr/local/sbin/udhcpc-script <<'END'
#!/bin/sh
[ "$1" != bound ] || ip address replace "$ip/$mask" dev "$interface"
END
            chmod 755 /usr/local/sbin/udhcpc-script
        }
        ip netns exec "$1" busybox udhcpc -i net1 -f -q -n -t 20 -T 1 -s /usr/local/sbin/udhcpc-script
        ;;
    networkd)
        [ ! -e "/run/networkd.$1.pid" ] || kill "$(cat "/run/networkd.$1.pid")" 2>/dev/null || true
        mkdir -p "/run/networkd.$1"
        printf '[Match]\nName=net1\n[Network]\nDHCP=ipv4\n' >"/run/networkd.$1/net1.network"
        setsid ip netns exec "$1" unshare --mount sh -c "mkdir -p /run/systemd/network /run/systemd/netif
            mount --bind /run/networkd.$1 /run/systemd/network && mount -t tmpfs none /run/systemd/netif
            chown systemd-network: /run/systemd/netif && mount -o remount,ro /sys
            exec /lib/systemd/systemd-networkd" >"/run/networkd.$1.log" 2>&1 </dev/null &
        echo $! >"/run/networkd.$1.pid"
        ;;
    esac
    for _ in $(seq 100); do
        ! ip -n "$1" -4 -o address show dev net1 | grep -q inet || return 0
        sleep 0.2
    done
    cat "/run/networkd.$1.log" 2>/dev/null || true
    echo "$1 has no address" && exit 1
}

case $1 in
boot)
    ip netns add "$2"
    configuration "$2" "$3" ${6:+"$6"} | cni ADD "$2" "$4"
    ip -n "$2" link set net1 up
    ip -n "$2" link set lo up
    request "$2" "$5"
    ;;
renew) request "$2" "$3" ;;
add)
    ip netns add "$2"
    configuration "$2" "$3" ${5:+"$5"} | cni ADD "$2"
    raise "$2" "$4"
    ;;
delete)
    for pid in "/run/dhclient.$2.pid" "/run/networkd.$2.pid"; do
        [ ! -e "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true
        rm -f "$pid"
    done
    configuration "$2" "$3" ${4:+"$4"} | cni DEL "$2"
    ip netns delete "$2"
    ;;
attach)
    ip netns add "$2"
    cni ADD "$2" "$4" <"$5"
    raise "$2" "$3"
    ;;
detach)
    cni DEL "$2" <"$3"
    ip netns delete "$2"
    ;;
# With a deadline, ping ends at the first reply.
ping) ip netns exec "$2" ping -q -c 1 -i 0.3 -w 3 "$3" >/dev/null ;;
unreachable)
    name=$2 && shift 2
    [ -e "/run/netns/$name" ]
    responding=$(
        for address; do
            { ! ip netns exec "$name" ping -q -c 3 -i 0.3 -W 1 "$address" >/dev/null 2>&1 || echo "$address"; } &
        done
        wait
    )
    [ -z "$responding" ] || { echo "$name gets replies from $responding" && exit 1; }
    ;;
shout)
    name=$2 link=net1 && shift 2
    for tag; do
        ip -n "$name" link add link "$link" name "$link.$tag" type vlan id "$tag"
        link=$link.$tag
        ip -n "$name" link set "$link" up
    done
    # A broadcast has no reply, so this never succeeds; the receivers show that the frames were sent.
    ip netns exec "$name" ping -b -q -c 2 -i 0.2 -W 0.2 -I "$link" 255.255.255.255 >/dev/null 2>&1 || true
    [ $# = 0 ] || ip -n "$name" link delete "net1.$1"
    ;;
listen)
    filter=$2 && shift 2
    for name; do
        rm -f "/run/listen.$name"
        setsid ip netns exec "$name" tcpdump -lnc 1 -Q in -i net1 "$filter" >"/run/heard.$name" 2>"/run/listen.$name" &
        echo $! >"/run/listen.$name.pid"
    done
    for name; do
        until grep -q 'listening on' "/run/listen.$name" 2>/dev/null; do sleep 0.1; done
    done
    ;;
heard)
    shift
    sleep 1
    for name; do
        kill "$(cat "/run/listen.$name.pid")" 2>/dev/null || true
        # The file always ends with an empty line.
        if grep -q . "/run/heard.$name"; then echo "$name"; fi
    done
    ;;
watch)
    setsid ip netns exec "$2" ping -i 0.2 -W 5 "$3" >"$4" 2>&1 &
    echo $! >"$4.pid"
    ;;
unwatch)
    # A signal would end `ping` before the reply to its last ping arrives, which would wrongly count as a loss. The
    # third ping from now was sent after this call.
    last_reply() { sed -n 's/.*bytes from.* icmp_seq=\([0-9]*\) .*/\1/p' "$1" | sort -n | tail -1; }
    end=$(($(last_reply "$2") + 3))
    for _ in $(seq 100); do
        [ "$(($(last_reply "$2")))" -lt "$end" ] || break
        sleep 0.2
    done
    kill -INT "$(cat "$2.pid")"
    cat "$2"
    [ "$(($(last_reply "$2")))" -ge "$end" ] || { echo "no reply for 20 s" && exit 1; }
    ;;
links)
    # The kernel updates the state of carriers a little later (`link_watch`).
    for _ in $(seq 30); do
        ip -d -o link show group 48679 | grep -qE 'state UNKNOWN.* (bridge forward_delay|vlan protocol) ' || break
        sleep 0.5
    done
    ip -d link | sed -E 's/[a-z_]+_timer +[0-9.]+//g; s/ qlen [0-9]+//; s/ fdb_n_learned [0-9]+//'
    bridge -d vlan show
    ip address | sed -nE '/inet|^[0-9]/{s/(valid|preferred)_lft [^ ]+//g; s/ tentative//; p}'
    bridge fdb show | sed '/ dynamic\| master /d' | sort
    ip route show table all
    nft -s list table bridge berth 2>/dev/null || true
    ;;
*)
    sed -n '2,22s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
