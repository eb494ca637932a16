//! Creates, applies and changes objects. A single object needs no kubectl.

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

use super::ControlPlane;
use super::client::{Refusal, Response};

/// Content type of a whole object.
pub(super) const JSON: &str = "application/json";
/// Content type of a JSON merge patch.
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";

impl ControlPlane {
    /// Applies objects with server-side apply.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn apply(&self, objects: &str) -> Result<String> {
        if let Some(response) = self.apply_one(objects) {
            return self.record_error("kubectl apply", response);
        }
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.kubectl_with(&self.kubeconfig(), &apply, objects)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`], also if the object exists.
    pub(super) fn create(&self, object: &Value) -> Result<()> {
        match self.post(object) {
            Some(response) => self.record_error("kubectl create", response).map(drop),
            None => {
                let create = ["create", "-f", "-"];
                self.kubectl_with(&self.kubeconfig(), &create, &object.to_string()).map(drop)
            }
        }
    }

    /// Returns the object that the server would create after its webhooks. The server stores nothing, and refuses fields
    /// that are not in the schema of the kind (Kubernetes 1.27 and later).
    ///
    /// # Errors
    /// Fails if the server or a webhook refuses the object; the error message has the message of the webhook.
    pub fn create_dry_run(&self, object: &Value) -> Result<Value> {
        let path = self.collection_path(object).context("the kind of the object is not served")?;
        let parameters = "fieldManager=kubectl-create&fieldValidation=Strict&dryRun=All";
        let created = self.send("POST", &format!("{path}?{parameters}"), JSON, object)?;
        Ok(serde_json::from_str(&created)?)
    }

    /// Creates an object; returns false if the server does not create it, for example because it exists.
    pub(super) fn try_create(&self, object: &Value) -> bool {
        matches!(self.post(object), Some(Ok(_)))
    }

    /// Sends an object or a patch of this content type to a path, and returns the response.
    ///
    /// # Errors
    /// Fails if the server refuses the request or does not respond.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<String> {
        let action = format!("{method} {path}");
        match self.client.send_body(method, path, content_type, &body.to_string()) {
            Some(response) => self.record_error(&action, response),
            None => bail!("{action}: no response"),
        }
    }

    /// Applies an object; `None` if the text is not one JSON object of a kind that is served, or if there is no
    /// response.
    fn apply_one(&self, text: &str) -> Response {
        let object: Value = serde_json::from_str(text).ok()?;
        let name = object["metadata"]["name"].as_str()?;
        let parameters = "fieldManager=kubectl&force=true&fieldValidation=Strict";
        let path = format!("{}/{name}?{parameters}", self.collection_path(&object)?);
        let response =
            self.client.send_body("PATCH", &path, "application/apply-patch+yaml", text)?;
        // The API server may list a new kind before it serves the kind.
        let is_missing = response.as_ref().is_err_and(|refusal| refusal.code() == 404);
        (!is_missing).then_some(response)
    }

    fn post(&self, object: &Value) -> Response {
        let path = format!("{}?fieldManager=kubectl-create", self.collection_path(object)?);
        self.client.send_body("POST", &path, JSON, &object.to_string())
    }

    /// Returns the path of all objects of an object's kind in its namespace.
    fn collection_path(&self, object: &Value) -> Option<String> {
        let version = object["apiVersion"].as_str()?;
        let name = object["kind"].as_str()?;
        let kind = self
            .kinds
            .find(&self.client, |kind| kind.api_version == version && kind.name == name)?;
        Some(kind.path(object["metadata"]["namespace"].as_str().or(Some("default"))))
    }

    /// Records an error of the server, so that the error message of a timeout contains it.
    fn record_error(&self, action: &str, response: Result<String, Refusal>) -> Result<String> {
        response.map_err(|refusal| {
            let message = format!("{action}: {refusal}");
            self.record_output(&message);
            anyhow!(message)
        })
    }
}
