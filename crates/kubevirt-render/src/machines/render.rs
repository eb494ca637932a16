//! Renders a machine of a MachineDeployment as a KubeVirt VirtualMachine. The result equals that of machine-controller,
//! with additions from KKP's documents. `docs/machines.md` lists the differences.

use std::collections::BTreeMap;

use berth_api::{EvictionStrategy, Problem, names};
use serde_json::{Map, Value, json};

use super::data_volumes::{DataVolumes, render_data_volumes};
use super::deployment::{MACHINE_DEPLOYMENT_KIND, MachineDeployment};
use super::disk_clone::DiskClone;
use super::disks::DefaultedFields;
use super::field_parser::ProblemReporter;
use super::interface_config::InterfaceConfig;
use super::machine_namespace::{MachineNamespace, determine_machine_namespace};
use super::provider::ProviderConfig;
use super::references::ReferenceScope;
use super::render_context::RenderContext;
use super::renderer::{MachineRenderer, RenderOptions};
use super::{additional_interfaces, defaults, labels, network, scheduling, storage, unsupported};
use crate::images::GoldenImageUse;

/// A rendered VirtualMachine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedMachine {
    /// The VirtualMachine.
    pub machine: Value,
    /// Name of the VirtualMachine.
    pub name: String,
    /// Namespace of the VirtualMachine.
    pub namespace: String,
    /// SSH public keys that the caller must add to the user data.
    pub ssh_public_keys: Vec<String>,
    pub operating_system: String,
    /// Interfaces whose Ethernet address is known, for the configuration of the guest. An interface to which Berth
    /// allocates no addresses gets its addresses by DHCP.
    pub interfaces: Vec<InterfaceConfig>,
    /// Interfaces in networks of other tenants, each with the name of the other tenant.
    pub attached_tenants: Vec<(String, String)>,
    /// True if the first interface is in the pod network.
    pub has_pod_network: bool,
    /// Golden images of which the disks are clones. They must exist before the machine is created.
    pub golden_images: Vec<GoldenImageUse>,
    /// Disks that CDI clones from golden images, and the strategies; without disks whose storage class is unknown.
    pub clones: Vec<DiskClone>,
    /// Fields of the hotpluggable disks that have the values of defaults, by the names of the disks.
    pub(super) defaulted_disks: BTreeMap<String, DefaultedFields>,
    /// Problems that do not prevent rendering.
    pub warnings: Vec<Problem>,
    /// True if the VirtualMachine contains values from Secrets. Messages must then not quote the VirtualMachine.
    pub has_secrets: bool,
}

/// Renders a machine.
///
/// Returns all problems that prevent rendering.
pub fn render_machine(
    deployment: &MachineDeployment,
    context: &RenderContext,
    options: &RenderOptions,
) -> Result<RenderedMachine, Vec<Problem>> {
    let (machine_namespace, problem) = match determine_machine_namespace(deployment, context) {
        Ok(machine_namespace) => (machine_namespace, None),
        // To report all problems at once, the other fields are validated as those of a MachineDeployment without a
        // tenant.
        Err(problem) => {
            let namespace = deployment.metadata.namespace.clone();
            (MachineNamespace { tenant: None, namespace }, Some(problem))
        }
    };
    let tenant = machine_namespace.tenant;
    let namespace = options.namespace.clone().unwrap_or(machine_namespace.namespace);
    let reporter = ProblemReporter {
        object: deployment.qualified_name(),
        resolver: context,
        scope: ReferenceScope::for_tenant(
            &[&deployment.metadata.namespace, &namespace],
            tenant,
            &context.config,
        ),
        has_secrets: false.into(),
        problems: problem.into_iter().collect::<Vec<_>>().into(),
    };
    let value = deployment.spec.template.spec.provider_spec.value.clone();
    if value.is_none() {
        reporter.report_error("spec.template.spec.providerSpec.value", "", "is missing");
        return Err(reporter.problems.into_inner());
    }
    let mut provider = ProviderConfig::read(value.unwrap_or_default(), &reporter);
    defaults::apply_defaults(&mut provider, tenant, context, &namespace, &reporter);
    let name = options
        .machine_name
        .clone()
        .unwrap_or_else(|| format!("{}-{}-xxxxx", deployment.metadata.name, deployment.revision()));
    check_names(&name, deployment, &reporter);
    unsupported::report_unsupported(deployment, &reporter);
    let renderer = MachineRenderer {
        deployment,
        provider: &provider,
        tenant,
        context,
        options,
        name,
        namespace,
        reporter: &reporter,
    };
    additional_interfaces::check_networks(&renderer);
    renderer.check_host_devices();
    let (machine, DataVolumes { golden_images, clones, .. }) = renderer.render_vm();
    let interfaces = network::guest_interfaces(&renderer);
    let attached_tenants = network::attached_tenants(&renderer);
    let has_pod_network = network::has_pod_network(&renderer);
    let MachineRenderer { name, namespace, .. } = renderer;
    let has_secrets = reporter.has_secrets.get();
    let problems = reporter.problems.into_inner();
    if problems.iter().any(|problem| problem.is_fatal) {
        return Err(problems);
    }
    let hotpluggable = provider.secondary_disks.iter().filter_map(|disk| disk.hotplug.as_ref());
    let defaulted_disks =
        hotpluggable.map(|disk| (disk.name.clone(), disk.defaulted)).collect::<BTreeMap<_, _>>();
    let ProviderConfig { ssh_public_keys, operating_system, .. } = provider;
    let notes = problems;
    Ok(RenderedMachine {
        machine,
        name,
        namespace,
        ssh_public_keys,
        operating_system,
        interfaces,
        attached_tenants,
        has_pod_network,
        golden_images,
        clones,
        defaulted_disks,
        warnings: notes,
        has_secrets,
    })
}

impl MachineRenderer<'_> {
    /// Returns the VirtualMachine, and its DataVolumes, which the VirtualMachine also contains.
    fn render_vm(&self) -> (Value, DataVolumes) {
        let ProviderConfig { dns_policy, dns_config, .. } = self.provider;
        let labels = self.render_labels();
        let (annotations, disk_annotations) = self.render_annotations();
        let mut spec = json!({
            "affinity": scheduling::render_affinity(self),
            "domain": {"devices": {
                "disks": storage::render_disks(self),
                "interfaces": network::render_interfaces(self),
                "networkInterfaceMultiqueue": self.provider.has_multiqueue.unwrap_or(true),
            }},
            "networks": network::render_networks(self),
            "terminationGracePeriodSeconds": 30,
            "topologySpreadConstraints": scheduling::render_spread_constraints(self),
            "volumes": storage::render_volumes(self),
            "evictionStrategy":
                self.provider.eviction_strategy.unwrap_or(EvictionStrategy::External.as_str()),
        });
        for (field, devices) in self.render_host_devices() {
            spec["domain"]["devices"][field] = devices;
        }
        self.add_size(&mut spec);
        let mut add = |field: &str, value: Option<Value>| {
            if let Some(value) = value {
                spec[field] = value;
            }
        };
        add("dnsPolicy", dns_policy.map(Value::from));
        add("dnsConfig", dns_config.clone());
        for (field, value) in scheduling::render_placement_fields(self) {
            add(field, value);
        }
        self.check_vectors(&spec);
        // A VM in a kube-ovn subnet keeps its address, so KubeVirt starts the VM again after it stops. Other VMs are
        // replaced.
        let strategy = if self.provider.subnet.is_empty() { "Once" } else { "Always" };
        let volumes = render_data_volumes(self, disk_annotations);
        let mut machine = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": labels},
            "spec": {
                "dataVolumeTemplates": volumes.templates,
                "runStrategy": strategy,
                "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
            },
        });
        for golden in &volumes.golden_images {
            let label = format!("{}{}", names::CLONED_FROM_LABEL_PREFIX, golden.image.name());
            machine["metadata"]["labels"][label.as_str()] = "true".into();
        }
        let ProviderConfig { instancetype, preference, .. } = self.provider;
        for (field, value) in [("instancetype", instancetype), ("preference", preference)] {
            if let Some(value) = value {
                machine["spec"][field] = value.clone();
            }
        }
        (machine, volumes)
    }

    /// Returns the labels of the VirtualMachine and of its template. If several sources set a label, the source that is
    /// inserted last takes precedence.
    fn render_labels(&self) -> BTreeMap<String, String> {
        let ProviderConfig { cluster_name, project_id, flavor, .. } = self.provider;
        let mut labels = storage::topology_labels(self);
        let template_labels = &self.deployment.spec.template.metadata.labels;
        let role = labels::machine_role(template_labels).unwrap_or_else(|value| {
            let field = format!("spec.template.metadata.labels[{}]", names::ROLE_LABEL);
            let message = "must be control-plane or worker; the machines are workers";
            self.reporter.report_warning(&field, value, message);
            names::WORKER_ROLE
        });
        for (key, value) in template_labels.iter().filter(|(key, _)| *key != names::ROLE_LABEL) {
            if labels::is_label_permitted(key, value) {
                labels.insert(key.clone(), value.clone());
            } else {
                let message =
                    "is ignored: controllers and NetworkPolicies use labels of this domain";
                self.reporter.report_warning("spec.template.metadata.labels", key, message);
            }
        }
        let mut add = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
        add("kubevirt.io/vm", &self.name);
        add("md", &self.deployment.metadata.name);
        add("cluster.x-k8s.io/cluster-name", cluster_name);
        add(names::ROLE_LABEL, role);
        add("kubermatic.k8c.io/project-id", project_id);
        add("kubermatic.k8c.io/cluster-id", cluster_name);
        if !flavor.is_empty() {
            add("kubevirt.io/flavor", flavor);
        }
        labels
    }

    /// Returns the annotations of the VirtualMachine's template, and those of the first disk's DataVolume.
    fn render_annotations(&self) -> (Map<String, Value>, Map<String, Value>) {
        let mut annotations = Map::new();
        let mut add = |key: &str, value: &str| annotations.insert(key.to_owned(), value.into());
        if self.provider.operating_system == "flatcar" {
            // Flatcar gets its Ignition data from an annotation, because a volume of the type cloudInitNoCloud would be
            // read too late (kubevirt/kubevirt issue 16901).
            add("kubevirt.io/placePCIDevicesOnRootComplex", "true");
            match &self.options.user_data {
                Some(data) => {
                    self.reporter.has_secrets.set(true);
                    drop(add("kubevirt.io/ignitiondata", data));
                }
                None => self.reporter.report_warning(
                    "spec.template.spec.providerSpec.value.operatingSystem",
                    "flatcar",
                    "requires the user data in an annotation, which is not set because the user data are unknown outside a cluster",
                ),
            }
        }
        add("kubevirt.io/allow-pod-bridge-network-live-migration", "true");
        add("ovn.kubernetes.io/allow_live_migration", "true");
        if !self.provider.subnet.is_empty() {
            add("ovn.kubernetes.io/logical_switch", &self.provider.subnet);
        }
        let mut disk_annotations = Map::new();
        let prefixes = &self.context.config.annotation_prefixes;
        for (key, value) in &self.deployment.spec.template.metadata.annotations {
            // The machine needs no copy of the lists of addresses, because the reconciler allocates them.
            if key == names::ADDRESSES_ANNOTATION || key.starts_with(names::ADDRESSES_PREFIX) {
                continue;
            }
            if !labels::is_annotation_permitted(key, prefixes) {
                let message =
                    "is ignored: no prefix in InfraConfig's spec.annotationPrefixes matches";
                self.reporter.report_warning("spec.template.metadata.annotations", key, message);
                continue;
            }
            let target = if key.starts_with("cdi.kubevirt.io") {
                &mut disk_annotations
            } else {
                &mut annotations
            };
            target.insert(key.clone(), value.as_str().into());
        }
        (annotations, disk_annotations)
    }

    fn add_size(&self, spec: &mut Value) {
        let ProviderConfig { instancetype, vcpus, cpus, memory, .. } = self.provider;
        if instancetype.is_some() {
            return;
        }
        let mut amounts = json!({"memory": &**memory});
        if *vcpus == 0 {
            amounts["cpu"] = (**cpus).into();
        } else {
            spec["domain"]["cpu"] = json!({"cores": vcpus});
        }
        spec["domain"]["resources"] = json!({"requests": amounts, "limits": amounts});
    }
}

/// Checks that the names are valid label values: the label `kubevirt.io/vm` contains the machine's name, and the label
/// `md` contains the MachineDeployment's name.
fn check_names(name: &str, deployment: &MachineDeployment, reporter: &ProblemReporter<'_>) {
    let is_valid = |name: &str| {
        let inner =
            name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'));
        let ends = [name.bytes().next(), name.bytes().next_back()];
        inner && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
    };
    for (field, name, described_kind) in [
        ("metadata.name", &deployment.metadata.name, MACHINE_DEPLOYMENT_KIND),
        ("metadata.name", &name.to_owned(), "machine"),
    ] {
        if name.len() > 63 {
            let message = format!(
                "has {} characters: the name of a {described_kind} is also a label value of at most 63 characters",
                name.len()
            );
            reporter.report_error(field, name, message);
        } else if !is_valid(name) {
            let message = format!(
                "is not a valid name of a {described_kind}: use lowercase letters, digits, '-' and '.'"
            );
            reporter.report_error(field, name, message);
        }
    }
}
