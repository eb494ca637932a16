//! Tenants and their machines, from a MachineDeployment to a VM that runs on a host.

use berth_tests::cluster::condition;
use serde_json::{Value, json};

use crate::objects::{ARGUMENTS_ANNOTATION, DENSITY_FLAVOR, HOST_NETWORK, PERFORMANCE_FLAVOR};
use crate::testbed::{Testbed, text};

/// Subnet of all tenants.
const SUBNET: &str = "10.20.0.0/24";
/// VLAN of the tenant `bank`. The tenant `shop` gets a VLAN of the pool.
pub(crate) const BANK_VLAN: u64 = 120;

/// MachineDeployment with one machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) tenant: &'static str,
    /// Name of the MachineDeployment.
    pub(crate) name: &'static str,
    pub(crate) flavor: &'static str,
    /// Addresses that the guest gets by DHCP in the tenant's network: the address of the first machine, and the address
    /// of its replacement while the first address is in quarantine. All tenants have the same subnet, so a missing
    /// route is never the cause of a failed ping between tenants.
    pub(crate) addresses: [&'static str; 2],
    /// Address that the guest pings.
    pub(crate) peer: &'static str,
}

/// Machines of one tenant that ping each other, and a machine of another tenant that pings one of them.
pub(crate) const BANK_MACHINES: [Machine; 2] = [
    Machine {
        tenant: "bank",
        name: "db-a",
        flavor: PERFORMANCE_FLAVOR,
        addresses: ["10.20.0.11", "10.20.0.21"],
        peer: "10.20.0.12",
    },
    Machine {
        tenant: "bank",
        name: "db-b",
        flavor: PERFORMANCE_FLAVOR,
        addresses: ["10.20.0.12", "10.20.0.22"],
        peer: "10.20.0.11",
    },
];
pub(crate) const SHOP_MACHINE: Machine = Machine {
    tenant: "shop",
    name: "web",
    flavor: DENSITY_FLAVOR,
    addresses: ["10.20.0.13", "10.20.0.23"],
    peer: "10.20.0.11",
};

/// VM whose instance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vm {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Name of the launcher pod.
    pub(crate) pod: String,
    /// Uid of the launcher pod.
    pub(crate) uid: String,
    /// Index of the host in [`Testbed::hosts`].
    pub(crate) host: usize,
    /// Ethernet address of the guest's card in the tenant's network.
    pub(crate) mac: String,
}

impl Machine {
    pub(crate) fn namespace(&self) -> String {
        format!("cluster-{}", self.tenant)
    }

    /// Returns the MachineDeployment.
    pub(crate) fn deployment(&self) -> Value {
        // The agent of the host answers the DHCP requests of the second card.
        let annotations = json!({
            ARGUMENTS_ANNOTATION: format!("guest.address1=dhcp guest.ping={}", self.peer),
            "berth.dev/addresses": self.addresses.join(","),
        });
        let machine = json!({
            "flavor": {"name": self.flavor}, "preference": {"name": "performance"},
            "template": {"primaryDisk": {
                "osImage": "http://images.example/none.img", "size": "1Gi", "storageClassName": "longhorn",
            }},
        });
        let provider = json!({
            "cloudProvider": "kubevirt", "cloudProviderSpec": {"virtualMachine": machine},
            "operatingSystem": "ubuntu", "operatingSystemSpec": {},
        });
        let template = json!({
            "metadata": {"labels": {"name": self.name}, "annotations": annotations},
            "spec": {"providerSpec": {"value": provider}, "versions": {"kubelet": "1.33.4"}},
        });
        json!({
            "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": self.name, "namespace": self.namespace()},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": {"name": self.name}}, "template": template,
            },
        })
    }
}

/// Creates a tenant, and waits until the tenant is ready. Without a VLAN, the tenant gets a VLAN of the pool.
pub(crate) fn create_tenant(bed: &mut Testbed, name: &str, vlan: Option<u64>) {
    let namespace = format!("cluster-{name}");
    let mut network = json!({"name": HOST_NETWORK, "ipv4": {"cidr": SUBNET}});
    if let Some(vlan) = vlan {
        network["vlan"] = vlan.into();
    }
    let labels = json!({"app.kubernetes.io/managed-by": "berth", "berth.dev/tenant": name});
    for object in [
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
            "spec": {"network": network, "userDataSecretRef": {"name": "user-data"}},
        }),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": namespace},
            "stringData": {"userdata": "#cloud-config\n"},
        }),
    ] {
        bed.plane.apply(&object.to_string()).unwrap();
    }
    let object = ["tenantcluster", name];
    bed.wait_until(&format!("tenant {name} is ready"), &object, |plane| {
        let tenant = plane.get_json(&object).ok()?;
        (condition(&tenant, "Ready")["status"] == "True").then_some(())
    });
}

/// Creates a machine, and waits until its VM runs.
pub(crate) fn start(bed: &mut Testbed, machine: &Machine) -> Vm {
    bed.plane.apply(&machine.deployment().to_string()).unwrap();
    wait_until_running(bed, machine, "")
}

/// Waits until a VM of a machine runs, other than the VM with the name `except`.
pub(crate) fn wait_until_running(bed: &mut Testbed, machine: &Machine, except: &str) -> Vm {
    let namespace = machine.namespace();
    let label = format!("md={}", machine.name);
    let object = ["vmi", "-n", &namespace, "-l", &label];
    let (instance, pod) =
        bed.wait_until(&format!("{namespace}/{} runs", machine.name), &object, |plane| {
            let instances = plane.get_json(&object).ok()?;
            let instance = instances["items"].as_array()?.iter().find(|instance| {
                let has_addresses = !tenant_interface(instance)["mac"].is_null();
                let is_new = instance["metadata"]["name"] != except;
                is_new && has_addresses && instance["status"]["phase"] == "Running"
            })?;
            let label = format!("kubevirt.io/created-by={}", text(&instance["metadata"]["uid"]));
            let pods = plane.get_json(&["pods", "-n", &namespace, "-l", &label]).ok()?;
            let pod = pods["items"].get(0)?;
            Some((instance.clone(), pod.clone()))
        });
    assert_eq!(pod["spec"]["schedulerName"], "berth-scheduler", "{pod:#}");
    let node = text(&pod["spec"]["nodeName"]);
    Vm {
        name: text(&instance["metadata"]["name"]).to_owned(),
        pod: text(&pod["metadata"]["name"]).to_owned(),
        uid: text(&pod["metadata"]["uid"]).to_owned(),
        host: bed.hosts.iter().position(|host| host.name == node).unwrap(),
        mac: text(&tenant_interface(&instance)["mac"]).to_owned(),
        namespace,
    }
}

/// Returns the status of an instance's interface in the tenant's network, or null.
fn tenant_interface(instance: &Value) -> &Value {
    let interfaces = instance["status"]["interfaces"].as_array();
    let mut interfaces = interfaces.into_iter().flatten();
    interfaces.find(|interface| interface["name"] == "tenant").unwrap_or(&Value::Null)
}
