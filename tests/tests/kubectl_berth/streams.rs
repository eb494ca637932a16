//! Tests `console`, `vnc` and `ssh` with a simulated API server that serves the subresources of KubeVirt: WebSockets with the
//! subprotocol `plain.kubevirt.io`, which answer in upper case.

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use futures::{SinkExt as _, StreamExt as _};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

/// Path of the VirtualMachineInstance whose subresources are served.
const INSTANCE: &str =
    "/apis/subresources.kubevirt.io/v1/namespaces/cluster-a/virtualmachineinstances/web-1";

/// Simulated API server. It stops on drop.
struct Server {
    kubeconfig: PathBuf,
    _folder: tempfile::TempDir,
    _runtime: Runtime,
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let service =
                        service_fn(|request| async move { Ok::<_, Infallible>(respond(request)) });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades();
                    // A client that ends closes its connections.
                    connection.await.unwrap_or_default();
                });
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers: [{{name: u, user: {{}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        Self { kubeconfig, _folder: folder, _runtime: runtime }
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        Command::new(berth_tests::program("kubectl-berth"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn answer(code: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response
}

fn respond(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let metadata = |name: &str| json!({"namespace": "cluster-a", "name": name});
    let items = match path.rsplit('/').next() {
        Some("virtualmachines") => {
            json!([{"metadata": metadata("web-1")}, {"metadata": metadata("off")}])
        }
        Some("virtualmachineinstances") => json!([{
            "metadata": metadata("web-1"), "spec": {"networks": [{"name": "n", "pod": {}}]},
            "status": {"phase": "Running", "nodeName": "rack1-a"},
        }]),
        Some("pods" | "services" | "nodes" | "addressclaims") => json!([]),
        _ => return open_stream(request, &path),
    };
    answer(StatusCode::OK, &json!({"metadata": {}, "items": items}))
}

/// Answers the request for a subresource. The stream sends a greeting, returns all bytes in upper case, and ends after `quit`.
fn open_stream(mut request: Request<Incoming>, path: &str) -> Response<Full<Bytes>> {
    let subresource = path.strip_prefix(INSTANCE).unwrap_or_default().to_owned();
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_socket = header(UPGRADE) == Some("websocket")
        && header(SEC_WEBSOCKET_PROTOCOL) == Some("plain.kubevirt.io");
    let is_served = ["/console", "/vnc", "/portforward/22/tcp"].contains(&subresource.as_str());
    if !is_socket || !is_served {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "virtualmachineinstance.kubevirt.io \"off\" not found\u{1b}[2J",
        });
        return answer(StatusCode::NOT_FOUND, &status);
    }
    let key = derive_accept_key(header(SEC_WEBSOCKET_KEY).unwrap_or_default().as_bytes());
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(&mut request).await else { return };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        let greeting = format!("welcome to {subresource}\n");
        socket.send(Message::binary(greeting.into_bytes())).await.unwrap_or_default();
        socket.send(Message::Ping(Bytes::from("keep alive"))).await.unwrap_or_default();
        while let Some(Ok(message)) = socket.next().await {
            if !message.is_binary() {
                continue;
            }
            let block = message.into_data();
            let upper = Message::binary(block.to_ascii_uppercase());
            socket.send(upper).await.unwrap_or_default();
            if block.windows(4).any(|word| word == b"away") {
                let code = CloseCode::Away;
                let frame = CloseFrame { code, reason: "the node stops".into() };
                socket.close(Some(frame)).await.unwrap_or_default();
            }
            if block.windows(4).any(|word| word == b"quit") {
                socket.close(None).await.unwrap_or_default();
            }
        }
    });
    let mut response = answer(StatusCode::SWITCHING_PROTOCOLS, &Value::Null);
    *response.body_mut() = Full::default();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, "Upgrade".parse().unwrap());
    headers.insert(UPGRADE, "websocket".parse().unwrap());
    headers.insert(SEC_WEBSOCKET_PROTOCOL, "plain.kubevirt.io".parse().unwrap());
    headers.insert(SEC_WEBSOCKET_ACCEPT, key.parse().unwrap());
    response
}

/// Reads from a stream until it has sent this text.
fn read_until(stream: &mut impl std::io::Read, text: &str) -> String {
    let mut found = String::new();
    let mut byte = [0];
    while !found.ends_with(text) {
        let count = stream.read(&mut byte).unwrap();
        assert!(count > 0, "the stream ended after {found:?}");
        found.push(char::from(byte[0]));
    }
    found
}

#[test]
fn a_console_is_connected_until_the_escape_key() {
    let server = Server::start();
    let mut child = server.spawn(&["console", "cluster-a/web-1"]);
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    assert_eq!(read_until(&mut stdout, "\n"), "welcome to /console\n");
    stdin.write_all(b"hello\n").unwrap();
    assert_eq!(read_until(&mut stdout, "\n"), "HELLO\n");
    // The bytes after the escape key are not sent.
    stdin.write_all(b"\x1drest").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    // A server that ends the stream ends the command.
    let mut child = server.spawn(&["console", "web-1", "-n", "cluster-a"]);
    child.stdin.as_mut().unwrap().write_all(b"quit").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_reason_of_the_server_for_the_end_is_printed() {
    let server = Server::start();
    let mut child = server.spawn(&["console", "cluster-a/web-1"]);
    child.stdin.as_mut().unwrap().write_all(b"away").unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("the node stops"), "{error}");
}

#[test]
fn standard_input_that_ends_ends_the_port_forwarding() {
    let server = Server::start();
    let mut child = server.spawn(&["ssh", "--stdio", "cluster-a/web-1", "--port=22"]);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_refused_console_is_explained() {
    let server = Server::start();
    let output = server.spawn(&["console", "off"]).wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("console of cluster-a/off: ") && error.contains("not found"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
    let output = server.spawn(&["console", "none"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn one_viewer_is_connected_with_the_display() {
    let server = Server::start();
    let mut child = server.spawn(&["vnc", "cluster-a/web-1", "--proxy-only"]);
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mut viewer = TcpStream::connect(address.trim()).unwrap();
    assert_eq!(read_until(&mut viewer, "\n"), "welcome to /vnc\n");
    viewer.write_all(b"rfb").unwrap();
    assert_eq!(read_until(&mut viewer, "RFB"), "RFB");
    drop(viewer);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_missing_viewer_is_explained() {
    let server = Server::start();
    let output = Command::new(berth_tests::program("kubectl-berth"))
        .args(["vnc", "cluster-a/web-1", "--kubeconfig"])
        .arg(&server.kubeconfig)
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--proxy-only"), "{error}");
}

#[test]
fn ssh_connects_through_the_api_server_in_the_pod_network() {
    let server = Server::start();
    let arguments = ["ssh", "cluster-a/web-1", "-l", "ubuntu", "--print"];
    let output = server.spawn(&arguments).wait_with_output().unwrap();
    let command = String::from_utf8(output.stdout).unwrap();
    let program = berth_tests::program("kubectl-berth");
    let proxy =
        format!("ProxyCommand={} ssh --stdio cluster-a/web-1 --port=22 ", program.display());
    assert!(command.contains("ssh -o HostKeyAlias=web-1.cluster-a -l ubuntu -o "), "{command}");
    assert!(
        command.contains(&proxy) && command.trim_end().ends_with(" web-1.cluster-a"),
        "{command}"
    );
    // The ProxyCommand connects standard input and output with the port.
    let mut child = server.spawn(&["ssh", "--stdio", "cluster-a/web-1", "--port=22"]);
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    assert_eq!(read_until(&mut stdout, "\n"), "welcome to /portforward/22/tcp\n");
    stdin.write_all(b"quit").unwrap();
    drop(stdin);
    assert_eq!(read_until(&mut stdout, "QUIT"), "QUIT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let output = server.spawn(&["ssh", "cluster-a/off"]).wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("kubectl berth console cluster-a/off"), "{error}");
}
