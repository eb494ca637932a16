//! Tests of tenant networks on two emulated hosts, connected by one cable or switch: which VMs reach each other, which
//! links stay up, and which state is restored.
//!
//! `make test` runs these tests with a few kills; `make faults` runs the same tests with many kills and more severe
//! faults.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "networks/addresses.rs"]
mod addresses;
#[path = "networks/bad_input.rs"]
mod bad_input;
#[path = "networks/daemon.rs"]
mod daemon;
#[path = "networks/definitions.rs"]
mod definitions;
#[path = "networks/desired_networks.rs"]
mod desired_networks;
#[path = "networks/faults.rs"]
mod faults;
#[path = "networks/frames.rs"]
mod frames;
#[path = "networks/management.rs"]
mod management;
#[path = "networks/running_pings.rs"]
mod running_pings;
#[path = "networks/server_lost.rs"]
mod server_lost;
#[path = "networks/source_guard.rs"]
mod source_guard;
#[path = "networks/traffic.rs"]
mod traffic;
#[path = "networks/trunk.rs"]
mod trunk;

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_tests::demo::hub::Hub;
use berth_tests::host::{Host, HostOptions, Kernel, Machine, Trunk};
use berth_tests::repository;

/// Path of the manifest on a host.
const MANIFEST_PATH: &str = "/etc/berth/infranode.yaml";
/// Name of the cable's end on a host.
const UPLINK_NAME: &str = "trunk0";

/// Boots two hosts with these numbers in parallel, with a cable between them. If `has_loopback_access` is true, the
/// second host reaches this machine's loopback.
fn boot(numbers: [u8; 2], kernel: Kernel, has_loopback_access: bool) -> [Host; 2] {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = numbers.map(|number| folder.path().join(number.to_string()));
    let cables = [
        Trunk { local_socket: &first, peer_socket: &second },
        Trunk { local_socket: &second, peer_socket: &first },
    ];
    let hosts = boot_with_cables(numbers, cables, kernel, has_loopback_access);
    // QEMU has opened the sockets by now, and a host that restarts creates its sockets again, so the folder must not be
    // deleted.
    drop(folder.keep());
    hosts
}

/// Boots two hosts with these numbers, with a switch between them, whose ports can lack VLANs.
fn boot_on_switch(numbers: [u8; 2], kernel: Kernel) -> (Hub, [Host; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let switch = Hub::new(folder.path(), 2).unwrap();
    switch.connect_control_cables().unwrap();
    let cables = [0, 1].map(|port| switch.cable(port).unwrap());
    let hosts = boot_with_cables(numbers, cables, kernel, false);
    drop(folder.keep());
    (switch, hosts)
}

/// Boots two hosts with these numbers in parallel, each with its end of a cable.
fn boot_with_cables(
    numbers: [u8; 2],
    cables: [Trunk<'_>; 2],
    kernel: Kernel,
    has_loopback_access: bool,
) -> [Host; 2] {
    let start = |number: u8, trunk: Trunk<'_>, has_loopback_access: bool| {
        let agent = berth_tests::program("berth-agent");
        let mut host = Host::boot(&HostOptions {
            agent: Some(&agent),
            number,
            machine: Machine::IntelTwoCores,
            kernel,
            memory_mib: Some(1536),
            trunk: Some(trunk),
            has_loopback_access,
            ..HostOptions::default()
        })
        .unwrap();
        host.run_checked("udevadm settle --timeout 100; modprobe -a 8021q bridge vxlan").unwrap();
        rename_uplink(&mut host);
        host.copy_file(&repository().join("tests/host/tenants.sh"), "/usr/local/bin/tenants")
            .unwrap();
        host.copy_file(&repository().join("tests/host/frames.pl"), "/usr/local/bin/frames")
            .unwrap();
        host
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| start(numbers[0], cables[0], false));
        let second = scope.spawn(|| start(numbers[1], cables[1], has_loopback_access));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

fn rename_uplink(host: &mut Host) {
    let number = host.number();
    host.run_checked(&format!(
        "for link in /sys/class/net/*; do \
           if [ \"$(cat $link/address)\" = 52:54:00:be:27:{number:02x} ]; then \
             ip link set ${{link##*/}} down && ip link set ${{link##*/}} name {UPLINK_NAME}; fi; done; \
         ip link set {UPLINK_NAME} mtu 2000 up; \
         ip netns add control && for link in /sys/class/net/*; do \
           if [ \"$(cat $link/address)\" = 52:54:00:be:28:{number:02x} ]; then \
             ip link set ${{link##*/}} netns control name control0; fi; done; \
         ip -n control address add 10.77.0.{number}/24 dev control0 && ip -n control link set control0 up"
    ))
    .unwrap();
}

/// Returns a manifest with these networks and tenants, which are YAML flow maps.
fn manifest(networks: &[&str], tenants: &[&str]) -> String {
    let list =
        |items: &[&str]| items.iter().map(|item| format!("  - {item}\n")).collect::<String>();
    format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n  networks:\n{}  \
         tenantNetworks:\n{}",
        list(networks),
        list(tenants)
    )
}

/// Writes the manifest as an editor does: to a temporary file that is then renamed.
fn write_manifest(host: &mut Host, manifest: &str) {
    host.run_checked(&format!(
        "[ -d /etc/berth ] || mkdir -p /etc/berth; cat > {MANIFEST_PATH}.new <<'END'\n{manifest}END\nmv {MANIFEST_PATH}.new {MANIFEST_PATH}"
    ))
    .unwrap();
}

fn apply(host: &mut Host, manifest: &str) -> String {
    write_manifest(host, manifest);
    let output = host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    let again = host.run_checked(&format!("berth-agent plan -f {MANIFEST_PATH}")).unwrap();
    assert!(again.contains("nothing to do"), "a second plan is not empty:\n{again}");
    output
}

/// Runs a function on both hosts at the same time, with the index of the host, and returns the results in the order of
/// the hosts.
fn run_on_both_hosts<T: Send>(
    hosts: &mut [Host; 2],
    function: impl Fn(usize, &mut Host) -> T + Sync,
) -> [T; 2] {
    let [first, second] = hosts;
    let function = &function;
    std::thread::scope(|scope| {
        let second = scope.spawn(move || function(1, second));
        let first = function(0, first);
        match second.join() {
            Ok(second) => [first, second],
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the output of a table without its line breaks.
fn join_lines(table: &str) -> String {
    table.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Adds a VLAN link to the uplink for traffic between the hosts.
fn add_management_link(host: &mut Host) {
    host.run_checked(&format!(
        "ip link add link {UPLINK_NAME} name mgmt0 type vlan id 10; ip link set mgmt0 up"
    ))
    .unwrap();
    wait_for_link_local_address(host, "mgmt0");
}

/// Waits for the link-local address of a link, which the kernel adds some time after the link is up.
fn wait_for_link_local_address(host: &mut Host, link: &str) {
    host.run_checked(&format!(
        "until ip -6 route show table local dev {link} | grep -q '^local fe80'; do sleep 0.1; done"
    ))
    .unwrap();
}

/// Returns the kernel's state of links, bridges and addresses, without counters and timers.
fn read_link_state(host: &mut Host) -> String {
    read_until_stable(host, |host| host.run_checked("tenants links").unwrap())
}

/// Reads a state until two consecutive results are equal. The kernel updates carriers and operational states up to a
/// second after a change (linkwatch).
fn read_until_stable(host: &mut Host, read: impl Fn(&mut Host) -> String) -> String {
    let mut last = read(host);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(1200));
        let state = read(host);
        if state == last {
            break;
        }
        last = state;
    }
    last
}

/// Asserts that the links have the state `before` again.
#[track_caller]
fn assert_link_state(before: &str, host: &mut Host) {
    assert_state(before, host, |host| host.run_checked("tenants links").unwrap());
}

/// Asserts that a state equals `before`, after the kernel has updated the state.
#[track_caller]
fn assert_state(before: &str, host: &mut Host, read: impl Fn(&mut Host) -> String) {
    let mut after = read(host);
    for _ in 0..20 {
        if before == after {
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
        after = read(host);
    }
    let missing = |state: &str, other: &str, sign: &str| {
        let lines = state.lines().filter(|line| !other.lines().any(|known| known == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    let difference = missing(before, &after, "-") + missing(&after, before, "+").as_str();
    let difference: String = difference.chars().take(4000).collect();
    panic!("the links differ from their former state:\n{difference}");
}

#[test]
fn tenant_networks_are_isolated() {
    run_on_hosts(
        || ((), boot([11, 12], Kernel::Stable, false)),
        |(), hosts| {
            // Each of these scenarios needs one host, so the hosts run different scenarios at the same time.
            run_on_both_hosts(hosts, |index, host| {
                if index == 0 {
                    frames::networks_are_not_created_without_nftables(host);
                    bad_input::invalid_networks_are_reported_and_others_are_created(host);
                } else {
                    faults::killed_commands_are_completed(host, 5);
                }
            });
            traffic::tenants_are_isolated_in_each_scenario(hosts);
            definitions::tenants_are_isolated_by_definitions(hosts);
            daemon::daemon_maintains_networks(hosts);
        },
    );
}

/// `tests/run.sh` runs this test in a process of its own, in parallel to the other.
#[test]
fn addresses_and_trunks_reach_both_hosts() {
    run_on_hosts(
        || boot_on_switch([21, 22], Kernel::Stable),
        |switch, hosts| {
            addresses::vms_get_the_addresses_of_their_leases(hosts);
            source_guard::foreign_addresses_are_dropped(hosts);
            management::management_traffic_is_kept(hosts, false);
            trunk::missing_vlan_is_reported_by_both_hosts(switch, hosts);
        },
    );
}

/// Slow test of rare faults.
#[test]
#[ignore = "slow: make faults"]
fn faults_during_changes_are_tolerated() {
    run_on_two_hosts([13, 14], Kernel::Backports, |hosts| {
        management::management_traffic_is_kept(hosts, true);
        faults::killed_commands_are_completed(&mut hosts[0], 50);
        faults::no_event_of_four_thousand_links_is_missed(&mut hosts[0]);
    });
}

/// Slow test, run by `make faults`.
#[test]
#[ignore = "slow: make faults"]
fn faults_of_hosts_are_tolerated() {
    run_on_two_hosts([15, 16], Kernel::Backports, |hosts| {
        faults::thousand_tenants_survive_a_flapping_uplink(&mut hosts[0]);
        faults::tenants_survive_other_network_managers(&mut hosts[0]);
    });
}

/// Slow test, run by `make faults`.
#[test]
#[ignore = "slow: make faults"]
fn faults_of_power_are_tolerated() {
    run_on_two_hosts([17, 18], Kernel::Backports, |hosts| {
        faults::networks_are_restored_after_power_cuts(&mut hosts[0], 20);
    });
}

/// Slow test that needs a control plane.
#[test]
#[ignore = "slow: make faults"]
fn faults_of_servers_are_tolerated() {
    run_on_hosts(
        || ((), boot([19, 20], Kernel::Backports, true)),
        |(), hosts| {
            server_lost::change_is_rolled_back_when_the_server_is_unreachable(hosts);
        },
    );
}

fn run_on_two_hosts(numbers: [u8; 2], kernel: Kernel, scenario: fn(&mut [Host; 2])) {
    run_on_hosts(|| ((), boot(numbers, kernel, false)), |(), hosts| scenario(hosts));
}

/// Runs a scenario on two hosts and their connection, and repeats the scenario on new hosts if the emulation itself
/// failed. The tests of a process run sequentially: three pairs of hosts and those of other programs would need too much
/// memory.
fn run_on_hosts<T>(boot: impl Fn() -> (T, [Host; 2]), scenario: impl Fn(&T, &mut [Host; 2])) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for last in [false, true] {
        let (connection, mut hosts) = boot();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scenario(&connection, &mut hosts);
        }));
        match result {
            Ok(()) => return,
            Err(_) if !last && hosts.iter().any(Host::failed_by_emulation) => {
                writeln!(
                    std::io::stderr(),
                    "a kernel failed because of the emulation; the test restarts"
                )
                .unwrap_or_default();
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
