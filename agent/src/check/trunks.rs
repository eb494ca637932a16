//! Checks of trunks: VLANs that the switches do not carry.

use super::definition::Check;
use super::input::Input;
use crate::state_folder::TRUNK_FILE;
use crate::trunk_reasons::most_urgent_unknown;
use berth_api::infra_node::{TrunkState, TrunkUnknownReason};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "network.trunk",
    title: "the switches carry the VLANs of tenants",
    explanation: "A VLAN that the switches do not carry connects the VMs of one host, but not the VMs of different hosts. The \
        daemon exchanges probe frames with other hosts in every VLAN; this check reads its last result.",
    run: check_trunk,
}];

fn check_trunk(input: &Input) -> Outcome {
    let record = input.trunks.as_ref().filter(|record| !record.networks.is_empty());
    let Some(record) = record else {
        return Outcome::skip(
            "only the daemon (berth-agent run) probes trunks, and it has saved no result since this host booted",
        );
    };
    let with_state = |state| record.networks.iter().find(|(_, trunk)| trunk.state == state);
    let path = format!("/{TRUNK_FILE}");
    if let Some((network, trunk)) = with_state(TrunkState::Missing) {
        let vlans = trunk.vlans.as_ref().map(|vlans| vlans.ids().to_string()).unwrap_or_default();
        let from = trunk.from.join(", ");
        return Outcome::fail(format!("{network}: VLAN {vlans} is not received from {from}"))
            .with_evidence(path, format!("{network}: Missing {vlans}"))
            .remedy(format!(
                "add VLAN {vlans} to the switch ports of this host and of {from}, and to the ports between the switches"
            ));
    }
    if let Some((network, trunk)) = most_urgent_unknown(&record.networks) {
        let message = trunk.message.clone().unwrap_or_default();
        let outcome = Outcome::warn(format!("{network}: {message}"))
            .with_evidence(path, format!("{network}: Unknown"));
        return match trunk.reason {
            Some(TrunkUnknownReason::NoKey) => outcome.remedy(
                "openssl rand -hex 32 > /etc/berth/trunk.key; chmod 600 /etc/berth/trunk.key; copy the file to all hosts",
            ),
            Some(TrunkUnknownReason::ProbeFailed) => {
                outcome.remedy("ip link show; journalctl -u berth-agent; the agent needs CAP_NET_RAW")
            }
            Some(TrunkUnknownReason::VlansWithoutPeers) => outcome.remedy(
                "kubectl get inode -o yaml: if another host has these VLANs, add them to the switch ports of both \
                 hosts",
            ),
            // It is no fault if this host is the only host, or the first host with these VLANs.
            Some(TrunkUnknownReason::NoPeers) | None => {
                Outcome::skip(format!("{network}: {message}"))
            }
        };
    }
    Outcome::pass(
        "at least one other host carries each VLAN, and probes arrive from all hosts that carry it",
    )
    .with_evidence(path, "Verified")
}

#[cfg(test)]
mod tests {
    use berth_api::VlanSet;
    use berth_api::infra_node::TrunkStatus;
    use berth_host_facts::HostFacts;
    use berth_runtime::check::Status;

    use super::super::test_helpers::run_check_with_input;
    use super::*;
    use crate::state_folder::TrunkRecord;

    fn outcome(trunk: TrunkStatus) -> Outcome {
        let facts = HostFacts::default();
        let networks = [("tenants".to_owned(), trunk)].into();
        let trunks = Some(TrunkRecord { boot_id: String::new(), networks });
        run_check_with_input("network.trunk", &Input { trunks, ..Input::from_facts(&facts) })
    }

    #[test]
    fn missing_vlan_is_named_with_the_hosts() {
        let vlans: VlanSet = "120".parse().unwrap();
        let missing = outcome(TrunkStatus {
            state: TrunkState::Missing,
            vlans: Some(vlans.into()),
            from: vec!["rack1-b".to_owned()],
            ..TrunkStatus::default()
        });
        assert_eq!(missing.status, Status::Fail);
        assert!(missing.message.contains("tenants: VLAN 120 is not received from rack1-b"));
        let unknown = |reason| outcome(TrunkStatus { reason, ..TrunkStatus::default() }).status;
        assert_eq!(unknown(Some(TrunkUnknownReason::NoKey)), Status::Warn);
        assert_eq!(unknown(Some(TrunkUnknownReason::NoPeers)), Status::Skip);
        assert_eq!(unknown(Some(TrunkUnknownReason::VlansWithoutPeers)), Status::Warn);
        let verified =
            outcome(TrunkStatus { state: TrunkState::Verified, ..TrunkStatus::default() });
        assert_eq!(verified.status, Status::Pass);
    }
}
