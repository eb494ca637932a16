//! Sign-in, sign-out and theme. Sign-ins and sign-outs are in the audit log, without credentials.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::{HeaderMap, LOCATION, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use berth_runtime::cli::text::error_chain;

use crate::error::PageError;
use crate::identity::credential::Credential;
use crate::identity::user::{IdentifyError, UNKNOWN_USER, identify};
use crate::pages::layout::Html;
use crate::pages::sign_in::{SignInPage, link_page, sign_in_page};
use crate::pages::theme::Theme;
use crate::query::{Fields, local_path};
use crate::random::{IdHash, random_id};
use crate::requests::{ClientAddress, SignedIn, read_form, read_theme};
use crate::session::cookie::Cookie;
use crate::session::store::{AddSessionError, Session};
use crate::state::{Console, Identity, Shared};

/// Shows the form for the sign-in.
pub(crate) async fn show_sign_in(
    State(console): State<Shared>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, PageError> {
    let query = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    form_response(&console, &headers, local_path(query.get("from")), None)
}

/// Returns the page with the form, and binds the form to the browser with a cookie.
fn form_response(
    console: &Console,
    headers: &HeaderMap,
    from: &str,
    error: Option<&str>,
) -> Result<Response, PageError> {
    let theme = read_theme(console, headers);
    if matches!(console.identity, Identity::Kubeconfig { .. }) {
        return Ok(Html(link_page(theme)).into_response());
    }
    let known = console.cookies.read(headers, Cookie::Visitor);
    let visitor = match known.filter(|visitor| !visitor.is_empty()) {
        Some(visitor) => visitor,
        None => random_id().map_err(|_| PageError::NoRandomNumbers)?,
    };
    let csrf = console.csrf.token(&visitor);
    let page = sign_in_page(&SignInPage { theme, csrf: &csrf, from, error });
    let code = if error.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    let mut response = (code, Html(page)).into_response();
    append_cookie(&mut response, &console.cookies.set(Cookie::Visitor, &visitor));
    Ok(response)
}

/// Signs a user in with the credential in the form.
pub(crate) async fn sign_in(
    State(console): State<Shared>,
    ClientAddress(address): ClientAddress,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    let Identity::SignIn(cluster) = &console.identity else { return Err(PageError::NotFound) };
    let (fields, _) = read_form(&console, &headers, Cookie::Visitor, &body)?;
    if let Err(delay) = console.attempts.take(address, Instant::now()) {
        tracing::warn!(%address, "audit: refused a sign-in, because of too many attempts");
        return Err(PageError::TooManyAttempts(delay.as_secs().saturating_add(1)));
    }
    let from = local_path(fields.get("from"));
    let refuse = |reason: &str| {
        tracing::warn!(%address, reason, "audit: refused a sign-in");
        form_response(&console, &headers, from, Some(reason))
    };
    let parsed =
        Credential::parse(fields.get("token"), fields.get("certificate"), fields.get("key"));
    let credential = match parsed {
        Ok(credential) => credential,
        Err(error) => return refuse(&error.to_string()),
    };
    // The error is not shown, because it may quote a part of the key.
    let Ok(client) = cluster.client_with(credential.to_auth_info()) else {
        return refuse("The certificate and the key do not belong together, or cannot be used.");
    };
    match identify(&client).await {
        Ok(user) => {
            console.attempts.refund(address);
            let owner =
                if user == UNKNOWN_USER { credential.fingerprint() } else { IdHash::new(&user) };
            let session = Session::new(user.clone(), owner, client, Instant::now());
            let response = start_session(&console, &headers, session, from)?;
            tracing::info!(user, %address, "audit: signed in");
            Ok(response)
        }
        Err(error @ IdentifyError::Refused) => refuse(&error.to_string()),
        Err(error @ IdentifyError::Unavailable(_)) => {
            tracing::warn!(error = error_chain(&error), "failed to verify a credential");
            refuse(&error.to_string())
        }
    }
}

/// Opens the console of a kubeconfig with the link that was printed at its start.
pub(crate) async fn open_link(
    State(console): State<Shared>,
    ClientAddress(address): ClientAddress,
    Path(given): Path<String>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let Identity::Kubeconfig { client, user, link } = &console.identity else {
        return Err(PageError::NotFound);
    };
    let now = Instant::now();
    // Only wrong codes are counted, so that other users of the machine cannot lock out the right one.
    if !link.redeem(&given, now) {
        tracing::warn!(%address, "audit: refused a link with a wrong or used code");
        return match console.attempts.take(address, now) {
            Ok(()) => Err(PageError::InvalidLink),
            Err(delay) => Err(PageError::TooManyAttempts(delay.as_secs().saturating_add(1))),
        };
    }
    let session = Session::new(user.clone(), IdHash::new(user), client.clone(), now);
    let response = start_session(&console, &headers, session, "/")?;
    tracing::info!(user, %address, "audit: opened with the link");
    Ok(response)
}

/// Adds a session, which replaces the one that the browser has.
fn start_session(
    console: &Console,
    headers: &HeaderMap,
    session: Session,
    path: &str,
) -> Result<Response, PageError> {
    if let Some(replaced) = console.cookies.read(headers, Cookie::Session) {
        console.sessions.remove(&replaced);
    }
    let user = session.user.clone();
    let id = console.sessions.add(session, Instant::now()).map_err(|error| {
        tracing::warn!(user, %error, "audit: refused a session");
        match error {
            AddSessionError::Random(_) => PageError::NoRandomNumbers,
            AddSessionError::TooManySessions => PageError::TooManySessions,
        }
    })?;
    let mut response = redirect(path);
    append_cookie(&mut response, &console.cookies.set(Cookie::Session, &id));
    Ok(response)
}

/// Ends the session.
pub(crate) async fn sign_out(
    State(console): State<Shared>,
    ClientAddress(address): ClientAddress,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    let (_, id) = read_form(&console, &headers, Cookie::Session, &body)?;
    if let Some(session) = console.sessions.remove(&id) {
        tracing::info!(user = session.user, %address, "audit: signed out");
    }
    let mut response = redirect("/sign-in");
    append_cookie(&mut response, &console.cookies.remove(Cookie::Session));
    Ok(response)
}

/// Stores the theme in the browser.
pub(crate) async fn choose_theme(
    State(console): State<Shared>,
    _: SignedIn,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    let (fields, _) = read_form(&console, &headers, Cookie::Session, &body)?;
    let theme: Theme = fields.get("theme").parse().unwrap_or_default();
    let mut response = redirect(local_path(fields.get("from")));
    append_cookie(&mut response, &console.cookies.set(Cookie::Theme, &theme.to_string()));
    Ok(response)
}

/// Returns a redirect that the browser follows with GET.
pub(super) fn redirect(path: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let path = HeaderValue::from_str(path).unwrap_or_else(|_| HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, path);
    response
}

fn append_cookie(response: &mut Response, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}
