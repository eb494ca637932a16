//! Fields of the providerSpec that `docs/machines.md` describes, in sets that are valid for machines of every flavor.

use berth_kubevirt_render::machines::{InterfaceConfig, TENANT_INTERFACE};
use serde_json::{Value, json};

/// Network in another namespace, which the tenant and the InfraConfig must list.
pub(crate) const LISTED_NETWORK: &str = "storage/ceph";
/// VirtualMachineClusterPreference of the test that selects the architecture arm64.
pub(crate) const ARM_PREFERENCE: &str = "flavors-arm64";

/// Set of fields of a machine.
#[derive(Default)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Fields of the providerSpec.
    pub(crate) fields: Value,
    /// Interfaces to which Berth has allocated addresses.
    pub(crate) interfaces: Vec<InterfaceConfig>,
    /// User data for an annotation.
    pub(crate) user_data: Option<String>,
    /// Architecture that KubeVirt selects.
    pub(crate) architecture: &'static str,
}

impl Case {
    pub(crate) fn new(name: &'static str, fields: Value) -> Self {
        Self { name, fields, architecture: "amd64", ..Self::default() }
    }

    /// Returns a case with fields of `cloudProviderSpec`.
    fn in_spec(name: &'static str, fields: Value) -> Self {
        Self::new(name, json!({"cloudProviderSpec": fields}))
    }

    /// Returns a case with fields of `virtualMachine`.
    fn in_machine(name: &'static str, fields: Value) -> Self {
        Self::in_spec(name, json!({"virtualMachine": fields}))
    }

    /// Returns a case with fields of `primaryDisk`.
    fn in_disk(name: &'static str, fields: Value) -> Self {
        Self::in_machine(name, json!({"template": {"primaryDisk": fields}}))
    }

    /// Returns the case with addresses that Berth has allocated in the tenant's network.
    fn with_addresses(self) -> Self {
        let interface = InterfaceConfig {
            name: TENANT_INTERFACE.to_owned(),
            mac: "02:10:20:30:40:50".parse().unwrap(),
            mtu: Some(1450),
            addresses: vec!["10.20.0.7/24".parse().unwrap(), "fd00:120::7/64".parse().unwrap()],
            gateways: vec!["10.20.0.1".parse().unwrap()],
            routes: Vec::new(),
            nameservers: vec!["10.20.0.53".parse().unwrap()],
            search_domains: Vec::new(),
        };
        Self { interfaces: vec![interface], ..self }
    }
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    [scheduling(), networks(), disks(), others()].into_iter().flatten().collect()
}

fn scheduling() -> Vec<Case> {
    vec![
        Case::new("no further fields", json!({})),
        Case::in_spec(
            "topology spread constraints",
            json!({"topologySpreadConstraints": [
                {"maxSkew": "1", "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": "2", "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
            ]}),
        ),
        Case::in_spec(
            "hard presets",
            json!({"affinity": {
                "podAntiAffinityPreset": "hard",
                "nodeAffinityPreset": {"type": "hard", "key": "example.com/rack", "values": ["a", "b"]},
            }}),
        ),
        Case::in_spec(
            "soft presets",
            json!({"affinity": {
                "podAffinityPreset": "soft",
                "nodeAntiAffinityPreset": {"type": "soft", "key": "example.com/old", "values": []},
            }}),
        ),
        Case::in_spec(
            "node selector and tolerations",
            json!({
                "nodeSelector": {"example.com/rack": "a"},
                "tolerations": [
                    {"key": "example.com/vms", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "example.com/slow", "operator": "Equal", "value": "yes", "effect": "NoExecute",
                        "tolerationSeconds": 60},
                ],
            }),
        ),
        Case::in_machine("location", json!({"location": {"region": "eu", "zone": "eu-1"}})),
    ]
}

fn networks() -> Vec<Case> {
    let networks = |bindings: &[&str]| -> Value {
        let network = |(index, binding): (usize, &&str)| json!({"name": format!("cluster-bank/net-{index}"), "binding": binding});
        bindings.iter().enumerate().map(network).collect()
    };
    let mut listed = networks(&["Bridge", "Sriov", "Macvtap"]);
    if let Value::Array(listed) = &mut listed {
        listed.push(json!({"name": LISTED_NETWORK}));
    }
    vec![
        Case::in_spec("further networks", json!({"additionalNetworks": listed})),
        Case::in_spec(
            "16 further networks, without the pod network",
            json!({"additionalNetworks": networks(&["Bridge"; 16]), "attachDefaultNetwork": false}),
        ),
        Case::in_spec("only the tenant's network", json!({"attachDefaultNetwork": false})),
        Case::in_machine("one queue", json!({"enableNetworkMultiQueue": false})),
        Case::in_machine(
            "subnet of kube-ovn",
            json!({"providerNetwork": {"vpc": {"subnet": {"name": "subnet-a"}}}}),
        ),
        Case::new("static addresses", json!({})).with_addresses(),
        Case::in_spec(
            "static addresses and a further network",
            json!({"additionalNetworks": networks(&["Bridge"]), "attachDefaultNetwork": false}),
        )
        .with_addresses(),
    ]
}

fn disks() -> Vec<Case> {
    vec![
        Case::in_machine(
            "secondary disks",
            json!({"template": {"secondaryDisks": [
                {"size": "5Gi", "source": "blank", "storageAccessType": "ReadWriteOncePod"},
                {"size": "20Gi", "source": "clone", "storageClassName": "longhorn"},
                {"size": "20Gi"},
            ]}}),
        ),
        Case::in_disk(
            "claim in spec.pvc",
            json!({"storageTarget": "pvc", "storageClassName": "longhorn", "storageAccessType": "ReadWriteMany"}),
        ),
        Case::in_disk(
            "image of a registry",
            json!({"osImage": "docker://images.example/ubuntu:24.04", "pullMethod": "pod"}),
        ),
        Case::in_disk("clone of a volume", json!({"osImage": "images/ubuntu"})),
        Case::in_disk(
            "image with headers",
            json!({
                "osImage": "https://images.example/ubuntu.img", "extraHeaders": ["X-Project: bank"],
                "dataVolumeSecretRef": "image-access",
            }),
        ),
    ]
}

fn others() -> Vec<Case> {
    let coreos = json!({
        "operatingSystem": "fcos",
        "cloudProviderSpec": {"virtualMachine": {"template": {"primaryDisk":
            {"osImage": "http://images.example/fcos.qcow2"}}}},
    });
    let preference = json!({"name": ARM_PREFERENCE, "kind": "VirtualMachineClusterPreference"});
    let arm = Case::in_machine("arm64", json!({"preference": preference}));
    vec![
        Case::in_machine(
            "DNS",
            json!({"dnsPolicy": "None", "dnsConfig": {
                "nameservers": ["192.0.2.53"], "searches": ["example.com"],
                "options": [{"name": "ndots", "value": "2"}],
            }}),
        ),
        Case::in_machine("DNS of the cluster", json!({"dnsPolicy": "ClusterFirst"})),
        Case::new("Ignition", coreos.clone()),
        Case::new("Ignition with static addresses", coreos).with_addresses(),
        Case { architecture: "arm64", ..arm },
    ]
}
