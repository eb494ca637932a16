//! Checks of the addresses of VMs: addresses that other machines use.

use super::definition::Check;
use super::input::Input;
use crate::state_folder::CONFLICTS_FILE;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "network.addresses",
    title: "no other machine uses the address of a VM",
    explanation: "Before the daemon serves the address of a VM for the first time, it probes the tenant's network for another \
        machine that uses the address. If there is one, the VM gets no answer to its DHCP requests, because both machines \
        would lose connections.",
    run: check_addresses,
}];

fn check_addresses(input: &Input) -> Outcome {
    let Some(record) = &input.conflicts else {
        return Outcome::skip(
            "the daemon (berth-agent run) has found no address in use since this host booted",
        );
    };
    let path = format!("/{CONFLICTS_FILE}");
    let Some(first) = record.conflicts.first() else {
        return Outcome::pass("no other machine uses the address of a VM")
            .with_evidence(path, "no conflict");
    };
    let user = match first.mac {
        Some(mac) => format!("a machine with MAC address {mac}"),
        None => "another machine, according to the guest".to_owned(),
    };
    let message = format!(
        "{}: {} of {} is in use by {user} (addresses in use: {})",
        first.network,
        first.address,
        first.machine,
        record.conflicts.len()
    );
    Outcome::warn(message)
        .with_evidence(path, format!("{} {}", first.network, first.address))
        .remedy(
            "stop that machine: the agent tries again after at most five minutes; or exclude the address from the pool of the \
             TenantCluster, and delete the VM: its replacement gets another address",
        )
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::AddressConflictStatus;
    use berth_host_facts::HostFacts;
    use berth_runtime::check::Status;

    use super::super::test_helpers::run_check_with_input;
    use super::*;
    use crate::state_folder::ConflictRecord;

    fn outcome(conflicts: Option<Vec<AddressConflictStatus>>) -> Outcome {
        let facts = HostFacts::default();
        let conflicts =
            conflicts.map(|conflicts| ConflictRecord { boot_id: String::new(), conflicts });
        run_check_with_input("network.addresses", &Input { conflicts, ..Input::from_facts(&facts) })
    }

    #[test]
    fn both_machines_are_named() {
        assert_eq!(outcome(None).status, Status::Skip);
        assert_eq!(outcome(Some(Vec::new())).status, Status::Pass);
        let conflict = |mac| AddressConflictStatus {
            network: "cluster-a".to_owned(),
            address: [10, 0, 0, 7].into(),
            machine: "cluster-a/worker-0".to_owned(),
            mac,
        };
        let other = Some(berth_api::MacAddress([2, 0, 0, 0, 0, 9]));
        let found = outcome(Some(vec![conflict(other), conflict(None)]));
        assert_eq!(found.status, Status::Warn);
        let start = "cluster-a: 10.0.0.7 of cluster-a/worker-0 is in use by a machine with MAC address 02:00:00:00:00:09 (addresses in use: 2)";
        assert!(found.message.starts_with(start), "{}", found.message);
    }
}
