#!/bin/bash
# Writes the files of this host that `berth-agent --root` reads to an archive. usage: tests/capture.sh FILE.tgz
# As root, the capture is more complete. The kernel reports no correct size for files of /proc and /sys, so the script
# copies their content.
set -eu
out=${1:?usage: tests/capture.sh FILE.tgz}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
export LC_ALL=C

copy() { # copies one file
    mkdir -p "$tree${1%/*}"
    timeout 2 cat "$1" >"$tree$1" 2>/dev/null || rm -f "$tree$1"
    # The modification times of the files show with which configuration a kubelet was started.
    touch -cr "$1" "$tree$1" 2>/dev/null || true
}
link() { # copies one symbolic link without resolving it
    mkdir -p "$tree${1%/*}"
    cp -dn "$1" "$tree$1" 2>/dev/null || true
}
# Copies the readable attributes of a folder of sysfs, and its links. The second argument is the depth (default 1).
attributes() {
    find "$1" -maxdepth "${2:-1}" \( -type f -perm /444 -size -64k \) 2>/dev/null |
        grep -vE '/(uevent_helper|trace|rom|config|resource[0-9_wc]*|vpd|statistics|power)(/|$)' |
        while read -r file; do copy "$file"; done
    find "$1" -maxdepth "${2:-1}" -type l 2>/dev/null | while read -r file; do link "$file"; done
}

for file in /proc/{cpuinfo,meminfo,cmdline,swaps,version,cgroups,modules} /proc/self/mountinfo \
    /proc/sys/kernel/{hostname,osrelease} /proc/sys/kernel/random/boot_id \
    /proc/net/{route,ipv6_route,arp} /proc/net/vlan/config /etc/{os-release,machine-id,hostname} \
    /var/lib/dbus/machine-id /var/lib/kubelet/{config.yaml,cpu_manager_state,memory_manager_state,kubeadm-flags.env} \
    /etc/default/kubelet /etc/sysconfig/kubelet; do
    copy "$file"
done
mkdir -p "$tree/proc"
grep '^btime ' /proc/stat >"$tree/proc/stat" || true
for irq in /proc/irq/[0-9]*; do
    copy "$irq/smp_affinity_list"
    copy "$irq/effective_affinity_list"
done
for process in /proc/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in
    kthreadd | kubelet | k3s-* | kubelite | ksmtuned | virt-handler | virt-launcher* | qemu-* | irqbalance | NetworkManager | systemd-network)
        copy "$process/comm"
        copy "$process/cmdline"
        copy "$process/cgroup"
        copy "$process/stat"
        copy "$process/status"
        ;;
    esac
done
attributes /sys/devices/system/cpu 3
attributes /sys/devices/system/node 4
attributes /sys/kernel/mm 4
attributes /sys/class/dmi/id/
copy /sys/fs/cgroup/cgroup.controllers
for unit in cpu_core cpu_atom; do copy "/sys/devices/$unit/cpus"; done
# An empty folder means that the host has no IOMMU; a missing folder means that it was not captured.
mkdir -p "$tree/sys/kernel/iommu_groups"
for group in /sys/kernel/iommu_groups/*; do [ -d "$group" ] && mkdir -p "$tree$group/devices" && attributes "$group/devices"; done
[ -d /sys/bus/pci/drivers/vfio-pci ] && mkdir -p "$tree/sys/bus/pci/drivers/vfio-pci"
for module in /sys/module/*; do mkdir -p "$tree$module"; done
for module in kvm kvm_intel kvm_amd zswap; do attributes "/sys/module/$module/parameters"; done
for table in DMAR IVRS IORT; do
    [ -e "/sys/firmware/acpi/tables/$table" ] && mkdir -p "$tree/sys/firmware/acpi/tables" && : >"$tree/sys/firmware/acpi/tables/$table"
done
for misc in kvm tun vhost-net vhost-vsock sev; do
    [ -e "/sys/devices/virtual/misc/$misc" ] && mkdir -p "$tree/sys/devices/virtual/misc/$misc"
done
for entry in /sys/class/{net,block,nvme}/* /sys/block/* /sys/bus/pci/devices/*; do
    [ -e "$entry" ] || continue
    if [ -L "$entry" ]; then
        link "$entry"
        entry=$(readlink -f "$entry")
    fi
    attributes "$entry"
    for part in bridge bonding; do [ -d "$entry/$part" ] && attributes "$entry/$part" && mkdir -p "$tree$entry/$part"; done
    if [ -d "$entry/holders" ]; then
        mkdir -p "$tree$entry/holders"
        attributes "$entry/holders"
    fi
    if [ -r "$entry/dev" ]; then
        read -r number <"$entry/dev" || number=
        [ -n "$number" ] && copy "/run/udev/data/b$number"
    fi
done
for device in kvm sev vhost-net vhost-vsock net/tun; do
    [ -e "/dev/$device" ] && mkdir -p "$tree/dev/net" && : >"$tree/dev/$device"
done
tar -czf "$out" -C "$tree" .
echo "the capture is in $out; to test it: mkdir tree && tar -xzf $out -C tree && berth-agent report --root tree"
