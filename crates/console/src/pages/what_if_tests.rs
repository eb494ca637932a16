//! Tests of the results of simulated changes.

use berth_api::infra_node::Zone;

use super::super::what_if_forms::{
    ProfileForm, add_hosts_content, machines_content, profile_content,
};
use super::*;
use crate::refusal::Refusal;
use crate::what_if::{HostChange, HostMap, MachineNumbers, Totals};

const HOSTILE: &str = "\"><script>alert(1)</script>";

fn hostile() -> String {
    HOSTILE.to_owned()
}

fn without(vm: &str, is_new: bool) -> VmWithoutHost {
    let refusals =
        vec![Refusal { hosts: 2, reason: hostile(), example: hostile(), detail: hostile() }];
    VmWithoutHost { vm: vm.to_owned(), is_new, refusals, remedy: hostile() }
}

fn interruption(kind: InterruptionKind, after: HostAfterChange) -> Interruption {
    Interruption { vm: "cluster-a/web".to_owned(), host: hostile(), kind, reason: hostile(), after }
}

fn zones() -> Vec<Zone> {
    let set = |text: &str| Some(text.parse().unwrap());
    let zone = Zone {
        cpus: set("0-7"),
        pinnable_cpus: set("1-7"),
        pinned_cpus: set("1-2"),
        ..Zone::default()
    };
    vec![zone]
}

fn report() -> WhatIfReport {
    WhatIfReport {
        before: Totals { hosts: 2, waiting: 1, ..Totals::default() },
        after: Totals { hosts: 5, waiting: 2, ..Totals::default() },
        placed: vec![NewPlacement {
            vm: hostile(),
            host: hostile(),
            zones: vec![0, 1],
            cpus: "1-2".to_owned(),
        }],
        unplaced: vec![
            without("cluster-a/x-1", true),
            without("cluster-a/x-2", true),
            without(HOSTILE, false),
        ],
        interruptions: vec![
            interruption(InterruptionKind::Replaced, HostAfterChange::None),
            interruption(InterruptionKind::Migrated, HostAfterChange::Other(hostile())),
            interruption(InterruptionKind::Stays, HostAfterChange::NotAccepted(hostile())),
            interruption(InterruptionKind::NotManaged, HostAfterChange::NotSimulated),
        ],
        changes: vec![HostChange {
            host: "rack1-a".to_owned(),
            field: hostile(),
            before: String::new(),
            after: hostile(),
            effect: HostEffect::AfterDrain,
            note: hostile(),
        }],
        maps: vec![HostMap { host: hostile(), before: None, after: zones() }],
        more_maps: 3,
        machines: Some(MachineNumbers { deployment: hostile(), desired: 3, existing: 1 }),
        notes: vec![hostile()],
        problems: vec![hostile()],
    }
}

fn shown(result: Result<WhatIfReport, SimulationError>) -> Answer {
    Answer::Simulated(Box::new(Simulated { result, time: "2026-11-28T10:00:00Z".to_owned() }))
}

#[test]
fn result_lists_interruptions_sums_and_reasons() {
    let text = answer(&shown(Ok(report()))).into_string();
    for part in [
        "2 VMs would have no host because of the change",
        "Replaced: programs end",
        "Fits on no host",
        "href=\"/hosts/rack1-a/drain\"",
        "<strong>5</strong>",
        "cluster-a/x-1 and 1 more",
        "3 desired, 1 existing",
        "2 of 7 CPUs pinned",
        "no such host",
        "And 3 more hosts",
        "2026-11-28T10:00:00Z",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("<script>"), "{text}");
}

#[test]
fn verdict_is_that_of_the_worst_consequence() {
    let mut report = WhatIfReport::default();
    assert_eq!(verdict(&report).0, Severity::Ok);
    report.problems = vec![hostile()];
    assert!(verdict(&report).1.contains("unless the problems"));
    report.interruptions = vec![interruption(InterruptionKind::Migrated, HostAfterChange::Same)];
    assert!(verdict(&report).1.contains("unless the problems"));
    report.interruptions.push(interruption(InterruptionKind::Replaced, HostAfterChange::Same));
    assert!(verdict(&report).1.contains("1 VMs would be interrupted"));
    report.unplaced = vec![without("a/b", false)];
    assert_eq!(verdict(&report).0, Severity::Warning);
    report.unplaced = vec![without("a/b", true)];
    assert_eq!(verdict(&report).0, Severity::Failure);
}

#[test]
fn long_lists_are_limited() {
    let placement = |at: usize| NewPlacement {
        vm: format!("cluster-a/vm-{at}"),
        host: "rack1-a".to_owned(),
        zones: vec![],
        cpus: String::new(),
    };
    let report = WhatIfReport {
        placed: (0..MAX_ROWS + 5).map(placement).collect(),
        unplaced: (0..1000).map(|at| without(&format!("cluster-a/vm-{at}"), false)).collect(),
        ..WhatIfReport::default()
    };
    let text = answer(&shown(Ok(report))).into_string();
    assert!(text.contains("And 5 more.") && text.contains("and 999 more"), "{text}");
    assert!(text.len() < 60_000, "{}", text.len());
}

#[test]
fn forms_keep_what_was_sent() {
    let reasons = Answer::Refused(vec![Problem::new(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]);
    let sent = ProfileForm { profile: hostile(), yaml: hostile(), hosts: hostile() };
    let known = [hostile()];
    for content in [
        add_hosts_content("rack1-a", HOSTILE, &reasons),
        profile_content(HOSTILE, &sent, &known, &reasons),
        machines_content("bank", HOSTILE, HOSTILE, &reasons),
    ] {
        let text = content.view.into_string();
        assert!(text.contains("the input is not valid") && !text.contains("<script>"), "{text}");
    }
    let text = add_hosts_content("rack1-a", "", &Answer::Nothing).view.into_string();
    assert!(text.contains("value=\"1\"") && !text.contains("id=\"result\""), "{text}");
    let text = machines_content("bank", "t", "a: 1", &Answer::Nothing).view.into_string();
    assert!(text.contains(">\na: 1</textarea>") && text.contains("name=\"csrf\""), "{text}");
    let forbidden = SimulationError::Forbidden { objects: "pods".to_owned() };
    let text = answer(&shown(Err(forbidden))).into_string();
    assert!(text.contains("no permission to list pods"), "{text}");
}
