//! Tests of the controller's reconcilers with a server that refuses requests. Each reconciler has an object to write.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::thread::sleep;
use std::time::Duration;

use berth_tests::cluster::proxy::{Behaviour, Proxy, Request, RequestFilter};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use crate::testbed::group_by_path;

const SHORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which the server refuses requests.
const FAULT_DURATION: Duration = Duration::from_secs(16);
/// Value of `Retry-After`, in seconds.
const RETRY_AFTER: u64 = 5;
/// Interval within which two requests may have been sent concurrently on a slow machine. A reconciler that ignores
/// `Retry-After` sends another request, after a backoff that is longer than this interval.
const CONCURRENT_INTERVAL: Duration = Duration::from_secs(1);
const OVERLOAD_MESSAGE: &str = "Too many requests, please try again later.\n";

/// Name of each reconciler, and path of an object that the reconciler writes after `change_all_specs`.
const WRITTEN_OBJECTS: [(&str, &str); 6] = [
    ("hosts", "/apis/berth.dev/v1alpha1/infranodes/rack1-a"),
    ("profiles", "/apis/berth.dev/v1alpha1/hostprofiles/all/status"),
    ("config", "/apis/berth.dev/v1alpha1/infraconfigs/default/status"),
    (
        "objects of tenants",
        "/apis/networking.k8s.io/v1/namespaces/cluster-abc/networkpolicies/cluster-isolation",
    ),
    ("tenants", "/apis/berth.dev/v1alpha1/tenantclusters/abc/status"),
    (
        "machines",
        "/apis/cluster.k8s.io/v1alpha1/namespaces/cluster-abc/machinedeployments/web/status",
    ),
];

struct Testbed {
    plane: ControlPlane,
    proxy: Proxy,
    _controller: Controller,
}

pub(crate) fn refused_requests_are_tolerated() {
    let bed = Testbed::start();
    bed.writes_with_retry_after_are_retried(429, 1);
    bed.writes_with_retry_after_are_retried(503, 2);
    bed.writes_without_retry_after_are_retried(3);
    bed.all_requests_with_retry_after_are_retried(4);
}

impl Testbed {
    fn start() -> Self {
        let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
        plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
        for (kind, plural) in [
            ("VirtualMachine", "virtualmachines"),
            ("VirtualMachineInstance", "virtualmachineinstances"),
        ] {
            plane.define_kind("kubevirt.io", "v1", kind, plural).unwrap();
        }
        plane.define_machine_deployments().unwrap();
        plane.create_node("rack1-a").unwrap();
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "rack1-a"}, "spec": {}});
        let create = ["create", "--validate=false", "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &create, &host.to_string()).unwrap();
        let proxy = Proxy::start(&plane).unwrap();
        // The Lease must not expire during the refusals.
        let more = ["--lease-duration=120", "--resync=600", "--log-format=json"];
        let controller =
            Controller::start_behind_proxy(&proxy, &plane, "controller", &more).unwrap();
        let bed = Self { plane, proxy, _controller: controller };
        bed.change_all_specs(0);
        bed.plane
            .wait_until("the namespace exists", SHORT_TIMEOUT, |plane| {
                plane.get_json(&["ns", "cluster-abc"]).ok()
            })
            .unwrap();
        bed.apply_deployment(0);
        bed.wait_until_reconciled(0);
        bed
    }

    /// Changes the spec of each object to values that depend on `number`.
    fn change_all_specs(&self, number: u32) {
        let object = |kind: &str, name: &str, spec: Value| {
            let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
            self.plane.apply(&object.to_string()).unwrap();
        };
        object("HostProfile", "all", json!({"ksm": {"mode": "On", "sleepMillis": 100 + number}}));
        object(
            "InfraConfig",
            "default",
            json!({"dnsConfig": {"nameservers": [format!("192.0.2.{}", number + 1)]}}),
        );
        object("TenantCluster", "abc", json!({"projectID": format!("p{number}")}));
        if number > 0 {
            self.apply_deployment(number);
        }
    }

    fn apply_deployment(&self, number: u32) {
        let object = json!({
            "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": "web", "namespace": "cluster-abc"},
            "spec": {"replicas": number + 1, "selector": {"matchLabels": {"name": "web"}}, "template": {
                "metadata": {"labels": {"name": "web"}},
                "spec": {"providerSpec": {"value": {"cloudProvider": "kubevirt", "cloudProviderSpec": {}}}},
            }},
        });
        self.plane.apply(&object.to_string()).unwrap();
    }

    /// Waits until every reconciler has applied the specs.
    fn wait_until_reconciled(&self, number: u32) {
        let is_observed = |resource: &[&str]| {
            let object = self.plane.get_json(resource).unwrap_or_default();
            let generation = &object["metadata"]["generation"];
            generation.is_number() && object["status"]["observedGeneration"] == *generation
        };
        let all: [&[&str]; 4] = [
            &["hostprofile", "all"],
            &["infraconfig", "default"],
            &["tenantcluster", "abc"],
            &["machinedeployment", "web", "-n", "cluster-abc"],
        ];
        for resource in all {
            let result = self.plane.wait_until(&resource.join(" "), SHORT_TIMEOUT, |_| {
                is_observed(resource).then_some(())
            });
            assert!(
                result.is_ok(),
                "{result:?}: {:#}\n{}",
                self.plane.get_json(resource).unwrap_or_default(),
                self.plane.log_tail("controller")
            );
        }
        let host_updated =
            self.plane.wait_until("the host has the new spec", SHORT_TIMEOUT, |plane| {
                (plane.infra_node("rack1-a")["spec"]["ksm"]["sleepMillis"] == 100 + number)
                    .then_some(())
            });
        assert!(host_updated.is_ok(), "{host_updated:?}: {:#}", self.plane.infra_node("rack1-a"));
        // A reconcile may fail after it has written the observed generation. Its backoff would then delay the first
        // requests of the next test.
        let recovered = self.plane.wait_until("no object is in backoff", SHORT_TIMEOUT, |_| {
            self.failing_objects().is_empty().then_some(())
        });
        assert!(recovered.is_ok(), "{recovered:?}: {:?}", self.failing_objects());
    }

    /// Returns the objects whose last reconcile failed according to the log, as pairs of reconciler and object.
    fn failing_objects(&self) -> BTreeSet<(String, String)> {
        let log = read_to_string(self.plane.folder().join("controller.log")).unwrap();
        let mut failing = BTreeSet::new();
        // The last line may be incomplete.
        for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let field = |name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
            let object = (field("reconciler"), field("object"));
            match field("message").as_str() {
                "failed to reconcile; trying again" => failing.insert(object),
                "reconcile succeeded after failures" => failing.remove(&object),
                _ => continue,
            };
        }
        failing
    }

    fn writes_with_retry_after_are_retried(&self, code: u16, number: u32) {
        self.proxy.set_behaviour(
            RequestFilter::Writes,
            Behaviour::Respond(code, Some(RETRY_AFTER), OVERLOAD_MESSAGE.to_owned()),
        );
        let all_requests = self.requests_while_refused(number);
        assert_every_reconciler_retried(&all_requests, 2);
        assert_no_early_retry(&all_requests);
        self.proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
        self.wait_until_reconciled(number);
    }

    fn writes_without_retry_after_are_retried(&self, number: u32) {
        self.proxy.set_behaviour(
            RequestFilter::Writes,
            Behaviour::Respond(500, None, OVERLOAD_MESSAGE.to_owned()),
        );
        let all_requests = self.requests_while_refused(number);
        assert_every_reconciler_retried(&all_requests, 3);
        // The backoff starts at half a second, and jitter shortens each delay by at most a quarter, so the retries
        // begin 0.4, 1.1, 2.6, 5.6 and 11.6 s after the first failure at the earliest. A reconciler that sees the
        // change twice starts the backoff twice. On a slow machine the retries begin later.
        for (kind, requests) in group_by_path(&all_requests) {
            let first_and_last = requests.first().zip(requests.last());
            let duration = first_and_last
                .map_or(Duration::ZERO, |(first, last)| last.arrived_at - first.arrived_at);
            let max_requests =
                8 + usize::try_from(duration.saturating_sub(FAULT_DURATION).as_secs() / 5).unwrap();
            assert!(requests.len() <= max_requests, "{kind:?}: {requests:#?}");
        }
        self.proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
        self.wait_until_reconciled(number);
    }

    /// Tests a server that refuses all requests with `Retry-After`. The proxy also resets the watches, so the
    /// controller lists every kind again.
    fn all_requests_with_retry_after_are_retried(&self, number: u32) {
        self.proxy.set_behaviour(
            RequestFilter::All,
            Behaviour::Respond(429, Some(RETRY_AFTER), OVERLOAD_MESSAGE.to_owned()),
        );
        let mark = self.proxy.request_count();
        self.proxy.reset_connections();
        sleep(FAULT_DURATION);
        let all_requests = self.proxy.requests_since(mark);
        let kinds = group_by_path(&all_requests);
        for plural in [
            "nodes",
            "infranodes",
            "hostprofiles",
            "infraconfigs",
            "tenantclusters",
            "vlanclaims",
            "machinedeployments",
        ] {
            let lists =
                kinds.iter().find(|((verb, path), _)| verb != "PATCH" && path.ends_with(plural));
            assert!(lists.is_some_and(|(_, requests)| requests.len() >= 2), "{plural}: {kinds:#?}");
        }
        assert_no_early_retry(&all_requests);
        self.proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
        self.change_all_specs(number);
        self.wait_until_reconciled(number);
    }

    fn requests_while_refused(&self, number: u32) -> Vec<Request> {
        let mark = self.proxy.request_count();
        if number > 0 {
            // The controller applies a deleted policy of the tenant again.
            let policy = ["delete", "networkpolicy", "cluster-isolation", "-n", "cluster-abc"];
            self.plane.kubectl(&policy).unwrap();
        }
        self.change_all_specs(number);
        sleep(FAULT_DURATION);
        self.proxy.requests_since(mark)
    }
}

fn assert_every_reconciler_retried(all_requests: &[Request], times: usize) {
    let kinds = group_by_path(all_requests);
    for (reconciler, path) in WRITTEN_OBJECTS {
        let tries = kinds
            .iter()
            .filter(|((verb, request_path), _)| verb == "PATCH" && request_path == path);
        let tries: usize = tries.map(|(_, requests)| requests.len()).sum();
        assert!(tries >= times, "{reconciler}: {tries} requests for {path}: {kinds:#?}");
    }
}

/// Asserts that no reconciler or watch repeats a refused request before the `Retry-After` time has passed.
fn assert_no_early_retry(all_requests: &[Request]) {
    for ((verb, path), requests) in group_by_path(all_requests) {
        for pair in requests.windows(2) {
            let delay = pair[1].arrived_at - pair[0].arrived_at;
            // These requests were sent concurrently, before the first refusal.
            if delay < CONCURRENT_INTERVAL {
                continue;
            }
            let refused = pair[0].code.is_some_and(|code| code >= 429);
            let is_early = delay < Duration::from_secs(RETRY_AFTER);
            assert!(!(refused && is_early), "{verb} {path} again after {delay:?}: {requests:#?}");
        }
    }
}
