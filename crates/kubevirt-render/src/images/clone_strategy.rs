//! Strategy with which CDI clones a volume, and its reason.
//!
//! The rules are those of `computeStrategyForSourcePVC` and `validateAdvancedClonePVC` in `pkg/controller/clone/planner.go`
//! of kubevirt/containerized-data-importer 1.66; releases since 1.57 differ only in the choice of the VolumeSnapshotClass:
//!
//! 1. Without a CSIDriver object of the provisioner, the clone is host-assisted (`shouldUseCDIPopulator` and
//!    `storageClassCSIDriverExists` in `pkg/controller/datavolume`).
//! 2. The strategy is that of the CDI object (`cloneStrategyOverride`), otherwise that of the StorageProfile of the clone,
//!    otherwise a smart clone.
//! 3. A smart clone needs a VolumeSnapshotClass of the driver (`GetCompatibleVolumeSnapshotClass`).
//! 4. A smart clone and a CSI clone need the same driver and the same volume mode for source and clone. If the clone is
//!    larger, its storage class must permit the expansion of volumes.
//! 5. Otherwise, the clone is host-assisted.
//!
//! A source that a pod may write to is never cloned: CDI waits until no pod uses it, with each strategy
//! (`IsSourceClaimReady`, and `reconcileSourcePod` in `clone-controller.go`). The documentation of CDI describes this as a
//! condition of smart clones and CSI clones, without which the clone is host-assisted; the code does not choose another
//! strategy for a source in use.

use std::fmt;

use berth_api::{CloneStrategy, Quantity};

use super::storage_profile::{SnapshotClass, StorageProfile};
use super::volume_mode::VolumeMode;

/// The source of a clone, or the clone itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneVolume<'a> {
    /// Provisioner of the storage class, which is the name of a CSI driver.
    pub provisioner: &'a str,
    /// StorageProfile of the storage class.
    pub profile: Option<&'a StorageProfile>,
    /// Volume mode; `None` stands for `Filesystem`, as in Kubernetes.
    pub volume_mode: Option<VolumeMode>,
    /// Capacity of the source, or requested size of the clone; `None` if it is unknown.
    pub size: Option<Quantity>,
}

/// Input of [`ClonePlan::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRequest<'a> {
    /// The source.
    pub source: CloneVolume<'a>,
    /// The clone.
    pub target: CloneVolume<'a>,
    /// True if the storage class of the clone permits the expansion of volumes.
    pub allows_expansion: bool,
    /// All VolumeSnapshotClasses; `None` if they are unknown. Then that of the StorageProfile is assumed to exist.
    pub snapshot_classes: Option<&'a [SnapshotClass]>,
    /// `spec.cloneStrategyOverride` of the CDI object.
    pub strategy_override: Option<CloneStrategy>,
    /// True if a CSIDriver has the name of the clone's provisioner, or if the CSIDrivers are unknown.
    pub has_csi_driver: bool,
    /// True if a pod may write to the source.
    pub is_source_in_use: bool,
}

/// Strategy with which CDI clones a volume, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClonePlan {
    /// Strategy that CDI uses.
    pub strategy: CloneStrategy,
    /// Reason of the strategy.
    pub reason: CloneReason,
    /// True if CDI waits until no pod uses the source.
    pub waits_for_source: bool,
}

/// Reason why CDI uses a strategy. Reasons of host-assisted clones have the names of CDI's events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloneReason {
    /// The CDI object specifies the strategy for all clones.
    #[error("cloneStrategyOverride of the CDI object selects it for all clones")]
    Override,
    /// The StorageProfile specifies the strategy.
    #[error("the StorageProfile selects it")]
    StorageProfile,
    /// The provisioner has no CSIDriver.
    #[error(
        "no CSIDriver has the name of the provisioner {provisioner}, and CDI then copies every disk: install the CSI driver \
         with its CSIDriver"
    )]
    NoCsiDriver {
        /// Provisioner of the storage class.
        provisioner: String,
    },
    /// The driver has a VolumeSnapshotClass.
    #[error("VolumeSnapshotClass {name} has the driver {driver} of the storage class")]
    VolumeSnapshotClass {
        /// Name of the VolumeSnapshotClass.
        name: String,
        /// Name of the driver.
        driver: String,
    },
    /// No VolumeSnapshotClass has the driver.
    #[error("no VolumeSnapshotClass has the driver {driver} of the storage class: create one")]
    NoVolumeSnapshotClass {
        /// Name of the driver.
        driver: String,
    },
    /// The VolumeSnapshotClass of the StorageProfile does not exist, or has another driver.
    #[error(
        "the StorageProfile names VolumeSnapshotClass {name}, which does not exist or does not have the driver {driver}: \
         correct spec.snapshotClass of the StorageProfile"
    )]
    UnsuitableVolumeSnapshotClass {
        /// Name of the VolumeSnapshotClass.
        name: String,
        /// Name of the driver.
        driver: String,
    },
    /// Source and clone have different drivers.
    #[error(
        "source and clone have different drivers, {from} and {to}: import the image into the storage class of the disks"
    )]
    IncompatibleProvisioners {
        /// Driver of the source.
        from: String,
        /// Driver of the clone.
        to: String,
    },
    /// Source and clone have different volume modes.
    #[error("source and clone have different volume modes, {} and {}", .from.as_str(), .to.as_str())]
    IncompatibleVolumeModes {
        /// Volume mode of the source.
        from: VolumeMode,
        /// Volume mode of the clone.
        to: VolumeMode,
    },
    /// The clone is larger than the source, and its storage class does not permit the expansion of volumes.
    #[error(
        "the disk ({to}) is larger than the source ({from}), and the storage class does not permit the expansion of volumes: \
         set allowVolumeExpansion"
    )]
    NoVolumeExpansion {
        /// Size of the source.
        from: Quantity,
        /// Size of the clone.
        to: Quantity,
    },
}

impl ClonePlan {
    /// Determines how CDI clones a volume.
    #[must_use]
    pub fn new(request: &CloneRequest<'_>) -> Self {
        let (strategy, reason) = match choose_strategy(request) {
            Ok(chosen) => chosen,
            Err(fallback_reason) => (CloneStrategy::HostAssisted, fallback_reason),
        };
        Self { strategy, reason, waits_for_source: request.is_source_in_use }
    }
}

/// Returns the strategy, or the reason why it falls back to a host-assisted clone.
fn choose_strategy(
    request: &CloneRequest<'_>,
) -> Result<(CloneStrategy, CloneReason), CloneReason> {
    let of_profile = request.target.profile.and_then(|profile| profile.clone_strategy);
    let (strategy, mut reason) = match (request.strategy_override, of_profile) {
        (Some(strategy), _) => (strategy, CloneReason::Override),
        (None, Some(strategy)) => (strategy, CloneReason::StorageProfile),
        (None, None) => (CloneStrategy::Snapshot, CloneReason::StorageProfile),
    };
    if strategy == CloneStrategy::HostAssisted {
        return Ok((strategy, reason));
    }
    let CloneRequest { source, target, .. } = request;
    if !request.has_csi_driver {
        return Err(CloneReason::NoCsiDriver { provisioner: target.provisioner.to_owned() });
    }
    if source.provisioner != target.provisioner {
        let (from, to) = (source.provisioner.to_owned(), target.provisioner.to_owned());
        return Err(CloneReason::IncompatibleProvisioners { from, to });
    }
    if strategy == CloneStrategy::Snapshot {
        let (name, driver) = (find_snapshot_class(request)?, target.provisioner.to_owned());
        reason = CloneReason::VolumeSnapshotClass { name, driver };
    }
    let mode = |volume: &CloneVolume<'_>| volume.volume_mode.unwrap_or(VolumeMode::Filesystem);
    let (from, to) = (mode(source), mode(target));
    if from != to {
        return Err(CloneReason::IncompatibleVolumeModes { from, to });
    }
    if let (Some(from), Some(to)) = (source.size, target.size)
        && from < to
        && !request.allows_expansion
    {
        return Err(CloneReason::NoVolumeExpansion { from, to });
    }
    Ok((strategy, reason))
}

/// Returns the name of the VolumeSnapshotClass for a smart clone. If the StorageProfiles of source and clone name the same
/// one, only this class is suitable. Otherwise it is the default class of the driver, or the first one by name.
fn find_snapshot_class(request: &CloneRequest<'_>) -> Result<String, CloneReason> {
    let driver = request.target.provisioner;
    let of_profile = |volume: &CloneVolume<'_>| {
        volume.profile.and_then(|profile| profile.snapshot_class.clone())
    };
    let (of_source, of_target) = (of_profile(&request.source), of_profile(&request.target));
    let common = of_target.filter(|name| of_source.as_ref() == Some(name));
    let Some(all) = request.snapshot_classes else {
        return common
            .ok_or_else(|| CloneReason::NoVolumeSnapshotClass { driver: driver.to_owned() });
    };
    let of_driver = || all.iter().filter(move |class| class.driver == driver);
    if let Some(name) = common {
        return if of_driver().any(|class| class.name == name) {
            Ok(name)
        } else {
            Err(CloneReason::UnsuitableVolumeSnapshotClass { name, driver: driver.to_owned() })
        };
    }
    let default = of_driver().find(|class| class.is_default);
    let first = || of_driver().min_by(|one, other| one.name.cmp(&other.name));
    let found = default.or_else(first).map(|class| class.name.clone());
    found.ok_or_else(|| CloneReason::NoVolumeSnapshotClass { driver: driver.to_owned() })
}

/// Writes the strategy and its reason: `smart clone: VolumeSnapshotClass ...`.
impl fmt::Display for ClonePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strategy = match self.strategy {
            CloneStrategy::Snapshot => "smart clone",
            CloneStrategy::CsiClone => "CSI clone",
            CloneStrategy::HostAssisted => "host-assisted clone",
        };
        write!(f, "{strategy}: {}", self.reason)?;
        if self.waits_for_source {
            f.write_str("; CDI waits until no pod uses the source")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "rbd.csi.ceph.com";

    fn profile(strategy: Option<CloneStrategy>, class: Option<&str>) -> StorageProfile {
        StorageProfile {
            claim_properties: Vec::new(),
            clone_strategy: strategy,
            snapshot_class: class.map(str::to_owned),
        }
    }

    fn class(name: &str, driver: &str, is_default: bool) -> SnapshotClass {
        SnapshotClass { name: name.to_owned(), driver: driver.to_owned(), is_default }
    }

    fn volume<'a>(profile: &'a StorageProfile, size: &str) -> CloneVolume<'a> {
        CloneVolume {
            provisioner: DRIVER,
            profile: Some(profile),
            volume_mode: Some(VolumeMode::Block),
            size: Some(size.parse().unwrap()),
        }
    }

    /// Returns a request to clone a volume of 10Gi in the same storage class.
    fn request<'a>(profile: &'a StorageProfile, classes: &'a [SnapshotClass]) -> CloneRequest<'a> {
        CloneRequest {
            source: volume(profile, "10Gi"),
            target: volume(profile, "20Gi"),
            allows_expansion: true,
            snapshot_classes: Some(classes),
            strategy_override: None,
            has_csi_driver: true,
            is_source_in_use: false,
        }
    }

    fn snapshot_class(name: &str) -> CloneReason {
        CloneReason::VolumeSnapshotClass { name: name.to_owned(), driver: DRIVER.to_owned() }
    }

    #[test]
    fn the_strategy_is_that_of_the_profile() {
        let classes = [class("rbd", DRIVER, false)];
        let plan = |strategy, strategy_override| {
            let profile = profile(strategy, None);
            let request = CloneRequest { strategy_override, ..request(&profile, &classes) };
            let ClonePlan { strategy, reason, .. } = ClonePlan::new(&request);
            (strategy, reason)
        };
        use CloneStrategy::{CsiClone, HostAssisted, Snapshot};
        assert_eq!(plan(None, None), (Snapshot, snapshot_class("rbd")));
        assert_eq!(plan(Some(Snapshot), None), (Snapshot, snapshot_class("rbd")));
        assert_eq!(plan(Some(CsiClone), None), (CsiClone, CloneReason::StorageProfile));
        assert_eq!(plan(Some(HostAssisted), None), (HostAssisted, CloneReason::StorageProfile));
        assert_eq!(plan(Some(CsiClone), Some(HostAssisted)), (HostAssisted, CloneReason::Override));
        assert_eq!(plan(Some(HostAssisted), Some(CsiClone)), (CsiClone, CloneReason::Override));
    }

    #[test]
    fn a_smart_clone_needs_a_snapshot_class_of_the_driver() {
        let plain = profile(Some(CloneStrategy::Snapshot), None);
        let named = profile(Some(CloneStrategy::Snapshot), Some("b"));
        let all = [
            class("other", "other.csi", true),
            class("c", DRIVER, false),
            class("b", DRIVER, false),
        ];
        let with_default = [class("b", DRIVER, false), class("z", DRIVER, true)];
        let reason = |profile: &StorageProfile, classes: &[SnapshotClass]| {
            ClonePlan::new(&request(profile, classes)).reason
        };
        assert_eq!(
            reason(&plain, &all),
            snapshot_class("b"),
            "the first class by name should be used"
        );
        assert_eq!(
            reason(&plain, &with_default),
            snapshot_class("z"),
            "the default class should be used"
        );
        assert_eq!(
            reason(&named, &with_default),
            snapshot_class("b"),
            "the class of the StorageProfile should be used"
        );
        let driver = || DRIVER.to_owned();
        let missing = CloneReason::NoVolumeSnapshotClass { driver: driver() };
        assert_eq!(reason(&plain, &all[..1]), missing);
        let unsuitable =
            CloneReason::UnsuitableVolumeSnapshotClass { name: "b".to_owned(), driver: driver() };
        assert_eq!(reason(&named, &all[..2]), unsuitable);
        // The source has another StorageProfile, which names no class.
        let mut two_profiles = request(&named, &with_default);
        two_profiles.source.profile = Some(&plain);
        assert_eq!(ClonePlan::new(&two_profiles).reason, snapshot_class("z"));
    }

    #[test]
    fn a_provisioner_without_a_csi_driver_copies_every_disk() {
        let classes = [class("rbd", DRIVER, false)];
        for (strategy, strategy_override) in [
            (None, None),
            (Some(CloneStrategy::CsiClone), None),
            (Some(CloneStrategy::Snapshot), None),
            (None, Some(CloneStrategy::CsiClone)),
        ] {
            let profile = profile(strategy, None);
            let request = CloneRequest {
                has_csi_driver: false,
                strategy_override,
                ..request(&profile, &classes)
            };
            let plan = ClonePlan::new(&request);
            assert_eq!(plan.strategy, CloneStrategy::HostAssisted);
            assert_eq!(plan.reason, CloneReason::NoCsiDriver { provisioner: DRIVER.to_owned() });
        }
    }

    #[test]
    fn unknown_snapshot_classes_are_those_of_the_profile() {
        for (name, strategy) in
            [(Some("rbd"), CloneStrategy::Snapshot), (None, CloneStrategy::HostAssisted)]
        {
            let profile = profile(None, name);
            let request = CloneRequest { snapshot_classes: None, ..request(&profile, &[]) };
            assert_eq!(ClonePlan::new(&request).strategy, strategy);
        }
    }

    #[test]
    fn source_and_clone_must_match() {
        let profile = profile(Some(CloneStrategy::CsiClone), None);
        let plan = |change: fn(&mut CloneRequest<'_>)| {
            let mut request = request(&profile, &[]);
            change(&mut request);
            ClonePlan::new(&request)
        };
        let is_host_assisted = |plan: &ClonePlan| plan.strategy == CloneStrategy::HostAssisted;
        assert!(!is_host_assisted(&plan(|_| {})));
        let other_driver = plan(|request| request.source.provisioner = "local.csi");
        assert!(is_host_assisted(&other_driver));
        assert!(matches!(other_driver.reason, CloneReason::IncompatibleProvisioners { .. }));
        // Without a volume mode, a claim has a file system.
        let other_mode = plan(|request| request.target.volume_mode = None);
        let (from, to) = (VolumeMode::Block, VolumeMode::Filesystem);
        assert_eq!(other_mode.reason, CloneReason::IncompatibleVolumeModes { from, to });
        let larger = plan(|request| request.allows_expansion = false);
        assert!(is_host_assisted(&larger));
        assert!(matches!(larger.reason, CloneReason::NoVolumeExpansion { .. }));
        let same_size = plan(|request| {
            request.allows_expansion = false;
            request.target.size = request.source.size;
        });
        assert!(!is_host_assisted(&same_size));
    }

    #[test]
    fn a_source_in_use_delays_every_clone() {
        let profile = profile(Some(CloneStrategy::HostAssisted), None);
        let mut request = request(&profile, &[]);
        request.is_source_in_use = true;
        let plan = ClonePlan::new(&request);
        assert!(plan.waits_for_source);
        assert_eq!(
            plan.to_string(),
            "host-assisted clone: the StorageProfile selects it; CDI waits until no pod uses the source"
        );
    }
}
