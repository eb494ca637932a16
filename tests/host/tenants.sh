#!/bin/bash
# Stands in for tenants' VMs on an emulated host: network namespaces that the real CNI `bridge` plugin attaches
# by the NetworkAttachmentDefinition's configuration, as Multus would. Debian's version 1.1.1 of the plugin silently
# ignores preserveDefaultVlan, disableContainerInterface and portIsolation: a port stays in the bridge's default VLAN
# too, if the bridge has one.
#
#   tenants add NAME BRIDGE ADDRESS [VLAN]   a VM with this address
#   tenants delete NAME BRIDGE [VLAN]
#   tenants attach NAME ADDRESS MAC FILE     a VM with these addresses, by the configuration in a file
#   tenants detach NAME FILE
#   tenants ping NAME ADDRESS                0 if it answers
#   tenants shout NAME [TAG...]              a VM sends two frames to all, with these 802.1Q tags, outermost first
#   tenants listen FILTER NAME...            from now on these VMs listen for frames of a tcpdump filter
#   tenants heard NAME...                    prints which of them got one
#   tenants watch NAME ADDRESS FILE          pings five times a second until `tenants unwatch FILE`
#   tenants unwatch FILE                     prints how many were sent and how many were lost
#   tenants links                            the host's links and Berth's nftables table, without counters and timers
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

# The guest's part: the plugin gives no address.
raise() { # NAME ADDRESS
    ip -n "$1" address add "$2/24" dev net1
    ip -n "$1" link set net1 up
    ip -n "$1" link set lo up
}

case $1 in
add)
    ip netns add "$2"
    configuration "$2" "$3" ${5:+"$5"} | cni ADD "$2"
    raise "$2" "$4"
    ;;
delete)
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
ping) ip netns exec "$2" ping -q -c 3 -i 0.3 -W 1 "$3" >/dev/null ;;
shout)
    name=$2 link=net1 && shift 2
    for tag; do
        ip -n "$name" link add link "$link" name "$link.$tag" type vlan id "$tag"
        link=$link.$tag
        ip -n "$name" link set "$link" up
    done
    # A broadcast is not answered, so this never succeeds; that it sends is seen by those who must hear it.
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
        # It ends with an empty line in any case.
        if grep -q . "/run/heard.$name"; then echo "$name"; fi
    done
    ;;
watch)
    setsid ip netns exec "$2" ping -i 0.2 -W 5 "$3" >"$4" 2>&1 &
    echo $! >"$4.pid"
    ;;
unwatch)
    kill -INT "$(cat "$2.pid")"
    sleep 1
    tail -2 "$2" | head -1
    ;;
links)
    # What the kernel says of carriers follows a little later (`link_watch`).
    for _ in $(seq 30); do
        { ip -o link show group 48679 type bridge; ip -o link show group 48679 type vlan; } | grep -q 'state UNKNOWN' || break
        sleep 0.5
    done
    ip -d link | sed -E 's/[a-z_]+_timer +[0-9.]+//g; s/ qlen [0-9]+//'
    bridge -d vlan show
    ip address | grep -E 'inet|^[0-9]' | sed -E 's/(valid|preferred)_lft [^ ]+//g; s/ tentative//'
    bridge fdb show | grep -v ' dynamic\| master ' | sort
    ip route show table all
    nft -s list table bridge berth 2>/dev/null || true
    ;;
*)
    sed -n '2,19s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
