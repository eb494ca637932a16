//! Launcher pods get their second interface: by the real CNI plugin `bridge`, as Multus would call it, with the definition
//! that the controller has rendered, inside the pod's own network namespace. Then who reaches whom is tried.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::seen::Vm;
use crate::cluster::ControlPlane;
use crate::host::Host;

/// All in one subnet, also those of different tenants: so it is not for want of a route that they do not meet.
const SUBNET: &str = "10.20.0";
/// The first address; what is before is for gateways.
const FIRST: usize = 11;

/// Addresses of VMs: each keeps its own as long as the demo lasts, wherever it is.
#[derive(Debug, Default)]
pub(super) struct Addresses(BTreeMap<String, usize>);

impl Addresses {
    /// The address of a VM; one that was never seen gets the next.
    pub(super) fn of(&mut self, namespace: &str, name: &str) -> String {
        let next = self.0.len();
        let place = self.0.entry(format!("{namespace}/{name}")).or_insert(next);
        format!("{SUBNET}.{}", FIRST + *place)
    }
}

/// Attaches a VM on its host, gives it its address as its guest would, and says so in its instance.
///
/// # Errors
/// If there is no definition, no pod on the host, or the plugin fails.
pub(super) fn attach(plane: &ControlPlane, host: &mut Host, vm: &Vm) -> Result<()> {
    let Vm { namespace, name, pod_uid, address, network, .. } = vm;
    let (space, definition) = network.split_once('/').context("no network beside the pods'")?;
    let object = plane.get(&["network-attachment-definitions", "-n", space, definition])?;
    let configuration = object["spec"]["config"].as_str().context("a definition without config")?;
    host.must(&format!(
        "set -e
         file=/run/{name}.json
         cat >$file <<'END'\n{configuration}\nEND
         sandbox=$(ctr -n k8s.io containers list -q \
           'labels.\"io.kubernetes.pod.uid\"=={pod_uid},labels.\"io.cri-containerd.kind\"==sandbox')
         pid=$(ctr -n k8s.io tasks list | awk -v of=\"$sandbox\" '$1 == of {{ print $2 }}')
         # What a pod before this one had is gone with it.
         umount /run/netns/{name} 2>/dev/null || true
         rm -f /run/netns/{name}
         ip netns attach {name} $pid
         own=$(stat -L -c %i /run/netns/{name})
         # Multus takes it off when the pod ends.
         setsid sh -c \"while [ -d /proc/$pid ]; do sleep 1; done
           [ \\$(stat -L -c %i /run/netns/{name}) != $own ] || {{ umount /run/netns/{name} && rm /run/netns/{name}; }}\" \
           </dev/null >/dev/null 2>&1 &
         export CNI_PATH=/usr/lib/cni CNI_IFNAME=net1 CNI_CONTAINERID={pod_uid} CNI_NETNS=/run/netns/{name}
         CNI_COMMAND=ADD $CNI_PATH/bridge <$file
         ip -n {name} address add {address}/24 dev net1 && ip -n {name} link set net1 up"
    ))?;
    let link = host.must(&format!("ip -n {name} -j link show net1"))?;
    let link: Value = serde_json::from_str(link.trim())?;
    // As the guest agent tells it.
    let told = json!({"status": {"interfaces": [
        {"name": "tenant", "ipAddress": address, "ipAddresses": [address], "mac": link[0]["address"]},
    ]}})
    .to_string();
    plane.kubectl(&["patch", "vmi", "-n", namespace, name, "--type=merge", "-p", &told])?;
    Ok(())
}

/// What became of pings from VMs of a host: from, to, and whether it was answered.
///
/// # Errors
/// If a ping could not be tried, or what was said is no answer.
pub(super) fn pings(
    host: &mut Host,
    from: &[&Vm],
    all: &[Vm],
) -> Result<Vec<(String, String, bool)>> {
    let mut script = String::from("cd /run && rm -f ping.*\n");
    for one in from {
        for other in all.iter().filter(|other| other.name != one.name) {
            // Side by side, as an unanswered one takes its time.
            script.push_str(&format!(
                "{{ tenants ping {0} {1}; echo {0} {2} $? >ping.{0}.{2}; }} &\n",
                one.name, other.address, other.name
            ));
        }
    }
    script.push_str("wait; cat ping.*");
    let said = host.must(&script)?;
    let read = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let answer = (words.next()?, words.next()?, words.next()?);
        // ping says 1 for no answer, and more for trouble of its own.
        let is_answered = match answer.2.as_str() {
            "0" => true,
            "1" => false,
            _ => return None,
        };
        Some((answer.0, answer.1, is_answered))
    };
    said.lines().map(|line| read(line).with_context(|| format!("ping: `{line}`"))).collect()
}
