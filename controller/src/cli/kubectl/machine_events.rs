//! The latest Events about a machine: its VirtualMachine, its VirtualMachineInstance and its launcher pods.

use berth_runtime::call::CallError;
use berth_runtime::cli::style::Style;
use berth_runtime::object_events::{ObjectEvent, keep_latest, latest_events};
use berth_views::{ObjectName, Snapshot};
use futures::future::try_join_all;
use kube::Client;

use super::output::push_paragraph;

/// Maximum number of Events.
const MAX_EVENTS: usize = 10;
/// Maximum number of launcher pods whose Events are read. A live migration has two.
const MAX_PODS: usize = 4;
/// Kinds that have the name of the machine.
const MACHINE_KINDS: &[&str] = &["VirtualMachine", "VirtualMachineInstance"];
const POD_KINDS: &[&str] = &["Pod"];

/// Reads the latest Events, the latest first.
///
/// # Errors
/// Returns an error if the API server refuses a list, or does not answer.
pub(super) async fn read_machine_events(
    client: &Client,
    snapshot: &Snapshot,
    machine: &ObjectName,
) -> Result<Vec<ObjectEvent>, CallError> {
    let ObjectName { namespace, name } = machine;
    let pods = snapshot
        .pods
        .iter()
        .filter(|(pod, fields)| pod.namespace == *namespace && fields.vm.as_deref() == Some(name));
    let pods = pods.take(MAX_PODS).map(|(pod, _)| (POD_KINDS, pod.name.as_str()));
    let objects = std::iter::once((MACHINE_KINDS, name.as_str())).chain(pods);
    let reads = objects.map(|(kinds, name)| latest_events(client, kinds, namespace, name));
    let mut events = try_join_all(reads).await?.concat();
    keep_latest(&mut events, MAX_EVENTS);
    Ok(events)
}

/// Appends a section with the Events, if there are any.
pub(super) fn push_events(out: &mut String, events: &[ObjectEvent], style: Style) {
    if events.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.format_title("Latest Events"));
    out.push('\n');
    for event in events {
        let ObjectEvent { time, type_, reason, message, source, count } = event;
        let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
        let source = if source.is_empty() { String::new() } else { format!(" [{source}]") };
        let bullet = if type_ == "Warning" { "  ! " } else { "  - " };
        push_paragraph(out, bullet, &format!("{time} {reason}{times}: {message}{source}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_counts_and_sources_without_control_characters() {
        let event = |type_: &str, count, source: &str| ObjectEvent {
            time: "2026-11-28T12:00:00Z".to_owned(),
            type_: type_.to_owned(),
            reason: "FailedScheduling".to_owned(),
            message: "0/3 nodes\u{1b}[2J".to_owned(),
            source: source.to_owned(),
            count,
        };
        let mut out = String::new();
        push_events(
            &mut out,
            &[event("Warning", 3, "scheduler"), event("Normal", 1, "")],
            Style::Plain,
        );
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..2], ["", "Latest Events"]);
        assert!(
            lines[2].starts_with("  ! 2026-11-28T12:00:00Z FailedScheduling (3 times): 0/3"),
            "{out}"
        );
        assert!(out.contains("[scheduler]") && out.contains("\n  - 2026"), "{out}");
        assert!(!out.contains('\u{1b}'), "{out:?}");
        out.clear();
        push_events(&mut out, &[], Style::Plain);
        assert_eq!(out, "");
    }
}
