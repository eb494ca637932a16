//! `spec.template.spec.providerSpec.value`: the configuration of a machine of provider `kubevirt`.
//!
//! The module reads all fields of machine-controller's `RawConfig` (`sdk/cloudprovider/kubevirt/types.go`). It also
//! reads the older flat form of KKP's first proposals, in which all fields are directly in `cloudProviderSpec`.

use std::collections::BTreeMap;

use berth_api::{DnsPolicy, EvictionStrategy};
use k8s_openapi::api::core::v1::PodDNSConfig;
use serde_json::{Value, json};

use super::additional_networks::AdditionalNetworks;
use super::config_var::ConfigVar;
use super::disks::{
    DEFAULT_PULL_METHOD, PRIMARY_DISK_FIELDS, PrimaryDisk, SECONDARY_DISK_FIELDS, SecondaryDisk,
    check_unique_names,
};
use super::field_parser::{ProblemReporter, UnreadFields};
use super::kubeconfig::check_kubeconfig;
use super::requested_devices::RequestedDevices;

/// A parsed providerSpec.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProviderConfig {
    pub(super) ssh_public_keys: Vec<String>,
    pub(super) operating_system: String,
    pub(super) cluster_name: ConfigVar,
    pub(super) project_id: ConfigVar,
    pub(super) flavor: ConfigVar,
    pub(super) instancetype: Option<Value>,
    pub(super) preference: Option<Value>,
    /// `vcpus.cores`: number of the guest's CPUs, for each of which the launcher pod requests only a fraction of a CPU.
    /// 0 if unset.
    pub(super) vcpus: u32,
    /// `cpus`: number of the guest's CPUs, for each of which the launcher pod requests a whole CPU. Not parsed yet.
    pub(super) cpus: ConfigVar,
    pub(super) memory: ConfigVar,
    pub(super) primary_disk: PrimaryDisk,
    pub(super) secondary_disks: Vec<SecondaryDisk>,
    pub(super) host_devices: RequestedDevices,
    pub(super) dns_policy: Option<&'static str>,
    pub(super) dns_config: Option<Value>,
    pub(super) region: String,
    pub(super) zone: String,
    /// Name of a kube-ovn subnet, from `providerNetwork.vpc.subnet.name`.
    pub(super) subnet: String,
    pub(super) has_multiqueue: Option<bool>,
    pub(super) eviction_strategy: Option<&'static str>,
    pub(super) affinity: AffinityPresets,
    pub(super) spread_constraints: Vec<SpreadConstraint>,
    pub(super) node_selector: Option<Value>,
    pub(super) tolerations: Vec<Value>,
    pub(super) additional_networks: AdditionalNetworks,
    /// True if the providerSpec has the older flat form (fields directly in `cloudProviderSpec`, without the object
    /// `virtualMachine`). In this form, the template's label `machine` is the label by
    /// which the machines of a MachineDeployment are selected.
    pub(super) is_flat: bool,
}

/// Type of an affinity preset: required or preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffinityType {
    Soft,
    Hard,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AffinityPresets {
    pub(super) pod_affinity: Option<AffinityType>,
    pub(super) pod_anti_affinity: Option<AffinityType>,
    pub(super) node_affinity: Option<NodeAffinityPreset>,
    pub(super) node_anti_affinity: Option<NodeAffinityPreset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAffinityPreset {
    pub(super) affinity_type: AffinityType,
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpreadConstraint {
    pub(super) max_skew: i32,
    pub(super) topology_key: String,
    pub(super) when_unsatisfiable: String,
}

const PROVIDER_FIELDS: [&str; 9] = [
    "sshPublicKeys",
    "caPublicKey",
    "cloudProvider",
    "cloudProviderSpec",
    "operatingSystem",
    "operatingSystemSpec",
    "network",
    "overwriteCloudConfig",
    "affinity",
];
const FLAT_SPEC_FIELDS: [&str; 13] = [
    "cpus",
    "memory",
    "namespace",
    "pvcSize",
    "sourceURL",
    "storageClassName",
    "dnsPolicy",
    "dnsConfig",
    "kubeconfig",
    "podAffinityPreset",
    "podAntiAffinityPreset",
    "nodeAffinityPreset",
    "nodeAntiAffinityPreset",
];
const CLOUD_SPEC_FIELDS: [&str; 12] = [
    "clusterName",
    "projectID",
    "auth",
    "virtualMachine",
    "affinity",
    "topologySpreadConstraints",
    "nodeSelector",
    "tolerations",
    "additionalNetworks",
    "attachDefaultNetwork",
    "kubeconfig",
    "namespace",
];
const VIRTUAL_MACHINE_FIELDS: [&str; 10] = [
    "flavor",
    "instancetype",
    "preference",
    "template",
    "dnsPolicy",
    "dnsConfig",
    "location",
    "providerNetwork",
    "enableNetworkMultiQueue",
    "evictionStrategy",
];
const TEMPLATE_FIELDS: [&str; 7] =
    ["vcpus", "cpus", "memory", "primaryDisk", "secondaryDisks", "gpus", "hostDevices"];
const AFFINITY_PRESETS: [&str; 4] =
    ["podAffinityPreset", "podAntiAffinityPreset", "nodeAffinityPreset", "nodeAntiAffinityPreset"];

impl ProviderConfig {
    /// Parses a providerSpec. Problems are reported to `reporter`.
    pub(super) fn read(value: Value, reporter: &ProblemReporter<'_>) -> Self {
        let path = "spec.template.spec.providerSpec.value";
        let mut outer = UnreadFields::new(value, path, reporter);
        let mut this =
            Self { ssh_public_keys: outer.read_texts("sshPublicKeys"), ..Self::default() };
        let provider = outer.read_text("cloudProvider");
        if provider != "kubevirt" {
            outer.report_error(
                "cloudProvider",
                &provider,
                "must be `kubevirt`, the only supported provider",
            );
        }
        this.operating_system = outer.read_text("operatingSystem");
        if !outer.has_field("operatingSystemSpec") {
            outer.report_error("operatingSystemSpec", "", "is missing: set the field to `{}`");
        }
        for (ignored, hint) in [
            ("operatingSystemSpec", ": configure the operating system in the user data"),
            ("network", ": configure addresses in the tenant's network or in networkdata"),
            ("overwriteCloudConfig", ": store the user data in a Secret"),
            ("caPublicKey", ": add the key to the user data"),
        ] {
            outer.skip_unsupported(ignored, hint);
        }
        let cloud = outer.read_object("cloudProviderSpec");
        // A KKP document shows `affinity` beside `cloudProviderSpec` instead of in it. Berth accepts both places.
        if outer.has_field("affinity") {
            let has_inner_affinity = cloud.has_field("affinity")
                || AFFINITY_PRESETS.iter().any(|name| cloud.has_field(name));
            let outer_affinity = outer.read_object("affinity");
            this.affinity = AffinityPresets::read(outer_affinity, reporter);
            if has_inner_affinity {
                outer.report_error(
                    "affinity",
                    "",
                    "cannot be set together with cloudProviderSpec.affinity: remove this field",
                );
            }
        }
        outer.report_unknown_fields(&PROVIDER_FIELDS);
        this.read_cloud(cloud, reporter);
        this
    }

    /// Returns the name of the instance type, for messages. The name is redacted if it equals the flavor's name and the
    /// flavor comes from a Secret.
    pub(super) fn instancetype_name(&self, name: &str) -> ConfigVar {
        if *self.flavor == *name { self.flavor.clone() } else { name.into() }
    }

    fn read_cloud(&mut self, mut cloud: UnreadFields<'_>, reporter: &ProblemReporter<'_>) {
        self.cluster_name = cloud.read_variable("clusterName");
        self.project_id = cloud.read_variable("projectID");
        let mut auth = cloud.read_object("auth");
        check_kubeconfig(&mut auth, reporter);
        auth.report_unknown_fields(&["kubeconfig"]);
        if cloud.has_field("kubeconfig") {
            check_kubeconfig(&mut cloud, reporter);
        }
        self.is_flat = !cloud.has_field("virtualMachine")
            && FLAT_SPEC_FIELDS.iter().any(|name| cloud.has_field(name));
        if cloud.has_field("affinity") {
            let affinity = cloud.read_object("affinity");
            self.affinity = AffinityPresets::read(affinity, reporter);
        }
        self.read_spread(&mut cloud);
        self.node_selector = cloud.take_typed_field::<BTreeMap<String, String>>("nodeSelector");
        self.tolerations =
            cloud.read_objects("tolerations").into_iter().map(read_toleration).collect();
        self.additional_networks = AdditionalNetworks::read(&mut cloud);
        if self.is_flat {
            self.read_flat_form(cloud, reporter);
            return;
        }
        let mut machine = cloud.read_object("virtualMachine");
        cloud.report_unknown_fields(&CLOUD_SPEC_FIELDS);
        self.read_machine(&mut machine);
        machine.report_unknown_fields(&VIRTUAL_MACHINE_FIELDS);
    }

    /// Reads the flat form: `cloudProviderSpec.{cpus, memory, pvcSize, sourceURL, ...}`.
    fn read_flat_form(&mut self, mut flat: UnreadFields<'_>, reporter: &ProblemReporter<'_>) {
        self.cpus = flat.read_variable("cpus");
        self.memory = flat.read_variable("memory");
        // The module `machine_namespace` reads this field; it determines the namespace of the VMs.
        drop(flat.take_field("namespace"));
        self.primary_disk.size = flat.read_variable("pvcSize");
        self.primary_disk.image = flat.read_variable("sourceURL");
        self.primary_disk.storage_class = flat.read_variable("storageClassName");
        self.primary_disk.pull_method = DEFAULT_PULL_METHOD.into();
        // In KKP's first proposal, the DataVolumes of machines had `spec.pvc` with the access mode ReadWriteOnce.
        self.primary_disk.is_pvc = true;
        self.read_dns(&mut flat);
        let presets = flat.take_fields(&AFFINITY_PRESETS);
        // Old manifests also spell `nodeAntiAffinityPreset` as `nodeAntiAffinity`.
        let old_spelling = flat.take_fields(&["nodeAntiAffinity"]);
        if presets.iter().any(|(_, value)| !value.is_null()) || !old_spelling.is_empty() {
            let mut preset_fields = presets;
            if let Some(value) = old_spelling.get("nodeAntiAffinity") {
                preset_fields.insert("nodeAntiAffinityPreset".to_owned(), value.clone());
            }
            let fields = UnreadFields::new(Value::Object(preset_fields), &flat.path(), reporter);
            self.affinity = AffinityPresets::read(fields, reporter);
        }
        flat.report_unknown_fields(&FLAT_SPEC_FIELDS);
    }

    fn read_machine(&mut self, machine: &mut UnreadFields<'_>) {
        let mut flavor = machine.read_object("flavor");
        self.flavor = flavor.read_variable("name");
        flavor.skip_unsupported("profile", "");
        flavor.report_unknown_fields(&["name", "profile"]);
        self.instancetype = machine.take_typed_field::<Matcher>("instancetype");
        self.preference = machine.take_typed_field::<Matcher>("preference");
        self.read_dns(machine);
        let mut location = machine.read_object("location");
        self.region = location.read_text("region");
        self.zone = location.read_text("zone");
        location.report_unknown_fields(&["region", "zone"]);
        let mut network = machine.read_object("providerNetwork");
        network.skip_unsupported("name", ": the cluster's CNI provides the pod network");
        let mut vpc = network.read_object("vpc");
        vpc.skip_unsupported("name", ": only the subnet of the VPC is supported");
        let mut subnet = vpc.read_object("subnet");
        self.subnet = subnet.read_text("name");
        subnet.report_unknown_fields(&["name"]);
        vpc.report_unknown_fields(&["name", "subnet"]);
        network.report_unknown_fields(&["name", "vpc"]);
        self.has_multiqueue = machine.read_flag("enableNetworkMultiQueue");
        let strategy = machine.read_text("evictionStrategy");
        let known = [EvictionStrategy::External, EvictionStrategy::LiveMigrate];
        self.eviction_strategy =
            known.map(EvictionStrategy::as_str).into_iter().find(|s| *s == strategy);
        if self.eviction_strategy.is_none() && !strategy.is_empty() {
            machine.report_error("evictionStrategy", &strategy, "must be External or LiveMigrate");
        }
        let mut template = machine.read_object("template");
        let mut vcpus = template.read_object("vcpus");
        self.vcpus = vcpus.read_number("cores");
        vcpus.report_unknown_fields(&["cores"]);
        self.cpus = template.read_variable("cpus");
        self.memory = template.read_variable("memory");
        let mut disk = template.read_object("primaryDisk");
        self.primary_disk = PrimaryDisk::read(&mut disk);
        disk.report_unknown_fields(&PRIMARY_DISK_FIELDS);
        for mut disk in template.read_objects("secondaryDisks") {
            self.secondary_disks.push(SecondaryDisk::read(&mut disk));
            disk.report_unknown_fields(&SECONDARY_DISK_FIELDS);
        }
        check_unique_names(&self.secondary_disks, &template);
        self.host_devices = RequestedDevices::read(&mut template);
        template.report_unknown_fields(&TEMPLATE_FIELDS);
    }

    fn read_dns(&mut self, fields: &mut UnreadFields<'_>) {
        let policy = fields.read_variable("dnsPolicy");
        let known = [
            DnsPolicy::ClusterFirstWithHostNet,
            DnsPolicy::ClusterFirst,
            DnsPolicy::Default,
            DnsPolicy::None,
        ];
        self.dns_policy = known.map(DnsPolicy::as_str).into_iter().find(|known| *known == &*policy);
        if self.dns_policy.is_none() && !policy.is_empty() {
            let message = "must be ClusterFirst, ClusterFirstWithHostNet, Default or None";
            fields.report_error("dnsPolicy", &policy, message);
        }
        self.dns_config = fields.take_typed_field::<PodDNSConfig>("dnsConfig");
    }

    fn read_spread(&mut self, cloud: &mut UnreadFields<'_>) {
        for mut constraint in cloud.read_objects("topologySpreadConstraints") {
            let skew = constraint.read_variable("maxSkew");
            let max_skew = skew.parse::<i32>().ok().filter(|skew| *skew > 0);
            if max_skew.is_none() {
                constraint.report_error("maxSkew", &skew, "must be an integer greater than 0");
            }
            let topology_key = constraint.read_variable("topologyKey").into_plain_string();
            if topology_key.is_empty() {
                constraint.report_error(
                    "topologyKey",
                    "",
                    "is missing: set it to the key of the Node label that defines the topology domains",
                );
            }
            let when_unsatisfiable = constraint.read_variable("whenUnsatisfiable");
            if !["DoNotSchedule", "ScheduleAnyway"].contains(&&*when_unsatisfiable) {
                let message = "must be DoNotSchedule or ScheduleAnyway";
                constraint.report_error("whenUnsatisfiable", &when_unsatisfiable, message);
            }
            let max_skew = max_skew.unwrap_or(1);
            let when_unsatisfiable = when_unsatisfiable.into_plain_string();
            self.spread_constraints.push(SpreadConstraint {
                max_skew,
                topology_key,
                when_unsatisfiable,
            });
            constraint.report_unknown_fields(&["maxSkew", "topologyKey", "whenUnsatisfiable"]);
        }
    }
}

/// Parses a toleration. Tolerations of the taints of control plane nodes are reported as errors.
fn read_toleration(mut fields: UnreadFields<'_>) -> Value {
    const CONTROL_PLANE_PREFIX: &str = "node-role.kubernetes.io/";
    let key = fields.read_text("key");
    if key.is_empty() {
        fields.report_error(
            "key",
            "",
            "is missing: a toleration without a key tolerates every taint",
        );
    } else if key.starts_with(CONTROL_PLANE_PREFIX) {
        fields.report_error(
            "key",
            &key,
            "is a control plane taint, and machines must not tolerate control plane taints",
        );
    }
    let mut toleration = json!({"key": key});
    for (name, known) in [
        ("operator", &["Exists", "Equal"][..]),
        ("effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        ("value", &[]),
    ] {
        let text = fields.read_text(name);
        if text.is_empty() {
            continue;
        }
        if !known.is_empty() && !known.contains(&text.as_str()) {
            fields.report_error(name, &text, format!("must be one of {}", known.join(", ")));
        }
        toleration[name] = text.into();
    }
    if let Some(seconds) = fields.take_typed_field::<i64>("tolerationSeconds") {
        toleration["tolerationSeconds"] = seconds;
    }
    fields.report_unknown_fields(&["key", "operator", "effect", "value", "tolerationSeconds"]);
    toleration
}

/// KubeVirt's reference to an instance type or a preference (`InstancetypeMatcher`), parsed only for validation.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "only used to validate the fields")]
struct Matcher {
    name: Option<String>,
    kind: Option<String>,
    revision_name: Option<String>,
    infer_from_volume: Option<String>,
    infer_from_volume_failure_policy: Option<String>,
}

impl AffinityPresets {
    fn read(mut fields: UnreadFields<'_>, reporter: &ProblemReporter<'_>) -> Self {
        let this = Self {
            pod_affinity: read_affinity_type(&mut fields, "podAffinityPreset"),
            pod_anti_affinity: read_affinity_type(&mut fields, "podAntiAffinityPreset"),
            node_affinity: NodeAffinityPreset::read(&mut fields, "nodeAffinityPreset"),
            node_anti_affinity: NodeAffinityPreset::read(&mut fields, "nodeAntiAffinityPreset"),
        };
        if this.pod_affinity.is_some() && this.pod_anti_affinity.is_some() {
            let message = "cannot be set together with podAntiAffinityPreset: remove one of them";
            reporter.report_error(&fields.field_path("podAffinityPreset"), "", message);
        }
        fields.report_unknown_fields(&AFFINITY_PRESETS);
        this
    }
}

impl NodeAffinityPreset {
    fn read(fields: &mut UnreadFields<'_>, name: &str) -> Option<Self> {
        let mut preset = fields.read_object(name);
        let strength = read_affinity_type(&mut preset, "type");
        let key = preset.read_variable("key").into_plain_string();
        let values =
            preset.read_variables("values").into_iter().map(ConfigVar::into_plain_string).collect();
        if strength.is_some() && key.is_empty() {
            preset.report_error(
                "key",
                "",
                "is missing: set the key of the Node label that the preset selects",
            );
        }
        preset.report_unknown_fields(&["type", "key", "values"]);
        Some(Self { affinity_type: strength?, key, values })
    }
}

fn read_affinity_type(fields: &mut UnreadFields<'_>, name: &str) -> Option<AffinityType> {
    let text = fields.read_variable(name);
    match text.to_ascii_lowercase().as_str() {
        "" => None,
        "soft" => Some(AffinityType::Soft),
        "hard" => Some(AffinityType::Hard),
        _ => {
            fields.report_error(name, &text, "must be soft, hard or empty");
            None
        }
    }
}
