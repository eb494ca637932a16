//! Captured trees that no kernel would write, and hosts larger than any real host: the agent prints a partial
//! report that lists the unknown facts, and neither panics nor hangs.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs, and fail by panicking"
)]

mod common;
#[path = "../../tests/src/skip.rs"]
mod skip;

use std::time::{Duration, Instant};

use common::{Tree, report, run_agent, run_agent_on, stderr};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use proptest::prelude::*;
use serde_json::Value;

const CPU_FOLDER: &str = "sys/devices/system/cpu";
const NODE_FOLDER: &str = "sys/devices/system/node";
/// Time limit of a run: long enough for a busy machine, short enough to detect a hang.
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn unknown_facts(node: &Value) -> Vec<String> {
    let unknown = node["status"]["unknown"].as_array().unwrap();
    unknown
        .iter()
        .map(|fact| format!("{} {}", fact["path"], fact["reason"]).replace('"', ""))
        .collect()
}

fn warnings(tree: &Tree) -> String {
    stderr(&run_agent_on(tree, &["report"]))
}

#[test]
fn empty_tree_is_reported_as_unknown() {
    let tree = Tree::new();
    let node = report(&tree);
    let unknown = unknown_facts(&node);
    for fact in [
        "capabilities.cpu.sockets NotFound",
        "capabilities.cpu.online NotFound",
        "capabilities.memory.total NotFound",
        "capabilities.kvm.state CapturedTree",
        "capabilities.kubelet NotFound",
        "capabilities.nvme NotFound",
        "capabilities.uplinks NotFound",
        "capabilities.machine.kernel NotFound",
    ] {
        assert!(unknown.iter().any(|line| line == fact), "{fact} is not in {unknown:?}");
    }
    assert_eq!(node["metadata"]["name"], "unknown-host");
    assert_eq!(run_agent_on(&tree, &["check"]).status.code(), Some(0));
}

#[test]
fn missing_root_is_reported_with_exit_code_2() {
    for command in ["report", "check"] {
        let output = run_agent(&[command, "--root", "/no/such/folder"]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            stderr(&output),
            "berth-agent: --root /no/such/folder: no such folder; specify the folder that contains \
             proc/ and sys/\n"
        );
        assert!(output.stdout.is_empty());
    }
    assert_eq!(run_agent(&["report", "--output", "xml"]).status.code(), Some(2));
    let output = run_agent(&["check", "kvm.nosuch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("invalid value 'kvm.nosuch'"));
}

#[test]
fn invalid_content_is_reported_with_file_and_value() {
    let tree = Tree::new();
    tree.write_file(&format!("{CPU_FOLDER}/online"), "0-3\n")
        .write_file(&format!("{CPU_FOLDER}/isolated"), "1-banana\n")
        .write_file("proc/meminfo", "MemTotal: lots kB\n")
        .write_file("sys/kernel/mm/ksm/run", "maybe\n")
        .write_file("sys/kernel/mm/transparent_hugepage/enabled", "sometimes\n")
        .write_file(&format!("{NODE_FOLDER}/node0/cpulist"), "0-3\n")
        .write_file(&format!("{NODE_FOLDER}/node0/distance"), "10 ten\n")
        .write_file(&format!("{NODE_FOLDER}/node0/hugepages/hugepages-2048kB/nr_hugepages"), "-5\n")
        .write_file("var/lib/kubelet/cpu_manager_state", "{\"policyName\":")
        .write_file("sys/bus/pci/devices/nonsense/class", "0x020000\n");
    let warnings = warnings(&tree);
    for words in [
        "/sys/devices/system/cpu/isolated: `1-banana` is not a CPU or a range",
        "/proc/meminfo: the file has no valid MemTotal line",
        "/sys/kernel/mm/ksm/run: `maybe` is not a valid value",
        "/sys/devices/system/node/node0/distance: `10 ten` does not have one number for each of 1 zones",
        "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages: `-5` is not a valid value",
        "/var/lib/kubelet/cpu_manager_state: not a kubelet checkpoint: EOF",
        "/sys/bus/pci/devices/nonsense: the name of the folder is not a PCI address",
    ] {
        assert!(warnings.contains(words), "{words}\nis not in\n{warnings}");
    }
    let node = report(&tree);
    let unknown = unknown_facts(&node);
    for fact in [
        "capabilities.cpu.isolated Malformed",
        "capabilities.memory.total Malformed",
        "capabilities.memory.ksm Malformed",
        "capabilities.memory.transparentHugepages Malformed",
        "allocations Malformed",
    ] {
        assert!(unknown.iter().any(|line| line == fact), "{fact} is not in {unknown:?}");
    }
    assert_eq!(node["status"]["capabilities"]["cpu"]["threads"], 4);
}

#[test]
fn all_notations_of_an_empty_cpu_set_are_parsed() {
    for (text, set) in
        [("\n", ""), ("(null)\n", ""), ("\0\n", ""), ("  (null)", ""), ("2-6:2\n", "2,4,6")]
    {
        let tree = Tree::new();
        tree.write_file(&format!("{CPU_FOLDER}/online"), "0-7\n")
            .write_file(&format!("{CPU_FOLDER}/nohz_full"), text);
        assert_eq!(report(&tree)["status"]["capabilities"]["cpu"]["nohzFull"], set, "{text:?}");
        assert_eq!(warnings(&tree), "", "{text:?}");
    }
}

#[test]
fn offline_cpus_that_are_not_present_are_ignored() {
    let tree = Tree::new();
    tree.write_file(&format!("{CPU_FOLDER}/online"), "0-2\n")
        .write_file(&format!("{CPU_FOLDER}/present"), "0-3\n")
        .write_file(&format!("{CPU_FOLDER}/offline"), "3,64-79\n");
    assert_eq!(report(&tree)["status"]["capabilities"]["cpu"]["offline"], "3");
}

#[test]
fn huge_sizes_are_handled_without_much_memory() {
    let tree = Tree::new();
    let digits = "9".repeat(400);
    tree.write_file(
        "proc/meminfo",
        format!("MemTotal: {digits} kB\nSwapTotal: 18446744073709551615 kB\n"),
    )
    .write_file(&format!("{CPU_FOLDER}/online"), "0-4294967295\n")
    .write_file(&format!("{CPU_FOLDER}/cpu0/online"), "1\n")
    .write_file(&format!("{NODE_FOLDER}/node4294967296/cpulist"), "0\n")
    .write_file(
        &format!("{NODE_FOLDER}/node4294967295/meminfo"),
        "Node 1 MemTotal: 18446744073709551615 kB\n",
    )
    .write_file("sys/kernel/mm/hugepages/hugepages-18446744073709551615kB/nr_hugepages", "1\n")
    .write_file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", &digits)
    .write_file("sys/class/block/nvme0n1/size", "18446744073709551615\n")
    .write_file("sys/class/net/eth0/mtu", "4294967296\n")
    .write_file("sys/class/net/eth0/speed", "4294967295\n")
    .create_folder("sys/class/net/eth0/device");
    let node = report(&tree);
    assert_eq!(node["status"]["capabilities"]["cpu"]["online"], "0");
    assert!(node["status"]["capabilities"]["memory"].get("total").is_none());
}

#[test]
fn loops_pipes_and_outside_symlinks_do_not_hang_or_leak() {
    let tree = Tree::new();
    tree.create_link(CPU_FOLDER, "../system/cpu")
        .create_link("sys/bus/pci/devices/0000:00:00.0", "0000:00:00.0")
        .create_link("sys/class/net/eth0", "../net/eth0")
        .create_link("etc/os-release", "/etc/hostname")
        .create_link("proc/self", "self")
        .create_folder("proc/sys/kernel");
    mkfifo(&tree.path().join("proc/meminfo"), Mode::from_bits_truncate(0o600)).unwrap();
    mkfifo(&tree.path().join("proc/cpuinfo"), Mode::from_bits_truncate(0o600)).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/hostname", tree.path().join("etc/hostname"))
        .unwrap();
    std::os::unix::fs::symlink(
        "../../../../../../../proc/cmdline",
        tree.path().join("proc/cmdline"),
    )
    .unwrap();
    let begin = Instant::now();
    let node = report(&tree);
    assert!(begin.elapsed() < TIME_LIMIT);
    assert_eq!(node["metadata"]["name"], "unknown-host", "the name of this machine leaked");
    assert!(unknown_facts(&node).contains(&"capabilities.memory.total Unreadable".to_owned()));
}

#[test]
fn large_cpuinfo_is_parsed_within_the_time_limit() {
    let tree = Tree::new();
    let block = format!(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: {}\n\n",
        "flag ".repeat(400)
    );
    tree.write_file("proc/cpuinfo", block.repeat(10 * 1024 * 1024 / block.len()));
    let begin = Instant::now();
    assert_eq!(report(&tree)["status"]["capabilities"]["cpu"]["vendor"], "GenuineIntel");
    tree.write_file("proc/cpuinfo", "flags : x".repeat(1 << 20));
    report(&tree);
    assert!(begin.elapsed() < TIME_LIMIT);
}

#[test]
fn host_with_8192_cpus_is_reported() {
    let tree = Tree::new();
    tree.write_file(&format!("{CPU_FOLDER}/online"), "0-8191\n")
        .write_file(&format!("{CPU_FOLDER}/present"), "0-8191\n");
    for cpu in 0..8192 {
        let topology = format!("{CPU_FOLDER}/cpu{cpu}/topology");
        let (core, package) = (cpu % 4096, cpu % 4096 / 128);
        tree.write_file(
            &format!("{topology}/thread_siblings_list"),
            format!("{core},{}\n", core + 4096),
        )
        .write_file(
            &format!("{topology}/core_siblings_list"),
            format!(
                "{0}-{1},{2}-{3}\n",
                package * 128,
                package * 128 + 127,
                package * 128 + 4096,
                package * 128 + 4223
            ),
        );
    }
    for node in 0..32 {
        let first = node * 128;
        let cpus = format!("{first}-{},{}-{}\n", first + 127, first + 4096, first + 4223);
        tree.write_file(&format!("{NODE_FOLDER}/node{node}/cpulist"), cpus);
    }
    let begin = Instant::now();
    let node = report(&tree);
    assert!(begin.elapsed() < TIME_LIMIT);
    let cpu = &node["status"]["capabilities"]["cpu"];
    assert_eq!(
        (&cpu["sockets"], &cpu["cores"], &cpu["threads"]),
        (&32.into(), &4096.into(), &8192.into())
    );
    assert_eq!(node["status"]["zones"][31]["cores"], 128);
    assert!(run_agent_on(&tree, &["check"]).status.code().is_some_and(|code| code < 2));
}

#[test]
fn files_this_user_may_not_read_are_unknown_with_that_reason() {
    if !nix::unistd::geteuid().is_root() {
        return skip::skip(
            "files_this_user_may_not_read_are_unknown_with_that_reason",
            "needs root",
        );
    }
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let tree = Tree::new();
    tree.write_file("proc/meminfo", "MemTotal: 1024 kB\n")
        .write_file("var/lib/kubelet/cpu_manager_state", "{}")
        .write_file(&format!("{CPU_FOLDER}/online"), "0-1\n");
    let mode = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(tree.path().join(path), permissions).unwrap();
    };
    mode("", 0o755);
    mode("proc/meminfo", 0o000);
    mode("var/lib/kubelet", 0o700);
    // The program runs as user 65534, who may have no access to the folder in which the program was built, so a
    // copy is run.
    let program = tree.path().join("berth-agent");
    common::copy_program(&program);
    let output = std::process::Command::new(&program)
        .args(["report", "-o", "json", "--root", tree.path().to_str().unwrap()])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let node: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unknown = unknown_facts(&node);
    assert!(unknown.contains(&"capabilities.memory.total NoPermission".to_owned()), "{unknown:?}");
    assert!(unknown.contains(&"allocations NoPermission".to_owned()), "{unknown:?}");
    assert_eq!(node["status"]["capabilities"]["cpu"]["threads"], 2);
}

/// Files that the agent reads; the test fills them with random content.
const HOST_FILES: [&str; 24] = [
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/cmdline",
    "proc/swaps",
    "proc/net/route",
    "proc/net/arp",
    "proc/self/mountinfo",
    "proc/7/comm",
    "proc/7/cmdline",
    "proc/irq/9/smp_affinity_list",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu1/topology/core_siblings",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node3/meminfo",
    "sys/kernel/mm/ksm/run",
    "sys/class/net/eth0/mtu",
    "sys/bus/pci/devices/0000:00:01.0/class",
    "var/lib/kubelet/config.yaml",
    "var/lib/kubelet/cpu_manager_state",
    "var/lib/kubelet/memory_manager_state",
];

fn any_file_content() -> impl Strategy<Value = Vec<u8>> {
    let lines = [
        "0-3",
        "0",
        "1",
        "kubelet",
        "0x020000",
        "2-1",
        "(null)",
        "10 20",
        "kubelet\0--config\0/x",
        "{}",
        "[]",
        "MemTotal: 5 kB",
    ];
    prop_oneof![
        prop::sample::select(lines.to_vec()).prop_map(|line| line.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..64),
        "[0-9,:/-]{0,12}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Calls the library directly: if the program panicked, only its exit code would show this.
    #[test]
    fn any_tree_yields_a_report_and_findings(
        files in prop::collection::btree_map(prop::sample::select(HOST_FILES.to_vec()), any_file_content(), 0..HOST_FILES.len())
    ) {
        let tree = Tree::new();
        for (path, content) in &files {
            tree.write_file(path, content);
        }
        let root = berth_host_facts::root::Root::open(tree.path()).unwrap();
        let wanted = berth_host_facts::ObserveOptions::default();
        let facts = berth_agent::observe::observe(&root, &wanted);
        let node = berth_agent::report::report(&facts);
        let again = berth_agent::report::report(&berth_agent::observe::observe(&root, &wanted));
        prop_assert_eq!(serde_json::to_string(&node).unwrap(), serde_json::to_string(&again).unwrap());
        let table = berth_agent::report::table::render(&node, &facts.links, berth_runtime::cli::style::Style::Plain);
        prop_assert!(table.lines().all(|line| line.chars().count() <= 80), "{}", table);
        let input = berth_agent::check::Input::observe(&root, &facts);
        let findings = berth_agent::check::run(&berth_agent::check::all_checks(), &input);
        let table = berth_agent::check::table::render(&findings, berth_runtime::cli::style::Style::Plain);
        // Evidence and remedies are not wrapped at the width of the table, because users copy and paste these
        // lines.
        let mut prose = table.lines().filter(|line| !line.starts_with("      "));
        prop_assert!(prose.all(|line| line.chars().count() <= 80), "{}", table);
    }
}
