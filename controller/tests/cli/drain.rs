//! Plans of the drain of a host.

use serde_json::Value;

use super::program::run_plan;

/// Plans the drain of a host with two VMs of a MachineDeployment. `spec` is added to the MachineDeployment.
fn plan_drain_of_deployment(spec: &str, annotations: &str) -> Value {
    let instance = |name: &str| {
        format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: {name}, namespace: cluster-abc, labels: {{md: db}}, annotations: {{{annotations}}}}}\n\
             spec: {{evictionStrategy: External, domain: {{memory: {{guest: 64Mi}}, devices: {{}}}}}}\n\
             status: {{nodeName: rack1-a, phase: Running, conditions: [{{type: LiveMigratable, status: \"False\"}}, \
             {{type: Ready, status: \"True\"}}]}}\n"
        )
    };
    let deployment = format!(
        "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\n\
         metadata: {{name: db, namespace: cluster-abc}}\nspec: {spec}\n\
         status: {{replicas: 2, availableReplicas: 2}}\n"
    );
    let text = [instance("db-8"), instance("db-9"), deployment].join("---\n");
    let arguments = ["-f", "examples/fleet/", "-f", "-", "--drain", "rack1-a"];
    let (_, answer) = run_plan(&arguments, &text);
    answer["drain"]["decisions"].clone()
}

#[test]
fn drain_has_the_reasons_of_the_controller() {
    let reasons = |spec: &str, annotations: &str| {
        let decisions = plan_drain_of_deployment(spec, annotations);
        let decisions = decisions.as_array().cloned().unwrap_or_default();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let each =
            decisions.iter().map(|one| format!("{} {}", text(one, "vm"), text(one, "reason")));
        each.collect::<Vec<_>>()
    };
    let limits = |surge: u32, unavailable: u32| {
        format!(
            "{{replicas: 2, template: {{}}, strategy: {{rollingUpdate: {{maxSurge: {surge}, maxUnavailable: {unavailable}}}}}}}"
        )
    };
    assert_eq!(
        reasons(&limits(1, 0), ""),
        ["cluster-abc/db-8 WaitingForReplacement", "cluster-abc/db-9 BudgetExhausted"]
    );
    assert_eq!(
        reasons(&limits(0, 1), ""),
        ["cluster-abc/db-8 BeingRemoved", "cluster-abc/db-9 BudgetExhausted"]
    );
    let marked = "berth.dev/removal: Rollout, berth.dev/removal-since: \"2026-05-01T12:00:00Z\"";
    assert_eq!(
        reasons(&limits(1, 0), marked),
        ["cluster-abc/db-8 BeingRemoved", "cluster-abc/db-9 BeingRemoved"]
    );
    let invalid = "{replicas: -1, template: {}}";
    assert_eq!(
        reasons(invalid, ""),
        ["cluster-abc/db-8 InvalidDeployment", "cluster-abc/db-9 InvalidDeployment"]
    );
    let decisions = plan_drain_of_deployment(invalid, "");
    assert_eq!(decisions[0]["blocked"], true);
    assert!(
        decisions[0]["message"].as_str().unwrap_or_default().contains("spec.replicas"),
        "{decisions}"
    );
}

#[test]
fn drain_moves_vms_or_reports_the_blocking_rule() {
    let (code, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack1-a"], "");
    assert_eq!(code, 1);
    let drain = &answer["drain"];
    let stuck = drain["stuck"].as_array().unwrap();
    assert_eq!(stuck.len(), 1, "{stuck:?}");
    assert_eq!(stuck[0]["vm"], "cluster-abc/cache-1");
    assert_eq!(stuck[0]["reason"], "NoHostFits");
    // The drained host is no other host.
    let refused = stuck[0]["refused"].as_array().unwrap();
    let counted: u64 = refused.iter().filter_map(|one| one["hosts"].as_u64()).sum();
    assert_eq!(counted + 1, answer["hosts"].as_array().unwrap().len() as u64, "{refused:?}");
    assert!(refused.iter().all(|one| one["example"] != "rack1-a"), "{refused:?}");
    let remedy = stuck[0]["remedy"].as_str().unwrap();
    assert!(!remedy.contains("rack1-a"), "{remedy}");
    assert!(
        stuck[0]["refused"][0]["detail"]
            .as_str()
            .unwrap()
            .contains("kubernetes.io/hostname=rack1-a")
    );
    let has_db =
        |list: &Value| list.as_array().unwrap().iter().any(|one| one["vm"] == "cluster-abc/db-1");
    assert!(has_db(&drain["moved"]) && !has_db(&drain["replaced"]), "{drain}");
    let instances = ["db-1", "cache-1"].map(|name| {
        format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: {name}, namespace: cluster-abc}}\n\
             spec: {{evictionStrategy: External, domain: {{devices: {{}}}}}}\n\
             status: {{nodeName: rack1-a, conditions: [{{type: LiveMigratable, status: \"False\"}}]}}\n"
        )
    });
    let arguments = ["-f", "examples/fleet/", "-f", "-", "--drain", "rack1-a"];
    // `db-9` has the label of a MachineDeployment, so this MachineDeployment owns it. The other two instances have no
    // owner.
    let managed = instances[0]
        .replace("name: db-1,", "name: db-9, labels: {md: db},")
        .replace("domain: {", "domain: {memory: {guest: 64Mi}, ");
    let [first, second] = instances;
    let (_, answer) = run_plan(&arguments, &[first, second, managed].join("---\n"));
    let drain = &answer["drain"];
    assert!(!has_db(&drain["moved"]) && has_db(&drain["notManaged"]), "{drain}");
    assert_eq!(drain["replaced"][0]["vm"], "cluster-abc/db-9");
    assert_eq!(drain["replaced"][0]["reason"], "NotMigratable");
    assert_eq!(drain["stuck"][0]["reason"], "NotMigratable");
    let (_, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack2-a"], "");
    let moved = &answer["drain"]["moved"];
    assert!(moved.as_array().unwrap().iter().all(|moved| moved["host"] != "rack2-a"), "{moved}");
    let (code, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack9"], "");
    assert_eq!((code, &answer["drain"]["isKnown"]), (1, &Value::Bool(false)));
}
