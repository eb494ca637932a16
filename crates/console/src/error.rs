//! Answers to requests that have no page.

use axum::http::header::{HeaderName, LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::html;

use crate::pages::layout::{Html, bare_page};
use crate::pages::theme::Theme;
use crate::query::url;

/// Reason why a request has no page.
#[derive(Debug)]
pub(crate) enum PageError {
    /// The browser has no session, or the session has ended.
    SignedOut { path: String, is_script: bool },
    /// A site other than the console may have sent the form.
    ForeignForm,
    /// A site other than the console may have opened the WebSocket.
    ForeignSocket,
    /// The request names another host than the loopback.
    ForeignHost,
    /// There is no such page, or the user may not see its object.
    NotFound,
    /// The code in the link of the console is not valid.
    InvalidLink,
    /// Too many failed sign-ins; seconds until the next permitted one.
    TooManyAttempts(u64),
    /// The console serves too many open pages.
    TooManyPages,
    /// The console has the maximum number of sessions, and all are in use.
    TooManySessions,
    /// A simulation of the user runs or waits.
    SimulationRunning,
    /// The API server did not answer.
    Unavailable,
    /// The operating system returned no random numbers.
    NoRandomNumbers,
}

impl PageError {
    const fn describe(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::SignedOut { .. } => {
                (StatusCode::UNAUTHORIZED, "Signed out", "Your session has ended.")
            }
            Self::ForeignForm => (
                StatusCode::FORBIDDEN,
                "Form refused",
                "The form is outdated, or another site has sent it. Go back, reload the page, and try again.",
            ),
            Self::ForeignSocket => (
                StatusCode::FORBIDDEN,
                "Connection refused",
                "Another site has opened the connection.",
            ),
            Self::ForeignHost => (
                StatusCode::MISDIRECTED_REQUEST,
                "Unknown host",
                "Open this console with localhost, or with the address of the loopback.",
            ),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "Not found",
                "There is no such page or object, or you have no permission to see it.",
            ),
            Self::InvalidLink => (
                StatusCode::NOT_FOUND,
                "Link not valid",
                "The link has been used, or is older than ten minutes. Send SIGUSR1 to the console: it prints a new link.",
            ),
            Self::TooManyAttempts(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many sign-ins",
                "Wait a minute, and sign in again.",
            ),
            Self::TooManyPages => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many open pages",
                "The console serves no further changes of open pages.",
            ),
            Self::TooManySessions => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many sessions",
                "The console has the maximum number of sessions, and all were used in the last ten minutes. Sign in again in a few minutes.",
            ),
            Self::SimulationRunning => (
                StatusCode::TOO_MANY_REQUESTS,
                "A simulation is running",
                "You have another simulation that is running or waiting. Reload the page when it has ended.",
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "API server unavailable",
                "The API server did not answer. Reload the page to try again.",
            ),
            Self::NoRandomNumbers => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "No random numbers",
                "The operating system of the console returned no random numbers.",
            ),
        }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let (code, title, text) = self.describe();
        let page = bare_page(
            title,
            Theme::default(),
            &html! {
                h1 { (title) }
                p { (text) }
                p { a href="/" { "Fleet" } }
            },
        );
        let mut response = (code, Html(page)).into_response();
        let headers = response.headers_mut();
        match self {
            Self::SignedOut { path, is_script } => {
                let target = url("/sign-in", &[("from", path.as_str())]);
                let target = HeaderValue::from_str(&target);
                let target = target.unwrap_or_else(|_| HeaderValue::from_static("/sign-in"));
                if is_script {
                    // Scripts cannot follow a redirect to another page; htmx opens this page.
                    headers.insert(HeaderName::from_static("hx-redirect"), target);
                } else {
                    headers.insert(LOCATION, target);
                    *response.status_mut() = StatusCode::SEE_OTHER;
                }
            }
            Self::TooManyAttempts(seconds) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::TooManySessions => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
            }
            Self::SimulationRunning => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
            }
            _ => {}
        }
        response
    }
}
