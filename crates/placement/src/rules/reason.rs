//! Reasons why a pod cannot be placed on a host, each with a short summary for kube-scheduler and a detailed message.

use std::borrow::Cow;
use std::fmt;

use berth_api::Bytes;

use super::taints::TaintEffect;

/// A reason why a pod cannot be placed on a host. `Display` formats the detailed message, and [`Reason::summary`]
/// returns the string for `FailedNodes` in the response of a scheduler extender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The host does not exist.
    HostNotFound,
    /// The host is cordoned.
    Unschedulable,
    /// The host has a taint that the pod does not tolerate.
    Taint {
        /// The taint's key.
        key: String,
        /// The taint's value; often empty.
        value: String,
        /// The taint's effect.
        effect: TaintEffect,
    },
    /// The host lacks a label that `spec.nodeSelector` requires, or has another value.
    NodeSelector {
        /// The first required label that the host does not match, as `key=value`.
        required: String,
        /// The host's value of this label; `None` if the host does not have the label.
        actual: Option<String>,
    },
    /// The host matches no term of the required node affinity.
    NodeAffinity {
        /// The terms, formatted for messages.
        required: String,
    },
    /// The host already runs the maximum number of pods.
    PodsLimit {
        /// The maximum number of pods, `status.allocatable.pods` of the Node.
        limit: u64,
    },
    /// The free amount of a resource is too small.
    InsufficientResource {
        /// Name of the resource in a Node.
        resource: String,
        /// Amount that the pod requests: thousandths of a CPU, bytes, or a number of devices.
        requested: u64,
        /// Free amount on the host, in the same unit.
        free: u64,
    },
    /// The node affinity of a volume excludes the host.
    VolumeNodeAffinity {
        /// Namespace and name of the PersistentVolumeClaim that is bound to the volume.
        claim: String,
        /// The terms of the volume's node affinity, formatted for messages.
        required: String,
    },
    /// The volume of a claim is being provisioned for another host.
    VolumeSelectedNode {
        /// Namespace and name of the PersistentVolumeClaim.
        claim: String,
        /// Name of the host that kube-scheduler has selected for the volume.
        node: String,
    },
    /// The topologies of a StorageClass exclude the host.
    VolumeTopology {
        /// Name of the StorageClass.
        class: String,
        /// The terms of `allowedTopologies`, formatted for messages.
        required: String,
    },
    /// The storage of a class that the host can use is insufficient for the claims of the pod.
    InsufficientStorage {
        /// Name of the StorageClass.
        class: String,
        /// Name of the host.
        host: String,
        /// Bytes that the pod's claims request.
        requested: u64,
        /// Bytes that are free: the reported storage without the claims of assumed pods, or the size of the largest
        /// volume.
        free: u64,
    },
    /// The host lacks the topology label of a spread constraint.
    MissingTopologyLabel {
        /// The constraint's topology key.
        key: String,
    },
    /// With the pod, the number of matching pods in the host's domain would exceed the smallest number in any domain
    /// by more than `maxSkew`.
    TopologySpread {
        /// The constraint's topology key.
        key: String,
        /// The host's value for the topology key.
        domain: String,
        /// Number of matching pods in the domain.
        pods: i64,
        /// Number of matching pods in the domain that has the fewest matching pods.
        minimum_pods: i64,
        /// The constraint's `maxSkew`.
        max_skew: i64,
    },
    /// The host's domain has no pod that matches a term of the pod's required affinity.
    PodAffinity {
        /// The term's topology key.
        key: String,
        /// The host's value for the topology key, if the host has that label.
        domain: Option<String>,
        /// The label selector of the term, formatted for messages.
        pods: String,
    },
    /// The host's domain has a pod that matches a term of the pod's required anti-affinity.
    PodAntiAffinity {
        /// The term's topology key.
        key: String,
        /// The host's value for the topology key.
        domain: String,
        /// The label selector of the term, formatted for messages.
        pods: String,
    },
    /// The host's domain has an existing pod with a required anti-affinity that selects this pod.
    ExistingAntiAffinity {
        /// The term's topology key.
        key: String,
        /// The host's value for the topology key.
        domain: String,
        /// The label selector of the existing pod's anti-affinity term, formatted for messages.
        pods: String,
    },
}

impl Reason {
    /// Returns the message of kube-scheduler 1.36 for this reason. It is the same for every host.
    #[must_use]
    pub fn summary(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::HostNotFound => "node(s) not found",
            Self::Unschedulable => "node(s) were unschedulable",
            Self::Taint { .. } => "node(s) had untolerated taint(s)",
            Self::NodeSelector { .. } | Self::NodeAffinity { .. } => {
                "node(s) didn't match Pod's node affinity/selector"
            }
            Self::PodsLimit { .. } => "Too many pods",
            Self::InsufficientResource { resource, .. } => {
                return Cow::Owned(format!("Insufficient {resource}"));
            }
            Self::VolumeNodeAffinity { .. } => {
                "node(s) didn't match PersistentVolume's node affinity"
            }
            Self::VolumeSelectedNode { .. } | Self::VolumeTopology { .. } => {
                "node(s) didn't find available persistent volumes to bind"
            }
            Self::InsufficientStorage { .. } => "node(s) did not have enough free storage",
            Self::MissingTopologyLabel { .. } => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Self::TopologySpread { .. } => "node(s) didn't match pod topology spread constraints",
            Self::PodAffinity { .. } => "node(s) didn't match pod affinity rules",
            Self::PodAntiAffinity { .. } => "node(s) didn't match pod anti-affinity rules",
            Self::ExistingAntiAffinity { .. } => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNotFound => f.write_str("the host does not exist"),
            Self::Unschedulable => f.write_str("the host is cordoned"),
            Self::Taint { key, value, effect } if value.is_empty() => {
                write!(f, "taint {key}:{effect} is not tolerated")
            }
            Self::Taint { key, value, effect } => {
                write!(f, "taint {key}={value}:{effect} is not tolerated")
            }
            Self::NodeSelector { required: wanted, actual: Some(found) } => {
                write!(f, "nodeSelector requires {wanted}, but the label's value is {found}")
            }
            Self::NodeSelector { required: wanted, actual: None } => {
                write!(f, "nodeSelector requires {wanted}, but the host lacks this label")
            }
            Self::NodeAffinity { required: wanted } => write!(f, "node affinity requires {wanted}"),
            Self::PodsLimit { limit } => {
                write!(f, "the host already runs its maximum of {limit} pods")
            }
            Self::InsufficientResource { resource, requested: wanted, free }
                if resource == "cpu" =>
            {
                let cpus = |millis: u64| format!("{}.{:03}", millis / 1000, millis % 1000);
                let short =
                    |text: String| text.trim_end_matches('0').trim_end_matches('.').to_owned();
                write!(f, "{} CPUs requested, {} free", short(cpus(*wanted)), short(cpus(*free)))
            }
            Self::InsufficientResource { resource, requested: wanted, free }
                if resource == "memory" || resource.starts_with("hugepages-") =>
            {
                let (wanted, free) = (format_bytes(*wanted), format_bytes(*free));
                write!(f, "{wanted} of {resource} requested, {free} free")
            }
            Self::InsufficientResource { resource, requested: wanted, free } => {
                write!(f, "{wanted} {resource} requested, {free} free")
            }
            Self::VolumeNodeAffinity { claim, required: wanted } => {
                write!(f, "the volume of PersistentVolumeClaim {claim} requires {wanted}")
            }
            Self::VolumeSelectedNode { claim, node } => {
                write!(f, "the volume of PersistentVolumeClaim {claim} is provisioned on {node}")
            }
            Self::VolumeTopology { class, required: wanted } => {
                write!(f, "StorageClass {class} requires {wanted} (allowedTopologies)")
            }
            Self::InsufficientStorage { class, host, requested: wanted, free } => {
                let (wanted, free) = (format_bytes(*wanted), format_bytes(*free));
                write!(
                    f,
                    "no capacity of class {class} on host {host}: {wanted} requested, {free} free"
                )
            }
            Self::MissingTopologyLabel { key } => {
                write!(f, "the host lacks the label {key} of a topology spread constraint")
            }
            Self::TopologySpread { key, domain, pods, minimum_pods: fewest, max_skew } => write!(
                f,
                "topology domain {key}={domain} has {pods} matching pods, the domain with the fewest has {fewest}, and maxSkew is {max_skew}"
            ),
            Self::PodAffinity { key, domain: Some(domain), pods } => {
                write!(f, "topology domain {key}={domain} has no pod that matches {pods}")
            }
            Self::PodAffinity { key, domain: None, pods } => {
                write!(f, "the host lacks the label {key}, which the affinity to {pods} requires")
            }
            Self::PodAntiAffinity { key, domain, pods } => {
                write!(f, "topology domain {key}={domain} has a pod that matches {pods}")
            }
            Self::ExistingAntiAffinity { key, domain, pods } => {
                write!(f, "a pod in topology domain {key}={domain} has an anti-affinity to {pods}")
            }
        }
    }
}

fn format_bytes(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { Bytes(bytes).to_human_readable() }
}
