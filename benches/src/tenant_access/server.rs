//! Emulates the API servers of many tenants, which serve only Nodes: one HTTPS server, on which each tenant has the
//! path `/t/TENANT`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use super::fake::{FakeTenants, Refused};

/// Interval of bookmark events in a watch, the same as in a real API server.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Duration in seconds of a watch that requests no `timeoutSeconds`.
const WATCH_SECONDS: u64 = 1800;

/// Starts the server in the background. Returns its port.
pub(super) async fn start(
    address: SocketAddr,
    certificate: &[PathBuf; 2],
    tenants: Arc<FakeTenants>,
) -> Result<u16> {
    let listener = TcpListener::bind(address).await.with_context(|| address.to_string())?;
    let local = listener.local_addr()?;
    let acceptor = TlsAcceptor::from(Arc::new(tls_config(certificate)?));
    let (sender, connections) = channel(64);
    tokio::spawn(accept_all(listener, acceptor, sender));
    let router = Router::new()
        .route("/t/{tenant}/api/v1/nodes", get(list_or_watch))
        .route("/t/{tenant}/api/v1/nodes/{name}", get(get_node).patch(patch_node))
        .with_state(tenants);
    tokio::spawn(async move {
        // `serve` returns only when the Tokio runtime ends.
        drop(axum::serve(TlsConnections { connections, local }, router).await);
    });
    Ok(local.port())
}

fn tls_config([certificate, key]: &[PathBuf; 2]) -> Result<ServerConfig> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(builder.with_single_cert(chain, key)?)
}

/// Accepts connections. Each TLS handshake runs in a separate task, so that a slow handshake does not delay other
/// connections.
async fn accept_all(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            drop(stream.set_nodelay(true));
            if let Ok(stream) = acceptor.accept(stream).await {
                drop(sender.send((stream, peer)).await);
            }
        });
    }
}

/// Receives connections whose TLS handshake is complete.
struct TlsConnections {
    connections: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    local: SocketAddr,
}

impl Listener for TlsConnections {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.local)
    }
}

type Tenants = State<Arc<FakeTenants>>;

async fn list_or_watch(
    State(tenants): Tenants,
    Path(tenant): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.unwrap_or_default();
    if !matches!(parameter(&query, "watch"), Some("true" | "1")) {
        return respond(tenants.list(&tenant));
    }
    let number = |name: &str| parameter(&query, name).and_then(|text| text.parse().ok());
    let (missed, events) = match tenants.watch(&tenant, number("resourceVersion").unwrap_or(0)) {
        Ok(watch) => watch,
        Err(refused) => return respond(Err(refused)),
    };
    let later = stream::unfold(events, move |mut events| {
        let (tenants, tenant) = (Arc::clone(&tenants), tenant.clone());
        async move {
            let line = match tokio::time::timeout(BOOKMARK_INTERVAL, events.recv()).await {
                Ok(event) => event.ok()?,
                Err(_) => tenants.bookmark(&tenant).ok()?,
            };
            Some((line, events))
        }
    });
    let seconds = number("timeoutSeconds").unwrap_or(WATCH_SECONDS);
    let end = Box::pin(tokio::time::sleep(Duration::from_secs(seconds)));
    let lines = stream::iter(missed).chain(later).take_until(end);
    let body = Body::from_stream(lines.map(Ok::<String, Infallible>));
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn get_node(
    State(tenants): Tenants,
    Path((tenant, name)): Path<(String, String)>,
) -> Response {
    respond(tenants.get(&tenant, &name))
}

async fn patch_node(
    State(tenants): Tenants,
    Path((tenant, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_apply = match kind {
        "application/apply-patch+yaml" => true,
        "application/merge-patch+json" => false,
        _ => return respond(Err(Refused(415))),
    };
    let query = query.unwrap_or_default();
    let manager = parameter(&query, "fieldManager").unwrap_or("unknown");
    // The content type is YAML, but the clients send JSON, which is valid YAML.
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return respond(Err(Refused(400)));
    };
    respond(tenants.patch(&tenant, &name, manager, is_apply, &body))
}

fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
}

fn respond(answer: Result<Value, Refused>) -> Response {
    let (code, body) = match answer {
        Ok(body) => (StatusCode::OK, body),
        Err(Refused(code)) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "message": "refused", "reason": "Refused", "metadata": {},
            });
            (StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST), status)
        }
    };
    (code, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_their_whole_names() {
        let query = "allowWatchBookmarks=true&watch=true&resourceVersion=7";
        assert_eq!(parameter(query, "watch"), Some("true"));
        assert_eq!(parameter(query, "resourceVersion"), Some("7"));
        assert_eq!(parameter(query, "Version"), None);
    }
}
