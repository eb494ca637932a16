//! Test of PCI functions for VMs: a drive is bound to vfio-pci, is used, and is released.

use std::time::Duration;

use berth_tests::host::Host;
use serde_json::Value;

use super::{MANIFEST_PATH, assert_same, read_state, write_manifest, write_sample_manifest};

/// Opens a function as QEMU does. `ioctl` numbers of `linux/vfio.h`: VFIO_GROUP_SET_CONTAINER, VFIO_SET_IOMMU (type 1),
/// VFIO_GROUP_GET_DEVICE_FD.
const OPEN_FUNCTION: &str = r#"
my ($group, $address) = @ARGV;
open(my $container, "+<", "/dev/vfio/vfio") or die "container: $!";
open(my $file, "+<", "/dev/vfio/$group") or die "group: $!";
my $descriptor = pack("i", fileno($container));
my $name = "$address\0";
ioctl($file, 0x3b68, $descriptor) or die "VFIO_GROUP_SET_CONTAINER: $!";
ioctl($container, 0x3b66, 1) or die "VFIO_SET_IOMMU: $!";
ioctl($file, 0x3b6a, $name) or die "VFIO_GROUP_GET_DEVICE_FD: $!";
sleep 1000;
"#;

/// Returns the settings of the host. Interrupts are left out, because a drive that is bound again gets new ones.
fn read_settings(host: &mut Host) -> String {
    let state = read_state(host);
    let lines = state.lines().filter(|line| !line.starts_with("/proc/irq/"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Runs a command of the agent that must have this exit code, and returns its output with single spaces.
#[track_caller]
fn run_agent(host: &mut Host, arguments: &str, code: i32) -> String {
    let result = host.run(&format!("berth-agent {arguments}")).unwrap();
    assert_eq!(result.code, code, "{arguments}: {}", result.output);
    result.output.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read_file(host: &mut Host, file: &str) -> String {
    host.run_checked(&format!("cat {file}")).unwrap().trim().to_owned()
}

fn end_process(host: &mut Host, condition: &str) {
    host.run_checked("kill $(cat /run/user.pid)").unwrap();
    host.wait_until(condition, Duration::from_secs(60), "ps ax; journalctl -k | tail -20").unwrap();
}

/// Waits until udev has examined the drive again.
fn refresh_udev(host: &mut Host) {
    host.run_checked("udevadm trigger --settle --name-match=/dev/nvme1n1").unwrap();
}

pub(super) fn drive_is_bound_and_released(host: &mut Host) {
    refresh_udev(host);
    let before = read_settings(host);
    let command = "basename $(readlink -f /sys/class/nvme/nvme1/device)";
    let address = host.run_checked(command).unwrap().trim().to_owned();
    let folder = format!("/sys/bus/pci/devices/{address}");
    let group = host.run_checked(&format!("basename $(readlink {folder}/iommu_group)")).unwrap();
    let group = group.trim().to_owned();
    let (plan, apply) = (format!("plan -f {MANIFEST_PATH}"), format!("apply -f {MANIFEST_PATH}"));
    write_manifest(host, &format!("  devices: {{vfio: [{{pciAddress: '{address}'}}]}}"));

    let refused = run_agent(host, &plan, 1);
    assert!(refused.contains("modprobe vfio-pci"), "{refused}");
    host.run_checked("modprobe vfio-pci").unwrap();

    // The drive is in use: a file system, then a process that has it open.
    host.run_checked("mkfs.ext4 -q /dev/nvme1n1").unwrap();
    refresh_udev(host);
    let refused = run_agent(host, &apply, 1);
    assert!(refused.contains("nvme1n1 has signature ext4"), "{refused}");
    host.run_checked("wipefs -qa /dev/nvme1n1").unwrap();
    refresh_udev(host);
    host.start_command("echo $$ > /run/user.pid; exec sleep 1000 </dev/nvme1n1").unwrap();
    host.wait_until(
        "readlink /proc/$(cat /run/user.pid)/fd/0 | grep -qx /dev/nvme1n1",
        Duration::from_secs(60),
        "ps ax",
    )
    .unwrap();
    let refused = run_agent(host, &apply, 1);
    assert!(refused.contains("(sleep) has nvme1n1 open"), "{refused}");
    end_process(host, "! [ -e /proc/$(cat /run/user.pid)/fd/0 ]");

    let applied = run_agent(host, &apply, 0);
    assert!(applied.contains(&format!("pci {address} driver: nvme -> vfio-pci")), "{applied}");
    host.run_checked(&format!("test -c /dev/vfio/{group} && ! test -e /dev/nvme1n1")).unwrap();
    assert!(run_agent(host, &plan, 0).contains("nothing to do"));
    let report: Value =
        serde_json::from_str(&host.run_checked("berth-agent report -o json 2>/dev/null").unwrap())
            .unwrap();
    let drives = report["status"]["capabilities"]["nvme"].as_array().unwrap();
    let drive = drives.iter().find(|drive| drive["pciAddress"] == address).unwrap();
    assert_eq!(drive["driver"], "vfio-pci");
    assert_eq!(drive["iommuGroup"].to_string(), group);

    // Another program binds the driver again: the agent corrects the drift.
    host.run_checked(&format!(
        "echo > {folder}/driver_override; echo {address} > /sys/bus/pci/drivers/vfio-pci/unbind; \
         echo {address} > /sys/bus/pci/drivers_probe; udevadm settle"
    ))
    .unwrap();
    host.wait_until("test -b /dev/nvme1n1", Duration::from_secs(60), "dmesg | tail").unwrap();
    refresh_udev(host);
    run_agent(host, &apply, 0);

    // A process uses the function as a VM does: it is not released.
    host.start_command(&format!(
        "echo $$ > /run/user.pid; exec perl - {group} {address} <<'END'\n{OPEN_FUNCTION}END"
    ))
    .unwrap();
    let is_open = format!("grep -qx 1 {folder}/enable");
    host.wait_until(&is_open, Duration::from_secs(60), "cat /run/started-*").unwrap();
    let refused = run_agent(host, "revert", 1);
    let used = format!("IOMMU group {group} is in use: process ");
    assert!(refused.contains(&used) && refused.contains("(perl)"), "{refused}");
    assert_eq!(read_file(host, &format!("{folder}/driver_override")), "vfio-pci");
    end_process(host, &format!("grep -qx 0 {folder}/enable"));

    let reverted = run_agent(host, "revert", 0);
    assert!(reverted.contains(&format!("pci {address} driver: vfio-pci -> nvme")), "{reverted}");
    assert_eq!(read_file(host, &format!("{folder}/driver_override")), "(null)");
    host.wait_until("test -b /dev/nvme1n1", Duration::from_secs(60), "dmesg | tail").unwrap();
    assert_same(&before, &read_settings(host));
    host.run_checked("test ! -e /var/lib/berth/found.json").unwrap();
    write_sample_manifest(host);
}
