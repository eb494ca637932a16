#!/bin/bash
# Starts KubeVirt's virt-handler on an emulated host, as a process in place of a DaemonSet's pod.
# usage: start-virt-handler NAME (as root, once per boot). Requires /usr/bin/virt-handler, /usr/bin/virt-chroot, the certificates
# handler and migration in /etc/virt-handler/tls, /etc/virt-handler/kubeconfig/config, and the files that node-labeller.sh
# of KubeVirt's image writes to /var/lib/kubevirt-node-labeller.
set -eu
name=$1 tls=/etc/virt-handler/tls
test -s /var/lib/kubevirt-node-labeller/capabilities.xml
# virt-handler finds the pods at this path, and refuses a symbolic link.
mkdir -p /pods
mountpoint -q /pods || mount --rbind /var/lib/kubelet/pods /pods
systemd-run --unit virt-handler --property Restart=on-failure --property RestartSec=3 \
    /usr/bin/virt-handler --kubeconfig /etc/virt-handler/kubeconfig/config --port 8443 --hostname-override "$name" \
    --pod-ip-address 10.0.2.15 --console-server-port 8186 --vmstats-server-port 8187 --graceful-shutdown-seconds 5 \
    --client-cert-file $tls/handler.crt --client-key-file $tls/handler.key \
    --tls-cert-file $tls/handler.crt --tls-key-file $tls/handler.key \
    --migration-client-cert-file $tls/migration.crt --migration-client-key-file $tls/migration.key -v 3
