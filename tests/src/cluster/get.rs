//! Reads objects. The arguments of the functions are those of `kubectl get`.

use anyhow::{Result, anyhow};
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use serde_json::{Value, json};

use super::client::Refusal;
use super::kinds::Kind;
use super::{ControlPlane, READY_TIMEOUT, Version};
use crate::wait;

/// Arguments of `kubectl get` that this module handles without kubectl.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query<'a> {
    kind: Option<&'a str>,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    is_in_all_namespaces: bool,
    labels: Option<&'a str>,
    fields: Option<&'a str>,
}

impl<'a> Query<'a> {
    /// Parses arguments; `None` if only kubectl can handle them.
    fn parse(arguments: &[&'a str]) -> Option<Self> {
        let mut query = Self::default();
        let mut rest = arguments.iter().copied();
        while let Some(argument) = rest.next() {
            match argument {
                "-A" => query.is_in_all_namespaces = true,
                "-n" => query.namespace = Some(rest.next()?),
                "-l" => query.labels = Some(rest.next()?),
                "--field-selector" => query.fields = Some(rest.next()?),
                _ => match argument.strip_prefix("--field-selector=") {
                    Some(fields) => query.fields = Some(fields),
                    None => query.add_word(argument)?,
                },
            }
        }
        Some(query)
    }

    fn add_word(&mut self, word: &'a str) -> Option<()> {
        let place = if self.kind.is_none() { &mut self.kind } else { &mut self.name };
        // Several kinds or several names need kubectl.
        if place.is_some() || word.starts_with('-') || word.contains([',', '/']) {
            return None;
        }
        *place = Some(word);
        Some(())
    }
}

impl ControlPlane {
    /// Waits until the API server is ready.
    pub(super) fn wait_until_ready(&self) -> Result<()> {
        // The API server reports that it is ready only after its default roles exist, but its default namespaces may
        // still be missing.
        let paths = ["/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"];
        wait::wait_until("kube-apiserver is ready", READY_TIMEOUT, || {
            paths.into_iter().try_for_each(|path| {
                let observed = match self.client.get(path) {
                    Some(Ok(_)) => return Ok(()),
                    Some(Err(refusal)) => refusal.to_string(),
                    None => "no response".to_owned(),
                };
                Err(format!("{path}: {observed}\n{}", self.log_tail("kube-apiserver")).into())
            })
        })
    }

    /// Returns an object or a list as JSON. The arguments are arguments of `kubectl get`.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`], also if the object does not exist.
    pub fn get_json(&self, arguments: &[&str]) -> Result<Value> {
        let Some(response) = self.get_without_kubectl(arguments) else {
            let text = self.kubectl(&[&["get", "-o", "json"], arguments].concat())?;
            return Ok(serde_json::from_str(&text)?);
        };
        response.map_err(|refusal| {
            let message = format!("kubectl get -o json {}: {refusal}", arguments.join(" "));
            self.record_output(&message);
            anyhow!(message)
        })
    }

    /// Returns the unmodified response for a path, like `kubectl get --raw`.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`], also if the object does not exist.
    pub fn get_raw(&self, path: &str) -> Result<String> {
        match self.client.get(path) {
            Some(response) => response.map_err(|refusal| anyhow!("{path}: {refusal}")),
            None => self.kubectl(&["get", "--raw", path]),
        }
    }

    /// Reads an object or a list; `None` if the server does not respond, or if only kubectl can handle the arguments.
    fn get_without_kubectl(&self, arguments: &[&str]) -> Option<Result<Value, Refusal>> {
        let query = Query::parse(arguments)?;
        let word = query.kind?;
        let kind = self.kinds.find(&self.client, |kind| kind.has_word(word))?;
        let namespace = (!query.is_in_all_namespaces).then(|| query.namespace.unwrap_or("default"));
        let request = Request::new(kind.path(namespace));
        let request = match query.name {
            Some(name) => request.get(name, &GetParams::default()),
            None => request.list(&ListParams {
                label_selector: query.labels.map(str::to_owned),
                field_selector: query.fields.map(str::to_owned),
                ..ListParams::default()
            }),
        };
        let text = match self.client.send(request.ok()?)? {
            Ok(text) => text,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.record_output(&text);
        let mut found: Value = serde_json::from_str(&text).ok()?;
        if query.name.is_some() {
            self.format_like_kubectl(&kind, &mut found);
        } else {
            let mut items = found["items"].take().as_array_mut().map(std::mem::take);
            items.iter_mut().flatten().for_each(|item| self.format_like_kubectl(&kind, item));
            found["items"] = Value::Array(items.unwrap_or_default());
        }
        Some(Ok(found))
    }

    /// Changes an object of the API server to the format in which this version of kubectl prints it.
    fn format_like_kubectl(&self, kind: &Kind, object: &mut Value) {
        let Some(fields) = object.as_object_mut() else { return };
        for (field, value) in [("apiVersion", &kind.api_version), ("kind", &kind.name)] {
            fields.entry(field).or_insert_with(|| json!(value));
        }
        if self.version() >= Version(1, 21) {
            let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
            if let Some(metadata) = metadata {
                metadata.remove("managedFields");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_kubectl_are_parsed() {
        let machine = Query { kind: Some("vmi"), name: Some("web"), ..Query::default() };
        assert_eq!(Query::parse(&["vmi", "web"]), Some(machine));
        let pods = Query { kind: Some("pods"), namespace: Some("a"), ..Query::default() };
        let labelled = Query { labels: Some("app=web"), ..pods };
        assert_eq!(Query::parse(&["pods", "-n", "a", "-l", "app=web"]), Some(labelled));
        let events = Query {
            kind: Some("events"),
            is_in_all_namespaces: true,
            fields: Some("reason=Applied"),
            ..Query::default()
        };
        let selector = "--field-selector=reason=Applied";
        assert_eq!(Query::parse(&["events", "-A", selector]), Some(events));
    }

    #[test]
    fn unsupported_arguments_are_passed_to_kubectl() {
        for arguments in [
            &["vm,vmi"][..],
            &["pod/web"],
            &["node", "a", "b"],
            &["pods", "--show-managed-fields"],
            &["pods", "-n"],
        ] {
            assert_eq!(Query::parse(arguments), None, "{arguments:?}");
        }
    }
}
