//! NetworkPolicies for the pods that CDI and KubeVirt run in a tenant's namespace.
//!
//! Labels and ports are those of CDI 1.60 to 1.63 (`pkg/common/common.go`,
//! `pkg/operator/resources/namespaced/networkpolicies.go`): importers download images, cdi-uploadproxy and the source
//! pods of clones send data to upload servers, and cdi-deployment reads the progress of importers. Live migration needs
//! no rule: launcher pods communicate with virt-handler through Unix sockets, and virt-handlers communicate with each
//! other in KubeVirt's own namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::InfraConfigSpec;
use berth_api::names::TENANT_LABEL;
use serde_json::{Value, json};

use super::peers::{single_address_peer, tcp_ports};
use crate::tenants::cluster::NAMESPACE_NAME_LABEL;

/// Name of the NetworkPolicy that permits importers to connect to image servers.
pub(super) const IMPORTER_POLICY: &str = "allow-kubevirt-importer";
/// Name of the NetworkPolicy that permits CDI to connect to its pods in the tenant's namespace.
pub(super) const CDI_POLICY: &str = "berth-allow-cdi";
/// Name of the NetworkPolicy that permits virt-api to connect to VMs.
pub(super) const VIRT_API_POLICY: &str = "berth-allow-virt-api";

/// Port on which upload servers receive data, and on which importers report their progress.
const CDI_PORT: u16 = 8443;
/// Ports that are permitted for image servers whose URLs contain no port.
const WEB_PORTS: [u16; 2] = [80, 443];

/// Returns the selector of namespaces that belong to no tenant. Without this selector, a tenant could set the labels of
/// CDI or KubeVirt on its own pods, and connect to pods of other tenants.
fn infra_namespaces_selector() -> Value {
    json!({"matchExpressions": [{"key": TENANT_LABEL, "operator": "DoesNotExist"}]})
}

/// Returns the selector of CDI's pods that also have these labels. A tenant can set the labels of CDI on its launcher
/// pods, because the labels in the template of a MachineDeployment are copied to them. Launcher pods are therefore
/// excluded by the label `kubevirt.io`, which KubeVirt sets on every launcher pod, and CDI on none of its pods.
fn cdi_pod_selector(mut labels: Value) -> Value {
    labels["app"] = "containerized-data-importer".into();
    json!({
        "matchLabels": labels,
        "matchExpressions": [{"key": "kubevirt.io", "operator": "DoesNotExist"}],
    })
}

/// Returns the NetworkPolicy that permits importers to connect to image servers on the internet, to the image servers
/// in the InfraConfig, and to pods of the infra cluster with the label `app: image-repo`. `internet` must exclude the
/// infra cluster's own addresses: otherwise a DataVolume of a tenant could read data from them.
pub(super) fn importer_policy_spec(config: &InfraConfigSpec, internet: &[Value]) -> Value {
    let image_repo = json!({
        "namespaceSelector": infra_namespaces_selector(), "podSelector": {"matchLabels": {"app": "image-repo"}},
    });
    let mut egress = vec![json!({"to": [image_repo]})];
    let mut ports = BTreeSet::from(WEB_PORTS);
    for source in image_urls(config).filter_map(ImageUrlHost::from_url) {
        match source {
            ImageUrlHost::Name(port) => drop(ports.insert(port)),
            ImageUrlHost::Address(address, port) => {
                egress.push(
                    json!({"to": [single_address_peer(address)], "ports": tcp_ports(&[port].into())}),
                );
            }
            ImageUrlHost::Namespace(name) => {
                let peer =
                    json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME_LABEL: name}}});
                egress.push(json!({"to": [peer]}));
            }
        }
    }
    for source in &config.image_sources {
        let ports = if source.ports.is_empty() {
            WEB_PORTS.into()
        } else {
            source.ports.iter().copied().collect()
        };
        let block = json!({"ipBlock": {"cidr": source.cidr.trunc()}});
        egress.push(json!({"to": [block], "ports": tcp_ports(&ports)}));
    }
    if !internet.is_empty() {
        egress.push(json!({"to": internet, "ports": tcp_ports(&ports)}));
    }
    let mut unique: Vec<Value> = Vec::new();
    for rule in egress {
        if !unique.contains(&rule) {
            unique.push(rule);
        }
    }
    json!({
        "podSelector": cdi_pod_selector(json!({"cdi.kubevirt.io": "importer"})), "policyTypes": ["Egress"], "egress": unique,
    })
}

/// Returns the NetworkPolicy that permits CDI's control plane, and the source pods of clones, to connect to CDI's pods.
pub(super) fn cdi_policy_spec() -> Value {
    let from = json!({
        "namespaceSelector": infra_namespaces_selector(),
        "podSelector": {"matchExpressions": [{
            "key": "cdi.kubevirt.io", "operator": "In",
            "values": ["cdi-clone-source", "cdi-deployment", "cdi-uploadproxy"],
        }]},
    });
    json!({
        "podSelector": cdi_pod_selector(json!({})), "policyTypes": ["Ingress"],
        "ingress": [{"from": [from], "ports": tcp_ports(&[CDI_PORT].into())}],
    })
}

/// Returns the NetworkPolicy that permits virt-api to forward ports to VMs for authorized users (`virtctl ssh`,
/// `virtctl port-forward`).
pub(super) fn virt_api_policy_spec() -> Value {
    let from = json!({
        "namespaceSelector": infra_namespaces_selector(), "podSelector": {"matchLabels": {"kubevirt.io": "virt-api"}},
    });
    json!({
        "podSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": [from]}],
    })
}

/// Returns the image URLs in the InfraConfig. URLs in MachineDeployments are not used, because tenants write them.
fn image_urls(config: &InfraConfigSpec) -> impl Iterator<Item = &str> {
    let http = config.images.iter().filter_map(|images| images.http.as_ref());
    let versions = http.flat_map(|http| http.operating_systems.values());
    let versions = versions.flat_map(|versions| versions.values().map(String::as_str));
    let catalog = config.images.iter().flat_map(|images| &images.catalog);
    versions.chain(catalog.map(|entry| entry.image.as_str()))
}

/// Destination of an image URL.
#[derive(Debug, PartialEq, Eq)]
enum ImageUrlHost {
    /// Host name and port. A NetworkPolicy cannot contain a host name, so this port is permitted for the whole
    /// internet.
    Name(u16),
    Address(IpAddr, u16),
    /// Namespace of a Service in the infra cluster. The port is not stored: NetworkPolicies apply to the port of the
    /// pods, which may differ from the port in the URL.
    Namespace(String),
}

impl ImageUrlHost {
    fn from_url(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let standard = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
        };
        let port = port.filter(|port| !port.is_empty());
        let port = port.map_or(Some(standard), |port| port.parse().ok())?;
        if let Ok(address) = host.parse() {
            return Some(Self::Address(address, port));
        }
        let parts: Vec<&str> = host.trim_end_matches('.').split('.').collect();
        match parts.as_slice() {
            [_, namespace, "svc", ..] => Some(Self::Namespace((*namespace).to_owned())),
            _ => Some(Self::Name(port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_urls_are_parsed() {
        let address = |text: &str, port| ImageUrlHost::Address(text.parse().unwrap(), port);
        for (url, source) in [
            ("https://cloud-images.ubuntu.com/noble/n.img", Some(ImageUrlHost::Name(443))),
            ("http://images.example:8080?x=/y", Some(ImageUrlHost::Name(8080))),
            ("http://user:secret@10.0.0.7/u.img", Some(address("10.0.0.7", 80))),
            ("https://[2001:db8::7]:8443/u.img", Some(address("2001:db8::7", 8443))),
            (
                "http://images.registry.svc.cluster.local/u",
                Some(ImageUrlHost::Namespace("registry".to_owned())),
            ),
            (
                "http://images.registry.svc:5000/u",
                Some(ImageUrlHost::Namespace("registry".to_owned())),
            ),
            ("http://images:high/u", None),
            ("ftp://images/u", None),
            ("images", None),
        ] {
            assert_eq!(ImageUrlHost::from_url(url), source, "{url}");
        }
    }
}
