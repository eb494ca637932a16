//! Manifests with unusable objects: the plan reports these objects, and plans the others.

use super::program::{repository, run_controller, run_plan, stderr};

#[test]
fn broken_objects_are_reported_and_others_are_planned() {
    let broken = "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: odd, namespace: x}\n\
        spec: {template: {spec: {domain: {cpu: {cores: many}, devices: {}}}}}\n\
        ---\nkind: [\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n\
        ---\napiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: empty}\nspec: {}\n";
    let (code, plan) = run_plan(&["-f", "examples/fleet/", "-f", "-"], broken);
    assert_eq!(code, 1);
    assert_eq!(plan["placed"].as_array().unwrap().len(), 4, "the other VMs are placed");
    assert_eq!(plan["ignored"]["Service"], 1);
    let problems: Vec<String> = plan["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| {
            format!(
                "{}: {}",
                problem["object"].as_str().unwrap(),
                problem["field"].as_str().unwrap()
            )
        })
        .collect();
    for wanted in [
        "VirtualMachine x/odd: spec.template.spec.domain.cpu.cores",
        "standard input, document 3: ",
        "InfraNode empty: status",
    ] {
        assert!(
            problems.iter().any(|problem| problem == wanted),
            "{wanted} is not in {problems:?}"
        );
    }
}

#[test]
fn omitted_vm_causes_exit_code_1() {
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: odd, namespace: x}\nspec:\n  \
              runStrategy: Always\n  preference: {kind: VirtualMachinePreference, name: nowhere}\n  template: {spec: \
              {domain: {devices: {}, cpu: {cores: 1}, memory: {guest: 1Gi}}}}\n";
    let (code, answer) = run_plan(&["-f", "examples/fleet/rack1-b.yaml", "-f", "-"], vm);
    let problems = answer["problems"].as_array().unwrap();
    assert!(problems.iter().any(|one| one["isFatal"] == true), "{answer}");
    assert!(answer.to_string().contains("nowhere"), "{answer}");
    assert_eq!(code, 1, "{answer}");
}

/// Malformed or unknown objects are named, and the exit code is 1. Valid objects of kinds that are irrelevant for
/// placement are counted under `ignored`.
#[test]
fn omitted_documents_are_reported() {
    let host = std::fs::read_to_string(repository().join("examples/fleet/lab-a.yaml")).unwrap();
    let document = |kind: &str, version: &str| {
        let version =
            if version.is_empty() { String::new() } else { format!("apiVersion: {version}\n") };
        format!("---\n{version}kind: {kind}\nmetadata: {{name: thing}}\n")
    };
    let services = document("Service", "v1").repeat(2) + &document("Node", "longhorn.io/v1beta2");
    let fine = format!("{host}\n{services}");
    let (code, value) = run_plan(&["-f", "-"], &fine);
    assert_eq!(code, 0, "{:#}", value["problems"]);
    assert_eq!(value["ignored"], serde_json::json!({"Service": 2, "Node.longhorn.io": 1}));
    for (more, words) in [
        (document("VirtualMachine", ""), "VirtualMachine thing"),
        (document("InfraNodes", "berth.dev/v1alpha1"), "InfraNodes"),
        (document("Pood", "v1"), "there is no such kind in v1"),
        (
            "---\napiVersion: v1\nkind: List\nitems: [{kind: Pod, metadata: {name: lost}}]\n"
                .to_owned(),
            "Pod lost",
        ),
        ("---\napiVersion: v1\nkind: PodList\nitems: 7\n".to_owned(), "items"),
    ] {
        let (code, value) = run_plan(&["-f", "-"], &format!("{fine}{more}"));
        let problems = value["problems"].to_string();
        assert!(code == 1 && problems.contains(words), "{words}: {code}: {problems}");
        // `render` parses manifests in the same way: it reports an unusable object, and does not render it.
        let deployment =
            std::fs::read_to_string(repository().join("examples/machines.yaml")).unwrap();
        let output = run_controller(&["render", "-f", "-"], &format!("{deployment}\n{more}"));
        assert_eq!(output.status.code(), Some(2), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words}: {}", stderr(&output));
    }
}
