//! Tests of the damage that a stolen credential of an agent can cause: attacks with the token of node-a's pod, and
//! the server's answers.
//!
//! Servers since 1.30 restrict an agent to its Node by the admission policy of `deploy/`. On older servers only
//! RBAC applies, and the tests assert that attacks which RBAC cannot prevent really succeed, because the README
//! documents these attacks. With `BERTH_RESULTS=docs/results` the answers are written there as a table.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, run programs and write files"
)]

#[path = "thief/attempts.rs"]
mod attempts;
#[path = "thief/credentials.rs"]
mod credentials;
#[path = "thief/infra_nodes.rs"]
mod infra_nodes;
#[path = "thief/nodes.rs"]
mod nodes;
#[path = "thief/objects.rs"]
mod objects;
#[path = "thief/other_requests.rs"]
mod other_requests;
#[path = "thief/permitted.rs"]
mod permitted;
#[path = "thief/reports.rs"]
mod reports;
#[path = "thief/request.rs"]
mod request;
#[path = "thief/results.rs"]
mod results;
#[path = "thief/state.rs"]
mod state;
#[path = "thief/test_cluster.rs"]
mod test_cluster;

use std::io::Write as _;

use attempts::{Attempt, ExpectedResult};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use request::Verdict;
use state::ClusterSnapshot;
use test_cluster::TestCluster;

/// Node whose agent's token is stolen.
const OWN_NODE: &str = "node-a";
/// Node of another agent.
const OTHER_NODE: &str = "node-b";

/// RBAC permissions of the agents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Permissions {
    /// Permissions that `deploy/` grants.
    Deployed,
    /// All permissions: the admission policy must be sufficient without RBAC.
    All,
}

/// The control plane has no controllers: they would taint Nodes without a kubelet, and the compared objects would
/// change without an attempt.
#[test]
fn stolen_credential_grants_access_to_one_node_only() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    let test_cluster = TestCluster::start(&plane);
    let groups = attempts::all_attempts(&test_cluster);
    let before = ClusterSnapshot::read(&test_cluster);
    let mut failures = Vec::new();
    let deployed_verdicts =
        run_attempts(&test_cluster, &groups, Permissions::Deployed, &mut failures);
    let all_permissions_verdicts = test_cluster.has_policy.then(|| {
        test_cluster.grant_all_permissions();
        run_attempts(&test_cluster, &groups, Permissions::All, &mut failures)
    });
    assert!(
        failures.is_empty(),
        "{} attempts have an unexpected result:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert_eq!(
        ClusterSnapshot::read(&test_cluster).protected_parts(&before),
        before.protected_parts(&before)
    );
    results::write_results(
        &test_cluster,
        &groups,
        &deployed_verdicts,
        all_permissions_verdicts.as_deref(),
    );
}

/// Runs the attempts sequentially. Changes of an attempt are reverted, so that each attempt starts from the same state.
fn run_attempts(
    test_cluster: &TestCluster<'_>,
    groups: &[(&str, Vec<Attempt>)],
    permissions: Permissions,
    failures: &mut Vec<String>,
) -> Vec<Option<Verdict>> {
    let mut verdicts = Vec::new();
    let mut before = ClusterSnapshot::read(test_cluster);
    for (group, attempt) in attempts::with_groups(groups) {
        if permissions == Permissions::All && !attempt.expected_result.is_denied_by_policy() {
            verdicts.push(None);
            continue;
        }
        let credential = attempt.credential.as_ref().unwrap_or(&test_cluster.thief_credential);
        let verdict = test_cluster.client.send(credential, &attempt.request).verdict();
        let after = ClusterSnapshot::read(test_cluster);
        if !is_expected(test_cluster.has_policy, permissions, attempt, &verdict, &before, &after) {
            let changed = before.difference(&after);
            failures.push(format!("{group}: {}: {verdict}\n{changed}", attempt.description));
        } else if attempt.expected_result == ExpectedResult::DeniedByPolicy
            && matches!(verdict, Verdict::Succeeded(_))
        {
            let message =
                format!("succeeds without the admission policy: {group}: {}", attempt.description);
            writeln!(std::io::stderr(), "{message}").unwrap_or_default();
        }
        if attempt.expected_result == ExpectedResult::Succeeds {
            before = after;
        } else if after != before {
            before.restore(test_cluster);
        }
        verdicts.push(Some(verdict));
    }
    verdicts
}

fn is_expected(
    has_policy: bool,
    permissions: Permissions,
    attempt: &Attempt,
    verdict: &Verdict,
    before: &ClusterSnapshot,
    after: &ClusterSnapshot,
) -> bool {
    let unchanged = before == after;
    match (attempt.expected_result, verdict) {
        (ExpectedResult::Succeeds, Verdict::Succeeded(_)) => after.has_expected_values(attempt),
        // A response with status 200 does not prove a change.
        (ExpectedResult::ChangesStatusOnly, Verdict::Succeeded(_)) => {
            before.without_status() == after.without_status() && after.has_same_managers(before)
        }
        (ExpectedResult::DeniedByPolicy, Verdict::Succeeded(_)) => !has_policy && !unchanged,
        (ExpectedResult::DeniedByPolicy, Verdict::DeniedByPolicy(_)) => unchanged,
        (ExpectedResult::DeniedByRbac, Verdict::DeniedByRbac) => {
            unchanged && permissions == Permissions::Deployed
        }
        (ExpectedResult::DeniedByRbac, Verdict::DeniedByPolicy(_)) => {
            unchanged && permissions == Permissions::All
        }
        (ExpectedResult::DeniedByRbacOnly, Verdict::DeniedByRbac) => unchanged,
        _ => false,
    }
}
