//! Machines whose creation was interrupted: their AddressClaims exist, but the controller was stopped before it created
//! the VirtualMachine. The next machine of the MachineDeployment gets the name and the claims of such a machine, so
//! that no claim remains unused.

use berth_api::ClaimingMachine;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::claims::NetworkClaims;
use super::pools::NetworkPools;
use super::release::{creation_deadline, is_released};
use crate::managed_by::is_created_by_berth;

/// Selects the machines of one MachineDeployment and revision.
#[derive(Clone, Copy, Debug)]
pub struct RevisionMachines<'a> {
    /// UID of the TenantCluster.
    pub tenant_uid: &'a str,
    pub namespace: &'a str,
    /// Prefix of the names of the machines. The rest of each name contains no dash.
    pub name_prefix: &'a str,
    /// Interface for which the machines have claims.
    pub interface: &'a str,
}

/// Returns the names of the machines whose creation was interrupted. `was_created` returns true for a machine that
/// exists or was deleted.
///
/// A claim is considered only until the deadline for the creation of its machine. The claim of a deleted machine is
/// therefore mistaken for that of an interrupted creation only if the machine was deleted soon after its creation,
/// while no controller was running.
pub fn interrupted_machines(
    machines: RevisionMachines<'_>,
    claims: &NetworkClaims,
    pools: &NetworkPools,
    now: Timestamp,
    was_created: impl Fn(&str) -> bool,
) -> Vec<String> {
    let RevisionMachines { tenant_uid, namespace, name_prefix, interface } = machines;
    let is_usable = |machine: &ClaimingMachine| {
        let mut own = claims.of_interface(machine, interface).peekable();
        own.peek().is_some()
            && own.all(|claim| {
                is_created_by_berth(claim.labels())
                    && claim.spec.tenant_uid == tenant_uid
                    && !is_released(claim)
                    && claim.metadata.deletion_timestamp.is_none()
                    && creation_deadline(claim).is_some_and(|deadline| now < deadline)
                    && pools.iter().any(|pool| pool.permits(claim.spec.address))
            })
    };
    let candidates = claims.machines_with_prefix(namespace, name_prefix).filter(|machine| {
        let suffix = machine.name.strip_prefix(name_prefix).unwrap_or_default();
        !suffix.is_empty() && !suffix.contains('-')
    });
    candidates
        .filter(|machine| !was_created(&machine.name) && is_usable(machine))
        .map(|machine| machine.name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::AddressClaim;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::super::choose::test_helpers::{claim, pools, released};
    use super::*;

    const PREFIX: &str = "web-abc-";

    /// Returns the interrupted machines at the Unix time 1100 s.
    fn find(claims: &[AddressClaim]) -> Vec<String> {
        let mut all = NetworkClaims::default();
        claims.iter().for_each(|claim| all.insert(Arc::new(claim.clone())));
        let machines = RevisionMachines {
            tenant_uid: "u-1",
            namespace: "cluster-a",
            name_prefix: PREFIX,
            interface: "tenant",
        };
        let pools = pools(json!({"ipv4": {"cidr": "10.0.0.0/24"}, "ipv6": {"cidr": "fd00::/64"}}));
        let now = Timestamp::from_second(1100).unwrap();
        interrupted_machines(machines, &all, &pools, now, |name| name.ends_with("old"))
    }

    fn claim_since(second: i64, address: &str, name: &str) -> AddressClaim {
        let mut claim = claim(address, name);
        let created = Timestamp::from_second(second).unwrap();
        claim.metadata.creation_timestamp = Some(Time(created));
        claim
    }

    #[test]
    fn only_recent_claims_without_a_machine_are_used() {
        let recent = |address: &str, name: &str| claim_since(1000, address, name);
        // The controller may have stopped after it created the IPv4 claim and before it created the IPv6 claim.
        let one = [
            recent("10.0.0.2", "web-abc-one"),
            recent("10.0.0.3", "web-abc-two"),
            recent("fd00::3", "web-abc-two"),
        ];
        assert_eq!(find(&one), ["web-abc-one", "web-abc-two"]);
        let mut other_tenant = recent("10.0.0.4", "web-abc-a");
        other_tenant.spec.tenant_uid = "u-2".to_owned();
        let mut reserved = recent("10.0.0.5", "web-abc-b");
        reserved.metadata.labels = None;
        let mut quarantined = released("10.0.0.6", "web-abc-c", 1050);
        quarantined.metadata.creation_timestamp = Some(Time(Timestamp::from_second(1000).unwrap()));
        let mut other_interface = recent("10.0.0.7", "web-abc-d");
        other_interface.spec.interface = "additional-1".to_owned();
        for unused in [
            other_tenant,
            reserved,
            quarantined,
            other_interface,
            recent("10.0.0.8", "web-abc-old"),
            recent("10.0.0.9", "web-abd-x"),
            // This claim belongs to a machine of another MachineDeployment, which has the name `web-abc`.
            recent("10.0.0.10", "web-abc-rev-x"),
            recent("10.0.0.11", PREFIX),
            recent("192.0.2.1", "web-abc-e"),
            claim_since(900, "10.0.0.12", "web-abc-f"),
            claim("10.0.0.13", "web-abc-g"),
        ] {
            assert!(find(std::slice::from_ref(&unused)).is_empty(), "{unused:?}");
        }
        // A machine is interrupted only if all its claims are usable.
        let mixed = [recent("10.0.0.2", "web-abc-h"), recent("192.0.2.1", "web-abc-h")];
        assert!(find(&mixed).is_empty());
    }
}
