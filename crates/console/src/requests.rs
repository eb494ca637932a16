//! Requests of browsers: session, theme, address of the client, and forms.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::header::{HOST, HeaderMap, ORIGIN, UPGRADE};
use axum::http::request::Parts;
use berth_api::TenantCluster;
use berth_runtime::cli::text::error_chain;
use berth_views::{Kind, ObjectName};

use crate::error::PageError;
use crate::objects::visible::Visible;
use crate::pages::theme::Theme;
use crate::query::Fields;
use crate::rights::RightsError;
use crate::session::cookie::Cookie;
use crate::session::store::{Session, Use};
use crate::state::{Console, Shared};
use crate::vm_stream::kind::StreamKind;

/// Header with which scripts mark the refresh of an open page.
const REFRESH_HEADER: &str = "berth-refresh";
/// Header of all requests of htmx.
const SCRIPT_HEADER: &str = "hx-request";
/// Path of the streams of changes, which pages open again without the user.
const STREAM_PATH: &str = "/live";

/// Address of the client, which the server adds to each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// A request of a user who has signed in.
pub(crate) struct SignedIn {
    pub(crate) session: Arc<Session>,
    /// Id of the session.
    pub(crate) id: String,
    pub(crate) theme: Theme,
    /// Path and query of the request.
    pub(crate) path: String,
    /// True if the request refreshes an open page.
    pub(crate) is_refresh: bool,
    /// True if a script has sent the request, and cannot follow a redirect to another page.
    pub(crate) is_script: bool,
}

impl SignedIn {
    /// Returns the objects that the user may see. If the API server does not accept the credential any more, the session ends.
    pub(crate) async fn visible(&self, console: &Console) -> Result<Visible, PageError> {
        let namespaces = console.store.namespaces();
        let visible = self.session.rights.visible(&namespaces).await;
        visible.map_err(|error| self.rights_error(console, &error))
    }

    /// Returns true if the user may create MachineDeployments of a tenant.
    pub(crate) async fn may_create_machines(
        &self,
        console: &Console,
        tenant: &str,
    ) -> Result<bool, PageError> {
        let namespace = TenantCluster::namespace_of(tenant);
        let permitted = self.session.rights.may_create(Kind::MachineDeployment, &namespace).await;
        permitted.map_err(|error| self.rights_error(console, &error))
    }

    /// Returns the kinds of streams to a VM that the user may open.
    pub(crate) async fn openable_streams(
        &self,
        console: &Console,
        machine: &ObjectName,
    ) -> Result<Vec<StreamKind>, PageError> {
        let permitted = self.session.rights.openable_streams(machine).await;
        permitted.map_err(|error| self.rights_error(console, &error))
    }

    /// Returns true if the user may still use an open stream to a VM.
    pub(crate) async fn may_stay(
        &self,
        console: &Console,
        kind: StreamKind,
        machine: &ObjectName,
    ) -> Result<bool, PageError> {
        let permitted = self.session.rights.may_stay(kind, machine).await;
        permitted.map_err(|error| self.rights_error(console, &error))
    }

    fn rights_error(&self, console: &Console, error: &RightsError) -> PageError {
        match error {
            RightsError::SignedOut => self.end_session(console),
            RightsError::Unavailable(_) => {
                let error = error_chain(error);
                tracing::warn!(error, "failed to read the permissions of a user");
                PageError::Unavailable
            }
        }
    }

    /// Ends the session, because the API server does not accept the credential any more. Returns the answer to the request.
    pub(crate) fn end_session(&self, console: &Console) -> PageError {
        if console.sessions.remove(&self.id).is_some() {
            let user = self.session.user.as_str();
            tracing::info!(user, "audit: the credential is not valid any more");
        }
        PageError::SignedOut { path: self.path.clone(), is_script: self.is_script }
    }
}

impl FromRequestParts<Shared> for SignedIn {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, console: &Shared) -> Result<Self, PageError> {
        // After a sign-in, the browser opens pages, but does not send forms again.
        let page = parts.uri.path_and_query().filter(|_| parts.method == Method::GET);
        let path = page.map_or("/", |path| path.as_str()).to_owned();
        let is_refresh =
            parts.headers.contains_key(REFRESH_HEADER) || parts.uri.path() == STREAM_PATH;
        let has_header = |name: &str| parts.headers.contains_key(name);
        let is_script = is_refresh || has_header(SCRIPT_HEADER) || has_header(UPGRADE.as_str());
        let usage = if is_refresh { Use::ByRefresh } else { Use::ByUser };
        let cookie = console.cookies.read(&parts.headers, Cookie::Session);
        let found = cookie.and_then(|id| {
            let session = console.sessions.get(&id, usage, Instant::now())?;
            Some((session, id))
        });
        let Some((session, id)) = found else {
            return Err(PageError::SignedOut { path, is_script });
        };
        let theme = read_theme(console, &parts.headers);
        Ok(Self { session, id, theme, path, is_refresh, is_script })
    }
}

/// Returns the theme that the user has chosen.
pub(crate) fn read_theme(console: &Console, headers: &HeaderMap) -> Theme {
    let cookie = console.cookies.read(headers, Cookie::Theme).unwrap_or_default();
    cookie.parse().unwrap_or_default()
}

/// Address of the client: the last address that the proxy in front of the console has added, or the peer.
pub(crate) struct ClientAddress(pub(crate) IpAddr);

impl FromRequestParts<Shared> for ClientAddress {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, console: &Shared) -> Result<Self, PageError> {
        let peer = parts.extensions.get::<Peer>().map(|Peer(address)| *address);
        let forwarded = parts.headers.get_all("x-forwarded-for").iter().next_back();
        let forwarded =
            forwarded.filter(|_| console.has_proxy).and_then(|value| value.to_str().ok());
        let forwarded = forwarded.and_then(|list| list.rsplit(',').next()?.trim().parse().ok());
        Ok(Self(forwarded.or(peer).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
    }
}

/// Returns false if the browser cannot send a valid form: it has no cookie, or another site sends the form.
pub(crate) fn may_send_forms(console: &Console, headers: &HeaderMap) -> bool {
    let has = |cookie| console.cookies.read(headers, cookie).is_some();
    is_same_origin(headers) && (has(Cookie::Session) || has(Cookie::Visitor))
}

/// Parses a form, and checks that a page of the console has sent it from the browser with this cookie. Returns the fields
/// and the value of the cookie.
///
/// # Errors
/// Returns an error if another site may have sent the form.
pub(crate) fn read_form(
    console: &Console,
    headers: &HeaderMap,
    cookie: Cookie,
    body: &Bytes,
) -> Result<(Fields, String), PageError> {
    let fields = Fields::parse(body);
    let value = console.cookies.read(headers, cookie).ok_or(PageError::ForeignForm)?;
    let is_own = is_same_origin(headers) && console.csrf.is_valid(&value, fields.get("csrf"));
    if is_own { Ok((fields, value)) } else { Err(PageError::ForeignForm) }
}

/// Returns false if the browser reports that another site has sent the form.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    if let Some(site) = headers.get("sec-fetch-site") {
        return text(site) == "same-origin";
    }
    let Some(origin) = headers.get(ORIGIN).map(text) else { return true };
    let host = headers.get(HOST).map(text).unwrap_or_default();
    origin.split_once("://").is_some_and(|(_, origin)| origin == host)
}

/// Returns true if a page of the console has opened a WebSocket. Browsers let every site open WebSockets to the console, and
/// the site could use them with the cookie of the user, so the origin must be present, and must be that of the console.
pub(crate) fn is_own_socket(headers: &HeaderMap, is_secure: bool) -> bool {
    let single = |name| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        value.to_str().ok()
    };
    let (Some(origin), Some(host)) = (single(ORIGIN), single(HOST)) else { return false };
    let scheme = if is_secure { "https://" } else { "http://" };
    let is_own = origin.strip_prefix(scheme) == Some(host) && !host.is_empty();
    let site = headers.get("sec-fetch-site");
    is_own && site.is_none_or(|site| site == "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_other_sites_are_refused() {
        for (headers, expected) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "http://127.0.0.1:9480"), ("host", "127.0.0.1:9480")], true),
            (&[("origin", "http://127.0.0.1:1"), ("host", "127.0.0.1:9480")], false),
            (&[("origin", "null"), ("host", "127.0.0.1:9480")], false),
        ] {
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.insert(*name, value.parse().unwrap());
            }
            assert_eq!(is_same_origin(&all), expected, "{headers:?}");
        }
    }

    #[test]
    fn sockets_of_other_sites_are_refused() {
        let host = ("host", "console.example");
        for (headers, expected) in [
            (&[][..], false),
            (&[host], false),
            (&[host, ("origin", "https://console.example")], true),
            (&[host, ("origin", "http://console.example")], false),
            (&[host, ("origin", "https://console.example:444")], false),
            (&[host, ("origin", "https://console.example.evil.example")], false),
            (&[host, ("origin", "https://evil.example")], false),
            (&[host, ("origin", "null")], false),
            (&[host, ("origin", "")], false),
            (&[("origin", "https://console.example")], false),
            (&[("host", ""), ("origin", "https://")], false),
            (
                &[host, ("origin", "https://console.example"), ("sec-fetch-site", "same-site")],
                false,
            ),
            (
                &[host, ("origin", "https://console.example"), ("sec-fetch-site", "same-origin")],
                true,
            ),
            (
                &[host, ("origin", "https://console.example"), ("origin", "https://evil.example")],
                false,
            ),
        ] {
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.append(*name, value.parse().unwrap());
            }
            assert_eq!(is_own_socket(&all, true), expected, "{headers:?}");
        }
        let mut local = HeaderMap::new();
        local.insert(HOST, "127.0.0.1:9480".parse().unwrap());
        local.insert(ORIGIN, "http://127.0.0.1:9480".parse().unwrap());
        assert!(is_own_socket(&local, false) && !is_own_socket(&local, true));
    }
}
