//! Reasons of conditions and of events. They are enums, so that code compares values instead of strings, and tests can
//! check that the documentation lists all of them.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// Reason of a condition (`metav1.Condition.reason`) on any object that Berth writes a status to.
///
/// `docs/troubleshooting.md` has a row for each of them.
#[derive(
    Clone,
    Copy,
    Debug,
    Display,
    EnumIter,
    EnumString,
    Eq,
    Hash,
    IntoStaticStr,
    Ord,
    PartialEq,
    PartialOrd,
)]
#[allow(missing_docs, reason = "docs/troubleshooting.md describes each of them")]
pub enum ConditionReason {
    // InfraNode, set by the agent.
    Applied,
    PartiallyApplied,
    NoManifest,
    InvalidSpec,
    Blocked,
    DriftDetected,
    RollbackLedgerUnavailable,
    ChangesPending,
    Pending,
    Failed,
    GuestFilterFailed,
    LinksUnknown,
    ConfigurationDiffers,
    ConfigurationUnknown,
    KubeletRestartRequired,
    CheckpointRefused,
    NoCpuSupport,
    DisabledInFirmware,
    ModuleNotLoaded,
    NoPermission,
    SmokeTestFailed,
    Unknown,
    Valid,
    ExpiresSoon,
    Expired,
    TrunkVerified,
    VlansMissing,
    VlansUnverified,
    NoTrunkPeers,
    NoTrunkKey,
    TrunkProbeFailed,
    AddressInUse,
    // InfraNode, HostProfile and InfraConfig, set by the controller.
    AgentUnresponsive,
    HostCordoned,
    PodsEvicted,
    DrainCancelled,
    MachinesReplaced,
    MachinesWaitForHost,
    TooManyHostsAway,
    NoMachines,
    FieldsOwnedByOthers,
    PriorityConflict,
    Conflict,
    Malformed,
    Accepted,
    Ignored,
    // TenantCluster.
    Ready,
    PodNetworkOnly,
    NoHosts,
    HostNetworksDiffer,
    InvalidHostNetwork,
    NoPool,
    PoolExhausted,
    PoolsOverlap,
    NetworkIdInUse,
    InvalidNetworkId,
    NetworkIdImmutable,
    InvalidBinding,
    InvalidAddressPool,
    AddressesExhausted,
    AddressesOutsidePool,
    MtuMismatch,
    AddressesReady,
    PrefixPending,
    PrefixInUse,
    PrefixOutsidePool,
    InvalidExposure,
    LoadBalancerPoolsOverlap,
    LoadBalancerAddressesInUse,
    CloudControllerManagerUnavailable,
    BindingPluginMissing,
    CrdMissing,
    NotOwned,
    ApplyFailed,
    DeleteFailed,
    HostsNotReady,
    InvalidPolicy,
    ClusterFactsUnknown,
    InvalidKubeconfig,
    MachinesReady,
    MachinesNotReady,
    Connected,
    KubeconfigRefused,
    AccessDenied,
    ServerCertificateInvalid,
    TenantUnreachable,
    InvalidAnswer,
    RequestRefused,
    LabelsReplicated,
    AmbiguousNodes,
    TooManyNodes,
    StorageClassesApplied,
    StorageClassesMissing,
    StorageClassesRetained,
    ImmutableFieldsDiffer,
    TooManyStorageClasses,
    AddressesDistinct,
    AddressCollision,
    TenantAddressUnknown,
    DeletingMachines,
    DeletingNetwork,
    ReleasingClaim,
    NamespaceTerminating,
    DeletingObjects,
    Deleted,
    // MachineDeployment.
    Complete,
    Progressing,
    Paused,
    WaitingForTenant,
    ProgressDeadlineExceeded,
    AllHonored,
    PartiallyHonored,
    MachinesAvailable,
    MachinesUnavailable,
    AddressClaimLost,
    DrainingMachines,
    DrainBlocked,
    DrainDeadlineExceeded,
    WaitingForVolumes,
    WaitingForHost,
}

impl ConditionReason {
    /// Returns the value of `metav1.Condition.reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Reason of a Kubernetes Event that Berth emits.
#[derive(
    Clone,
    Copy,
    Debug,
    Display,
    EnumIter,
    EnumString,
    Eq,
    Hash,
    IntoStaticStr,
    Ord,
    PartialEq,
    PartialOrd,
)]
#[allow(missing_docs, reason = "docs/troubleshooting.md describes each of them")]
pub enum EventReason {
    Applied,
    PartiallyApplied,
    DriftCorrected,
    ChangeFailed,
    ChangeBlocked,
    InvalidSpec,
    ForeignDhcpServer,
    AddressConflict,
    /// Another manager writes the NodeResourceTopology.
    ManagedElsewhere,
    Malformed,
    LeasesOmitted,
    ManagedByMachineController,
    EvacuationStarted,
    EvacuationWaiting,
    EvacuationCancelled,
    EvacuationCompleted,
    MigrationCreated,
    ReplacementRequested,
    RemovalRequested,
    MachineReplaced,
    MachineWaitsForHost,
    DrainBlocked,
    DrainDeadlineExceeded,
    MachineDrained,
}

impl EventReason {
    /// Returns the value of `Event.reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
