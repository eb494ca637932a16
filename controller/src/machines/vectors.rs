//! Interrupt vectors: an x86 CPU has 256, of which about 200 are left for devices, and each queue of a virtio device takes
//! one on its CPU. A guest that runs out of them boots with devices that share one, or that do not work.

use serde_json::Value;

use super::render::Machine;

/// Vectors of a CPU that are left for devices (Linux `arch/x86/include/asm/irq_vectors.h`: 256 less exceptions, system
/// vectors and those of legacy devices).
const OF_A_CPU: u64 = 200;

/// Vectors that a machine's devices ask for.
fn asked(cpus: u64, disks: u64, interfaces: u64, has_multiqueue: bool) -> u64 {
    // A queue for each CPU (QEMU since 5.2), and one vector for changes of the configuration.
    let of_disk = cpus.saturating_add(1);
    // In and out; the control queue and the configuration have one each.
    let pairs = if has_multiqueue { cpus } else { 1 };
    let of_interface = pairs.saturating_mul(2).saturating_add(2);
    disks.saturating_mul(of_disk).saturating_add(interfaces.saturating_mul(of_interface))
}

impl Machine<'_> {
    /// Says it if a rendered machine has more devices than its CPUs have vectors for.
    pub(super) fn check_vectors(&self, spec: &Value) {
        let devices = &spec["domain"]["devices"];
        let count = |field: &str| devices[field].as_array().map_or(0, |all| all.len() as u64);
        let (disks, interfaces) = (count("disks"), count("interfaces"));
        // Of an instance type they are not known here; one CPU is the least.
        let cores = spec["domain"]["cpu"]["cores"].as_u64();
        let cpus = cores.or_else(|| self.provider.cpus.parse().ok()).unwrap_or(1).max(1);
        let asked = asked(cpus, disks, interfaces, devices["networkInterfaceMultiqueue"] == true);
        let there = cpus.saturating_mul(OF_A_CPU);
        if asked > there {
            let message = format!(
                "{disks} disks and {interfaces} interfaces ask for {asked} interrupt vectors, and the guest's {cpus} CPUs \
                 have about {there}: take fewer disks, or put several on one by partitions"
            );
            let field = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.secondaryDisks";
            self.reading.odd(field, &disks.to_string(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::asked;

    #[test]
    fn queues_are_counted_as_qemu_makes_them() {
        // One CPU: a disk has one queue and the configuration; an interface one pair, control and configuration.
        assert_eq!(asked(1, 1, 0, true), 2);
        assert_eq!(asked(1, 0, 1, true), 4);
        assert_eq!(asked(16, 4, 2, true), 4 * 17 + 2 * 34);
        assert_eq!(asked(16, 4, 2, false), 4 * 17 + 2 * 4);
        assert_eq!(asked(u64::MAX, u64::MAX, 2, true), u64::MAX);
    }
}
