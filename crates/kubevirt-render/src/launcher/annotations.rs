//! Annotations of a launcher pod (`generatePodAnnotations`).
//!
//! The annotations that are the same for all launcher pods, and Istio's annotations for masquerade, are omitted.

use std::collections::BTreeMap;

use ring::digest::SHA256;
use serde::Serialize;

use super::configuration::Configuration;
use super::machine::Machine;
use super::namespace::split_network_name;
use super::spec::{Interface, Network};
use crate::hex_digest::hex_digest;

/// Annotation with the pod's secondary networks, which Multus reads.
pub(super) const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation with the network that replaces the pod network, which Multus also reads.
pub(super) const DEFAULT_NETWORK_ANNOTATION: &str = "v1.multus-cni.io/default-network";

/// Prefixes of annotations that are not copied from the machine to the pod (`filterVMIAnnotationsForPod`).
const FILTERED_PREFIXES: [&str; 3] = [
    "kubectl.kubernetes.io",
    "kubevirt.io/storage-observed-api-version",
    "kubevirt.io/latest-observed-api-version",
];

/// An entry of [`NETWORKS_ANNOTATION`] (`NetworkSelectionElement`). The fields have the same order as in Go's JSON.
#[derive(Serialize)]
struct NetworkSelection<'a> {
    name: &'a str,
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    interface: String,
    #[serde(rename = "cni-args", skip_serializing_if = "BTreeMap::is_empty")]
    cni_args: BTreeMap<&'static str, &'a str>,
}

/// Returns the annotations of the pod that depend on the machine.
pub(super) fn pod_annotations(
    machine: &Machine,
    configuration: &Configuration,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("kubevirt.io/domain".to_owned(), machine.name.clone())]);
    let is_kept = |key: &str| !FILTERED_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let own = machine.annotations.iter().filter(|(key, _)| is_kept(key));
    all.extend(own.map(|(key, value)| (key.clone(), value.clone())));
    let selections = network_selections(machine, configuration);
    if !selections.is_empty()
        && let Ok(text) = serde_json::to_string(&selections)
    {
        all.insert(NETWORKS_ANNOTATION.to_owned(), text);
    }
    let mut multus = machine.spec.networks.iter().filter_map(|network| network.multus.as_ref());
    if let Some(default) = multus.find(|multus| multus.is_default) {
        all.insert(DEFAULT_NETWORK_ANNOTATION.to_owned(), default.network_name.clone());
    }
    all
}

/// Returns the entries of [`NETWORKS_ANNOTATION`], in the order of the machine's interfaces
/// (`FilterNetworksByInterfaces`, `GenerateCNIAnnotation`): secondary networks, and networks of network binding
/// plugins.
fn network_selections<'a>(
    machine: &'a Machine,
    configuration: &'a Configuration,
) -> Vec<NetworkSelection<'a>> {
    let spec = &machine.spec;
    let mut selections = Vec::new();
    let attached = spec.domain.devices.interfaces.iter().filter(|it| it.state != "absent");
    for interface in attached {
        let Some(network) = spec.networks.iter().find(|it| it.name == interface.name) else {
            continue;
        };
        selections.extend(secondary_network(machine, interface, network));
        let binding = interface.binding.as_ref();
        let plugin = binding.and_then(|binding| configuration.bindings.get(&binding.name));
        let definition = plugin.map_or("", |plugin| plugin.network_attachment_definition.as_str());
        if !definition.is_empty() {
            let (namespace, name) = split_network_name(&machine.namespace, definition);
            selections.push(NetworkSelection {
                name,
                namespace,
                mac: "",
                interface: String::new(),
                cni_args: [("logicNetworkName", network.name.as_str())].into(),
            });
        }
    }
    selections
}

/// Returns the entry of a secondary Multus network (`newAnnotationData`). The name of the interface in the pod is a
/// hash of the network's name (`GenerateHashedInterfaceName`).
fn secondary_network<'a>(
    machine: &'a Machine,
    interface: &'a Interface,
    network: &'a Network,
) -> Option<NetworkSelection<'a>> {
    let multus = network.multus.as_ref().filter(|multus| !multus.is_default)?;
    let (namespace, name) = split_network_name(&machine.namespace, &multus.network_name);
    Some(NetworkSelection {
        name,
        namespace,
        mac: &interface.mac_address,
        interface: format!("pod{}", hex_digest(&SHA256, &network.name, 11)),
        cni_args: BTreeMap::new(),
    })
}
