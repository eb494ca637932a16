//! Check of the header `Host` of a console on the loopback. Without it, a page of another site could read the console through
//! a DNS name that first has the address of the site, and then 127.0.0.1 (DNS rebinding).

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::error::PageError;
use crate::state::Shared;

/// Refuses requests with the host of another site. Browsers always send the header.
pub(crate) async fn check_host(
    State(console): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let mut hosts = request.headers().get_all(HOST).iter();
    let is_own = hosts.all(|host| host.to_str().is_ok_and(is_loopback));
    if console.is_local && !is_own {
        return PageError::ForeignHost.into_response();
    }
    next.run(request).await
}

/// Returns true for `localhost` and addresses of the loopback, with or without a port.
fn is_loopback(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_refused() {
        for own in
            ["127.0.0.1:9480", "127.0.0.1", "[::1]:9480", "[::1]", "localhost:1", "LOCALHOST"]
        {
            assert!(is_loopback(own), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:9480",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "10.0.0.1:9480",
            "127.0.0.1:evil",
            "[::2]:1",
        ] {
            assert!(!is_loopback(foreign), "{foreign}");
        }
    }
}
