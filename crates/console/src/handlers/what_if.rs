//! Pages with simulated changes: additional hosts, a HostProfile, a MachineDeployment. They read the state of the cluster with
//! the credential of the user, and write nothing.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use berth_api::TenantCluster;
use berth_views::{Snapshot, hosts};

use super::change_input::{deployment, host_count, profile_change, yaml_text};
use super::simulations::{find_visible, simulate};
use super::views::{check_names, frame, query};
use crate::error::PageError;
use crate::pages::layout::{Content, Html, Section, page};
use crate::pages::what_if::Answer;
use crate::pages::what_if_forms::{
    ProfileForm, add_hosts_content, machines_content, profile_content,
};
use crate::requests::{SignedIn, read_form};
use crate::session::cookie::Cookie;
use crate::simulation::SimulationError;
use crate::state::{Console, Shared};
use crate::what_if::Change;

/// Shows what would happen if hosts like this one were added. Without a number, shows only the form.
pub(crate) async fn add_hosts(
    State(console): State<Shared>,
    user: SignedIn,
    Path(host): Path<String>,
    uri: Uri,
) -> Result<Html, PageError> {
    check_names(&[&host])?;
    let name = host.clone();
    let find = move |snapshot: &Snapshot| hosts::find_without_vms(snapshot, &name).map(drop);
    find_visible(&console, &user, find).await?;
    let fields = query(&uri);
    let text = fields.get("count").trim();
    let shown = match host_count(text) {
        None => Answer::Nothing,
        Some(Err(problem)) => Answer::Refused(vec![problem]),
        Some(Ok(count)) => {
            let change = Change::AddHosts { host: host.clone(), count };
            answer(&console, &user, change).await?
        }
    };
    let title = format!("What if hosts like {host} are added?");
    let content = add_hosts_content(&host, text, &shown);
    Ok(show(&console, &user, Section::Fleet, &title, &content))
}

/// Shows the form for a HostProfile.
pub(crate) async fn profile_form(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Html, PageError> {
    let hosts = query(&uri).get("host").to_owned();
    let sent = ProfileForm { hosts, ..ProfileForm::default() };
    profile_page(&console, &user, &sent, &Answer::Nothing).await
}

/// Shows what would happen if a HostProfile were applied.
pub(crate) async fn profile(
    State(console): State<Shared>,
    user: SignedIn,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Html, PageError> {
    let (fields, _) = read_form(&console, &headers, Cookie::Session, &body)?;
    let mut sent = ProfileForm {
        profile: fields.get("profile").trim().to_owned(),
        yaml: yaml_text(&fields),
        hosts: fields.get("hosts").to_owned(),
    };
    let shown = match profile_change(&sent) {
        Err(problems) => Answer::Refused(problems),
        Ok(change) => answer(&console, &user, change).await?,
    };
    if is_other_kind(&shown) {
        sent.yaml.clear();
    }
    profile_page(&console, &user, &sent, &shown).await
}

/// Shows the form for a MachineDeployment.
pub(crate) async fn machines_form(
    State(console): State<Shared>,
    user: SignedIn,
    Path(tenant): Path<String>,
) -> Result<Html, PageError> {
    find_tenant(&console, &user, &tenant).await?;
    Ok(machines_page(&console, &user, &tenant, "", &Answer::Nothing))
}

/// Shows what would happen if a MachineDeployment were created: that of the YAML, or that of the form that creates one.
pub(crate) async fn machines(
    State(console): State<Shared>,
    user: SignedIn,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Html, PageError> {
    let (fields, _) = read_form(&console, &headers, Cookie::Session, &body)?;
    find_tenant(&console, &user, &tenant).await?;
    let mut yaml = yaml_text(&fields);
    let shown = match deployment(&tenant, &fields, &yaml) {
        Err(problems) => Answer::Refused(problems),
        Ok(text) => {
            yaml.clone_from(&text);
            let namespace = TenantCluster::namespace_of(&tenant);
            answer(&console, &user, Change::Machines { namespace, yaml: text }).await?
        }
    };
    if is_other_kind(&shown) {
        yaml.clear();
    }
    Ok(machines_page(&console, &user, &tenant, &yaml, &shown))
}

/// Runs the simulation. The log has no texts of the user.
async fn answer(console: &Console, user: &SignedIn, change: Change) -> Result<Answer, PageError> {
    let kind = match &change {
        Change::AddHosts { .. } => "additional hosts",
        Change::Profile { .. } => "HostProfile",
        Change::Machines { .. } => "MachineDeployment",
    };
    let simulated =
        simulate(console, user, move |simulator, client| simulator.what_if(client, &change));
    let simulated = simulated.await?;
    tracing::info!(user = user.session.user, change = kind, "simulated a change");
    Ok(Answer::Simulated(Box::new(simulated)))
}

/// Returns true if the text is an object of another kind. It may be a Secret, so the page does not show it again.
fn is_other_kind(shown: &Answer) -> bool {
    matches!(shown, Answer::Simulated(one) if matches!(one.result, Err(SimulationError::OtherKind(_))))
}

async fn find_tenant(console: &Console, user: &SignedIn, tenant: &str) -> Result<(), PageError> {
    check_names(&[tenant])?;
    let tenant = tenant.to_owned();
    let find = move |snapshot: &Snapshot| snapshot.tenants.get(&tenant).map(|_| ());
    find_visible(console, user, find).await
}

/// Returns the page for profiles. It suggests the profiles of visible hosts.
async fn profile_page(
    console: &Console,
    user: &SignedIn,
    sent: &ProfileForm,
    shown: &Answer,
) -> Result<Html, PageError> {
    let find = |snapshot: &Snapshot| {
        let profiles = snapshot.infra_nodes.values().filter_map(|infra| infra.spec.profile.clone());
        let mut profiles: Vec<String> = profiles.collect();
        profiles.sort();
        profiles.dedup();
        Some(profiles)
    };
    let known = find_visible(console, user, find).await?;
    let title = "What if a profile applies to hosts?";
    let frame = frame(console, user, Section::Fleet, title, false);
    let content = profile_content(&frame.csrf, sent, &known, shown);
    Ok(Html(page(&frame, &content)))
}

fn machines_page(
    console: &Console,
    user: &SignedIn,
    tenant: &str,
    yaml: &str,
    shown: &Answer,
) -> Html {
    let title = format!("What if {tenant} gets these machines?");
    let frame = frame(console, user, Section::Tenants, &title, false);
    let content = machines_content(tenant, &frame.csrf, yaml, shown);
    Html(page(&frame, &content))
}

fn show(
    console: &Console,
    user: &SignedIn,
    section: Section,
    title: &str,
    content: &Content,
) -> Html {
    Html(page(&frame(console, user, section, title, false), content))
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;
