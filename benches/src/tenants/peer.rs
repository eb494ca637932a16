//! The peer: a plain client that creates the same objects with one request each, on a new API server.

use anyhow::{Result, ensure};
use berth_api::names::IMAGE_GRANT_LABEL;

use super::machines;
use super::setup;
use crate::cluster::{Cluster, NewObject, collection_path, strip_server_fields};

/// Objects that the controller created for tenants and for machines, without the fields that the API server sets,
/// so that they can be created again.
#[derive(Debug, Default)]
pub(super) struct CreatedObjects {
    namespaces: Vec<NewObject>,
    tenant_objects: Vec<NewObject>,
    machine_objects: Vec<NewObject>,
}

/// API version, kind and plural of the objects that the controller creates for a tenant.
const TENANT_KINDS: [(&str, &str, &str); 8] = [
    ("berth.dev/v1alpha1", "VlanClaim", "vlanclaims"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("rbac.authorization.k8s.io/v1", "Role", "roles"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    (
        "instancetype.kubevirt.io/v1beta1",
        "VirtualMachineInstancetype",
        "virtualmachineinstancetypes",
    ),
    ("instancetype.kubevirt.io/v1beta1", "VirtualMachinePreference", "virtualmachinepreferences"),
];
/// API version, kind and plural of the object that the controller creates for a machine.
const VM_KIND: (&str, &str, &str) = ("kubevirt.io/v1", "VirtualMachine", "virtualmachines");
const SECRET_KIND: (&str, &str, &str) = ("v1", "Secret", "secrets");
/// API version, kind and plural of the permission to clone a golden image, which the controller creates with the first
/// machines of a tenant.
const GRANT_KIND: (&str, &str, &str) =
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings");

impl CreatedObjects {
    /// Lists the objects that the controller created in a cluster.
    pub(super) fn list(cluster: &Cluster) -> Result<Self> {
        let all = |kinds: &[(&str, &str, &str)], labels: &str| -> Result<Vec<NewObject>> {
            let mut all = Vec::new();
            for (version, kind, plural) in kinds {
                for object in cluster.list_all(&collection_path(version, "", plural), labels)? {
                    let namespace =
                        object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
                    let path = collection_path(version, &namespace, plural);
                    all.push(NewObject::new(path, &strip_server_fields(object, (*version, *kind))));
                }
            }
            Ok(all)
        };
        let managed_by_berth = "app.kubernetes.io/managed-by=berth";
        let of_tenants = format!("{managed_by_berth},!{IMAGE_GRANT_LABEL}");
        let mut machine_objects = all(&[VM_KIND], "md")?;
        machine_objects.extend(all(&[SECRET_KIND], managed_by_berth)?);
        machine_objects.extend(all(&[GRANT_KIND], IMAGE_GRANT_LABEL)?);
        let created = Self {
            namespaces: all(&[("v1", "Namespace", "namespaces")], managed_by_berth)?,
            tenant_objects: all(&TENANT_KINDS, &of_tenants)?,
            machine_objects,
        };
        ensure!(!created.namespaces.is_empty(), "the controller has created no namespace");
        Ok(created)
    }

    /// Returns the numbers of objects, for tenants and for machines.
    pub(super) fn counts(&self) -> (u64, u64) {
        (
            (self.namespaces.len() + self.tenant_objects.len()) as u64,
            self.machine_objects.len() as u64,
        )
    }

    /// Creates all objects on a new API server, including the objects that a user creates. Returns the seconds for
    /// tenants and for machines.
    pub(super) fn recreate(
        &self,
        concurrency: usize,
        tenants: u32,
        replicas: u32,
    ) -> Result<(f64, f64)> {
        let plane = setup::start()?;
        let cluster = Cluster::new(&plane.kubeconfig(), concurrency)?;
        let mut tenants_elapsed = cluster.create(&machines::tenants(tenants))?;
        tenants_elapsed += cluster.create(&self.namespaces)?;
        tenants_elapsed += cluster.create(&self.tenant_objects)?;
        cluster.create(&machines::user_data_secrets(tenants))?;
        let mut machines_elapsed = cluster.create(&machines::deployments(tenants, replicas))?;
        machines_elapsed += cluster.create(&self.machine_objects)?;
        Ok((tenants_elapsed.as_secs_f64(), machines_elapsed.as_secs_f64()))
    }
}
