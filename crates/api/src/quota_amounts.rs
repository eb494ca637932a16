//! Amounts that a TenantQuota counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Amounts that a quota counts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QuotaAmounts {
    /// Number of tenants.
    pub tenants: u32,
    /// Number of machines.
    pub machines: u32,
    /// Number of CPUs of the guests.
    pub cpus: u64,
    /// Memory of the guests, including huge pages.
    pub memory: Bytes,
    /// Memory of the guests in huge pages.
    pub hugepages: Bytes,
    /// Size of volumes.
    pub storage: Bytes,
    /// Number of tenants with a layer 2 network.
    pub networks: u32,
}

impl QuotaAmounts {
    /// Returns the larger of two values for each amount.
    #[must_use]
    pub fn larger_of_each(self, other: Self) -> Self {
        Self {
            tenants: self.tenants.max(other.tenants),
            machines: self.machines.max(other.machines),
            cpus: self.cpus.max(other.cpus),
            memory: Bytes(self.memory.0.max(other.memory.0)),
            hugepages: Bytes(self.hugepages.0.max(other.hugepages.0)),
            storage: Bytes(self.storage.0.max(other.storage.0)),
            networks: self.networks.max(other.networks),
        }
    }

    /// Returns the sum of two amounts. A sum that does not fit becomes the maximum.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self {
            tenants: self.tenants.saturating_add(other.tenants),
            machines: self.machines.saturating_add(other.machines),
            cpus: self.cpus.saturating_add(other.cpus),
            memory: Bytes(self.memory.0.saturating_add(other.memory.0)),
            hugepages: Bytes(self.hugepages.0.saturating_add(other.hugepages.0)),
            storage: Bytes(self.storage.0.saturating_add(other.storage.0)),
            networks: self.networks.saturating_add(other.networks),
        }
    }
}
