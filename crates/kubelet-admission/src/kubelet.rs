//! The settings and the version of a kubelet that affect the admission of pods.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use berth_api::{CpuSet, PageSize, excerpt};

/// Version of a kubelet, and those of its settings that affect the admission of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// `status.nodeInfo.kubeletVersion` of the Node.
    pub version: KubeletVersion,
    /// Setting `cpuManagerPolicy`.
    pub cpu_policy: CpuPolicy,
    /// Setting `cpuManagerPolicyOptions`.
    pub cpu_options: CpuOptions,
    /// CPUs that are never allocated exclusively: `reservedSystemCPUs` or, if only an amount of reserved CPU is
    /// configured, the CPUs that the kubelet selected.
    pub reserved_cpus: CpuSet,
    /// Setting `memoryManagerPolicy`.
    pub memory_policy: MemoryPolicy,
    /// Setting `reservedMemory`.
    pub reserved_memory: Vec<ReservedMemory>,
    /// Setting `topologyManagerPolicy`.
    pub topology_policy: TopologyPolicy,
    /// Setting `topologyManagerScope`, which has no effect with the policy `none`.
    pub topology_scope: TopologyScope,
    /// Setting `topologyManagerPolicyOptions`.
    pub topology_options: TopologyOptions,
}

/// An entry of `reservedMemory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    /// Number of the zone.
    pub zone: u32,
    /// Reserved bytes of memory, without huge pages.
    pub memory: u64,
    /// Reserved bytes of huge pages, by page size.
    pub hugepages: BTreeMap<PageSize, u64>,
}

/// Major and minor version of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubeletVersion {
    /// Major version, which is 1 for all kubelets.
    pub major: u16,
    /// Minor version. The behaviour of the versions 20 to 36 is implemented; later versions are treated as 36.
    pub minor: u16,
}

/// Error for a value that is not valid for a setting of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: `{value}` is not {expected}")]
pub struct ParseKubeletError {
    setting: &'static str,
    value: String,
    expected: &'static str,
}

impl ParseKubeletError {
    fn new(setting: &'static str, value: &str, expected: &'static str) -> Self {
        Self { setting, value: excerpt(value), expected }
    }
}

impl FromStr for KubeletVersion {
    type Err = ParseKubeletError;

    /// Parses `v1.36.2`, and versions with a distribution's suffix (`v1.30.4+k3s1`, `v1.29.1-eks-508b6b3`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error =
            || ParseKubeletError::new("kubeletVersion", text, "a version such as v1.36.2");
        let mut parts = text.strip_prefix('v').unwrap_or(text).split(['.', '-', '+']);
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(parse_error);
        Ok(Self { major: number()?, minor: number()? })
    }
}

impl fmt::Display for KubeletVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Defines an enum whose variants are the values of a kubelet setting, with its name and its expected values for
/// errors.
macro_rules! define_setting_values {
    ($(#[$doc:meta])* $name:ident, $place:literal, $expected:literal,
     { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl FromStr for $name {
            type Err = ParseKubeletError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(ParseKubeletError::new($place, text, $expected)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $word,)* })
            }
        }
    };
}

define_setting_values!(
    /// Setting `cpuManagerPolicy`.
    CpuPolicy, "cpuManagerPolicy", "none or static", {
        /// All containers share all CPUs.
        #[default]
        None = "none",
        /// Containers of Guaranteed pods whose CPU requests are integers get exclusive CPUs.
        Static = "static",
    }
);

define_setting_values!(
    /// Setting `memoryManagerPolicy`. The value `BestEffort` is missing, because it exists only on Windows.
    MemoryPolicy, "memoryManagerPolicy", "None or Static", {
        /// Containers use memory of any NUMA zone.
        #[default]
        None = "None",
        /// The kubelet allocates memory and huge pages of certain NUMA zones to containers of Guaranteed pods, and
        /// accounts for this memory by zone.
        Static = "Static",
    }
);

define_setting_values!(
    /// Setting `topologyManagerPolicy`.
    TopologyPolicy, "topologyManagerPolicy", "none, best-effort, restricted or single-numa-node", {
        /// Each manager allocates its resources from any zone, independently of the zones of other resources.
        #[default]
        None = "none",
        /// The managers allocate from the best possible combination of zones. No pod is rejected because of its zones.
        BestEffort = "best-effort",
        /// All resources must come from the same zones, and from as few zones as would be sufficient on an empty host.
        Restricted = "restricted",
        /// All resources must come from a single zone.
        SingleNumaNode = "single-numa-node",
    }
);

define_setting_values!(
    /// Setting `topologyManagerScope`.
    TopologyScope, "topologyManagerScope", "container or pod", {
        /// The Topology Manager selects the zones of each container independently.
        #[default]
        Container = "container",
        /// The Topology Manager selects the same zones for all containers of a pod.
        Pod = "pod",
    }
);

/// Setting `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the kubelet has these options, each of which is a boolean"
)]
pub struct CpuOptions {
    /// Option `full-pcpus-only`.
    pub full_pcpus_only: bool,
    /// Option `distribute-cpus-across-numa`.
    pub distribute_across_numa: bool,
    /// Option `align-by-socket`.
    pub align_by_socket: bool,
    /// Option `strict-cpu-reservation`.
    pub strict_reservation: bool,
    /// Option `prefer-align-cpus-by-uncorecache`.
    pub prefer_uncore_cache: bool,
}

impl CpuOptions {
    /// Parses the options of the configuration: a map from names to values.
    ///
    /// # Errors
    ///
    /// Returns an error for an option that this crate does not support (for instance the alpha option
    /// `distribute-cpus-across-cores`), or for a value that is not a boolean.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, ParseKubeletError> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let option = match name.as_str() {
                "full-pcpus-only" => &mut parsed.full_pcpus_only,
                "distribute-cpus-across-numa" => &mut parsed.distribute_across_numa,
                "align-by-socket" => &mut parsed.align_by_socket,
                "strict-cpu-reservation" => &mut parsed.strict_reservation,
                "prefer-align-cpus-by-uncorecache" => &mut parsed.prefer_uncore_cache,
                _ => {
                    let expected = "a supported option";
                    return Err(ParseKubeletError::new("cpuManagerPolicyOptions", name, expected));
                }
            };
            *option = parse_bool("cpuManagerPolicyOptions", value)?;
        }
        Ok(parsed)
    }

    pub(super) const fn is_any_set(self) -> bool {
        self.full_pcpus_only
            || self.distribute_across_numa
            || self.align_by_socket
            || self.strict_reservation
            || self.prefer_uncore_cache
    }
}

/// Setting `topologyManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyOptions {
    /// Option `prefer-closest-numa-nodes`.
    pub prefers_closest_zones: bool,
    /// Option `max-allowable-numa-nodes`.
    pub max_allowable_zones: u32,
}

impl Default for TopologyOptions {
    /// Returns the kubelet's defaults: `defaultMaxAllowableNUMANodes` of topologymanager/topology_manager.go.
    fn default() -> Self {
        Self { prefers_closest_zones: false, max_allowable_zones: 8 }
    }
}

impl TopologyOptions {
    /// Parses the options of the configuration: a map from names to values.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown option, for a value that is not a boolean, or for a maximum below 8, which the
    /// kubelet also refuses.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, ParseKubeletError> {
        let setting = "topologyManagerPolicyOptions";
        let mut parsed = Self::default();
        for (name, value) in options {
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    parsed.prefers_closest_zones = parse_bool(setting, value)?
                }
                "max-allowable-numa-nodes" => {
                    let number = value.parse().ok().filter(|&zones: &u32| zones >= 8);
                    let parse_error =
                        || ParseKubeletError::new(setting, value, "a number of at least 8");
                    parsed.max_allowable_zones = number.ok_or_else(parse_error)?;
                }
                _ => {
                    return Err(ParseKubeletError::new(setting, name, "an option of the kubelet"));
                }
            }
        }
        Ok(parsed)
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(setting: &'static str, value: &str) -> Result<bool, ParseKubeletError> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(ParseKubeletError::new(setting, value, "a boolean")),
    }
}

/// Behaviour that differs between versions of the kubelet.
///
/// For 1.20 and 1.36, the predicted behaviour was compared with real kubelets. For the versions between them, it was
/// derived from the kubelet's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "different releases introduced these features independently"
)]
pub(super) struct VersionFeatures {
    /// The kubelet has the Memory Manager: alpha in 1.21, on by default since 1.22 (KEP-1769).
    pub(super) has_memory_manager: bool,
    /// The kubelet supports `cpuManagerPolicyOptions`: on by default since 1.23 (KEP-2625).
    pub(super) has_cpu_options: bool,
    /// The kubelet supports `topologyManagerPolicyOptions`: since 1.26 (KEP-3545).
    pub(super) has_topology_options: bool,
    /// Since 1.24, a merged hint is preferred only if all hints of the combination have the same zones
    /// (kubernetes#108052), and the hint with the fewest zones is not always the best non-preferred hint
    /// (kubernetes#108154).
    pub(super) has_fixed_hint_merge: bool,
    /// Since 1.23, the kubelet takes CPUs by zones and sockets, in a total order (KEP-2902). Before 1.23, the order of
    /// sockets with different numbers of free CPUs was random.
    pub(super) has_zone_aware_order: bool,
    /// The kubelet supports restartable init containers: on by default since 1.29 (KEP-753).
    pub(super) supports_sidecars: bool,
    /// Since 1.29, the CPU Manager's refusal message contains the numbers of requested and available CPUs.
    pub(super) has_counts_in_message: bool,
}

impl VersionFeatures {
    pub(super) fn for_version(version: KubeletVersion) -> Self {
        let since = |minor| version >= KubeletVersion { major: 1, minor };
        Self {
            has_memory_manager: since(22),
            has_cpu_options: since(23),
            has_topology_options: since(26),
            has_fixed_hint_merge: since(24),
            has_zone_aware_order: since(23),
            supports_sidecars: since(29),
            has_counts_in_message: since(29),
        }
    }
}
