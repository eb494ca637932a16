//! Networks of tenants: with KubeVirt's feature gate `ExternalNetResourceInjection`, which is enabled by default, a
//! launcher pod does not request the bridge of its network.

use berth_tests::cluster::condition;
use serde_json::{Value, json};

use crate::hosts::{BRIDGE_RESOURCE, HOST_WITHOUT_BRIDGE, TENANT_HOSTS};
use crate::machines::{BANK_NAMESPACE, SHOP_NAMESPACE, scale, wait_until_machines_run};
use crate::testbed::{Testbed, text};

/// Tests that a VM is not placed on a host without the bridge, although the pod does not request the bridge: a fourth
/// VM with anti-affinity waits while a fourth host is empty, and gets this host when the host reports the bridge.
pub(crate) fn vms_get_only_hosts_with_their_network(bed: &Testbed) {
    for pod in bed.launcher_pods(BANK_NAMESPACE).iter().chain(&bed.launcher_pods(SHOP_NAMESPACE)) {
        assert_requests_no_bridge(pod);
        assert!(TENANT_HOSTS.contains(&text(&pod["spec"]["nodeName"])));
    }
    scale(bed, BANK_NAMESPACE, "db", 4);
    let waiting =
        bed.wait_until("the fourth VM is refused", &["pods", "-n", BANK_NAMESPACE], || {
            let pods = bed.launcher_pods(BANK_NAMESPACE);
            let bound = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
            let is_refused = |pod: &&Value| {
                condition(pod, "PodScheduled")["reason"] == "Unschedulable"
                    && pod["spec"]["nodeName"].is_null()
            };
            pods.iter().find(is_refused).filter(|_| bound == 3).cloned()
        });
    assert_requests_no_bridge(&waiting);
    set_bridge(bed, &json!("1000"));
    let name = text(&waiting["metadata"]["name"]);
    bed.wait_until("the fourth VM is bound", &["pod", name, "-n", BANK_NAMESPACE], || {
        let pod = bed.get("pod", BANK_NAMESPACE, name);
        let host = pod["spec"]["nodeName"].as_str()?;
        assert_eq!(host, HOST_WITHOUT_BRIDGE);
        Some(())
    });
    wait_until_machines_run(bed, BANK_NAMESPACE, "db", 4);
    scale(bed, BANK_NAMESPACE, "db", 2);
    wait_until_machines_run(bed, BANK_NAMESPACE, "db", 2);
    set_bridge(bed, &Value::Null);
    bed.assert_kubelets_admit();
}

fn assert_requests_no_bridge(pod: &Value) {
    let namespace = text(&pod["metadata"]["namespace"]);
    for container in pod["spec"]["containers"].as_array().unwrap() {
        assert!(!container["resources"].to_string().contains("bridge."), "{container:#}");
    }
    let networks = text(&pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]);
    let tenant = namespace.trim_start_matches("cluster-");
    assert!(networks.contains(&format!("\"tenant-{tenant}\"")), "{networks}");
}

/// Sets the number of bridge ports that the Node of [`HOST_WITHOUT_BRIDGE`] offers; null removes the resource.
fn set_bridge(bed: &Testbed, ports: &Value) {
    let amounts = json!({BRIDGE_RESOURCE: ports});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts}}).to_string();
    let patch = ["patch", "node", HOST_WITHOUT_BRIDGE, "--subresource=status", "--type=merge"];
    bed.plane.kubectl(&[&patch[..], &["-p", &status]].concat()).unwrap();
}
