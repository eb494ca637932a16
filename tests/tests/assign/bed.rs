//! Hosts, VMs and what is asked of them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use berth_kubelet_admission::State;
use berth_kubevirt_render::launcher::Existing;
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use crate::allocation::allocation;
use crate::host::{HostForm, ZoneForm};
use crate::server::Server;

pub(crate) const PODS: &str = "/api/v1/namespaces/vms/pods";
/// For what a person would call at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) server: Server,
    pub(crate) hosts: BTreeMap<String, HostForm>,
    pub(crate) port: u16,
    count: usize,
}

/// A VM's launcher pod, in few words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vm<'a> {
    pub(crate) cpus: u32,
    /// A label; of its pods no two on a host.
    pub(crate) apart: Option<&'a str>,
    /// The key of a taint that it bears.
    pub(crate) bears: Option<&'a str>,
    /// The value of the label `rack` that its host has.
    pub(crate) rack: Option<&'a str>,
    /// For another scheduler, or none.
    pub(crate) by_hand: bool,
    /// The claim of its disk.
    pub(crate) claim: Option<&'a str>,
    /// The uid of its VM's instance; by default it is its own one.
    pub(crate) instance: Option<&'a str>,
    /// The migration whose target it is.
    pub(crate) migration: Option<&'a str>,
    /// The value of the label `app` of pods that must be in its rack.
    pub(crate) beside: Option<&'a str>,
    /// It is there only for its disk to be made.
    pub(crate) is_stand_in: bool,
}

impl<'a> Vm<'a> {
    /// Of which each zone takes one.
    pub(crate) fn large(rack: &'a str) -> Self {
        Self { cpus: 5, rack: Some(rack), ..Self::default() }
    }
}

impl Bed {
    pub(crate) fn of(plane: &ControlPlane) -> Self {
        let server = Server::of(plane);
        server.post("/api/v1/namespaces", &json!({"metadata": {"name": "vms"}}));
        let account = json!({"metadata": {"name": "default"}});
        server.post("/api/v1/namespaces/vms/serviceaccounts", &account);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut bed = Self { server, hosts: BTreeMap::new(), port, count: 0 };
        for number in 0..3 {
            bed.host(&format!("plain-{number}"), "plain", &[]);
        }
        bed
    }

    /// Two zones with 7 and 8 CPUs to pin: a VM of 5 fits once into each, though three would fit into the sum.
    pub(crate) fn host(&mut self, name: &str, rack: &str, taints: &[&str]) {
        let zone = ZoneForm { cpus: 8, memory: 64, huge: 0, small: 0 };
        let form = HostForm {
            name: name.to_owned(),
            zones: vec![zone; 2],
            taints: taints.iter().map(|taint| (*taint).to_owned()).collect(),
            labels: BTreeMap::from([("rack".to_owned(), rack.to_owned())]),
            version: "v1.27.3".to_owned(),
            ..HostForm::default()
        };
        let node = serde_json::to_value(form.node()).unwrap();
        self.server.post("/api/v1/nodes", &node);
        // A new Node is tainted as not ready, and the node controller would take that away.
        let path = format!("/api/v1/nodes/{name}");
        let mut there = self.server.get(&path);
        there["spec"] = node["spec"].clone();
        self.server.put(&path, &there);
        let infra_node = serde_json::to_value(form.infra_node()).unwrap();
        self.server.post("/apis/berth.dev/v1alpha1/infranodes", &infra_node);
        self.hosts.insert(name.to_owned(), form);
        self.report(name);
    }

    /// A Node without an agent, and a pod with this label on it.
    pub(crate) fn bare_node(&self, name: &str, rack: &str, app: &str) {
        let node = json!({"metadata": {"name": name, "labels": {"rack": rack}},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}});
        self.server.post("/api/v1/nodes", &node);
        let pod = json!({"metadata": {"name": format!("on-{name}"), "labels": {"app": app}}, "spec": {
            "nodeName": name, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}]}});
        self.server.post(PODS, &pod);
    }

    /// What its agent says now.
    pub(crate) fn report(&self, name: &str) {
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{name}");
        let mut there = self.server.get(&path);
        there["status"] = serde_json::to_value(self.hosts[name].infra_node().status).unwrap();
        self.server.put(&format!("{path}/status"), &there);
    }

    /// Creates a VM's pod, and gives its name.
    pub(crate) fn vm(&mut self, vm: Vm<'_>) -> String {
        self.count += 1;
        let name = format!("vm-{}", self.count);
        let amounts = json!({"cpu": vm.cpus.to_string(), "memory": "256Mi"});
        let instance = vm.instance.map_or_else(|| format!("vmi-{name}"), str::to_owned);
        let mut labels =
            json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": instance});
        let mut annotations = json!({});
        let mut spec = json!({
            "schedulerName": if vm.by_hand { "no-scheduler" } else { "berth-scheduler" },
            "automountServiceAccountToken": false,
            "containers": [{"name": "compute", "image": "none",
                "resources": {"requests": amounts, "limits": amounts}}],
        });
        if let Some(app) = vm.apart {
            labels["app"] = app.into();
            spec["affinity"]["podAntiAffinity"] = never_beside("app", app);
        }
        if let Some(migration) = vm.migration {
            labels["kubevirt.io/migrationJobUID"] = migration.into();
            spec["affinity"]["podAntiAffinity"] = never_beside("kubevirt.io/created-by", &instance);
        }
        if let Some(claim) = vm.claim {
            spec["volumes"] =
                json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
        }
        if vm.is_stand_in {
            annotations["kubevirt.io/ephemeral-provisioning"] = "true".into();
        }
        if let Some(key) = vm.bears {
            spec["tolerations"] = json!([{"key": key, "operator": "Exists"}]);
        }
        if let Some(rack) = vm.rack {
            spec["nodeSelector"] = json!({"rack": rack});
        }
        if let Some(app) = vm.beside {
            spec["affinity"]["podAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": app}}}]});
        }
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name,
            "uid": instance, "controller": true});
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.server.post(PODS, &pod);
        name
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.server.get(&format!("{PODS}/{name}"))
    }

    pub(crate) fn host_of(&self, name: &str) -> Option<String> {
        self.pod(name)["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    /// Waits until a pod has a host; says how long that took.
    pub(crate) fn bound(&self, name: &str) -> Duration {
        let begin = Instant::now();
        self.server.bound(&format!("{PODS}/{name}"));
        begin.elapsed()
    }

    /// Waits until the scheduler has said that a pod fits nowhere; gives its words.
    pub(crate) fn refused(&self, name: &str) -> String {
        let said = self.server.scheduled(&format!("{PODS}/{name}"));
        assert!(said["spec"]["nodeName"].is_null(), "{name} is on {}", said["spec"]["nodeName"]);
        crate::server::condition(&said)["message"].as_str().unwrap().to_owned()
    }

    /// It has ended, as its kubelet says, and is deleted.
    pub(crate) fn ended(&self, name: &str, phase: &str) {
        let path = format!("{PODS}/{name}");
        let mut pod = self.pod(name);
        pod["status"]["phase"] = phase.into();
        self.server.put(&format!("{path}/status"), &pod);
        self.server.delete(&path);
    }

    /// Deletes all VMs, and waits until hosts are known to be free.
    pub(crate) fn clear(&mut self, sidecar: &Controller) {
        let all = self.server.get(PODS);
        for pod in all["items"].as_array().unwrap() {
            self.server.delete(&format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap()));
        }
        self.agents_report();
        let stage =
            |name: &str| sidecar.metric(&format!("berth_assignment_pods{{stage=\"{name}\"}}"));
        let begin = Instant::now();
        // What no report has told of is kept for a while after its pod has gone.
        while ["reserved", "binding", "bound", "leaving"].into_iter().any(|name| stage(name) > 0.0)
        {
            assert!(begin.elapsed() < SOON, "hosts do not get empty");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Every kubelet would take what was bound to it, in that order.
    pub(crate) fn kubelets_agree(&self) -> usize {
        self.kubelets().values().map(|(_, uids)| uids.len()).sum()
    }

    /// The same; how many there are on these hosts.
    pub(crate) fn kubelets_agree_on(&self, hosts: &[&str]) -> usize {
        let kubelets = self.kubelets();
        hosts.iter().map(|host| kubelets[*host].1.len()).sum()
    }

    /// What kubelets have allocated by now, by host, and to which pods.
    fn kubelets(&self) -> BTreeMap<String, (State, Vec<String>)> {
        let all = self.server.get(PODS);
        let mut pods: Vec<&Value> = all["items"].as_array().unwrap().iter().collect();
        // The binding is the last write to each.
        pods.sort_by_key(|pod| bound_at(pod));
        let mut states: BTreeMap<String, (State, Vec<String>)> = BTreeMap::new();
        for (name, form) in &self.hosts {
            let (facts, _) = form.facts().unwrap();
            let mut state = State::new(&facts.admission);
            for one in form.has.iter().filter(|one| one.pod_uid.starts_with("gone-")) {
                state.admit(&stranger(one)).unwrap();
            }
            states.insert(name.clone(), (state, Vec::new()));
        }
        for pod in pods {
            let Some(host) = pod["spec"]["nodeName"].as_str() else { continue };
            let (state, uids) = states.get_mut(host).unwrap();
            let read = Existing::read(&serde_json::from_value(pod.clone()).unwrap()).unwrap();
            if read.is_terminal {
                continue;
            }
            let taken = state.admit(&read.pod);
            assert!(taken.is_ok(), "{host} refuses {}: {taken:?}", read.name);
            uids.push(read.pod.uid);
        }
        states
    }

    /// All agents report what their kubelets have allocated.
    pub(crate) fn agents_report(&mut self) {
        for (name, (state, uids)) in self.kubelets() {
            let form = self.hosts.get_mut(&name).unwrap();
            let before = form.has.clone();
            form.has.retain(|one| one.pod_uid.starts_with("gone-"));
            form.has.extend(uids.iter().filter_map(|uid| allocation(&state, uid)));
            if form.has != before {
                self.report(&name);
            }
        }
    }

    /// The controller, with the rights that `deploy/` gives it.
    pub(crate) fn sidecar(&self, plane: &ControlPlane, name: &str, lease: &str) -> Controller {
        let listen = format!("--extender-listen=127.0.0.1:{}", self.port);
        Controller::start(plane, name, &[&listen, &format!("--scheduler-lease={lease}")]).unwrap()
    }

    /// A kube-scheduler as `deploy/` configures it, and its sidecar.
    pub(crate) fn with_scheduler(&self, plane: &mut ControlPlane) -> Controller {
        let file = plane.scheduler_configuration(Some(self.port)).unwrap();
        let sidecar = self.sidecar(plane, "sidecar", "kube-system/berth-scheduler");
        plane.start_scheduler(Some(&file)).unwrap();
        sidecar
    }
}

/// Pods of this label are kept off each other's hosts.
fn never_beside(key: &str, value: &str) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {key: value}}}]})
}

/// When `PodScheduled` became true is to the second only; the version of that write is exact, and the last one.
fn bound_at(pod: &Value) -> u64 {
    pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A pod that has what a report lists.
fn stranger(allocation: &berth_api::infra_node::Allocation) -> berth_kubelet_admission::pod::Pod {
    use berth_kubelet_admission::pod::{Container, Pod, Resources};
    let cpus = allocation.cpus.as_ref().map_or(0, berth_api::CpuSet::len) as u64;
    let own = Resources { cpu_millis: cpus * 1000, memory: 1 << 20, ..Resources::default() };
    let container = Container { requests: own.clone(), limits: own, ..Container::default() };
    Pod { uid: allocation.pod_uid.clone(), containers: vec![container], ..Pod::default() }
}
