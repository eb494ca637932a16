//! Resources that a VM requests, in the form that the plan shows.

use serde::Serialize;

use berth_placement::engine::Request;

/// Resources that a VM requests, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmRequest {
    /// Number of exclusive CPUs.
    pub pinned_cpus: u32,
    /// CPU request in millicores, including exclusive CPUs.
    pub cpu_millis: u64,
    /// Memory in bytes, without huge pages.
    pub memory: u64,
    /// Huge pages in bytes.
    pub hugepages: u64,
    /// Size of the huge pages, if the VM requests huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
}

impl VmRequest {
    pub(super) fn from_request(request: &Request) -> Self {
        let all = request.pod().requests();
        let pages = all.hugepages.iter().find(|(_, bytes)| **bytes > 0);
        let huge = all.hugepages.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        Self {
            pinned_cpus: request.pinned_cpus(),
            cpu_millis: all.cpu_millis,
            memory: all.memory,
            hugepages: huge,
            page_size: pages.map(|(size, _)| size.to_string()),
        }
    }
}
