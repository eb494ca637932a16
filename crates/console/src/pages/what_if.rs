//! Results of simulated changes: what is interrupted, and the hosts of VMs.

use berth_api::Problem;
use berth_views::Severity;
use maud::{Markup, html};

use super::host_comparison::{changes, maps, totals};
use super::parts::{MAX_ROWS, badge, excerpt, host_link, limited_table, text_or_dash};
use super::simulation::{Simulated, WRONG_RESULT, problem_section, refusal_list, vm_link};
use crate::simulation::SimulationError;
use crate::what_if::{
    HostAfterChange, HostEffect, Interruption, InterruptionKind, NewPlacement, VmWithoutHost,
    WhatIfReport,
};

/// State of a page with a form and a simulation.
pub(crate) enum Answer {
    /// Nothing was sent.
    Nothing,
    /// The fields that are not valid.
    Refused(Vec<Problem>),
    Simulated(Box<Simulated<WhatIfReport>>),
}

/// Returns the result of a simulation, or the reasons why there is none.
pub(super) fn answer(answer: &Answer) -> Markup {
    let result = match answer {
        Answer::Nothing => return html! {},
        Answer::Refused(problems) => refused(problems),
        Answer::Simulated(simulated) => match &simulated.result {
            Ok(report) => html! {
                p { "A simulation with the objects of " (simulated.time) ". It changes no object." }
                (result_sections(report))
            },
            Err(SimulationError::Invalid(problems)) => refused(problems),
            Err(error) => html! {
                p .failure role="alert" { "Not simulated: " (excerpt(&error.to_string())) "." }
            },
        },
    };
    html! { section #result aria-label="Result" { (result) } }
}

fn refused(problems: &[Problem]) -> Markup {
    html! {
        p .failure role="alert" { "Not simulated, because the input is not valid:" }
        ul { @for problem in problems.iter().take(MAX_ROWS) { li { (excerpt(&problem.to_string())) } } }
    }
}

fn result_sections(report: &WhatIfReport) -> Markup {
    let (severity, verdict) = verdict(report);
    html! {
        p { (badge(severity, verdict)) }
        (problem_section(&report.problems, WRONG_RESULT))
        section {
            h2 { "What would be interrupted" }
            (interruptions(&report.interruptions))
            @if !report.notes.is_empty() { ul { @for note in &report.notes { li .warning { (excerpt(note)) } } } }
        }
        section {
            h2 { "Before and after" }
            p { "Both columns are after the placement of the VMs that wait for a host." }
            (totals(&report.before, &report.after))
        }
        @if let Some(machines) = &report.machines {
            section {
                h2 { "Machines" }
                p { (machines.deployment) ": " (machines.desired) " desired, " (machines.existing) " existing." }
            }
        }
        @if !report.changes.is_empty() {
            section { h2 { "Changes of hosts" } (changes(&report.changes)) }
        }
        section { h2 { "VMs that get a host" } (placements(&report.placed)) }
        section { h2 { "VMs without a host" } (without_host(&report.unplaced)) }
        (maps(&report.maps, report.more_maps))
    }
}

fn verdict(report: &WhatIfReport) -> (Severity, String) {
    let ends = |one: &&Interruption| {
        matches!(one.kind, InterruptionKind::Replaced | InterruptionKind::NotManaged)
    };
    let interrupted = report.interruptions.iter().filter(ends).count();
    let new = report.unplaced.iter().filter(|one| one.is_new).count();
    let network = report.changes.iter().any(|one| one.effect == HostEffect::InterruptsNetwork);
    if new > 0 {
        (Severity::Failure, format!("{new} VMs would have no host because of the change"))
    } else if interrupted > 0 {
        (Severity::Warning, format!("{interrupted} VMs would be interrupted"))
    } else if network || !report.notes.is_empty() {
        (Severity::Warning, "The change has the consequences below".to_owned())
    } else if !report.problems.is_empty() {
        (
            Severity::Warning,
            "No VM would be interrupted, unless the problems below change the result".to_owned(),
        )
    } else {
        (Severity::Ok, "No VM would be interrupted".to_owned())
    }
}

fn interruptions(all: &[Interruption]) -> Markup {
    let row = |one: &Interruption| {
        let (severity, kind) = match one.kind {
            InterruptionKind::Stays => (Severity::Ok, "Stays"),
            InterruptionKind::Migrated => (Severity::Ok, "Migrated"),
            InterruptionKind::Replaced => (Severity::Warning, "Replaced: programs end"),
            InterruptionKind::NotManaged => (Severity::Warning, "Not moved by Berth"),
        };
        html! {
            tr {
                th scope="row" { (vm_link(&one.vm)) }
                td { @if one.host.is_empty() { "-" } @else { (host_link(&one.host)) } }
                td { (badge(severity, kind)) }
                td {
                    @match &one.after {
                        HostAfterChange::Same => { (badge(Severity::Ok, "Fits on its host")) }
                        HostAfterChange::Other(host) => { (badge(Severity::Warning, "Fits only on")) " " (host_link(host)) }
                        HostAfterChange::None => { (badge(Severity::Failure, "Fits on no host")) }
                        HostAfterChange::NotAccepted(reason) => {
                            (badge(Severity::Warning, "Its host would not accept it again")) " " (excerpt(reason))
                        }
                        HostAfterChange::NetworkInterrupted => { (badge(Severity::Warning, "May lose its network for a time")) }
                        HostAfterChange::NotSimulated => { "Not simulated" }
                    }
                }
                td { (excerpt(&one.reason)) }
            }
        }
    };
    let head = ["VM", "Host", "Step", "After the change", "Reason"];
    limited_table("Interrupted VMs", &head, all, row, "The change concerns no VM that runs.")
}

fn placements(all: &[NewPlacement]) -> Markup {
    let row = |one: &NewPlacement| {
        let zones: Vec<String> = one.zones.iter().map(ToString::to_string).collect();
        html! {
            tr {
                th scope="row" { (one.vm) }
                td { (one.host) }
                td { (text_or_dash(&zones.join(", "))) }
                td { (text_or_dash(&one.cpus)) }
            }
        }
    };
    let head = ["VM", "Host", "Zones", "Exclusive CPUs"];
    limited_table(
        "VMs that get a host",
        &head,
        all,
        row,
        "No VM gets a host because of the change.",
    )
}

/// VMs with the same reasons share one list of reasons, because a MachineDeployment can have a thousand machines.
fn without_host(all: &[VmWithoutHost]) -> Markup {
    let groups: Vec<&[VmWithoutHost]> = all
        .chunk_by(|a, b| (&a.refusals, &a.remedy, a.is_new) == (&b.refusals, &b.remedy, b.is_new))
        .collect();
    html! {
        @if all.is_empty() { p .empty { "Every VM has a host." } }
        @for group in groups.iter().take(MAX_ROWS) {
            @if let Some(first) = group.first() {
                h3 {
                    @if first.is_new { (badge(Severity::Failure, "Because of the change")) " " }
                    (first.vm)
                    @if group.len() > 1 { " and " (group.len() - 1) " more" }
                }
                @if group.len() > 1 { p { (names(group)) } }
                (refusal_list(&first.refusals))
                @if !first.remedy.is_empty() { p .remedy { "Remedy: " (excerpt(&first.remedy)) } }
            }
        }
        @if groups.len() > MAX_ROWS { p { "And " (groups.len() - MAX_ROWS) " more with other reasons." } }
    }
}

fn names(group: &[VmWithoutHost]) -> String {
    let names: Vec<&str> = group.iter().map(|one| one.vm.as_str()).collect();
    excerpt(&names.join(", "))
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;
