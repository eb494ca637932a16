//! Machines: VirtualMachines, with their VirtualMachineInstances, launcher pods and addresses.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use berth_api::Time;
use berth_api::names::TENANT_PREFIX;
use serde::Serialize;

use crate::issue::Severity;
use crate::kind::Kind;
use crate::objects::{
    Evacuation, Hardware, InstanceFields, MachineFields, ObjectCondition, ObjectName, PodFields,
};
use crate::snapshot::Snapshot;

/// Kinds that the rows of machines need.
pub const KINDS: [Kind; 4] =
    [Kind::VirtualMachine, Kind::VirtualMachineInstance, Kind::LauncherPod, Kind::AddressClaim];

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineRow {
    #[serde(flatten)]
    pub name: ObjectName,
    /// Tenant, from the namespace; `None` outside tenants' namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// MachineDeployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// Role in the tenant's cluster, such as `control-plane`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub state: MachineState,
    pub severity: Severity,
    /// Status as KubeVirt shows it: `printableStatus` of the VirtualMachine, or the phase of its instance.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Class that the annotation `berth.dev/class` sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// Memory of the guest in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// True if the VM has dedicated CPUs.
    #[serde(rename = "dedicatedCPUs")]
    pub is_pinned: bool,
    /// Size of the huge pages, such as `1Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
    /// Addresses from AddressClaims; without claims, those that KubeVirt reports.
    pub addresses: Vec<IpAddr>,
    /// Reason why the machine does not run, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// State of the evacuation while the host of the machine is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<Evacuation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
}

/// State of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum MachineState {
    /// The VM cannot run: its VirtualMachineInstance has failed, or KubeVirt reports an error.
    Failed,
    /// No host takes the launcher pod.
    Unschedulable,
    /// The machine is being removed or deleted.
    Removing,
    /// The machine must leave its drained host.
    Evacuating,
    /// A live migration is in progress.
    Migrating,
    /// The VM runs, but it is not ready.
    NotReady,
    /// The VM starts, or waits for its volumes.
    Starting,
    /// The VM is ready.
    Running,
    /// The VM is switched off.
    Stopped,
    #[default]
    Unknown,
}

impl MachineState {
    /// Returns the severity of the state.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::Failed | Self::Unschedulable => Severity::Failure,
            Self::Evacuating | Self::NotReady | Self::Unknown => Severity::Warning,
            Self::Removing | Self::Migrating | Self::Starting | Self::Running | Self::Stopped => {
                Severity::Ok
            }
        }
    }
}

impl fmt::Display for MachineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Selects machines; absent fields select all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFilter {
    pub namespace: Option<String>,
    pub tenant: Option<String>,
    pub host: Option<String>,
    pub deployment: Option<String>,
}

impl MachineFilter {
    /// Returns false for names whose rows are not selected, so that these rows need not be computed.
    fn may_select(&self, name: &ObjectName) -> bool {
        let is_namespace = |wanted: &String| *wanted == name.namespace;
        let is_tenant =
            |wanted: &String| tenant_of_namespace(&name.namespace) == Some(wanted.as_str());
        self.namespace.as_ref().is_none_or(is_namespace)
            && self.tenant.as_ref().is_none_or(is_tenant)
    }

    fn selects(&self, row: &MachineRow) -> bool {
        let matches = |wanted: &Option<String>, actual: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| actual == Some(wanted))
        };
        matches(&self.namespace, Some(&row.name.namespace))
            && matches(&self.tenant, row.tenant.as_deref())
            && matches(&self.host, row.host.as_deref())
            && matches(&self.deployment, row.deployment.as_deref())
    }
}

/// Returns the tenant whose machines are in a namespace; `None` for namespaces of no tenant.
#[must_use]
pub fn tenant_of_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(TENANT_PREFIX).filter(|tenant| !tenant.is_empty())
}

/// Returns the rows of the machines that `filter` selects, sorted by namespace and name. A VirtualMachineInstance or a
/// launcher pod without a VirtualMachine is a machine too.
#[must_use]
pub fn rows(snapshot: &Snapshot, filter: &MachineFilter) -> Vec<MachineRow> {
    let index = MachineIndex::new(snapshot);
    let mut names: BTreeSet<&ObjectName> =
        snapshot.machines.keys().chain(snapshot.instances.keys()).collect();
    let of_pods: BTreeSet<ObjectName> = index.names().collect();
    names.extend(&of_pods);
    let names = names.into_iter().filter(|name| filter.may_select(name));
    let rows = names.map(|name| index.row(name));
    rows.filter(|row| filter.selects(row)).collect()
}

/// Returns the row of one machine; `None` if it has neither a VirtualMachine nor a VirtualMachineInstance nor a launcher
/// pod.
#[must_use]
pub fn find(snapshot: &Snapshot, name: &ObjectName) -> Option<MachineRow> {
    let index = MachineIndex::new(snapshot);
    let is_known = snapshot.machines.contains_key(name)
        || snapshot.instances.contains_key(name)
        || index.names().any(|one| one == *name);
    is_known.then(|| index.row(name))
}

/// Launcher pods and addresses of machines.
pub(crate) struct MachineIndex<'s> {
    snapshot: &'s Snapshot,
    pods: HashMap<(&'s str, &'s str), Vec<&'s PodFields>>,
    addresses: HashMap<&'s ObjectName, BTreeSet<IpAddr>>,
}

impl<'s> MachineIndex<'s> {
    pub(crate) fn new(snapshot: &'s Snapshot) -> Self {
        let mut pods: HashMap<(&str, &str), Vec<&PodFields>> = HashMap::new();
        for (name, pod) in &snapshot.pods {
            if let Some(vm) = pod.vm.as_deref().filter(|_| !pod.is_terminal()) {
                pods.entry((name.namespace.as_str(), vm)).or_default().push(pod);
            }
        }
        let mut addresses: HashMap<&ObjectName, BTreeSet<IpAddr>> = HashMap::new();
        for claim in snapshot.address_claims.values() {
            addresses.entry(&claim.machine).or_default().insert(claim.address);
        }
        Self { snapshot, pods, addresses }
    }

    /// Returns the names of the VMs of all launcher pods.
    fn names(&self) -> impl Iterator<Item = ObjectName> {
        self.pods.keys().map(|(namespace, vm)| ObjectName::new(*namespace, *vm))
    }

    /// Returns the state of a machine.
    pub(crate) fn state(&self, name: &ObjectName) -> MachineState {
        self.observed(name).state()
    }

    fn observed(&self, name: &ObjectName) -> Observed<'s> {
        let pods = self.pods.get(&(name.namespace.as_str(), name.name.as_str()));
        let pods = || pods.into_iter().flatten().copied();
        Observed {
            machine: self.snapshot.machines.get(name).map(AsRef::as_ref),
            instance: self.snapshot.instances.get(name).map(AsRef::as_ref),
            bound: pods().find(|pod| pod.host.is_some()),
            unscheduled: pods().find(|pod| pod.host.is_none() && !pod.is_deleting),
        }
    }

    fn row(&self, name: &ObjectName) -> MachineRow {
        let observed = self.observed(name);
        let Observed { machine, instance, .. } = observed;
        let state = observed.state();
        let hardware = |of: Option<&Hardware>| of.cloned().unwrap_or_default();
        let Hardware { vcpus, memory, is_pinned, page_size } =
            hardware(instance.map(|one| &one.hardware))
                .or(&hardware(machine.map(|one| &one.hardware)));
        let claimed = self.addresses.get(name).filter(|all| !all.is_empty());
        let addresses = match claimed {
            Some(claimed) => claimed.iter().copied().collect(),
            None => instance.map(|one| one.addresses.clone()).unwrap_or_default(),
        };
        let either = |of_machine: fn(&MachineFields) -> &Option<String>,
                      of_instance: fn(&InstanceFields) -> &Option<String>| {
            machine
                .and_then(|one| of_machine(one).clone())
                .or_else(|| instance.and_then(|one| of_instance(one).clone()))
        };
        MachineRow {
            name: name.clone(),
            tenant: tenant_of_namespace(&name.namespace).map(str::to_owned),
            deployment: either(|one| &one.deployment, |one| &one.deployment),
            role: either(|one| &one.role, |one| &one.role),
            state,
            severity: observed.severity(state),
            status: observed.status().to_owned(),
            host: match instance {
                Some(instance) => instance.host.clone(),
                None => observed.bound.and_then(|pod| pod.host.clone()),
            },
            class: either(|one| &one.class, |one| &one.class),
            vcpus,
            memory,
            is_pinned,
            page_size,
            addresses,
            message: observed.message(state),
            evacuation: machine.and_then(|one| one.evacuation.clone()),
            created: machine
                .and_then(|one| one.created)
                .or_else(|| instance.and_then(|one| one.created)),
        }
    }
}

/// Objects of one machine.
struct Observed<'s> {
    machine: Option<&'s MachineFields>,
    instance: Option<&'s InstanceFields>,
    /// Launcher pod that has a host.
    bound: Option<&'s PodFields>,
    /// Launcher pod that has no host.
    unscheduled: Option<&'s PodFields>,
}

impl<'s> Observed<'s> {
    fn status(&self) -> &'s str {
        let machine = self.machine.map(|one| one.printable_status.as_str());
        let phase = self.instance.map(|one| one.phase.as_str());
        machine.filter(|status| !status.is_empty()).or(phase).unwrap_or_default()
    }

    fn state(&self) -> MachineState {
        let leaves = |one: &MachineFields| one.is_deleting || one.removal.is_some();
        let phase = self.instance.map(|one| one.phase.as_str()).unwrap_or_default();
        let is_unscheduled = self.unscheduled.is_some_and(|pod| pod.unscheduled_message.is_some());
        if self.machine.is_some_and(leaves) {
            MachineState::Removing
        } else if phase == "Failed" || has_failed(self.status()) {
            MachineState::Failed
        } else if self.machine.is_some_and(|one| one.evacuation.is_some()) {
            MachineState::Evacuating
        } else if self.instance.is_some_and(|one| one.is_migrating) {
            MachineState::Migrating
        } else if phase == "Running" {
            match self.is_ready() {
                true => MachineState::Running,
                false => MachineState::NotReady,
            }
        } else if is_unscheduled || self.status() == "ErrorUnschedulable" {
            MachineState::Unschedulable
        } else if self.instance.is_some_and(|one| !one.is_terminal()) {
            MachineState::Starting
        } else if let (None, None, Some(pod)) = (self.machine, self.instance, self.bound) {
            match pod.phase.as_str() {
                "Running" => MachineState::Running,
                _ => MachineState::Starting,
            }
        } else {
            match self.machine {
                Some(machine) if machine.is_halted => MachineState::Stopped,
                Some(_) if matches!(self.status(), "Stopped" | "Stopping") => MachineState::Stopped,
                // A VM that has shut itself down, without a VirtualMachine or with one that does not start it again.
                _ if self.instance.is_some() => MachineState::Stopped,
                Some(_) if STARTING.contains(&self.status()) => MachineState::Starting,
                _ => MachineState::Unknown,
            }
        }
    }

    fn is_ready(&self) -> bool {
        let conditions = self.instance.into_iter().flat_map(|one| &one.conditions);
        let mut ready = conditions.filter(|one| one.type_ == "Ready");
        ready.next().map_or_else(
            || self.machine.is_some_and(|one| one.is_ready),
            |ready| ready.status == "True",
        )
    }

    fn severity(&self, state: MachineState) -> Severity {
        let evacuation = self.machine.and_then(|one| one.evacuation.as_ref());
        match evacuation {
            Some(evacuation) if evacuation.is_blocked => Severity::Failure,
            _ => state.severity(),
        }
    }

    /// Returns the reason why the machine does not run, or what it waits for.
    fn message(&self, state: MachineState) -> Option<String> {
        match state {
            MachineState::Evacuating => {
                let evacuation = self.machine?.evacuation.as_ref()?;
                Some(format!("{}: {}", evacuation.reason, evacuation.message))
            }
            MachineState::Removing => self.machine?.removal.clone(),
            MachineState::Unschedulable => self
                .unscheduled
                .and_then(|pod| pod.unscheduled_message.clone())
                .or_else(|| self.condition_message()),
            MachineState::Failed | MachineState::NotReady | MachineState::Starting => {
                self.condition_message()
            }
            MachineState::Migrating
            | MachineState::Running
            | MachineState::Stopped
            | MachineState::Unknown => None,
        }
    }

    /// Returns the message of the first condition of the VM, or else of its VirtualMachine, that is not healthy.
    fn condition_message(&self) -> Option<String> {
        let of_instance = self.instance.map(|one| one.conditions.as_slice()).unwrap_or_default();
        let of_machine = self.machine.map(|one| one.conditions.as_slice()).unwrap_or_default();
        let explains = |one: &&ObjectCondition| {
            !one.message.is_empty()
                && match one.type_.as_str() {
                    "Failure" | "RestartRequired" => one.status == "True",
                    "Ready" | "Synchronized" | "DataVolumesReady" | "PodScheduled" => {
                        one.status == "False"
                    }
                    _ => false,
                }
        };
        let found = of_machine.iter().filter(|one| one.type_ == "Failure").chain(of_instance);
        found.chain(of_machine).find(explains).map(|one| one.message.clone())
    }
}

/// Values of `printableStatus` of VirtualMachines that start.
const STARTING: [&str; 5] =
    ["Provisioning", "Starting", "WaitingForVolumeBinding", "WaitingForReceiver", "Running"];

/// Returns true if `printableStatus` is an error that is not the search for a host.
fn has_failed(status: &str) -> bool {
    matches!(
        status,
        "CrashLoopBackOff"
            | "ErrImagePull"
            | "ImagePullBackOff"
            | "ErrorPvcNotFound"
            | "ErrorDataVolumeNotFound"
            | "DataVolumeError"
    )
}
