//! The InfraNode manifest that an administrator writes. It is read part by part.
//!
//! Parsing is strict: an unknown field is a fault, because it is probably misspelt. But the parts
//! are independent, so that the daemon can apply the parts without faults. A part with a fault is
//! neither changed nor restored, because its intended value is unknown.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::names::API_VERSION;
use berth_api::{HostLeasesSpec, InfraNodeSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use crate::fault::Fault;
use crate::fault::{deserialize, format_value, unknown_field};
use crate::host_leases;

/// A parsed manifest, with the faults of the parts that could not be parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Name of the InfraNode (`metadata.name`); `None` if it is missing or malformed.
    pub name: Option<String>,
    /// The parts of the spec without faults.
    pub spec: InfraNodeSpec,
    pub faults: Vec<Fault>,
    /// The parts and networks that have faults, and are neither changed nor restored.
    pub unparsed: UnparsedParts,
    /// Leases of the second document of the manifest, a HostLeases; no leases without such a document, and `None` if
    /// the document cannot be read.
    pub leases: Option<Arc<HostLeasesSpec>>,
}

/// Parts and networks that could not be parsed, which are neither changed nor restored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnparsedParts {
    /// Parts that have a fault as a whole.
    pub parts: BTreeSet<SpecPart>,
    /// Names of host networks that have a fault themselves or in one of their tenants. The other networks are applied.
    pub networks: BTreeSet<String>,
}

impl UnparsedParts {
    /// Returns a value in which all parts except `parts` are unparsed.
    #[must_use]
    pub fn all_except(parts: &[SpecPart]) -> Self {
        let others = SpecPart::ALL.into_iter().filter(|part| !parts.contains(part));
        Self { parts: others.collect(), networks: BTreeSet::new() }
    }
}

/// Parts of the spec that are applied independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecPart {
    /// CPUs (`spec.cpu`).
    Cpu,
    /// Huge pages (`spec.hugepages`).
    Hugepages,
    /// Kernel samepage merging (`spec.ksm`).
    Ksm,
    /// Transparent huge pages (`spec.transparentHugepages`).
    TransparentHugepages,
    /// Devices for VMs (`spec.devices`).
    Devices,
    /// Networks and their tenants (`spec.networks` and `spec.tenantNetworks`).
    Networks,
}

impl SpecPart {
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Hugepages,
        Self::Ksm,
        Self::TransparentHugepages,
        Self::Devices,
        Self::Networks,
    ];

    /// Returns the path of the part's field in the manifest.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Cpu => "spec.cpu",
            Self::Hugepages => "spec.hugepages",
            Self::Ksm => "spec.ksm",
            Self::TransparentHugepages => "spec.transparentHugepages",
            Self::Devices => "spec.devices",
            Self::Networks => "spec.networks",
        }
    }
}

impl Fault {
    /// Returns true if the field belongs to this part.
    #[must_use]
    pub fn is_about_part(&self, part: SpecPart) -> bool {
        let is_below = |field| {
            let rest = self.field.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        is_below(part.field()) || (part == SpecPart::Networks && is_below("spec.tenantNetworks"))
    }
}

impl Manifest {
    /// Parses YAML or JSON: an InfraNode, and optionally a HostLeases as a second document.
    ///
    /// # Errors
    /// If the text has no single InfraNode, so that no part of it can be used.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
            let message = error.to_string();
            let line = message.lines().next().unwrap_or_default();
            Fault::new("manifest", text.trim(), format!("is not valid YAML: {line}"))
        })?;
        let leases = documents.iter().position(host_leases::is_host_leases);
        let leases = leases.map(|position| documents.remove(position));
        let [tree] = documents.as_slice() else {
            let message = "must be one InfraNode, and at most one HostLeases, as YAML documents";
            return Err(Fault::new("manifest", text.trim(), message));
        };
        let mut manifest = Self::from_tree(tree)?;
        let (leases, faults) = match leases {
            Some(leases) => host_leases::read(&leases, manifest.name.as_deref()),
            None => (Some(HostLeasesSpec::default()), Vec::new()),
        };
        manifest.leases = leases.map(Arc::new);
        manifest.faults.extend(faults);
        Ok(manifest)
    }

    /// Reads the parts of a document that was parsed as YAML or JSON.
    ///
    /// # Errors
    /// If the document is not a single InfraNode; see [`Self::parse`].
    pub fn from_tree(tree: &Value) -> Result<Self, Fault> {
        let Value::Object(fields) = tree else {
            let message = "must be an InfraNode with apiVersion, kind, metadata and spec";
            return Err(Fault::new("manifest", tree, message));
        };
        for (field, expected) in [("apiVersion", API_VERSION), ("kind", "InfraNode")] {
            match fields.get(field) {
                Some(Value::String(found)) if found == expected => {}
                Some(other) => {
                    return Err(Fault::new(
                        field,
                        format_value(other),
                        format!("must be {expected}"),
                    ));
                }
                None => {
                    return Err(Fault::new(
                        field,
                        "",
                        format!("is missing; it must be {expected}"),
                    ));
                }
            }
        }
        let mut manifest = Self::default();
        for (field, value) in fields {
            match field.as_str() {
                // A manifest that `report` or kubectl wrote has a status, which is ignored.
                "apiVersion" | "kind" | "status" => {}
                "metadata" => {
                    manifest.name = value.get("name").and_then(Value::as_str).map(str::to_owned)
                }
                "spec" => manifest.read_spec(value),
                _ => manifest.faults.push(unknown_field(field, value)),
            }
        }
        manifest.mark_absent_parts_unparsed(tree);
        if manifest.name.is_none() {
            let message = "is missing; it must be the name of the Node";
            manifest.faults.push(Fault::new("metadata.name", "", message));
        }
        Ok(manifest)
    }

    /// Returns a fault if the name in the manifest is not the name of this node.
    #[must_use]
    pub fn node_mismatch(&self, node: Option<&str>) -> Option<Fault> {
        let (name, node) = (self.name.as_deref()?, node?);
        (name != node).then(|| {
            let message = format!(
                "this node is {node}; correct the manifest, or set --node-name {name} if it is the same node"
            );
            Fault::new("metadata.name", name, message)
        })
    }

    /// Removes all parts except these from the manifest. The other parts count as unparsed, and their faults are
    /// dropped.
    pub fn restrict_to(&mut self, parts: &[SpecPart]) {
        let spec = std::mem::take(&mut self.spec);
        let is_selected = |part| parts.contains(&part);
        self.spec = InfraNodeSpec {
            enforce: spec.enforce,
            cpu: spec.cpu.filter(|_| is_selected(SpecPart::Cpu)),
            ksm: spec.ksm.filter(|_| is_selected(SpecPart::Ksm)),
            transparent_hugepages: spec
                .transparent_hugepages
                .filter(|_| is_selected(SpecPart::TransparentHugepages)),
            devices: spec.devices.filter(|_| is_selected(SpecPart::Devices)),
            hugepages: if is_selected(SpecPart::Hugepages) { spec.hugepages } else { Vec::new() },
            networks: if is_selected(SpecPart::Networks) { spec.networks } else { Vec::new() },
            tenant_networks: if is_selected(SpecPart::Networks) {
                spec.tenant_networks
            } else {
                Vec::new()
            },
            profile: None,
        };
        self.unparsed.parts.extend(UnparsedParts::all_except(parts).parts);
        let is_of_removed_part = |fault: &Fault| {
            SpecPart::ALL.iter().any(|part| !is_selected(*part) && fault.is_about_part(*part))
        };
        self.faults.retain(|fault| !is_of_removed_part(fault));
    }

    /// Counts absent parts as unparsed if there is an unknown field, which may be a misspelt part. Otherwise the
    /// settings of that part would be restored.
    fn mark_absent_parts_unparsed(&mut self, tree: &Value) {
        let known = |fault: &Fault| SpecPart::ALL.iter().any(|part| fault.is_about_part(*part));
        if self.faults.iter().all(known) {
            return;
        }
        let spec = tree.get("spec");
        let absent = |part: &SpecPart| {
            let name = part.field().trim_start_matches("spec.");
            let is_present = |name| spec.and_then(|spec| spec.get(name)).is_some();
            !(is_present(name) || *part == SpecPart::Networks && is_present("tenantNetworks"))
        };
        self.unparsed.parts.extend(SpecPart::ALL.into_iter().filter(absent));
    }

    fn read_spec(&mut self, spec: &Value) {
        let fields = match spec {
            Value::Object(fields) => fields,
            Value::Null => return,
            other => {
                self.faults.push(Fault::new("spec", format_value(other), "must be a map"));
                self.unparsed.parts = SpecPart::ALL.into();
                return;
            }
        };
        for (field, value) in fields {
            match field.as_str() {
                "profile" => self.spec.profile = self.read_field(field, value, None),
                // If the value has a fault, drift is not corrected. The default for an absent value would be to correct
                // drift.
                "enforce" => {
                    let enforce = self.read_field(field, value, None);
                    self.spec.enforce = enforce.or_else(|| (!value.is_null()).then_some(false));
                }
                "cpu" => self.spec.cpu = self.read_field(field, value, Some(SpecPart::Cpu)),
                "ksm" => self.spec.ksm = self.read_field(field, value, Some(SpecPart::Ksm)),
                "transparentHugepages" => {
                    self.spec.transparent_hugepages =
                        self.read_field(field, value, Some(SpecPart::TransparentHugepages));
                }
                "devices" => {
                    self.spec.devices = self.read_field(field, value, Some(SpecPart::Devices));
                }
                "hugepages" => {
                    self.spec.hugepages = self.read_list(field, value, SpecPart::Hugepages)
                }
                "networks" => self.spec.networks = self.read_list(field, value, SpecPart::Networks),
                "tenantNetworks" => {
                    self.spec.tenant_networks = self.read_list(field, value, SpecPart::Networks);
                }
                _ => self.faults.push(unknown_field(&format!("spec.{field}"), value)),
            }
        }
    }

    /// Reads the value of one field. Returns `None` if it is null, or if it has a fault, which is recorded.
    fn read_field<T: DeserializeOwned>(
        &mut self,
        field: &str,
        value: &Value,
        part: Option<SpecPart>,
    ) -> Option<T> {
        if value.is_null() {
            return None;
        }
        match deserialize_strict(&format!("spec.{field}"), value) {
            Ok(read) => Some(read),
            Err(faults) => {
                self.faults.extend(faults);
                self.unparsed.parts.extend(part);
                None
            }
        }
    }

    /// Reads the items of a list. Items with faults are left out, and their faults are recorded.
    fn read_list<T: DeserializeOwned>(
        &mut self,
        field: &str,
        value: &Value,
        part: SpecPart,
    ) -> Vec<T> {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            Value::Null => &[],
            other => {
                let fault =
                    Fault::new(format!("spec.{field}"), format_value(other), "must be a list");
                self.faults.push(fault);
                self.unparsed.parts.insert(part);
                &[]
            }
        };
        let mut valid_items = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match deserialize_strict(&format!("spec.{field}[{index}]"), item) {
                Ok(item) => valid_items.push(item),
                Err(faults) => {
                    self.faults.extend(faults);
                    // A fault of a tenant affects only the tenant's network, if the item names that network.
                    let network = match field {
                        "networks" => item.get("name"),
                        "tenantNetworks" => item.get("network"),
                        _ => None,
                    };
                    match network.and_then(Value::as_str) {
                        Some(network) => drop(self.unparsed.networks.insert(network.to_owned())),
                        None => drop(self.unparsed.parts.insert(part)),
                    }
                }
            }
        }
        valid_items
    }
}

/// Deserializes a value. Returns all faults if the value has unknown fields or cannot be deserialized.
fn deserialize_strict<T: DeserializeOwned>(
    field_path: &str,
    value: &Value,
) -> Result<T, Vec<Fault>> {
    match deserialize(field_path, value) {
        (Some(read), faults) if faults.is_empty() => Ok(read),
        (_, faults) => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(spec: &str) -> Manifest {
        let head = "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: a}\n";
        Manifest::parse(&format!("{head}spec:\n{spec}")).unwrap()
    }

    fn faults(spec: &str) -> Vec<String> {
        parse(spec).faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_fault_has_field_and_value_and_valid_fields_are_kept() {
        let manifest = parse(
            "  hugepages:\n  - {size: 3Mi, count: 4}\n  - {size: 2Mi, zone: 0, count: 8}\n  ksm: {mode: Onn}\n  \
             cpu: {reserved: {coresPerZone: 1, cores: 4}}\n  transparentHugepages: Never\n  colour: red",
        );
        let shown: Vec<String> = manifest.faults.iter().map(ToString::to_string).collect();
        assert_eq!(manifest.spec.hugepages.len(), 1);
        assert!(manifest.spec.transparent_hugepages.is_some() && manifest.spec.cpu.is_none());
        // `colour` may also be the misspelt name of a part that is absent from the manifest, such as the networks.
        let unparsed = [
            SpecPart::Cpu,
            SpecPart::Hugepages,
            SpecPart::Ksm,
            SpecPart::Devices,
            SpecPart::Networks,
        ];
        assert_eq!(manifest.unparsed.parts, unparsed.into());
        for start in [
            "spec.hugepages[0].size: `3Mi`: `3Mi` is not a huge page size",
            "spec.ksm.mode: `Onn`: unknown variant `Onn`, expected one of",
            "spec.cpu.reserved.cores: `4`: unknown field",
            "spec.colour: `red`: unknown field",
        ] {
            assert!(shown.iter().any(|fault| fault.starts_with(start)), "{start}\n{shown:#?}");
        }
    }

    #[test]
    fn numbers_out_of_range_and_wrong_types_are_reported() {
        assert!(
            faults("  hugepages: [{size: 2Mi, count: -1}]")[0]
                .starts_with("spec.hugepages[0].count: `-1`")
        );
        assert!(faults("  hugepages: {size: 2Mi}")[0].contains("must be a list"));
        assert!(faults("  cpu: {reserved: {cpus: 3-1}}")[0].contains("ends before it starts"));
        assert!(faults("  enforce: perhaps")[0].starts_with("spec.enforce: `perhaps`"));
        assert!(faults("  [1]")[0].starts_with("spec: `[1]`"));
    }

    #[test]
    fn device_with_a_fault_leaves_the_devices_unchanged() {
        let manifest = parse(
            "  ksm: {mode: Auto}\n  devices: {vfio: [{pciAddress: '81.0'}, {id: '144d:a80a'}]}",
        );
        let shown: Vec<String> = manifest.faults.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 1, "{shown:#?}");
        assert!(shown[0].starts_with("spec.devices.vfio[0].pciAddress: `81.0`"), "{shown:#?}");
        assert!(manifest.spec.devices.is_none() && manifest.spec.ksm.is_some());
        assert_eq!(manifest.unparsed.parts, [SpecPart::Devices].into());
        assert_eq!(
            faults("  devices: {vfio: [{address: a}]}").len(),
            1,
            "the unknown field is a fault"
        );
    }

    #[test]
    fn a_document_of_another_kind_is_rejected() {
        for (text, start) in [
            ("", "manifest"),
            ("- a", "manifest: `[\"a\"]`"),
            ("kind: InfraNode", "apiVersion: ``: is missing"),
            ("apiVersion: v1\nkind: Node", "apiVersion: `v1`: must be berth.dev/v1alpha1"),
            ("a: b: c", "manifest"),
        ] {
            let fault = Manifest::parse(text).unwrap_err().to_string();
            assert!(fault.starts_with(start), "{text}: {fault}");
        }
        let nameless = Manifest::parse("apiVersion: berth.dev/v1alpha1\nkind: InfraNode").unwrap();
        assert!(nameless.faults[0].to_string().starts_with("metadata.name"));
    }

    #[test]
    fn a_report_is_a_manifest_with_an_empty_spec() {
        let node = crate::report::report(&berth_host_facts::HostFacts::default());
        let manifest = Manifest::parse(&serde_saphyr::to_string(&node).unwrap()).unwrap();
        assert_eq!((manifest.spec, manifest.faults), (InfraNodeSpec::default(), Vec::new()));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}(\n.{0,50}){0,5}") {
            drop(Manifest::parse(&text));
            drop(Manifest::parse(&format!("apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nspec: {text}")));
        }
    }
}
