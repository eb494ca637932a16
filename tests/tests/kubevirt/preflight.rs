//! `berth-controller check` in a cluster with the real KubeVirt: the findings agree with the behaviour of KubeVirt.

use berth_tests::check::CheckOutput;

use crate::machines::BANK_NAMESPACE;
use crate::testbed::Testbed;

/// Tests that the check of the feature gate `ExternalNetResourceInjection` warns exactly if KubeVirt creates launcher
/// pods that do not request their bridge, and that the other findings agree with the running programs.
pub(crate) fn checks_agree_with_kubevirt(bed: &Testbed) {
    let output = CheckOutput::run(&bed.plane.kubeconfig(), &[]).unwrap();
    let pods = bed.launcher_pods(BANK_NAMESPACE);
    assert!(!pods.is_empty(), "no launcher pod in {BANK_NAMESPACE}");
    let requests_bridge = pods.iter().all(|pod| {
        let containers = pod["spec"]["containers"].as_array().unwrap();
        containers.iter().any(|one| one["resources"].to_string().contains("bridge."))
    });
    let expected = if requests_bridge { "PASS" } else { "WARN" };
    let expected = [
        ("kubevirt.network-resources", expected),
        ("kubevirt.phase", "PASS"),
        ("kubevirt.cpu-manager", "PASS"),
        ("crd.installed", "PASS"),
        ("crd.schema", "PASS"),
        ("crd.machine-deployments", "PASS"),
        ("controller.leader", "PASS"),
        ("controller.permissions", "PASS"),
        ("scheduler.leader", "PASS"),
        // The scheduler and its extender are processes of the test, and do not run in pods.
        ("scheduler.extender", "SKIP"),
    ];
    output.require(&expected).unwrap();
    // VMs run in this cluster, so a finding FAIL would be wrong.
    let finding = output.finding("kubevirt.version").unwrap();
    assert_ne!(finding["status"], "FAIL", "{finding:#}");
}
