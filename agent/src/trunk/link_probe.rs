//! Probes the VLANs of one link without the daemon, for measurements.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::infra_node::TrunkStatus;
use berth_api::{LinkName, MacAddress, VlanSet};
use berth_trunk_probe::{KeyError, ProbeKeys};
use tokio::sync::watch;

use super::probe_task;
use super::results::{Results, TrunkReport};
use super::targets::{NetworkTarget, Targets, UplinkTarget};

/// Name of the network in the probes, which must be the same at both ends of the trunk.
const NETWORK: &str = "trunk";

/// Probes the VLANs of one link as the daemon probes the VLANs of a host network. Dropping this value stops the
/// probes.
#[derive(Debug)]
pub struct LinkProbe {
    results: Arc<Results>,
    _targets: watch::Sender<Arc<Targets>>,
}

impl LinkProbe {
    /// Starts the probes in the current Tokio runtime. `link` is the name, the index and the MAC address of the
    /// link, `key` the content of a key file.
    ///
    /// # Errors
    /// If the key is malformed.
    pub fn start(
        node: &str,
        key: &str,
        (name, index, mac): (LinkName, u32, MacAddress),
        vlans: VlanSet,
    ) -> Result<Self, KeyError> {
        let keys = ProbeKeys::parse(key)?;
        let target = NetworkTarget { uplink: UplinkTarget { name, index, mac }, vlans };
        let targets = Targets {
            node: node.to_owned(),
            keys: Ok(keys),
            networks: BTreeMap::from([(NETWORK.to_owned(), target)]),
            lldp_links: BTreeMap::new(),
        };
        let (sender, receiver) = watch::channel(Arc::new(targets));
        let results = Arc::new(Results::new(Box::new(|| {})));
        tokio::spawn(probe_task::run(NETWORK.to_owned(), receiver, Arc::clone(&results)));
        Ok(Self { results, _targets: sender })
    }

    /// Returns the result of the verification; `None` before the first result.
    #[must_use]
    pub fn status(&self) -> Option<TrunkStatus> {
        self.results.report(&TrunkReport::default()).networks.remove(NETWORK)
    }
}
