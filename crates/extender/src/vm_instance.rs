//! The fields of a `VirtualMachineInstance` that its launcher pod lacks.

use berth_api::Class;
use berth_api::names::CLASS_LABEL;
use berth_kubelet_admission::pod::{Guest, Pod};
use berth_kubevirt_render::launcher::Machine;
use berth_placement::engine::{VmRequirements, parse_class};
use serde_json::Value;

use super::error::VmError;

/// A `VirtualMachineInstance`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmInstance {
    pub(super) namespace: Box<str>,
    guest: Guest,
    /// Class from the annotation `berth.dev/class` of the instance; `None` if the annotation is absent or has an
    /// unknown value.
    class: Option<Class>,
    /// True if the instance is in phase `Succeeded` or `Failed`, so that KubeVirt creates no further launcher pod for
    /// it.
    pub(super) has_ended: bool,
}

impl VmInstance {
    /// Parses a VirtualMachineInstance, and returns its UID and its fields.
    ///
    /// # Errors
    /// Returns an error if the object is of another kind or malformed.
    pub fn read(object: &Value) -> Result<(String, Self), VmError> {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
        let uid = text("/metadata/uid").unwrap_or_default().to_owned();
        let machine = Machine::read(object)?.ok_or(VmError::WrongKind)?;
        let annotations = object.pointer("/metadata/annotations");
        let class = annotations.and_then(|all| all.get(CLASS_LABEL)?.as_str());
        let phase = text("/status/phase").unwrap_or_default();
        let is_final = matches!(phase, "Succeeded" | "Failed");
        let class = class.and_then(parse_class);
        let unknown = Self::with_unknown_fields(&machine.namespace);
        Ok((uid, Self { guest: machine.guest(), class, has_ended: is_final, ..unknown }))
    }

    /// Returns an instance in this namespace whose other fields are unknown.
    #[must_use]
    pub fn with_unknown_fields(namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..Self::default() }
    }

    /// Returns what the instance's launcher pod requires of a host.
    pub(super) fn pod_requirements(&self, pod: &Pod) -> VmRequirements {
        VmRequirements::for_vm(pod, &self.guest, self.class)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instance_fields_are_read() {
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "annotations": {"berth.dev/class": "Density"}},
            "spec": {"domain": {"cpu": {"dedicatedCpuPlacement": true, "numa": {"guestMappingPassthrough": {}}},
                "memory": {"guest": "4Gi", "hugepages": {"pageSize": "1Gi"}}}},
            "status": {"phase": "Failed"}});
        let (uid, instance) = VmInstance::read(&object).unwrap();
        assert_eq!(uid, "u");
        assert!(instance.has_ended && instance.class == Some(Class::Density));
        assert_eq!(&*instance.namespace, "a");
        let guest = Guest { memory: 4 << 30, is_dedicated: true, has_numa_passthrough: true };
        assert_eq!(instance.guest, guest);
        assert!(VmInstance::read(&json!({"kind": "Pod"})).is_err());
    }
}
