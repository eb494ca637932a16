//! Renders requests and limits of the container `compute`, which runs the guest (`renderresources.go`). The functions
//! below must be called in KubeVirt's order, because later ones read amounts that earlier ones have written.

use berth_api::Quantity;

use super::amounts::{EPHEMERAL_STORAGE, given_or_calculated, multiply_truncating};
use super::cluster_objects::ClusterObjects;
use super::configuration::{Configuration, EVEN_PARITY_ANNOTATION};
use super::gate::Gate;
use super::invalid::Invalid;
use super::machine::Machine;
use super::namespace::split_network_name;
use super::spec::{Amounts, Spec, amount};

/// Requests and limits of the container `compute` in the pod's manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compute {
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
}

/// The requests and limits that the machine sets, some of which KubeVirt changes, and those that KubeVirt calculates.
/// Amounts that the machine sets take precedence over calculated amounts.
#[derive(Default)]
struct ResourceLists {
    requests: Amounts,
    limits: Amounts,
    calculated_requests: Amounts,
    calculated_limits: Amounts,
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// Renders the requests and limits of the container `compute`. `overhead` is the memory overhead of the pod.
///
/// # Errors
///
/// Returns an error if a NetworkAttachmentDefinition that the machine names is unknown.
pub(super) fn render(
    machine: &Machine,
    configuration: &Configuration,
    objects: &ClusterObjects,
    overhead: Quantity,
) -> Result<Compute, Invalid> {
    let spec = &machine.spec;
    let resources = &spec.domain.resources;
    let mut lists = ResourceLists {
        requests: resources.requests.clone(),
        limits: resources.limits.clone(),
        ..ResourceLists::default()
    };
    lists.add_ephemeral_storage();
    lists.add_virtualization_devices(spec, configuration);
    if amount(&resources.requests, MEMORY).is_zero() && configuration.version.is_at_least(6, 4) {
        lists.set_memory_request(spec, configuration.memory_overcommit);
    }
    if spec.is_dedicated() {
        lists.set_dedicated_cpus(machine);
    } else {
        let limited = objects.cpu_limited_namespaces.contains(&machine.namespace);
        let selector = configuration.cpu_limit_namespaces.as_ref();
        let limited = !resources.limits.contains_key(CPU)
            && (limited || objects.requires_cpu_limits(&machine.namespace, selector));
        lists.set_shared_cpus(spec, configuration, limited);
    }
    if spec.domain.memory.hugepages.is_some() {
        lists.set_hugepages(spec, overhead);
    } else {
        lists.add_overhead(resources.overcommit_guest_overhead, overhead);
    }
    if !resources.limits.contains_key(MEMORY)
        && objects.memory_limited_namespaces.contains(&machine.namespace)
    {
        let ratio = objects.memory_limit_ratio(&machine.namespace);
        let limit =
            multiply_truncating(amount(&lists.requests, MEMORY).whole_units_rounded_up(), ratio);
        lists.calculated_limits.insert(MEMORY.to_owned(), limit);
    }
    if configuration.requests_network_resources() {
        for resource in network_resources(machine, objects) {
            if let Some(resource) = resource? {
                lists.add_device(resource);
            }
        }
    }
    lists.add_requested_devices(spec, configuration);
    Ok(lists.into_compute())
}

impl ResourceLists {
    /// Requests disk space for virt-launcher itself (`WithEphemeralStorageRequest`).
    fn add_ephemeral_storage(&mut self) {
        let launcher_storage = Quantity::from_units(50_000_000);
        let request = self.requests.entry(EPHEMERAL_STORAGE.to_owned()).or_default();
        *request = request.saturating_add(launcher_storage);
        if let Some(limit) = self.limits.get_mut(EPHEMERAL_STORAGE) {
            *limit = limit.saturating_add(launcher_storage);
        }
    }

    /// Sets the limits of the device plugin resources that KubeVirt itself provides (`getRequiredResources`). The API
    /// server copies these limits to the requests.
    fn add_virtualization_devices(&mut self, spec: &Spec, configuration: &Configuration) {
        let devices = &spec.domain.devices;
        let attached = devices.autoattach_pod_interface.unwrap_or(true);
        let is_virtio = |model: &str| model.is_empty() || model == "virtio";
        let any_virtio = devices.interfaces.iter().any(|it| is_virtio(&it.model));
        for (device, is_required) in [
            ("tun", attached || !devices.interfaces.is_empty()),
            ("vhost-net", any_virtio && !configuration.use_emulation),
            (configuration.hypervisor_device(), !configuration.use_emulation),
            ("vhost-vsock", devices.autoattach_vsock),
        ] {
            if is_required {
                self.limits
                    .insert(format!("devices.kubevirt.io/{device}"), Quantity::from_units(1));
            }
        }
    }

    /// Sets the memory request of a machine that has none (`WithMemoryRequests`).
    fn set_memory_request(&mut self, spec: &Spec, overcommit: u32) {
        let limit = amount(&self.limits, MEMORY);
        if let Some(request) = request_for_memory(spec, &self.requests, limit, overcommit) {
            self.requests.insert(MEMORY.to_owned(), request);
        }
    }

    /// Sets the request and limit of dedicated CPUs (`WithCPUPinning`).
    fn set_dedicated_cpus(&mut self, machine: &Machine) {
        let spec = &machine.spec;
        let Some(cpu) = &spec.domain.cpu else { return };
        let pool = spec.pool_threads();
        let vcpus = u64::try_from(cpu.vcpus()).unwrap_or(u64::MAX);
        if vcpus == 0 {
            for amounts in [&mut self.limits, &mut self.requests] {
                if let Some(cpus) = amounts.get_mut(CPU) {
                    *cpus = cpus.saturating_add(Quantity::from_units(pool));
                }
            }
        } else {
            let total = Quantity::from_units(vcpus.saturating_add(pool));
            self.limits.insert(CPU.to_owned(), total);
            self.requests.insert(CPU.to_owned(), total);
        }
        if cpu.isolate_emulator_thread {
            let limit = amount(&self.limits, CPU);
            // If the policy is `supplementalPool`, KubeVirt counts the threads of the pool twice when it checks whether
            // the number of CPUs is even.
            let is_supplemental_pool =
                spec.domain.io_threads_policy.as_deref() == Some("supplementalPool");
            let parity_threads = if is_supplemental_pool { pool } else { 0 };
            let is_even =
                limit.whole_units_rounded_up().saturating_add(i128::from(parity_threads)) % 2 == 0;
            let needs_two = is_even && machine.annotations.contains_key(EVEN_PARITY_ANNOTATION);
            let emulator_threads = Quantity::from_units(if needs_two { 2 } else { 1 });
            self.limits.insert(CPU.to_owned(), limit.saturating_add(emulator_threads));
            if let Some(request) = self.requests.get_mut(CPU) {
                *request = request.saturating_add(emulator_threads);
            }
        }
        if let Some(memory) = self.requests.get(MEMORY) {
            self.limits.insert(MEMORY.to_owned(), *memory);
        }
    }

    /// Calculates the CPU request of a VM without dedicated CPUs (`WithoutDedicatedCPU`). If `limited` is true, also
    /// calculates the CPU limit.
    fn set_shared_cpus(&mut self, spec: &Spec, configuration: &Configuration, limited: bool) {
        let vcpus = spec.domain.cpu.as_ref().map_or(1, super::spec::Cpu::vcpus);
        let total = u64::try_from(vcpus).unwrap_or(u64::MAX).saturating_add(spec.pool_threads());
        let ratio = configuration.cpu_allocation_ratio;
        if total == 0 || ratio <= 0 {
            return;
        }
        self.calculated_requests.insert(CPU.to_owned(), divide_by_ratio(total, ratio));
        if limited {
            self.calculated_limits.insert(CPU.to_owned(), Quantity::from_units(total));
        }
    }

    /// Requests huge pages (`WithHugePages`). The guest's memory is in huge pages, so the memory request only contains
    /// the overhead and the part of the machine's memory request that exceeds the guest's memory.
    fn set_hugepages(&mut self, spec: &Spec, overhead: Quantity) {
        let memory = &spec.domain.memory;
        let size = memory.hugepages.as_ref().map_or("", |pages| pages.page_size.as_str());
        let request = amount(&self.requests, MEMORY);
        let excess = |memory_amount: Quantity| {
            let guest = memory.guest.filter(|guest| {
                memory_amount.whole_units_rounded_up() > guest.whole_units_rounded_up()
            });
            guest.map_or(Quantity::ZERO, |guest| memory_amount.saturating_sub(guest))
        };
        let pages = memory
            .guest
            .filter(|guest| request.whole_units_rounded_up() > guest.whole_units_rounded_up())
            .unwrap_or(request);
        let name = format!("hugepages-{size}");
        self.calculated_requests.insert(name.clone(), pages);
        self.calculated_limits.insert(name, pages);
        self.requests.insert(MEMORY.to_owned(), excess(request).saturating_add(overhead));
        if let Some(limit) = self.limits.get_mut(MEMORY) {
            *limit = excess(*limit).saturating_add(overhead);
        }
    }

    /// Adds the memory overhead to the memory limit, if there is a limit. Also adds it to the memory request, unless
    /// `only_limit` is true (`WithMemoryOverhead`).
    fn add_overhead(&mut self, only_limit: bool, overhead: Quantity) {
        let request = self.requests.entry(MEMORY.to_owned()).or_default();
        if !only_limit {
            *request = request.saturating_add(overhead);
        }
        if let Some(limit) = self.limits.get_mut(MEMORY) {
            *limit = limit.saturating_add(overhead);
        }
    }

    /// Requests the device plugin resources of the devices that the machine names, in the order of
    /// `VMIResourcePredicates`.
    fn add_requested_devices(&mut self, spec: &Spec, configuration: &Configuration) {
        let devices = &spec.domain.devices;
        for device in devices.gpus.iter().chain(&devices.host_devices) {
            if let Some(resource) = device.resource() {
                self.add_device(resource);
            }
        }
        let reserved = devices.disks.iter().any(|disk| disk.lun.reservation);
        for (device, is_required) in [
            ("sev", spec.is_sev()),
            ("tdx", spec.is_tdx() && configuration.version.is_at_least(9, 0)),
            ("pr-helper", reserved),
            ("iommufd", configuration.is_gate_enabled(Gate::Iommufd)),
        ] {
            if is_required {
                self.add_device(&format!("devices.kubevirt.io/{device}"));
            }
        }
    }

    /// Adds one unit to the calculated quantity of a device plugin resource (`requestResource`). If the machine sets a
    /// quantity of this resource, that quantity takes precedence over the calculated quantity.
    fn add_device(&mut self, name: &str) {
        let one = Quantity::from_units(1);
        for (calculated, given) in [
            (&mut self.calculated_requests, &self.requests),
            (&mut self.calculated_limits, &self.limits),
        ] {
            let sum = given_or_calculated(calculated, given, name).saturating_add(one);
            calculated.insert(name.to_owned(), sum);
        }
    }

    fn into_compute(mut self) -> Compute {
        self.calculated_requests.append(&mut self.requests);
        self.calculated_limits.append(&mut self.limits);
        Compute { requests: self.calculated_requests, limits: self.calculated_limits }
    }
}

/// Returns the memory request for a machine without a memory request: the memory limit or, without a limit, the guest's
/// memory divided by the overcommitment. Returns `None` if the machine has a memory request, or if the guest's memory
/// is unknown.
fn request_for_memory(
    spec: &Spec,
    requests: &Amounts,
    limit: Quantity,
    overcommit: u32,
) -> Option<Quantity> {
    if !limit.is_zero() && amount(requests, MEMORY).is_zero() {
        return Some(limit);
    }
    if requests.contains_key(MEMORY) {
        return None;
    }
    let memory = &spec.domain.memory;
    let pages = || memory.hugepages.as_ref().and_then(|pages| pages.page_size.parse().ok());
    let guest = memory.guest.or_else(pages).filter(|guest| *guest > Quantity::ZERO)?;
    if overcommit == 100 {
        return Some(guest);
    }
    let share = guest.whole_units_rounded_up().saturating_mul(100) / i128::from(overcommit.max(1));
    Some(Quantity::from_units(u64::try_from(share).unwrap_or(u64::MAX)))
}

/// Sets the memory request of a machine that has none, as the webhook of KubeVirt releases before 1.6.4 and 1.7 does.
pub(super) fn set_missing_memory_request(spec: &mut Spec, overcommit: u32) {
    let limit = amount(&spec.domain.resources.limits, MEMORY);
    if let Some(request) =
        request_for_memory(spec, &spec.domain.resources.requests, limit, overcommit)
    {
        spec.domain.resources.requests.insert(MEMORY.to_owned(), request);
    }
}

/// Returns the CPU request for a number of vCPUs, which is this number divided by the allocation ratio. `KubeVirt`
/// divides floating-point numbers and parses the printed quotient, which may be rounded up by a thousandth of a CPU;
/// this function has the same result.
fn divide_by_ratio(vcpus: u64, ratio: i64) -> Quantity {
    let cpus = vcpus as f64 / ratio as f64;
    let text = if cpus < 1.0 { format!("{}m", cpus * 1000.0) } else { cpus.to_string() };
    text.parse().unwrap_or_default()
}

/// Returns the device plugin resources of the machine's networks if the pod does not request them
/// ([`Launcher::unrequested_resources`](super::Launcher::unrequested_resources)); only hosts with these resources have
/// the networks. KubeVirt does not read the NetworkAttachmentDefinitions then, so an unknown
/// NetworkAttachmentDefinition is not an error.
pub(super) fn unrequested_network_resources(
    machine: &Machine,
    configuration: &Configuration,
    objects: &ClusterObjects,
) -> Vec<String> {
    if configuration.requests_network_resources() {
        return Vec::new();
    }
    network_resources(machine, objects).flatten().flatten().cloned().collect()
}

/// Returns, for each Multus network of the machine, the device plugin resource that its NetworkAttachmentDefinition
/// names, and `None` if it names no resource (`NetworkToResource`). An unknown NetworkAttachmentDefinition is an error.
fn network_resources<'a>(
    machine: &'a Machine,
    objects: &'a ClusterObjects,
) -> impl Iterator<Item = Result<Option<&'a String>, Invalid>> {
    let networks = machine.spec.networks.iter().enumerate();
    networks.filter_map(|(index, network)| {
        let multus = network.multus.as_ref()?;
        let (namespace, name) = split_network_name(&machine.namespace, &multus.network_name);
        let full_name = format!("{namespace}/{name}");
        Some(
            objects
                .networks
                .get(&full_name)
                .map(|it| Some(it).filter(|it| !it.is_empty()))
                .ok_or_else(|| {
                    let field = format!("networks[{index}].multus.networkName");
                    let message = format!("NetworkAttachmentDefinition {full_name} not found");
                    machine.invalid(&field, message)
                }),
        )
    })
}
