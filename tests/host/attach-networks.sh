#!/bin/bash
# CNI plugin of emulated hosts whose pods are launcher pods of real VMs. It calls the real plugin `bridge` for the pod's
# network, and then, as Multus does, once for each network in the pod's annotation `k8s.v1.cni.cncf.io/networks`, with
# the configuration in the NetworkAttachmentDefinition. It writes `k8s.v1.cni.cncf.io/network-status`, which
# virt-controller reads. In the annotation, the fields name, namespace, interface and mac are supported. Requires
# /usr/local/bin/kubectl and /etc/cni/kubeconfig.
set -eu
plugins=/usr/lib/cni
# The plugins' configurations by container and interface, for the deletion.
state=/var/lib/cni/attach-networks
annotation=k8s.v1.cni.cncf.io
errors=/run/attach-networks.${CNI_CONTAINERID:-none}
pod_network='{"cniVersion":"0.4.0","name":"pods","type":"bridge","bridge":"cni0","isDefaultGateway":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/24"}]]}}'

fail() { # prints an error as the CNI specification defines it
    printf '{"cniVersion":"0.4.0","code":100,"msg":"%s"}\n' "$(tr -d '"\\' <<<"$1" | tr '\n' ' ')"
    exit 1
}
kubectl() {
    timeout 100 /usr/local/bin/kubectl --kubeconfig /etc/cni/kubeconfig --cache-dir /run/kubectl-cache "$@" </dev/null 2>"$errors"
}
bridge() { # COMMAND INTERFACE, with the configuration on standard input
    CNI_COMMAND=$1 CNI_IFNAME=$2 $plugins/bridge
}
argument() { tr ';' '\n' <<<"$CNI_ARGS" | sed -n "s/^$1=//p"; }
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$network"; }
address() { nsenter --net="$CNI_NETNS" ip -o link show "$1" | sed -n 's/.*link\/ether \([^ ]*\).*/\1/p'; }

case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
ADD)
    result=$(bridge ADD "$CNI_IFNAME" <<<"$pod_network") || { echo "$result" && exit 1; }
    namespace=$(argument K8S_POD_NAMESPACE) pod=$(argument K8S_POD_NAME)
    networks=$(kubectl get pod -n "$namespace" "$pod" -o "jsonpath={.metadata.annotations.${annotation//./\\.}/networks}") ||
        fail "pod $namespace/$pod: $(cat "$errors")"
    status="{\"name\":\"pods\",\"interface\":\"$CNI_IFNAME\",\"mac\":\"$(address "$CNI_IFNAME")\",\"default\":true,\"dns\":{}}"
    mkdir -p "$state/$CNI_CONTAINERID"
    while read -r network; do
        interface=$(field interface) space=$(field namespace) name=$(field name)
        file=$state/$CNI_CONTAINERID/$interface
        kubectl get network-attachment-definitions -n "$space" "$name" -o 'jsonpath={.spec.config}' >"$file" ||
            fail "NetworkAttachmentDefinition $space/$name: $(cat "$errors")"
        mac=$(field mac)
        # The plugin's `macspoofchk` drops frames whose source address is not the address that the plugin has set.
        attached=$(CNI_ARGS="$CNI_ARGS${mac:+;MAC=$mac}" bridge ADD "$interface" <"$file") || { echo "$attached" && exit 1; }
        status="$status,{\"name\":\"$space/$name\",\"interface\":\"$interface\",\"mac\":\"$(address "$interface")\",\"dns\":{}}"
    done < <(tr '{' '\n' <<<"$networks" | grep '"interface":"')
    if [ -n "$networks" ]; then
        kubectl annotate pod -n "$namespace" "$pod" --overwrite "$annotation/network-status=[$status]" >/dev/null ||
            fail "pod $namespace/$pod: $(cat "$errors")"
    fi
    echo "$result"
    ;;
DEL)
    for file in "$state/$CNI_CONTAINERID"/*; do
        # The pod's interfaces may have been deleted with its network namespace.
        [ ! -e "$file" ] || bridge DEL "$(basename "$file")" <"$file" >/dev/null || true
    done
    rm -rf "${state:?}/$CNI_CONTAINERID" "$errors"
    bridge DEL "$CNI_IFNAME" <<<"$pod_network"
    ;;
esac
