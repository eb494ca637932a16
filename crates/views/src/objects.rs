//! Fields of objects that the views read. Objects of kinds without a Rust type are read field by field: a field that is
//! missing or has another type counts as absent, so that one malformed field does not hide an object.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use berth_api::names::{CLASS_LABEL, EVACUATION_ANNOTATION, MACHINE_LABEL, PROFILE_LABEL};
use berth_api::names::{REMOVAL_ANNOTATION, ROLE_LABEL};
use berth_api::{Bytes, Time};
use serde::Serialize;
use serde_json::Value;

use crate::issue::ConditionState;

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

impl ObjectName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Node of the infra cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFields {
    /// Status of the condition Ready; `None` if the condition does not exist.
    pub ready: Option<ConditionState>,
    /// Message of the condition Ready.
    pub ready_message: String,
    /// Field `spec.unschedulable`.
    pub is_cordoned: bool,
    /// Keys of the taints with the effects NoSchedule and NoExecute.
    pub taints: Vec<String>,
    /// Label `berth.dev/class`.
    pub class: Option<String>,
    /// Label `berth.dev/profile`.
    pub profile: Option<String>,
    /// First label whose name, after the prefix, is `rack`.
    pub rack: Option<String>,
    /// Field `status.nodeInfo.kubeletVersion`.
    pub kubelet_version: Option<String>,
    /// Address of the type InternalIP.
    pub address: Option<IpAddr>,
}

/// A VirtualMachine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFields {
    /// Label `md`: name of the MachineDeployment.
    pub deployment: Option<String>,
    /// Role of the machine in the tenant's cluster, such as `control-plane`.
    pub role: Option<String>,
    /// Annotation `berth.dev/class` of the template.
    pub class: Option<String>,
    /// Field `status.printableStatus`, such as `Running` or `ErrorUnschedulable`.
    pub printable_status: String,
    /// Field `status.ready`.
    pub is_ready: bool,
    /// True if the VirtualMachine should not run.
    pub is_halted: bool,
    /// True if the object is being deleted.
    pub is_deleting: bool,
    /// Annotation `berth.dev/removal`: reason of the removal.
    pub removal: Option<String>,
    /// Annotation `berth.dev/evacuation`: state of the evacuation of a drained host.
    pub evacuation: Option<Evacuation>,
    /// Hardware in the template; absent fields come from an instance type.
    pub hardware: Hardware,
    /// Conditions of the status: type, status, reason, message.
    pub conditions: Vec<ObjectCondition>,
    pub created: Option<Time>,
}

/// A VirtualMachineInstance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceFields {
    pub uid: String,
    /// Label `md`: name of the MachineDeployment.
    pub deployment: Option<String>,
    pub role: Option<String>,
    pub class: Option<String>,
    /// Field `status.phase`.
    pub phase: String,
    /// Field `status.nodeName`.
    pub host: Option<String>,
    pub hardware: Hardware,
    /// Addresses in `status.interfaces`, without loopback and link-local addresses.
    pub addresses: Vec<IpAddr>,
    /// True if the first network of the VM is the pod network.
    pub has_pod_network: bool,
    /// True if a live migration is in progress.
    pub is_migrating: bool,
    pub conditions: Vec<ObjectCondition>,
    pub created: Option<Time>,
}

/// CPUs and memory of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Number of vCPUs: cores, sockets and threads multiplied.
    pub vcpus: Option<u64>,
    /// Memory of the guest in bytes.
    pub memory: Option<u64>,
    /// True if the VM has dedicated CPUs.
    pub is_pinned: bool,
    /// Size of the huge pages, such as `2Mi` or `1Gi`.
    pub page_size: Option<String>,
}

/// State of the evacuation of a machine, which the controller records while the host is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evacuation {
    /// Host that the machine must leave.
    pub host: String,
    /// Name of the reason for which the machine waits, such as `BudgetExhausted`.
    pub reason: String,
    pub message: String,
    /// Time since which the machine waits, in RFC 3339.
    pub since: String,
    /// Time at which the next step happens at the latest, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// True if the machine needs an operator.
    pub is_blocked: bool,
}

/// A condition of an object that Berth does not define.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// A launcher pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFields {
    /// Label `vm.kubevirt.io/name`: name of the VM.
    pub vm: Option<String>,
    pub phase: String,
    pub host: Option<String>,
    /// Message of the condition PodScheduled if the pod has no host.
    pub unscheduled_message: Option<String>,
    /// Field `spec.schedulerName`.
    pub scheduler: String,
    pub is_deleting: bool,
}

/// A MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentFields {
    pub desired: u64,
    pub ready: u64,
    pub conditions: Vec<ObjectCondition>,
}

/// An AddressClaim that is not released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressClaimFields {
    pub machine: ObjectName,
    /// Name of the tenant's network, `cluster-<tenant>`.
    pub network: String,
    pub address: IpAddr,
    pub interface: String,
}

/// The Service with which a machine is accessible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFields {
    /// Name of the machine.
    pub machine: String,
    /// Addresses of the load balancer.
    pub addresses: Vec<IpAddr>,
    /// Node ports by port.
    pub node_ports: BTreeMap<u16, u16>,
    pub ports: Vec<u16>,
}

/// A StorageClass of the infra cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClassFields {
    pub provisioner: String,
    pub binding_mode: Option<String>,
    pub reclaim_policy: Option<String>,
    pub is_expandable: bool,
}

/// Returns the value at a path of field names. [`Value::pointer`] allocates two strings for each field name.
fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, field| value.get(field))
}

fn text(object: &Value, path: &[&str]) -> Option<String> {
    let value = at(object, path).and_then(Value::as_str);
    value.filter(|text| !text.is_empty()).map(str::to_owned)
}

fn text_or_empty(object: &Value, path: &[&str]) -> String {
    text(object, path).unwrap_or_default()
}

fn is_true(object: &Value, path: &[&str]) -> bool {
    at(object, path).and_then(Value::as_bool).unwrap_or_default()
}

fn items<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> + use<'a> {
    at(object, path).and_then(Value::as_array).into_iter().flatten()
}

fn label(object: &Value, key: &str) -> Option<String> {
    text(object, &["metadata", "labels", key])
}

fn rack(node: &Value) -> Option<String> {
    let labels = at(node, &["metadata", "labels"])?.as_object()?;
    let is_rack = |key: &str| key.rsplit('/').next() == Some("rack");
    let rack = labels.iter().find(|(key, _)| is_rack(key))?.1.as_str()?;
    Some(rack.to_owned())
}

fn created(object: &Value) -> Option<Time> {
    at(object, &["metadata", "creationTimestamp"])?.as_str()?.parse().ok().map(Time)
}

fn is_deleting(object: &Value) -> bool {
    text(object, &["metadata", "deletionTimestamp"]).is_some()
}

fn conditions(object: &Value) -> Vec<ObjectCondition> {
    let read = |one: &Value| ObjectCondition {
        type_: text_or_empty(one, &["type"]),
        status: text_or_empty(one, &["status"]),
        reason: text_or_empty(one, &["reason"]),
        message: text_or_empty(one, &["message"]),
    };
    items(object, &["status", "conditions"]).map(read).collect()
}

impl NodeFields {
    pub(crate) fn read(object: &Value) -> Self {
        let mut all = items(object, &["status", "conditions"]);
        let ready = all.find(|one| at(one, &["type"]).is_some_and(|type_| type_ == "Ready"));
        let repels = |taint: &&Value| {
            at(taint, &["effect"])
                .and_then(Value::as_str)
                .is_some_and(|effect| matches!(effect, "NoSchedule" | "NoExecute"))
        };
        let taints = items(object, &["spec", "taints"]).filter(repels);
        let mut addresses = items(object, &["status", "addresses"]);
        let address = addresses.find_map(|one| {
            let is_internal = at(one, &["type"]).is_some_and(|type_| type_ == "InternalIP");
            at(one, &["address"])?.as_str()?.parse().ok().filter(|_| is_internal)
        });
        Self {
            ready: ready.map(|one| ConditionState::parse(&text_or_empty(one, &["status"]))),
            ready_message: ready.map(|one| text_or_empty(one, &["message"])).unwrap_or_default(),
            is_cordoned: is_true(object, &["spec", "unschedulable"]),
            taints: taints.filter_map(|taint| text(taint, &["key"])).collect(),
            class: label(object, CLASS_LABEL),
            profile: label(object, PROFILE_LABEL),
            rack: rack(object),
            kubelet_version: text(object, &["status", "nodeInfo", "kubeletVersion"]),
            address,
        }
    }
}

impl MachineFields {
    pub(crate) fn read(object: &Value) -> Self {
        let annotation = |key: &str| text(object, &["metadata", "annotations", key]);
        let run_strategy = at(object, &["spec", "runStrategy"]);
        Self {
            deployment: label(object, "md"),
            role: label(object, ROLE_LABEL),
            class: text(object, &["spec", "template", "metadata", "annotations", CLASS_LABEL]),
            printable_status: text_or_empty(object, &["status", "printableStatus"]),
            is_ready: is_true(object, &["status", "ready"]),
            is_halted: run_strategy.is_some_and(|strategy| strategy == "Halted")
                || at(object, &["spec", "running"]) == Some(&Value::Bool(false)),
            is_deleting: is_deleting(object),
            removal: annotation(REMOVAL_ANNOTATION),
            evacuation: annotation(EVACUATION_ANNOTATION).and_then(|text| Evacuation::parse(&text)),
            hardware: at(object, &["spec", "template", "spec"])
                .map(Hardware::read)
                .unwrap_or_default(),
            conditions: conditions(object),
            created: created(object),
        }
    }
}

impl InstanceFields {
    pub(crate) fn read(object: &Value) -> Self {
        let addresses = items(object, &["status", "interfaces"])
            .filter_map(|one| at(one, &["ipAddress"])?.as_str()?.parse().ok())
            .filter(|address| !is_local(*address));
        let migration = at(object, &["status", "migrationState"]);
        let is_migrating = migration.is_some_and(|state| {
            !is_true(state, &["completed"]) && !is_true(state, &["failed"]) && state.is_object()
        });
        Self {
            uid: text_or_empty(object, &["metadata", "uid"]),
            deployment: label(object, "md"),
            role: label(object, ROLE_LABEL),
            class: text(object, &["metadata", "annotations", CLASS_LABEL]),
            phase: text_or_empty(object, &["status", "phase"]),
            host: text(object, &["status", "nodeName"]),
            hardware: at(object, &["spec"]).map(Hardware::read).unwrap_or_default(),
            addresses: addresses.collect(),
            has_pod_network: items(object, &["spec", "networks"])
                .next()
                .is_some_and(|network| network.get("pod").is_some()),
            is_migrating,
            conditions: conditions(object),
            created: created(object),
        }
    }
}

impl InstanceFields {
    /// Returns true if the VM has ended, so that it uses no resources.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        is_final_phase(&self.phase)
    }
}

/// Returns true for the phases in which a pod or a VirtualMachineInstance has ended.
fn is_final_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Returns true for addresses at which no other machine can reach the VM.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback()
        || match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

impl Hardware {
    /// Reads the `spec` of a VirtualMachineInstance.
    fn read(spec: &Value) -> Self {
        let cpu = at(spec, &["domain", "cpu"]);
        let factor = |name: &str| cpu.and_then(|cpu| cpu.get(name)?.as_u64());
        let factors = [factor("cores"), factor("sockets"), factor("threads")];
        let has_topology = factors.iter().any(Option::is_some);
        let product = factors.iter().flatten().fold(1_u64, |all, one| all.saturating_mul(*one));
        let amount = |path: &[&str]| at(spec, path)?.as_str()?.parse::<Bytes>().ok();
        let memory = amount(&["domain", "memory", "guest"])
            .or_else(|| amount(&["domain", "resources", "requests", "memory"]));
        Self {
            vcpus: has_topology.then_some(product),
            memory: memory.map(|bytes| bytes.0),
            is_pinned: is_true(spec, &["domain", "cpu", "dedicatedCpuPlacement"]),
            page_size: text(spec, &["domain", "memory", "hugepages", "pageSize"]),
        }
    }

    /// Returns the hardware with the absent fields of `other`.
    pub(crate) fn or(self, other: &Self) -> Self {
        Self {
            vcpus: self.vcpus.or(other.vcpus),
            memory: self.memory.or(other.memory),
            is_pinned: self.is_pinned || other.is_pinned,
            page_size: self.page_size.or_else(|| other.page_size.clone()),
        }
    }
}

impl Evacuation {
    /// Parses the annotation; `None` if it is malformed.
    fn parse(annotation: &str) -> Option<Self> {
        let record: Value = serde_json::from_str(annotation).ok()?;
        Some(Self {
            host: text(&record, &["host"])?,
            reason: text(&record, &["reason"])?,
            message: text_or_empty(&record, &["message"]),
            since: text_or_empty(&record, &["since"]),
            until: text(&record, &["until"]),
            is_blocked: is_true(&record, &["blocked"]),
        })
    }
}

impl PodFields {
    pub(crate) fn read(object: &Value) -> Self {
        let scheduled = items(object, &["status", "conditions"]).find(|one| {
            at(one, &["type"]).is_some_and(|type_| type_ == "PodScheduled")
                && at(one, &["status"]).is_some_and(|status| status == "False")
        });
        Self {
            vm: label(object, "vm.kubevirt.io/name"),
            phase: text_or_empty(object, &["status", "phase"]),
            host: text(object, &["spec", "nodeName"]),
            unscheduled_message: scheduled.and_then(|one| text(one, &["message"])),
            scheduler: text_or_empty(object, &["spec", "schedulerName"]),
            is_deleting: is_deleting(object),
        }
    }

    /// Returns true if the containers of the pod have ended.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        is_final_phase(&self.phase)
    }
}

impl DeploymentFields {
    pub(crate) fn read(object: &Value) -> Self {
        let count = |path: &[&str]| at(object, path).and_then(Value::as_u64);
        Self {
            desired: count(&["spec", "replicas"]).unwrap_or(1),
            ready: count(&["status", "readyReplicas"]).unwrap_or_default(),
            conditions: conditions(object),
        }
    }
}

impl ServiceFields {
    pub(crate) fn read(object: &Value) -> Self {
        let ingress = items(object, &["status", "loadBalancer", "ingress"]);
        let port = |one: &Value, field: &str| u16::try_from(one.get(field)?.as_u64()?).ok();
        let ports: Vec<&Value> = items(object, &["spec", "ports"]).collect();
        let node_ports =
            ports.iter().filter_map(|one| Some((port(one, "port")?, port(one, "nodePort")?)));
        Self {
            machine: label(object, MACHINE_LABEL).unwrap_or_default(),
            addresses: ingress.filter_map(|one| at(one, &["ip"])?.as_str()?.parse().ok()).collect(),
            node_ports: node_ports.collect(),
            ports: ports.iter().filter_map(|one| port(one, "port")).collect(),
        }
    }
}

impl StorageClassFields {
    pub(crate) fn read(object: &Value) -> Self {
        Self {
            provisioner: text_or_empty(object, &["provisioner"]),
            binding_mode: text(object, &["volumeBindingMode"]),
            reclaim_policy: text(object, &["reclaimPolicy"]),
            is_expandable: is_true(object, &["allowVolumeExpansion"]),
        }
    }
}
