#!/bin/bash
# Prepares an emulated host with AMD-V for real VMs, before its kubelet starts: modules, an uplink for tenants, space for
# images, the user of QEMU, and the configuration of the kubelet and of the pods' network.
# usage: vm-host NAME MAC (as root, once per boot). MAC is the address of the card that becomes the uplink eth1.
set -eu
name=$1 mac=$2
echo "$name" >/etc/hostname
hostname "$name"

udevadm settle --timeout 100
modprobe -a 8021q bridge tun vhost_net overlay br_netfilter
modprobe kvm_amd nested=1
# KVM interrupts all CPUs when the first VM is created and when the last VM ends, and emulated CPUs may hang in this
# interrupt. This VM without CPUs prevents further interrupts: 0xAE01 is KVM_CREATE_VM.
systemd-run --unit kvm-in-use perl -e 'open(my $kvm, "+<", "/dev/kvm") or die; ioctl($kvm, 0xAE01, 0) or die "$!"; sleep 3600 while 1'

for link in /sys/class/net/*; do
    if [ "$(cat "$link/address")" = "$mac" ] && [ -e "$link/device" ]; then
        ip link set "${link##*/}" down
        ip link set "${link##*/}" name eth1
    fi
done
# A trunk of a switch has no router for the host: QEMU's built-in router would give the card an address and a default
# route.
echo 1 >/proc/sys/net/ipv6/conf/eth1/disable_ipv6
ip link set eth1 up

# The system disk is too small for KubeVirt's image.
scratch=/dev/disk/by-id/virtio-berth-scratch
mkfs.ext4 -q "$scratch"
mkdir -p /var/lib/containerd
mount "$scratch" /var/lib/containerd

# QEMU's user in KubeVirt's images. virt-handler finds the id by the name. Debian has another group with this id.
getent group qemu >/dev/null || groupadd -o -g 107 qemu
getent passwd qemu >/dev/null || useradd -o -u 107 -g 107 -M -s /usr/sbin/nologin qemu

# The host reserves CPU 0, so only zone 1 has two CPUs for a VM. The Memory Manager requires that its reserved memory
# equals the eviction threshold.
mkdir -p /var/lib/kubelet /etc/cni/net.d
cat >/var/lib/kubelet/config.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 20Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 20Mi}}]
reservedSystemCPUs: "0"
syncFrequency: 10s
runtimeRequestTimeout: 15m
nodeLeaseDurationSeconds: 600
YAML
# containerd uses the first file: this name sorts before the name of the configuration in `kubelet.sh`.
echo '{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "attach-networks"}]}' >/etc/cni/net.d/00-pods.conflist
