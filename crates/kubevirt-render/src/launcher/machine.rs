//! A `VirtualMachine` or `VirtualMachineInstance` as it is written.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::defaults;
use super::invalid::{self, Invalid};
use super::spec::Spec;
use super::surroundings::or_default;
use berth_kubelet_admission::pod::Guest;

/// A machine whose launcher pod is asked about.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// How it is called in messages: `VirtualMachine tenant-a/web-1`.
    pub object: String,
    /// Its namespace; `default` if it names none.
    pub namespace: String,
    /// Its name, which is also that of the instance.
    pub name: String,
    /// `metadata.uid` of the instance. Unknown before there is one.
    pub uid: Option<String>,
    /// Labels of the instance.
    pub labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) instancetype: Option<Matcher>,
    pub(super) preference: Option<Matcher>,
    pub(super) spec: Spec,
    /// Where the instance's spec stands: `spec.template.spec` or `spec`.
    pub(super) at: &'static str,
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
    /// Reads a `VirtualMachine` or `VirtualMachineInstance` (`kubevirt.io/v1`). `None` if it is something else.
    ///
    /// Fields that do not matter here are not looked at.
    ///
    /// # Errors
    ///
    /// Names the field that is malformed.
    pub fn read(object: &Value) -> Result<Option<Self>, Invalid> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let ours = text("apiVersion").starts_with("kubevirt.io/");
        match text("kind") {
            "VirtualMachine" if ours => Self::of_machine(object).map(Some),
            "VirtualMachineInstance" if ours => Self::of_instance(object).map(Some),
            _ => Ok(None),
        }
    }

    fn of_machine(object: &Value) -> Result<Self, Invalid> {
        let Object { metadata, spec } = invalid::read::<Object<MachineSpec>>(object)?;
        let template = spec.template.ok_or_else(|| {
            Invalid::new(invalid::name_of(object), "spec.template", "there is none")
        })?;
        let Metadata { labels, annotations, .. } = template.metadata;
        // The template's own uid is nobody's; a machine's is not the instance's.
        let instance = Metadata { uid: String::new(), labels, annotations, ..metadata };
        let mut this = Self::of(object, instance, template.spec, "spec.template.spec")?;
        this.instancetype = spec.instancetype;
        this.preference = spec.preference;
        Ok(this)
    }

    fn of_instance(object: &Value) -> Result<Self, Invalid> {
        let Object { metadata, spec } = invalid::read::<Object<Spec>>(object)?;
        Self::of(object, metadata, spec, "spec")
    }

    fn of(object: &Value, meta: Metadata, spec: Spec, at: &'static str) -> Result<Self, Invalid> {
        let called = invalid::name_of(object);
        if meta.name.is_empty() {
            return Err(Invalid::new(called, "metadata.name", "there is none"));
        }
        Ok(Self {
            object: called,
            namespace: or_default(&meta.namespace).to_owned(),
            name: meta.name,
            uid: Some(meta.uid).filter(|uid| !uid.is_empty()),
            labels: meta.labels,
            annotations: meta.annotations,
            instancetype: None,
            preference: None,
            spec,
            at,
        })
    }

    /// What its guest has, as far as it is said or the webhook has filled it in.
    #[must_use]
    pub fn guest(&self) -> Guest {
        let cpu = self.spec.domain.cpu.as_ref();
        let numa = cpu.and_then(|cpu| cpu.numa);
        let memory = defaults::guest_memory(&self.spec);
        Guest {
            memory: memory.map_or(0, |memory| u64::try_from(memory.units()).unwrap_or_default()),
            is_dedicated: cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement),
            is_mapped: numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()),
        }
    }

    /// Something wrong with a field of its spec.
    pub(super) fn invalid(&self, field: &str, message: impl Into<String>) -> Invalid {
        Invalid::new(&self.object, format!("{}.{field}", self.at), message)
    }
}
