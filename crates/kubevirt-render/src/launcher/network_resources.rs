//! Device plugin resources of a pod's networks that the pod itself does not request.
//!
//! With the feature gate `ExternalNetResourceInjection` (on by default since KubeVirt 1.9), launcher pods do not
//! request the resources that their NetworkAttachmentDefinitions name. A separate webhook, network-resources-injector,
//! adds the requests if it is installed. Without the requests, kube-scheduler does not know which hosts have a network.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_kubelet_admission::pod::Pod;
use serde::Deserialize;

use super::annotations::{DEFAULT_NETWORK_ANNOTATION, NETWORKS_ANNOTATION};
use super::namespace::split_network_name;

/// Maximum length of an annotation that is parsed. It limits the cost of parsing, because users can set the annotation
/// of any pod. KubeVirt writes no longer annotation.
const MAX_ANNOTATION_BYTES: usize = 16 * 1024;

/// An entry of [`NETWORKS_ANNOTATION`], with only the fields that identify the NetworkAttachmentDefinition.
#[derive(Deserialize)]
struct Selection {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// Returns the NetworkAttachmentDefinitions to which a pod in `namespace` is attached, as `namespace/name`, with one
/// entry for each attachment. Multus accepts a JSON list, or names that are separated by commas, such as
/// `namespace/name@interface` (`parsePodNetworkAnnotation`). Returns no entries for a malformed annotation, because
/// Multus refuses a pod with a malformed annotation on every host, and for a very long annotation.
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

/// Returns the pod with requests for one unit of each entry of `resources`, as if network-resources-injector had
/// changed the pod. If the pod's containers together request too few units, the missing units are added to the first
/// container, `compute`.
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
        // Units that another container requests also count, because the webhook may have added them there.
        pod.containers[1].requests.extended.insert("bridge/a".to_owned(), 1);
        assert!(matches!(with_resources(&pod, ["bridge/a"]), Cow::Borrowed(_)));
        let counted = with_resources(&pod, ["bridge/a", "bridge/a"]).into_owned();
        assert_eq!(counted.containers[0].requests.extended["bridge/a"], 1);
        // The sum of the requested units must not overflow, because users may request any number of units.
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
