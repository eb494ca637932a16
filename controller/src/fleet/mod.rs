//! All objects that placement is made of, typed and in order; what is broken is told and left out.

mod deployments;
mod kinds;
mod object;
mod render_input;
pub mod stream;
mod tenants;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{HostProfile, InfraNode, VlanClaim};
use k8s_openapi::api::core::v1;

use berth_api::Problem;
use berth_kubevirt_render::launcher::{Configuration, Machine, Surroundings};
use berth_kubevirt_render::machines::{self, MachineDeployment};
pub use deployments::Created;
pub use object::Item;
use object::{Object, problem, text};
pub use render_input::RenderInput;
pub use stream::Found;
pub use tenants::Tenant;

/// A fleet and what runs, or is to run, on it.
#[derive(Debug, Default)]
pub struct Fleet {
    /// Hosts by name.
    pub infra_nodes: BTreeMap<String, InfraNode>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, v1::Node>,
    /// Profiles by name.
    pub profiles: BTreeMap<String, HostProfile>,
    /// VirtualMachines and VirtualMachineInstances, in the order in which they stand.
    pub machines: Vec<Wanted>,
    /// Pods by namespace and name.
    pub pods: BTreeMap<(String, String), v1::Pod>,
    /// Instance types, networks, namespaces.
    pub surroundings: Surroundings,
    /// KubeVirt's configuration.
    pub configuration: Configuration,
    /// MachineDeployments, in the order in which they stand.
    pub deployments: Vec<MachineDeployment>,
    /// What machines are rendered with: tenants, defaults, storage.
    pub around: machines::RenderContext,
    /// VLANs that are taken.
    pub claims: Vec<Arc<VlanClaim>>,
    /// What tenants would have.
    pub tenants: Vec<Tenant>,
    /// Machines that MachineDeployments ask for beyond those that there are; they are among `machines`.
    pub created: Vec<Created>,
    /// Objects that placement does not look at, by kind.
    pub ignored: BTreeMap<String, usize>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// A machine, and where it is if it runs already.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The machine.
    pub machine: Machine,
    /// VirtualMachine or VirtualMachineInstance.
    pub kind: &'static str,
    /// `status.nodeName` of the instance.
    pub host: Option<String>,
    /// Whether it is to run at all.
    pub is_on: bool,
    /// What the annotation [`CLASS`] says.
    pub class: Option<String>,
}

/// All objects of a text, typed; items of lists one by one.
pub fn items(source: &str, text: &str, problems: &mut Vec<Problem>) -> Vec<Item> {
    stream::each(source, text, problems, Item::of)
}

impl Fleet {
    /// Sorts objects by what they are.
    #[must_use]
    pub fn of(items: Vec<Item>, problems: Vec<Problem>) -> Self {
        let mut fleet = Self { problems, ..Self::default() };
        let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
        for Item { place, object } in items {
            let added = object.and_then(|object| fleet.add(object, &place, &mut seen));
            if let Err(problem) = added {
                fleet.problems.push(problem);
            }
        }
        fleet.furnish();
        fleet.expand();
        fleet
    }

    fn add(
        &mut self,
        object: Object,
        place: &str,
        seen: &mut BTreeMap<(String, String), usize>,
    ) -> Result<(), Problem> {
        let twice = match object {
            Object::InfraNode(name, node) => {
                let twice = format!("InfraNode {name}");
                self.infra_nodes.insert(name, *node).map(|_| twice)
            }
            Object::HostProfile(name, profile) => {
                let twice = format!("HostProfile {name}");
                self.profiles.insert(name, *profile).map(|_| twice)
            }
            Object::Node(name, node) => {
                let twice = format!("Node {name}");
                self.nodes.insert(name, *node).map(|_| twice)
            }
            Object::Pod(name, pod) => {
                let namespace = pod.metadata.namespace.clone();
                let namespace = namespace.unwrap_or_else(|| "default".to_owned());
                let twice = format!("Pod {namespace}/{name}");
                self.pods.insert((namespace, name), *pod).map(|_| twice)
            }
            Object::Machine(wanted) => {
                self.machine(*wanted, seen);
                None
            }
            Object::Configuration(configuration) => {
                self.configuration = *configuration;
                None
            }
            Object::Deployment(deployment) => {
                self.deployments.push(*deployment);
                None
            }
            Object::Tenant(name, tenant) => {
                let twice = format!("TenantCluster {name}");
                self.around.tenants.insert(name, *tenant).map(|_| twice)
            }
            Object::Claim(claim) => {
                self.claims.push(Arc::new(*claim));
                None
            }
            Object::Config(config) => {
                self.around.config = config.spec;
                None
            }
            Object::Other(object) => {
                let of_machines = self.around.add(&object);
                if !self.surroundings.add(&object).map_err(problem)? && !of_machines {
                    let group = kinds::group(text(&object, "/apiVersion"));
                    *self
                        .ignored
                        .entry(kinds::named(text(&object, "/kind"), group))
                        .or_default() += 1;
                }
                None
            }
        };
        match twice {
            None => Ok(()),
            Some(object) => {
                let message = format!("is there more than once; the one in {place} counts");
                Err(Problem::new(object, "", "", message))
            }
        }
    }

    /// A VirtualMachine and its instance have one name, and the instance says where it is.
    fn machine(&mut self, wanted: Wanted, seen: &mut BTreeMap<(String, String), usize>) {
        let key = (wanted.machine.namespace.clone(), wanted.machine.name.clone());
        let Some(&at) = seen.get(&key) else {
            seen.insert(key, self.machines.len());
            return self.machines.push(wanted);
        };
        let Some(known) = self.machines.get_mut(at) else { return };
        if known.kind == wanted.kind {
            let message = "is there more than once; the last one counts";
            self.problems.push(Problem::new(&wanted.machine.object, "", "", message));
            *known = wanted;
        } else if wanted.kind == "VirtualMachineInstance" {
            known.host = wanted.host;
            known.is_on = true;
        } else {
            let host = known.host.take();
            *known = Wanted { host, is_on: true, ..wanted };
        }
    }
}
