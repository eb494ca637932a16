//! Addresses of leases that other machines use.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MacAddress;

/// Address of a VM on this host that another machine on the tenant's network uses.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressConflictStatus {
    /// Name of the tenant network, `cluster-<id>`.
    #[schemars(length(max = 63))]
    pub network: String,
    /// Address that both machines use.
    #[schemars(with = "String", length(max = 39))]
    pub address: IpAddr,
    /// Machine that has the lease, as NAMESPACE/NAME.
    #[schemars(length(max = 317))]
    pub machine: String,
    /// MAC address of the machine that uses the address without a lease; absent if the guest of the machine declined
    /// the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
}
