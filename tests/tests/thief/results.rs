//! Writes the server's answers to the attempts into a table of the documentation.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::attempts::{Attempt, ExpectedResult};
use crate::request::Verdict;
use crate::test_cluster::TestCluster;

/// Writes `<date>-thief.md` into the folder `BERTH_RESULTS`, relative to the top of the repository. Without the
/// variable, writes nothing.
pub(crate) fn write_results(
    test_cluster: &TestCluster<'_>,
    groups: &[(&str, Vec<Attempt>)],
    deployed_verdicts: &[Option<Verdict>],
    all_permissions_verdicts: Option<&[Option<Verdict>]>,
) {
    let Some(folder) = std::env::var_os("BERTH_RESULTS") else { return };
    let date = Command::new("date").args(["-u", "+%F"]).output().unwrap();
    let date = String::from_utf8(date.stdout).unwrap().trim().to_owned();
    let text = result_header(test_cluster, &date, groups)
        + result_tables(groups, deployed_verdicts, all_permissions_verdicts).as_str();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    std::fs::write(folder.join(format!("{date}-thief.md")), text).unwrap();
}

fn result_header(
    test_cluster: &TestCluster<'_>,
    date: &str,
    groups: &[(&str, Vec<Attempt>)],
) -> String {
    let all_attempts = groups.iter().flat_map(|(_, attempts)| attempts);
    let thefts =
        all_attempts.filter(|attempt| attempt.expected_result != ExpectedResult::Succeeds).count();
    let policy = if test_cluster.has_policy {
        "- last column: the same attempts if the agents have `cluster-admin`, so that only the policy applies; empty if the server does not call the policy"
    } else {
        "- this server has no admission policies: attempts that only a policy denies are expected to succeed"
    };
    let programs = std::env::var_os("KUBEBUILDER_ASSETS")
        .map(|_| format!("KUBEBUILDER_ASSETS=(programs of {}) ", test_cluster.version()))
        .unwrap_or_default();
    format!(
        "# A stolen credential, {date}\n\n\
         - Kubernetes {}; permissions and policy of `deploy/base`, and the permission of component `node-resource-topology`\n\
         - the thief has the token of the agent's pod on node-a; {thefts} attempts, besides the requests that must succeed\n\
         {policy}\n\n\
         After each denied attempt, Nodes, InfraNodes, Leases, Events, pods, ConfigMaps and NodeResourceTopologies are unchanged.\n\n\
         Command: `{programs}BERTH_RESULTS=docs/results cargo test -p berth-tests --test thief`.\n",
        test_cluster.version()
    )
}

fn result_tables(
    groups: &[(&str, Vec<Attempt>)],
    deployed_verdicts: &[Option<Verdict>],
    all_permissions_verdicts: Option<&[Option<Verdict>]>,
) -> String {
    let mut text = String::new();
    let mut number = 0;
    for (group, attempts) in groups {
        let (title, line) = if all_permissions_verdicts.is_some() {
            (" all permissions |", "---|")
        } else {
            ("", "")
        };
        write!(text, "\n## {group}\n\n| attempt | answer |{title}\n|---|---|{line}\n").unwrap();
        for attempt in attempts {
            let cell = |verdicts: &[Option<Verdict>]| {
                verdicts[number].as_ref().map(|one| result_cell(attempt, one)).unwrap_or_default()
            };
            let first = cell(deployed_verdicts);
            write!(text, "| {} | {first} |", attempt.description).unwrap();
            if let Some(all_permissions_verdicts) = all_permissions_verdicts {
                let second = cell(all_permissions_verdicts);
                let second = if second == first { "the same" } else { &second };
                write!(text, " {second} |").unwrap();
            }
            text.push('\n');
            number += 1;
        }
    }
    text
}

fn result_cell(attempt: &Attempt, verdict: &Verdict) -> String {
    let note = match (attempt.expected_result, verdict) {
        (ExpectedResult::ChangesStatusOnly, _) => ", only the status is changed",
        (ExpectedResult::DeniedByPolicy, Verdict::Succeeded(_)) => ", succeeds",
        _ => "",
    };
    format!("{verdict}{note}").replace('|', "\\|").replace('<', "\\<")
}
