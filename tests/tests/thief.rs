//! What a stolen credential of an agent is worth: all that a thief with the token of node-a's pod may think of, and
//! what the server answers.
//!
//! Servers since 1.30 hold an agent to its Node by the admission policy of `deploy/`. On older ones RBAC is alone, and
//! what it cannot say must really be open: the README tells people so. With `BERTH_RESULTS=docs/results` the answers are
//! left there as a table.

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
#[path = "thief/rest.rs"]
mod rest;
#[path = "thief/results.rs"]
mod results;
#[path = "thief/state.rs"]
mod state;
#[path = "thief/works.rs"]
mod works;
#[path = "thief/world.rs"]
mod world;

use std::io::Write as _;

use attempts::{Attempt, Expect};
use berth_tests::cluster::{ControlPlane, Parts};
use request::Verdict;
use state::State;
use world::World;

/// Whose token is stolen.
const OWN: &str = "node-a";
/// Another agent's.
const OTHER: &str = "node-b";

/// What the agents may by RBAC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// What `deploy/` gives.
    Deployed,
    /// All of them: the policy must hold on its own.
    All,
}

/// No controllers: they would taint Nodes that no kubelet speaks for, and what is compared here would change by itself.
#[test]
fn a_stolen_credential_is_worth_one_node() {
    let plane = ControlPlane::start(Parts::default()).unwrap();
    let world = World::set_up(&plane);
    let groups = attempts::all(&world);
    let before = State::of(&world);
    let mut wrong = Vec::new();
    let deployed = all_of(&world, &groups, Rights::Deployed, &mut wrong);
    let all = world.policy.then(|| {
        world.give_all_rights();
        all_of(&world, &groups, Rights::All, &mut wrong)
    });
    assert!(wrong.is_empty(), "{} are not as they must be:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(State::of(&world).guarded(&before), before.guarded(&before));
    results::tell(&world, &groups, &deployed, all.as_deref());
}

/// Tries them one after the other; what an attempt changed is restored, so that each finds the same.
fn all_of(
    world: &World<'_>,
    groups: &[(&str, Vec<Attempt>)],
    rights: Rights,
    wrong: &mut Vec<String>,
) -> Vec<Option<Verdict>> {
    let mut verdicts = Vec::new();
    let mut before = State::of(world);
    for (group, attempt) in attempts::flat(groups) {
        if rights == Rights::All && !attempt.expect.is_the_policys() {
            verdicts.push(None);
            continue;
        }
        let who = attempt.who.as_ref().unwrap_or(&world.thief);
        let verdict = world.server.ask(who, &attempt.request).verdict();
        let after = State::of(world);
        if !as_expected(world.policy, rights, attempt, &verdict, &before, &after) {
            let changed = before.difference(&after);
            wrong.push(format!("{group}: {}: {verdict}\n{changed}", attempt.what));
        } else if attempt.expect == Expect::NotOwn && matches!(verdict, Verdict::Done(_)) {
            let open = format!("open without the admission policy: {group}: {}", attempt.what);
            writeln!(std::io::stderr(), "{open}").unwrap_or_default();
        }
        if attempt.expect == Expect::Works {
            before = after;
        } else if after != before {
            before.put_back(world);
        }
        verdicts.push(Some(verdict));
    }
    verdicts
}

fn as_expected(
    policy: bool,
    rights: Rights,
    attempt: &Attempt,
    verdict: &Verdict,
    before: &State,
    after: &State,
) -> bool {
    let unchanged = before == after;
    match (attempt.expect, verdict) {
        (Expect::Works, Verdict::Done(_)) => after.has(attempt),
        // An answer of 200 is not yet a change.
        (Expect::Dropped, Verdict::Done(_)) => {
            before.but_for_status() == after.but_for_status() && after.is_held_as(before)
        }
        (Expect::NotOwn, Verdict::Done(_)) => !policy && !unchanged,
        (Expect::NotOwn, Verdict::Policy(_)) => unchanged,
        (Expect::NoRight, Verdict::NoRight) => unchanged && rights == Rights::Deployed,
        (Expect::NoRight, Verdict::Policy(_)) => unchanged && rights == Rights::All,
        (Expect::NotAsked, Verdict::NoRight) => unchanged,
        _ => false,
    }
}
