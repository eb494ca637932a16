//! Objects that a user creates: TenantClusters, user data and MachineDeployments.

use serde_json::{Value, json};

use super::setup::NETWORK;
use crate::cluster::NewObject;

/// Image of all machines.
pub(super) const IMAGE: &str = "http://images.example/ubuntu.img";
const GROUP_PATH: &str = "/apis/cluster.k8s.io/v1alpha1";

fn tenant_name(number: u32) -> String {
    format!("t{number:04}")
}

/// Returns TenantClusters, each with a VLAN.
pub(super) fn tenants(count: u32) -> Vec<NewObject> {
    let tenant = |number: u32| {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": tenant_name(number)},
            "spec": {"network": {"name": NETWORK}, "userDataSecretRef": {"name": "user-data"}},
        });
        NewObject::new("/apis/berth.dev/v1alpha1/tenantclusters", &object)
    };
    (1..=count).map(tenant).collect()
}

/// Returns the Secrets with user data that the tenants reference.
pub(super) fn user_data_secrets(count: u32) -> Vec<NewObject> {
    let secret = |number: u32| {
        let namespace = format!("cluster-{}", tenant_name(number));
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": namespace},
            "stringData": {"userdata": "#cloud-config\nhostname: machine\npackages: [curl]\n"},
        });
        NewObject::new(format!("/api/v1/namespaces/{namespace}/secrets"), &object)
    };
    (1..=count).map(secret).collect()
}

/// Returns a MachineDeployment for each tenant.
pub(super) fn deployments(count: u32, replicas: u32) -> Vec<NewObject> {
    let new = |number: u32| {
        let object = deployment(number, replicas);
        NewObject::new(
            format!("{GROUP_PATH}/namespaces/cluster-{}/machinedeployments", tenant_name(number)),
            &object,
        )
    };
    (1..=count).map(new).collect()
}

/// Returns the MachineDeployment of a tenant.
pub(super) fn deployment(number: u32, replicas: u32) -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "web", "namespace": format!("cluster-{}", tenant_name(number))},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"name": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"name": "web"}},
                "spec": {
                    "providerSpec": {"value": {
                        "sshPublicKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample user"],
                        "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
                        "cloudProviderSpec": {
                            "affinity": {"podAntiAffinityPreset": "soft"},
                            "virtualMachine": {"template": {
                                "cpus": "2", "memory": "4Gi",
                                "primaryDisk": {"osImage": IMAGE, "size": "20Gi"},
                                "secondaryDisks": [
                                    {"size": "10Gi", "source": "blank"},
                                    {"name": "data", "size": "10Gi", "hotpluggable": true},
                                ],
                            }},
                        },
                    }},
                    "versions": {"kubelet": "1.33.4"},
                },
            },
        },
    })
}
