//! Reads a HostLeases, from the API server, from the copy on disk, or from a manifest.
//!
//! A fault in one network or lease leaves out only that network or lease. Unknown fields are ignored, because the
//! controller may be newer than the agent, but they are reported.

use berth_api::{HostLeasesSpec, Lease, LeaseNetwork};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fault::{Fault, deserialize, format_value};

/// Maximum number of networks, and of leases of a network, as in the CRD.
const MAX_ITEMS: usize = 4096;

/// Returns true if a document is a HostLeases.
pub(crate) fn is_host_leases(tree: &Value) -> bool {
    tree.get("kind").and_then(Value::as_str) == Some("HostLeases")
}

/// Reads a HostLeases. Returns no leases if the object is not the HostLeases of this node; the faults contain the
/// reason.
pub(crate) fn read(tree: &Value, node: Option<&str>) -> (Option<HostLeasesSpec>, Vec<Fault>) {
    let reject = |field: &str, value: &Value, message: &str| {
        let fault = Fault::new(format!("HostLeases {field}"), format_value(value), message);
        (None, vec![fault])
    };
    let version = tree.get("apiVersion").unwrap_or(&Value::Null);
    if version.as_str() != Some(berth_api::names::API_VERSION) {
        return reject("apiVersion", version, "must be berth.dev/v1alpha1; no VM gets an address");
    }
    let name = tree.pointer("/metadata/name").unwrap_or(&Value::Null);
    if node.is_some_and(|node| name.as_str() != Some(node)) {
        return reject("metadata.name", name, "must be the name of the InfraNode");
    }
    let (spec, faults) = read_spec(tree.get("spec").unwrap_or(&Value::Null));
    (Some(spec), faults)
}

/// Reads the networks of `spec`.
pub(crate) fn read_spec(spec: &Value) -> (HostLeasesSpec, Vec<Fault>) {
    let mut faults = Vec::new();
    let path = "HostLeases spec.networks";
    let mut networks: Vec<LeaseNetwork> = Vec::new();
    for (index, item) in items(spec.get("networks"), path, &mut faults).iter().enumerate() {
        let path = format!("{path}[{index}]");
        let network: Option<LeaseNetwork> = read_item(&path, &without_leases(item), &mut faults);
        let Some(mut network) = network else { continue };
        if networks.iter().any(|other| other.name == network.name) {
            let message = "is not unique; only the first network of this name is used";
            faults.push(Fault::new(format!("{path}.name"), &network.name, message));
            continue;
        }
        let path = format!("{path}.leases");
        let leases = items(item.get("leases"), &path, &mut faults);
        network.leases.reserve_exact(leases.len());
        for (index, item) in leases.iter().enumerate() {
            let lease: Option<Lease> = read_item(&format!("{path}[{index}]"), item, &mut faults);
            network.leases.extend(lease);
        }
        networks.push(network);
    }
    (HostLeasesSpec { networks }, faults)
}

/// Returns a copy of a network without its leases, which are read one by one: a copy of thousands of leases would
/// need more memory than the agent otherwise uses.
fn without_leases(network: &Value) -> Value {
    let Value::Object(fields) = network else { return network.clone() };
    let others = fields.iter().filter(|(name, _)| name.as_str() != "leases");
    Value::Object(others.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Returns the items of a list, which may be absent.
fn items<'a>(list: Option<&'a Value>, path: &str, faults: &mut Vec<Fault>) -> &'a [Value] {
    match list {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) if items.len() <= MAX_ITEMS => items,
        Some(Value::Array(items)) => {
            let message =
                format!("has more than {MAX_ITEMS} items; only the first {MAX_ITEMS} are used");
            faults.push(Fault::new(path, items.len(), message));
            items.get(..MAX_ITEMS).unwrap_or_default()
        }
        Some(other) => {
            faults.push(Fault::new(path, format_value(other), "must be a list"));
            &[]
        }
    }
}

fn read_item<T: DeserializeOwned>(path: &str, value: &Value, faults: &mut Vec<Fault>) -> Option<T> {
    let (item, found) = deserialize(path, value);
    faults.extend(found);
    item
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::manifest::Manifest;

    const INFRA_NODE: &str = "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: a}\nspec: {ksm: {mode: Auto}}\n";

    fn fault_texts(faults: &[Fault]) -> Vec<String> {
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_fault_leaves_out_only_its_lease_or_network() {
        let lease = |mac: &str| json!({"mac": mac, "machine": "cluster-a/m", "ipv4": "10.0.0.7"});
        let (spec, faults) = read_spec(&json!({"networks": [
            {"name": "cluster-a", "vlan": 100, "future": 1,
             "leases": [lease("02:00:00:00:00:01"), lease("2"), {"mac": "02:00:00:00:00:02"}]},
            {"name": "cluster-b", "vlan": 9999},
            {"name": "cluster-a", "vlan": 300},
            {"name": "cluster-c", "leases": {}},
            7,
        ]}));
        let names: Vec<&str> = spec.networks.iter().map(|network| network.name.as_str()).collect();
        assert_eq!(names, ["cluster-a", "cluster-c"]);
        assert_eq!(spec.networks[0].leases.len(), 1);
        let texts = fault_texts(&faults);
        for start in [
            "HostLeases spec.networks[0].future: `1`: unknown field",
            "HostLeases spec.networks[0].leases[1].mac: `2`",
            "HostLeases spec.networks[0].leases[2]",
            "HostLeases spec.networks[1].vlan: `9999`",
            "HostLeases spec.networks[2].name: `cluster-a`: is not unique",
            "HostLeases spec.networks[3].leases: `{}`: must be a list",
            "HostLeases spec.networks[4]: `7`",
        ] {
            assert!(texts.iter().any(|text| text.starts_with(start)), "{start}\n{texts:#?}");
        }
        assert_eq!(texts.len(), 7, "{texts:#?}");
    }

    #[test]
    fn a_manifest_may_contain_leases() {
        let leases = |name: &str| {
            format!(
                "apiVersion: berth.dev/v1alpha1\nkind: HostLeases\nmetadata: {{name: {name}}}\n\
                 spec: {{networks: [{{name: cluster-a}}]}}\n"
            )
        };
        for text in [
            format!("{INFRA_NODE}---\n{}", leases("a")),
            format!("{}---\n{INFRA_NODE}", leases("a")),
        ] {
            let manifest = Manifest::parse(&text).unwrap();
            assert_eq!(manifest.leases.unwrap().networks[0].name, "cluster-a");
            assert_eq!(fault_texts(&manifest.faults), [] as [&str; 0]);
            assert!(manifest.spec.ksm.is_some());
        }
        let other = Manifest::parse(&format!("{INFRA_NODE}---\n{}", leases("b"))).unwrap();
        assert_eq!(other.leases, None);
        assert_eq!(
            fault_texts(&other.faults),
            ["HostLeases metadata.name: `b`: must be the name of the InfraNode"]
        );
        for text in [
            format!("{INFRA_NODE}---\n{INFRA_NODE}"),
            format!("{INFRA_NODE}---\n{}---\n{}", leases("a"), leases("a")),
            leases("a"),
        ] {
            let fault = Manifest::parse(&text).unwrap_err();
            assert!(fault.to_string().contains("one InfraNode"), "{fault}");
        }
    }

    #[test]
    fn a_saved_object_is_read_as_it_was() {
        let networks = json!([{"name": "cluster-a", "vni": 5, "leases": [
            {"mac": "02:00:00:00:00:01", "machine": "cluster-a/m", "ipv6": "fd00::7"}]}]);
        let tree = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostLeases",
            "metadata": {"name": "a"}, "spec": {"networks": networks}});
        let (spec, faults) = read(&tree, Some("a"));
        assert_eq!(serde_json::to_value(spec.unwrap()).unwrap()["networks"], networks);
        assert_eq!(faults, []);
        assert_eq!(read(&tree, Some("b")).0, None);
        assert_eq!(read(&json!({"kind": "HostLeases"}), None).0, None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,200}", mac in ".{0,20}") {
            let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            drop(read(&value, None));
            drop(read_spec(&json!({"networks": value})));
            drop(read_spec(&json!({"networks": [{"name": "a", "leases": [{"mac": mac}, value]}]})));
        }
    }
}
