//! A pod that exists in the cluster, with the data that the prediction of the kubelet's admission needs. Its requests
//! are read from the pod and not calculated from the VM.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_api::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as QuantityText;

use super::amounts;
use super::invalid::Invalid;
use super::network_resources::{attached_networks, with_resources};
use super::spec::Amounts;
use berth_kubelet_admission::pod::{Container, Pod, Resources};

/// A pod that exists in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingPod {
    /// Requests and limits of the pod's containers, and the pod's UID.
    pub pod: Pod,
    /// Bytes of the node's disk that the pod requests (`ephemeral-storage`).
    pub ephemeral_storage: u64,
    /// Field `metadata.namespace`.
    pub namespace: String,
    /// Field `metadata.name`.
    pub name: String,
    /// UID of the VirtualMachineInstance if the pod is a launcher pod, otherwise `None`. While a VM migrates, two
    /// launcher pods have the same UID here.
    pub vmi_uid: Option<String>,
    /// UID of the migration if the pod is the target of a migration, otherwise `None`.
    pub migration_uid: Option<String>,
    /// True for a first-consumer pod, which KubeVirt creates before the launcher pod so that the VM's volumes are
    /// provisioned.
    pub is_first_consumer: bool,
    /// True if the pod is in phase `Succeeded` or `Failed`, so that it uses no resources.
    pub is_terminal: bool,
    /// True if the pod is being deleted.
    pub is_terminating: bool,
    /// NetworkAttachmentDefinitions of a launcher pod's networks, as `namespace/name`, with one entry for each
    /// attachment.
    pub networks: Vec<String>,
    /// Field `spec.nodeName`.
    pub node_name: Option<String>,
    /// Field `status.nominatedNodeName`.
    pub nominated_node_name: Option<String>,
}

impl ExistingPod {
    /// Reads the data from a pod.
    ///
    /// # Errors
    ///
    /// Returns the first malformed quantity, with the path of its container.
    pub fn read(pod: &core::Pod) -> Result<Self, Invalid> {
        let meta = &pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (text(&meta.namespace), text(&meta.name));
        let qualified_name = format!("Pod {namespace}/{name}");
        let spec =
            pod.spec.as_ref().ok_or_else(|| Invalid::new(&qualified_name, "spec", "is missing"))?;
        let status = pod.status.clone().unwrap_or_default();
        let label = |key: &str| {
            meta.labels
                .as_ref()
                .and_then(|labels| labels.get(key))
                .filter(|value| !value.is_empty())
        };
        let is_launcher = label("kubevirt.io").is_some_and(|value| value == "virt-launcher");
        let launcher_label = |key| label(key).filter(|_| is_launcher).cloned();
        let annotation =
            |key: &str| meta.annotations.as_ref().is_some_and(|all| all.contains_key(key));

        let statuses_by_name = |is_init: bool| {
            let statuses =
                if is_init { &status.init_container_statuses } else { &status.container_statuses };
            let statuses = statuses.iter().flatten();
            statuses.map(|one| (one.name.as_str(), one)).collect::<BTreeMap<_, _>>()
        };
        let (mut init_storage, mut storage) = (0, 0u64);
        let mut read_containers = |field: &str, containers: &[core::Container], is_init: bool| {
            let statuses = statuses_by_name(is_init);
            let read = containers.iter().enumerate().map(|(index, container)| {
                let path = format!("spec.{field}[{index}].resources");
                let (mut read, disk) = read_container(&qualified_name, &path, container, is_init)?;
                if let Some(status) = statuses.get(container.name.as_str()) {
                    apply_in_place_resize(&mut read, status);
                }
                if is_init && !read.is_sidecar {
                    init_storage = disk.max(init_storage);
                } else {
                    storage = storage.saturating_add(disk);
                }
                Ok(read)
            });
            read.collect::<Result<Vec<_>, Invalid>>()
        };
        let init_containers = read_containers(
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
            true,
        )?;
        let containers = read_containers("containers", &spec.containers, false)?;
        let overhead = amounts(&qualified_name, "spec.overhead", spec.overhead.as_ref())?;
        let (overhead, runtime_storage) =
            amounts::convert_resources(&overhead).map_err(|error| {
                let field = format!("spec.overhead.{}", error.field);
                Invalid::new(&qualified_name, field, error.problem.to_string())
            })?;
        let mut pod = Pod { uid: kubelet_uid(pod), init_containers, containers, overhead };
        if let Some(resources) = &spec.resources {
            let requests =
                amounts(&qualified_name, "spec.resources.requests", resources.requests.as_ref())?;
            let limits =
                amounts(&qualified_name, "spec.resources.limits", resources.limits.as_ref())?;
            let (pod_resources, _) =
                amounts::convert_container("", requests, &limits).map_err(|error| {
                    let field = format!("spec.resources.{}", error.field);
                    Invalid::new(&qualified_name, field, error.problem.to_string())
                })?;
            apply_pod_level_resources(&mut pod, &pod_resources.requests);
        }
        let phase = status.phase.unwrap_or_default();
        let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            pod,
            ephemeral_storage: storage.max(init_storage).saturating_add(runtime_storage),
            vmi_uid: launcher_label("kubevirt.io/created-by"),
            migration_uid: launcher_label("kubevirt.io/migrationJobUID"),
            is_first_consumer: is_launcher && annotation("kubevirt.io/ephemeral-provisioning"),
            is_terminal: matches!(phase.as_str(), "Succeeded" | "Failed"),
            is_terminating: meta.deletion_timestamp.is_some(),
            networks: match &meta.annotations {
                Some(annotations) if is_launcher => attached_networks(&namespace, annotations),
                _ => Vec::new(),
            },
            node_name: non_empty(&spec.node_name),
            nominated_node_name: non_empty(&status.nominated_node_name),
            namespace,
            name,
        })
    }

    /// Returns the pod as a placement must count it: if the pod does not request the device plugin resources of its
    /// networks, the container `compute` also requests them. `resources_of` returns the resources of a
    /// NetworkAttachmentDefinition, whose `namespace/name` it receives.
    pub fn placement_pod<'r>(&self, resources_of: impl Fn(&str) -> &'r [String]) -> Cow<'_, Pod> {
        let resources = self.networks.iter().flat_map(|name| resources_of(name));
        with_resources(&self.pod, resources.map(String::as_str))
    }
}

/// Returns the UID that the kubelet uses for a pod. For a static pod, this is not the UID of the mirror pod in the API
/// server. The mirror pod has the static pod's UID in an annotation (`kubetypes.ConfigMirrorAnnotationKey`).
#[must_use]
pub fn kubelet_uid(pod: &core::Pod) -> String {
    let annotations = pod.metadata.annotations.as_ref();
    let mirrored = annotations.and_then(|all| all.get("kubernetes.io/config.mirror"));
    mirrored.or(pod.metadata.uid.as_ref()).cloned().unwrap_or_default()
}

/// Applies an in-place resize (KEP-1287) to the requests of a container. The container retains its allocated resources
/// until the kubelet has resized it, which may be never. Until then, kube-scheduler counts the allocated or the desired
/// amount, whichever is larger (`determineContainerReqs`).
fn apply_in_place_resize(container: &mut Container, status: &core::ContainerStatus) {
    let actual = status.resources.as_ref();
    let lists = [status.allocated_resources.as_ref(), actual.and_then(|it| it.requests.as_ref())];
    for (list, name) in
        lists.into_iter().flatten().flat_map(|list| [(list, "cpu"), (list, "memory")])
    {
        let Some(quantity) = list.get(name).and_then(|text| text.0.parse::<Quantity>().ok()) else {
            continue;
        };
        let (requests, limits) = (&mut container.requests, &mut container.limits);
        let (amount, request, limit) = match name {
            "cpu" => {
                (quantity.millis_rounded_up(), &mut requests.cpu_millis, &mut limits.cpu_millis)
            }
            _ => (quantity.whole_units_rounded_up(), &mut requests.memory, &mut limits.memory),
        };
        *request = u64::try_from(amount).unwrap_or_default().max(*request);
        if *limit > 0 {
            *limit = (*limit).max(*request);
        }
    }
}

/// Applies pod-level resources (KEP-2837). The containers share these resources, and the kubelet allocates exclusive
/// CPUs or memory to no container of such a pod (`PodLevelResourceManagers` is off). Therefore the limits are removed,
/// so that the pod does not count as Guaranteed. The part of the pod's requests that exceeds the sum of its containers'
/// requests counts as overhead.
fn apply_pod_level_resources(pod: &mut Pod, pod_requests: &Resources) {
    for container in pod.init_containers.iter_mut().chain(&mut pod.containers) {
        (container.limits.cpu_millis, container.limits.memory) = (0, 0);
    }
    let total_requests = pod.requests();
    let overhead = &mut pod.overhead;
    let add = |sum: &mut u64, own: u64, total: u64| {
        let container_sum = total.saturating_sub(*sum);
        *sum = sum.saturating_add(own.saturating_sub(container_sum));
    };
    add(&mut overhead.cpu_millis, pod_requests.cpu_millis, total_requests.cpu_millis);
    add(&mut overhead.memory, pod_requests.memory, total_requests.memory);
    for (size, bytes) in &pod_requests.hugepages {
        let total = total_requests.hugepages.get(size).copied().unwrap_or_default();
        add(overhead.hugepages.entry(*size).or_default(), *bytes, total);
    }
}

fn read_container(
    qualified_name: &str,
    path: &str,
    container: &core::Container,
    is_init: bool,
) -> Result<(Container, u64), Invalid> {
    let resources = container.resources.as_ref();
    let read = |field: &str, list: Option<&BTreeMap<String, QuantityText>>| {
        amounts(qualified_name, &format!("{path}.{field}"), list)
    };
    let requests = read("requests", resources.and_then(|it| it.requests.as_ref()))?;
    let limits = read("limits", resources.and_then(|it| it.limits.as_ref()))?;
    let (mut read, storage) = amounts::convert_container(&container.name, requests, &limits)
        .map_err(|error| {
            Invalid::new(
                qualified_name,
                format!("{path}.{}", error.field),
                error.problem.to_string(),
            )
        })?;
    read.is_sidecar = is_init && container.restart_policy.as_deref() == Some("Always");
    Ok((read, storage))
}

fn amounts(
    qualified_name: &str,
    field: &str,
    quantities: Option<&BTreeMap<String, QuantityText>>,
) -> Result<Amounts, Invalid> {
    let read = quantities.into_iter().flatten().map(|(name, QuantityText(text))| {
        let quantity: Result<Quantity, _> = text.parse();
        let quantity = quantity.map_err(|error| {
            Invalid::new(qualified_name, format!("{field}.{name}"), error.to_string())
        })?;
        Ok((name.clone(), quantity))
    });
    read.collect()
}
