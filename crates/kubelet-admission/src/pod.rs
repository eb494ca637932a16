//! The data of a pod that the kubelet's admission and the scheduler's resource rules read: the requests and limits of
//! its containers, in order.

use std::collections::BTreeMap;

use berth_api::PageSize;

/// A pod's containers with their requests and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Field `metadata.uid`.
    pub uid: String,
    /// Init containers in the order in which they start. Sidecars are included.
    pub init_containers: Vec<Container>,
    /// Containers that are not init containers.
    pub containers: Vec<Container>,
    /// `spec.overhead`, which the API server sets from the pod's runtime class.
    pub overhead: Resources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name of the container, which is unique in the pod.
    pub name: String,
    /// True for an init container with `restartPolicy: Always` (KEP-753), which runs until the end of the pod.
    pub is_sidecar: bool,
    /// Field `resources.requests`.
    pub requests: Resources,
    /// Field `resources.limits`.
    pub limits: Resources,
}

/// Amounts of resources. A resource that is not listed has the amount zero, because Kubernetes does not distinguish
/// this amount from an absent resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// CPU in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Memory in bytes, without huge pages.
    pub memory: u64,
    /// Bytes of huge pages by page size.
    pub hugepages: BTreeMap<PageSize, u64>,
    /// Numbers of devices and other extended resources by name.
    pub extended: BTreeMap<String, u64>,
}

/// Name of the resource that the pod of a VM requests if the VM uses KVM instead of emulation.
const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";

/// Properties of a VM's guest that the VM's pod does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Memory of the guest in bytes.
    pub memory: u64,
    /// True if the guest's CPUs are exclusive CPUs of the host (dedicated CPU placement).
    pub is_dedicated: bool,
    /// True if the guest has a NUMA zone for each host zone that contains its CPUs (`guestMappingPassthrough`). The
    /// guest's memory is then split evenly over these host zones.
    pub has_numa_passthrough: bool,
}

impl Pod {
    /// Returns true if no container requests `/dev/kvm`, so that the pod's VM runs with emulation (KubeVirt's
    /// `useEmulation`).
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        !self.containers.iter().any(|one| one.requests.extended.contains_key(KVM_RESOURCE))
    }

    /// Returns true if at least one container gets exclusive CPUs under the CPU Manager's policy `static`, because the
    /// pod is Guaranteed and the container's CPU request is an integer.
    #[must_use]
    pub fn has_exclusive_cpus(&self) -> bool {
        let whole = |millis: u64| millis > 0 && millis.is_multiple_of(1000);
        self.is_guaranteed() && self.containers.iter().any(|one| whole(one.requests.cpu_millis))
    }

    /// Returns true if the pod has the QoS class Guaranteed (`ComputePodQOS` of apis/core/v1/helper/qos/qos.go):
    /// every container has limits of CPU and memory, and for both resources the sums of requests and limits are
    /// equal.
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

    /// Returns the requests of the whole pod as kube-scheduler computes them (`PodRequests`): sidecars run at the same
    /// time as later init containers and as the other containers (KEP-753).
    #[must_use]
    pub fn requests(&self) -> Resources {
        let mut sum = Resources::default();
        for container in &self.containers {
            sum.combine(&container.requests, u64::saturating_add);
        }
        let (mut sidecars, mut init_max) = (Resources::default(), Resources::default());
        for container in &self.init_containers {
            let own = &container.requests;
            let mut concurrent = sidecars.clone();
            concurrent.combine(own, u64::saturating_add);
            if container.is_sidecar {
                sum.combine(own, u64::saturating_add);
                sidecars = concurrent.clone();
            }
            init_max.combine(&concurrent, u64::max);
        }
        sum.combine(&init_max, u64::max);
        sum.combine(&self.overhead, u64::saturating_add);
        sum
    }
}

impl Resources {
    fn combine(&mut self, other: &Self, operation: fn(u64, u64) -> u64) {
        self.cpu_millis = operation(self.cpu_millis, other.cpu_millis);
        self.memory = operation(self.memory, other.memory);
        for (size, bytes) in &other.hugepages {
            let own = self.hugepages.entry(*size).or_default();
            *own = operation(*own, *bytes);
        }
        for (name, count) in &other.extended {
            let own = self.extended.entry(name.clone()).or_default();
            *own = operation(*own, *count);
        }
    }
}
