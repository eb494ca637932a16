//! A pod as the extender observes it through the watch.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_api::names::SCHEDULER_NAME;
use berth_kubevirt_render::launcher::{ExistingPod, Invalid};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Reason of the condition `PodScheduled` of a pod with scheduling gates (`v1.PodReasonSchedulingGated`).
const SCHEDULING_GATED: &str = "SchedulingGated";

/// A pod as the extender observes it through the watch.
#[derive(Clone, Debug, Default)]
pub struct ObservedPod {
    /// Resources, host, and VirtualMachineInstance of the pod.
    pub existing: ExistingPod,
    /// True if `spec.schedulerName` of the pod is Berth's scheduler.
    pub uses_berth_scheduler: bool,
    /// Names of the PersistentVolumeClaims that the pod's volumes use, in the pod's namespace.
    pub claims: Vec<String>,
    /// True if the pod has ResourceClaims (dynamic resource allocation).
    pub has_resource_claims: bool,
    /// True if kube-scheduler has found no host for the pod (condition `PodScheduled`).
    pub is_unschedulable: bool,
    /// Reason why the kubelet has refused the pod; `None` if the kubelet has not refused it.
    pub kubelet_refusal: Option<KubeletRefusal>,
    has_scheduling_gates: bool,
    /// Hash of those fields that affect the placement of this pod and of other pods: labels, networks, container
    /// resources, and whether the pod is terminating.
    pub(super) content_hash: u64,
}

/// Reason why a kubelet refused a pod that was bound to its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KubeletRefusal {
    /// No set of NUMA zones satisfies all resource managers of the kubelet.
    TopologyAffinity,
    /// The static CPU manager would have to split a physical core, which `full-pcpus-only` forbids.
    SmtAlignment,
    /// A resource manager of the kubelet could not allocate the resources although its topology hint was accepted.
    UnexpectedAdmission,
    /// The Node has insufficient free resources (`OutOfcpu`, `OutOfmemory` and others).
    OutOfResource,
    /// The Node's labels do not match the pod's node affinity.
    NodeAffinity,
}

impl KubeletRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::TopologyAffinity,
        Self::SmtAlignment,
        Self::UnexpectedAdmission,
        Self::OutOfResource,
        Self::NodeAffinity,
    ];

    /// Parses `status.reason` of a failed pod (pkg/kubelet/lifecycle, pkg/kubelet/cm); `None` for any other reason.
    fn parse(reason: &str) -> Option<Self> {
        Some(match reason {
            "TopologyAffinityError" => Self::TopologyAffinity,
            "SMTAlignmentError" => Self::SmtAlignment,
            "UnexpectedAdmissionError" => Self::UnexpectedAdmission,
            "NodeAffinity" => Self::NodeAffinity,
            other if other.to_ascii_lowercase().starts_with("outof") => Self::OutOfResource,
            _ => return None,
        })
    }

    /// Returns the value of the metric's label `reason`.
    #[must_use]
    pub const fn metric_label(self) -> &'static str {
        match self {
            Self::TopologyAffinity => "topology_affinity",
            Self::SmtAlignment => "smt_alignment",
            Self::UnexpectedAdmission => "unexpected_admission",
            Self::OutOfResource => "out_of_resource",
            Self::NodeAffinity => "node_affinity",
        }
    }
}

impl ObservedPod {
    /// Parses a pod.
    ///
    /// # Errors
    /// Returns an error if a resource quantity is malformed.
    pub fn read(pod: &v1::Pod) -> Result<Self, Invalid> {
        let mut existing = ExistingPod::read(pod)?;
        if !is_owned_by_instance(pod, existing.vmi_uid.as_deref()) {
            existing.vmi_uid = None;
            existing.migration_uid = None;
            existing.is_first_consumer = false;
            existing.networks.clear();
        }
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let claims = volumes.iter().filter_map(|volume| {
            let named =
                volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
            // For an ephemeral volume, the controller of Kubernetes creates a PersistentVolumeClaim with this name.
            let own = volume.ephemeral.as_ref();
            named.or_else(|| own.map(|_| format!("{}-{}", existing.name, volume.name)))
        });
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let failed = status.filter(|status| status.phase.as_deref() == Some("Failed"));
        let mut hasher = DefaultHasher::new();
        (&pod.metadata.labels, pod.metadata.deletion_timestamp.is_some()).hash(&mut hasher);
        existing.networks.hash(&mut hasher);
        let own = &existing.pod;
        for container in own.init_containers.iter().chain(&own.containers) {
            (&container.requests, &container.limits).hash(&mut hasher);
        }
        Ok(Self {
            uses_berth_scheduler: scheduler == Some(SCHEDULER_NAME),
            claims: claims.collect(),
            has_resource_claims: spec
                .and_then(|spec| spec.resource_claims.as_ref())
                .is_some_and(|claims| !claims.is_empty()),
            is_unschedulable: conditions.iter().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.reason.as_deref() != Some(SCHEDULING_GATED)
            }),
            kubelet_refusal: failed.and_then(|status| {
                KubeletRefusal::parse(status.reason.as_deref().unwrap_or_default())
            }),
            has_scheduling_gates: spec
                .and_then(|spec| spec.scheduling_gates.as_ref())
                .is_some_and(|gates| !gates.is_empty()),
            content_hash: hasher.finish(),
            existing,
        })
    }

    /// Returns true if kube-scheduler may choose a host for the pod. It ignores pods that are terminating or have
    /// scheduling gates. A tenant can create such a pod, and finalizers keep a terminating pod for any time, in which
    /// it does not count in a ResourceQuota.
    pub(super) fn may_be_scheduled(&self) -> bool {
        !self.existing.is_terminating && !self.has_scheduling_gates
    }

    /// Returns the UID of the pod.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.existing.pod.uid
    }

    /// Returns kind, namespace and name for messages: `Pod namespace/name`.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("Pod {}/{}", self.existing.namespace, self.existing.name)
    }
}

/// Returns true if the VirtualMachineInstance with this UID owns the pod. The owner reference is decisive, not
/// KubeVirt's label, because every user who can create pods can set the label.
fn is_owned_by_instance(pod: &v1::Pod, uid: Option<&str>) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let is_instance = |owner: &OwnerReference| {
        owner.kind == "VirtualMachineInstance" && owner.api_version.starts_with("kubevirt.io/")
    };
    uid.is_some_and(|uid| owners.iter().any(|owner| is_instance(owner) && owner.uid == uid))
}
