//! Extended resources of the Node: `berth.dev/pinnable-cpus`, and `bridge.network.kubevirt.io/<bridge>` for each
//! bridge that VMs can be attached to.

use std::collections::BTreeMap;

use berth_api::infra_node::{NetworkScenario, NetworkStatus};
use berth_api::names::resource;
use berth_api::{InfraNodeSpec, InfraNodeStatus, LinkName};

/// Desired extended resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Amount of each resource by name. A published resource that is missing here is removed from the Node.
    pub amounts: BTreeMap<String, String>,
    /// Prefixes of the names of resources whose amount is unknown, so that their published values do not change.
    pub unknown_prefixes: Vec<&'static str>,
}

/// Amount of the resource of each bridge: more than the pods of a host can request. The project bridge-marker uses
/// the same amount.
const BRIDGE_AMOUNT: &str = "1k";

/// Returns the resources of a host with this status. `bridges` are the existing bridges by network; `None` if the
/// host's links are unknown.
#[must_use]
pub fn desired_resources(
    spec: &InfraNodeSpec,
    status: &InfraNodeStatus,
    bridges: Option<&BTreeMap<String, Vec<LinkName>>>,
) -> Resources {
    let mut all = Resources::default();
    match count_pinnable_cpus(status) {
        None => all.unknown_prefixes.push(resource::PINNABLE_CPUS),
        Some(0) => {}
        Some(count) => {
            all.amounts.insert(resource::PINNABLE_CPUS.to_owned(), count.to_string());
        }
    }
    let Some(bridges) = bridges else {
        all.unknown_prefixes.push(resource::BRIDGE_PREFIX);
        return all;
    };
    for network in &spec.networks {
        let bridges = bridges.get(&network.name).map(Vec::as_slice).unwrap_or_default();
        let is_published = match network.scenario {
            NetworkScenario::VlanAwareBridge => is_usable(&status.networks, &network.name),
            NetworkScenario::BridgePerTenant | NetworkScenario::Vxlan => {
                bridges.len() <= resource::MAX_PUBLISHED_BRIDGES
            }
            NetworkScenario::SriovVf => false,
        };
        let published = bridges.iter().filter(|_| is_published);
        let name = |bridge: &LinkName| format!("{}{bridge}", resource::BRIDGE_PREFIX);
        all.amounts.extend(published.map(|bridge| (name(bridge), BRIDGE_AMOUNT.to_owned())));
    }
    all
}

/// Returns true if at least one tenant of the network is ready, or if no tenant is pending or failed. A network
/// whose uplink has failed is not usable, because all its tenants have failed.
fn is_usable(networks: &[NetworkStatus], name: &str) -> bool {
    networks
        .iter()
        .find(|network| network.name == name)
        .is_some_and(|network| network.ready > 0 || (network.failed == 0 && network.pending == 0))
}

/// Returns the number of CPUs of the host that can be pinned; `None` if it is unknown for some zone.
fn count_pinnable_cpus(status: &InfraNodeStatus) -> Option<usize> {
    if status.zones.is_empty() {
        return None;
    }
    status.zones.iter().map(|zone| zone.pinnable_cpus.as_ref().map(|cpus| cpus.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::infra_node::Zone;

    fn zone(pinnable: Option<&str>) -> Zone {
        Zone { pinnable_cpus: pinnable.map(|set| set.parse().unwrap()), ..Zone::default() }
    }

    #[test]
    fn zero_pinnable_cpus_are_not_published() {
        let published = |zones: Vec<Zone>| {
            let status = InfraNodeStatus { zones, ..InfraNodeStatus::default() };
            let found =
                desired_resources(&InfraNodeSpec::default(), &status, Some(&BTreeMap::new()));
            (found.amounts.get(resource::PINNABLE_CPUS).cloned(), found.unknown_prefixes)
        };
        assert_eq!(
            published(vec![zone(Some("1-3,5")), zone(Some("8-9"))]),
            (Some("6".to_owned()), vec![])
        );
        assert_eq!(published(vec![zone(Some("")), zone(Some(""))]), (None, vec![]));
        let unknown = (None, vec![resource::PINNABLE_CPUS]);
        assert_eq!(published(vec![zone(Some("1")), zone(None)]), unknown);
        assert_eq!(published(vec![]), unknown);
    }

    #[test]
    fn bridges_that_can_carry_tenants_are_published() {
        let spec: InfraNodeSpec = serde_json::from_value(serde_json::json!({"networks": [
            {"name": "shared", "scenario": "VlanAwareBridge"}, {"name": "own", "scenario": "BridgePerTenant"},
        ]}))
        .unwrap();
        let bridge = |name: &str| name.parse::<LinkName>().unwrap();
        let published = |ready, failed, own: usize| {
            let networks = vec![NetworkStatus {
                name: "shared".to_owned(),
                ready,
                failed,
                ..NetworkStatus::default()
            }];
            let status = InfraNodeStatus { networks, ..InfraNodeStatus::default() };
            let bridges = BTreeMap::from([
                ("shared".to_owned(), vec![bridge("br-shared")]),
                ("own".to_owned(), (0..own).map(|n| bridge(&format!("tn{n}"))).collect()),
            ]);
            desired_resources(&spec, &status, Some(&bridges))
                .amounts
                .into_keys()
                .collect::<Vec<_>>()
        };
        let prefixed = |name: &str| format!("bridge.network.kubevirt.io/{name}");
        assert_eq!(published(3, 1, 1), [prefixed("br-shared"), prefixed("tn0")]);
        assert_eq!(published(0, 3, 17), Vec::<String>::new());
        assert_eq!(published(0, 0, 0), [prefixed("br-shared")]);
        assert_eq!(
            desired_resources(&spec, &InfraNodeStatus::default(), None).unknown_prefixes.len(),
            2
        );
    }
}
