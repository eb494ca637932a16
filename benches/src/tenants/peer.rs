//! The peer: a plain client that creates the same objects with one request each, on a new API server.

use anyhow::{Result, ensure};

use super::machines;
use super::world;
use crate::cluster::{Cluster, New, collection, plain};

/// Objects that the controller created in both phases, in a form that can be created again.
#[derive(Debug, Default)]
pub(super) struct Made {
    namespaces: Vec<New>,
    of_tenants: Vec<New>,
    of_machines: Vec<New>,
}

/// API version, kind and plural of the objects of tenants.
const OF_TENANTS: [(&str, &str, &str); 8] = [
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
const VMS: (&str, &str, &str) = ("kubevirt.io/v1", "VirtualMachine", "virtualmachines");
const SECRETS: (&str, &str, &str) = ("v1", "Secret", "secrets");

impl Made {
    /// Lists the objects that the controller created in a cluster.
    pub(super) fn of(cluster: &Cluster) -> Result<Self> {
        let all = |kinds: &[(&str, &str, &str)], labels: &str| -> Result<Vec<New>> {
            let mut all = Vec::new();
            for (version, kind, plural) in kinds {
                for object in cluster.all(&collection(version, "", plural), labels)? {
                    let namespace =
                        object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
                    let path = collection(version, &namespace, plural);
                    all.push(New::at(path, &plain(object, (*version, *kind))));
                }
            }
            Ok(all)
        };
        let ours = "app.kubernetes.io/managed-by=berth";
        let mut of_machines = all(&[VMS], "md")?;
        of_machines.extend(all(&[SECRETS], ours)?);
        let made = Self {
            namespaces: all(&[("v1", "Namespace", "namespaces")], ours)?,
            of_tenants: all(&OF_TENANTS, ours)?,
            of_machines,
        };
        ensure!(!made.namespaces.is_empty(), "the controller has made no namespace");
        Ok(made)
    }

    /// Returns the number of objects of tenants and of machines.
    pub(super) fn sizes(&self) -> (u64, u64) {
        ((self.namespaces.len() + self.of_tenants.len()) as u64, self.of_machines.len() as u64)
    }

    /// Creates all objects on a new API server, including the objects of the user. Returns the seconds for tenants
    /// and for machines.
    pub(super) fn again(&self, at_once: usize, tenants: u32, replicas: u32) -> Result<(f64, f64)> {
        let plane = world::start()?;
        let cluster = Cluster::of(&plane.kubeconfig(), at_once)?;
        let mut of_tenants = cluster.create(&machines::tenants(tenants))?;
        of_tenants += cluster.create(&self.namespaces)?;
        of_tenants += cluster.create(&self.of_tenants)?;
        cluster.create(&machines::user_data(tenants))?;
        let mut of_machines = cluster.create(&machines::deployments(tenants, replicas))?;
        of_machines += cluster.create(&self.of_machines)?;
        Ok((of_tenants.as_secs_f64(), of_machines.as_secs_f64()))
    }
}
