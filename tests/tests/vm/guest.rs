//! Consoles of guests. The guest prints one line when it has its addresses, and one line whenever the result of its
//! pings changes.

use serde_json::Value;

use crate::machines::{Machine, Vm};
use crate::testbed::{TIMEOUT, Testbed, text};

/// Words that the guest prints when it is up.
const GUEST_IS_UP: &str = "guest is up";

impl Testbed {
    /// Waits until the guest of a VM is up, and returns its console.
    pub(crate) fn wait_until_guest_is_up(&mut self, vm: &Vm) -> String {
        self.wait_until_printed(vm, GUEST_IS_UP)
    }

    /// Tests that the guest's DHCP client has the address that Berth assigned to the machine.
    pub(crate) fn assert_guest_has_its_lease(&self, vm: &Vm, console: &str) {
        let claims = self.plane.get_json(&["addressclaims"]).unwrap();
        let claims = claims["items"].as_array().unwrap();
        let is_of_vm = |claim: &&Value| {
            let machine = &claim["spec"]["machine"];
            machine["namespace"] == vm.namespace && machine["name"] == vm.name
        };
        let claim = claims.iter().find(is_of_vm);
        let claim = claim.unwrap_or_else(|| panic!("{} has no address: {claims:#?}", vm.name));
        let card = format!("{} {}/", vm.mac, text(&claim["spec"]["address"]));
        assert!(console.contains(&card), "no `{card}` in:\n{console}");
    }

    /// Waits until the guest's ping of the machine's peer is answered, and returns the console.
    pub(crate) fn wait_until_ping_is_answered(&mut self, vm: &Vm, machine: &Machine) -> String {
        self.wait_until_printed(vm, &ping_result(machine, "ok"))
    }

    /// Waits until the console of a guest has a line with these words, and returns the console.
    fn wait_until_printed(&mut self, vm: &Vm, words: &str) -> String {
        let condition = format!("grep -qF '{words}' {}", log_files(vm));
        let printed = self.hosts[vm.host].host.wait_until(&condition, TIMEOUT, "uptime");
        if let Err(error) = printed {
            let console = self.console(vm);
            panic!("{error:#}\n--- console of {} ---\n{console}\n{}", vm.name, self.diagnose());
        }
        self.console(vm)
    }

    /// Returns the console of a guest, without the timestamps that containerd adds.
    pub(crate) fn console(&mut self, vm: &Vm) -> String {
        let read = format!("cat {} 2>/dev/null; true", log_files(vm));
        let log = self.hosts[vm.host].host.run_checked(&read).unwrap();
        let line =
            |line: &str| line.splitn(4, ' ').nth(3).map(|text| format!("{}\n", text.trim_end()));
        log.lines().filter_map(line).collect()
    }
}

/// Returns the line that a guest prints when the result of its pings has become `result`: `ok` or `lost`.
pub(crate) fn ping_result(machine: &Machine, result: &str) -> String {
    format!("guest ping {}: {result}", machine.peer)
}

/// Returns a pattern of the log files of the container that copies the serial console.
fn log_files(vm: &Vm) -> String {
    format!("/var/log/pods/{}_{}_{}/guest-console-log/*.log", vm.namespace, vm.pod, vm.uid)
}
