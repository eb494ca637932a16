//! The way to a TCP port of a machine.

use std::net::IpAddr;

use berth_views::{ObjectName, Snapshot};

/// A way to a port of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The load balancer of the machine's Service.
    LoadBalancer { address: IpAddr, port: u16 },
    /// The node port of the machine's Service, on a host.
    NodePort { address: IpAddr, port: u16 },
    /// KubeVirt's subresource `portforward`, through the API server. KubeVirt connects from its pods to the first address of
    /// the VM, so this works only in the pod network.
    PortForward { port: u16 },
    /// An address in the tenant's network.
    TenantAddress { address: IpAddr, port: u16 },
}

/// Routes that the user permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RouteChoice {
    /// The first route that works from most computers.
    #[default]
    Any,
    /// Only the address of the machine itself.
    Direct,
    /// Only through the API server.
    PortForward,
}

/// Returns the route to a port of a machine; `None` if there is none.
pub(super) fn route(
    snapshot: &Snapshot,
    machine: &ObjectName,
    port: u16,
    choice: RouteChoice,
) -> Option<Route> {
    let (has_pod_network, tenant_address) = addresses(snapshot, machine);
    let direct = tenant_address.map(|address| Route::TenantAddress { address, port });
    match choice {
        RouteChoice::Direct => direct,
        RouteChoice::PortForward => Some(Route::PortForward { port }),
        RouteChoice::Any => service_route(snapshot, machine, port)
            .or_else(|| has_pod_network.then_some(Route::PortForward { port }))
            .or(direct),
    }
}

/// Returns true if the first interface of the VM is in the pod network, and an address of the machine.
fn addresses(snapshot: &Snapshot, machine: &ObjectName) -> (bool, Option<IpAddr>) {
    let claims = snapshot.address_claims.values().filter(|claim| claim.machine == *machine);
    let claimed = claims.map(|claim| claim.address).min();
    let instance = snapshot.instances.get(machine);
    let reported = instance.and_then(|instance| instance.addresses.first().copied());
    (instance.is_some_and(|instance| instance.has_pod_network), claimed.or(reported))
}

fn service_route(snapshot: &Snapshot, machine: &ObjectName, port: u16) -> Option<Route> {
    let services = snapshot.services.iter();
    let own = services.filter(|(name, service)| {
        name.namespace == machine.namespace
            && service.machine == machine.name
            && service.ports.contains(&port)
    });
    let own: Vec<_> = own.map(|(_, service)| service).collect();
    let balanced = own.iter().find_map(|service| service.addresses.first());
    if let Some(address) = balanced {
        return Some(Route::LoadBalancer { address: *address, port });
    }
    let node_port = own.iter().find_map(|service| service.node_ports.get(&port))?;
    // Every Node forwards node ports. The host of the machine is tried, because it runs if the machine runs.
    let host = snapshot.instances.get(machine).and_then(|instance| instance.host.as_ref());
    let of_host = host.and_then(|host| snapshot.nodes.get(host)?.address);
    let address = of_host.or_else(|| snapshot.nodes.values().find_map(|node| node.address))?;
    Some(Route::NodePort { address, port: *node_port })
}

#[cfg(test)]
mod tests {
    use berth_views::Kind;
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(objects: &[(Kind, Value)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        objects.iter().for_each(|(kind, object)| snapshot.add(*kind, object));
        snapshot
    }

    fn instance(networks: Value) -> (Kind, Value) {
        let object = json!({
            "metadata": {"namespace": "cluster-a", "name": "web-1"},
            "spec": {"networks": networks},
            "status": {"phase": "Running", "nodeName": "rack1-a", "interfaces": [{"ipAddress": "10.0.0.7"}]},
        });
        (Kind::VirtualMachineInstance, object)
    }

    fn service(status: Value, node_port: Value) -> (Kind, Value) {
        let object = json!({
            "metadata": {"namespace": "cluster-a", "name": "access-web-1", "labels": {"berth.dev/machine": "web-1"}},
            "spec": {"ports": [{"port": 22, "nodePort": node_port}]}, "status": status,
        });
        (Kind::MachineService, object)
    }

    #[test]
    fn the_route_that_works_from_most_computers_is_chosen() {
        let node = (
            Kind::Node,
            json!({"metadata": {"name": "rack1-a"}, "status": {"addresses": [
                {"type": "Hostname", "address": "rack1-a"}, {"type": "InternalIP", "address": "192.0.2.11"},
            ]}}),
        );
        let (pod, vlan) = (json!([{"name": "n", "pod": {}}]), json!([{"name": "n", "multus": {}}]));
        let balanced =
            service(json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}]}}), json!(30022));
        let ported = service(json!({}), json!(30022));
        let machine = ObjectName::new("cluster-a", "web-1");
        let find =
            |objects: &[(Kind, Value)], choice| route(&snapshot(objects), &machine, 22, choice);
        let any = RouteChoice::Any;
        assert_eq!(
            find(&[instance(vlan.clone()), balanced, node.clone()], any),
            Some(Route::LoadBalancer { address: "198.51.100.9".parse().unwrap(), port: 22 })
        );
        assert_eq!(
            find(&[instance(vlan.clone()), ported, node], any),
            Some(Route::NodePort { address: "192.0.2.11".parse().unwrap(), port: 30022 })
        );
        assert_eq!(find(&[instance(pod.clone())], any), Some(Route::PortForward { port: 22 }));
        let direct = Some(Route::TenantAddress { address: "10.0.0.7".parse().unwrap(), port: 22 });
        assert_eq!(find(&[instance(vlan)], any), direct);
        assert_eq!(find(&[instance(pod)], RouteChoice::Direct), direct);
        assert_eq!(find(&[], any), None);
    }
}
