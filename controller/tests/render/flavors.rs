//! `allowedFlavors` of a tenant: machines have one of these instance types, however the template names it.

use serde_json::{Value, json};

use super::{RenderError, base_provider_spec, machine_deployment, render_deployment, set_value};

const MACHINE: &str = "/cloudProviderSpec/virtualMachine";

/// Renders a machine of a tenant that may have `standard-2` and `standard-4`.
fn render(provider: &Value) -> Result<(), RenderError> {
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "cluster-name"},
        "spec": {"machineNamespaces": ["test-namespace"], "allowedFlavors": ["standard-2", "standard-4"]}});
    let mut deployment = machine_deployment(provider);
    let annotations = json!({"berth.dev/tenant": "cluster-name"});
    set_value(&mut deployment, "/metadata/annotations", annotations);
    render_deployment(&deployment, &[tenant], "vm").map(drop)
}

/// Returns a providerSpec without CPUs and memory, and with these fields of the machine.
fn with_fields(fields: &[(&str, Value)]) -> Value {
    let mut provider = base_provider_spec();
    let template = provider.pointer_mut(&format!("{MACHINE}/template")).unwrap();
    template.as_object_mut().unwrap().retain(|key, _| key == "primaryDisk");
    for (field, value) in fields {
        set_value(&mut provider, &format!("{MACHINE}/{field}"), value.clone());
    }
    provider
}

#[test]
fn allowed_flavors_are_rendered() {
    for fields in [
        [("instancetype", json!({"name": "standard-2"}))],
        [("instancetype", json!({"name": "standard-4", "kind": "VirtualMachineInstancetype"}))],
        [("flavor", json!({"name": "standard-4"}))],
    ] {
        assert_eq!(render(&with_fields(&fields)), Ok(()), "{fields:?}");
    }
}

#[test]
fn other_sizes_are_refused() {
    let other = "is not in allowedFlavors of the tenant: use one of standard-2, standard-4";
    let revision = json!({"name": "standard-2", "revisionName": "standard-2-v1"});
    for (fields, words) in [
        (vec![("instancetype", json!({"name": "standard-8"}))], other),
        (vec![("flavor", json!({"name": "standard-8"}))], other),
        (vec![("flavor", json!({"name": "kubermatic-standard"}))], other),
        (vec![("template/cpus", json!("64")), ("template/memory", json!("1Ti"))], other),
        (vec![], other),
        (
            vec![
                ("flavor", json!({"name": "standard-2"})),
                ("instancetype", json!({"name": "standard-8"})),
            ],
            other,
        ),
        (vec![("instancetype", revision)], "revisionName"),
    ] {
        let refusal = render(&with_fields(&fields)).unwrap_err();
        assert!(refusal.contains(words), "{fields:?}: {refusal}");
    }
    let mut flat = base_provider_spec();
    flat["cloudProviderSpec"].as_object_mut().unwrap().remove("virtualMachine");
    for (field, value) in [
        ("cpus", "64"),
        ("memory", "1Ti"),
        ("sourceURL", "http://x/ubuntu.img"),
        ("pvcSize", "10Gi"),
    ] {
        flat["cloudProviderSpec"][field] = value.into();
    }
    let refusal = render(&flat).unwrap_err();
    assert!(refusal.contains(other), "{refusal}");
}
