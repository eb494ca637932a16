//! The kubelet's PodResources API: what it has handed out, in its own words, over its socket.
//!
//! It names pods by name, where the checkpoints have UIDs; which is which the names of the pods' log folders tell.
//! What it lists may have ended long ago, and old kubelets count shared CPUs as given: whoever uses it asks the
//! checkpoints and control groups too.

#[expect(missing_docs, unreachable_pub, clippy::derive_partial_eq_without_eq,
    clippy::allow_attributes_without_reason, reason = "generated")]
#[rustfmt::skip]
mod v1;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use berth_api::CpuSet;
use tonic::transport::Endpoint;

use crate::root::Root;
use berth_runtime::cli::text;
use v1::pod_resources_lister_client::PodResourcesListerClient;
use v1::{AllocatableResourcesRequest, ListPodResourcesRequest};
pub use v1::{
    ContainerDevices, ContainerMemory, ContainerResources, NumaNode, PodResources, TopologyInfo,
};

/// Its socket.
pub const SOCKET: &str = "var/lib/kubelet/pod-resources/kubelet.sock";
/// A kubelet that hangs must not hold up the look at the host.
const PATIENCE: Duration = Duration::from_secs(2);

/// As the kubelet's own clients have it, in bytes.
const LARGEST: usize = 16 << 20;

/// What the kubelet said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listed {
    /// Pods with what their containers have.
    pub pods: Vec<PodResources>,
    /// CPUs that can be handed out exclusively; `None` from kubelets before 1.23.
    pub allocatable_cpus: Option<CpuSet>,
    /// Healthy devices; `None` from kubelets before 1.23.
    pub devices: Option<Devices>,
}

/// Healthy devices of device plugins, allocated or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// Number by resource and zone; `None` is the zone of devices without one.
    pub by_zone: BTreeMap<(String, Option<u32>), u32>,
    /// Resources with a device of several zones. They are not in `by_zone`: such a device counts in each of its zones.
    pub of_several_zones: BTreeSet<String>,
}

impl Devices {
    /// Counts the devices that a kubelet lists. It makes an entry of each device, and might make one of several.
    #[must_use]
    pub fn of(listed: &[ContainerDevices]) -> Self {
        let mut devices = Self::default();
        for entry in listed {
            match zones(entry).as_slice() {
                [_, _, ..] => drop(devices.of_several_zones.insert(entry.resource_name.clone())),
                one => {
                    let key = (entry.resource_name.clone(), one.first().copied());
                    let count: &mut u32 = devices.by_zone.entry(key).or_default();
                    *count = count.saturating_add(crate::observe::count(entry.device_ids.len()));
                }
            }
        }
        let several = &devices.of_several_zones;
        devices.by_zone.retain(|(resource, _), _| !several.contains(resource));
        devices
    }
}

/// The zones of devices, ascending; none where the plugin says nothing. A plugin may send -1 for a device without a zone.
#[must_use]
pub fn zones(devices: &ContainerDevices) -> Vec<u32> {
    let nodes = devices.topology.iter().flat_map(|topology| &topology.nodes);
    let zones: BTreeSet<u32> = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
    zones.into_iter().collect()
}

/// Asks the kubelet. `Ok(None)` where it has no such socket.
///
/// # Errors
/// Why it did not answer, or not sensibly.
pub fn list(root: &Root) -> Result<Option<Listed>, String> {
    let socket = root.path().join(SOCKET);
    if !root.is_live() || !root.exists(SOCKET) {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(&socket)).await });
    asked.map_err(|_| format!("no answer in {} s", PATIENCE.as_secs()))?.map(Some)
}

async fn ask(socket: &Path) -> Result<Listed, String> {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| text::chain(&error))?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST);
    let listed =
        client.list(ListPodResourcesRequest {}).await.map_err(|status| status.to_string())?;
    let allocatable = match client.get_allocatable_resources(AllocatableResourcesRequest {}).await {
        Ok(answer) => Some(answer.into_inner()),
        Err(status) => {
            // Unimplemented before 1.21; behind a feature gate, before 1.23, the answer is Unknown.
            tracing::debug!(error = %status, "kubelet does not answer GetAllocatableResources");
            None
        }
    };
    Ok(Listed {
        pods: listed.into_inner().pod_resources,
        allocatable_cpus: allocatable.as_ref().and_then(|answer| cpus(&answer.cpu_ids)),
        devices: allocatable.map(|answer| Devices::of(&answer.devices)),
    })
}

/// CPU ids as a set; `None` if one is none.
#[must_use]
pub fn cpus(ids: &[i64]) -> Option<CpuSet> {
    ids.iter().map(|id| u32::try_from(*id).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// What is said of a kubelet that does this with whoever connects.
    fn said_of(kubelet: fn(UnixStream)) -> Result<Option<Listed>, String> {
        let host = tempfile::tempdir().unwrap();
        let socket = host.path().join(SOCKET);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(kubelet));
        list(&Root::live_below(host.path()).unwrap())
    }

    #[test]
    fn a_kubelet_that_makes_no_sense_is_said_and_holds_up_nothing() {
        let hangs = said_of(std::mem::forget);
        assert_eq!(hangs, Err("no answer in 2 s".to_owned()));
        assert!(said_of(drop).is_err());
        let babbles = said_of(|mut stream| {
            // Whoever asked may be gone already.
            stream.write_all(&[0xff; 4096]).unwrap_or_default();
        });
        assert!(babbles.is_err(), "{babbles:?}");
        let speaks_http1 = said_of(|mut stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap_or_default();
        });
        assert!(speaks_http1.is_err(), "{speaks_http1:?}");
    }

    #[test]
    fn a_host_without_a_kubelet_is_no_mistake() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(list(&Root::live_below(host.path()).unwrap()), Ok(None));
        // A socket that nobody listens on any more.
        let socket = host.path().join(SOCKET);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        let left = list(&Root::live_below(host.path()).unwrap());
        assert!(left.is_err_and(|why| why.contains("refused")));
    }
}
