//! Client of the kubelet's PodResources API: lists allocated resources, over the kubelet's socket.

#[expect(unreachable_pub, clippy::allow_attributes_without_reason, reason = "generated")]
#[rustfmt::skip]
mod v1;

use std::path::Path;
use std::time::Duration;

use berth_host_facts::kubelet::podresources::v1::{
    AllocatableResourcesRequest, ListPodResourcesRequest,
};
use berth_host_facts::kubelet::podresources::{
    DeviceCounts, PodResourcesError, PodResourcesList, SOCKET_PATH, to_cpu_set,
};
use berth_host_facts::root::Root;
use berth_runtime::cli::text;
use tonic::transport::Endpoint;
use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Time limit for all requests of one call: a kubelet that hangs must not delay the observation of the host.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Limit of a response in bytes, the same as in the kubelet's own clients.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Lists the resources that the kubelet has allocated; `Ok(None)` if the kubelet has no socket for the PodResources
/// API.
///
/// # Errors
/// If the kubelet does not answer, or the answer is invalid.
pub(super) fn list_pod_resources(
    root: &Root,
) -> Result<Option<PodResourcesList>, PodResourcesError> {
    let socket = root.path().join(SOCKET_PATH);
    if !root.is_live() || !root.exists(SOCKET_PATH) {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(call_error)?;
    let result =
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, query_kubelet(&socket)).await });
    result.map_err(|_| PodResourcesError::Timeout(TIMEOUT.as_secs()))?.map(Some)
}

async fn query_kubelet(socket: &Path) -> Result<PodResourcesList, PodResourcesError> {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(call_error)?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| PodResourcesError::CallFailed(text::error_chain(&error)))?;
    let mut client =
        PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
    let pods = client.list(ListPodResourcesRequest {}).await.map_err(call_error)?;
    let allocatable = match client.get_allocatable_resources(AllocatableResourcesRequest {}).await {
        Ok(answer) => Some(answer.into_inner()),
        Err(status) => {
            // Kubelets before 1.21 do not implement the method; kubelets before 1.23 return the status Unknown while
            // its feature gate is off.
            tracing::debug!(error = %status, "kubelet does not answer GetAllocatableResources");
            None
        }
    };
    Ok(PodResourcesList {
        pods: pods.into_inner().pod_resources,
        allocatable_cpus: allocatable.as_ref().and_then(|answer| to_cpu_set(&answer.cpu_ids)),
        devices: allocatable.map(|answer| DeviceCounts::count_devices(&answer.devices)),
    })
}

fn call_error(error: impl std::fmt::Display) -> PodResourcesError {
    PodResourcesError::CallFailed(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// Lists the resources from a socket on which `kubelet` handles each connection.
    fn list_from_server(
        kubelet: fn(UnixStream),
    ) -> Result<Option<PodResourcesList>, PodResourcesError> {
        let host = tempfile::tempdir().unwrap();
        let socket = host.path().join(SOCKET_PATH);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(kubelet));
        list_pod_resources(&Root::open_live_mounted_at(host.path()).unwrap())
    }

    #[test]
    fn invalid_kubelet_response_is_an_error_within_the_timeout() {
        let hangs = list_from_server(std::mem::forget);
        assert_eq!(hangs, Err(PodResourcesError::Timeout(2)));
        assert!(list_from_server(drop).is_err());
        let sends_garbage = list_from_server(|mut stream| {
            // The client may have disconnected.
            stream.write_all(&[0xff; 4096]).unwrap_or_default();
        });
        assert!(sends_garbage.is_err(), "{sends_garbage:?}");
        let speaks_http1 = list_from_server(|mut stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap_or_default();
        });
        assert!(speaks_http1.is_err(), "{speaks_http1:?}");
    }

    #[test]
    fn a_host_without_a_kubelet_is_not_an_error() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(list_pod_resources(&Root::open_live_mounted_at(host.path()).unwrap()), Ok(None));
        // The socket file exists, but no process listens.
        let socket = host.path().join(SOCKET_PATH);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        let result = list_pod_resources(&Root::open_live_mounted_at(host.path()).unwrap());
        assert!(result.is_err_and(|error| error.to_string().contains("refused")));
    }
}
