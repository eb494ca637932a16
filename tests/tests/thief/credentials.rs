//! Attempts with credentials other than a pod's token. Some of these credentials name a Node.

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::attempts::ExpectedResult::{self, DeniedByPolicy, DeniedByRbac, Succeeds};
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{host_tuned_condition, node_object, node_status_path};
use crate::request::{Credential, apply, post};
use crate::test_cluster::TestCluster;
use crate::{OTHER_NODE, OWN_NODE};

pub(crate) fn other_credential_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let unbound = test_cluster.token(Value::Null);
    let config_map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unbound"}});
    let mut all = vec![
        label_node_attempt(DeniedByPolicy, "an unbound token", &unbound, OWN_NODE),
        new_attempt(
            DeniedByRbac,
            "an unbound token: create a ConfigMap",
            post("/api/v1/namespaces/default/configmaps", config_map),
        )
        .with_credential(&unbound),
    ];
    if test_cluster.supports("tokens bound to a Node", Version(1, 31)) {
        let bound = test_cluster.token(
            json!({"apiVersion": "v1", "kind": "Node", "name": OTHER_NODE, "uid": test_cluster.uid(OTHER_NODE)}),
        );
        all.push(label_node_attempt(Succeeds, "a token bound to node-b", &bound, OTHER_NODE));
        all.push(label_node_attempt(DeniedByPolicy, "a token bound to node-b", &bound, OWN_NODE));
    }
    for (user, own) in [
        ("berth:agent:node-a", Succeeds),
        ("other-user", DeniedByPolicy),
        ("berth:agent:", DeniedByPolicy),
    ] {
        let certificate = test_cluster.certificate(user);
        let description = format!("a certificate of {user}, group berth:agents");
        all.push(label_node_attempt(own, &description, &certificate, OWN_NODE));
        all.push(label_node_attempt(DeniedByPolicy, &description, &certificate, OTHER_NODE));
    }
    all
}

/// Returns a minimal report of an agent about its Node: an unused label.
fn label_node_attempt(
    expected_result: ExpectedResult,
    description: &str,
    credential: &Credential,
    name: &str,
) -> Attempt {
    let label: String = description.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
    let mut labels = json!({});
    labels[format!("host.berth.dev/{label}")] = "true".into();
    let object = node_object(name, labels, json!({}), json!([host_tuned_condition()]));
    new_attempt(
        expected_result,
        format!("{description}: label of {name}"),
        apply(&node_status_path(name), object),
    )
    .with_credential(credential)
}
