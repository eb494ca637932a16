//! Documents and files of the repository that contain the output of the program.

use serde_json::Value;

use super::manual;
use super::program::{repository, run_controller, stderr, stdout};
use super::samples::{compare_sample, compare_with_file};

#[test]
fn checks_are_documented() {
    let list = stdout(&run_controller(&["check", "--list"], ""));
    for line in list.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    compare_sample("docs/preflight.md", "checks", &list);
    let json = stdout(&run_controller(&["check", "--list", "-o", "json", "kubevirt"], ""));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["id"], "kubevirt.version");
}

#[test]
fn documents_contain_the_output_of_the_program() {
    let output = run_controller(&["plan", "-f", "examples/fleet/"], "");
    assert_eq!(output.status.code(), Some(1), "one VM does not fit: {}", stderr(&output));
    let table = stdout(&output);
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    compare_sample("docs/placement.md", "fleet", &table);
    let reference = stdout(&run_controller(&["man", "--markdown"], ""));
    compare_with_file("docs/berth-controller.md", &reference);
    manual::check("berth-controller", &stdout(&run_controller(&["man"], "")), &reference);
}

#[test]
fn printed_crds_equal_the_files_in_deploy() {
    let printed = stdout(&run_controller(&["crds"], ""));
    let names = [
        "infranodes",
        "hostprofiles",
        "infraconfigs",
        "tenantclusters",
        "vlanclaims",
        "prefixclaims",
        "addressclaims",
        "hostleases",
        "tenantquotas",
        "tenantrequests",
    ];
    let files = names.map(|name| {
        let file = repository().join(format!("deploy/crds/{name}.berth.dev.yaml"));
        format!("---\n{}", std::fs::read_to_string(file).unwrap())
    });
    assert_eq!(printed, files.concat());
}
