//! PCI functions for VMs that the agents report in InfraNodes.

use std::collections::BTreeSet;
use std::fmt;

use berth_api::PciId;
use serde_json::Value;

/// A PCI function in the status of an InfraNode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedFunction {
    pub id: PciId,
    pub kind: FunctionKind,
    /// True if the function is bound to `vfio-pci` or a variant of it, so that VMs can use it.
    pub is_bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionKind {
    /// A display controller or an accelerator.
    Gpu,
    /// An NVMe drive.
    Nvme,
    /// A physical function that can have virtual functions.
    Sriov,
}

impl fmt::Display for FunctionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "GPU",
            Self::Nvme => "NVMe drive",
            Self::Sriov => "SR-IOV function",
        })
    }
}

/// Returns the functions with a known id in the status of an InfraNode. A GPU with virtual functions is in two lists of the
/// report, and is returned once.
#[must_use]
pub fn reported_functions(infra_node: &Value) -> Vec<ReportedFunction> {
    let mut addresses = BTreeSet::new();
    let mut functions = Vec::new();
    for (field, kind) in
        [("gpus", FunctionKind::Gpu), ("nvme", FunctionKind::Nvme), ("sriov", FunctionKind::Sriov)]
    {
        let list = infra_node.pointer(&format!("/status/capabilities/{field}"));
        for function in list.and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| function.get(name).and_then(Value::as_str).unwrap_or_default();
            let Ok(id) = text("id").parse() else { continue };
            let address = text("pciAddress");
            if address.is_empty() || addresses.insert(address.to_owned()) {
                let is_bound = text("driver").contains("vfio");
                functions.push(ReportedFunction { id, kind, is_bound });
            }
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn functions_are_read_once() {
        let function = |id: &str, address: &str, driver: &str| json!({"id": id, "pciAddress": address, "driver": driver});
        let node = json!({"status": {"capabilities": {
            "gpus": [function("10de:20b5", "0000:41:00.0", "vfio-pci"), {"pciAddress": "0000:42:00.0"}],
            "sriov": [function("10de:20b5", "0000:41:00.0", "vfio-pci"), function("15b3:101d", "0000:81:00.0", "mlx5_core")],
            "nvme": [{"id": "144d:a80a", "name": "nvme0n1"}, 7],
        }}});
        let function =
            |id: &str, kind, is_bound| ReportedFunction { id: id.parse().unwrap(), kind, is_bound };
        assert_eq!(
            reported_functions(&node),
            [
                function("10de:20b5", FunctionKind::Gpu, true),
                function("144d:a80a", FunctionKind::Nvme, false),
                function("15b3:101d", FunctionKind::Sriov, false),
            ]
        );
        assert!(reported_functions(&json!({"status": {"capabilities": 7}})).is_empty());
    }
}
