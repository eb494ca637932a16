//! Pages with simulations. They read the state of the cluster with the credential of the user, and write nothing.

use std::sync::Arc;

use axum::extract::{Path, State};
use berth_runtime::cli::text::error_chain;
use berth_views::{ObjectName, Snapshot, hosts, machines};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::task::spawn_blocking;

use super::views::{check_names, frame};
use crate::error::PageError;
use crate::pages::layout::{Html, Section, page};
use crate::pages::simulation::{Simulated, drain_content, placement_content};
use crate::requests::SignedIn;
use crate::simulation::{SimulationError, Simulator};
use crate::state::{Console, Shared};

/// Shows what would happen if a host were drained.
pub(crate) async fn drain(
    State(console): State<Shared>,
    user: SignedIn,
    Path(name): Path<String>,
) -> Result<Html, PageError> {
    check_names(&[&name])?;
    let host = name.clone();
    let find = move |snapshot: &Snapshot| hosts::find_without_vms(snapshot, &host).map(drop);
    find_visible(&console, &user, find).await?;
    let host = name.clone();
    let run = move |simulator: &dyn Simulator, client: &Client| simulator.drain(client, &host);
    let simulated = simulate(&console, &user, run).await?;
    tracing::info!(user = user.session.user, host = name, "simulated a drain");
    let title = format!("What if {name} is drained?");
    let content = drain_content(&name, &simulated);
    Ok(Html(page(&frame(&console, &user, Section::Fleet, &title, false), &content)))
}

/// Explains where a VM is and why, or why it has no host.
pub(crate) async fn placement(
    State(console): State<Shared>,
    user: SignedIn,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Html, PageError> {
    check_names(&[&namespace, &name])?;
    let object = ObjectName::new(namespace, name);
    let machine = object.clone();
    let find = move |snapshot: &Snapshot| Some(machines::find(snapshot, &machine)?.state);
    let state = find_visible(&console, &user, find).await?;
    let ObjectName { namespace, name } = object.clone();
    let run = move |simulator: &dyn Simulator, client: &Client| {
        simulator.explain(client, &namespace, &name)
    };
    let simulated = simulate(&console, &user, run).await?;
    tracing::info!(user = user.session.user, machine = %object, "explained a placement");
    let title = format!("Placement of {}", object.name);
    let content = placement_content(&object, state, &simulated);
    Ok(Html(page(&frame(&console, &user, Section::Machines, &title, false), &content)))
}

/// Finds the object of a page, before anything is simulated. Returns an error if the user does not see the object.
pub(super) async fn find_visible<T: Send + 'static>(
    console: &Console,
    user: &SignedIn,
    find: impl FnOnce(&Snapshot) -> Option<T> + Send + 'static,
) -> Result<T, PageError> {
    let visible = user.visible(console).await?;
    console.render(&user.session, visible, find).await?.ok_or(PageError::NotFound)
}

/// Runs a simulation. Only one runs at a time, because each needs a copy of all objects, and a user can have only one that
/// runs or waits.
pub(super) async fn simulate<T: Send + 'static>(
    console: &Console,
    user: &SignedIn,
    run: impl FnOnce(&dyn Simulator, &Client) -> Result<T, SimulationError> + Send + 'static,
) -> Result<Simulated<T>, PageError> {
    let of_user = console.user_simulations.try_acquire(user.session.owner);
    let of_user = of_user.ok_or(PageError::SimulationRunning)?;
    let permit = Arc::clone(&console.simulations).acquire_owned().await;
    let permit = permit.map_err(|_| PageError::Unavailable)?;
    let (simulator, client) = (Arc::clone(&console.simulator), user.session.client.clone());
    let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    // If the browser closes the connection, the simulation continues, and so does its limit.
    let task = spawn_blocking(move || {
        let result = run(simulator.as_ref(), &client);
        drop((permit, of_user));
        result
    });
    let result = task.await.map_err(|error| {
        tracing::error!(%error, "a simulation failed");
        PageError::Unavailable
    })?;
    match result {
        Err(SimulationError::SignedOut) => Err(user.end_session(console)),
        Err(error @ SimulationError::Unavailable(_)) => {
            let error = error_chain(&error);
            tracing::warn!(error, "failed to read the state of the cluster");
            Err(PageError::Unavailable)
        }
        result => Ok(Simulated { result, time }),
    }
}
