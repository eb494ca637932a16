//! What kube-scheduler sends to an extender, and is answered (`k8s.io/kube-scheduler/extender/v1`): Go's own field names.

use std::borrow::Cow;

use k8s_openapi::api::core::v1;
use serde::de::IgnoredAny;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

/// What `filter` is asked.
#[derive(Debug)]
pub struct Filter<'a> {
    /// The pod.
    pub pod: v1::Pod,
    /// Hosts that all else has found right, in the body's own bytes.
    pub names: Vec<&'a str>,
    /// Whether the pod is of a PodGroup, which kube-scheduler 1.36 places in simulations first.
    pub is_of_group: bool,
}

/// What `bind` is asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Binding {
    /// The pod's name.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its uid.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// The host.
    pub node: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Arguments<'a> {
    pod: Option<v1::Pod>,
    #[serde(default)]
    nodes: Option<IgnoredAny>,
    #[serde(borrow, default)]
    node_names: Option<Vec<&'a str>>,
}

/// Reads the body of `filter`.
///
/// # Errors
/// What is wrong with it, for the scheduler's log.
pub fn filter(body: &[u8]) -> Result<Filter<'_>, String> {
    let read: Arguments<'_> = read("filter", body)?;
    let pod = read.pod.ok_or("filter: Pod: there is none")?;
    let names = match (read.node_names, read.nodes) {
        (Some(names), _) => names,
        (None, None) => Vec::new(),
        (None, Some(_)) => {
            return Err("filter: NodeNames: there are none, but whole Nodes; the extender's configuration needs \
                        nodeCacheCapable: true"
                .to_owned());
        }
    };
    let is_of_group = is_of_group(body, &names);
    Ok(Filter { pod, names, is_of_group })
}

/// `spec.schedulingGroup` of the pod, which the types of this crate's Kubernetes do not have.
fn is_of_group(body: &[u8], names: &[&str]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Asked {
        pod: Pod,
    }
    #[derive(Deserialize)]
    struct Pod {
        spec: Spec,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        scheduling_group: Option<IgnoredAny>,
    }
    // A body has thousands of names: the word is looked for beside them, and the body is read again only where it is.
    let at = |byte: *const u8| byte.addr().saturating_sub(body.as_ptr().addr());
    let first = names.first().map_or(body.len(), |name| at(name.as_ptr()));
    let last = names.last().map_or(body.len(), |name| at(name.as_bytes().as_ptr_range().end));
    let word = b"\"schedulingGroup\"";
    let has_word = |part: Option<&[u8]>| {
        part.is_some_and(|part| part.windows(word.len()).any(|at| at == word))
    };
    (has_word(body.get(..first)) || has_word(body.get(last..)))
        && serde_json::from_slice(body)
            .is_ok_and(|read: Asked| read.pod.spec.scheduling_group.is_some())
}

/// Reads the body of `bind`.
///
/// # Errors
/// What is wrong with it, for the scheduler's log.
pub fn bind(body: &[u8]) -> Result<Binding, String> {
    let read: Binding = read("bind", body)?;
    let fields = [
        ("PodName", &read.pod_name),
        ("PodNamespace", &read.pod_namespace),
        ("PodUID", &read.pod_uid),
        ("Node", &read.node),
    ];
    if let Some((field, _)) = fields.into_iter().find(|(_, value)| value.is_empty()) {
        return Err(format!("bind: {field}: is empty"));
    }
    Ok(read)
}

fn read<'a, T: Deserialize<'a>>(call: &str, body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).or_else(|_| {
        // To know the field costs more than the reading, so only what is broken is read again for it.
        let mut again = serde_json::Deserializer::from_slice(body);
        serde_path_to_error::deserialize(&mut again).map_err(|error| {
            let (field, length) = (error.path().to_string(), body.len());
            format!("{call}: {field}: {} (a body of {length} bytes)", error.into_inner())
        })
    })
}

/// Hosts that were refused, and why: `FailedNodes`.
#[derive(Debug)]
struct Failed<'a>(&'a [(&'a str, Cow<'static, str>)]);

impl Serialize for Failed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, reason) in self.0 {
            map.serialize_entry(name, reason)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Filtered<'a> {
    nodes: Option<()>,
    node_names: &'a [&'a str],
    failed_nodes: Failed<'a>,
    error: &'a str,
}

/// The answer of `filter`: one host.
#[must_use]
pub fn host(name: &str) -> String {
    json(&Filtered { nodes: None, node_names: &[name], failed_nodes: Failed(&[]), error: "" })
}

/// The answer of `filter`: none of them.
#[must_use]
pub fn refused(hosts: &[(&str, Cow<'static, str>)]) -> String {
    json(&Filtered { nodes: None, node_names: &[], failed_nodes: Failed(hosts), error: "" })
}

/// The answer of `filter`: not to be said now.
#[must_use]
pub fn filter_error(error: &str) -> String {
    json(&Filtered { nodes: None, node_names: &[], failed_nodes: Failed(&[]), error })
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Bound<'a> {
    error: &'a str,
}

/// The answer of `bind`; an empty error is success.
#[must_use]
pub fn bound(error: &str) -> String {
    json(&Bound { error })
}

fn json(answer: &impl Serialize) -> String {
    // Text alone cannot fail; an empty answer would be an error to the scheduler, as it should.
    serde_json::to_string(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &str = r#"{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"c","creationTimestamp":null},
        "spec":{"containers":[{"name":"d","resources":{}}]},"status":{}},"Nodes":null,"NodeNames":["n1","n2"]}"#;

    #[test]
    fn bodies_are_read_as_the_scheduler_writes_them() {
        let read = filter(BODY.as_bytes()).unwrap();
        assert_eq!(read.names, ["n1", "n2"]);
        assert_eq!(read.pod.metadata.uid.as_deref(), Some("c"));
        let body = r#"{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"n"}"#;
        assert_eq!(bind(body.as_bytes()).unwrap().pod_uid, "c");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |body: &str| filter(body.as_bytes()).unwrap_err();
        assert!(said("").contains("filter"), "{}", said(""));
        assert!(said(r#"{"NodeNames":[]}"#).contains("Pod: there is none"));
        assert!(said(r#"{"Pod":{},"Nodes":{"items":[]}}"#).contains("nodeCacheCapable: true"));
        assert!(said(r#"{"Pod":{"metadata":{"name":7}},"NodeNames":[]}"#).contains("Pod"));
        assert!(said(r#"{"Pod":{},"NodeNames":[7]}"#).contains("NodeNames[0]"));
        assert!(bind(br#"{"PodName":"a","PodNamespace":"b","PodUID":"","Node":"n"}"#).is_err());
    }

    #[test]
    fn answers_have_the_fields_that_go_expects() {
        assert_eq!(host("n1"), r#"{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{},"Error":""}"#);
        assert_eq!(
            refused(&[("n1", "full".into())]),
            r#"{"Nodes":null,"NodeNames":[],"FailedNodes":{"n1":"full"},"Error":""}"#
        );
        assert_eq!(bound("no"), r#"{"Error":"no"}"#);
    }

    #[test]
    fn a_pod_of_a_group_is_known() {
        let body = |group: &str, names: &str| {
            format!(
                r#"{{"Pod":{{"metadata":{{"uid":"c"}},"spec":{{{group}"containers":[]}}}},"NodeNames":{names}}}"#
            )
        };
        let group = r#""schedulingGroup":{"podGroupName":"g"},"#;
        for (group, names, is) in [
            (group, r#"["a","b"]"#, true),
            (group, "[]", true),
            ("", r#"["a","b"]"#, false),
            (r#""schedulingGroup":null,"#, r#"["a"]"#, false),
            (r#""nodeName":"\"schedulingGroup\"","#, r#"["a"]"#, false),
        ] {
            let body = body(group, names);
            assert_eq!(filter(body.as_bytes()).unwrap().is_of_group, is, "{body}");
        }
        let behind = r#"{"NodeNames":["a"],"Pod":{"spec":{"schedulingGroup":{},"containers":[]}}}"#;
        assert!(filter(behind.as_bytes()).unwrap().is_of_group);
    }

    #[test]
    fn fifty_thousand_names_are_read_in_place() {
        let names: Vec<String> = (0..50_000).map(|at| format!("host-{at}.example")).collect();
        let body = serde_json::json!({"Pod": {}, "NodeNames": names}).to_string();
        let read = filter(body.as_bytes()).unwrap();
        assert_eq!(read.names, names);
        let range = body.as_bytes().as_ptr_range();
        assert!(read.names.iter().all(|name| range.contains(&name.as_ptr())));
    }

    proptest! {
        #[test]
        fn a_truncated_body_is_an_error_that_says_so(end in 0..BODY.len()) {
            let error = filter(&BODY.as_bytes()[..end]).unwrap_err();
            prop_assert!(error.starts_with("filter: ") && error.contains(&format!("{end} bytes")), "{error}");
        }

        #[test]
        fn no_body_is_fatal(body in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(filter(&body));
            drop(bind(&body));
        }
    }
}
