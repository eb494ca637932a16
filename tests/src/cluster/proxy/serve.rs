//! Connections of callers, and the client that forwards their requests.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::{TcpListener, TcpStream};

use super::response::{self, Body};
use super::{Behaviour, Shared};

/// HTTP client of the API server.
pub(super) type Client =
    hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Incoming>;

/// Creates a client that trusts the control plane's CA.
pub(super) fn create_client(authority: &Path) -> Result<Client> {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority);
    roots.add(certificate.with_context(|| authority.display().to_string())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
    Ok(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector.build()))
}

/// Serves callers until the runtime ends.
pub(super) async fn serve(listener: TcpListener, client: Client, port: u16, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            // Tests close and reset connections on purpose, so an error of a connection is expected.
            serve_connection(stream, client, port, shared).await.unwrap_or_default();
        });
    }
}

async fn serve_connection(
    stream: TcpStream,
    client: Client,
    port: u16,
    shared: Arc<Shared>,
) -> Result<()> {
    // The reset needs a second handle to the socket, because hyper owns the first handle.
    let stream = stream.into_std()?;
    let socket = Arc::new(TcpStream::from_std(stream.try_clone()?)?);
    let service = service_fn(|request| {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        let socket = Arc::clone(&socket);
        async move { Ok::<_, Infallible>(respond(request, &client, port, shared, socket).await) }
    });
    let stream = TokioIo::new(TcpStream::from_std(stream)?);
    Ok(hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await?)
}

async fn respond(
    request: Request<Incoming>,
    client: &Client,
    port: u16,
    shared: Arc<Shared>,
    socket: Arc<TcpStream>,
) -> Response<Body> {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let verb = if is_watch { "WATCH" } else { request.method().as_str() }.to_owned();
    let number = shared.record_request(&verb, request.uri().path());
    let answer = match shared.behaviour_for(&verb) {
        Behaviour::Respond(code, rest, body) => Ok(error_response(code, rest, body)),
        Behaviour::Delay(time) => {
            tokio::time::sleep(time).await;
            forward(request, client, port).await
        }
        Behaviour::Forward | Behaviour::Truncate | Behaviour::ReplaceText(..) => {
            forward(request, client, port).await
        }
    };
    let answer = answer.unwrap_or_else(|error| error_response(502, None, format!("{error:#}")));
    shared.record_response(number, answer.status().as_u16());
    answer.map(|body| {
        response::forward_body(body, response::ForwardedResponse { shared, verb, number, socket })
    })
}

async fn forward(
    mut request: Request<Incoming>,
    client: &Client,
    port: u16,
) -> Result<Response<Body>> {
    let path = request.uri().path_and_query().context("the request has no path")?;
    *request.uri_mut() = Uri::try_from(format!("https://127.0.0.1:{port}{path}"))?;
    request.headers_mut().remove(HOST);
    // The proxy reads the lines of responses, so they must not be compressed.
    request.headers_mut().remove(ACCEPT_ENCODING);
    let mut answer = client.request(request).await?;
    // The forwarded body may be longer or shorter than the body from the server.
    answer.headers_mut().remove(CONTENT_LENGTH);
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer.map(|body| body.map_err(Into::into).boxed()))
}

fn error_response(code: u16, retry_after: Option<u64>, body: String) -> Response<Body> {
    let json = body.starts_with('{');
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
    let kind = if json { "application/json" } else { "text/plain; charset=utf-8" };
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    if let Some(rest) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, rest.into());
    }
    answer
}
