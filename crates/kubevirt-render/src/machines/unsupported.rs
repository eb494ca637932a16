//! Reports fields of a MachineDeployment that Berth reads but does not support, so that users do not expect these
//! fields to have an effect.

use serde_json::Value;

use super::deployment::MachineDeployment;
use super::field_parser::ProblemReporter;
use super::json_value::{is_set, to_plain_string};

const TENANT_NODE_FIELD_MESSAGE: &str =
    "is not supported: it applies to the tenant's Node; configure the kubelet in the user data";

/// Reports unsupported fields outside of the providerSpec.
pub(super) fn report_unsupported(deployment: &MachineDeployment, reporter: &ProblemReporter<'_>) {
    let machine = &deployment.spec.template.spec;
    for (field, map) in
        [("labels", &machine.metadata.labels), ("annotations", &machine.metadata.annotations)]
    {
        let keys: Vec<&str> = map.keys().map(String::as_str).collect();
        if !keys.is_empty() {
            reporter.report_warning(
                &format!("spec.template.spec.metadata.{field}"),
                &keys.join(", "),
                TENANT_NODE_FIELD_MESSAGE,
            );
        }
    }
    if !machine.taints.is_empty() {
        let value = Value::from(machine.taints.clone()).to_string();
        reporter.report_warning("spec.template.spec.taints", &value, TENANT_NODE_FIELD_MESSAGE);
    }
    for (name, version) in machine.versions.iter().filter(|(_, version)| is_set(version)) {
        let message = "is not supported: the user data determine the installed version";
        reporter.report_warning(
            &format!("spec.template.spec.versions.{name}"),
            &to_plain_string(version),
            message,
        );
    }
    for (path, value) in deployment.unknown_fields().iter().filter(|(_, value)| is_set(value)) {
        reporter.report_warning(path, &to_plain_string(value), "is not supported");
    }
}
