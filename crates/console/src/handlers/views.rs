//! Pages of a user who has signed in.

use axum::extract::{Path, State};
use axum::http::Uri;
use berth_api::TenantCluster;
use berth_runtime::call::{CallError, with_timeout};
use berth_views::{ObjectName, Snapshot};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, ResourceQuota};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::error::PageError;
use crate::pages::fleet_filter::FleetFilter;
use crate::pages::layout::{Content, Frame, Html, Section, page};
use crate::pages::reads::{EventRow, QuotaRow, Read, ReadError, VolumeRow};
use crate::pages::{fleet, host, machine, machines, networks, tenant, tenants};
use crate::query::{Fields, is_object_name};
use crate::requests::SignedIn;
use crate::state::{Console, Shared};

/// Maximum number of Events on a page.
const MAX_EVENTS: u32 = 50;
/// Maximum number of volumes on a page.
const MAX_VOLUMES: u32 = 500;

/// Reads the visible objects with `show`, and returns the page with this content; `None` if the object of the page is not
/// visible.
async fn show(
    console: &Console,
    user: &SignedIn,
    section: Section,
    title: &str,
    show: impl FnOnce(&Snapshot) -> Option<Content>,
) -> Result<Html, PageError> {
    let visible = console.visible(&user.session).await;
    let visible = visible.map_err(|error| PageError::from_rights(&error, &user.path))?;
    let content = console.store.read(&visible, show).ok_or(PageError::NotFound)?;
    let frame = Frame {
        title,
        section,
        user: &user.session.user,
        csrf: &console.csrf.token(&user.id),
        theme: user.theme,
        path: &user.path,
    };
    Ok(Html(page(&frame, &content)))
}

/// Checks the names in a path. Parts of other requests to the API server must not be smuggled into a request for an object.
fn check_names(names: &[&str]) -> Result<(), PageError> {
    if names.iter().all(|name| is_object_name(name)) { Ok(()) } else { Err(PageError::NotFound) }
}

fn query(uri: &Uri) -> Fields {
    Fields::parse(uri.query().unwrap_or_default().as_bytes())
}

pub(crate) async fn fleet(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let filter = FleetFilter::parse(&query(&uri));
    let rack = |host: &str| console.store.rack(host);
    show(&console, &user, Section::Fleet, "Fleet", |snapshot| {
        Some(fleet::content(snapshot, &filter, rack))
    })
    .await
}

pub(crate) async fn host(
    State(console): State<Shared>,
    user: SignedIn,
    Path(name): Path<String>,
) -> Result<Html, PageError> {
    check_names(&[&name])?;
    let events = read_events(&user.session.client, ["InfraNode", "Node"], None, &name).await;
    show(&console, &user, Section::Fleet, &name, |snapshot| host::content(snapshot, &name, &events))
        .await
}

pub(crate) async fn tenants(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let fields = query(&uri);
    show(&console, &user, Section::Tenants, "Tenants", |snapshot| {
        Some(tenants::content(snapshot, fields.get("q")))
    })
    .await
}

pub(crate) async fn tenant(
    State(console): State<Shared>,
    user: SignedIn,
    Path(name): Path<String>,
) -> Result<Html, PageError> {
    check_names(&[&name])?;
    let namespace = TenantCluster::namespace_of(&name);
    let client = &user.session.client;
    let quotas = read_quotas(client, &namespace).await;
    let volumes = read_volumes(client, &namespace).await;
    show(&console, &user, Section::Tenants, &name, |snapshot| {
        tenant::content(snapshot, &name, &quotas, &volumes)
    })
    .await
}

pub(crate) async fn machines(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let fields = query(&uri);
    show(&console, &user, Section::Machines, "VMs", |snapshot| {
        Some(machines::content(snapshot, &fields))
    })
    .await
}

pub(crate) async fn machine(
    State(console): State<Shared>,
    user: SignedIn,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Html, PageError> {
    check_names(&[&namespace, &name])?;
    let kinds = ["VirtualMachine", "VirtualMachineInstance"];
    let events = read_events(&user.session.client, kinds, Some(&namespace), &name).await;
    let object = ObjectName::new(namespace, name.as_str());
    show(&console, &user, Section::Machines, &name, |snapshot| {
        machine::content(snapshot, &object, &events)
    })
    .await
}

pub(crate) async fn networks(
    State(console): State<Shared>,
    user: SignedIn,
) -> Result<Html, PageError> {
    show(&console, &user, Section::Networks, "Networks", |snapshot| {
        Some(networks::content(snapshot))
    })
    .await
}

fn read_error(error: CallError) -> ReadError {
    match error.status_code() {
        Some(401 | 403) => ReadError::Forbidden,
        Some(404) => ReadError::NotServed,
        _ => {
            tracing::warn!(%error, "failed to read objects of a page");
            ReadError::Unavailable
        }
    }
}

/// Reads the Events about an object, which has one of these kinds; about cluster-scoped objects, in all namespaces.
async fn read_events(
    client: &Client,
    kinds: [&str; 2],
    namespace: Option<&str>,
    name: &str,
) -> Read<EventRow> {
    let events: Api<Event> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let selector = format!("involvedObject.name={name}");
    let params = ListParams::default().fields(&selector).limit(MAX_EVENTS);
    let events = with_timeout(events.list(&params)).await.map_err(read_error)?.items;
    let is_own = |event: &Event| {
        let kind = event.involved_object.kind.as_deref().unwrap_or_default();
        kinds.contains(&kind)
    };
    let mut rows: Vec<EventRow> = events.into_iter().filter(is_own).map(event_row).collect();
    rows.sort_by(|a, b| b.time.cmp(&a.time));
    Ok(rows)
}

fn event_row(event: Event) -> EventRow {
    let source = event.source.and_then(|source| source.component);
    let last = event.last_timestamp.or(event.first_timestamp).map(|time| time.0);
    let time = last.or_else(|| event.event_time.map(|time| time.0));
    EventRow {
        time: time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default(),
        type_: event.type_.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        source: event
            .reporting_component
            .filter(|name| !name.is_empty())
            .or(source)
            .unwrap_or_default(),
        count: event.count.unwrap_or(1),
    }
}

async fn read_quotas(client: &Client, namespace: &str) -> Read<QuotaRow> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let quotas = with_timeout(quotas.list(&ListParams::default())).await;
    let mut rows = Vec::new();
    for quota in quotas.map_err(read_error)?.items {
        let name = quota.name_any();
        let status = quota.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        for (resource, hard) in status.hard.unwrap_or_default() {
            let used = used.get(&resource).map(|used| used.0.clone()).unwrap_or_default();
            rows.push(QuotaRow { quota: name.clone(), resource, used, hard: hard.0 });
        }
    }
    Ok(rows)
}

async fn read_volumes(client: &Client, namespace: &str) -> Read<VolumeRow> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claims = with_timeout(claims.list(&ListParams::default().limit(MAX_VOLUMES))).await;
    let claims = claims.map_err(read_error)?.items;
    Ok(claims.into_iter().map(volume_row).collect())
}

fn volume_row(claim: PersistentVolumeClaim) -> VolumeRow {
    let name = claim.name_any();
    let spec = claim.spec.unwrap_or_default();
    let status = claim.status.unwrap_or_default();
    let requested = spec.resources.and_then(|resources| resources.requests);
    let size = status.capacity.or(requested).and_then(|all| Some(all.get("storage")?.0.clone()));
    VolumeRow {
        name,
        phase: status.phase.unwrap_or_default(),
        size: size.unwrap_or_default(),
        class: spec.storage_class_name.unwrap_or_default(),
    }
}
