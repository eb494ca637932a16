//! Tests of the pages with simulated changes.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use berth_views::Kind;
use serde_json::json;
use tower::ServiceExt as _;

use super::*;
use crate::router::build_router;
use crate::session::store::Use;
use crate::test_helpers::{test_console, test_link};

/// A console with the tenant `bank`, the cookie of a session, and the token of its forms.
struct Opened {
    console: Shared,
    cookie: String,
    csrf: String,
}

impl Opened {
    async fn new() -> Self {
        let console = test_console(false);
        let tenant = json!({"metadata": {"name": "bank"}, "spec": {}});
        console.store.add(Kind::TenantCluster, &tenant);
        let link = test_link(&console);
        let request = Request::builder().uri(link).body(Body::empty()).unwrap();
        let opened = build_router(Arc::clone(&console)).oneshot(request).await.unwrap();
        let cookie = opened.headers()[header::SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let mut opened = Self { console, cookie, csrf: String::new() };
        let (_, page) = opened.get("/").await;
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
        opened.csrf = rest.split_once('"').unwrap().0.to_owned();
        opened
    }

    async fn send(&self, method: &str, path: &str, form: String) -> (u16, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::COOKIE, &self.cookie).body(Body::from(form)).unwrap();
        let response = build_router(Arc::clone(&self.console)).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (head.status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, String::new()).await
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("csrf", &self.csrf).extend_pairs(fields);
        self.send("POST", path, form.finish()).await
    }
}

#[tokio::test]
async fn numbers_of_hosts_are_limited() {
    let opened = Opened::new().await;
    let (code, page) = opened.get("/hosts/rack1-a/add").await;
    assert!(code == 200 && !page.contains("id=\"result\""), "{page}");
    let (_, page) = opened.get("/hosts/rack1-a/add?count=100").await;
    assert!(page.contains("<strong>100</strong>"), "{page}");
    for count in ["0", "101", "-1", "x", "99999999999999999999"] {
        let (code, page) = opened.get(&format!("/hosts/rack1-a/add?count={count}")).await;
        let expected = format!("count: `{count}`: must be a number from 1 to 100");
        assert!(code == 200 && page.contains(&expected), "{page}");
    }
    assert_eq!(opened.get("/hosts/rack9/add?count=1").await.0, 404);
    assert_eq!(opened.get("/hosts/..%2Fx/add").await.0, 404);
}

#[tokio::test]
async fn profile_is_a_name_or_yaml() {
    let opened = Opened::new().await;
    let path = "/what-if/profile";
    let (code, page) = opened.get(&format!("{path}?host=rack1-a")).await;
    assert!(code == 200 && page.contains("value=\"rack1-a\""), "{page}");
    let many = "a ".repeat(101);
    for (fields, words) in [
        (&[("profile", ""), ("yaml", " \n")][..], "specify one of them"),
        (&[("profile", "p"), ("yaml", "a: 1")], "profile: `p`: must be empty"),
        (&[("profile", "../p")], "profile: `../p`: is not the name"),
        (&[("profile", "p"), ("hosts", "a, B_c")], "hosts: `B_c`: is not the name"),
        (&[("profile", "p"), ("hosts", many.as_str())], "hosts: `101 names`: must be at most 100"),
        // The refusal of the simulator.
        (&[("profile", "p"), ("hosts", "a b")], "HostProfile x: spec.priority"),
    ] {
        let (code, page) = opened.post(path, fields).await;
        assert!(code == 200 && page.contains(words), "{words}: {page}");
    }
}

#[tokio::test]
async fn machines_come_from_yaml_or_from_the_form() {
    let opened = Opened::new().await;
    let path = "/tenants/bank/what-if";
    let (code, page) = opened.get(path).await;
    assert!(code == 200 && page.contains("textarea"), "{page}");
    let (_, page) = opened.post(path, &[("yaml", "kind: MachineDeployment # mine")]).await;
    assert!(page.contains("No VM would be interrupted") && page.contains("# mine"), "{page}");
    let secret = "kind: Secret\nstringData: {password: hunter2}";
    let (_, page) = opened.post(path, &[("yaml", secret)]).await;
    assert!(page.contains("x: kind: `Secret`: is wrong") && !page.contains("hunter2"), "{page}");
    let form = [
        ("name", "web"),
        ("replicas", "2"),
        ("cpus", "2"),
        ("memory", "4Gi"),
        ("os", "ubuntu"),
        ("disk", "20Gi"),
    ];
    let (_, page) = opened.post(path, &form).await;
    assert!(page.contains("replicas: 2") && page.contains("cluster-bank"), "{page}");
    for (fields, words) in [
        (&[("replicas", "9999"), ("name", "web")][..], "replicas: `9999`: Use a number"),
        (&[], "yaml: is empty"),
    ] {
        let (code, page) = opened.post(path, fields).await;
        assert!(code == 200 && page.contains(words), "{words}: {page}");
    }
    assert_eq!(opened.get("/tenants/shop/what-if").await.0, 404);
    assert_eq!(opened.post("/tenants/shop/what-if", &[("yaml", "a: 1")]).await.0, 404);
}

#[tokio::test]
async fn forms_need_their_token_and_one_permit() {
    let mut opened = Opened::new().await;
    let id = opened.cookie.split_once('=').unwrap().1.to_owned();
    let session = opened.console.sessions.get(&id, Use::ByUser, Instant::now()).unwrap();
    let running = opened.console.user_simulations.try_acquire(session.owner);
    assert!(running.is_some());
    let posts =
        [("/what-if/profile", [("profile", "p")]), ("/tenants/bank/what-if", [("yaml", "a: 1")])];
    for (path, fields) in &posts {
        assert_eq!(opened.post(path, fields).await.0, 429, "{path}");
    }
    assert_eq!(opened.get("/hosts/rack1-a/add?count=1").await.0, 429);
    drop(running);
    let large = "a".repeat(70_000);
    assert_eq!(opened.post("/tenants/bank/what-if", &[("yaml", &large)]).await.0, 413);
    opened.csrf = "AAAA".to_owned();
    for (path, fields) in &posts {
        assert_eq!(opened.post(path, fields).await.0, 403, "{path}");
    }
    opened.cookie = String::new();
    for path in ["/hosts/rack1-a/add", "/what-if/profile", "/tenants/bank/what-if"] {
        assert_eq!(opened.get(path).await.0, 303, "{path}");
    }
}
