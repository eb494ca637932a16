//! The configuration of `KubeVirt` in a cluster, as far as launcher pods depend on it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::invalid::{self, Invalid};
use super::spec::{Amounts, Named, Requirements};
use super::version::Version;

/// `KubeVirt`'s release and configuration. [`Default`] returns the default configuration of the newest known release.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The KubeVirt release that runs in the cluster.
    pub version: Version,
    /// Number of vCPUs for each CPU that the pod requests, for VMs without dedicated CPUs. If the value is not
    /// positive, no CPU is requested.
    pub cpu_allocation_ratio: i64,
    /// Guest memory in percent of the memory that the pod requests for the guest; at least 1. With 200, the pod
    /// requests half of the guest's memory.
    pub memory_overcommit: u32,
    /// Factor by which the memory overhead is multiplied; `None` means 1.
    pub overhead_ratio: Option<f64>,
    /// Names of the enabled feature gates.
    pub feature_gates: BTreeSet<String>,
    /// Names of the disabled feature gates.
    pub disabled_feature_gates: BTreeSet<String>,
    /// Node selector that every launcher pod gets.
    pub node_selectors: BTreeMap<String, String>,
    /// True if VMs run with emulation instead of `/dev/kvm`.
    pub use_emulation: bool,
    /// Requests and limits of support containers by container type: `guest-console-log`, `sidecar`, `container-disk`,
    /// `virtiofs`.
    pub support_containers: BTreeMap<String, SupportContainerResources>,
    /// True if a guest's serial console is logged only for VMs that request this.
    pub serial_console_log_disabled: bool,
    /// Machine type of VMs that set no machine type; `None` if it depends on the architecture (`machine_types`).
    pub machine_type: Option<String>,
    /// By architecture, the machine type of VMs that set no machine type. Used only if `machine_type` is `None`.
    pub machine_types: BTreeMap<String, String>,
    /// Architecture of VMs that set no architecture.
    pub architecture: String,
    /// CPU model of VMs that set no CPU model, except on arm64; `None` means `host-model`.
    pub cpu_model: Option<String>,
    /// CPU request of VMs that set no CPU request; `None` if the request is calculated from `cpu_allocation_ratio`.
    pub cpu_request: Option<Quantity>,
    /// Runtime class of launcher pods; `None` for the default of the container runtime.
    pub runtime_class: Option<String>,
    /// Name of the hypervisor, such as `hyperv-direct`; `None` for KVM. Used only with the feature gate
    /// `ConfigurableHypervisor`.
    pub hypervisor: Option<String>,
    /// Network binding plugins, by name.
    pub bindings: BTreeMap<String, Binding>,
    /// Selects the namespaces in which pods get CPU limits even without a ResourceQuota.
    pub cpu_limit_namespaces: Option<LabelSelector>,
    /// TSC frequency in Hz for guests that need a fixed TSC frequency; `None` means the lowest frequency in the
    /// cluster.
    pub tsc_frequency: Option<u64>,
    /// True if a VM with dedicated CPUs and an emulator thread gets an even number of CPUs. The `KubeVirt` object has
    /// an annotation for this, which takes effect only with the feature gate `AlignCPUs`.
    pub even_parity: bool,
}

/// Configured requests and limits of a support container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupportContainerResources {
    /// Requests that override `KubeVirt`'s default requests.
    pub requests: BTreeMap<String, Quantity>,
    /// Limits that override `KubeVirt`'s default limits.
    pub limits: BTreeMap<String, Quantity>,
}

/// A network binding plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// True if the plugin runs in a sidecar.
    pub has_sidecar: bool,
    /// Memory that the plugin adds to the container `compute`.
    pub memory: Quantity,
    /// NetworkAttachmentDefinition of the plugin's CNI plugin, as `name` or `namespace/name`; empty if there is none.
    pub network_attachment_definition: String,
}

/// Annotation that requests an even number of CPUs (`even_parity`): on a VirtualMachineInstance, or on the `KubeVirt`
/// object for all instances.
pub(super) const EVEN_PARITY_ANNOTATION: &str =
    "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";

impl Default for Configuration {
    fn default() -> Self {
        let machines = [("amd64", "q35"), ("arm64", "virt"), ("s390x", "s390-ccw-virtio")];
        Self {
            version: Version::NEWEST,
            cpu_allocation_ratio: 10,
            memory_overcommit: 100,
            overhead_ratio: None,
            feature_gates: BTreeSet::new(),
            disabled_feature_gates: BTreeSet::new(),
            node_selectors: BTreeMap::new(),
            use_emulation: false,
            support_containers: BTreeMap::new(),
            serial_console_log_disabled: false,
            machine_type: None,
            machine_types: machines.map(|(a, m)| (a.to_owned(), m.to_owned())).into(),
            architecture: "amd64".to_owned(),
            cpu_model: None,
            cpu_request: None,
            runtime_class: None,
            hypervisor: None,
            bindings: BTreeMap::new(),
            cpu_limit_namespaces: None,
            tsc_frequency: None,
            even_parity: false,
        }
    }
}

impl Configuration {
    /// Returns the configured limit of a support container for a resource if `is_limit` is true, otherwise the
    /// configured request; `None` if it is absent or zero.
    pub(super) fn support_container_amount(
        &self,
        container: &str,
        is_limit: bool,
        resource: &str,
    ) -> Option<Quantity> {
        let support = self.support_containers.get(container)?;
        let amounts = if is_limit { &support.limits } else { &support.requests };
        amounts.get(resource).copied().filter(|amount| !amount.is_zero())
    }

    /// Parses a `KubeVirt` object (`kubevirt.io/v1`).
    ///
    /// The release is the observed release in the object's status, or [`Version::NEWEST`] if the status names no
    /// release.
    ///
    /// # Errors
    ///
    /// Returns the first field that is malformed or out of range.
    pub fn from_kubevirt(object: &Value) -> Result<Self, Invalid> {
        let kubevirt: KubeVirt = invalid::deserialize(object)?;
        let invalid_field = |field: &str, message: String| {
            Invalid::new(invalid::qualified_name(object), field, message)
        };
        let mut this = Self::default();
        let status = kubevirt.status;
        let versions = [
            ("status.observedKubeVirtVersion", status.observed_kube_virt_version),
            ("status.targetKubeVirtVersion", status.target_kube_virt_version),
        ];
        if let Some((field, text)) = versions.into_iter().find(|(_, text)| !text.is_empty()) {
            this.version =
                text.parse().map_err(|error| invalid_field(field, format!("{error}")))?;
        }
        let configuration = kubevirt.spec.configuration;
        let developer = configuration.developer_configuration;
        // 0 means that the field is absent, so the default applies: the API omits fields with the value 0.
        if developer.cpu_allocation_ratio != 0 {
            this.cpu_allocation_ratio = developer.cpu_allocation_ratio;
        }
        if developer.memory_overcommit != 0 {
            this.memory_overcommit = u32::try_from(developer.memory_overcommit).map_err(|_| {
                let value = developer.memory_overcommit;
                invalid_field(
                    "spec.configuration.developerConfiguration.memoryOvercommit",
                    format!("`{value}` must be a percentage of at least 1"),
                )
            })?;
        }
        if let Some(text) =
            configuration.additional_guest_memory_overhead_ratio.filter(|t| !t.is_empty())
        {
            let ratio = text.parse().ok().filter(|ratio: &f64| (0.0..=1e6).contains(ratio));
            let field = "spec.configuration.additionalGuestMemoryOverheadRatio";
            let message =
                || invalid_field(field, format!("`{text}` must be a number from 0 to 1000000"));
            this.overhead_ratio = Some(ratio.ok_or_else(message)?);
        }
        this.feature_gates = developer.feature_gates;
        this.disabled_feature_gates = developer.disabled_feature_gates;
        this.node_selectors = developer.node_selectors;
        this.use_emulation = developer.use_emulation;
        this.tsc_frequency = developer.minimum_cluster_tsc_frequency;
        for container in configuration.support_container_resources {
            let Requirements { requests, limits, .. } = container.resources;
            // If several entries configure the same container type and resource, the first entry takes precedence, as
            // in `GetSupportContainerRequest`.
            let support = this.support_containers.entry(container.kind).or_default();
            for (into, from) in [(&mut support.requests, requests), (&mut support.limits, limits)] {
                for (name, amount) in from.into_iter().filter(|(_, amount)| !amount.is_zero()) {
                    into.entry(name).or_insert(amount);
                }
            }
        }
        let options = configuration.virtual_machine_options;
        this.serial_console_log_disabled = options.disable_serial_console_log.is_some();
        this.machine_type = Some(configuration.machine_type).filter(|text| !text.is_empty());
        let architectures = configuration.architecture_configuration;
        // KubeVirt reads this setting only from the status (`setConfigFromKubeVirt`), to which virt-operator copies it
        // from the spec.
        let architecture = [status.default_architecture, architectures.default_architecture];
        if let Some(architecture) = architecture.into_iter().find(|text| !text.is_empty()) {
            this.architecture = architecture;
        }
        for (name, it) in [
            ("amd64", architectures.amd64),
            ("arm64", architectures.arm64),
            ("s390x", architectures.s390x),
        ] {
            if !it.machine_type.is_empty() {
                this.machine_types.insert(name.to_owned(), it.machine_type);
            }
        }
        this.cpu_model = Some(configuration.cpu_model).filter(|text| !text.is_empty());
        // KubeVirt ignores 100m, the default of this field, and calculates the request from the allocation ratio
        // instead (`setDefaultResourceRequests`).
        let is_default_request = |amount: &Quantity| amount.millis_rounded_up() == 100;
        this.cpu_request = configuration.cpu_request.filter(|amount| !is_default_request(amount));
        this.runtime_class =
            Some(configuration.default_runtime_class).filter(|text| !text.is_empty());
        // KubeVirt uses only the first hypervisor (`GetHypervisorFromKvConfig`).
        this.hypervisor = configuration.hypervisors.into_iter().next().map(|it| it.name);
        this.bindings =
            configuration.network.binding.into_iter().map(|(name, it)| (name, it.into())).collect();
        this.cpu_limit_namespaces = configuration.auto_cpu_limit_namespace_label_selector;
        this.even_parity = kubevirt.metadata.annotations.contains_key(EVEN_PARITY_ANNOTATION);
        Ok(this)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KubeVirt {
    metadata: Metadata,
    spec: KubeVirtSpec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_kube_virt_version: String,
    target_kube_virt_version: String,
    default_architecture: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KubeVirtSpec {
    configuration: ConfigurationSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConfigurationSpec {
    developer_configuration: Developer,
    additional_guest_memory_overhead_ratio: Option<String>,
    support_container_resources: Vec<SupportContainer>,
    virtual_machine_options: Options,
    machine_type: String,
    architecture_configuration: Architectures,
    cpu_model: String,
    cpu_request: Option<Quantity>,
    default_runtime_class: String,
    hypervisors: Vec<Named>,
    network: Network,
    #[serde(rename = "autoCPULimitNamespaceLabelSelector")]
    auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Developer {
    cpu_allocation_ratio: i64,
    memory_overcommit: i64,
    feature_gates: BTreeSet<String>,
    disabled_feature_gates: BTreeSet<String>,
    node_selectors: BTreeMap<String, String>,
    use_emulation: bool,
    #[serde(rename = "minimumClusterTSCFrequency")]
    minimum_cluster_tsc_frequency: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SupportContainer {
    #[serde(rename = "type")]
    kind: String,
    resources: Requirements,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    disable_serial_console_log: Option<super::spec::Present>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Architectures {
    default_architecture: String,
    amd64: Architecture,
    arm64: Architecture,
    s390x: Architecture,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Architecture {
    machine_type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    binding: BTreeMap<String, BindingSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingSpec {
    sidecar_image: String,
    network_attachment_definition: String,
    compute_resource_overhead: Overhead,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Overhead {
    requests: Amounts,
}

impl From<BindingSpec> for Binding {
    fn from(spec: BindingSpec) -> Self {
        let memory = super::spec::amount(&spec.compute_resource_overhead.requests, "memory");
        Self {
            has_sidecar: !spec.sidecar_image.is_empty(),
            memory,
            network_attachment_definition: spec.network_attachment_definition,
        }
    }
}
