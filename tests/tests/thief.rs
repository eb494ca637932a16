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
#[path = "thief/reports.rs"]
mod reports;
#[path = "thief/request.rs"]
mod request;
#[path = "thief/other_requests.rs"]
mod rest;
#[path = "thief/results.rs"]
mod results;
#[path = "thief/state.rs"]
mod state;
#[path = "thief/permitted.rs"]
mod works;
#[path = "thief/world.rs"]
mod world;

use std::io::Write as _;

use attempts::{Attempt, Expect};
use berth_tests::cluster::{ControlPlane, Parts};
use request::Verdict;
use state::State;
use world::World;

/// Node whose agent's token is stolen.
const OWN: &str = "node-a";
/// Node of another agent.
const OTHER: &str = "node-b";

/// RBAC permissions of the agents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// Permissions that `deploy/` grants.
    Deployed,
    /// All permissions: the admission policy must be sufficient without RBAC.
    All,
}

/// The control plane has no controllers: they would taint Nodes without a kubelet, and the compared objects would
/// change without an attempt.
#[test]
fn stolen_credential_grants_access_to_one_node_only() {
    let plane = ControlPlane::start(Parts::default()).unwrap();
    let world = World::set_up(&plane);
    let groups = attempts::all_attempts(&world);
    let before = State::read(&world);
    let mut failures = Vec::new();
    let deployed = run_attempts(&world, &groups, Rights::Deployed, &mut failures);
    let all = world.policy.then(|| {
        world.give_all_rights();
        run_attempts(&world, &groups, Rights::All, &mut failures)
    });
    assert!(
        failures.is_empty(),
        "{} attempts have an unexpected result:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert_eq!(State::read(&world).protected_parts(&before), before.protected_parts(&before));
    results::write_results(&world, &groups, &deployed, all.as_deref());
}

/// Runs the attempts one after the other. Changes of an attempt are reverted, so that each attempt starts from the
/// same state.
fn run_attempts(
    world: &World<'_>,
    groups: &[(&str, Vec<Attempt>)],
    rights: Rights,
    wrong: &mut Vec<String>,
) -> Vec<Option<Verdict>> {
    let mut verdicts = Vec::new();
    let mut before = State::read(world);
    for (group, attempt) in attempts::with_groups(groups) {
        if rights == Rights::All && !attempt.expect.is_denied_by_policy() {
            verdicts.push(None);
            continue;
        }
        let credential = attempt.credential.as_ref().unwrap_or(&world.thief);
        let verdict = world.server.send(credential, &attempt.request).verdict();
        let after = State::read(world);
        if !is_expected(world.policy, rights, attempt, &verdict, &before, &after) {
            let changed = before.difference(&after);
            wrong.push(format!("{group}: {}: {verdict}\n{changed}", attempt.description));
        } else if attempt.expect == Expect::NotOwn && matches!(verdict, Verdict::Done(_)) {
            let message =
                format!("succeeds without the admission policy: {group}: {}", attempt.description);
            writeln!(std::io::stderr(), "{message}").unwrap_or_default();
        }
        if attempt.expect == Expect::Works {
            before = after;
        } else if after != before {
            before.restore(world);
        }
        verdicts.push(Some(verdict));
    }
    verdicts
}

fn is_expected(
    policy: bool,
    rights: Rights,
    attempt: &Attempt,
    verdict: &Verdict,
    before: &State,
    after: &State,
) -> bool {
    let unchanged = before == after;
    match (attempt.expect, verdict) {
        (Expect::Works, Verdict::Done(_)) => after.has_expected_values(attempt),
        // A response with status 200 does not prove a change.
        (Expect::Dropped, Verdict::Done(_)) => {
            before.without_status() == after.without_status() && after.has_same_managers(before)
        }
        (Expect::NotOwn, Verdict::Done(_)) => !policy && !unchanged,
        (Expect::NotOwn, Verdict::Policy(_)) => unchanged,
        (Expect::NoRight, Verdict::NoRight) => unchanged && rights == Rights::Deployed,
        (Expect::NoRight, Verdict::Policy(_)) => unchanged && rights == Rights::All,
        (Expect::NotAsked, Verdict::NoRight) => unchanged,
        _ => false,
    }
}
