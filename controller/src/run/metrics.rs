//! Metrics of the controller.

use std::fmt::Error;
use std::time::Duration;

use berth_api::GoldenImagePhase;
use berth_runtime::reconcile::ReconcileRecorder;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::assignment_metrics::AssignmentMetrics;
use super::tenant_metrics::TenantConditionMetrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvacuationLabels {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RemovalLabels {
    result: &'static str,
}

/// All metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_seconds: Family<ControllerLabels, Histogram, fn() -> Histogram>,
    requests: Family<RequestLabels, Counter>,
    writes: Family<WriteLabels, Counter>,
    leader: Gauge,
    tenant_connections: Family<StateLabels, Gauge>,
    tenant_node_writes: Counter,
    /// Number of tenants, by the reasons of their conditions.
    pub(super) tenant_conditions: TenantConditionMetrics,
    evacuating_machines: Gauge,
    evacuation_actions: Family<EvacuationLabels, Counter>,
    lost_hosts: Gauge,
    waiting_machines: Gauge,
    machines_replaced: Counter,
    machine_removals: Family<RemovalLabels, Counter>,
    machines_in_removal: Family<StateLabels, Gauge>,
    golden_images: Family<StateLabels, Gauge>,
    image_imports: Counter,
    image_deletions: Counter,
    /// Metrics of the scheduler extender.
    pub(super) assignment: AssignmentMetrics,
}

fn reconcile_histogram() -> Histogram {
    Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let build = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("berth_controller_build", "Version of the controller", Info::new(build));
        let (reconciles, requests) = (Family::default(), Family::default());
        let (writes, leader) = (Family::default(), Gauge::default());
        let (tenant_connections, tenant_node_writes) = (Family::default(), Counter::default());
        let (machine_removals, machines_in_removal) = (Family::default(), Family::default());
        let seconds = Family::new_with_constructor(reconcile_histogram as fn() -> Histogram);
        let r = &mut registry;
        r.register(
            "berth_controller_reconciles",
            "Reconciles, by result",
            Clone::clone(&reconciles),
        );
        r.register(
            "berth_controller_reconcile_seconds",
            "Duration of reconciles",
            Clone::clone(&seconds),
        );
        r.register(
            "berth_controller_requests",
            "Requests to the API server",
            Clone::clone(&requests),
        );
        r.register("berth_controller_writes", "Objects written, by kind", Clone::clone(&writes));
        r.register(
            "berth_controller_leader",
            "1 if this process is the leader",
            Clone::clone(&leader),
        );
        r.register(
            "berth_controller_tenant_connections",
            "Tenants with a kubeconfig, by the state of the connection",
            Clone::clone(&tenant_connections),
        );
        r.register(
            "berth_controller_tenant_node_writes",
            "Writes of labels, annotations and taints to tenants' Nodes",
            Clone::clone(&tenant_node_writes),
        );
        let tenant_conditions = TenantConditionMetrics::register(r);
        let (evacuating_machines, evacuation_actions) = (Gauge::default(), Family::default());
        r.register(
            "berth_controller_evacuating_machines",
            "Machines that must leave their host",
            Clone::clone(&evacuating_machines),
        );
        r.register(
            "berth_controller_evacuation_actions",
            "Actions to move machines from their hosts, by action",
            Clone::clone(&evacuation_actions),
        );
        let (lost_hosts, waiting_machines) = (Gauge::default(), Gauge::default());
        r.register("berth_controller_lost_hosts", "Hosts that are lost", Clone::clone(&lost_hosts));
        r.register(
            "berth_controller_waiting_machines",
            "Machines on lost hosts that are not replaced",
            Clone::clone(&waiting_machines),
        );
        let machines_replaced = Counter::default();
        r.register(
            "berth_controller_machines_replaced",
            "Machines that are replaced because their host is lost",
            Clone::clone(&machines_replaced),
        );
        r.register(
            "berth_controller_machine_removals",
            "Machines that were deleted after their removal mark, by result",
            Clone::clone(&machine_removals),
        );
        r.register(
            "berth_controller_machines_in_removal",
            "Machines with a removal mark, by state",
            Clone::clone(&machines_in_removal),
        );
        let golden_images = Family::default();
        let (image_imports, image_deletions) = (Counter::default(), Counter::default());
        r.register(
            "berth_controller_golden_images",
            "Golden images that machines or the InfraConfig need, by state",
            Clone::clone(&golden_images),
        );
        r.register(
            "berth_controller_image_imports",
            "Imports of golden images that were created",
            Clone::clone(&image_imports),
        );
        r.register(
            "berth_controller_image_deletions",
            "Golden images and failed imports that were deleted",
            Clone::clone(&image_deletions),
        );
        let assignment = AssignmentMetrics::register(r);
        Self {
            registry,
            assignment,
            reconciles,
            reconcile_seconds: seconds,
            requests,
            writes,
            leader,
            tenant_connections,
            tenant_node_writes,
            tenant_conditions,
            evacuating_machines,
            evacuation_actions,
            lost_hosts,
            waiting_machines,
            machines_replaced,
            machine_removals,
            machines_in_removal,
            golden_images,
            image_imports,
            image_deletions,
        }
    }
}

impl ReconcileRecorder for Metrics {
    fn record_reconcile(&self, controller: &'static str, succeeded: bool, took: Duration) {
        let result = if succeeded { "ok" } else { "error" };
        self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
        self.reconcile_seconds
            .get_or_create(&ControllerLabels { controller })
            .observe(took.as_secs_f64());
    }
}

impl Metrics {
    /// Counts a request to the API server of the infra cluster.
    pub(super) fn count_request(&self, method: &str) {
        self.requests.get_or_create(&RequestLabels { method: method.to_owned() }).inc();
    }

    /// Counts a write of an object.
    pub(super) fn count_write(&self, kind: &str) {
        self.writes.get_or_create(&WriteLabels { kind: kind.to_owned() }).inc();
    }

    /// Sets the numbers of tenants to whose API servers the controller has a connection, and to whose API servers it
    /// has none.
    pub(super) fn set_tenant_connections(&self, connected: usize, failed: usize) {
        for (state, count) in [("connected", connected), ("failed", failed)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.tenant_connections.get_or_create(&StateLabels { state }).set(count);
        }
    }

    /// Counts a write of the labels, annotations or taints of a tenant's Node.
    pub(super) fn count_tenant_node_write(&self) {
        self.tenant_node_writes.inc();
    }

    /// Sets the number of machines that must leave their host.
    pub(super) fn set_evacuating_machines(&self, count: usize) {
        self.evacuating_machines.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts an action that moves a machine from its host.
    pub(super) fn count_evacuation_action(&self, action: &'static str) {
        self.evacuation_actions.get_or_create(&EvacuationLabels { action }).inc();
    }

    /// Sets the numbers of lost hosts, and of machines on lost hosts that are not replaced.
    pub(super) fn set_lost_hosts(&self, lost_hosts: usize, waiting_machines: usize) {
        self.lost_hosts.set(i64::try_from(lost_hosts).unwrap_or(i64::MAX));
        self.waiting_machines.set(i64::try_from(waiting_machines).unwrap_or(i64::MAX));
    }

    /// Counts a machine that is replaced because its host is lost.
    pub(super) fn count_replaced_machine(&self) {
        self.machines_replaced.inc();
    }

    /// Counts the deletion of a machine with a removal mark.
    pub(super) fn count_machine_removal(&self, result: &'static str) {
        self.machine_removals.get_or_create(&RemovalLabels { result }).inc();
    }

    /// Sets the numbers of machines with a removal mark, by state.
    pub(super) fn set_machines_in_removal(&self, counts: [(&'static str, usize); 4]) {
        for (state, count) in counts {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.machines_in_removal.get_or_create(&StateLabels { state }).set(count);
        }
    }

    /// Sets the numbers of golden images, by phase.
    pub(super) fn set_golden_images(&self, phases: impl Iterator<Item = GoldenImagePhase>) {
        use GoldenImagePhase::{Failed, Importing, Pending, Ready};
        let phases: Vec<GoldenImagePhase> = phases.collect();
        for (phase, state) in
            [(Pending, "pending"), (Importing, "importing"), (Ready, "ready"), (Failed, "failed")]
        {
            let count = phases.iter().filter(|one| **one == phase).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.golden_images.get_or_create(&StateLabels { state }).set(count);
        }
    }

    /// Counts an import of a golden image.
    pub(super) fn count_image_import(&self) {
        self.image_imports.inc();
    }

    /// Counts the deletion of a golden image or of a failed import.
    pub(super) fn count_image_deletion(&self) {
        self.image_deletions.inc();
    }

    /// Sets the metric of leadership to 1 if this process is the leader, and to 0 otherwise.
    pub(super) fn set_leader(&self, is_leader: bool) {
        self.leader.set(is_leader.into());
        if !is_leader {
            self.set_tenant_connections(0, 0);
            self.tenant_conditions.clear();
            self.set_evacuating_machines(0);
            self.set_lost_hosts(0, 0);
            self.machines_in_removal.clear();
            self.golden_images.clear();
        }
    }

    /// Returns the metrics in the text format of OpenMetrics.
    pub(super) fn render(&self) -> Result<String, Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
