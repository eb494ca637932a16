//! CPU topology of a VM whose instance type sets the number of vCPUs, as its preference requests (`apply/cpu.go`).

use super::instancetype_spec::Preference;

// Names of the preferred topologies, each with the current name and the deprecated name.
pub(super) const CORES: [&str; 2] = ["cores", "preferCores"];
pub(super) const THREADS: [&str; 2] = ["threads", "preferThreads"];
pub(super) const SPREAD: [&str; 2] = ["spread", "preferSpread"];
pub(super) const ANY: [&str; 2] = ["any", "preferAny"];
/// The empty name stands for an unset field: sockets are the default (`GetPreferredTopology`).
pub(super) const SOCKETS: [&str; 3] = ["sockets", "preferSockets", ""];

/// Reason why no CPU topology can be derived from a preference.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TopologyError {
    #[error("cpu.preferredCPUTopology of the preference: `{0}` is unknown")]
    UnknownTopology(String),
    #[error("cpu.spreadOptions.across of the preference: `{0}` is unknown")]
    UnknownAcross(String),
    #[error("cpu.spreadOptions of the preference: {vcpus} vCPUs are not divisible by {divisor}")]
    NotDivisible { vcpus: u32, divisor: u32 },
}

impl TopologyError {
    /// Returns the path of the invalid field. If vCPUs are not divisible, KubeVirt reports the instance type instead of
    /// the preference.
    pub(super) const fn field(&self) -> &'static str {
        match self {
            Self::NotDivisible { .. } => "instancetype.spec.cpu.guest",
            Self::UnknownTopology(_) | Self::UnknownAcross(_) => "spec.preference",
        }
    }
}

/// Returns the name of the preferred topology; empty if it is unset (`GetPreferredTopology`).
pub(super) fn preferred_cpu_topology(preference: Option<&Preference>) -> &str {
    preference.map_or("", |preference| preference.cpu.preferred_cpu_topology.as_str())
}

/// Returns the ratio by which vCPUs are spread, and the levels across which they are spread, such as `SocketsCores`
/// (`GetSpreadOptions`).
pub(super) fn spread_options(preference: Option<&Preference>) -> (u32, &str) {
    let options = preference.map(|preference| &preference.cpu.spread_options);
    let deprecated_ratio =
        preference.map(|it| it.prefer_spread_socket_to_core_ratio).filter(|ratio| *ratio != 0);
    let ratio = options.and_then(|options| options.ratio).or(deprecated_ratio).unwrap_or(2);
    let across = options.and_then(|options| options.across.as_deref());
    (ratio, across.unwrap_or("SocketsCores"))
}

/// Returns the numbers of cores, sockets and threads for a number of vCPUs (`applyGuestCPUTopology`).
///
/// # Errors
///
/// Returns an error if the preference is invalid, or if it spreads the vCPUs and their number is not divisible
/// (`CheckSpreadCPUTopology`). For example, a single vCPU is not divisible by the default ratio, which is 2.
pub(super) fn topology(
    vcpus: u32,
    preference: Option<&Preference>,
) -> Result<[u32; 3], TopologyError> {
    match preferred_cpu_topology(preference) {
        name if SOCKETS.contains(&name) || ANY.contains(&name) => Ok([1, vcpus, 1]),
        name if CORES.contains(&name) => Ok([vcpus, 1, 1]),
        name if THREADS.contains(&name) => Ok([1, 1, vcpus]),
        name if SPREAD.contains(&name) => spread_topology(vcpus, preference),
        other => Err(TopologyError::UnknownTopology(other.to_owned())),
    }
}

fn spread_topology(vcpus: u32, preference: Option<&Preference>) -> Result<[u32; 3], TopologyError> {
    let (ratio, across) = spread_options(preference);
    let divide = |divisor: u32| {
        let is_divisible = divisor != 0 && vcpus.is_multiple_of(divisor);
        is_divisible.then(|| vcpus / divisor).ok_or(TopologyError::NotDivisible { vcpus, divisor })
    };
    match across {
        "SocketsCores" => Ok([ratio, divide(ratio)?, 1]),
        "CoresThreads" => Ok([divide(ratio)?, 1, ratio]),
        "SocketsCoresThreads" => Ok([ratio, divide(ratio.saturating_mul(2))?, 2]),
        other => Err(TopologyError::UnknownAcross(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::instancetype_spec::SpreadOptions;
    use super::*;

    fn spread_across(across: &str, ratio: Option<u32>) -> Preference {
        let mut preference = Preference::default();
        preference.cpu.preferred_cpu_topology = "spread".to_owned();
        preference.cpu.spread_options = SpreadOptions { across: Some(across.to_owned()), ratio };
        preference
    }

    #[test]
    fn one_vcpu_cannot_be_spread() {
        for (across, ratio, divisor) in [
            ("SocketsCores", None, 2),
            ("CoresThreads", None, 2),
            ("SocketsCoresThreads", None, 4),
            ("SocketsCoresThreads", Some(1), 2),
        ] {
            let preference = spread_across(across, ratio);
            let expected = Err(TopologyError::NotDivisible { vcpus: 1, divisor });
            assert_eq!(topology(1, Some(&preference)), expected, "{across}");
        }
        let preference = spread_across("CoresThreads", Some(1));
        assert_eq!(topology(1, Some(&preference)), Ok([1, 1, 1]));
        assert_eq!(topology(1, None), Ok([1, 1, 1]));
    }
}
