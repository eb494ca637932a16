//! Simulated virt-api with the consoles and screens of VMs. The API server publishes it, and decides with RBAC who may use it.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use berth_tests::cluster::ControlPlane;
use berth_tests::kubevirt::{SERVING_NAMES, publish_subresources};
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::framebuffer::Framebuffer;

const GROUP: &str = "/apis/subresources.kubevirt.io/v1";
/// VMs that run.
const RUNNING: &str = "/namespaces/cluster-bank/virtualmachineinstances/bank-web/";

pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Input that VMs have received.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Text on the serial console.
    pub(crate) typed: String,
    /// X11 symbols of keys on the keyboard of the screen, and true for pressed keys.
    pub(crate) keys: Vec<(u32, bool)>,
}

/// Running server. It stops on drop.
pub(crate) struct Guests {
    received: Arc<Mutex<Received>>,
    _runtime: Runtime,
}

impl Guests {
    /// Starts the server, and publishes it.
    pub(crate) fn start(plane: &ControlPlane) -> Self {
        let [certificate, key] =
            plane.create_serving_certificate("virt-api", SERVING_NAMES).unwrap();
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).unwrap().collect();
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::default());
        runtime.spawn(serve(listener, acceptor, Arc::clone(&received)));
        publish_subresources(plane, port).unwrap();
        Self { received, _runtime: runtime }
    }

    /// Calls a function with the input of the VMs.
    pub(crate) fn received<T>(&self, read: impl FnOnce(&Received) -> T) -> T {
        read(&self.received.lock().unwrap())
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, received: Arc<Mutex<Received>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, received) = (acceptor.clone(), Arc::clone(&received));
        tokio::spawn(async move {
            // The API server may close a connection before its handshake.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| {
                let response = respond(request, &received);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            connection.await.unwrap_or_default();
        });
    }
}

fn answer(code: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, "application/json".parse().unwrap());
    response
}

fn respond(
    mut request: Request<Incoming>,
    received: &Arc<Mutex<Received>>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    if path == GROUP {
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": "subresources.kubevirt.io/v1", "resources": []});
        return answer(StatusCode::OK, &list);
    }
    let subresource = path.strip_prefix(GROUP).and_then(|path| path.strip_prefix(RUNNING));
    let subresource = subresource.filter(|name| ["console", "vnc"].contains(name));
    let Some(subresource) = subresource.map(str::to_owned) else {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "virtualmachineinstance.kubevirt.io \"shop-web\" not found",
        });
        return answer(StatusCode::NOT_FOUND, &status);
    };
    assert_eq!(request.headers()[SEC_WEBSOCKET_PROTOCOL], "plain.kubevirt.io");
    assert!(request.headers().contains_key(CONNECTION) && request.headers().contains_key(UPGRADE));
    let mut response = create_response_with_body(&request, Full::default).unwrap();
    let protocol = "plain.kubevirt.io".parse().unwrap();
    response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    let received = Arc::clone(received);
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(&mut request).await else { return };
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        match subresource.as_str() {
            "console" => serve_console(socket, &received).await,
            _ => Framebuffer::new(socket).serve(&received).await,
        }
    });
    response
}

/// Serves a serial console, which returns the text in upper case, until the user types `bye`.
async fn serve_console(mut socket: Socket, received: &Mutex<Received>) {
    socket.send(Message::binary("\u{1b}[1;31mbank-web\u{1b}[0m login: ")).await.unwrap_or_default();
    while let Some(Ok(message)) = socket.next().await {
        if !message.is_binary() {
            continue;
        }
        let block = message.into_data();
        let is_end = {
            let mut received = received.lock().unwrap();
            received.typed += &String::from_utf8_lossy(&block);
            received.typed.ends_with("bye")
        };
        if is_end {
            return;
        }
        let upper = Message::binary(block.to_ascii_uppercase());
        socket.send(upper).await.unwrap_or_default();
    }
}
