//! Control plane with users, namespaces and quotas for the tests of TenantRequests.

use std::path::PathBuf;
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Refusal, Version, condition};
use berth_tests::controller::Controller;
use serde_json::{Value, json};

/// Secret with the kubeconfigs of requesters.
pub(crate) const SECRET: &str = "berth-kubeconfigs";
const TIMEOUT: Duration = Duration::from_secs(120);
const MERGE_PATCH: &str = "application/merge-patch+json";

pub(crate) struct Bed {
    pub(crate) plane: ControlPlane,
}

/// Returns the spec of a request for machines with up to 4 CPUs and 16 GiB.
pub(crate) fn flavors(count: u32) -> Value {
    json!({
        "machines": {"count": count, "flavors": ["standard-2", "standard-4"]},
        "storage": {"size": "100Gi", "classes": ["fast"]},
    })
}

/// Returns a condition as `Status Reason`, and its message.
pub(crate) fn texts(object: &Value, type_: &str) -> (String, String) {
    let one = condition(object, type_);
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (format!("{} {}", text("status"), text("reason")), text("message"))
}

impl Bed {
    pub(crate) fn start() -> Self {
        let options =
            ControlPlaneOptions { has_controllers: true, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(options).unwrap();
        plane.deploy(&["base/rbac-controller.yaml", "base/rbac-tenant-requests.yaml"]).unwrap();
        if plane.supports("policies for requested tenants", Version(1, 30)) {
            let file = "deploy/base/admission-policy-requests.yaml";
            plane.apply_file(&berth_tests::repository().join(file)).unwrap();
        }
        plane.install_machine_kinds().unwrap();
        for (group, version, kind, plural) in [
            ("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
            ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots"),
        ] {
            plane.define_kind(group, version, kind, plural).unwrap();
        }
        let bed = Self { plane };
        for name in ["fast", "slow"] {
            bed.apply(&json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": "driver.example.com",
            }));
        }
        let server = bed.plane.kubeconfig();
        let server: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(server).unwrap()).unwrap();
        let server = &server["clusters"][0]["cluster"]["server"];
        bed.apply(&json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
            "spec": {"vlanQuarantineSeconds": 3600, "selfService": {"server": server}},
        }));
        for (name, team) in
            [("team-a", "a"), ("team-b", "b"), ("team-race", "race"), ("team-manual", "manual")]
        {
            bed.apply(&json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}},
            }));
        }
        bed.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "alice", "namespace": "team-a"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        }));
        bed.create_user("alice");
        bed.wait_until_kinds_are_counted();
        bed
    }

    /// Waits until the controller manager counts objects of kinds that were created after its start. It does not count them in
    /// a ResourceQuota that exists before.
    fn wait_until_kinds_are_counted(&self) {
        let probe = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "probe", "namespace": "default"},
            "spec": {"hard": {
                "count/virtualmachines.kubevirt.io": "1", "count/machinedeployments.cluster.k8s.io": "1",
                "count/datavolumes.cdi.kubevirt.io": "1",
            }},
        });
        let delete = ["delete", "resourcequota", "probe", "-n", "default", "--ignore-not-found"];
        self.wait_until("the controller manager counts all kinds", |bed| {
            bed.apply(&probe);
            let quota = bed.plane.get_json(&["resourcequota", "probe", "-n", "default"]).ok()?;
            let status = &quota["status"];
            let is_complete = status["used"].as_object().is_some_and(|used| used.len() == 3);
            if is_complete || status["hard"].is_object() {
                bed.plane.kubectl(&delete).unwrap();
            }
            is_complete.then_some(())
        });
    }

    /// Waits until the ResourceQuota of a tenant has the numbers of all kinds that the control plane has. Before, the API server
    /// refuses objects.
    pub(crate) fn wait_until_objects_are_counted(&self, namespace: &str) {
        for key in [
            "count/machinedeployments.cluster.k8s.io",
            "count/datavolumes.cdi.kubevirt.io",
            "count/virtualmachines.kubevirt.io",
            "count/secrets",
        ] {
            self.wait_until(key, |bed| bed.counted(namespace, key));
        }
    }

    /// Returns limit and number of a kind of objects in the ResourceQuota of a tenant.
    pub(crate) fn counted(&self, namespace: &str, key: &str) -> Option<(String, String)> {
        let quota = self
            .plane
            .get_json(&["resourcequota", "berth-tenant-request", "-n", namespace])
            .ok()?;
        let text = |part: &str| quota["status"][part][key].as_str().map(str::to_owned);
        Some((text("hard")?, text("used")?))
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.plane.apply(&object.to_string()).unwrap();
    }

    fn create_user(&self, name: &str) {
        let certificate = self.plane.create_certificate(name, name, "users").unwrap();
        self.plane.write_certificate_kubeconfig(name, &certificate).unwrap();
    }

    pub(crate) fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.plane.folder().join(format!("{user}.kubeconfig"))
    }

    pub(crate) fn start_controller(&self, name: &str) -> Controller {
        Controller::start(&self.plane, name, &[]).unwrap()
    }

    pub(crate) fn wait_until_leader(&self, controller: &Controller) {
        self.wait_until("the controller is the leader", |_| {
            (controller.metric("berth_controller_leader") > 0.5).then_some(())
        });
    }

    pub(crate) fn wait_until<T>(&self, what: &str, answer: impl Fn(&Self) -> Option<T>) -> T {
        let result = self.plane.wait_until(what, TIMEOUT, |_| answer(self));
        result.unwrap_or_else(|error| panic!("{error}: {}", self.describe()))
    }

    /// Returns all requests and quotas, and the ends of the controllers' logs.
    fn describe(&self) -> String {
        let list = |kind: &str| self.plane.get_json(&[kind, "-A"]).unwrap_or_default();
        let logs: Vec<String> = ["race-a", "race-b", "first", "restored", "killed", "last"]
            .iter()
            .map(|name| self.plane.log_tail(name))
            .collect();
        let requests = list("tenantrequests");
        let requests = requests["items"].as_array().cloned().unwrap_or_default();
        let statuses: Vec<String> = requests
            .iter()
            .map(|one| format!("{}: {:#}", one["metadata"]["name"], one["status"]))
            .collect();
        format!("{}\n{}", statuses.join("\n"), logs.join("\n"))
    }

    /// Waits until a condition of a request is `Status Reason`. Returns the request.
    pub(crate) fn wait_for(
        &self,
        namespace: &str,
        name: &str,
        type_: &str,
        expected: &str,
    ) -> Value {
        self.wait_until(&format!("{namespace}/{name} {type_} {expected}"), |bed| {
            let request = bed.plane.get_json(&["tenantrequest", name, "-n", namespace]).ok()?;
            let is_observed =
                request["status"]["observedGeneration"] == request["metadata"]["generation"];
            (is_observed && texts(&request, type_).0 == expected).then_some(request)
        })
    }

    pub(crate) fn create_quota(
        &self,
        name: &str,
        namespaces: &Value,
        approval: &str,
        tenants: u32,
    ) {
        self.apply(&json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": name},
            "spec": {
                "namespaces": namespaces, "approval": approval,
                "limits": {
                    "tenants": tenants, "machines": 40, "memory": "2Ti", "storage": "5Ti",
                    "flavors": ["standard-2", "standard-4"], "storageClasses": ["fast"],
                },
            },
        }));
    }

    pub(crate) fn create_request(&self, namespace: &str, name: &str, spec: &Value) {
        self.apply(&request(namespace, name, spec));
    }

    /// Creates a request as a user, when the controller manager has aggregated the permissions.
    pub(crate) fn create_request_as(
        &self,
        user: &str,
        namespace: &str,
        name: &str,
        spec: &Value,
    ) -> anyhow::Result<()> {
        let kubeconfig = self.kubeconfig_of(user);
        let can = ["auth", "can-i", "create", "tenantrequests.berth.dev", "-n", namespace];
        self.plane.wait_until("the user may create requests", TIMEOUT, |plane| {
            plane.kubectl_with(&kubeconfig, &can, "").is_ok().then_some(())
        })?;
        let object = request(namespace, name, spec).to_string();
        self.plane.kubectl_with(&kubeconfig, &["create", "-f", "-"], &object).map(drop)
    }

    /// Patches an object as administrator.
    pub(crate) fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) {
        let path = object_path(plural, namespace, name);
        let client = self.plane.api_client();
        let response = client.send_body("PATCH", &path, MERGE_PATCH, &patch.to_string());
        response.unwrap().unwrap();
    }

    /// Patches the status of a request as administrator.
    pub(crate) fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), Refusal> {
        let path = format!("{}/status", object_path("tenantrequests", namespace, name));
        let client = self.plane.api_client();
        let response = client.send_body("PATCH", &path, MERGE_PATCH, &patch.to_string());
        response.unwrap().map(drop)
    }

    pub(crate) fn approve(&self, namespace: &str, name: &str, decision: &str, generation: i64) {
        let request = self.plane.get_json(&["tenantrequest", name, "-n", namespace]).unwrap();
        let uid = &request["metadata"]["uid"];
        let approval = json!({"decision": decision, "generation": generation, "uid": uid});
        self.patch_status(namespace, name, &json!({"status": {"approval": approval}})).unwrap();
    }

    /// Returns the amounts that a quota counts.
    pub(crate) fn used(&self, quota: &str) -> Value {
        let quota = self.plane.get_json(&["tenantquota", quota]).unwrap_or_default();
        quota["status"]["used"].clone()
    }

    /// Returns the names of all TenantClusters.
    pub(crate) fn tenants(&self) -> Vec<String> {
        let list = self.plane.get_json(&["tenantclusters"]).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn request(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantRequest",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    })
}

fn object_path(plural: &str, namespace: &str, name: &str) -> String {
    let scope = match namespace {
        "" => String::new(),
        namespace => format!("/namespaces/{namespace}"),
    };
    format!("/apis/berth.dev/v1alpha1{scope}/{plural}/{name}")
}
