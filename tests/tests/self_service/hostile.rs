//! Requests that name the tenant, the namespace or the Secret of others.

use std::path::Path;

use serde_json::{Value, json};

use crate::bed::{Bed, SECRET, flavors, texts};

/// Tests that a request never changes a TenantCluster, a namespace or a claim that belongs to others.
pub(crate) fn names_of_others_are_refused(bed: &Bed) {
    bed.apply(&json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
        "spec": {},
    }));
    // The MachineDeployments of a namespace without a TenantCluster may refer to this tenant.
    bed.apply(&json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "depot"},
        "spec": {"machineNamespaces": ["cluster-legacy"]},
    }));
    // Another tool has created this namespace; it has no TenantCluster.
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cluster-vault"},
    }));
    // A tenant of this name was deleted, and its VLAN is in quarantine.
    bed.apply(&json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "VlanClaim",
        "metadata": {"name": "trunk-100", "labels": {"app.kubernetes.io/managed-by": "berth"}},
        "spec": {"network": "trunk", "vlan": 100, "tenant": "former", "tenantUID": "u"},
    }));
    bed.wait_until("the controller has observed the claim", |bed| {
        let claim = bed.plane.get_json(&["vlanclaim", "trunk-100"]).ok()?;
        claim["status"]["releasedAt"].is_string().then_some(())
    });
    let before = bed.plane.get_json(&["tenantcluster", "bank"]).unwrap()["metadata"]["uid"].clone();
    for (tenant, type_, expected) in [
        ("bank", "Granted", "False TenantNameInUse"),
        ("late", "Granted", "False TenantNameInUse"),
        ("former", "Granted", "False TenantNameInUse"),
        ("legacy", "Granted", "False TenantNameInUse"),
        ("vault", "Ready", "False NotOwned"),
    ] {
        let name = format!("thief-{tenant}");
        let mut spec = flavors(1);
        spec["tenantName"] = tenant.into();
        bed.create_request("team-a", &name, &spec);
        bed.wait_for("team-a", &name, type_, expected);
        let secret = bed.plane.get_json(&["secret", SECRET, "-n", "team-a"]).unwrap_or_default();
        assert!(secret["data"][format!("{tenant}.kubeconfig")].is_null(), "{tenant}");
        let binding = ["rolebinding", "berth-tenant-user", "-n", &format!("cluster-{tenant}")];
        assert_eq!(bed.plane.get_json(&binding).is_ok(), tenant == "late", "{tenant}");
    }
    let bank = bed.plane.get_json(&["tenantcluster", "bank"]).unwrap();
    assert_eq!(bank["metadata"]["uid"], before);
    assert!(bank["metadata"]["annotations"]["berth.dev/tenant-request-uid"].is_null(), "{bank:#}");
    assert_eq!(bank["spec"], json!({}));
    assert!(!bed.tenants().contains(&"vault".to_owned()));
    // The deletion of a refused request deletes nothing of others.
    for tenant in ["bank", "late", "former", "legacy", "vault"] {
        let name = format!("thief-{tenant}");
        bed.plane.kubectl(&["delete", "tenantrequest", &name, "-n", "team-a"]).unwrap();
    }
    for tenant in ["bank", "late"] {
        let tenant = bed.plane.get_json(&["tenantcluster", tenant]).unwrap();
        assert!(tenant["metadata"]["deletionTimestamp"].is_null(), "{tenant:#}");
    }
    let late = bed.plane.get_json(&["secret", SECRET, "-n", "team-b"]).unwrap();
    assert!(late["data"]["late.kubeconfig"].is_string());
}

/// Tests that the controller changes only its own key of a Secret that the requester has written, and restores a deleted one.
pub(crate) fn secret_of_the_requester_is_written_by_key(bed: &Bed) {
    bed.plane.kubectl(&["delete", "secret", SECRET, "-n", "team-b"]).unwrap();
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": "team-b"},
        "stringData": {"own": "x", "late.kubeconfig": "forged"},
    }));
    bed.plane.kubectl(&["delete", "secret", SECRET, "-n", "team-b"]).unwrap();
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": "team-b"},
        "stringData": {"own": "x"},
    }));
    // An edit of the request is reconciled at once.
    bed.patch("tenantrequests", "team-b", "late", &json!({"spec": {"machines": {"count": 2}}}));
    let secret = bed.wait_until("the kubeconfig is issued again", |bed| {
        let secret = bed.plane.get_json(&["secret", SECRET, "-n", "team-b"]).ok()?;
        secret["data"]["late.kubeconfig"].is_string().then_some(secret)
    });
    assert_eq!(secret["data"]["own"], "eA==");
    let request = bed.wait_for("team-b", "late", "KubeconfigReady", "True KubeconfigIssued");
    // No status and no log has a token: tokens are JSON Web Tokens, which begin with these characters.
    assert!(!request.to_string().contains("eyJ"), "{}", texts(&request, "KubeconfigReady").1);
    let log = bed.plane.log("first").unwrap();
    assert!(!log.contains("eyJ"), "the log has a token");
}

/// Tests that a requester may write only DataVolumes for which CDI runs its own containers, in the pod network.
pub(crate) fn volumes_of_requesters_run_no_containers(bed: &Bed, kubeconfig: &Path) {
    let volume = |name: &str, annotations: Value, spec: Value| {
        let mut all = json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}}});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": name, "annotations": annotations}, "spec": all,
        })
    };
    let create = |object: &Value| {
        bed.plane.kubectl_with(kubeconfig, &["create", "-f", "-"], &object.to_string())
    };
    let blank = json!({"source": {"blank": {}}});
    for (annotations, spec, words) in [
        (json!({}), json!({"source": {"vddk": {"initImageURL": "x"}}}), "spec.source.vddk"),
        (json!({}), json!({"source": {"s3": {"url": "https://x"}}}), "spec.source.s3"),
        (
            json!({}),
            json!({"source": {"http": {"url": "https://x", "secretExtraHeaders": ["kubevirt-csi"]}}}),
            "secretExtraHeaders",
        ),
        (
            json!({}),
            json!({"source": {"registry": {"url": "docker://x", "pullMethod": "node"}}}),
            "pullMethod",
        ),
        (
            json!({}),
            json!({"source": {"blank": {}}, "priorityClassName": "system-node-critical"}),
            "spec.priorityClassName",
        ),
        (
            json!({}),
            json!({"source": {"blank": {}}, "serviceAccountName": "kubevirt-csi"}),
            "spec.serviceAccountName",
        ),
        (
            json!({}),
            json!({"source": {"blank": {}}, "storage": {"volumeName": "pv"}}),
            "volumeName",
        ),
        (json!({"k8s.v1.cni.cncf.io/networks": "other"}), blank.clone(), "networks"),
        (json!({"v1.multus-cni.io/default-network": "other"}), blank.clone(), "default-network"),
    ] {
        let refusal = create(&volume("refused", annotations, spec)).unwrap_err().to_string();
        assert!(refusal.contains(words) && refusal.contains("a requester may"), "{refusal}");
    }
    let immediate = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": "true"});
    create(&volume("permitted", immediate, blank)).unwrap();
    let run = |arguments: &[&str]| bed.plane.kubectl_with(kubeconfig, arguments, "");
    let networks = "k8s.v1.cni.cncf.io/networks=other";
    assert!(run(&["annotate", "datavolume", "permitted", networks]).is_err());
    run(&["label", "datavolume", "permitted", "a=b"]).unwrap();
    run(&["delete", "datavolume", "permitted"]).unwrap();
}

/// Tests that a requester cannot read the token of the CSI driver by a deletion, which would return it, and may delete own
/// Secrets.
pub(crate) fn deletions_return_no_secrets_of_others(bed: &Bed, kubeconfig: &Path) {
    bed.wait_until("the token of the CSI driver exists", |bed| {
        let secret = bed.plane.get_json(&["secret", "kubevirt-csi", "-n", "cluster-shop"]).ok()?;
        secret["data"]["token"].is_string().then_some(())
    });
    let delete = |name: &str, more: &[&str]| {
        let arguments = [&["delete", "secret", name, "--wait=false"][..], more].concat();
        bed.plane.kubectl_with(kubeconfig, &arguments, "")
    };
    for more in [&["--cascade=foreground"][..], &["--cascade=foreground", "--dry-run=server"], &[]]
    {
        let refusal = delete("kubevirt-csi", more).unwrap_err().to_string();
        assert!(refusal.contains("a requester may not"), "{more:?}: {refusal}");
        assert!(!refusal.contains("eyJ"), "{more:?}: the refusal has the token");
    }
    delete("user-data", &[]).unwrap();
}
