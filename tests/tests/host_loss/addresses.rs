//! Addresses, Ethernet address and lease of a machine that migrates, and whose host is lost.

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

use crate::{LOG, NAMESPACE, TIMEOUT, move_to_host, wait_until};

/// Identity of a machine in the tenant's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// UID of the VirtualMachine, and Ethernet address of its interface in the tenant's network.
    machine: [Value; 2],
    /// Name, specification and time of release of each AddressClaim.
    claims: Vec<[Value; 3]>,
    /// Lease in the HostLeases of the host.
    pub(crate) lease: Value,
}

/// Returns the identity of a machine when a host has its lease.
pub(crate) fn identity_on(plane: &ControlPlane, machine: &str, host: &str) -> Identity {
    let what = format!("{host} has the lease of {machine}");
    let found = plane.wait_until(&what, TIMEOUT, |plane| {
        Some(lease(plane, host, machine)).filter(|lease| !lease.is_null())
    });
    let lease = found.unwrap_or_else(|error| panic!("{error}: {}", plane.log_tail(LOG)));
    let vm = plane.get_json(&["virtualmachine", machine, "-n", NAMESPACE]).unwrap();
    let interfaces = vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"].clone();
    let interfaces = interfaces.as_array().unwrap();
    let interface = interfaces.iter().find(|one| one["name"] == "tenant").unwrap();
    let list = plane.get_json(&["addressclaims", "-l", "berth.dev/tenant=bank"]).unwrap();
    let claims = list["items"].as_array().unwrap().iter();
    let own = claims.filter(|claim| claim["spec"]["machine"]["name"] == machine);
    let claims: Vec<[Value; 3]> = own
        .map(|claim| {
            let release = claim["status"]["releasedAt"].clone();
            [claim["metadata"]["name"].clone(), claim["spec"].clone(), release]
        })
        .collect();
    let identity = Identity {
        machine: [vm["metadata"]["uid"].clone(), interface["macAddress"].clone()],
        claims,
        lease,
    };
    assert_eq!(identity.claims.len(), 2, "one claim for each family: {identity:#?}");
    for [_, spec, release] in &identity.claims {
        assert_eq!((&spec["mac"], release), (&identity.machine[1], &Value::Null));
        let family = if spec["address"].as_str().unwrap().contains(':') { "ipv6" } else { "ipv4" };
        assert_eq!(identity.lease[family], spec["address"]);
    }
    assert_eq!(identity.lease["mac"], identity.machine[1]);
    identity
}

/// Returns the lease of a machine on a host; null if the host does not have it.
fn lease(plane: &ControlPlane, host: &str, machine: &str) -> Value {
    let object = plane.get_json(&["hostleases", host]).unwrap_or_default();
    let networks = object["spec"]["networks"].as_array().into_iter().flatten();
    let mut leases =
        networks.flat_map(|network| network["leases"].as_array().into_iter().flatten());
    let name = format!("{NAMESPACE}/{machine}");
    leases.find(|lease| lease["machine"] == name.as_str()).cloned().unwrap_or_default()
}

/// Migrates a machine as virt-controller does. The target host has the lease before the guest arrives, and the source
/// host has the lease until the guest has left.
pub(crate) fn machine_migrates(
    plane: &ControlPlane,
    machine: &str,
    [source, target]: [&str; 2],
) -> Identity {
    let before = identity_on(plane, machine, source);
    assert!(lease(plane, target, machine).is_null());
    let state = json!({"sourceNode": source, "targetNode": target, "failed": false});
    let patch = json!({"status": {"migrationState": state}}).to_string();
    let object = ["patch", "virtualmachineinstance", machine, "-n", NAMESPACE, "--type=merge"];
    plane.kubectl(&[&object[..], &["-p", &patch]].concat()).unwrap();
    assert_eq!(identity_on(plane, machine, target), before, "the guest has not arrived yet");
    assert_eq!(lease(plane, source, machine), before.lease, "the guest has not left yet");
    move_to_host(plane, machine, target);
    wait_until(plane, "the source has no lease", |plane| lease(plane, source, machine).is_null());
    assert_eq!(identity_on(plane, machine, target), before);
    before
}
