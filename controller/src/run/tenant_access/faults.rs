//! Converts errors of requests to a tenant's API server to faults.

use std::time::SystemTime;

use berth_api::ConditionReason;
use berth_runtime::certificate::{ExpiryState, Validity};
use berth_runtime::untrusted::{RequestFailure, UntrustedError};

use super::write::WriteError;
use crate::tenants::fault::Fault;

/// Returns the fault for an error of a request. `secret_description` names the Secret with the kubeconfig.
pub(in crate::run) fn fault_of(
    error: UntrustedError,
    secret_description: &str,
    certificate: Option<Validity>,
) -> Fault {
    let (reason, remedy) = match error {
        UntrustedError::AddressRefused(_) => (
            ConditionReason::KubeconfigRefused,
            "clusters[].cluster.server must be the address of the tenant's own API server",
        ),
        UntrustedError::Status(401) if has_expired(certificate) => (
            ConditionReason::AccessDenied,
            "the client certificate in the kubeconfig has expired: renew it",
        ),
        UntrustedError::Status(401) => (
            ConditionReason::AccessDenied,
            "the credential in the kubeconfig is not valid: renew it",
        ),
        UntrustedError::Status(403) => (
            ConditionReason::AccessDenied,
            "a permission is missing: run berth-controller render --tenant-rbac | kubectl apply -f - in the tenant's cluster",
        ),
        UntrustedError::Certificate(_) => (
            ConditionReason::ServerCertificateInvalid,
            "check clusters[].cluster.server and certificate-authority-data in the kubeconfig",
        ),
        UntrustedError::Status(429 | 500..=599)
        | UntrustedError::NameNotResolved
        | UntrustedError::NotConnected(_)
        | UntrustedError::Timeout
        | UntrustedError::Closed
        | UntrustedError::Busy(..)
        | UntrustedError::NotSent => (
            ConditionReason::TenantUnreachable,
            "the controller tries again; check the tenant's control plane, and that the controller can connect to it",
        ),
        UntrustedError::Status(_) | UntrustedError::TooLong | UntrustedError::Malformed => (
            ConditionReason::InvalidAnswer,
            "check that the server in the kubeconfig is a Kubernetes API server, and that its Nodes are not too large",
        ),
    };
    Fault::new(reason, format!("{secret_description}: {error}; {remedy}"))
}

/// Returns the fault for an error of the list or watch of StorageClasses; `None` if the error affects the whole
/// connection, because the watch of Nodes reports such errors.
pub(super) fn class_fault_of(error: UntrustedError) -> Option<Fault> {
    let (reason, remedy) = match error {
        UntrustedError::Status(403) => (
            ConditionReason::AccessDenied,
            "a permission is missing: run berth-controller render --tenant-rbac --storage-classes | kubectl apply -f - in the \
             tenant's cluster",
        ),
        UntrustedError::Status(401) => return None,
        UntrustedError::Status(_) | UntrustedError::TooLong | UntrustedError::Malformed => {
            (ConditionReason::InvalidAnswer, "check the StorageClasses in the tenant's cluster")
        }
        UntrustedError::AddressRefused(_)
        | UntrustedError::Certificate(_)
        | UntrustedError::NameNotResolved
        | UntrustedError::NotConnected(_)
        | UntrustedError::Timeout
        | UntrustedError::Closed
        | UntrustedError::Busy(..)
        | UntrustedError::NotSent => return None,
    };
    Some(Fault::new(reason, format!("StorageClasses of the tenant: {error}; {remedy}")))
}

/// Returns the fault for the result of writes; `None` if the writes succeeded, or failed with a conflict, which the
/// next reconcile resolves. `command` prints the permissions that the writes need.
pub(in crate::run) fn write_fault_of(
    written: &Result<(), WriteError>,
    command: &str,
) -> Option<Fault> {
    let error = written.as_ref().err()?;
    let (reason, remedy) = match error {
        WriteError::Status(..) => return None,
        WriteError::Slow(_) => (ConditionReason::ApplyFailed, String::new()),
        WriteError::Object { failure, .. } => match failure.error {
            UntrustedError::Status(409) => return None,
            UntrustedError::Status(401) => (
                ConditionReason::AccessDenied,
                "; the credential in the kubeconfig is not valid: renew it".to_owned(),
            ),
            UntrustedError::Status(403) => (
                ConditionReason::AccessDenied,
                format!(
                    "; a permission is missing, or a webhook refuses the write: run {command} | kubectl apply -f - in the \
                     tenant's cluster"
                ),
            ),
            error if is_refusal(error) => (
                ConditionReason::RequestRefused,
                "; permit the write in the webhooks and policies of the tenant's cluster"
                    .to_owned(),
            ),
            _ => (ConditionReason::ApplyFailed, String::new()),
        },
    };
    Some(Fault::new(reason, format!("{error}{remedy}")))
}

/// Returns the fault for a failed request of a drain. The message contains `request`, the description of the request.
pub(in crate::run) fn drain_fault_of(request: &str, failure: &RequestFailure) -> Fault {
    let reason = if is_refusal(failure.error) {
        ConditionReason::RequestRefused
    } else {
        fault_of(failure.error, "", None).reason
    };
    Fault::new(reason, format!("{request}: {failure}"))
}

/// Returns true if the API server refused a request because of its content, with a code that webhooks and policies
/// usually return. They can also return any other code.
const fn is_refusal(error: UntrustedError) -> bool {
    let UntrustedError::Status(code) = error else { return false };
    matches!(code, 400..=499) && !matches!(code, 401 | 403 | 404 | 409 | 429)
}

/// Returns true if a second attempt may succeed without a change of the kubeconfig, so the first such error is not
/// reported: servers close connections when they restart, and refuse requests while etcd elects a leader.
pub(super) const fn is_transient(error: UntrustedError) -> bool {
    matches!(
        error,
        UntrustedError::Status(429 | 500..=599)
            | UntrustedError::NotConnected(_)
            | UntrustedError::Timeout
            | UntrustedError::Closed
            | UntrustedError::Busy(..)
    )
}

fn has_expired(certificate: Option<Validity>) -> bool {
    certificate.is_some_and(|one| one.expiry_at(SystemTime::now()) == ExpiryState::Expired)
}

#[cfg(test)]
mod tests {
    use berth_runtime::untrusted::{CertificateFault, RefusedAddress};

    use std::time::Duration;

    use super::*;

    #[test]
    fn missing_permissions_for_classes_are_named() {
        let fault = class_fault_of(UntrustedError::Status(403)).unwrap();
        assert_eq!(fault.reason, ConditionReason::AccessDenied);
        assert!(fault.message.contains("--tenant-rbac --storage-classes"), "{fault}");
        assert_eq!(class_fault_of(UntrustedError::Timeout), None);
    }

    fn write_fault(code: u16) -> Option<Fault> {
        let (kind, name) = ("Node", "web-1".to_owned());
        let failure = RequestFailure::from(UntrustedError::Status(code));
        write_fault_of(&Err(WriteError::Object { kind, name, failure }), "render --tenant-rbac")
    }

    #[test]
    fn failed_writes_are_reported_except_conflicts() {
        for (code, reason, words) in [
            (401, ConditionReason::AccessDenied, "renew it"),
            (403, ConditionReason::AccessDenied, "render --tenant-rbac | kubectl"),
            (400, ConditionReason::RequestRefused, "webhooks and policies"),
            (422, ConditionReason::RequestRefused, "webhooks and policies"),
            (500, ConditionReason::ApplyFailed, "HTTP status 500"),
        ] {
            let fault = write_fault(code).unwrap();
            assert_eq!(fault.reason, reason, "{code}");
            assert!(fault.message.starts_with("patch Node web-1 of the tenant: "), "{fault}");
            assert!(fault.message.contains(words), "{fault}");
        }
        assert_eq!(write_fault(409), None);
        assert_eq!(write_fault_of(&Ok(()), ""), None);
    }

    #[test]
    fn refused_requests_of_a_drain_are_named() {
        let fault = |code| drain_fault_of("patch Node web-1", &UntrustedError::Status(code).into());
        for (code, reason) in [
            (422, ConditionReason::RequestRefused),
            (403, ConditionReason::AccessDenied),
            (404, ConditionReason::InvalidAnswer),
            (429, ConditionReason::TenantUnreachable),
            (500, ConditionReason::TenantUnreachable),
        ] {
            assert_eq!(fault(code).reason, reason, "{code}");
            assert!(fault(code).message.starts_with("patch Node web-1: the API server"), "{code}");
        }
    }

    #[test]
    fn errors_of_a_restarting_server_are_transient() {
        for transient in [UntrustedError::Closed, UntrustedError::Status(500)] {
            assert!(is_transient(transient), "{transient}");
        }
        for lasting in [UntrustedError::Status(401), UntrustedError::Status(404)] {
            assert!(!is_transient(lasting), "{lasting}");
        }
    }

    #[test]
    fn each_fault_has_a_reason_and_a_remedy() {
        let secret_description = "spec.kubeconfigSecretRef: Secret cluster-bank/kubeconfig";
        for (error, reason, words) in [
            (
                UntrustedError::AddressRefused(RefusedAddress::InfraApiServer),
                ConditionReason::KubeconfigRefused,
                "the address of the infra API server",
            ),
            (UntrustedError::Status(401), ConditionReason::AccessDenied, "renew it"),
            (UntrustedError::Status(403), ConditionReason::AccessDenied, "--tenant-rbac"),
            (
                UntrustedError::Certificate(CertificateFault::UnknownIssuer),
                ConditionReason::ServerCertificateInvalid,
                "certificate-authority-data",
            ),
            (UntrustedError::Timeout, ConditionReason::TenantUnreachable, "tries again"),
            (UntrustedError::Status(503), ConditionReason::TenantUnreachable, "HTTP status 503"),
            (UntrustedError::Status(404), ConditionReason::InvalidAnswer, "HTTP status 404"),
            (UntrustedError::TooLong, ConditionReason::InvalidAnswer, "exceeds the size limit"),
        ] {
            let fault = fault_of(error, secret_description, None);
            assert_eq!(fault.reason, reason);
            assert!(fault.message.starts_with(secret_description), "{fault}");
            assert!(fault.message.contains(words), "{fault}");
        }
        let past = SystemTime::UNIX_EPOCH;
        let expired = Validity { not_before: past, not_after: past + Duration::from_secs(60) };
        let fault = fault_of(UntrustedError::Status(401), secret_description, Some(expired));
        assert!(fault.message.contains("has expired"), "{fault}");
    }
}
