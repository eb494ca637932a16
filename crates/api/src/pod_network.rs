//! MTU of the pod network of a tenant's cluster, which the packets of the machines carry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::Display;

/// Pod network of the tenant's cluster, as its network plugin is configured. Berth does not read the configuration of
/// the plugin.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodNetwork {
    /// MTU of the pods' interfaces in bytes.
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: u16,
    /// Tunnels that the network plugin uses between Nodes, whose overheads are added. An empty list means none: native
    /// routing, or BGP.
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub encapsulation: Vec<PodEncapsulation>,
}

impl PodNetwork {
    /// Returns the largest MTU of pods on machines with this MTU. `has_ipv4` and `has_ipv6` are true if the network has
    /// addresses of these families. Tunnels between Nodes use IPv6 only if the network has IPv6 addresses only.
    #[must_use]
    pub fn max_mtu(&self, machine_mtu: u32, has_ipv4: bool, has_ipv6: bool) -> u32 {
        let is_ipv6 = has_ipv6 && !has_ipv4;
        let overheads = self.encapsulation.iter().map(|one| one.overhead(is_ipv6));
        overheads.fold(machine_mtu, u32::saturating_sub)
    }
}

/// Tunnel between the Nodes of a tenant's cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum PodEncapsulation {
    /// VXLAN, as of flannel, Calico and Cilium.
    Vxlan,
    /// Geneve without options, as of Cilium and Antrea.
    Geneve,
    /// Geneve of OVN-Kubernetes, with 8 bytes of options.
    GeneveOvnKubernetes,
    /// Geneve of OpenShift and Kube-OVN, which both subtract 100 bytes by default.
    GeneveOpenShift,
    /// IP in IP of Calico.
    IpInIp,
    /// WireGuard of Calico.
    WireGuardCalico,
    /// WireGuard of Cilium, which encrypts the packets of its tunnel.
    WireGuardCilium,
}

impl PodEncapsulation {
    /// Returns the number of bytes that the tunnel adds to a packet of a pod. `is_ipv6` is true if the tunnel uses IPv6.
    /// `docs/networks.md` has the sources.
    #[must_use]
    pub const fn overhead(self, is_ipv6: bool) -> u32 {
        let (ipv4, ipv6) = match self {
            Self::Vxlan | Self::Geneve => (50, 70),
            Self::GeneveOvnKubernetes => (58, 78),
            Self::GeneveOpenShift => (100, 100),
            // RFC 2003, RFC 2473.
            Self::IpInIp => (20, 40),
            Self::WireGuardCalico => (60, 80),
            Self::WireGuardCilium => (80, 80),
        };
        if is_ipv6 { ipv6 } else { ipv4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overheads_of_all_tunnels_are_subtracted() {
        use PodEncapsulation::{Geneve, Vxlan, WireGuardCilium};
        let max = |encapsulation: &[PodEncapsulation], machines, is_ipv6| {
            let pods = PodNetwork { mtu: 1500, encapsulation: encapsulation.to_vec() };
            assert_eq!(pods.max_mtu(machines, true, is_ipv6), pods.max_mtu(machines, true, false));
            pods.max_mtu(machines, false, is_ipv6)
        };
        assert_eq!(max(&[], 1500, false), 1500);
        assert_eq!(max(&[Vxlan], 1500, false), 1450);
        assert_eq!(max(&[Geneve], 1500, true), 1430);
        assert_eq!(max(&[Vxlan, WireGuardCilium], 9000, false), 8870);
        assert_eq!(max(&[Vxlan], 40, false), 0);
    }

    #[test]
    fn values_are_written_as_they_are_displayed() {
        let pods: PodNetwork =
            serde_json::from_str(r#"{"mtu": 1450, "encapsulation": ["Vxlan"]}"#).unwrap();
        assert_eq!((pods.mtu, pods.encapsulation[0].to_string()), (1450, "Vxlan".to_owned()));
        for invalid in [r#"{"mtu": 1450}"#, r#"{"mtu": 1450, "encapsulation": ["VXLAN"]}"#] {
            assert!(serde_json::from_str::<PodNetwork>(invalid).is_err(), "{invalid}");
        }
    }
}
