//! Attaches launcher pods to their second network: the real CNI plugin `bridge` runs inside the pod's own network
//! namespace, as Multus would call it, with the NetworkAttachmentDefinition that the controller has rendered. Pings
//! then test which VMs reach each other.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::cluster_state::Vm;
use crate::cluster::ControlPlane;
use crate::host::Host;

/// Common subnet of all VMs, also of VMs of different tenants: a missing route is therefore never the cause of a failed
/// ping between tenants.
const SUBNET_PREFIX: &str = "10.20.0";
/// Last byte of the first VM address; lower addresses are for gateways.
const FIRST_VM_ADDRESS: usize = 11;

/// Addresses of VMs. The address of a VM stays the same until the demo ends, on any host.
#[derive(Debug, Default)]
pub(super) struct Addresses(BTreeMap<String, usize>);

impl Addresses {
    /// Returns the address of a VM; a new VM gets the next free address.
    pub(super) fn address_of_vm(&mut self, namespace: &str, name: &str) -> String {
        let next = self.0.len();
        let place = self.0.entry(format!("{namespace}/{name}")).or_insert(next);
        format!("{SUBNET_PREFIX}.{}", FIRST_VM_ADDRESS + *place)
    }
}

/// Attaches a VM on its host, sets the address as a guest would, and writes the address to the status of the
/// instance. `kubeconfig` must have the permission to write this status.
///
/// # Errors
/// Fails if there is no NetworkAttachmentDefinition, if the host has no pod of the VM, or if the plugin fails.
pub(super) fn attach(
    plane: &ControlPlane,
    kubeconfig: &Path,
    host: &mut Host,
    vm: &Vm,
) -> Result<()> {
    let Vm { namespace, name, pod_uid, address, network, .. } = vm;
    let (space, definition) = network.split_once('/').context("the VM has no second network")?;
    let object = plane.get_json(&["network-attachment-definitions", "-n", space, definition])?;
    let configuration = object["spec"]["config"]
        .as_str()
        .context("the NetworkAttachmentDefinition has no spec.config")?;
    host.run_checked(&format!(
        "set -e
         file=/run/{name}.json
         cat >$file <<'END'\n{configuration}\nEND
         sandbox=$(ctr -n k8s.io containers list -q \
           'labels.\"io.kubernetes.pod.uid\"=={pod_uid},labels.\"io.cri-containerd.kind\"==sandbox')
         pid=$(ctr -n k8s.io tasks list | awk -v of=\"$sandbox\" '$1 == of {{ print $2 }}')
         # The network of the VM's former pod was deleted with that pod.
         umount /run/netns/{name} 2>/dev/null || true
         rm -f /run/netns/{name}
         ip netns attach {name} $pid
         own=$(stat -L -c %i /run/netns/{name})
         # Multus removes the network when the pod ends.
         setsid sh -c \"while [ -d /proc/$pid ]; do sleep 1; done
           [ \\$(stat -L -c %i /run/netns/{name}) != $own ] || {{ umount /run/netns/{name} && rm /run/netns/{name}; }}\" \
           </dev/null >/dev/null 2>&1 &
         export CNI_PATH=/usr/lib/cni CNI_IFNAME=net1 CNI_CONTAINERID={pod_uid} CNI_NETNS=/run/netns/{name}
         CNI_COMMAND=ADD $CNI_PATH/bridge <$file
         ip -n {name} address add {address}/24 dev net1 && ip -n {name} link set net1 up"
    ))?;
    let link = host.run_checked(&format!("ip -n {name} -j link show net1"))?;
    let link: Value = serde_json::from_str(link.trim())?;
    // The guest agent of a real VM reports the address in this format.
    let status = json!({"status": {"interfaces": [
        {"name": "tenant", "ipAddress": address, "ipAddresses": [address], "mac": link[0]["address"]},
    ]}})
    .to_string();
    let patch = ["patch", "vmi", "-n", namespace, name, "--type=merge", "-p", &status];
    plane.kubectl_with(kubeconfig, &patch, "")?;
    Ok(())
}

/// Returns the results of pings from VMs of a host: source, destination, and true if there was an answer.
///
/// # Errors
/// Fails if a ping could not be sent, or if the output of ping cannot be parsed.
pub(super) fn send_pings(
    host: &mut Host,
    from: &[&Vm],
    all: &[Vm],
) -> Result<Vec<(String, String, bool)>> {
    let mut script = String::from("cd /run && rm -f ping.*\n");
    for one in from {
        for other in all.iter().filter(|other| other.name != one.name) {
            // The pings run in parallel, because an unanswered ping runs until its timeout.
            script.push_str(&format!(
                "{{ tenants ping {0} {1}; echo {0} {2} $? >ping.{0}.{2}; }} &\n",
                one.name, other.address, other.name
            ));
        }
    }
    script.push_str("wait; cat ping.*");
    let output = host.run_checked(&script)?;
    let read = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let answer = (words.next()?, words.next()?, words.next()?);
        // ping exits with 1 if there is no answer, and with a higher code for other errors.
        let is_answered = match answer.2.as_str() {
            "0" => true,
            "1" => false,
            _ => return None,
        };
        Some((answer.0, answer.1, is_answered))
    };
    output
        .lines()
        .map(|line| read(line).with_context(|| format!("unexpected result of a ping: `{line}`")))
        .collect()
}
