//! Time until an end of the trunk names a VLAN that the trunk drops.
//!
//! The script of the benchmark drops the VLAN. It and both ends wait for each other by files in the current folder:
//!
//! | file | written by | meaning |
//! |---|---|---|
//! | `NODE.idle` | end | the end has measured its cost while nothing changes |
//! | `dropped.N` | script | both directions drop the VLAN in this file |
//! | `NODE.named.N` | end | the end names this VLAN |
//! | `restored.N` | script | the VLAN is not dropped any more |
//! | `NODE.verified.N` | end | the end has verified all VLANs again |
//! | `finished` | script | both ends may stop |

#![expect(clippy::disallowed_methods, reason = "the benchmark reads the files of its script")]

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_agent::trunk::LinkProbe;
use berth_api::VlanId;
use berth_api::infra_node::{TrunkState, TrunkStatus};
use serde::{Deserialize, Serialize};

/// Time limit until the result of the verification changes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which the result of the verification, and the files of the script, are read. The result changes at most
/// every 500 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A VLAN that was dropped, and the time until an end named it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct NamedVlan {
    pub(super) vlan: u16,
    pub(super) seconds: f64,
}

/// Measures the time until an end names a dropped VLAN, `count` times, each time with another VLAN.
pub(super) async fn measure_drops(
    node: &str,
    count: u16,
    probe: &LinkProbe,
) -> Result<Vec<NamedVlan>> {
    let mut named = Vec::new();
    create_file(&format!("{node}.idle"))?;
    for number in 1..=count {
        let vlan: u16 = wait_for_file(&format!("dropped.{number}")).await.trim().parse()?;
        let id = VlanId::try_from(vlan)?;
        let begin = Instant::now();
        wait_until(node, probe, |status| names_only(status, id)).await?;
        named.push(NamedVlan { vlan, seconds: begin.elapsed().as_secs_f64() });
        create_file(&format!("{node}.named.{number}"))?;
        wait_for_file(&format!("restored.{number}")).await;
        wait_until(node, probe, is_verified).await?;
        create_file(&format!("{node}.verified.{number}"))?;
    }
    wait_for_file("finished").await;
    Ok(named)
}

/// Waits until the result of the verification meets a condition.
pub(super) async fn wait_until(
    node: &str,
    probe: &LinkProbe,
    condition: impl Fn(&TrunkStatus) -> bool,
) -> Result<()> {
    let begin = Instant::now();
    while !probe.status().is_some_and(|status| condition(&status)) {
        let status = probe.status();
        ensure!(begin.elapsed() < TIMEOUT, "{node}: still after {TIMEOUT:?}: {status:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns true if all VLANs are verified.
pub(super) fn is_verified(status: &TrunkStatus) -> bool {
    status.state == TrunkState::Verified
}

/// Returns true if this VLAN, and no other, is missing.
fn names_only(status: &TrunkStatus, vlan: VlanId) -> bool {
    let vlans = status.vlans.as_ref().filter(|_| status.state == TrunkState::Missing);
    vlans.is_some_and(|vlans| vlans.ids().iter().eq([vlan]))
}

/// Waits for a file of the script, which limits the time, and returns the content.
async fn wait_for_file(name: &str) -> String {
    loop {
        match fs::read_to_string(name) {
            Ok(text) => return text,
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

fn create_file(name: &str) -> Result<()> {
    File::create(name).map(drop).with_context(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dropped_vlan_may_be_missing() {
        let status = |state: &str, vlans: &str| -> TrunkStatus {
            serde_json::from_value(serde_json::json!({"state": state, "vlans": vlans})).unwrap()
        };
        let vlan = VlanId::try_from(402_u16).unwrap();
        assert!(names_only(&status("Missing", "402"), vlan));
        for other in [
            status("Missing", "401"),
            status("Missing", "402-403"),
            status("Unknown", "402"),
            serde_json::from_value(serde_json::json!({"state": "Verified"})).unwrap(),
        ] {
            assert!(!names_only(&other, vlan), "{other:?}");
        }
    }
}
