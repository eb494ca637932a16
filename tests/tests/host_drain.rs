//! Test of the drain of a host on a real API server: machines whose pods were evicted are migrated or replaced, and an
//! uncordoned host keeps its machines. KubeVirt is simulated: the test writes the status of the
//! VirtualMachineInstances, and also the answers of the assignment engine.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::TenantCluster;
use berth_controller::evacuation::targets::TargetFinder;
use berth_controller::run::evacuation;
use berth_controller::run::machine_instances::MachineInstances;
use berth_controller::run::machines;
use berth_controller::run::object_handlers::ObjectHandlers;
use berth_controller::run::removal_lock::RemovalLock;
use berth_controller::run::tenants::TenantInformers;
use berth_controller::run::{Connections, RemovalTable};
use berth_extender::{MigrationQuery, MigrationTarget};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition, web_deployment};
use berth_tests::controller::Reconcilers;
use berth_tests::simulated::{KubeVirt, create_client, create_runtime};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersion;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Resync interval for objects without changes.
const RESYNC: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "cluster-abc";
const HOST: &str = "rack1-a";
const OTHER_HOST: &str = "rack1-b";

/// Answers of the assignment engine.
#[derive(Debug, Default)]
struct Engine {
    has_room: AtomicBool,
}

impl TargetFinder for Engine {
    fn find(
        &self,
        queries: &[MigrationQuery],
        _: &BTreeSet<String>,
    ) -> Option<Vec<MigrationTarget>> {
        let answer = |_: &MigrationQuery| match self.has_room.load(Ordering::SeqCst) {
            true => MigrationTarget::Host(OTHER_HOST.to_owned()),
            false => MigrationTarget::NoHost(vec![("node(s) were full".to_owned(), 1)]),
        };
        Some(queries.iter().map(answer).collect())
    }
}

struct Cluster {
    plane: ControlPlane,
    kubevirt: KubeVirt,
    engine: Arc<Engine>,
}

/// All steps share one control plane, because starting it is the slowest step.
#[test]
fn machines_leave_a_drained_host() {
    let cluster = Cluster::start();
    let controller = cluster.start_controller();
    cluster.wait_until_complete(2);
    cluster.migratable_machine_is_migrated();
    cluster.failed_migration_is_retried();
    cluster.uncordoned_host_keeps_its_machines();
    cluster.machine_without_a_host_is_replaced(controller);
}

impl Cluster {
    fn start() -> Self {
        let plane = ControlPlane::start(ControlPlaneOptions {
            has_controllers: true,
            ..ControlPlaneOptions::default()
        })
        .unwrap();
        plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
        plane.install_machine_kinds().unwrap();
        plane.install_kubevirt_crds(&["virtualmachineinstancemigrations.kubevirt.io"]).unwrap();
        plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
        let bind = ["create", "rolebinding", "berth-controller-tenant", "-n", NAMESPACE];
        let role = [
            "--clusterrole=berth-controller-tenant",
            "--serviceaccount=berth-system:berth-controller",
        ];
        plane.kubectl(&[&bind[..], &role].concat()).unwrap();
        for host in [HOST, OTHER_HOST] {
            plane.create_node(host).unwrap();
            let infra_node = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": host}, "spec": {},
            });
            plane.apply(&infra_node.to_string()).unwrap();
        }
        let tenant = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "abc"}, "spec": {},
        });
        plane.apply(&tenant.to_string()).unwrap();
        let policies = json!({
            "type": "PoliciesReady", "status": "True", "reason": "Ready", "message": "set by a test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"namespace": NAMESPACE, "conditions": [policies]});
        create_runtime().unwrap().block_on(async {
            let client = create_client(&plane.kubeconfig()).await.unwrap();
            let api: Api<TenantCluster> = Api::all(client);
            let patch = Patch::Merge(json!({"status": status}));
            api.patch_status("abc", &PatchParams::default(), &patch).await.unwrap();
        });
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": NAMESPACE},
            "stringData": {"userdata": "#cloud-config\nhostname: x\n"}});
        plane.apply(&secret.to_string()).unwrap();
        plane.apply(&deployment().to_string()).unwrap();
        let kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
        Self { plane, kubevirt, engine: Arc::default() }
    }

    /// Starts the reconcilers of machines and of evacuations.
    fn start_controller(&self) -> Reconcilers {
        let engine: Arc<dyn TargetFinder> = Arc::<Engine>::clone(&self.engine);
        let run = |client: Client, events| async move {
            let mut tasks = JoinSet::new();
            let TenantInformers { tenants, configs, addresses, nodes, infra_nodes, .. } =
                TenantInformers::start_watches(&client, &mut tasks);
            let (instances, watch) = MachineInstances::start(&client);
            tasks.spawn(watch);
            let deployment_handlers = ObjectHandlers::default();
            let removal_lock = RemovalLock::default();
            let removals = Arc::new(RemovalTable::new(Arc::default()));
            let connections = Connections::new(Arc::default());
            let informers = evacuation::EvacuationInformers {
                tenants: tenants.clone(),
                connections: connections.clone(),
                nodes: nodes.clone(),
                infra_nodes,
                instances: instances.clone(),
                deployment_handlers: deployment_handlers.clone(),
                removal_lock: removal_lock.clone(),
                removals: Arc::clone(&removals),
            };
            tasks.spawn(evacuation::run(
                client.clone(),
                Arc::clone(&events),
                Arc::default(),
                informers,
                Some(engine),
                RESYNC,
            ));
            let machine_informers = machines::MachineInformers {
                tenants,
                configs,
                addresses,
                nodes,
                instances,
                deployment_handlers,
                removal_lock,
                removals,
                connections,
                images: Arc::default(),
                watch_health: Arc::default(),
            };
            machines::run(client, events, Arc::default(), machine_informers, RESYNC).await;
        };
        Reconcilers::start(&self.plane, run).unwrap()
    }

    fn machines(&self) -> Vec<Value> {
        let list = self.plane.get_json(&["virtualmachines", "-n", NAMESPACE, "-l", "md=web"]);
        list.unwrap_or_default()["items"].as_array().cloned().unwrap_or_default()
    }

    fn machine(&self, name: &str) -> Value {
        self.plane.get_json(&["virtualmachine", name, "-n", NAMESPACE]).unwrap_or_default()
    }

    /// Returns the status of a machine's evacuation, from its annotation.
    fn evacuation_status(&self, name: &str) -> Value {
        let machine = self.machine(name);
        let text = machine["metadata"]["annotations"]["berth.dev/evacuation"].as_str();
        serde_json::from_str(text.unwrap_or("null")).unwrap()
    }

    fn migrations(&self) -> Vec<Value> {
        let list = self.plane.get_json(&["virtualmachineinstancemigrations", "-n", NAMESPACE]);
        list.unwrap_or_default()["items"].as_array().cloned().unwrap_or_default()
    }

    fn draining(&self) -> Value {
        condition(&self.plane.infra_node(HOST), "Draining").clone()
    }

    fn wait_until<T>(&self, what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
        let done = self.plane.wait_until(what, TIMEOUT, |_| answer());
        done.unwrap_or_else(|error| {
            panic!(
                "{error}: {:#?}\n{:#?}\n{:#}",
                self.machines(),
                self.migrations(),
                self.draining()
            )
        })
    }

    fn wait_until_complete(&self, count: u64) {
        self.wait_until(&format!("{count} machines are ready"), || {
            let list = self.plane.get_json(&["machinedeployment", "web", "-n", NAMESPACE]);
            let status = list.unwrap_or_default()["status"].clone();
            let is_complete =
                ["replicas", "readyReplicas"].iter().all(|field| status[field] == count);
            (is_complete && self.machines().len() as u64 == count).then_some(())
        });
    }

    fn wait_until_evacuation_ends(&self, name: &str) {
        self.wait_until(&format!("the evacuation of {name} has ended"), || {
            let machine = self.machine(name);
            let is_clear = machine["metadata"]["labels"]["berth.dev/evacuating"].is_null()
                && self.evacuation_status(name).is_null()
                && machine["metadata"]["annotations"]["berth.dev/replacement-requested"].is_null();
            (is_clear && self.draining().is_null()).then_some(())
        });
    }

    /// Writes the fields that virt-handler and virt-api would write. `evacuated` is the host from which the pod was
    /// evicted.
    fn patch_instance(&self, name: &str, host: &str, evacuated: Option<&str>, migratable: bool) {
        let time = "2026-01-01T00:00:00Z";
        let conditions = json!([
            {"type": "Ready", "status": "True", "lastTransitionTime": time},
            {"type": "LiveMigratable", "status": if migratable { "True" } else { "False" },
                "message": "disk is not shared", "lastTransitionTime": time},
        ]);
        let patch = json!({
            "spec": {"evictionStrategy": "External"},
            "status": {"nodeName": host, "evacuationNodeName": evacuated, "conditions": conditions},
        });
        let patch = patch.to_string();
        let arguments = ["patch", "vmi", name, "-n", NAMESPACE, "--type=merge", "-p", &patch];
        self.plane.kubectl(&arguments).unwrap();
    }

    fn set_migration_phase(&self, name: &str, phase: &str) {
        create_runtime().unwrap().block_on(async {
            let client = create_client(&self.plane.kubeconfig()).await.unwrap();
            let version = GroupVersion::gv("kubevirt.io", "v1");
            let kind = version.with_kind("VirtualMachineInstanceMigration");
            let resource = ApiResource::from_gvk(&kind);
            let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &resource);
            let patch = Patch::Merge(json!({"status": {"phase": phase}}));
            api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        });
    }

    fn first_machine(&self) -> String {
        let machines = self.machines();
        machines[0]["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Waits until there is a migration that has not ended, and returns its name.
    fn wait_for_migration(&self, machine: &str) -> String {
        self.wait_until("a live migration is created", || {
            let all = self.migrations();
            let open = all.iter().find(|one| {
                one["spec"]["vmiName"] == machine
                    && !["Failed", "Succeeded"]
                        .contains(&one["status"]["phase"].as_str().unwrap_or(""))
            })?;
            let name = open["metadata"]["name"].as_str().unwrap();
            assert!(name.starts_with("berth-drain-"), "{open:#}");
            Some(name.to_owned())
        })
    }

    fn migratable_machine_is_migrated(&self) {
        self.engine.has_room.store(true, Ordering::SeqCst);
        let name = self.first_machine();
        self.plane.kubectl(&["cordon", HOST]).unwrap();
        self.patch_instance(&name, HOST, None, true);
        // Cordoning the host has no effect while no pod is evicted.
        std::thread::sleep(Duration::from_secs(2));
        assert!(self.migrations().is_empty() && self.draining().is_null());
        self.patch_instance(&name, HOST, Some(HOST), true);
        let migration = self.wait_for_migration(&name);
        self.wait_until("the status names the migration", || {
            let is_reported = self.evacuation_status(&name)["reason"] == "Migrating"
                && self.draining()["reason"] == "HostCordoned";
            is_reported.then_some(())
        });
        assert_eq!(self.machine(&name)["metadata"]["labels"]["berth.dev/evacuating"], "true");
        self.patch_instance(&name, OTHER_HOST, None, true);
        self.set_migration_phase(&migration, "Succeeded");
        self.wait_until_evacuation_ends(&name);
        self.wait_until_complete(2);
    }

    fn failed_migration_is_retried(&self) {
        let name = self.first_machine();
        self.patch_instance(&name, HOST, Some(HOST), true);
        let migration = self.wait_for_migration(&name);
        self.set_migration_phase(&migration, "Failed");
        self.wait_until("the machine waits for the next attempt", || {
            let record = self.evacuation_status(&name);
            (record["reason"] == "MigrationBackoff" && record["until"].is_string()).then_some(())
        });
        let next = self.wait_for_migration(&name);
        assert_ne!(next, migration);
        self.patch_instance(&name, OTHER_HOST, None, true);
        self.set_migration_phase(&next, "Succeeded");
        self.wait_until_evacuation_ends(&name);
    }

    /// Tests a cancelled drain. This API server does not have KubeVirt's subresources, as with KubeVirt before v1.8.
    fn uncordoned_host_keeps_its_machines(&self) {
        self.kubevirt.starts_vms.store(false, Ordering::SeqCst);
        let name = self.first_machine();
        self.patch_instance(&name, HOST, Some(HOST), false);
        self.wait_until("the machine waits for its replacement", || {
            let record = self.evacuation_status(&name);
            (record["reason"] == "WaitingForReplacement"
                && record["message"].as_str()?.contains("disk is not shared"))
            .then_some(())
        });
        self.wait_until("the replacement is created", || {
            (self.machines().len() == 3).then_some(())
        });
        self.plane.kubectl(&["uncordon", HOST]).unwrap();
        self.wait_until("the drain is cancelled", || {
            let machine = self.machine(&name);
            let annotations = &machine["metadata"]["annotations"];
            let is_withdrawn = annotations["berth.dev/replacement-requested"].is_null()
                && annotations["berth.dev/removal"].is_null()
                && self.draining()["reason"] == "DrainCancelled";
            is_withdrawn.then_some(())
        });
        assert!(self.machine(&name)["metadata"]["deletionTimestamp"].is_null());
        self.patch_instance(&name, HOST, None, false);
        self.wait_until_evacuation_ends(&name);
        self.kubevirt.starts_vms.store(true, Ordering::SeqCst);
        self.wait_until_complete(2);
        assert!(!self.machine(&name).is_null(), "the machine must stay");
    }

    /// Tests that the replacement is available before the machine is removed, although the controller restarts.
    fn machine_without_a_host_is_replaced(&self, controller: Reconcilers) {
        self.engine.has_room.store(false, Ordering::SeqCst);
        self.kubevirt.starts_vms.store(false, Ordering::SeqCst);
        let name = self.first_machine();
        self.plane.kubectl(&["cordon", HOST]).unwrap();
        self.patch_instance(&name, HOST, Some(HOST), true);
        self.wait_until("a replacement is requested", || {
            let record = self.evacuation_status(&name);
            (record["reason"] == "WaitingForReplacement"
                && record["message"].as_str()?.contains("1 node(s) were full"))
            .then_some(())
        });
        drop(controller);
        let _controller = self.start_controller();
        self.wait_until("the replacement is created", || {
            (self.machines().len() == 3).then_some(())
        });
        std::thread::sleep(Duration::from_secs(2));
        let machine = self.machine(&name);
        assert!(machine["metadata"]["deletionTimestamp"].is_null(), "{machine:#}");
        assert!(machine["metadata"]["annotations"]["berth.dev/removal"].is_null(), "{machine:#}");
        self.kubevirt.starts_vms.store(true, Ordering::SeqCst);
        self.wait_until("the machine is removed", || {
            let machine = self.machine(&name);
            let is_deleted = !machine["metadata"]["deletionTimestamp"].is_null();
            (machine.is_null() || is_deleted).then_some(())
        });
        self.wait_until_complete(2);
        self.wait_until("the host is empty", || self.draining().is_null().then_some(()));
        assert!(self.migrations().iter().all(|one| one["spec"]["vmiName"] != name.as_str()
            || ["Failed", "Succeeded"].contains(&one["status"]["phase"].as_str().unwrap_or(""))));
    }
}

fn deployment() -> Value {
    let mut deployment = web_deployment(NAMESPACE, 2);
    deployment["metadata"]["annotations"] = json!({"berth.dev/user-data-secret": "base"});
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    deployment
}
