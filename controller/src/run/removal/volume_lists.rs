//! Lists of VolumeAttachments, which all removals of a tenant share: an API server can select VolumeAttachments only by
//! name, so each list contains the VolumeAttachments of all Nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::untrusted::{ClientIdentity, UntrustedClient, UntrustedError};

use super::delays::DELAY_RANGE;
use super::requests::{VolumeCounts, count_volumes};

/// Maximum age of a list that other removals reuse. It equals the shortest delay between two steps of a removal that
/// waits.
const MAX_AGE: Duration = DELAY_RANGE.0;
/// Time for which the VolumeAttachments of a Node continue to be counted after a removal has requested their number. It
/// is longer than [`MAX_DELAY`](super::delays::MAX_DELAY) with its jitter, so a removal that waits renews its request
/// in time.
const REQUEST_TTL: Duration = Duration::from_secs(90);

/// Lists of all tenants. A list counts only the Nodes of machines that are being removed, so the tenant does not
/// determine its size. If a tenant gets a new client, its list is discarded: after a change of the kubeconfig, the
/// earlier list may be from another cluster.
#[derive(Debug, Default)]
pub(super) struct VolumeLists(Mutex<BTreeMap<String, Arc<TenantVolumes>>>);

#[derive(Debug)]
struct TenantVolumes {
    /// Identity of the client that reads the list.
    client: ClientIdentity,
    /// Nodes whose VolumeAttachments are counted, with the time of the last request for each number.
    requested_nodes: Mutex<BTreeMap<String, Instant>>,
    /// The latest list. A removal holds this lock while it lists, and other removals wait for the result.
    list: tokio::sync::Mutex<Option<VolumeList>>,
}

/// A list, or the error of the request for it. The other removals reuse an error as well: otherwise they would run into
/// the same timeout one after the other.
#[derive(Debug)]
struct VolumeList {
    begun_at: Instant,
    /// Time at which the answer was complete or the error occurred. The age of the list is measured from this time,
    /// because the tenant's server determines how long a list takes.
    ended_at: Instant,
    counts: Result<VolumeCounts, UntrustedError>,
}

impl VolumeLists {
    /// Returns the number of VolumeAttachments of a Node that had no pods left at `observed_at`. Sends a request if no
    /// recent list contains this number.
    pub(super) async fn count(
        &self,
        (tenant, client): (&str, &UntrustedClient),
        node: &str,
        observed_at: Instant,
    ) -> Result<usize, UntrustedError> {
        let volumes = self.tenant_volumes((tenant, client), Instant::now());
        volumes.request_node(node, Instant::now());
        let mut list = volumes.list.lock().await;
        let known =
            list.as_ref().and_then(|list| list.cached_count(node, observed_at, Instant::now()));
        if let Some(answer) = known {
            return answer;
        }
        let begun_at = Instant::now();
        // The request is renewed, because the wait for the lock may have been longer than `REQUEST_TTL`. A list does
        // not count a Node whose request has expired, so the Node would appear to have no VolumeAttachments.
        volumes.request_node(node, begun_at);
        let counts = count_volumes(client, volumes.zero_counts()).await;
        let answer = match &counts {
            Ok(counts) => Ok(counts.get(node).copied().unwrap_or_default()),
            Err(error) => Err(*error),
        };
        *list = Some(VolumeList { begun_at, ended_at: Instant::now(), counts });
        answer
    }

    fn tenant_volumes(
        &self,
        (name, client): (&str, &UntrustedClient),
        now: Instant,
    ) -> Arc<TenantVolumes> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tenants
            .retain(|_, volumes| Arc::strong_count(volumes) > 1 || volumes.has_recent_request(now));
        let client = client.identity();
        if let Some(known) = tenants.get(name).filter(|known| known.client == client) {
            return Arc::clone(known);
        }
        let volumes = Arc::new(TenantVolumes::new(client));
        tenants.insert(name.to_owned(), Arc::clone(&volumes));
        volumes
    }
}

impl TenantVolumes {
    fn new(client: ClientIdentity) -> Self {
        Self { client, requested_nodes: Mutex::default(), list: tokio::sync::Mutex::default() }
    }

    fn lock_requested_nodes(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.requested_nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_recent_request(&self, now: Instant) -> bool {
        self.lock_requested_nodes()
            .values()
            .any(|&requested_at| is_recent(requested_at, now, REQUEST_TTL))
    }

    fn request_node(&self, node: &str, now: Instant) {
        let mut requested_nodes = self.lock_requested_nodes();
        requested_nodes.retain(|_, requested_at| is_recent(*requested_at, now, REQUEST_TTL));
        requested_nodes.insert(node.to_owned(), now);
    }

    fn zero_counts(&self) -> VolumeCounts {
        self.lock_requested_nodes().keys().map(|node| (node.clone(), 0)).collect()
    }
}

impl VolumeList {
    /// Returns the number of VolumeAttachments of a Node from the list; `None` if a new list is required. If the list
    /// began before the last pod had left the Node, a zero is not valid: a VolumeAttachment of this pod may have been
    /// created later.
    fn cached_count(
        &self,
        node: &str,
        observed_at: Instant,
        now: Instant,
    ) -> Option<Result<usize, UntrustedError>> {
        if !is_recent(self.ended_at, now, MAX_AGE) {
            return None;
        }
        match &self.counts {
            Err(error) => Some(Err(*error)),
            Ok(counts) => {
                let count = counts.get(node).copied();
                count.filter(|&count| count > 0 || self.begun_at >= observed_at).map(Ok)
            }
        }
    }
}

fn is_recent(time: Instant, now: Instant, limit: Duration) -> bool {
    now.saturating_duration_since(time) < limit
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// Returns a client of a test server that has one VolumeAttachment for each of these Nodes.
    fn client(nodes: &[&str]) -> UntrustedClient {
        let items: Vec<_> = nodes.iter().map(|node| json!({"spec": {"nodeName": node}})).collect();
        let body = json!({"items": items}).to_string();
        let service = tower::service_fn(move |_: Request<Body>| {
            let body = Body::from(body.clone().into_bytes());
            std::future::ready(Response::builder().body(body))
        });
        UntrustedClient::from_client(Client::new(service, "default"))
    }

    fn list(begun_at: Instant, ended_at: Instant) -> VolumeList {
        let counts = VolumeCounts::from([("a".to_owned(), 2), ("b".to_owned(), 0)]);
        VolumeList { begun_at, ended_at, counts: Ok(counts) }
    }

    #[test]
    fn a_list_expires_after_a_short_time() {
        let start = Instant::now();
        let later = |seconds: u64| start + Duration::from_secs(seconds);
        let list = list(later(10), later(10));
        assert_eq!(list.cached_count("a", later(12), later(13)), Some(Ok(2)));
        assert_eq!(list.cached_count("a", later(12), later(15)), None, "it is too old");
        assert_eq!(list.cached_count("b", later(10), later(13)), Some(Ok(0)));
        assert_eq!(
            list.cached_count("b", later(12), later(13)),
            None,
            "the pods left after the list"
        );
        assert_eq!(list.cached_count("c", later(10), later(13)), None, "it was not counted");
        let failed = VolumeList { counts: Err(UntrustedError::Timeout), ..list };
        assert_eq!(
            failed.cached_count("c", later(12), later(13)),
            Some(Err(UntrustedError::Timeout))
        );
    }

    #[test]
    fn removals_share_the_answer_of_a_slow_server() {
        let start = Instant::now();
        let later = |seconds: u64| start + Duration::from_secs(seconds);
        let slow = list(later(10), later(30));
        assert_eq!(slow.cached_count("a", later(12), later(31)), Some(Ok(2)));
        assert_eq!(slow.cached_count("b", later(9), later(31)), Some(Ok(0)));
        assert_eq!(
            slow.cached_count("b", later(12), later(31)),
            None,
            "the pods left during the list"
        );
        let failed = VolumeList { counts: Err(UntrustedError::Timeout), ..slow };
        assert_eq!(
            failed.cached_count("a", later(12), later(31)),
            Some(Err(UntrustedError::Timeout))
        );
        assert_eq!(failed.cached_count("a", later(12), later(35)), None, "it is too old");
    }

    #[tokio::test]
    async fn a_node_is_counted_after_a_long_wait() {
        let client = client(&["a"]);
        let (lists, start) = (VolumeLists::default(), Instant::now());
        let volumes = lists.tenant_volumes(("bank", &client), start);
        let held = volumes.list.lock().await;
        let count = lists.count(("bank", &client), "a", start);
        let forget_and_release = async {
            tokio::task::yield_now().await;
            // Another removal requests its number after `REQUEST_TTL`, so the request for Node `a` has expired.
            volumes.request_node("b", Instant::now() + REQUEST_TTL);
            assert!(!volumes.lock_requested_nodes().contains_key("a"));
            drop(held);
        };
        assert_eq!(tokio::join!(count, forget_and_release).0, Ok(1));
    }

    #[tokio::test]
    async fn a_new_client_does_not_reuse_the_former_list() {
        let (lists, start) = (VolumeLists::default(), Instant::now());
        let former = client(&[]);
        assert_eq!(lists.count(("bank", &former), "a", start).await, Ok(0));
        drop(former);
        let new = client(&["a"]);
        assert_eq!(lists.count(("bank", &new), "a", start).await, Ok(1));
        // A clone of the client has the same identity, so its list is reused.
        assert_eq!(lists.count(("bank", &new.clone()), "a", start).await, Ok(1));
    }

    #[test]
    fn expired_nodes_and_tenants_are_removed() {
        // The client cannot be created outside a Tokio runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _guard = runtime.enter();
        let (lists, start) = (VolumeLists::default(), Instant::now());
        let later = start + REQUEST_TTL;
        let client = client(&[]);
        let (bank, shop) = (("bank", &client), ("shop", &client));
        lists.tenant_volumes(bank, start).request_node("a", start);
        lists.tenant_volumes(bank, later).request_node("b", later);
        let counts = lists.tenant_volumes(bank, later).zero_counts();
        assert_eq!(counts, VolumeCounts::from([("b".to_owned(), 0)]));
        lists.tenant_volumes(shop, later + REQUEST_TTL).request_node("c", later + REQUEST_TTL);
        assert_eq!(lists.0.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn removals_of_a_tenant_share_a_list() {
        let requests = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |_: Request<Body>| {
            seen.fetch_add(1, Ordering::Relaxed);
            let body = json!({"items": [{"spec": {"nodeName": "a"}}, {"spec": {"nodeName": "b"}}]});
            std::future::ready(Response::builder().body(Body::from(body.to_string().into_bytes())))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let (lists, start) = (VolumeLists::default(), Instant::now());
        let counted = |node| lists.count(("bank", &client), node, start);
        assert_eq!(counted("a").await, Ok(1));
        assert_eq!(counted("b").await, Ok(1), "the first list did not count the Node");
        assert_eq!((counted("a").await, counted("b").await), (Ok(1), Ok(1)));
        assert_eq!(requests.load(Ordering::Relaxed), 2);
        assert_eq!(lists.count(("shop", &client), "c", start).await, Ok(0));
        assert_eq!(requests.load(Ordering::Relaxed), 3);
    }
}
