//! Command `hosts`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::hosts::{self, HostRow, HostState, PagesRow, ZoneRow};
use berth_views::{Issue, Kind, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::output::{TableOptions, bytes, bytes_pair, count_pair, issue_count, severe, yes_no};
use super::show::{NotFound, View, show};

/// List the hosts: state, VMs, exclusive CPUs and huge pages
///
/// STATE is the most severe state of a host. PINNED CPUS are the CPUs that the kubelet has allocated exclusively, of those
/// that it may allocate. HUGE PAGES are those in use, of all sizes. ISSUES is the number of conditions that are not
/// healthy: `kubectl berth host NAME` shows them, with remedies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth hosts                    all hosts\n  \
    kubectl berth hosts -o wide            also CPUs and huge pages by zone, KSM, trunks, profile\n  \
    kubectl berth hosts --watch            again after each change\n  \
    kubectl berth hosts -o json | jq '.hosts[] | select(.severity != \"Ok\") | .name'")]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.list.check_no_namespace("hosts")?;
    show(&HostsView, &arguments.list)
}

#[derive(Debug, Serialize)]
struct Hosts {
    hosts: Vec<HostRow>,
}

struct HostsView;

impl View for HostsView {
    type Data = Hosts;

    fn required_kind(&self) -> Kind {
        Kind::InfraNode
    }

    fn kinds(&self) -> &[Kind] {
        &hosts::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Hosts, NotFound> {
        Ok(Hosts { hosts: hosts::rows(snapshot) })
    }

    fn empty_text(&self, data: &Hosts) -> Option<&'static str> {
        data.hosts
            .is_empty()
            .then_some("no host: install berth-agent on the Nodes of the infra cluster\n")
    }

    fn format(&self, data: &Hosts, options: TableOptions) -> String {
        let mut columns = vec![
            Column::flexible("NAME", 12),
            Column::flexible("STATE", 8),
            Column::flexible("CLASS", 7),
            Column::number("VMS"),
            Column::number("PINNED CPUS"),
            Column::flexible("HUGE PAGES", 10),
        ];
        if options.is_wide {
            columns.extend(
                ["MEMORY", "KSM", "TRUNK", "PROFILE", "CPUS BY ZONE", "HUGE PAGES BY ZONE"]
                    .map(Column::text),
            );
        }
        columns.push(Column::number("ISSUES"));
        if options.is_wide {
            columns.push(Column::text("FIRST ISSUE"));
        }
        let rows: Vec<_> = data.hosts.iter().map(|row| cells(row, options.is_wide)).collect();
        options.table(&columns, &rows)
    }
}

/// Returns the states of a host, the most severe first.
pub(super) fn states_text(states: &[HostState]) -> String {
    states.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn cells(row: &HostRow, is_wide: bool) -> Vec<Cell> {
    let mut cells = vec![
        Cell::new(&row.name),
        severe(&states_text(&row.states), row.severity),
        Cell::from(row.class.as_ref()),
        Cell::from(row.vms),
        Cell::from(row.pinnable_cpus.map(count_pair)),
        Cell::from(row.hugepages.map(bytes_pair)),
    ];
    if is_wide {
        cells.extend([
            Cell::from(row.memory.map(bytes)),
            Cell::new(yes_no(row.ksm)),
            Cell::from(row.trunk.map(|state| format!("{state:?}"))),
            Cell::from(row.profile.as_ref()),
            Cell::new(&by_zone(&row.zones, cpus_of_zone)),
            Cell::new(&by_zone(&row.zones, |zone| Some(pages_of_zone(zone)))),
        ]);
    }
    cells.push(issue_count(&row.issues));
    if is_wide {
        let first = row.issues.first();
        cells.push(Cell::new(&first.map(issue_text).unwrap_or_default()));
    }
    cells
}

/// Returns a value of each zone: `0: 12/44, 1: 0/44`.
fn by_zone(zones: &[ZoneRow], value: impl Fn(&ZoneRow) -> Option<String>) -> String {
    let each = zones.iter().filter_map(|zone| Some(format!("{}: {}", zone.id, value(zone)?)));
    each.collect::<Vec<_>>().join(", ")
}

fn cpus_of_zone(zone: &ZoneRow) -> Option<String> {
    zone.pinnable_cpus.map(count_pair)
}

/// Returns the huge pages of a zone in use, by size: `96/96 of 2Mi`.
pub(super) fn pages_of_zone(zone: &ZoneRow) -> String {
    let sizes = zone.hugepages.iter();
    let sizes: Vec<String> =
        sizes.map(|row| format!("{} of {}", pages_text(row), row.size)).collect();
    if sizes.is_empty() { "none".to_owned() } else { sizes.join(" ") }
}

fn pages_text(row: &PagesRow) -> String {
    row.pages().map_or_else(|| format!("?/{}", row.total), count_pair)
}

/// Returns an issue on one line: source, reason and message.
pub(super) fn issue_text(issue: &Issue) -> String {
    format!("{} ({}): {}", issue.source, issue.reason, issue.message)
}
