//! Changes of `status.allocatable` of a Node.

use berth_api::{PageSize, Quantity};
use k8s_openapi::api::core::v1::Node;

/// Adds CPUs. A negative number removes CPUs.
pub(super) fn add_cpus(node: &mut Node, cpus: i128) {
    change(node, "cpu", |amount| {
        format!("{}m", amount.millis_rounded_up().saturating_add(cpus.saturating_mul(1000)).max(0))
    });
}

/// Adds bytes of huge pages of one size, which the memory then lacks. A negative number removes huge pages.
pub(super) fn add_hugepages(node: &mut Node, size: PageSize, bytes: i128) {
    change(node, &size.resource_name(), |amount| plus(amount, bytes));
    change(node, "memory", |amount| plus(amount, bytes.saturating_neg()));
}

fn plus(amount: Quantity, bytes: i128) -> String {
    amount.whole_units_rounded_up().saturating_add(bytes).max(0).to_string()
}

/// Changes an amount. A Node that reports no amounts stays as it is.
fn change(node: &mut Node, name: &str, changed: impl FnOnce(Quantity) -> String) {
    let status = node.status.as_mut();
    let Some(all) = status.and_then(|status| status.allocatable.as_mut()) else { return };
    let is_page_size = name.starts_with("hugepages-");
    let Some(amount) = all
        .get(name)
        .map(|amount| amount.0.clone())
        .or_else(|| is_page_size.then(|| "0".to_owned()))
    else {
        return;
    };
    if let Ok(amount) = amount.parse() {
        all.entry(name.to_owned()).or_default().0 = changed(amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_changed_and_unknown_ones_stay_unknown() {
        let allocatable = json!({"cpu": "7500m", "memory": "1Gi"});
        let node = json!({"status": {"allocatable": allocatable}});
        let mut node: Node = serde_json::from_value(node).unwrap();
        add_cpus(&mut node, -2);
        add_hugepages(&mut node, PageSize::MIB_2, 4 << 20);
        add_hugepages(&mut node, PageSize::GIB_1, i128::MIN);
        let amounts = serde_json::to_value(&node).unwrap()["status"]["allocatable"].clone();
        assert_eq!(amounts["cpu"], "5500m");
        assert_eq!(amounts["hugepages-2Mi"], "4194304");
        assert_eq!(amounts["hugepages-1Gi"], "0");
        let mut unknown = Node::default();
        add_cpus(&mut unknown, 1);
        assert_eq!(unknown, Node::default());
    }
}
