//! Computes, after a restart, the reservations for VMs that have no launcher pod yet.

use std::collections::BTreeMap;

use berth_kubevirt_render::launcher::Launcher;
use berth_placement::engine::VmRequirements;
use berth_placement::rules::PodFields;
use k8s_openapi::api::core::v1::{Affinity, NodeAffinity, NodeSelector, Toleration};

use super::extender::Extender;
use super::pending_vm::{ClaimKey, PendingVm, intersect_selectors};
use super::reservation::{Reservation, Stage, VmKey};

impl Extender {
    /// Stores the VMs that have no pod on a host, and the node affinity of the volumes of their PersistentVolumeClaims.
    /// After the next complete list of pods, [`Self::handle_pod_list`] reserves resources for each VM whose volumes
    /// only one host can reach.
    pub fn set_pending_vms(
        &mut self,
        vms: Vec<PendingVm>,
        volumes: BTreeMap<ClaimKey, NodeSelector>,
    ) {
        self.virtual_machines.pending_vms = (vms, volumes);
    }

    /// For each VM without a pod whose volumes only one host can reach, reserves resources on that host.
    pub(super) fn reserve_pending_vms(&mut self) {
        let (mut vms, volumes) = std::mem::take(&mut self.virtual_machines.pending_vms);
        vms.sort_by(|a, b| a.claims.cmp(&b.claims));
        for vm in vms {
            let key = vm.vm_key();
            if self.reservations.records.reservation_holder(&key).is_some() {
                continue;
            }
            let mut selectors = vm.claims.iter().filter_map(|claim| volumes.get(claim));
            let Some(first) = selectors.next() else { continue };
            let Some(selector) =
                selectors.try_fold(first.clone(), |all, first| intersect_selectors(&all, first))
            else {
                continue;
            };
            self.reserve_pending_vm(&vm, key, selector);
        }
    }

    fn reserve_pending_vm(&mut self, vm: &PendingVm, key: VmKey, selector: NodeSelector) {
        let Launcher { pod, namespace, labels, affinity, .. } = &*vm.launcher;
        // The volumes determine the host, so the launcher pod's node affinity is replaced. The launcher pod's rules
        // about other pods still apply.
        let node_affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(selector),
            ..NodeAffinity::default()
        };
        let affinity =
            Affinity { node_affinity: Some(node_affinity), ..affinity.clone().unwrap_or_default() };
        let tolerations =
            [Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }];
        let mut pod = pod.clone();
        pod.uid = format!("{}/launcher", vm.instance);
        let needs = match self.virtual_machines.instance(&key) {
            Some(instance) => instance.pod_requirements(&pod),
            None => VmRequirements::default(),
        };
        let claims: Vec<String> = vm.claims.iter().map(|(_, name)| name.clone()).collect();
        let parts = PodFields {
            namespace,
            labels: Some(labels),
            is_terminating: false,
            node_selector: None,
            affinity: Some(&affinity),
            tolerations: &tolerations,
            spread_constraints: &[],
            containers: &pod,
            claims: &claims,
        };
        let engine = &mut self.reservations.engine;
        let Ok(request) = engine.compile_request(&parts, needs) else { return };
        let mut hosts = engine.candidate_hosts(&request);
        // If several hosts can reach the volumes, nothing is reserved, because the VM can start on any of these hosts.
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return };
        if engine.place_pod(&request, Some(&[host])).is_none() {
            return;
        }
        let name = engine.reported_host(host).map_or("", |facts| facts.name.as_str());
        let reservation = Reservation {
            host: self.reservations.records.intern_host(name),
            stage: Stage::Kept { until: None },
            request,
            vm: Some(key),
            is_first_consumer: true,
            content_hash: 0,
            is_observed_on_host: false,
            is_in_report: false,
            is_terminating: false,
        };
        self.reservations.records.insert(&pod.uid, reservation);
    }
}
