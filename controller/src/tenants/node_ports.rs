//! Allocates node ports from a tenant's range to the Services of its machines.
//!
//! No claim is needed as a lock: the API server refuses a node port that another Service has, and the Service of a
//! machine stores the machine's node ports. The first candidate depends only on the machine, so a Service that is
//! created again usually gets the same node ports.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{ConditionReason, NodePortRange};
use serde_json::Value;

use super::claims::hash_strings;
use super::fault::{Fault, join_names_limited};

/// Node ports of a Service, by the port of the machine to which each node port is forwarded.
pub type NodePorts = BTreeMap<u16, u16>;

/// Request for the node ports of a machine.
#[derive(Clone, Copy, Debug)]
pub struct NodePortRequest<'a> {
    /// Range of the tenant's node ports.
    pub range: NodePortRange,
    /// Namespace and name of the machine.
    pub machine: &'a str,
    /// Ports of the machine that need node ports.
    pub ports: &'a BTreeSet<u16>,
    /// Node ports that the Service of the machine already has.
    pub existing: &'a NodePorts,
    /// Node ports that other Services have, and those that the API server has refused.
    pub unavailable: &'a BTreeSet<u16>,
}

/// Allocates a node port to each port of a machine; `None` if the range has too few free node ports. Existing node
/// ports are retained, even if they are outside of the range.
#[must_use]
pub fn allocate_node_ports(request: NodePortRequest<'_>) -> Option<NodePorts> {
    let NodePortRequest { range, machine, ports, existing, unavailable } = request;
    let mut allocated: NodePorts = existing.clone();
    allocated.retain(|port, _| ports.contains(port));
    for port in ports {
        if allocated.contains_key(port) {
            continue;
        }
        let first = hash_strings(&[machine, &port.to_string()]);
        let is_free = |candidate: &u16| {
            !unavailable.contains(candidate) && allocated.values().all(|own| own != candidate)
        };
        let free = range.iter_from(first).find(is_free)?;
        allocated.insert(*port, free);
    }
    Some(allocated)
}

/// Returns the node ports of a Service.
#[must_use]
pub fn read_node_ports(service: &Value) -> NodePorts {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    let pair = |port: &Value| Some((number(&port["port"])?, number(&port["nodePort"])?));
    ports.filter_map(pair).filter(|(_, node_port)| *node_port != 0).collect()
}

/// Results of the allocation of node ports for the machines of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortResults {
    /// Names of the machines for which the range has no free node port.
    pub without_port: Vec<String>,
    /// Number of machines whose allocation is retried later, because the API server has refused many node ports.
    pub waiting_count: usize,
    /// Node ports that the API server refused.
    pub refused: BTreeSet<u16>,
    /// Names of the machines that retain a node port outside of the range.
    pub outside: Vec<String>,
}

impl NodePortResults {
    /// Returns the fault with the highest priority; `None` if all machines have node ports from the range.
    #[must_use]
    pub fn fault(&self, range: NodePortRange) -> Option<Fault> {
        let field =
            format!("spec.exposure.machineAccess.nodePortRange of the TenantCluster: {range}");
        if !self.without_port.is_empty() {
            let machines = join_names_limited(&self.without_port);
            let ports: Vec<String> = self.refused.iter().map(u16::to_string).collect();
            let refusal = if ports.is_empty() {
                String::new()
            } else {
                format!("; the API server refused {}", join_names_limited(&ports))
            };
            let message = format!(
                "{field} has no free node port for {machines}{refusal}; extend the range, or delete Services with node \
                 ports in it"
            );
            return Some(Fault::new(ConditionReason::NodePortsExhausted, message));
        }
        if self.waiting_count > 0 {
            // The message must not contain the refused node ports, which differ in each reconcile: each change of the
            // status triggers a reconcile.
            let message = format!(
                "{field}: {} machines have no node port, because the API server has refused many node ports of the \
                 range; other node ports are tried after 30 s; choose a range that no other Service uses, within \
                 --service-node-port-range of the API server",
                self.waiting_count
            );
            return Some(Fault::new(ConditionReason::NodePortsRefused, message));
        }
        if self.outside.is_empty() {
            return None;
        }
        let machines = join_names_limited(&self.outside);
        let message = format!(
            "{field} does not contain all node ports of {machines}, which keep them; to allocate node ports from the \
             range, delete the Services access-<machine>"
        );
        Some(Fault::new(ConditionReason::NodePortsOutsideRange, message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range(text: &str) -> NodePortRange {
        text.parse().unwrap()
    }

    fn allocate(
        range: NodePortRange,
        machine: &str,
        ports: &[u16],
        existing: &[(u16, u16)],
        unavailable: &[u16],
    ) -> Option<NodePorts> {
        allocate_node_ports(NodePortRequest {
            range,
            machine,
            ports: &ports.iter().copied().collect(),
            existing: &existing.iter().copied().collect(),
            unavailable: &unavailable.iter().copied().collect(),
        })
    }

    #[test]
    fn machines_get_different_ports_until_the_range_is_exhausted() {
        let range = range("30100-30109");
        let mut used: Vec<u16> = Vec::new();
        for number in 0..5 {
            let machine = format!("cluster-shop/web-{number}");
            let ports = allocate(range, &machine, &[22, 6443], &[], &used).unwrap();
            assert_eq!(ports.keys().copied().collect::<Vec<_>>(), [22, 6443]);
            for port in ports.values() {
                assert!(range.contains(*port) && !used.contains(port), "{port}: {used:?}");
                used.push(*port);
            }
            assert_ne!(ports[&22], ports[&6443]);
        }
        assert_eq!(allocate(range, "cluster-shop/web-5", &[22], &[], &used), None);
        used.pop();
        assert!(allocate(range, "cluster-shop/web-5", &[22], &[], &used).is_some());
        assert_eq!(allocate(range, "cluster-shop/web-6", &[22, 80], &[], &used), None);
    }

    #[test]
    fn a_machine_keeps_its_ports() {
        let range = range("30100-30199");
        let first = allocate(range, "cluster-shop/web-1", &[22], &[], &[]).unwrap();
        assert_eq!(allocate(range, "cluster-shop/web-1", &[22], &[], &[]).unwrap(), first);
        // Other machines, other ranges and additional ports do not change the node ports of an existing Service.
        let existing = [(22, 31_022), (8080, 31_080)];
        let ports =
            allocate(range, "cluster-shop/web-1", &[22, 6443], &existing, &[31_022]).unwrap();
        assert_eq!(ports[&22], 31_022);
        assert!(range.contains(ports[&6443]));
        assert_eq!(ports.len(), 2, "a port that the machine no longer has releases its node port");
    }

    #[test]
    fn node_ports_of_services_are_read() {
        let service = json!({"spec": {"ports": [
            {"port": 22, "nodePort": 30_100}, {"port": 80}, {"port": 81, "nodePort": 0}, {"port": 70_000, "nodePort": 1},
        ]}});
        assert_eq!(read_node_ports(&service), NodePorts::from([(22, 30_100)]));
        assert!(read_node_ports(&json!({"spec": {"ports": 7}})).is_empty());
    }

    #[test]
    fn faults_have_reasons_by_priority() {
        let range = range("30100-30101");
        let mut results = NodePortResults::default();
        assert_eq!(results.fault(range), None);
        results.refused.insert(30_100);
        assert_eq!(results.fault(range), None, "each machine has another port");
        let mut reason = |change: fn(&mut NodePortResults)| {
            change(&mut results);
            let fault = results.fault(range).unwrap();
            (fault.reason, fault.message)
        };
        let (kind, message) = reason(|one| one.outside.push("web-1".to_owned()));
        assert_eq!(kind, ConditionReason::NodePortsOutsideRange);
        assert!(
            message.contains("30100-30101 does not contain all node ports of web-1"),
            "{message}"
        );
        let (kind, message) = reason(|one| one.waiting_count = 2);
        assert_eq!(kind, ConditionReason::NodePortsRefused);
        assert!(message.contains("2 machines have no node port"), "{message}");
        let (_, later) = reason(|one| one.refused.extend([30_101]));
        assert_eq!(later, message, "each change of the status triggers a reconcile");
        let (kind, message) = reason(|one| one.without_port.push("web-3".to_owned()));
        assert_eq!(kind, ConditionReason::NodePortsExhausted);
        assert!(message.contains("30100-30101 has no free node port for web-3"), "{message}");
        assert!(message.contains("; the API server refused 30100, 30101;"), "{message}");
    }
}
