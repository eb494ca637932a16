//! Requests that are missing, or have another UID than before, as after a restore from a backup.

use serde_json::{Value, json};

use crate::bed::{Bed, flavors, texts};

const UID_ANNOTATION: &str = "berth.dev/tenant-request-uid";

/// Tests that a request that is deleted without its finalizer and created again keeps its tenant, that an administrator can attach
/// the tenant to it, and that the tenant of a request that stays missing is deleted only after the configured time. No controller
/// may run before.
pub(crate) fn restored_request_keeps_its_tenant(bed: &Bed) {
    let before = (bed.used("manual"), bed.used("teams"));
    let old = bed.uid("tenantrequest", "bookings", "team-manual");
    bed.remove_request("team-manual", "bookings");
    bed.remove_request("team-a", "orphan");
    bed.create_request("team-manual", "bookings", &flavors(5));
    let new = bed.uid("tenantrequest", "bookings", "team-manual");
    assert_ne!(old, new);
    let controller = bed.start_controller("restored");
    bed.wait_until_leader(&controller);

    let message = bed.wait_for_quota("manual", "False RequestMissing");
    for words in [&old, &new, UID_ANNOTATION, "the tenant stays"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let message = bed.wait_for_quota("teams", "False RequestMissing");
    assert!(message.contains("team-a/orphan") && message.contains("before 20"), "{message}");
    let request = bed.wait_for("team-manual", "bookings", "Granted", "False TenantNameInUse");
    assert!(texts(&request, "Granted").1.contains(&old), "{request:#}");
    for tenant in ["bookings", "orphan"] {
        assert!(!bed.is_being_deleted(tenant), "{tenant}");
    }
    assert_eq!((bed.used("manual"), bed.used("teams")), before);

    // The spec is the granted one: no approver has to approve it again.
    let annotation = json!({"metadata": {"annotations": {UID_ANNOTATION: new}}});
    bed.patch("tenantclusters", "", "bookings", &annotation);
    bed.wait_for("team-manual", "bookings", "Ready", "True Ready");
    bed.wait_for_quota("manual", "True Accepted");
    assert_eq!(bed.used("manual"), before.0);

    bed.patch(
        "infraconfigs",
        "",
        "default",
        &json!({"spec": {"selfService": {"orphanDeletionDelaySeconds": 1}}}),
    );
    bed.wait_until("the tenant of the missing request is deleted", |bed| {
        (!bed.tenants().contains(&"orphan".to_owned())).then_some(())
    });
    bed.wait_for_quota("teams", "True Accepted");
    assert!(bed.tenants().contains(&"bookings".to_owned()));
}

impl Bed {
    fn uid(&self, kind: &str, name: &str, namespace: &str) -> String {
        let object = self.plane.get_json(&[kind, name, "-n", namespace]).unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Deletes a request without its finalizer.
    fn remove_request(&self, namespace: &str, name: &str) {
        let patch = json!({"metadata": {"finalizers": null}});
        self.patch("tenantrequests", namespace, name, &patch);
        self.plane.kubectl(&["delete", "tenantrequest", name, "-n", namespace]).unwrap();
    }

    fn is_being_deleted(&self, tenant: &str) -> bool {
        let tenant = self.plane.get_json(&["tenantcluster", tenant]).unwrap();
        !tenant["metadata"]["deletionTimestamp"].is_null()
    }

    /// Waits until the condition Ready of a quota is `Status Reason`. Returns its message.
    fn wait_for_quota(&self, name: &str, expected: &str) -> String {
        self.wait_until(&format!("TenantQuota {name} {expected}"), |bed| {
            let quota: Value = bed.plane.get_json(&["tenantquota", name]).ok()?;
            let (reason, message) = texts(&quota, "Ready");
            (reason == expected).then_some(message)
        })
    }
}
