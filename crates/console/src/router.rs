//! Routes.

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::error::PageError;
use crate::handlers::{live, session, views};
use crate::state::Shared;
use crate::{assets, headers};

/// Maximum size of a form: two PEM files, or a token.
const MAX_FORM_BYTES: usize = 64 << 10;

pub(crate) fn build_router(console: Shared) -> Router {
    Router::new()
        .route("/", get(views::fleet))
        .route("/hosts/{host}", get(views::host))
        .route("/tenants", get(views::tenants))
        .route("/tenants/{tenant}", get(views::tenant))
        .route("/vms", get(views::machines))
        .route("/vms/{namespace}/{name}", get(views::machine))
        .route("/networks", get(views::networks))
        .route("/live", get(live::stream))
        .route("/sign-in", get(session::show_sign_in).post(session::sign_in))
        .route("/open/{code}", get(session::open_link))
        .route("/sign-out", post(session::sign_out))
        .route("/theme", post(session::choose_theme))
        .route("/assets/{hash}/{name}", get(assets::serve))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .fallback(async || PageError::NotFound)
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn_with_state(console.clone(), headers::secure))
        .with_state(console)
}

/// Reports that all kinds are listed, so that pages are complete.
async fn readiness(State(console): State<Shared>) -> Response {
    if console.store.is_listed() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "objects are being listed\n").into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use axum::body::{Body, to_bytes};
    use axum::http::{Request, header};
    use berth_views::Kind;
    use serde_json::json;
    use tokio::sync::Semaphore;
    use tower::ServiceExt as _;

    use super::*;
    use crate::objects::store::Store;
    use crate::session::attempts::{MAX_ATTEMPTS, SignInLimit};
    use crate::session::cookie::Cookies;
    use crate::session::csrf::CsrfKey;
    use crate::session::store::SessionStore;
    use crate::state::{Console, Identity};
    use crate::test_helpers::test_client;

    /// Returns the routes of a console whose user may list everything and opens it with the code `secret`.
    fn test_router(is_secure: bool) -> Router {
        let client = test_client(|_| {
            let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {}, "spec": {}, "status": {"allowed": true}});
            (201, review.to_string())
        });
        let store = Store::default();
        for name in ["rack1-a", "rack1-b"] {
            store.add(Kind::Node, &json!({"metadata": {"name": name}}));
        }
        build_router(Arc::new(Console {
            identity: Identity::Kubeconfig {
                client,
                user: "<alice>".to_owned(),
                code: "secret".to_owned(),
            },
            cookies: Cookies::new(is_secure, 1),
            csrf: CsrfKey::generate().unwrap(),
            sessions: SessionStore::default(),
            attempts: SignInLimit::new(Instant::now()),
            store: Arc::new(store),
            has_proxy: false,
            streams: Arc::new(Semaphore::new(1)),
        }))
    }

    /// Sends a request, and returns the status code, the headers in one text, and the body.
    async fn send(
        router: &Router,
        request: (&str, &str),
        cookie: &str,
        form: &str,
    ) -> (u16, String, String) {
        let (method, path) = request;
        let request = Request::builder().method(method).uri(path).header(header::COOKIE, cookie);
        let request = request.body(Body::from(form.to_owned())).unwrap();
        let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let headers = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
        (head.status.as_u16(), headers.collect(), String::from_utf8(body.to_vec()).unwrap())
    }

    /// Opens the link, and returns the cookie of the session.
    async fn open(router: &Router) -> String {
        let (code, headers, _) = send(router, ("GET", "/open/secret"), "", "").await;
        assert_eq!(code, 303, "{headers}");
        let (_, cookie) = headers.split_once("set-cookie: ").unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn pages_need_a_session_and_have_security_headers() {
        let router = test_router(true);
        for path in ["/", "/hosts/rack1-a", "/vms", "/live?page=/"] {
            let (code, headers, _) = send(&router, ("GET", path), "", "").await;
            assert_eq!(code, 303, "{path}");
            assert!(headers.contains("location: /sign-in?from=%2F"), "{headers}");
        }
        let cookie = open(&router).await;
        let (code, headers, body) = send(&router, ("GET", "/"), &cookie, "").await;
        assert_eq!(code, 200, "{body}");
        assert!(body.contains("rack1-a") && body.contains("&lt;alice&gt;"), "{body}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "x-content-type-options: nosniff",
            "x-frame-options: DENY",
            "referrer-policy: same-origin",
            "cache-control: no-store",
            "strict-transport-security: max-age=31536000",
        ] {
            assert!(headers.contains(header), "{header}: {headers}");
        }
        let plain = test_router(false);
        let (_, headers, _) = send(&plain, ("GET", "/sign-in"), "", "").await;
        assert!(!headers.contains("strict-transport-security"), "{headers}");
    }

    #[tokio::test]
    async fn changed_cookies_and_foreign_forms_are_refused() {
        let router = test_router(false);
        let cookie = open(&router).await;
        let (name, id) = cookie.split_once('=').unwrap();
        for wrong in [format!("{name}={id}A"), format!("{name}="), format!("x{cookie}")] {
            assert_eq!(send(&router, ("GET", "/"), &wrong, "").await.0, 303, "{wrong}");
        }
        let (_, _, page) = send(&router, ("GET", "/"), &cookie, "").await;
        let (_, token) = page.split_once("name=\"csrf\" value=\"").unwrap();
        let (token, _) = token.split_once('"').unwrap();
        let other = open(&router).await;
        for (cookie, form) in [
            (&cookie, String::new()),
            (&cookie, "csrf=AAAA".to_owned()),
            // The token of another session.
            (&other, format!("csrf={token}")),
        ] {
            assert_eq!(send(&router, ("POST", "/sign-out"), cookie, &form).await.0, 403, "{form}");
        }
        let form = format!("csrf={token}");
        assert_eq!(send(&router, ("POST", "/sign-out"), &cookie, &form).await.0, 303);
        assert_eq!(send(&router, ("GET", "/"), &cookie, "").await.0, 303, "the session has ended");
        assert_eq!(send(&router, ("GET", "/"), &other, "").await.0, 200);
    }

    #[tokio::test]
    async fn wrong_links_are_refused_and_counted() {
        let router = test_router(false);
        for _ in 0..MAX_ATTEMPTS {
            assert_eq!(send(&router, ("GET", "/open/wrong"), "", "").await.0, 404);
        }
        assert_eq!(send(&router, ("GET", "/open/secret"), "", "").await.0, 429);
    }
}
