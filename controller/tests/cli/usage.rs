//! Exit codes and errors of the commands, completions, and the migration of Services.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use serde_json::Value;

use super::program::{repository, run_controller, stderr, stdout};

/// The exit code for an API server that does not answer differs from the exit code for invalid usage.
#[test]
fn unreachable_cluster_is_reported_by_check() {
    let kubeconfig = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unreachable.kubeconfig");
    // Without a certificate authority in the kubeconfig, the client needs the root certificates of the operating
    // system, which may be missing.
    let authority = std::fs::read(repository().join("crates/runtime/tests/agent.crt")).unwrap();
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    // Port 1 is reserved, and no program listens on it.
    let cluster =
        format!("{{server: 'https://127.0.0.1:1', certificate-authority-data: {authority}}}");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let output = run_controller(&["check", "--kubeconfig", kubeconfig.to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let error = stderr(&output);
    assert!(error.starts_with("berth-controller: API server 127.0.0.1:1: "), "{error}");
}

#[test]
fn the_bash_completion_script_completes_commands() {
    let script = stdout(&run_controller(&["completion", "bash"], ""));
    let words = "COMP_WORDS=(berth-controller pl); COMP_CWORD=1";
    let call = "_berth__controller berth-controller pl berth-controller";
    let test = format!("{script}\n{words}; {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\"");
    let output = Command::new("bash").args(["-c", &test]).output().unwrap();
    assert_eq!(stdout(&output), "plan\n", "{}", stderr(&output));
}

#[test]
fn invalid_usage_is_reported_with_a_remedy() {
    for (arguments, code, words) in [
        (&["plan"][..], 2, "specify -f DIR|FILE|-"),
        (&["plan", "-f", "/nowhere"], 2, "/nowhere"),
        (&["plan", "-f", "controller/src"], 2, "no .yaml"),
        (&["plan", "-f", "examples/fleet/", "--add", "0xrack1-a"], 2, "2xrack1-a"),
        (&["plan", "-f", "examples/machines.yaml"], 2, "no InfraNode"),
        (&["plan", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["check", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["check", "tenant.network"], 2, "specify --tenant NAME"),
        (&["check", "kubevirt.nothing"], 2, "kubevirt.nothing"),
        (&["run", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["run", "--kubeconfig", "docs/packing.svg"], 2, "packing.svg"),
    ] {
        let output = run_controller(arguments, "");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn migration_of_load_balancers_is_printed() {
    let input = "apiVersion: berth.dev/v1alpha1\nkind: TenantCluster\nmetadata: {name: xyz}\nspec: {}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {name: a1, namespace: cluster-xyz}\n\
                 spec: {type: LoadBalancer, selector: {cloud.kubevirt.io/xyz: 'true'}}\n";
    let output = run_controller(&["render", "--migrate", "-f", "-"], input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("Service cluster-xyz/a1, spec.selector:\n  - cloud.kubevirt.io/xyz"),
        "{text}"
    );
    let output = run_controller(&["render", "--migrate", "-o", "json", "-f", "-"], input);
    let patch: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(patch["spec"]["selector"]["cluster.x-k8s.io/cluster-name"], "xyz");
    let output = run_controller(&["render", "--migrate", "-f", "-"], "apiVersion: v1\nkind: Pod\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("has no Service"), "{}", stderr(&output));
}
