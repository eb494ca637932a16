//! Cases of problems in a report or a Node, with the expected messages.

use berth_api::CpuSet;
use serde_json::{Value, json};

use super::{read_host, valid_infra_node, valid_node};

/// Expected result for a host.
enum ExpectedResult {
    /// The host is usable, and has these problems.
    Usable(&'static [&'static str]),
    /// No VM can be placed on the host, for these reasons.
    Unusable(&'static [&'static str]),
}
use ExpectedResult::{Unusable, Usable};

/// Sets a value at a JSON pointer.
fn with_value(mut document: Value, pointer: &str, value: Value) -> Value {
    if let Some(place) = document.pointer_mut(pointer) {
        *place = value;
        return document;
    }
    let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
    let parent = document.pointer_mut(parent).and_then(Value::as_object_mut);
    let parent = parent.unwrap_or_else(|| panic!("{pointer} has no parent"));
    parent.insert(field.replace("~1", "/"), value);
    document
}

fn check_case(infra: Value, node: Value, label: &str, expected: &ExpectedResult) {
    let found = read_host(infra, Some(node));
    match (expected, found) {
        (Usable(wanted), Ok((_, problems))) => {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(texts.len(), wanted.len(), "{label}: {texts:#?}");
            for (text, words) in texts.iter().zip(*wanted) {
                assert!(text.contains(words), "{label}: {text}");
            }
        }
        (Unusable(wanted), Err(error)) => {
            let text = error.to_string();
            for words in *wanted {
                assert!(text.contains(words), "{label}: {text}");
            }
        }
        (_, found) => panic!("{label}: {found:?}"),
    }
}

#[test]
fn problems_of_a_report_are_reported() {
    let kubelet = "/status/capabilities/kubelet";
    let cases = [
        // Cases with values of the kubelet's configuration.
        (
            format!("{kubelet}/cpuManagerPolicy"),
            json!("dynamic"),
            Unusable(&[
                "InfraNode rack1-a: status.capabilities.kubelet.cpuManagerPolicy",
                "`dynamic`",
            ]),
        ),
        (
            format!("{kubelet}/topologyManagerPolicy"),
            json!("strict"),
            Unusable(&["status.capabilities.kubelet.topologyManagerPolicy", "`strict`"]),
        ),
        (
            format!("{kubelet}/topologyManagerScope"),
            json!("host"),
            Unusable(&["status.capabilities.kubelet.topologyManagerScope", "`host`"]),
        ),
        (
            format!("{kubelet}/memoryManagerPolicy"),
            json!("static"),
            Unusable(&["status.capabilities.kubelet.memoryManagerPolicy", "`static`"]),
        ),
        (
            format!("{kubelet}/reservedSystemCPUs"),
            json!("0,99"),
            Unusable(&["reservedSystemCPUs: CPU 99 is in no zone"]),
        ),
        (format!("{kubelet}/reservedSystemCPUs"), json!("0-"), Unusable(&["reservedSystemCPUs"])),
        // Cases with zones.
        ("/status/zones".to_owned(), json!([]), Unusable(&["status.zones: is empty"])),
        ("/status/zones/1/id".to_owned(), json!(0), Unusable(&["zone 0 is listed twice"])),
        ("/status/zones/1/id".to_owned(), json!(64), Unusable(&["zone 64"])),
        ("/status/zones/1/id".to_owned(), json!(-1), Unusable(&["status.zones[1].id", "-1"])),
        (
            "/status/zones/1/cpus".to_owned(),
            json!("0-7,16-23"),
            Unusable(&["CPU 0 is in more than one core"]),
        ),
        ("/status/zones/0/cpus".to_owned(), json!("0-65535"), Unusable(&["65552 CPUs"])),
        (
            "/status/zones/0/cpus".to_owned(),
            json!("0-4294967295"),
            Unusable(&["status.zones[0].cpus", "4294967295"]),
        ),
        (
            "/status/zones/0/hugepages/1/total".to_owned(),
            json!(u64::MAX),
            Unusable(&["status.zones[0].hugepages[1]", "18446744073709551615 pages of 1Gi"]),
        ),
        (
            "/status/zones/0/hugepages/1/total".to_owned(),
            json!(65),
            Unusable(&["status.zones[0].hugepages[1]", "65 pages of 1Gi exceed"]),
        ),
        (
            "/status/zones/0/hugepages/0/size".to_owned(),
            json!("1Gi"),
            Unusable(&["status.zones[0].hugepages[1]", "page size 1Gi is listed twice"]),
        ),
        (
            "/status/zones/0/hugepages/0/size".to_owned(),
            json!("3Mi"),
            Unusable(&["status.zones[0].hugepages[0].size", "3Mi"]),
        ),
        (
            "/status/zones/0/memory".to_owned(),
            json!("-1Gi"),
            Unusable(&["status.zones[0].memory", "-1Gi"]),
        ),
        (
            "/status/zones/0/reservedMemory".to_owned(),
            json!("65Gi"),
            Usable(&["InfraNode rack1-a: status.zones[0].reservedMemory: `65Gi`: exceeds"]),
        ),
        // A list of thread siblings that does not match the CPUs of the zone is ignored.
        ("/status/zones/0/threads".to_owned(), json!(["0-3", "16-19"]), Usable(&[])),
        // Pinned CPUs outside the zone are ignored: the value only helps to guess how the host numbers its CPUs.
        ("/status/zones/0/pinnedCPUs".to_owned(), json!("900-901"), Usable(&[])),
        // Cases with allocations.
        (
            "/status/allocations/0/cpus".to_owned(),
            json!("2-3,100"),
            Usable(&["InfraNode rack1-a: status.allocations[0].cpus: `100`: is in no NUMA zone"]),
        ),
        (
            "/status/allocations/1/cpus".to_owned(),
            json!("2,8"),
            Usable(&["status.allocations[1].cpus: `2`: also belongs to another allocation"]),
        ),
        (
            "/status/allocations/1/zones".to_owned(),
            json!([7]),
            Usable(&["status.allocations[1].zones: `7`: is not a NUMA zone of this host"]),
        ),
        (
            "/status/allocations/1/podUID".to_owned(),
            json!("6b1f0000-0000-4000-8000-000000000001"),
            Usable(&["status.allocations[1].podUID: `6b1f0000-0000-4000-8000-000000000001`"]),
        ),
        (
            "/status/allocations/0/hugepages/0/count".to_owned(),
            json!(u64::MAX),
            Usable(&["status.allocations[0].hugepages: `18446744073709551615`: exceeds"]),
        ),
        (
            "/status/allocations/0/hugepages/0/count".to_owned(),
            json!(-10),
            Unusable(&["status.allocations[0].hugepages[0].count", "-10"]),
        ),
        (
            "/status/allocations/0/memory".to_owned(),
            json!("15Ei"),
            Usable(&["status.allocations[0].memory: `15Ei`: exceeds the host's memory"]),
        ),
        (
            "/status/allocations/0/devices/0/count".to_owned(),
            json!(4_294_967_296_u64),
            Unusable(&["status.allocations[0].devices[0].count", "4294967296"]),
        ),
        (
            "/status/zones/0/reservedHugepages".to_owned(),
            json!([{"size": "1Gi", "count": 4096}]),
            Usable(&[
                "status.zones[0].reservedHugepages: `4Ti`: exceeds the zone's pool of huge pages",
            ]),
        ),
        (
            "/status/allocations/0/containers".to_owned(),
            json!([{"name": "compute", "memory": [{"size": "15Ei", "zones": [0, 7]}]}]),
            Usable(&[
                "status.allocations[0].containers[0].memory.zones: `7`: is not a NUMA zone of this host",
                "status.allocations[0].containers[0].memory.size: `15Ei`: exceeds the host's memory",
            ]),
        ),
        (
            "/status/allocations/0/containers".to_owned(),
            json!([{"name": "compute", "cpus": "2-3,100"}]),
            Usable(&["status.allocations[0].cpus: `100`: is in no NUMA zone"]),
        ),
        (
            "/status/devices".to_owned(),
            json!([{"resource": "intel.com/vf", "zone": 9, "total": 1, "free": 1}]),
            Usable(&["status.devices[0].zone: `9`: is not a NUMA zone of this host"]),
        ),
        (
            "/status/devices".to_owned(),
            json!([{"resource": "intel.com/vf", "zone": 0, "total": -1, "free": 1}]),
            Unusable(&["status.devices[0].total", "-1"]),
        ),
        ("/status".to_owned(), json!(null), Unusable(&["status: is missing"])),
        ("/metadata".to_owned(), json!({}), Unusable(&["metadata.name: is missing"])),
    ];
    for (pointer, value, then) in cases {
        let label = format!("{pointer} = {value}");
        check_case(with_value(valid_infra_node(), &pointer, value), valid_node(), &label, &then);
    }
}

#[test]
fn problems_of_a_node_are_reported() {
    let allocatable = "/status/allocatable";
    let cases = [
        (
            format!("{allocatable}/cpu"),
            json!("many"),
            Usable(&["Node rack1-a: status.allocatable.cpu: `many`: is not a quantity"]),
        ),
        (
            format!("{allocatable}/memory"),
            json!("-5Gi"),
            Usable(&["Node rack1-a: status.allocatable.memory: `-5Gi`: is negative"]),
        ),
        (
            format!("{allocatable}/pods"),
            json!("1e30"),
            Usable(&["Node rack1-a: status.allocatable.pods: `1e30`"]),
        ),
        (
            allocatable.to_owned(),
            json!({"hugepages-3Mi": "6Mi"}),
            Usable(&["status.allocatable.hugepages-3Mi: `6Mi`: is not a valid huge page size"]),
        ),
        (
            "/status/nodeInfo/kubeletVersion".to_owned(),
            json!("latest"),
            Usable(&["Node rack1-a: status.nodeInfo.kubeletVersion: kubeletVersion: `latest`"]),
        ),
    ];
    for (pointer, value, then) in cases {
        let label = format!("{pointer} = {value}");
        check_case(valid_infra_node(), with_value(valid_node(), &pointer, value), &label, &then);
    }
}

/// If a pod is listed twice, and a third entry claims the same CPUs as the second, all of these CPUs are allocated,
/// each once.
#[test]
fn duplicate_allocations_count_once() {
    let mut infra = valid_infra_node();
    let allocations = json!([
        {"podUID": "x", "cpus": "4", "zones": [0], "hugepages": [{"size": "1Gi", "count": 2}]},
        {"podUID": "x", "cpus": "5", "zones": [0], "hugepages": [{"size": "1Gi", "count": 3}]},
        {"podUID": "y", "cpus": "5-6", "zones": [0],
         "devices": [{"resource": "devices.kubevirt.io/kvm", "count": 1},
                     {"resource": "devices.kubevirt.io/kvm", "count": 2}]},
    ]);
    infra = with_value(infra, "/status/allocations", allocations);
    let (facts, problems) =
        read_host(infra, Some(valid_node())).expect("the host should be usable");
    assert_eq!(problems.len(), 2, "{problems:?}");
    let all: CpuSet = facts.allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    assert_eq!(all.to_string(), "4-6");
    let x = facts.allocation("x").expect("pod x has an allocation");
    assert_eq!(x.hugepages.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [5 << 30]);
    let y = facts.allocation("y").expect("pod y has an allocation");
    assert_eq!(y.devices.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [3]);
}

/// If a Node was deleted and created again with the same name, the InfraNode of the previous Node does not apply.
#[test]
fn report_of_an_earlier_node_is_refused() {
    let owned_by = |uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "rack1-a", "uid": uid}]);
        with_value(valid_infra_node(), "/metadata/ownerReferences", owner)
    };
    let node = with_value(valid_node(), "/metadata/uid", json!("new"));
    let error = read_host(owned_by("old"), Some(node.clone()))
        .expect_err("the report is of an earlier Node");
    assert!(
        error
            .to_string()
            .contains("metadata.ownerReferences: `old`: is the UID of an earlier Node"),
        "{error}"
    );
    assert!(read_host(owned_by("new"), Some(node.clone())).is_ok());
    assert!(
        read_host(valid_infra_node(), Some(node)).is_ok(),
        "an InfraNode without an owner should be accepted"
    );
}

/// Devices are counted by zone if the InfraNode and the Node list the same devices. Otherwise their zones are unknown,
/// and the host accepts no pod that needs these devices aligned with its CPUs.
#[test]
fn devices_with_unknown_zones_are_listed() {
    let offered =
        |count: &str| with_value(valid_node(), "/status/allocatable/intel.com~1vf", json!(count));
    let devices = json!([
        {"resource": "intel.com/vf", "zone": 0, "total": 2, "free": 1},
        {"resource": "intel.com/vf", "zone": 1, "total": 1, "free": 1},
        {"resource": "devices.kubevirt.io/kvm", "total": 1000, "free": 999},
    ]);
    let unplaced = |infra: Value, node: Value| {
        let (facts, problems) = read_host(infra, Some(node)).expect("the host should be usable");
        assert_eq!(problems, []);
        facts.devices_with_unknown_zones.into_iter().collect::<Vec<_>>()
    };
    let reported = || with_value(valid_infra_node(), "/status/devices", devices.clone());
    assert_eq!(unplaced(reported(), offered("3")), [""; 0]);
    assert_eq!(
        unplaced(reported(), offered("4")),
        ["intel.com/vf"],
        "the Node has one more device than the report"
    );
    assert_eq!(
        unplaced(valid_infra_node(), offered("3")),
        ["intel.com/vf"],
        "the report of an older agent has no devices"
    );
    assert_eq!(unplaced(valid_infra_node(), offered("0")), [""; 0]);
    let bridge = "/status/allocatable/bridge.network.kubevirt.io~1br0";
    assert_eq!(
        unplaced(valid_infra_node(), with_value(valid_node(), bridge, json!("1k"))),
        [""; 0],
        "a bridge is no device"
    );
}

/// If a zone disappears, its CPUs and allocations disappear too.
#[test]
fn allocations_of_a_removed_zone_are_dropped() {
    let mut infra = valid_infra_node();
    infra
        .pointer_mut("/status/zones")
        .and_then(Value::as_array_mut)
        .expect("the zones should be a list")
        .pop();
    let (facts, problems) =
        read_host(infra, Some(valid_node())).expect("the host should be usable");
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:#?}");
    assert!(texts[0].contains("status.allocations[1].cpus: `8-9,24-25`"), "{texts:#?}");
    assert!(texts[1].contains("status.allocations[1].zones: `1`"), "{texts:#?}");
    assert_eq!(facts.zones.len(), 1);
    assert_eq!(facts.allocations.iter().map(|one| one.cpus.len()).sum::<usize>(), 4);
}

/// Without a Node, the memory for pods is the memory of all zones without huge pages and without the reservation of the
/// kubelet. The reservation of the whole host counts if it is larger than the sum of the zones' reservations.
#[test]
fn memory_without_a_node_excludes_the_reservation() {
    let memory = |infra: Value| {
        let (facts, _) = read_host(infra, None).expect("the host should be usable");
        facts.allocatable.memory
    };
    // 128 GiB in 2 zones, without 80 pages of 1 GiB, 512 pages of 2 MiB (1 GiB) and 2 x 2 GiB of reserved memory.
    assert_eq!(memory(valid_infra_node()), (128 - 80 - 1 - 4) << 30);
    let path = "/status/capabilities/kubelet/allocatableReservation";
    for (reservation, expected) in
        [("1Gi", 128 - 80 - 1 - 4), ("5Gi", 128 - 80 - 1 - 5), ("1Ti", 0)]
    {
        let infra = with_value(valid_infra_node(), path, json!(reservation));
        assert_eq!(memory(infra), expected << 30, "{reservation}");
    }
}
