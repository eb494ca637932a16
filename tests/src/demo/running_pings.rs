//! Pings between VMs that run while faults occur, and the longest time without an answer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::faults::host_index;
use super::{Demo, observe};
use crate::pings::{longest_loss, lost_pings, replies};

/// Interval of pings; see `tests/host/tenants.sh`.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time for which a tenant's pings may be unanswered on emulated hosts.
const MAX_PING_GAP: Duration = Duration::from_secs(1);

/// Running ping of a VM to another VM of its tenant on another host.
#[derive(Debug)]
pub(super) struct RunningPing {
    host: usize,
    tenant: String,
    file: String,
}

impl Demo<'_> {
    /// Starts pings between one pair of VMs of each tenant.
    pub(super) fn start_pings(&mut self) -> Result<Vec<RunningPing>> {
        let vms = observe::read_vms(&self.plane, &mut self.addresses)?;
        let mut all: BTreeMap<&str, RunningPing> = BTreeMap::new();
        for vm in &vms {
            let is_far = |other: &&super::Vm| other.tenant == vm.tenant && other.host != vm.host;
            let Some(other) = vms.iter().find(is_far) else { continue };
            if all.contains_key(vm.tenant.as_str()) {
                continue;
            }
            let host = host_index(&vm.host)?;
            let file = format!("/run/watch.{}", vm.tenant);
            let command = format!("tenants watch {} {} {file}", vm.name, other.address);
            self.hosts.get_mut(host).context("unknown host")?.run_checked(&command)?;
            all.insert(&vm.tenant, RunningPing { host, tenant: vm.tenant.clone(), file });
        }
        ensure!(all.len() == 2, "{} tenants have VMs on several hosts, not 2", all.len());
        Ok(all.into_values().collect())
    }

    /// Ends pings and returns the number of lost pings of each tenant.
    pub(super) fn stop_pings(&mut self, all: &[RunningPing]) -> Result<String> {
        let mut results = Vec::new();
        for RunningPing { host, tenant, file } in all {
            let host = self.hosts.get_mut(*host).context("unknown host")?;
            let log = host.run_checked(&format!("tenants unwatch {file}"))?;
            let (answered, lost) = (replies(&log).count(), lost_pings(&log));
            let loss_time = PING_INTERVAL * longest_loss(&lost);
            ensure!(answered > 0, "{tenant}: no ping was answered");
            ensure!(loss_time <= MAX_PING_GAP, "{tenant}: no ping was answered for {loss_time:?}");
            let sent = answered + lost.len();
            results.push(format!("{tenant}: {} of {sent} pings lost", lost.len()));
        }
        Ok(results.join(", "))
    }
}
