//! Report about the hotpluggable disks of the machines of a MachineDeployment.

use std::time::Duration;

use berth_api::ConditionReason;
use berth_kubevirt_render::machines::hotplug::UnattachedDisk;
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;

use super::disk_pass::INCOMPLETE_PASS_DELAY;
use super::errors::RequestError;
use crate::tenants::fault::{Fault, join_first};

/// Delay before a removed disk that is still in use is examined again.
pub(super) const DETACH_DELAY: Duration = Duration::from_secs(10);
/// Time for which disks are not compared again after changes were refused, unless the MachineDeployment changes.
pub(super) const REFUSAL_TIME: Duration = Duration::from_secs(300);
/// Maximum number of messages in the condition.
const MAX_MESSAGES: usize = 8;

/// State of the hotpluggable disks of the machines of a MachineDeployment.
#[derive(Debug, Default)]
pub(super) struct DiskReport {
    /// Fault of the condition DisksReady; `None` if all machines have the disks of the template.
    pub(super) fault: Option<Fault>,
    /// Message about the retained claims of removed disks.
    pub(super) retained: Option<String>,
    /// Time until the next reconcile, if no event triggers a reconcile before.
    pub(super) requeue_after: Option<Duration>,
    /// True if the disks were not compared, so that the current condition stays.
    pub(super) keeps_condition: bool,
}

/// Disks that are not as desired, as messages, and the failed requests.
#[derive(Debug, Default)]
pub(super) struct DiskMessages {
    /// Requests that failed.
    pub(super) failed: Vec<String>,
    /// First failed request, which the runtime of the reconciler reports.
    failure: Option<RequestError>,
    /// True if the API server does not answer, so that no further machine is updated.
    pub(super) is_interrupted: bool,
    /// True if machines were not updated yet, because requests failed or took too long.
    pub(super) is_incomplete: bool,
    /// Changes that are not possible.
    pub(super) refused: Vec<String>,
    /// Changes that are not complete.
    pub(super) pending: Vec<String>,
    /// Reason why KubeVirt changes no disks of running machines.
    pub(super) unsupported: Option<String>,
    /// Disks that KubeVirt has not attached.
    pub(super) unattached: Vec<String>,
    /// Retained claims of removed disks.
    pub(super) retained: Vec<String>,
    /// Time until the next check of the retained claims.
    pub(super) next_check: Option<Duration>,
}

impl DiskMessages {
    /// Records what is known about the disks of a machine without a request.
    pub(super) fn observe(&mut self, vm: &ExistingVm) {
        let describe = |disk: &UnattachedDisk| format!("machine {}: {disk}", vm.name);
        self.unattached.extend(vm.unattached_disks.iter().map(describe));
        self.retained.extend(vm.retained_claims());
    }

    /// Records a failed request for the disks of a machine. The other machines are updated nevertheless, unless the API server
    /// does not answer.
    pub(super) fn record_failure(&mut self, vm: &ExistingVm, error: RequestError) {
        self.record_error(&format!("machine {}: ", vm.name), error);
    }

    /// Records a failed request that concerns all machines.
    pub(super) fn record_shared_failure(&mut self, error: RequestError) {
        self.record_error("", error);
    }

    fn record_error(&mut self, subject: &str, error: RequestError) {
        tracing::warn!(subject, %error, "a request for the disks of machines failed");
        self.failed.push(format!("{subject}{}", error.summary()));
        self.is_interrupted |= !error.is_answer();
        self.failure.get_or_insert(error);
    }

    /// Records that another client, such as KubeVirt or a user, has changed a machine since it was read. The other machines
    /// are updated.
    pub(super) fn record_change(&mut self, vm: &ExistingVm) {
        let message = "another client has changed the VirtualMachine";
        self.pending.push(format!("machine {}: {message}", vm.name));
    }

    /// Records the number of machines whose disks or removal policies differ from the template, and are not changed because
    /// of `spec.paused`.
    pub(super) fn record_paused(&mut self, count: usize) {
        if count > 0 {
            let message = format!("disks of {count} machines are not changed: spec.paused is set");
            self.pending.push(message);
        }
    }

    /// Returns the time until the next reconcile, and the time for which no disks are compared again.
    fn next_comparison(&self) -> (Option<Duration>, Option<Duration>) {
        if self.failure.is_some() {
            // The runtime of the reconciler repeats a failed reconcile. The next part of the machines has other messages, and
            // an event of the changed condition would trigger its update at once.
            (None, self.is_incomplete.then_some(INCOMPLETE_PASS_DELAY))
        } else if self.is_incomplete {
            (Some(DETACH_DELAY), None)
        } else if !self.refused.is_empty() || self.unsupported.is_some() {
            (Some(REFUSAL_TIME), Some(REFUSAL_TIME))
        } else {
            ((!self.pending.is_empty()).then_some(DETACH_DELAY), None)
        }
    }

    /// Returns the report, the time for which disks are not compared again, and the first failed request.
    pub(super) fn into_report(mut self) -> (DiskReport, Option<Duration>, Option<RequestError>) {
        if self.is_incomplete {
            self.pending.push("further machines are updated later".to_owned());
        }
        let (requeue_after, backoff) = self.next_comparison();
        let requeue_after = [requeue_after, self.next_check].into_iter().flatten().min();
        let retained = (!self.retained.is_empty()).then(|| {
            let claims = join_first(&self.retained, MAX_MESSAGES, ", ");
            format!(
                "the claims of removed disks are retained: {claims}; add a disk with the same name again to use its claim, or \
                 delete the DataVolume and the PersistentVolumeClaim with this name"
            )
        });
        let Self { failed, failure, refused, pending, unsupported, unattached, .. } = self;
        let refusals = || unsupported.clone().map_or_else(|| refused.clone(), |one| vec![one]);
        let (reason, messages) = if !failed.is_empty() {
            let all = failed.into_iter().chain(refusals()).collect::<Vec<_>>();
            (ConditionReason::DiskRequestsFailed, all)
        } else if unsupported.is_some() {
            (ConditionReason::HotplugUnsupported, refusals())
        } else if !refused.is_empty() {
            (ConditionReason::DiskChangesRefused, refused)
        } else if !unattached.is_empty() {
            (ConditionReason::DisksNotAttached, unattached)
        } else {
            (ConditionReason::DisksChanging, pending)
        };
        let fault = (!messages.is_empty())
            .then(|| Fault::new(reason, join_first(&messages, MAX_MESSAGES, "; ")));
        (DiskReport { fault, retained, requeue_after, keeps_condition: false }, backoff, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::super::errors::with_request;
    use super::*;

    fn fault_of(messages: DiskMessages) -> Option<Fault> {
        messages.into_report().0.fault
    }

    fn texts(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    fn request_error(code: u16) -> RequestError {
        let status = serde_json::json!({
            "status": "Failure", "code": code, "reason": "Denied", "message": format!("answer {code}"),
        });
        let status: kube::core::Status = serde_json::from_value(status).unwrap();
        with_request::<()>(|| "get".to_owned(), Err(kube::Error::Api(status.into()))).unwrap_err()
    }

    #[test]
    fn the_most_severe_state_is_reported() {
        assert_eq!(fault_of(DiskMessages::default()), None);
        let pending = || DiskMessages { pending: texts("p"), ..DiskMessages::default() };
        let changing = Fault::new(ConditionReason::DisksChanging, "p".to_owned());
        assert_eq!(fault_of(pending()), Some(changing));
        let mut paused = DiskMessages::default();
        paused.record_paused(0);
        paused.record_paused(2);
        let fault = fault_of(paused).unwrap();
        assert_eq!(fault.reason, ConditionReason::DisksChanging);
        assert_eq!(fault.message, "disks of 2 machines are not changed: spec.paused is set");
        let unattached = DiskMessages { unattached: texts("a"), ..pending() };
        let not_attached = Fault::new(ConditionReason::DisksNotAttached, "a".to_owned());
        assert_eq!(fault_of(unattached), Some(not_attached));
        let refused = DiskMessages { refused: vec!["r".to_owned(); 10], ..pending() };
        let (report, backoff, _) = refused.into_report();
        let fault = report.fault.unwrap();
        assert_eq!(fault.reason, ConditionReason::DiskChangesRefused);
        assert!(fault.message.ends_with("; and 2 more"), "{fault}");
        assert_eq!(backoff, Some(REFUSAL_TIME));
        let unsupported = DiskMessages {
            refused: texts("r"),
            unsupported: Some("u".to_owned()),
            ..DiskMessages::default()
        };
        let expected = Fault::new(ConditionReason::HotplugUnsupported, "u".to_owned());
        assert_eq!(fault_of(unsupported), Some(expected));
    }

    #[test]
    fn every_failure_is_reported_beside_refusals() {
        let vm = |name: &str| ExistingVm { name: name.to_owned(), ..ExistingVm::default() };
        let mut messages = DiskMessages { refused: texts("r"), ..DiskMessages::default() };
        messages.record_failure(&vm("web-1"), request_error(500));
        messages.record_failure(&vm("web-2"), request_error(403));
        assert!(!messages.is_interrupted, "the other machines are updated");
        let (report, backoff, failure) = messages.into_report();
        let fault = report.fault.unwrap();
        assert_eq!(fault.reason, ConditionReason::DiskRequestsFailed);
        for words in ["machine web-1: get: Denied (500)", "machine web-2: get: Denied (403)", "; r"]
        {
            assert!(fault.message.contains(words), "{fault}");
        }
        assert!(!fault.message.contains("answer"), "{fault}");
        assert!(failure.unwrap().to_string().contains("answer 500"));
        assert!(backoff.is_none() && report.requeue_after.is_none());
        let lost = kube::Error::Service("connection refused".into());
        let lost = with_request::<()>(|| "get".to_owned(), Err(lost)).unwrap_err();
        let mut messages = DiskMessages::default();
        messages.record_failure(&vm("web-1"), lost);
        assert!(messages.is_interrupted);
        let fault = fault_of(messages).unwrap();
        assert_eq!(fault.message, "machine web-1: get: the API server did not answer");
    }

    #[test]
    fn an_incomplete_update_continues_soon() {
        let incomplete = |refused: Vec<String>| DiskMessages {
            refused,
            is_incomplete: true,
            ..DiskMessages::default()
        };
        // Refusals of some machines do not delay the update of the others.
        let (report, backoff, _) = incomplete(texts("r")).into_report();
        assert_eq!((report.requeue_after, backoff), (Some(DETACH_DELAY), None));
        let changing = fault_of(incomplete(Vec::new())).unwrap();
        assert_eq!(changing.reason, ConditionReason::DisksChanging);
        let mut failed = incomplete(Vec::new());
        failed.record_shared_failure(request_error(500));
        let (_, backoff, failure) = failed.into_report();
        assert_eq!(backoff, Some(INCOMPLETE_PASS_DELAY));
        assert!(failure.is_some());
    }

    #[test]
    fn retained_claims_are_no_fault() {
        let mut messages = DiskMessages::default();
        let claims = "web-1-disk-b,web-1-disk-a,other".to_owned();
        let recorded = (berth_api::names::RETAINED_DISKS_ANNOTATION.to_owned(), claims);
        messages.observe(&ExistingVm {
            name: "web-1".to_owned(),
            annotations: [recorded].into(),
            ..ExistingVm::default()
        });
        let (report, ..) = messages.into_report();
        assert_eq!(report.fault, None);
        assert!(report.retained.unwrap().contains("are retained: web-1-disk-a, web-1-disk-b;"));
    }
}
