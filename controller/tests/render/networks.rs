//! Interfaces of machines: MAC addresses for allocated IP addresses, and additional networks.

use berth_kubevirt_render::machines::{InterfaceConfig, RenderOptions, RenderedMachine};
use serde_json::{Value, json};

use super::{
    RenderError, base_provider_spec, machine_deployment, render_deployment, render_options,
    render_with_options, set_value,
};

/// Returns a TenantCluster that lists an additional network, and an InfraConfig that permits this network.
fn tenant_and_infra_config() -> [Value; 2] {
    [
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "cluster-name"},
            "spec": {"machineNamespaces": ["test-namespace"],
                "network": {"name": "tenant-trunk", "additional": ["storage/ceph", "storage/other"]}}}),
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
            "spec": {"additionalNetworks": ["storage/ceph", "storage/third"]}}),
    ]
}

fn render(fields: &[(&str, Value)], other: &[Value]) -> Result<RenderedMachine, RenderError> {
    let mut provider = base_provider_spec();
    for (field, value) in fields {
        set_value(&mut provider, &format!("/cloudProviderSpec/{field}"), value.clone());
    }
    let mut deployment = machine_deployment(&provider);
    if !other.is_empty() {
        let annotations = json!({"berth.dev/tenant": "cluster-name"});
        set_value(&mut deployment, "/metadata/annotations", annotations);
    }
    render_deployment(&deployment, other, "vm")
}

fn spec_of(rendered: &RenderedMachine) -> &Value {
    &rendered.machine["spec"]["template"]["spec"]
}

fn interface_config(name: &str) -> InterfaceConfig {
    InterfaceConfig {
        name: name.to_owned(),
        mac: "02:10:20:30:40:50".parse().unwrap(),
        mtu: None,
        addresses: vec!["10.0.0.7/24".parse().unwrap()],
        gateways: Vec::new(),
        routes: Vec::new(),
        nameservers: Vec::new(),
        search_domains: Vec::new(),
    }
}

#[test]
fn allocated_addresses_set_the_ethernet_address() {
    let provider = base_provider_spec();
    let mut deployment = machine_deployment(&provider);
    let annotations = json!({"berth.dev/tenant": "cluster-name"});
    set_value(&mut deployment, "/metadata/annotations", annotations);
    let render = |interfaces: Vec<InterfaceConfig>| {
        let options = RenderOptions { interfaces, ..render_options("vm") };
        render_with_options(&deployment, &tenant_and_infra_config(), options).unwrap()
    };
    let rendered = render(vec![interface_config("unknown"), interface_config("tenant")]);
    assert_eq!(
        spec_of(&rendered)["domain"]["devices"]["interfaces"],
        json!([{"name": "default", "bridge": {}},
            {"name": "tenant", "bridge": {}, "macAddress": "02:10:20:30:40:50"}])
    );
    assert_eq!(rendered.interfaces, [interface_config("tenant")]);
    let without = render(Vec::new());
    assert_eq!(
        spec_of(&without)["domain"]["devices"]["interfaces"],
        json!([{"name": "default", "bridge": {}}, {"name": "tenant", "bridge": {}}])
    );
}

#[test]
fn further_networks_are_attached() {
    let networks = json!([
        {"name": "storage/ceph"},
        {"name": "cluster-cluster-name/own", "binding": "Sriov"},
        {"name": "cluster-cluster-name/own.2", "binding": "Macvtap"}
    ]);
    let fields = [("additionalNetworks", networks), ("attachDefaultNetwork", json!(false))];
    let rendered = render(&fields, &tenant_and_infra_config()).unwrap();
    assert_eq!(
        spec_of(&rendered)["networks"],
        json!([
            {"name": "tenant", "multus": {"networkName": "cluster-cluster-name/tenant-cluster-name"}},
            {"name": "additional-1", "multus": {"networkName": "storage/ceph"}},
            {"name": "additional-2", "multus": {"networkName": "cluster-cluster-name/own"}},
            {"name": "additional-3", "multus": {"networkName": "cluster-cluster-name/own.2"}}
        ])
    );
    let interfaces = spec_of(&rendered)["domain"]["devices"]["interfaces"].as_array().unwrap();
    let macs: Vec<&str> =
        interfaces[1..].iter().map(|one| one["macAddress"].as_str().unwrap()).collect();
    assert!(macs.iter().all(|mac| mac.starts_with("02:")) && macs[0] != macs[1], "{macs:?}");
    assert_eq!(interfaces[0], json!({"name": "tenant", "bridge": {}}));
    assert_eq!(interfaces[1]["bridge"], json!({}));
    assert_eq!(interfaces[2]["sriov"], json!({}));
    assert_eq!(interfaces[3]["binding"], json!({"name": "macvtap"}));
    assert!(!rendered.has_pod_network);
    assert_eq!(render(&fields, &tenant_and_infra_config()).unwrap().machine, rendered.machine);
}

/// KubeVirt gives each interface of the model virtio as many queue pairs as the VM has CPUs. The virtio driver of the guest
/// enables all of them, so neither network data nor a unit sets a number.
#[test]
fn all_interfaces_have_one_queue_pair_per_cpu() {
    let networks = json!([{"name": "storage/ceph"}, {"name": "cluster-cluster-name/own"}]);
    let render = |more: Option<(&str, Value)>| {
        let mut fields = vec![("additionalNetworks", networks.clone())];
        fields.extend(more);
        render(&fields, &tenant_and_infra_config()).unwrap()
    };
    let rendered = render(None);
    let devices = &spec_of(&rendered)["domain"]["devices"];
    assert_eq!(devices["networkInterfaceMultiqueue"], true);
    let interfaces = devices["interfaces"].as_array().unwrap();
    let names: Vec<&str> = interfaces.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "tenant", "additional-1", "additional-2"]);
    // Without a model, KubeVirt uses virtio.
    assert!(interfaces.iter().all(|one| one["model"].is_null()), "{interfaces:?}");
    let disabled = render(Some(("virtualMachine/enableNetworkMultiQueue", json!(false))));
    let devices = &spec_of(&disabled)["domain"]["devices"];
    assert_eq!(devices["networkInterfaceMultiqueue"], false);
}

/// Returns TenantCluster `cluster-name`, which lists the network of `storage`, with this spec of TenantCluster `storage`.
fn tenants_with_a_second_network(storage: &Value, permitted: &Value) -> [Value; 3] {
    let [mut tenant, mut config] = tenant_and_infra_config();
    tenant["spec"]["network"]["additional"] = json!(["storage/ceph", "storage"]);
    config["spec"]["additionalNetworks"] = permitted.clone();
    let storage = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "storage"}, "spec": storage});
    [tenant, config, storage]
}

#[test]
fn networks_of_other_tenants_are_attached() {
    let network = json!({"network": {"name": "tenant-trunk", "binding": "Macvtap", "ipv4": {"cidr": "10.1.0.0/24"}}});
    let objects = tenants_with_a_second_network(&network, &json!(["storage"]));
    let provider = {
        let mut provider = base_provider_spec();
        let networks = json!([{"name": "storage"}]);
        set_value(&mut provider, "/cloudProviderSpec/additionalNetworks", networks);
        provider
    };
    let mut deployment = machine_deployment(&provider);
    set_value(
        &mut deployment,
        "/metadata/annotations",
        json!({"berth.dev/tenant": "cluster-name"}),
    );
    let interfaces = vec![interface_config("tenant"), interface_config("additional-1")];
    let options = RenderOptions { interfaces, ..render_options("vm") };
    let rendered = render_with_options(&deployment, &objects, options).unwrap();
    // The definition is in the namespace of the machine.
    let definition = "cluster-cluster-name/berth-network-storage";
    assert_eq!(
        spec_of(&rendered)["networks"][2],
        json!({"name": "additional-1", "multus": {"networkName": definition}})
    );
    assert_eq!(
        spec_of(&rendered)["domain"]["devices"]["interfaces"][2],
        json!({"name": "additional-1", "binding": {"name": "macvtap"}, "macAddress": "02:10:20:30:40:50"})
    );
    assert_eq!(rendered.attached_tenants, [("additional-1".to_owned(), "storage".to_owned())]);
    assert_eq!(rendered.interfaces, [interface_config("tenant"), interface_config("additional-1")]);
}

#[test]
fn networks_of_other_tenants_must_be_permitted() {
    let network = || json!({"network": {"name": "tenant-trunk"}});
    for (entry, storage, permitted, words) in [
        (json!({"name": "storage"}), network(), json!([]), "add it to InfraConfig's"),
        (json!({"name": "storage"}), json!({}), json!(["storage"]), "without spec.network"),
        (json!({"name": "other"}), network(), json!(["other"]), "or the name of a TenantCluster"),
        (
            json!({"name": "cluster-cluster-name/berth-network-storage"}),
            network(),
            json!(["storage"]),
            "is the network of TenantCluster storage: replace it with storage",
        ),
        (
            json!({"name": "storage", "binding": "Bridge"}),
            network(),
            json!(["storage"]),
            "the TenantCluster of the network determines it",
        ),
    ] {
        let objects = tenants_with_a_second_network(&storage, &permitted);
        let problems = render(&[("additionalNetworks", json!([entry]))], &objects).unwrap_err();
        assert!(problems.contains(words), "{problems}");
    }
    let objects = tenants_with_a_second_network(&network(), &json!(["storage"]));
    let twice = json!([{"name": "storage"}, {"name": "storage"}]);
    let problems = render(&[("additionalNetworks", twice)], &objects).unwrap_err();
    assert!(problems.contains("additionalNetworks[1].name"), "{problems}");
    assert!(problems.contains("is already in the list"), "{problems}");
}

/// The controller reports these warnings in the condition TemplateHonored.
#[test]
fn addresses_in_further_networks_are_reported() {
    let networks = json!([{"name": "storage/ceph", "addresses": ["10.9.0.7/24"]}]);
    let rendered = render(&[("additionalNetworks", networks)], &tenant_and_infra_config()).unwrap();
    let warnings: Vec<String> = rendered.warnings.iter().map(ToString::to_string).collect();
    let words = ["additionalNetworks[0].addresses", "allocates no addresses in further networks"];
    let is_reported = |warning: &String| words.iter().all(|word| warning.contains(word));
    assert!(warnings.iter().any(is_reported), "{warnings:?}");
}

#[test]
fn further_networks_must_be_listed() {
    let network = |name: &str| json!([{"name": name}]);
    for (fields, other, words) in [
        (network("storage/third"), true, "add it to spec.network.additional of TenantCluster"),
        (network("storage/other"), true, "add it to InfraConfig's spec.additionalNetworks"),
        (network("cluster-xyz/tenant-xyz"), true, "is not a network of tenant cluster-name"),
        (network("storage/ceph"), false, "the machine belongs to no tenant"),
        (network("ceph"), true, "must be NAMESPACE/NAME"),
        (network("a.b/ceph"), true, "must be NAMESPACE/NAME"),
        (network("a/b/c"), true, "must be NAMESPACE/NAME"),
        (network(""), true, "must be NAMESPACE/NAME"),
        (json!([{"name": "storage/ceph", "binding": "bridge"}]), true, "must be Bridge, Sriov or"),
        (json!([{"nam": "storage/ceph"}]), true, "did you mean `name`"),
        (json!("storage/ceph"), true, "must be a list"),
        (json!(vec![json!({"name": "storage/ceph"}); 17]), true, "has more than 16 networks"),
    ] {
        let all = tenant_and_infra_config();
        let other = if other { &all[..] } else { &[] };
        let problems = render(&[("additionalNetworks", fields)], other).unwrap_err();
        let field = "cloudProviderSpec.additionalNetworks";
        assert!(problems.contains(words) && problems.contains(field), "{problems}");
    }
    let own = [("additionalNetworks", network("test-namespace/own"))];
    assert!(render(&own, &[]).is_ok());
    let alone = render(&[("attachDefaultNetwork", json!("false"))], &[]).unwrap_err();
    assert!(alone.contains("leaves the machine without a network"), "{alone}");
}

#[test]
fn coreos_with_allocated_addresses_reads_a_config_drive() {
    for (system, interfaces, source) in [
        ("rhcos", vec![interface_config("tenant")], "cloudInitConfigDrive"),
        ("rhcos", Vec::new(), "cloudInitNoCloud"),
        ("ubuntu", vec![interface_config("tenant")], "cloudInitNoCloud"),
    ] {
        let mut provider = base_provider_spec();
        provider["operatingSystem"] = json!(system);
        let mut deployment = machine_deployment(&provider);
        let annotations = json!({"berth.dev/tenant": "cluster-name"});
        set_value(&mut deployment, "/metadata/annotations", annotations);
        let options = RenderOptions { interfaces, ..render_options("vm") };
        let rendered =
            render_with_options(&deployment, &tenant_and_infra_config(), options).unwrap();
        let secret = json!({"secretRef": {"name": "udsn"}});
        let expected = json!({"name": "cloudinitdisk", source: secret});
        assert_eq!(spec_of(&rendered)["volumes"][1], expected, "{system}");
    }
}
