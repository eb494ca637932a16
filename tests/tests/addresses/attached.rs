//! Tests of machines with an interface in the network of another tenant.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

use super::{SHORT_TIMEOUT, apply, create_tenant, deployment, list_items, wait_until_condition};

const NAMESPACE: &str = "cluster-bank";
const STORAGE: [&str; 2] = ["tenantcluster", "bank-storage"];
/// The controller lists the users of a network every 30 s.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// Tests that machines get addresses in their own network and in that of another tenant, and that the other tenant is
/// deleted after them. Deletes all objects that it creates.
pub(super) fn machines_are_attached_to_the_network_of_another_tenant(plane: &ControlPlane) {
    let trunk = |cidr: &str| json!({"name": "tenant-trunk", "ipv4": {"cidr": cidr}});
    create_tenant(plane, "bank-storage", &trunk("10.9.0.0/24"));
    let mut own = trunk("10.8.0.0/24");
    own["additional"] = json!(["bank-storage"]);
    create_tenant(plane, "bank", &own);
    let tenant = ["tenantcluster", "bank"];
    let words = "False AdditionalNetworkNotReady";
    wait_until_condition(plane, &tenant, "NetworkReady", words);
    let permitted = r#"{"spec":{"additionalNetworks":["bank-storage"]}}"#;
    plane.kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", permitted]).unwrap();
    plane
        .wait_until("the network can be attached", SHORT_TIMEOUT, |plane| {
            let status = plane.get_json(&tenant).ok()?["status"].clone();
            (status["additionalNetworks"] == json!(["bank-storage"])).then_some(())
        })
        .unwrap();
    let definition = plane
        .get_json(&[
            "network-attachment-definitions",
            "berth-network-bank-storage",
            "-n",
            NAMESPACE,
        ])
        .unwrap();
    let config: Value =
        serde_json::from_str(definition["spec"]["config"].as_str().unwrap()).unwrap();
    assert_eq!(config["vlan"], plane.get_json(&STORAGE).unwrap()["status"]["vlan"]);

    let mut web = deployment("web", 2, "2Gi", None);
    web["metadata"]["namespace"] = NAMESPACE.into();
    let provider = "/spec/template/spec/providerSpec/value/cloudProviderSpec";
    web.pointer_mut(provider).unwrap()["additionalNetworks"] = json!([{"name": "bank-storage"}]);
    apply(plane, &web);
    plane
        .wait_until("the machines run", SHORT_TIMEOUT, |plane| {
            let web = plane.get_json(&["machinedeployment", "web", "-n", NAMESPACE]).ok()?;
            (web["status"]["readyReplicas"] == 2).then_some(())
        })
        .unwrap();
    let claims = claims_in_storage(plane);
    let addresses: BTreeSet<&str> =
        claims.iter().map(|claim| claim["spec"]["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, ["10.9.0.1", "10.9.0.2"].into());
    for claim in &claims {
        let spec = &claim["spec"];
        assert_eq!(spec["machine"]["namespace"], NAMESPACE);
        assert_eq!(spec["network"], "cluster-bank-storage");
        let name = spec["machine"]["name"].as_str().unwrap();
        let vm = plane.get_json(&["virtualmachine", name, "-n", NAMESPACE]).unwrap();
        let interfaces = &vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
        assert_eq!(interfaces[2]["name"], "additional-1");
        assert_eq!(spec["interface"], "additional-1");
        assert_eq!(interfaces[2]["macAddress"], spec["mac"]);
        let recorded = format!("bank-storage:{}", spec["address"].as_str().unwrap());
        let annotations = &vm["metadata"]["annotations"];
        assert_eq!(annotations["berth.dev/claimed-addresses-additional-1"], recorded);
    }

    the_template_lists_addresses_in_the_other_network(plane, &web);

    let deleted = &claims[0];
    let name = deleted["metadata"]["name"].as_str().unwrap();
    plane.kubectl(&["delete", "addressclaim", name, "--wait=false"]).unwrap();
    plane
        .wait_until("the claim is created again", SHORT_TIMEOUT, |plane| {
            let claim = plane.get_json(&["addressclaim", name]).ok()?;
            let is_new = claim["metadata"]["uid"] != deleted["metadata"]["uid"];
            (is_new && claim["spec"] == deleted["spec"]).then_some(())
        })
        .unwrap();

    // A VirtualMachine that a user has made has no AddressClaim.
    let networks = json!([{"name": "a", "multus": {"networkName": "cluster-bank/berth-network-bank-storage"}}]);
    apply(
        plane,
        &json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "hand-made", "namespace": "default"},
            "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}, "networks": networks}}},
        }),
    );
    plane.kubectl(&["delete", "tenantcluster", "bank-storage", "--wait=false"]).unwrap();
    let words = "until the machines of other tenants in the tenant's network are deleted";
    wait_until_condition(plane, &STORAGE, "Ready", words);
    plane
        .wait_until("the attached tenant has an Event", SHORT_TIMEOUT, |plane| {
            let events = list_items(plane, &["events", "-A"]);
            let mut events = events.iter();
            events
                .any(|event| {
                    event["reason"] == "AttachedNetworkDeleting"
                        && event["involvedObject"]["name"] == "bank"
                })
                .then_some(())
        })
        .unwrap();
    plane.kubectl(&["delete", "tenantcluster", "bank", "--wait=false"]).unwrap();
    wait_until_condition(plane, &STORAGE, "Ready", "VirtualMachine default/hand-made");
    assert!(plane.get_json(&STORAGE).unwrap()["status"]["vlan"].is_number());
    plane.kubectl(&["delete", "virtualmachine", "hand-made"]).unwrap();
    plane
        .wait_until("both tenants and all claims are deleted", DELETION_TIMEOUT, |plane| {
            let is_deleted = |object: &[&str]| plane.get_json(object).is_err();
            (is_deleted(&STORAGE) && is_deleted(&tenant) && claims_in_storage(plane).is_empty())
                .then_some(())
        })
        .unwrap();
}

/// Tests that a template lists addresses for the interface in the network of the other tenant. `web` is the template of
/// other machines in this network.
fn the_template_lists_addresses_in_the_other_network(plane: &ControlPlane, web: &Value) {
    let mut db = web.clone();
    db["metadata"]["name"] = "db".into();
    db["spec"]["replicas"] = 1.into();
    db["spec"]["selector"]["matchLabels"]["name"] = "db".into();
    db["spec"]["template"]["metadata"]["labels"]["name"] = "db".into();
    let object = ["machinedeployment", "db", "-n", NAMESPACE];
    for (annotation, list, words) in [
        (
            "berth.dev/addresses-additional-1",
            "10.8.0.50",
            "lists 10.8.0.50, which machines cannot have",
        ),
        ("berth.dev/addresses-additional-2", "10.9.0.50", "is for the interface `additional-2`"),
    ] {
        db["spec"]["template"]["metadata"]["annotations"] = json!({annotation: list});
        apply(plane, &db);
        wait_until_condition(plane, &object, "Valid", words);
    }
    let lists = json!({"berth.dev/addresses-additional-1": "10.9.0.50"});
    db["spec"]["template"]["metadata"]["annotations"] = lists;
    apply(plane, &db);
    plane
        .wait_until("the machine has the listed address", SHORT_TIMEOUT, |plane| {
            let claim = plane.get_json(&["addressclaim", "cluster-bank-storage-10.9.0.50"]).ok()?;
            let name = claim["spec"]["machine"]["name"].as_str()?;
            (claim["spec"]["interface"] == "additional-1" && name.starts_with("db-")).then_some(())
        })
        .unwrap();
    plane.kubectl(&["delete", "machinedeployment", "db", "-n", NAMESPACE, "--wait=false"]).unwrap();
}

/// Returns the AddressClaims in the network of the other tenant.
fn claims_in_storage(plane: &ControlPlane) -> Vec<Value> {
    list_items(plane, &["addressclaims", "-l", "berth.dev/tenant=bank-storage"])
}
