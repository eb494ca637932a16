//! Feature gates that affect launcher pods or hotplugged disks (`pkg/virt-config/featuregate/active.go` and `inactive.go`).

use super::configuration::Configuration;

/// A feature gate that affects launcher pods or hotplugged disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    AlignCpus,
    ConfigurableHypervisor,
    CrossArchitecture,
    DeclarativeHotplugVolumes,
    ExpandDisks,
    ExternalNetResourceInjection,
    HotplugVolumes,
    HypervStrictCheck,
    ImageVolume,
    Iommufd,
}

/// Reason why KubeVirt does not attach and detach the disks that are added to and removed from a VirtualMachine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HotplugUnsupported {
    /// The feature gate is not enabled, or the release does not have it.
    #[error(
        "KubeVirt's feature gate DeclarativeHotplugVolumes is disabled: enable it in KubeVirt 1.6 or later, or upgrade to 1.9, \
         where it is enabled by default"
    )]
    GateDisabled,
    /// The older feature gate takes precedence (`handleDeclarativeVolumeHotplug`).
    #[error(
        "KubeVirt's feature gate HotplugVolumes is enabled, and disables DeclarativeHotplugVolumes: remove it from featureGates; \
         the API for hotplugged volumes stays available"
    )]
    ImperativeGateEnabled,
}

impl Gate {
    const fn name(self) -> &'static str {
        match self {
            Self::AlignCpus => "AlignCPUs",
            Self::ConfigurableHypervisor => "ConfigurableHypervisor",
            Self::CrossArchitecture => "CrossArchitectureVirtualization",
            Self::DeclarativeHotplugVolumes => "DeclarativeHotplugVolumes",
            Self::ExpandDisks => "ExpandDisks",
            Self::ExternalNetResourceInjection => "ExternalNetResourceInjection",
            Self::HotplugVolumes => "HotplugVolumes",
            Self::HypervStrictCheck => "HypervStrictCheck",
            Self::ImageVolume => "ImageVolume",
            Self::Iommufd => "IOMMUFD",
        }
    }

    /// Returns true if the feature gate has the stage beta in KubeVirt 1.9.
    const fn is_beta(self) -> bool {
        matches!(
            self,
            Self::DeclarativeHotplugVolumes
                | Self::ExternalNetResourceInjection
                | Self::ImageVolume
        )
    }

    /// Returns the minor version of the first KubeVirt release that has the feature gate; the major version is 1.
    const fn since_minor(self) -> u16 {
        match self {
            Self::AlignCpus
            | Self::ExpandDisks
            | Self::HotplugVolumes
            | Self::HypervStrictCheck => 2,
            Self::DeclarativeHotplugVolumes | Self::ImageVolume => 6,
            Self::ConfigurableHypervisor | Self::ExternalNetResourceInjection => 8,
            Self::CrossArchitecture | Self::Iommufd => 9,
        }
    }
}

impl Configuration {
    /// Returns true if a feature gate is enabled (`featuregate.IsEnabled`).
    pub(super) fn is_gate_enabled(&self, gate: Gate) -> bool {
        let is_enabled = self.feature_gates.contains(gate.name());
        // Beta gates are enabled by default since 1.9. In earlier releases, every gate must be enabled explicitly.
        let is_beta_default = gate.is_beta() && self.version.is_at_least(9, 0);
        self.version.is_at_least(gate.since_minor(), 0)
            && (is_enabled || is_beta_default && !self.disabled_feature_gates.contains(gate.name()))
    }

    /// Returns true if `KubeVirt` adds requests to launcher pods for the device plugin resources that
    /// NetworkAttachmentDefinitions name ([`RESOURCE_NAME`](super::RESOURCE_NAME)).
    ///
    /// With the feature gate `ExternalNetResourceInjection`, which is enabled by default since 1.9, `KubeVirt` does not
    /// read NetworkAttachmentDefinitions. A webhook such as network-resources-injector must then add the requests.
    #[must_use]
    pub fn requests_network_resources(&self) -> bool {
        !self.is_gate_enabled(Gate::ExternalNetResourceInjection)
    }

    /// Checks that KubeVirt attaches and detaches the disks that are added to and removed from a VirtualMachine.
    ///
    /// # Errors
    /// Returns the reason why it does not.
    pub fn check_declarative_hotplug(&self) -> Result<(), HotplugUnsupported> {
        if !self.is_gate_enabled(Gate::DeclarativeHotplugVolumes) {
            return Err(HotplugUnsupported::GateDisabled);
        }
        if self.is_gate_enabled(Gate::HotplugVolumes) {
            return Err(HotplugUnsupported::ImperativeGateEnabled);
        }
        Ok(())
    }

    /// Returns true if a running guest gets the new size of an expanded volume. The feature gate `ExpandDisks` is always
    /// enabled since 1.9.
    #[must_use]
    pub fn expands_disks_online(&self) -> bool {
        self.version.is_at_least(9, 0) || self.is_gate_enabled(Gate::ExpandDisks)
    }

    /// Returns the name of the hypervisor's device in device plugin resources, `kvm` or `mshv` (`GetHypervisorDevice`).
    pub(super) fn hypervisor_device(&self) -> &'static str {
        let is_configurable = self.is_gate_enabled(Gate::ConfigurableHypervisor);
        match self.hypervisor.as_deref().filter(|_| is_configurable) {
            Some("hyperv-direct") => "mshv",
            _ => "kvm",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn disks_are_hotplugged_unless_the_older_gate_is_enabled() {
        let check = |version: &str, enabled: &[&str], disabled: &[&str]| {
            let gates = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let configuration = Configuration {
                version: version.parse().unwrap(),
                feature_gates: gates(enabled),
                disabled_feature_gates: gates(disabled),
                ..Configuration::default()
            };
            (configuration.check_declarative_hotplug(), configuration.expands_disks_online())
        };
        let (new, old) = ("DeclarativeHotplugVolumes", "HotplugVolumes");
        let gate_disabled = Err(HotplugUnsupported::GateDisabled);
        assert_eq!(check("v1.9.0", &[], &[]), (Ok(()), true));
        assert_eq!(check("v1.9.0", &[], &[new]), (gate_disabled, true));
        let both = Err(HotplugUnsupported::ImperativeGateEnabled);
        assert_eq!(check("v1.9.0", &[old], &[]), (both, true));
        assert_eq!(check("v1.8.4", &[], &[]), (gate_disabled, false));
        assert_eq!(check("v1.8.4", &[new, "ExpandDisks"], &[]), (Ok(()), true));
        assert_eq!(check("v1.5.3", &[new], &[]), (gate_disabled, false));
    }

    #[test]
    fn network_resources_are_requested_unless_another_webhook_adds_them() {
        let gates = |is_listed: bool| -> BTreeSet<String> {
            is_listed.then(|| "ExternalNetResourceInjection".to_owned()).into_iter().collect()
        };
        for (version, enabled, disabled, requests) in [
            ("v1.7.4", true, false, true),
            ("v1.8.4", false, false, true),
            ("v1.8.4", true, false, false),
            ("v1.9.0", false, false, false),
            ("v1.9.0", false, true, true),
            // A gate that is listed as enabled and as disabled is enabled.
            ("v1.9.0", true, true, false),
        ] {
            let configuration = Configuration {
                version: version.parse().unwrap(),
                feature_gates: gates(enabled),
                disabled_feature_gates: gates(disabled),
                ..Configuration::default()
            };
            assert_eq!(configuration.requests_network_resources(), requests, "{configuration:?}");
        }
    }
}
