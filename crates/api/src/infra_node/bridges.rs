//! Names of bridges on the hosts, by one rule for the agent that makes them and the controller that points VMs to them.

use super::{NetworkScenario, NetworkSpec, VxlanSpec};
use crate::{LinkName, ParseLinkNameError};

/// What tenants' bridges begin with where the spec does not say.
const PREFIX: &str = "tn";

impl NetworkSpec {
    /// The bridge that VMs of a tenant with this VLAN or VNI are attached to; `None` where there is none (`SriovVf`).
    ///
    /// # Errors
    /// If the name is longer than a link's may be.
    pub fn bridge_of(&self, id: u32) -> Result<Option<LinkName>, ParseLinkNameError> {
        match self.scenario {
            NetworkScenario::VlanAwareBridge => self.shared_bridge().map(Some),
            NetworkScenario::BridgePerTenant | NetworkScenario::Vxlan => {
                format!("{}{id}", self.bridge_prefix()).parse().map(Some)
            }
            NetworkScenario::SriovVf => Ok(None),
        }
    }

    /// The bridge of all tenants (`VlanAwareBridge`): as named, or `br-` and the network's name.
    ///
    /// # Errors
    /// If it is not named, and that is longer than a link's name may be.
    pub fn shared_bridge(&self) -> Result<LinkName, ParseLinkNameError> {
        self.bridge.clone().map_or_else(|| format!("br-{}", self.name).parse(), Ok)
    }

    /// What the bridges of single tenants begin with, before the VLAN id or VNI.
    #[must_use]
    pub fn bridge_prefix(&self) -> &str {
        self.bridge.as_ref().map_or(PREFIX, LinkName::as_str)
    }

    /// Where its tunnels end; with a scenario other than Vxlan the block may stand there, and says nothing.
    #[must_use]
    pub fn tunnels(&self) -> Option<&VxlanSpec> {
        self.vxlan.as_ref().filter(|_| self.scenario == NetworkScenario::Vxlan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_are_named_as_their_scenario_has_it() {
        let name = |spec: serde_json::Value| {
            let spec: NetworkSpec = serde_json::from_value(spec).unwrap();
            spec.bridge_of(4094).map(|name| name.map(|name| name.to_string()))
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
