//! Pings between VMs that run while faults occur, and the longest time without an answer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::faults::host_index;
use super::{Demo, observe};

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
            let answers = host.run_checked(&format!(
                "set -o pipefail; tenants unwatch {file} | sed -n 's/.*icmp_seq=\\([0-9]*\\).*/\\1/p'"
            ))?;
            let answers: Vec<u32> = answers
                .lines()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .context(answers.clone())?;
            let (lost, gap) = ping_gaps(&answers);
            let silence = PING_INTERVAL * gap;
            ensure!(!answers.is_empty(), "{tenant}: no ping was answered");
            ensure!(silence <= MAX_PING_GAP, "{tenant}: no ping was answered for {silence:?}");
            results.push(format!(
                "{tenant}: {lost} of {} pings lost",
                u32::try_from(answers.len())? + lost
            ));
        }
        Ok(results.join(", "))
    }
}

/// Returns the total number of unanswered pings, from ping 1 on, and the largest number of consecutive unanswered
/// pings.
fn ping_gaps(answers: &[u32]) -> (u32, u32) {
    let mut sorted = answers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let before = std::iter::once(&0).chain(&sorted);
    let missing = sorted.iter().zip(before).map(|(now, before)| now - before - 1);
    missing.fold((0, 0), |(sum, most), gap| (sum + gap, most.max(gap)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_pings_are_counted() {
        assert_eq!(ping_gaps(&[]), (0, 0));
        assert_eq!(ping_gaps(&[1, 2, 3]), (0, 0));
        assert_eq!(ping_gaps(&[2, 3, 3, 7, 5]), (3, 1));
        assert_eq!(ping_gaps(&[1, 9, 4]), (6, 4));
    }
}
