//! What becomes of hosts, VMs, claims and namespaces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use berth_api::Class;

use super::book::{LISTED, Stage, has_own};
use super::desk::Desk;
use super::instance::Instance;
use super::seen::Seen;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{HostId, HostParts};

/// Of a host that is known, and of which nothing can be said now.
const UNUSABLE: &str = "node(s) had no usable agent report";

impl Desk {
    /// A host as its agent and its Node say, or `None` if nothing can be placed there. A report that is older than the
    /// one before, by its version, is not taken.
    ///
    /// # Errors
    /// Which taint no API server would have taken; nothing is placed there.
    pub fn host(
        &mut self,
        now: Instant,
        name: &str,
        facts: Option<(ReportedHost, Class)>,
        version: Option<u64>,
    ) -> Result<(), String> {
        let known = self.engine.host(name);
        if let Some(known) = known
            && let Some((before, now)) = self.versions.get(&known).zip(version)
            && now < *before
        {
            return Ok(());
        }
        let Some((facts, class)) = facts else {
            // Its pods keep what they have: nobody has said that they have gone.
            if let Some(host) = known {
                self.out.insert(host, UNUSABLE);
                self.versions.remove(&host);
            }
            return Ok(());
        };
        let set = self.engine.set_host(facts, class);
        let host = set.map_err(|invalid| {
            if let Some(host) = known {
                self.out.insert(host, UNUSABLE);
            }
            let (field, value) = (invalid.field, invalid.value);
            format!("Node {name}: {field}: `{value}`: {}", invalid.problem)
        })?;
        self.out.remove(&host);
        if let Some(version) = version {
            self.versions.insert(host, version);
        }
        let housed = self.book.housed(name);
        // Of one that comes while others are counted, nobody has followed what its kubelet has given out, or taken back.
        let is_new = known.is_none() && !self.is_unlisted;
        for uid in housed {
            if let Some(entry) = self.book.get(&uid) {
                let request = entry.request.clone();
                let leaves = entry.is_terminating || matches!(entry.stage, Stage::Leaving { .. });
                if leaves && has_own(&request) {
                    self.unclear.entry(host).or_default().insert(uid);
                }
                // It is there, whatever its kubelet was expected to say.
                drop(self.engine.bound(&request, host));
            }
        }
        self.compare(name, host);
        if !self.is_unsure(host) {
            self.unsure.remove(&host);
        } else if is_new {
            self.unsure.insert(host, now.checked_add(LISTED).unwrap_or(now));
        }
        self.waiting.stir(host);
        Ok(())
    }

    /// A Node whose agent has not reported, or not in a way that can be understood. Nothing is placed there, but rules
    /// count it and its pods: kube-scheduler does so, and asks only about hosts that are right by them.
    ///
    /// # Errors
    /// Which taint no API server would have taken.
    pub fn node(&mut self, parts: &HostParts<'_>) -> Result<(), String> {
        let name = parts.name;
        if self.engine.host(name).is_some() {
            return Ok(());
        }
        let is_new = self.engine.node(name).is_none();
        self.engine.set_node(parts).map_err(|invalid| {
            let (field, value) = (invalid.field, invalid.value);
            format!("Node {name}: {field}: `{value}`: {}", invalid.problem)
        })?;
        if is_new {
            let pods: Vec<Arc<str>> = self.book.on_unreported(name).cloned().collect();
            for uid in pods {
                let Some(request) = self.book.get(&uid).map(|entry| entry.request.clone()) else {
                    continue;
                };
                self.count_unreported(&request, name);
            }
        }
        self.waiting.unlook();
        Ok(())
    }

    /// Its Node is deleted: rules that count hosts and what is on them do so without it. Pods that are said to be there
    /// are counted again when it comes back.
    pub fn node_is_gone(&mut self, name: &str) {
        let Some(host) = self.engine.node(name) else { return };
        let unreported: Vec<Arc<str>> = self.book.on_unreported(name).cloned().collect();
        for uid in unreported {
            self.engine.remove(&uid);
        }
        for uid in self.engine.remove_host(host) {
            self.book.unhouse(&uid);
        }
        self.out.remove(&host);
        self.versions.remove(&host);
        self.unsure.remove(&host);
        self.unclear.remove(&host);
        self.waiting.unlook();
    }

    /// Reports may be older by their versions than those before: the API server's store was put back.
    pub fn hosts_are_listed_anew(&mut self) {
        self.versions.clear();
    }

    /// What a report lists, and lists no more.
    fn compare(&mut self, name: &str, host: HostId) {
        let facts = self.engine.facts(host);
        let is_listed = |uid: &str| facts.is_some_and(|facts| facts.allocation(uid).is_some());
        let on = self.engine.on(host).filter(|request| has_own(request));
        let on: Vec<(Arc<str>, bool)> =
            on.map(|request| (Arc::from(request.uid()), is_listed(request.uid()))).collect();
        let gone = self.unclear.get(&host).into_iter().flatten().filter(|uid| {
            let entry = self.book.get(uid);
            let is_there = entry.is_some_and(|entry| !matches!(entry.stage, Stage::Kept { .. }));
            !is_there && !is_listed(uid)
        });
        let gone: Vec<Arc<str>> = gone.cloned().collect();
        for uid in gone {
            self.clear(host, &uid);
        }
        for (uid, is_listed) in on {
            let Some(entry) = self.book.get(&uid) else { continue };
            let (stage, was_listed) = (entry.stage, entry.is_listed);
            let is_terminating = entry.is_terminating;
            match stage {
                Stage::Kept { .. } if is_listed => {
                    self.unclear.entry(host).or_default().insert(uid);
                }
                // It has the last word on one that was leaving; which stays unclear until it is listed no more.
                Stage::Leaving { .. } if is_listed => self.release(&uid),
                Stage::Bound { .. } if is_listed => {
                    self.book.list(&uid);
                    if !is_terminating {
                        self.clear(host, &uid);
                    }
                }
                Stage::Bound { .. } if was_listed && !self.is_over(&uid, name, is_terminating) => {
                    self.unclear.entry(host).or_default().insert(uid);
                }
                _ => {}
            }
        }
    }

    /// A namespace's labels.
    pub fn namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        self.engine.set_namespace(name, labels);
    }

    /// Whether `KubeVirt` is installed: then a pod of a VM is not placed before the VM is known.
    pub fn instances_are_known(&mut self, are: bool) {
        if are {
            self.instances.get_or_insert_default();
        } else {
            self.instances = None;
        }
    }

    /// A VM's instance.
    pub fn instance(&mut self, uid: &str, instance: Instance) {
        let is_final = instance.is_final;
        self.instances.get_or_insert_default().insert(uid.to_owned(), instance);
        if is_final {
            self.give_up(|key| key == uid);
        }
        let pods = self.unknown.naming(|named| named == uid);
        self.wake_pods(&pods);
    }

    /// Pods that name an instance which is known now: the scheduler is to look at them again, where it is of their namespace.
    fn wake_pods(&mut self, pods: &[String]) {
        for pod in pods {
            let Some(pod) = self.pending.get(pod).cloned() else { continue };
            if let Ok(seen) = Seen::read(&pod)
                && let Ok(request) = self.request(&pod, &seen)
            {
                self.unknown.remove(seen.uid());
                self.waiting.unlooked(&request);
            }
        }
    }

    /// A VM's instance is deleted: nothing is held for it any more.
    pub fn instance_is_gone(&mut self, uid: &str) {
        if let Some(instances) = &mut self.instances {
            instances.remove(uid);
        }
        self.give_up(|key| key == uid);
    }

    /// All of them, listed anew.
    pub fn instances(&mut self, all: HashMap<String, Instance>) {
        let lives = |uid: &str| all.get(uid).is_some_and(|one| !one.is_final);
        self.give_up(|key| !lives(key));
        let pods = self.unknown.naming(|named| all.contains_key(named));
        self.instances = Some(all);
        self.wake_pods(&pods);
    }

    fn give_up(&mut self, is_over: impl Fn(&str) -> bool) {
        let kept = self.book.loose().filter(|(_, entry)| {
            let key = entry.key.as_ref();
            matches!(entry.stage, Stage::Kept { .. })
                && key.is_some_and(|key| is_over(&key.instance))
        });
        let kept: Vec<Arc<str>> = kept.map(|(uid, _)| Arc::clone(uid)).collect();
        for uid in kept {
            self.release(&uid);
        }
    }

    /// A claim that has no volume yet, with the node that was selected for it; or one that is bound, or has gone.
    pub fn claim(
        &mut self,
        now: Instant,
        namespace: &str,
        name: &str,
        open: Option<Option<String>>,
    ) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(node) = open else {
            self.claims.remove(&key);
            return;
        };
        let pods = if node.is_some() { self.pending.of(&key) } else { Vec::new() };
        self.claims.insert(key, node);
        for pod in pods {
            if let Ok(seen) = Seen::read(&pod) {
                self.resume(now, &pod, &seen);
            }
        }
    }

    /// All claims without a volume, listed anew.
    pub fn claims(&mut self, now: Instant, all: Vec<((String, String), Option<String>)>) {
        let listed: HashSet<&(String, String)> = all.iter().map(|(key, _)| key).collect();
        self.claims.retain(|key, _| listed.contains(key));
        for ((namespace, name), node) in all {
            self.claim(now, &namespace, &name, Some(node));
        }
    }
}
