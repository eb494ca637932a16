//! Tests streams between browsers and a simulated API server, which serves the subresources of KubeVirt as virt-api does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{COOKIE, HeaderValue, ORIGIN, SET_COOKIE};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use berth_runtime::vm_stream::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use kube::Client;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tower::ServiceExt as _;

use super::browser::{Browser, upgrade};
use crate::router::build_router;
use crate::server::serve;
use crate::state::Shared;
use crate::test_helpers::{console_of, test_link};

/// Size of the blocks of a VM that sends without end.
const BLOCK: usize = 32 << 10;

/// State of the simulated API server.
struct Kubevirt {
    /// Number of the latest stream: KubeVirt ends the others.
    latest: watch::Sender<usize>,
    is_permitted: AtomicBool,
    /// Number of bytes that a VM has sent without end.
    sent: AtomicUsize,
}

async fn review(State(kubevirt): State<Arc<Kubevirt>>) -> (StatusCode, String) {
    let allowed = kubevirt.is_permitted.load(Ordering::SeqCst);
    let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {}, "spec": {}, "status": {"allowed": allowed}});
    (StatusCode::CREATED, review.to_string())
}

/// Serves a subresource. The names of VMs select the answer.
async fn open_stream(
    State(kubevirt): State<Arc<Kubevirt>>,
    Path((name, subresource)): Path<(String, String)>,
    request: Request,
) -> Response {
    let refused = match name.as_str() {
        "expired" => Some(401),
        "forbidden" => Some(403),
        "off" => Some(404),
        "starting" => Some(409),
        "broken" => Some(500),
        _ => None,
    };
    if let Some(code) = refused {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "message": "VMI is not running", "reason": "Refused"});
        return (StatusCode::from_u16(code).unwrap(), status.to_string()).into_response();
    }
    assert_eq!(request.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
    let (response, upgrade) = upgrade(request).unwrap();
    tokio::spawn(async move {
        let mut guest = Browser::accept(upgrade).await.unwrap();
        if name == "endless" {
            while guest.sink.send(Message::binary(vec![0; BLOCK])).await.is_ok() {
                kubevirt.sent.fetch_add(BLOCK, Ordering::SeqCst);
            }
            return;
        }
        kubevirt.latest.send_modify(|latest| *latest += 1);
        let mut latest = kubevirt.latest.subscribe();
        guest.sink.send(Message::binary(format!("{subresource}\n"))).await.unwrap();
        loop {
            let message = tokio::select! {
                message = guest.messages.next() => message,
                // KubeVirt does not close the connection properly.
                _ = latest.changed() => return,
            };
            match message {
                Some(Ok(Message::Binary(block))) if &*block == b"quit" => return,
                Some(Ok(Message::Binary(block))) => {
                    let upper = Message::binary(block.to_ascii_uppercase());
                    guest.sink.send(upper).await.unwrap();
                }
                Some(Ok(_)) => {}
                _ => return,
            }
        }
    });
    response
}

/// Console with a session, and the simulated API server. Both stop on drop.
struct Testbed {
    kubevirt: Arc<Kubevirt>,
    console: Shared,
    address: SocketAddr,
    cookie: String,
    servers: [AbortHandle; 2],
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.servers.iter().for_each(AbortHandle::abort);
    }
}

async fn start_server(router: Router) -> (SocketAddr, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(serve(listener, None, 64, router)).abort_handle())
}

type Socket = WebSocketStream<TcpStream>;

impl Testbed {
    async fn start() -> Self {
        let kubevirt = Arc::new(Kubevirt {
            latest: watch::Sender::new(0),
            is_permitted: AtomicBool::new(true),
            sent: AtomicUsize::new(0),
        });
        let instances = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances";
        let api = Router::new()
            .route(&format!("{instances}/{{name}}/{{subresource}}"), get(open_stream))
            .route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", post(review))
            .with_state(Arc::clone(&kubevirt));
        let (api_address, api) = start_server(api).await;
        let config = kube::Config::new(format!("http://{api_address}").parse().unwrap());
        let console = console_of(Client::try_from(config).unwrap(), false);
        let router = build_router(Arc::clone(&console));
        let link = Request::get(test_link(&console)).body(axum::body::Body::empty()).unwrap();
        let response = router.clone().oneshot(link).await.unwrap();
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let (address, server) = start_server(router).await;
        Self { kubevirt, console, address, cookie, servers: [api, server] }
    }

    /// Opens a WebSocket; returns the status code of a refusal.
    async fn request(
        &self,
        path: &str,
        cookie: &str,
        origin: Option<&str>,
    ) -> Result<Socket, StatusCode> {
        let mut request = format!("ws://{}{path}", self.address).into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert(COOKIE, HeaderValue::from_str(cookie).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        let stream = TcpStream::connect(self.address).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(SocketError::Http(response)) => Err(response.status()),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Opens the console of a VM as a page of the console does.
    async fn open(&self, name: &str) -> Socket {
        let path = format!("/vms/a/{name}/console/stream");
        let origin = format!("http://{}", self.address);
        self.request(&path, &self.cookie, Some(&origin)).await.unwrap()
    }

    fn session_id(&self) -> &str {
        self.cookie.split_once('=').unwrap().1
    }
}

/// Returns the next message with data, or the end.
async fn receive(socket: &mut Socket) -> Message {
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

async fn assert_connected(socket: &mut Socket) {
    assert_eq!(receive(socket).await, Message::text("open"));
    assert_eq!(receive(socket).await, Message::binary("console\n"));
}

/// Returns the code and the text with which the console closes a connection.
async fn closed(socket: &mut Socket) -> (u16, String) {
    match receive(socket).await {
        Message::Close(Some(frame)) => (frame.code.into(), frame.reason.to_string()),
        message => panic!("{message:?}"),
    }
}

async fn send(socket: &mut Socket, text: &'static str) {
    socket.send(Message::Binary(Bytes::from_static(text.as_bytes()))).await.unwrap();
}

#[tokio::test]
async fn both_directions_are_relayed_until_the_vm_ends_the_stream() {
    let testbed = Testbed::start().await;
    let mut socket = testbed.open("web").await;
    assert_connected(&mut socket).await;
    for _ in 0..100 {
        send(&mut socket, "hello").await;
        assert_eq!(receive(&mut socket).await, Message::binary("HELLO"));
    }
    send(&mut socket, "quit").await;
    let (code, reason) = closed(&mut socket).await;
    assert_eq!(code, 4410, "{reason}");
    assert!(reason.contains("The connection ended"), "{reason}");
    // A browser that leaves ends the stream to the VM.
    let mut socket = testbed.open("web").await;
    assert_connected(&mut socket).await;
    socket.close(None).await.unwrap();
    let screen = format!("http://{}", testbed.address);
    let mut screen =
        testbed.request("/vms/a/web/screen/stream", &testbed.cookie, Some(&screen)).await.unwrap();
    assert_eq!(receive(&mut screen).await, Message::text("open"));
    assert_eq!(receive(&mut screen).await, Message::binary("vnc\n"));
}

#[tokio::test]
async fn refusals_are_explained() {
    let testbed = Testbed::start().await;
    for (name, code, text) in [
        ("forbidden", 4403, "no permission"),
        ("off", 4404, "no running VM"),
        ("starting", 4409, "VMI is not running"),
        ("broken", 4409, "KubeVirt cannot open it: VMI is not running (500"),
        ("expired", 4401, "session has ended"),
    ] {
        let mut socket = testbed.open(name).await;
        let (found, reason) = closed(&mut socket).await;
        assert_eq!(found, code, "{name}: {reason}");
        assert!(reason.contains(text), "{name}: {reason}");
    }
    // The credential that the API server does not accept has ended the session.
    let origin = format!("http://{}", testbed.address);
    let path = "/vms/a/web/console/stream";
    let refused = testbed.request(path, &testbed.cookie, Some(&origin)).await;
    assert_eq!(refused.err(), Some(StatusCode::UNAUTHORIZED));
}

#[tokio::test]
async fn only_pages_of_the_console_with_a_session_open_streams() {
    let testbed = Testbed::start().await;
    let own = format!("http://{}", testbed.address);
    let secure = format!("https://{}", testbed.address);
    let path = "/vms/a/web/console/stream";
    for (path, cookie, origin, code) in [
        (path, testbed.cookie.as_str(), None, 403),
        (path, &testbed.cookie, Some("http://evil.example"), 403),
        (path, &testbed.cookie, Some("null"), 403),
        (path, &testbed.cookie, Some(secure.as_str()), 403),
        (path, "", Some(own.as_str()), 401),
        (path, "x=y", Some(&own), 401),
        ("/vms/a/web/why/stream", &testbed.cookie, Some(&own), 404),
        ("/vms/a/..%2Fx/console/stream", &testbed.cookie, Some(&own), 404),
    ] {
        let refused = testbed.request(path, cookie, origin).await;
        let found = refused.err().map(|code| code.as_u16());
        assert_eq!(found, Some(code), "{path} {cookie} {origin:?}");
    }
}

#[tokio::test]
async fn requests_that_are_no_handshake_are_refused() {
    let testbed = Testbed::start().await;
    let router = build_router(Arc::clone(&testbed.console));
    let request = Request::get("/vms/a/web/console/stream")
        .header(COOKIE, &testbed.cookie)
        .header(ORIGIN, "http://localhost")
        .header("host", "localhost");
    let response = router.oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn end_of_the_session_ends_its_streams() {
    let testbed = Testbed::start().await;
    let mut socket = testbed.open("web").await;
    assert_connected(&mut socket).await;
    assert!(testbed.console.sessions.remove(testbed.session_id()).is_some());
    assert_eq!(closed(&mut socket).await.0, 4401);
}

#[tokio::test]
async fn revoked_permission_ends_open_streams() {
    let testbed = Testbed::start().await;
    let mut socket = testbed.open("web").await;
    assert_connected(&mut socket).await;
    testbed.kubevirt.is_permitted.store(false, Ordering::SeqCst);
    assert_eq!(closed(&mut socket).await.0, 4403);
}

#[tokio::test]
async fn another_viewer_ends_the_stream_with_a_reason() {
    let testbed = Testbed::start().await;
    let mut first = testbed.open("web").await;
    assert_connected(&mut first).await;
    let mut second = testbed.open("web").await;
    assert_connected(&mut second).await;
    let (code, reason) = closed(&mut first).await;
    assert_eq!(code, 4410);
    assert!(reason.contains("Another viewer"), "{reason}");
    send(&mut second, "still").await;
    assert_eq!(receive(&mut second).await, Message::binary("STILL"));
}

#[tokio::test]
async fn number_of_streams_is_limited() {
    let testbed = Testbed::start().await;
    let mut first = testbed.open("endless").await;
    let mut second = testbed.open("endless").await;
    assert_eq!(receive(&mut first).await, Message::text("open"));
    assert_eq!(receive(&mut second).await, Message::text("open"));
    let mut third = testbed.open("endless").await;
    assert_eq!(closed(&mut third).await.0, 4429);
    drop((first, second));
}

#[tokio::test]
async fn large_messages_of_a_browser_end_the_stream() {
    let testbed = Testbed::start().await;
    let mut socket = testbed.open("web").await;
    assert_connected(&mut socket).await;
    // The connection may be closed while the message is being sent.
    socket.send(Message::binary(vec![0; 1 << 20])).await.unwrap_or_default();
    let rest = async { while let Some(Ok(Message::Binary(_))) = socket.next().await {} };
    tokio::time::timeout(Duration::from_secs(30), rest).await.unwrap();
}

#[tokio::test]
async fn browser_that_does_not_read_stops_the_vm() {
    let testbed = Testbed::start().await;
    let mut socket = testbed.open("endless").await;
    let sent = || testbed.kubevirt.sent.load(Ordering::SeqCst);
    let mut before = usize::MAX;
    // The buffers of the sockets become full.
    while sent() == 0 || sent() != before {
        before = sent();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(before < 64 << 20, "{before} bytes are buffered");
    assert_eq!(receive(&mut socket).await, Message::text("open"));
    let mut received = 0;
    while received < before + (1 << 20) {
        received += receive(&mut socket).await.into_data().len();
    }
    assert!(sent() > before, "the VM does not continue");
}
