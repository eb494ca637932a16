//! Prometheus metrics of the scheduler extender.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use berth_extender::{FreeResourceTotals, KubeletRefusal, StageCounts, VM_SIZES};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    call: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabels {
    cpus: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// Metrics of the scheduler extender.
#[derive(Debug)]
pub(super) struct AssignmentMetrics {
    decisions: Family<DecisionLabels, Counter>,
    call_seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    refusals: Family<ReasonLabels, Counter>,
    kubelet_refusals: Family<ReasonLabels, Counter>,
    reservations: Family<StageLabels, Gauge>,
    free_resources: Family<ResourceLabels, Gauge>,
    stranded_resources: Family<ResourceLabels, Gauge>,
    zones_with_room: Family<SizeLabels, Gauge>,
    wakes: Counter,
    count_seconds: Family<KindLabels, Gauge<f64, AtomicU64>>,
    listed_timestamp: Gauge<f64, AtomicU64>,
}

fn call_histogram() -> Histogram {
    Histogram::new([0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 8.0])
}

impl AssignmentMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            decisions: Family::default(),
            call_seconds: Family::new_with_constructor(call_histogram as fn() -> Histogram),
            refusals: Family::default(),
            kubelet_refusals: Family::default(),
            reservations: Family::default(),
            free_resources: Family::default(),
            stranded_resources: Family::default(),
            zones_with_room: Family::default(),
            wakes: Counter::default(),
            count_seconds: Family::default(),
            listed_timestamp: Gauge::default(),
        };
        // Each reason is exported with zero at the start: Prometheus detects an increase from zero to one only if the
        // zero was exported.
        for refusal in KubeletRefusal::ALL {
            drop(
                this.kubelet_refusals
                    .get_or_create(&ReasonLabels { reason: refusal.metric_label().to_owned() }),
            );
        }
        let r = registry;
        r.register(
            "berth_assignment_decisions",
            "Calls of kube-scheduler, by result",
            this.decisions.clone(),
        );
        r.register(
            "berth_assignment_seconds",
            "Duration of kube-scheduler's calls to the extender, including the time for which Berth delayed them",
            this.call_seconds.clone(),
        );
        r.register(
            "berth_assignment_refusals",
            "Pods that fit on no host, once for each distinct reason",
            this.refusals.clone(),
        );
        r.register(
            "berth_assignment_kubelet_refusals",
            "Pods that a kubelet refused after they were bound",
            this.kubelet_refusals.clone(),
        );
        r.register(
            "berth_assignment_pods",
            "Pods that have a reservation on a host or wait for one",
            this.reservations.clone(),
        );
        r.register(
            "berth_assignment_free",
            "Free pinnable CPUs, and free huge pages in bytes",
            this.free_resources.clone(),
        );
        r.register(
            "berth_assignment_stranded",
            "Part of berth_assignment_free in zones without free huge pages (for CPUs) or without free \
             CPUs (for huge pages)",
            this.stranded_resources.clone(),
        );
        r.register(
            "berth_assignment_zones_with_room",
            "Zones that have at least as many free pinnable CPUs as the label cpus",
            this.zones_with_room.clone(),
        );
        r.register(
            "berth_assignment_wakes",
            "Nodes that were patched so that the scheduler retries waiting pods",
            this.wakes.clone(),
        );
        r.register(
            "berth_assignment_counting_seconds",
            "Time to add the objects of the last list to the extender's state, without the time to receive the list",
            this.count_seconds.clone(),
        );
        r.register(
            "berth_assignment_listed_timestamp_seconds",
            "Time at which the last list of pods was complete, in Unix time",
            this.listed_timestamp.clone(),
        );
        this
    }

    pub(super) fn record_decision(&self, call: &'static str, result: &'static str, took: Duration) {
        self.decisions.get_or_create(&DecisionLabels { call, result }).inc();
        self.call_seconds.get_or_create(&CallLabels { call }).observe(took.as_secs_f64());
    }

    pub(super) fn count_refusals(&self, hosts: &[(&str, Cow<'static, str>)]) {
        let reasons: BTreeSet<&str> = hosts.iter().map(|(_, reason)| reason.as_ref()).collect();
        for reason in reasons {
            self.refusals.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
        }
    }

    pub(super) fn count_kubelet_refusal(&self, reason: &str) {
        self.kubelet_refusals.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    pub(super) fn count_wake(&self) {
        self.wakes.inc();
    }

    /// Records how long the extender took to add all hosts or all pods of a list to its state.
    pub(super) fn record_count_time(&self, kind: &'static str, took: Duration) {
        self.count_seconds.get_or_create(&KindLabels { kind }).set(took.as_secs_f64());
    }

    /// Records the time at which the list of pods was completed. Pods are listed last, and decisions depend on them,
    /// so the extender can decide from then on.
    pub(super) fn record_listed(&self) {
        self.listed_timestamp.set(Timestamp::now().as_duration().as_secs_f64());
    }

    pub(super) fn set_stage_counts(&self, stages: &StageCounts) {
        let all = [
            ("reserved", stages.reserved),
            ("binding", stages.binding),
            ("bound", stages.bound),
            ("kept", stages.kept),
            ("leaving", stages.leaving),
            ("waiting", stages.refused),
        ];
        for (stage, count) in all {
            set_gauge(&self.reservations.get_or_create(&StageLabels { stage }), count);
        }
    }

    pub(super) fn set_free_resources(&self, free: &FreeResourceTotals) {
        let cpus = ResourceLabels { resource: "cpus" };
        let pages = ResourceLabels { resource: "hugepages" };
        set_gauge(&self.free_resources.get_or_create(&cpus), free.free_cpus);
        set_gauge(&self.free_resources.get_or_create(&pages), free.free_pages);
        set_gauge(&self.stranded_resources.get_or_create(&cpus), free.stranded_cpus);
        set_gauge(&self.stranded_resources.get_or_create(&pages), free.stranded_pages);
        for (cpus, count) in VM_SIZES.into_iter().zip(free.zones_by_vm_size) {
            set_gauge(&self.zones_with_room.get_or_create(&SizeLabels { cpus }), count);
        }
    }
}

fn set_gauge(gauge: &Gauge, value: impl TryInto<i64>) {
    gauge.set(value.try_into().unwrap_or(i64::MAX));
}
