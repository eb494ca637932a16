//! Tests of `plan` on the test host of `common/host.rs`. Each test changes one property of the host.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

mod common;

use common::{Tree, host, run_agent_on, stderr, stdout};
use serde_json::Value;

const LEDGER_FILE: &str = "var/lib/berth/found.json";
const BOOT_ID: &str = "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55";

struct PlanOutput {
    code: i32,
    json: Value,
    stderr: String,
}

impl PlanOutput {
    /// Returns each change as `change: old -> new`, and the reason if the change is blocked.
    fn change_lines(&self) -> Vec<String> {
        let text =
            |change: &Value, name: &str| change[name].as_str().unwrap_or_default().to_owned();
        let line = |change: &Value| {
            let blocked = text(change, "blocked");
            let blocked = if blocked.is_empty() { blocked } else { format!(" BLOCKED {blocked}") };
            let words = ["what", "was", "willBe"].map(|name| text(change, name));
            format!("{}: {} -> {}{blocked}", words[0], words[1], words[2])
        };
        self.json["changes"].as_array().unwrap().iter().map(line).collect()
    }

    fn only_line(&self) -> String {
        let lines = self.change_lines();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines.concat()
    }
}

fn run_plan(tree: &Tree, spec: &str) -> PlanOutput {
    let text = format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n{spec}\n"
    );
    tree.write_file("infranode.yaml", text);
    let manifest = tree.path().join("infranode.yaml");
    let output = run_agent_on(tree, &["plan", "-o", "json", "-f", manifest.to_str().unwrap()]);
    PlanOutput {
        code: output.status.code().unwrap(),
        json: serde_json::from_str(&stdout(&output)).unwrap_or_default(),
        stderr: stderr(&output),
    }
}

fn write_ledger(tree: &Tree, entries: &str) {
    tree.write_file(
        LEDGER_FILE,
        format!(r#"{{"version":1,"bootID":"{BOOT_ID}","entries":{{{entries}}}}}"#),
    );
}

#[test]
fn host_in_the_desired_state_has_an_empty_plan() {
    let tree = host::rack1_a();
    let plan = run_plan(
        &tree,
        "  transparentHugepages: Madvise\n  ksm: {mode: 'Off', mergeAcrossNodes: true, pagesToScan: 100}\n  \
         hugepages: [{size: 2Mi, count: 8192}, {size: 1Gi, zone: 0, count: 16}]\n  \
         cpu: {reserved: {coresPerZone: 2}, kubelet: Ignore}",
    );
    assert_eq!((plan.code, plan.change_lines()), (0, vec![]), "{}", plan.stderr);
}

#[test]
fn sample_changes_are_ordered() {
    let tree = host::rack1_a();
    let plan = run_plan(
        &tree,
        "  transparentHugepages: Never\n  ksm: {mode: Auto}\n  \
         hugepages: [{size: 2Mi, count: 9000}, {size: 1Gi, zone: 0, count: 20}, {size: 1Gi, zone: 1, count: 0}]\n  \
         cpu: {reserved: {coresPerZone: 1}, housekeeping: true}",
    );
    let all = "all CPUs -> CPUs 0,24,48,72";
    let masks = "CPUs 0-95 -> CPUs 0,24,48,72";
    assert_eq!(
        plan.change_lines(),
        [
            "transparent hugepages: madvise -> never".to_owned(),
            "hugepages 1Gi zone 1: 16 -> 0".to_owned(),
            "hugepages 1Gi zone 0: 16 -> 20".to_owned(),
            "hugepages 2Mi zone 0: 4096 -> 4500".to_owned(),
            "hugepages 2Mi zone 1: 4096 -> 4500".to_owned(),
            "ksm advisor_mode: none -> scan-time".to_owned(),
            "ksm run: 0 -> 1".to_owned(),
            format!("init.scope AllowedCPUs: {all}"),
            format!("system.slice AllowedCPUs: {all}"),
            format!("user.slice AllowedCPUs: {all}"),
            format!("unbound workqueues: {masks}"),
            format!("new interrupts: {masks}"),
            format!("4 interrupts: {masks}"),
        ]
    );
    assert_eq!(plan.code, 0);
    assert_eq!(plan.json["reservedCPUs"], "0,24,48,72");
}

#[test]
fn pool_is_not_shrunk_below_used_pages() {
    let tree = host::rack1_a();
    let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
    tree.write_file(&format!("{pool}/free_hugepages"), "3072\n");
    let plan_count = |count: u32| {
        run_plan(&tree, &format!("  hugepages: [{{size: 2Mi, zone: 0, count: {count}}}]"))
    };
    assert_eq!(plan_count(1024).only_line(), "hugepages 2Mi zone 0: 4096 -> 1024");
    let blocked = plan_count(1023);
    assert_eq!(blocked.code, 1);
    assert!(
        blocked.only_line().contains("1024 of the 4096 pages are in use"),
        "{}",
        blocked.only_line()
    );
    // The kernel has reserved 4100 pages, and the other zone has fewer free pages, so this zone must provide the
    // remaining pages.
    tree.write_file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4100\n");
    assert!(
        plan_count(1024).only_line().contains("1028 of the 4096"),
        "{}",
        plan_count(1024).only_line()
    );
    // The huge page limit of a pod reserves the pages, although the kernel has reserved none.
    tree.write_file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n").write_file(
        "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/hugetlb.2MB.max",
        format!("{}\n", 8000u64 << 21),
    );
    assert!(
        plan_count(2048).only_line().contains("exceed the pages of this size"),
        "{}",
        plan_count(2048).only_line()
    );
    assert_eq!(plan_count(4000).only_line(), "hugepages 2Mi zone 0: 4096 -> 4000");
}

#[test]
fn memory_reserve_of_the_host_is_kept() {
    let tree = host::rack1_a();
    let grow = |count: u32| {
        run_plan(&tree, &format!("  hugepages: [{{size: 1Gi, zone: 1, count: {count}}}]"))
    };
    let partly = grow(200);
    assert!(
        partly.only_line().starts_with("hugepages 1Gi zone 1: 16 -> 136 of 200"),
        "{}",
        partly.only_line()
    );
    assert_eq!(partly.code, 0);
    tree.write_file(
        "sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal: 264241152 kB\nNode 1 MemFree: 1000 kB\n",
    );
    assert!(
        grow(200).only_line().contains("insufficient memory: zone 1 has 1000 KiB available"),
        "{}",
        grow(200).only_line()
    );
}

/// Tests pages that are in the checkpoint of the Memory Manager: the kubelet refuses to start if the number of
/// pages has changed.
#[test]
fn pages_that_the_kubelet_has_counted_change_only_on_a_drained_node() {
    let tree = host::rack1_a();
    let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    let table = |pages: u64| {
        format!(
            r#"{{"total":{},"systemReserved":0,"allocatable":1,"reserved":0,"free":1}}"#,
            pages << 21
        )
    };
    tree.write_file(
        "var/lib/kubelet/memory_manager_state",
        format!(
            r#"{{"policyName":"Static","machineState":{{"0":{{"memoryMap":{{"hugepages-2Mi":{}}}}}}},"entries":{{}}}}"#,
            table(4300)
        ),
    );
    let plan_count = |count: u32| {
        run_plan(&tree, &format!("  hugepages: [{{size: 2Mi, zone: 0, count: {count}}}]"))
    };
    tree.write_file(pool, "4300\n");
    let blocked = plan_count(4200).only_line();
    assert!(blocked.contains("has recorded 4300 pages of this zone"), "{blocked}");
    let waits = "waiting until the node is drained and its kubelet is stopped: 1 Guaranteed pods are running";
    assert!(blocked.contains(waits), "{blocked}");
    tree.write_file(pool, "4096\n");
    assert_eq!(plan_count(4200).only_line(), "hugepages 2Mi zone 0: 4096 -> 4300");
    // After a reboot the kubelet needs the number of pages in its checkpoint to start, whether or not pods run.
    let restored = plan_count(4300);
    assert_eq!(restored.only_line(), "hugepages 2Mi zone 0: 4096 -> 4300");
    assert!(restored.json["changes"][0]["removes"].is_null());
    tree.write_file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"static","defaultCpuSet":"0-95"}"#,
    );
    tree.write_file(pool, "4300\n");
    let drained = plan_count(4200).only_line();
    assert!(drained.contains("waiting until the kubelet is stopped"), "{drained}");
    assert!(
        drained.contains(
            "systemctl stop kubelet.service; rm -f /var/lib/kubelet/memory_manager_state"
        )
    );
    common::kubelet::stop_kubelet(&tree);
    tree.write_file(pool, "4096\n");
    let drained = plan_count(4200);
    assert_eq!(drained.only_line(), "hugepages 2Mi zone 0: 4096 -> 4200");
    assert_eq!(drained.json["changes"][0]["removes"][0], "/var/lib/kubelet/memory_manager_state");
}

/// Checks two pools of huge pages in one zone: memory that the first pool allocates is not available to the second
/// pool, and memory that the first pool releases is.
#[test]
fn memory_is_not_allocated_twice() {
    let tree = host::rack1_a();
    let both = run_plan(
        &tree,
        "  hugepages: [{size: 1Gi, zone: 1, count: 100}, {size: 2Mi, zone: 1, count: 40000}]",
    );
    assert_eq!(
        both.change_lines(),
        ["hugepages 1Gi zone 1: 16 -> 100", "hugepages 2Mi zone 1: 4096 -> 23019 of 40000"],
    );
    let swapped = run_plan(
        &tree,
        "  hugepages: [{size: 1Gi, zone: 1, count: 0}, {size: 2Mi, zone: 1, count: 70000}]",
    );
    assert_eq!(swapped.change_lines()[1], "hugepages 2Mi zone 1: 4096 -> 70000");
}

/// Tests a misspelt field: `hugepage` may mean `hugepages`, so the plan does not restore the original values of
/// huge pages.
#[test]
fn misspelt_field_does_not_restore_values() {
    let tree = host::rack1_a();
    write_ledger(&tree, r#""hugepages 1Gi zone 0":{"found":"0","set":"16"}"#);
    for spec in [
        "  hugepage: [{size: 1Gi, zone: 0, count: 16}]",
        "  transparentHugepages: Madvise\n  colour: red",
    ] {
        let misspelt = run_plan(&tree, spec);
        assert_eq!((misspelt.code, misspelt.change_lines()), (2, vec![]), "{}", misspelt.stderr);
    }
}

#[test]
fn reserved_cores_are_whole_and_include_cpu_0() {
    let tree = host::rack1_a();
    tree.write_file("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n");
    let reserved = |spec: &str| {
        let plan = run_plan(&tree, &format!("  cpu: {{reserved: {spec}}}"));
        (plan.json["reservedCPUs"].as_str().map(str::to_owned), plan.stderr)
    };
    assert_eq!(reserved("{coresPerZone: 2}").0.unwrap(), "0-1,24-25,48-49,72-73");
    assert_eq!(reserved("{cpus: '3,51'}").0.unwrap(), "3,51");
    for (spec, fault) in [
        (
            "{coresPerZone: 24}",
            "spec.cpu.reserved.coresPerZone: `24`: zone 0 has 24 cores: no core would be left",
        ),
        (
            "{cpus: '0'}",
            "spec.cpu.reserved.cpus: `0`: splits a physical core; with all siblings the CPUs are 0,48",
        ),
        ("{cpus: '0-95'}", "spec.cpu.reserved.cpus: `0-95`: all CPUs are reserved"),
        ("{cpus: '0,200'}", "spec.cpu.reserved.cpus: `0,200`: CPUs 200 are not online"),
        ("{cpus: ''}", "spec.cpu.reserved.cpus: ``: is empty"),
        ("{coresPerZone: 1, cpus: '0,48'}", "spec.cpu.reserved: "),
        ("{}", "spec.cpu.reserved: "),
    ] {
        let (none, fault_text) = reserved(spec);
        assert!(none.is_none() && fault_text.contains(fault), "{spec}: {fault_text}");
    }
    // Isolated cores (`isolcpus`) are not selected as housekeeping CPUs.
    tree.write_file("sys/devices/system/cpu/isolated", "1,49\n");
    assert_eq!(reserved("{coresPerZone: 2}").0.unwrap(), "0,2,24-25,48,50,72-73");
}

#[test]
fn reserved_cpus_of_the_kubelet_are_kept() {
    let tree = host::rack1_a();
    let config = |cpus: &str| {
        let text = format!("kind: KubeletConfiguration\nreservedSystemCPUs: '{cpus}'\n");
        tree.write_file("var/lib/kubelet/config.yaml", text);
        run_plan(&tree, "  cpu: {reserved: {coresPerZone: 1}}").json["reservedCPUs"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(config("0,30,48,78"), "0,30,48,78");
    assert_eq!(
        config("1,30,49,78"),
        "0,24,48,72",
        "CPUs without the core of CPU 0 should be ignored"
    );
    assert_eq!(config("0,30,78"), "0,24,48,72", "CPUs that split a core should be ignored");
}

#[test]
fn cpus_of_running_pods_are_not_reserved() {
    let tree = host::rack1_a();
    let plan = run_plan(&tree, "  cpu: {reserved: {cpus: '0-1,48-49'}, housekeeping: true}");
    assert_eq!(plan.code, 1);
    assert!(plan.change_lines().iter().all(|line| line.contains(
        "CPUs 1,49 of the reserved 0-1,48-49 are allocated exclusively to running pods"
    )));
}

#[test]
fn housekeeping_reports_conflicting_settings() {
    let tree = host::rack1_a();
    let spec = "  cpu: {reserved: {coresPerZone: 1}, housekeeping: true}";
    tree.write_file("proc/900/comm", "irqbalance\n");
    tree.create_folder("sys/fs/cgroup/system.slice/k0s.service/kubepods");
    let lines = run_plan(&tree, spec).change_lines();
    let blocked: Vec<&String> = lines.iter().filter(|line| line.contains("BLOCKED")).collect();
    assert!(
        blocked[0].contains(
            "below system.slice would lose their CPUs: /sys/fs/cgroup/system.slice/k0s.service/kubepods;"
        ),
        "{blocked:?}"
    );
    assert!(blocked[1].contains("IRQBALANCE_BANNED_CPULIST"), "{blocked:?}");
    assert_eq!(blocked.len(), 2);
    tree.write_file("sys/fs/cgroup/cgroup.controllers", "").write_file("proc/self/mountinfo", "");
    let alone = run_plan(&tree, "  cpu: {housekeeping: true}");
    assert!(
        alone.stderr.contains("spec.cpu.housekeeping: `true`: requires spec.cpu.reserved"),
        "{}",
        alone.stderr
    );
    assert_eq!(alone.code, 2);
}

/// Tests a kubelet that uses the systemd cgroup driver, and a container runtime that does not: the control groups
/// of pods are below the unit of the runtime.
#[test]
fn housekeeping_skips_units_with_pods_or_vms() {
    const POD_CGROUP: &str =
        "kubepods-pod6f9d2f1e_0c3a_4f0e_9a55_0d6f1a2b3c4d.slice:cri-containerd:0a1b";
    let spec = "  cpu: {reserved: {coresPerZone: 1}, housekeeping: true}";
    let blocked = |processes: &[(&str, &str, &str)]| {
        let tree = host::rack1_a();
        tree.create_folder("sys/fs/cgroup/kubepods.slice");
        for (pid, comm, group) in processes {
            tree.write_file(&format!("proc/{pid}/comm"), format!("{comm}\n"));
            tree.write_file(
                &format!("proc/{pid}/cgroup"),
                format!("1:name=systemd:/\n0::{group}\n"),
            );
        }
        let lines = run_plan(&tree, spec).change_lines();
        lines.into_iter().filter(|line| line.contains("BLOCKED pods or")).collect::<Vec<_>>()
    };
    let in_runtime = format!("/system.slice/containerd.service/{POD_CGROUP}");
    let lines = blocked(&[("4711", "virt-launcher-m", &in_runtime)]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let evidence = format!("process 4711 (virt-launcher-m) in {in_runtime} (/proc/4711/cgroup)");
    assert!(lines[0].contains("below system.slice") && lines[0].contains(&evidence), "{lines:?}");
    // Every process of a pod blocks the change of its unit, and so does a VM outside of pods.
    assert_eq!(blocked(&[("4711", "nginx", &in_runtime)]).len(), 1);
    let lines = blocked(&[("812", "qemu-system-x86", "/user.slice/user-0.slice/session-1.scope")]);
    assert!(lines.len() == 1 && lines[0].contains("below user.slice"), "{lines:?}");
    // The same paths, as a process in a separate cgroup namespace (a container) reads them.
    let lines = blocked(&[("4711", "nginx", &format!("/../../..{in_runtime}"))]);
    assert!(lines.len() == 1 && lines[0].contains("below system.slice"), "{lines:?}");
    // If the beginning of a path is unknown, the path may be below any of the three units.
    assert_eq!(blocked(&[("4711", "nginx", &format!("/../{POD_CGROUP}"))]).len(), 3);
    // Pods below kubepods.slice and services without pods do not block the change.
    assert!(
        blocked(&[
            ("4711", "virt-launcher-m", &format!("/kubepods.slice/{POD_CGROUP}")),
            ("812", "qemu-system-x86", "/machine.slice/machine-qemu-1.scope"),
            ("813", "containerd", "/system.slice/containerd.service"),
            ("814", "nginx", &format!("/../../kubepods.slice/{POD_CGROUP}")),
        ])
        .is_empty()
    );
}

#[test]
fn unmovable_interrupts_are_skipped_and_counted() {
    let tree = host::rack1_a();
    let learned =
        r#""interrupt 40":{"found":"0-95"}}, "unmovableInterrupts":{"60":"nvme0q1","0":"other"#;
    tree.write_file(
        LEDGER_FILE,
        format!(r#"{{"version":1,"bootID":"{BOOT_ID}","entries":{{{learned}"}}}}"#),
    );
    let plan = run_plan(&tree, "  cpu: {reserved: {coresPerZone: 1}, housekeeping: true}");
    assert!(
        plan.change_lines().last().unwrap().starts_with("3 interrupts"),
        "{:?}",
        plan.change_lines()
    );
    assert!(plan.json["notes"][0].as_str().unwrap().starts_with("1 interrupts are not moved"));
}

#[test]
fn ksm_change_is_blocked_by_another_owner() {
    let tree = host::rack1_a();
    let spec = "  ksm: {mode: 'On'}";
    assert_eq!(run_plan(&tree, spec).only_line(), "ksm run: 0 -> 1");
    tree.write_file("proc/77/comm", "ksmtuned\n");
    assert!(run_plan(&tree, spec).only_line().contains("BLOCKED ksmtuned controls KSM"));
    tree.write_file("proc/77/comm", "virt-handler\n");
    assert_eq!(
        run_plan(&tree, spec).only_line(),
        "ksm run: 0 -> 1",
        "virt-handler runs, but does not control KSM"
    );
    tree.write_file("sys/kernel/mm/ksm/run", "1\n");
    assert!(
        run_plan(&tree, "  ksm: {mode: 'Off'}")
            .only_line()
            .contains("BLOCKED KubeVirt's virt-handler")
    );
    assert!(run_plan(&tree, "  ksm: {mode: Observe}").change_lines().is_empty());

    // virt-handler has reset the value that Berth had set. Setting it again would repeat the conflict.
    tree.write_file("sys/kernel/mm/ksm/run", "0\n");
    write_ledger(&tree, r#""ksm run":{"found":"0","set":"1"}"#);
    assert!(run_plan(&tree, spec).only_line().contains("virt-handler runs and KSM was changed"));
    tree.write_file("proc/77/comm", "other\n");
    assert_eq!(run_plan(&tree, spec).only_line(), "ksm run: 0 -> 1");
    for wrong in ["sleepMillis: 0", "pagesToScan: 0"] {
        let fault = run_plan(&tree, &format!("  ksm: {{mode: 'On', {wrong}}}"));
        assert!(fault.code == 2 && fault.stderr.contains("must be from 1 to"), "{}", fault.stderr);
    }
}

/// Tests that the original value 2 of `run` is restored only if enough memory is free. With 2, many hosts turn KSM
/// off, and the kernel unmerges all merged pages, which needs additional memory.
#[test]
fn restore_that_unmerges_pages_needs_free_memory() {
    let tree = host::rack1_a();
    write_ledger(&tree, r#""ksm run":{"found":"2","set":"1"}"#);
    tree.write_file("sys/kernel/mm/ksm/run", "1\n");
    assert_eq!(run_plan(&tree, "  profile: x").only_line(), "ksm run: 1 -> 2");
    tree.write_file("sys/kernel/mm/ksm/pages_sharing", format!("{}\n", 250u64 << 18));
    assert!(
        run_plan(&tree, "  profile: x")
            .only_line()
            .contains("BLOCKED merged pages would need 250 GiB")
    );
}

#[test]
fn drifted_interrupts_are_kept_and_new_ones_are_moved() {
    let tree = host::rack1_a();
    write_ledger(&tree, r#""interrupt 40":{"found":"0-95","set":"0,24,48,72"}"#);
    let not_enforced = run_plan(
        &tree,
        "  enforce: false\n  cpu: {reserved: {coresPerZone: 1}, housekeeping: true}",
    );
    let interrupts: Vec<String> = not_enforced
        .change_lines()
        .into_iter()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    assert!(
        interrupts[0].starts_with("3 interrupts") && !interrupts[0].contains("BLOCKED"),
        "{interrupts:?}"
    );
    assert!(
        interrupts[1].starts_with("1 interrupts") && interrupts[1].contains("BLOCKED"),
        "{interrupts:?}"
    );
}

#[test]
fn ksm_auto_uses_the_kernel_advisor_or_free_memory() {
    let tree = host::rack1_a();
    let auto = |tree: &Tree, more: &str| run_plan(tree, &format!("  ksm: {{mode: Auto{more}}}"));
    let lines = auto(&tree, ", pagesToScan: 500").change_lines();
    assert!(
        lines[1].contains("BLOCKED with mode Auto only the kernel's advisor can set this value"),
        "{lines:?}"
    );

    std::fs::remove_file(tree.path().join("sys/kernel/mm/ksm/advisor_mode")).unwrap();
    let total = 528_482_304u64;
    let available = |percent: u64| {
        let kib = total * percent / 100 + 1;
        tree.write_file(
            "proc/meminfo",
            format!("MemTotal: {total} kB\nMemAvailable: {kib} kB\nSwapTotal: 0 kB\n"),
        );
        auto(&tree, "").change_lines()
    };
    assert!(available(50).is_empty() && available(22).is_empty(), "ksmd should stay off");
    assert_eq!(available(17), ["ksm run: 0 -> 1"], "pages_to_scan should stay 100");
    assert_eq!(available(3), ["ksm pages_to_scan: 100 -> 1250", "ksm run: 0 -> 1"]);
    tree.write_file("sys/kernel/mm/ksm/run", "1\n")
        .write_file("sys/kernel/mm/ksm/pages_to_scan", "400\n");
    assert!(
        available(16).is_empty() && available(9).is_empty(),
        "within the hysteresis, nothing should change"
    );
    assert_eq!(
        available(22),
        ["ksm pages_to_scan: 400 -> 100"],
        "ksmd should run until 25 % of the memory are available"
    );
    assert_eq!(available(26), ["ksm run: 1 -> 0"]);
}

#[test]
fn changing_merge_across_nodes_needs_memory_to_unmerge() {
    let tree = host::rack1_a();
    let spec = "  ksm: {mode: 'Off', mergeAcrossNodes: false}";
    assert_eq!(run_plan(&tree, spec).only_line(), "ksm merge_across_nodes: 1 -> 0");
    // 252 GiB are available. Unmerging 200 GiB is permitted; unmerging 250 GiB is refused.
    tree.write_file("sys/kernel/mm/ksm/pages_sharing", format!("{}\n", 200u64 << 18));
    assert_eq!(run_plan(&tree, spec).code, 0);
    tree.write_file("sys/kernel/mm/ksm/pages_sharing", format!("{}\n", 250u64 << 18));
    assert!(
        run_plan(&tree, spec).only_line().contains("BLOCKED merged pages would need 250 GiB"),
        "{}",
        run_plan(&tree, spec).only_line()
    );
}

#[test]
fn removed_settings_are_restored() {
    let tree = host::rack1_a();
    write_ledger(
        &tree,
        r#""transparent hugepages":{"found":"always","set":"madvise"},
           "ksm run":{"found":"0","set":"1"},"hugepages 1Gi zone 0":{"found":"0","set":"16"},
           "interrupt 999":{"found":"0-95"}"#,
    );
    let both = ["transparent hugepages: madvise -> always", "hugepages 1Gi zone 0: 16 -> 0"];
    assert_eq!(run_plan(&tree, "  profile: x").change_lines(), both);
    // If a part of the spec has a fault, the agent does not know whether its settings were removed from the spec.
    let faulty =
        run_plan(&tree, "  transparentHugepages: Sometimes\n  hugepages: [{size: 4Mi, count: 1}]");
    assert_eq!((faulty.code, faulty.change_lines()), (2, vec![]));
    // Simulates a reboot, which has reset all settings.
    let text = std::fs::read_to_string(tree.path().join(LEDGER_FILE)).unwrap();
    tree.write_file(LEDGER_FILE, text.replace(BOOT_ID, "another-boot"));
    assert!(run_plan(&tree, "  profile: x").change_lines().is_empty());
}

#[test]
fn drift_is_corrected_or_only_reported() {
    let tree = host::rack1_a();
    write_ledger(&tree, r#""transparent hugepages":{"found":"always","set":"never"}"#);
    let repaired = run_plan(&tree, "  transparentHugepages: Never");
    assert_eq!(repaired.json["changes"][0]["drift"], true);
    assert_eq!(repaired.code, 0);
    let drift = run_plan(&tree, "  enforce: false\n  transparentHugepages: Never");
    assert!(
        drift
            .only_line()
            .contains("BLOCKED another program changed this setting after Berth had set it")
    );
    let misspelt = run_plan(&tree, "  enforce: 'no'\n  transparentHugepages: Never");
    assert!(misspelt.only_line().contains("spec.enforce is false"), "{}", misspelt.only_line());
    let desired = run_plan(&tree, "  enforce: false\n  transparentHugepages: Always");
    assert_eq!(
        (desired.code, desired.only_line()),
        (0, "transparent hugepages: madvise -> always".to_owned())
    );
}

#[test]
fn faults_name_field_and_value_and_the_rest_is_planned() {
    let tree = host::rack1_a();
    let plan = run_plan(
        &tree,
        "  hugepages:\n  - {size: 2Mi, zone: 7, count: 1}\n  - {size: 4Mi, count: 1}\n  - {size: 64Ki, count: 1}\n  \
         - {size: 1Gi, zone: 1, count: 999}\n  - {size: 2Mi, zone: 0, count: 4097}\n  - {size: 2Mi, zone: 0, count: 1}\n  \
         transparentHugepages: Never\n  unknown: 1",
    );
    assert_eq!(plan.code, 2);
    for fault in [
        "spec.hugepages[0].zone: `7`: this host has no such zone; it has 0, 1",
        "spec.hugepages[1].size: `4Mi`: the kernel of this host has no pages of this size; it has 2Mi, 1Gi",
        "spec.hugepages[2].size: `64Ki`",
        "spec.hugepages[3].count: `999`: zone 1 has 252 GiB of memory, but the requested pages need 999 GiB",
        "spec.hugepages[5].size: `2Mi`: pages of this size are requested twice in zone 0",
        "spec.unknown: `1`: unknown field",
    ] {
        assert!(plan.stderr.contains(fault), "{fault}\n{}", plan.stderr);
    }
    assert_eq!(
        plan.change_lines(),
        ["transparent hugepages: madvise -> never", "hugepages 2Mi zone 0: 4096 -> 4097"]
    );
}

#[test]
fn manifest_for_another_node_is_rejected() {
    let tree = host::rack1_a();
    tree.write_file("proc/sys/kernel/hostname", "rack9\n");
    let other = run_plan(&tree, "  transparentHugepages: Never");
    assert!(
        other.stderr.contains("metadata.name: `rack1-a`: this node is rack9"),
        "{}",
        other.stderr
    );
    assert_eq!(other.code, 2);
    let manifest = tree.path().join("infranode.yaml");
    let manifest = manifest.to_str().unwrap();
    let output = run_agent_on(&tree, &["plan", "-f", manifest, "--node-name", "rack1-a"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn invalid_ledger_is_reported() {
    let tree = host::rack1_a();
    tree.write_file(LEDGER_FILE, "{");
    assert!(
        run_plan(&tree, "  profile: x")
            .stderr
            .contains("/var/lib/berth/found.json: the file is not a rollback ledger")
    );
}

#[test]
fn kubelet_advice_has_valid_fields() {
    let tree = host::rack1_a();
    tree.write_file(
        "var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\ncpuManagerPolicy: none\nsystemReserved: {memory: 1Gi}\nkubeReserved: {memory: 1000000000}\n",
    )
    .write_file("var/lib/kubelet/cpu_manager_state", r#"{"policyName":"none","defaultCpuSet":""}"#);
    let advised = run_plan(&tree, "  cpu: {reserved: {coresPerZone: 1}, kubelet: Advise}");
    assert_eq!((advised.code, advised.change_lines()), (0, vec![]));
    let advice = &advised.json["kubelet"];
    let yaml = advice["configuration"].as_str().unwrap();
    let config: Value = serde_saphyr::from_str(yaml).unwrap();
    assert_eq!(config["cpuManagerPolicy"], "static");
    assert_eq!(config["cpuManagerPolicyOptions"]["full-pcpus-only"], "true");
    assert_eq!(config["reservedSystemCPUs"], "0,24,48,72");
    assert_eq!(config["topologyManagerPolicy"], "single-numa-node");
    let limits = config["reservedMemory"].as_array().unwrap();
    let bytes = |entry: &Value| {
        let text = entry["limits"]["memory"].to_string();
        text.trim_matches('"').parse::<berth_api::Bytes>().unwrap().0
    };
    let sum: u64 = limits.iter().map(bytes).sum();
    assert_eq!(sum, (1 << 30) + 1_000_000_000 + (100 << 20), "the sum must be exact: {yaml}");
    let steps: Vec<&str> =
        advice["steps"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    assert!(steps[0].starts_with("kubectl drain rack1-a"), "{steps:?}");
    assert!(
        steps.iter().any(|step| step.starts_with("rm /var/lib/kubelet/cpu_manager_state")),
        "{steps:?}"
    );

    // After the user has followed the advice exactly, the plan has no further advice, and `check` finds no problem.
    tree.write_file(
        "var/lib/kubelet/config.yaml",
        format!("{yaml}systemReserved: {{memory: 1Gi}}\nkubeReserved: {{memory: 1000000000}}\n"),
    );
    std::fs::remove_file(tree.path().join("var/lib/kubelet/cpu_manager_state")).unwrap();
    assert!(
        run_plan(&tree, "  cpu: {reserved: {coresPerZone: 1}, kubelet: Advise}").json["kubelet"]
            .is_null()
    );
    assert_eq!(common::findings_by_id(&tree)["kubelet.reserved-memory"]["status"], "PASS");
}

#[test]
fn staged_drop_in_is_activated_after_the_drain() {
    let tree = host::rack1_a();
    let spec = "  cpu: {reserved: {cpus: '0,48'}, kubelet: Stage}";
    let no_folder = run_plan(&tree, spec).only_line();
    assert!(no_folder.contains("BLOCKED the kubelet runs without --config-dir"), "{no_folder}");
    tree.write_file(
        "proc/1412/cmdline",
        "kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/kubelet.conf.d\0",
    )
    .create_folder("etc/kubernetes/kubelet.conf.d");
    let waiting = run_plan(&tree, spec).change_lines();
    assert_eq!(waiting[0], "kubelet drop-in: none -> staged");
    assert!(
        waiting[1].contains(
            "BLOCKED waiting until the node is drained and its kubelet is stopped: 1 Guaranteed pods are running"
        ),
        "{waiting:?}"
    );
    tree.write_file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"static","defaultCpuSet":"0-95"}"#,
    );
    let drained = run_plan(&tree, spec);
    assert!(
        drained.change_lines()[1].contains("BLOCKED waiting until the kubelet is stopped"),
        "{:?}",
        drained.change_lines()
    );
    let steps = drained.json["kubelet"]["steps"].to_string();
    assert!(steps.contains("systemctl stop kubelet") && !steps.contains("restart"), "{steps}");
    // For a stopped kubelet, the folder is known only from the flags in its systemd unit, or from the record of the
    // agent.
    common::kubelet::stop_kubelet(&tree);
    tree.write_file(
        "etc/default/kubelet",
        "KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d\n",
    );
    let stopped = run_plan(&tree, spec);
    assert_eq!(stopped.change_lines()[1], "kubelet drop-in: staged -> active");
    assert_eq!(stopped.json["changes"][1]["files"][0], "/var/lib/kubelet/cpu_manager_state");
    common::kubelet::start_kubelet(&tree, 4200);
    tree.write_file("proc/88/comm", "virt-launcher-m\n");
    assert!(run_plan(&tree, spec).change_lines()[1].contains("virtual machines are running"));
    tree.write_file("proc/1412/cmdline", "kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/etc/kubernetes/kubelet.conf.d\0--reserved-cpus=0,24,48,72\0");
    assert!(
        run_plan(&tree, spec).change_lines()[0].contains("command line sets reservedSystemCPUs")
    );
}
