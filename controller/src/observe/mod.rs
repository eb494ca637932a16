//! Reads the objects that the checks examine, with GET requests only. A failed read is a value in the input of the
//! checks, and does not stop the other reads.

mod kubeconfig;
mod requests;
mod tenant;
mod webhooks;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use berth_runtime::call::with_timeout;
use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::Value;

use crate::api_resource::api_resource;
use crate::check::{Election, Host, Input, LISTS, LeaseState, Lists, Read, crd_names};
use requests::{get, kind_resource, list, read_error};

/// Longest time to wait for the renewal of a Lease, in seconds.
const MAX_RENEWAL_TIME: i64 = 30;

/// Reads the version of the API server.
///
/// # Errors
/// Returns an error if the server does not answer, or refuses the request.
pub async fn observe_version(client: &Client) -> Read<String> {
    let version = with_timeout(client.apiserver_version()).await;
    version.map(|version| version.git_version).map_err(read_error)
}

/// Reads the objects of the cluster, and those of a tenant. `kubernetes` is the version of the API server, and `server` its
/// host and port.
pub async fn observe(
    client: &Client,
    server: &(String, u16),
    kubernetes: Read<String>,
    tenant: Option<&str>,
) -> Input {
    let (lists, crds, hosts, controller, scheduler) = tokio::join!(
        observe_lists(client),
        observe_crds(client),
        observe_hosts(client),
        observe_lease(client, Election::Controller),
        observe_lease(client, Election::Scheduler),
    );
    let tenant = match tenant {
        Some(name) => Some(tenant::observe_tenant(client, server, name, &lists).await),
        None => None,
    };
    let ca_bundles = webhooks::read_bundles(&lists, SystemTime::now());
    let leases = [(Election::Controller, controller), (Election::Scheduler, scheduler)].into();
    Input { kubernetes, lists, crds, hosts, leases, ca_bundles, tenant }
}

async fn observe_lists(client: &Client) -> Lists {
    let reads = LISTS.iter().map(|(kind, namespace)| async move {
        let resource = kind_resource(*kind);
        let all = list(client, &resource, namespace, kind.label_selector(), |object| object).await;
        ((*kind, *namespace), all)
    });
    join_all(reads).await.into_iter().collect()
}

async fn observe_crds(client: &Client) -> BTreeMap<String, Read<Value>> {
    let resource = api_resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let reads = crd_names().into_iter().map(|name| {
        let resource = &resource;
        async move {
            let read = get(client, resource, "", &name).await;
            (name, read)
        }
    });
    join_all(reads).await.into_iter().collect()
}

async fn observe_hosts(client: &Client) -> Read<Vec<Host>> {
    let resource = api_resource("berth.dev", "v1alpha1", "InfraNode", "infranodes");
    // Only a part of each report is kept: the reports of thousands of hosts are large.
    list(client, &resource, "", None, |object| Host::from_object(&object)).await
}

/// Reads a Lease. If the Lease has expired by the clock of this machine, it is read again after its duration, because
/// the clocks of the holder and of this machine may differ.
async fn observe_lease(client: &Client, election: Election) -> Read<LeaseState> {
    let before = read_lease(client, election).await?;
    if before.is_fresh || before.holder.is_empty() {
        return Ok(before);
    }
    let seconds = before.duration.clamp(1, MAX_RENEWAL_TIME).unsigned_abs();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(read_lease(client, election).await?.after(&before))
}

async fn read_lease(client: &Client, election: Election) -> Read<LeaseState> {
    let resource = api_resource("coordination.k8s.io", "v1", "Lease", "leases");
    let (namespace, name) = election.lease();
    let object = get(client, &resource, namespace, name).await?;
    Ok(LeaseState::from_object(&object, Timestamp::now()))
}
