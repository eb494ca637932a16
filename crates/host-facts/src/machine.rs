//! The machine, its operating system, and the hypervisor if the machine is a VM.

use berth_api::infra_node::{Hypervisor, Machine, UnknownReason};

use super::cpuinfo::CpuInfo;
use crate::notes::Notes;
use crate::root::{ReadProblem, Root};
use crate::sanitize::sanitize_to_one_line;

const DMI_FOLDER: &str = "sys/class/dmi/id";

/// Reads DMI data, the kernel release and os-release.
pub fn observe(root: &Root, cpuinfo: &CpuInfo, notes: &mut Notes) -> Machine {
    let read_dmi = |name: &str| {
        root.read(&format!("{DMI_FOLDER}/{name}")).and_then(|text| {
            let problem = ReadProblem::Malformed("the file is empty".to_owned());
            let empty = || crate::root::ReadError { path: format!("{DMI_FOLDER}/{name}"), problem };
            if text.is_empty() { Err(empty()) } else { Ok(sanitize_to_one_line(&text)) }
        })
    };
    // Arm and Power boards have no DMI data. Their model is in the device tree.
    let product = read_dmi("product_name")
        .or_else(|error| root.read("proc/device-tree/model").map_err(|_| error));
    let vendor = read_dmi("sys_vendor").ok();
    if vendor.is_none() {
        let message = "/sys/class/dmi/id/sys_vendor does not exist or is empty";
        notes.add_unknown("capabilities.machine.vendor", UnknownReason::NotFound, message);
    }
    let product = match product {
        Ok(product) => Some(product),
        Err(error) => {
            notes.add_unknown("capabilities.machine.product", error.reason(), error.to_string());
            None
        }
    };
    let hypervisor = detect_hypervisor(root, cpuinfo, vendor.as_deref(), product.as_deref(), notes);
    Machine {
        kernel: read_kernel_release(root, notes),
        os: read_os_name(root, notes),
        vendor,
        product,
        hypervisor,
    }
}

/// Reads the host name and converts it to lower case, as the kubelet does.
#[must_use]
pub fn read_host_name(root: &Root) -> Option<String> {
    let names = ["proc/sys/kernel/hostname", "etc/hostname"];
    let name = names.iter().find_map(|path| root.read(path).ok().filter(|n| !n.is_empty()))?;
    Some(name.lines().next()?.trim().to_lowercase())
}

/// Returns true if the text is a valid name of a Kubernetes object: a DNS subdomain (RFC 1123).
#[must_use]
pub fn is_valid_object_name(name: &str) -> bool {
    let is_label_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(is_label_byte)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    (1..=253).contains(&name.len()) && name.split('.').all(is_label)
}

fn read_kernel_release(root: &Root, notes: &mut Notes) -> Option<String> {
    let release = root.read("proc/sys/kernel/osrelease").ok().filter(|r| !r.is_empty());
    // The kernel release is the third word of `Linux version 6.1.0-13-amd64 (debian-kernel@...) ...`.
    let from_version = || {
        let version = root.read("proc/version").ok()?;
        version.strip_prefix("Linux version ")?.split(' ').next().map(str::to_owned)
    };
    let release = release.or_else(from_version).map(|release| sanitize_to_one_line(&release));
    if release.is_none() {
        let message =
            "neither /proc/sys/kernel/osrelease nor /proc/version contains the kernel release";
        notes.add_unknown("capabilities.machine.kernel", UnknownReason::NotFound, message);
    }
    release
}

fn read_os_name(root: &Root, notes: &mut Notes) -> Option<String> {
    let files = ["etc/os-release", "usr/lib/os-release"];
    let name = files
        .iter()
        .find_map(|path| root.read(path).ok())
        .and_then(|text| os_release_field(&text, "PRETTY_NAME"))
        .map(|name| sanitize_to_one_line(&name));
    if name.is_none() {
        let message = "neither /etc/os-release nor /usr/lib/os-release contains PRETTY_NAME";
        notes.add_unknown("capabilities.machine.os", UnknownReason::NotFound, message);
    }
    name
}

/// Returns the value of the variable `name` in the content of a file with shell assignments, such as os-release(5).
#[must_use]
pub fn os_release_field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
    let strip_quotes = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    let value = strip_quotes('"').or_else(|| strip_quotes('\'')).unwrap_or(value);
    (!value.is_empty()).then(|| value.replace('\\', ""))
}

/// Returns the hypervisor that runs this machine, [`Hypervisor::None`] if the machine is not a VM, and `None` if this
/// is unknown. The hypervisor's name is in CPUID or DMI. Without a name, the machine is a VM if the CPU flag
/// `hypervisor`, the firmware's flag for VMs or a device tree shows this. Otherwise the machine is not a VM if the CPU
/// has x86 flags, or if the firmware's flag can be read and is not set.
fn detect_hypervisor(
    root: &Root,
    cpuinfo: &CpuInfo,
    vendor: Option<&str>,
    product: Option<&str>,
    notes: &mut Notes,
) -> Option<Hypervisor> {
    let by_cpuid = root.is_live().then(super::kvm::cpuid::detect_hypervisor).flatten();
    let by_dmi = hypervisor_from_dmi(vendor.unwrap_or_default(), product.unwrap_or_default());
    let by_xen =
        root.read("sys/hypervisor/type").ok().filter(|t| t == "xen").map(|_| Hypervisor::Xen);
    let detected = by_cpuid.or(by_dmi).or(by_xen);
    let has_x86_flags = cpuinfo.is_x86() && cpuinfo.has_flags;
    if detected.is_some() {
        return detected;
    }
    let is_virtual_by_smbios = is_virtual_by_smbios(root);
    if cpuinfo.has_flag("hypervisor")
        || is_virtual_by_smbios == Some(true)
        || root.exists("proc/device-tree/hypervisor")
    {
        Some(Hypervisor::Other)
    } else if has_x86_flags || is_virtual_by_smbios == Some(false) {
        Some(Hypervisor::None)
    } else {
        let message =
            "/proc/cpuinfo has no x86 flags, and neither DMI nor a device tree names a hypervisor";
        notes.add_unknown("capabilities.machine.hypervisor", UnknownReason::NotFound, message);
        None
    }
}

/// Returns true if the firmware has the flag for VMs: SMBIOS type 0, characteristics extension byte 2, bit 4. Returns
/// `None` if the table cannot be read, which requires root.
fn is_virtual_by_smbios(root: &Root) -> Option<bool> {
    let table = root.read_bytes("sys/firmware/dmi/entries/0-0/raw").ok()?;
    table.get(0x13).map(|byte| byte & 1 << 4 != 0)
}

/// Returns the hypervisor whose VMs have this DMI vendor and product (as in systemd-detect-virt).
fn hypervisor_from_dmi(vendor: &str, product: &str) -> Option<Hypervisor> {
    let contains = |text: &str, part: &str| text.contains(part);
    match () {
        () if contains(vendor, "VMware") => Some(Hypervisor::VMware),
        () if contains(vendor, "innotek") || contains(product, "VirtualBox") => {
            Some(Hypervisor::VirtualBox)
        }
        () if contains(vendor, "Microsoft") && contains(product, "Virtual Machine") => {
            Some(Hypervisor::HyperV)
        }
        () if contains(vendor, "Xen") => Some(Hypervisor::Xen),
        () if contains(product, "KVM")
            || contains(vendor, "Amazon EC2") && !contains(product, "metal") =>
        {
            Some(Hypervisor::Kvm)
        }
        () if contains(product, "OpenStack") || contains(product, "Google Compute Engine") => {
            Some(Hypervisor::Kvm)
        }
        () if contains(vendor, "DigitalOcean")
            || contains(vendor, "Hetzner") && contains(product, "vServer") =>
        {
            Some(Hypervisor::Kvm)
        }
        () if contains(vendor, "QEMU") => Some(Hypervisor::Qemu),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_values_may_be_quoted() {
        let text = "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION='1 2'\nEMPTY=\n";
        assert_eq!(os_release_field(text, "PRETTY_NAME").as_deref(), Some("Debian GNU/Linux 12"));
        assert_eq!(os_release_field(text, "VERSION").as_deref(), Some("1 2"));
        assert_eq!(os_release_field(text, "EMPTY"), None);
        assert_eq!(os_release_field(text, "AME"), None);
    }

    #[test]
    fn cloud_bare_metal_is_not_a_virtual_machine() {
        assert_eq!(hypervisor_from_dmi("Amazon EC2", "m5.metal"), None);
        assert_eq!(hypervisor_from_dmi("Amazon EC2", "m5.large"), Some(Hypervisor::Kvm));
        assert_eq!(hypervisor_from_dmi("Microsoft Corporation", "Surface"), None);
        assert_eq!(
            hypervisor_from_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)"),
            Some(Hypervisor::Qemu)
        );
    }

    #[test]
    fn object_names_are_dns_subdomains() {
        for name in ["rack1-a", "worker1.internal", "0"] {
            assert!(is_valid_object_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "a..b", "Rack", "a_b", "(none)", &"x".repeat(254)] {
            assert!(!is_valid_object_name(name), "{name}");
        }
    }
}
