//! Renders the report as text of 80 columns: groups of facts, and one line for each zone, link and drive.

use berth_api::infra_node::{
    Capabilities, HugepagePool, Hypervisor, InfraNodeStatus, Ksm, KsmAdvisor, KsmOwner, KvmState,
    UnknownFact, UnknownReason, Zone,
};
use berth_api::{Bytes, CpuSet};
use comfy_table::{ContentArrangement, Table};

use super::api_name::api_name;
use super::infra_node::Report;
use super::tree;
use berth_host_facts::links::Links;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, wrap_text};

/// Width of a default terminal, in columns.
const TERMINAL_WIDTH: u16 = 80;
/// Column in which the values begin, after the names of the groups.
const VALUE_COLUMN: usize = 11;

/// Renders the whole report.
#[must_use]
pub fn render(report: &Report, links: &Links, style: Style) -> String {
    let status = &report.status;
    let mut out = String::new();
    write_heading(&mut out, report.name(), status, style);
    write_group(&mut out, style, "CPU", format_cpu(&status.capabilities));
    write_group(&mut out, style, "KVM", format_kvm(status));
    write_group(&mut out, style, "Memory", format_memory(&status.capabilities));
    write_group(&mut out, style, "Devices", format_devices(&status.capabilities));
    write_group(&mut out, style, "Kubelet", format_kubelet(&status.capabilities));
    write_zones(&mut out, status, style);
    write_uplinks(&mut out, status, style);
    out.push_str(&tree::render(links, style));
    write_nvme(&mut out, status, style);
    write_gpus(&mut out, status, style);
    write_direct_io(&mut out, status, style);
    write_allocations(&mut out, status, style);
    write_unknown(&mut out, &status.unknown, style);
    out
}

fn write_heading(out: &mut String, name: &str, status: &InfraNodeStatus, style: Style) {
    let machine = &status.capabilities.machine;
    let hardware: Vec<&str> =
        [&machine.vendor, &machine.product].into_iter().flatten().map(String::as_str).collect();
    push_line(out, &style.format_title(name), "");
    let parts = [hardware.join(" "), format_hypervisor(machine.hypervisor)];
    write_group(out, style, "Machine", parts.into_iter().filter(|part| !part.is_empty()).collect());
    let system = [
        machine.os.clone(),
        machine.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        status.capabilities.cgroup.version.map(|version| format!("cgroup v{version}")),
    ];
    write_group(out, style, "System", vec![join_present(system)]);
}

fn format_hypervisor(hypervisor: Option<Hypervisor>) -> String {
    match hypervisor {
        None | Some(Hypervisor::None) => String::new(),
        Some(other) => format!("virtual machine of {}", api_name(&other)),
    }
}

fn format_cpu(capabilities: &Capabilities) -> Vec<String> {
    let cpu = &capabilities.cpu;
    let model = match (cpu.sockets, &cpu.model) {
        (Some(n), Some(model)) if n > 1 => format!("{n} x {model}"),
        (_, model) => model.clone().unwrap_or_else(|| "model unknown".to_owned()),
    };
    let counts = [
        cpu.sockets.map(|n| count_with_noun(n, "socket")),
        cpu.cores.map(|n| count_with_noun(n, "core")),
        cpu.threads.map(|n| count_with_noun(n, "thread")),
        cpu.threads_per_core.map(|n| format!("{n} per core")),
    ];
    let set = |name: &str, set: &Option<CpuSet>| {
        let some = set.as_ref().filter(|set| !set.is_empty());
        some.map(|set| format!("{name} {}", set.to_compact_string()))
    };
    let states = [
        set("online", &cpu.online),
        set("offline", &cpu.offline),
        set("isolated", &cpu.isolated),
        set("nohz_full", &cpu.nohz_full),
    ];
    let settings = [
        cpu.governor.as_ref().map(|governor| format!("governor {governor}")),
        cpu.microcode.as_ref().map(|microcode| format!("microcode {microcode}")),
    ];
    let kinds = cpu.core_kinds.iter().map(|kind| {
        Some(format!("{} cores {}", api_name(&kind.kind), kind.cpus.to_compact_string()))
    });
    vec![
        model,
        join_present(counts),
        join_present(states),
        join_present(kinds),
        join_present(settings),
    ]
}

fn format_kvm(status: &InfraNodeStatus) -> Vec<String> {
    let kvm = &status.capabilities.kvm;
    let state = match kvm.state {
        Some(KvmState::Ready) => "Ready".to_owned(),
        Some(state) => format!("{} (see berth-agent check)", api_name(&state)),
        None => format_unknown(&status.unknown, "capabilities.kvm.state"),
    };
    let first = [
        Some(state),
        kvm.api_version.map(|version| format!("API {version}")),
        kvm.max_vcpus.map(|n| format!("up to {n} vCPUs")),
    ];
    let yes_no = |name: &str, value: Option<bool>| {
        value.map(|value| format!("{name} {}", if value { "yes" } else { "no" }))
    };
    let second = [
        yes_no("nested", kvm.nested),
        yes_no("EPT/NPT", kvm.second_level_translation),
        yes_no("APICv/AVIC", kvm.interrupt_virtualization),
    ];
    let third = [
        yes_no("vhost-net", kvm.vhost_net),
        yes_no("vhost-vsock", kvm.vhost_vsock),
        yes_no("tun", kvm.tun),
    ];
    let confidential = kvm.confidential.iter().filter(|kinds| !kinds.is_empty());
    let kinds = confidential.flatten().map(api_name).collect::<Vec<_>>().join(", ");
    let fourth = (!kinds.is_empty()).then(|| format!("confidential VMs: {kinds}"));
    vec![join_present(first), join_present(second), join_present(third), fourth.unwrap_or_default()]
}

fn format_memory(capabilities: &Capabilities) -> Vec<String> {
    let memory = &capabilities.memory;
    let swap = memory.swap.map(|swap| match (swap.0, memory.zram) {
        (0, _) => "no swap".to_owned(),
        (_, Some(true)) => format!("swap {} (zram)", swap.to_human_readable()),
        _ => format!("swap {}", swap.to_human_readable()),
    });
    let pages = [
        memory.transparent_hugepages.map(|mode| format!("THP {}", mode.kernel_name())),
        memory.default_hugepage_size.map(|size| format!("default huge page {size}")),
        (memory.zswap == Some(true)).then(|| "zswap on".to_owned()),
    ];
    let ksm = memory.ksm.as_ref().map(format_ksm).unwrap_or_default();
    vec![join_present([memory.total.map(Bytes::to_human_readable), swap]), join_present(pages), ksm]
}

fn format_ksm(ksm: &Ksm) -> String {
    let running = match ksm.running {
        Some(true) => "KSM on",
        _ => "KSM off",
    };
    let owner = match ksm.owner {
        Some(KsmOwner::Nobody) | None => None,
        Some(KsmOwner::Unknown) => Some("controlled by an unknown program".to_owned()),
        Some(owner) => Some(format!("controlled by {}", api_name(&owner))),
    };
    let advisor = ksm.advisor.filter(|advisor| *advisor != KsmAdvisor::None);
    let advisor = advisor.map(|advisor| format!("advisor {}", api_name(&advisor)));
    join_present([Some(running.to_owned()), owner, advisor])
}

fn format_devices(capabilities: &Capabilities) -> Vec<String> {
    let iommu = match (capabilities.iommu.enabled, capabilities.iommu.groups) {
        (Some(true), Some(groups)) => {
            Some(format!("IOMMU on, {}", count_with_noun(groups, "group")))
        }
        (Some(false), _) => Some("IOMMU off".to_owned()),
        _ => None,
    };
    vec![join_present([iommu])]
}

fn format_kubelet(capabilities: &Capabilities) -> Vec<String> {
    let Some(kubelet) = &capabilities.kubelet else { return Vec::new() };
    let policy_text = |name: &str, policy: &Option<String>, options: &[String]| {
        let policy = policy.as_deref()?;
        let options =
            if options.is_empty() { String::new() } else { format!(" ({})", options.join(", ")) };
        Some(format!("{name} {policy}{options}"))
    };
    let scope = kubelet.topology_manager_scope.as_ref().map(|scope| format!("scope {scope}"));
    let topology = [
        policy_text(
            "topology manager",
            &kubelet.topology_manager_policy,
            &kubelet.topology_manager_policy_options,
        ),
        scope,
        policy_text("memory manager", &kubelet.memory_manager_policy, &[]),
    ];
    let reserved = kubelet
        .reserved_system_cpus
        .as_ref()
        .map(|cpus| format!("reserved CPUs {}", cpus.to_compact_string()));
    vec![
        join_present([
            policy_text(
                "CPU manager",
                &kubelet.cpu_manager_policy,
                &kubelet.cpu_manager_policy_options,
            ),
            reserved,
        ]),
        join_present(topology),
    ]
}

fn write_zones(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let row = |zone: &Zone| {
        let cpus = zone.cpus.as_ref().map_or_else(
            || "?".to_owned(),
            |cpus| match cpus.is_empty() {
                true => "none".to_owned(),
                false => wrap_cell(&cpus.to_compact_string(), 26),
            },
        );
        let distances: Vec<String> =
            zone.distances.iter().map(|distance| distance.distance.to_string()).collect();
        vec![
            zone.id.to_string(),
            cpus,
            zone.cores.map_or_else(|| "?".to_owned(), |cores| cores.to_string()),
            zone.memory.map_or_else(|| "?".to_owned(), Bytes::to_human_readable),
            wrap_cell(&zone.hugepages.iter().map(format_pool).collect::<Vec<_>>().join(" "), 24),
            wrap_cell(&distances.join(" "), 16),
        ]
    };
    let head = ["ZONE", "CPUS", "CORES", "MEMORY", "HUGE PAGES FREE/ALL", "DISTANCES"];
    write_table(out, style, &head, status.zones.iter().map(row).collect());
}

fn format_pool(pool: &HugepagePool) -> String {
    let free = pool.free.map_or_else(|| "?".to_owned(), |free| free.to_string());
    format!("{}:{free}/{}", pool.size, pool.total)
}

fn write_uplinks(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let uplinks = &status.capabilities.uplinks;
    let uplink_rows: Vec<Vec<String>> = uplinks
        .iter()
        .map(|link| {
            let master = link.bond.as_ref().or(link.bridge.as_ref());
            let notes = [
                (link.default_route == Some(true)).then(|| "default route".to_owned()),
                master.map(|master| format!("in {master}")),
                link.sriov.map(|sriov| format!("VFs {}/{}", sriov.configured, sriov.total)),
            ];
            vec![
                link.name.to_string(),
                text(link.state.as_ref().map(api_name)),
                text(link.speed_mbps.map(format_speed)),
                text(link.mtu.map(|mtu| mtu.to_string())),
                text(link.driver.clone()),
                text(link.zone.map(|zone| zone.to_string())),
                join_present(notes),
            ]
        })
        .collect();
    write_table(
        out,
        style,
        &["UPLINK", "STATE", "SPEED", "MTU", "DRIVER", "ZONE", "NOTES"],
        uplink_rows,
    );
}

fn format_speed(mbps: u32) -> String {
    if mbps >= 1000 && mbps.is_multiple_of(1000) {
        format!("{}G", mbps / 1000)
    } else {
        format!("{mbps}M")
    }
}

fn write_nvme(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let row = |drive: &berth_api::infra_node::Nvme| {
        let in_use = match drive.in_use {
            Some(true) => drive.users.first().cloned().unwrap_or_else(|| "yes".to_owned()),
            Some(false) => "free".to_owned(),
            None => "?".to_owned(),
        };
        vec![
            drive.name.clone(),
            drive.size.map_or_else(|| "?".to_owned(), Bytes::to_human_readable),
            drive.zone.map_or_else(|| "-".to_owned(), |zone| zone.to_string()),
            drive.model.clone().unwrap_or_else(|| "-".to_owned()),
            in_use,
        ]
    };
    let all = status.capabilities.nvme.iter().map(row).collect();
    write_table(out, style, &["NVME", "SIZE", "ZONE", "MODEL", "USE"], all);
}

fn write_gpus(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let row = |gpu: &berth_api::infra_node::Gpu| {
        vec![
            gpu.pci_address.to_string(),
            gpu.id.clone(),
            gpu.driver.clone().unwrap_or_else(|| "-".to_owned()),
            gpu.zone.map_or_else(|| "-".to_owned(), |zone| zone.to_string()),
            gpu.iommu_group.map_or_else(|| "-".to_owned(), |group| group.to_string()),
        ]
    };
    let all = status.capabilities.gpus.iter().map(row).collect();
    write_table(out, style, &["GPU", "ID", "DRIVER", "ZONE", "IOMMU GROUP"], all);
}

fn write_direct_io(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let row = |path: &berth_api::infra_node::DirectIo| {
        let supported = match path.supported {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        let filesystem = path.filesystem.clone().unwrap_or_else(|| "?".to_owned());
        let size = path.size.map_or_else(|| "-".to_owned(), Bytes::to_human_readable);
        vec![path.path.clone(), filesystem, size, supported.to_owned()]
    };
    let all = status.capabilities.direct_io.iter().map(row).collect();
    write_table(out, style, &["PATH", "FILE SYSTEM", "SIZE", "O_DIRECT"], all);
}

fn write_allocations(out: &mut String, status: &InfraNodeStatus, style: Style) {
    let row = |pod: &berth_api::infra_node::Allocation| {
        let pages = pod.hugepages.iter().map(|pages| format!("{} x {}", pages.count, pages.size));
        let zones: Vec<String> = pod.zones.iter().map(ToString::to_string).collect();
        vec![
            pod.pod_uid.clone(),
            pod.cpus
                .as_ref()
                .map_or_else(|| "-".to_owned(), |cpus| wrap_cell(&cpus.to_compact_string(), 20)),
            pages.collect::<Vec<_>>().join(", "),
            zones.join(" "),
        ]
    };
    let all = status.allocations.iter().map(row).collect();
    write_table(out, style, &["POD UID", "CPUS", "HUGE PAGES", "ZONES"], all);
}

/// Renders the facts that are unknown, grouped by the reason.
fn write_unknown(out: &mut String, unknown: &[UnknownFact], style: Style) {
    if unknown.is_empty() {
        return;
    }
    let mut reasons: Vec<UnknownReason> = unknown.iter().map(|fact| fact.reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    push_line(out, "", "");
    push_line(out, &style.format_heading("Unknown"), " (-o json shows the evidence)");
    for reason in reasons {
        let facts: Vec<&str> = unknown
            .iter()
            .filter(|fact| fact.reason == reason)
            .map(|fact| fact.path.strip_prefix("capabilities.").unwrap_or(&fact.path))
            .collect();
        let text = format!("{}: {}", api_name(&reason), facts.join(", "));
        for part in wrap_text(&text, usize::from(TERMINAL_WIDTH) - 2) {
            push_line(out, "  ", &part);
        }
    }
}

fn format_unknown(unknown: &[UnknownFact], path: &str) -> String {
    let fact = unknown.iter().find(|fact| fact.path == path);
    fact.map_or_else(
        || "unknown".to_owned(),
        |fact| format!("unknown ({})", api_name(&fact.reason)),
    )
}

fn write_group(out: &mut String, style: Style, name: &str, lines: Vec<String>) {
    let mut label = name;
    for text in lines.iter().filter(|text| !text.is_empty()) {
        for part in wrap_text(
            &replace_control_characters(text).replace('\n', " "),
            usize::from(TERMINAL_WIDTH) - VALUE_COLUMN,
        ) {
            let padded = format!("{label:<VALUE_COLUMN$}");
            push_line(out, &style.format_heading(&padded), &part);
            label = "";
        }
    }
}

fn write_table(out: &mut String, style: Style, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(TERMINAL_WIDTH)
        .set_header(head);
    let one_line = |cell: String| replace_control_characters(&cell);
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(one_line).collect::<Vec<_>>()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    push_line(out, "", "");
    for (index, text) in table.lines().enumerate() {
        let text = text.trim_end();
        if index == 0 {
            push_line(out, &style.format_heading(text), "");
        } else {
            push_line(out, text, "");
        }
    }
}

/// Wraps a list to lines of this width, for a single cell of a table.
fn wrap_cell(list: &str, width: usize) -> String {
    wrap_text(list, width).join("\n")
}

fn join_present(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn count_with_noun(n: u32, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
