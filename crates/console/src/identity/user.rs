//! Name of the user to whom a credential belongs, as the API server knows it.

use berth_runtime::call::{CallError, with_timeout};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

/// Name of users whose names the API server does not report: servers before Kubernetes 1.28.
pub(crate) const UNKNOWN_USER: &str = "unknown user";
/// Name of requests without a credential.
const ANONYMOUS_USER: &str = "system:anonymous";

/// Reason why a credential was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentifyError {
    #[error("The API server does not accept this credential.")]
    Refused,
    #[error("The API server did not answer.")]
    Unavailable(#[source] CallError),
}

/// Asks the API server for the name of the user of a client.
///
/// # Errors
/// Returns an error if the API server does not accept the credential, or does not answer.
pub(crate) async fn identify(client: &Client) -> Result<String, IdentifyError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    match with_timeout(reviews.create(&params, &review)).await {
        Ok(review) => {
            let name = review.status.and_then(|status| status.user_info?.username);
            match name.as_deref() {
                Some(ANONYMOUS_USER) => Err(IdentifyError::Refused),
                _ => Ok(name.unwrap_or_else(|| UNKNOWN_USER.to_owned())),
            }
        }
        // The server does not have this API: it answers 404, or 403 to users who may not create unknown objects. Another
        // API that every user may call shows that it accepts the credential.
        Err(error) if matches!(error.status_code(), Some(403 | 404)) => {
            let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
            let version = NonResourceAttributes {
                path: Some("/version".to_owned()),
                verb: Some("get".to_owned()),
            };
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    non_resource_attributes: Some(version),
                    resource_attributes: None,
                },
                ..SelfSubjectAccessReview::default()
            };
            with_timeout(reviews.create(&params, &review)).await.map_err(refused_or_unavailable)?;
            Ok(UNKNOWN_USER.to_owned())
        }
        Err(error) => Err(refused_or_unavailable(error)),
    }
}

fn refused_or_unavailable(error: CallError) -> IdentifyError {
    match error.status_code() {
        Some(401 | 403) => IdentifyError::Refused,
        _ => IdentifyError::Unavailable(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_helpers::test_client;

    const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

    fn status(code: u16) -> (u16, String) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "no", "reason": "No", "code": code});
        (code, status.to_string())
    }

    fn review(user: &str) -> (u16, String) {
        let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {}, "status": {"userInfo": {"username": user}}});
        (201, review.to_string())
    }

    #[tokio::test]
    async fn user_is_named_by_the_api_server() {
        let identify = async |answer: (u16, String)| {
            identify(&test_client(move |path| {
                assert_eq!(path, REVIEWS);
                answer.clone()
            }))
            .await
        };
        assert_eq!(identify(review("alice")).await.unwrap(), "alice");
        for refused in [review("system:anonymous"), status(401)] {
            assert!(matches!(identify(refused).await, Err(IdentifyError::Refused)));
        }
        assert!(matches!(identify(status(500)).await, Err(IdentifyError::Unavailable(_))));
    }

    #[tokio::test]
    async fn old_servers_accept_or_refuse_a_credential_without_a_name() {
        for (unknown, code, is_accepted) in
            [(404, 201, true), (403, 201, true), (404, 401, false), (403, 403, false)]
        {
            let client = test_client(move |path| match (path, code) {
                (REVIEWS, _) => status(unknown),
                (_, 201) => {
                    let review = json!({"kind": "SelfSubjectAccessReview", "spec": {},
                        "apiVersion": "authorization.k8s.io/v1", "metadata": {},
                        "status": {"allowed": true}});
                    (201, review.to_string())
                }
                _ => status(code),
            });
            let user = identify(&client).await;
            assert_eq!(
                user.is_ok_and(|name| name == UNKNOWN_USER),
                is_accepted,
                "{unknown} {code}"
            );
        }
    }
}
