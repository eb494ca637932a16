//! Counts the requests of each user in the audit log of the API server.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// Numbers of requests by verb and resource.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Requests(BTreeMap<(String, String), u32>);

impl Requests {
    /// Counts the requests of the selected users in the complete lines of an audit log.
    ///
    /// # Errors
    /// Fails if a line is not JSON.
    pub(super) fn count(log: &str, is_user: impl Fn(&str) -> bool) -> Result<Self> {
        let mut requests = Self::default();
        for line in log.lines() {
            let event: Value =
                serde_json::from_str(line).with_context(|| format!("audit log: {line}"))?;
            if !is_user(event["user"]["username"].as_str().unwrap_or_default()) {
                continue;
            }
            let verb = event["verb"].as_str().unwrap_or_default();
            // The audit log has two lines for a watch: one at the start and one at the end.
            if verb == "watch" && event["stage"] != "ResponseStarted" {
                continue;
            }
            *requests.0.entry((verb.to_owned(), resource(&event))).or_default() += 1;
        }
        Ok(requests)
    }

    /// Returns the number of Lease renewals that the server accepted.
    pub(super) fn renewals(&self) -> u32 {
        self.sum(|verb, resource| verb == "patch" && resource == "leases")
    }

    /// Returns the number of watches. A client starts a new watch when the server ends the previous one by timeout.
    pub(super) fn watches(&self) -> u32 {
        self.sum(|verb, resource| verb == "watch" && !resource.contains(" refused"))
    }

    /// Returns the number of write requests, including refused requests.
    pub(super) fn writes(&self) -> u32 {
        self.sum(|verb, _| !matches!(verb, "get" | "list" | "watch"))
    }

    /// Returns the number of all requests.
    pub(super) fn total(&self) -> u32 {
        self.sum(|_, _| true)
    }

    /// Returns verb, resource and number of each kind of request.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &str, u32)> {
        self.0.iter().map(|((verb, resource), count)| (verb.as_str(), resource.as_str(), *count))
    }

    fn sum(&self, matches: impl Fn(&str, &str) -> bool) -> u32 {
        self.entries()
            .filter(|(verb, what, _)| matches(verb, what))
            .map(|(_, _, count)| count)
            .sum()
    }
}

/// Returns the resource, or the URL path if the request has no resource. A refused request has the status code
/// appended.
fn resource(event: &Value) -> String {
    let object = &event["objectRef"];
    let mut name = match (object["resource"].as_str(), object["subresource"].as_str()) {
        (Some(resource), Some(part)) => format!("{resource}/{part}"),
        (Some(resource), None) => resource.to_owned(),
        (None, _) => {
            let path = event["requestURI"].as_str().unwrap_or_default();
            path.split('?').next().unwrap_or_default().to_owned()
        }
    };
    if let Some(code) = event["responseStatus"]["code"].as_u64().filter(|code| *code >= 400) {
        name += &format!(" refused ({code})");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"{"stage":"ResponseComplete","verb":"patch","user":{"username":"a"},"objectRef":{"resource":"leases"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"a"},"objectRef":{"resource":"leases"},"responseStatus":{"code":429}}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"b"},"objectRef":{"resource":"leases"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"watch","user":{"username":"a"},"objectRef":{"resource":"nodes"},"responseStatus":{"code":200}}
{"stage":"ResponseStarted","verb":"watch","user":{"username":"a"},"objectRef":{"resource":"nodes"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"a"},"objectRef":{"resource":"nodes","subresource":"status"},"responseStatus":{"code":200}}
{"stage":"ResponseComplete","verb":"get","user":{"username":"a"},"requestURI":"/api?timeout=32s","responseStatus":{"code":200}}
"#;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let requests = Requests::count(LOG, |user| user == "a").unwrap();
        let kinds: Vec<_> = requests.entries().collect();
        assert_eq!(
            kinds,
            [
                ("get", "/api", 1),
                ("patch", "leases", 1),
                ("patch", "leases refused (429)", 1),
                ("patch", "nodes/status", 1),
                ("watch", "nodes", 1),
            ]
        );
        assert_eq!(
            (requests.renewals(), requests.watches(), requests.writes(), requests.total()),
            (1, 1, 3, 5)
        );
    }

    #[test]
    fn unparsable_line_is_an_error() {
        let truncated = LOG.get(..LOG.len() - 5).unwrap();
        assert!(Requests::count(truncated, |_| true).is_err());
    }
}
