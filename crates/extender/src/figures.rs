//! The desk in numbers: reservations by stage, and how scattered what is free is.

use super::book::Stage;
use super::desk::Desk;

/// Pods by how far they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The scheduler was told a host.
    pub reserved: usize,
    /// The binding was sent.
    pub binding: usize,
    /// On a host.
    pub bound: usize,
    /// Places that are held for VMs whose stand-ins have gone.
    pub kept: usize,
    /// Gone, and maybe not yet for their kubelets.
    pub leaving: usize,
    /// Fit nowhere when they were asked about.
    pub waiting: usize,
}

/// What is free of all hosts, and what of it is of no use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// CPUs that can be pinned now.
    pub free_cpus: u64,
    /// Those in zones that have huge pages, and none left.
    pub stranded_cpus: u64,
    /// Bytes of free huge pages.
    pub free_pages: u64,
    /// Those in zones without a CPU left to pin.
    pub stranded_pages: u64,
    /// Zones with room for at least [`SIZES`] CPUs.
    pub zones: [u64; SIZES.len()],
}

/// CPUs of usual VMs.
pub const SIZES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

impl Desk {
    /// Pods by how far they are.
    #[must_use]
    pub fn stages(&self) -> Stages {
        let mut stages = Stages { waiting: self.waiting.len(), ..Stages::default() };
        let mut loose = 0;
        for (_, entry) in self.book.loose() {
            loose += 1;
            *match entry.stage {
                Stage::Reserved { .. } => &mut stages.reserved,
                Stage::Binding { .. } => &mut stages.binding,
                Stage::Bound { .. } | Stage::Ended => &mut stages.bound,
                Stage::Kept { .. } => &mut stages.kept,
                Stage::Leaving { .. } => &mut stages.leaving,
            } += 1;
        }
        stages.bound += self.book.len().saturating_sub(loose);
        stages
    }

    /// What is free.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        for (host, _) in self.engine.hosts().filter(|(host, _)| !self.out.contains_key(host)) {
            for zone in self.engine.state(host).into_iter().flat_map(|state| state.free_by_zone()) {
                let (pages, of_pages) = zone.all_pages();
                let cpus = u64::from(zone.cpus);
                all.free_cpus += cpus;
                all.free_pages = all.free_pages.saturating_add(pages);
                if of_pages > 0 && pages == 0 {
                    all.stranded_cpus += cpus;
                }
                if zone.all_cpus > 0 && zone.cpus == 0 {
                    all.stranded_pages = all.stranded_pages.saturating_add(pages);
                }
                for (count, size) in all.zones.iter_mut().zip(SIZES) {
                    *count += u64::from(zone.cpus >= size);
                }
            }
        }
        all
    }
}
