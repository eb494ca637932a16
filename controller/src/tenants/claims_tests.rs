//! Tests of the choice of VLANs, by controllers that may be killed at any moment and observe only some of the claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::Time;
use berth_api::{InfraConfigSpec, VlanClaim, VlanClaimStatus};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::tenants::claim_gc::{ClaimAction, LiveTenant, due_actions, next_action};

fn config(ranges: &str) -> InfraConfigSpec {
    serde_json::from_value(json!({
        "vlanPools": [{"network": "trunk", "ranges": [ranges]}, {"network": "other", "ranges": ["7"]}],
        "vniRange": "10000-10002", "vlanQuarantineSeconds": 60,
    }))
    .unwrap()
}

fn vlan(id: u16) -> NetworkId {
    NetworkId::Vlan(id.try_into().unwrap())
}

fn request<'a>(tenant: &'a str, uid: &'a str) -> IdRequest<'a> {
    IdRequest {
        tenant,
        uid,
        network: "trunk",
        uses_vnis: false,
        requested_id: None,
        recorded_id: None,
    }
}

fn claim(id: u16, tenant: &str, uid: &str, released: Option<i64>) -> Arc<VlanClaim> {
    let mut claim = vlan(id).to_claim("trunk", tenant, uid);
    let released_at = released.map(|second| Time(Timestamp::from_second(second).unwrap()));
    claim.status = released.map(|_| VlanClaimStatus { released_at });
    Arc::new(claim)
}

/// Chooses a VLAN on network `trunk` for a request, with these pool ranges, claims and refused names.
fn choose_with(
    request: IdRequest<'_>,
    ranges: &str,
    claims: &[Arc<VlanClaim>],
    refused: &[&str],
    foreign: &[u16],
) -> Result<(String, NetworkId), Fault> {
    let config = config(ranges);
    let refused: BTreeSet<String> = refused.iter().map(|name| (*name).to_owned()).collect();
    let foreign: BTreeMap<NetworkId, String> =
        foreign.iter().map(|id| (vlan(*id), "legacy/net".to_owned())).collect();
    let claim_state =
        ClaimState { config: &config, claims, refused_names: &refused, foreign_ids: &foreign };
    choose_id(request, claim_state).map(|choice| match choice {
        IdChoice::KeepClaim(id) => ("have".to_owned(), id),
        IdChoice::Create(id) => ("create".to_owned(), id),
        IdChoice::TakeOver(id, claim) => (format!("take over {}", claim.spec.tenant_uid), id),
    })
}

fn created(id: u16) -> (String, NetworkId) {
    ("create".to_owned(), vlan(id))
}

#[test]
fn a_recreated_tenant_requests_the_same_vlan() {
    let first = choose_with(request("abc", "1"), "100-199", &[], &[], &[]).unwrap();
    assert_eq!(first, choose_with(request("abc", "2"), "100-199", &[], &[], &[]).unwrap());
    // The hash must not change: after an upgrade of Berth, a tenant that is created again must request the same VLAN.
    assert_eq!(first.1.number(), 175);
    let other = choose_with(request("abd", "3"), "100-199", &[], &[], &[]).unwrap();
    assert_ne!(first, other);
}

#[test]
fn vlans_in_use_are_skipped() {
    let claims = [claim(100, "x", "9", None), claim(101, "y", "8", Some(0))];
    let chosen = choose_with(request("abc", "1"), "100-104", &claims, &["trunk-102"], &[103]);
    assert_eq!(chosen, Ok(created(104)));
    let fault =
        choose_with(request("abc", "1"), "100-103", &claims, &["trunk-102"], &[103]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PoolExhausted);
    assert_eq!(
        fault.message,
        "network trunk: all 4 VLANs of 100-103 are in use: 2 by tenants, 1 in quarantine, the \
         first until \
         1970-01-01T00:01:00Z, 1 by NetworkAttachmentDefinitions of other users; extend \
         spec.vlanPools"
    );
    // VLAN 1 is never chosen, even if the InfraConfig contains it in the pool. Pools of other networks are not used.
    assert_eq!(
        choose_with(request("abc", "1"), "1", &[], &[], &[]).unwrap_err().reason,
        ConditionReason::NoPool
    );
    let mut other_network = request("abc", "1");
    other_network.network = "nowhere";
    let fault = choose_with(other_network, "100", &[], &[], &[]).unwrap_err();
    assert_eq!(
        fault.message,
        "InfraConfig default: spec.vlanPools has no pool for network nowhere"
    );
}

#[test]
fn a_requested_vlan_may_be_outside_the_pool_but_must_be_free() {
    let fixed = |id| IdRequest { requested_id: Some(vlan(id)), ..request("abc", "1") };
    let claims = [claim(300, "x", "9", None), claim(301, "y", "8", Some(0))];
    assert_eq!(choose_with(fixed(299), "100", &claims, &[], &[]), Ok(created(299)));
    for (id, words) in [
        (300, "tenant x has"),
        (301, "tenant y released, and which is in quarantine until"),
        (302, "NetworkAttachmentDefinition legacy/net uses"),
        (1, "default VLAN"),
    ] {
        let fault = choose_with(fixed(id), "100", &claims, &[], &[302]).unwrap_err();
        assert!(fault.message.contains(words), "{fault}");
    }
    let fault =
        choose_with(fixed(120), "100", &[claim(110, "abc", "1", None)], &[], &[]).unwrap_err();
    assert!(fault.message.contains("requests VLAN 120, but the tenant has VLAN 110"), "{fault}");
    let vni = IdRequest { requested_id: Some(NetworkId::Vni(5)), ..request("abc", "1") };
    let fault = choose_with(vni, "100", &[], &[], &[]).unwrap_err();
    assert!(fault.message.contains("have VLANs"), "{fault}");
}

#[test]
fn vnis_are_chosen_like_vlans() {
    let of_vni = IdRequest { uses_vnis: true, ..request("abc", "1") };
    let (action, id) = choose_with(of_vni, "100", &[], &[], &[]).unwrap();
    assert_eq!(action, "create");
    assert!(matches!(id, NetworkId::Vni(10_000..=10_002)));
    let all = ["trunk-vni-10000", "trunk-vni-10001", "trunk-vni-10002"];
    assert_eq!(
        choose_with(of_vni, "100", &[], &all, &[]).unwrap_err().reason,
        ConditionReason::PoolExhausted
    );
}

/// A controller that is restarted at any moment finds the existing claim in the next reconcile.
#[test]
fn an_existing_claim_is_found_after_a_restart() {
    let own = claim(107, "abc", "1", None);
    let held = |id| Ok(("have".to_owned(), vlan(id)));
    assert_eq!(choose_with(request("abc", "1"), "100-199", &[own], &[], &[]), held(107));
    // If two controllers created claims without observing the claim of the other controller, both choose the VLAN in
    // the status or, without a status, the lowest VLAN.
    let both = [claim(109, "abc", "1", None), claim(108, "abc", "1", None)];
    assert_eq!(choose_with(request("abc", "1"), "100-199", &both, &[], &[]), held(108));
    let with_status = IdRequest { recorded_id: Some(vlan(109)), ..request("abc", "1") };
    assert_eq!(choose_with(with_status, "100-199", &both, &[], &[]), held(109));
    // A lost claim is created again for the VLAN in the status, which the machines use.
    assert_eq!(choose_with(with_status, "100-199", &[], &[], &[]), Ok(created(109)));
}

#[test]
fn a_later_tenant_of_the_same_name_takes_over_a_released_claim() {
    let released = [claim(120, "abc", "old", Some(0))];
    let chosen = choose_with(request("abc", "new"), "100-199", &released, &[], &[]);
    assert_eq!(chosen, Ok(("take over old".to_owned(), vlan(120))));
    let other_tenant = IdRequest { requested_id: Some(vlan(120)), ..request("x", "new") };
    assert_eq!(
        choose_with(other_tenant, "100-199", &released, &[], &[]).unwrap_err().reason,
        ConditionReason::NetworkIdInUse
    );
    // A claim that is not in quarantine is not taken over: it may belong to a TenantCluster of the same name that this
    // controller has not received yet.
    let held = [claim(175, "abc", "other", None)];
    assert_eq!(choose_with(request("abc", "new"), "100-199", &held, &[], &[]), Ok(created(176)));
}

/// Returns the quarantine of a claim by the wall clock.
fn quarantine_of(claim: &VlanClaim) -> Option<Timestamp> {
    quarantine_end(claim, &config("100-199"))
}

#[test]
fn unneeded_claims_are_released_and_deleted() {
    let claims = [
        claim(101, "held", "1", None),
        claim(102, "held", "1", None),
        claim(103, "gone", "2", None),
        claim(104, "gone", "3", Some(0)),
        claim(105, "gone", "4", Some(30)),
        claim(106, "young", "5", None),
        claim(107, "back", "6", Some(0)),
    ];
    let live_tenant =
        |id: Option<u16>| LiveTenant { assigned_id: id.map(|id| ("trunk".to_owned(), vlan(id))) };
    let alive = BTreeMap::from([
        ("1".to_owned(), live_tenant(Some(101))),
        ("5".to_owned(), live_tenant(None)),
        ("6".to_owned(), live_tenant(Some(107))),
    ]);
    let (todo, next) =
        due_actions(&claims, &alive, quarantine_of, Timestamp::from_second(60).unwrap());
    let todo: Vec<String> = todo
        .iter()
        .map(|(claim, action)| match action {
            ClaimAction::Release => format!("release {}", claim.name_any()),
            ClaimAction::Reclaim => format!("keep {}", claim.name_any()),
            ClaimAction::Delete => format!("delete {}", claim.name_any()),
        })
        .collect();
    assert_eq!(
        todo,
        ["release trunk-102", "release trunk-103", "delete trunk-104", "keep trunk-107"]
    );
    assert_eq!(next, Some(Timestamp::from_second(90).unwrap()));
}

#[test]
fn a_released_claim_of_a_tenant_in_deletion_stays_in_quarantine() {
    let released = claim(107, "back", "6", Some(0));
    let quarantine = quarantine_of(&released);
    let stale = LiveTenant { assigned_id: Some(("trunk".to_owned(), vlan(107))) };
    let fresh = LiveTenant { assigned_id: None };
    let reclaim = Some((ClaimAction::Reclaim, Timestamp::MIN));
    assert_eq!(next_action(&released, Some(&stale), quarantine), reclaim);
    // The tenant's status no longer contains the VLAN: the deletion of a tenant removes the VLAN from the status before
    // it releases the claim.
    assert_eq!(next_action(&released, Some(&fresh), quarantine), None);
    let end = Timestamp::from_second(60).unwrap();
    assert_eq!(next_action(&released, None, quarantine), Some((ClaimAction::Delete, end)));
}

/// A simulated API server that accepts only one claim of each name. The lists that its controllers receive may be of
/// any age.
#[derive(Default)]
struct SimulatedServer {
    claims: Vec<Arc<VlanClaim>>,
}

impl SimulatedServer {
    fn create(&mut self, id: NetworkId, tenant: &str, uid: &str) -> bool {
        let claim = id.to_claim("trunk", tenant, uid);
        let is_free = self.claims.iter().all(|one| one.name_any() != claim.name_any());
        if is_free {
            self.claims.push(Arc::new(claim));
        }
        is_free
    }

    /// Runs one attempt of a controller to get a VLAN for a tenant. The controller observes only the first
    /// `visible_count` claims, and may be killed before it writes the status.
    fn run_attempt(
        &mut self,
        tenant: &str,
        visible_count: usize,
        pool: &str,
        statuses: &mut BTreeMap<String, NetworkId>,
        is_killed: bool,
    ) {
        let config = config(pool);
        let claims: Vec<Arc<VlanClaim>> = self.claims.iter().take(visible_count).cloned().collect();
        let foreign = BTreeMap::new();
        let mut refused = BTreeSet::new();
        let uid = format!("uid-{tenant}");
        let before = statuses.get(tenant).copied();
        loop {
            let claim_state = ClaimState {
                config: &config,
                claims: &claims,
                refused_names: &refused,
                foreign_ids: &foreign,
            };
            let id = match choose_id(
                IdRequest { recorded_id: before, ..request(tenant, &uid) },
                claim_state,
            ) {
                Ok(IdChoice::KeepClaim(id)) => id,
                Ok(IdChoice::Create(id)) => {
                    if !self.create(id, tenant, &uid) {
                        let name = id.claim_name("trunk");
                        let existing =
                            self.claims.iter().find(|one| one.name_any() == name).unwrap();
                        if existing.spec.tenant_uid != uid {
                            assert!(refused.insert(name), "the same VLAN is never requested twice");
                            continue;
                        }
                    }
                    id
                }
                Ok(IdChoice::TakeOver(..)) => unreachable!("nothing was released"),
                Err(_) => return,
            };
            if !is_killed {
                // The API server accepts only the status of the first controller.
                statuses.entry(tenant.to_owned()).or_insert(id);
            }
            return;
        }
    }
}

proptest! {
    #[test]
    fn no_two_tenants_have_the_same_vlan(
        steps in prop::collection::vec((0..6_u8, 0..12_usize, any::<bool>()), 1..60),
        size in 1..12_u16,
    ) {
        let pool = format!("100-{}", 99 + size);
        let (mut server, mut statuses) = (SimulatedServer::default(), BTreeMap::new());
        for (tenant, seen, killed) in steps {
            server.run_attempt(&format!("t{tenant}"), seen, &pool, &mut statuses, killed);
        }
        // Finally, a controller that observes all claims reconciles all tenants.
        for tenant in 0..6 {
            server.run_attempt(&format!("t{tenant}"), usize::MAX, &pool, &mut statuses, false);
        }
        let ids: BTreeSet<NetworkId> = statuses.values().copied().collect();
        prop_assert_eq!(ids.len(), statuses.len());
        for (tenant, id) in &statuses {
            let name = id.claim_name("trunk");
            let claim = server.claims.iter().find(|one| one.name_any() == name).unwrap();
            prop_assert_eq!(&claim.spec.tenant, tenant);
        }
        // A tenant may lack a VLAN only if all VLANs are in use.
        if statuses.len() < 6 {
            prop_assert_eq!(server.claims.len(), usize::from(size));
        }
    }
}

/// A VLAN that is in use on a network that may share the segment is not free, and a VLAN in the pools of both networks
/// is not allocated to new tenants.
#[test]
fn vlans_on_the_same_segment_are_not_free() {
    let claim_on = |network: &str, id: u16, tenant: &str, released: Option<i64>| {
        let mut claim = claim(id, tenant, &format!("uid-{tenant}"), released).as_ref().clone();
        claim.spec.network = network.to_owned();
        claim.metadata.name = Some(vlan(id).claim_name(network));
        Arc::new(claim)
    };
    let fixed = |id: u16| IdRequest { requested_id: Some(vlan(id)), ..request("abc", "1") };
    let other_claims =
        [claim_on("other", 101, "xyz", None), claim_on("other", 102, "abc", Some(0))];
    let fault = choose_with(fixed(101), "100-102", &other_claims, &[], &[]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::NetworkIdInUse);
    assert!(fault.message.contains("which tenant xyz (on network other) has"), "{fault}");
    // A claim on the other network also blocks its VLAN while the claim is in quarantine, and also if an earlier
    // TenantCluster of the same name had the same VLAN on this network.
    assert_eq!(
        choose_with(request("abc", "1"), "100-102", &other_claims, &[], &[]).unwrap(),
        created(100)
    );
    let claims = [claim_on("other", 101, "xyz", None), claim(101, "abc", "0", Some(0))];
    assert_eq!(
        choose_with(request("abc", "1"), "101-102", &claims, &[], &[]).unwrap(),
        created(102)
    );
    // A tenant retains its VLAN, even if another tenant has the same VLAN.
    let both = [claim_on("other", 101, "xyz", None), claim(101, "abc", "1", None)];
    let expected = ("have".to_owned(), vlan(101));
    assert_eq!(choose_with(request("abc", "1"), "100-102", &both, &[], &[]).unwrap(), expected);
    // The pool of the other network contains only VLAN 7.
    let fault = choose_with(fixed(7), "5-7", &[], &[], &[]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PoolsOverlap);
    assert!(
        fault.message.contains("VLAN 7 on trunk, which is also in the pool of network other"),
        "{fault}"
    );
    let fault = choose_with(request("abc", "1"), "7", &[], &[], &[]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PoolExhausted);
    assert!(
        fault
            .message
            .contains("1 are also in the pools of networks that may share a segment (other)"),
        "{fault}"
    );
    // A tenant that already had the VLAN gets it again.
    let before = IdRequest { recorded_id: Some(vlan(7)), ..request("abc", "1") };
    assert_eq!(choose_with(before, "5-7", &[], &[], &[]).unwrap(), created(7));
}
