//! A pod of the cluster, with what the sidecar looks at beside what it asks for.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use berth_api::names::SCHEDULER;
use berth_kubevirt_render::launcher::{Existing, Invalid};

/// A pod as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What it asks for, where it is, and which VM it is of.
    pub existing: Existing,
    /// Whether it is placed here.
    pub is_ours: bool,
    /// Its volumes' claims, in its namespace.
    pub claims: Vec<String>,
    /// Whether the scheduler has said that it fits nowhere.
    pub is_refused: bool,
    /// Whether its kubelet has refused it.
    pub kubelet: Option<KubeletRefusal>,
    /// The same as long as nothing has changed that rules of other pods read, nor what its containers ask for.
    pub(super) stamp: u64,
}

/// Why a kubelet refused a pod that had been bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KubeletRefusal {
    /// No zone, or no set of zones, that all managers agree on.
    TopologyAffinity,
    /// It does not get whole cores.
    SmtAlignment,
    /// A manager could not give what it had promised.
    UnexpectedAdmission,
    /// More than the Node has.
    OutOfResource,
    /// The Node's labels do not suit it.
    NodeAffinity,
}

impl KubeletRefusal {
    /// Each.
    pub const ALL: [Self; 5] = [
        Self::TopologyAffinity,
        Self::SmtAlignment,
        Self::UnexpectedAdmission,
        Self::OutOfResource,
        Self::NodeAffinity,
    ];

    /// By `status.reason` of a pod that has failed (pkg/kubelet/lifecycle, pkg/kubelet/cm).
    fn of(reason: &str) -> Option<Self> {
        Some(match reason {
            "TopologyAffinityError" => Self::TopologyAffinity,
            "SMTAlignmentError" => Self::SmtAlignment,
            "UnexpectedAdmissionError" => Self::UnexpectedAdmission,
            "NodeAffinity" => Self::NodeAffinity,
            other if other.to_ascii_lowercase().starts_with("outof") => Self::OutOfResource,
            _ => return None,
        })
    }

    /// As metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TopologyAffinity => "topology_affinity",
            Self::SmtAlignment => "smt_alignment",
            Self::UnexpectedAdmission => "unexpected_admission",
            Self::OutOfResource => "out_of_resource",
            Self::NodeAffinity => "node_affinity",
        }
    }
}

impl Seen {
    /// Reads a pod.
    ///
    /// # Errors
    /// Names the amount that is malformed.
    pub fn read(pod: &v1::Pod) -> Result<Self, Invalid> {
        let mut existing = Existing::read(pod)?;
        if !is_of_instance(pod, existing.vmi_uid.as_deref()) {
            existing.vmi_uid = None;
            existing.migration_uid = None;
            existing.is_stand_in = false;
        }
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let claims = volumes.iter().filter_map(|volume| {
            let named = volume.persistent_volume_claim.as_ref().map(|one| one.claim_name.clone());
            // What the ephemeral volume controller calls the claim that it makes.
            let own = volume.ephemeral.as_ref();
            named.or_else(|| own.map(|_| format!("{}-{}", existing.name, volume.name)))
        });
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let failed = status.filter(|status| status.phase.as_deref() == Some("Failed"));
        let mut stamp = DefaultHasher::new();
        (&pod.metadata.labels, pod.metadata.deletion_timestamp.is_some()).hash(&mut stamp);
        let own = &existing.pod;
        for container in own.init_containers.iter().chain(&own.containers) {
            (&container.requests, &container.limits).hash(&mut stamp);
        }
        Ok(Self {
            is_ours: scheduler == Some(SCHEDULER),
            claims: claims.collect(),
            is_refused: conditions.iter().any(|one| {
                one.type_ == "PodScheduled"
                    && one.status == "False"
                    && one.reason.as_deref() != Some("SchedulingGated")
            }),
            kubelet: failed.and_then(|status| {
                KubeletRefusal::of(status.reason.as_deref().unwrap_or_default())
            }),
            stamp: stamp.finish(),
            existing,
        })
    }

    /// The pod's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.existing.pod.uid
    }

    /// `Pod namespace/name`.
    #[must_use]
    pub fn called(&self) -> String {
        format!("Pod {}/{}", self.existing.namespace, self.existing.name)
    }
}

/// Returns whether the VirtualMachineInstance that the label names also owns the pod: virt-controller sets both
/// (`renderLaunchManifest`), and every user who can create pods can set a label.
fn is_of_instance(pod: &v1::Pod, uid: Option<&str>) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let is_instance = |owner: &OwnerReference| {
        owner.kind == "VirtualMachineInstance" && owner.api_version.starts_with("kubevirt.io/")
    };
    uid.is_some_and(|uid| owners.iter().any(|owner| is_instance(owner) && owner.uid == uid))
}
