#!/bin/sh
# Prints a kubeconfig for the agent that systemd runs on one node, with a client certificate for user berth:agent:NODE in
# group berth:agents. To renew it, run the same command again. Requires openssl, and the permissions to create, approve and
# delete CertificateSigningRequests for signer kubernetes.io/kube-apiserver-client.
# usage: deploy/agent-kubeconfig.sh NODE [DAYS] >kubeconfig
set -eu

node=${1:?usage: agent-kubeconfig.sh NODE [DAYS]}
days=${2:-30}
request=berth-agent-$node
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
umask 077

# The certificate gives access to the Node of this name, so do not create one for a Node that does not exist.
kubectl get node "$node" >/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/key" -out "$work/csr" \
    -subj "/O=berth:agents/CN=berth:agent:$node" 2>"$work/log" || {
    cat "$work/log" >&2
    exit 1
}
kubectl delete csr "$request" --ignore-not-found >/dev/null
# A server before 1.22 does not support expirationSeconds and signs for a year; its kubectl would reject the field.
kubectl create --validate=false -f - >/dev/null <<END
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata:
  name: $request
spec:
  signerName: kubernetes.io/kube-apiserver-client
  expirationSeconds: $((days * 86400))
  usages: [digital signature, client auth]
  request: $(base64 -w 0 "$work/csr")
END
kubectl certificate approve "$request" >/dev/null
tries=0
until certificate=$(kubectl get csr "$request" -o 'jsonpath={.status.certificate}') && [ "$certificate" ]; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || {
        echo "agent-kubeconfig.sh: CertificateSigningRequest $request was approved, but not signed within a minute" >&2
        exit 1
    }
    sleep 1
done
kubectl delete csr "$request" >/dev/null

kubectl config view --raw --minify --flatten -o 'jsonpath={.clusters[0].cluster}' >"$work/cluster"
cat <<END
apiVersion: v1
kind: Config
clusters:
- name: cluster
  cluster: $(cat "$work/cluster")
users:
- name: berth:agent:$node
  user:
    client-certificate-data: $certificate
    client-key-data: $(base64 -w 0 "$work/key")
contexts:
- name: berth
  context: {cluster: cluster, user: "berth:agent:$node", namespace: berth-system}
current-context: berth
END
