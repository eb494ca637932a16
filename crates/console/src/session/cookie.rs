//! Cookies: their names, and the headers that set and read them.

use axum::http::HeaderMap;
use axum::http::header::COOKIE;

/// A cookie of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cookie {
    /// Random id of the session.
    Session,
    /// Random id of a browser without a session, to which the form for the sign-in is bound.
    Visitor,
    /// Theme that the user has chosen.
    Theme,
}

/// Names and attributes of the cookies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cookies {
    /// True if browsers use TLS.
    is_secure: bool,
    /// Port of the console. Browsers send cookies to all ports of an address, so that consoles on several ports need
    /// different names.
    port: u16,
}

/// Seconds for which a browser keeps the theme.
const THEME_SECONDS: u32 = 365 * 86_400;

impl Cookies {
    pub(crate) const fn new(is_secure: bool, port: u16) -> Self {
        Self { is_secure, port }
    }

    /// Returns true if browsers use TLS.
    pub(crate) const fn are_secure(self) -> bool {
        self.is_secure
    }

    fn name(self, cookie: Cookie) -> String {
        let name = match cookie {
            Cookie::Session => "session",
            Cookie::Visitor => "visitor",
            Cookie::Theme => "theme",
        };
        // A browser accepts the prefix only for cookies that were set over TLS for exactly this host.
        if self.is_secure {
            format!("__Host-berth-{name}")
        } else {
            format!("berth-{name}-{}", self.port)
        }
    }

    /// Returns the value of `Set-Cookie` that sets a cookie.
    pub(crate) fn set(self, cookie: Cookie, value: &str) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let age = match cookie {
            Cookie::Theme => format!("; Max-Age={THEME_SECONDS}"),
            Cookie::Session | Cookie::Visitor => String::new(),
        };
        let name = self.name(cookie);
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{age}{secure}")
    }

    /// Returns the value of `Set-Cookie` that removes a cookie.
    pub(crate) fn remove(self, cookie: Cookie) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let name = self.name(cookie);
        format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}")
    }

    /// Returns the value of a cookie in a request.
    pub(crate) fn read(self, headers: &HeaderMap, cookie: Cookie) -> Option<String> {
        let name = self.name(cookie);
        let mut all = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|header| header.to_str().ok())
            .flat_map(|header| header.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_not_readable_by_scripts_and_not_sent_by_other_sites() {
        for (is_secure, prefix, end) in
            [(true, "__Host-berth-session=x;", "; Secure"), (false, "berth-session-9480=x;", "")]
        {
            let cookies = Cookies::new(is_secure, 9480);
            for header in [cookies.set(Cookie::Session, "x"), cookies.set(Cookie::Theme, "dark")] {
                for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Strict"] {
                    assert!(header.contains(attribute), "{header}");
                }
                assert_eq!(header.ends_with("; Secure"), is_secure, "{header}");
                assert!(!header.contains("Domain"), "{header}");
            }
            let header = cookies.set(Cookie::Session, "x");
            assert!(header.starts_with(prefix) && header.ends_with(end), "{header}");
            assert!(cookies.remove(Cookie::Session).contains("=; Path=/"));
        }
    }

    #[test]
    fn only_the_cookie_with_the_exact_name_is_read() {
        let cookies = Cookies::new(false, 1);
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, text.parse().unwrap());
            cookies.read(&headers, Cookie::Session)
        };
        assert_eq!(read("a=b; berth-session-1=c; d=e").as_deref(), Some("c"));
        assert_eq!(read("berth-session-1=").as_deref(), Some(""));
        assert_eq!(read("berth-session-12=c"), None);
        assert_eq!(read("xberth-session-1=c"), None);
        assert_eq!(read(";;; ="), None);
    }
}
