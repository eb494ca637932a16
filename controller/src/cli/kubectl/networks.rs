//! Command `networks`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::networks::{self, NetworkFault, NetworkRow, rows};
use berth_views::{Kind, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::output::{TableOptions, push_paragraph, severe};
use super::show::{NotFound, View, show};

/// Maximum number of faults below the table, unless the output is wide.
const MAX_FAULTS: usize = 20;

/// List the host networks: tenants, VLANs, trunks, and faults on single hosts
///
/// READY are the tenant networks that are ready, of all on all hosts. TRUNKS are the hosts whose VLANs are verified, of those
/// with a trunk. Below the table, each fault has the host, the VLANs and, if the switch announces it, the switch port.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth networks                 all host networks, and the faults of hosts\n  \
    kubectl berth networks -o json | jq '.networks[].faults[] | select(.severity == \"Failure\")'")]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    show(&NetworksView, &arguments.list)
}

#[derive(Debug, Serialize)]
struct Networks {
    networks: Vec<NetworkRow>,
}

struct NetworksView;

impl View for NetworksView {
    type Data = Networks;

    fn required_kind(&self) -> Kind {
        Kind::InfraNode
    }

    fn kinds(&self) -> &[Kind] {
        &networks::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Networks, NotFound> {
        Ok(Networks { networks: rows(snapshot) })
    }

    fn empty_text(&self, data: &Networks) -> Option<&'static str> {
        data.networks.is_empty().then_some("no host network: add spec.networks to a HostProfile\n")
    }

    fn format(&self, data: &Networks, options: TableOptions) -> String {
        let mut columns = vec![
            Column::flexible("NAME", 10),
            Column::flexible("SCENARIO", 8),
            Column::number("HOSTS"),
            Column::number("TENANTS"),
            Column::number("READY"),
            Column::number("TRUNKS"),
            Column::flexible("VLANS", 8),
            Column::number("FREE"),
        ];
        if options.is_wide {
            columns.push(Column::number("MTU"));
        }
        let cells: Vec<_> = data.networks.iter().map(|row| cells(row, options.is_wide)).collect();
        let mut out = options.table(&columns, &cells);
        for network in data.networks.iter().filter(|network| !network.faults.is_empty()) {
            let heading = format!("Faults of {}", network.name);
            options.push_heading(&mut out, &berth_runtime::cli::text::to_single_line(&heading));
            let count = network.faults.len();
            let shown = if options.is_wide { count } else { count.min(MAX_FAULTS) };
            for fault in network.faults.iter().take(shown) {
                push_paragraph(&mut out, "  ! ", &fault_text(fault));
            }
            if shown < count {
                let rest = count.saturating_sub(shown);
                push_paragraph(&mut out, "  ", &format!("and {rest} more; -o wide shows them"));
            }
        }
        out
    }
}

fn cells(row: &NetworkRow, is_wide: bool) -> Vec<Cell> {
    let scenarios: Vec<String> = row.scenarios.iter().map(|one| format!("{one:?}")).collect();
    let ready = row.counts.map(|counts| {
        let all = counts.ready.saturating_add(counts.pending).saturating_add(counts.failed);
        format!("{}/{all}", counts.ready)
    });
    let trunks = row.trunks.map(|trunks| {
        let all = trunks.verified.saturating_add(trunks.missing).saturating_add(trunks.unknown);
        format!("{}/{all}", trunks.verified)
    });
    let mut cells = vec![
        severe(&row.name, row.severity),
        Cell::new(&scenarios.join(",")),
        Cell::from(row.hosts),
        Cell::from(row.tenants),
        Cell::from(ready),
        Cell::from(trunks),
        Cell::from(row.vlans.as_ref()),
        Cell::from(row.free_vlans),
    ];
    if is_wide {
        cells.push(Cell::from(row.mtu));
    }
    cells
}

fn fault_text(fault: &NetworkFault) -> String {
    let network = fault.tenant_network.as_ref().map(|name| format!(", {name}"));
    let vlans = fault.vlans.as_ref().map(|vlans| format!(", VLAN {}", vlans.ids()));
    let port = fault.switch_port.as_ref().map(|port| format!(" (switch port {port})"));
    let [network, vlans, port] = [network, vlans, port].map(Option::unwrap_or_default);
    format!("{}{network}{vlans}: {}{port}", fault.host, fault.message)
}

#[cfg(test)]
mod tests {
    use berth_runtime::cli::style::Style;
    use berth_views::networks::{TenantNetworkCounts, TrunkCounts};

    use super::*;

    #[test]
    fn the_table_of_a_large_fleet_has_80_columns() {
        let network = NetworkRow {
            name: "n".repeat(63),
            hosts: Some(5_000),
            tenants: Some(1_000),
            counts: Some(TenantNetworkCounts { ready: 5_000_000, pending: 0, failed: 0 }),
            trunks: Some(TrunkCounts { verified: 5_000, missing: 0, unknown: 0 }),
            mtu: Some(9_000),
            vlans: Some("100-119,".repeat(9)),
            free_vlans: Some(4_000),
            ..NetworkRow::default()
        };
        let options = TableOptions { style: Style::Plain, is_wide: false };
        let table = NetworksView.format(&Networks { networks: vec![network] }, options);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        for number in ["5000000/5000000", "5000/5000", "4000"] {
            assert!(table.contains(number), "{number}: {table}");
        }
    }
}
