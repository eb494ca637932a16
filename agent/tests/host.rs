//! The made-up host `rack1-a`, fact by fact: what only a kubelet, SR-IOV, bonds and NVMe bring.

mod common;

use common::{agent_on, findings, host, report, stdout};
use serde_json::{Value, json};

#[test]
fn every_group_of_facts_is_there() {
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
            "memoryManagerPolicy": "None", "reservedSystemCPUs": "0,24,48,72"
        }),
    );
}

#[test]
fn links_know_their_place() {
    let node = report(&host::rack1_a());
    let uplinks = node["status"]["capabilities"]["uplinks"].as_array().unwrap().clone();
    let by_name = |name: &str| uplinks.iter().find(|link| link["name"] == name).unwrap().clone();
    assert_eq!(
        by_name("ens1f0np0"),
        json!({
            "name": "ens1f0np0", "kind": "Physical", "mac": "b8:ce:f6:00:00:02", "driver": "mlx5_core",
            "pciAddress": "0000:41:00.0", "zone": 0, "speedMbps": 25000, "mtu": 9000, "state": "Up",
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
fn drives_in_use_and_free_are_told_apart() {
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
fn zones_say_what_can_be_pinned_and_what_is() {
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
        json!([{"podUID": "7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e", "cpus": "1-4,49-52", "zones": [0]}])
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
fn a_kubelet_that_would_not_start_again_fails_with_the_way_out() {
    let tree = host::rack1_a();
    tree.file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
    );
    assert_eq!(agent_on(&tree, &["check"]).status.code(), Some(1));
    let finding = &findings(&tree)["kubelet.cpu-state"];
    assert_eq!(finding["status"], "FAIL");
    assert!(finding["remedy"].as_str().unwrap().contains("rm /var/lib/kubelet/cpu_manager_state"));
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
