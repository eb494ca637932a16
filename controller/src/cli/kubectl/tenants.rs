//! Command `tenants`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::tenants::{self, TenantDetail, TenantRow};
use berth_views::{Kind, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::host::{condition_table, push_issues};
use super::machines::machine_table;
use super::output::{TableOptions, issue_count, push_paragraph, severe};
use super::show::{NotFound, View, show};

/// List the tenants: network, machines, hosts and addresses; with a name, show one tenant
///
/// MACHINES are the ready ones, of the desired number. HOSTS are those on which the network of the tenant is ready, of those
/// that the tenant selects. ADDRESSES are the allocated ones, of all in its prefixes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth tenants                  all tenants\n  \
    kubectl berth tenants bank             one tenant: conditions, machines, and what to do\n  \
    kubectl berth tenants -o json | jq '.tenants[] | select(.ready != \"True\")'")]
pub(in crate::cli) struct Arguments {
    /// Name of a tenant
    name: Option<String>,
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.name {
        Some(name) => show(&TenantView { name }, &arguments.list.for_tenant(name)),
        None => show(&TenantsView, &arguments.list),
    }
}

#[derive(Debug, Serialize)]
struct Tenants {
    tenants: Vec<TenantRow>,
}

struct TenantsView;

impl View for TenantsView {
    type Data = Tenants;

    fn required_kind(&self) -> Kind {
        Kind::TenantCluster
    }

    fn kinds(&self) -> &[Kind] {
        &tenants::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Tenants, NotFound> {
        Ok(Tenants { tenants: tenants::rows(snapshot) })
    }

    fn empty_text(&self, data: &Tenants) -> Option<&'static str> {
        data.tenants
            .is_empty()
            .then_some("no tenant: create a TenantCluster (examples/tenants.yaml)\n")
    }

    fn format(&self, data: &Tenants, options: TableOptions) -> String {
        let mut columns = vec![
            Column::flexible("NAME", 10),
            Column::text("READY"),
            Column::text("VLAN"),
            Column::number("MACHINES"),
            Column::number("HOSTS"),
            Column::number("ADDRESSES"),
            Column::number("ISSUES"),
        ];
        if options.is_wide {
            columns.extend(["NETWORK", "REASON", "NAMESPACE", "MTU"].map(Column::text));
        }
        let rows: Vec<_> = data.tenants.iter().map(|row| cells(row, options.is_wide)).collect();
        options.table(&columns, &rows)
    }
}

fn cells(row: &TenantRow, is_wide: bool) -> Vec<Cell> {
    let id =
        row.vlan.map(|vlan| vlan.to_string()).or_else(|| row.vni.map(|vni| format!("VNI {vni}")));
    let ready = row.ready.map(|ready| ready.to_string()).unwrap_or_default();
    let addresses = row.addresses.map(|all| {
        let total = all.allocated.saturating_add(all.quarantined).saturating_add(all.free);
        format!("{}/{total}", all.allocated)
    });
    let mut cells = vec![
        Cell::new(&row.name),
        severe(&ready, row.severity),
        Cell::from(id),
        Cell::from(row.machines.map(|all| format!("{}/{}", all.ready, all.desired))),
        Cell::from(row.hosts.map(|all| format!("{}/{}", all.ready, all.selected))),
        Cell::from(addresses),
        issue_count(&row.issues),
    ];
    if is_wide {
        cells.extend([
            Cell::from(row.network.as_ref()),
            Cell::new(&row.reason),
            Cell::new(&row.namespace),
            Cell::from(row.mtu),
        ]);
    }
    cells
}

#[derive(Debug, Serialize)]
struct Tenant {
    tenant: TenantDetail,
}

struct TenantView<'a> {
    name: &'a str,
}

impl View for TenantView<'_> {
    type Data = Tenant;

    fn required_kind(&self) -> Kind {
        Kind::TenantCluster
    }

    fn kinds(&self) -> &[Kind] {
        &tenants::DETAIL_KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<Tenant, NotFound> {
        let tenant = tenants::detail(snapshot, self.name).ok_or_else(|| NotFound {
            kind: "tenant",
            name: self.name.to_owned(),
            command: "kubectl berth tenants",
        })?;
        Ok(Tenant { tenant })
    }

    fn format(&self, data: &Tenant, options: TableOptions) -> String {
        let tenant = &data.tenant;
        let mut out = String::new();
        let ready = tenant.row.ready.map_or_else(
            || "not reconciled yet".to_owned(),
            |ready| format!("Ready {ready} ({})", tenant.row.reason),
        );
        let title = format!("{}: {ready}", tenant.row.name);
        options.push_heading(&mut out, &berth_runtime::cli::text::to_single_line(&title));
        push_paragraph(&mut out, "  ", &format!("namespace: {}", tenant.row.namespace));
        for prefix in &tenant.prefixes {
            let text = format!(
                "addresses of {}: {} allocated, {} in quarantine, {} free",
                prefix.cidr, prefix.allocated, prefix.quarantined, prefix.free
            );
            push_paragraph(&mut out, "  ", &text);
        }
        for host in &tenant.not_ready_hosts {
            push_paragraph(&mut out, "  ! ", &format!("host {}: {}", host.name, host.message));
        }
        if !tenant.conditions.is_empty() {
            options.push_heading(&mut out, "Conditions");
            out += &condition_table(&tenant.conditions, options);
        }
        if !tenant.machine_rows.is_empty() {
            options.push_heading(&mut out, "Machines");
            out += &machine_table(&tenant.machine_rows, options);
        }
        push_issues(&mut out, &tenant.row.issues, options);
        out
    }
}

#[cfg(test)]
mod tests {
    use berth_runtime::cli::style::Style;
    use berth_views::tenants::{AddressCounts, HostCounts, MachineCounts};

    use super::*;

    #[test]
    fn the_table_of_a_large_tenant_has_80_columns() {
        let tenant = TenantRow {
            name: "t".repeat(63),
            vni: Some(16_777_215),
            machines: Some(MachineCounts { desired: 5_000, current: 5_000, ready: 5_000 }),
            hosts: Some(HostCounts { selected: 5_000, ready: 5_000 }),
            addresses: Some(AddressCounts { allocated: 65_000, quarantined: 0, free: 534 }),
            ..TenantRow::default()
        };
        let options = TableOptions { style: Style::Plain, is_wide: false };
        let table = TenantsView.format(&Tenants { tenants: vec![tenant] }, options);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        for number in ["VNI 16777215", "5000/5000", "65000/65534"] {
            assert!(table.contains(number), "{number}: {table}");
        }
    }
}
