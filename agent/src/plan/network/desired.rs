//! Computes the desired networks of the spec, and finds faults of the spec on this host.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;
use berth_api::infra_node::TenantNetworkSpec;

use super::desired_network::DesiredNetwork;
use super::{read_network, read_tenant};
use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;
use crate::plan::input::Input;

/// Networks of the spec.
#[derive(Debug, Default)]
pub(super) struct DesiredNetworks<'a> {
    pub(super) networks: Vec<DesiredNetwork<'a>>,
    pub(super) faults: Vec<Fault>,
    /// Networks that are not changed because of a fault, with the fault as text.
    pub(super) frozen_networks: BTreeMap<String, String>,
}

/// Reads the networks and their tenants from the spec.
pub(super) fn read_networks<'a>(input: Input<'a>) -> DesiredNetworks<'a> {
    let mut desired = DesiredNetworks::default();
    let mut names = BTreeSet::new();
    for spec in &input.spec.networks {
        let path = FieldPath::spec("networks").item(&spec.name);
        if !names.insert(&spec.name) {
            desired
                .freeze_network(&spec.name, path.child("name").fault(&spec.name, "is not unique"));
            desired.networks.retain(|network| network.name != spec.name);
            continue;
        }
        match read_network::read_network(&input.facts.links, spec, &path, &desired.networks) {
            Ok(network) => desired.networks.push(network),
            Err(fault) => desired.freeze_network(&spec.name, fault),
        }
    }
    let mut tenants = BTreeSet::new();
    for spec in &input.spec.tenant_networks {
        let is_duplicate = !tenants.insert(&spec.name);
        if let Err(fault) = desired.add_tenant(input, &names, spec, is_duplicate) {
            desired.freeze_network(&spec.network, fault);
        }
    }
    let frozen = &desired.frozen_networks;
    desired.networks.retain(|network| !frozen.contains_key(network.name));
    desired.freeze_networks_with_shared_links();
    desired.freeze_networks_with_duplicate_ids(input);
    desired
}

impl<'a> DesiredNetworks<'a> {
    /// Returns true if a fault of the spec forbids changes of this network.
    pub(super) fn is_frozen(&self, input: Input, network: &str) -> bool {
        self.frozen_networks.contains_key(network) || input.unparsed.networks.contains(network)
    }

    /// Records a fault, and freezes its network.
    pub(super) fn freeze_network(&mut self, network: &str, fault: Fault) {
        self.frozen_networks.entry(network.to_owned()).or_insert_with(|| fault.to_string());
        self.faults.push(fault);
    }

    /// Adds a tenant to its network. `names` are the names of all networks of the spec.
    fn add_tenant(
        &mut self,
        input: Input<'a>,
        names: &BTreeSet<&String>,
        spec: &'a TenantNetworkSpec,
        is_duplicate: bool,
    ) -> Result<(), Fault> {
        let path = FieldPath::spec("tenantNetworks").item(&spec.name);
        let network = self.networks.iter_mut().find(|network| network.name == spec.network);
        let Some(network) = network else {
            // If the network itself has a fault, that fault has already been reported.
            let reported = names.contains(&spec.network) || self.is_frozen(input, &spec.network);
            if reported {
                return Ok(());
            }
            let message = "spec.networks has no network of this name";
            let fault = path.child("network").fault(&spec.network, message);
            // A misspelt network name must not remove the existing network of the tenant.
            for (network, record) in &input.facts.ledger.networks {
                if record.tenants.values().any(|tenant| *tenant == spec.name) {
                    self.frozen_networks
                        .entry(network.clone())
                        .or_insert_with(|| fault.to_string());
                }
            }
            return Err(fault);
        };
        if is_duplicate {
            return Err(path.child("name").fault(&spec.name, "is not unique"));
        }
        let tenant = read_tenant::read_tenant(network, spec, &path)?;
        network.tenants.push(tenant);
        Ok(())
    }

    /// Refuses two networks whose links would have the same name.
    fn freeze_networks_with_shared_links(&mut self) {
        let mut owners: BTreeMap<LinkName, &str> = BTreeMap::new();
        let mut refused = Vec::new();
        for network in &self.networks {
            for link in network.links() {
                let owner = owners.entry(link.name.clone()).or_insert(network.name);
                if *owner != network.name {
                    let message = format!(
                        "network {owner} also needs link {}; set another bridge for one of them",
                        link.name
                    );
                    let path = FieldPath::spec("networks").item(network.name).child("bridge");
                    refused.push((network.name.to_owned(), path.fault(&link.name, message)));
                    break;
                }
            }
        }
        for (network, fault) in refused {
            self.networks.retain(|other| other.name != network);
            self.freeze_network(&network, fault);
        }
    }
}
