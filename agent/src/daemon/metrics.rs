//! Metrics for Prometheus: numbers that change too often for the status.

use std::fmt::Error;
use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

use berth_api::VlanRanges;
use berth_api::infra_node::{NetworkStatus, TrunkUnknownReason};
use berth_runtime::certificate::Validity;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::dhcp::DhcpMetrics;
use crate::plan::Plan;
use crate::trunk::TrunkReport;
use berth_host_facts::HostFacts;
use berth_host_facts::host_settings::HostSettings;

type FloatGauge = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HugepageLabels {
    zone: u32,
    size: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabels {
    network: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabel {
    network: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub(super) result: &'static str,
}

/// Metrics of the agent.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    pub(super) cycles: Counter,
    pub(super) cycle_seconds: FloatGauge,
    pub(super) changes: Family<ResultLabel, Counter>,
    pub(super) drift_corrections: Counter,
    faults: Gauge,
    pending_changes: Family<KindLabel, Gauge>,
    hugepages: Family<HugepageLabels, Gauge>,
    available_memory_bytes: FloatGauge,
    ksm_pages: Family<KindLabel, Gauge>,
    ksm_running: Gauge,
    tenant_networks: Family<NetworkLabels, Gauge>,
    trunk_missing_vlans: Family<NetworkLabel, Gauge>,
    trunk_unverified_vlans: Family<NetworkLabel, Gauge>,
    trunk_hosts: Family<NetworkLabel, Gauge>,
    certificate_expiration: Family<Vec<(&'static str, &'static str)>, FloatGauge>,
    cpu_seconds: FloatGauge,
    resident_bytes: FloatGauge,
    pub(super) dhcp: DhcpMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let build_info = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("berth_agent_build", "Version of the agent", Info::new(build_info));
        let metrics = Self {
            registry,
            cycles: Counter::default(),
            cycle_seconds: FloatGauge::default(),
            changes: Family::default(),
            drift_corrections: Counter::default(),
            faults: Gauge::default(),
            pending_changes: Family::default(),
            hugepages: Family::default(),
            available_memory_bytes: FloatGauge::default(),
            ksm_pages: Family::default(),
            ksm_running: Gauge::default(),
            tenant_networks: Family::default(),
            trunk_missing_vlans: Family::default(),
            trunk_unverified_vlans: Family::default(),
            trunk_hosts: Family::default(),
            certificate_expiration: Family::default(),
            cpu_seconds: FloatGauge::default(),
            resident_bytes: FloatGauge::default(),
            dhcp: DhcpMetrics::default(),
        };
        metrics.register_all()
    }
}

impl Metrics {
    fn register_all(mut self) -> Self {
        let r = &mut self.registry;
        r.register("berth_agent_cycles", "Reconcile cycles", self.cycles.clone());
        r.register(
            "berth_agent_cycle_seconds",
            "Duration of the last reconcile cycle",
            self.cycle_seconds.clone(),
        );
        r.register("berth_agent_changes", "Changes to the host by result", self.changes.clone());
        r.register(
            "berth_agent_drift",
            "Corrections of settings that another program had changed",
            self.drift_corrections.clone(),
        );
        r.register("berth_agent_manifest_faults", "Faults in the manifest", self.faults.clone());
        r.register(
            "berth_agent_changes_waiting",
            "Changes that are pending",
            self.pending_changes.clone(),
        );
        r.register(
            "berth_hugepages",
            "Huge pages by NUMA zone, size and state",
            self.hugepages.clone(),
        );
        r.register(
            "berth_memory_available_bytes",
            "MemAvailable",
            self.available_memory_bytes.clone(),
        );
        r.register(
            "berth_ksm_pages",
            "Pages of /sys/kernel/mm/ksm by file",
            self.ksm_pages.clone(),
        );
        r.register("berth_ksm_running", "1 if ksmd merges pages", self.ksm_running.clone());
        r.register(
            "berth_tenant_networks",
            "Tenant networks on this host by host network and state",
            self.tenant_networks.clone(),
        );
        r.register(
            "berth_trunk_missing_vlans",
            "VLANs whose probes do not arrive from a host that also carries them, by host network",
            self.trunk_missing_vlans.clone(),
        );
        r.register(
            "berth_trunk_unverified_vlans",
            "VLANs in which no probes arrive, although probes arrive in other VLANs, by host network",
            self.trunk_unverified_vlans.clone(),
        );
        r.register(
            "berth_trunk_hosts",
            "Hosts from which probes are received, by host network",
            self.trunk_hosts.clone(),
        );
        r.register(
            "berth_agent_client_certificate_expiration_timestamp_seconds",
            "Expiration time of the client certificate, in seconds since 1970",
            self.certificate_expiration.clone(),
        );
        r.register("process_cpu_seconds", "CPU time of the agent", self.cpu_seconds.clone());
        r.register(
            "process_resident_memory_bytes",
            "Resident memory of the agent",
            self.resident_bytes.clone(),
        );
        self.dhcp.register(r);
        self
    }

    pub(super) fn update_host(
        &self,
        facts: &HostFacts,
        settings: &HostSettings,
        plan: &Plan,
        faults: usize,
    ) {
        self.faults.set(saturating_i64(faults as u64));
        let blocked = plan.blocked_changes();
        self.pending_changes
            .get_or_create(&KindLabel { kind: "blocked" })
            .set(saturating_i64(blocked as u64));
        let possible = plan.changes.len() - blocked;
        self.pending_changes
            .get_or_create(&KindLabel { kind: "possible" })
            .set(saturating_i64(possible as u64));
        for zone in &facts.zones {
            for pool in &zone.hugepages {
                let states =
                    [("total", Some(pool.total)), ("free", pool.free), ("surplus", pool.surplus)];
                for (state, count) in states {
                    let Some(count) = count else { continue };
                    let label =
                        HugepageLabels { zone: zone.id, size: pool.size.to_string(), state };
                    self.hugepages.get_or_create(&label).set(saturating_i64(count));
                }
            }
        }
        if let Some(available) = settings.available_memory {
            #[expect(clippy::cast_precision_loss, reason = "a gauge; exact up to 8 PiB")]
            self.available_memory_bytes.set(available.0 as f64);
        }
        let ksm = &facts.ksm;
        for (kind, value) in [
            ("shared", ksm.pages_shared),
            ("sharing", ksm.pages_sharing),
            ("unshared", ksm.pages_unshared),
            ("volatile", ksm.pages_volatile),
            ("skipped", ksm.pages_skipped),
        ] {
            if let Some(value) = value {
                self.ksm_pages.get_or_create(&KindLabel { kind }).set(saturating_i64(value));
            }
        }
        self.ksm_running.set((ksm.run == Some(1)).into());
    }

    /// Updates the metrics of tenant networks.
    pub(super) fn update_networks(&self, networks: &[NetworkStatus]) {
        // Removed networks have no metrics.
        self.tenant_networks.clear();
        for network in networks {
            for (state, count) in
                [("ready", network.ready), ("pending", network.pending), ("failed", network.failed)]
            {
                let label = NetworkLabels { network: network.name.clone(), state };
                self.tenant_networks.get_or_create(&label).set(count.into());
            }
        }
    }

    pub(super) fn update_trunks(&self, trunks: &TrunkReport) {
        self.trunk_missing_vlans.clear();
        self.trunk_unverified_vlans.clear();
        self.trunk_hosts.clear();
        for (network, status) in &trunks.networks {
            let label = NetworkLabel { network: network.clone() };
            let count = |vlans: Option<&VlanRanges>| {
                vlans.map_or(0, |vlans| saturating_i64(vlans.ids().len() as u64))
            };
            self.trunk_missing_vlans.get_or_create(&label).set(count(status.vlans.as_ref()));
            self.trunk_unverified_vlans
                .get_or_create(&label)
                .set(count(status.unverified.as_ref()));
            if status.reason.is_some_and(TrunkUnknownReason::has_no_key) {
                continue;
            }
            let host_count = trunks.host_counts.get(network).copied().unwrap_or_default();
            self.trunk_hosts.get_or_create(&label).set(saturating_i64(host_count as u64));
        }
    }

    /// Updates the expiration time of the client certificate. Without a certificate the metric has no
    /// value.
    pub(super) fn update_certificate(&self, certificate: Option<Validity>) {
        self.certificate_expiration.clear();
        let expiration =
            certificate.and_then(|validity| validity.not_after.duration_since(UNIX_EPOCH).ok());
        if let Some(end) = expiration {
            self.certificate_expiration.get_or_create(&Vec::new()).set(end.as_secs_f64());
        }
    }

    /// Updates the resource usage of the agent.
    pub(super) fn update_process(&self, cpu_seconds: f64, resident_bytes: f64) {
        self.cpu_seconds.set(cpu_seconds);
        self.resident_bytes.set(resident_bytes);
    }

    /// Returns the metrics in the text format of OpenMetrics.
    pub(super) fn render(&self) -> Result<String, Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn saturating_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
