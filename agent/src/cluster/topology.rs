//! Writes the NodeResourceTopology, if so told: what this one says is [`crate::publish::topology`]'s.
//!
//! By itself, so that a cluster without that kind holds nothing else up. The object is read before it is written, and
//! not watched: an idle agent asks for nothing. Others publish these objects too, and lists in them have one owner:
//! an object that another manager writes is left to that one, and said.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::EventReason;
use berth_api::names::AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::mpsc::Sender;

use super::events::CycleEvent;
use super::publisher::Report;
use super::seen::{Seen, Sight};
use crate::publish::topology::{API_VERSION, FIELDS, KIND, Topology, topology};
use berth_runtime::client::{CallError, Pauses, within};

/// A burst of changes is one write.
const SETTLE: Duration = Duration::from_millis(100);
/// Longest pause between tries.
const PAUSE: Duration = Duration::from_secs(30);
/// After so long the other may have let go.
const AGAIN: Duration = Duration::from_secs(600);

/// What lives from one write to the next.
struct Publisher {
    api: Api<DynamicObject>,
    node: String,
    seen: Arc<Seen>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    events: Sender<CycleEvent>,
    /// What the server has by our last look or write, with the UID of the Node that owns it.
    written: Option<(String, Topology)>,
    /// When the object was found to be another's.
    refused: Option<Instant>,
    /// What was said last of why nothing is written.
    said: String,
}

/// Publishes for ever.
pub(super) fn publish(
    client: &Client,
    node: String,
    seen: Arc<Seen>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    events: Sender<CycleEvent>,
) -> impl Future<Output = ()> + Send + use<> {
    let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
    let kind = GroupVersionKind::gvk(group, version, KIND);
    let kind = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    let api = Api::all_with(client.clone(), &kind);
    let publisher = Publisher {
        api,
        node,
        seen,
        reports,
        events,
        written: None,
        refused: None,
        said: String::new(),
    };
    publisher.go_on()
}

impl Publisher {
    async fn go_on(mut self) {
        let mut pauses = Pauses::up_to(PAUSE);
        loop {
            self.seen.topology.notified().await;
            tokio::time::sleep(SETTLE).await;
            match self.write().await {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    self.say(format!("was not written: {}", meaning(&error)));
                    // What is said then is what is so then.
                    self.seen.topology.notify_one();
                    pauses.wait(error.rest()).await;
                }
            }
        }
    }

    /// Writes what differs.
    async fn write(&mut self) -> Result<(), CallError> {
        // The InfraNode, as Events are of it.
        let (Sight::There(node), Sight::There(_)) = (self.seen.node(), self.seen.infra_node())
        else {
            return Ok(());
        };
        let Some(report) = (self.reports)() else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let wanted = match topology(status, report.memory.as_ref()) {
            Ok(wanted) => (node.uid, wanted),
            Err(why) => {
                self.say(format!("stays as it is: {why}"));
                return Ok(());
            }
        };
        if self.refused.is_some_and(|since| since.elapsed() < AGAIN) {
            return Ok(());
        }
        if self.written.as_ref() == Some(&wanted) {
            self.said.clear();
            return Ok(());
        }
        let there = within(self.api.get_opt(&self.node)).await?;
        if let Some(there) = &there {
            let holders = holders(&there.metadata);
            let others: Vec<&str> =
                holders.iter().map(String::as_str).filter(|name| *name != AGENT).collect();
            if !others.is_empty() {
                self.refuse(&others.join(", "));
                return Ok(());
            }
            let owned = there
                .owner_references()
                .iter()
                .any(|owner| owner.uid == wanted.0 && owner.name == self.node);
            if owned && holders.contains(AGENT) && wanted.1.is_said_by(&there.data) {
                self.is_written(wanted);
                return Ok(());
            }
        }
        // Of the object that was seen, not of one that was made anew since.
        let uid = there.as_ref().and_then(|there| there.metadata.uid.as_deref());
        let body = wanted.1.apply(&self.node, &wanted.0, uid);
        let params = PatchParams::apply(AGENT);
        match within(self.api.patch(&self.node, &params, &Patch::Apply(&body))).await {
            Ok(_) => {
                if there.is_none() {
                    tracing::info!("{KIND} {} was created", self.node);
                }
                self.is_written(wanted);
                Ok(())
            }
            // Somebody came first, or one of before there was a `managedFields`.
            Err(error) => match conflict(&error) {
                Some(others) => {
                    self.refuse(&others);
                    Ok(())
                }
                None => Err(error),
            },
        }
    }

    fn is_written(&mut self, what: (String, Topology)) {
        self.written = Some(what);
        self.refused = None;
        self.said.clear();
    }

    fn refuse(&mut self, others: &str) {
        self.written = None;
        self.refused = Some(Instant::now());
        let what = format!(
            "is left to others, who hold its fields: {others}; two would overwrite each other. Either end those and \
             delete it, or run this agent without --node-resource-topology"
        );
        let sentence = format!("{KIND} {} {what}", self.node);
        if self.say(what) {
            let reason = EventReason::ManagedElsewhere;
            let event = CycleEvent { reason, sentences: vec![sentence] };
            // Where so much is told already, the log has it.
            self.events.try_send(event).unwrap_or_default();
        }
    }

    /// Warns, if it is something new.
    fn say(&mut self, what: String) -> bool {
        let new = self.said != what;
        if new {
            tracing::warn!("{KIND} {} {what}", self.node);
            self.said = what;
        }
        new
    }
}

/// Who writes what the object says.
fn holders(metadata: &ObjectMeta) -> BTreeSet<String> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        FIELDS.iter().any(|field| fields.is_some_and(|all| all.get(format!("f:{field}")).is_some()))
    });
    entries.map(|entry| entry.manager.clone().unwrap_or_else(|| "unknown".to_owned())).collect()
}

/// The server's words for who holds the fields of an apply.
fn conflict(error: &CallError) -> Option<String> {
    let status = error.status().filter(|status| status.code == 409)?;
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts: Vec<String> = causes
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    (!conflicts.is_empty()).then(|| conflicts.join("; "))
}

/// The error, with what to do where that is known.
fn meaning(error: &CallError) -> String {
    let hint = match error.code() {
        Some(403) => "; see the rights in deploy/components/node-resource-topology",
        Some(404) => {
            "; the cluster has no such kind: its CustomResourceDefinition comes with scheduler-plugins"
        }
        Some(409) => "; it was made anew meanwhile",
        _ => "",
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whoever_writes_zones_or_attributes_holds_the_object() {
        let holders = |entries: serde_json::Value| {
            let metadata = json!({"managedFields": entries});
            holders(&serde_json::from_value(metadata).unwrap()).into_iter().collect::<Vec<_>>()
        };
        let entry = |manager: &str, fields: serde_json::Value| json!({"manager": manager, "fieldsV1": fields});
        assert_eq!(holders(json!([])), Vec::<String>::new());
        assert_eq!(
            holders(json!([
                entry("berth-agent", json!({"f:zones": {}, "f:attributes": {}})),
                entry("nfd", json!({"f:zones": {}})),
                entry("old", json!({"f:topologyPolicies": {}})),
                // A person's label takes nothing away.
                entry("kubectl", json!({"f:metadata": {"f:labels": {"f:zones": {}}}})),
                {"fieldsV1": {"f:attributes": {}}},
                {"manager": "empty"},
            ])),
            ["berth-agent", "nfd", "old", "unknown"]
        );
    }
}
