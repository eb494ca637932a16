//! Calls of kube-scheduler to an extender, and the responses (`k8s.io/kube-scheduler/extender/v1`), with the JSON keys
//! of the Go types.

use std::borrow::Cow;

use k8s_openapi::api::core::v1;
use serde::de::IgnoredAny;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

/// Arguments of a `filter` call (`ExtenderArgs`).
#[derive(Debug)]
pub struct FilterArgs<'a> {
    /// The pod to be scheduled.
    pub pod: v1::Pod,
    /// Names of the hosts that the scheduler's plugins accept, borrowed from the request body.
    pub node_names: Vec<&'a str>,
    /// True if the pod belongs to a PodGroup; kube-scheduler 1.36 first simulates the placement of such pods.
    pub is_pod_group_member: bool,
}

/// Arguments of a `bind` call (`ExtenderBindingArgs`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingArgs {
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Name of the host.
    pub node: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ExtenderArgs<'a> {
    pod: Option<v1::Pod>,
    #[serde(default)]
    nodes: Option<IgnoredAny>,
    #[serde(borrow, default)]
    node_names: Option<Vec<&'a str>>,
}

/// Reason why the body of a call is invalid. The scheduler logs this error.
#[derive(Debug, thiserror::Error)]
pub enum CallBodyError {
    /// The body is not JSON, or does not have the fields of this call.
    #[error("{call}: {field}: {source} (a body of {length} bytes)")]
    Json {
        /// Name of the call: `filter` or `bind`.
        call: &'static str,
        /// Path of the malformed field.
        field: String,
        /// Length of the body in bytes.
        length: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The body of a `filter` call has no pod.
    #[error("filter: Pod: is missing")]
    MissingPod,
    /// The body of a `filter` call has whole Node objects instead of their names.
    #[error(
        "filter: NodeNames: is missing, because the request contains Node objects; set nodeCacheCapable: true in the extender's configuration"
    )]
    MissingNodeNames,
    /// A required field of a `bind` call is empty.
    #[error("bind: {field}: is empty")]
    EmptyField {
        /// Name of the field.
        field: &'static str,
    },
}

/// Parses the body of a `filter` call.
///
/// # Errors
/// Returns an error if the body is malformed, has no pod, or has Node objects instead of the names of hosts.
pub fn parse_filter_args(body: &[u8]) -> Result<FilterArgs<'_>, CallBodyError> {
    let args: ExtenderArgs<'_> = parse_body("filter", body)?;
    let pod = args.pod.ok_or(CallBodyError::MissingPod)?;
    let names = match (args.node_names, args.nodes) {
        (Some(names), _) => names,
        (None, None) => Vec::new(),
        (None, Some(_)) => return Err(CallBodyError::MissingNodeNames),
    };
    let is_pod_group_member = is_pod_group_member(body, &names);
    Ok(FilterArgs { pod, node_names: names, is_pod_group_member })
}

/// Returns true if the pod in the body has `spec.schedulingGroup`, a field that `k8s_openapi`'s `PodSpec` lacks.
fn is_pod_group_member(body: &[u8], names: &[&str]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Body {
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
    // A body has thousands of host names. Therefore only the bytes before and after the names are searched for the key,
    // and the body is parsed again only if the key is found.
    let offset = |byte: *const u8| byte.addr().saturating_sub(body.as_ptr().addr());
    let first = names.first().map_or(body.len(), |name| offset(name.as_ptr()));
    let last = names.last().map_or(body.len(), |name| offset(name.as_bytes().as_ptr_range().end));
    let word = b"\"schedulingGroup\"";
    let has_word = |part: Option<&[u8]>| {
        part.is_some_and(|part| part.windows(word.len()).any(|at| at == word))
    };
    (has_word(body.get(..first)) || has_word(body.get(last..)))
        && serde_json::from_slice(body)
            .is_ok_and(|read: Body| read.pod.spec.scheduling_group.is_some())
}

/// Parses the body of a `bind` call.
///
/// # Errors
/// Returns an error if the body is malformed, or a field is empty.
pub fn parse_binding_args(body: &[u8]) -> Result<BindingArgs, CallBodyError> {
    let args: BindingArgs = parse_body("bind", body)?;
    let fields = [
        ("PodName", &args.pod_name),
        ("PodNamespace", &args.pod_namespace),
        ("PodUID", &args.pod_uid),
        ("Node", &args.node),
    ];
    if let Some((field, _)) = fields.into_iter().find(|(_, value)| value.is_empty()) {
        return Err(CallBodyError::EmptyField { field });
    }
    Ok(args)
}

fn parse_body<'a, T: Deserialize<'a>>(
    call: &'static str,
    body: &'a [u8],
) -> Result<T, CallBodyError> {
    serde_json::from_slice(body).or_else(|_| {
        // Tracking the field path costs more than parsing, so only a malformed body is parsed again to find the field.
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let (field, length) = (error.path().to_string(), body.len());
            CallBodyError::Json { call, field, length, source: error.into_inner() }
        })
    })
}

/// `FailedNodes` of a response: the hosts that refuse the pod, each with its reason.
#[derive(Debug)]
struct FailedNodes<'a>(&'a [(&'a str, Cow<'static, str>)]);

impl Serialize for FailedNodes<'_> {
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
struct FilterResult<'a> {
    nodes: Option<()>,
    node_names: &'a [&'a str],
    failed_nodes: FailedNodes<'a>,
    error: &'a str,
}

/// Returns the response to a `filter` call for a pod that at least one host accepts: the names of these hosts.
#[must_use]
pub fn hosts_response(names: &[&str]) -> String {
    to_json(&FilterResult {
        nodes: None,
        node_names: names,
        failed_nodes: FailedNodes(&[]),
        error: "",
    })
}

/// Returns the response to a `filter` call for a pod that no host accepts: each host with its reason.
#[must_use]
pub fn refusal_response(hosts: &[(&str, Cow<'static, str>)]) -> String {
    to_json(&FilterResult {
        nodes: None,
        node_names: &[],
        failed_nodes: FailedNodes(hosts),
        error: "",
    })
}

/// Returns the response to a `filter` call that failed with an error.
#[must_use]
pub fn filter_error_response(error: &str) -> String {
    to_json(&FilterResult { nodes: None, node_names: &[], failed_nodes: FailedNodes(&[]), error })
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BindingResult<'a> {
    error: &'a str,
}

/// Returns the response to a `bind` call; an empty error means success.
#[must_use]
pub fn binding_response(error: &str) -> String {
    to_json(&BindingResult { error })
}

fn to_json(answer: &impl Serialize) -> String {
    // Serialising these types cannot fail. If it failed, kube-scheduler would treat the empty response as an error.
    serde_json::to_string(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &str = r#"{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"c","creationTimestamp":null},
        "spec":{"containers":[{"name":"d","resources":{}}]},"status":{}},"Nodes":null,"NodeNames":["n1","n2"]}"#;

    #[test]
    fn bodies_of_the_scheduler_are_parsed() {
        let read = parse_filter_args(BODY.as_bytes()).unwrap();
        assert_eq!(read.node_names, ["n1", "n2"]);
        assert_eq!(read.pod.metadata.uid.as_deref(), Some("c"));
        let body = r#"{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"n"}"#;
        assert_eq!(parse_binding_args(body.as_bytes()).unwrap().pod_uid, "c");
    }

    #[test]
    fn errors_name_the_field() {
        let error = |body: &str| parse_filter_args(body.as_bytes()).unwrap_err().to_string();
        assert!(error("").contains("filter"), "{}", error(""));
        assert!(error(r#"{"NodeNames":[]}"#).contains("Pod: is missing"));
        assert!(error(r#"{"Pod":{},"Nodes":{"items":[]}}"#).contains("nodeCacheCapable: true"));
        assert!(error(r#"{"Pod":{"metadata":{"name":7}},"NodeNames":[]}"#).contains("Pod"));
        assert!(error(r#"{"Pod":{},"NodeNames":[7]}"#).contains("NodeNames[0]"));
        assert!(
            parse_binding_args(br#"{"PodName":"a","PodNamespace":"b","PodUID":"","Node":"n"}"#)
                .is_err()
        );
    }

    #[test]
    fn responses_have_the_fields_of_the_go_types() {
        assert_eq!(
            hosts_response(&["n1"]),
            r#"{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{},"Error":""}"#
        );
        assert_eq!(
            refusal_response(&[("n1", "full".into())]),
            r#"{"Nodes":null,"NodeNames":[],"FailedNodes":{"n1":"full"},"Error":""}"#
        );
        assert_eq!(binding_response("no"), r#"{"Error":"no"}"#);
    }

    #[test]
    fn a_pod_of_a_group_is_recognized() {
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
            assert_eq!(
                parse_filter_args(body.as_bytes()).unwrap().is_pod_group_member,
                is,
                "{body}"
            );
        }
        let behind = r#"{"NodeNames":["a"],"Pod":{"spec":{"schedulingGroup":{},"containers":[]}}}"#;
        assert!(parse_filter_args(behind.as_bytes()).unwrap().is_pod_group_member);
    }

    #[test]
    fn host_names_are_borrowed_from_the_body() {
        let names: Vec<String> = (0..50_000).map(|at| format!("host-{at}.example")).collect();
        let body = serde_json::json!({"Pod": {}, "NodeNames": names}).to_string();
        let read = parse_filter_args(body.as_bytes()).unwrap();
        assert_eq!(read.node_names, names);
        let range = body.as_bytes().as_ptr_range();
        assert!(read.node_names.iter().all(|name| range.contains(&name.as_ptr())));
    }

    proptest! {
        #[test]
        fn the_error_of_a_truncated_body_has_its_length(end in 0..BODY.len()) {
            let error = parse_filter_args(&BODY.as_bytes()[..end]).unwrap_err().to_string();
            prop_assert!(error.starts_with("filter: ") && error.contains(&format!("{end} bytes")), "{error}");
        }

        #[test]
        fn no_body_causes_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(parse_filter_args(&body));
            drop(parse_binding_args(&body));
        }
    }
}
