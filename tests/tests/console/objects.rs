//! Objects of the cluster that the console shows: hosts, and two tenants with a VM each.

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

/// Text that would run a script if a page did not escape it.
pub(crate) const HOSTILE: &str =
    "<img src=x onerror=\"window.xss=1\"><script>window.xss=2</script>";
const TIME: &str = "2026-11-20T10:00:00Z";

/// Texts in objects that users or devices choose.
pub(crate) struct Texts {
    profile: &'static str,
    switch: &'static str,
    message: &'static str,
}

pub(crate) const HOSTILE_TEXTS: Texts =
    Texts { profile: HOSTILE, switch: HOSTILE, message: HOSTILE };
/// Texts for the pictures in documents.
pub(crate) const USUAL_TEXTS: Texts = Texts {
    profile: "performance",
    switch: "leaf-1",
    message: "no probes of VLAN 131 arrive from rack1-b",
};

/// Patches an object.
pub(crate) fn patch(plane: &ControlPlane, path: &str, patch: &Value) {
    let answer = plane.api_client().send_body(
        "PATCH",
        &format!("{path}?fieldManager=kubectl-patch"),
        "application/merge-patch+json",
        &patch.to_string(),
    );
    answer.unwrap().unwrap();
}

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": TIME})
}

/// Creates a host with two zones, on which `cores` cores of the first zone are pinned.
fn create_host(plane: &ControlPlane, name: &str, rack: &str, cores: u32, texts: &Texts) {
    plane.create_node(name).unwrap();
    let labels = json!({"metadata": {"labels": {"example.com/rack": rack, "berth.dev/class": "Performance"}}});
    patch(plane, &format!("/api/v1/nodes/{name}"), &labels);
    let infra = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": name},
        "spec": {
            "profile": texts.profile,
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
        },
    });
    plane.apply(&infra.to_string()).unwrap();
    // At least one: Kubernetes 1.20, built with a newer Go as for the tests, refuses empty strings.
    let zone = |id: u32, first: u32, cores: u32| {
        let set = |from: u32, to: u32| {
            format!("{}-{},{}-{}", first + from, first + to, first + from + 48, first + to + 48)
        };
        json!({
            "id": id, "cpus": set(0, 23), "cores": 24, "memory": "252Gi",
            "threads": [format!("{}-{}", first, first + 23), format!("{}-{}", first + 48, first + 71)],
            "reservedCPUs": format!("{first},{}", first + 48),
            "pinnableCPUs": set(1, 23), "pinnedCPUs": set(1, cores),
            "hugepages": [{"size": "2Mi", "total": 4096, "free": 3072}],
        })
    };
    let status = json!({"status": {
        "capabilities": {
            "machine": {"product": "AS-2124BT-HNTR", "kernel": "6.12.38", "os": "Debian GNU/Linux 12 (bookworm)"},
            "cpu": {"model": "AMD EPYC 7443 24-Core Processor", "sockets": 2, "cores": 48, "threads": 96},
            "memory": {"total": "504Gi", "ksm": {"running": true, "owner": "Berth"}},
            "kvm": {"state": "Ready"},
            "kubelet": {
                "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": ["full-pcpus-only"],
                "topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container",
                "memoryManagerPolicy": "None", "reservedSystemCPUs": "0,24,48,72",
            },
        },
        "zones": [zone(0, 0, cores.max(1)), zone(1, 24, 1)],
        "networks": [{
            "name": "trunk", "ready": 1, "pending": 0, "failed": 1, "mtu": 9000,
            "notReady": [{"tenant": "cluster-shop", "vlan": 131, "state": "Failed", "message": texts.message}],
            "trunk": {"state": "Missing", "vlans": "131", "from": ["rack1-b"]},
        }],
        "neighbors": [{"uplink": "eth1", "chassis": "aa:bb:cc:dd:ee:ff", "systemName": texts.switch, "port": "Ethernet7"}],
        "changes": [{"what": "hugepages 2Mi zone 1: 0 -> 1024", "result": "Partial", "message": "got 980: memory is fragmented"}],
        "unknown": [{"path": "capabilities.kvm.apiVersion", "reason": "DeviceCgroup"}],
        "conditions": [
            condition("Ready", "True", "Applied", "all changes are applied"),
            condition("VirtualizationReady", "True", "KvmReady", "KVM can run VMs"),
            condition("TenantNetworksReady", "False", "NetworksFailed", texts.message),
        ],
    }});
    patch(plane, &format!("/apis/berth.dev/v1alpha1/infranodes/{name}/status"), &status);
}

fn create_tenant(plane: &ControlPlane, name: &str, vlan: u16) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
        "spec": {"network": {"name": "trunk"}},
    });
    plane.apply(&tenant.to_string()).unwrap();
    let status = json!({"status": {
        "namespace": format!("cluster-{name}"), "vlan": vlan, "mtu": 9000,
        "machines": {"desired": 1, "current": 1, "ready": 1},
        "hosts": {"selected": 2, "ready": 2},
        "conditions": [condition("Ready", "True", "Applied", "all objects are applied")],
    }});
    patch(plane, &format!("/apis/berth.dev/v1alpha1/tenantclusters/{name}/status"), &status);
    plane.kubectl(&["create", "namespace", &format!("cluster-{name}")]).unwrap();
}

fn create_machine(plane: &ControlPlane, tenant: &str, host: &str, texts: &Texts) {
    let (namespace, name) = (format!("cluster-{tenant}"), format!("{tenant}-web"));
    let domain = json!({
        "cpu": {"cores": 8, "dedicatedCpuPlacement": true}, "memory": {"guest": "8Gi"}, "devices": {},
    });
    let metadata = json!({"name": name, "namespace": namespace, "labels": {"md": "web"}});
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
        "spec": {"runStrategy": "Always", "template": {"spec": {"domain": domain}}},
    });
    plane.apply(&machine.to_string()).unwrap();
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata,
        "spec": {"domain": domain, "evictionStrategy": "External"},
        "status": {
            "phase": "Running", "nodeName": host, "interfaces": [{"ipAddress": "10.1.0.5"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "True"}],
        },
    });
    plane.apply(&instance.to_string()).unwrap();
    create_launcher(plane, &namespace, &name, host);
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("{name}.1"), "namespace": namespace},
        "involvedObject": {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "namespace": namespace},
        "type": "Warning", "reason": "SyncFailed", "message": texts.message, "firstTimestamp": TIME, "lastTimestamp": TIME, "count": 3,
        "source": {"component": "virt-handler"},
    });
    plane.apply(&event.to_string()).unwrap();
}

/// Creates the launcher pod of a VM, and the report of its allocation.
fn create_launcher(plane: &ControlPlane, namespace: &str, vm: &str, host: &str) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": namespace}});
    plane.apply(&account.to_string()).unwrap();
    let name = format!("virt-launcher-{vm}-x7k2p");
    let resources = json!({"cpu": "8", "memory": "8704Mi"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace,
            "labels": {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": vm}},
        "spec": {
            "nodeName": host, "automountServiceAccountToken": false, "schedulerName": "berth-scheduler",
            "containers": [{"name": "compute", "image": "launcher",
                "resources": {"requests": resources, "limits": resources}}],
        },
    });
    plane.apply(&pod.to_string()).unwrap();
    let running = json!({"status": {"phase": "Running"}});
    patch(plane, &format!("/api/v1/namespaces/{namespace}/pods/{name}/status"), &running);
    let pod = plane.get_json(&["pod", "-n", namespace, &name]).unwrap();
    let allocations = json!({"status": {"allocations": [{
        "podUID": pod["metadata"]["uid"], "namespace": namespace, "pod": name, "cpus": "1-4,49-52", "zones": [0],
    }]}});
    patch(plane, &format!("/apis/berth.dev/v1alpha1/infranodes/{host}/status"), &allocations);
}

/// Creates the kinds, two hosts, and two tenants with a VM each.
pub(crate) fn create_objects(plane: &ControlPlane, texts: &Texts) {
    plane.deploy(&["components/console/rbac.yaml"]).unwrap();
    plane.define_machine_deployments().unwrap();
    plane
        .install_kubevirt_crds(&[
            "virtualmachines.kubevirt.io",
            "virtualmachineinstances.kubevirt.io",
        ])
        .unwrap();
    for (host, rack) in [("rack1-a", "r1"), ("rack2-a", "r2")] {
        create_host(plane, host, rack, 4, texts);
    }
    for (tenant, vlan, host) in [("bank", 120, "rack1-a"), ("shop", 131, "rack2-a")] {
        create_tenant(plane, tenant, vlan);
        create_machine(plane, tenant, host, texts);
    }
}

/// Creates further hosts in the racks, for pictures.
pub(crate) fn create_racks(plane: &ControlPlane, texts: &Texts) {
    for (at, letter) in (0..).zip(["b", "c", "d", "e"]) {
        for rack in 1..=2 {
            let host = format!("rack{rack}-{letter}");
            create_host(plane, &host, &format!("r{rack}"), (at * 7 + rack * 5) % 23, texts);
            patch(plane, &format!("/apis/berth.dev/v1alpha1/infranodes/{host}/status"), &healthy());
        }
    }
}

/// Returns a status without faults.
fn healthy() -> Value {
    json!({"status": {
        "networks": [{
            "name": "trunk", "ready": 2, "pending": 0, "failed": 0, "mtu": 9000, "trunk": {"state": "Verified"},
        }],
        "changes": [],
        "conditions": [
            condition("Ready", "True", "Applied", "all changes are applied"),
            condition("VirtualizationReady", "True", "KvmReady", "KVM can run VMs"),
            condition("TenantNetworksReady", "True", "Applied", "all networks are applied"),
        ],
    }})
}

/// Creates a user of the tenant `bank`, and returns a token of this user.
pub(crate) fn create_tenant_user(plane: &ControlPlane) -> String {
    let rules = json!([
        {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]},
    ]);
    let subject = json!([{"kind": "ServiceAccount", "name": "alice", "namespace": "cluster-bank"}]);
    let metadata = json!({"name": "alice", "namespace": "cluster-bank"});
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    let named = json!([{
        "apiGroups": ["berth.dev"], "resources": ["tenantclusters"], "resourceNames": ["bank"], "verbs": ["get"],
    }]);
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "subjects": subject,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "alice"}}),
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "bank-tenant"}, "rules": named}),
        json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "bank-tenant"}, "subjects": subject,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "bank-tenant"}}),
    ] {
        plane.apply(&object.to_string()).unwrap();
    }
    plane.create_token_in("cluster-bank", "alice").unwrap()
}
