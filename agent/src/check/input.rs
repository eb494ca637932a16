//! Input of the checks: the facts of the host, and additional data that only checks need.

use crate::credential::{self, ClientCertificate, UnreadableCertificate};
use crate::host_leases;
use crate::state_folder::{CONFLICTS_FILE, ConflictRecord, LEASES_FILE, TRUNK_FILE, TrunkRecord};
use berth_api::{Bytes, HostLeasesSpec};
use berth_host_facts::identity::Identity;
use berth_host_facts::irqs::Irq;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, disks, identity, irqs};

/// Input of the checks.
#[derive(Debug)]
pub struct Input<'a> {
    /// Facts of the host, which `berth-agent report` also shows.
    pub facts: &'a HostFacts,
    /// Interrupts, which `berth-agent report` does not show.
    pub irqs: Vec<Irq>,
    /// Machine ID and firmware UUID.
    pub identity: Identity,
    /// Names of the disks, and the sum of their sizes; `None` if the tree has no block devices.
    pub disks: Option<(Vec<String>, Bytes)>,
    /// SMT setting of the administrator (`smt/control`): `on`, `off`, `forceoff`, ...; `None` if it cannot be read.
    pub smt_control: Option<String>,
    /// Client certificate of an agent that runs as a systemd service, or the error that prevented reading it; `None` if
    /// the agent has no certificate.
    pub certificate: Option<Result<ClientCertificate, UnreadableCertificate>>,
    /// Results of the verification of trunks since the host booted; `None` if there are none.
    pub trunks: Option<TrunkRecord>,
    /// Leases of the VMs that the daemon saved last; `None` if there are none.
    pub leases: Option<HostLeasesSpec>,
    /// Addresses of VMs that other machines use; `None` if the daemon found none since the host booted.
    pub conflicts: Option<ConflictRecord>,
    /// True if the process runs as root.
    pub is_root: bool,
}

impl<'a> Input<'a> {
    /// Returns an input with facts only.
    #[must_use]
    pub fn from_facts(facts: &'a HostFacts) -> Self {
        Self {
            facts,
            irqs: Vec::new(),
            identity: Identity::default(),
            disks: None,
            smt_control: None,
            certificate: None,
            trunks: None,
            leases: None,
            conflicts: None,
            is_root: false,
        }
    }

    /// Reads the additional input that only checks need.
    #[must_use]
    pub fn observe(root: &Root, facts: &'a HostFacts) -> Self {
        Self {
            facts,
            irqs: irqs::observe(root),
            identity: identity::observe(root, &facts.links),
            disks: disks::observe(root),
            smt_control: root.read("sys/devices/system/cpu/smt/control").ok(),
            certificate: credential::observe(root),
            trunks: read_trunks(root, facts),
            leases: read_leases(root),
            conflicts: read_conflicts(root, facts),
            is_root: nix::unistd::geteuid().is_root(),
        }
    }
}

/// Reads the results of the verification of trunks. Results of an earlier boot are stale, and are ignored.
fn read_trunks(root: &Root, facts: &HostFacts) -> Option<TrunkRecord> {
    let record: TrunkRecord = serde_json::from_str(&root.read(TRUNK_FILE).ok()?).ok()?;
    (facts.boot_id.as_ref() == Some(&record.boot_id)).then_some(record)
}

/// Reads the leases that the daemon saved. Faults in the leases are ignored here, because the daemon reports them.
fn read_leases(root: &Root) -> Option<HostLeasesSpec> {
    let tree = serde_json::from_str(&root.read_large(LEASES_FILE).ok()?).ok()?;
    host_leases::read(&tree, None).0
}

/// Reads the addresses in use. A record of an earlier boot is stale, and is ignored.
fn read_conflicts(root: &Root, facts: &HostFacts) -> Option<ConflictRecord> {
    let record: ConflictRecord = serde_json::from_str(&root.read(CONFLICTS_FILE).ok()?).ok()?;
    (facts.boot_id.as_ref() == Some(&record.boot_id)).then_some(record)
}
