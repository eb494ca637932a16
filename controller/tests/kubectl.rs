//! Runs `kubectl-berth` on objects in files. `docs/kubectl-berth.md` shows its output.
//!
//! After a change of the output, run `make samples` (this test with `BERTH_UPDATE=1`) and review the difference.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "tests run the program, read files, and fail by panicking"
)]

#[path = "../../tests/src/manual.rs"]
mod manual;
#[path = "../../tests/src/samples.rs"]
mod samples;
#[path = "../../tests/src/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Output};

use samples::{compare_sample, compare_with_file, repository_file};
use serde_json::{Value, json};

/// Objects of a small cluster.
const CLUSTER: &str = "controller/tests/kubectl/cluster.yaml";

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-berth"))
        .args(arguments)
        .current_dir(repository_file(""))
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command on the objects of the small cluster, and returns its output.
fn show(arguments: &[&str], code: i32) -> String {
    let all = [arguments, &["--from", CLUSTER]].concat();
    let output = run(&all);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn samples_of_the_document_are_the_output_of_the_program() {
    // One test updates all samples, because tests run in parallel.
    for (name, arguments, code) in [
        ("hosts", &["hosts"][..], 0),
        ("host", &["host", "rack1-a"], 0),
        ("tenants", &["tenants"], 0),
        ("machines", &["machines"], 0),
        ("networks", &["networks"], 0),
        ("storageclasses", &["storageclasses"], 0),
        ("why-placed", &["why", "cluster-bank/db-1"], 0),
        ("why-unplaced", &["why", "cluster-bank/db-2"], 1),
        ("drain-check", &["drain-check", "rack1-a"], 1),
    ] {
        let text = show(arguments, code);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        compare_sample("docs/kubectl-berth.md", name, &text);
    }
    let reference = stdout(&run(&["man", "--markdown"]));
    compare_with_file("docs/kubectl-berth-commands.md", &reference);
    manual::check("kubectl-berth", &stdout(&run(&["man"])), &reference);
}

#[test]
fn json_has_the_values_of_the_objects() {
    let json = |arguments: &[&str]| -> Value {
        let all = [arguments, &["-o", "json"]].concat();
        serde_json::from_str(&show(&all, 0)).unwrap()
    };
    let hosts = json(&["hosts"]);
    let names: Vec<&str> = hosts["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["rack1-a", "rack1-b", "rack2-a"]);
    let host = &hosts["hosts"][0];
    assert_eq!(host["states"], json!(["NotReady"]));
    assert_eq!(host["pinnableCPUs"], json!({"used": 20, "total": 44}));
    assert_eq!(host["hugepages"], json!({"used": 40_u64 << 30, "total": 64_u64 << 30}));
    assert_eq!(host["vms"], 2);
    assert_eq!(host["zones"][1]["freeCPUs"], "17-23,37-47");
    assert_eq!(host["zones"][1]["hugepages"], json!([{"size": "1Gi", "used": 8, "total": 32}]));
    assert_eq!(host["trunk"], "Missing");
    assert_eq!(hosts["hosts"][1]["states"], json!(["Draining", "Cordoned"]));
    assert_eq!(hosts["hosts"][1]["drain"]["reason"], "HostCordoned");
    assert_eq!(hosts["hosts"][2]["states"], json!(["Lost", "NodeNotReady", "AgentUnresponsive"]));
    let machines = json(&["machines"]);
    let machine = &machines["machines"][0];
    assert_eq!(machine["namespace"], "cluster-bank");
    assert_eq!(machine["addresses"], json!(["10.120.0.5"]));
    assert_eq!((&machine["vcpus"], &machine["memory"]), (&json!(16), &json!(32_u64 << 30)));
    let states: Vec<&Value> =
        machines["machines"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["Running", "Unschedulable", "Stopped", "Running", "Evacuating"]);
    let networks = json(&["networks"]);
    assert_eq!(networks["networks"][0]["freeVLANs"], 18);
    assert_eq!(
        networks["networks"][0]["trunks"],
        json!({"verified": 1, "missing": 1, "unknown": 0})
    );
    let classes = json(&["storageclasses"]);
    assert_eq!(classes["storageClasses"][2]["exists"], false);
    // The YAML document has the same content.
    let yaml = show(&["hosts", "-o", "yaml"], 0);
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), hosts);
}

#[test]
fn filters_select_machines() {
    for (filter, names) in [
        (&["--tenant", "shop"][..], &["test", "web-1", "web-2"][..]),
        (&["--host", "rack1-a"], &["db-1", "web-1"]),
        (&["--deployment", "db"], &["db-1", "db-2"]),
        (&["-n", "cluster-bank"], &["db-1", "db-2"]),
        (&["--tenant", "none"], &[]),
    ] {
        let text = show(&[&["machines", "-o", "json"], filter].concat(), 0);
        let all: Value = serde_json::from_str(&text).unwrap();
        let all = all["machines"].as_array().unwrap();
        let found: Vec<&str> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{filter:?}");
    }
}

/// Names and messages of objects may have any characters: the terminal must not interpret them.
#[test]
fn hostile_texts_do_not_reach_the_terminal() {
    let long = "x".repeat(2000);
    let hostile = "a\u{1b}[2J\u{9b}31m\r\u{7}\nb";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": hostile}, "spec": {"profile": long},
         "status": {"conditions": [{"type": "Ready", "status": hostile, "reason": hostile, "message": long,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}},
        {"apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "malformed"}, "spec": {"networks": 7}},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"namespace": hostile, "name": long},
         "spec": {"template": 5}, "status": {"printableStatus": hostile}},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": 3},
        {"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": hostile}, "spec": {}},
    ]});
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile.json");
    std::fs::write(&file, objects.to_string()).unwrap();
    let file = file.to_str().unwrap();
    for arguments in [
        &["hosts"][..],
        &["hosts", "-o", "wide"],
        &["hosts", "-o", "json"],
        &["hosts", "-o", "yaml"],
        &["host", hostile],
        &["tenants"],
        &["tenants", hostile],
        &["machines"],
        &["machines", "-o", "wide"],
        &["networks"],
        &["why", "malformed"],
    ] {
        let output = run(&[arguments, &["--from", file]].concat());
        for text in [stdout(&output), stderr(&output)] {
            assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{arguments:?}: {text:?}");
        }
        if !arguments.contains(&"-o") {
            let too_long = |line: &&str| line.chars().count() > 80;
            assert_eq!(stdout(&output).lines().find(too_long), None, "{arguments:?}");
        }
    }
    let output = run(&["hosts", "--from", file]);
    assert!(stderr(&output).contains("InfraNode malformed: spec.networks"), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("malformed") && text.contains("Malformed"), "{text}");
}

#[test]
fn wrong_use_is_explained() {
    for (arguments, code, words) in [
        (&["host", "none", "--from", CLUSTER][..], 2, "`kubectl berth hosts` shows all"),
        (&["why", "none", "--from", CLUSTER], 2, "`kubectl berth machines` shows all"),
        (&["drain-check", "none", "--from", CLUSTER], 2, "its agent does not report"),
        (&["what-if", "--add", "0xrack1-a", "--from", CLUSTER], 2, "2xrack1-a"),
        (&["what-if", "--from", CLUSTER], 2, "--filename"),
        (&["hosts", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["hosts", "--from", "/nowhere"], 2, "/nowhere"),
        (&["hosts", "--watch", "--from", CLUSTER], 2, "--from"),
        (&["vnc", "a/b", "--proxy-only", "--viewer", "x"], 2, "--viewer"),
        (&["console", "a/b", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["ssh", "a/b", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
    ] {
        let output = run(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn berth_controller_has_the_same_commands() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth-controller"))
        .args(["hosts", "--from", CLUSTER])
        .current_dir(repository_file(""))
        .output()
        .unwrap();
    assert_eq!(stdout(&output), show(&["hosts"], 0));
}

#[test]
fn a_simulated_change_is_planned() {
    // Two hosts like rack1-b have zones that are large enough for db-2.
    let text = show(&["what-if", "--add", "rack1-b"], 1);
    assert!(text.contains("additional host"), "{text}");
    let text = show(&["what-if", "--add", "1xrack1-b", "-o", "json"], 1);
    let plan: Value = serde_json::from_str(&text).unwrap();
    let hosts = plan["hosts"].as_array().unwrap();
    assert!(hosts.iter().any(|host| host["name"] == "rack1-b-1"), "{plan:#}");
}

#[test]
fn the_bash_completion_script_completes_commands() {
    let script = stdout(&run(&["completion", "bash"]));
    let words = "COMP_WORDS=(kubectl-berth dra); COMP_CWORD=1";
    let call = "_kubectl__berth kubectl-berth dra kubectl-berth";
    let test = format!("{script}\n{words}; {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\"");
    let output = Command::new("bash").args(["-c", &test]).output().unwrap();
    assert_eq!(stdout(&output), "drain-check\n", "{}", stderr(&output));
    let plugin = stdout(&run(&["__complete", "why", ""]));
    assert_eq!(plugin, ":4\n");
    let plugin = stdout(&run(&["__complete", "stor"]));
    assert!(plugin.starts_with("storageclasses\t"), "{plugin}");
}
