//! Tests which Secrets and tenants a MachineDeployment may refer to, and which annotations and labels it may set on the
//! pods of its machines.

use serde_json::{Map, Value, json};

use super::{
    DISK_POINTER, base_provider_spec, machine_deployment, render_deployment,
    render_in_derived_namespace, set_value,
};

/// A value that occurs only in a Secret.
const CANARY: &str = "c4n4ry-7f3a: [ \"s3cret";

fn tenant_cluster(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name}, "spec": spec})
}

fn infra_config(spec: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"}, "spec": spec})
}

fn secret(namespace: &str, name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name},
        "stringData": {"key": value}})
}

fn secret_reference(namespace: &str, name: &str) -> Value {
    json!({"secretKeyRef": {"namespace": namespace, "name": name, "key": "key"}})
}

/// Collects the paths of all values of a JSON document that are neither objects nor arrays.
fn collect_leaves(value: &Value, path: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter()
                .for_each(|(key, value)| collect_leaves(value, &format!("{path}/{key}"), all));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, value)| collect_leaves(value, &format!("{path}/{at}"), all)),
        _ => all.push(path.to_owned()),
    }
}

/// Returns a providerSpec with a value in every field that may refer to a Secret or ConfigMap.
fn full_provider_spec() -> Value {
    let mut provider = base_provider_spec();
    let cloud = &mut provider["cloudProviderSpec"];
    cloud["projectID"] = json!("shop");
    cloud["affinity"] = json!({"podAffinityPreset": "soft",
        "nodeAffinityPreset": {"type": "hard", "key": "k", "values": ["v"]}});
    cloud["topologySpreadConstraints"] =
        json!([{"maxSkew": "2", "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]);
    let machine = &mut cloud["virtualMachine"];
    machine["dnsPolicy"] = json!("Default");
    machine["dnsConfig"] = json!({"nameservers": ["192.0.2.53"]});
    machine["enableNetworkMultiQueue"] = json!(true);
    machine["evictionStrategy"] = json!("LiveMigrate");
    machine["flavor"] = json!({"name": "", "profile": "p"});
    machine["location"] = json!({"region": "r", "zone": "z"});
    machine["template"]["secondaryDisks"] = json!([{"size": "1Gi", "storageClassName": "fast", "storageAccessType": "ReadWriteOnce", "source": "blank"}]);
    set_value(&mut provider, &format!("{DISK_POINTER}/source"), json!("http"));
    set_value(&mut provider, &format!("{DISK_POINTER}/storageTarget"), json!("storage"));
    set_value(&mut provider, &format!("{DISK_POINTER}/pullMethod"), json!("node"));
    set_value(&mut provider, &format!("{DISK_POINTER}/dataVolumeSecretRef"), json!("s"));
    set_value(&mut provider, &format!("{DISK_POINTER}/extraHeadersSecretRef"), json!("headers"));
    provider
}

fn flat_provider_spec() -> Value {
    json!({
        "cloudProvider": "kubevirt", "operatingSystem": "centos", "operatingSystemSpec": {},
        "cloudProviderSpec": {
            "clusterName": "x", "projectID": "p", "kubeconfig": "", "cpus": "1", "memory": "2Gi", "namespace": "n",
            "pvcSize": "10Gi", "sourceURL": "http://x/y.img", "storageClassName": "c", "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.53"]}, "podAntiAffinityPreset": "soft",
            "nodeAffinityPreset": {"type": "soft", "key": "k", "values": ["a"]},
        },
    })
}

/// Replaces each field by a reference to a Secret; no message may quote the value of the Secret.
#[test]
fn messages_redact_values_of_secrets() {
    let (mut attempts, mut refused) = (0, 0);
    for (provider, namespace) in
        [(full_provider_spec(), "test-namespace"), (flat_provider_spec(), "test-namespace")]
    {
        let mut paths = Vec::new();
        collect_leaves(&provider, "", &mut paths);
        for path in paths {
            for value in [
                CANARY,
                "c4n4ry-7f3a",
                "c4n4ry-7f3a Gi",
                "https://c4n4ry-7f3a host/x",
                "c4n4ry/7f3a",
            ] {
                let mut provider = provider.clone();
                let (parent, last) = path.rsplit_once('/').unwrap();
                let parent = provider.pointer_mut(parent).unwrap();
                match parent {
                    Value::Array(items) => {
                        items[last.parse::<usize>().unwrap()] = secret_reference(namespace, "s")
                    }
                    other => other[last] = secret_reference(namespace, "s"),
                }
                let other_objects = [
                    secret("test-namespace", "s", value),
                    secret("test-namespace", "headers", "h"),
                    infra_config(
                        json!({"images": {"http": {"operatingSystems": {"ubuntu": {"24.04": "http://i/u.img"}}}}}),
                    ),
                    tenant_cluster("abc", json!({})),
                ];
                let report =
                    match render_deployment(&machine_deployment(&provider), &other_objects, "vm") {
                        Ok(rendered) => {
                            rendered.warnings.iter().map(|note| format!("{note}\n")).collect()
                        }
                        Err(report) => {
                            refused += 1;
                            report.0
                        }
                    };
                assert!(!report.contains("c4n4ry"), "{path}: {report}");
                assert!(!report.contains("7f3a"), "{path}: {report}");
                attempts += 1;
            }
        }
    }
    assert!(attempts > 250 && refused > 100, "{attempts} attempts, {refused} refused");
}

#[test]
fn references_may_use_own_and_listed_namespaces() {
    let place = "/cloudProviderSpec/virtualMachine/template/cpus";
    let report = |namespace: &str, more: &[Value]| {
        let mut provider = base_provider_spec();
        set_value(&mut provider, place, secret_reference(namespace, "sizes"));
        let mut other_objects = vec![
            secret("kube-system", "sizes", "3"),
            secret("cluster-cluster-name", "sizes", "4"),
            secret("elsewhere", "sizes", "5"),
            tenant_cluster("cluster-name", json!({"machineNamespaces": ["kube-system"]})),
        ];
        other_objects.extend(more.iter().cloned());
        let mut deployment = machine_deployment(&provider);
        deployment["metadata"]["namespace"] = json!("kube-system");
        let cpus = |machine: &Value| {
            machine["spec"]["template"]["spec"]["domain"]["resources"]["requests"]["cpu"].clone()
        };
        render_in_derived_namespace(&deployment, &other_objects, "vm")
            .map(|rendered| cpus(&rendered.machine))
    };
    assert_eq!(report("kube-system", &[]).unwrap(), "3");
    assert_eq!(report("cluster-cluster-name", &[]).unwrap(), "4");
    let refused = report("elsewhere", &[]).unwrap_err();
    for words in
        ["template.cpus.secretKeyRef: `elsewhere/sizes`", "InfraConfig", "secretReferences"]
    {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    // The message does not reveal whether the Secret exists.
    let absent = report("nowhere", &[]).unwrap_err();
    assert_eq!(absent.0, refused.replace("elsewhere", "nowhere"));
    let listed =
        infra_config(json!({"secretReferences": [{"namespace": "elsewhere", "name": "sizes"}]}));
    assert_eq!(report("elsewhere", &[listed]).unwrap(), "5");
    let other =
        infra_config(json!({"secretReferences": [{"namespace": "elsewhere", "name": "more"}]}));
    assert_eq!(report("elsewhere", &[other]).unwrap_err(), refused);
}

/// A requester can read VirtualMachines, and thus the values in them.
#[test]
fn machines_of_requested_tenants_do_not_refer_to_listed_secrets() {
    let report = |namespace: &str, uid: Option<&str>| {
        let mut provider = base_provider_spec();
        let place = "/cloudProviderSpec/virtualMachine/template/cpus";
        set_value(&mut provider, place, secret_reference(namespace, "sizes"));
        let mut tenant = tenant_cluster("cluster-name", json!({}));
        if let Some(uid) = uid {
            tenant["metadata"]["annotations"] = json!({"berth.dev/tenant-request-uid": uid});
        }
        let listed = json!({"secretReferences": [{"namespace": "elsewhere", "name": "sizes"}]});
        let other_objects = [
            secret("cluster-cluster-name", "sizes", "4"),
            secret("elsewhere", "sizes", "5"),
            infra_config(listed),
            tenant,
        ];
        let mut deployment = machine_deployment(&provider);
        deployment["metadata"]["namespace"] = json!("cluster-cluster-name");
        render_in_derived_namespace(&deployment, &other_objects, "vm").map(drop)
    };
    assert_eq!(report("elsewhere", None), Ok(()));
    assert_eq!(report("cluster-cluster-name", Some("u")), Ok(()));
    let refused = report("elsewhere", Some("u")).unwrap_err();
    assert!(refused.contains("`elsewhere/sizes`"), "{refused}");
    assert!(refused.contains("does not apply to tenants that users request"), "{refused}");
}

/// The token of the tenant's CSI driver and the user data of machines are in the namespace of the machines.
#[test]
fn tokens_and_secrets_of_berth_are_never_copied() {
    let token = ("type", json!("kubernetes.io/service-account-token"));
    let user = ("type", json!("Opaque"));
    let managed = ("app.kubernetes.io/managed-by", json!("berth"));
    let managed_by_other = ("app.kubernetes.io/managed-by", json!("other"));
    for ((field, value), words) in [
        (token, Some("is a token of a ServiceAccount")),
        (managed, Some("is managed by Berth")),
        (user, None),
        (managed_by_other, None),
    ] {
        let mut object = secret("test-namespace", "s", "c4n4ry-7f3a");
        match field {
            "type" => object["type"] = value,
            label => object["metadata"]["labels"] = json!({ label: value }),
        }
        let path = |name: &str| format!("{DISK_POINTER}/{name}");
        for (path, reference) in [
            (path("extraHeadersSecretRef"), json!("s")),
            (path("osImage"), secret_reference("test-namespace", "s")),
        ] {
            let mut provider = base_provider_spec();
            set_value(&mut provider, &path, reference);
            let deployment = machine_deployment(&provider);
            let report = match render_deployment(&deployment, std::slice::from_ref(&object), "vm") {
                Ok(rendered) => format!("{:#}", rendered.machine),
                Err(report) => report.0,
            };
            match words {
                Some(words) => {
                    assert!(report.contains(words), "{path}: {report}");
                    assert!(!report.contains("c4n4ry"), "{path}: {report}");
                }
                None if path.ends_with("SecretRef") => {
                    assert!(report.contains("key: c4n4ry-7f3a"), "{path}: {report}");
                }
                None => assert!(!report.contains("refer to another Secret"), "{path}: {report}"),
            }
        }
    }
}

#[test]
fn tenant_lists_the_namespaces_that_may_reference_it() {
    let from = |namespace: &str, by: &str, listed: Value| {
        let mut provider = base_provider_spec();
        let mut metadata = json!({"name": "web", "namespace": namespace});
        match by {
            "annotation" => {
                metadata["annotations"] = json!({"berth.dev/tenant": "abc"});
                provider["cloudProviderSpec"].as_object_mut().unwrap().remove("clusterName");
            }
            _ => provider["cloudProviderSpec"]["clusterName"] = json!("abc"),
        }
        let mut deployment = machine_deployment(&provider);
        deployment["metadata"] = metadata;
        let tenant = tenant_cluster(
            "abc",
            json!({"network": {"name": "trunk", "binding": "Bridge"}, "machineNamespaces": listed}),
        );
        render_in_derived_namespace(&deployment, &[tenant], "vm")
    };
    for by in ["annotation", "clusterName"] {
        let refused = from("other", by, json!([])).unwrap_err();
        for words in ["`abc`", "TenantCluster abc", "spec.machineNamespaces", "namespace other"] {
            assert!(refused.contains(words), "{by}: {refused}");
        }
        assert!(from("other", by, json!(["others"])).is_err());
        let listed = from("other", by, json!(["other"])).unwrap();
        assert_eq!(listed.namespace, "cluster-abc");
        assert!(listed.machine.to_string().contains("cluster-abc/tenant-abc"));
        // A deployment in the tenant's own namespace does not have to be listed in `spec.machineNamespaces`.
        assert_eq!(from("cluster-abc", by, json!([])).unwrap().namespace, "cluster-abc");
    }
    // The deployment is in the namespace of another tenant, `thief`, with and without a TenantCluster of this name.
    let mut foreign = machine_deployment(&base_provider_spec());
    foreign["metadata"] = json!({"name": "web", "namespace": "cluster-thief", "annotations": {"berth.dev/tenant": "abc"}});
    for beside in [
        vec![tenant_cluster("abc", json!({}))],
        vec![tenant_cluster("abc", json!({})), tenant_cluster("thief", json!({}))],
    ] {
        let refused = render_in_derived_namespace(&foreign, &beside, "vm").unwrap_err();
        assert!(refused.contains("metadata.annotations[berth.dev/tenant]: `abc`"), "{refused}");
    }
    // An annotation that names a tenant without TenantCluster is an error: otherwise the machines would be created in
    // another namespace, and would become orphans after the TenantCluster is created.
    let refused = render_in_derived_namespace(&foreign, &[], "vm").unwrap_err();
    assert!(refused.contains("metadata.annotations[berth.dev/tenant]: `abc`"), "{refused}");
}

fn deployment_with_template(metadata: Value) -> Value {
    let mut deployment = machine_deployment(&base_provider_spec());
    set_value(&mut deployment, "/spec/template/metadata", metadata);
    deployment
}

#[test]
fn annotations_that_act_on_pods_are_ignored_and_reported() {
    const REFUSED_ANNOTATIONS: [&str; 8] = [
        "hooks.kubevirt.io/hookSidecars",
        "v1.multus-cni.io/default-network",
        "k8s.v1.cni.cncf.io/networks",
        "container.apparmor.security.beta.kubernetes.io/compute",
        "kubevirt.io/ignitiondata",
        "ovn.kubernetes.io/logical_switch",
        "cdi.kubevirt.io/storage.import.secretName",
        "example.com/own",
    ];
    let mut annotations: Map<String, Value> =
        REFUSED_ANNOTATIONS.iter().map(|key| ((*key).to_owned(), json!("x"))).collect();
    annotations.insert("own".to_owned(), json!("kept"));
    annotations.insert("cdi.kubevirt.io/storage.usePopulator".to_owned(), json!("false"));
    let deployment = deployment_with_template(json!({"annotations": annotations}));
    let machine = render_deployment(&deployment, &[], "vm").unwrap();
    let text = machine.machine.to_string();
    let report: String = machine.warnings.iter().map(|note| format!("{note}\n")).collect();
    for key in REFUSED_ANNOTATIONS {
        assert!(!text.contains(key), "{key}: {text}");
        assert!(
            report.contains(&format!("spec.template.metadata.annotations: `{key}`")),
            "{key}: {report}"
        );
    }
    assert!(report.contains("annotationPrefixes"), "{report}");
    let template = &machine.machine["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(template["own"], "kept");
    assert_eq!(
        machine.machine["spec"]["dataVolumeTemplates"][0]["metadata"]["annotations"],
        json!({"cdi.kubevirt.io/storage.usePopulator": "false"})
    );
    // The InfraConfig permits two of these annotations.
    let listed = infra_config(
        json!({"annotationPrefixes": ["example.com/", "hooks.kubevirt.io/hookSidecars"]}),
    );
    let machine = render_deployment(&deployment, &[listed], "vm").unwrap();
    let template = &machine.machine["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(
        (&template["example.com/own"], &template["hooks.kubevirt.io/hookSidecars"]),
        (&json!("x"), &json!("x"))
    );
    assert!(!machine.machine.to_string().contains("default-network"));
}

#[test]
fn labels_that_controllers_act_on_are_ignored_and_reported() {
    const REFUSED_LABELS: [(&str, &str); 6] = [
        ("kubevirt.io/migrationJobUID", "x"),
        ("cdi.kubevirt.io", "importer"),
        ("berth.dev/tenant", "other"),
        ("app", "containerized-data-importer"),
        ("app.kubernetes.io/managed-by", "berth"),
        ("cluster.x-k8s.io/cluster-name", "other"),
    ];
    let labels: Map<String, Value> =
        REFUSED_LABELS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let mut labels = json!(labels);
    labels["team"] = json!("shop");
    labels["app.kubernetes.io/name"] = json!("web");
    labels["system/cluster"] = json!("kmvh888v9h");
    let machine =
        render_deployment(&deployment_with_template(json!({"labels": labels})), &[], "vm").unwrap();
    let report: String = machine.warnings.iter().map(|note| format!("{note}\n")).collect();
    for place in ["/metadata/labels", "/spec/template/metadata/labels"] {
        let labels = machine.machine.pointer(place).unwrap();
        for (key, value) in REFUSED_LABELS {
            assert_ne!(labels[key], value, "{labels}");
        }
        assert_eq!(
            (&labels["team"], &labels["app.kubernetes.io/name"], &labels["system/cluster"]),
            (&json!("shop"), &json!("web"), &json!("kmvh888v9h"))
        );
    }
    for (key, _) in REFUSED_LABELS {
        assert!(
            report.contains(&format!("spec.template.metadata.labels: `{key}`")),
            "{key}: {report}"
        );
    }
}

#[test]
fn a_template_sets_the_role_of_its_machines() {
    let role = |value: &str| {
        let labels = json!({"labels": {"cluster.x-k8s.io/role": value}});
        let machine = render_deployment(&deployment_with_template(labels), &[], "vm").unwrap();
        let labels = ["/metadata/labels", "/spec/template/metadata/labels"]
            .map(|place| machine.machine.pointer(place).unwrap()["cluster.x-k8s.io/role"].clone());
        let report: String = machine.warnings.iter().map(|note| format!("{note}\n")).collect();
        (labels, report.contains("spec.template.metadata.labels[cluster.x-k8s.io/role]"))
    };
    assert_eq!(role("control-plane"), ([json!("control-plane"), json!("control-plane")], false));
    assert_eq!(role("worker"), ([json!("worker"), json!("worker")], false));
    assert_eq!(role("etcd"), ([json!("worker"), json!("worker")], true));
}

#[test]
fn unsupported_fields_are_reported() {
    let mut provider = base_provider_spec();
    provider["network"] = json!({"cidr": "10.0.0.0/8"});
    set_value(
        &mut provider,
        "/cloudProviderSpec/virtualMachine/providerNetwork",
        json!({"name": "kubeovn", "vpc": {"name": "v"}}),
    );
    set_value(&mut provider, "/cloudProviderSpec/virtualMachine/flavor", json!({"profile": "p"}));
    let mut deployment = machine_deployment(&provider);
    deployment["spec"]["revisionHistoryLimit"] = json!(1);
    deployment["spec"]["template"]["spec"]["metadata"] =
        json!({"creationTimestamp": null, "labels": {"system/cluster": "x"}});
    deployment["spec"]["template"]["spec"]["taints"] =
        json!([{"key": "a", "effect": "NoSchedule"}]);
    deployment["spec"]["template"]["spec"]["versions"] = json!({"kubelet": "1.33.4"});
    deployment["spec"]["template"]["spec"]["configSource"] = json!({"kind": "Node"});
    let machine = render_deployment(&deployment, &[], "vm").unwrap();
    let report: String = machine.warnings.iter().map(|note| format!("{note}\n")).collect();
    for words in [
        "spec.template.spec.metadata.labels: `system/cluster`",
        "spec.template.spec.taints",
        "spec.template.spec.versions.kubelet: `1.33.4`",
        "spec.template.spec.configSource",
        "providerSpec.value.operatingSystemSpec",
        "providerSpec.value.network",
        "providerNetwork.name: `kubeovn`",
        "providerNetwork.vpc.name: `v`",
        "flavor.profile: `p`",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    // Empty fields are not reported.
    let mut plain = base_provider_spec();
    plain["operatingSystemSpec"] = json!({});
    let machine = render_deployment(&super::machine_deployment(&plain), &[], "vm").unwrap();
    assert_eq!(machine.warnings, []);
}

#[test]
fn node_selectors_and_tolerations_are_rendered() {
    let mut provider = base_provider_spec();
    let cloud = &mut provider["cloudProviderSpec"];
    cloud["nodeSelector"] = json!({"pool": "fast"});
    cloud["tolerations"] = json!([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]);
    let machine = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine;
    let spec = &machine["spec"]["template"]["spec"];
    assert_eq!(spec["nodeSelector"], json!({"pool": "fast"}));
    assert_eq!(
        spec["tolerations"],
        json!([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}])
    );
    for (tolerations, words) in [
        (json!([{"operator": "Exists"}]), "tolerations[0].key: is missing"),
        (
            json!([{"key": "node-role.kubernetes.io/control-plane"}]),
            "tolerations[0].key: `node-role.kubernetes.io/control-plane`",
        ),
        (json!([{"key": "a", "operator": "Is"}]), "tolerations[0].operator: `Is`"),
        (json!([{"key": "a", "operater": "Exists"}]), "operater"),
        (json!({}), "must be a list"),
    ] {
        provider["cloudProviderSpec"]["tolerations"] = tolerations;
        let report = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap_err();
        assert!(report.contains(words), "{words}: {report}");
    }
}
