//! Facts of the made-up host `rack1-a`, with a kubelet, SR-IOV, bonds and NVMe.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{agent_on, findings, host, report, stdout};
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
            "memoryManagerPolicy": "None", "reservedSystemCPUs": "0,24,48,72", "startedWith": {"current": true}
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

#[test]
fn yaml_and_json_are_one_object() {
    let tree = host::rack1_a();
    let yaml = stdout(&agent_on(&tree, &["report", "-o", "yaml"]));
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(from_yaml, report(&tree));
    let node: berth_api::InfraNode = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(serde_json::to_value(node).unwrap(), from_yaml);
}

#[test]
fn a_captured_host_without_problems_fails_no_check() {
    let tree = host::rack1_a();
    let output = agent_on(&tree, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    for (id, finding) in findings(&tree) {
        assert_ne!(finding["status"], "FAIL", "{id}: {finding}");
        let judged = finding["status"] == "WARN";
        assert_eq!(finding.get("remedy").is_some(), judged, "{id}: {finding}");
        assert!(!judged || !finding["evidence"].as_array().unwrap().is_empty(), "{id}: {finding}");
    }
}

#[test]
fn a_kubelet_that_would_not_start_again_fails_with_a_remedy() {
    let tree = host::rack1_a();
    tree.file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
    );
    assert_eq!(agent_on(&tree, &["check"]).status.code(), Some(1));
    let finding = &findings(&tree)["kubelet.cpu-state"];
    assert_eq!(finding["status"], "FAIL");
    assert!(
        finding["remedy"].as_str().unwrap().contains("rm -f /var/lib/kubelet/cpu_manager_state")
    );
}

#[test]
fn the_command_line_of_the_kubelet_wins_over_its_files() {
    let tree = host::rack1_a();
    tree.file(
        "proc/1412/cmdline",
        "/usr/bin/kubelet\0--config\0/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/kubelet.d\0\
         --topology-manager-scope=pod\0",
    )
    .file("etc/kubernetes/kubelet.d/20-b.conf", "memoryManagerPolicy: Static\n")
    .file("etc/kubernetes/kubelet.d/10-a.conf", "memoryManagerPolicy: None\ntopologyManagerScope: container\n")
    .file("etc/kubernetes/kubelet.d/90.conf.bak", "cpuManagerPolicy: none\n");
    let kubelet = report(&tree)["status"]["capabilities"]["kubelet"].clone();
    assert_eq!(kubelet["memoryManagerPolicy"], "Static");
    assert_eq!(kubelet["topologyManagerScope"], "pod");
    assert_eq!(kubelet["cpuManagerPolicy"], "static");
}

fn unknown(node: &Value, path: &str) -> Option<Value> {
    let facts = node["status"]["unknown"].as_array().unwrap();
    facts.iter().find(|fact| fact["path"] == path).cloned()
}

/// Checks that a partly readable configuration is unknown: a guess would fail checks on healthy hosts.
#[test]
fn a_configuration_that_cannot_be_read_completely_is_unknown() {
    let break_one: [fn(&common::Tree); 4] = [
        |tree| drop(std::fs::remove_file(tree.path().join("var/lib/kubelet/config.yaml"))),
        |tree| _ = tree.file("var/lib/kubelet/config.yaml", "cpuManagerPolicy: ["),
        |tree| drop(std::fs::remove_file(tree.path().join("proc/1412/cmdline"))),
        |tree| _ = tree.file("proc/1412/cmdline", "kubelet\0--config-dir=/nowhere\0"),
    ];
    for break_it in break_one {
        let tree = host::rack1_a();
        break_it(&tree);
        let node = report(&tree);
        assert!(node["status"]["capabilities"].get("kubelet").is_none());
        assert!(node["status"]["zones"][0].get("pinnableCPUs").is_none());
        assert!(unknown(&node, "capabilities.kubelet").is_some());
        let findings = findings(&tree);
        for id in ["kubelet.cpu-state", "kubelet.policies", "kubelet.swap", "kubelet.reserved"] {
            assert_eq!(findings[id]["status"], "SKIP", "{id}");
        }
    }
}

#[test]
fn a_kubelet_inside_k3s_hides_its_flags_and_stale_files_are_ignored() {
    let tree = host::rack1_a();
    tree.file("proc/1412/comm", "k3s-server\n");
    let fact = unknown(&report(&tree), "capabilities.kubelet").unwrap();
    assert!(fact["message"].as_str().unwrap().contains("k3s-server"), "{fact}");
}

#[test]
fn a_kubelet_that_does_not_run_is_read_from_its_files_and_causes_only_warnings() {
    let tree = host::rack1_a();
    tree.file("proc/1412/comm", "sleep\n")
        .file("proc/2/comm", "kthreadd\n")
        .file("etc/default/kubelet", "KUBELET_EXTRA_ARGS=\"--cpu-manager-policy=none\"\n")
        .file("var/lib/kubelet/config.yaml.d/10/deep.conf", "topologyManagerScope: pod\n");
    let kubelet = report(&tree)["status"]["capabilities"]["kubelet"].clone();
    assert_eq!(kubelet["cpuManagerPolicy"], "none");
    assert_eq!(kubelet["topologyManagerScope"], "pod");
    assert_eq!(findings(&tree)["kubelet.cpu-state"]["status"], "WARN");
}

#[test]
fn checkpoints_with_huge_numbers_are_read() {
    let tree = host::rack1_a();
    let block = r#"{"numaAffinity":null,"type":"hugepages-64Ki","size":18446744073709551615}"#;
    let entries = vec![block; 70_000].join(",");
    tree.file(
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
        tree.link(
            &format!("sys/class/net/v{number}"),
            &format!(
                "../../devices/pci0000:40/0000:41:{:02x}.{}/net/v{number}",
                (number + 2) / 8,
                (number + 2) % 8
            ),
        );
    }
    let function = "sys/devices/pci0000:00/0000:00:0b.0";
    tree.file(&format!("{function}/class"), "0x0b4000\n")
        .file(&format!("{function}/sriov_totalvfs"), "16\n")
        .link("sys/bus/pci/devices/0000:00:0b.0", "../../../devices/pci0000:00/0000:00:0b.0");
    let node = report(&tree);
    let capabilities = &node["status"]["capabilities"];
    assert_eq!(capabilities["uplinks"].as_array().unwrap().len(), 4);
    let functions = capabilities["sriov"].as_array().unwrap();
    assert_eq!(functions.len(), 4);
    assert_eq!(functions[0]["pciAddress"], "0000:00:0b.0");
    assert_eq!((&functions[0]["total"], &functions[0]["inUse"]), (&json!(16), &json!(0)));
}

#[test]
fn volumes_of_a_fabric_are_not_drives_of_this_host() {
    let tree = host::rack1_a();
    tree.file("sys/devices/virtual/nvme-fabrics/ctl/nvme9/nvme9n1/size", "2048\n")
        .link("sys/class/block/nvme9n1", "../../devices/virtual/nvme-fabrics/ctl/nvme9/nvme9n1")
        .file("sys/class/nvme/nvme9/transport", "tcp\n");
    assert_eq!(report(&tree)["status"]["capabilities"]["nvme"].as_array().unwrap().len(), 2);
}

#[test]
fn disks_reached_twice_count_once() {
    let tree = host::rack1_a();
    let total = |tree: &common::Tree| findings(tree)["host.storage"]["message"].clone();
    let before = total(&tree);
    for (name, hidden, id) in [("nvme0c0n1", "1", "a"), ("sda", "0", "b"), ("sdb", "0", "b")] {
        let disk = format!("sys/devices/x/{name}");
        tree.file(&format!("{disk}/size"), "1000000000\n")
            .file(&format!("{disk}/removable"), "0\n")
            .file(&format!("{disk}/hidden"), hidden)
            .file(&format!("{disk}/wwid"), id)
            .link(&format!("{disk}/device"), "..")
            .link(&format!("sys/class/block/{name}"), &format!("../../devices/x/{name}"))
            .link(&format!("sys/block/{name}"), &format!("../devices/x/{name}"));
    }
    assert_eq!(before, "3.5 TiB on 2 disks");
    assert_eq!(total(&tree), "4 TiB on 3 disks");
}

#[test]
fn control_characters_of_firmware_texts_are_escaped() {
    let tree = host::rack1_a();
    tree.file("sys/class/dmi/id/product_name", "evil\x1b]0;title\x07\nproduct");
    let table = stdout(&agent_on(&tree, &["report"]));
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
        assert!(unknown(&node, &format!("capabilities.{path}")).is_some(), "{path}");
    }
    assert_eq!(findings(&tree)["kvm.tun"]["status"], "SKIP");
}

#[test]
fn a_damaged_checkpoint_fails_as_the_kubelet_would() {
    for damage in ["", "{\"policyName\":\"static\",\"defaultCpuSet\""] {
        let tree = host::rack1_a();
        tree.file("var/lib/kubelet/cpu_manager_state", damage);
        let finding = &findings(&tree)["kubelet.cpu-state"];
        assert_eq!(finding["status"], "FAIL", "{finding}");
        assert!(finding["message"].as_str().unwrap().contains("checkpoint is damaged"));
    }
}

#[test]
fn a_value_that_the_kubelet_does_not_know_is_the_only_failure() {
    let config = "kind: KubeletConfiguration\nreservedSystemCPUs: \"0\"\n";
    for value in
        ["cpuManagerPolicy: Static\n", "reservedSystemCPUs: 0-x\n", "topologyManagerScope: [\n"]
    {
        let tree = host::rack1_a();
        tree.file("etc/kubernetes/d/10.conf", value)
            .file("var/lib/kubelet/config.yaml", config)
            .file(
                "proc/1412/cmdline",
                "kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/d\0",
            );
        let findings = findings(&tree);
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
    tree.file("proc/1412/cmdline", "kubelet\0--hostname-override=node-17\0");
    assert_eq!(report(&tree)["metadata"]["name"], "node-17");
    tree.file("proc/1412/cmdline", "kubelet\0").file("proc/sys/kernel/hostname", "Rack_1\n");
    let node = report(&tree);
    assert_eq!(node["metadata"]["name"], "unknown-host");
    assert!(unknown(&node, "metadata.name").is_some());
}

#[test]
fn reserved_memory_must_add_up_even_without_a_checkpoint() {
    let with = |memory: &str| {
        let tree = host::rack1_a();
        tree.file(
            "var/lib/kubelet/config.yaml",
            format!(
                "memoryManagerPolicy: Static\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n\
                 kubeReserved: {{memory: 1Gi}}\nreservedMemory: [{{numaNode: 0, limits: {{memory: {memory}}}}}]\n"
            ),
        );
        findings(&tree)["kubelet.reserved-memory"].clone()
    };
    assert_eq!(with("1124Mi")["status"], "PASS");
    let short = with("1Gi");
    assert_eq!(short["status"], "FAIL");
    assert!(
        short["message"].as_str().unwrap().contains("adds up to 1Gi, but 1124Mi is reserved"),
        "{short}"
    );
}
