//! What is wrong with the InfraConfig, as far as it can be seen without trying it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim, VlanSet};

use crate::tenants::shared_wire;

/// Sentences with field and value; none if all makes sense. `networks` are the host networks of all HostProfiles.
#[must_use]
pub fn faults_of_config(
    config: &InfraConfigSpec,
    networks: &BTreeSet<String>,
    claims: &[Arc<VlanClaim>],
) -> Vec<String> {
    let mut faults = pools(config, networks);
    faults.extend(shared_wire::config_problems(config, networks, claims));
    faults.extend(cluster(config));
    let names = config.custom_network_policies.iter().map(|policy| policy.name.as_str());
    faults.extend(twice("customNetworkPolicies", names));
    let classes = &config.infra_storage_classes;
    faults.extend(twice("infraStorageClasses", classes.iter().map(|class| class.name.as_str())));
    let defaults = classes.iter().filter(|class| class.is_default_class == Some(true));
    let defaults: Vec<&str> = defaults.map(|class| class.name.as_str()).collect();
    if defaults.len() > 1 {
        let all = defaults.join(", ");
        faults.push(format!("infraStorageClasses: {all} are all isDefaultClass, but one can be"));
    }
    for (at, label) in config.replicated_node_labels.iter().enumerate() {
        if let Some(why) = fault_of_label(label) {
            faults.push(format!("replicatedNodeLabels[{at}]: `{label}` {why}"));
        }
    }
    for (at, prefix) in config.annotation_prefixes.iter().enumerate() {
        if !InfraConfigSpec::is_annotation_prefix(prefix) {
            let why = "has no domain before a `/`, and is not followed";
            faults.push(format!("annotationPrefixes[{at}]: `{prefix}` {why}"));
        }
    }
    let systems = config.images.iter().filter_map(|images| images.http.as_ref());
    for (system, versions) in systems.flat_map(|http| &http.operating_systems) {
        for (version, url) in versions {
            if !(url.starts_with("http://") || url.starts_with("https://")) {
                let at = format!("images.http.operatingSystems.{system}.{version}");
                faults.push(format!("{at}: `{url}` is no http or https URL"));
            }
        }
    }
    faults
}

/// What tenants' NetworkPolicies are rendered from.
fn cluster(config: &InfraConfigSpec) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(dns) = &config.cluster_dns {
        for (field, labels) in
            [("namespaceLabels", &dns.namespace_labels), ("podLabels", &dns.pod_labels)]
        {
            if labels.is_empty() {
                faults
                    .push(format!("clusterDNS.{field}: without labels it would select everything"));
            }
        }
    }
    for (at, network) in config.cluster_networks.iter().enumerate() {
        if network.prefix_len() == 0 {
            faults.push(format!("clusterNetworks[{at}]: `{network}` is every address"));
        }
    }
    faults
}

fn pools(config: &InfraConfigSpec, networks: &BTreeSet<String>) -> Vec<String> {
    let mut faults: Vec<String> =
        twice("vlanPools", config.vlan_pools.iter().map(|pool| pool.network.as_str())).collect();
    let mut taken: BTreeMap<&str, VlanSet> = BTreeMap::new();
    for pool in &config.vlan_pools {
        let network = pool.network.as_str();
        if !networks.contains(network) {
            faults.push(format!(
                "vlanPools[{network}]: no HostProfile has a host network of that name"
            ));
        }
        let taken = taken.entry(network).or_default();
        for ranges in &pool.ranges {
            let (mut again, mut unfit) = (VlanSet::default(), VlanSet::default());
            for id in ranges.ids().iter() {
                if !id.for_tenants() {
                    unfit.insert(id);
                }
                if !taken.insert(id) {
                    again.insert(id);
                }
            }
            let ranges = String::from(ranges.clone());
            if !again.is_empty() {
                faults.push(format!("vlanPools[{network}]: `{ranges}` has VLANs {again} that are in the pool already"));
            }
            if !unfit.is_empty() {
                faults.push(format!(
                    "vlanPools[{network}]: `{ranges}` has VLANs {unfit} that tenants cannot have"
                ));
            }
        }
    }
    faults
}

fn twice<'a>(field: &'a str, names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    let mut seen = BTreeMap::new();
    names.for_each(|name| *seen.entry(name).or_insert(0_u32) += 1);
    let twice = seen.into_iter().filter(|(_, count)| *count > 1);
    twice.map(move |(name, count)| format!("{field}: `{name}` is listed {count} times"))
}

/// A label's key, or what keys begin with and a `*`.
fn fault_of_label(label: &str) -> Option<&'static str> {
    let key = label.strip_suffix('*').unwrap_or(label);
    if label == "*" {
        return Some("would replicate every label; name a prefix");
    }
    if key.contains('*') {
        return Some("has a `*` that is not at its end");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let slashes = key.matches('/').count();
    (key.is_empty() || !key.chars().all(fits) || slashes > 1).then_some("is no key of a label")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults(config: Value) -> Vec<String> {
        let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
        faults_of_config(&config, &BTreeSet::from(["trunk".to_owned()]), &[])
    }

    #[test]
    fn what_makes_sense_has_no_fault() {
        assert_eq!(faults(json!({})), Vec::<String>::new());
        let whole = json!({"vlanPools": [{"network": "trunk", "ranges": ["100-199", "300"]}],
            "replicatedNodeLabels": ["topology.kubernetes.io/zone", "host.berth.dev/*", "rack"],
            "infraStorageClasses": [{"name": "fast", "isDefaultClass": true}, {"name": "slow"}],
            "images": {"http": {"operatingSystems": {"ubuntu": {"22.04": "https://images/u.img"}}}}});
        assert_eq!(faults(whole), Vec::<String>::new());
    }

    #[test]
    fn each_fault_has_its_field_and_value() {
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
                json!({"infraStorageClasses": [{"name": "a"}, {"name": "a"}]}),
                "`a` is listed 2 times",
            ),
            (
                json!({"clusterDNS": {"namespaceLabels": {"a": "b"}, "podLabels": {}}}),
                "clusterDNS.podLabels: without labels",
            ),
            (json!({"clusterNetworks": ["10.0.0.0/8", "::/0"]}), "clusterNetworks[1]: `::/0`"),
            (
                json!({"segments": [{"name": "s", "networks": ["trnk"]}]}),
                "segments[s]: no HostProfile has a host network of the name `trnk`",
            ),
            (json!({"replicatedNodeLabels": ["a*b"]}), "replicatedNodeLabels[0]: `a*b`"),
            (json!({"replicatedNodeLabels": ["x", "*"]}), "replicatedNodeLabels[1]: `*`"),
            (json!({"replicatedNodeLabels": ["a b"]}), "no key of a label"),
            (json!({"annotationPrefixes": ["a.b/", "k8s"]}), "annotationPrefixes[1]: `k8s`"),
            (json!({"annotationPrefixes": ["/"]}), "annotationPrefixes[0]: `/`"),
            (
                json!({"images": {"http": {"operatingSystems": {"u": {"1": "ftp://x"}}}}}),
                "operatingSystems.u.1: `ftp://x`",
            ),
        ] {
            let found = faults(config.clone());
            assert!(found.len() == 1 && found[0].contains(words), "{config}: {found:?}");
        }
    }
}
