//! Hosts, VMs and requests of the placement tests.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use berth_kubelet_admission::HostState;
use berth_kubevirt_render::launcher::ExistingPod;
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use crate::allocation::reported_allocation;
use crate::host::{HostDescription, ZoneDescription};
use crate::scheduling_client::SchedulingClient;

pub(crate) const PODS_PATH: &str = "/api/v1/namespaces/vms/pods";
/// Time limit for operations that an operator would see as immediate, on a busy machine.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Testbed {
    pub(crate) client: SchedulingClient,
    pub(crate) hosts: BTreeMap<String, HostDescription>,
    pub(crate) port: u16,
    vm_count: usize,
}

/// Options of a VM's launcher pod.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vm<'a> {
    pub(crate) cpus: u32,
    /// Label for anti-affinity: no two pods with this label run on the same host.
    pub(crate) anti_affinity: Option<&'a str>,
    /// Key of a taint that the pod tolerates.
    pub(crate) tolerated_taint: Option<&'a str>,
    /// Value of the label `rack` that the pod's host must have.
    pub(crate) rack: Option<&'a str>,
    /// True if the pod names another scheduler than Berth's, or no scheduler.
    pub(crate) bypasses_scheduler: bool,
    /// PersistentVolumeClaim of the VM's disk.
    pub(crate) claim: Option<&'a str>,
    /// Uid of the VM's instance; by default, each pod has an instance of its own.
    pub(crate) instance: Option<&'a str>,
    /// Migration whose target this pod is.
    pub(crate) migration: Option<&'a str>,
    /// Value of the label `app` of pods that must be in the same rack.
    pub(crate) affinity: Option<&'a str>,
    /// True for a first-consumer pod, which exists only so that the disk is created.
    pub(crate) is_first_consumer: bool,
    /// ResourceClaim of a device of the VM.
    pub(crate) resource_claim: Option<&'a str>,
    /// PodGroup to which the pod belongs.
    pub(crate) pod_group: Option<&'a str>,
}

impl<'a> Vm<'a> {
    /// Returns a VM of which only one fits into each zone of a host.
    pub(crate) fn large(rack: &'a str) -> Self {
        Self { cpus: 5, rack: Some(rack), ..Self::default() }
    }
}

impl Testbed {
    pub(crate) fn start(plane: &ControlPlane) -> Self {
        let client = SchedulingClient::new(plane);
        client.post("/api/v1/namespaces", &json!({"metadata": {"name": "vms"}}));
        let account = json!({"metadata": {"name": "default"}});
        client.post("/api/v1/namespaces/vms/serviceaccounts", &account);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut bed = Self { client, hosts: BTreeMap::new(), port, vm_count: 0 };
        for number in 0..3 {
            bed.add_host(&format!("plain-{number}"), "plain", &[]);
        }
        bed
    }

    /// Adds a host with two zones of 7 and 8 pinnable CPUs. Each zone has room for one VM of 5 CPUs, although 15 CPUs
    /// would be sufficient for three such VMs.
    pub(crate) fn add_host(&mut self, name: &str, rack: &str, taints: &[&str]) {
        let zone = ZoneDescription { cpus: 8, memory: 64, huge_pages_gib: 0, small_pages_mib: 0 };
        let description = HostDescription {
            name: name.to_owned(),
            zones: vec![zone; 2],
            taints: taints.iter().map(|taint| (*taint).to_owned()).collect(),
            labels: BTreeMap::from([("rack".to_owned(), rack.to_owned())]),
            kubelet_version: "v1.27.3".to_owned(),
            ..HostDescription::default()
        };
        let node = serde_json::to_value(description.node()).unwrap();
        self.client.post("/api/v1/nodes", &node);
        // The API server adds a not-ready taint to a new Node. The test removes the taint, because no node controller
        // runs here.
        let path = format!("/api/v1/nodes/{name}");
        let mut current = self.client.get(&path);
        current["spec"] = node["spec"].clone();
        self.client.put(&path, &current);
        let infra_node = serde_json::to_value(description.infra_node()).unwrap();
        self.client.post("/apis/berth.dev/v1alpha1/infranodes", &infra_node);
        self.hosts.insert(name.to_owned(), description);
        self.write_report(name);
    }

    /// Creates a Node without an agent, and a pod with this label on the Node.
    pub(crate) fn add_node_without_agent(&self, name: &str, rack: &str, app: &str) {
        let node = json!({"metadata": {"name": name, "labels": {"rack": rack}},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}});
        self.client.post("/api/v1/nodes", &node);
        let pod = json!({"metadata": {"name": format!("on-{name}"), "labels": {"app": app}}, "spec": {
            "nodeName": name, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}]}});
        self.client.post(PODS_PATH, &pod);
    }

    /// Writes the agent's current report to the InfraNode.
    pub(crate) fn write_report(&self, name: &str) {
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{name}");
        let mut current = self.client.get(&path);
        current["status"] = serde_json::to_value(self.hosts[name].infra_node().status).unwrap();
        self.client.put(&format!("{path}/status"), &current);
    }

    /// Creates a VM's pod, and returns the pod's name.
    pub(crate) fn create_vm(&mut self, vm: Vm<'_>) -> String {
        self.vm_count += 1;
        let name = format!("vm-{}", self.vm_count);
        let amounts = json!({"cpu": vm.cpus.to_string(), "memory": "256Mi"});
        let instance = vm.instance.map_or_else(|| format!("vmi-{name}"), str::to_owned);
        let mut labels =
            json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": instance});
        let mut annotations = json!({});
        let mut spec = json!({
            "schedulerName": if vm.bypasses_scheduler { "no-scheduler" } else { "berth-scheduler" },
            "automountServiceAccountToken": false,
            "containers": [{"name": "compute", "image": "none",
                "resources": {"requests": amounts, "limits": amounts}}],
        });
        if let Some(app) = vm.anti_affinity {
            labels["app"] = app.into();
            spec["affinity"]["podAntiAffinity"] = pod_anti_affinity("app", app);
        }
        if let Some(migration) = vm.migration {
            labels["kubevirt.io/migrationJobUID"] = migration.into();
            spec["affinity"]["podAntiAffinity"] =
                pod_anti_affinity("kubevirt.io/created-by", &instance);
        }
        if let Some(claim) = vm.claim {
            spec["volumes"] =
                json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
        }
        if let Some(claim) = vm.resource_claim {
            spec["resourceClaims"] = json!([{"name": "device", "resourceClaimName": claim}]);
            spec["containers"][0]["resources"]["claims"] = json!([{"name": "device"}]);
        }
        if let Some(group) = vm.pod_group {
            spec["schedulingGroup"] = json!({"podGroupName": group});
        }
        if vm.is_first_consumer {
            annotations["kubevirt.io/ephemeral-provisioning"] = "true".into();
        }
        if let Some(key) = vm.tolerated_taint {
            spec["tolerations"] = json!([{"key": key, "operator": "Exists"}]);
        }
        if let Some(rack) = vm.rack {
            spec["nodeSelector"] = json!({"rack": rack});
        }
        if let Some(app) = vm.affinity {
            spec["affinity"]["podAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": app}}}]});
        }
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name,
            "uid": instance, "controller": true});
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.client.post(PODS_PATH, &pod);
        name
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.client.get(&format!("{PODS_PATH}/{name}"))
    }

    pub(crate) fn host_of(&self, name: &str) -> Option<String> {
        self.pod(name)["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    /// Waits until a pod has a host, and returns how long this took.
    pub(crate) fn wait_until_bound(&self, name: &str) -> Duration {
        let begin = Instant::now();
        self.client.wait_until_bound(&format!("{PODS_PATH}/{name}"));
        begin.elapsed()
    }

    /// Waits until the scheduler reports that a pod fits on no host, and returns the message.
    pub(crate) fn wait_until_refused(&self, name: &str) -> String {
        let pod = self.client.wait_until_scheduled(&format!("{PODS_PATH}/{name}"));
        assert!(pod["spec"]["nodeName"].is_null(), "{name} is on {}", pod["spec"]["nodeName"]);
        crate::scheduling_client::condition(&pod)["message"].as_str().unwrap().to_owned()
    }

    /// Marks a pod as ended, as its kubelet does, and deletes the pod.
    pub(crate) fn end_pod(&self, name: &str, phase: &str) {
        let path = format!("{PODS_PATH}/{name}");
        let mut pod = self.pod(name);
        pod["status"]["phase"] = phase.into();
        self.client.put(&format!("{path}/status"), &pod);
        self.client.delete(&path);
    }

    /// Deletes all VMs, and waits until the extender has released their resources.
    pub(crate) fn delete_all_vms(&mut self, extender: &Controller) {
        let all = self.client.get(PODS_PATH);
        for pod in all["items"].as_array().unwrap() {
            self.client
                .delete(&format!("{PODS_PATH}/{}", pod["metadata"]["name"].as_str().unwrap()));
        }
        self.write_all_reports();
        let stage =
            |name: &str| extender.metric(&format!("berth_assignment_pods{{stage=\"{name}\"}}"));
        let begin = Instant::now();
        // Resources of a deleted pod that was in no report are reserved for some time after the deletion.
        while ["reserved", "binding", "bound", "leaving"].into_iter().any(|name| stage(name) > 0.0)
        {
            assert!(
                begin.elapsed() < SHORT_TIMEOUT,
                "the resources of deleted VMs are not released"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Asserts that every kubelet would admit the pods that were bound to it, in the order of binding. Returns the
    /// number of pods.
    pub(crate) fn assert_kubelets_admit(&self) -> usize {
        self.kubelet_states().values().map(|(_, uids)| uids.len()).sum()
    }

    /// Asserts the same as [`Self::assert_kubelets_admit`] for the pods on these hosts, and returns their number.
    pub(crate) fn assert_kubelets_admit_on(&self, hosts: &[&str]) -> usize {
        let kubelets = self.kubelet_states();
        hosts.iter().map(|host| kubelets[*host].1.len()).sum()
    }

    /// Returns the kubelets' allocations by host, and the uids of the pods that hold the allocations.
    fn kubelet_states(&self) -> BTreeMap<String, (HostState, Vec<String>)> {
        let all = self.client.get(PODS_PATH);
        let mut pods: Vec<&Value> = all["items"].as_array().unwrap().iter().collect();
        // The binding is the last write to each pod, so the resource versions are in the order of the bindings.
        pods.sort_by_key(|pod| binding_version(pod));
        let mut states: BTreeMap<String, (HostState, Vec<String>)> = BTreeMap::new();
        for (name, description) in &self.hosts {
            let (facts, _) = description.reported_host().unwrap();
            let mut state = HostState::new(&facts.admission);
            for one in description.allocations.iter().filter(|one| one.pod_uid.starts_with("gone-"))
            {
                state.admit(&pod_of_allocation(one)).unwrap();
            }
            states.insert(name.clone(), (state, Vec::new()));
        }
        for pod in pods {
            let Some(host) = pod["spec"]["nodeName"].as_str() else { continue };
            let (state, uids) = states.get_mut(host).unwrap();
            let read = ExistingPod::read(&serde_json::from_value(pod.clone()).unwrap()).unwrap();
            if read.is_terminal {
                continue;
            }
            let admission = state.admit(&read.pod);
            assert!(admission.is_ok(), "{host} refuses {}: {admission:?}", read.name);
            uids.push(read.pod.uid);
        }
        states
    }

    /// Writes the reports of all agents with the current allocations of their kubelets.
    pub(crate) fn write_all_reports(&mut self) {
        for (name, (state, uids)) in self.kubelet_states() {
            let description = self.hosts.get_mut(&name).unwrap();
            let before = description.allocations.clone();
            description.allocations.retain(|one| one.pod_uid.starts_with("gone-"));
            description
                .allocations
                .extend(uids.iter().filter_map(|uid| reported_allocation(&state, uid)));
            if description.allocations != before {
                self.write_report(&name);
            }
        }
    }

    /// Starts the controller with the permissions that `deploy/` grants.
    pub(crate) fn start_extender(
        &self,
        plane: &ControlPlane,
        name: &str,
        lease: &str,
    ) -> Controller {
        let listen = format!("--extender-listen=127.0.0.1:{}", self.port);
        Controller::start(plane, name, &[&listen, &format!("--scheduler-lease={lease}")]).unwrap()
    }

    /// Starts a kube-scheduler with the configuration of `deploy/`, and its extender.
    pub(crate) fn start_with_scheduler(&self, plane: &mut ControlPlane) -> Controller {
        let file = plane.scheduler_configuration(Some(self.port)).unwrap();
        let extender = self.start_extender(plane, "extender", "kube-system/berth-scheduler");
        plane.start_scheduler(Some(&file)).unwrap();
        extender
    }
}

/// Returns an anti-affinity to pods with this label.
fn pod_anti_affinity(key: &str, value: &str) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {key: value}}}]})
}

/// Returns the resource version of a pod's binding, its last write. The transition time of `PodScheduled` has only
/// a resolution of one second.
fn binding_version(pod: &Value) -> u64 {
    pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Returns a pod that has the resources of an allocation in a report.
fn pod_of_allocation(
    allocation: &berth_api::infra_node::Allocation,
) -> berth_kubelet_admission::pod::Pod {
    use berth_kubelet_admission::pod::{Container, Pod, Resources};
    let cpus = allocation.cpus.as_ref().map_or(0, berth_api::CpuSet::len) as u64;
    let own = Resources { cpu_millis: cpus * 1000, memory: 1 << 20, ..Resources::default() };
    let container = Container { requests: own.clone(), limits: own, ..Container::default() };
    Pod { uid: allocation.pod_uid.clone(), containers: vec![container], ..Pod::default() }
}
