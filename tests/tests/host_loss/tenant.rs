//! Lost hosts of a tenant with an API server: the tenant's Node of a machine is deleted only when there is proof
//! that the VM does not run.

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, condition};
use berth_tests::controller::Controller;
use berth_tests::simulated::KubeVirt;
use berth_tests::tenant_clusters::Clusters;
use serde_json::json;

use crate::{
    HOSTS, LOG, LOST_HOST, NAMESPACE, REPLACE_AFTER, annotation, apply, create_infra_node,
    deployment, machines, move_to_host, renew_lease, set_node_ready, wait_for_machine, wait_until,
    write_agent_status,
};

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Host that is lost after the first lost host is back.
const SECOND_LOST_HOST: &str = "rack2-a";

pub(crate) fn nodes_stay_until_there_is_proof() {
    let clusters = Clusters::start(LOG);
    clusters.grant_permissions(&[]);
    let infra = &clusters.infra;
    for host in HOSTS {
        infra.create_node(host).unwrap();
        create_infra_node(infra, host);
    }
    let _kubevirt = KubeVirt::start(&infra.kubeconfig()).unwrap();
    let controller = Controller::start(infra, LOG, &[]).unwrap();
    create_tenant(&clusters);
    let web = create_machine(&clusters, "web", LOST_HOST);
    let db = create_machine(&clusters, "db", SECOND_LOST_HOST);

    lose_host(infra, LOST_HOST, &web);
    // The next leader reads the removal mark, and continues the removal.
    drop(controller);
    let _controller = Controller::start(infra, LOG, &[]).unwrap();
    node_waits_for_proof(&clusters, "web", &web);
    let taint = format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    infra.kubectl(&["taint", "node", LOST_HOST, &taint]).unwrap();
    wait_until_deleted(&clusters, "web", &web);
    restore_host(infra);

    lose_host(infra, SECOND_LOST_HOST, &db);
    node_waits_for_proof(&clusters, "db", &db);
    infra.kubectl(&["delete", "node", SECOND_LOST_HOST]).unwrap();
    wait_until_deleted(&clusters, "db", &db);
}

fn create_tenant(clusters: &Clusters) {
    let spec = json!({
        "replaceAfter": REPLACE_AFTER, "kubeconfigSecretRef": {"name": "kubeconfig"},
    });
    clusters.create_tenant_with("bank", &spec);
    let user_data = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": NAMESPACE},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
    });
    apply(&clusters.infra, &user_data);
    clusters.write_secret(NAMESPACE, &clusters.kubeconfig(&clusters.token()));
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
}

/// Creates a MachineDeployment whose machine is on a host and has a Node in the tenant's cluster.
fn create_machine(clusters: &Clusters, name: &str, host: &str) -> String {
    apply(&clusters.infra, &deployment(name, &json!([])));
    let machine = wait_for_machine(&clusters.infra, name, &[]);
    move_to_host(&clusters.infra, &machine, host);
    clusters.tenant.create_node(&machine).unwrap();
    machine
}

/// Makes the Node of a host not ready, lets the agent's Lease expire, and waits until the machine is marked for
/// removal.
fn lose_host(infra: &ControlPlane, host: &str, machine: &str) {
    set_node_ready(infra, host, "Unknown");
    renew_lease(infra, host, 5);
    wait_until(infra, "the machine has the removal mark", |infra| {
        annotation(infra, machine, "berth.dev/removal") == "HostLost"
    });
}

fn restore_host(infra: &ControlPlane) {
    infra.kubectl(&["taint", "node", LOST_HOST, &format!("{OUT_OF_SERVICE}-")]).unwrap();
    set_node_ready(infra, LOST_HOST, "True");
    renew_lease(infra, LOST_HOST, 3600);
    write_agent_status(infra, LOST_HOST);
    wait_until(infra, "the host is not lost", |infra| {
        condition(&infra.infra_node(LOST_HOST), "HostLost").is_null()
    });
}

fn node_waits_for_proof(clusters: &Clusters, deployment: &str, machine: &str) {
    wait_until(&clusters.infra, "the removal waits for the host", |infra| {
        let object = infra.get_json(&["machinedeployment", deployment, "-n", NAMESPACE]);
        let object = object.unwrap_or_default();
        let one = condition(&object, "MachinesRemoved");
        one["reason"] == "WaitingForHost"
            && one["message"].as_str().is_some_and(|text| text.contains(machine))
    });
    // The wait is longer than `replaceAfter` and the shortest delay of a removal.
    std::thread::sleep(Duration::from_secs(10));
    let node = clusters.tenant.get_json(&["node", machine]).unwrap();
    assert!(node["metadata"]["deletionTimestamp"].is_null(), "{node:#}");
    assert!(machines(&clusters.infra, deployment).contains(&machine.to_owned()));
}

fn wait_until_deleted(clusters: &Clusters, deployment: &str, machine: &str) {
    wait_until(&clusters.infra, "the machine is deleted", |infra| {
        !machines(infra, deployment).contains(&machine.to_owned())
    });
    let nodes = clusters.tenant.kubectl(&["get", "nodes", "-o", "name"]).unwrap();
    assert!(!nodes.contains(machine), "the Node was not deleted before its machine: {nodes}");
}
