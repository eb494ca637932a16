//! Device plugin resources of a pod's networks that the pod does not request itself.
//!
//! With the feature gate `ExternalNetResourceInjection` (on by default since KubeVirt 1.9), launcher pods do not
//! request the resources of their NetworkAttachmentDefinitions. Another webhook, network-resources-injector, adds the
//! requests if it is installed. Without it, kube-scheduler does not know which hosts have a network.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_kubelet_admission::pod::Pod;
use serde::Deserialize;

use super::annotations::{DEFAULT_NETWORK_ANNOTATION, NETWORKS_ANNOTATION};
use super::namespace::split_network_name;

/// Maximum length of an annotation that is read. A user can set the annotation of any pod, and the networks of a
/// launcher pod never need a longer annotation.
const MAX_ANNOTATION_BYTES: usize = 16 * 1024;

/// An entry of [`NETWORKS_ANNOTATION`], with the fields that identify the NetworkAttachmentDefinition.
#[derive(Deserialize)]
struct Selection {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// Returns the NetworkAttachmentDefinitions of a pod in `namespace`, as `namespace/name`, one entry for each
/// attachment. Multus accepts a JSON list, or names with commas between them, such as `namespace/name@interface`
/// (`parsePodNetworkAnnotation`). A malformed or very long annotation has no entries: Multus refuses a pod with a
/// malformed annotation on every host.
pub(super) fn attached_networks(
    namespace: &str,
    annotations: &BTreeMap<String, String>,
) -> Vec<String> {
    let text = |key: &str| {
        let text = annotations.get(key).map(|text| text.trim());
        text.filter(|text| text.len() <= MAX_ANNOTATION_BYTES).unwrap_or_default()
    };
    let mut networks = parse_selections(namespace, text(NETWORKS_ANNOTATION));
    networks.extend(parse_selections(namespace, text(DEFAULT_NETWORK_ANNOTATION)));
    networks
}

fn parse_selections(namespace: &str, text: &str) -> Vec<String> {
    if text.starts_with('[') {
        let selections: Vec<Selection> = serde_json::from_str(text).unwrap_or_default();
        let full_name = |it: Selection| match it.namespace.is_empty() {
            true => format!("{namespace}/{}", it.name),
            false => format!("{}/{}", it.namespace, it.name),
        };
        return selections.into_iter().map(full_name).collect();
    }
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let full_name = |name: &str| {
        let name = name.split_once('@').map_or(name, |(name, _interface)| name);
        let (namespace, name) = split_network_name(namespace, name);
        format!("{namespace}/{name}")
    };
    names.map(full_name).collect()
}

/// Returns the pod with one unit of each resource, counting the units that the pod requests already: the container
/// `compute`, which is the first, also requests the missing units, as if network-resources-injector had changed the
/// pod.
pub(super) fn with_resources<'a, 'r>(
    pod: &'a Pod,
    resources: impl IntoIterator<Item = &'r str>,
) -> Cow<'a, Pod> {
    let mut needed: BTreeMap<&str, u64> = BTreeMap::new();
    for resource in resources {
        let count = needed.entry(resource).or_default();
        *count = count.saturating_add(1);
    }
    needed.retain(|resource, count| {
        let requested = pod.containers.iter().filter_map(|it| it.requests.extended.get(*resource));
        let requested = requested.fold(0_u64, |sum, units| sum.saturating_add(*units));
        *count = count.saturating_sub(requested);
        *count > 0
    });
    if needed.is_empty() {
        return Cow::Borrowed(pod);
    }
    let mut pod = pod.clone();
    if let Some(compute) = pod.containers.first_mut() {
        for (resource, missing) in needed {
            for amounts in [&mut compute.requests, &mut compute.limits] {
                let count = amounts.extended.entry(resource.to_owned()).or_default();
                *count = count.saturating_add(missing);
            }
        }
    }
    Cow::Owned(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(annotation: &str) -> Vec<String> {
        attached_networks("own", &[(NETWORKS_ANNOTATION.to_owned(), annotation.to_owned())].into())
    }

    #[test]
    fn networks_are_read_in_both_syntaxes_of_multus() {
        let json = r#"[{"name":"a","namespace":"red","interface":"pod1"},{"name":"b"}]"#;
        assert_eq!(networks(json), ["red/a", "own/b"]);
        assert_eq!(networks(" red/a@pod1, b ,,"), ["red/a", "own/b"]);
        for malformed in ["", "[", "[{}]", "[{\"name\":1}]", "[\"a\"]"] {
            assert_eq!(networks(malformed), [""; 0], "{malformed}");
        }
        assert_eq!(networks(&"a,".repeat(MAX_ANNOTATION_BYTES)), [""; 0], "too long");
        let default = [(DEFAULT_NETWORK_ANNOTATION.to_owned(), "red/a".to_owned())];
        assert_eq!(attached_networks("own", &default.into()), ["red/a"]);
    }

    #[test]
    fn only_missing_units_are_added() {
        let mut pod = Pod { containers: vec![Default::default(); 2], ..Pod::default() };
        assert!(matches!(with_resources(&pod, []), Cow::Borrowed(_)));
        let counted = with_resources(&pod, ["bridge/a", "bridge/a", "bridge/b"]).into_owned();
        let compute = &counted.containers[0];
        for amounts in [&compute.requests, &compute.limits] {
            let all: Vec<_> = amounts.extended.iter().map(|(it, n)| (it.as_str(), *n)).collect();
            assert_eq!(all, [("bridge/a", 2), ("bridge/b", 1)]);
        }
        assert_eq!(counted.containers[1], pod.containers[1]);
        // The webhook may have added the requests to another container.
        pod.containers[1].requests.extended.insert("bridge/a".to_owned(), 1);
        assert!(matches!(with_resources(&pod, ["bridge/a"]), Cow::Borrowed(_)));
        let counted = with_resources(&pod, ["bridge/a", "bridge/a"]).into_owned();
        assert_eq!(counted.containers[0].requests.extended["bridge/a"], 1);
        // A user may request any number of units.
        for container in &mut pod.containers {
            container.requests.extended.insert("bridge/a".to_owned(), u64::MAX);
        }
        assert!(matches!(with_resources(&pod, ["bridge/a"]), Cow::Borrowed(_)));
    }

    proptest::proptest! {
        #[test]
        fn any_annotation_is_read(text in ".{0,64}") {
            networks(&text);
            networks(&format!("[{text}"));
        }
    }
}
