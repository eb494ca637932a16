//! Tests that no content of an object causes a panic, or control characters in the output.

use std::sync::LazyLock;

use berth_runtime::cli::style::Style;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::test_helpers::{empty_cluster, with_objects};
use super::*;

/// Names of fields that the checks read.
const FIELDS: [&str; 32] = [
    "metadata",
    "name",
    "namespace",
    "annotations",
    "labels",
    "spec",
    "status",
    "phase",
    "conditions",
    "type",
    "configuration",
    "developerConfiguration",
    "featureGates",
    "network",
    "binding",
    "versions",
    "rules",
    "verbs",
    "subjects",
    "roleRef",
    "webhooks",
    "failurePolicy",
    "caBundle",
    "matchResources",
    "validationActions",
    "provisioner",
    "driver",
    "containers",
    "template",
    "capabilities",
    "holderIdentity",
    "renewTime",
];

/// Generates a random JSON value, with names of fields that the checks read.
fn hostile_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("True")),
        Just(json!("berth-controller")),
        Just(json!("\u{1b}[2J\r\n\u{9b}")),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let field = prop::sample::select(FIELDS.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(field, inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The smallest CustomResourceDefinition of Berth.
static VALID_CRD: LazyLock<Value> = LazyLock::new(|| {
    let crds = berth_api::all_crds();
    let crd = crds.iter().find(|crd| crd.name_any().starts_with("vlanclaims.")).unwrap();
    serde_json::to_value(crd).unwrap()
});

/// Returns a valid object of each kind, each with its kind.
fn valid_objects() -> Vec<(Kind, Value)> {
    let metadata =
        json!({"name": "a", "namespace": "berth-system", "labels": {}, "annotations": {"a": "b"}});
    let with = |fields: Value| {
        let mut object = json!({"metadata": metadata});
        for (key, value) in fields.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let conditions =
        json!([{"type": "Available", "status": "True", "reason": "R", "message": "m"}]);
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["a"]}]);
    let reference = json!({"kind": "Role", "name": "a"});
    let subjects = json!([{"kind": "ServiceAccount", "name": "berth-controller", "namespace": "berth-system"}]);
    let webhook = json!({
        "name": "network-resources-injector-config.k8s.io", "failurePolicy": "Fail", "rules": rules,
        "clientConfig": {"caBundle": "bm8=", "service": {"name": "virt-api", "namespace": "kubevirt"}},
    });
    let containers = json!([{"name": "cilium", "image": "registry/multus-cni:v4", "args": ["--extender-listen=127.0.0.1:1"]}]);
    vec![
        (
            Kind::AdmissionPolicy,
            json!({
                "metadata": {"name": "berth-agent-own-node"},
                "spec": {"failurePolicy": "Fail", "validations": [{"expression": "true"}]},
            }),
        ),
        (
            Kind::AdmissionPolicyBinding,
            with(json!({
                "spec": {
                    "policyName": "berth-agent-own-node", "validationActions": ["Deny"],
                    "matchResources": {"namespaceSelector": {}, "resourceRules": []},
                },
            })),
        ),
        (
            Kind::Cdi,
            with(json!({
                "spec": {"config": {"featureGates": ["WebhookPvcRendering"]}},
                "status": {"observedVersion": "v1.61.0", "conditions": conditions},
            })),
        ),
        (Kind::ClusterInstancetype, with(json!({"spec": {"schedulerName": "berth-scheduler"}}))),
        (Kind::ClusterRole, with(json!({"rules": rules}))),
        (Kind::ClusterRoleBinding, with(json!({"roleRef": reference, "subjects": subjects}))),
        (
            Kind::ControllerPod,
            with(json!({
                "spec": {"containers": containers},
                "status": {"conditions": [{"type": "Ready", "status": "False", "message": "m"}]},
            })),
        ),
        (
            Kind::DaemonSet,
            with(json!({
                "spec": {"template": {"spec": {"containers": containers}}},
                "status": {"numberReady": 1, "desiredNumberScheduled": 2},
            })),
        ),
        (
            Kind::InfraConfig,
            json!({
                "metadata": {"name": "default"},
                "spec": {"infraStorageClasses": [{"name": "b"}]},
            }),
        ),
        (Kind::Instancetype, with(json!({"spec": {"schedulerName": "berth-scheduler"}}))),
        (
            Kind::KubeVirt,
            with(json!({
                "spec": {"configuration": {
                    "developerConfiguration": {"featureGates": ["HostDisk"]},
                    "network": {"binding": {"macvtap": {"networkAttachmentDefinition": "a/b"}}},
                }},
                "status": {"phase": "Deployed", "observedKubeVirtVersion": "v1.9.0", "conditions": conditions},
            })),
        ),
        (
            Kind::MachineDeployment,
            with(json!({"spec": {"template": {"spec": {"providerSpec": {"value": {
                "cloudProviderSpec": {"virtualMachine": {"template": {"secondaryDisks": [
                    {"name": "data", "size": "1Gi", "hotpluggable": true},
                ]}}},
            }}}}}})),
        ),
        (Kind::MutatingWebhook, with(json!({"webhooks": [webhook]}))),
        (Kind::Role, with(json!({"rules": rules}))),
        (Kind::RoleBinding, with(json!({"roleRef": reference, "subjects": subjects}))),
        (
            Kind::StorageClass,
            with(json!({
                "provisioner": "topolvm.io", "volumeBindingMode": "WaitForFirstConsumer",
            })),
        ),
        (
            Kind::TenantCluster,
            with(json!({
                "spec": {"network": {"binding": "Macvtap"}, "schedulerName": "berth-scheduler"},
            })),
        ),
        (Kind::ValidatingWebhook, with(json!({"webhooks": [webhook]}))),
        (Kind::VolumeSnapshotClass, with(json!({"driver": "topolvm.io"}))),
    ]
}

/// Returns a valid InfraNode that also contains the fields of a Lease and of a tenant's objects, so that the tests
/// can use the same object in place of these objects.
fn valid_host() -> Value {
    let condition =
        |kind: &str| json!({"type": kind, "status": "False", "reason": "Expired", "message": "m"});
    let conditions = ["Ready", "VirtualizationReady", "CredentialValid"].map(condition);
    let provider = json!({"value": {"primaryDisk": {"storageClassName": {"value": "fast"}}}});
    json!({
        "metadata": {"name": "rack1-a", "labels": {"berth.dev/tenant": "a"}},
        "spec": {
            "holderIdentity": "berth-controller-a_00", "renewTime": "2026-11-26T12:00:00Z", "leaseDurationSeconds": 15,
            "network": {}, "template": {"spec": {"providerSpec": provider}},
        },
        "status": {
            "agent": {}, "phase": "Active",
            "capabilities": {
                "cpu": {"cores": 8}, "memory": {"total": "64Gi"}, "kubelet": {"cpuManagerPolicy": "static"},
            },
            "conditions": conditions,
        },
    })
}

/// Appends to `all` the JSON pointers to a value and to all values in it. `prefix` is the pointer to the value
/// itself.
fn pointers(value: &Value, prefix: &str, all: &mut Vec<String>) {
    all.push(prefix.to_owned());
    if let Value::Object(fields) = value {
        for (key, value) in fields {
            let key = key.replace('~', "~0").replace('/', "~1");
            pointers(value, &format!("{prefix}/{key}"), all);
        }
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        pointers(value, &format!("{prefix}/{index}"), all);
    }
}

/// Returns the object with one of its values replaced. `index` selects the value.
fn with_replaced(object: &Value, index: Index, replacement: &Value) -> Value {
    let (mut object, mut all) = (object.clone(), Vec::new());
    pointers(&object, "", &mut all);
    let pointer: &String = index.get(&all);
    if let Some(value) = object.pointer_mut(pointer) {
        *value = replacement.clone();
    }
    object
}

/// Returns an input with these objects. `host` is also used as each Lease and as each object of the tenant.
fn input_of(lists: &[(Kind, Value)], host: &Value, crd: &Value, version: &str) -> Input {
    let mut input = lists.iter().fold(empty_cluster(), |input, (kind, object)| {
        with_objects(input, *kind, &json!([object]))
    });
    input.kubernetes = Ok(version.to_owned());
    input.hosts = Ok(vec![Host::from_object(host)]);
    input.crds = crd_names().into_iter().map(|name| (name, Ok(crd.clone()))).collect();
    input.ca_bundles = Ok(vec![CaBundle {
        webhook: version.to_owned(),
        is_needed_for_vms: true,
        validity: Err(InvalidBundle(host.to_string())),
    }]);
    for election in [Election::Controller, Election::Scheduler] {
        let state = LeaseState::from_object(host, Timestamp::UNIX_EPOCH);
        input.leases.insert(election, Ok(state.clone().after(&state)));
    }
    input.tenant = Some(TenantInput {
        name: version.to_owned(),
        object: Ok(host.clone()),
        namespace: Ok(host.clone()),
        definition: Some((String::new(), Ok(host.clone()))),
        machine_deployments: Ok(vec![host.clone()]),
        kubeconfig: KubeconfigState::NotReferenced,
        api_server: None,
    });
    input
}

/// Runs all checks, and returns their findings as text and as JSON.
fn outputs_of(input: &Input) -> [String; 2] {
    let findings = run(&all_checks(), input);
    [table::render(&findings, Style::Plain), serde_json::to_string(&findings).unwrap()]
}

fn has_control_characters(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n')
}

/// Tests that the checks examine the valid objects: otherwise the test that replaces their values would test
/// nothing.
#[test]
fn valid_objects_are_examined() {
    let input = input_of(&valid_objects(), &valid_host(), &json!({}), "v1.36.2");
    for finding in run(&all_checks(), &input).checks {
        assert!(!finding.outcome.unread, "{finding:?}");
    }
}

proptest! {
    #[test]
    fn replaced_values_cause_no_panic(
        choice in any::<Index>(),
        place in any::<Index>(),
        replacement in hostile_value(),
    ) {
        let mut lists = valid_objects();
        let crd = with_replaced(&VALID_CRD, place, &replacement);
        let chosen = choice.index(lists.len());
        lists[chosen].1 = with_replaced(&lists[chosen].1, place, &replacement);
        let host = with_replaced(&valid_host(), place, &replacement);
        for text in outputs_of(&input_of(&lists, &host, &crd, "v1.36.2")) {
            prop_assert!(!has_control_characters(&text), "{text:?}");
        }
    }

    #[test]
    fn hostile_objects_cause_no_panic(
        objects in prop::collection::vec(hostile_value(), 1..6),
        version in "v?[0-9]{0,4}[.]?[0-9]{0,12}",
    ) {
        let mut input = input_of(&[], &objects[0], &objects[objects.len() - 1], &version);
        input.lists.values_mut().for_each(|list| *list = Ok(objects.clone()));
        for text in outputs_of(&input) {
            prop_assert!(!has_control_characters(&text), "{text:?}");
        }
    }
}
