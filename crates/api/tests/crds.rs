//! Tests that the CRDs in `deploy/crds/` match the Rust types, and that their validation rules accept valid objects
//! and refuse invalid objects.
//!
//! After a change of the types, run `make crds` and review the difference, because users install these CRDs.

#![expect(clippy::disallowed_methods, reason = "tests read the repository's files")]

use std::path::Path;

use berth_api::{InfraConfig, InfraNode, TenantCluster, VlanClaim, all_crds, crd_yaml};
use kube::ResourceExt;
use kube::core::cel::validate_cel;
use serde_json::{Value, json};

#[test]
fn deployed_crds_match_rust_types() {
    for crd in all_crds() {
        let name = format!("{}.yaml", crd.name_any());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds").join(&name);
        let deployed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            deployed == crd_yaml(&crd).unwrap(),
            "deploy/crds/{name} is stale: run `make crds`"
        );
    }
}

#[test]
fn crd_yaml_round_trips() {
    for crd in all_crds() {
        let parsed: Value = serde_saphyr::from_str(&crd_yaml(&crd).unwrap()).unwrap();
        assert_eq!(parsed, serde_json::to_value(&crd).unwrap());
    }
}

/// Checks that all schemas are structural schemas, and that every field has a type and a description.
#[test]
fn schemas_are_structural_and_have_descriptions() {
    fn check_schema(path: &str, schema: &Value) {
        for forbidden in ["$ref", "definitions", "additionalItems", "patternProperties"] {
            assert!(
                schema.get(forbidden).is_none(),
                "{path} has the forbidden keyword {forbidden}"
            );
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or("int64");
        assert!(
            ["int32", "int64", "date-time"].contains(&format),
            "{path} has the unsupported format {format}"
        );
        let int_or_string = schema.get("x-kubernetes-int-or-string").is_some();
        assert!(schema.get("type").is_some() || int_or_string, "{path} has no type");
        for (name, field) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let path = format!("{path}.{name}");
            assert!(field.get("description").is_some(), "{path} has no description");
            check_schema(&path, field);
        }
        schema.get("items").into_iter().for_each(|items| check_schema(&format!("{path}[]"), items));
    }
    for crd in all_crds() {
        let crd = serde_json::to_value(&crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        check_schema("spec", &schema["properties"]["spec"]);
        // HostLeases have no status, because only the controller writes them.
        if crd["spec"]["names"]["kind"] != "HostLeases" {
            check_schema("status", &schema["properties"]["status"]);
        }
    }
}

fn parse_infra_node(spec: Value) -> Result<InfraNode, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {"name": "rack1-a"}, "spec": spec
    }))
}

/// Returns the complete example of `InfraNode.spec` in the documentation.
fn example_spec() -> Value {
    json!({
        "profile": "performance",
        "cpu": {"reserved": {"coresPerZone": 1}, "housekeeping": true, "kubelet": "Advise"},
        "hugepages": [{"size": "2Mi", "zone": 0, "count": 1024}],
        "ksm": {"mode": "Auto"},
        "transparentHugepages": "Madvise",
        "devices": {"vfio": [
            {"pciAddress": "0000:81:00.0"}, {"id": "144d:a80a", "count": 2}
        ]},
        "networks": [
            {"name": "tenant-trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "bond0"},
             "bridge": "br-tenant", "mtu": 9000,
             "vxlan": {"port": 4790, "localAddress": "10.0.0.1", "peers": ["10.0.0.2", "10.0.0.3"]}},
            {"name": "overlay", "scenario": "Vxlan",
             "vxlan": {"port": 4790, "localAddress": "10.0.0.1", "peers": ["10.0.0.2", "10.0.0.3"]}}
        ],
        "tenantNetworks": [
            {"name": "cluster-abc", "network": "tenant-trunk", "vlan": 120},
            {"name": "cluster-xyz", "network": "overlay", "vni": 70000}
        ]
    })
}

#[test]
fn example_is_valid_and_round_trips() {
    let node = parse_infra_node(example_spec()).unwrap();
    validate_cel(&node).unwrap();
    assert_eq!(serde_json::to_value(&node.spec).unwrap(), example_spec());
}

#[test]
fn empty_spec_has_no_settings() {
    let node = parse_infra_node(json!({})).unwrap();
    validate_cel(&node).unwrap();
    assert_eq!(serde_json::to_value(&node.spec).unwrap(), json!({}));
}

#[test]
fn validation_rules_reject_contradictions() {
    let cases = [
        (
            "/cpu/reserved",
            json!({"coresPerZone": 1, "cpus": "0-1"}),
            "exactly one of coresPerZone and cpus",
        ),
        ("/cpu/reserved", json!({}), "exactly one of coresPerZone and cpus"),
        ("/devices/vfio/0/id", json!("144d:a80a"), "exactly one of pciAddress and id"),
        ("/devices/vfio/1/id", Value::Null, "exactly one of pciAddress and id"),
        ("/devices/vfio/0/count", json!(1), "count requires id"),
        (
            "/networks/0/uplink",
            json!({"name": "eth0", "mac": "ac:1f:6b:8a:5f:c8"}),
            "exactly one of name, mac",
        ),
        ("/networks/0/uplink", json!({}), "exactly one of name, mac"),
        ("/networks/0/uplink", Value::Null, "require an uplink"),
        ("/networks/1/vxlan", Value::Null, "scenario Vxlan requires the field vxlan"),
        ("/networks/1/scenario", json!("BridgePerTenant"), "require an uplink"),
        ("/tenantNetworks/0/vni", json!(5), "exactly one of vlan and vni"),
        ("/tenantNetworks/0/vlan", Value::Null, "exactly one of vlan and vni"),
        (
            "/tenantNetworks/0/network",
            json!("nowhere"),
            "must be the name of an entry of spec.networks",
        ),
    ];
    for (pointer, value, words) in cases {
        let mut spec = example_spec();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match &value {
            Value::Null => drop(parent.remove(field)),
            value => drop(parent.insert(field.to_owned(), value.clone())),
        }
        let message =
            validate_cel(&parse_infra_node(spec).unwrap()).expect_err(pointer).to_string();
        assert!(message.contains(words), "{pointer} {value}: {message}");
    }
}

#[test]
fn error_contains_the_invalid_value() {
    let cases = [
        ("/hugepages/0/size", json!("3Mi"), "`3Mi` is not a huge page size"),
        ("/hugepages/0/count", json!(-1), "-1"),
        ("/cpu/reserved", json!({"cpus": "3-1"}), "the range `3-1` ends before it starts"),
        ("/cpu/kubelet", json!("Maybe"), "Maybe"),
        ("/devices/vfio/1/id", json!("144d"), "`144d` is not a PCI id"),
        (
            "/networks/0/bridge",
            json!("a-name-that-is-too-long"),
            "`a-name-that-is-too-long` is not a link name",
        ),
        ("/tenantNetworks/0/vlan", json!(4095), "`4095` is not a VLAN id"),
        ("/networks/1/vxlan/localAddress", json!("10.0.0"), "invalid IP address"),
    ];
    for (pointer, value, words) in cases {
        let mut spec = example_spec();
        *spec.pointer_mut(pointer).unwrap() = value;
        let message = parse_infra_node(spec).expect_err(pointer).to_string();
        assert!(message.contains(words), "{pointer}: {message}");
    }
}

fn parse_object<T: serde::de::DeserializeOwned>(
    kind: &str,
    name: &str,
    spec: Value,
) -> Result<T, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec
    }))
}

#[test]
fn tenant_cluster_is_valid_and_round_trips() {
    let spec = json!({
        "network": {"name": "tenant-trunk", "vlan": 120, "cidr": "10.20.0.0/24"},
        "nodeSelector": {"rack": "1"},
        "networkPolicies": {"isolation": "Egress", "custom": [{"name": "more", "spec": {
            "podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.200.10.0/24"}}], "ports": [{"port": "http"}, {"port": 80}]}]
        }}]},
        "kubeconfigSecretRef": {"name": "kubeconfig"},
        "projectID": "f8vwtl5w7s",
        "userDataSecretRef": {"name": "user-data", "key": "cloud-config"}
    });
    let tenant: TenantCluster = parse_object("TenantCluster", "abc", spec.clone()).unwrap();
    validate_cel(&tenant).unwrap();
    assert_eq!(serde_json::to_value(&tenant.spec).unwrap(), spec);
    let both = json!({"network": {"name": "tenant-trunk", "vlan": 120, "vni": 5}});
    let both: TenantCluster = parse_object("TenantCluster", "abc", both).unwrap();
    assert!(validate_cel(&both).unwrap_err().to_string().contains("mutually exclusive"));
}

#[test]
fn vlan_claim_requires_exactly_one_of_vlan_and_vni() {
    let claim = |extra_fields: Value| {
        let mut spec = json!({"network": "tenant-trunk", "tenant": "abc", "tenantUID": "u"});
        spec.as_object_mut().unwrap().extend(extra_fields.as_object().unwrap().clone());
        validate_cel(&parse_object::<VlanClaim>("VlanClaim", "tenant-trunk-120", spec).unwrap())
    };
    claim(json!({"vlan": 120})).unwrap();
    claim(json!({"vni": 120})).unwrap();
    for wrong in [json!({}), json!({"vlan": 120, "vni": 5})] {
        assert!(claim(wrong).unwrap_err().to_string().contains("exactly one of vlan and vni"));
    }
}

#[test]
fn infra_config_is_valid_and_round_trips() {
    let spec = json!({
        "replicatedNodeLabels": ["rack", "topology.kubernetes.io/*"],
        "replicatedNodeAnnotations": ["example.com/*"],
        "replicatedNodeTaints": ["example.com/gpu"],
        "vlanPools": [{"network": "tenant-trunk", "ranges": ["100-199", "300"]}],
        "vniRange": "10000-19999",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["8.8.8.8"]},
        "customNetworkPolicies": [{"name": "n", "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}],
        "images": {"http": {"operatingSystems": {"ubuntu": {"22.04": "http://images/ubuntu.img"}}}},
        "infraStorageClasses": [{
            "name": "longhorn", "isDefaultClass": true, "volumeProvisioner": "kubevirt-csi-driver",
            "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Retain", "allowVolumeExpansion": true,
            "zones": ["a"], "regions": ["north"],
        }],
        "vmEvictionStrategy": "LiveMigrate",
        "nodeDefaults": {"cpus": "2", "memory": "8Gi", "primaryDiskSize": "20Gi"},
        "placement": {"controlPlaneSpread": {"topologyKey": "topology.kubernetes.io/zone", "weight": 50}}
    });
    let config: InfraConfig = parse_object("InfraConfig", "default", spec.clone()).unwrap();
    validate_cel(&config).unwrap();
    assert_eq!(serde_json::to_value(&config.spec).unwrap(), spec);
    for (field, wrong, words) in [
        ("vniRange", json!("5-4"), "`5-4` is not a range of VXLAN"),
        ("vniRange", json!("0-16777216"), "is not a range of VXLAN"),
        ("dnsPolicy", json!("Maybe"), "Maybe"),
        ("nodeDefaults", json!({"memory": "8 Gib"}), "8 Gib"),
        (
            "vlanPools",
            json!([{"network": "n", "ranges": ["4095"]}]),
            "`4095` is not a list of VLAN ids",
        ),
    ] {
        let mut spec = spec.clone();
        spec[field] = wrong;
        let error = parse_object::<InfraConfig>("InfraConfig", "default", spec).unwrap_err();
        assert!(error.to_string().contains(words), "{field}: {error}");
    }
}

#[test]
fn host_devices_of_the_infra_config_round_trip() {
    let spec = json!({"hostDevices": {"manage": true, "allowed": [
        {"resourceName": "nvidia.com/GA100", "ids": ["10de:20b5"], "externalResourceProvider": true,
         "tenants": ["bank"]},
        {"resourceName": "pci.berth.dev/144d-a80a", "ids": ["144d:a80a"]},
    ]}});
    let config: InfraConfig = parse_object("InfraConfig", "default", spec.clone()).unwrap();
    validate_cel(&config).unwrap();
    assert_eq!(serde_json::to_value(&config.spec).unwrap(), spec);
    let allowed = &config.spec.host_devices.unwrap().allowed;
    assert!(allowed[0].is_allowed_for(Some("bank")) && allowed[1].is_allowed_for(None));
    assert!(!allowed[0].is_allowed_for(Some("shop")) && !allowed[0].is_allowed_for(None));
    let wrong = json!({"hostDevices": {"allowed": [{"resourceName": "a/b", "ids": ["10de"]}]}});
    let error = parse_object::<InfraConfig>("InfraConfig", "default", wrong).unwrap_err();
    assert!(error.to_string().contains("10de"), "{error}");
}

#[test]
fn images_of_the_infra_config_round_trip() {
    let checksum = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let spec = json!({"images": {
        "namespace": "images", "preallocation": "Never", "garbageCollect": "Unused", "keepLast": 2,
        "catalog": [
            {"image": "http://images/noble.img", "checksum": checksum, "size": "4Gi", "preload": true,
             "storageClasses": ["longhorn"], "certConfigMap": "ca", "secretRef": "credentials"},
            {"image": "docker://registry/rhel:9", "schedule": "30 1 * * 1"},
            {"image": "images/windows"},
        ],
    }});
    let config: InfraConfig = parse_object("InfraConfig", "default", spec.clone()).unwrap();
    validate_cel(&config).unwrap();
    assert_eq!(serde_json::to_value(&config.spec).unwrap(), spec);
    for (field, wrong, words) in [
        ("preallocation", json!("Always"), "Always"),
        ("garbageCollect", json!("Now"), "Now"),
        ("catalog", json!([{"size": "4Gi"}]), "missing field `image`"),
        ("catalog", json!([{"image": "a/b", "size": "4 GB"}]), "4 GB"),
        ("keepLast", json!(-1), "-1"),
    ] {
        let mut spec = spec.clone();
        spec["images"][field] = wrong;
        let error = parse_object::<InfraConfig>("InfraConfig", "default", spec).unwrap_err();
        assert!(error.to_string().contains(words), "{field}: {error}");
    }
}
