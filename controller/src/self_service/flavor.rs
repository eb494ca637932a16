//! Size of an instance type, as a quota counts it.

use berth_api::{Bytes, ConditionReason};
use serde_json::Value;

use crate::tenants::fault::Fault;
use crate::tenants::objects::built_in_instancetype;

/// CPUs and memory of a machine with an instance type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlavorSize {
    /// Number of CPUs of the guest.
    pub cpus: u64,
    /// Memory of the guest in bytes.
    pub memory: u64,
    /// Part of the memory that is in huge pages, in bytes.
    pub hugepages: u64,
}

/// Returns the size of an instance type that the controller creates in every tenant's namespace. Instance types in the
/// namespace take precedence over those of the cluster.
#[must_use]
pub fn built_in_size(name: &str) -> Option<FlavorSize> {
    let (cpus, memory) = built_in_instancetype(name)?;
    let memory: Bytes = memory.parse().ok()?;
    Some(FlavorSize { cpus: u64::from(cpus), memory: memory.0, hugepages: 0 })
}

/// Reads the size in a VirtualMachineInstancetype or VirtualMachineClusterInstancetype.
///
/// # Errors
/// Returns a fault that names the field and its value if CPUs or memory are missing or invalid: such a machine has no size
/// that a quota can count.
pub fn read_size(name: &str, instancetype: &Value) -> Result<FlavorSize, Fault> {
    let invalid = |field: &str, value: &Value| {
        let message = format!(
            "instance type {name}: {field}: `{}` is not a size that a quota can count",
            berth_api::excerpt(&value.to_string())
        );
        Fault::new(ConditionReason::FlavorUnknown, message)
    };
    let spec = &instancetype["spec"];
    let cpus = &spec["cpu"]["guest"];
    let cpus =
        cpus.as_u64().filter(|cpus| *cpus > 0).ok_or_else(|| invalid("spec.cpu.guest", cpus))?;
    let guest = &spec["memory"]["guest"];
    let memory: Bytes = serde_json::from_value(guest.clone())
        .ok()
        .filter(|memory: &Bytes| memory.0 > 0)
        .ok_or_else(|| invalid("spec.memory.guest", guest))?;
    let hugepages = if spec["memory"]["hugepages"].is_object() { memory.0 } else { 0 };
    Ok(FlavorSize { cpus, memory: memory.0, hugepages })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_are_read_from_instance_types() {
        let read = |spec: Value| read_size("a", &json!({ "spec": spec }));
        let plain = json!({"cpu": {"guest": 4}, "memory": {"guest": "16Gi"}});
        let expected = FlavorSize { cpus: 4, memory: 16 * GIB, hugepages: 0 };
        assert_eq!(read(plain), Ok(expected));
        let huge = json!({"cpu": {"guest": 2}, "memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}});
        assert_eq!(read(huge), Ok(FlavorSize { cpus: 2, memory: GIB, hugepages: GIB }));
        for (spec, words) in [
            (json!({"memory": {"guest": "1Gi"}}), "spec.cpu.guest: `null`"),
            (json!({"cpu": {"guest": 0}, "memory": {"guest": "1Gi"}}), "spec.cpu.guest: `0`"),
            (json!({"cpu": {"guest": -1}, "memory": {"guest": "1Gi"}}), "spec.cpu.guest: `-1`"),
            (json!({"cpu": {"guest": 1}}), "spec.memory.guest: `null`"),
            (json!({"cpu": {"guest": 1}, "memory": {"guest": "x"}}), "spec.memory.guest: `\"x\"`"),
        ] {
            let fault = read(spec).unwrap_err();
            assert_eq!(fault.reason, ConditionReason::FlavorUnknown);
            assert!(fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn built_in_instance_types_have_sizes() {
        let expected = FlavorSize { cpus: 4, memory: 16 * GIB, hugepages: 0 };
        assert_eq!(built_in_size("standard-4"), Some(expected));
        assert_eq!(built_in_size("standard-16"), None);
    }
}
