//! Emulates the Nodes in the API servers of many tenants: with resource versions, field managers as in server-side
//! apply, and watch events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, Sender, channel};

/// Maximum number of events by which a watch may lag. A watch that lags further ends, and its client must list
/// again.
const MAX_EVENTS: usize = 256;

/// The Nodes of all tenants.
#[derive(Debug)]
pub(super) struct FakeTenants {
    tenants: BTreeMap<String, Tenant>,
    measured_label: &'static str,
    /// Values of the measured label, each with the time at which a Node got the value.
    arrivals: Mutex<Vec<(String, Instant)>>,
    counters: Counters,
}

#[derive(Debug)]
struct Tenant {
    nodes: Mutex<Nodes>,
    events: Sender<String>,
}

#[derive(Debug, Default)]
struct Nodes {
    version: u64,
    by_name: BTreeMap<String, Value>,
}

#[derive(Debug, Default)]
struct Counters {
    lists: AtomicU64,
    watches: AtomicU64,
    gets: AtomicU64,
    patches: AtomicU64,
}

/// Number of requests of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RequestCounts {
    pub(super) lists: u64,
    pub(super) watches: u64,
    pub(super) gets: u64,
    pub(super) patches: u64,
}

impl RequestCounts {
    /// Returns the number of requests since `before`.
    pub(super) const fn delta_since(self, before: Self) -> Self {
        Self {
            lists: self.lists - before.lists,
            watches: self.watches - before.watches,
            gets: self.gets - before.gets,
            patches: self.patches - before.patches,
        }
    }

    /// Returns the number of requests other than watches.
    pub(super) const fn without_watches(self) -> u64 {
        self.lists + self.gets + self.patches
    }
}

/// The server refuses a request with this HTTP status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused(pub(super) u16);

impl FakeTenants {
    /// Creates tenants with the same Nodes. `measured_label` is the label whose changes are recorded.
    pub(super) fn new(names: &[String], nodes: &[Value], measured_label: &'static str) -> Self {
        let tenant = |name: &String| {
            let mut stored = Nodes::default();
            for node in nodes {
                let mut node = node.clone();
                let node_name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                node["metadata"]["uid"] = format!("{name}-{node_name}").into();
                stored.store(&node_name, node);
            }
            (name.clone(), Tenant { nodes: Mutex::new(stored), events: channel(MAX_EVENTS).0 })
        };
        Self {
            tenants: names.iter().map(tenant).collect(),
            measured_label,
            arrivals: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Returns the number of tenants.
    pub(super) fn tenant_count(&self) -> usize {
        self.tenants.len()
    }

    /// Returns the number of requests since the start.
    pub(super) fn counts(&self) -> RequestCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = &self.counters;
        RequestCounts {
            lists: read(&all.lists),
            watches: read(&all.watches),
            gets: read(&all.gets),
            patches: read(&all.patches),
        }
    }

    /// Removes the recorded times.
    pub(super) fn clear_arrivals(&self) {
        lock(&self.arrivals).clear();
    }

    /// Returns the times at which Nodes got this value of the measured label.
    pub(super) fn arrivals(&self, value: &str) -> Vec<Instant> {
        let arrivals = lock(&self.arrivals);
        arrivals.iter().filter(|(one, _)| one == value).map(|(_, at)| *at).collect()
    }

    fn tenant(&self, name: &str) -> Result<&Tenant, Refused> {
        self.tenants.get(name).ok_or(Refused(404))
    }

    /// Returns all Nodes of a tenant, as a NodeList.
    pub(super) fn list(&self, tenant: &str) -> Result<Value, Refused> {
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        let nodes = lock(&self.tenant(tenant)?.nodes);
        let items: Vec<&Value> = nodes.by_name.values().collect();
        let metadata = json!({"resourceVersion": nodes.version.to_string()});
        Ok(json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}))
    }

    /// Returns a Node.
    pub(super) fn get(&self, tenant: &str, name: &str) -> Result<Value, Refused> {
        self.counters.gets.fetch_add(1, Ordering::Relaxed);
        let nodes = lock(&self.tenant(tenant)?.nodes);
        nodes.by_name.get(name).cloned().ok_or(Refused(404))
    }

    /// Returns the events since a resource version, and the receiver of later events.
    pub(super) fn watch(
        &self,
        tenant: &str,
        version: u64,
    ) -> Result<(Vec<String>, Receiver<String>), Refused> {
        self.counters.watches.fetch_add(1, Ordering::Relaxed);
        let tenant = self.tenant(tenant)?;
        let nodes = lock(&tenant.nodes);
        let is_newer = |node: &&Value| version_of(node) > version;
        let missed = nodes.by_name.values().filter(is_newer).map(modified_event).collect();
        // The lock is still held, so no event between the list of missed events and the subscription is lost or
        // sent twice.
        Ok((missed, tenant.events.subscribe()))
    }

    /// Returns a bookmark with the resource version of a tenant.
    pub(super) fn bookmark(&self, tenant: &str) -> Result<String, Refused> {
        let version = lock(&self.tenant(tenant)?.nodes).version.to_string();
        let object =
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": version}});
        Ok(json!({"type": "BOOKMARK", "object": object}).to_string() + "\n")
    }

    /// Patches the labels and annotations of a Node: as server-side apply without force if `is_apply` is true,
    /// otherwise as a merge patch. Returns the Node.
    pub(super) fn patch(
        &self,
        tenant: &str,
        name: &str,
        manager: &str,
        is_apply: bool,
        body: &Value,
    ) -> Result<Value, Refused> {
        self.counters.patches.fetch_add(1, Ordering::Relaxed);
        let tenant = self.tenant(tenant)?;
        let mut nodes = lock(&tenant.nodes);
        let mut node = nodes.by_name.get(name).cloned().ok_or(Refused(404))?;
        let uid = &body["metadata"]["uid"];
        if uid.is_string() && *uid != node["metadata"]["uid"] {
            return Err(Refused(409));
        }
        let before = node["metadata"]["labels"][self.measured_label].clone();
        if is_apply {
            apply(&mut node, manager, body)?;
        } else {
            for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                node["metadata"]["labels"][key] = value.clone();
            }
        }
        let after = &node["metadata"]["labels"][self.measured_label];
        if *after != before {
            let value = after.as_str().unwrap_or_default().to_owned();
            lock(&self.arrivals).push((value, Instant::now()));
        }
        let stored = nodes.store(name, node);
        // Ignores the error that no watch receives the event.
        drop(tenant.events.send(modified_event(&stored)));
        Ok(stored)
    }
}

impl Nodes {
    fn store(&mut self, name: &str, mut node: Value) -> Value {
        self.version += 1;
        node["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.by_name.insert(name.to_owned(), node.clone());
        node
    }
}

fn version_of(node: &Value) -> u64 {
    let version = node["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn modified_event(node: &Value) -> String {
    json!({"type": "MODIFIED", "object": node}).to_string() + "\n"
}

/// Applies labels and annotations as server-side apply does.
fn apply(node: &mut Value, manager: &str, body: &Value) -> Result<(), Refused> {
    let entries = node["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let is_own = |entry: &&Value| entry["manager"] == manager && entry["operation"] == "Apply";
    let owned_by = |entry: &Value, field: &str| -> BTreeSet<String> {
        let fields = entry["fieldsV1"]["f:metadata"][format!("f:{field}")].as_object();
        let keys = fields.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:"));
        keys.map(str::to_owned).collect()
    };
    let mut fields = json!({});
    for field in ["labels", "annotations"] {
        let desired = body["metadata"][field].as_object().cloned().unwrap_or_default();
        let others = entries.iter().filter(|entry| !is_own(entry));
        let others: BTreeSet<String> = others.flat_map(|entry| owned_by(entry, field)).collect();
        let actual = &mut node["metadata"][field];
        if desired.iter().any(|(key, value)| others.contains(key) && actual[key] != *value) {
            return Err(Refused(409));
        }
        let own = entries.iter().find(is_own).map(|entry| owned_by(entry, field));
        for key in own.unwrap_or_default() {
            if !desired.contains_key(&key)
                && !others.contains(&key)
                && let Some(actual) = actual.as_object_mut()
            {
                actual.remove(&key);
            }
        }
        for (key, value) in desired {
            fields["f:metadata"][format!("f:{field}")][format!("f:{key}")] = json!({});
            actual[key] = value;
        }
    }
    let mut entries: Vec<Value> = entries.into_iter().filter(|entry| !is_own(&entry)).collect();
    entries.push(json!({
        "manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
    }));
    node["metadata"]["managedFields"] = entries.into();
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants() -> FakeTenants {
        let kubelet = json!({
            "manager": "kubelet", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:os": {}}}},
        });
        let metadata =
            json!({"name": "web-1", "labels": {"os": "linux"}, "managedFields": [kubelet]});
        FakeTenants::new(&["a".to_owned()], &[json!({"metadata": metadata})], "rack")
    }

    fn apply(all: &FakeTenants, labels: &Value) -> Result<Value, Refused> {
        let body = json!({"metadata": {"uid": "a-web-1", "labels": labels, "annotations": {}}});
        all.patch("a", "web-1", "berth", true, &body)
    }

    #[test]
    fn labels_are_applied_and_removed() {
        let all = tenants();
        let node = apply(&all, &json!({"rack": "1", "row": "2"})).unwrap();
        assert_eq!(node["metadata"]["labels"], json!({"os": "linux", "rack": "1", "row": "2"}));
        let node = apply(&all, &json!({"rack": "3"})).unwrap();
        assert_eq!(node["metadata"]["labels"], json!({"os": "linux", "rack": "3"}));
        assert_eq!(node["metadata"]["managedFields"].as_array().unwrap().len(), 2);
        assert_eq!(apply(&all, &json!({"os": "other"})), Err(Refused(409)));
        assert_eq!((all.arrivals("1").len(), all.arrivals("3").len()), (1, 1));
        let wrong = json!({"metadata": {"uid": "other"}});
        assert_eq!(all.patch("a", "web-1", "berth", true, &wrong), Err(Refused(409)));
        assert_eq!(all.list("b"), Err(Refused(404)));
        assert_eq!(all.counts(), RequestCounts { lists: 1, patches: 4, ..Default::default() });
    }

    #[test]
    fn watches_continue_after_a_version() {
        let all = tenants();
        apply(&all, &json!({"rack": "1"})).unwrap();
        let (missed, mut events) = all.watch("a", 1).unwrap();
        assert_eq!(missed.len(), 1);
        assert!(all.watch("a", 2).unwrap().0.is_empty());
        let peer = json!({"metadata": {"labels": {"peer": "x"}}});
        all.patch("a", "web-1", "peer", false, &peer).unwrap();
        let event: Value = serde_json::from_str(&events.try_recv().unwrap()).unwrap();
        assert_eq!(event["object"]["metadata"]["labels"]["peer"], "x");
        assert!(all.bookmark("a").unwrap().contains(r#""resourceVersion":"3""#));
    }
}
