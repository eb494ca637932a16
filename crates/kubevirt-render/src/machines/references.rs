//! Entries of Secrets and ConfigMaps that values refer to, and which of them a MachineDeployment may refer to.

use berth_api::{InfraConfigSpec, SecretReference};

/// Where values are looked up that a field only refers to.
pub trait Resolve {
    /// The entry of a Secret or ConfigMap.
    ///
    /// # Errors
    /// Why there is none, in words that follow a field's name.
    fn resolve(&self, reference: &Reference) -> Result<String, String>;
}

/// An entry of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// `Secret` or `ConfigMap`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The entry.
    pub key: String,
}

/// The Secrets and ConfigMaps that one object may refer to: those of its namespaces, and those that InfraConfig lists.
///
/// The controller reads them with its own rights, so without this a MachineDeployment's author would read with them.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    namespaces: Vec<String>,
    listed: &'a [SecretReference],
}

impl<'a> Scope<'a> {
    /// Of an object whose own namespaces these are.
    #[must_use]
    pub fn new(namespaces: &[&str], config: &'a InfraConfigSpec) -> Self {
        let named = namespaces.iter().filter(|namespace| !namespace.is_empty());
        Self {
            namespaces: named.map(|namespace| (*namespace).to_owned()).collect(),
            listed: &config.secret_references,
        }
    }

    /// Whether it may refer to a Secret or ConfigMap.
    #[must_use]
    pub fn permits(&self, namespace: &str, name: &str) -> bool {
        let is_listed = |one: &SecretReference| one.namespace == namespace && one.name == name;
        self.namespaces.iter().any(|own| own == namespace) || self.listed.iter().any(is_listed)
    }

    /// What is said of one that it may not refer to; the same whether it exists or not.
    #[must_use]
    pub fn refusal(&self) -> String {
        format!(
            "is in another namespace than {}, and not listed in InfraConfig's spec.secretReferences",
            self.namespaces.join(" and ")
        )
    }
}
