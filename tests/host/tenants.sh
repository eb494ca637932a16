#!/bin/bash
# Stands in for tenants' VMs on an emulated host: network namespaces that the real CNI `bridge` plugin attaches
# by the NetworkAttachmentDefinition's configuration, as Multus would. Not exercised, as Debian's version 1.1.1 of
# the plugin silently ignores them: preserveDefaultVlan (its default is what we ask for), disableContainerInterface,
# portIsolation.
#
#   tenants add NAME BRIDGE ADDRESS [VLAN]   a VM with this address
#   tenants delete NAME BRIDGE [VLAN]
#   tenants ping NAME ADDRESS                0 if it answers
#   tenants watch NAME ADDRESS FILE          pings five times a second until `tenants unwatch FILE`
#   tenants unwatch FILE                     prints how many were sent and how many were lost
#   tenants links                            the host's links, without counters and timers
set -eu
export CNI_PATH=/usr/lib/cni CNI_IFNAME=net1

configuration() { # NAME BRIDGE [VLAN]
    vlan=${3:+\"vlan\":$3,}
    printf '{"cniVersion":"0.3.1","name":"%s","type":"bridge","bridge":"%s",%s"preserveDefaultVlan":false,"mtu":1400,' \
        "$1" "$2" "$vlan"
    printf '"macspoofchk":true,"disableContainerInterface":true,"ipam":{}}'
}

cni() { # COMMAND NAME BRIDGE [VLAN]
    command=$1 && shift
    configuration "$@" | CNI_COMMAND=$command CNI_CONTAINERID="$1" CNI_NETNS="/run/netns/$1" $CNI_PATH/bridge >/run/cni.log ||
        { cat /run/cni.log && exit 1; }
}

case $1 in
add)
    ip netns add "$2"
    cni ADD "$2" "$3" ${5:+"$5"}
    ip -n "$2" address add "$4/24" dev net1
    ip -n "$2" link set net1 up
    ip -n "$2" link set lo up
    ;;
delete)
    cni DEL "$2" "$3" ${4:+"$4"}
    ip netns delete "$2"
    ;;
ping) ip netns exec "$2" ping -q -c 3 -i 0.3 -W 1 "$3" >/dev/null ;;
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
    ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
