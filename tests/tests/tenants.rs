//! Tests of TenantClusters on a real API server: their VLANs, their objects, and their deletion.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use berth_controller::run::tenants::{self, TenantInformers};
use berth_tests::cluster::{CLUSTER_DNS, ControlPlane, ControlPlaneOptions, condition};
use berth_tests::controller::Reconcilers;
use berth_tests::simulated::{Fleet, FleetBehaviour};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

/// Resync interval for objects without changes.
const RESYNC: Duration = Duration::from_secs(600);
const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts only the reconciler of tenants.
fn start_controller(plane: &ControlPlane) -> Reconcilers {
    let run = |client: Client, events| async move {
        let mut tasks = JoinSet::new();
        let shared_informers = TenantInformers::start_watches(&client, &mut tasks);
        // The reconciler reads the kubeconfigs itself, because no other task reports changes of kubeconfigs here.
        let (_, kubeconfigs) = unbounded_channel();
        // Without a server the reconciler ends, and the test ends then too.
        tenants::run(client, events, Arc::default(), shared_informers, kubeconfigs, RESYNC)
            .await
            .map(drop)
            .unwrap();
    };
    Reconcilers::start(plane, run).unwrap()
}

fn create_tenant(plane: &ControlPlane, name: &str, spec: &Value) {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": name}, "spec": spec,
    });
    plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &object.to_string()).unwrap();
}

fn trunk_spec() -> Value {
    json!({"network": {"name": "trunk"}})
}

fn get_tenant(plane: &ControlPlane, name: &str) -> Value {
    plane.get_json(&["tenantcluster", name]).unwrap_or_default()
}

/// Returns a condition of a tenant as `Status Reason`, and its message.
fn condition_texts(tenant: &Value, name: &str) -> (String, String) {
    let one = condition(tenant, name);
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (format!("{} {}", text("status"), text("reason")), text("message"))
}

fn wait_until_condition(plane: &ControlPlane, name: &str, type_: &str, expected: &str) -> Value {
    let mut last = Value::Null;
    let reached = plane.wait_until(expected, SHORT_TIMEOUT, |plane| {
        last = get_tenant(plane, name);
        (condition_texts(&last, type_).0 == expected).then(|| last.clone())
    });
    reached.unwrap_or_else(|error| panic!("{name} {type_}: {error}: {:#}", last["status"]))
}

/// Returns VLANs by tenant from the statuses, and asserts that no two tenants have the same VLAN in statuses, claims or
/// NetworkAttachmentDefinitions.
fn assert_unique_vlans(plane: &ControlPlane) -> BTreeMap<String, u64> {
    let all = plane.get_json(&["tenantclusters"]).unwrap();
    let mut found = BTreeMap::new();
    for one in all["items"].as_array().unwrap() {
        let name = one["metadata"]["name"].as_str().unwrap().to_owned();
        let Some(vlan) = one["status"]["vlan"].as_u64() else { continue };
        assert!(
            found.values().all(|other| *other != vlan),
            "VLAN {vlan} is assigned twice: {all:#}"
        );
        let network = one["spec"]["network"]["name"].as_str().unwrap();
        let claim = plane.get_json(&["vlanclaim", &format!("{network}-{vlan}")]).unwrap();
        assert_eq!(claim["spec"]["tenantUID"], one["metadata"]["uid"], "{name}");
        found.insert(name, vlan);
    }
    found
}

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn tenants_are_created_and_deleted() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    let config = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {
            "vlanPools": [{"network": "trunk", "ranges": ["100-299"]}], "vlanQuarantineSeconds": 3,
            "dnsConfig": {"nameservers": ["192.0.2.53"]},
            "customNetworkPolicies": [{"name": "allow-lb", "spec": {
                "podSelector": {}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"ipBlock": {"cidr": "10.200.10.0/24"}}]}],
            }}],
        },
    });
    plane.apply(&config.to_string()).unwrap();
    let fleet = Fleet::start(
        &plane.kubeconfig(),
        &["rack1-a", "rack1-b"],
        FleetBehaviour::AgentsAndSpecs("trunk"),
    )
    .unwrap();
    let controller = start_controller(&plane);
    missing_crds_are_reported(&plane);
    plane.define_network_attachments().unwrap();
    plane
        .install_kubevirt_crds(&[
            "virtualmachines.kubevirt.io",
            "virtualmachineinstances.kubevirt.io",
            "virtualmachineinstancetypes.instancetype.kubevirt.io",
            "virtualmachinepreferences.instancetype.kubevirt.io",
        ])
        .unwrap();
    // The first controller reconciles the existing objects before a second controller starts: both would otherwise
    // write to the same objects.
    wait_until_condition(&plane, "early", "NetworkReady", "True Ready");
    wait_until_condition(&plane, "early", "Ready", "True Ready");
    let other = start_controller(&plane);
    concurrent_tenants_get_different_vlans(&plane);
    removed_policies_are_deleted(&plane);
    problems_are_reported(&plane);
    idle_controller_writes_nothing(&plane);
    drop((controller, other));
    killed_controller_assigns_each_vlan_once(&plane);
    let _controller = start_controller(&plane);
    tenant_is_deleted_in_order(&plane, &fleet);
    recreated_tenant_gets_its_former_vlan(&plane);
    policies_are_updated_after_cluster_changes(&plane);
    let _other = start_controller(&plane);
    malformed_tenant_is_deleted(&plane);
    // This test is the last, because afterwards two networks have the same VLANs.
    vlan_of_a_shared_segment_belongs_to_one_tenant(&plane);
}

fn missing_crds_are_reported(plane: &ControlPlane) {
    create_tenant(plane, "early", &trunk_spec());
    let early = wait_until_condition(plane, "early", "ObjectsReady", "False CrdMissing");
    assert!(
        condition_texts(&early, "ObjectsReady").1.contains(
            "CustomResourceDefinition virtualmachineinstancetypes.instancetype.kubevirt.io is not installed"
        ),
        "{early:#}"
    );
    let early = wait_until_condition(plane, "early", "NetworkReady", "False CrdMissing");
    assert!(early["status"]["vlan"].is_u64());
    // The controller still applies the objects that need no CRD.
    wait_until_condition(plane, "early", "PoliciesReady", "True Ready");
    wait_until_condition(plane, "early", "HostsReady", "True Ready");
    plane.get_json(&["role", "kubevirt-csi", "-n", "cluster-early"]).unwrap();
}

fn concurrent_tenants_get_different_vlans(plane: &ControlPlane) {
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || create_tenant(plane, name, &trunk_spec()));
        }
    });
    for name in ["early", "one", "two"] {
        wait_until_condition(plane, name, "NetworkReady", "True Ready");
        wait_until_condition(plane, name, "HostsReady", "True Ready");
        wait_until_condition(plane, name, "Ready", "True Ready");
    }
    let all = assert_unique_vlans(plane);
    assert_eq!(all.len(), 3, "{all:?}");
    for (name, vlan) in all {
        let namespace = format!("cluster-{name}");
        let definition = format!("tenant-{name}");
        let kind = "network-attachment-definitions.k8s.cni.cncf.io";
        let nad = plane.get_json(&[kind, &definition, "-n", &namespace]).unwrap();
        assert_eq!(
            nad["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"],
            "bridge.network.kubevirt.io/br-trunk"
        );
        let written: Value = serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap();
        assert_eq!(
            written,
            json!({
                "cniVersion": "0.3.1", "name": definition, "type": "bridge", "bridge": "br-trunk", "vlan": vlan,
                "preserveDefaultVlan": false, "mtu": 9000, "macspoofchk": true,
                "disableContainerInterface": true, "ipam": {},
            })
        );
        let status = &get_tenant(plane, &name)["status"];
        assert_eq!(status["networkAttachmentDefinition"], format!("{namespace}/{definition}"));
        assert_eq!(status["hosts"]["ready"], 2);
        let kind = "virtualmachineinstancetypes.instancetype.kubevirt.io";
        let size = plane.get_json(&[kind, "standard-4", "-n", &namespace]).unwrap();
        assert_eq!(size["spec"]["memory"]["guest"], "16Gi");
    }
}

fn policy_names(plane: &ControlPlane, name: &str) -> Vec<String> {
    let all = plane.get_json(&["networkpolicies", "-n", &format!("cluster-{name}")]).unwrap();
    let items = all["items"].as_array().unwrap();
    items.iter().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn removed_policies_are_deleted(plane: &ControlPlane) {
    let with = |more: &[&'static str]| {
        let mut all = vec![
            "allow-kubevirt-importer",
            "berth-allow-cdi",
            "berth-allow-virt-api",
            "cluster-isolation",
        ];
        all.extend(more);
        all.sort_unstable();
        all
    };
    assert_eq!(policy_names(plane, "one"), with(&["allow-lb"]));
    let isolation =
        plane.get_json(&["networkpolicy", "cluster-isolation", "-n", "cluster-one"]).unwrap();
    assert_eq!(isolation["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    // Egress is allowed to the same namespace, to cluster DNS by its pods and by its addresses, and to the name
    // server of InfraConfig.
    let egress = isolation["spec"]["egress"].as_array().unwrap();
    assert_eq!(egress.len(), 4, "{isolation:#}");
    assert!(egress[2].to_string().contains(&format!("{CLUSTER_DNS}/32")), "{isolation:#}");
    // The controller does not change a policy that an operator created.
    let own = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "by-hand", "namespace": "cluster-one"}, "spec": {"podSelector": {}},
    });
    plane.apply(&own.to_string()).unwrap();
    let patch = json!({"spec": {"networkPolicies": {"custom": [
        {"name": "mine", "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": []}},
    ]}}});
    let patch_of = |patch: &Value| {
        plane.kubectl(&["patch", "tenantcluster", "one", "--type=merge", "-p", &patch.to_string()])
    };
    patch_of(&patch).unwrap();
    let reached = |expected: &[&str]| {
        plane
            .wait_until("the policies are as expected", SHORT_TIMEOUT, |plane| {
                (policy_names(plane, "one") == expected).then_some(())
            })
            .unwrap_or_else(|error| panic!("{error}: {:?}", policy_names(plane, "one")));
    };
    reached(&with(&["allow-lb", "by-hand", "mine"]));
    patch_of(&json!({"spec": {"networkPolicies": null}})).unwrap();
    let none = json!({"spec": {"customNetworkPolicies": []}}).to_string();
    plane.kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", &none]).unwrap();
    reached(&with(&["by-hand"]));
    // The controller restores objects that another client removes or changes.
    plane.kubectl(&["delete", "networkpolicy", "cluster-isolation", "-n", "cluster-one"]).unwrap();
    reached(&with(&["by-hand"]));
}

fn problems_are_reported(plane: &ControlPlane) {
    let used_vlan = assert_unique_vlans(plane)["one"];
    create_tenant(plane, "greedy", &json!({"network": {"name": "trunk", "vlan": used_vlan}}));
    let greedy = wait_until_condition(plane, "greedy", "NetworkReady", "False NetworkIdInUse");
    let message = condition_texts(&greedy, "NetworkReady").1;
    assert!(
        message.contains(&format!("requests VLAN {used_vlan} on trunk, which tenant one has")),
        "{message}"
    );
    create_tenant(plane, "lost", &json!({"network": {"name": "trnk"}}));
    let lost = wait_until_condition(plane, "lost", "NetworkReady", "False NoHosts");
    assert!(
        condition_texts(&lost, "NetworkReady")
            .1
            .contains("no host has network trnk; available networks: trunk")
    );
    let secret = json!({"name": "kc"});
    let patch = json!({"spec": {"kubeconfigSecretRef": secret}}).to_string();
    plane.kubectl(&["patch", "tenantcluster", "lost", "--type=merge", "-p", &patch]).unwrap();
    let lost = wait_until_condition(plane, "lost", "PoliciesReady", "False InvalidKubeconfig");
    assert!(
        condition_texts(&lost, "PoliciesReady").1.contains("Secret cluster-lost/kc does not exist")
    );
    plane
        .wait_until("an Event NetworkIdInUse exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-A"]).unwrap().to_string();
            events.contains("NetworkIdInUse").then_some(())
        })
        .unwrap();
}

/// Returns all tenants and their objects, by kind and name.
fn all_objects(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let kinds = "vlanclaims,networkpolicies,roles,namespaces,serviceaccounts";
    let labelled = plane.get_json(&[kinds, "-A", "-l", "berth.dev/tenant"]).unwrap();
    let tenants = plane.get_json(&["tenantclusters"]).unwrap();
    let items = [labelled, tenants].map(|list| list["items"].as_array().unwrap().clone()).concat();
    let key = |one: &Value| {
        let (kind, about) = (&one["kind"], &one["metadata"]);
        format!("{kind} {} {}", about["namespace"], about["name"])
    };
    items.into_iter().map(|one| (key(&one), one)).collect()
}

fn idle_controller_writes_nothing(plane: &ControlPlane) {
    // Reconciles that have already started must end first, which takes some time on a busy machine.
    let mut before = all_objects(plane);
    let mut changed = String::new();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_secs(5));
        let after = all_objects(plane);
        assert!(after.len() > 10);
        if before == after {
            return;
        }
        for (key, current) in after.iter().filter(|(key, now)| before.get(*key) != Some(*now)) {
            let previous = before.get(key).unwrap_or(&Value::Null);
            changed.push_str(&format!("{key}: {previous:#} became {current:#}\n"));
        }
        before = after;
    }
    panic!("the controller still writes: {changed}");
}

fn killed_controller_assigns_each_vlan_once(plane: &ControlPlane) {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut random = u64::from(seed) | 1;
    let rounds = if std::env::var_os("BERTH_FAULTS").is_some() { 50 } else { 5 };
    for round in 0..rounds {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let lifetime = Duration::from_millis(300 + (random >> 33) % 1200);
        let killed = start_controller(plane);
        std::thread::scope(|scope| {
            for name in [format!("k{round}a"), format!("k{round}b")] {
                scope.spawn(move || create_tenant(plane, &name, &trunk_spec()));
            }
        });
        std::thread::sleep(lifetime);
        drop(killed);
        assert_unique_vlans(plane);
    }
    let _controller = start_controller(plane);
    for round in 0..rounds {
        for half in ["a", "b"] {
            wait_until_condition(plane, &format!("k{round}{half}"), "HostsReady", "True Ready");
        }
    }
    let tenants = 3 + 2 * rounds;
    assert_eq!(assert_unique_vlans(plane).len(), tenants, "seed {seed}");
    // Each tenant has one claim, and there are no claims of other tenants.
    let claims = || plane.get_json(&["vlanclaims"]).unwrap()["items"].as_array().unwrap().len();
    plane
        .wait_until("only claims of existing tenants exist", SHORT_TIMEOUT, |_| {
            (claims() == tenants).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {} claims, seed {seed}", claims()));
}

fn tenant_is_deleted_in_order(plane: &ControlPlane, fleet: &Fleet) {
    let vlan = assert_unique_vlans(plane)["one"];
    let claim = || plane.get_json(&["vlanclaim", &format!("trunk-{vlan}")]).unwrap_or_default();
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "web-1", "namespace": "cluster-one", "finalizers": ["berth.dev/test"]},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    });
    plane.apply(&vm.to_string()).unwrap();
    // No VirtualMachine owns this instance, so no VirtualMachine deletes it.
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "by-hand", "namespace": "cluster-one"}, "spec": {"domain": {"devices": {}}},
    });
    plane.apply(&vmi.to_string()).unwrap();
    fleet.is_responding.store(false, Ordering::SeqCst);
    plane.kubectl(&["delete", "tenantcluster", "one", "--wait=false"]).unwrap();
    let one = wait_until_condition(plane, "one", "Ready", "False DeletingMachines");
    assert!(condition_texts(&one, "Ready").1.contains("VirtualMachine web-1"), "{one:#}");
    assert_eq!(one["status"]["vlan"], vlan, "hosts should keep the VLAN while machines exist");
    let free = ["patch", "vm", "web-1", "-n", "cluster-one", "--type=merge", "-p"];
    let none = json!({"metadata": {"finalizers": null}}).to_string();
    plane.kubectl(&[&free[..], &[&none]].concat()).unwrap();
    let one = wait_until_condition(plane, "one", "Ready", "False DeletingNetwork");
    assert!(one["status"]["vlan"].is_null());
    assert!(
        claim()["status"]["releasedAt"].is_null(),
        "the VLAN was released before the hosts have removed it"
    );
    plane.get_json(&["namespace", "cluster-one"]).unwrap();
    // The interrupted deletion continues.
    fleet.is_responding.store(true, Ordering::SeqCst);
    plane
        .wait_until("the claim is in quarantine", SHORT_TIMEOUT, |_| {
            claim()["status"]["releasedAt"].is_string().then_some(())
        })
        .unwrap();
    plane
        .wait_until("the tenant is deleted", SHORT_TIMEOUT, |plane| {
            plane.get_json(&["tenantcluster", "one"]).is_err().then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:#}", get_tenant(plane, "one")));
    assert!(
        plane.kubectl(&["get", "namespace", "cluster-one"]).is_err(),
        "the namespace is deleted before the tenant"
    );
    // A tenant that waits for the VLAN may get the claim before the test sees that the claim is deleted.
    plane
        .wait_until("the claim is deleted", SHORT_TIMEOUT, |_| {
            (claim()["spec"]["tenant"] != "one").then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:#}", claim()));
    let greedy = get_tenant(plane, "greedy");
    assert_eq!(greedy["spec"]["network"]["vlan"], vlan);
    wait_until_condition(plane, "greedy", "NetworkReady", "True Ready");
    assert_eq!(assert_unique_vlans(plane)["greedy"], vlan);
}

/// Tests a tenant that is created again while its VLAN is in quarantine: the tenant gets the same VLAN, because other
/// tenants cannot get it, and the tenant's peers may still use it.
fn recreated_tenant_gets_its_former_vlan(plane: &ControlPlane) {
    let long = json!({"spec": {"vlanQuarantineSeconds": 3600}}).to_string();
    plane.kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", &long]).unwrap();
    create_tenant(plane, "again", &trunk_spec());
    wait_until_condition(plane, "again", "HostsReady", "True Ready");
    let vlan = assert_unique_vlans(plane)["again"];
    plane.kubectl(&["delete", "tenantcluster", "again", "--timeout=60s"]).unwrap();
    let claim = || plane.get_json(&["vlanclaim", &format!("trunk-{vlan}")]).unwrap();
    assert!(claim()["status"]["releasedAt"].is_string(), "{:#}", claim());
    create_tenant(plane, "again", &trunk_spec());
    wait_until_condition(plane, "again", "HostsReady", "True Ready");
    assert_eq!(assert_unique_vlans(plane)["again"], vlan);
    assert!(claim()["status"]["releasedAt"].is_null(), "{:#}", claim());
}

/// Tests that the policy for importer pods excludes the public address of a new Node immediately, and that without
/// cluster DNS the policies stay unchanged and a condition reports the missing DNS.
fn policies_are_updated_after_cluster_changes(plane: &ControlPlane) {
    let importer = || {
        plane
            .get_json(&["networkpolicy", "allow-kubevirt-importer", "-n", "cluster-again"])
            .unwrap()
            .to_string()
    };
    assert!(
        importer().contains("\"192.0.2.1/32\""),
        "the importer's policy does not exclude the API server: {}",
        importer()
    );
    let address = "198.51.100.77";
    assert!(!importer().contains(address));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "public"}});
    plane.apply(&node.to_string()).unwrap();
    let mut current = plane.get_json(&["node", "public"]).unwrap();
    current["status"] = json!({"addresses": [{"type": "ExternalIP", "address": address}]});
    current["metadata"]["resourceVersion"].take();
    let path = "/api/v1/nodes/public/status";
    let replace = ["replace", "--raw", path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &current.to_string()).unwrap();
    plane
        .wait_until("the policy excludes the Node's address", SHORT_TIMEOUT, |_| {
            importer().contains(&format!("\"{address}/32\"")).then_some(())
        })
        .unwrap();
    wait_until_condition(plane, "again", "PoliciesReady", "True Ready");
    let spec = || {
        plane.get_json(&["networkpolicy", "cluster-isolation", "-n", "cluster-again"]).unwrap()["spec"]
            .clone()
    };
    let before = spec();
    plane.kubectl(&["delete", "service", "kube-dns", "-n", "kube-system"]).unwrap();
    let again = wait_until_condition(plane, "again", "PoliciesReady", "False ClusterFactsUnknown");
    let message = condition_texts(&again, "PoliciesReady").1;
    assert!(
        message.contains("k8s-app=kube-dns") && message.contains("spec.clusterDNS"),
        "{message}"
    );
    assert_eq!(spec(), before, "the applied policy must stay unchanged");
    // A tenant that is created now is isolated too, and its condition reports the missing DNS.
    create_tenant(plane, "blind", &json!({}));
    wait_until_condition(plane, "blind", "PoliciesReady", "False ClusterFactsUnknown");
    let blind =
        plane.get_json(&["networkpolicy", "cluster-isolation", "-n", "cluster-blind"]).unwrap();
    assert!(!blind.to_string().contains("kube-dns"), "{blind:#}");
    plane.create_dns_service().unwrap();
    for name in ["again", "blind"] {
        wait_until_condition(plane, name, "PoliciesReady", "True Ready");
    }
    assert_eq!(spec(), before);
}

/// Tests two host networks on one segment: if two tenants request the same VLAN at the same instant, only one tenant
/// gets it.
fn vlan_of_a_shared_segment_belongs_to_one_tenant(plane: &ControlPlane) {
    let yard = json!({"name": "yard", "scenario": "VlanAwareBridge", "uplink": {"name": "eth2"}});
    let trunk = json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "mtu": 9000});
    for host in ["rack1-a", "rack1-b"] {
        plane.set_infra_node_spec(host, &json!({"networks": [trunk, yard]})).unwrap();
    }
    let pools = json!({"spec": {"vlanPools": [
        {"network": "trunk", "ranges": ["100-299"]}, {"network": "yard", "ranges": ["290-299", "400-409"]},
    ]}});
    plane
        .kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", &pools.to_string()])
        .unwrap();
    let pair = |vlan: u16| [("trunk", format!("t{vlan}")), ("yard", format!("y{vlan}"))];
    let requested_vlans: Vec<u16> = (500..506).collect();
    std::thread::scope(|scope| {
        for vlan in &requested_vlans {
            for (network, name) in pair(*vlan) {
                let spec = json!({"network": {"name": network, "vlan": vlan}});
                scope.spawn(move || create_tenant(plane, &name, &spec));
            }
        }
    });
    for vlan in &requested_vlans {
        let mut last = Vec::new();
        let settled =
            plane.wait_until("exactly one tenant gets the VLAN", SHORT_TIMEOUT, |plane| {
                last = pair(*vlan)
                    .map(|(_, name)| condition_texts(&get_tenant(plane, &name), "NetworkReady").0)
                    .to_vec();
                let mut sorted = last.clone();
                sorted.sort();
                (sorted == ["False NetworkIdInUse", "True Ready"]).then_some(())
            });
        settled.unwrap_or_else(|error| panic!("VLAN {vlan}: {error}: {last:?}"));
    }
    // The VLANs do not change afterwards; `assert_unique_vlans` asserts that no two tenants have the same VLAN.
    assert_unique_vlans(plane);
    // A new tenant gets no VLAN that is in both pools, even if the tenant requests one.
    create_tenant(plane, "between", &json!({"network": {"name": "yard", "vlan": 295}}));
    let between = wait_until_condition(plane, "between", "NetworkReady", "False PoolsOverlap");
    assert!(
        condition_texts(&between, "NetworkReady")
            .1
            .contains("also in the pool of network trunk, and both")
    );
    create_tenant(plane, "beyond", &json!({"network": {"name": "yard"}}));
    wait_until_condition(plane, "beyond", "NetworkReady", "True Ready");
    assert!(
        (400..410).contains(&assert_unique_vlans(plane)["beyond"]),
        "{:?}",
        assert_unique_vlans(plane)
    );
    // If the networks are declared as separate segments, each network has all its VLANs.
    let segments = json!({"spec": {"segments": [
        {"name": "hall", "networks": ["trunk"]}, {"name": "yard", "networks": ["yard"]},
    ]}});
    plane
        .kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", &segments.to_string()])
        .unwrap();
    wait_until_condition(plane, "between", "NetworkReady", "True Ready");
    for vlan in &requested_vlans {
        for (_, name) in pair(*vlan) {
            wait_until_condition(plane, &name, "NetworkReady", "True Ready");
        }
    }
}

/// Tests the deletion of a tenant that was written under the schema of another version of the CRD.
fn malformed_tenant_is_deleted(plane: &ControlPlane) {
    let crd = "tenantclusters.berth.dev";
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/networkPolicies/properties/isolation/enum";
    let patch_schema = json!([{"op": "remove", "path": path}]);
    plane.kubectl(&["patch", "crd", crd, "--type=json", "-p", &patch_schema.to_string()]).unwrap();
    let invalid_spec = json!({"spec": {"networkPolicies": {"isolation": "Sideways"}}});
    let write_invalid_spec = |name: &str| {
        let patch =
            ["patch", "tenantcluster", name, "--type=merge", "-p", &invalid_spec.to_string()];
        plane
            .wait_until("the server accepts the object", SHORT_TIMEOUT, |plane| {
                plane.kubectl(&patch).ok()
            })
            .unwrap();
    };
    let vlan = assert_unique_vlans(plane)["two"];
    write_invalid_spec("two");
    plane.kubectl(&["delete", "tenantcluster", "two", "--wait=false"]).unwrap();
    plane
        .wait_until("the tenant is deleted", SHORT_TIMEOUT, |plane| {
            plane.get_json(&["tenantcluster", "two"]).is_err().then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:#}", get_tenant(plane, "two")));
    assert!(plane.kubectl(&["get", "namespace", "cluster-two"]).is_err());
    let claim = plane.get_json(&["vlanclaim", &format!("trunk-{vlan}")]).unwrap();
    assert!(claim["status"]["releasedAt"].is_string(), "{claim:#}");
    plane.apply_file(&berth_tests::repository().join(format!("deploy/crds/{crd}.yaml"))).unwrap();
}
