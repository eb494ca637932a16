//! Topologies of a StorageClass: the zones and regions in which its storage is available.

use std::collections::{BTreeMap, BTreeSet};

use berth_runtime::untrusted::BoundedVec;
use serde::Deserialize;
use serde_json::{Value, json};

/// Label of Nodes that contains their zone.
const ZONE_KEY: &str = "topology.kubernetes.io/zone";
/// Label of Nodes that contains their region.
const REGION_KEY: &str = "topology.kubernetes.io/region";
/// Maximum number of terms in the `allowedTopologies` of a class.
const MAX_TERMS: usize = 64;
/// Maximum number of requirements of a term.
const MAX_REQUIREMENTS: usize = 16;
/// Maximum number of values of a requirement.
const MAX_VALUES: usize = 256;

/// `allowedTopologies` of a StorageClass, as in the Kubernetes API.
pub type TopologyObjects = BoundedVec<TermObject, MAX_TERMS>;

/// A term of `allowedTopologies`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TermObject {
    match_label_expressions: Option<BoundedVec<RequirementObject, MAX_REQUIREMENTS>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RequirementObject {
    key: String,
    values: Option<BoundedVec<String, MAX_VALUES>>,
}

/// Term of a topology: the permitted values of each label. A Node belongs to the topology if it meets all of them.
type Term = BTreeMap<String, BTreeSet<String>>;

/// Topologies in which the storage of a class is available, as a set of terms. The empty set means all topologies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topologies(BTreeSet<Term>);

impl Topologies {
    /// Returns the topology of these zones in these regions. An empty list permits all values.
    #[must_use]
    pub fn of_zones(zones: &[String], regions: &[String]) -> Self {
        let lists = [(ZONE_KEY, zones), (REGION_KEY, regions)].into_iter();
        let lists = lists.filter(|(_, values)| !values.is_empty());
        let term: Term =
            lists.map(|(key, values)| (key.to_owned(), values.iter().cloned().collect())).collect();
        Self(if term.is_empty() { BTreeSet::new() } else { BTreeSet::from([term]) })
    }

    /// Reads the topologies of a class; `None` if a list is too long.
    #[must_use]
    pub fn from_objects(terms: TopologyObjects) -> Option<Self> {
        let mut all = BTreeSet::new();
        if terms.is_truncated {
            return None;
        }
        for term in terms.items {
            let requirements = term.match_label_expressions.unwrap_or_default();
            if requirements.is_truncated {
                return None;
            }
            let mut read = Term::new();
            for requirement in requirements.items {
                let values = requirement.values.unwrap_or_default();
                if values.is_truncated {
                    return None;
                }
                read.entry(requirement.key).or_default().extend(values.items);
            }
            all.insert(read);
        }
        Some(Self(all))
    }

    /// Returns the topologies if all their labels are zones and regions, which the Nodes of tenants also have;
    /// otherwise returns no topologies.
    #[must_use]
    pub fn only_zones(self) -> Self {
        let mut keys = self.0.iter().flat_map(BTreeMap::keys);
        if keys.all(|key| key == ZONE_KEY || key == REGION_KEY) { self } else { Self::default() }
    }

    /// Returns true if the storage of the class is available in all topologies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the approximate size in memory, in bytes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        let texts = self.0.iter().flatten().flat_map(|(key, values)| values.iter().chain([key]));
        texts.fold(0, |sum, text| sum.saturating_add(text.len()).saturating_add(48))
    }

    /// Returns the topologies as `allowedTopologies` of a StorageClass.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let term = |term: &Term| {
            let all = term.iter().map(|(key, values)| json!({"key": key, "values": values}));
            json!({"matchLabelExpressions": all.collect::<Vec<_>>()})
        };
        self.0.iter().map(term).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Option<Topologies> {
        Topologies::from_objects(serde_json::from_value(value.clone()).unwrap())
    }

    #[test]
    fn zones_and_regions_are_one_term() {
        let zones = ["b".to_owned(), "a".to_owned()];
        let both = Topologies::of_zones(&zones, &["north".to_owned()]);
        let expected = json!([{"matchLabelExpressions": [
            {"key": REGION_KEY, "values": ["north"]}, {"key": ZONE_KEY, "values": ["a", "b"]},
        ]}]);
        assert_eq!(both.to_json(), expected);
        assert_eq!(read(&expected), Some(both.clone()));
        assert_eq!(both.clone().only_zones(), both);
        assert!(Topologies::of_zones(&[], &[]).is_empty());
    }

    #[test]
    fn topologies_of_hosts_are_not_for_tenants() {
        let hosts = json!([{"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["rack1-a"]}]}]);
        assert!(read(&hosts).unwrap().only_zones().is_empty());
    }

    #[test]
    fn the_longest_lists_of_the_infra_config_fit_in_a_stored_class() {
        let names: Vec<String> = (0..64).map(|number| format!("{number:063}")).collect();
        assert!(Topologies::of_zones(&names, &names).byte_count() < 15_000);
    }

    #[test]
    fn long_lists_are_refused() {
        let many: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        let values = json!([{"matchLabelExpressions": [{"key": "a", "values": many}]}]);
        assert_eq!(read(&values), None);
        assert_eq!(read(&json!(vec![json!({}); 100])), None);
        assert!(read(&json!([{"matchLabelExpressions": null}])).is_some());
    }
}
