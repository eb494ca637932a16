//! Command `host`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::host_detail::{self, HostDetail, HostMachineRow, HostNetworkRow, detail};
use berth_views::hosts::ZoneRow;
use berth_views::{ConditionRow, Issue, Kind, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::hosts::{issue_text, pages_of_zone, states_text};
use super::output::{TableOptions, bytes, count_pair, push_paragraph, severe, yes_no};
use super::show::{NotFound, View, show};

/// Maximum number of lines of each list, unless the output is wide.
const MAX_LINES: usize = 20;

/// Show one host: zones, conditions, networks, VMs, and what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth host rack1-a             everything about a host\n  \
    kubectl berth host rack1-a -o wide     without shortened texts\n  \
    kubectl berth host rack1-a -o json | jq .host.zones")]
pub(in crate::cli) struct Arguments {
    /// Name of the host
    name: String,
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.list.check_no_namespace("host")?;
    show(&HostView { name: &arguments.name }, &arguments.list)
}

#[derive(Debug, Serialize)]
struct Host {
    host: HostDetail,
}

struct HostView<'a> {
    name: &'a str,
}

impl View for HostView<'_> {
    type Data = Host;

    fn required_kind(&self) -> Kind {
        Kind::InfraNode
    }

    fn kinds(&self) -> &[Kind] {
        &host_detail::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Host, NotFound> {
        let host = detail(snapshot, self.name).ok_or_else(|| NotFound {
            kind: "host",
            name: self.name.to_owned(),
            command: "kubectl berth hosts",
        })?;
        Ok(Host { host })
    }

    fn format(&self, data: &Host, options: TableOptions) -> String {
        let host = &data.host;
        let mut out = String::new();
        let title = format!("{}: {}", host.row.name, states_text(&host.row.states));
        options.push_heading(&mut out, &berth_runtime::cli::text::to_single_line(&title));
        for line in properties(host) {
            push_paragraph(&mut out, "  ", &line);
        }
        if !host.row.zones.is_empty() {
            options.push_heading(&mut out, "Zones");
            out += &zone_table(&host.row.zones, options);
        }
        if !host.conditions.is_empty() {
            options.push_heading(&mut out, "Conditions");
            out += &condition_table(&host.conditions, options);
        }
        if !host.networks.is_empty() {
            options.push_heading(&mut out, "Networks");
            out += &network_table(&host.networks, options);
        }
        if !host.machines.is_empty() {
            options.push_heading(&mut out, &format!("VMs: {}", host.machines.len()));
            out += &machine_table(&host.machines, options);
        }
        if !host.changes.is_empty() {
            options.push_heading(&mut out, "Changes that are not complete");
            for change in &host.changes {
                let message = change.message.as_deref().unwrap_or_default();
                let text = format!("{} ({:?}): {message}", change.what, change.result);
                push_paragraph(&mut out, "  ", &text);
            }
        }
        push_issues(&mut out, &host.row.issues, options);
        out
    }
}

/// Appends issues with their remedies.
pub(super) fn push_issues(out: &mut String, issues: &[Issue], options: TableOptions) {
    if issues.is_empty() {
        return;
    }
    options.push_heading(out, "What to do");
    for issue in issues {
        push_paragraph(out, "  ! ", &issue_text(issue));
        if let Some(remedy) = &issue.remedy {
            push_paragraph(out, "    > ", remedy);
        }
    }
}

/// Returns the properties of the host, one line each.
fn properties(host: &HostDetail) -> Vec<String> {
    let optional =
        |name: &str, value: Option<String>| value.map(|value| format!("{name}: {value}"));
    let hardware = &host.hardware;
    let count = |number: Option<u32>, unit: &str| number.map(|number| format!("{number} {unit}"));
    let cpu: Vec<String> = [
        hardware.cpu_model.clone(),
        count(hardware.sockets, "sockets"),
        count(hardware.cores, "cores"),
        count(hardware.threads, "threads"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let kubelet: Vec<String> = [
        host.kubelet.version.clone(),
        optional("CPU manager", host.kubelet.cpu_manager_policy.clone()),
        optional("topology", host.kubelet.topology_manager_policy.clone()),
        optional("memory", host.kubelet.memory_manager_policy.clone()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let list = |all: Vec<String>| (!all.is_empty()).then(|| all.join(", "));
    let ksm = Some(yes_no(host.row.ksm)).filter(|text| !text.is_empty()).map(str::to_owned);
    [
        optional("class", host.row.class.clone()),
        optional("profile", host.row.profile.clone()),
        optional("address", host.address.map(|address| address.to_string())),
        optional("machine", hardware.product.clone()),
        optional("CPU", list(cpu)),
        optional("memory", host.row.memory.map(bytes)),
        optional("KSM", ksm),
        optional("KVM", hardware.kvm.map(|state| format!("{state:?}"))),
        optional(
            "system",
            list([hardware.os.clone(), hardware.kernel.clone()].into_iter().flatten().collect()),
        ),
        optional("kubelet", list(kubelet)),
        optional("agent", host.agent.clone()),
        optional("taints", list(host.taints.clone())),
        host.row.drain.as_ref().map(|drain| format!("drain ({}): {}", drain.reason, drain.message)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn zone_table(zones: &[ZoneRow], options: TableOptions) -> String {
    let columns = [
        Column::number("ZONE"),
        Column::number("PINNED CPUS"),
        Column::flexible("FREE CPUS", 12),
        Column::flexible("RESERVED", 8),
        Column::flexible("HUGE PAGES IN USE", 17),
        Column::text("MEMORY"),
    ];
    let row = |zone: &ZoneRow| {
        vec![
            Cell::new(&zone.id.to_string()),
            Cell::from(zone.pinnable_cpus.map(count_pair)),
            Cell::from(zone.free_cpus.as_ref()),
            Cell::new(&zone.reserved_cpus),
            Cell::new(&pages_of_zone(zone)),
            Cell::from(zone.memory.map(bytes)),
        ]
    };
    options.table(&columns, &zones.iter().map(row).collect::<Vec<_>>())
}

/// Returns the table of conditions.
pub(super) fn condition_table(conditions: &[ConditionRow], options: TableOptions) -> String {
    let columns = [
        Column::flexible("TYPE", 12),
        Column::text("STATUS"),
        Column::flexible("REASON", 12),
        Column::text("SINCE"),
    ];
    let row = |one: &ConditionRow| {
        vec![
            Cell::new(&one.type_),
            severe(&one.status.to_string(), one.severity),
            Cell::new(&one.reason),
            Cell::new(&one.since.to_string()),
        ]
    };
    options.table(&columns, &conditions.iter().map(row).collect::<Vec<_>>())
}

fn network_table(networks: &[HostNetworkRow], options: TableOptions) -> String {
    let columns = [
        Column::flexible("NAME", 10),
        Column::text("SCENARIO"),
        Column::number("READY"),
        Column::number("PENDING"),
        Column::number("FAILED"),
        Column::number("MTU"),
        Column::flexible("TRUNK", 10),
    ];
    let row = |one: &HostNetworkRow| {
        let vlans = one.missing_vlans.as_ref().map(|vlans| format!(" {}", vlans.ids()));
        let trunk =
            one.trunk.map(|state| format!("{state:?}{}", vlans.clone().unwrap_or_default()));
        vec![
            Cell::new(&one.name),
            Cell::from(one.scenario.map(|scenario| format!("{scenario:?}"))),
            Cell::new(&one.ready.to_string()),
            Cell::new(&one.pending.to_string()),
            Cell::new(&one.failed.to_string()),
            Cell::from(one.mtu),
            Cell::from(trunk),
        ]
    };
    let mut out = options.table(&columns, &networks.iter().map(row).collect::<Vec<_>>());
    for one in networks.iter().flat_map(|network| &network.not_ready) {
        push_paragraph(&mut out, "  ! ", &format!("{}: {}", one.name, one.message));
    }
    out
}

fn machine_table(machines: &[HostMachineRow], options: TableOptions) -> String {
    let columns = [
        Column::flexible("NAMESPACE", 10),
        Column::flexible("NAME", 12),
        Column::text("STATE"),
        Column::flexible("CPUS", 10),
        Column::text("ZONES"),
    ];
    let row = |one: &HostMachineRow| {
        let zones: Vec<String> = one.zones.iter().map(u32::to_string).collect();
        vec![
            Cell::new(&one.name.namespace),
            Cell::new(&one.name.name),
            severe(&one.state.to_string(), one.state.severity()),
            Cell::new(&one.cpus),
            Cell::new(&zones.join(",")),
        ]
    };
    let shown = if options.is_wide { machines.len() } else { machines.len().min(MAX_LINES) };
    let rows: Vec<_> = machines.iter().take(shown).map(row).collect();
    let mut out = options.table(&columns, &rows);
    if shown < machines.len() {
        let rest = machines.len().saturating_sub(shown);
        push_paragraph(&mut out, "  ", &format!("and {rest} more; -o wide shows them"));
    }
    out
}
