//! Request of a tenant's network for a prefix of one family.

use berth_api::TenantCluster;
use ipnet::IpNet;

use crate::tenants::addresses::checks::PoolCheck;
use crate::tenants::addresses::family::Family;
use crate::tenants::addresses::resolved::{PoolSource, UnresolvedPool, find_prefix};

/// Request of a tenant's network for a prefix of one family: the tenant names the prefix (`cidr`) or a pool
/// (`fromPool`).
#[derive(Clone, Copy, Debug)]
pub struct PrefixRequest<'a> {
    /// Name of the TenantCluster.
    pub tenant: &'a str,
    /// UID of the TenantCluster.
    pub uid: &'a str,
    pub family: Family,
    /// The `cidr` or `fromPool` in the spec of the tenant.
    pub source: PoolSource<'a>,
    /// Prefix of the requested pool in the tenant's status, which its machines may already use; `None` for a `cidr`.
    pub recorded: Option<IpNet>,
}

impl<'a> PrefixRequest<'a> {
    /// Returns the request of a tenant; `None` if its network has no addresses of the family, or an invalid `cidr`.
    ///
    /// # Errors
    /// Returns the reason if the spec contains neither `cidr` nor `fromPool`, or both.
    pub fn of_tenant(
        tenant: &'a TenantCluster,
        family: Family,
    ) -> Result<Option<Self>, UnresolvedPool> {
        let network = tenant.spec.network.as_ref();
        let spec = network.and_then(|network| match family {
            Family::V4 => network.ipv4.as_ref(),
            Family::V6 => network.ipv6.as_ref(),
        });
        let Some(spec) = spec else { return Ok(None) };
        let source = PoolSource::new(spec)?;
        let recorded = match source {
            PoolSource::Cidr(cidr) => {
                let check = PoolCheck { field: family.field(), family, cidr };
                if check.find_problem_of_cidr().is_some() {
                    return Ok(None);
                }
                None
            }
            PoolSource::FromPool(name) => {
                let status = tenant.status.as_ref();
                let prefixes = status.map(|status| status.prefixes.as_slice()).unwrap_or_default();
                find_prefix(family, name, prefixes).map(|prefix| prefix.cidr)
            }
        };
        Ok(Some(Self {
            tenant: tenant.metadata.name.as_deref().unwrap_or_default(),
            uid: tenant.metadata.uid.as_deref().unwrap_or_default(),
            family,
            source,
            recorded,
        }))
    }

    /// Returns the field of the TenantCluster that contains the request.
    #[must_use]
    pub fn field(&self) -> String {
        let name = match self.source {
            PoolSource::Cidr(_) => "cidr",
            PoolSource::FromPool(_) => "fromPool",
        };
        format!("{}.{name}", self.family.field())
    }
}
