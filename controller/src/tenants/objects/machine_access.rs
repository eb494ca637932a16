//! Services that forward node ports to single machines.

use berth_api::names::MACHINE_LABEL;
use berth_api::{AccessType, Exposure, TenantCluster};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;
use super::load_balancer_pool::pool_name;
use crate::tenants::claims::hash_strings;
use crate::tenants::node_ports::NodePorts;

/// Maximum length of the name of a Service, in characters.
const MAX_NAME_LENGTH: usize = 63;

/// Returns the name of a machine's Service. The name starts with a letter, because the names of Services must.
#[must_use]
pub fn access_service_name(machine: &str) -> String {
    let name = format!("access-{machine}");
    if name.len() <= MAX_NAME_LENGTH && !machine.contains('.') {
        return name;
    }
    let start: String = machine.chars().take(32).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("access-{start}-{:016x}", hash_strings(&[machine]))
}

/// Returns the Service of a machine; `None` if the tenant requests no Services for its machines. The VirtualMachine
/// with this UID owns the Service.
#[must_use]
pub fn access_service(tenant: &TenantCluster, machine: &str, uid: &str) -> Option<DesiredObject> {
    let Exposure { load_balancers, machine_access, .. } = tenant.spec.exposure.as_ref()?;
    let access = machine_access.as_ref()?;
    let name_of = |port: u16| match port {
        22 => "ssh".to_owned(),
        _ => format!("tcp-{port}"),
    };
    let port = |port: u16| json!({"name": name_of(port), "protocol": "TCP", "port": port, "targetPort": port});
    let ports: Vec<Value> = access.all_ports().into_iter().map(port).collect();
    if ports.is_empty() {
        return None;
    }
    let type_ = access.type_.unwrap_or_default();
    let id = tenant.name_any();
    let content = json!({"spec": {
        "type": type_.as_str(), "selector": {"kubevirt.io/vm": machine}, "ports": ports,
    }});
    let name = access_service_name(machine);
    let mut service = DesiredObject::new(ObjectKind::Service, &id, &name, content);
    let metadata = &mut service.body["metadata"];
    metadata["labels"][MACHINE_LABEL] = machine.into();
    metadata["ownerReferences"] = json!([
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine, "uid": uid},
    ]);
    if type_ == AccessType::LoadBalancer && load_balancers.is_some() {
        metadata["annotations"] = json!({"metallb.io/address-pool": pool_name(&id)});
    }
    Some(service)
}

/// Sets the node ports of a machine's Service.
#[must_use]
pub fn with_node_ports(mut service: DesiredObject, node_ports: &NodePorts) -> DesiredObject {
    let ports = service.body.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        let number = port["port"].as_u64().and_then(|number| u16::try_from(number).ok());
        if let Some(node_port) = number.and_then(|number| node_ports.get(&number)) {
            port["nodePort"] = (*node_port).into();
        }
    }
    service
}

#[cfg(test)]
mod tests {
    use berth_api::TenantClusterSpec;

    use super::*;

    fn tenant(exposure: Value) -> TenantCluster {
        let spec = serde_json::from_value(json!({"exposure": exposure})).unwrap();
        TenantCluster::new("shop", spec)
    }

    #[test]
    fn a_machine_has_one_service_with_its_ports() {
        let tenant = tenant(json!({"machineAccess": {"ports": [6443]}}));
        let service = access_service(&tenant, "web-1", "u").unwrap();
        assert_eq!(
            service.body,
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": "access-web-1", "namespace": "cluster-shop",
                    "labels": {
                        "app.kubernetes.io/managed-by": "berth", "berth.dev/tenant": "shop", "berth.dev/machine": "web-1",
                    },
                    "ownerReferences": [
                        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web-1", "uid": "u"},
                    ],
                },
                "spec": {
                    "type": "NodePort", "selector": {"kubevirt.io/vm": "web-1"},
                    "ports": [
                        {"name": "ssh", "protocol": "TCP", "port": 22, "targetPort": 22},
                        {"name": "tcp-6443", "protocol": "TCP", "port": 6443, "targetPort": 6443},
                    ],
                },
            })
        );
    }

    #[test]
    fn load_balancers_get_addresses_of_the_tenants_pool() {
        let access = json!({"type": "LoadBalancer"});
        let pool = json!({"addresses": ["192.0.2.0/28"]});
        let own = tenant(json!({"machineAccess": access, "loadBalancers": pool}));
        let service = access_service(&own, "web-1", "u").unwrap();
        assert_eq!(service.body["spec"]["type"], "LoadBalancer");
        let annotations = &service.body["metadata"]["annotations"];
        assert_eq!(*annotations, json!({"metallb.io/address-pool": "tenant-shop"}));
        let without_pool = tenant(json!({"machineAccess": access}));
        let service = access_service(&without_pool, "web-1", "u").unwrap();
        assert_eq!(service.body["metadata"].get("annotations"), None);
    }

    #[test]
    fn node_ports_are_set_by_port() {
        let tenant = tenant(json!({"machineAccess": {"ports": [6443]}}));
        let service = access_service(&tenant, "web-1", "u").unwrap();
        let node_ports = NodePorts::from([(22, 30_100), (80, 30_101)]);
        let service = with_node_ports(service, &node_ports);
        let ports = service.body["spec"]["ports"].as_array().unwrap();
        let pairs: Vec<_> = ports.iter().map(|one| (&one["port"], one.get("nodePort"))).collect();
        assert_eq!(pairs, [(&json!(22), Some(&json!(30_100))), (&json!(6443), None)]);
    }

    #[test]
    fn services_are_optional() {
        for exposure in [json!({}), json!({"machineAccess": {"ssh": false}})] {
            assert_eq!(access_service(&tenant(exposure), "web-1", "u"), None);
        }
        assert_eq!(
            access_service(&TenantCluster::new("shop", TenantClusterSpec::default()), "web-1", "u"),
            None
        );
    }

    #[test]
    fn names_are_valid_and_different() {
        let (long, other) = ("9".repeat(240), format!("{}8", "9".repeat(239)));
        for machine in ["1", "a.b", &long, &other] {
            let name = access_service_name(machine);
            assert!(name.len() <= MAX_NAME_LENGTH && !name.contains('.'), "{name}");
            assert!(name.starts_with("access-"), "{name}");
        }
        assert_ne!(access_service_name(&long), access_service_name(&other));
        assert_ne!(access_service_name("a.b"), access_service_name("a-b"));
    }
}
