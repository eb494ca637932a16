//! PrefixClaim: allocation of an IP prefix to a tenant. The object's name contains the prefix, so the API server
//! refuses a second claim for the same prefix.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Time;

/// A prefix of a routed pool of InfraConfig that is allocated to a tenant. After the tenant is deleted, the claim
/// remains until its quarantine ends.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "PrefixClaim",
    plural = "prefixclaims",
    shortname = "pclaim",
    category = "berth",
    status = "PrefixClaimStatus",
    derive = "PartialEq",
    doc = "An IP prefix that is allocated to a tenant. The claim's name is <network address>-<prefix length>, so each prefix has at most one claim.",
    printcolumn(name = "Prefix", type_ = "string", json_path = ".spec.prefix"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant"),
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
    validation = Rule::new("self.prefix == oldSelf.prefix && self.tenant == oldSelf.tenant && has(self.pool) == has(oldSelf.pool) && (!has(self.pool) || self.pool == oldSelf.pool)")
        .message("only tenantUID may change, to the UID of a later TenantCluster of the same name")
)]
pub struct PrefixClaimSpec {
    /// Allocated prefix in CIDR notation.
    #[schemars(with = "String", length(max = 43))]
    pub prefix: IpNet,
    /// Pool in InfraConfig's `addressPools` from which the prefix was allocated. Absent if the prefix is the `cidr` in
    /// the spec of the tenant, and overlaps a routed pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub pool: Option<String>,
    /// TenantCluster to which the prefix is allocated.
    #[schemars(length(min = 1, max = 253))]
    pub tenant: String,
    /// UID of the TenantCluster. If a later TenantCluster of the same name needs the prefix, the controller changes
    /// this field to its UID.
    #[serde(rename = "tenantUID")]
    #[schemars(length(min = 1, max = 64))]
    pub tenant_uid: String,
}

/// Observed state of a claim.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PrefixClaimStatus {
    /// Time at which the controller found that no tenant needs the prefix any longer. The claim is deleted at the end
    /// of the quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
}

impl PrefixClaim {
    /// Returns the name of the PrefixClaim for a prefix. Object names cannot contain colons, so an IPv6 address is
    /// written as eight groups that are separated by dashes.
    #[must_use]
    pub fn name_for(prefix: IpNet) -> String {
        match prefix.trunc() {
            IpNet::V4(prefix) => format!("{}-{}", prefix.addr(), prefix.prefix_len()),
            IpNet::V6(prefix) => {
                let groups = prefix.addr().segments().map(|group| format!("{group:x}"));
                format!("{}-{}", groups.join("-"), prefix.prefix_len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_claims_are_dns_subdomains() {
        for (prefix, name) in
            [("10.0.3.7/24", "10.0.3.0-24"), ("fd00:120::/64", "fd00-120-0-0-0-0-0-0-64")]
        {
            assert_eq!(PrefixClaim::name_for(prefix.parse().unwrap()), name);
        }
    }
}
