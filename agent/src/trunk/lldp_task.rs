//! Task that receives the LLDP frames of one link.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_api::infra_node::{Neighbor, NeighborVlan};
use berth_api::{LinkName, MacAddress};
use berth_trunk_probe::lldp;
use tokio::sync::watch;

use super::results::Results;
use super::targets::Targets;
use super::vlan_socket::{ReceiveOptions, VlanSocket};

/// Options of the socket that receives LLDP frames. A bridge does not forward received LLDP frames but leaves them
/// to the port, so the socket needs no copy of frames before the bridge.
const LLDP_RECEIVE_OPTIONS: ReceiveOptions = ReceiveOptions {
    ethertype: lldp::ETHERTYPE,
    group: MacAddress(lldp::GROUP),
    before_bridge: false,
    buffer_bytes: 64 << 10,
    max_frame_bytes: 2048,
};
/// Time between two reads of the socket. Switches send a frame every 30 seconds. During a flood, frames that do not
/// fit into the small receive buffer are lost.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after an error of the socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Receives LLDP frames until the targets no longer contain the link.
pub(super) async fn run(
    link: LinkName,
    mut targets: watch::Receiver<Arc<Targets>>,
    results: Arc<Results>,
) {
    loop {
        let index = targets.borrow_and_update().lldp_links.get(&link).copied();
        let Some(index) = index else { break };
        tokio::select! {
            // The task ends only if its link is no longer a target; it ignores other changes of the targets.
            changed = wait_for_change(&mut targets, &link, index) => if changed.is_err() { break },
            Err(error) = receive_neighbors(&link, index, &results) => {
                tracing::debug!(%link, %error, "failed to receive LLDP frames");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
    results.remove_link(&link);
}

/// Waits until the targets no longer contain the link with this index.
async fn wait_for_change(
    targets: &mut watch::Receiver<Arc<Targets>>,
    link: &LinkName,
    index: u32,
) -> Result<(), watch::error::RecvError> {
    targets.wait_for(|one| one.lldp_links.get(link) != Some(&index)).await.map(drop)
}

async fn receive_neighbors(link: &LinkName, index: u32, results: &Results) -> io::Result<()> {
    let mut socket = VlanSocket::open(index, LLDP_RECEIVE_OPTIONS)?;
    loop {
        tokio::time::sleep(READ_INTERVAL).await;
        socket.receive(|_, payload| match lldp::parse(payload) {
            Ok(parsed) => {
                let time_to_live = Duration::from_secs(parsed.time_to_live.into());
                results.set_neighbor(neighbor(link, parsed), time_to_live);
            }
            Err(error) => tracing::debug!(%link, %error, "ignored an LLDP frame"),
        })?;
    }
}

fn neighbor(link: &LinkName, parsed: lldp::Neighbor) -> Neighbor {
    let vlan = |(id, name)| NeighborVlan { id, name };
    Neighbor {
        uplink: link.clone(),
        chassis: parsed.chassis,
        system_name: parsed.system_name,
        port: parsed.port,
        description: parsed.port_description,
        port_vlan: parsed.port_vlan,
        vlans: parsed.vlans.into_iter().map(vlan).collect(),
    }
}
