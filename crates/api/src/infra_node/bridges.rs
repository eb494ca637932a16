//! Names of bridges on the hosts. The agent, which creates the bridges, and the controller, which attaches VMs to them,
//! both use this module.

use super::spec::{NetworkScenario, NetworkSpec, VxlanSpec};
use crate::{LinkName, ParseLinkNameError};

/// Default prefix of the names of tenants' bridges.
const DEFAULT_BRIDGE_PREFIX: &str = "tn";

impl NetworkSpec {
    /// Returns the bridge for VMs of a tenant with this VLAN or VNI, or `None` if the scenario has no bridge
    /// (`SriovVf`).
    ///
    /// # Errors
    /// Returns an error if the name has more than 15 bytes.
    pub fn tenant_bridge(&self, id: u32) -> Result<Option<LinkName>, ParseLinkNameError> {
        match self.scenario {
            NetworkScenario::VlanAwareBridge => self.shared_bridge().map(Some),
            NetworkScenario::BridgePerTenant | NetworkScenario::Vxlan => {
                format!("{}{id}", self.bridge_prefix()).parse().map(Some)
            }
            NetworkScenario::SriovVf => Ok(None),
        }
    }

    /// Returns the name of the bridge that all tenants share (`VlanAwareBridge`). Default: `br-` and the name of the
    /// host network.
    ///
    /// # Errors
    /// Returns an error if the spec contains no name for the bridge, and the default name has more than 15 bytes.
    pub fn shared_bridge(&self) -> Result<LinkName, ParseLinkNameError> {
        self.bridge.clone().map_or_else(|| format!("br-{}", self.name).parse(), Ok)
    }

    /// Returns the prefix of the names of single-tenant bridges, before the VLAN id or VNI.
    #[must_use]
    pub fn bridge_prefix(&self) -> &str {
        self.bridge.as_ref().map_or(DEFAULT_BRIDGE_PREFIX, LinkName::as_str)
    }

    /// Returns the tunnel settings if the scenario is Vxlan. With another scenario, the settings in the spec have no
    /// effect.
    #[must_use]
    pub fn vxlan_settings(&self) -> Option<&VxlanSpec> {
        self.vxlan.as_ref().filter(|_| self.scenario == NetworkScenario::Vxlan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_name_depends_on_scenario() {
        let name = |spec: serde_json::Value| {
            let spec: NetworkSpec = serde_json::from_value(spec).unwrap();
            spec.tenant_bridge(4094).map(|name| name.map(|name| name.to_string()))
        };
        let spec = |scenario: &str, name: &str, bridge: Option<&str>| serde_json::json!({"name": name, "scenario": scenario, "bridge": bridge});
        for (scenario, bridge, expected) in [
            ("VlanAwareBridge", None, Some("br-trunk")),
            ("VlanAwareBridge", Some("brt0"), Some("brt0")),
            ("BridgePerTenant", None, Some("tn4094")),
            ("Vxlan", Some("vx"), Some("vx4094")),
            ("SriovVf", None, None),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(
                name(spec(scenario, "trunk", bridge)),
                Ok(expected),
                "{scenario} {bridge:?}"
            );
        }
        assert!(name(spec("VlanAwareBridge", "a-network-with-a-long-name", None)).is_err());
        assert!(name(spec("BridgePerTenant", "x", Some("tenant-net-1"))).is_err());
    }
}
