//! Tests of the real DaemonSet of `deploy/` with a real kubelet, on an emulated host: the tests verify which
//! operations work without privileges.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking and run programs"
)]

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use berth_api::Bytes;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Version, condition};
use berth_tests::host::{Host, HostOptions, Kernel, Machine};
use berth_tests::plan::run_plan;
use berth_tests::repository;
use serde_json::{Value, json};

/// Number of the host; its Node is rack1-21.
const HOST_NUMBER: u8 = 21;
const NODE_NAME: &str = "rack1-21";
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn daemonset_configures_and_reports_the_host() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    let mut host = Host::boot(&HostOptions {
        number: HOST_NUMBER,
        machine: Machine::IntelNoSmt,
        kernel: Kernel::Stable,
        has_loopback_access: true,
        ..HostOptions::default()
    })
    .unwrap();
    plane.join(&mut host, HOST_NUMBER).unwrap();
    deploy(&plane, &mut host);
    host_is_reported(&plane);
    host_is_configured(&plane, &mut host);
    drift_is_corrected(&plane, &mut host);
    allocations_of_pods_are_reported(&plane, &mut host);
    restarted_kubelet_readmits_all_pods(&plane, &mut host);
    upgrade_keeps_links(&plane, &mut host);
    deployment_elects_a_leader(&plane);
}

/// Deploys like `kubectl apply -k deploy/`, without the admission policy on servers that do not support admission
/// policies.
fn deploy(plane: &ControlPlane, host: &mut Host) {
    for program in ["berth-agent", "berth-controller"] {
        let archive = plane.folder().join(format!("{program}.tar"));
        // Without symbols, the image is a third smaller. The host computes the checksum of the image, which takes a
        // minute.
        let stripped = plane.folder().join(program);
        let strip = Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(berth_tests::program(program))
            .output()
            .unwrap();
        assert!(strip.status.success(), "{}", String::from_utf8_lossy(&strip.stderr));
        let built = Command::new(repository().join("deploy/image.sh"))
            .arg(&stripped)
            .arg(format!("{program}:0.1.0"))
            .arg(&archive)
            .env("BERTH_LIBRARIES", "1")
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        host.copy_file(&archive, "/run/image.tar").unwrap();
        host.run_checked("ctr -n k8s.io images import /run/image.tar && rm /run/image.tar")
            .unwrap();
    }
    let deploy = repository().join("deploy");
    if plane.supports("the admission policy", Version(1, 30)) {
        plane.kubectl(&["apply", "-k", deploy.to_str().unwrap()]).unwrap();
    } else {
        plane
            .deploy(&["base/daemonset.yaml", "base/rbac-controller.yaml", "base/controller.yaml"])
            .unwrap();
    }
    let ready = plane.wait_until("the DaemonSet's pod is Ready", LONG_TIMEOUT, |plane| {
        let set = plane.get_json(&["daemonset", "-n", "berth-system", "berth-agent"]).ok()?;
        (set["status"]["numberReady"] == 1).then_some(())
    });
    if let Err(error) = ready {
        let pods = plane.kubectl(&["describe", "pods", "-n", "berth-system"]).unwrap_or_default();
        let logs = host.run("cat /var/log/pods/berth-system_*/*/*.log | tail -30").unwrap().output;
        panic!("{error:#}\n{pods}\n{logs}");
    }
}

/// Waits until the condition Ready is for the current generation of the spec.
fn wait_until_ready(plane: &ControlPlane) -> Value {
    let answered = plane.wait_until("Ready for the latest generation", SHORT_TIMEOUT, |plane| {
        let node = plane.infra_node(NODE_NAME);
        let latest = node["status"]["observedGeneration"] == node["metadata"]["generation"];
        (latest && condition(&node, "Ready")["status"] == "True").then_some(node)
    });
    answered
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}", plane.infra_node(NODE_NAME)["status"]))
}

fn set_spec(plane: &ControlPlane, spec: &Value) {
    plane.set_infra_node_spec(NODE_NAME, spec).unwrap();
}

fn host_is_reported(plane: &ControlPlane) {
    let infra_node = wait_until_ready(plane);
    let status = &infra_node["status"];
    assert_eq!(status["capabilities"]["kubelet"]["cpuManagerPolicy"], "static", "{status:#}");
    assert_eq!(status["zones"].as_array().unwrap().len(), 2);
    assert_eq!(status["capabilities"]["cpu"]["threads"], 4);
    let node = plane.get_json(&["node", NODE_NAME]).unwrap();
    assert_eq!(node["status"]["capacity"]["berth.dev/pinnable-cpus"], "3", "{node:#}");
    assert_eq!(node["metadata"]["labels"]["host.berth.dev/cpu-manager"], "static");
    assert_eq!(node["metadata"]["labels"]["host.berth.dev/numa-zones"], "2");
}

/// Tests that the agent configures huge pages, KSM and links without privileges.
fn host_is_configured(plane: &ControlPlane, host: &mut Host) {
    host.run_checked("ip link add trunk0 type dummy && ip link set trunk0 mtu 1600 up").unwrap();
    set_spec(
        plane,
        &json!({
            "hugepages": [{"size": "2Mi", "zone": 0, "count": 16}, {"size": "2Mi", "zone": 1, "count": 16}],
            "ksm": {"mode": "On", "sleepMillis": 33},
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "trunk0"}, "bridge": "br-trunk"}],
            "tenantNetworks": [{"name": "cluster-a", "network": "trunk", "vlan": 120}],
        }),
    );
    wait_until_ready(plane);
    for zone in 0..2 {
        let pool =
            format!("/sys/devices/system/node/node{zone}/hugepages/hugepages-2048kB/nr_hugepages");
        assert_eq!(host.run_checked(&format!("cat {pool}")).unwrap().trim(), "16");
    }
    assert_eq!(host.run_checked("cat /sys/kernel/mm/ksm/sleep_millisecs").unwrap().trim(), "33");
    host.run_checked("bridge vlan show dev trunk0 | grep -q 120 && ip link show br-trunk").unwrap();
    plane
        .wait_until("the Node has the bridge as a resource", SHORT_TIMEOUT, |plane| {
            let node = plane.get_json(&["node", NODE_NAME]).ok()?;
            (node["status"]["allocatable"]["bridge.network.kubevirt.io/br-trunk"] == "1k")
                .then_some(())
        })
        .unwrap();
}

fn drift_is_corrected(plane: &ControlPlane, host: &mut Host) {
    host.run_checked("ip link del br-trunk").unwrap();
    host.run_checked("for i in $(seq 100); do bridge vlan show dev trunk0 | grep -q 120 && exit; sleep 0.1; done; exit 1").unwrap();
    plane
        .wait_until("an Event DriftCorrected exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-n", "default"]).ok()?.to_string();
            events.contains("DriftCorrected").then_some(())
        })
        .unwrap();
}

/// Tests the report about a Guaranteed pod with whole CPUs and huge pages.
fn allocations_of_pods_are_reported(plane: &ControlPlane, host: &mut Host) {
    // A kubelet counts huge pages only at its start.
    restart_kubelet(plane, host);
    capacity_without_a_node_equals_the_node(plane);
    let amounts = json!({"cpu": "2", "memory": "32Mi", "hugepages-2Mi": "8Mi"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pinned", "namespace": "default"},
        "spec": {
            "nodeName": NODE_NAME, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "nodeSelector": {"host.berth.dev/hugepages-2Mi": "true"},
            "containers": [{
                "name": "compute", "image": "berth.test/busybox:1", "imagePullPolicy": "Never",
                "resources": {"limits": amounts, "requests": amounts},
            }],
        },
    });
    plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &pod.to_string()).unwrap();
    wait_until_pod_runs(plane, host, "pinned");
    let uid =
        plane.get_json(&["pod", "pinned"]).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let allocation = |plane: &ControlPlane| {
        let node = plane.infra_node(NODE_NAME);
        let all = node["status"]["allocations"].as_array()?.clone();
        all.into_iter().find(|one| one["podUID"] == uid.as_str() && one["pod"] == "pinned")
    };
    let began = std::time::Instant::now();
    let reported =
        plane.wait_until("the pod's allocation is reported", SHORT_TIMEOUT, allocation).unwrap();
    writeln!(
        std::io::stderr(),
        "the allocation is reported {:?} after the pod runs",
        began.elapsed()
    )
    .unwrap_or_default();
    let state = host.run_checked("cat /var/lib/kubelet/cpu_manager_state").unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(reported["cpus"], state["entries"][&uid]["compute"]);
    assert_eq!(
        (reported["namespace"].as_str(), reported["pod"].as_str()),
        (Some("default"), Some("pinned"))
    );
    assert_eq!(reported["hugepages"], json!([{"size": "2Mi", "count": 4}]), "{reported:#}");
    plane.kubectl(&["delete", "pod", "pinned", "--force", "--grace-period=0"]).unwrap();
    let removed = plane.wait_until("the allocation is removed", SHORT_TIMEOUT, |plane| {
        allocation(plane).is_none().then_some(())
    });
    if let Err(error) = removed {
        panic!(
            "{error:#}\n{:#}\n{}",
            plane.infra_node(NODE_NAME)["status"]["allocations"],
            pod_state(host)
        );
    }
    plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &pod.to_string()).unwrap();
    wait_until_pod_runs(plane, host, "pinned");
}

/// Tests that the capacity that `plan` derives from the report of a host, without its Node, equals the kubelet's own
/// calculation.
fn capacity_without_a_node_equals_the_node(plane: &ControlPlane) {
    let report = plane.folder().join("infranode.json");
    std::fs::write(&report, plane.infra_node(NODE_NAME).to_string()).unwrap();
    let planned = run_plan(&["-f", report.to_str().unwrap()]).unwrap();
    let planned = &planned["hosts"][0];
    let total = |resource: &str| planned[resource]["total"].as_u64().unwrap();
    let node = plane.get_json(&["node", NODE_NAME]).unwrap();
    let allocatable = &node["status"]["allocatable"];
    let bytes = |name: &str| allocatable[name].as_str().unwrap().parse::<Bytes>().unwrap().0;
    assert_eq!(allocatable["cpu"], (total("cpuMillis") / 1000).to_string(), "{planned:#}");
    assert_eq!(total("hugepages"), bytes("hugepages-2Mi"), "{planned:#}");
    assert_eq!(total("memory"), bytes("memory"), "{planned:#}\n{allocatable:#}");
}

/// Returns the state of pods on the host itself, for the error message of a failed test.
fn pod_state(host: &mut Host) -> String {
    let commands = "cat /var/lib/kubelet/cpu_manager_state; echo; ls -la --time-style=full-iso /var/lib/kubelet /var/lib/kubelet/pods; \
                    find /sys/fs/cgroup -path '*kubepods*' -type d -name '*pod*'; find /sys/fs/cgroup -path '*kubepods*' -name cgroup.procs -exec cat {} +; \
                    tail -n 30 /var/log/pods/berth-system_*/*/*.log; journalctl -u kubelet --no-pager | tail -n 20; date -u";
    host.run(commands).map_or_else(|error| error.to_string(), |said| said.output)
}

fn wait_until_pod_runs(plane: &ControlPlane, host: &mut Host, name: &str) {
    let running = plane.wait_until("the pod runs", LONG_TIMEOUT, |plane| {
        let pod = plane.get_json(&["pod", name]).ok()?;
        (pod["status"]["phase"] == "Running").then_some(())
    });
    if let Err(error) = running {
        let pod = plane.kubectl(&["describe", "pod", name]).unwrap_or_default();
        let log = host.run("journalctl -u kubelet --no-pager | tail -30").unwrap().output;
        panic!("{error:#}\n{pod}\n{log}");
    }
}

fn restart_kubelet(plane: &ControlPlane, host: &mut Host) {
    host.run_checked("systemctl restart kubelet").unwrap();
    // The kubelet must have set the condition Ready after the restart.
    let now = host.run_checked("date -u +%Y-%m-%dT%H:%M:%SZ").unwrap();
    let ready = plane.wait_until("the Node is Ready again", LONG_TIMEOUT, |plane| {
        let node = plane.get_json(&["node", NODE_NAME]).ok()?;
        let ready = condition(&node, "Ready");
        let is_recent = ready["lastHeartbeatTime"].as_str().unwrap_or_default() >= now.trim();
        (is_recent && ready["status"] == "True").then_some(())
    });
    if let Err(error) = ready {
        panic!(
            "{error:#}\n{}",
            host.run("journalctl -u kubelet --no-pager | tail -30").unwrap().output
        );
    }
}

/// Tests the first invariant (`docs/safety.md`): after every kind of change a restarted kubelet admits every pod again.
fn restarted_kubelet_readmits_all_pods(plane: &ControlPlane, host: &mut Host) {
    let others = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "attached", "namespace": "default"},
        "spec": {
            "nodeName": NODE_NAME, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{
                "name": "compute", "image": "berth.test/busybox:1", "imagePullPolicy": "Never",
                "resources": {"limits": {"bridge.network.kubevirt.io/br-trunk": "1"}},
            }],
        },
    });
    plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &others.to_string()).unwrap();
    wait_until_pod_runs(plane, host, "attached");
    // The agent removes unused huge pages, the bridge, and the extended resource of the bridge.
    set_spec(
        plane,
        &json!({"hugepages": [{"size": "2Mi", "zone": 0, "count": 4}, {"size": "2Mi", "zone": 1, "count": 4}],
        "ksm": {"mode": "Off"}, "networks": null, "tenantNetworks": null}),
    );
    plane
        .wait_until("the resource is removed", SHORT_TIMEOUT, |plane| {
            let node = plane.get_json(&["node", NODE_NAME]).ok()?;
            node["status"]["capacity"]["bridge.network.kubevirt.io/br-trunk"]
                .is_null()
                .then_some(())
        })
        .unwrap();
    restart_kubelet(plane, host);
    std::thread::sleep(Duration::from_secs(10));
    for name in ["pinned", "attached"] {
        let pod = plane.get_json(&["pod", name]).unwrap();
        assert_eq!(pod["status"]["phase"], "Running", "{:#}", pod["status"]);
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    }
    let pods = plane
        .get_json(&["pods", "-n", "berth-system", "-l", "app.kubernetes.io/name=berth-agent"])
        .unwrap();
    assert_eq!(pods["items"].as_array().unwrap().len(), 1);
}

fn upgrade_keeps_links(plane: &ControlPlane, host: &mut Host) {
    set_spec(
        plane,
        &json!({
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "trunk0"}, "bridge": "br-trunk"}],
            "tenantNetworks": [{"name": "cluster-a", "network": "trunk", "vlan": 120}],
        }),
    );
    wait_until_ready(plane);
    let links = "ip -o link show br-trunk | cut -d: -f1; bridge vlan show dev trunk0";
    let before = host.run_checked(links).unwrap();
    plane.kubectl(&["rollout", "restart", "-n", "berth-system", "daemonset/berth-agent"]).unwrap();
    plane
        .kubectl(&[
            "rollout",
            "status",
            "-n",
            "berth-system",
            "daemonset/berth-agent",
            "--timeout=240s",
        ])
        .unwrap();
    assert_eq!(host.run_checked(links).unwrap(), before);
}

/// Tests the Deployment of the controller: two pods run with the permissions of `deploy/`, one of them is the leader,
/// and the second pod takes over when the leader terminates.
fn deployment_elects_a_leader(plane: &ControlPlane) {
    let available = plane.wait_until("both controllers are Ready", LONG_TIMEOUT, |plane| {
        let deployment =
            plane.get_json(&["deployment", "-n", "berth-system", "berth-controller"]).ok()?;
        (deployment["status"]["availableReplicas"] == 2).then_some(())
    });
    let pods = ["-n", "berth-system", "-l", "app.kubernetes.io/name=berth-controller"];
    if let Err(error) = available {
        let description =
            plane.kubectl(&[&["describe", "pods"], &pods[..]].concat()).unwrap_or_default();
        panic!("{error:#}\n{description}");
    }
    let profile = |pages: &str| {
        let profile = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": "dense"},
            "spec": {"class": "Density", "transparentHugepages": pages},
        });
        plane.apply(&profile.to_string()).unwrap();
        plane
            .wait_until("the profile is applied", LONG_TIMEOUT, |plane| {
                let spec = plane.infra_node(NODE_NAME)["spec"].clone();
                (spec["profile"] == "dense" && spec["transparentHugepages"] == pages).then_some(())
            })
            .unwrap();
    };
    profile("Madvise");
    let label = |plane: &ControlPlane| {
        plane.get_json(&["node", NODE_NAME]).unwrap()["metadata"]["labels"]["berth.dev/class"]
            .clone()
    };
    plane
        .wait_until("the Node has the class", LONG_TIMEOUT, |plane| {
            (label(plane) == "Density").then_some(())
        })
        .unwrap();
    // The leader terminates and releases the Lease, which the second pod acquires.
    let holder = |plane: &ControlPlane| {
        let lease = plane.get_json(&["lease", "-n", "berth-system", "berth-controller"]).unwrap();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    let first = holder(plane);
    plane.kubectl(&["delete", "pod", "-n", "berth-system", "--wait=false", &first]).unwrap();
    plane
        .wait_until("another controller is the leader", LONG_TIMEOUT, |plane| {
            let current = holder(plane);
            (!current.is_empty() && current != first).then_some(())
        })
        .unwrap();
    profile("Never");
}
