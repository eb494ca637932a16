//! Tests of the properties of emulated hosts on which other tests rely, with every kind of machine and every kernel.
//!
//! The tests are slow (QEMU without KVM), so `make hosts` runs them, and `make test` does not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use berth_tests::host::{Host, HostOptions, Kernel, Machine};

#[test]
#[ignore = "slow: make hosts"]
fn hosts_match_their_options_and_keep_their_state() {
    for (machine, kernel) in
        [(Machine::AmdV, Kernel::Stable), (Machine::IntelSmt, Kernel::Backports)]
    {
        let mut host =
            Host::boot(&HostOptions { machine, kernel, ..HostOptions::default() }).unwrap();
        check_processors_and_kernel(&mut host, machine);
        check_commands(&mut host);
        check_files(&mut host);
        check_reboots(&mut host);
        check_power_cuts(&mut host);
    }
}

fn check_processors_and_kernel(host: &mut Host, machine: Machine) {
    let (threads, zones) = match machine {
        Machine::AmdV | Machine::IntelNoSmt => ("1", ["0 1", "2 3"]),
        Machine::IntelTwoCores => ("1", ["0", "1"]),
        Machine::IntelSmt => ("2", ["0 1 2 3", "4 5 6 7"]),
    };
    let lscpu = host.run_checked("lscpu").unwrap();
    let value = |name: &str| {
        lscpu.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap().trim().to_owned()
    };
    assert_eq!(value("Thread(s) per core:"), threads);
    assert_eq!((value("Core(s) per socket:"), value("Socket(s):")), ("2".into(), "2".into()));
    let numactl = host.run_checked("numactl -H").unwrap();
    for (zone, cpus) in zones.iter().enumerate() {
        assert!(numactl.contains(&format!("node {zone} cpus: {cpus}\n")), "{numactl}");
    }
    let advisor = host.run("cat /sys/kernel/mm/ksm/advisor_mode").unwrap().code == 0;
    let release = host.run_checked("uname -r").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    // KSM has an advisor since Linux 6.8: the kernel of bookworm-backports has the advisor, and the kernel of bookworm
    // does not.
    assert_eq!(advisor, version >= (6, 8), "kernel {release}");
    assert_eq!(host.run_checked("hostname").unwrap(), "rack1-a\n");
}

fn check_commands(host: &mut Host) {
    let result = host.run("echo out; echo err >&2; cat; exit 3").unwrap();
    assert_eq!((result.code, result.output.as_str()), (3, "out\nerr\n"));
    assert_eq!(host.run_checked("true").unwrap(), "");
    // Background output neither delays a command nor appears in the output of the next command.
    host.run_checked("for i in $(seq 50); do sleep 0.1; echo noise; done &").unwrap();
    assert_eq!(host.run_checked("sleep 1; echo mine").unwrap(), "mine\n");
    let late = host.run_for("echo begun; sleep 100", Duration::from_secs(2)).unwrap_err();
    assert!(format!("{late:#}").contains("timeout after 2 s; output: begun"), "{late:#}");
    assert_eq!(host.run("pgrep -xf 'sleep 100'").unwrap().code, 1);

    let file = host.start_command("echo 'from afar'; sleep 1; echo \"done\"").unwrap();
    host.run_checked(&format!("until grep -q done {file}; do sleep 0.2; done; grep afar {file}"))
        .unwrap();
}

fn check_files(host: &mut Host) {
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("file");
    // The second file is shorter, and its content must not contain the rest of the first file.
    for (size, byte) in [(20 << 20, b'a'), (1001, b'b')] {
        std::fs::write(&local, vec![byte; size]).unwrap();
        std::fs::set_permissions(&local, std::fs::Permissions::from_mode(0o750)).unwrap();
        host.copy_file(&local, "/opt/a folder/file").unwrap();
        let output = host.run_checked("stat -c '%s %a' '/opt/a folder/file'").unwrap();
        assert_eq!(output, format!("{size} 750\n"));
        let others = format!("tr -d {} <'/opt/a folder/file' | wc -c", char::from(byte));
        assert_eq!(host.run_checked(&others).unwrap(), "0\n");
    }
    let error = host.copy_file(&folder.path().join("none"), "/opt/none").unwrap_err();
    assert!(format!("{error:#}").contains("none"), "{error:#}");
}

fn read_boot_id(host: &mut Host) -> String {
    host.run_checked("cat /proc/sys/kernel/random/boot_id").unwrap()
}

fn check_reboots(host: &mut Host) {
    let before = read_boot_id(host);
    host.run_checked("echo kept >/root/kept").unwrap();
    host.reboot().unwrap();
    assert_ne!(read_boot_id(host), before);
    assert_eq!(host.run_checked("cat /root/kept").unwrap(), "kept\n");
    // An unexpected restart is an error, and the host can be restored afterwards.
    let error = host.run("echo b >/proc/sysrq-trigger; sleep 100").unwrap_err();
    assert!(format!("{error:#}").contains("restarted"), "{error:#}");
    assert!(host.run("true").is_err());
    host.wait_for_reboot().unwrap();
    host.start_command("sleep 2; echo c >/proc/sysrq-trigger").unwrap();
    let error = host.wait_for_reboot().unwrap_err();
    assert!(format!("{error:#}").contains("the kernel of the host panicked"), "{error:#}");
}

fn check_power_cuts(host: &mut Host) {
    // After the panic above the host is off.
    host.power_cycle().unwrap();
    host.run_checked("echo flushed >/root/flushed; sync /root/flushed").unwrap();
    host.start_command("while :; do date >>/root/busy; done").unwrap();
    host.run_checked("echo lost >/root/lost").unwrap();
    host.power_cycle().unwrap();
    assert_eq!(host.run_checked("cat /root/flushed").unwrap(), "flushed\n");
    assert_ne!(host.run("cat /root/lost").unwrap().output, "lost\n");
}
