//! AddressClaim: allocation of an IP address to an interface of a machine. The object's name contains the network and
//! the address, so the API server refuses a second claim for the same address.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::net::IpAddr;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MacAddress, Time};

/// An address of a tenant's network that is allocated to an interface of a machine. After the machine is deleted, the
/// claim remains until its quarantine ends.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "AddressClaim",
    plural = "addressclaims",
    shortname = "aclaim",
    category = "berth",
    status = "AddressClaimStatus",
    derive = "PartialEq",
    doc = "An IP address that is allocated to an interface of a machine. The claim's name is <network>-<address>, so each address of a network has at most one claim.",
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant"),
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machine.name"),
    printcolumn(name = "MAC", type_ = "string", json_path = ".spec.mac"),
    printcolumn(
        name = "Released",
        type_ = "date",
        json_path = ".status.releasedAt",
        description = "Start of the quarantine"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.network == oldSelf.network && self.address == oldSelf.address && self.tenant == oldSelf.tenant")
        .message("network, address and tenant cannot be changed")
)]
pub struct AddressClaimSpec {
    /// Name of the tenant's network, `cluster-<tenant>`. Networks of different tenants may use the same addresses.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Allocated address.
    #[schemars(with = "String", length(max = 39))]
    pub address: IpAddr,
    /// Name of the machine's TenantCluster.
    #[schemars(length(min = 1, max = 253))]
    pub tenant: String,
    /// UID of the TenantCluster. A later TenantCluster of the same name does not own the claim.
    #[serde(rename = "tenantUID")]
    #[schemars(length(min = 1, max = 64))]
    pub tenant_uid: String,
    /// Machine to which the address is allocated.
    pub machine: ClaimingMachine,
    /// Name of the machine's interface, from `spec.template.spec.domain.devices.interfaces` of the VirtualMachine.
    #[schemars(length(min = 1, max = 63))]
    pub interface: String,
    /// Ethernet address of the interface.
    pub mac: MacAddress,
}

/// A machine to which an address is allocated.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ClaimingMachine {
    /// Namespace of the VirtualMachine.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the VirtualMachine.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Observed state of a claim.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressClaimStatus {
    /// Time at which the controller found that the machine no longer exists. The claim is deleted at the end of the
    /// quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
}

impl AddressClaim {
    /// Returns the name of the AddressClaim for an address of a network. Object names cannot contain colons, so an IPv6
    /// address is written as eight groups that are separated by dashes.
    #[must_use]
    pub fn name_for(network: &str, address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => format!("{network}-{address}"),
            IpAddr::V6(address) => {
                let groups = address.segments().map(|group| format!("{group:x}"));
                format!("{network}-{}", groups.join("-"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_claims_are_dns_subdomains() {
        for (address, name) in
            [("10.0.0.7", "cluster-a-10.0.0.7"), ("fd00:120::7", "cluster-a-fd00-120-0-0-0-0-0-7")]
        {
            assert_eq!(AddressClaim::name_for("cluster-a", address.parse().unwrap()), name);
        }
    }
}
