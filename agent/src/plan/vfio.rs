//! PCI functions for VMs: binds the functions that the spec selects to the driver `vfio-pci`, and releases others that
//! Berth has bound.
//!
//! A function that is in use is never taken from its driver. A VM can use a function only if no other function of its
//! IOMMU group has a driver of the host, so all of them must be unused or selected too. A function is released only
//! while no process uses its group: the kernel would wait for the VM, and ask it to unplug the device.

use std::collections::BTreeSet;

use berth_api::infra_node::VfioSpec;
use berth_api::{PciAddress, PciId};

use super::change::{Change, ChangeReason, Disruption};
use super::field_path::FieldPath;
use super::input::Input;
use super::target::{Target, Targets};
use crate::manifest::Fault;
use berth_host_facts::setting::{Setting, SettingValue};
use berth_host_facts::vfio::{DEVICE_FOLDER, FunctionList, VFIO_DRIVER, VfioFunction};

/// Adds the targets of the spec: one for each selected function.
pub(super) fn add_targets(input: Input, targets: &mut Targets) {
    let Some(devices) = &input.spec.devices else { return };
    let field = FieldPath::spec("devices").child("vfio");
    if let FunctionList::Failed(error) = &input.facts.vfio.list {
        let message = format!("the PCI functions of this host cannot be listed: {error}");
        targets.faults.push(field.fault(devices.vfio.len(), message));
        return;
    }
    for (index, selector) in devices.vfio.iter().enumerate() {
        match select_functions(input, selector, &field.item(index)) {
            Ok(addresses) => {
                for address in addresses {
                    let driver = SettingValue::Keyword(VFIO_DRIVER.to_owned());
                    targets.set_target(Setting::PciDriver(address), driver);
                }
            }
            Err(fault) => targets.faults.push(fault),
        }
    }
}

fn select_functions(
    input: Input,
    selector: &VfioSpec,
    path: &FieldPath,
) -> Result<Vec<PciAddress>, Fault> {
    match (selector.pci_address, selector.id, selector.count) {
        (Some(address), None, None) => Ok(vec![address]),
        (None, Some(id), None) => Ok(functions_with_id(input, id)),
        (None, Some(id), Some(count)) => {
            let mut addresses = functions_with_id(input, id);
            if addresses.len() < count as usize {
                let message =
                    format!("this host has {} PCI functions with the id {id}", addresses.len());
                return Err(path.child("count").fault(count, message));
            }
            addresses.truncate(count as usize);
            Ok(addresses)
        }
        (address, id, _) => {
            let shown = format!(
                "pciAddress: {}, id: {}",
                address.map(|address| address.to_string()).unwrap_or_default(),
                id.map(|id| id.to_string()).unwrap_or_default()
            );
            let message = "exactly one of pciAddress and id must be set, and count only with id";
            Err(path.fault(shown, message))
        }
    }
}

/// Returns the functions with an id in the order of preference: those that VMs have open, those that are bound already,
/// those that can be bound, first those that Berth has bound before, and the others, each sorted by address.
fn functions_with_id(input: Input, id: PciId) -> Vec<PciAddress> {
    let functions = input.facts.vfio.functions.values();
    let mut found: Vec<&VfioFunction> = functions.filter(|one| one.id == Some(id)).collect();
    found.sort_by_key(|function| {
        let is_bound = function.driver.as_deref() == Some(VFIO_DRIVER);
        let is_open = is_bound && function.enable_count != Some(0);
        let is_ours = is_in_ledger(input, function.address);
        let is_refused = function_refusal(input, function).is_some();
        (!is_open, !is_bound, is_refused, !is_ours, function.address)
    });
    found.into_iter().map(|function| function.address).collect()
}

/// Returns the changes: first the functions that are released, then those that are bound.
pub(super) fn plan_changes(input: Input, targets: &Targets) -> Vec<Change> {
    let driver_targets = targets.values.iter().filter_map(|(setting, target)| match setting {
        Setting::PciDriver(address) => Some((*address, target)),
        _ => None,
    });
    let driver_targets: Vec<(PciAddress, &Target)> = driver_targets.collect();
    let selected: BTreeSet<PciAddress> = driver_targets
        .iter()
        .filter(|(_, target)| target.reason == ChangeReason::Spec)
        .map(|(address, _)| *address)
        .collect();
    let mut changes = Vec::new();
    for reason in [ChangeReason::Restore, ChangeReason::Spec] {
        for (address, target) in driver_targets.iter().filter(|(_, one)| one.reason == reason) {
            changes.extend(plan_change(input, *address, target, &selected));
        }
    }
    changes
}

fn plan_change(
    input: Input,
    address: PciAddress,
    target: &Target,
    selected: &BTreeSet<PciAddress>,
) -> Option<Change> {
    let setting = Setting::PciDriver(address);
    let Some(function) = input.facts.vfio.functions.get(&address) else {
        let reason = match &input.facts.vfio.list {
            FunctionList::Failed(error) => error.to_string(),
            FunctionList::NotRead | FunctionList::Complete => {
                "this host has no PCI function with this address; remove it from spec.devices.vfio"
                    .to_owned()
            }
        };
        return Some(Change::unsupported_setting(setting, target, reason));
    };
    let was = function.driver_setting();
    if was == target.value {
        return None;
    }
    let (refusal, effect) = match target.reason {
        ChangeReason::Spec => (
            bind_refusal(input, function, selected),
            "the host cannot use the device while VMs can",
        ),
        ChangeReason::Restore => {
            (release_refusal(input, function, target), "VMs can no longer use the device")
        }
    };
    let change = Change::for_setting(setting, was, target, Disruption::Low, effect.to_owned());
    Some(change.blocked_by(refusal))
}

/// Returns the reason why a function is not bound to `vfio-pci`.
fn bind_refusal(
    input: Input,
    function: &VfioFunction,
    selected: &BTreeSet<PciAddress>,
) -> Option<String> {
    if !input.facts.vfio.is_driver_loaded {
        return Some(
            "the kernel module vfio-pci is not loaded: modprobe vfio-pci; echo vfio-pci > \
             /etc/modules-load.d/vfio-pci.conf"
                .to_owned(),
        );
    }
    function_refusal(input, function).or_else(|| group_refusal(input, function, selected))
}

/// Returns the reason why a function is not bound, regardless of the other functions of its IOMMU group.
fn function_refusal(input: Input, function: &VfioFunction) -> Option<String> {
    let address = function.address;
    if function.is_bridge() {
        return Some("it is a bridge, which VMs cannot use".to_owned());
    }
    if function.iommu_group.is_none() {
        return Some(
            "it has no IOMMU group: enable VT-d or AMD-Vi in the firmware setup, and boot with intel_iommu=on \
             (Intel)"
                .to_owned(),
        );
    }
    if let Some(reason) = override_refusal(function, is_in_ledger(input, address)) {
        return Some(reason);
    }
    let driver = function.driver.as_deref().unwrap_or_default();
    if function.has_vfio_driver() {
        let reason = format!("another program has bound it to {driver}, a driver for VMs");
        return Some(reason).filter(|_| driver != VFIO_DRIVER);
    }
    if !driver.is_empty() && Setting::PciDriver(address).parse_value(driver).is_err() {
        return Some("the name of its driver cannot be saved in the rollback ledger".to_owned());
    }
    let reason = function.use_reason()?;
    let remedy = if function.users.is_empty() {
        ""
    } else {
        "; free it, or remove it from spec.devices.vfio"
    };
    Some(format!("{reason}{remedy}"))
}

/// Returns the reason if `driver_override` is not that of Berth. `is_ours` is true if Berth has changed the driver.
fn override_refusal(function: &VfioFunction, is_ours: bool) -> Option<String> {
    let name = match &function.driver_override {
        Ok(None) => return None,
        Ok(Some(name)) if is_ours && name == VFIO_DRIVER => return None,
        Ok(Some(name)) => name,
        Err(error) => return Some(error.to_string()),
    };
    let file = format!("/{DEVICE_FOLDER}/{}/driver_override", function.address);
    Some(format!(
        "driver_override is `{name}`, which another program has set; clear it: echo > {file}"
    ))
}

/// Returns the reason why VMs could not use a function: a driver of the host uses another function of its IOMMU group.
fn group_refusal(
    input: Input,
    function: &VfioFunction,
    selected: &BTreeSet<PciAddress>,
) -> Option<String> {
    let group = function.iommu_group?;
    let members = match &function.group_members {
        Ok(members) => members,
        Err(error) => return Some(error.to_string()),
    };
    let refusal = |name: &String| {
        let address = name.parse::<PciAddress>().ok();
        if address == Some(function.address) {
            return None;
        }
        let member = address.and_then(|address| input.facts.vfio.functions.get(&address));
        let Some(member) = member else {
            return Some(format!("{name}, whose driver cannot be read"));
        };
        if !member.blocks_group() {
            return None;
        }
        if !selected.contains(&member.address) {
            let driver = member.driver.as_deref().unwrap_or_default();
            let use_by_host = describe_link(input, member.address).unwrap_or_default();
            return Some(format!(
                "{name} with the driver {driver}{use_by_host}; VMs get all functions of a group or none"
            ));
        }
        let reason = function_refusal(input, member)?;
        Some(format!("{name}, which cannot be bound: {reason}"))
    };
    let blocking = members.iter().find_map(refusal)?;
    Some(format!("IOMMU group {group} also contains {blocking}"))
}

/// Describes the link of a network card.
fn describe_link(input: Input, address: PciAddress) -> Option<String> {
    let links = &input.facts.links.all;
    let link = links.iter().find(|link| link.pci_address == Some(address))?;
    let route = if link.has_default_route { " with the default route" } else { "" };
    Some(format!(" (link {}{route})", link.name))
}

/// Returns the reason why a function is not released.
fn release_refusal(input: Input, function: &VfioFunction, target: &Target) -> Option<String> {
    if let Some(reason) = override_refusal(function, true) {
        return Some(reason);
    }
    let driver = function.driver.as_deref()?;
    if driver == VFIO_DRIVER {
        let user = input.facts.vfio.group_user(function)?;
        let group = function.iommu_group.map(|group| group.to_string()).unwrap_or_default();
        return Some(format!("IOMMU group {group} is in use: {user}; stop or migrate the VM"));
    }
    // After an interrupted change, the function may have its original driver, and only `driver_override` must be
    // cleared.
    (target.value != SettingValue::Keyword(driver.to_owned()))
        .then(|| format!("another program has bound it to {driver}"))
}

fn is_in_ledger(input: Input, address: PciAddress) -> bool {
    input.facts.ledger.entries.contains_key(&Setting::PciDriver(address))
}
