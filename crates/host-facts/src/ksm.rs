//! Kernel samepage merging (KSM): settings, counters, and the program that manages KSM.
//!
//! Rules: `Documentation/admin-guide/mm/ksm.rst`.

use berth_api::infra_node::{Ksm, KsmAdvisor, KsmOwner, UnknownReason};

use super::kernel_files::read_bool;
use super::memory::bracketed_word;
use super::processes::Processes;
use crate::notes::Notes;
use crate::root::Root;

const KSM_FOLDER: &str = "sys/kernel/mm/ksm";

/// Settings and counters of the kernel thread ksmd. The counters change continuously, so they are exported as metrics
/// and are not fields of the InfraNode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KsmFacts {
    /// State of ksmd: 0 stopped, 1 running, 2 unmerging.
    pub run: Option<u32>,
    /// Number of pages that ksmd scans before it sleeps for [`Self::sleep_millisecs`].
    pub pages_to_scan: Option<u64>,
    /// Time in milliseconds that ksmd sleeps between two scans.
    pub sleep_millisecs: Option<u64>,
    /// Number of shared pages in use.
    pub pages_shared: Option<u64>,
    /// Number of mappings that share the [`Self::pages_shared`], which is the number of saved pages.
    pub pages_sharing: Option<u64>,
    /// Number of pages that ksmd scanned repeatedly without finding an equal page.
    pub pages_unshared: Option<u64>,
    /// Number of pages that change too often to be merged.
    pub pages_volatile: Option<u64>,
    /// Number of page scans that ksmd has skipped because of its setting `smart_scan`.
    pub pages_skipped: Option<u64>,
    /// Number of complete scans of all memory.
    pub full_scans: Option<u64>,
    /// Bytes that KSM saves, minus the bytes of KSM's own data; negative if KSM uses more memory than it saves.
    pub general_profit: Option<i64>,
    /// Programs that run on the host and could manage KSM, and Berth if it has changed KSM in this boot.
    pub owner_candidates: Vec<KsmOwner>,
}

/// Reads `/sys/kernel/mm/ksm`. The returned [`Ksm`] is `None` if this kernel has no KSM.
///
/// `is_managed` is true if Berth has changed KSM in this boot.
pub fn observe(
    root: &Root,
    processes: &Processes,
    is_managed: bool,
    notes: &mut Notes,
) -> (KsmFacts, Option<Ksm>) {
    let run = match root.read_value::<u32>(&format!("{KSM_FOLDER}/run")) {
        Ok(run) => run,
        Err(error) => {
            notes.value_or_unknown::<()>("capabilities.memory.ksm", Err(error));
            return (KsmFacts::default(), None);
        }
    };
    let number = |name: &str| root.read_value::<u64>(&format!("{KSM_FOLDER}/{name}")).ok();
    let candidates = owner_candidates(is_managed, processes);
    let facts = KsmFacts {
        run: Some(run),
        pages_to_scan: number("pages_to_scan"),
        sleep_millisecs: number("sleep_millisecs"),
        pages_shared: number("pages_shared"),
        pages_sharing: number("pages_sharing"),
        pages_unshared: number("pages_unshared"),
        pages_volatile: number("pages_volatile"),
        pages_skipped: number("pages_skipped"),
        full_scans: number("full_scans"),
        general_profit: root.read_value(&format!("{KSM_FOLDER}/general_profit")).ok(),
        owner_candidates: candidates,
    };
    let owner = determine_owner(run, &facts.owner_candidates, processes.are_visible);
    if owner.is_none() {
        let message =
            "the host's processes are not visible, so ksmtuned or virt-handler may be running";
        notes.add_unknown("capabilities.memory.ksm.owner", UnknownReason::NotFound, message);
    }
    let status = Ksm {
        running: Some(run == 1),
        owner,
        advisor: read_advisor(root, notes),
        smart_scan: read_bool(root, &format!("{KSM_FOLDER}/smart_scan")),
        merge_across_nodes: read_bool(root, &format!("{KSM_FOLDER}/merge_across_nodes")),
    };
    (facts, Some(status))
}

fn read_advisor(root: &Root, notes: &mut Notes) -> Option<KsmAdvisor> {
    let text = root.read(&format!("{KSM_FOLDER}/advisor_mode")).ok()?;
    match bracketed_word(&text) {
        Some("none") => Some(KsmAdvisor::None),
        Some("scan-time") => Some(KsmAdvisor::ScanTime),
        _ => {
            let message = format!(
                "/{KSM_FOLDER}/advisor_mode: `{}` has no known mode in brackets",
                text.escape_debug()
            );
            notes.add_unknown("capabilities.memory.ksm.advisor", UnknownReason::Malformed, message);
            None
        }
    }
}

fn owner_candidates(managed: bool, processes: &Processes) -> Vec<KsmOwner> {
    let if_present = |owner: KsmOwner, yes: bool| yes.then_some(owner);
    [
        if_present(KsmOwner::Berth, managed),
        if_present(KsmOwner::KubeVirt, processes.find_by_name("virt-handler").is_some()),
        if_present(KsmOwner::Ksmtuned, processes.find_by_name("ksmtuned").is_some()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the program that manages KSM; `None` if this is unknown because the host's processes are not visible.
/// virt-handler runs on every KubeVirt host, but changes KSM only if KubeVirt's configuration requires this, and
/// otherwise leaves KSM off. Therefore virt-handler is assumed to manage KSM only if KSM runs and neither ksmtuned nor
/// Berth manages it.
fn determine_owner(run: u32, candidates: &[KsmOwner], processes_visible: bool) -> Option<KsmOwner> {
    let is_candidate = |owner| candidates.contains(&owner);
    if is_candidate(KsmOwner::Ksmtuned) {
        Some(KsmOwner::Ksmtuned)
    } else if is_candidate(KsmOwner::Berth) {
        Some(KsmOwner::Berth)
    } else if !processes_visible {
        None
    } else if run == 0 {
        Some(KsmOwner::Nobody)
    } else if is_candidate(KsmOwner::KubeVirt) {
        Some(KsmOwner::KubeVirt)
    } else {
        Some(KsmOwner::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_the_program_that_would_revert_changes() {
        use KsmOwner::{Berth, Ksmtuned, KubeVirt, Nobody, Unknown};
        for (run, candidates, known, expected) in [
            (0, vec![], true, Some(Nobody)),
            (1, vec![], true, Some(Unknown)),
            (1, vec![], false, None),
            (0, vec![], false, None),
            (1, vec![KubeVirt], true, Some(KubeVirt)),
            (0, vec![KubeVirt], true, Some(Nobody)),
            (0, vec![Ksmtuned], true, Some(Ksmtuned)),
            (1, vec![Berth, KubeVirt], true, Some(Berth)),
            (1, vec![Berth, Ksmtuned], true, Some(Ksmtuned)),
        ] {
            assert_eq!(determine_owner(run, &candidates, known), expected, "{run} {candidates:?}");
        }
    }
}
