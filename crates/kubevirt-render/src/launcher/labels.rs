//! Labels of a launcher pod (`podLabels`).

use std::collections::BTreeMap;

use ring::digest::SHA1_FOR_LEGACY_USE_ONLY;

use super::machine::Machine;
use super::version::Version;
use crate::hex_digest::hex_digest;

/// Maximum number of characters of a label's value in Kubernetes.
const MAX_LENGTH: usize = 63;
/// Number of hexadecimal digits of the hash at the end of an instance's shortened name.
const HASH_LENGTH: usize = 8;

/// Returns the labels of the pod.
pub(super) fn pod_labels(machine: &Machine, version: Version) -> BTreeMap<String, String> {
    let mut labels = machine.labels.clone();
    labels.insert("kubevirt.io".to_owned(), "virt-launcher".to_owned());
    labels.extend(machine.uid.clone().map(|uid| ("kubevirt.io/created-by".to_owned(), uid)));
    let first = machine.name.split('.').next().unwrap_or_default();
    let hostname = if machine.spec.hostname.is_empty() {
        first.chars().take(MAX_LENGTH).collect()
    } else {
        machine.spec.hostname.clone()
    };
    labels.insert("vm.kubevirt.io/name".to_owned(), hostname);
    if version.is_at_least(7, 0) {
        labels.insert("vmi.kubevirt.io/id".to_owned(), instance_id(&machine.name));
        if let Some(inject) = machine.annotations.get("sidecar.istio.io/inject") {
            labels.insert("sidecar.istio.io/inject".to_owned(), inject.clone());
        }
    }
    labels
}

/// Returns the name of an instance. A name that is too long for a label's value is shortened and gets a hash at its end
/// (`CalculateVirtualMachineInstanceID`).
fn instance_id(name: &str) -> String {
    if name.len() <= MAX_LENGTH {
        return name.to_owned();
    }
    let prefix: String = name.chars().take(MAX_LENGTH - HASH_LENGTH - 1).collect();
    format!("{prefix}-{}", hex_digest(&SHA1_FOR_LEGACY_USE_ONLY, name, HASH_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected hash consists of the first digits of `printf '%s' NAME | sha1sum`.
    #[test]
    fn a_long_name_is_shortened_to_63_characters() {
        let name = "y".repeat(120);
        assert_eq!(instance_id(&name), format!("{}-24c4850a", "y".repeat(54)));
        assert_eq!(instance_id(&name).len(), MAX_LENGTH);
        assert_eq!(instance_id(&"y".repeat(63)), "y".repeat(63));
    }
}
