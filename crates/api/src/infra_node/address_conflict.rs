//! IP addresses that are leased to VMs of this host, but used by other machines.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MacAddress;

/// An IP address that is leased to a VM on this host, but used by another machine on the tenant's network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressConflictStatus {
    /// Name of the tenant network, `cluster-<id>`.
    #[schemars(length(max = 63))]
    pub network: String,
    /// IP address that both machines use.
    #[schemars(with = "String", length(max = 39))]
    pub address: IpAddr,
    /// Machine whose VM has the lease, as NAMESPACE/NAME.
    #[schemars(length(max = 317))]
    pub machine: String,
    /// MAC address of the machine that uses the IP address without a lease; absent if the address is known to be in use
    /// only because the guest declined it (DHCPDECLINE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
}
