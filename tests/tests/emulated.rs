//! Tests of `report` and `check` on an emulated two-socket host with its own kernel: bonds, VLANs, zones, huge
//! pages, KVM, IOMMU and NVMe, compared with the output of lscpu, numactl and virt-host-validate on the same host, and
//! with the links that the test creates.
//!
//! The tests are slow (QEMU without KVM), so `make hosts` runs them, and `make test` does not.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use berth_tests::host::{Host, HostOptions};
use berth_tests::lscpu;
use serde_json::{Value, json};

fn read_report(host: &mut Host) -> Value {
    serde_json::from_str(&host.run_checked("berth-agent report -o json 2>/dev/null").unwrap())
        .unwrap()
}

fn read_finding(host: &mut Host, id: &str) -> Value {
    let result = host.run(&format!("berth-agent check {id} -o json 2>/dev/null")).unwrap();
    let findings: Value = serde_json::from_str(&result.output).unwrap();
    findings["checks"][0].clone()
}

#[test]
#[ignore = "slow: make hosts"]
fn emulated_host_is_reported() {
    let agent = berth_tests::program("berth-agent");
    let mut host =
        Host::boot(&HostOptions { agent: Some(&agent), ..HostOptions::default() }).unwrap();
    let host = &mut host;
    if std::env::var_os("BERTH_UPDATE").is_some() {
        update_fleet_example(host);
    }
    // Under emulation, udev still loads modules after the boot has finished.
    host.run_checked("udevadm settle --timeout 100").unwrap();
    check_processors_and_zones(host);
    check_virtualisation(host);
    check_memory(host);
    check_links(host);
    check_drives(host);
    check_unprivileged_user(host);
    check_reports_are_identical(host);
}

/// Writes the report of this host, directly after the boot, to `examples/fleet`: BERTH_UPDATE=1 make hosts.
fn update_fleet_example(host: &mut Host) {
    host.run_checked("udevadm settle --timeout 100; hostname lab-a").unwrap();
    let report = host.run_checked("berth-agent report -o yaml 2>/dev/null").unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/fleet/lab-a.yaml");
    std::fs::write(file, report).unwrap();
}

fn check_processors_and_zones(host: &mut Host) {
    host.run_checked("echo 0 > /sys/devices/system/cpu/cpu3/online").unwrap();
    let node = read_report(host);
    let cpu = &node["status"]["capabilities"]["cpu"];
    let theirs = lscpu::read_counts(host).unwrap();
    assert_eq!(cpu["threads"], theirs.threads);
    assert_eq!((&cpu["cores"], &cpu["sockets"]), (&json!(theirs.cores), &json!(theirs.sockets)));
    assert_eq!((&cpu["online"], &cpu["offline"]), (&json!("0-2"), &json!("3")));
    assert_eq!(read_finding(host, "cpu.online")["status"], "WARN");

    // Example of the output: `node 0 cpus: 0 1 2 3`, `node 0 size: 960 MB`
    let numactl = host.run_checked("numactl -H").unwrap();
    for zone in node["status"]["zones"].as_array().unwrap() {
        let value = |what: &str| {
            let start = format!("node {} {what}: ", zone["id"]);
            numactl.lines().find_map(|line| line.strip_prefix(&start)).unwrap().trim().to_owned()
        };
        let cpus: String = value("cpus").replace(' ', ",");
        let ours: berth_api::CpuSet = zone["cpus"].as_str().unwrap().parse().unwrap();
        assert_eq!(ours, cpus.parse().unwrap());
        let memory: berth_api::Bytes = zone["memory"].as_str().unwrap().parse().unwrap();
        assert_eq!(format!("{} MB", memory.0 >> 20), value("size"));
    }
    host.run_checked("echo 1 > /sys/devices/system/cpu/cpu3/online").unwrap();
}

fn check_virtualisation(host: &mut Host) {
    let state =
        |host: &mut Host| read_report(host)["status"]["capabilities"]["kvm"]["state"].clone();
    host.run_checked("modprobe -r kvm_amd; true").unwrap();
    assert_eq!(state(host), "ModuleNotLoaded");
    let device = read_finding(host, "kvm.device");
    assert_eq!(device["status"], "FAIL");
    // The test runs the remedy as an operator would paste it.
    let remedy = device["remedy"].as_str().unwrap().to_owned();
    host.run_checked(&remedy).unwrap();
    assert_eq!(state(host), "Ready");
    host.run_checked("modprobe -r kvm_amd && modprobe kvm_amd nested=0").unwrap();
    assert_eq!(read_report(host)["status"]["capabilities"]["kvm"]["nested"], false);
    host.run_checked("modprobe -r kvm_amd && modprobe kvm_amd nested=1").unwrap();
    let kvm = read_report(host)["status"]["capabilities"]["kvm"].clone();
    assert_eq!((&kvm["nested"], &kvm["apiVersion"]), (&json!(true), &json!(12)));

    host.run_checked("modprobe -a vhost_net tun").unwrap();
    // The IOMMU is not compared: this host has an AMD processor with an Intel IOMMU, which does not exist in hardware.
    // Newer releases of virt-host-validate write paths in quotation marks.
    let theirs = host.run("virt-host-validate qemu").unwrap().output.replace('\'', "");
    let findings = host.run("berth-agent check kvm -o json 2>/dev/null").unwrap().output;
    let findings: Value = serde_json::from_str(&findings).unwrap();
    let findings = findings["checks"].as_array().unwrap().clone();
    for (words, id) in [
        ("Checking for hardware virtualization", "kvm.hardware"),
        ("Checking if device /dev/kvm exists", "kvm.device"),
        ("Checking if device /dev/kvm is accessible", "kvm.access"),
        ("Checking if device /dev/vhost-net exists", "kvm.vhost-net"),
        ("Checking if device /dev/net/tun exists", "kvm.tun"),
    ] {
        let line =
            theirs.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{theirs}"));
        let ours = findings.iter().find(|finding| finding["id"] == id).unwrap();
        assert_eq!(ours["status"] == "PASS", line.contains("PASS"), "{id}: {line}");
    }
    // While the module is loaded, each report creates a VM to test KVM. The kernel then interrupts every CPU at once,
    // and emulated CPUs sometimes hang in this interrupt.
    host.run_checked("modprobe -r kvm_amd").unwrap();
}

fn check_memory(host: &mut Host) {
    for (zone, pages) in [(0, 64), (1, 32)] {
        let pool = format!("/sys/devices/system/node/node{zone}/hugepages/hugepages-2048kB");
        host.run_checked(&format!("echo {pages} > {pool}/nr_hugepages")).unwrap();
    }
    let node = read_report(host);
    let total = |zone: usize| node["status"]["zones"][zone]["hugepages"][0]["total"].clone();
    assert_eq!((total(0), total(1)), (json!(64), json!(32)));
    let uneven = read_finding(host, "hugepages.balance");
    assert_eq!(uneven["status"], "WARN");
    host.run_checked(uneven["remedy"].as_str().unwrap()).unwrap();
    assert_eq!(read_finding(host, "hugepages.balance")["status"], "PASS");

    host.run_checked("echo 1 > /sys/kernel/mm/ksm/run").unwrap();
    host.run_checked("modprobe zram && echo 32M > /sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0")
        .unwrap();
    let memory = read_report(host)["status"]["capabilities"]["memory"].clone();
    assert_eq!((&memory["zram"], &memory["ksm"]["running"]), (&json!(true), &json!(true)));
    assert_eq!(memory["ksm"]["owner"], "Unknown");
    assert_eq!(read_finding(host, "memory.swap-ksm")["status"], "WARN");
    host.run_checked(
        "swapoff /dev/zram0; echo 2 > /sys/kernel/mm/ksm/run; echo 0 > /sys/kernel/mm/ksm/run",
    )
    .unwrap();
    assert_eq!(read_report(host)["status"]["capabilities"]["memory"]["ksm"]["owner"], "Nobody");
}

/// Creates a bond of both cards, the default route on a VLAN of the bond, and a VLAN-aware bridge on another VLAN.
fn check_links(host: &mut Host) {
    host.run_checked(
        "modprobe bonding max_bonds=0 && modprobe 8021q && ip link add bond0 type bond mode active-backup &&
         for n in /sys/class/net/en*; do ip link set ${n##*/} down; ip link set ${n##*/} master bond0; done &&
         ip link set bond0 up && ip link add link bond0 name bond0.10 type vlan id 10 &&
         ip addr add 10.0.0.2/24 dev bond0.10 && ip link set bond0.10 up &&
         ip route add default via 10.0.0.1 &&
         ip link add br-x type bridge vlan_filtering 1 && ip link add link bond0 name bond0.20 type vlan id 20 &&
         ip link set bond0.20 master br-x &&
         ip link add br-t type bridge && ip link set br-t alias berth:tenant",
    )
    .unwrap();
    host.run_checked("for i in $(seq 20); do grep -q up /sys/class/net/bond0/operstate && break; sleep 0.5; done").unwrap();
    let node = read_report(host);
    let capabilities = &node["status"]["capabilities"];
    let uplinks = capabilities["uplinks"].as_array().unwrap();
    assert_eq!(uplinks.len(), 3);
    for link in uplinks {
        assert_eq!(link["defaultRoute"], true, "{link}");
        let is_bond = link["kind"] == "Bond";
        assert_eq!(link.get("bond").is_some(), !is_bond, "{link}");
        assert_eq!(link.get("pciAddress").is_some(), !is_bond, "{link}");
    }
    let links = capabilities["links"].as_array().unwrap();
    let named = |name: &str| links.iter().find(|link| link["name"] == name);
    let vlan = named("bond0.10").unwrap();
    assert_eq!(
        (&vlan["vlan"], &vlan["parent"], &vlan["defaultRoute"]),
        (&json!(10), &json!("bond0"), &json!(true))
    );
    assert_eq!(named("bond0.20").unwrap()["master"], "br-x");
    assert_eq!(named("br-x").unwrap()["vlanFiltering"], true);
    assert!(named("br-t").is_none(), "links of Berth must not be listed one by one");

    // The report from a captured copy of the same links must equal the report from the host.
    host.run_checked("mkdir -p /tmp/c/proc /tmp/c/sys/class && cp -a --parents /proc/net/route /tmp/c 2>/dev/null;
        mkdir -p /tmp/c/proc/net/vlan; cat /proc/net/route > /tmp/c/proc/net/route;
        cat /proc/net/vlan/config > /tmp/c/proc/net/vlan/config;
        mkdir -p /tmp/c/sys; cd /sys && tar cf - --ignore-failed-read class/net devices/virtual/net \
        $(find devices/pci* -path '*/net/*' -maxdepth 7 2>/dev/null) 2>/dev/null | tar xf - -C /tmp/c/sys 2>/dev/null; true").unwrap();
    let captured =
        host.run_checked("berth-agent report --root /tmp/c -o json 2>/dev/null").unwrap();
    let captured: Value = serde_json::from_str(&captured).unwrap();
    let captured = captured["status"]["capabilities"]["links"].as_array().unwrap().clone();
    assert_eq!(captured.iter().find(|link| link["name"] == "bond0.10").unwrap(), vlan);
}

fn check_drives(host: &mut Host) {
    let state = |host: &mut Host| {
        let node = read_report(host);
        let drives = node["status"]["capabilities"]["nvme"].as_array().unwrap().clone();
        drives.iter().map(|drive| drive["inUse"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(state(host), [json!(false), json!(false)]);
    host.run_checked("pvcreate -ff -y /dev/nvme1n1 && udevadm settle").unwrap();
    assert_eq!(state(host), [json!(false), json!(true)]);
    host.run_checked("mkfs.ext4 -q /dev/nvme0n1 && mkdir -p /var/lib/kubelet && mount /dev/nvme0n1 /var/lib/kubelet").unwrap();
    assert_eq!(state(host), [json!(true), json!(true)]);
    let paths = read_report(host)["status"]["capabilities"]["directIO"].clone();
    assert_eq!((&paths[0]["filesystem"], &paths[0]["supported"]), (&json!("ext4"), &json!(true)));
    host.run_checked("umount /var/lib/kubelet && mount -t tmpfs none /var/lib/kubelet").unwrap();
    assert_eq!(read_report(host)["status"]["capabilities"]["directIO"][0]["filesystem"], "tmpfs");
}

fn check_unprivileged_user(host: &mut Host) {
    let ours = read_report(host);
    host.run_checked("modprobe kvm_amd && udevadm settle").unwrap();
    let command =
        "setpriv --reuid 65534 --regid 65534 --clear-groups berth-agent report -o json 2>/dev/null";
    let theirs: Value = serde_json::from_str(&host.run_checked(command).unwrap()).unwrap();
    host.run_checked("modprobe -r kvm_amd").unwrap();
    assert_eq!(theirs["status"]["capabilities"]["kvm"]["state"], "NoPermission");
    assert_eq!(theirs["status"]["capabilities"]["cpu"], ours["status"]["capabilities"]["cpu"]);
}

fn check_reports_are_identical(host: &mut Host) {
    host.run_checked("berth-agent report -o yaml > /tmp/a 2>&1; berth-agent report -o yaml > /tmp/b 2>&1; cmp /tmp/a /tmp/b")
        .unwrap();
}
