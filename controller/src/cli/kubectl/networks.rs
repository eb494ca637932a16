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
        let columns = [
            Column::flexible("NAME", 10),
            Column::flexible("SCENARIO", 8),
            Column::number("HOSTS"),
            Column::number("TENANTS"),
            Column::number("READY"),
            Column::number("TRUNKS"),
            Column::number("MTU"),
            Column::flexible("VLANS", 8),
            Column::number("FREE"),
        ];
        let cells: Vec<_> = data.networks.iter().map(cells).collect();
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

fn cells(row: &NetworkRow) -> Vec<Cell> {
    let scenarios: Vec<String> = row.scenarios.iter().map(|one| format!("{one:?}")).collect();
    let ready = row.counts.map(|counts| {
        let all = counts.ready.saturating_add(counts.pending).saturating_add(counts.failed);
        format!("{}/{all}", counts.ready)
    });
    let trunks = row.trunks.map(|trunks| {
        let all = trunks.verified.saturating_add(trunks.missing).saturating_add(trunks.unknown);
        format!("{}/{all}", trunks.verified)
    });
    vec![
        severe(&row.name, row.severity),
        Cell::new(&scenarios.join(",")),
        Cell::from(row.hosts),
        Cell::from(row.tenants),
        Cell::from(ready),
        Cell::from(trunks),
        Cell::from(row.mtu),
        Cell::from(row.vlans.as_ref()),
        Cell::from(row.free_vlans),
    ]
}

fn fault_text(fault: &NetworkFault) -> String {
    let network = fault.tenant_network.as_ref().map(|name| format!(", {name}"));
    let vlans = fault.vlans.as_ref().map(|vlans| format!(", VLAN {}", vlans.ids()));
    let port = fault.switch_port.as_ref().map(|port| format!(" (switch port {port})"));
    let [network, vlans, port] = [network, vlans, port].map(Option::unwrap_or_default);
    format!("{}{network}{vlans}: {}{port}", fault.host, fault.message)
}
