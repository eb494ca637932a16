//! Compares the report with recorded data of Kubernetes for the same host: its Node object, and the machine
//! information of cAdvisor.

use serde_json::Value;

use crate::machine::{CapturedMachine, in_bytes, json_text};
use crate::read_file;
use crate::units::{Cpus, format_cpu_list, parse_bytes};

/// Tolerance in bytes: the kernel releases some memory between the boot and the start of the kubelet.
const MEMORY_TOLERANCE: u64 = 1 << 20;

pub(crate) fn compare_node(yaml: &str, machine: &mut CapturedMachine) {
    machine.compare_values("offline", "", machine.capability("cpu/offline"));
    // The exact indentation matters, because `metadata.managedFields` has a field `capacity:` with deeper
    // indentation.
    let capacity = yaml.lines().skip_while(|line| *line != "  capacity:").skip(1);
    for line in capacity.take_while(|line| line.starts_with("    ")) {
        let Some((resource, value)) = line.trim().split_once(": ") else { continue };
        let value = value.trim_matches('"');
        if resource == "cpu" {
            let all = value.parse().map(|count: u32| format_cpu_list(&(0..count).collect()));
            machine.compare_values("threads", value, machine.capability("cpu/threads"));
            machine.compare_values(
                "online",
                all.unwrap_or_default(),
                machine.capability("cpu/online"),
            );
        } else if resource == "memory" {
            let total = machine.capability("memory/total");
            let difference = parse_bytes(value)
                .zip(parse_bytes(&total))
                .map(|((node, _), (berth, _))| node.abs_diff(berth));
            if difference.is_none_or(|bytes| bytes > MEMORY_TOLERANCE) {
                machine.compare_values("memory total", value, total);
            }
        } else if let Some(size) = resource.strip_prefix("hugepages-") {
            machine.compare_values(resource, in_bytes(value), hugepage_bytes(machine, size));
        }
    }
}

/// Compares with the output of cAdvisor, which some captures contain next to the folder `sys`.
pub(crate) fn compare_machine_info(machine: &mut CapturedMachine) {
    let file = machine.root.join("machineinfo.json");
    if !file.exists() {
        return;
    }
    let info: Value =
        serde_json::from_str(&read_file(&file)).expect("the output of cAdvisor should be JSON");
    machine.compare_values(
        "vendor",
        json_text(info.get("vendor_id")),
        machine.capability("cpu/vendor"),
    );
    machine.compare_values(
        "sockets",
        json_text(info.get("num_sockets")),
        machine.capability("cpu/sockets"),
    );
    machine.compare_values(
        "threads",
        json_text(info.get("num_cores")),
        machine.capability("cpu/threads"),
    );

    let nodes = json_list(&info, "topology");
    let cores: usize = nodes.iter().map(|node| json_list(node, "cores").len()).sum();
    machine.compare_values("cores", cores, machine.capability("cpu/cores"));
    for node in nodes {
        let id = node["node_id"]
            .as_u64()
            .and_then(|id| id.try_into().ok())
            .expect("the node should have an id");
        let threads =
            json_list(node, "cores").iter().flat_map(|core| json_list(core, "thread_ids"));
        let cpus: Cpus = threads.filter_map(|cpu| cpu.as_u64()?.try_into().ok()).collect();
        machine.compare_values(
            &format!("zone {id} cpus"),
            format_cpu_list(&cpus),
            machine.zone(id, "cpus"),
        );
        let (memory, berth) =
            (json_text(node.get("memory")), in_bytes(&machine.zone(id, "memory")));
        machine.compare_values(&format!("zone {id} memory"), memory, berth);
    }
}

fn json_list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the bytes in huge pages of one size, over all zones.
fn hugepage_bytes(machine: &CapturedMachine, size: &str) -> u64 {
    let pools = machine.zones().flat_map(|zone| json_list(zone, "hugepages"));
    pools
        .filter(|pool| in_bytes(&json_text(pool.get("size"))) == in_bytes(size))
        .filter_map(|pool| Some(parse_bytes(size)?.0 * pool["total"].as_u64()?))
        .sum()
}
