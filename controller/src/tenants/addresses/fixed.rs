//! Parses the lists of addresses for the machines of a MachineDeployment, which are annotations of its template.

use std::net::IpAddr;

use berth_api::excerpt;
use berth_api::names::{ADDRESSES_ANNOTATION, ADDRESSES_PREFIX};
use berth_kubevirt_render::machines::TENANT_INTERFACE;

use super::pools::NetworkPools;

/// Maximum number of addresses in a list.
const MAX_ADDRESSES: usize = 256;

/// Returns the annotation of a template that lists the addresses of an interface of its machines.
pub fn addresses_annotation(interface: &str) -> String {
    if interface == TENANT_INTERFACE {
        ADDRESSES_ANNOTATION.to_owned()
    } else {
        format!("{ADDRESSES_PREFIX}{interface}")
    }
}

/// Problem of a list of addresses. The text completes a sentence that begins with the value of the annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FixedAddressesError {
    #[error(
        "entry `{0}` is not an IP address: list addresses such as 10.0.0.10, separated by commas"
    )]
    NotAnAddress(String),
    /// An address is in the list twice.
    #[error("lists {0} twice")]
    Duplicate(IpAddr),
    /// The list is too long.
    #[error("lists more than {MAX_ADDRESSES} addresses")]
    TooMany,
    /// No pool permits the address.
    #[error(
        "lists {0}, which machines cannot have: list addresses in the cidr of the \
         TenantCluster's spec.network.ipv4 or ipv6 that are not excluded, and \
         not of the gateway, a name server or a next hop"
    )]
    NotPermitted(IpAddr),
    /// The TenantCluster has no pools, or the MachineDeployment has no TenantCluster.
    #[error("requires a TenantCluster with spec.network.ipv4 or ipv6")]
    NoPool,
    /// The machines have no interface with this name in the network of another tenant.
    #[error(
        "is for the interface `{0}`, which is not in the network of another TenantCluster: the first entry of \
         additionalNetworks is the interface additional-1"
    )]
    NotAttached(String),
}

/// Parses a list of addresses, and checks that the pools of the tenant permit them.
///
/// # Errors
/// Returns the first problem.
pub fn parse_fixed_addresses(
    text: &str,
    pools: Option<&NetworkPools>,
) -> Result<Vec<IpAddr>, FixedAddressesError> {
    let mut all: Vec<IpAddr> = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let Ok(address) = entry.parse() else {
            return Err(FixedAddressesError::NotAnAddress(excerpt(entry)));
        };
        if all.contains(&address) {
            return Err(FixedAddressesError::Duplicate(address));
        }
        if all.len() >= MAX_ADDRESSES {
            return Err(FixedAddressesError::TooMany);
        }
        all.push(address);
    }
    let pools = match pools {
        Some(pools) => pools,
        None if all.is_empty() => return Ok(all),
        None => return Err(FixedAddressesError::NoPool),
    };
    match all.iter().find(|address| !pools.iter().any(|pool| pool.permits(**address))) {
        Some(address) => Err(FixedAddressesError::NotPermitted(*address)),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::super::choose::test_helpers::pools;
    use super::*;

    #[test]
    fn lists_are_checked() {
        let pools =
            pools(serde_json::json!({"ipv4": {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1",
            "ranges": ["10.0.0.100-10.0.0.200"]}}));
        let parse = |text: &str| {
            parse_fixed_addresses(text, Some(&pools)).map_err(|error| error.to_string())
        };
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            parse("10.0.0.10, 10.0.0.11,"),
            Ok(vec![address("10.0.0.10"), address("10.0.0.11")])
        );
        for (text, words) in [
            ("10.0.0.10-10.0.0.12", "entry `10.0.0.10-10.0.0.12` is not an IP address"),
            ("10.0.0.10,10.0.0.10", "lists 10.0.0.10 twice"),
            ("10.0.0.1", "lists 10.0.0.1, which machines cannot have"),
            ("10.0.1.1", "lists 10.0.1.1"),
            ("fd00::1", "lists fd00::1"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.starts_with(words), "{problem}");
        }
        assert_eq!(parse_fixed_addresses("10.0.0.9", None), Err(FixedAddressesError::NoPool));
        assert_eq!(parse_fixed_addresses("", None), Ok(Vec::new()));
        assert_eq!(addresses_annotation("tenant"), "berth.dev/addresses");
        assert_eq!(addresses_annotation("additional-2"), "berth.dev/addresses-additional-2");
    }
}
