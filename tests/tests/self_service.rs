//! Tests of TenantRequests with a real API server, real users of its RBAC, and the program of the controller, which is also
//! killed. KubeVirt does not run: machines are not needed to decide about requests.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

#[path = "self_service/bed.rs"]
mod bed;
#[path = "self_service/deletions.rs"]
mod deletions;
#[path = "self_service/hostile.rs"]
mod hostile;
#[path = "self_service/kills.rs"]
mod kills;
#[path = "self_service/reductions.rs"]
mod reductions;
#[path = "self_service/restores.rs"]
mod restores;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_tests::cluster::{Version, web_deployment};
use serde_json::{Value, json};

use bed::{Bed, SECRET, flavors, texts};

/// First release of Kubernetes with admission policies.
const ADMISSION_POLICIES: Version = Version(1, 30);

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn users_get_tenants_within_their_quotas() {
    let bed = Bed::start();
    oldest_requests_of_a_race_are_granted(&bed);
    let controller = bed.start_controller("first");
    bed.wait_until_leader(&controller);
    request_within_the_quota_is_granted(&bed);
    kubeconfig_has_exactly_the_documented_permissions(&bed);
    edit_beyond_the_quota_has_no_effect(&bed);
    reduced_quota_takes_nothing_from_a_tenant(&bed);
    reductions::reduced_request_counts_until_its_machines_are_deleted(&bed);
    approver_decides_about_the_spec_that_he_has_read(&bed);
    hostile::names_of_others_are_refused(&bed);
    hostile::secret_of_the_requester_is_written_by_key(&bed);
    lost_status_of_a_quota_is_restored(&bed);
    tenant_in_use_is_not_deleted(&bed);
    deletions::machines_created_during_a_deletion_stay(&bed);
    bed.create_request("team-a", "orphan", &flavors(1));
    bed.wait_for("team-a", "orphan", "Ready", "True Ready");
    drop(controller);
    restores::restored_request_keeps_its_tenant(&bed);
    kills::killed_controller_grants_each_request_once(&bed);
}

/// Creates 20 requests for 5 tenants while no controller runs. Then two controllers start, of which one is the leader.
fn oldest_requests_of_a_race_are_granted(bed: &Bed) {
    bed.create_quota(
        "race",
        &json!({"selector": {"matchLabels": {"team": "race"}}}),
        "Automatic",
        5,
    );
    std::thread::scope(|scope| {
        for number in 0..20 {
            scope.spawn(move || {
                bed.create_request("team-race", &format!("race-{number}"), &flavors(1));
            });
        }
    });
    let both = [bed.start_controller("race-a"), bed.start_controller("race-b")];
    let requests = bed.wait_until("all requests are decided", |bed| {
        let list = bed.plane.get_json(&["tenantrequests", "-n", "team-race"]).ok()?;
        let requests = list["items"].as_array()?.clone();
        let is_decided = |one: &Value| {
            ["True Granted", "False QuotaExceeded"].contains(&texts(one, "UpToDate").0.as_str())
        };
        requests.iter().all(is_decided).then_some(requests)
    });
    drop(both);
    let text = |one: &Value, field: &str| one["metadata"][field].as_str().unwrap().to_owned();
    let key = |one: &Value| (text(one, "creationTimestamp"), text(one, "uid"), text(one, "name"));
    let mut all: Vec<_> = requests.iter().map(key).collect();
    all.sort();
    let mut expected: Vec<String> = all.into_iter().take(5).map(|(_, _, name)| name).collect();
    let granted = requests.iter().filter(|one| texts(one, "Granted").0 == "True Granted");
    let mut granted: Vec<String> = granted.map(|one| text(one, "name")).collect();
    granted.sort();
    expected.sort();
    assert_eq!(granted, expected);
    assert_eq!(bed.used("race")["tenants"], 5);
    bed.wait_until("five tenants exist", |bed| {
        let tenants = bed.tenants();
        let of_race = tenants.iter().filter(|name| name.starts_with("race-"));
        (of_race.count() == 5).then_some(())
    });
}

fn request_within_the_quota_is_granted(bed: &Bed) {
    bed.create_quota("teams", &json!({"names": ["team-a", "team-b"]}), "Automatic", 10);
    bed.create_request_as("alice", "team-a", "shop", &flavors(3)).unwrap();
    let request = bed.wait_for("team-a", "shop", "Ready", "True Ready");
    let status = &request["status"];
    assert_eq!(
        status["granted"],
        json!({
            "tenants": 1, "machines": 3, "cpus": 12, "memory": "48Gi", "hugepages": "0",
            "storage": "100Gi", "networks": 0,
        })
    );
    assert_eq!(
        (status["tenant"].as_str(), status["quota"].as_str()),
        (Some("shop"), Some("teams"))
    );
    bed.wait_until_objects_are_counted("cluster-shop");
    let tenant = bed.plane.get_json(&["tenantcluster", "shop"]).unwrap();
    assert_eq!(tenant["spec"], json!({"allowedFlavors": ["standard-2", "standard-4"]}));
    let quota = ["resourcequota", "berth-tenant-request", "-n", "cluster-shop"];
    let hard = bed.plane.get_json(&quota).unwrap()["spec"]["hard"].take();
    assert_eq!(
        hard,
        json!({
            "count/virtualmachines.kubevirt.io": "3", "requests.storage": "100Gi",
            "count/datavolumes.cdi.kubevirt.io": "260", "count/machinedeployments.cluster.k8s.io": "53",
            "count/secrets": "112", "persistentvolumeclaims": "260", "pods": "74",
            "count/volumesnapshots.snapshot.storage.k8s.io": "260", "services": "56",
            "slow.storageclass.storage.k8s.io/requests.storage": "0",
        })
    );
}

/// Compares the permissions of the kubeconfig with the ones in `deploy/`, by real requests and by the API server's own review.
fn kubeconfig_has_exactly_the_documented_permissions(bed: &Bed) {
    let kubeconfig = bed.issued_kubeconfig("team-a", "shop");
    let run =
        |arguments: &[&str], input: &str| bed.plane.kubectl_with(&kubeconfig, arguments, input);
    // The namespace of the context is that of the tenant.
    let mut deployment = web_deployment("cluster-shop", 0);
    let template = "/spec/template/spec/providerSpec/value/cloudProviderSpec/virtualMachine";
    let machine = deployment.pointer_mut(template).unwrap();
    machine["instancetype"] = json!({"name": "standard-2"});
    machine["template"].as_object_mut().unwrap().retain(|key, _| key == "primaryDisk");
    run(&["create", "-f", "-"], &deployment.to_string()).unwrap();
    run(&["get", "machinedeployments"], "").unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data"}, "stringData": {"userdata": "x"},
    });
    run(&["create", "-f", "-"], &secret.to_string()).unwrap();
    assert!(run(&["get", "secret", "user-data"], "").is_err());
    assert!(run(&["get", "namespaces"], "").is_err());
    let token_secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": "token", "annotations": {"kubernetes.io/service-account.name": "berth-tenant-user"},
        },
    });
    if bed.plane.supports("policies for requested tenants", ADMISSION_POLICIES) {
        let refusal = run(&["create", "-f", "-"], &token_secret.to_string()).unwrap_err();
        assert!(refusal.to_string().contains("tokens of ServiceAccounts"), "{refusal}");
    }
    let can = |verb: &str, resource: &str, namespace: &str| {
        bed.can(&kubeconfig, verb, resource, namespace)
    };
    let has_policies = bed.plane.supports("policies for requested tenants", ADMISSION_POLICIES);
    for verb in ["create", "update", "patch"] {
        assert_eq!(
            can(verb, "datavolumes.cdi.kubevirt.io", "cluster-shop"),
            has_policies,
            "{verb}"
        );
    }
    assert_eq!(can("delete", "secrets", "cluster-shop"), has_policies);
    if has_policies {
        hostile::volumes_of_requesters_run_no_containers(bed, &kubeconfig);
        hostile::deletions_return_no_secrets_of_others(bed, &kubeconfig);
    }
    for (verb, resource) in [
        ("create", "machinedeployments.cluster.k8s.io"),
        ("delete", "machinedeployments.cluster.k8s.io"),
        ("get", "virtualmachines.kubevirt.io"),
        ("delete", "virtualmachines.kubevirt.io"),
        ("list", "volumesnapshots.snapshot.storage.k8s.io"),
        ("delete", "volumesnapshots.snapshot.storage.k8s.io"),
        ("create", "secrets"),
        ("list", "persistentvolumeclaims"),
        ("list", "resourcequotas"),
    ] {
        assert!(can(verb, resource, "cluster-shop"), "{verb} {resource}");
        for other in ["cluster-race-0", "team-a", "team-b", "kube-system", "berth-system"] {
            assert!(!can(verb, resource, other), "{verb} {resource} in {other}");
        }
    }
    for (verb, resource) in [
        ("create", "virtualmachines.kubevirt.io"),
        ("update", "virtualmachines.kubevirt.io"),
        ("create", "volumesnapshots.snapshot.storage.k8s.io"),
        ("create", "virtualmachineinstancetypes.instancetype.kubevirt.io"),
        ("create", "pods"),
        ("get", "secrets"),
        ("list", "secrets"),
        ("patch", "secrets"),
        ("update", "resourcequotas"),
        ("delete", "resourcequotas"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("create", "serviceaccounts/token"),
        ("create", "networkpolicies.networking.k8s.io"),
        ("update", "tenantclusters.berth.dev"),
        ("update", "namespaces"),
    ] {
        assert!(!can(verb, resource, "cluster-shop"), "{verb} {resource}");
    }
    // The user of the request has no permission for approvals, quotas and tenants.
    let alice = bed.kubeconfig_of("alice");
    for (verb, resource, expected) in [
        ("create", "tenantrequests.berth.dev", true),
        ("patch", "tenantrequests.berth.dev/status", false),
        ("update", "tenantrequests.berth.dev/status", false),
        ("update", "tenantquotas.berth.dev", false),
        ("create", "tenantclusters.berth.dev", false),
    ] {
        assert_eq!(bed.can(&alice, verb, resource, "team-a"), expected, "{verb} {resource}");
    }
    run(&["delete", "machinedeployment", "web"], "").unwrap();
}

fn edit_beyond_the_quota_has_no_effect(bed: &Bed) {
    let before = bed.used("teams");
    bed.patch("tenantrequests", "team-a", "shop", &json!({"spec": {"machines": {"count": 1000}}}));
    let request = bed.wait_for("team-a", "shop", "UpToDate", "False QuotaExceeded");
    assert_eq!(texts(&request, "Granted").0, "True Granted");
    let message = texts(&request, "UpToDate").1;
    assert!(message.contains("machines: 1000 requested, others have 0 of 40"), "{message}");
    assert_eq!(request["status"]["granted"]["machines"], 3);
    assert_eq!(bed.used("teams"), before);
    bed.patch("tenantrequests", "team-a", "shop", &json!({"spec": {"machines": {"count": 4}}}));
    bed.wait_for("team-a", "shop", "Ready", "True Ready");
    assert_eq!(bed.used("teams")["machines"], 4);
}

fn reduced_quota_takes_nothing_from_a_tenant(bed: &Bed) {
    bed.patch("tenantquotas", "", "teams", &json!({"spec": {"limits": {"machines": 2}}}));
    bed.wait_until("the quota reports the grants", |bed| {
        let quota = bed.plane.get_json(&["tenantquota", "teams"]).ok()?;
        (texts(&quota, "Ready").0 == "False LimitsExceeded").then_some(())
    });
    assert_eq!(bed.used("teams")["machines"], 4);
    bed.create_request("team-b", "late", &flavors(1));
    bed.wait_for("team-b", "late", "Granted", "False QuotaExceeded");
    assert!(bed.tenants().contains(&"shop".to_owned()));
    bed.patch("tenantquotas", "", "teams", &json!({"spec": {"limits": {"machines": 40}}}));
    bed.wait_for("team-b", "late", "Granted", "True Granted");
}

fn approver_decides_about_the_spec_that_he_has_read(bed: &Bed) {
    bed.create_quota("manual", &json!({"names": ["team-manual"]}), "Manual", 5);
    bed.create_request("team-manual", "bookings", &flavors(1));
    let name = "bookings";
    bed.wait_for("team-manual", name, "Granted", "False WaitingForApproval");
    bed.approve("team-manual", name, "Denied", 1);
    bed.wait_for("team-manual", name, "Granted", "False ApprovalDenied");
    // The approval is for generation 1, and the user has edited the spec since the approver read it.
    bed.patch("tenantrequests", "team-manual", name, &json!({"spec": {"machines": {"count": 5}}}));
    bed.approve("team-manual", name, "Approved", 1);
    bed.wait_for("team-manual", name, "Granted", "False WaitingForApproval");
    assert!(!bed.tenants().contains(&name.to_owned()));
    bed.approve("team-manual", name, "Approved", 2);
    bed.wait_for("team-manual", name, "Granted", "True Granted");
    bed.wait_for("team-manual", name, "Ready", "True Ready");
    if bed.plane.supports("policies for requested tenants", ADMISSION_POLICIES) {
        let forged = json!({"status": {"grantedGeneration": 7}});
        let refusal = bed.patch_status("team-manual", name, &forged).unwrap_err().to_string();
        assert!(refusal.contains("may change only status.approval"), "{refusal}");
    }
}

/// Deletes a quota and creates it again, as a restore from a backup without statuses does.
fn lost_status_of_a_quota_is_restored(bed: &Bed) {
    let before = bed.used("manual");
    bed.plane.kubectl(&["delete", "tenantquota", "manual"]).unwrap();
    bed.create_quota("manual", &json!({"names": ["team-manual"]}), "Manual", 5);
    bed.wait_until("the grants are restored", |bed| (bed.used("manual") == before).then_some(()));
}

fn tenant_in_use_is_not_deleted(bed: &Bed) {
    let kubeconfig = bed.issued_kubeconfig("team-a", "shop");
    let run =
        |arguments: &[&str], input: &str| bed.plane.kubectl_with(&kubeconfig, arguments, input);
    let deployment = web_deployment("cluster-shop", 0).to_string();
    run(&["create", "-f", "-"], &deployment).unwrap();
    let before = bed.used("teams")["tenants"].as_u64().unwrap();
    let deleted = ["delete", "tenantrequest", "shop", "-n", "team-a", "--wait=false"];
    bed.plane.kubectl_with(&bed.kubeconfig_of("alice"), &deleted, "").unwrap();
    let request = bed.wait_for("team-a", "shop", "Ready", "False MachinesRemain");
    if bed.plane.supports("policies for requested tenants", ADMISSION_POLICIES) {
        let patch = r#"{"metadata": {"finalizers": null}}"#;
        let removal =
            ["patch", "tenantrequest", "shop", "-n", "team-a", "--type=merge", "-p", patch];
        let refusal =
            bed.plane.kubectl_with(&bed.kubeconfig_of("alice"), &removal, "").unwrap_err();
        assert!(refusal.to_string().contains("may remove berth.dev/cleanup"), "{refusal}");
    }
    assert!(texts(&request, "Ready").1.contains("MachineDeployment web"), "{request:#}");
    let tenant = bed.plane.get_json(&["tenantcluster", "shop"]).unwrap();
    assert!(tenant["metadata"]["deletionTimestamp"].is_null(), "{tenant:#}");
    assert_eq!(bed.used("teams")["tenants"], before);
    // The user still has the permissions to delete the machines.
    run(&["delete", "machinedeployment", "web"], "").unwrap();
    bed.wait_until("the request is deleted", |bed| {
        bed.plane.get_json(&["tenantrequest", "shop", "-n", "team-a"]).is_err().then_some(())
    });
    assert!(!bed.tenants().contains(&"shop".to_owned()));
    assert_eq!(bed.used("teams")["tenants"], before - 1);
    let secret = bed.plane.get_json(&["secret", SECRET, "-n", "team-a"]).unwrap();
    assert!(secret["data"]["shop.kubeconfig"].is_null());
    assert!(run(&["get", "machinedeployments"], "").is_err(), "the token is still valid");
}

impl Bed {
    /// Returns true if the API server permits a request with a kubeconfig. A resource may have a subresource, after a slash.
    fn can(&self, kubeconfig: &Path, verb: &str, resource: &str, namespace: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        let arguments = ["auth", "can-i", verb, resource, "-n", namespace, &subresource];
        let answer = self.plane.kubectl_with(kubeconfig, &arguments, "");
        answer.is_ok_and(|answer| answer.trim() == "yes")
    }

    /// Writes the kubeconfig that the controller issued for a tenant to a file.
    fn issued_kubeconfig(&self, namespace: &str, tenant: &str) -> PathBuf {
        let secret = self.plane.get_json(&["secret", SECRET, "-n", namespace]).unwrap();
        let encoded = secret["data"][format!("{tenant}.kubeconfig")].as_str().unwrap();
        let file = self.plane.folder().join(format!("issued-{tenant}"));
        std::fs::write(&file, STANDARD.decode(encoded).unwrap()).unwrap();
        file
    }
}
