//! Renders the state as tables of 80 columns, without any I/O.

use std::fmt::Write as _;

use berth_api::{CpuSet, PageSize};
use comfy_table::{ContentArrangement, Table};

use super::cluster_state::{ClusterState, Vm};
use super::hosts::{HOSTS, InstallMethod};

const MAX_WIDTH: u16 = 80;

/// Returns all tables.
#[must_use]
pub(super) fn render(cluster_state: &ClusterState) -> String {
    let mut out = String::new();
    out.push_str(&hosts_table(cluster_state));
    out.push_str(&zones_table(cluster_state));
    out.push_str(&tenants_table(cluster_state));
    out.push_str(&vms_table(cluster_state));
    out.push_str(&pings_table(cluster_state));
    out
}

/// Returns one table.
pub(super) fn render_table(title: &str, head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(MAX_WIDTH)
        .set_header(head)
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut out = format!("\n{title}\n");
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end()).unwrap_or_default();
    }
    out
}

fn hosts_table(cluster_state: &ClusterState) -> String {
    let rows = HOSTS.iter().filter_map(|demo_host| {
        let (infra, _) = cluster_state.hosts.get(demo_host.name)?;
        let status = infra.status.clone().unwrap_or_default();
        let ksm = status.capabilities.memory.ksm.as_ref().and_then(|ksm| ksm.running);
        let install_method = match demo_host.install_method {
            InstallMethod::Package => "package",
            InstallMethod::DaemonSet => "DaemonSet",
        };
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
        Some(vec![
            demo_host.name.to_owned(),
            infra.spec.profile.clone().unwrap_or_default(),
            install_method.to_owned(),
            format!("{}, {}", demo_host.cpu_manager_policy, demo_host.topology_manager_policy),
            (if ksm == Some(true) { "merges" } else { "off" }).to_owned(),
            ready.map_or("?", |one| one.status.as_str()).to_owned(),
        ])
    });
    let head = ["HOST", "PROFILE", "AGENT", "CPU, TOPOLOGY MANAGER", "KSM", "READY"];
    render_table("Hosts", &head, rows.collect())
}

fn zones_table(cluster_state: &ClusterState) -> String {
    let mut rows = Vec::new();
    for (name, (infra, _)) in &cluster_state.hosts {
        let status = infra.status.clone().unwrap_or_default();
        for zone in &status.zones {
            let number = |set: &Option<CpuSet>| set.as_ref().map_or(0, |set| set.iter().count());
            let pinnable = number(&zone.pinnable_cpus);
            let free_cpus = pinnable.saturating_sub(number(&zone.pinned_cpus));
            let pool = zone.hugepages.iter().find(|pool| pool.size == PageSize::MIB_2);
            let total = pool.map_or(0, |pool| pool.total);
            let of_zone = |vm: &&Vm| &vm.host == name && vm.zones == [zone.id];
            let used: u64 = cluster_state.vms.iter().filter(of_zone).map(|vm| vm.hugepages).sum();
            let free_pages = total.saturating_sub(used / PageSize::MIB_2.bytes());
            rows.push(vec![
                name.clone(),
                zone.id.to_string(),
                zone.cpus.as_ref().map(ToString::to_string).unwrap_or_default(),
                if pinnable == 0 {
                    "shared".to_owned()
                } else {
                    format!("{free_cpus} of {pinnable}")
                },
                zone.memory.map(|memory| memory.to_human_readable()).unwrap_or_default(),
                if total == 0 { "-".to_owned() } else { format!("{free_pages} of {total}") },
            ]);
        }
    }
    let head = ["HOST", "ZONE", "CPUS", "CPUS LEFT TO PIN", "MEMORY", "2Mi PAGES LEFT"];
    render_table("Zones", &head, rows)
}

fn tenants_table(cluster_state: &ClusterState) -> String {
    let rows = cluster_state.tenants.iter().map(|tenant| {
        let status = tenant.status.clone().unwrap_or_default();
        let hosts = status.hosts.map(|hosts| format!("{} of {}", hosts.ready, hosts.selected));
        let name = tenant.metadata.name.clone().unwrap_or_default();
        let tenant_vms = cluster_state.vms.iter().filter(|vm| vm.tenant == name);
        vec![
            name.clone(),
            status.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
            status.network_attachment_definition.unwrap_or_default(),
            hosts.unwrap_or_default(),
            tenant_vms.filter(|vm| vm.phase == "Running").count().to_string(),
        ]
    });
    let head = ["TENANT", "VLAN", "NETWORK DEFINITION", "HOSTS READY", "VMS RUNNING"];
    render_table("Tenants", &head, rows.collect())
}

fn vms_table(cluster_state: &ClusterState) -> String {
    let rows = cluster_state.vms.iter().map(|vm| {
        let zones: Vec<String> = vm.zones.iter().map(ToString::to_string).collect();
        let shared = || format!("shared, {}m", vm.cpu_millis);
        vec![
            format!("{}/{}", vm.tenant, vm.name),
            vm.host.clone(),
            if zones.is_empty() { "any".to_owned() } else { zones.join(",") },
            vm.cpus.as_ref().map_or_else(shared, ToString::to_string),
            (vm.hugepages / PageSize::MIB_2.bytes()).to_string(),
            vm.address.clone(),
        ]
    });
    let head = ["VM", "HOST", "ZONE", "CPUS", "PAGES", "ADDRESS"];
    let mut out = render_table("VMs", &head, rows.collect());
    let creator = &cluster_state.pod_creator;
    writeln!(out, "launcher pods created by {creator}").unwrap_or_default();
    let scheduler = cluster_state.scheduler.split('_').next().unwrap_or_default();
    writeln!(out, "placed by berth-scheduler in pod {scheduler}").unwrap_or_default();
    out
}

fn pings_table(cluster_state: &ClusterState) -> String {
    let ping_result = |from: &Vm, to: &Vm| {
        let found = cluster_state
            .pings
            .iter()
            .find(|(one, other, _)| *one == from.name && *other == to.name);
        match found {
            _ if from.name == to.name => "",
            Some((_, _, true)) => "yes",
            Some((_, _, false)) => "-",
            None => "?",
        }
    };
    let name = |vm: &Vm| format!("{}/{}", vm.tenant, vm.name);
    let last = |vm: &Vm| format!(".{}", vm.address.rsplit('.').next().unwrap_or_default());
    let head: Vec<String> = ["PING FROM", ""]
        .map(str::to_owned)
        .into_iter()
        .chain(cluster_state.vms.iter().map(last))
        .collect();
    let rows = cluster_state.vms.iter().map(|from| {
        let answers = cluster_state.vms.iter().map(|to| ping_result(from, to).to_owned());
        [name(from), from.address.clone()].into_iter().chain(answers).collect()
    });
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    render_table("Pings between VMs", &head, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_listed_by_pair() {
        let vm = |name: &str, tenant: &str, address: &str| Vm {
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            address: address.to_owned(),
            ..Vm::default()
        };
        let cluster_state = ClusterState {
            vms: vec![vm("db-1", "bank", "10.20.0.11"), vm("web-1", "shop", "10.20.0.12")],
            pings: vec![
                ("db-1".to_owned(), "web-1".to_owned(), true),
                ("web-1".to_owned(), "db-1".to_owned(), false),
            ],
            ..ClusterState::default()
        };
        let text = pings_table(&cluster_state);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(row("bank/db-1").ends_with("yes") && row("shop/web-1").ends_with('-'), "{text}");
        assert!(row("PING FROM").contains(".11  .12"), "{text}");
        assert!(
            render(&cluster_state)
                .lines()
                .all(|line| line.chars().count() <= usize::from(MAX_WIDTH))
        );
    }
}
