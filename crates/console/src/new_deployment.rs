//! A MachineDeployment from the fields of a form.

use berth_api::{Bytes, TenantCluster};
use serde_json::{Map, Value, json};

use crate::query::{Fields, is_object_name};

/// Maximum number of machines of a new MachineDeployment.
const MAX_MACHINES: u32 = 1000;
/// Maximum number of CPUs of a machine. No host has more.
const MAX_CPUS: u32 = 1024;
/// Maximum length of the name: machines have a suffix in addition, and their names are values of labels.
const MAX_NAME: usize = 40;
/// Maximum length of an image, a name or an operating system.
const MAX_TEXT: usize = 1000;

/// Preference for different hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spread {
    /// The default of Berth.
    #[default]
    Default,
    /// Different hosts are preferred.
    Soft,
    /// Different hosts are required.
    Hard,
}

impl Spread {
    pub(crate) const ALL: [Self; 3] = [Self::Default, Self::Soft, Self::Hard];

    /// Returns the value of the form and of `podAntiAffinityPreset`; empty for the default.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }

    /// Returns the text of the form.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Soft => "prefer different hosts",
            Self::Hard => "require different hosts",
        }
    }
}

/// A field of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    Replicas,
    Flavor,
    Cpus,
    Memory,
    OperatingSystem,
    Image,
    Disk,
    StorageClass,
    Spread,
}

impl Field {
    /// Returns the name in the form.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Replicas => "replicas",
            Self::Flavor => "flavor",
            Self::Cpus => "cpus",
            Self::Memory => "memory",
            Self::OperatingSystem => "os",
            Self::Image => "image",
            Self::Disk => "disk",
            Self::StorageClass => "class",
            Self::Spread => "spread",
        }
    }

    /// Returns the value of the field before a user changes it.
    pub(crate) const fn default_value(self) -> &'static str {
        match self {
            Self::Replicas => "1",
            Self::Cpus => "2",
            Self::Memory => "4Gi",
            Self::OperatingSystem => "ubuntu",
            Self::Disk => "20Gi",
            Self::Name | Self::Flavor | Self::Image | Self::StorageClass | Self::Spread => "",
        }
    }
}

/// Reason why a field is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("Use up to 40 small letters, digits and hyphens, with a letter or digit at both ends.")]
    Name,
    #[error("Use a number from 0 to 1000.")]
    Replicas,
    #[error("Use a number from 1 to 1024, or an instance type.")]
    Cpus,
    #[error("Use an amount such as 4Gi, or an instance type.")]
    Memory,
    #[error("Use an amount such as 20Gi.")]
    Disk,
    #[error("Use the name of an object.")]
    ObjectName,
    #[error("Use at most 1000 characters without control characters.")]
    Text,
    #[error("Use soft, hard, or nothing.")]
    Spread,
}

/// Size of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Size {
    /// Cluster instance type.
    Flavor(String),
    Amounts {
        cpus: u32,
        memory: String,
    },
}

/// A new MachineDeployment of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewDeployment {
    pub(crate) namespace: String,
    pub(crate) name: String,
    replicas: u32,
    size: Size,
    operating_system: String,
    image: Option<String>,
    disk: String,
    storage_class: Option<String>,
    spread: Spread,
}

impl NewDeployment {
    /// Parses the form of a tenant.
    ///
    /// # Errors
    /// Returns all fields that are refused.
    pub(crate) fn parse(tenant: &str, fields: &Fields) -> Result<Self, Vec<(Field, FieldError)>> {
        let mut errors = Vec::new();
        let text = |field: Field| fields.get(field.name()).trim();
        let mut check = |field: Field, error: FieldError, is_valid: bool| {
            if !is_valid {
                errors.push((field, error));
            }
        };
        let optional = |field: Field| Some(text(field).to_owned()).filter(|text| !text.is_empty());
        let name = text(Field::Name);
        check(Field::Name, FieldError::Name, is_label(name) && name.len() <= MAX_NAME);
        let replicas = text(Field::Replicas).parse().ok().filter(|count| *count <= MAX_MACHINES);
        check(Field::Replicas, FieldError::Replicas, replicas.is_some());
        let flavor = optional(Field::Flavor);
        let is_flavor = |name: &String| is_object_name(name);
        check(Field::Flavor, FieldError::ObjectName, flavor.as_ref().is_none_or(is_flavor));
        let cpus = text(Field::Cpus).parse().ok().filter(|cpus| (1..=MAX_CPUS).contains(cpus));
        check(Field::Cpus, FieldError::Cpus, cpus.is_some() || flavor.is_some());
        let memory = text(Field::Memory);
        check(Field::Memory, FieldError::Memory, is_amount(memory) || flavor.is_some());
        let disk = text(Field::Disk);
        check(Field::Disk, FieldError::Disk, is_amount(disk));
        let (operating_system, image) = (text(Field::OperatingSystem), optional(Field::Image));
        let is_system = !operating_system.is_empty() && is_text(operating_system);
        check(Field::OperatingSystem, FieldError::Text, is_system);
        check(Field::Image, FieldError::Text, image.as_deref().is_none_or(is_text));
        let storage_class = optional(Field::StorageClass);
        let is_class = storage_class.as_ref().is_none_or(is_flavor);
        check(Field::StorageClass, FieldError::ObjectName, is_class);
        let spread = text(Field::Spread);
        let spread = Spread::ALL.into_iter().find(|one| one.as_str() == spread);
        check(Field::Spread, FieldError::Spread, spread.is_some());
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            namespace: TenantCluster::namespace_of(tenant),
            name: name.to_owned(),
            replicas: replicas.unwrap_or_default(),
            size: match flavor {
                Some(flavor) => Size::Flavor(flavor),
                None => Size::Amounts { cpus: cpus.unwrap_or(1), memory: memory.to_owned() },
            },
            operating_system: operating_system.to_owned(),
            image,
            disk: disk.to_owned(),
            storage_class,
            spread: spread.unwrap_or_default(),
        })
    }

    /// Returns the object.
    pub(crate) fn to_object(&self) -> Value {
        let mut disk = Map::from_iter([("size".to_owned(), Value::from(self.disk.clone()))]);
        if let Some(image) = &self.image {
            disk.insert("osImage".to_owned(), image.clone().into());
        }
        if let Some(class) = &self.storage_class {
            disk.insert("storageClassName".to_owned(), class.clone().into());
        }
        let mut template = Map::from_iter([("primaryDisk".to_owned(), Value::Object(disk))]);
        let mut machine = Map::new();
        match &self.size {
            Size::Flavor(name) => {
                machine.insert("flavor".to_owned(), json!({"name": name}));
            }
            Size::Amounts { cpus, memory } => {
                template.insert("cpus".to_owned(), cpus.to_string().into());
                template.insert("memory".to_owned(), memory.clone().into());
            }
        }
        machine.insert("template".to_owned(), Value::Object(template));
        let mut cloud = Map::from_iter([("virtualMachine".to_owned(), Value::Object(machine))]);
        if self.spread != Spread::Default {
            let preset = json!({"podAntiAffinityPreset": self.spread.as_str()});
            cloud.insert("affinity".to_owned(), preset);
        }
        let labels = json!({"name": self.name});
        json!({
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "MachineDeployment",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"providerSpec": {"value": {
                        "cloudProvider": "kubevirt",
                        "cloudProviderSpec": cloud,
                        "operatingSystem": self.operating_system,
                        "operatingSystemSpec": {},
                    }}},
                },
            },
        })
    }
}

/// Returns true for the characters of DNS labels.
fn is_label(text: &str) -> bool {
    is_object_name(text) && !text.contains('.') && !text.starts_with('-') && !text.ends_with('-')
}

fn is_amount(text: &str) -> bool {
    text.parse::<Bytes>().is_ok_and(|Bytes(bytes)| bytes > 0)
}

fn is_text(text: &str) -> bool {
    text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::machines::MachineDeployment;

    use super::*;

    fn parse(form: &str) -> Result<NewDeployment, Vec<(Field, FieldError)>> {
        NewDeployment::parse("bank", &Fields::parse(form.as_bytes()))
    }

    #[test]
    fn berth_knows_all_fields_of_the_object() {
        for form in [
            "name=web&replicas=3&cpus=2&memory=4Gi&os=ubuntu&disk=20Gi",
            "name=db&replicas=0&flavor=performance-4&os=flatcar&disk=100Gi&spread=hard&class=longhorn\
             &image=https%3A%2F%2Fimages.example%2Fa.img",
        ] {
            let object = parse(form).unwrap().to_object();
            let read = MachineDeployment::read("the form", object).unwrap();
            assert!(read.unknown_fields().is_empty(), "{:?}", read.unknown_fields());
        }
    }

    #[test]
    fn object_has_the_values_of_the_form() {
        let form =
            "name=web&replicas=3&cpus=2&memory=4Gi&os=ubuntu&disk=20Gi&spread=soft&image=24.04";
        let object = parse(form).unwrap().to_object();
        assert_eq!(object["metadata"], json!({"name": "web", "namespace": "cluster-bank"}));
        assert_eq!(object["spec"]["replicas"], 3);
        let value = &object["spec"]["template"]["spec"]["providerSpec"]["value"];
        let expected = json!({
            "affinity": {"podAntiAffinityPreset": "soft"},
            "virtualMachine": {"template": {
                "cpus": "2", "memory": "4Gi", "primaryDisk": {"size": "20Gi", "osImage": "24.04"},
            }},
        });
        assert_eq!(value["cloudProviderSpec"], expected);
        // The instance type has CPUs and memory.
        let form = "name=web&replicas=3&cpus=x&memory=&flavor=small&os=ubuntu&disk=20Gi";
        let object = parse(form).unwrap().to_object();
        let value = &object["spec"]["template"]["spec"]["providerSpec"]["value"];
        let machine = &value["cloudProviderSpec"]["virtualMachine"];
        let expected =
            json!({"flavor": {"name": "small"}, "template": {"primaryDisk": {"size": "20Gi"}}});
        assert_eq!(*machine, expected);
    }

    #[test]
    fn invalid_fields_are_named() {
        let valid = [
            ("name", "web"),
            ("replicas", "3"),
            ("cpus", "2"),
            ("memory", "4Gi"),
            ("os", "ubuntu"),
            ("disk", "20Gi"),
        ];
        let long = "a".repeat(MAX_NAME + 1);
        for (field, value, error) in [
            (Field::Name, "", FieldError::Name),
            (Field::Name, "a.b", FieldError::Name),
            (Field::Name, "-a", FieldError::Name),
            (Field::Name, "../x", FieldError::Name),
            (Field::Name, long.as_str(), FieldError::Name),
            (Field::Replicas, "-1", FieldError::Replicas),
            (Field::Replicas, "1001", FieldError::Replicas),
            (Field::Cpus, "0", FieldError::Cpus),
            (Field::Memory, "much", FieldError::Memory),
            (Field::Memory, "0", FieldError::Memory),
            (Field::Disk, "", FieldError::Disk),
            (Field::OperatingSystem, " ", FieldError::Text),
            (Field::Image, "a\u{7}b", FieldError::Text),
            (Field::Flavor, "A", FieldError::ObjectName),
            (Field::StorageClass, "a/b", FieldError::ObjectName),
            (Field::Spread, "other", FieldError::Spread),
        ] {
            let mut form = form_urlencoded::Serializer::new(String::new());
            form.extend_pairs(valid.iter().filter(|(name, _)| *name != field.name()));
            form.append_pair(field.name(), value);
            assert_eq!(parse(&form.finish()), Err(vec![(field, error)]), "{value}");
        }
        assert_eq!(parse("").unwrap_err().len(), 6);
    }
}
