//! Requests of a thief, sent by curl: no client of Berth changes the requests, and kubectl cannot send all of them.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use berth_tests::cluster::ControlPlane;
use serde_json::Value;

/// Credential by which the server authenticates the client.
#[derive(Clone)]
pub(crate) enum Credential {
    Token(String),
    Certificate { certificate: PathBuf, key: PathBuf },
}

pub(crate) struct Request {
    method: &'static str,
    /// Path with its query.
    pub(crate) path: String,
    content_type: &'static str,
    body: Value,
}

/// Returns a server-side apply with the agent's field manager.
pub(crate) fn apply(path: &str, body: Value) -> Request {
    let path = format!("{path}?fieldManager=berth-agent");
    Request { method: "PATCH", path, content_type: "application/apply-patch+yaml", body }
}

/// Returns a server-side apply with force, like a renewal of a Lease.
pub(crate) fn force_apply(path: &str, body: Value) -> Request {
    let request = apply(path, body);
    Request { path: format!("{}&force=true", request.path), ..request }
}

/// Returns a dry-run apply: the server checks permissions and policies, and writes nothing.
pub(crate) fn dry_run_apply(path: &str, body: Value) -> Request {
    let request = apply(path, body);
    Request { path: format!("{}&dryRun=All", request.path), ..request }
}

pub(crate) fn merge_patch(path: &str, body: Value) -> Request {
    Request { method: "PATCH", content_type: "application/merge-patch+json", ..post(path, body) }
}

/// Returns a strategic merge patch. Only this kind of patch merges conditions and taints by their keys.
pub(crate) fn strategic_patch(path: &str, body: Value) -> Request {
    let content = "application/strategic-merge-patch+json";
    Request { method: "PATCH", content_type: content, ..post(path, body) }
}

pub(crate) fn post(path: &str, body: Value) -> Request {
    Request { method: "POST", path: path.to_owned(), content_type: "application/json", body }
}

pub(crate) fn put(path: &str, body: Value) -> Request {
    Request { method: "PUT", ..post(path, body) }
}

pub(crate) fn get(path: &str) -> Request {
    Request { method: "GET", ..post(path, Value::Null) }
}

pub(crate) fn delete(path: &str) -> Request {
    Request { method: "DELETE", ..post(path, Value::Null) }
}

pub(crate) struct Response {
    code: u16,
    pub(crate) body: Value,
}

impl Response {
    /// Returns the body of a request that must succeed.
    #[track_caller]
    pub(crate) fn into_body(self) -> Value {
        assert!((200..300).contains(&self.code), "{}: {:#}", self.code, self.body);
        self.body
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let message = self.body["message"].as_str().unwrap_or_default();
        let policy = message.split_once("'berth-agent-own-node' denied request: ");
        match (self.code, policy) {
            (code, _) if self.is_success() => Verdict::Succeeded(code),
            // The message begins with the user and the denied action, which the attempt already contains.
            (403, Some((_, denial))) => Verdict::DeniedByPolicy(
                denial.split_once(": ").map_or(denial, |(_, reason)| reason).to_owned(),
            ),
            (403, None) if message.contains(" cannot ") => Verdict::DeniedByRbac,
            (code, _) => Verdict::Refused(code, message.to_owned()),
        }
    }
}

/// Result of an attempt.
pub(crate) enum Verdict {
    Succeeded(u16),
    DeniedByRbac,
    /// Denied by the policy, with the reason.
    DeniedByPolicy(String),
    /// Refused for a reason other than a missing permission: the request of the attempt is invalid.
    Refused(u16, String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded(code) => write!(f, "{code}"),
            Self::DeniedByRbac => write!(f, "403, no permission"),
            Self::DeniedByPolicy(why) => write!(f, "403, policy: {why}"),
            Self::Refused(code, message) => write!(f, "{code}: {message}"),
        }
    }
}

pub(crate) struct CurlClient {
    address: String,
    authority: PathBuf,
}

impl CurlClient {
    pub(crate) fn new(plane: &ControlPlane) -> Self {
        let address = format!("https://127.0.0.1:{}", plane.port());
        Self { address, authority: plane.folder().join("ca.crt") }
    }

    pub(crate) fn send(&self, credential: &Credential, request: &Request) -> Response {
        let mut curl = self.curl(credential);
        curl.args(["-w", "\n%{http_code}", "-X", request.method]);
        curl.args(["-H", &format!("Content-Type: {}", request.content_type)]);
        if !request.body.is_null() {
            curl.args(["--data-binary", &request.body.to_string()]);
        }
        curl.arg(format!("{}{}", self.address, request.path));
        let output = run_curl(curl);
        let (body, code) = output.rsplit_once('\n').unwrap();
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::from(body));
        Response { code: code.parse().unwrap(), body }
    }

    /// Returns several objects with one call of curl, because the tests read them often.
    pub(crate) fn get_all(&self, credential: &Credential, paths: &[&str]) -> Vec<Value> {
        let mut curl = self.curl(credential);
        curl.arg("--fail").args(paths.iter().map(|path| format!("{}{path}", self.address)));
        let output = run_curl(curl);
        serde_json::Deserializer::from_str(&output).into_iter().map(Result::unwrap).collect()
    }

    fn curl(&self, credential: &Credential) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "--max-time", "60", "--cacert"]).arg(&self.authority);
        match credential {
            Credential::Token(token) => {
                curl.args(["-H", &format!("Authorization: Bearer {token}")]);
            }
            Credential::Certificate { certificate, key } => {
                curl.arg("--cert").arg(certificate).arg("--key").arg(key);
            }
        }
        curl
    }
}

fn run_curl(mut curl: Command) -> String {
    let output = curl.output().unwrap();
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
