//! Errors of requests to the API server; each request may succeed when it is retried.

use berth_runtime::call::is_conflict;

pub(super) use crate::run::api_requests::{RequestError, none_if_not_found, with_request};

/// Returns `None` if the API server refused a create because the object already exists (409).
pub(super) fn ignore_conflict<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the server's message if it refused a request in a way that a retry would not change (400, 403, 422).
pub(super) fn refusal_message<T>(result: &kube::Result<T>) -> Option<String> {
    match result {
        Err(kube::Error::Api(status)) if [400, 403, 422].contains(&status.code) => {
            Some(status.message.clone())
        }
        _ => None,
    }
}

/// Returns true if the server refused a patch because another client wrote the object after it was read.
pub(super) fn has_changed<T>(result: &kube::Result<T>) -> bool {
    result.as_ref().is_err_and(is_conflict)
}

/// Removes the server's message from an error: the message quotes the object that was sent, with values from Secrets.
/// The code, the reason and the paths of fields stay.
pub(super) fn redact_message(error: kube::Error) -> kube::Error {
    match error {
        kube::Error::Api(mut status) => {
            // The other details stay, because they contain the delay before a retry.
            let causes = status.details.as_mut().map(|details| std::mem::take(&mut details.causes));
            let fields = causes.into_iter().flatten().map(|cause| cause.field);
            let fields: Vec<String> = fields.collect();
            status.message = format!(
                "{} ({}), fields: {}; the message is omitted because the object has values from Secrets",
                status.reason,
                status.code,
                fields.join(", ")
            );
            kube::Error::Api(status)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conflict_is_no_refusal() {
        let refused = |code: u16, reason: &str| -> kube::Result<()> {
            let status =
                json!({"status": "Failure", "code": code, "reason": reason, "message": "m"});
            let status: Status = serde_json::from_value(status).unwrap();
            Err(kube::Error::Api(status.into()))
        };
        let conflict = refused(409, "Conflict");
        assert!(has_changed(&conflict) && refusal_message(&conflict).is_none());
        assert!(!has_changed(&refused(422, "Invalid")) && !has_changed(&Ok(())));
    }

    #[test]
    fn a_redacted_message_has_fields_and_no_values() {
        let status: Status = serde_json::from_value(json!({
            "status": "Failure", "code": 422, "reason": "Invalid", "message": "memory: Invalid value: \"c4n4ry\"",
            "details": {"causes": [{"field": "spec.memory", "reason": "x", "message": "Invalid value: \"c4n4ry\""}]},
        }))
        .unwrap();
        let result: kube::Result<()> = Err(redact_message(kube::Error::Api(status.into())));
        let words = refusal_message(&result).unwrap();
        assert!(words.contains("Invalid (422), fields: spec.memory"), "{words}");
        let error = with_request(|| "create".to_owned(), result).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("c4n4ry"), "{error:?}");
    }
}
