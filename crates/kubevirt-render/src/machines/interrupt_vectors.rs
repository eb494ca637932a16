//! Checks the number of interrupt vectors. Each queue of a virtio device needs one vector (MSI-X), and the number of
//! vectors is limited. If there are too few vectors, the guest still runs: devices share a vector, or are interrupted
//! through QEMU, which is slow and is not reported.
//!
//! KVM routes at most 4,096 interrupts of a VM directly to its CPUs (`KVM_MAX_IRQ_ROUTES`); the limit applies to the
//! sum over all CPUs. The guest's own limit is higher: Linux on x86 has about 200 vectors for each CPU. A disk with a
//! queue for each CPU takes one vector of every CPU (managed interrupts), and an interface takes two; InfraConfig
//! allows at most 32 disks.

use serde_json::Value;

use super::renderer::MachineRenderer;

/// Number of interrupt routes that KVM has for the devices of a VM: all routes except those of the PIC and the I/O APIC
/// (QEMU `kvm_pc_setup_irq_routing`: 16 and 24).
const MAX_INTERRUPT_ROUTES: u64 = 4096 - 40;
/// Maximum number of queues of a virtio device (QEMU `VIRTIO_QUEUE_MAX`).
const MAX_QUEUES: u64 = 1024;
/// Maximum number of queue pairs of an interface (KubeVirt `multiQueueMaxQueues`, the limit of a tap device).
const MAX_QUEUE_PAIRS: u64 = 256;

/// Returns the number of vectors that the devices of a machine with `cpus` CPUs need.
fn required_vectors(cpus: u64, disks: u64, interfaces: u64, has_multiqueue: bool) -> u64 {
    // A disk has a queue for each CPU (QEMU since 5.2, `virtio_pci_optimal_num_queues`). Each queue needs a vector, and
    // changes of the disk's configuration need one more.
    let vectors_per_disk = cpus.min(MAX_QUEUES).saturating_add(1);
    // An interface has a receive queue and a transmit queue for each queue pair, and a control queue. Each queue needs
    // a vector, and changes of the interface's configuration need one more.
    let pairs = if has_multiqueue { cpus.min(MAX_QUEUE_PAIRS) } else { 1 };
    let vectors_per_interface = pairs.saturating_mul(2).saturating_add(2);
    // The SCSI controller for hotplugged disks (KubeVirt `needsSCSIController`) needs as many vectors as a disk, and
    // two more for the control queue and the event queue.
    let scsi_controller = cpus.min(MAX_QUEUES - 2).saturating_add(3);
    let disks = disks.saturating_mul(vectors_per_disk);
    disks
        .saturating_add(interfaces.saturating_mul(vectors_per_interface))
        .saturating_add(scsi_controller)
}

impl MachineRenderer<'_> {
    /// Warns if the devices of the rendered machine need more vectors than KVM has routes.
    pub(super) fn check_vectors(&self, spec: &Value) {
        let devices = &spec["domain"]["devices"];
        let count = |field: &str| devices[field].as_array().map_or(0, |all| all.len() as u64);
        // Disks on the SCSI bus use the vectors of the SCSI controller.
        let is_virtio = |disk: &&Value| disk["disk"]["bus"] == "virtio";
        let disks = devices["disks"].as_array().into_iter().flatten();
        let disks = disks.filter(is_virtio).count() as u64;
        let interfaces = count("interfaces");
        // If an instance type sets the number of CPUs, the number is unknown here, and 1 is assumed.
        let cores = spec["domain"]["cpu"]["cores"].as_u64();
        // If the number of CPUs comes from a Secret, it must not appear in the message.
        let configured_cpus = Some(&self.provider.cpus).filter(|cpus| !cpus.is_secret());
        let cpus = cores.or_else(|| configured_cpus?.parse().ok()).unwrap_or(1).max(1);
        let needed = required_vectors(
            cpus,
            disks,
            interfaces,
            devices["networkInterfaceMultiqueue"] == true,
        );
        if needed > MAX_INTERRUPT_ROUTES {
            let message = format!(
                "{disks} disks and {interfaces} interfaces with queues for {cpus} CPUs need {needed} interrupt vectors, but \
                 KVM routes {MAX_INTERRUPT_ROUTES} directly for a VM and further vectors are slow: use fewer disks, or partition a larger disk"
            );
            let field = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.secondaryDisks";
            self.reporter.report_warning(field, &disks.to_string(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_count_equals_qemu_count() {
        let scsi_controller = required_vectors(1, 0, 0, true);
        assert_eq!(scsi_controller, 4);
        // With one CPU, a disk needs vectors for one queue and the configuration; an interface needs vectors for one
        // queue pair, the control queue and the configuration.
        assert_eq!(required_vectors(1, 1, 0, true), scsi_controller + 2);
        assert_eq!(required_vectors(1, 0, 1, true), scsi_controller + 4);
        assert_eq!(required_vectors(16, 4, 2, true), 19 + 4 * 17 + 2 * 34);
        assert_eq!(required_vectors(16, 4, 2, false), 19 + 4 * 17 + 2 * 4);
        // QEMU limits the number of queues of a device, and KubeVirt limits the number of queues of a tap device.
        assert_eq!(required_vectors(4096, 1, 1, true), 1025 + 1025 + 514);
        assert_eq!(required_vectors(u64::MAX, u64::MAX, 2, true), u64::MAX);
    }
}
