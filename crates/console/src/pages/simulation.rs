//! Results of simulations: the drain of a host, and the placement of a VM.

use std::collections::BTreeMap;

use berth_views::machines::MachineState;
use berth_views::{ObjectName, Severity};
use maud::{Markup, html};

use super::layout::Content;
use super::parts::{
    badge, excerpt, facts, host_link, host_path, machine_link, machine_path, table, text_or_dash,
};
use crate::refusal::Refusal;
use crate::simulation::{
    BlockedVm, DrainReport, DrainStep, MoveKind, PlacementReport, Ranking, SimulatedMove,
    SimulatedPlacement, SimulationError,
};

/// Consequence of problems of objects.
pub(super) const WRONG_RESULT: &str = "The result may be wrong because of them.";

/// A simulation and the time at which its state was read.
pub(crate) struct Simulated<T> {
    pub(crate) result: Result<T, SimulationError>,
    pub(crate) time: String,
}

/// Returns the page with the simulated drain of a host.
pub(crate) fn drain_content(host: &str, simulated: &Simulated<DrainReport>) -> Content {
    let path = host_path(host);
    let view = html! {
        (introduction(&path, host, &format!("{path}/drain"), &simulated.time))
        @match &simulated.result {
            Err(reason) => { p .failure { "Not simulated: " (reason.to_string()) "." } }
            Ok(report) => { (drain(host, report)) }
        }
    };
    Content { form: None, view }
}

/// Returns the page with the explanation of the placement of a VM in this state.
pub(crate) fn placement_content(
    name: &ObjectName,
    state: MachineState,
    simulated: &Simulated<PlacementReport>,
) -> Content {
    let path = machine_path(name);
    let view = html! {
        (introduction(&path, &name.name, &format!("{path}/why"), &simulated.time))
        @match &simulated.result {
            Err(SimulationError::NotPlaced { .. }) if state == MachineState::Stopped => {
                p .warning { "Not explained: the machine is switched off. Start it with spec.runStrategy." }
            }
            Err(reason) => {
                p .failure { "Not explained: " (reason.to_string()) "." }
                @if let SimulationError::NotPlaced { problems } = reason {
                    (problem_section(problems, "The engine may have left the VM out because of them."))
                }
            }
            Ok(report) => { (placement(report)) }
        }
    };
    Content { form: None, view }
}

fn introduction(path: &str, name: &str, own_path: &str, time: &str) -> Markup {
    html! {
        p {
            "A simulation with the objects of " (time) ". It changes no object. "
            a href=(own_path) { "Simulate again" } " or return to " a href=(path) { (name) } "."
        }
    }
}

fn drain(host: &str, report: &DrainReport) -> Markup {
    let (severity, verdict) = match (report.is_possible, report.problems.is_empty()) {
        (true, true) => (Severity::Ok, "The host can be drained"),
        (true, false) => (
            Severity::Warning,
            "The host can be drained, unless the problems below change the result",
        ),
        (false, _) => (Severity::Failure, "The host cannot be drained"),
    };
    let count = |kind: MoveKind| report.moves.iter().filter(|one| one.kind == kind).count();
    html! {
        p { (badge(severity, verdict)) }
        (problem_section(&report.problems, WRONG_RESULT))
        (facts(&[
            ("Migrated, without an interruption", html! { (count(MoveKind::Migrated)) }),
            ("Replaced: programs in the VM end", html! { (count(MoveKind::Replaced)) }),
            ("Not moved by Berth", html! { (count(MoveKind::NotManaged)) }),
            ("Without another host", html! { (report.blocked.len()) }),
        ]))
        (blocked_section(&report.blocked))
        @if !report.unknown_pods.is_empty() {
            section {
                h2 { "Unknown pods" }
                p { "These pods have CPUs or huge pages on the host, but the API server does not know them:" }
                ul { @for pod in &report.unknown_pods { li { (pod) } } }
            }
        }
        section {
            h2 { "VMs" }
            (move_table(&report.moves))
        }
        @if !report.decisions.is_empty() {
            section { h2 { "First reasons of the controller" } (decision_table(&report.decisions)) }
        }
        section { h2 { "Hosts that receive VMs" } (target_table(&report.moves)) }
        section {
            h2 { "To drain the host" }
            p { code { "kubectl drain " (host) " --ignore-daemonsets --delete-emptydir-data" } }
        }
    }
}

fn blocked_section(blocked: &[BlockedVm]) -> Markup {
    html! {
        @if !blocked.is_empty() {
            section {
                h2 { "VMs that fit on no other host" }
                @for one in blocked {
                    h3 { (vm_link(&one.vm)) }
                    p { (excerpt(&one.reason)) }
                    (refusal_list(&one.refusals))
                    @if !one.remedy.is_empty() { p .remedy { "Remedy: " (excerpt(&one.remedy)) } }
                }
            }
        }
    }
}

fn move_table(moves: &[SimulatedMove]) -> Markup {
    let row = |one: &SimulatedMove| {
        let (severity, kind) = match one.kind {
            MoveKind::Migrated => (Severity::Ok, "Migrated"),
            MoveKind::Replaced => (Severity::Warning, "Replaced"),
            MoveKind::NotManaged => (Severity::Warning, "Not moved"),
        };
        html! {
            tr {
                th scope="row" { (vm_link(&one.vm)) }
                td { (badge(severity, kind)) }
                td { (host_link(&one.host)) }
                td { (excerpt(&one.reason)) }
            }
        }
    };
    let rows: Vec<Markup> = moves.iter().map(row).collect();
    table("VMs", &["VM", "Step", "Host", "Reason"], &rows, "No VM must leave the host.")
}

fn decision_table(decisions: &[DrainStep]) -> Markup {
    let row = |one: &DrainStep| {
        let severity = if one.is_blocked { Severity::Failure } else { Severity::Warning };
        html! {
            tr {
                th scope="row" { (vm_link(&one.vm)) }
                td { (badge(severity, &one.reason)) }
                td { (excerpt(&one.message)) }
            }
        }
    };
    let rows: Vec<Markup> = decisions.iter().map(row).collect();
    table("First reasons", &["VM", "Reason", "Message"], &rows, "")
}

fn target_table(moves: &[SimulatedMove]) -> Markup {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for one in moves {
        *counts.entry(&one.host).or_default() += 1;
    }
    let row = |(host, count): (&str, usize)| {
        html! { tr { th scope="row" { (host_link(host)) } td { (count) } } }
    };
    let rows: Vec<Markup> = counts.into_iter().map(row).collect();
    table("Hosts that receive VMs", &["Host", "VMs"], &rows, "No host receives a VM.")
}

pub(super) fn problem_section(problems: &[String], consequence: &str) -> Markup {
    html! {
        @if !problems.is_empty() {
            section {
                h2 { "Problems of objects" }
                p { (consequence) }
                ul { @for problem in problems { li .warning { (excerpt(problem)) } } }
            }
        }
    }
}

fn placement(report: &PlacementReport) -> Markup {
    let (severity, verdict) = match &report.placement {
        SimulatedPlacement::Placed(_) => (Severity::Ok, "The VM is on a host"),
        SimulatedPlacement::Pending(_) => {
            (Severity::Warning, "The VM has no host yet, and a host accepts it")
        }
        SimulatedPlacement::Unplaced { .. } => (Severity::Failure, "No host accepts the VM"),
    };
    html! {
        p { (badge(severity, verdict)) }
        (problem_section(&report.problems, WRONG_RESULT))
        @match &report.placement {
            SimulatedPlacement::Placed(ranking) => {
                (ranking_sections(ranking))
                @if ranking.best.first().is_some_and(|(best, _)| *best != ranking.host) {
                    p { "The best host differs from the host of the VM: free resources have changed since it was placed. Running VMs stay on their hosts." }
                }
            }
            SimulatedPlacement::Pending(ranking) => { (ranking_sections(ranking)) }
            SimulatedPlacement::Unplaced { refusals, remedy } => {
                section { h2 { "Reasons of the hosts" } (refusal_list(refusals)) }
                @if !remedy.is_empty() { p .remedy { "Remedy: " (excerpt(remedy)) } }
            }
        }
    }
}

fn ranking_sections(ranking: &Ranking) -> Markup {
    let zones: Vec<String> = ranking.zones.iter().map(ToString::to_string).collect();
    let rows: Vec<Markup> = ranking
        .best
        .iter()
        .map(|(host, points)| html! { tr { th scope="row" { (host_link(host)) } td { (points) } } })
        .collect();
    html! {
        (facts(&[
            ("Host", host_link(&ranking.host)),
            ("Zones", html! { (text_or_dash(&zones.join(", "))) }),
            ("Exclusive CPUs", html! { (text_or_dash(&ranking.cpus)) }),
            ("Hosts that accept the VM now", html! { (ranking.accepting) }),
        ]))
        section {
            h2 { "Best hosts" }
            p { "The engine chooses the host with the fewest points." }
            (table("Best hosts", &["Host", "Points"], &rows, "No host accepts the VM now."))
        }
        section { h2 { "Reasons of the other hosts" } (refusal_list(&ranking.refusals)) }
    }
}

pub(super) fn refusal_list(refusals: &[Refusal]) -> Markup {
    html! {
        @if refusals.is_empty() {
            p .empty { "No host refuses the VM." }
        } @else {
            ul {
                @for one in refusals {
                    li {
                        @if one.hosts > 1 { (one.hosts) " hosts: " (excerpt(&one.reason)) ". " }
                        (host_link(&one.example)) ": " (excerpt(&one.detail))
                    }
                }
            }
        }
    }
}

/// Returns a link to a VM, or its name if it has no namespace.
pub(super) fn vm_link(vm: &str) -> Markup {
    match vm.split_once('/') {
        Some((namespace, name)) => {
            html! { (namespace) "/" (machine_link(&ObjectName::new(namespace, name))) }
        }
        None => html! { (vm) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<script>alert(1)</script>";

    fn refusals() -> Vec<Refusal> {
        let hostile = || HOSTILE.to_owned();
        vec![Refusal { hosts: 2, reason: hostile(), example: hostile(), detail: hostile() }]
    }

    fn drain_page(result: Result<DrainReport, SimulationError>) -> String {
        let simulated = Simulated { result, time: "2026-11-28T10:00:00Z".to_owned() };
        drain_content("rack1-a", &simulated).view.into_string()
    }

    fn placement_page(
        state: MachineState,
        result: Result<PlacementReport, SimulationError>,
    ) -> String {
        let simulated = Simulated { result, time: String::new() };
        let name = ObjectName::new("cluster-a", "web-1");
        placement_content(&name, state, &simulated).view.into_string()
    }

    #[test]
    fn drain_names_what_is_interrupted_and_what_prevents_it() {
        let moved = |vm: &str, kind| SimulatedMove {
            vm: vm.to_owned(),
            kind,
            host: "rack2-a".to_owned(),
            reason: HOSTILE.to_owned(),
        };
        let report = DrainReport {
            moves: vec![
                moved("cluster-a/web-1", MoveKind::Migrated),
                moved("cluster-a/db-1", MoveKind::Replaced),
            ],
            blocked: vec![BlockedVm {
                vm: "cluster-a/big".to_owned(),
                reason: HOSTILE.to_owned(),
                refusals: refusals(),
                remedy: HOSTILE.to_owned(),
            }],
            decisions: vec![DrainStep {
                vm: HOSTILE.to_owned(),
                reason: HOSTILE.to_owned(),
                message: HOSTILE.to_owned(),
                is_blocked: true,
            }],
            unknown_pods: vec![HOSTILE.to_owned()],
            problems: vec![HOSTILE.to_owned()],
            is_possible: false,
        };
        let text = drain_page(Ok(report));
        for part in [
            "cannot be drained",
            "href=\"/vms/cluster-a/db-1\"",
            "Replaced",
            "kubectl drain rack1-a",
            "href=\"/hosts/rack1-a/drain\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<script>"), "{text}");
        let possible = DrainReport { is_possible: true, ..DrainReport::default() };
        let text = drain_page(Ok(possible.clone()));
        assert!(text.contains("can be drained") && !text.contains("unless"), "{text}");
        // Without the VMs, the result is not reliable.
        let problems = vec!["virtualmachineinstances: cannot be listed".to_owned()];
        let text = drain_page(Ok(DrainReport { problems, ..possible }));
        let (verdict, details) = text.split_once("Migrated, without an interruption").unwrap();
        for part in ["unless the problems below", "virtualmachineinstances: cannot be listed"] {
            assert!(verdict.contains(part) && !details.contains(part), "{part}: {text}");
        }
        assert!(!verdict.contains('✓'), "{verdict}");
        let forbidden = SimulationError::Forbidden { objects: "pods".to_owned() };
        let text = drain_page(Err(forbidden));
        assert!(text.contains("you have no permission to list pods"), "{text}");
        assert!(!text.contains("kubectl drain"), "{text}");
    }

    #[test]
    fn placement_has_points_and_reasons() {
        let ranking = Ranking {
            host: "rack1-a".to_owned(),
            best: vec![("rack2-a".to_owned(), 3)],
            accepting: 1,
            refusals: refusals(),
            ..Ranking::default()
        };
        for (placement, part) in [
            (SimulatedPlacement::Placed(ranking.clone()), "The best host differs"),
            (SimulatedPlacement::Pending(ranking), "no host yet"),
            (
                SimulatedPlacement::Unplaced { refusals: refusals(), remedy: HOSTILE.to_owned() },
                "No host accepts",
            ),
        ] {
            let report = PlacementReport { placement, problems: vec![HOSTILE.to_owned()] };
            let text = placement_page(MachineState::Running, Ok(report));
            assert!(text.contains(part) && text.contains("2 hosts"), "{part}: {text}");
            assert!(text.contains("The result may be wrong"), "{part}: {text}");
            assert!(!text.contains("<script>"), "{text}");
        }
    }

    #[test]
    fn only_a_stopped_vm_is_switched_off() {
        let not_placed = || SimulationError::NotPlaced { problems: vec![HOSTILE.to_owned()] };
        let text = placement_page(MachineState::Stopped, Err(not_placed()));
        assert!(text.contains("switched off") && !text.contains("Problems of objects"), "{text}");
        let text = placement_page(MachineState::Starting, Err(not_placed()));
        assert!(
            text.contains("left this VM out") && text.contains("Problems of objects"),
            "{text}"
        );
        assert!(!text.contains("switched off") && !text.contains("<script>"), "{text}");
    }
}
