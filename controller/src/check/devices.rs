//! Check of the PCI devices of hosts that KubeVirt permits VMs to use.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{HostDevices, PciId};
use serde_json::{Value, json};

use super::definition::Check;
use super::host::Host;
use super::input::Input;
use super::kind::Kind;
use super::kubevirt::{FEATURE_GATES_POINTER, not_installed, object_name};
use super::read::Unread;
use super::values::{join_names, name, text, texts};
use crate::host_devices::{FunctionKind, PciHostDevice, permitted_ids, permitted_list};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "kubevirt.host-devices",
    title: "PCI devices for VMs",
    explanation: "KubeVirt offers PCI functions to VMs only if permittedHostDevices has their vendor and device id: WARN if it \
        lacks functions that agents report as bound to vfio-pci, or ids in hostDevices.allowed of the InfraConfig; the remedy \
        has the entries. The fields hostDevices of machines also need the feature gate HostDevices. SKIP if no host has such \
        functions and the InfraConfig allows none. GPUs that are not bound to vfio-pci are evidence only.",
    run: check_host_devices,
}];

/// Feature gate for `hostDevices` of VMs; `gpus` need none.
const HOST_DEVICES_GATE: &str = "HostDevices";

fn check_host_devices(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    let devices = config_devices(input)?;
    let bound = hosts_by_function(hosts, true);
    if bound.is_empty() && devices.allowed.is_empty() {
        return Ok(Outcome::skip(
            "no host reports PCI functions for VMs, and InfraConfig allows none",
        ));
    }
    let Some(kubevirt) = input.kubevirt()? else { return Ok(not_installed()) };
    let permitted = permitted_ids(kubevirt);
    let missing = missing_entries(&bound, &devices, &permitted);
    let gates = texts(kubevirt, FEATURE_GATES_POINTER);
    let outcome = if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|one| one.id.to_string()).collect();
        Outcome::warn(format!("KubeVirt does not permit PCI functions: {}", join_names(&names)))
            .remedy(remedy(kubevirt, &missing, &devices))
    } else if gates.contains(&HOST_DEVICES_GATE) {
        Outcome::pass("KubeVirt permits all of them")
    } else {
        Outcome::warn("the feature gate HostDevices is disabled: machines can use gpus, but not hostDevices")
            .with_evidence(
                format!(
                    "{} spec.configuration.developerConfiguration.featureGates",
                    object_name(kubevirt)
                ),
                join_names(&gates),
            )
            .remedy(format!(
                "if machines use hostDevices, add HostDevices to \
                 spec.configuration.developerConfiguration.featureGates: kubectl -n {} edit kubevirt {}",
                text(kubevirt, "/metadata/namespace"),
                name(kubevirt)
            ))
    };
    let ids: Vec<String> = permitted.iter().map(PciId::to_string).collect();
    let field = format!("{} permittedHostDevices.pciHostDevices", object_name(kubevirt));
    let outcome = outcome.with_evidence(field, join_names(&ids));
    let outcome = with_functions(outcome, "bound to vfio-pci", &bound);
    let mut unbound = hosts_by_function(hosts, false);
    unbound.retain(|(_, kind), _| *kind == FunctionKind::Gpu);
    Ok(with_functions(outcome, "not bound to vfio-pci", &unbound))
}

/// Hosts by id and kind of a function.
type HostsByFunction<'h> = BTreeMap<(PciId, FunctionKind), Vec<&'h str>>;

fn hosts_by_function(hosts: &[Host], is_bound: bool) -> HostsByFunction<'_> {
    let mut found: HostsByFunction<'_> = BTreeMap::new();
    for host in hosts {
        for function in host.functions.iter().filter(|one| one.is_bound == is_bound) {
            let names = found.entry((function.id, function.kind)).or_default();
            if names.last() != Some(&host.name.as_str()) {
                names.push(&host.name);
            }
        }
    }
    found
}

/// Returns `hostDevices` of the InfraConfig. A malformed field is treated like an absent one.
fn config_devices(input: &Input) -> Result<HostDevices, Unread> {
    let configs = input.objects(Kind::InfraConfig)?;
    let own = configs.iter().find(|config| name(config) == "default");
    let devices = own.and_then(|config| config.pointer("/spec/hostDevices")).cloned();
    Ok(devices.and_then(|devices| serde_json::from_value(devices).ok()).unwrap_or_default())
}

/// Returns the entries that the KubeVirt object lacks: those of the InfraConfig, and those of reported functions that the
/// InfraConfig does not mention.
fn missing_entries(
    bound: &HostsByFunction<'_>,
    devices: &HostDevices,
    permitted: &BTreeSet<PciId>,
) -> Vec<PciHostDevice> {
    let mut entries = PciHostDevice::of_config(devices);
    let known: BTreeSet<PciId> = entries.iter().map(|entry| entry.id).collect();
    let reported: BTreeSet<PciId> = bound.keys().map(|(id, _)| *id).collect();
    entries.extend(reported.difference(&known).map(|id| PciHostDevice::proposed(*id)));
    entries.retain(|entry| !permitted.contains(&entry.id));
    entries
}

/// Returns the command that adds the entries. A merge patch replaces the whole list, so it contains the existing entries too.
fn remedy(kubevirt: &Value, missing: &[PciHostDevice], devices: &HostDevices) -> String {
    let mut list = permitted_list(kubevirt);
    list.extend(missing.iter().map(PciHostDevice::to_value));
    let patch =
        json!({"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": list}}}});
    let command = format!(
        "kubectl -n {} patch kubevirt {} --type merge -p '{patch}'",
        text(kubevirt, "/metadata/namespace"),
        name(kubevirt)
    );
    match devices.is_managed() {
        true => format!(
            "see the condition HostDevicesReady of the InfraConfig; the controller adds only entries of hostDevices.allowed. By \
             hand: {command}"
        ),
        false => command,
    }
}

fn with_functions(outcome: Outcome, state: &str, functions: &HostsByFunction<'_>) -> Outcome {
    functions.iter().fold(outcome, |outcome, ((id, kind), hosts)| {
        outcome.with_evidence(format!("{kind} {id}, {state}"), join_names(hosts))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{host, input_with, run_check, with_objects};

    fn check(gpu_driver: &str, entries: &Value, gates: &[&str], devices: &Value) -> Outcome {
        let kubevirt = json!({
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": {
                "permittedHostDevices": {"pciHostDevices": entries},
                "developerConfiguration": {"featureGates": gates},
            }},
        });
        let config = json!([{"metadata": {"name": "default"}, "spec": {"hostDevices": devices}}]);
        let input = with_objects(
            input_with(Kind::KubeVirt, &json!([kubevirt])),
            Kind::InfraConfig,
            &config,
        );
        let status = json!({"capabilities": {
            "gpus": [{"id": "10de:20b5", "pciAddress": "0000:41:00.0", "driver": gpu_driver}],
        }});
        let hosts = Ok(vec![host("rack1-a", &status), host("rack1-b", &status)]);
        run_check("kubevirt.host-devices", &Input { hosts, ..input })
    }

    #[test]
    fn reported_functions_must_be_permitted() {
        let none = json!({});
        let outcome = check("vfio-pci", &json!([]), &["HostDevices"], &none);
        assert_eq!(outcome.status, Status::Warn);
        let remedy = outcome.remedy.unwrap_or_default();
        let entry =
            r#"[{"pciVendorSelector":"10de:20b5","resourceName":"pci.berth.dev/10de-20b5"}]"#;
        assert!(
            remedy.contains("patch kubevirt kubevirt --type merge") && remedy.contains(entry),
            "{remedy}"
        );
        assert_eq!(outcome.evidence[1].value, "rack1-a, rack1-b");
        let entries =
            json!([{"pciVendorSelector": "10DE:20B5", "resourceName": "nvidia.com/GA100"}]);
        assert_eq!(check("vfio-pci", &entries, &["HostDevices"], &none).status, Status::Pass);
        let outcome = check("vfio-pci", &entries, &[], &none);
        assert_eq!(outcome.status, Status::Warn);
        assert!(outcome.message.contains("machines can use gpus"), "{}", outcome.message);
        assert_eq!(check("nvidia", &json!([]), &[], &none).status, Status::Skip);
    }

    #[test]
    fn allowed_devices_must_be_permitted() {
        let devices =
            json!({"manage": true, "allowed": [{"resourceName": "a.b/x", "ids": ["144d:a80a"]}]});
        let other = json!([{"pciVendorSelector": "10de:1eb8", "resourceName": "nvidia.com/T4"}]);
        let outcome = check("nvidia", &other, &["HostDevices"], &devices);
        assert_eq!(outcome.status, Status::Warn);
        let remedy = outcome.remedy.unwrap_or_default();
        assert!(
            remedy.contains("HostDevicesReady") && remedy.contains("nvidia.com/T4"),
            "{remedy}"
        );
        assert!(remedy.contains("a.b/x") && !remedy.contains("pci.berth.dev"), "{remedy}");
        let unbound = outcome.evidence.iter().find(|one| one.path.contains("not bound"));
        assert_eq!(
            unbound.map(|one| one.path.as_str()),
            Some("GPU 10de:20b5, not bound to vfio-pci")
        );
        assert_eq!(check("nvidia", &other, &[], &json!("x")).status, Status::Skip);
    }
}
