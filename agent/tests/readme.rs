//! Compares the samples in documents with the output of the program on the test host of `common/host.rs`.
//!
//! After a change of the output run `make samples` (this test with `BERTH_UPDATE=1`), and review the difference,
//! because a new user reads these samples first. The same applies to the command line reference and to the list of
//! checks.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "tests read files of the repository, and fail by panicking"
)]

mod common;
#[path = "../../tests/src/manual.rs"]
mod manual;
#[path = "../../tests/src/samples.rs"]
mod samples;
#[path = "../../tests/src/skip.rs"]
mod skip;

use common::{host, run_agent, run_agent_on, stdout};
use samples::{compare_sample, compare_with_file, repository_file};

#[test]
fn samples_are_output_of_the_program() {
    let tree = host::rack1_a();
    let report = stdout(&run_agent_on(&tree, &["report"]));
    let check = stdout(&run_agent_on(&tree, &["check", "kvm", "cpu", "hugepages", "kubelet"]));
    // The example is for a small host; the test host has more memory, so the count of pages is larger.
    let example = std::fs::read_to_string(repository_file("examples/infranode.yaml")).unwrap();
    let example = example.replace("count: 256", "count: 16384");
    let plan = plan(&tree, &example);
    for (name, sample) in [("report", &report), ("check", &check), ("plan", &plan)] {
        compare_sample("docs/hosts.md", name, sample);
    }

    let check = stdout(&run_agent_on(&tree, &["check", "kvm"]));
    let short = "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: rack1-a}\nspec:\n  \
                 hugepages: [{size: 2Mi, count: 16384}]\n  ksm: {mode: Auto}\n";
    let plan = self::plan(&tree, short);
    for (name, sample) in [("report", &report), ("check-kvm", &check), ("plan-hugepages", &plan)] {
        compare_sample("README.md", name, sample);
    }
}

/// Returns the output of `berth-agent plan` for a manifest and the host of the tree.
fn plan(tree: &common::tree::Tree, manifest: &str) -> String {
    tree.write_file("infranode.yaml", manifest);
    let path = tree.path().join("infranode.yaml");
    stdout(&run_agent_on(tree, &["plan", "-f", path.to_str().unwrap()]))
}

#[test]
fn the_list_of_checks_is_output_of_the_program() {
    let list = stdout(&run_agent(&["check", "--list"]));
    compare_with_file(
        "docs/checks.md",
        &format!(
            "# Checks\n\nAll checks of `berth-agent check`, as printed by `berth-agent check --list`.\n\n```text\n{list}```\n"
        ),
    );
}

#[test]
fn reference_and_manual_page_match_the_help() {
    let reference = stdout(&run_agent(&["man", "--markdown"]));
    compare_with_file("docs/berth-agent.md", &reference);
    manual::check("berth-agent", &stdout(&run_agent(&["man"])), &reference);
}
