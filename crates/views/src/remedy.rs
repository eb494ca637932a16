//! Actions that an operator can take about the reason of a condition. `docs/troubleshooting.md` explains each reason at length.

use berth_api::ConditionReason;

/// Returns the remedy for a reason; `None` if the reason needs no action, or if the message of the condition has the
/// remedy.
#[must_use]
pub const fn remedy(reason: ConditionReason) -> Option<&'static str> {
    use ConditionReason as R;
    let text = match reason {
        R::NoCpuSupport => {
            "use a CPU with VMX or SVM; on a host that is a VM, enable nested virtualisation"
        }
        R::DisabledInFirmware => "enable VT-x or SVM in the firmware",
        R::ModuleNotLoaded => "load kvm_intel or kvm_amd, now and at boot",
        R::NoPermission => "run `berth-agent check kvm.access` on the host",
        R::SmokeTestFailed => "run `berth-agent check kvm.vm` on the host",
        R::NoManifest => "select the Node with a HostProfile, or write spec of the InfraNode",
        R::InvalidSpec => "correct the field that the message names",
        R::Blocked => "free the resource that the message names: VMs on it must end or move",
        R::PartiallyApplied => "see status.changes of the InfraNode for the numbers or the error",
        R::DriftDetected => "find the program that changes the setting, or remove enforce: false",
        R::RollbackLedgerUnavailable => "check /var/lib/berth on the host: full or read-only disk",
        R::Failed => "run `berth-agent check network` on the host",
        R::Pending => "the message names the VMs or the change that the network waits for",
        R::GuestFilterFailed => "load nf_tables: modprobe nf_tables",
        R::LinksUnknown => "check that the agent runs in the network namespace of the host",
        R::ConfigurationDiffers => "`berth-agent plan` on the host shows fields and steps",
        R::ConfigurationUnknown => "run `berth-agent check kubelet.config` on the host",
        R::KubeletRestartRequired => "restart the kubelet of the host at a suitable time",
        R::CheckpointRefused => "follow the steps in the message: drain, stop, remove, start",
        R::ExpiresSoon | R::Expired => "renew the certificate (deploy/README.md)",
        R::VlansMissing => "add the VLANs to the switch ports; status.neighbors names them",
        R::VlansUnverified => "add the VLANs to the switch ports, unless no other host has them",
        R::NoTrunkPeers => "check the key and the switch port, unless this is the only host",
        R::NoTrunkKey => "give the agent a key for its probes; the message names the file",
        R::TrunkProbeFailed => "check that the uplink is up, and that the agent has CAP_NET_RAW",
        R::AddressInUse => "stop the other machine, or exclude the address from the pool",
        R::AgentUnresponsive => {
            "check that the host is up; kubectl -n berth-system get pods -o wide shows its agent"
        }
        R::HostCordoned | R::PodsEvicted => {
            "wait, or see `kubectl berth why` of the VMs; kubectl uncordon cancels the drain"
        }
        R::MachinesReplaced => "switch the host off, and set the taint out-of-service",
        R::MachinesWaitForHost => "bring the host back",
        R::TooManyHostsAway => "find the common cause: network, control plane, power",
        R::FieldsOwnedByOthers => "remove the fields from the manager that the message names",
        R::PriorityConflict | R::Conflict => "give one of the HostProfiles a higher priority",
        R::Malformed => "correct the field that the message names",
        R::Ignored => "rename the InfraConfig to default",
        R::ImportFailed => "correct the URL, the checksum, the size, the credentials or the quota",
        R::CrdMissing => "install the missing component that the message names",
        R::NoHosts => "check spec.network.name and spec.nodeSelector of the TenantCluster",
        R::HostNetworksDiffer => "give the host network the same scenario in all HostProfiles",
        R::NoPool => "add a pool for the network to spec.vlanPools of the InfraConfig",
        R::PoolExhausted => "extend the pool in the InfraConfig",
        R::PoolsOverlap => "separate the pools in the InfraConfig",
        R::NetworkIdInUse => "use another VLAN or VNI",
        R::AddressesExhausted => "extend the pool, or delete machines",
        R::InvalidAddressPool | R::GatewayInRange => "correct the address pool of the tenant",
        R::MtuMismatch => "give the network the same MTU on all hosts",
        R::BindingPluginMissing => "register the binding plugin in the KubeVirt object",
        R::HostsNotReady => "`kubectl berth networks` shows the hosts",
        R::InvalidKubeconfig | R::KubeconfigRefused => "write a valid kubeconfig to the Secret",
        R::AccessDenied => "renew the credential; render --tenant-rbac prints the permissions",
        R::ServerCertificateInvalid => "correct certificate-authority-data or server",
        R::TenantUnreachable => "check the tenant's control plane, and the network to it",
        R::MachinesNotReady | R::MachinesUnavailable | R::ProgressDeadlineExceeded => {
            "`kubectl berth machines` and `kubectl berth why` show the machines and the reasons"
        }
        R::DrainBlocked => "see the PodDisruptionBudgets in the tenant's cluster",
        R::WaitingForVolumes => "see the VolumeAttachments in the tenant's cluster",
        R::WaitingForHost => "repair the host, or set the taint out-of-service if it is off",
        R::NodePortsExhausted => "extend exposure.machineAccess.nodePortRange",
        R::NodePortsRefused => "choose another exposure.machineAccess.nodePortRange",
        R::StorageClassesMissing => "create the StorageClass, or remove it from the InfraConfig",
        _ => return None,
    };
    Some(text)
}
