//! A pod as a kubelet's admission and the scheduler's resource rules see it: what its containers ask for, in order.

use std::collections::BTreeMap;

use berth_api::PageSize;

/// What the containers of one pod ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: String,
    /// Init containers, in the order in which they start; sidecars among them.
    pub init_containers: Vec<Container>,
    /// Containers that run as long as the pod does.
    pub containers: Vec<Container>,
    /// `spec.overhead` of its runtime class.
    pub overhead: Resources,
}

/// One container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Unique in its pod.
    pub name: String,
    /// An init container with `restartPolicy: Always` (KEP-753): it goes on running beside the others.
    pub is_sidecar: bool,
    /// What is set aside for it.
    pub requests: Resources,
    /// What it may use at most.
    pub limits: Resources,
}

/// Amounts of what a host has; what is not named is zero, which for Kubernetes is the same as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Bytes, without huge pages.
    pub memory: u64,
    /// Bytes of huge pages by their size.
    pub hugepages: BTreeMap<PageSize, u64>,
    /// Whole devices and other extended resources by their name.
    pub extended: BTreeMap<String, u64>,
}

/// What KubeVirt has a VM ask for that is not emulated.
const KVM: &str = "devices.kubevirt.io/kvm";

/// What is known of the guest of a VM, and not from its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its memory in bytes.
    pub memory: u64,
    /// Whether its CPUs are CPUs of the host.
    pub is_dedicated: bool,
    /// Whether its zones follow the host's (`guestMappingPassthrough`): its memory is split evenly over them.
    pub is_mapped: bool,
}

impl Pod {
    /// Whether the VM in it runs without `/dev/kvm`, as `KubeVirt`'s `useEmulation` has it: it asks for no such device.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        !self.containers.iter().any(|one| one.requests.extended.contains_key(KVM))
    }

    /// Whether a container has CPUs for itself under the static policy: it asks for whole ones, and all is guaranteed.
    #[must_use]
    pub fn has_own_cpus(&self) -> bool {
        let whole = |millis: u64| millis > 0 && millis.is_multiple_of(1000);
        self.is_guaranteed() && self.containers.iter().any(|one| whole(one.requests.cpu_millis))
    }

    /// `ComputePodQOS` (apis/core/v1/helper/qos/qos.go): every container has limits of CPU and memory, and the sums of
    /// requests and limits are equal.
    #[must_use]
    pub fn is_guaranteed(&self) -> bool {
        let mut sums = [0u64; 4];
        for container in self.init_containers.iter().chain(&self.containers) {
            let (requests, limits) = (&container.requests, &container.limits);
            if limits.cpu_millis == 0 || limits.memory == 0 {
                return false;
            }
            let own = [requests.cpu_millis, limits.cpu_millis, requests.memory, limits.memory];
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.saturating_add(own));
        }
        let [cpu, cpu_limit, memory, memory_limit] = sums;
        cpu > 0 && memory > 0 && cpu == cpu_limit && memory == memory_limit
    }

    /// What the scheduler counts for it (`PodRequests`): sidecars run beside the init containers after them and beside the
    /// containers (KEP-753).
    #[must_use]
    pub fn requests(&self) -> Resources {
        let mut sum = Resources::default();
        for container in &self.containers {
            sum.combine(&container.requests, u64::saturating_add);
        }
        let (mut sidecars, mut most) = (Resources::default(), Resources::default());
        for container in &self.init_containers {
            let own = &container.requests;
            let mut now = sidecars.clone();
            now.combine(own, u64::saturating_add);
            if container.is_sidecar {
                sum.combine(own, u64::saturating_add);
                sidecars = now.clone();
            }
            most.combine(&now, u64::max);
        }
        sum.combine(&most, u64::max);
        sum.combine(&self.overhead, u64::saturating_add);
        sum
    }
}

impl Resources {
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.cpu_millis = with(self.cpu_millis, other.cpu_millis);
        self.memory = with(self.memory, other.memory);
        for (size, bytes) in &other.hugepages {
            let own = self.hugepages.entry(*size).or_default();
            *own = with(*own, *bytes);
        }
        for (name, count) in &other.extended {
            let own = self.extended.entry(name.clone()).or_default();
            *own = with(*own, *count);
        }
    }
}
