//! Conversion of a fleet to the input of the engine: hosts, pods on the hosts, and VMs to be placed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Class, HostProfile, InfraConfigSpec};
use k8s_openapi::api::core::v1;

use super::add::HostAddition;
use crate::fleet::{Fleet, FleetMachine, StorageObjects, pod_claims};
use crate::parallel;
use berth_api::Problem;
use berth_api::names::{CLASS_LABEL, INFRA_CONFIG};
use berth_kubelet_admission::pod::Guest;
use berth_kubevirt_render::launcher::{ExistingPod, Invalid, Launcher, predict};
use berth_placement::engine::{Engine, Request, VmRequirements, parse_class};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{PodFields, is_label_key};

/// A VM to be placed.
#[derive(Clone, Debug)]
pub(super) struct PendingVm {
    pub(super) name: String,
    pub(super) request: Request,
}

/// State of a plan: the engine with hosts and running pods, and the pending VMs.
#[derive(Debug, Default)]
pub(super) struct Simulation {
    pub(super) engine: Engine,
    pub(super) pending: Vec<PendingVm>,
    /// Names of the pods on hosts, by UID. For a pod of a VM, the name of the VM.
    pub(super) pod_names: BTreeMap<String, String>,
    pub(super) running_count: usize,
    pub(super) stopped_count: usize,
    /// Labels that a host without a Node is assumed to have.
    assumed_labels: BTreeMap<String, String>,
    pub(super) problems: Vec<Problem>,
}

/// Consequence of a fatal problem, for the message: the plan does not contain the object.
const OMITTED: &str = "left out";

fn invalid_object_problem(invalid: Invalid) -> Problem {
    Problem::new(invalid.object, invalid.field, "", invalid.message).into_fatal(OMITTED)
}

/// Returns the labels that VMs select and that only KubeVirt's node labeller sets. Hosts without a Node are assumed
/// to have these labels.
fn assumed_labels<'a>(launchers: impl Iterator<Item = &'a Launcher>) -> BTreeMap<String, String> {
    let is_set_by_node_labeller = |key: &&String| {
        key.split_once('/').is_some_and(|(prefix, _)| prefix.ends_with(".node.kubevirt.io"))
    };
    let selectors = launchers.flat_map(|launcher| launcher.node_selector.iter());
    selectors
        .filter(|(key, _)| is_set_by_node_labeller(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Prefix of the taints that Kubernetes sets, such as that of a Node that is cordoned.
const STATE_TAINTS: &str = "node.kubernetes.io/";

/// Label in which KubeVirt stores the name of the pod's VM.
const VM_NAME_LABEL: &str = "vm.kubevirt.io/name";

impl Simulation {
    pub(super) fn build(fleet: &Fleet, addition: Option<HostAddition<'_>>) -> Self {
        // All launchers stay in memory until the hosts have been added. Therefore they are boxed, so that no vector
        // copies them, and the annotations are dropped, because the placement does not read them.
        let launchers = parallel::map(&fleet.machines, |machine| {
            predict(&machine.machine, &fleet.kubevirt_configuration, &fleet.cluster_objects)
                .map(|launcher| Box::new(Launcher { annotations: BTreeMap::new(), ..launcher }))
        });
        let mut simulation =
            Self { engine: Engine::new(), problems: fleet.problems.clone(), ..Self::default() };
        simulation.set_control_plane_spread(&fleet.render_context.config);
        for (name, labels) in &fleet.cluster_objects.namespaces {
            simulation.engine.set_namespace(name, labels);
        }
        let valid_launchers = launchers.iter().flatten().map(|launcher| &**launcher);
        simulation.assumed_labels = assumed_labels(valid_launchers);
        let hosts = parallel::map(fleet.infra_nodes.iter(), |(name, infra)| {
            let node = fleet.nodes.get(name);
            let mut problems = Vec::new();
            (ReportedHost::read(infra, node, &mut problems), node.is_some(), problems)
        });
        for (facts, has_node, problems) in hosts {
            simulation.problems.extend(problems);
            simulation.add_host(fleet, facts, has_node);
        }
        if let Some(addition) = addition {
            simulation.add_copied_hosts(fleet, &addition);
        }
        simulation.add_storage(&fleet.storage);
        let machines_with_pod = simulation.add_pods(fleet);
        simulation.report_unknown_allocations(fleet);
        simulation.pending.reserve(fleet.machines.len());
        for (machine, launcher) in fleet.machines.iter().zip(launchers) {
            let key = (machine.machine.namespace.clone(), machine.machine.name.clone());
            if machines_with_pod.contains(&key) {
                continue;
            }
            if machine.should_run {
                simulation.add_machine(&fleet.storage, machine, launcher)
            } else {
                simulation.stopped_count += 1
            }
        }
        simulation
    }

    fn set_control_plane_spread(&mut self, config: &InfraConfigSpec) {
        let spread = config.control_plane_spread();
        if !is_label_key(spread.topology_key()) {
            let object = format!("InfraConfig {INFRA_CONFIG}");
            let field = "spec.placement.controlPlaneSpread.topologyKey";
            let message = "is not a label key; control-plane VMs are not spread";
            self.problems.push(Problem::new(object, field, spread.topology_key(), message));
        }
        self.engine.set_control_plane_spread(&spread);
    }

    fn add_host(&mut self, fleet: &Fleet, facts: Result<ReportedHost, Problem>, has_node: bool) {
        let mut facts = match facts {
            Ok(facts) => facts,
            Err(problem) => return self.problems.push(problem),
        };
        if !has_node {
            facts.labels.extend(self.assumed_labels.clone());
        }
        let class = self.resolve_class(&fleet.profiles, &facts);
        let object = format!("Node {}", facts.name);
        if let Err(invalid) = self.engine.set_host(facts, class) {
            let problem = Problem::new(object, invalid.field, invalid.value, invalid.problem);
            self.problems.push(problem.into_fatal("no pods are placed on this host"));
        }
    }

    /// Returns the class of the profile with the highest priority that selects the host. Returns the default class if
    /// no profile selects the host. If several profiles have the highest priority, adds a problem and returns the
    /// default class.
    fn resolve_class(
        &mut self,
        profiles: &BTreeMap<String, HostProfile>,
        facts: &ReportedHost,
    ) -> Class {
        let selecting = || profiles.values().filter(|profile| profile.selects(&facts.labels));
        let Some(highest) = selecting().map(|profile| profile.spec.priority).max() else {
            return Class::default();
        };
        let mut best = selecting().filter(|profile| profile.spec.priority == highest);
        let first = best.next().map(|profile| profile.spec.class).unwrap_or_default();
        if let Some(other) = best.next() {
            let name = other.metadata.name.clone().unwrap_or_default();
            let message = format!(
                "another profile of the same priority also selects {}; neither is applied to it",
                facts.name
            );
            self.problems.push(Problem::new(
                format!("HostProfile {name}"),
                "spec.priority",
                highest,
                message,
            ));
            return Class::default();
        }
        first
    }

    /// Adds copies of a host to the engine, without pods.
    fn add_copied_hosts(&mut self, fleet: &Fleet, addition: &HostAddition<'_>) {
        let Some(template) = addition.template_host(fleet) else { return };
        let template_name = template.metadata.name.as_deref().unwrap_or_default();
        let node = fleet.nodes.get(template_name);
        let names = (1_u32..).map(|number| format!("{}-{number}", addition.name));
        let is_free = |name: &String| {
            !fleet.infra_nodes.contains_key(name) && !fleet.nodes.contains_key(name)
        };
        for name in names.filter(is_free).take(addition.count as usize) {
            let mut infra = template.clone();
            infra.metadata.name = Some(name.clone());
            if let Some(status) = &mut infra.status {
                status.allocations.clear();
                status.conditions.clear();
                for zone in &mut status.zones {
                    zone.pinned_cpus = None;
                    zone.hugepages.iter_mut().for_each(|pool| pool.free = Some(pool.total));
                }
            }
            let node = node.map(|node| {
                let mut node = node.clone();
                node.metadata.name = Some(name.clone());
                if let Some(labels) = &mut node.metadata.labels {
                    // CSI drivers of local volumes identify a host by a label with its name.
                    let names = labels.values_mut().filter(|value| value.as_str() == template_name);
                    names.for_each(|value| value.clone_from(&name));
                    labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
                }
                let spec = node.spec.get_or_insert_default();
                spec.unschedulable = None;
                // Kubernetes sets these taints because of the state of the host.
                let taints = spec.taints.iter_mut();
                taints
                    .for_each(|taints| taints.retain(|taint| !taint.key.starts_with(STATE_TAINTS)));
                node
            });
            let facts = ReportedHost::read(&infra, node.as_ref(), &mut self.problems);
            self.add_host(fleet, facts, node.is_some());
            self.add_copied_storage(&fleet.storage, template_name, &name);
        }
    }

    /// Adds the existing pods to the engine. Returns namespace and name of the VMs of these pods.
    fn add_pods(&mut self, fleet: &Fleet) -> BTreeSet<(String, String)> {
        let mut machines_with_pod = BTreeSet::new();
        for pod in fleet.pods.values() {
            let existing = match ExistingPod::read(pod) {
                Ok(existing) => existing,
                Err(invalid) => {
                    self.problems.push(invalid_object_problem(invalid));
                    continue;
                }
            };
            if existing.is_terminal {
                continue;
            }
            let labels = pod.metadata.labels.as_ref();
            let vm = labels.and_then(|labels| labels.get(VM_NAME_LABEL));
            let vm = vm.filter(|_| existing.vmi_uid.is_some());
            let name = vm.unwrap_or(&existing.name);
            let name = format!("{}/{name}", existing.namespace);
            if let Some(vm) = vm {
                machines_with_pod.insert((existing.namespace.clone(), vm.clone()));
            }
            self.add_pod(&fleet.storage, pod, existing, name);
        }
        machines_with_pod
    }

    /// Adds a pod to the engine. `name` is the name that the plan shows. For the pod of a VM, it is the name of the VM,
    /// because users know that name.
    fn add_pod(
        &mut self,
        storage: &StorageObjects,
        pod: &v1::Pod,
        mut existing: ExistingPod,
        name: String,
    ) {
        let object = format!("Pod {}/{}", existing.namespace, existing.name);
        if existing.pod.uid.is_empty() {
            existing.pod.uid.clone_from(&object);
        }
        let is_vm = existing.vmi_uid.is_some();
        let is_pinned = existing.pod.has_exclusive_cpus();
        let is_emulated = existing.pod.is_emulated();
        let needs = VmRequirements { is_vm, is_emulated, is_pinned, ..VmRequirements::default() };
        let claims = match existing.node_name {
            Some(_) => Vec::new(),
            None => self.add_claims(storage, &existing.namespace, &pod_claims(pod)),
        };
        let parts = PodFields { claims: &claims, ..PodFields::from_pod(pod, &existing.pod) };
        let request = match self.engine.compile_request(&parts, needs) {
            Ok(request) => request,
            Err(invalid) => {
                let problem = Problem::new(object, invalid.field, invalid.value, invalid.problem);
                return self.problems.push(problem.into_fatal(OMITTED));
            }
        };
        let Some(host) = existing.node_name.as_deref().or(existing.nominated_node_name.as_deref())
        else {
            if is_vm {
                self.pending.push(PendingVm { name, request });
            }
            return;
        };
        // A pod on an unknown host is left out: it would only affect rules about other pods, and rules count only
        // known hosts.
        let Some(id) = self.engine.host(host) else { return };
        self.running_count += usize::from(is_vm);
        self.pod_names.insert(existing.pod.uid.clone(), name);
        if let Err(reason) = self.engine.add_bound_pod(&request, id) {
            let message = format!("is already on this host, but the rules forbid it: {reason}");
            self.problems.push(Problem::new(object, "spec.nodeName", host, message));
        }
    }

    /// Reports allocations in InfraNodes that belong to no known pod. Does nothing if the input contains no pods.
    fn report_unknown_allocations(&mut self, fleet: &Fleet) {
        if fleet.pods.is_empty() {
            return;
        }
        let hosts: Vec<_> = self.engine.hosts().map(|(_, facts)| facts.clone()).collect();
        for facts in hosts {
            for allocation in &facts.allocations {
                if self.engine.host_of_pod(&allocation.uid).is_none() {
                    let pod_name = allocation.name.as_deref().unwrap_or("no name");
                    let message = format!(
                        "({pod_name}) is not in the list of pods; its resources count as allocated"
                    );
                    let object = format!("InfraNode {}", facts.name);
                    let field = "status.allocations[].podUID";
                    self.problems.push(Problem::new(object, field, &allocation.uid, message));
                }
            }
        }
    }

    fn add_machine(
        &mut self,
        storage: &StorageObjects,
        machine: &FleetMachine,
        launcher: Result<Box<Launcher>, Invalid>,
    ) {
        let mut launcher = match launcher {
            Ok(launcher) => launcher,
            Err(invalid) => {
                return self.problems.push(invalid_object_problem(invalid));
            }
        };
        let name = machine.qualified_name();
        let needs = self.compute_requirements(machine, &launcher);
        let pod_with_devices = match launcher.placement_pod() {
            Cow::Owned(pod) => Some(pod),
            Cow::Borrowed(_) => None,
        };
        let mut pod = pod_with_devices.unwrap_or_else(|| std::mem::take(&mut launcher.pod));
        pod.uid.clone_from(&name);
        let claims = match machine.host {
            Some(_) => Vec::new(),
            None => self.add_claims(storage, &launcher.namespace, &machine.claims),
        };
        let parts = PodFields {
            namespace: &launcher.namespace,
            labels: Some(&launcher.labels),
            is_terminating: false,
            node_selector: Some(&launcher.node_selector),
            affinity: launcher.affinity.as_ref(),
            tolerations: &launcher.tolerations,
            spread_constraints: &launcher.spread,
            containers: &pod,
            claims: &claims,
        };
        let request = match self.engine.compile_request(&parts, needs) {
            Ok(request) => request,
            Err(invalid) => {
                let object = machine.machine.object.clone();
                let problem = Problem::new(object, invalid.field, invalid.value, invalid.problem);
                return self.problems.push(problem.into_fatal(OMITTED));
            }
        };
        let host = machine.host.as_deref().and_then(|host| self.engine.host(host));
        let Some(host) = host else { return self.pending.push(PendingVm { name, request }) };
        self.running_count += 1;
        self.pod_names.insert(name.clone(), name);
        if let Err(reason) = self.engine.add_bound_pod(&request, host) {
            let message = format!("is already on this host, but the rules forbid it: {reason}");
            let object = machine.machine.object.clone();
            self.problems.push(Problem::new(object, "status.nodeName", "", message));
        }
    }

    fn compute_requirements(
        &mut self,
        machine: &FleetMachine,
        launcher: &Launcher,
    ) -> VmRequirements {
        let guest = Guest {
            memory: launcher.guest_memory,
            is_dedicated: launcher.is_dedicated,
            has_numa_passthrough: launcher.numa_passthrough,
        };
        let class = machine.class.as_deref().and_then(parse_class);
        let needs = VmRequirements::for_vm(&launcher.pod, &guest, class);
        if let Some(other) = machine.class.as_deref().filter(|_| class.is_none()) {
            let derived_class = needs.class;
            let message =
                format!("must be Performance, Density or Standard; treated as {derived_class:?}");
            let field = format!("metadata.annotations[{CLASS_LABEL}]");
            self.problems.push(Problem::new(&machine.machine.object, field, other, message));
        }
        needs
    }
}
