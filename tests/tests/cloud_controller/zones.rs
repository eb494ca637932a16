//! Zone labels of a tenant's Nodes when their VMs move to a host in another zone: Berth updates the labels that it
//! copies, and the labels of the cloud controller manager become stale.

use std::path::Path;

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use berth_tests::tenant_clusters::Clusters;
use serde_json::json;

use crate::{
    NAME, NAMESPACE, create_machines, create_tenant, node_is_initialized_from_its_machine,
    start_cloud_controller_manager, wait_until,
};

const ZONE: &str = "topology.kubernetes.io/zone";
/// Label with a copy of the zone. The cloud controller manager restores [`ZONE`] from this copy.
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";

pub(crate) fn labels_are_updated_after_a_migration(clusters: &Clusters, program: &Path) {
    let (infra, tenant) = (&clusters.infra, &clusters.tenant);
    let hosts = ["rack1-a", "rack1-b"];
    let _fleet = Fleet::start(&infra.kubeconfig(), &hosts, FleetBehaviour::Agents).unwrap();
    for (host, zone) in [("rack1-a", "a"), ("rack1-b", "b")] {
        infra.kubectl(&["label", "node", host, &format!("{ZONE}={zone}")]).unwrap();
    }
    let _kubevirt = KubeVirt::start(&infra.kubeconfig()).unwrap();
    let _controller = Controller::start(infra, "berth", &[]).unwrap();
    create_tenant(infra, tenant);
    let machines = create_machines(infra, 2);
    for machine in &machines {
        move_to_host(infra, machine, "rack1-a");
    }
    clusters.wait_until_condition("shop", "TenantAccessReady", "True Connected");

    let manager = start_cloud_controller_manager(program, infra, tenant, false);
    only_berth_writes_zone_labels(clusters, &machines[0]);
    drop(manager);
    permit_reading_hosts(infra);
    let _manager = start_cloud_controller_manager(program, infra, tenant, true);
    labels_of_the_cloud_controller_manager_become_stale(clusters, &machines[1]);
    berth_owns_labels_after_their_removal(clusters, &machines[1]);
}

/// Tests that the label has the zone of the new host with `zoneAndRegionEnabled: false`, as in Berth's Deployment.
fn only_berth_writes_zone_labels(clusters: &Clusters, machine: &str) {
    node_is_initialized_from_its_machine(&clusters.infra, &clusters.tenant, machine);
    wait_until_label(clusters, machine, ZONE, Some("a"));
    print_zones(clusters, "zoneAndRegionEnabled: false, before the migration");
    move_to_host(&clusters.infra, machine, "rack1-b");
    wait_until_label(clusters, machine, ZONE, Some("b"));
    // The wait is longer than the interval at which the cloud controller manager updates Nodes.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!(label(clusters, machine, ZONE).as_deref(), Some("b"));
    assert_eq!(label(clusters, machine, BETA_ZONE), None);
    print_zones(clusters, "zoneAndRegionEnabled: false, after the migration");
    clusters.wait_until_condition("shop", "NodeLabelsReady", "True LabelsReplicated");
}

/// Tests that, with `zoneAndRegionEnabled: true`, the cloud controller manager repeatedly writes the zone of the first
/// host.
fn labels_of_the_cloud_controller_manager_become_stale(clusters: &Clusters, machine: &str) {
    node_is_initialized_from_its_machine(&clusters.infra, &clusters.tenant, machine);
    wait_until_label(clusters, machine, BETA_ZONE, Some("a"));
    wait_until_label(clusters, machine, ZONE, Some("a"));
    print_zones(clusters, "zoneAndRegionEnabled: true, before the migration");
    move_to_host(&clusters.infra, machine, "rack1-b");
    // If Berth labelled the Node first, Berth updates the label until the cloud controller manager overwrites the
    // label.
    let expected = "False FieldsOwnedByOthers";
    let message = clusters.condition_message("shop", "NodeLabelsReady", expected);
    assert!(message.contains(ZONE) && message.contains(machine), "{message}");
    assert_eq!(label(clusters, machine, ZONE).as_deref(), Some("a"));
    print_zones(clusters, "zoneAndRegionEnabled: true, after the migration");
    // The cloud controller manager restores the label from the copy, even if Berth has written the label in the
    // meantime.
    remove_label(clusters, machine, ZONE);
    wait_until_label(clusters, machine, ZONE, Some("a"));
    clusters.wait_until_condition("shop", "NodeLabelsReady", expected);
}

/// Tests that Berth remains the owner of the label if [`BETA_ZONE`] is removed: the cloud controller manager sets zones
/// only on new Nodes.
fn berth_owns_labels_after_their_removal(clusters: &Clusters, machine: &str) {
    remove_label(clusters, machine, BETA_ZONE);
    remove_label(clusters, machine, ZONE);
    wait_until_label(clusters, machine, ZONE, Some("b"));
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!(label(clusters, machine, ZONE).as_deref(), Some("b"));
    print_zones(clusters, "zoneAndRegionEnabled: true, after the labels were removed");
    clusters.wait_until_condition("shop", "NodeLabelsReady", "True LabelsReplicated");
}

/// `zoneAndRegionEnabled` needs the permission to read the Nodes of the infra cluster, which Berth does not grant.
fn permit_reading_hosts(infra: &ControlPlane) {
    let role = ["create", "clusterrole", "zones", "--verb=get,list,watch", "--resource=nodes"];
    infra.kubectl(&role).unwrap();
    let account = format!("--serviceaccount={NAMESPACE}:{NAME}");
    let bind = ["create", "clusterrolebinding", "zones", "--clusterrole=zones", &account];
    infra.kubectl(&bind).unwrap();
}

fn move_to_host(infra: &ControlPlane, machine: &str, host: &str) {
    let patch = json!({"status": {"nodeName": host}}).to_string();
    let target = ["patch", "virtualmachineinstance", machine, "-n", NAMESPACE, "--type=merge"];
    infra.kubectl(&[&target[..], &["-p", &patch]].concat()).unwrap();
}

fn remove_label(clusters: &Clusters, node: &str, key: &str) {
    clusters.tenant.kubectl(&["label", "node", node, &format!("{key}-")]).unwrap();
}

fn label(clusters: &Clusters, node: &str, key: &str) -> Option<String> {
    let node = clusters.tenant.get_json(&["node", node]).unwrap();
    node["metadata"]["labels"][key].as_str().map(str::to_owned)
}

fn wait_until_label(clusters: &Clusters, node: &str, key: &str, value: Option<&str>) {
    wait_until(&clusters.infra, &format!("{node} has {key}={value:?}"), || {
        (label(clusters, node, key).as_deref() == value).then_some(())
    });
}

fn print_zones(clusters: &Clusters, when: &str) {
    let nodes = clusters.tenant.kubectl(&["get", "nodes", "-L", ZONE, "-L", BETA_ZONE]).unwrap();
    eprintln!("{when}:\n{nodes}");
}
