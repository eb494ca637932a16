//! Keys of the labels that are copied from hosts to tenants' Nodes.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::InfraConfigSpec;

/// Keys without a list in the InfraConfig: region and zone, which cloud controller managers set, too.
const DEFAULT_KEYS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
/// Keys that describe the tenant's Node itself, which are never copied.
const NODE_IDENTITY_KEYS: [&str; 4] = [
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
];
/// Prefixes of keys that describe the tenant's Node itself, or what runs on it.
const NODE_IDENTITY_PREFIXES: [&str; 4] = [
    "beta.kubernetes.io/",
    "kubelet.kubernetes.io/",
    "node-role.kubernetes.io/",
    "node.kubernetes.io/exclude-",
];
/// Largest number of labels that are copied to a Node. A prefix may match more labels of a host.
const MAX_LABELS: usize = 64;

/// Keys, and prefixes of keys, of the labels that are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicatedKeys {
    keys: BTreeSet<String>,
    prefixes: BTreeSet<String>,
}

impl ReplicatedKeys {
    /// Reads the list of the InfraConfig. Entries that are not valid match nothing; the condition of the InfraConfig
    /// names them.
    #[must_use]
    pub fn from_config(config: &InfraConfigSpec) -> Self {
        let mut all = Self::default();
        let Some(entries) = &config.replicated_node_labels else {
            all.keys = DEFAULT_KEYS.map(str::to_owned).into();
            return all;
        };
        for entry in entries {
            match entry.strip_suffix('*') {
                Some("") => {}
                Some(prefix) => drop(all.prefixes.insert(prefix.to_owned())),
                None => drop(all.keys.insert(entry.clone())),
            }
        }
        all
    }

    /// Returns the labels of a host that are copied, at most 64.
    #[must_use]
    pub fn select(&self, host_labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let labels = host_labels.iter().filter(|(key, _)| self.contains(key));
        labels.take(MAX_LABELS).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn contains(&self, key: &str) -> bool {
        !describes_node_itself(key)
            && (self.keys.contains(key)
                || self.prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())))
    }
}

/// Returns true if a label describes the Node that has it, so that its value on a host is wrong for a tenant's Node.
#[must_use]
pub fn describes_node_itself(key: &str) -> bool {
    NODE_IDENTITY_KEYS.contains(&key)
        || NODE_IDENTITY_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(list: Option<&[&str]>, labels: &[&str]) -> Vec<String> {
        let list = list.map(|list| list.iter().map(|one| (*one).to_owned()).collect());
        let config = InfraConfigSpec { replicated_node_labels: list, ..Default::default() };
        let labels = labels.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        ReplicatedKeys::from_config(&config).select(&labels).into_keys().collect()
    }

    #[test]
    fn region_and_zone_are_copied_without_a_list() {
        let labels =
            ["rack", "topology.kubernetes.io/region", "topology.kubernetes.io/zone", "zone"];
        assert_eq!(select(None, &labels), labels[1..3]);
        assert!(select(Some(&[]), &labels).is_empty(), "an empty list copies nothing");
    }

    #[test]
    fn keys_and_prefixes_select_labels() {
        let labels =
            ["example.com/rack", "example.com/row", "example.community/x", "rack", "rack2"];
        assert_eq!(
            select(Some(&["rack", "example.com/*"]), &labels),
            [labels[0], labels[1], "rack"]
        );
        assert_eq!(select(Some(&["ra*"]), &labels), ["rack", "rack2"]);
        assert!(select(Some(&["*", "a*b"]), &labels).is_empty());
    }

    #[test]
    fn labels_of_the_node_itself_are_never_copied() {
        let labels =
            ["kubernetes.io/hostname", "kubernetes.io/x", "node-role.kubernetes.io/worker"];
        let list = ["kubernetes.io/*", "kubernetes.io/hostname", "node-role.kubernetes.io/*"];
        assert_eq!(select(Some(&list), &labels), ["kubernetes.io/x"]);
    }

    #[test]
    fn the_number_of_labels_is_limited() {
        let labels: Vec<String> = (0..200).map(|number| format!("a/{number:03}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(select(Some(&["a/*"]), &labels).len(), MAX_LABELS);
    }
}
