//! Interrupt vectors: each queue of a virtio device takes one (MSI-X), and there are not enough for everything. A guest
//! does not fail then: devices share a vector or are interrupted through QEMU, and are slow without a word.
//!
//! KVM routes at most 4,096 interrupts of a VM to its CPUs directly (`KVM_MAX_IRQ_ROUTES`), for all CPUs together. The guest's
//! own limit is further away: Linux on x86 has about 200 vectors for each CPU, and a disk with a queue for each CPU takes one
//! of every CPU (managed interrupts), an interface two; InfraConfig allows 32 disks at most.

use serde_json::Value;

use super::render::MachineRenderer;

/// Routes that KVM has for a VM, less those of the PIC and the I/O APIC (QEMU `kvm_pc_setup_irq_routing`: 16 and 24).
const OF_A_VM: u64 = 4096 - 40;
/// Queues of a virtio device at most (QEMU `VIRTIO_QUEUE_MAX`).
const QUEUES: u64 = 1024;
/// Queue pairs of an interface at most (KubeVirt `multiQueueMaxQueues`, which is what a tap device has).
const PAIRS: u64 = 256;

/// Vectors that a machine's devices ask for.
fn asked(cpus: u64, disks: u64, interfaces: u64, has_multiqueue: bool) -> u64 {
    // A queue for each CPU (QEMU since 5.2, `virtio_pci_optimal_num_queues`), and one vector for changes of the
    // configuration.
    let of_disk = cpus.min(QUEUES).saturating_add(1);
    // In and out; the control queue and the configuration have one each.
    let pairs = if has_multiqueue { cpus.min(PAIRS) } else { 1 };
    let of_interface = pairs.saturating_mul(2).saturating_add(2);
    // The SCSI controller for disks that are plugged in later (KubeVirt `needsSCSIController`): as a disk, with queues for
    // control and events.
    let of_controller = cpus.min(QUEUES - 2).saturating_add(3);
    let disks = disks.saturating_mul(of_disk);
    disks.saturating_add(interfaces.saturating_mul(of_interface)).saturating_add(of_controller)
}

impl MachineRenderer<'_> {
    /// Reports a rendered machine that has more devices than there are vectors for.
    pub(super) fn check_vectors(&self, spec: &Value) {
        let devices = &spec["domain"]["devices"];
        let count = |field: &str| devices[field].as_array().map_or(0, |all| all.len() as u64);
        let (disks, interfaces) = (count("disks"), count("interfaces"));
        // Of an instance type they are not known here; one CPU is the least.
        let cores = spec["domain"]["cpu"]["cores"].as_u64();
        // A number from a Secret is not shown.
        let given = Some(&self.provider.cpus).filter(|cpus| !cpus.is_secret());
        let cpus = cores.or_else(|| given?.parse().ok()).unwrap_or(1).max(1);
        let asked = asked(cpus, disks, interfaces, devices["networkInterfaceMultiqueue"] == true);
        if asked > OF_A_VM {
            let message = format!(
                "{disks} disks and {interfaces} interfaces with queues for {cpus} CPUs ask for {asked} interrupt vectors, and \
                 KVM routes {OF_A_VM} of a VM; the rest is slow: take fewer disks, or put several on one by partitions"
            );
            let field = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.secondaryDisks";
            self.reader.warn(field, &disks.to_string(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_as_qemu_makes_them() {
        let of_controller = asked(1, 0, 0, true);
        assert_eq!(of_controller, 4);
        // One CPU: a disk has one queue and the configuration; an interface one pair, control and configuration.
        assert_eq!(asked(1, 1, 0, true), of_controller + 2);
        assert_eq!(asked(1, 0, 1, true), of_controller + 4);
        assert_eq!(asked(16, 4, 2, true), 19 + 4 * 17 + 2 * 34);
        assert_eq!(asked(16, 4, 2, false), 19 + 4 * 17 + 2 * 4);
        // No device has more queues than QEMU, and no tap device more than KubeVirt gives it.
        assert_eq!(asked(4096, 1, 1, true), 1025 + 1025 + 514);
        assert_eq!(asked(u64::MAX, u64::MAX, 2, true), u64::MAX);
    }
}
