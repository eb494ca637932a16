//! Renders the examples in documents of KKP (Kubermatic Kubernetes Platform).

use serde_json::{Value, json};

use super::{DISK_POINTER, base_provider_spec, machine_deployment, render_deployment, set_value};

/// Returns a MachineDeployment in the flat format of KKP's first proposal, with all fields, and with the example values
/// of the affinity presets.
fn flat_deployment() -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {
            "annotations": {"machinedeployment.clusters.k8s.io/revision": "1"},
            "creationTimestamp": "2022-03-09T07:29:01Z", "finalizers": ["foregroundDeletion"],
            "name": "fervent-payne-worker-q5bwjq", "namespace": "kube-system"
        },
        "spec": {
            "minReadySeconds": 0, "progressDeadlineSeconds": 600, "replicas": 3, "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {"machine": "md-kmvh888v9h-lvpfx9rptr"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}, "type": "RollingUpdate"},
            "template": {
                "metadata": {"creationTimestamp": null, "labels": {"machine": "md-kmvh888v9h-lvpfx9rptr"}},
                "spec": {
                    "metadata": {
                        "creationTimestamp": null,
                        "labels": {"system/cluster": "kmvh888v9h", "system/project": "f8vwtl5w7s"}
                    },
                    "providerSpec": {"value": {
                        "caPublicKey": "", "cloudProvider": "kubevirt",
                        "cloudProviderSpec": {
                            "cpus": "1", "dnsConfig": {"nameservers": ["8.8.8.8"]}, "dnsPolicy": "None",
                            "kubeconfig": "", "memory": "2Gi", "namespace": "default", "pvcSize": "10Gi",
                            "sourceURL": "http://10.107.208.71/centos.img", "storageClassName": "local-path",
                            "podAffinityPreset": "", "podAntiAffinityPreset": "soft",
                            "nodeAffinityPreset": {"type": "soft", "key": "foo", "values": ["bar1", "bar2"]},
                            "nodeAntiAffinityPreset": {"type": "soft", "key": "foo", "values": ["bar1", "bar2"]}
                        },
                        "operatingSystem": "centos",
                        "operatingSystemSpec": {"distUpgradeOnBoot": false},
                        "sshPublicKeys": ["ssh-rsa AAAA"]
                    }},
                    "versions": {"kubelet": "1.21.10"}
                }
            }
        },
        "status": {"replicas": 3}
    })
}

const FLAT_SPEC_POINTER: &str = "/spec/template/spec/providerSpec/value/cloudProviderSpec";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[test]
fn the_flat_form_of_the_first_proposal_is_rendered() {
    let rendered_flat = render_deployment(&flat_deployment(), &[], "vm").unwrap();
    assert_eq!(rendered_flat.ssh_public_keys, ["ssh-rsa AAAA"]);
    let machine = rendered_flat.machine;
    let spec = &machine["spec"]["template"]["spec"];
    let near = json!({"key": "foo", "operator": "In", "values": ["bar1", "bar2"]});
    let far = json!({"key": "foo", "operator": "NotIn", "values": ["bar1", "bar2"]});
    let same = json!({
        "labelSelector": {"matchExpressions": [
            {"key": "machine", "operator": "In", "values": ["md-kmvh888v9h-lvpfx9rptr"]}
        ]},
        "topologyKey": "kubernetes.io/hostname"
    });
    let soft = |one: &Value| json!({"weight": 1, "preference": {"matchExpressions": [one]}});
    assert_eq!(
        spec["affinity"],
        json!({
            "nodeAffinity": {PREFERRED: [soft(&near), soft(&far)]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": same}]}
        })
    );
    assert_eq!(spec["dnsPolicy"], "None");
    assert_eq!(spec["dnsConfig"], json!({"nameservers": ["8.8.8.8"]}));
    assert_eq!(machine["metadata"]["labels"]["machine"], "md-kmvh888v9h-lvpfx9rptr");
    assert_eq!(spec["domain"]["resources"]["limits"], json!({"cpu": "1", "memory": "2Gi"}));
    assert_eq!(
        machine["spec"]["dataVolumeTemplates"],
        json!([{
            "metadata": {"name": "vm"},
            "spec": {
                "pvc": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
                    "storageClassName": "local-path"
                },
                "source": {"http": {"url": "http://10.107.208.71/centos.img"}}
            }
        }])
    );

    let mut hard = flat_deployment();
    set_value(&mut hard, &format!("{FLAT_SPEC_POINTER}/podAntiAffinityPreset"), json!(""));
    set_value(&mut hard, &format!("{FLAT_SPEC_POINTER}/podAffinityPreset"), json!("hard"));
    set_value(&mut hard, &format!("{FLAT_SPEC_POINTER}/nodeAffinityPreset/type"), json!("hard"));
    set_value(
        &mut hard,
        &format!("{FLAT_SPEC_POINTER}/nodeAntiAffinityPreset"),
        json!({"type": "hard", "key": "foo"}),
    );
    let machine = render_deployment(&hard, &[], "vm").unwrap().machine;
    let without = json!({"key": "foo", "operator": "DoesNotExist"});
    assert_eq!(
        machine["spec"]["template"]["spec"]["affinity"],
        json!({
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [near, without]}]}},
            "podAffinity": {REQUIRED: [same]}
        })
    );
}

/// The sample of KKP 2.21: affinity presets select pods by the label `md`, and values may be placeholders such as `<<
/// KUBECONFIG >>`.
#[test]
fn presets_of_the_documents_are_rendered() {
    let affinity = |preset: &str, strength: &str, at: &str| {
        let mut provider = base_provider_spec();
        set_value(&mut provider, &format!("{at}/{preset}"), json!(strength));
        render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine["spec"]["template"]["spec"]
            ["affinity"]
            .clone()
    };
    let term = json!({"labelSelector": {"matchLabels": {"md": "md-name"}}, "topologyKey": "kubernetes.io/hostname"});
    for (preset, field) in
        [("podAffinityPreset", "podAffinity"), ("podAntiAffinityPreset", "podAntiAffinity")]
    {
        for at in ["/cloudProviderSpec/affinity", "/affinity"] {
            assert_eq!(affinity(preset, "hard", at), json!({field: {REQUIRED: [term]}}));
            assert_eq!(
                affinity(preset, "Soft", at),
                json!({field: {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}})
            );
            assert_eq!(affinity(preset, "", at), json!({}));
        }
    }
    let mut provider = base_provider_spec();
    set_value(
        &mut provider,
        "/cloudProviderSpec/auth",
        json!({"kubeconfig": {"value": "<< KUBECONFIG >>"}}),
    );
    set_value(&mut provider, &format!("{DISK_POINTER}/osImage"), json!("<< YOUR_IMAGE_SOURCE >>"));
    let sample = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap();
    // The three warnings are about the two placeholders, and about operatingSystemSpec, which is not supported.
    assert_eq!(sample.warnings.len(), 3, "{:?}", sample.warnings);
    set_value(
        &mut provider,
        "/cloudProviderSpec/affinity/nodeAffinityPreset",
        json!({"type": "soft", "key": "foo"}),
    );
    let machine = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine;
    assert_eq!(
        machine["spec"]["template"]["spec"]["affinity"],
        json!({"nodeAffinity": {PREFERRED:
        [{"weight": 1, "preference": {"matchExpressions": [{"key": "foo", "operator": "Exists"}]}}]}})
    );
}

#[test]
fn all_flavors_except_the_first_are_instance_types() {
    let machine_with_flavor = |name: &str| {
        let mut provider = base_provider_spec();
        let template = provider.pointer_mut("/cloudProviderSpec/virtualMachine/template").unwrap();
        template.as_object_mut().unwrap().retain(|key, _| key == "primaryDisk");
        set_value(&mut provider, "/cloudProviderSpec/virtualMachine/flavor", json!({"name": name}));
        render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine
    };
    let standard = machine_with_flavor("kubermatic-standard");
    let domain = &standard["spec"]["template"]["spec"]["domain"];
    assert_eq!(domain["resources"]["requests"], json!({"cpu": "2", "memory": "8Gi"}));
    assert_eq!(standard["metadata"]["labels"]["kubevirt.io/flavor"], "kubermatic-standard");
    let performance = machine_with_flavor("performance-4");
    assert_eq!(
        performance["spec"]["instancetype"],
        json!({"name": "performance-4", "kind": "VirtualMachineClusterInstancetype"})
    );
    assert!(performance["spec"]["template"]["spec"]["domain"].get("resources").is_none());
    assert_eq!(
        performance["spec"]["preference"],
        json!({"name": "performance", "kind": "VirtualMachineClusterPreference"})
    );
    let database = machine_with_flavor("performance-database-4");
    assert_eq!(database["spec"]["preference"]["name"], "performance-database");
}
