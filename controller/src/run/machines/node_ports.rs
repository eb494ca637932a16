//! Node ports of the tenant's range for the Services of a MachineDeployment's machines.

use std::collections::BTreeSet;
use std::time::Instant;

use berth_api::{NodePortRange, TenantCluster};
use kube::api::DynamicObject;
use kube::core::Status;
use kube::core::response::StatusCause;
use serde_json::Value;

use super::context::MachineContext;
use super::validated::ValidatedDeployment;
use crate::run::packed_content::unpack_content;
use crate::tenants::fault::Fault;
use crate::tenants::node_ports::{
    NodePortRequest, NodePortResults, NodePorts, allocate_node_ports, read_node_ports,
};

/// Allocates the node ports of one reconcile.
pub(super) struct NodePortAllocator<'a> {
    context: &'a MachineContext,
    object: &'a DynamicObject,
    range: NodePortRange,
    /// Node ports of other Services; `None` until a machine needs a node port.
    unavailable: Option<BTreeSet<u16>>,
    /// True if no further node port may be tried now.
    must_wait: bool,
    results: NodePortResults,
}

impl<'a> NodePortAllocator<'a> {
    /// Returns an allocator; `None` if the tenant has no range.
    pub(super) fn new(validated: &ValidatedDeployment<'a>, tenant: &TenantCluster) -> Option<Self> {
        let access = tenant.spec.exposure.as_ref()?.machine_access.as_ref()?;
        let range = access.node_port_range?;
        let (context, object) = (validated.context, validated.object);
        let now = Instant::now();
        let (refused, must_wait) = context.with_state(object, |memory| {
            let refusals = &mut memory.node_port_refusals;
            let all = refusals.ports(now).iter().copied();
            let refused: BTreeSet<u16> = all.filter(|port| range.contains(*port)).collect();
            (refused, refusals.must_wait(now))
        });
        let results = NodePortResults { refused, ..NodePortResults::default() };
        Some(Self { context, object, range, unavailable: None, must_wait, results })
    }

    /// Returns true if no further machine can get a node port in this reconcile.
    pub(super) fn is_exhausted(&self) -> bool {
        !self.results.without_port.is_empty() || self.must_wait
    }

    /// Records that a machine gets no node port in this reconcile.
    pub(super) fn record_missing(&mut self, machine: &str) {
        let results = &mut self.results;
        if results.without_port.is_empty() && self.must_wait {
            results.waiting_count = results.waiting_count.saturating_add(1);
        } else {
            results.without_port.push(machine.to_owned());
        }
    }

    /// Allocates the node ports of a machine; `None` if it does not get all of them in this reconcile, which is recorded.
    /// `machine` has the namespace and the name.
    pub(super) fn allocate(
        &mut self,
        machine: &str,
        ports: &BTreeSet<u16>,
        existing: &NodePorts,
    ) -> Option<NodePorts> {
        let is_complete = ports.iter().all(|port| existing.contains_key(port));
        if !is_complete && self.must_wait {
            self.record_missing(machine);
            return None;
        }
        let (range, empty) = (self.range, BTreeSet::new());
        let unavailable = if is_complete { &empty } else { self.unavailable_ports() };
        let request = NodePortRequest { range, machine, ports, existing, unavailable };
        let allocated = allocate_node_ports(request);
        if allocated.is_none() {
            self.results.without_port.push(machine.to_owned());
        }
        allocated
    }

    /// Records the node ports that the Service of a machine has now.
    pub(super) fn record_applied(&mut self, machine: &str, node_ports: &NodePorts) {
        if !node_ports.values().all(|port| self.range.contains(*port)) {
            self.results.outside.push(machine.to_owned());
        }
        if let Some(unavailable) = &mut self.unavailable {
            unavailable.extend(node_ports.values());
        }
    }

    /// Records a refused node port. Returns false if it was refused before, so another attempt has no effect.
    pub(super) fn record_refusal(&mut self, port: u16) -> bool {
        if let Some(unavailable) = &mut self.unavailable {
            unavailable.insert(port);
        }
        self.must_wait = self.context.with_state(self.object, |memory| {
            memory.node_port_refusals.record(port, Instant::now())
        });
        self.results.refused.insert(port)
    }

    /// Returns the fault of the condition AccessReady.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.results.fault(self.range)
    }

    /// Returns the node ports that no machine can get: those of all machines' Services, and those that were refused.
    fn unavailable_ports(&mut self) -> &BTreeSet<u16> {
        let (context, refused) = (self.context, &self.results.refused);
        self.unavailable.get_or_insert_with(|| {
            let services = context.services.all();
            let own = services
                .iter()
                .flat_map(|service| read_node_ports(&unpack_content(service).data).into_values());
            own.chain(refused.iter().copied()).collect()
        })
    }
}

/// Returns the node port that the API server refused, because another Service has it, or because the API server does
/// not permit it; `None` if it refused another part of the Service.
///
/// The node port is taken from the message if possible. The index in the error's field path refers to the stored list
/// of ports: API servers before structured-merge-diff 4.2.1 keep the order of this list, which can differ from the
/// order of the applied list.
pub(super) fn refused_node_port(status: &Status, service: &Value) -> Option<u16> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let ports = service.pointer("/spec/ports")?.as_array()?;
    let node_port =
        |port: &Value| port["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    let index = |field: &str| {
        let (index, rest) = field.strip_prefix("spec.ports[")?.split_once(']')?;
        (rest == ".nodePort").then(|| index.parse::<usize>().ok()).flatten()
    };
    let refused = |cause: &StatusCause| {
        let index = index(&cause.field)?;
        match invalid_number(&cause.message) {
            Some(number) => ports.iter().filter_map(node_port).find(|port| *port == number),
            None => ports.get(index).and_then(node_port),
        }
    };
    causes.filter_map(refused).next()
}

/// Returns the number in a message such as `Invalid value: 30101: provided port is already allocated`.
fn invalid_number(message: &str) -> Option<u16> {
    let (_, rest) = message.split_once("Invalid value: ")?;
    rest.split(|one: char| !one.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Value {
        json!({"spec": {"ports": [{"port": 22, "nodePort": 30_100}, {"port": 80, "nodePort": 30_101}]}})
    }

    fn status(field: &str, message: &str) -> Status {
        let status = json!({
            "status": "Failure", "code": 422, "reason": "Invalid", "message": "m",
            "details": {"causes": [{"field": field, "reason": "FieldValueInvalid", "message": message}]},
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn refused_node_ports_are_found_by_the_message() {
        let refused = |message: &str| {
            refused_node_port(&status("spec.ports[0].nodePort", message), &service())
        };
        assert_eq!(
            refused("Invalid value: 30101: provided port is already allocated"),
            Some(30_101)
        );
        assert_eq!(refused("Invalid value: 30102: provided port is already allocated"), None);
        assert_eq!(refused("Invalid value: \"a\": m"), Some(30_100), "the index is used");
    }

    #[test]
    fn refused_node_ports_are_found_by_the_field() {
        let service = service();
        let refused = |field: &str| refused_node_port(&status(field, "m"), &service);
        assert_eq!(refused("spec.ports[1].nodePort"), Some(30_101));
        for other in
            ["spec.ports[2].nodePort", "spec.ports[0].port", "spec.ports[x].nodePort", "spec.type"]
        {
            assert_eq!(refused(other), None, "{other}");
        }
        assert_eq!(refused_node_port(&Status::default(), &service), None);
    }
}
