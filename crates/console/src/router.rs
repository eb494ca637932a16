//! Routes.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::error::PageError;
use crate::handlers::{create, live, session, simulations, streams, views, what_if};
use crate::host_check::check_host;
use crate::state::Shared;
use crate::time_limits::{RESPONSE_TIMEOUT, SIMULATION_TIMEOUT, limit_time};
use crate::{assets, headers};

pub(crate) fn build_router(console: Shared) -> Router {
    let simulations = Router::new()
        .route("/hosts/{host}/drain", get(simulations::drain))
        .route("/vms/{namespace}/{name}/why", get(simulations::placement))
        .route("/hosts/{host}/add", get(what_if::add_hosts))
        .route("/what-if/profile", get(what_if::profile_form).post(what_if::profile))
        .route("/tenants/{tenant}/what-if", get(what_if::machines_form).post(what_if::machines))
        .layer(from_fn_with_state((console.clone(), SIMULATION_TIMEOUT), limit_time));
    Router::new()
        .route("/", get(views::fleet))
        .route("/hosts/{host}", get(views::host))
        .route("/tenants", get(views::tenants))
        .route("/tenants/{tenant}", get(views::tenant))
        .route("/tenants/{tenant}/create", get(create::show_form).post(create::submit))
        .route("/vms", get(views::machines))
        .route("/vms/{namespace}/{name}", get(views::machine))
        .route("/vms/{namespace}/{name}/{kind}", get(streams::show))
        .route("/vms/{namespace}/{name}/{kind}/stream", get(streams::open))
        .route("/networks", get(views::networks))
        .route("/live", get(live::stream))
        .route("/sign-in", get(session::show_sign_in).post(session::sign_in))
        .route("/open/{code}", get(session::open_link))
        .route("/sign-out", post(session::sign_out))
        .route("/theme", post(session::choose_theme))
        .route("/assets/{hash}/{*name}", get(assets::serve))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .fallback(async || PageError::NotFound)
        .layer(from_fn_with_state((console.clone(), RESPONSE_TIMEOUT), limit_time))
        .merge(simulations)
        .layer(from_fn_with_state(console.clone(), check_host))
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
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;
    use crate::session::attempts::MAX_ATTEMPTS;
    use crate::session::store::Use;
    use crate::test_helpers::{console_of, test_client, test_console, test_link};

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

    /// Opens a new link, and returns the cookie of the session.
    async fn open(console: &Shared, router: &Router) -> String {
        let link = test_link(console);
        let (code, headers, _) = send(router, ("GET", &link), "", "").await;
        assert_eq!(code, 303, "{headers}");
        let (_, cookie) = headers.split_once("set-cookie: ").unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn pages_need_a_session_and_have_security_headers() {
        let console = test_console(true);
        let router = build_router(Arc::clone(&console));
        for path in ["/", "/hosts/rack1-a", "/vms"] {
            let (code, headers, _) = send(&router, ("GET", path), "", "").await;
            assert_eq!(code, 303, "{path}");
            assert!(headers.contains("location: /sign-in?from=%2F"), "{headers}");
        }
        // A stream cannot follow a redirect to a page.
        assert_eq!(send(&router, ("GET", "/live?page=/"), "", "").await.0, 401);
        let cookie = open(&console, &router).await;
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
        let plain = build_router(test_console(false));
        let (_, headers, _) = send(&plain, ("GET", "/sign-in"), "", "").await;
        assert!(!headers.contains("strict-transport-security"), "{headers}");
    }

    #[tokio::test]
    async fn changed_cookies_and_foreign_forms_are_refused() {
        let console = test_console(false);
        let router = build_router(Arc::clone(&console));
        let cookie = open(&console, &router).await;
        let (name, id) = cookie.split_once('=').unwrap();
        for wrong in [format!("{name}={id}A"), format!("{name}="), format!("x{cookie}")] {
            assert_eq!(send(&router, ("GET", "/"), &wrong, "").await.0, 303, "{wrong}");
        }
        let (_, _, page) = send(&router, ("GET", "/"), &cookie, "").await;
        let (_, token) = page.split_once("name=\"csrf\" value=\"").unwrap();
        let (token, _) = token.split_once('"').unwrap();
        let other = open(&console, &router).await;
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
        let console = test_console(false);
        let router = build_router(Arc::clone(&console));
        let link = test_link(&console);
        for _ in 0..MAX_ATTEMPTS {
            assert_eq!(send(&router, ("GET", "/open/wrong"), "", "").await.0, 404);
        }
        assert_eq!(send(&router, ("GET", "/open/wrong"), "", "").await.0, 429);
        // Wrong codes do not lock out the right one, which is valid once.
        assert_eq!(send(&router, ("GET", &link), "", "").await.0, 303);
        assert_eq!(send(&router, ("GET", &link), "", "").await.0, 429);
    }

    #[tokio::test]
    async fn expired_credential_ends_the_session_of_pages_and_scripts() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "no", "reason": "Unauthorized", "code": 401});
        let client = test_client(move |_| (401, status.to_string()));
        for script in [None, Some("berth-refresh"), Some("hx-request")] {
            let console = console_of(client.clone(), false);
            let router = build_router(Arc::clone(&console));
            let cookie = open(&console, &router).await;
            let request = Request::builder().uri("/vms?q=a").header(header::COOKIE, &cookie);
            let request = match script {
                Some(name) => request.header(name, "true"),
                None => request,
            };
            let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await;
            let response = response.unwrap();
            // Scripts would follow a redirect, and replace a part of the page with the sign-in.
            let (code, target) = match script {
                Some(_) => (401, response.headers().get("hx-redirect")),
                None => (303, response.headers().get("location")),
            };
            assert_eq!(response.status().as_u16(), code, "{script:?}");
            assert_eq!(target.unwrap(), "/sign-in?from=%2Fvms%3Fq%3Da", "{script:?}");
            let id = cookie.split_once('=').unwrap().1;
            let session = console.sessions.get(id, Use::ByRefresh, Instant::now());
            assert!(session.is_none(), "the session has not ended");
        }
    }

    #[tokio::test]
    async fn simulations_need_a_session_and_one_permit_of_the_user() {
        let console = test_console(false);
        let router = build_router(Arc::clone(&console));
        assert_eq!(send(&router, ("GET", "/hosts/rack1-a/drain"), "", "").await.0, 303);
        let cookie = open(&console, &router).await;
        let (code, _, body) = send(&router, ("GET", "/hosts/rack1-a/drain"), &cookie, "").await;
        assert_eq!(code, 200, "{body}");
        assert!(body.contains("can be drained") && !body.contains("data-live"), "{body}");
        assert_eq!(send(&router, ("GET", "/hosts/rack9/drain"), &cookie, "").await.0, 404);
        let id = cookie.split_once('=').unwrap().1;
        let session = console.sessions.get(id, Use::ByUser, Instant::now()).unwrap();
        let running = console.user_simulations.try_acquire(session.owner);
        assert!(running.is_some());
        assert_eq!(send(&router, ("GET", "/hosts/rack1-a/drain"), &cookie, "").await.0, 429);
        drop(running);
        assert_eq!(send(&router, ("GET", "/hosts/rack1-a/drain"), &cookie, "").await.0, 200);
        // A credential that the API server refuses ends the session.
        let machine = json!({"metadata": {"namespace": "a", "name": "vm"}});
        console.store.add(berth_views::Kind::VirtualMachine, &machine);
        assert_eq!(send(&router, ("GET", "/vms/a/vm/why"), &cookie, "").await.0, 303);
        assert_eq!(send(&router, ("GET", "/"), &cookie, "").await.0, 303);
    }

    #[tokio::test]
    async fn new_session_of_a_browser_replaces_its_old_one() {
        let console = test_console(false);
        let router = build_router(Arc::clone(&console));
        let old = open(&console, &router).await;
        let link = test_link(&console);
        assert_eq!(send(&router, ("GET", &link), &old, "").await.0, 303);
        assert_eq!(send(&router, ("GET", "/"), &old, "").await.0, 303, "the old session has ended");
    }

    #[tokio::test]
    async fn only_addresses_of_the_loopback_are_hosts_of_a_local_console() {
        for (is_secure, host, code) in [
            (false, "127.0.0.1:9480", 200),
            (false, "evil.example:9480", 421),
            (true, "console.example", 200),
        ] {
            let request = Request::builder().uri("/healthz").header(header::HOST, host);
            let router = build_router(test_console(is_secure));
            let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(response.status().as_u16(), code, "{host}");
        }
    }
}
