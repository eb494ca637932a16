//! Tenants whose TenantRequest does not exist, because its finalizer was removed, or because a backup is being restored. A
//! restore creates objects in any order and with new UIDs, so such a tenant is deleted only after some time, and not while
//! another request has the name of its request.

use berth_api::names::{
    REQUEST_MISSING_ANNOTATION, TENANT_REQUEST_ANNOTATION, TENANT_REQUEST_UID_ANNOTATION,
};
use berth_api::{ConditionReason, SelfService, TenantCluster, TenantGrant, TenantRequest};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::objects::request_uid;
use crate::tenants::fault::Fault;

/// Default of `selfService.orphanDeletionDelaySeconds` of the InfraConfig.
const DEFAULT_DELAY: SignedDuration = SignedDuration::from_hours(1);

/// Returns the time for which a request must be missing before its tenant is deleted.
#[must_use]
pub fn deletion_delay(settings: Option<&SelfService>) -> SignedDuration {
    let seconds = settings.and_then(|settings| settings.orphan_deletion_delay_seconds);
    seconds.map_or(DEFAULT_DELAY, |seconds| SignedDuration::from_secs(i64::from(seconds)))
}

/// Next step for a tenant whose request does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanStep {
    /// Record the current time in the TenantCluster.
    Record,
    /// Wait until this time.
    WaitUntil(Timestamp),
    /// Continue the deletion, which was permitted at this time.
    Delete(Timestamp),
}

/// Returns the next step for a tenant whose request does not exist.
#[must_use]
pub fn orphan_step(tenant: &TenantCluster, delay: SignedDuration, now: Timestamp) -> OrphanStep {
    if let Some(deletion) = &tenant.metadata.deletion_timestamp {
        return OrphanStep::Delete(deletion.0);
    }
    let since = tenant.annotations().get(REQUEST_MISSING_ANNOTATION);
    // After a jump of the clock, the time may be in the future: it is then recorded again.
    let since = since.and_then(|since| since.parse::<Timestamp>().ok());
    let Some(since) = since.filter(|since| *since <= now) else { return OrphanStep::Record };
    // A TenantCluster that was restored has the annotation that it had in the backup, and a new time of creation.
    let created = tenant.creation_timestamp().map(|created| created.0);
    let since = created.map_or(since, |created| since.max(created));
    match since.checked_add(delay) {
        Ok(end) if end <= now => OrphanStep::Delete(end),
        Ok(end) => OrphanStep::WaitUntil(end),
        Err(_) => OrphanStep::WaitUntil(Timestamp::MAX),
    }
}

/// Returns the message about a tenant whose request does not exist, and which is deleted at a time.
#[must_use]
pub fn missing_message(grant: &TenantGrant, deletion: Timestamp) -> String {
    let TenantGrant { namespace, name, tenant, uid, .. } = grant;
    format!(
        "TenantRequest {namespace}/{name} with UID {uid} of tenant {tenant} does not exist: create a TenantRequest of this name \
         before {deletion}, otherwise the deletion of the tenant begins"
    )
}

/// Returns the message about a tenant with the name of whose request there is another request, which has the UID `other`.
#[must_use]
pub fn replaced_message(grant: &TenantGrant, other: &str) -> String {
    let TenantGrant { namespace, name, tenant, uid, .. } = grant;
    format!(
        "TenantRequest {namespace}/{name} has UID {other}, and tenant {tenant} belongs to an earlier TenantRequest of this name \
         with UID {uid}: the tenant stays; to attach it to the present request, set the annotation \
         {TENANT_REQUEST_UID_ANNOTATION} of TenantCluster {tenant} to {other}, or delete the request to delete the tenant too"
    )
}

/// Returns the refusal of a request whose tenant belongs to an earlier request with the same namespace and name; `None` if it
/// does not.
#[must_use]
pub fn earlier_request_fault(tenant: &TenantCluster, request: &TenantRequest) -> Option<Fault> {
    let name = format!("{}/{}", request.namespace().unwrap_or_default(), request.name_any());
    let earlier =
        request_uid(tenant).filter(|uid| Some(*uid) != request.metadata.uid.as_deref())?;
    if tenant.annotations().get(TENANT_REQUEST_ANNOTATION) != Some(&name) {
        return None;
    }
    let message = format!(
        "the name {} is in use: the tenant belongs to an earlier TenantRequest {name} with UID {earlier}; an administrator can \
         attach it to this request with the annotation {TENANT_REQUEST_UID_ANNOTATION} of the TenantCluster",
        tenant.name_any()
    );
    Some(Fault::new(ConditionReason::TenantNameInUse, message))
}

/// Returns the grant of a tenant for the request to which an administrator has attached the tenant. The spec of the request is
/// decided like an edit if it differs from the granted one.
#[must_use]
pub fn attached_grant(grant: TenantGrant, request: &TenantRequest) -> TenantGrant {
    let is_granted =
        request.tenant_name() == grant.tenant && request.spec.resources() == grant.resources;
    let generation = request.metadata.generation.filter(|_| is_granted).unwrap_or_default();
    TenantGrant { uid: request.uid().unwrap_or_default(), generation, ..grant }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tenant(metadata: &Value) -> TenantCluster {
        let mut object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
            "metadata": {"name": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
        });
        let fields = object["metadata"].as_object_mut().unwrap();
        fields.extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn request(uid: &str, generation: i64, count: u32) -> TenantRequest {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantRequest",
            "metadata": {"name": "shop", "namespace": "team-a", "uid": uid, "generation": generation},
            "spec": {"machines": {"count": count, "flavors": ["standard-2"]}},
        }))
        .unwrap()
    }

    fn grant(count: u32) -> TenantGrant {
        TenantGrant {
            uid: "old".to_owned(),
            namespace: "team-a".to_owned(),
            name: "shop".to_owned(),
            tenant: "shop".to_owned(),
            generation: 7,
            resources: request("old", 7, count).spec.resources(),
            ..TenantGrant::default()
        }
    }

    #[test]
    fn an_orphan_is_deleted_after_the_delay() {
        let time = |text: &str| -> Timestamp { text.parse().unwrap() };
        let step = |metadata: Value, now: &str| {
            orphan_step(&tenant(&metadata), deletion_delay(None), time(now))
        };
        let since = |time: &str| json!({"annotations": {"berth.dev/request-missing-since": time}});
        let at_noon = since("2026-01-01T12:00:00Z");
        assert_eq!(step(json!({}), "2026-01-01T12:00:00Z"), OrphanStep::Record);
        let one = time("2026-01-01T13:00:00Z");
        assert_eq!(step(at_noon.clone(), "2026-01-01T12:59:59Z"), OrphanStep::WaitUntil(one));
        assert_eq!(step(at_noon.clone(), "2026-01-01T13:30:00Z"), OrphanStep::Delete(one));
        assert_eq!(step(at_noon, "2026-01-01T11:00:00Z"), OrphanStep::Record);
        assert_eq!(step(since("yesterday"), "2026-01-01T12:00:00Z"), OrphanStep::Record);
        // The annotation is from the backup from which the TenantCluster was restored.
        let restored = step(since("2025-06-01T00:00:00Z"), "2026-01-01T00:10:00Z");
        assert_eq!(restored, OrphanStep::WaitUntil(time("2026-01-01T01:00:00Z")));
        let deleted = json!({"deletionTimestamp": "2026-01-01T05:00:00Z"});
        let deletion = OrphanStep::Delete(time("2026-01-01T05:00:00Z"));
        assert_eq!(step(deleted, "2026-01-01T05:00:01Z"), deletion);
    }

    #[test]
    fn the_delay_is_configurable() {
        let settings =
            SelfService { orphan_deletion_delay_seconds: Some(5), ..SelfService::default() };
        assert_eq!(deletion_delay(Some(&settings)), SignedDuration::from_secs(5));
        assert_eq!(deletion_delay(Some(&SelfService::default())), SignedDuration::from_secs(3600));
    }

    #[test]
    fn a_request_is_told_that_its_name_had_an_earlier_request() {
        let annotations = json!({"annotations": {
            "berth.dev/tenant-request": "team-a/shop", "berth.dev/tenant-request-uid": "old",
        }});
        let of_old = tenant(&annotations);
        let fault = earlier_request_fault(&of_old, &request("new", 1, 3)).unwrap();
        assert!(fault.message.contains("UID old"), "{fault}");
        assert_eq!(earlier_request_fault(&of_old, &request("old", 1, 3)), None);
        assert_eq!(earlier_request_fault(&tenant(&json!({})), &request("new", 1, 3)), None);
        let mut other = request("new", 1, 3);
        other.metadata.namespace = Some("team-b".to_owned());
        assert_eq!(earlier_request_fault(&of_old, &other), None);
    }

    #[test]
    fn an_attached_request_with_the_granted_spec_is_granted() {
        let same = attached_grant(grant(3), &request("new", 2, 3));
        assert_eq!((same.uid.as_str(), same.generation), ("new", 2));
        let larger = attached_grant(grant(3), &request("new", 2, 4));
        assert_eq!((larger.uid.as_str(), larger.generation), ("new", 0));
        assert_eq!(larger.resources, grant(3).resources);
    }
}
