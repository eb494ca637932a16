//! Tenants: TenantClusters with their networks, hosts and machines.

use berth_api::names::condition;
use berth_api::{AddressCount, TenantCluster, TenantHost, VlanId};
use serde::Serialize;

use crate::issue::{ConditionRow, ConditionState, Issue, Severity, condition_rows, issues};
use crate::kind::Kind;
use crate::machines::{self, MachineFilter, MachineRow};
use crate::snapshot::Snapshot;

/// Kinds that the rows of tenants need.
pub const KINDS: [Kind; 1] = [Kind::TenantCluster];

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantRow {
    pub name: String,
    /// Namespace of the tenant's machines.
    pub namespace: String,
    /// Condition Ready; `None` if the controller has not set it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ConditionState>,
    /// Reason of the condition Ready.
    pub reason: String,
    pub severity: Severity,
    /// Host network of the tenant; `None` for the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Machines of all MachineDeployments of the tenant; `None` if the controller has not counted them yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<MachineCounts>,
    /// Hosts that carry the network of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<HostCounts>,
    /// Addresses of all prefixes; `None` without address pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
    pub issues: Vec<Issue>,
}

/// Numbers of machines of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MachineCounts {
    pub desired: u32,
    pub current: u32,
    pub ready: u32,
}

/// Numbers of hosts of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostCounts {
    pub selected: u32,
    pub ready: u32,
}

/// Numbers of addresses of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AddressCounts {
    pub allocated: u64,
    pub quarantined: u64,
    pub free: u64,
}

/// Kinds that the details of a tenant need.
pub const DETAIL_KINDS: [Kind; 5] = [
    Kind::TenantCluster,
    Kind::VirtualMachine,
    Kind::VirtualMachineInstance,
    Kind::LauncherPod,
    Kind::AddressClaim,
];

/// A tenant with its conditions, prefixes, hosts and machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantDetail {
    #[serde(flatten)]
    pub row: TenantRow,
    pub conditions: Vec<ConditionRow>,
    /// Addresses by prefix.
    pub prefixes: Vec<AddressCount>,
    /// Hosts on which the network of the tenant is not ready.
    pub not_ready_hosts: Vec<TenantHost>,
    pub machine_rows: Vec<MachineRow>,
}

/// Returns a row for each TenantCluster, sorted by name.
#[must_use]
pub fn rows(snapshot: &Snapshot) -> Vec<TenantRow> {
    snapshot.tenants.iter().map(|(name, tenant)| row(name, tenant)).collect()
}

/// Returns the details of a tenant; `None` if there is no such TenantCluster.
#[must_use]
pub fn detail(snapshot: &Snapshot, name: &str) -> Option<TenantDetail> {
    let tenant = snapshot.tenants.get(name)?;
    let status = tenant.status.as_ref();
    let hosts = status.and_then(|status| status.hosts.as_ref());
    let filter = MachineFilter { tenant: Some(name.to_owned()), ..MachineFilter::default() };
    Some(TenantDetail {
        row: row(name, tenant),
        conditions: status.map(|status| condition_rows(&status.conditions)).unwrap_or_default(),
        prefixes: status.map(|status| status.addresses.clone()).unwrap_or_default(),
        not_ready_hosts: hosts.map(|hosts| hosts.not_ready.clone()).unwrap_or_default(),
        machine_rows: machines::rows(snapshot, &filter),
    })
}

fn row(name: &str, tenant: &TenantCluster) -> TenantRow {
    let status = tenant.status.as_ref();
    let conditions = status.map(|status| condition_rows(&status.conditions)).unwrap_or_default();
    let ready = conditions.iter().find(|one| one.type_ == condition::READY);
    let issues = issues(&conditions);
    let network = tenant.spec.network.as_ref();
    let addresses = status.map(|status| status.addresses.as_slice()).unwrap_or_default();
    let add = |all: AddressCounts, one: &AddressCount| AddressCounts {
        allocated: all.allocated.saturating_add(one.allocated.into()),
        quarantined: all.quarantined.saturating_add(one.quarantined.into()),
        free: all.free.saturating_add(one.free.into()),
    };
    TenantRow {
        name: name.to_owned(),
        namespace: TenantCluster::namespace_of(name),
        ready: ready.map(|one| one.status),
        reason: ready.map(|one| one.reason.clone()).unwrap_or_default(),
        severity: issues.iter().map(|issue| issue.severity).max().unwrap_or_default(),
        network: network.map(|network| network.name.clone()),
        vlan: status.and_then(|status| status.vlan),
        vni: status.and_then(|status| status.vni),
        mtu: status.and_then(|status| status.mtu),
        machines: status.and_then(|status| status.machines.as_ref()).map(|one| MachineCounts {
            desired: one.desired,
            current: one.current,
            ready: one.ready,
        }),
        hosts: status
            .and_then(|status| status.hosts.as_ref())
            .map(|one| HostCounts { selected: one.selected, ready: one.ready }),
        addresses: (!addresses.is_empty())
            .then(|| addresses.iter().fold(AddressCounts::default(), add)),
        issues,
    }
}
