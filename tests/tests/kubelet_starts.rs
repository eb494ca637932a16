//! Tests of a real kubelet whose huge pages and configuration change while it runs: the agent reports the values
//! with which the kubelet started, and the kubelet starts again after every change that Berth permits. The tests
//! compare with `/configz` and with the kubelet's refusals.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Version, condition};
use berth_tests::host::{Host, HostOptions, Kernel, Machine};
use berth_tests::skip::record;
use serde_json::{Value, json};

/// Number of the host; its Node is rack1-22.
const HOST_NUMBER: u8 = 22;
const NODE_NAME: &str = "rack1-22";
/// First Kubernetes version in which `--config-dir` needs no feature gate.
const MIN_VERSION: Version = Version(1, 30);
const LONG_TIMEOUT: Duration = Duration::from_secs(300);
const DROP_IN_FOLDER: &str = "/etc/kubernetes/kubelet.conf.d";
const MEMORY_STATE_FILE: &str = "/var/lib/kubelet/memory_manager_state";
const POOL_FILE: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";

/// CPUs 0-3 are two cores of zone 0, and CPUs 4-7 two cores of zone 1. The Memory Manager requires that its
/// reserved memory equals the eviction threshold.
const CONFIGURATION: &str = r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 20Mi, nodefs.available: 1%, imagefs.available: 1%}
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
cpuManagerReconcilePeriod: 1s
topologyManagerPolicy: single-numa-node
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 20Mi}}]
reservedSystemCPUs: "0-1"
syncFrequency: 10s
"#;

#[test]
fn kubelet_restarts_after_all_permitted_changes() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    if plane.version() < MIN_VERSION {
        let version = plane.version();
        return record(&format!(
            "kubelet_restarts_after_all_permitted_changes: requires Kubernetes {MIN_VERSION} for --config-dir and Memory Manager, \
             the server has {version}"
        ));
    }
    let agent = berth_tests::program("berth-agent");
    let mut host = Host::boot(&HostOptions {
        agent: Some(&agent),
        number: HOST_NUMBER,
        machine: Machine::IntelSmt,
        kernel: Kernel::Stable,
        has_loopback_access: true,
        ..HostOptions::default()
    })
    .unwrap();
    host.run_checked(&format!(
        "mkdir -p /var/lib/kubelet /etc/kubelet {DROP_IN_FOLDER} && echo --config-dir={DROP_IN_FOLDER} >/etc/kubelet/flags &&
         cat >/var/lib/kubelet/config.yaml <<'END'\n{CONFIGURATION}END"
    ))
    .unwrap();
    plane.join(&mut host, HOST_NUMBER).unwrap();
    let mut test = Testbed { plane, host };
    test.report_matches_the_kubelet();
    test.kubelet_starts_after_pages_changed();
    test.pages_are_restored_if_the_kubelet_cannot_start();
    test.staged_drop_in_waits_and_is_deactivated();
    test.drop_in_is_activated_while_the_kubelet_is_stopped();
}

struct Testbed {
    plane: ControlPlane,
    host: Host,
}

impl Testbed {
    fn run_checked(&mut self, command: &str) -> String {
        self.host.run_checked(command).unwrap().trim().to_owned()
    }

    /// Applies a spec, and returns one line `Result what: message` for each outcome.
    fn apply(&mut self, spec: &Value) -> String {
        let manifest = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": NODE_NAME}, "spec": spec,
        });
        let command = format!(
            "cat >/run/spec.json <<'END'\n{manifest}\nEND\nberth-agent apply -o json -f /run/spec.json 2>/run/apply.log"
        );
        let applied = self.host.run(&command).unwrap();
        let outcomes: Vec<Value> = serde_json::from_str(&applied.output).unwrap_or_else(|_| {
            panic!("{}\n{}", applied.output, self.host.run_checked("cat /run/apply.log").unwrap())
        });
        let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let lines = outcomes.iter().map(|one| {
            let [result, what, message] = ["result", "what", "message"].map(|name| text(one, name));
            format!("{result} {what}: {message}")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the agent's report about the kubelet.
    fn reported_kubelet(&mut self) -> Value {
        let report = self.run_checked("berth-agent report -o json 2>/dev/null");
        let report: Value = serde_json::from_str(&report).unwrap();
        report["status"]["capabilities"]["kubelet"].clone()
    }

    /// Returns the running configuration from the kubelet's `/configz`.
    fn configz(&mut self) -> Value {
        let response = self.run_checked("curl -sk --max-time 30 https://127.0.0.1:10250/configz");
        let response: Value = serde_json::from_str(&response).unwrap();
        response["kubeletconfig"].clone()
    }

    /// Asserts that the report and the kubelet agree, and returns the report.
    fn assert_report_matches_kubelet(&mut self) -> Value {
        let (ours, theirs) = (self.reported_kubelet(), self.configz());
        for field in [
            "cpuManagerPolicy",
            "topologyManagerPolicy",
            "topologyManagerScope",
            "memoryManagerPolicy",
            "reservedSystemCPUs",
        ] {
            assert_eq!(ours[field], theirs[field], "{field}: {ours:#}");
        }
        let options: Vec<&String> =
            theirs["cpuManagerPolicyOptions"].as_object().unwrap().keys().collect();
        assert_eq!(ours["cpuManagerPolicyOptions"], json!(options));
        ours
    }

    /// Waits until the kubelet has reported Ready after the call.
    fn wait_until_ready(&mut self) {
        let now = self.run_checked("date -u +%Y-%m-%dT%H:%M:%SZ");
        let ready = self.plane.wait_until("the Node is Ready again", LONG_TIMEOUT, |plane| {
            let node = plane.get_json(&["node", NODE_NAME]).ok()?;
            let ready = condition(&node, "Ready");
            let is_recent = ready["lastHeartbeatTime"].as_str().unwrap_or_default() > now.as_str();
            (is_recent && ready["status"] == "True").then_some(())
        });
        if let Err(error) = ready {
            panic!("{error:#}\n{}", self.kubelet_log());
        }
    }

    fn restart_kubelet(&mut self) {
        self.run_checked("systemctl restart kubelet");
        self.wait_until_ready();
    }

    fn kubelet_log(&mut self) -> String {
        self.host.run("journalctl -u kubelet --no-pager | tail -40").unwrap().output
    }

    fn read_pages(&mut self) -> String {
        self.run_checked(&format!("cat {POOL_FILE}"))
    }

    /// Returns the number of 2 MiB pages in zone 0 that the kubelet's Memory Manager has counted.
    fn counted_pages(&mut self) -> u64 {
        let state: Value =
            serde_json::from_str(&self.run_checked(&format!("cat {MEMORY_STATE_FILE}"))).unwrap();
        state["machineState"]["0"]["memoryMap"]["hugepages-2Mi"]["total"].as_u64().unwrap() >> 21
    }

    /// Runs a pod of class Guaranteed with an exclusive core, and returns the CPUs of the pod.
    fn run_pinned_pod(&mut self) -> String {
        let amounts = json!({"cpu": "2", "memory": "32Mi"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pinned", "namespace": "default"},
            "spec": {
                "nodeName": NODE_NAME, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "compute", "image": "berth.test/busybox:1", "imagePullPolicy": "Never",
                    "resources": {"limits": amounts, "requests": amounts},
                }],
            },
        });
        let kubeconfig = self.plane.kubeconfig();
        self.plane.kubectl_with(&kubeconfig, &["create", "-f", "-"], &pod.to_string()).unwrap();
        let running = self.plane.wait_until("the pod runs", LONG_TIMEOUT, |plane| {
            let pod = plane.get_json(&["pod", "pinned"]).ok()?;
            (pod["status"]["phase"] == "Running").then_some(pod)
        });
        let pod = running.unwrap_or_else(|error| panic!("{error:#}\n{}", self.kubelet_log()));
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let state: Value =
            serde_json::from_str(&self.run_checked("cat /var/lib/kubelet/cpu_manager_state"))
                .unwrap();
        state["entries"][uid]["compute"].as_str().unwrap().to_owned()
    }

    fn delete_pinned_pod(&mut self) {
        self.plane.kubectl(&["delete", "pod", "pinned", "--force", "--grace-period=0"]).unwrap();
        let command = "for i in $(seq 120); do \
            [ -z \"$(find /sys/fs/cgroup/kubepods* -maxdepth 1 -name 'pod*')\" ] && \
            [ -z \"$(ls /var/lib/kubelet/pods)\" ] && exit 0; sleep 1; done; exit 1";
        self.run_checked(command);
    }

    fn report_matches_the_kubelet(&mut self) {
        let ours = self.assert_report_matches_kubelet();
        assert_eq!(ours["startedWith"], json!({"current": true}), "{ours:#}");
        // The file is newer than the kubelet's start and there is no record, so the configuration that the kubelet
        // has read is unknown.
        self.run_checked("rm -f /var/lib/berth/kubelet.json; touch /var/lib/kubelet/config.yaml");
        assert_eq!(self.reported_kubelet(), Value::Null);
        self.restart_kubelet();
        self.assert_report_matches_kubelet();
    }

    fn kubelet_starts_after_pages_changed(&mut self) {
        let spec = json!({"hugepages": [{"size": "2Mi", "zone": 0, "count": 16}]});
        let runs = self.apply(&spec);
        assert!(runs.starts_with("Blocked hugepages 2Mi zone 0: 0 -> 16"), "{runs}");
        assert!(runs.contains("systemctl stop kubelet"), "{runs}");
        assert_eq!(self.read_pages(), "0");
        self.run_checked("systemctl stop kubelet");
        let stopped = self.apply(&spec);
        assert!(stopped.starts_with("Done hugepages 2Mi zone 0: 0 -> 16"), "{stopped}");
        self.run_checked("systemctl start kubelet");
        self.wait_until_ready();
        assert_eq!(self.counted_pages(), 16);
        // The kubelet has written a new checkpoint in the meantime, with which the restart is tested too.
        self.restart_kubelet();
        assert_eq!(self.apply(&spec), "");
    }

    /// Reproduces the actions of the agent's first release: the checkpoint is deleted and pages change while the
    /// kubelet runs.
    fn pages_are_restored_if_the_kubelet_cannot_start(&mut self) {
        self.run_checked(&format!("rm {MEMORY_STATE_FILE} && echo 20 >{POOL_FILE}"));
        // A pod's memory makes the kubelet write the checkpoint again.
        self.run_pinned_pod();
        assert_eq!(self.counted_pages(), 16, "the kubelet counts pages only at its start");
        self.delete_pinned_pod();
        // systemd restarts the failing kubelet repeatedly, so the message may take some time to appear.
        let command = "systemctl restart kubelet; for i in $(seq 280); do journalctl -u kubelet --no-pager | \
            grep -q 'expected machine state is different' && exit 0; sleep 1; done; exit 1";
        let refused = self.host.run_for(command, LONG_TIMEOUT).unwrap();
        assert_eq!(refused.code, 0, "{}", self.kubelet_log());
        let restored = self.apply(&json!({"hugepages": [{"size": "2Mi", "zone": 0, "count": 20}]}));
        // Between two start attempts no kubelet runs, and the agent may then delete the old checkpoint and not restore the pages. If the
        // next attempt starts after the plan, the deletion is blocked, and the next plan restores the pages.
        let either = ["Done hugepages 2Mi zone 0: 20 -> 16", "Done kubelet checkpoint"];
        let is_done = |line: &str| either.iter().any(|done| line.starts_with(done));
        assert!(restored.lines().any(is_done), "{restored}");
        self.wait_until_ready();
        let pages = self.read_pages();
        assert_eq!(pages, self.counted_pages().to_string());
        self.restart_kubelet();
    }

    fn staged_spec() -> Value {
        json!({"cpu": {"reserved": {"cpus": "0-3"}, "kubelet": "Stage"}})
    }

    fn staged_drop_in_waits_and_is_deactivated(&mut self) {
        // Zone 0 has one core that is not reserved, and the kubelet allocates this core first.
        assert_eq!(self.run_pinned_pod(), "2-3");
        let waiting = self.apply(&Self::staged_spec());
        assert!(waiting.contains("Done kubelet drop-in: none -> staged"), "{waiting}");
        assert!(waiting.contains("Blocked kubelet drop-in: staged -> active"), "{waiting}");
        // An operator activates the drop-in while the kubelet runs: the kubelet does not use the drop-in yet, and
        // would refuse its checkpoint at the next start.
        self.run_checked(&format!("cd {DROP_IN_FOLDER} && mv 99-berth.conf.staged 99-berth.conf"));
        let ours = self.assert_report_matches_kubelet();
        assert_eq!(ours["reservedSystemCPUs"], "0-1");
        assert_eq!(ours["startedWith"]["pendingRestart"], json!(["reservedSystemCPUs"]));
        let plan = self.run_checked("berth-agent plan -f /run/spec.json || true");
        assert!(!plan.contains("systemctl restart"), "{plan}");
        let deactivated = self.apply(&Self::staged_spec());
        assert!(deactivated.contains("Done kubelet drop-in: active -> staged"), "{deactivated}");
        self.restart_kubelet();
        let pod = self.plane.get_json(&["pod", "pinned"]).unwrap();
        assert_eq!(pod["status"]["phase"], "Running", "{:#}", pod["status"]);
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    }

    fn drop_in_is_activated_while_the_kubelet_is_stopped(&mut self) {
        self.delete_pinned_pod();
        let runs = self.apply(&Self::staged_spec());
        assert!(runs.contains("Blocked kubelet drop-in: staged -> active"), "{runs}");
        assert!(runs.contains("kubelet stopped") || runs.contains("kubelet is stopped"), "{runs}");
        self.run_checked("systemctl stop kubelet");
        let stopped = self.apply(&Self::staged_spec());
        assert!(stopped.contains("Done kubelet drop-in: staged -> active"), "{stopped}");
        self.run_checked("systemctl start kubelet");
        self.wait_until_ready();
        let ours = self.assert_report_matches_kubelet();
        assert_eq!(ours["reservedSystemCPUs"], "0-3");
        assert_eq!(ours["startedWith"], json!({"current": true}));
        self.restart_kubelet();
        assert_eq!(self.run_pinned_pod(), "4-5", "zone 0 is reserved for the host");
    }
}
