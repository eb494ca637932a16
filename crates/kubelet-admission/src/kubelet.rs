//! What of a kubelet's configuration and version changes what it admits.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use berth_api::{CpuSet, PageSize};

/// The configuration of one kubelet, as far as it decides on admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// `status.nodeInfo.kubeletVersion` of the Node.
    pub version: Version,
    /// `cpuManagerPolicy`.
    pub cpu_policy: CpuPolicy,
    /// `cpuManagerPolicyOptions`.
    pub cpu_options: CpuOptions,
    /// CPUs never handed out (`reservedSystemCPUs`, or what the kubelet chose for a mere number).
    pub reserved_cpus: CpuSet,
    /// `memoryManagerPolicy`.
    pub memory_policy: MemoryPolicy,
    /// `reservedMemory`.
    pub reserved_memory: Vec<ReservedMemory>,
    /// `topologyManagerPolicy`.
    pub topology_policy: TopologyPolicy,
    /// `topologyManagerScope`; of no effect with the policy `none`.
    pub topology_scope: TopologyScope,
    /// `topologyManagerPolicyOptions`.
    pub topology_options: TopologyOptions,
}

/// One entry of `reservedMemory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    /// The zone's number.
    pub zone: u32,
    /// Bytes of `memory`.
    pub memory: u64,
    /// Bytes of huge pages by their size.
    pub hugepages: BTreeMap<PageSize, u64>,
}

/// Major and minor version of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 1.
    pub major: u16,
    /// 20 to 36 and beyond.
    pub minor: u16,
}

/// Why a text is not one of the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: `{value}` is not {expected}")]
pub struct ParseKubeletError {
    place: &'static str,
    value: String,
    expected: &'static str,
}

impl ParseKubeletError {
    fn new(place: &'static str, value: &str, expected: &'static str) -> Self {
        Self { place, value: value.chars().take(60).collect(), expected }
    }
}

impl FromStr for Version {
    type Err = ParseKubeletError;

    /// `v1.36.2`, and what distributions append to it (`v1.30.4+k3s1`, `v1.29.1-eks-508b6b3`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseKubeletError::new("kubeletVersion", text, "a version such as v1.36.2");
        let mut parts = text.strip_prefix('v').unwrap_or(text).split(['.', '-', '+']);
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(wrong);
        Ok(Self { major: number()?, minor: number()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A closed list of the kubelet's words.
macro_rules! words {
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

words!(
    /// `cpuManagerPolicy`.
    CpuPolicy, "cpuManagerPolicy", "none or static", {
        /// All containers share all CPUs.
        #[default]
        None = "none",
        /// Containers of Guaranteed pods with whole CPUs get CPUs of their own.
        Static = "static",
    }
);

words!(
    /// `memoryManagerPolicy`; `BestEffort` is for Windows only.
    MemoryPolicy, "memoryManagerPolicy", "None or Static", {
        /// Memory of any zone.
        #[default]
        None = "None",
        /// Guaranteed pods get memory and huge pages of zones kept account of.
        Static = "Static",
    }
);

words!(
    /// `topologyManagerPolicy`.
    TopologyPolicy, "topologyManagerPolicy", "none, best-effort, restricted or single-numa-node", {
        /// Every manager for itself.
        #[default]
        None = "none",
        /// The best there is.
        BestEffort = "best-effort",
        /// As few zones as would do on an empty host, the same for all.
        Restricted = "restricted",
        /// One zone for all.
        SingleNumaNode = "single-numa-node",
    }
);

words!(
    /// `topologyManagerScope`.
    TopologyScope, "topologyManagerScope", "container or pod", {
        /// Each container is placed by itself.
        #[default]
        Container = "container",
        /// All containers of a pod get the same zones.
        Pod = "pod",
    }
);

/// `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches of the kubelet's")]
pub struct CpuOptions {
    /// `full-pcpus-only`.
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-numa`.
    pub distribute_across_numa: bool,
    /// `align-by-socket`.
    pub align_by_socket: bool,
    /// `strict-cpu-reservation`.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`.
    pub prefer_uncore_cache: bool,
}

impl CpuOptions {
    /// From the names and values of the configuration.
    ///
    /// # Errors
    ///
    /// An option this predictor does not know (`distribute-cpus-across-cores` among them, an alpha
    /// one), or a value that is no truth value.
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
                    let expected = "an option whose effect is known here";
                    return Err(ParseKubeletError::new("cpuManagerPolicyOptions", name, expected));
                }
            };
            *option = truth("cpuManagerPolicyOptions", value)?;
        }
        Ok(parsed)
    }

    pub(super) const fn any(self) -> bool {
        self.full_pcpus_only
            || self.distribute_across_numa
            || self.align_by_socket
            || self.strict_reservation
            || self.prefer_uncore_cache
    }
}

/// `topologyManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `prefer-closest-numa-nodes`.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`.
    pub max_zones: u32,
}

impl Default for TopologyOptions {
    /// `defaultMaxAllowableNUMANodes` of topologymanager/topology_manager.go.
    fn default() -> Self {
        Self { prefer_closest: false, max_zones: 8 }
    }
}

impl TopologyOptions {
    /// From the names and values of the configuration.
    ///
    /// # Errors
    ///
    /// An unknown option, a value that is no truth value, or a maximum below 8, which the kubelet
    /// refuses too.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, ParseKubeletError> {
        let place = "topologyManagerPolicyOptions";
        let mut parsed = Self::default();
        for (name, value) in options {
            match name.as_str() {
                "prefer-closest-numa-nodes" => parsed.prefer_closest = truth(place, value)?,
                "max-allowable-numa-nodes" => {
                    let number = value.parse().ok().filter(|&zones: &u32| zones >= 8);
                    let wrong = || ParseKubeletError::new(place, value, "a number from 8");
                    parsed.max_zones = number.ok_or_else(wrong)?;
                }
                _ => return Err(ParseKubeletError::new(place, name, "an option of the kubelet's")),
            }
        }
        Ok(parsed)
    }
}

/// As Go's `strconv.ParseBool` reads it.
fn truth(place: &'static str, value: &str) -> Result<bool, ParseKubeletError> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(ParseKubeletError::new(place, value, "a truth value")),
    }
}

/// What a version of the kubelet does otherwise than others.
///
/// Held against the kubelet itself for 1.20 and 1.36; the versions between are by reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each came with a release of its own")]
pub(super) struct Features {
    /// Memory Manager: alpha in 1.21, on by default from 1.22 (KEP-1769).
    pub(super) memory_manager: bool,
    /// `cpuManagerPolicyOptions`: on by default from 1.23 (KEP-2625).
    pub(super) cpu_options: bool,
    /// `topologyManagerPolicyOptions`: from 1.26 (KEP-3545).
    pub(super) topology_options: bool,
    /// A merged hint is preferred only if all its parts are the same zones (1.24, kubernetes#108052),
    /// and not merely the narrowest of those left over is taken (1.24, kubernetes#108154).
    pub(super) careful_merge: bool,
    /// CPUs are taken by zones and sockets, in an order that is one (1.23, KEP-2902). Before that
    /// the order of sockets was left to chance where they differ.
    pub(super) zone_aware_order: bool,
    /// Restartable init containers: on by default from 1.29 (KEP-753).
    pub(super) sidecars: bool,
    /// The CPU Manager's refusal says how many CPUs there were.
    pub(super) counts_in_message: bool,
}

impl Features {
    pub(super) fn of(version: Version) -> Self {
        let since = |minor| version >= Version { major: 1, minor };
        Self {
            memory_manager: since(22),
            cpu_options: since(23),
            topology_options: since(26),
            careful_merge: since(24),
            zone_aware_order: since(23),
            sidecars: since(29),
            counts_in_message: since(29),
        }
    }
}
