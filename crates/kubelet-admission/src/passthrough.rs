//! Memory of a guest by zone with KubeVirt's `guestMappingPassthrough` (`numaMapping` in KubeVirt's
//! virt-launcher/virtwrap/converter). The kubelet does not take this setting into account.
//!
//! KubeVirt splits the guest's memory evenly over the host's zones that contain the guest's CPUs, and binds each part
//! strictly to its zone. If one of these zones has too few free pages, the VM fails after the kubelet has admitted its
//! pod.

use berth_api::PageSize;

use super::host::KubeletHost;
use super::state::Admission;

impl Admission {
    /// Returns, by zone number, the bytes of the guest's memory that each zone must provide. The memory is divided into
    /// whole pages of `page_size`, or into bytes if `page_size` is `None`; the first zones provide the remainder. The
    /// result is empty if the container has no exclusive CPUs.
    #[must_use]
    pub fn guest_memory_by_zone(
        &self,
        host: &KubeletHost,
        container: usize,
        bytes: u64,
        page_size: Option<PageSize>,
    ) -> Vec<(u32, u64)> {
        let Some(grant) = self.grants.get(container) else { return Vec::new() };
        let cpus = grant.cpus.to_cpu_bits();
        let zones: Vec<u32> = host
            .zones
            .iter()
            .filter(|zone| cpus.count_range(zone.cpus.0, zone.cpus.1) > 0)
            .map(|zone| zone.id)
            .collect();
        let unit = page_size.map_or(1, PageSize::bytes);
        let Ok(count) = u64::try_from(zones.len()) else { return Vec::new() };
        let Some(each) = (bytes / unit).checked_div(count) else { return Vec::new() };
        let remainder = bytes / unit - each * count;
        (0u64..)
            .zip(zones)
            .map(|(index, zone)| (zone, (each + u64::from(index < remainder)) * unit))
            .collect()
    }
}
