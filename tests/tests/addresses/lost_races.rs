//! Tests that a machine gets another address if the API server refuses the controller's claim, because another client
//! has created a claim of the same name: the controller neither fails nor claims the same address again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{AddressClaim, AddressClaimSpec, ClaimingMachine, MacAddress};
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use berth_tests::simulated::{create_client, create_runtime};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::interruptions::{accept, block_creations};
use super::{SHORT_TIMEOUT, apply, create_tenant, deployment, list_items};

const TENANT: &str = "race";
const NAMESPACE: &str = "cluster-race";
/// Last octet of the lowest address of a machine, after the address of the gateway.
const FIRST: u8 = 2;

pub(super) fn lost_races_lead_to_the_next_address(plane: &ControlPlane, controller: &Controller) {
    let network = json!({
        "name": "tenant-trunk", "ipv4": {"cidr": "10.2.0.0/24", "gateway": "10.2.0.1"},
    });
    create_tenant(plane, TENANT, &network);
    let mut race = deployment(TENANT, 1, "2Gi", None);
    race["metadata"]["namespace"] = NAMESPACE.into();
    apply(plane, &race);
    wait_until_machines(plane, 1);
    let errors = || {
        controller
            .metric("berth_controller_reconciles_total{controller=\"machines\",result=\"error\"}")
    };
    let errors_before = errors();
    let (machines, lost) = claim_is_created_during_the_request(plane);
    assert_eq!(errors(), errors_before, "a reconcile failed\n{}", plane.log_tail("first"));
    names_of_claims_are_in_use(plane, machines, lost);
    assert_eq!(errors(), errors_before, "a reconcile failed\n{}", plane.log_tail("first"));
    let succeeded = "berth_controller_reconciles_total{controller=\"machines\",result=\"ok\"}";
    assert!(controller.metric(succeeded) > 0.0, "the metric should exist with these labels");
}

/// Tests a claim that another client creates after the controller has chosen the address, and before the API server
/// stores the controller's claim. Returns the number of machines, and the last octet of the other client's address.
fn claim_is_created_during_the_request(plane: &ControlPlane) -> (u8, u8) {
    let refused_before = refused_creations(plane);
    // The webhook selects claims by labels, so it delays the claims of the controller, but not that of the other
    // client.
    let labels = json!({"matchLabels": {"berth.dev/tenant": TENANT}});
    let webhook = block_creations(plane, "berth.dev", "addressclaims", "Ignore", &labels);
    let mut machines = 1;
    let held = loop {
        machines += 1;
        scale(plane, machines);
        if let Some(held) = accept(&webhook) {
            break held;
        }
        assert!(machines < 10, "no claims are created\n{}", plane.log_tail("first"));
    };
    let lost = FIRST + u8::try_from(own_claims(plane).len()).unwrap();
    let other = create_claim(plane, lost, lost);
    plane.kubectl(&["delete", "validatingwebhookconfiguration", "hold"]).unwrap();
    // The webhook fails, so the API server ignores it and continues with the controller's request.
    drop(webhook);
    drop(held);
    wait_until_machines(plane, machines);
    assert_eq!(refused_creations(plane) - refused_before, 1, "{}", plane.log_tail("first"));
    assert_own_addresses(plane, (FIRST..).filter(|one| *one != lost).take(machines.into()));
    let stored = plane.get_json(&["addressclaim", &format!("{NAMESPACE}-{}", address(lost))]);
    let stored: AddressClaim = serde_json::from_value(stored.unwrap()).unwrap();
    assert_eq!((stored.metadata.uid, stored.spec), (other.metadata.uid, other.spec));
    (machines, lost)
}

/// Tests names of claims that are in use by claims to other addresses. In the controller's index the two next addresses
/// are free at each attempt, as if its watch were late, so a controller that does not exclude them never continues.
fn names_of_claims_are_in_use(plane: &ControlPlane, machines: u8, lost: u8) {
    let refused_before = refused_creations(plane);
    let next = FIRST + machines + 1;
    for number in [next, next + 1] {
        create_claim(plane, number, number + 100);
    }
    scale(plane, machines + 1);
    wait_until_machines(plane, machines + 1);
    assert_eq!(refused_creations(plane) - refused_before, 2, "{}", plane.log_tail("first"));
    let addresses = (FIRST..next).filter(|one| *one != lost);
    assert_own_addresses(plane, addresses.chain([next + 2]));
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 2, 0, number])
}

/// Creates a claim of another client to an address, with the name of the claim to the address `name`.
fn create_claim(plane: &ControlPlane, name: u8, number: u8) -> AddressClaim {
    let spec = AddressClaimSpec {
        network: NAMESPACE.to_owned(),
        address: address(number),
        tenant: TENANT.to_owned(),
        tenant_uid: "none".to_owned(),
        machine: ClaimingMachine {
            namespace: "office".to_owned(),
            name: format!("printer-{name}"),
        },
        interface: "eth0".to_owned(),
        mac: MacAddress([2, 0, 0, 0, 0x99, name]),
    };
    let claim = AddressClaim::new(&AddressClaim::name_for(NAMESPACE, address(name)), spec);
    create_runtime().unwrap().block_on(async {
        let api: Api<AddressClaim> = Api::all(create_client(&plane.kubeconfig()).await.unwrap());
        api.create(&PostParams::default(), &claim).await.unwrap()
    })
}

/// Returns the number of creations of claims that the API server has refused, because the name was in use.
fn refused_creations(plane: &ControlPlane) -> u64 {
    let metrics = plane.get_raw("/metrics").unwrap();
    let labels = ["code=\"409\"", "resource=\"addressclaims\"", "verb=\"POST\""];
    let samples = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && labels.iter().all(|label| line.contains(label))
    });
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn scale(plane: &ControlPlane, replicas: u8) {
    let replicas = format!("--replicas={replicas}");
    plane.kubectl(&["scale", "machinedeployment", TENANT, "-n", NAMESPACE, &replicas]).unwrap();
}

fn machine_names(plane: &ControlPlane) -> BTreeSet<String> {
    let vms = list_items(plane, &["virtualmachines", "-n", NAMESPACE]);
    vms.iter().map(|vm| vm["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn wait_until_machines(plane: &ControlPlane, count: u8) {
    plane
        .wait_until("the machines exist", SHORT_TIMEOUT, |plane| {
            (machine_names(plane).len() == usize::from(count)).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", plane.log_tail("first")));
}

fn own_claims(plane: &ControlPlane) -> Vec<Value> {
    list_items(plane, &["addressclaims", "-l", &format!("berth.dev/tenant={TENANT}")])
}

/// Asserts that the controller's claims have exactly these addresses, and that each machine has one of them.
fn assert_own_addresses(plane: &ControlPlane, numbers: impl Iterator<Item = u8>) {
    let claims = own_claims(plane);
    let texts = |path: &str| -> BTreeSet<String> {
        let values = claims.iter().map(|claim| claim.pointer(path).unwrap());
        values.map(|value| value.as_str().unwrap().to_owned()).collect()
    };
    let expected: BTreeSet<String> = numbers.map(|one| address(one).to_string()).collect();
    assert_eq!(texts("/spec/address"), expected);
    assert_eq!(texts("/spec/machine/name"), machine_names(plane));
    assert_eq!(claims.len(), expected.len(), "{claims:#?}");
}
