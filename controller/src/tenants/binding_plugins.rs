//! Network binding plugins that are registered in KubeVirt. If an interface of a VM names an unregistered plugin,
//! virt-controller does not create the launcher pod. A tenant whose binding needs such a plugin therefore gets no
//! NetworkAttachmentDefinition.

use std::collections::BTreeSet;

use berth_api::{ConditionReason, NetworkBinding};
use serde_json::Value;

use super::fault::Fault;

/// Field of the KubeVirt object that contains the registered plugins, by name.
const PLUGINS_POINTER: &str = "/spec/configuration/network/binding";

/// Names of the registered plugins; `None` if they are unknown, because there is no KubeVirt object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BindingPlugins(Option<BTreeSet<String>>);

impl BindingPlugins {
    /// Reads the plugins of a KubeVirt object.
    #[must_use]
    pub fn from_kubevirt(object: &Value) -> Self {
        let plugins = object.pointer(PLUGINS_POINTER).and_then(Value::as_object);
        Self(Some(plugins.into_iter().flat_map(|all| all.keys().cloned()).collect()))
    }

    /// Checks that the plugin of a binding is registered. Without a KubeVirt object, any plugin is accepted.
    ///
    /// # Errors
    /// Returns a fault if the plugin is not registered.
    pub fn check(&self, binding: Option<NetworkBinding>) -> Result<(), Fault> {
        let Some(plugin) = binding.and_then(NetworkBinding::plugin) else { return Ok(()) };
        match &self.0 {
            Some(registered) if !registered.contains(plugin) => {
                let message = format!(
                    "spec.network.binding: KubeVirt has no network binding plugin `{plugin}`, so VMs of the tenant would get \
                     no launcher pod; register the plugin in spec.configuration.network.binding of the KubeVirt object, or \
                     change the binding"
                );
                Err(Fault::new(ConditionReason::BindingPluginMissing, message))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn macvtap_requires_its_plugin() {
        let kubevirt = |binding: Value| {
            let object = json!({"spec": {"configuration": {"network": {"binding": binding}}}});
            BindingPlugins::from_kubevirt(&object)
        };
        let macvtap = Some(NetworkBinding::Macvtap);
        let registered = kubevirt(json!({"macvtap": {"domainAttachmentType": "tap"}}));
        assert_eq!(registered.check(macvtap), Ok(()));
        for without in [kubevirt(json!({"passt": {}})), kubevirt(json!([])), kubevirt(json!(null))]
        {
            let fault = without.check(macvtap).unwrap_err();
            assert_eq!(fault.reason, ConditionReason::BindingPluginMissing);
            for binding in [None, Some(NetworkBinding::Bridge), Some(NetworkBinding::Sriov)] {
                assert_eq!(without.check(binding), Ok(()), "bindings of KubeVirt itself");
            }
        }
        assert_eq!(
            BindingPlugins::default().check(macvtap),
            Ok(()),
            "KubeVirt is not installed yet"
        );
    }
}
