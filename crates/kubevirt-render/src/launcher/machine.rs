//! A `VirtualMachine` or `VirtualMachineInstance` as it was read, before defaults are set.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::invalid::{self, Invalid};
use super::namespace::or_default;
use super::spec::Spec;
use berth_kubelet_admission::pod::Guest;

/// A VirtualMachine or VirtualMachineInstance whose launcher pod is predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Kind, namespace and name for messages, such as `VirtualMachine tenant-a/web-1`.
    pub object: String,
    /// Namespace of the machine; `default` if the object has no namespace.
    pub namespace: String,
    /// Name of the machine, which is also the name of its VirtualMachineInstance.
    pub name: String,
    /// `metadata.uid` of the VirtualMachineInstance; `None` before the VirtualMachineInstance exists.
    pub uid: Option<String>,
    /// Labels of the VirtualMachineInstance.
    pub labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) instancetype: Option<Matcher>,
    pub(super) preference: Option<Matcher>,
    pub(super) spec: Spec,
    /// Path of the VirtualMachineInstance's spec in the object: `spec.template.spec` or `spec`.
    pub(super) spec_path: &'static str,
}

/// A reference to an instance type or a preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Matcher {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) infer_from_volume: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object<T> {
    metadata: Metadata,
    spec: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MachineSpec {
    template: Option<Template>,
    instancetype: Option<Matcher>,
    preference: Option<Matcher>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Metadata,
    spec: Spec,
}

impl Machine {
    /// Parses a `VirtualMachine` or `VirtualMachineInstance` (`kubevirt.io/v1`); returns `None` for other kinds.
    ///
    /// Fields that do not affect the launcher pod are ignored.
    ///
    /// # Errors
    ///
    /// Returns the first malformed field.
    pub fn read(object: &Value) -> Result<Option<Self>, Invalid> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let is_kubevirt = text("apiVersion").starts_with("kubevirt.io/");
        match text("kind") {
            "VirtualMachine" if is_kubevirt => Self::from_vm(object).map(Some),
            "VirtualMachineInstance" if is_kubevirt => Self::from_instance(object).map(Some),
            _ => Ok(None),
        }
    }

    fn from_vm(object: &Value) -> Result<Self, Invalid> {
        let Object { metadata, spec } = invalid::deserialize::<Object<MachineSpec>>(object)?;
        let template = spec.template.ok_or_else(|| {
            Invalid::new(invalid::qualified_name(object), "spec.template", "is missing")
        })?;
        let Metadata { labels, annotations, .. } = template.metadata;
        // The VirtualMachineInstance of a VirtualMachine has a UID of its own, which is not known here.
        let instance = Metadata { uid: String::new(), labels, annotations, ..metadata };
        let mut this = Self::new(object, instance, template.spec, "spec.template.spec")?;
        this.instancetype = spec.instancetype;
        this.preference = spec.preference;
        Ok(this)
    }

    fn from_instance(object: &Value) -> Result<Self, Invalid> {
        let Object { metadata, spec } = invalid::deserialize::<Object<Spec>>(object)?;
        Self::new(object, metadata, spec, "spec")
    }

    fn new(
        object: &Value,
        meta: Metadata,
        spec: Spec,
        spec_path: &'static str,
    ) -> Result<Self, Invalid> {
        let qualified_name = invalid::qualified_name(object);
        if meta.name.is_empty() {
            return Err(Invalid::new(qualified_name, "metadata.name", "is missing"));
        }
        Ok(Self {
            object: qualified_name,
            namespace: or_default(&meta.namespace).to_owned(),
            name: meta.name,
            uid: Some(meta.uid).filter(|uid| !uid.is_empty()),
            labels: meta.labels,
            annotations: meta.annotations,
            instancetype: None,
            preference: None,
            spec,
            spec_path,
        })
    }

    /// Returns the properties of the guest according to the spec. If the spec sets no guest memory, the memory is the
    /// default that KubeVirt's webhook would set.
    #[must_use]
    pub fn guest(&self) -> Guest {
        let cpu = self.spec.domain.cpu.as_ref();
        let numa = cpu.and_then(|cpu| cpu.numa);
        let memory = self.spec.guest_memory();
        Guest {
            memory: memory.map_or(0, |memory| {
                u64::try_from(memory.whole_units_rounded_up()).unwrap_or_default()
            }),
            is_dedicated: cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement),
            has_numa_passthrough: numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()),
        }
    }

    /// Creates an error about a field of the VirtualMachineInstance's spec. `field` is the path of the field relative
    /// to this spec.
    pub(super) fn invalid(&self, field: &str, message: impl Into<String>) -> Invalid {
        Invalid::new(&self.object, format!("{}.{field}", self.spec_path), message)
    }
}
