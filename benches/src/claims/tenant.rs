//! A tenant with its address pool, its machines and their claims.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use berth_api::names::{MANAGED_BY_LABEL, TENANT_LABEL};
use berth_api::{AddressClaim, AddressClaimSpec, ClaimingMachine, MacAddress, TenantNetwork};
use berth_controller::tenants::addresses::pools::NetworkPools;
use berth_kubevirt_render::machines::TENANT_INTERFACE;
use serde_json::json;

/// Maximum number of machines of a tenant. The pool has enough addresses for this number.
pub(super) const MAX_MACHINES: i64 = 65_000;

/// Returns the address pool of a tenant. All tenants have equal pools, each in a separate network.
pub(super) fn new_pools() -> Result<NetworkPools> {
    let network: TenantNetwork = serde_json::from_value(json!({
        "name": "trunk",
        "ipv4": {"cidr": "10.0.0.0/16", "gateway": "10.0.0.1", "exclude": ["10.0.1.0-10.0.1.255"]},
    }))
    .context("parse the network")?;
    NetworkPools::new(&network, &[])?.context("the network has no pool")
}

/// Names of a tenant.
#[derive(Debug, Clone)]
pub(super) struct Tenant {
    name: String,
    pub(super) uid: String,
    network: String,
}

impl Tenant {
    pub(super) fn new(number: u32) -> Self {
        let name = format!("tenant-{number}");
        let network = format!("cluster-{name}");
        Self { name, uid: format!("11111111-0000-0000-0000-{number:012}"), network }
    }

    /// Returns a machine of the tenant, with a name that a MachineDeployment would generate.
    pub(super) fn machine(&self, number: u32) -> ClaimingMachine {
        let name = format!("workers-5d4f8c7b9-{number:05}");
        ClaimingMachine { namespace: self.network.clone(), name }
    }

    pub(super) fn claim_name(&self, address: IpAddr) -> String {
        AddressClaim::name_for(&self.network, address)
    }

    /// Returns a machine's claim for an address, with the fields that the controller writes.
    pub(super) fn claim(
        &self,
        address: IpAddr,
        machine: &ClaimingMachine,
        mac: MacAddress,
    ) -> AddressClaim {
        let spec = AddressClaimSpec {
            network: self.network.clone(),
            address,
            tenant: self.name.clone(),
            tenant_uid: self.uid.clone(),
            machine: machine.clone(),
            interface: TENANT_INTERFACE.to_owned(),
            mac,
        };
        let mut claim = AddressClaim::new(&self.claim_name(address), spec);
        claim.metadata.labels = Some(BTreeMap::from([
            (MANAGED_BY_LABEL.0.to_owned(), MANAGED_BY_LABEL.1.to_owned()),
            (TENANT_LABEL.to_owned(), self.name.clone()),
        ]));
        claim
    }
}
