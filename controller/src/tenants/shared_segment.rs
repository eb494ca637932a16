//! Determines which host networks may share a layer 2 segment according to `spec.segments` of the InfraConfig, and
//! which VLANs conflict for this reason.
//!
//! A VLAN tag does not contain the name of a network: if two networks share a trunk, the same VLAN on both networks
//! is a single layer 2 segment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim, VlanId, VlanSet};
use kube::ResourceExt as _;

use super::network_id::NetworkId;

/// Maximum number of VLANs that one message names.
const MAX_NAMED_VLANS: usize = 8;

/// Returns true if two different networks may share a layer 2 segment. Returns false only if the InfraConfig declares
/// them in different segments.
#[must_use]
pub fn may_share_segment(config: &InfraConfigSpec, one: &str, other: &str) -> bool {
    if one == other {
        return false;
    }
    match (declared_segment(config, one), declared_segment(config, other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

/// Returns the declared segment of a network; `None` if it is declared in no segment, or in two (a contradiction).
fn declared_segment<'a>(config: &'a InfraConfigSpec, network: &str) -> Option<&'a str> {
    let mut all = config.segments.iter().filter(|one| one.networks.iter().any(|n| n == network));
    let first = all.next()?;
    all.all(|other| other.name == first.name).then_some(first.name.as_str())
}

/// Returns the union of the VLANs in all pools of each network.
fn vlans_by_network(config: &InfraConfigSpec) -> BTreeMap<&str, VlanSet> {
    let mut all: BTreeMap<&str, VlanSet> = BTreeMap::new();
    for pool in &config.vlan_pools {
        let set = all.entry(pool.network.as_str()).or_default();
        for id in pool.ranges.iter().flat_map(|ranges| ranges.ids().iter()) {
            set.insert(id);
        }
    }
    all
}

/// Returns the VLANs in the pools of a network that are also in the pools of another network with which it may share a
/// segment, each with the name of the other network.
#[must_use]
pub fn contested_vlans(config: &InfraConfigSpec, network: &str) -> BTreeMap<VlanId, String> {
    let pools = vlans_by_network(config);
    let mut all = BTreeMap::new();
    let Some(own) = pools.get(network) else { return all };
    for (other, set) in pools.iter().filter(|(other, _)| may_share_segment(config, network, other))
    {
        for id in own.intersection(set).iter() {
            all.entry(id).or_insert_with(|| (*other).to_owned());
        }
    }
    all
}

/// Returns the networks in the InfraConfig and in `known` that may share a segment with `network`.
#[must_use]
pub fn networks_sharing_segment<'a>(
    config: &'a InfraConfigSpec,
    network: &str,
    known: impl Iterator<Item = &'a str>,
) -> BTreeSet<&'a str> {
    let pools = config.vlan_pools.iter().map(|pool| pool.network.as_str());
    let segments = config.segments.iter().flat_map(|one| one.networks.iter().map(String::as_str));
    let all = pools.chain(segments).chain(known);
    all.filter(|other| may_share_segment(config, network, other)).collect()
}

/// Returns the problems of segments, pools and claims, each as a message with names and values. `networks` contains the
/// host networks of all HostProfiles.
#[must_use]
pub fn config_problems(
    config: &InfraConfigSpec,
    networks: &BTreeSet<String>,
    claims: &[Arc<VlanClaim>],
) -> Vec<String> {
    let mut problems = segment_problems(config, networks);
    let pools = vlans_by_network(config);
    for (one, set) in &pools {
        for (other, same) in pools.range(*one..).skip(1) {
            let both = set.intersection(same);
            if !both.is_empty() && may_share_segment(config, one, other) {
                problems.push(format!(
                    "vlanPools[{one}] and vlanPools[{other}] both have VLANs {both}, and the networks may share \
                     a segment: no new tenant gets one of these VLANs; make the pools disjoint, or declare the \
                     networks in different segments"
                ));
            }
        }
    }
    problems.extend(conflicting_claims(config, claims));
    problems
}

fn segment_problems(config: &InfraConfigSpec, networks: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut names, mut segment_of_network) = (BTreeMap::new(), BTreeMap::new());
    for segment in &config.segments {
        *names.entry(segment.name.as_str()).or_insert(0_u32) += 1;
        for network in &segment.networks {
            let name = &segment.name;
            if !networks.contains(network) {
                problems.push(format!(
                    "segments[{name}]: no HostProfile has a host network of the name `{network}`"
                ));
            }
            if let Some(before) = segment_of_network.insert(network.as_str(), name)
                && before != name
            {
                problems.push(format!(
                    "segments[{name}]: network `{network}` is also in segment {before}, so Berth \
                     uses neither declaration"
                ));
            }
        }
    }
    let duplicates = names.into_iter().filter(|(_, count)| *count > 1);
    problems.extend(
        duplicates.map(|(name, count)| format!("segments: `{name}` is listed {count} times")),
    );
    problems
}

/// Returns a problem for each VLAN or VNI that two tenants have claimed on networks that may share a segment. This
/// happens if an older release created the claims, or if `spec.segments` changed later. Both tenants retain their VLAN
/// or VNI.
fn conflicting_claims(config: &InfraConfigSpec, claims: &[Arc<VlanClaim>]) -> Vec<String> {
    let mut by_id: BTreeMap<NetworkId, Vec<&VlanClaim>> = BTreeMap::new();
    for claim in claims.iter().map(Arc::as_ref) {
        if let Some(id) = NetworkId::from_claim(claim) {
            by_id.entry(id).or_default().push(claim);
        }
    }
    let mut all = Vec::new();
    for (id, mut same) in by_id {
        same.sort_by_key(|claim| claim.name_any());
        for (at, one) in same.iter().enumerate() {
            for other in same.iter().skip(at + 1) {
                let (one, other) = (&one.spec, &other.spec);
                if one.tenant_uid != other.tenant_uid
                    && may_share_segment(config, &one.network, &other.network)
                {
                    all.push(format!(
                        "{id} belongs to tenant {} on {} and to tenant {} on {}",
                        one.tenant, one.network, other.tenant, other.network
                    ));
                }
            }
        }
    }
    if all.is_empty() {
        return all;
    }
    let omitted_count = all.len().saturating_sub(MAX_NAMED_VLANS);
    all.truncate(MAX_NAMED_VLANS);
    let omitted_note =
        if omitted_count > 0 { format!(" and {omitted_count} more") } else { String::new() };
    vec![format!(
        "VlanClaims on networks that may share a segment: {}{omitted_note}; both tenants keep the number: \
         declare the networks in different segments if they are separate, otherwise delete one of the \
         tenants and create it again",
        all.join(", ")
    )]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(value: Value) -> InfraConfigSpec {
        serde_json::from_value(value).unwrap()
    }

    fn two_pools(segments: Value) -> InfraConfigSpec {
        config(json!({"vlanPools": [
            {"network": "a", "ranges": ["100-199"]}, {"network": "b", "ranges": ["150-250", "300"]},
            {"network": "c", "ranges": ["300-310"]},
        ], "segments": segments}))
    }

    fn claim(network: &str, id: u16, tenant: &str) -> Arc<VlanClaim> {
        let id = NetworkId::Vlan(id.try_into().unwrap());
        Arc::new(id.to_claim(network, tenant, &format!("uid-{tenant}")))
    }

    fn problems_of(config: &InfraConfigSpec, claims: &[Arc<VlanClaim>]) -> Vec<String> {
        config_problems(config, &["a", "b", "c"].map(str::to_owned).into(), claims)
    }

    #[test]
    fn networks_share_a_wire_unless_declared_otherwise() {
        let none = two_pools(json!([]));
        assert!(may_share_segment(&none, "a", "b") && !may_share_segment(&none, "a", "a"));
        let declared = two_pools(json!([
            {"name": "east", "networks": ["a", "x"]}, {"name": "west", "networks": ["b"]},
        ]));
        for (one, other, shares) in
            [("a", "b", false), ("a", "x", true), ("a", "c", true), ("b", "c", true)]
        {
            assert_eq!(may_share_segment(&declared, one, other), shares, "{one} {other}");
            assert_eq!(may_share_segment(&declared, other, one), shares, "{other} {one}");
        }
        // A network that is declared in two segments may share a segment with every network.
        let both = two_pools(json!([
            {"name": "east", "networks": ["a", "b"]}, {"name": "west", "networks": ["b"]},
        ]));
        assert!(may_share_segment(&both, "a", "b"));
        assert!(problems_of(&both, &[])[0].contains("network `b` is also in segment east"));
        let sharing_networks =
            networks_sharing_segment(&declared, "b", ["c", "y", "b"].into_iter());
        assert_eq!(sharing_networks.into_iter().collect::<Vec<_>>(), ["c", "y"]);
    }

    #[test]
    fn an_overlap_names_both_pools_and_the_vlans() {
        let all = problems_of(&two_pools(json!([])), &[]);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(
            all[0].contains("vlanPools[a] and vlanPools[b] both have VLANs 150-199"),
            "{all:?}"
        );
        assert!(all[1].contains("vlanPools[b] and vlanPools[c] both have VLANs 300"), "{all:?}");
        let apart = two_pools(json!([
            {"name": "1", "networks": ["a"]}, {"name": "2", "networks": ["b"]},
            {"name": "3", "networks": ["c"]},
        ]));
        assert_eq!(problems_of(&apart, &[]), Vec::<String>::new());
        assert!(contested_vlans(&apart, "b").is_empty());
        let contested = contested_vlans(&two_pools(json!([])), "b");
        assert_eq!(contested.len(), 51);
        assert_eq!(contested[&300.try_into().unwrap()], "c");
    }

    #[test]
    fn claims_to_the_same_vlan_are_named() {
        let none = config(json!({}));
        let two = [claim("a", 120, "one"), claim("b", 120, "two"), claim("b", 121, "three")];
        let all = problems_of(&none, &two);
        assert_eq!(all.len(), 1);
        assert!(
            all[0].contains(
                "VLAN 120 belongs to tenant one on a and to tenant two on b; both tenants keep the number"
            ),
            "{all:?}"
        );
        let same = [claim("a", 120, "one"), claim("b", 120, "one")];
        assert!(problems_of(&none, &same).is_empty(), "both claims belong to one tenant");
        let apart = config(json!({"segments": [
            {"name": "1", "networks": ["a"]}, {"name": "2", "networks": ["b"]}]}));
        assert!(problems_of(&apart, &two).is_empty());
    }

    #[test]
    fn problems_of_segments_have_field_and_value() {
        let wrong = config(json!({"segments": [
            {"name": "x", "networks": ["a", "z"]}, {"name": "x", "networks": ["c"]}]}));
        let all = problems_of(&wrong, &[]);
        assert_eq!(
            all,
            [
                "segments[x]: no HostProfile has a host network of the name `z`",
                "segments: `x` is listed 2 times"
            ]
        );
    }
}
