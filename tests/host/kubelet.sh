#!/bin/bash
# Starts containerd and the real kubelet on an emulated host; the kubelet joins the control plane of the tests.
# usage: kubelet NAME HOST:PORT (as root, once per boot; requires these files in /etc/kubelet: kubelet, kubeconfig, and
# optionally `flags` with additional flags)
set -eu
name=$1 server=$2

# Routes the connections of the kubelet, and those of pods to the address of the first Service, to the loopback of the
# machine that runs the tests, because no kube-proxy runs.
link=$(ip -o link | awk '/52:54:00:12:34:56/ { sub(":", "", $2); print $2; exit }')
ip link set "$link" up
ip addr replace 10.0.2.15/24 dev "$link"
ip route replace default via 10.0.2.2
port=${server##*:}
nft -f - <<NFT
table ip berth_tests
delete table ip berth_tests
table ip berth_tests {
    chain output {
        type nat hook output priority -100
        ip daddr 10.96.0.1 tcp dport 443 dnat to 10.0.2.2:$port
    }
    chain prerouting {
        type nat hook prerouting priority -100
        ip daddr 10.96.0.1 tcp dport 443 dnat to 10.0.2.2:$port
    }
    chain postrouting {
        type nat hook postrouting priority 100
        ip saddr 10.244.0.0/24 oifname "$link" masquerade
    }
}
NFT
grep -q " $name\$" /etc/hosts || echo "10.0.2.15 $name" >>/etc/hosts
# Pods get the host's resolver.
[ -e /etc/resolv.conf ] || echo "nameserver 10.0.2.3" >/etc/resolv.conf
modprobe -a overlay br_netfilter

# An image with only busybox, for the sandboxes and the pods of the tests.
if [ ! -e /var/lib/kubelet-tests/image.tar ]; then
    work=$(mktemp -d)
    mkdir -p "$work/layer/bin" "$work/image" /var/lib/kubelet-tests
    cp /bin/busybox "$work/layer/bin/busybox"
    ln -s busybox "$work/layer/bin/sh"
    ln -s busybox "$work/layer/bin/sleep"
    tar -C "$work/layer" --owner=0 --group=0 -cf "$work/image/layer.tar" .
    sum=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
    echo "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{\"Entrypoint\":[\"/bin/sleep\",\"1000000\"]},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$sum\"]}}" \
        >"$work/image/config.json"
    echo '[{"Config":"config.json","RepoTags":["berth.test/busybox:1"],"Layers":["layer.tar"]}]' >"$work/image/manifest.json"
    tar -C "$work/image" -cf /var/lib/kubelet-tests/image.tar .
    rm -r "$work"
fi

mkdir -p /etc/containerd /etc/cni/net.d /opt/cni /etc/kubelet
[ -e /opt/cni/bin ] || ln -s /usr/lib/cni /opt/cni/bin
cat >/etc/containerd/config.toml <<'TOML'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "berth.test/busybox:1"
TOML
cat >/etc/cni/net.d/10-tests.conflist <<'JSON'
{"cniVersion": "0.4.0", "name": "tests", "plugins": [{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}}]}
JSON
# The cgroup driver does not matter to the agent; every kubelet supports cgroupfs.
# The file has the same path as with kubeadm.
mkdir -p /var/lib/kubelet
[ -e /var/lib/kubelet/config.yaml ] || cat >/var/lib/kubelet/config.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 20Mi, nodefs.available: 1%, imagefs.available: 1%}
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
topologyManagerPolicy: best-effort
reservedSystemCPUs: "0"
syncFrequency: 10s
YAML
# Go's garbage collector and its spinning idle threads take much of the time of emulated CPUs. The host has enough
# memory for less frequent collections.
environment="GOGC=200 GOMAXPROCS=2"
runtime=
[ "$(/etc/kubelet/kubelet --version)" \< "Kubernetes v1.24" ] && runtime=--container-runtime=remote
cat >/etc/systemd/system/kubelet.service <<UNIT
[Unit]
After=containerd.service
Wants=containerd.service
[Service]
Environment=$environment
ExecStart=/etc/kubelet/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubelet/kubeconfig \
  --hostname-override=$name $runtime $(cat /etc/kubelet/flags 2>/dev/null || true) --container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=2
Restart=always
RestartSec=2
UNIT
# The image masks containerd, so that it does not start by itself.
rm -f /etc/systemd/system/containerd.service
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\nEnvironment=%s\n' "$environment" >/etc/systemd/system/containerd.service.d/tests.conf
systemctl daemon-reload
systemctl restart containerd
timeout 60 sh -c "until ctr version >/dev/null 2>&1; do sleep 1; done"
# Imports the busybox image, and the images that a test has put into the same folder.
for image in /var/lib/kubelet-tests/*.tar; do ctr -n k8s.io images import "$image"; done
systemctl restart kubelet
