//! Fields that are in a Node but not in its InfraNode: the kubelet's version and the allocatable resources.

use berth_api::{PageSize, Problem, Quantity};
use k8s_openapi::api::core::v1;

use berth_kubelet_admission::KubeletVersion;
use berth_kubelet_admission::pod::Resources;

/// Newest kubelet version whose admission rules are implemented. They are also used if a kubelet's version is unknown.
const NEWEST_KUBELET: KubeletVersion = KubeletVersion { major: 1, minor: 36 };

/// Returns the kubelet's version from the Node.
pub(super) fn kubelet_version(
    node: Option<&v1::Node>,
    problems: &mut Vec<Problem>,
) -> KubeletVersion {
    let Some(info) = node.and_then(|node| node.status.as_ref()?.node_info.as_ref()) else {
        return NEWEST_KUBELET;
    };
    if info.kubelet_version.is_empty() {
        return NEWEST_KUBELET;
    }
    info.kubelet_version.parse().unwrap_or_else(|error| {
        let message = format!("{error}; the rules of kubelet {NEWEST_KUBELET} are applied");
        problems.push(Problem::new(
            display_node_name(node),
            "status.nodeInfo.kubeletVersion",
            "",
            message,
        ));
        NEWEST_KUBELET
    })
}

pub(super) fn display_node_name(node: Option<&v1::Node>) -> String {
    let name = node.and_then(|node| node.metadata.name.as_deref()).unwrap_or_default();
    format!("Node {name}")
}

/// Returns the allocatable CPUs in thousandths.
pub(super) fn allocatable_cpu_millis(node: &v1::Node) -> Option<u64> {
    let cpu = node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?;
    let cpu: Quantity = cpu.0.parse().ok()?;
    cpu.millis_rounded_up().try_into().ok()
}

/// Returns `status.allocatable` of the Node and the maximum number of pods. Missing or invalid values are replaced by
/// defaults.
pub(super) fn read_allocatable(
    node: Option<&v1::Node>,
    defaults: &Resources,
    default_pods_limit: u64,
    problems: &mut Vec<Problem>,
) -> (Resources, u64) {
    let Some(reported) = node.and_then(|node| node.status.as_ref()?.allocatable.as_ref()) else {
        return (defaults.clone(), default_pods_limit);
    };
    let mut all = Resources::default();
    let mut limit = default_pods_limit;
    let (mut has_cpu, mut has_memory) = (false, false);
    for (name, quantity) in reported {
        let mut report_problem = |message: &str| {
            let field = format!("status.allocatable.{name}");
            problems.push(Problem::new(display_node_name(node), field, &quantity.0, message));
        };
        let Ok(amount) = quantity.0.parse::<Quantity>() else {
            report_problem("is not a quantity; ignored");
            continue;
        };
        let Ok(whole) = u64::try_from(amount.whole_units_rounded_up()) else {
            report_problem("is negative or too large; ignored");
            continue;
        };
        match name.as_str() {
            "cpu" => {
                has_cpu = true;
                all.cpu_millis = u64::try_from(amount.millis_rounded_up()).unwrap_or_default();
            }
            "memory" => {
                has_memory = true;
                all.memory = whole;
            }
            "pods" => limit = whole,
            other => {
                if let Some(size) = other.strip_prefix("hugepages-") {
                    match size.parse::<PageSize>() {
                        Ok(size) => drop(all.hugepages.insert(size, whole)),
                        Err(_) => report_problem("is not a valid huge page size; ignored"),
                    }
                } else if other.contains('/') {
                    all.extended.insert(other.to_owned(), whole);
                }
            }
        }
    }
    if !has_cpu {
        all.cpu_millis = defaults.cpu_millis;
    }
    if !has_memory {
        all.memory = defaults.memory;
    }
    (all, limit)
}
