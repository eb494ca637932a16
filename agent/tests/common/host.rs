//! The host `rack1-a` of the tests: two sockets, 48 cores, SMT, bonded SR-IOV NICs, NVMe drives, and a kubelet with
//! pinned VMs. The README shows this host, so it should resemble a real host.

use super::Tree;

/// Boot time of the host, in seconds since 1970. It is later than the modification times of all files that tests
/// write, so that these files count as read by the kubelet.
pub(crate) const BOOT_TIME: u64 = 4_102_444_800;

const CPU_FOLDER: &str = "sys/devices/system/cpu";
const NODE_FOLDER: &str = "sys/devices/system/node";

/// Returns the tree of the host `rack1-a`.
pub(crate) fn rack1_a() -> Tree {
    let tree = Tree::new();
    write_machine(&tree);
    write_processors(&tree);
    write_zones(&tree);
    write_memory(&tree);
    write_virtualisation(&tree);
    write_uplinks(&tree);
    write_drives(&tree);
    write_kubelet(&tree);
    write_kernel_settings(&tree);
    tree
}

fn write_machine(tree: &Tree) {
    tree.write_file("proc/sys/kernel/hostname", "rack1-a\n")
        .write_file("proc/sys/kernel/osrelease", "6.12.38+deb12-amd64\n")
        .write_file("proc/sys/kernel/random/boot_id", "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55\n")
        .write_file("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/mapper/root ro iommu=pt\n")
        .write_file("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n")
        .write_file("etc/machine-id", "4c3f0b6a9d1e4f7c8a2b5d6e7f809112\n")
        .write_file("sys/class/dmi/id/sys_vendor", "Supermicro\n")
        .write_file("sys/class/dmi/id/product_name", "AS-2124BT-HNTR\n")
        .write_file(
            "sys/fs/cgroup/cgroup.controllers",
            "cpuset cpu io memory hugetlb pids rdma misc\n",
        );
}

/// Writes the processors: CPUs 0-23 and 48-71 are on socket 0, the other CPUs on socket 1. The numbers of the two
/// threads of a core differ by 48.
fn write_processors(tree: &Tree) {
    let mut cpuinfo = String::new();
    for cpu in 0..96 {
        let (core, socket) = (cpu % 48, cpu % 48 / 24);
        let topology = format!("{CPU_FOLDER}/cpu{cpu}/topology");
        let package = if socket == 0 { "0-23,48-71" } else { "24-47,72-95" };
        tree.write_file(
            &format!("{topology}/thread_siblings_list"),
            format!("{core},{}\n", core + 48),
        )
        .write_file(&format!("{topology}/core_siblings_list"), format!("{package}\n"))
        .write_file(&format!("{topology}/physical_package_id"), format!("{socket}\n"))
        .write_file(&format!("{topology}/die_id"), "0\n")
        .write_file(&format!("{topology}/core_id"), format!("{}\n", core % 24))
        .write_file(&format!("{CPU_FOLDER}/cpufreq/policy{cpu}/scaling_governor"), "performance\n");
        cpuinfo += &format!(
            "processor\t: {cpu}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7443 24-Core \
             Processor\nmicrocode\t: 0xa0011d5\nflags\t\t: fpu svm npt avic sev sev_es sev_snp\n\n"
        );
    }
    tree.write_file("proc/cpuinfo", cpuinfo)
        .write_file(&format!("{CPU_FOLDER}/online"), "0-95\n")
        .write_file(&format!("{CPU_FOLDER}/offline"), "96-255\n")
        .write_file(&format!("{CPU_FOLDER}/present"), "0-95\n")
        .write_file(&format!("{CPU_FOLDER}/possible"), "0-255\n")
        .write_file(&format!("{CPU_FOLDER}/isolated"), "\n")
        .write_file(&format!("{CPU_FOLDER}/nohz_full"), "(null)\n");
}

fn write_zones(tree: &Tree) {
    for (id, cpus, distance) in [(0, "0-23,48-71", "10 32"), (1, "24-47,72-95", "32 10")] {
        let node = format!("{NODE_FOLDER}/node{id}");
        let kib = 264_241_152;
        tree.write_file(&format!("{node}/cpulist"), format!("{cpus}\n"))
            .write_file(&format!("{node}/distance"), format!("{distance}\n"))
            .write_file(
                &format!("{node}/meminfo"),
                format!(
                    "Node {id} MemTotal:       {kib} kB\nNode {id} MemFree:        {} kB\n",
                    kib / 2
                ),
            );
        write_pools(
            tree,
            &format!("{node}/hugepages"),
            [(2048, 4096, 4096 - 1024 * (1 - id)), (1_048_576, 16, 16)],
        );
    }
}

fn write_pools(tree: &Tree, folder: &str, pools: [(u64, u64, u64); 2]) {
    for (kib, total, free) in pools {
        let pool = format!("{folder}/hugepages-{kib}kB");
        tree.write_file(&format!("{pool}/nr_hugepages"), format!("{total}\n"))
            .write_file(&format!("{pool}/free_hugepages"), format!("{free}\n"))
            .write_file(&format!("{pool}/surplus_hugepages"), "0\n");
    }
}

fn write_memory(tree: &Tree) {
    tree.write_file(
        "proc/meminfo",
        "MemTotal:       528482304 kB\nMemAvailable:   264241152 kB\nSwapTotal:             0 kB\nHugePages_Total:    8192\n\
         Hugepagesize:       2048 kB\n",
    )
    .write_file("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    .write_file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    .write_file("sys/kernel/mm/ksm/run", "0\n")
    .write_file("sys/kernel/mm/ksm/merge_across_nodes", "1\n")
    .write_file("sys/kernel/mm/ksm/pages_to_scan", "100\n")
    .write_file("sys/kernel/mm/ksm/pages_sharing", "0\n")
    .write_file("sys/kernel/mm/ksm/sleep_millisecs", "20\n")
    .write_file("sys/kernel/mm/ksm/smart_scan", "1\n")
    .write_file("sys/kernel/mm/ksm/advisor_mode", "[none] scan-time\n")
    .write_file("sys/kernel/mm/ksm/general_profit", "0\n");
    write_pools(tree, "sys/kernel/mm/hugepages", [(2048, 8192, 7168), (1_048_576, 32, 32)]);
}

fn write_virtualisation(tree: &Tree) {
    let parameters = "sys/module/kvm_amd/parameters";
    for (name, value) in [
        ("nested", "1"),
        ("npt", "Y"),
        ("avic", "N"),
        ("sev", "Y"),
        ("sev_es", "Y"),
        ("sev_snp", "N"),
    ] {
        tree.write_file(&format!("{parameters}/{name}"), format!("{value}\n"));
    }
    tree.create_folder("sys/devices/virtual/misc/kvm").create_folder("sys/firmware/acpi/tables");
    for device in ["kvm", "sev", "vhost-net", "vhost-vsock", "net/tun"] {
        tree.write_file(&format!("dev/{device}"), "");
    }
    tree.write_file("sys/firmware/acpi/tables/IVRS", "");
    for group in 0..83 {
        tree.create_folder(&format!("sys/kernel/iommu_groups/{group}"));
    }
}

/// Writes two network cards: one whose two ports form a bond with the default route, and a second card that is
/// dedicated to tenants.
fn write_uplinks(tree: &Tree) {
    let cards = [
        ("ens1f0np0", "0000:41:00.0", 0, "mlx5_core", Some("bond0"), 8),
        ("ens1f1np1", "0000:41:00.1", 0, "mlx5_core", Some("bond0"), 0),
        ("ens5f0", "0000:c1:00.0", 1, "ice", None, 0),
    ];
    for (index, (name, address, zone, driver, master, vfs)) in cards.into_iter().enumerate() {
        let function = format!("sys/devices/pci0000:40/{address}");
        tree.write_file(&format!("{function}/class"), "0x020000\n")
            .write_file(&format!("{function}/vendor"), "0x15b3\n")
            .write_file(&format!("{function}/device"), "0x101d\n")
            .write_file(&format!("{function}/numa_node"), format!("{zone}\n"))
            .write_file(&format!("{function}/sriov_totalvfs"), "16\n")
            .write_file(&format!("{function}/sriov_numvfs"), format!("{vfs}\n"))
            .create_link(
                &format!("{function}/driver"),
                &format!("../../../bus/pci/drivers/{driver}"),
            )
            .create_link(
                &format!("{function}/iommu_group"),
                &format!("../../../kernel/iommu_groups/{index}"),
            )
            .create_link(
                &format!("sys/bus/pci/devices/{address}"),
                &format!("../../../devices/pci0000:40/{address}"),
            );
        let net = format!("{function}/net/{name}");
        write_link(tree, name, &net, index + 2, if master.is_some() { 9000 } else { 1500 }, 25_000);
        tree.create_link(&format!("{net}/device"), "../..");
        for vf in 0..vfs {
            write_virtual_function(tree, &function, address, vf);
        }
        if let Some(master) = master {
            tree.create_link(
                &format!("{net}/master"),
                &format!("../../../../virtual/net/{master}"),
            );
        }
    }
    let bond = "sys/devices/virtual/net/bond0";
    write_link(tree, "bond0", bond, 5, 9000, 50_000);
    tree.create_folder(&format!("{bond}/bonding"))
        .write_file(&format!("{bond}/uevent"), "DEVTYPE=bond\n");
    let vlan = "sys/devices/virtual/net/bond0.10";
    write_link(tree, "bond0.10", vlan, 6, 1500, 50_000);
    tree.write_file(&format!("{vlan}/uevent"), "DEVTYPE=vlan\n");
    tree.write_file(
        "proc/net/vlan/config",
        "VLAN Dev name | VLAN ID\nName-Type: X\nbond0.10 | 10 | bond0\n",
    );
    tree.write_file(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
         bond0.10\t00000000\t010A0A0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
    );
}

fn write_link(tree: &Tree, name: &str, folder: &str, index: usize, mtu: u32, speed: u32) {
    let relative_path = folder.strip_prefix("sys/").unwrap_or(folder);
    tree.create_link(&format!("sys/class/net/{name}"), &format!("../../{relative_path}"))
        .write_file(&format!("{folder}/ifindex"), format!("{index}\n"))
        .write_file(&format!("{folder}/iflink"), format!("{index}\n"))
        .write_file(&format!("{folder}/address"), format!("b8:ce:f6:00:00:{index:02x}\n"))
        .write_file(&format!("{folder}/operstate"), "up\n")
        .write_file(&format!("{folder}/mtu"), format!("{mtu}\n"))
        .write_file(&format!("{folder}/speed"), format!("{speed}\n"));
}

/// Writes a virtual function. VMs use the first three virtual functions of each physical function.
fn write_virtual_function(tree: &Tree, function: &str, physical: &str, number: usize) {
    // Functions 0 and 1 of the PCI device are the ports of the card, and virtual functions have the next addresses.
    // A PCI device has eight functions.
    let address = format!("0000:41:{:02x}.{}", (number + 2) / 8, (number + 2) % 8);
    let folder = format!("sys/devices/pci0000:40/{address}");
    let driver = if number < 3 { "vfio-pci" } else { "mlx5_core" };
    tree.write_file(&format!("{folder}/class"), "0x020000\n")
        .write_file(&format!("{folder}/net/v{number}/mtu"), "1500\n")
        .create_link(&format!("{folder}/physfn"), &format!("../{physical}"))
        .create_link(&format!("{folder}/driver"), &format!("../../../bus/pci/drivers/{driver}"))
        .create_link(&format!("{function}/virtfn{number}"), &format!("../{address}"))
        .create_link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:40/{address}"),
        );
}

/// Writes two drives: the system uses the first, and the second is free.
fn write_drives(tree: &Tree) {
    for (number, zone, minor) in [(0, 0, 0), (1, 1, 4)] {
        let address = format!("0000:8{number}:00.0");
        let function = format!("sys/devices/pci0000:80/{address}");
        let name = format!("nvme{number}n1");
        let block = format!("{function}/nvme/nvme{number}/{name}");
        tree.write_file(&format!("{function}/class"), "0x010802\n")
            .write_file(&format!("{function}/numa_node"), format!("{zone}\n"))
            .create_link(&format!("{function}/driver"), "../../../bus/pci/drivers/nvme")
            .create_link(
                &format!("sys/bus/pci/devices/{address}"),
                &format!("../../../devices/pci0000:80/{address}"),
            )
            .write_file(
                &format!("{function}/nvme/nvme{number}/model"),
                "SAMSUNG MZQL21T9HCJR-00A07\n",
            )
            .create_link(&format!("{block}/device"), &format!("../../nvme{number}"))
            .write_file(&format!("{block}/size"), "3750748848\n")
            .write_file(&format!("{block}/removable"), "0\n")
            .write_file(&format!("{block}/dev"), format!("259:{minor}\n"))
            .write_file(&format!("run/udev/data/b259:{minor}"), "S:disk/by-path/x\n")
            .create_link(
                &format!("sys/class/block/{name}"),
                &format!("../../devices/pci0000:80/{address}/nvme/nvme{number}/{name}"),
            )
            .create_link(
                &format!("sys/block/{name}"),
                &format!("../devices/pci0000:80/{address}/nvme/nvme{number}/{name}"),
            );
    }
    for part in [1, 2] {
        let folder =
            format!("sys/devices/pci0000:80/0000:80:00.0/nvme/nvme0/nvme0n1/nvme0n1p{part}");
        tree.write_file(&format!("{folder}/dev"), format!("259:{part}\n"))
            .write_file(&format!("{folder}/partition"), format!("{part}\n"))
            .create_link(
                &format!("sys/class/block/nvme0n1p{part}"),
                &format!("../../devices/pci0000:80/0000:80:00.0/nvme/nvme0/nvme0n1/nvme0n1p{part}"),
            );
    }
    tree.write_file(
        "proc/self/mountinfo",
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n\
         23 22 253:0 / /var/lib/kubelet rw,relatime shared:2 - xfs /dev/mapper/data rw\n",
    );
}

fn write_kubelet(tree: &Tree) {
    let config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        cpuManagerPolicy: static\ncpuManagerPolicyOptions:\n  full-pcpus-only: \"true\"\n\
        topologyManagerPolicy: single-numa-node\nmemoryManagerPolicy: None\n\
        reservedSystemCPUs: \"0,24,48,72\"\n";
    tree.write_file("var/lib/kubelet/config.yaml", config)
        .write_file("proc/1412/comm", "kubelet\n")
        .write_file("proc/1412/cmdline", "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0")
        .write_file("proc/1412/status", "Name:\tkubelet\nUid:\t0\t0\t0\t0\nNSpid:\t1412\n")
        .write_file("proc/1412/cgroup", "0::/system.slice/kubelet.service\n")
        .write_file(
            "var/lib/kubelet/cpu_manager_state",
            r#"{"policyName":"static","defaultCpuSet":"0,5-48,53-95","entries":{
               "7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e":{"compute":"1-4,49-52"}},"checksum":2873517023}"#,
        );
}

/// Returns the file `/proc/PID/stat` of a kubelet that was started `started` hundredths of a second after the boot.
pub(crate) fn kubelet_stat(started: u64) -> String {
    format!("1412 (kubelet) S{} {started} 0\n", " 0".repeat(18))
}

/// Writes the settings that a plan changes, with their values after a boot.
fn write_kernel_settings(tree: &Tree) {
    let all = "ffffffff,ffffffff,ffffffff\n";
    tree.write_file("proc/2/comm", "kthreadd\n")
        .write_file("proc/1412/stat", kubelet_stat(4200))
        .write_file("proc/stat", format!("cpu  1 0 1 1 0 0 0 0 0 0\nbtime {BOOT_TIME}\n"))
        .write_file("proc/irq/default_smp_affinity", all)
        .write_file("sys/devices/virtual/workqueue/cpumask", all);
    for unit in ["init.scope", "system.slice", "user.slice"] {
        tree.write_file(&format!("sys/fs/cgroup/{unit}/cpuset.cpus"), "\n");
    }
    // Interrupts of a timer, two queues of a network card, and one queue of a drive, and an interrupt without a
    // driver.
    for (number, users) in
        [(0, "timer"), (40, "ens5f0-TxRx-0"), (41, "ens5f0-TxRx-1"), (60, "nvme0q1"), (70, "")]
    {
        tree.write_file(&format!("proc/irq/{number}/smp_affinity_list"), "0-95\n")
            .write_file(&format!("sys/kernel/irq/{number}/actions"), format!("{users}\n"));
    }
}
