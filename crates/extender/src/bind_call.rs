//! `bind`: checks again that the kubelet will admit the pod, and permits the caller to send the binding.

use std::sync::Arc;
use std::time::Instant;

use berth_placement::engine::Request;
use berth_placement::rules::HostId;
use k8s_openapi::api::core::v1;

use super::admission_order::OrderConflict;
use super::call_answers::BindAnswer;
use super::error::{BindError, NotReadyReason, RequestError};
use super::extender::Extender;
use super::observed_pod::ObservedPod;
use super::reservation::{BINDING_TIMEOUT, RESERVED_TIMEOUT, Stage, has_exclusive_resources};

impl Extender {
    /// Decides whether a pod may be bound to the host `node`. `pod` may be `None`, but the answer is
    /// [`BindAnswer::PodRequired`] if the extender then knows neither a reservation of the pod nor the pod from the
    /// watch.
    pub fn answer_bind(
        &mut self,
        now: Instant,
        uid: &str,
        node: &str,
        pod: Option<&v1::Pod>,
    ) -> BindAnswer {
        if self.awaits_pod_list {
            return BindAnswer::NotReady(NotReadyReason::PodsNotListed);
        }
        if self.queue.is_deleted(uid) {
            return BindAnswer::Refused(BindError::Deleted { uid: uid.to_owned() });
        }
        let Some(reservation) = self.reservations.get(uid) else {
            return self.bind_unreserved(now, uid, node, pod);
        };
        if &*reservation.host != node {
            let (reserved, host) = (reservation.host.as_ref().to_owned(), node.to_owned());
            return BindAnswer::Refused(BindError::WrongHost { reserved_host: reserved, host });
        }
        match reservation.stage {
            Stage::Bound { .. } => BindAnswer::AlreadyBound,
            Stage::Binding { .. } => {
                let (pod, host) = (format!("pod {uid}"), node.to_owned());
                BindAnswer::NotReady(NotReadyReason::BindingPending { pod, host })
            }
            Stage::Reserved { .. } => {
                let request = reservation.request.clone();
                match self.find_usable_host(node, has_exclusive_resources(&request)) {
                    Ok(host) => self.start_binding(now, &request, host),
                    Err(reason) => unavailable_answer(node, reason),
                }
            }
            Stage::Kept { .. } | Stage::Leaving { .. } | Stage::Released => {
                BindAnswer::Refused(BindError::Deleted { uid: uid.to_owned() })
            }
        }
    }

    /// Decides whether a pod without a reservation may be bound to the host `node`. The reservation was lost in a
    /// restart, or has expired. If the pod fits on the host, reserves resources for it there.
    fn bind_unreserved(
        &mut self,
        now: Instant,
        uid: &str,
        node: &str,
        pod: Option<&v1::Pod>,
    ) -> BindAnswer {
        let known = self.queue.unassigned_pods.get(uid).cloned();
        let Some(pod) = known.as_deref().or(pod) else { return BindAnswer::PodRequired };
        let observed = match ObservedPod::read(pod) {
            Ok(observed) => observed,
            Err(invalid) => return BindAnswer::Refused(invalid.into()),
        };
        if observed.uid() != uid {
            return BindAnswer::Refused(BindError::UidMismatch {
                pod: observed.qualified_name(),
                actual: observed.uid().to_owned(),
                expected: uid.to_owned(),
            });
        }
        let request = match self.compile_request(pod, &observed) {
            Ok(request) => request,
            Err(RequestError::NotReady(not_ready)) => return BindAnswer::NotReady(not_ready),
            Err(RequestError::Field(invalid)) => return BindAnswer::Refused(invalid.into()),
        };
        let host = match self.find_usable_host(node, has_exclusive_resources(&request)) {
            Ok(host) => host,
            Err(reason) => return unavailable_answer(node, reason),
        };
        if self.reservations.engine.place_pod(&request, Some(&[host])).is_none() {
            return BindAnswer::Refused(self.insufficient_resources_error(&request, host));
        }
        let until = now.checked_add(RESERVED_TIMEOUT).unwrap_or(now);
        self.reserve(&observed, request.clone(), host, until);
        self.start_binding(now, &request, host)
    }

    /// Places a pod before all pods on the host that are not bound yet. Returns [`BindAnswer::SendBinding`] if all of
    /// them still fit.
    fn start_binding(&mut self, now: Instant, request: &Request, host: HostId) -> BindAnswer {
        if !self.reservations.fits_in_every_order(now, request, host) {
            self.release(request.uid());
            return BindAnswer::Refused(BindError::UnknownAdmissionOrder);
        }
        let error = match self.reservations.place_ahead_of_all(request, host) {
            Ok(()) => {
                let until = now.checked_add(BINDING_TIMEOUT).unwrap_or(now);
                self.reservations.records.set_stage(request.uid(), Stage::Binding { until });
                return BindAnswer::SendBinding;
            }
            Err(OrderConflict::DoesNotFit { reason }) => {
                BindError::InsufficientResources { reason }
            }
            Err(OrderConflict::DisplacesReservation) => BindError::DisplacesReservation,
        };
        self.release(request.uid());
        BindAnswer::Refused(error)
    }

    fn insufficient_resources_error(&self, request: &Request, host: HostId) -> BindError {
        BindError::InsufficientResources {
            reason: self.reservations.rejection_message(request, host),
        }
    }

    /// Records that the API server has accepted the binding of a pod.
    pub fn record_binding_success(&mut self, now: Instant, uid: &str) {
        if self.is_binding(uid) {
            self.reservations.records.set_stage(uid, Stage::Bound { since: now });
        }
        self.queue.unassigned_pods.remove(uid);
    }

    /// Records that the API server has refused the binding of a pod. If the outcome is unknown, the caller must call
    /// neither this function nor [`Self::record_binding_success`]; the watch will show the outcome.
    pub fn record_binding_failure(&mut self, now: Instant, uid: &str) {
        if !self.is_binding(uid) {
            return;
        }
        let until = now.checked_add(RESERVED_TIMEOUT).unwrap_or(now);
        self.reservations.records.set_stage(uid, Stage::Reserved { until });
        // kube-scheduler retries the pod only after an event, and the reservation may expire first. Therefore the
        // extender requests a change of the Node, as for a refused pod with a reservation.
        let Some(reservation) = self.reservations.get(uid) else { return };
        let (request, host) = (reservation.request.clone(), Arc::clone(&reservation.host));
        let id = self.reservations.engine.host(&host);
        self.queue.refused_pods.insert(&request, Some(host));
        if let Some(id) = id {
            self.queue.refused_pods.mark_host_changed(id);
        }
    }

    fn is_binding(&self, uid: &str) -> bool {
        let reservation = self.reservations.get(uid);
        reservation.is_some_and(|reservation| matches!(reservation.stage, Stage::Binding { .. }))
    }
}

fn unavailable_answer(host: &str, reason: &'static str) -> BindAnswer {
    BindAnswer::Refused(BindError::Unavailable { host: host.to_owned(), reason })
}
