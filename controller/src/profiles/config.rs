//! Static validation of the InfraConfig.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim, VlanSet};
use berth_placement::rules::is_label_key;

use super::host_devices::host_device_problems;
use super::images::image_problems;
use crate::tenant_nodes::keys::FieldKind;
use crate::tenants::prefixes::pool as prefix_pool;
use crate::tenants::shared_segment;

/// Returns the problems of an InfraConfig, each as a message with field and value; the list is empty if there is no
/// problem. `networks` contains the host networks of all HostProfiles.
#[must_use]
pub fn config_problems(
    config: &InfraConfigSpec,
    networks: &BTreeSet<String>,
    claims: &[Arc<VlanClaim>],
) -> Vec<String> {
    let mut problems = pool_problems(config, networks);
    problems.extend(shared_segment::config_problems(config, networks, claims));
    problems.extend(prefix_pool::config_problems(config));
    let names = config.address_pools.iter().map(|pool| pool.name.as_str());
    problems.extend(duplicate_problems("addressPools", names));
    problems.extend(cluster_problems(config));
    let names = config.custom_network_policies.iter().map(|policy| policy.name.as_str());
    problems.extend(duplicate_problems("customNetworkPolicies", names));
    let classes = &config.infra_storage_classes;
    problems.extend(duplicate_problems(
        "infraStorageClasses",
        classes.iter().map(|class| class.name.as_str()),
    ));
    let defaults = classes.iter().filter(|class| class.is_default_class == Some(true));
    let (of_machines, of_tenants): (Vec<_>, Vec<_>) = (
        defaults.clone().filter(|class| class.is_for_machines()).collect(),
        defaults.filter(|class| class.is_for_tenants()).collect(),
    );
    if let Some(several) = [of_machines, of_tenants].into_iter().find(|all| all.len() > 1) {
        let all: Vec<&str> = several.iter().map(|class| class.name.as_str()).collect();
        let all = all.join(", ");
        problems.push(format!(
            "infraStorageClasses: {all} have isDefaultClass, but only one class may have it"
        ));
    }
    let labels = config.replicated_node_labels.as_deref().unwrap_or_default();
    for (field, kind, entries) in [
        ("replicatedNodeLabels", FieldKind::Label, labels),
        ("replicatedNodeAnnotations", FieldKind::Annotation, &config.replicated_node_annotations),
        ("replicatedNodeTaints", FieldKind::Taint, &config.replicated_node_taints),
    ] {
        for (at, entry) in entries.iter().enumerate() {
            if let Some(problem) = replicated_key_problem(kind, entry) {
                problems.push(format!("{field}[{at}]: `{entry}` {problem}"));
            }
        }
    }
    let spread = config.control_plane_spread();
    if !is_label_key(spread.topology_key()) {
        let (key, field) = (spread.topology_key(), "placement.controlPlaneSpread.topologyKey");
        problems.push(format!(
            "{field}: `{key}` is not a label key, so control-plane VMs are not spread; set a key \
             such as topology.kubernetes.io/zone"
        ));
    }
    for (at, prefix) in config.annotation_prefixes.iter().enumerate() {
        if !InfraConfigSpec::is_valid_annotation_prefix(prefix) {
            let problem = "has no domain before a `/` and is ignored";
            problems.push(format!("annotationPrefixes[{at}]: `{prefix}` {problem}"));
        }
    }
    if let Some(images) = &config.images {
        problems.extend(image_problems(images));
        let names = images.catalog.iter().map(|entry| entry.image.as_str());
        problems.extend(duplicate_problems("images.catalog", names));
    }
    if let Some(devices) = &config.host_devices {
        problems.extend(host_device_problems(devices));
        let names = devices.allowed.iter().map(|allowed| allowed.resource_name.as_str());
        problems.extend(duplicate_problems("hostDevices.allowed", names));
    }
    problems
}

/// Returns the problems of the fields from which the NetworkPolicies of tenants are rendered.
fn cluster_problems(config: &InfraConfigSpec) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(dns) = &config.cluster_dns {
        for (field, labels) in
            [("namespaceLabels", &dns.namespace_labels), ("podLabels", &dns.pod_labels)]
        {
            if labels.is_empty() {
                problems
                    .push(format!("clusterDNS.{field}: is empty and would select every object"));
            }
        }
    }
    for (at, network) in config.cluster_networks.iter().enumerate() {
        if network.prefix_len() == 0 {
            problems.push(format!("clusterNetworks[{at}]: `{network}` includes every address"));
        }
    }
    problems
}

fn pool_problems(config: &InfraConfigSpec, networks: &BTreeSet<String>) -> Vec<String> {
    let mut problems: Vec<String> =
        duplicate_problems("vlanPools", config.vlan_pools.iter().map(|pool| pool.network.as_str()))
            .collect();
    let mut taken: BTreeMap<&str, VlanSet> = BTreeMap::new();
    for pool in &config.vlan_pools {
        let network = pool.network.as_str();
        if !networks.contains(network) {
            problems.push(format!(
                "vlanPools[{network}]: no HostProfile has a host network of this name"
            ));
        }
        let taken = taken.entry(network).or_default();
        for ranges in &pool.ranges {
            let (mut repeated, mut unassignable) = (VlanSet::default(), VlanSet::default());
            for id in ranges.ids().iter() {
                if !id.is_allowed_for_tenants() {
                    unassignable.insert(id);
                }
                if !taken.insert(id) {
                    repeated.insert(id);
                }
            }
            let ranges = String::from(ranges.clone());
            if !repeated.is_empty() {
                problems.push(format!("vlanPools[{network}]: `{ranges}` has VLANs {repeated} that the pool already contains"));
            }
            if !unassignable.is_empty() {
                problems.push(format!(
                    "vlanPools[{network}]: `{ranges}` has VLANs {unassignable} that cannot be \
                     assigned to tenants"
                ));
            }
        }
    }
    problems
}

fn duplicate_problems<'a>(
    field: &'a str,
    names: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = String> {
    let mut seen = BTreeMap::new();
    names.for_each(|name| *seen.entry(name).or_insert(0_u32) += 1);
    let duplicates = seen.into_iter().filter(|(_, count)| *count > 1);
    duplicates.map(move |(name, count)| format!("{field}: `{name}` is listed {count} times"))
}

/// Returns the problem of an entry of a list of labels, annotations or taints; `None` if the entry is a valid key, or a
/// valid prefix of keys followed by `*`.
fn replicated_key_problem(kind: FieldKind, entry: &str) -> Option<&'static str> {
    let key = entry.strip_suffix('*').unwrap_or(entry);
    if entry == "*" {
        return Some("would replicate every key; set a prefix before the `*`");
    }
    if key.contains('*') {
        return Some("must have its `*` at the end");
    }
    if kind.describes_node_itself(key) {
        return Some(
            "describes the tenant's Node itself and is not copied; use another key on the hosts",
        );
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let slashes = key.matches('/').count();
    (key.is_empty() || !key.chars().all(fits) || slashes > 1).then_some("is not a key")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(config: Value) -> Vec<String> {
        let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
        config_problems(&config, &BTreeSet::from(["trunk".to_owned()]), &[])
    }

    #[test]
    fn a_valid_config_has_no_problems() {
        assert_eq!(problems(json!({})), Vec::<String>::new());
        let whole = json!({"vlanPools": [{"network": "trunk", "ranges": ["100-199", "300"]}],
            "replicatedNodeLabels": ["topology.kubernetes.io/zone", "host.berth.dev/*", "rack"],
            "infraStorageClasses": [
                {"name": "fast", "isDefaultClass": true, "volumeProvisioner": "infra-csi-driver"},
                {"name": "slow", "isDefaultClass": true, "volumeProvisioner": "kubevirt-csi-driver"},
            ],
            "placement": {"controlPlaneSpread": {"topologyKey": "topology.kubernetes.io/zone", "weight": 50}},
            "images": {"http": {"operatingSystems": {"ubuntu": {"22.04": "https://images/u.img"}}}}});
        assert_eq!(problems(whole), Vec::<String>::new());
    }

    #[test]
    fn each_problem_has_its_field_and_value() {
        for (config, words) in [
            (
                json!({"vlanPools": [{"network": "trunk", "ranges": ["100-110", "105-120"]}]}),
                "105-110",
            ),
            (
                json!({"vlanPools": [{"network": "trunk", "ranges": ["1-3"]}]}),
                "`1-3` has VLANs 1 that",
            ),
            (
                json!({"vlanPools": [{"network": "x", "ranges": ["5"]}]}),
                "vlanPools[x]: no HostProfile",
            ),
            (
                json!({"infraStorageClasses": [{"name": "a", "isDefaultClass": true}, {"name": "b", "isDefaultClass": true}]}),
                "a, b",
            ),
            (
                json!({"infraStorageClasses": [
                    {"name": "a", "isDefaultClass": true, "volumeProvisioner": "infra-csi-driver"},
                    {"name": "b", "isDefaultClass": true, "volumeProvisioner": "kubevirt-csi-driver"},
                    {"name": "c", "isDefaultClass": true},
                ]}),
                "infraStorageClasses: a, c have isDefaultClass",
            ),
            (
                json!({"infraStorageClasses": [{"name": "a"}, {"name": "a"}]}),
                "`a` is listed 2 times",
            ),
            (
                json!({"clusterDNS": {"namespaceLabels": {"a": "b"}, "podLabels": {}}}),
                "clusterDNS.podLabels: is empty",
            ),
            (json!({"clusterNetworks": ["10.0.0.0/8", "::/0"]}), "clusterNetworks[1]: `::/0`"),
            (
                json!({"segments": [{"name": "s", "networks": ["trnk"]}]}),
                "segments[s]: no HostProfile has a host network of the name `trnk`",
            ),
            (
                json!({"addressPools": [{"name": "corp", "cidr": "10.0.0.0/16", "prefixLength": 31}]}),
                "addressPools[corp].prefixLength: 31 is not from 16 to 30",
            ),
            (json!({"replicatedNodeLabels": ["a*b"]}), "replicatedNodeLabels[0]: `a*b`"),
            (json!({"replicatedNodeLabels": ["x", "*"]}), "replicatedNodeLabels[1]: `*`"),
            (json!({"replicatedNodeLabels": ["a b"]}), "is not a key"),
            (
                json!({"replicatedNodeLabels": ["kubernetes.io/hostname"]}),
                "describes the tenant's Node",
            ),
            (
                json!({"placement": {"controlPlaneSpread": {"topologyKey": "a rack"}}}),
                "placement.controlPlaneSpread.topologyKey: `a rack`",
            ),
            (
                json!({"replicatedNodeAnnotations": ["a.b/*", "kubevirt.io/*"]}),
                "replicatedNodeAnnotations[1]: `kubevirt.io/*` describes",
            ),
            (
                json!({"replicatedNodeTaints": ["node.kubernetes.io/unschedulable"]}),
                "replicatedNodeTaints[0]: `node.kubernetes.io/unschedulable`",
            ),
            (json!({"annotationPrefixes": ["a.b/", "k8s"]}), "annotationPrefixes[1]: `k8s`"),
            (json!({"annotationPrefixes": ["/"]}), "annotationPrefixes[0]: `/`"),
            (
                json!({"images": {"http": {"operatingSystems": {"u": {"1": "ftp://x"}}}}}),
                "operatingSystems.u.1: `ftp://x`",
            ),
            (
                json!({"hostDevices": {"allowed": [{"resourceName": "a.b/x"}, {"resourceName": "a.b/x"}]}}),
                "hostDevices.allowed: `a.b/x` is listed 2 times",
            ),
            (
                json!({"hostDevices": {"allowed": [{"resourceName": "x"}]}}),
                "hostDevices.allowed[0].resourceName: `x`",
            ),
        ] {
            let found = problems(config.clone());
            assert!(found.len() == 1 && found[0].contains(words), "{config}: {found:?}");
        }
    }
}
