//! Decides whether one machine on a lost host is replaced, and marks it.

use berth_runtime::call::with_timeout;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch};
use kube::{Api, Resource as _};

use crate::api_resource::machine_resource;
use crate::host_loss::machine_hosts::MachineName;
use crate::host_loss::verdict::{Verdict, replacement_verdict};
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::run::api_requests::patch_params;
use crate::run::clock::now_in_seconds;
use crate::run::context::Context;
use crate::run::reconcile::ReconcileFailure;
use berth_api::EventReason;

fn machines_api(context: &Context, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(context.client.clone(), namespace, &machine_resource())
}

/// Reads a machine, returns the verdict, and marks it if it is to be replaced and `is_still_lost` confirms this
/// immediately before the write. The store of VirtualMachines has no volumes, so the machine is read from the API
/// server.
pub(super) async fn mark_if_replaceable(
    context: &Context,
    (host, since): (&str, Timestamp),
    (namespace, name): &MachineName,
    is_still_lost: impl Fn() -> bool,
) -> Result<Verdict, ReconcileFailure> {
    let what = || format!("VirtualMachine {namespace}/{name}");
    let api = machines_api(context, namespace);
    let read = with_timeout(api.get_opt(name)).await;
    let Some(vm) = read.map_err(ReconcileFailure::with_request(format!("get {}", what())))? else {
        return Ok(Verdict::Unaffected);
    };
    let verdict = replacement_verdict(&vm);
    if verdict != Verdict::Replace || !is_still_lost() {
        return Ok(verdict);
    }
    let removal = RemovalMark::new(RemovalReason::HostLost, now_in_seconds().0);
    // The API server refuses the write if the machine was changed or created again since it was read.
    let patch = removal.patch_of(&vm);
    match with_timeout(api.patch(name, &patch_params(), &Patch::Merge(patch))).await {
        Ok(_) => {}
        Err(error) if error.status_code() == Some(404) => return Ok(Verdict::Unaffected),
        Err(error) => {
            return Err(ReconcileFailure::RequestFailed(
                format!("mark {} for removal", what()),
                error,
            ));
        }
    }
    tracing::info!(%namespace, machine = %name, %host, %since, "marked a machine on a lost host for removal");
    context.metrics.count_replaced_machine();
    let note = format!(
        "host {host} has been lost since {since}: the machine is replaced; it will be deleted when the \
         host is back or off"
    );
    emit_machine_event(context, &vm, EventReason::MachineReplaced, &note).await;
    Ok(Verdict::Replaced)
}

/// Emits an Event about a machine that waits.
pub(super) async fn report_wait(
    context: &Context,
    host: &str,
    (namespace, name): &MachineName,
    reason: &str,
) {
    let Ok(Some(vm)) = with_timeout(machines_api(context, namespace).get_opt(name)).await else {
        return;
    };
    let note = format!(
        "host {host} is lost: the machine is not replaced, but waits until the host is back: {reason}"
    );
    emit_machine_event(context, &vm, EventReason::MachineWaitsForHost, &note).await;
}

async fn emit_machine_event(
    context: &Context,
    vm: &DynamicObject,
    reason: EventReason,
    note: &str,
) {
    context.events.warn_for(vm.object_ref(&machine_resource()), reason.as_str(), note).await;
}
