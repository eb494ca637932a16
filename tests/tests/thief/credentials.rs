//! Attempts with credentials other than a pod's token. Some of these credentials name a Node.

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::attempts::Expect::{self, NoRight, NotOwn, Works};
use crate::attempts::{Attempt, attempt};
use crate::objects::{host_tuned, node, node_status};
use crate::request::{Credential, apply, post};
use crate::world::World;
use crate::{OTHER, OWN};

pub(crate) fn other_credentials(world: &World<'_>) -> Vec<Attempt> {
    let unbound = world.token(Value::Null);
    let config_map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unbound"}});
    let mut all = vec![
        label_node(NotOwn, "an unbound token", &unbound, OWN),
        attempt(
            NoRight,
            "an unbound token: create a ConfigMap",
            post("/api/v1/namespaces/default/configmaps", config_map),
        )
        .with_credential(&unbound),
    ];
    if world.supports("tokens bound to a Node", Version(1, 31)) {
        let bound = world.token(
            json!({"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": world.uid(OTHER)}),
        );
        all.push(label_node(Works, "a token bound to node-b", &bound, OTHER));
        all.push(label_node(NotOwn, "a token bound to node-b", &bound, OWN));
    }
    for (user, own) in
        [("berth:agent:node-a", Works), ("other-user", NotOwn), ("berth:agent:", NotOwn)]
    {
        let certificate = world.certificate(user);
        let description = format!("a certificate of {user}, group berth:agents");
        all.push(label_node(own, &description, &certificate, OWN));
        all.push(label_node(NotOwn, &description, &certificate, OTHER));
    }
    all
}

/// Returns a minimal report of an agent about its Node: an unused label.
fn label_node(expect: Expect, description: &str, credential: &Credential, name: &str) -> Attempt {
    let label: String = description.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
    let mut labels = json!({});
    labels[format!("host.berth.dev/{label}")] = "true".into();
    let object = node(name, labels, json!({}), json!([host_tuned()]));
    attempt(expect, format!("{description}: label of {name}"), apply(&node_status(name), object))
        .with_credential(credential)
}
