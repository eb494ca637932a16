//! Command `machines`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::machines::{self, MachineFilter, MachineRow, rows};
use berth_views::{Kind, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::output::{TableOptions, bytes, severe};
use super::show::{NotFound, View, show};

/// List the machines: state, host, size and address
///
/// A machine is a VirtualMachine. CPUS ends in `!` for a VM with dedicated CPUs. `kubectl berth why NAME` explains where a
/// machine is and why, or why it does not run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth machines                 all machines that you may read\n  \
    kubectl berth machines --tenant bank   those of a tenant\n  \
    kubectl berth machines --host rack1-a  those on a host\n  \
    kubectl berth machines -o wide         also MachineDeployment, class, and what a machine waits for")]
pub(in crate::cli) struct Arguments {
    /// Only machines of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only machines on this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Only machines of this MachineDeployment
    #[arg(long, value_name = "NAME")]
    deployment: Option<String>,
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let filter = MachineFilter {
        namespace: arguments.list.scope.namespace.clone(),
        tenant: arguments.tenant.clone(),
        host: arguments.host.clone(),
        deployment: arguments.deployment.clone(),
    };
    let view = MachinesView { filter };
    match &arguments.tenant {
        Some(tenant) => show(&view, &arguments.list.for_tenant(tenant)),
        None => show(&view, &arguments.list),
    }
}

#[derive(Debug, Serialize)]
struct Machines {
    machines: Vec<MachineRow>,
}

struct MachinesView {
    filter: MachineFilter,
}

impl View for MachinesView {
    type Data = Machines;

    fn required_kind(&self) -> Kind {
        Kind::VirtualMachine
    }

    fn kinds(&self) -> &[Kind] {
        &machines::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Machines, NotFound> {
        Ok(Machines { machines: rows(snapshot, &self.filter) })
    }

    fn empty_text(&self, data: &Machines) -> Option<&'static str> {
        data.machines.is_empty().then_some("no machine\n")
    }

    fn format(&self, data: &Machines, options: TableOptions) -> String {
        machine_table(&data.machines, options)
    }
}

/// Returns the table of machines.
pub(super) fn machine_table(machines: &[MachineRow], options: TableOptions) -> String {
    let mut columns = vec![
        Column::flexible("NAMESPACE", 10),
        Column::flexible("NAME", 14),
        Column::flexible("STATE", 8),
        Column::flexible("HOST", 8),
        Column::number("CPUS"),
        Column::number("MEMORY"),
        Column::flexible("ADDRESS", 9),
    ];
    if options.is_wide {
        columns.extend(
            ["TENANT", "DEPLOYMENT", "ROLE", "STATUS", "CLASS", "PAGES", "MESSAGE"]
                .map(Column::text),
        );
    }
    let rows: Vec<_> = machines.iter().map(|row| cells(row, options.is_wide)).collect();
    options.table(&columns, &rows)
}

fn cells(row: &MachineRow, is_wide: bool) -> Vec<Cell> {
    let mark = if row.is_pinned { "!" } else { "" };
    let addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
    let mut cells = vec![
        Cell::new(&row.name.namespace),
        Cell::new(&row.name.name),
        severe(&row.state.to_string(), row.severity),
        Cell::from(row.host.as_ref()),
        Cell::from(row.vcpus.map(|count| format!("{count}{mark}"))),
        Cell::from(row.memory.map(bytes)),
        Cell::new(&addresses.join(",")),
    ];
    if is_wide {
        cells.extend([
            Cell::from(row.tenant.as_ref()),
            Cell::from(row.deployment.as_ref()),
            Cell::from(row.role.as_ref()),
            Cell::new(&row.status),
            Cell::from(row.class.as_ref()),
            Cell::from(row.page_size.as_ref()),
            Cell::from(row.message.as_ref()),
        ]);
    }
    cells
}
