//! Tests of the facts of the test host `rack1-a`, with a kubelet, SR-IOV, bonds and NVMe.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::kubelet::stop_kubelet;
use common::{findings_by_id, host, report, run_agent_on, stdout};
use serde_json::{Value, json};

#[test]
fn every_group_of_facts_is_reported() {
    let node = report(&host::rack1_a());
    let capabilities = &node["status"]["capabilities"];
    let expect = |pointer: &str, value: Value| {
        assert_eq!(capabilities.pointer(pointer), Some(&value), "{pointer}");
    };
    assert_eq!(node["metadata"]["name"], "rack1-a");
    expect("/cpu/sockets", json!(2));
    expect("/cpu/cores", json!(48));
    expect("/cpu/threads", json!(96));
    expect("/cpu/offline", json!(""));
    expect("/cpu/nohzFull", json!(""));
    expect("/cpu/microcode", json!("0xa0011d5"));
    expect("/cpu/hybrid", json!(false));
    expect("/kvm/nested", json!(true));
    expect("/kvm/secondLevelTranslation", json!(true));
    expect("/kvm/interruptVirtualization", json!(false));
    expect("/kvm/confidential", json!(["SEV", "SEV-ES"]));
    expect(
        "/memory/ksm",
        json!({"running": false, "owner": "Nobody", "advisor": "None", "smartScan": true, "mergeAcrossNodes": true}),
    );
    expect("/memory/transparentHugepages", json!("Madvise"));
    expect("/iommu", json!({"enabled": true, "groups": 83, "firmwareTable": "IVRS"}));
    expect("/cgroup/version", json!(2));
    expect("/machine/hypervisor", json!("None"));
    expect(
        "/kubelet",
        json!({
            "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": ["full-pcpus-only"],
            "topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container",
            "memoryManagerPolicy": "None", "reservedSystemCPUs": "0,24,48,72", "allocatableReservation": "100Mi",
            "startedWith": {"current": true}
        }),
    );
}

#[test]
fn links_have_masters_and_zones() {
    let node = report(&host::rack1_a());
    let uplinks = node["status"]["capabilities"]["uplinks"].as_array().unwrap().clone();
    let by_name = |name: &str| uplinks.iter().find(|link| link["name"] == name).unwrap().clone();
    assert_eq!(
        by_name("ens1f0np0"),
        json!({
            "name": "ens1f0np0", "kind": "Physical", "mac": "b8:ce:f6:00:00:02", "driver": "mlx5_core",
            "pciAddress": "0000:41:00.0", "iommuGroup": 0, "zone": 0, "speedMbps": 25000, "mtu": 9000, "state": "Up",
            "bond": "bond0", "defaultRoute": true, "sriov": {"total": 16, "configured": 8, "inUse": 3}
        })
    );
    assert_eq!(by_name("bond0")["kind"], "Bond");
    assert_eq!(by_name("bond0")["defaultRoute"], true);
    assert_eq!(by_name("ens5f0")["defaultRoute"], false);
    assert_eq!(
        node["status"]["capabilities"]["links"],
        json!([{"name": "bond0.10", "kind": "Vlan", "mtu": 1500, "state": "Up", "parent": "bond0",
                "vlan": 10, "defaultRoute": true}])
    );
}

#[test]
fn used_and_unused_drives_are_distinguished() {
    let node = report(&host::rack1_a());
    let nvme = &node["status"]["capabilities"]["nvme"];
    assert_eq!(nvme[0]["inUse"], true);
    assert_eq!(nvme[0]["users"], json!(["partitions: 2", "nvme0n1p2 mounted on /"]));
    assert_eq!(nvme[1]["inUse"], false);
    assert_eq!(nvme[1]["zone"], 1);
    assert_eq!(nvme[1]["model"], "SAMSUNG MZQL21T9HCJR-00A07");
    assert_eq!(nvme[1]["size"], "1875374424Ki");
}

#[test]
fn zones_have_pinnable_and_pinned_cpus() {
    let node = report(&host::rack1_a());
    let zone = &node["status"]["zones"][0];
    assert_eq!(zone["reservedCPUs"], "0,48");
    assert_eq!(zone["pinnableCPUs"], "1-23,49-71");
    assert_eq!(zone["pinnedCPUs"], "1-4,49-52");
    assert_eq!(
        zone["hugepages"][0],
        json!({"size": "2Mi", "total": 4096, "free": 3072, "surplus": 0})
    );
    assert_eq!(
        node["status"]["allocations"],
        json!([{"podUID": "7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e", "cpus": "1-4,49-52", "zones": [0],
                "containers": [{"name": "compute", "cpus": "1-4,49-52"}]}])
    );
}

/// The Memory Manager of the kubelet does not release the memory of an ended pod until the kubelet admits another
/// pod.
#[test]
fn memory_of_a_pod_without_a_control_group_is_reported() {
    let running = "7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e";
    let tree = host::rack1_a();
    tree.write_file(
        "var/lib/kubelet/memory_manager_state",
        r#"{"policyName":"Static","machineState":{},"entries":{"ended":{"compute":[{"numaAffinity":[0],"type":"memory",
            "size":1073741824}]}}}"#,
    );
    let has_control_group = |uid: &str| {
        let node = report(&tree);
        let mut all = node["status"]["allocations"].as_array().unwrap().iter();
        all.find(|one| one["podUID"] == uid).unwrap()["hasControlGroup"].clone()
    };
    assert_eq!(
        has_control_group("ended"),
        Value::Null,
        "without a folder of control groups, the value should be unknown"
    );
    let group = format!("kubepods-pod{}.slice", running.replace('-', "_"));
    tree.create_folder(&format!("sys/fs/cgroup/kubepods.slice/{group}"));
    assert_eq!(
        has_control_group("ended"),
        Value::Null,
        "with an unknown uptime, the value should be unknown"
    );
    // The kubelet was started 42 s after the boot, and the host has now run for 101.99 s.
    tree.write_file("proc/uptime", "101.99 200.00\n");
    assert_eq!(
        has_control_group("ended"),
        Value::Null,
        "soon after its start, the kubelet may not have admitted its first pods"
    );
    tree.write_file("proc/uptime", "102.00 200.00\n");
    assert_eq!(has_control_group("ended"), json!(false));
    assert_eq!(has_control_group(running), json!(true));
    stop_kubelet(&tree);
    assert_eq!(
        has_control_group("ended"),
        Value::Null,
        "without a kubelet, the value should be unknown"
    );
}

#[test]
fn yaml_and_json_describe_the_same_object() {
    let tree = host::rack1_a();
    let yaml = stdout(&run_agent_on(&tree, &["report", "-o", "yaml"]));
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(from_yaml, report(&tree));
    let node: berth_api::InfraNode = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(serde_json::to_value(node).unwrap(), from_yaml);
}

#[test]
fn captured_host_without_problems_fails_no_check() {
    let tree = host::rack1_a();
    let output = run_agent_on(&tree, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    for (id, finding) in findings_by_id(&tree) {
        assert_ne!(finding["status"], "FAIL", "{id}: {finding}");
        let judged = finding["status"] == "WARN";
        assert_eq!(finding.get("remedy").is_some(), judged, "{id}: {finding}");
        assert!(!judged || !finding["evidence"].as_array().unwrap().is_empty(), "{id}: {finding}");
    }
}

#[test]
fn a_kubelet_that_would_not_start_again_fails_with_a_remedy() {
    let tree = host::rack1_a();
    tree.write_file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
    );
    assert_eq!(run_agent_on(&tree, &["check"]).status.code(), Some(1));
    let finding = &findings_by_id(&tree)["kubelet.cpu-state"];
    assert_eq!(finding["status"], "FAIL");
    assert!(
        finding["remedy"].as_str().unwrap().contains("rm -f /var/lib/kubelet/cpu_manager_state")
    );
}

#[test]
fn kubelet_flags_override_its_files() {
    let tree = host::rack1_a();
    tree.write_file(
        "proc/1412/cmdline",
        "/usr/bin/kubelet\0--config\0/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/kubelet.d\0\
         --topology-manager-scope=pod\0",
    )
    .write_file("etc/kubernetes/kubelet.d/20-b.conf", "memoryManagerPolicy: Static\n")
    .write_file("etc/kubernetes/kubelet.d/10-a.conf", "memoryManagerPolicy: None\ntopologyManagerScope: container\n")
    .write_file("etc/kubernetes/kubelet.d/90.conf.bak", "cpuManagerPolicy: none\n");
    let kubelet = report(&tree)["status"]["capabilities"]["kubelet"].clone();
    assert_eq!(kubelet["memoryManagerPolicy"], "Static");
    assert_eq!(kubelet["topologyManagerScope"], "pod");
    assert_eq!(kubelet["cpuManagerPolicy"], "static");
}

fn unknown_fact(node: &Value, path: &str) -> Option<Value> {
    let facts = node["status"]["unknown"].as_array().unwrap();
    facts.iter().find(|fact| fact["path"] == path).cloned()
}

/// Checks that the configuration is reported as unknown if only a part of it can be read: a guess would fail checks
/// on healthy hosts.
#[test]
fn a_configuration_that_cannot_be_read_completely_is_unknown() {
    let break_one: [fn(&common::Tree); 4] = [
        |tree| drop(std::fs::remove_file(tree.path().join("var/lib/kubelet/config.yaml"))),
        |tree| _ = tree.write_file("var/lib/kubelet/config.yaml", "cpuManagerPolicy: ["),
        |tree| drop(std::fs::remove_file(tree.path().join("proc/1412/cmdline"))),
        |tree| _ = tree.write_file("proc/1412/cmdline", "kubelet\0--config-dir=/nowhere\0"),
    ];
    for damage in break_one {
        let tree = host::rack1_a();
        damage(&tree);
        let node = report(&tree);
        assert!(node["status"]["capabilities"].get("kubelet").is_none());
        assert!(node["status"]["zones"][0].get("pinnableCPUs").is_none());
        assert!(unknown_fact(&node, "capabilities.kubelet").is_some());
        let findings = findings_by_id(&tree);
        for id in ["kubelet.cpu-state", "kubelet.policies", "kubelet.swap", "kubelet.reserved"] {
            assert_eq!(findings[id]["status"], "SKIP", "{id}");
        }
    }
}

#[test]
fn kubelet_inside_k3s_has_unknown_flags() {
    let tree = host::rack1_a();
    tree.write_file("proc/1412/comm", "k3s-server\n");
    let fact = unknown_fact(&report(&tree), "capabilities.kubelet").unwrap();
    assert!(fact["message"].as_str().unwrap().contains("k3s-server"), "{fact}");
}

#[test]
fn a_kubelet_that_does_not_run_is_read_from_its_files_and_causes_only_warnings() {
    let tree = host::rack1_a();
    tree.write_file("proc/1412/comm", "sleep\n")
        .write_file("proc/2/comm", "kthreadd\n")
        .write_file("etc/default/kubelet", "KUBELET_EXTRA_ARGS=\"--cpu-manager-policy=none\"\n")
        .write_file("var/lib/kubelet/config.yaml.d/10/deep.conf", "topologyManagerScope: pod\n");
    let kubelet = report(&tree)["status"]["capabilities"]["kubelet"].clone();
    assert_eq!(kubelet["cpuManagerPolicy"], "none");
    assert_eq!(kubelet["topologyManagerScope"], "pod");
    assert_eq!(findings_by_id(&tree)["kubelet.cpu-state"]["status"], "WARN");
}

#[test]
fn checkpoints_with_huge_numbers_are_read() {
    let tree = host::rack1_a();
    let block = r#"{"numaAffinity":null,"type":"hugepages-64Ki","size":18446744073709551615}"#;
    let entries = vec![block; 70_000].join(",");
    tree.write_file(
        "var/lib/kubelet/memory_manager_state",
        format!(
            r#"{{"policyName":"Static","machineState":{{"0":{{"cells":null,"memoryMap":null}}}},"entries":{{"uid":{{"c":[{entries}]}}}}}}"#
        ),
    );
    let allocations = report(&tree)["status"]["allocations"].clone();
    assert_eq!(allocations.as_array().unwrap().len(), 2);
}

#[test]
fn virtual_functions_are_not_uplinks_and_every_physical_function_is_listed() {
    let tree = host::rack1_a();
    for number in 0..8 {
        tree.create_link(
            &format!("sys/class/net/v{number}"),
            &format!(
                "../../devices/pci0000:40/0000:41:{:02x}.{}/net/v{number}",
                (number + 2) / 8,
                (number + 2) % 8
            ),
        );
    }
    let function = "sys/devices/pci0000:00/0000:00:0b.0";
    tree.write_file(&format!("{function}/class"), "0x0b4000\n")
        .write_file(&format!("{function}/sriov_totalvfs"), "16\n")
        .create_link(
            "sys/bus/pci/devices/0000:00:0b.0",
            "../../../devices/pci0000:00/0000:00:0b.0",
        );
    let node = report(&tree);
    let capabilities = &node["status"]["capabilities"];
    assert_eq!(capabilities["uplinks"].as_array().unwrap().len(), 4);
    let functions = capabilities["sriov"].as_array().unwrap();
    assert_eq!(functions.len(), 4);
    assert_eq!(functions[0]["pciAddress"], "0000:00:0b.0");
    assert_eq!((&functions[0]["total"], &functions[0]["inUse"]), (&json!(16), &json!(0)));
}

#[test]
fn nvme_over_fabrics_volumes_are_not_local_drives() {
    let tree = host::rack1_a();
    tree.write_file("sys/devices/virtual/nvme-fabrics/ctl/nvme9/nvme9n1/size", "2048\n")
        .create_link(
            "sys/class/block/nvme9n1",
            "../../devices/virtual/nvme-fabrics/ctl/nvme9/nvme9n1",
        )
        .write_file("sys/class/nvme/nvme9/transport", "tcp\n");
    assert_eq!(report(&tree)["status"]["capabilities"]["nvme"].as_array().unwrap().len(), 2);
}

#[test]
fn disk_with_two_paths_is_counted_once() {
    let tree = host::rack1_a();
    let total = |tree: &common::Tree| findings_by_id(tree)["host.storage"]["message"].clone();
    let before = total(&tree);
    for (name, hidden, id) in [("nvme0c0n1", "1", "a"), ("sda", "0", "b"), ("sdb", "0", "b")] {
        let disk = format!("sys/devices/x/{name}");
        tree.write_file(&format!("{disk}/size"), "1000000000\n")
            .write_file(&format!("{disk}/removable"), "0\n")
            .write_file(&format!("{disk}/hidden"), hidden)
            .write_file(&format!("{disk}/wwid"), id)
            .create_link(&format!("{disk}/device"), "..")
            .create_link(&format!("sys/class/block/{name}"), &format!("../../devices/x/{name}"))
            .create_link(&format!("sys/block/{name}"), &format!("../devices/x/{name}"));
    }
    assert_eq!(before, "3.5 TiB on 2 disks");
    assert_eq!(total(&tree), "4 TiB on 3 disks");
}

#[test]
fn control_characters_of_firmware_texts_are_escaped() {
    let tree = host::rack1_a();
    tree.write_file("sys/class/dmi/id/product_name", "evil\x1b]0;title\x07\nproduct");
    let table = stdout(&run_agent_on(&tree, &["report"]));
    assert!(!table.contains('\x1b') && !table.contains('\x07'), "{table:?}");
}

#[test]
fn facts_that_a_container_or_capture_hides_are_unknown() {
    let tree = host::rack1_a();
    std::fs::remove_dir_all(tree.path().join("dev")).unwrap();
    let node = report(&tree);
    let kvm = &node["status"]["capabilities"]["kvm"];
    for (field, path) in
        [("tun", "kvm.tun"), ("vhostNet", "kvm.vhostNet"), ("confidential", "kvm.confidential")]
    {
        assert!(kvm.get(field).is_none(), "{field}");
        assert!(unknown_fact(&node, &format!("capabilities.{path}")).is_some(), "{path}");
    }
    assert_eq!(findings_by_id(&tree)["kvm.tun"]["status"], "SKIP");
}

#[test]
fn damaged_checkpoint_fails_the_check() {
    for damage in ["", "{\"policyName\":\"static\",\"defaultCpuSet\""] {
        let tree = host::rack1_a();
        tree.write_file("var/lib/kubelet/cpu_manager_state", damage);
        let finding = &findings_by_id(&tree)["kubelet.cpu-state"];
        assert_eq!(finding["status"], "FAIL", "{finding}");
        assert!(finding["message"].as_str().unwrap().contains("checkpoint is damaged"));
    }
}

#[test]
fn invalid_kubelet_value_fails_one_check() {
    let config = "kind: KubeletConfiguration\nreservedSystemCPUs: \"0\"\n";
    for value in
        ["cpuManagerPolicy: Static\n", "reservedSystemCPUs: 0-x\n", "topologyManagerScope: [\n"]
    {
        let tree = host::rack1_a();
        tree.write_file("etc/kubernetes/d/10.conf", value)
            .write_file("var/lib/kubelet/config.yaml", config)
            .write_file(
                "proc/1412/cmdline",
                "kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/d\0",
            );
        let findings = findings_by_id(&tree);
        let failed: Vec<&String> = findings
            .iter()
            .filter(|(_, finding)| finding["status"] == "FAIL")
            .map(|(id, _)| id)
            .collect();
        assert_eq!(failed, ["kubelet.config"], "{value}");
    }
}

#[test]
fn the_node_has_the_name_that_the_kubelet_uses() {
    let tree = host::rack1_a();
    tree.write_file("proc/1412/cmdline", "kubelet\0--hostname-override=node-17\0");
    assert_eq!(report(&tree)["metadata"]["name"], "node-17");
    tree.write_file("proc/1412/cmdline", "kubelet\0")
        .write_file("proc/sys/kernel/hostname", "Rack_1\n");
    let node = report(&tree);
    assert_eq!(node["metadata"]["name"], "unknown-host");
    assert!(unknown_fact(&node, "metadata.name").is_some());
}

#[test]
fn reserved_memory_must_add_up_even_without_a_checkpoint() {
    let with = |memory: &str| {
        let tree = host::rack1_a();
        tree.write_file(
            "var/lib/kubelet/config.yaml",
            format!(
                "memoryManagerPolicy: Static\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n\
                 kubeReserved: {{memory: 1Gi}}\nreservedMemory: [{{numaNode: 0, limits: {{memory: {memory}}}}}]\n"
            ),
        );
        findings_by_id(&tree)["kubelet.reserved-memory"].clone()
    };
    assert_eq!(with("1124Mi")["status"], "PASS");
    let short = with("1Gi");
    assert_eq!(short["status"], "FAIL");
    assert!(
        short["message"].as_str().unwrap().contains("adds up to 1Gi, but 1124Mi is reserved"),
        "{short}"
    );
}
