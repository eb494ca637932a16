//! Pages of a user who has signed in.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::Uri;
use berth_api::TenantCluster;
use berth_views::{ObjectName, Snapshot};

use super::reads;
use crate::error::PageError;
use crate::pages::fleet_filter::FleetFilter;
use crate::pages::layout::{Content, Frame, Html, Section, page};
use crate::pages::machine::MachineReads;
use crate::pages::tenant::TenantReads;
use crate::pages::{fleet, host, machine, machines, networks, tenant, tenants};
use crate::query::{Fields, is_object_name};
use crate::requests::SignedIn;
use crate::state::{Console, Shared};

/// Reads the visible objects with `show`, and returns the page with this content; `None` if the object of the page is not
/// visible.
async fn show(
    console: &Console,
    user: SignedIn,
    section: Section,
    title: &str,
    show: impl FnOnce(&Snapshot) -> Option<Content> + Send + 'static,
) -> Result<Html, PageError> {
    let visible = user.visible(console).await?;
    let session = Arc::clone(&user.session);
    let (csrf, title) = (console.csrf.token(&user.id), title.to_owned());
    let render = move |snapshot: &Snapshot| {
        let content = show(snapshot)?;
        let frame = frame_of(&user, csrf, section, &title, true);
        Some(Html(page(&frame, &content)))
    };
    console.render(&session, visible, render).await?.ok_or(PageError::NotFound)
}

/// Returns the frame of a page. `is_live` is true for pages that receive changes while they are open.
pub(super) fn frame<'a>(
    console: &Console,
    user: &'a SignedIn,
    section: Section,
    title: &'a str,
    is_live: bool,
) -> Frame<'a> {
    frame_of(user, console.csrf.token(&user.id), section, title, is_live)
}

fn frame_of<'a>(
    user: &'a SignedIn,
    csrf: String,
    section: Section,
    title: &'a str,
    is_live: bool,
) -> Frame<'a> {
    let (theme, path) = (user.theme, user.path.as_str());
    Frame { title, section, user: &user.session.user, csrf, theme, path, is_live }
}

/// Checks the names in a path. Parts of other requests to the API server must not be smuggled into a request for an object.
pub(super) fn check_names(names: &[&str]) -> Result<(), PageError> {
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
    show(&console, user, Section::Fleet, "Fleet", move |snapshot| {
        Some(fleet::content(snapshot, &filter))
    })
    .await
}

pub(crate) async fn host(
    State(console): State<Shared>,
    user: SignedIn,
    Path(name): Path<String>,
) -> Result<Html, PageError> {
    check_names(&[&name])?;
    let object = ObjectName::new("", name.as_str());
    let events = reads::events(&console, &user, ["InfraNode", "Node"], &object).await;
    show(&console, user, Section::Fleet, &name, move |snapshot| {
        host::content(snapshot, &object.name, &events)
    })
    .await
}

pub(crate) async fn tenants(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let fields = query(&uri);
    show(&console, user, Section::Tenants, "Tenants", move |snapshot| {
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
    let reads = TenantReads {
        quotas: reads::quotas(&console, &user, &namespace).await,
        volumes: reads::volumes(&console, &user, &namespace).await,
        may_create: user.may_create_machines(&console, &name).await?,
    };
    let title = name.clone();
    show(&console, user, Section::Tenants, &title, move |snapshot| {
        tenant::content(snapshot, &name, &reads)
    })
    .await
}

pub(crate) async fn machines(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let fields = query(&uri);
    show(&console, user, Section::Machines, "VMs", move |snapshot| {
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
    let object = ObjectName::new(namespace, name.as_str());
    let streams = user.openable_streams(&console, &object).await?;
    let events = reads::events(&console, &user, kinds, &object).await;
    let reads = MachineReads { events, streams };
    show(&console, user, Section::Machines, &name, move |snapshot| {
        machine::content(snapshot, &object, &reads)
    })
    .await
}

pub(crate) async fn networks(
    State(console): State<Shared>,
    user: SignedIn,
) -> Result<Html, PageError> {
    show(&console, user, Section::Networks, "Networks", |snapshot| {
        Some(networks::content(snapshot))
    })
    .await
}
