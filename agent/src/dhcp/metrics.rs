//! Metrics of the answers to guests.

use berth_dhcp_responder::{AnswerKind, ForeignKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Metrics of the answers to guests. A clone shares the values.
#[derive(Debug, Clone, Default)]
pub struct DhcpMetrics {
    answers: Family<KindLabel, Counter>,
    ignored: Family<ReasonLabel, Counter>,
    foreign_servers: Family<KindLabel, Counter>,
    pub(super) declined: Counter,
    pub(super) address_probes: Counter,
    pub(super) address_conflicts: Counter,
    pub(super) rate_limited: Counter,
    ports: Gauge,
    leases: Gauge,
    conflicts: Gauge,
}

impl DhcpMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "berth_dhcp_answers",
            "Answers to DHCP requests and router solicitations of guests",
            self.answers.clone(),
        );
        registry.register(
            "berth_dhcp_ignored",
            "Frames of guests that got no answer",
            self.ignored.clone(),
        );
        registry.register(
            "berth_dhcp_foreign_servers",
            "Frames of other DHCP servers and routers on tenant networks",
            self.foreign_servers.clone(),
        );
        registry.register(
            "berth_dhcp_declined",
            "Addresses that guests declined, because another machine uses them",
            self.declined.clone(),
        );
        registry.register(
            "berth_dhcp_address_probes",
            "Probes that find out whether another machine uses the address of a lease",
            self.address_probes.clone(),
        );
        registry.register(
            "berth_dhcp_address_conflicts",
            "Times that another machine answered the probes of a leased address",
            self.address_conflicts.clone(),
        );
        registry.register(
            "berth_dhcp_rate_limited",
            "Times that a port exceeded a rate limit, so that its frames waited or were lost",
            self.rate_limited.clone(),
        );
        registry.register("berth_dhcp_ports", "Ports of VMs that get answers", self.ports.clone());
        registry.register(
            "berth_dhcp_addresses_in_use",
            "Addresses of leases that other machines use",
            self.conflicts.clone(),
        );
        registry.register("berth_dhcp_leases", "Leases of this host", self.leases.clone());
    }

    /// Updates the number of addresses in use by other machines.
    pub(crate) fn update_conflicts(&self, count: usize) {
        self.conflicts.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn count_answer(&self, kind: AnswerKind) {
        self.answers.get_or_create(&KindLabel { kind: kind.into() }).inc();
    }

    pub(super) fn count_ignored(&self, reason: impl Into<&'static str>) {
        self.ignored.get_or_create(&ReasonLabel { reason: reason.into() }).inc();
    }

    pub(super) fn count_foreign_server(&self, kind: ForeignKind) {
        self.foreign_servers.get_or_create(&KindLabel { kind: kind.into() }).inc();
    }

    /// Updates the numbers of ports and leases.
    pub(super) fn update(&self, ports: usize, leases: usize) {
        self.ports.set(i64::try_from(ports).unwrap_or(i64::MAX));
        self.leases.set(i64::try_from(leases).unwrap_or(i64::MAX));
    }
}
