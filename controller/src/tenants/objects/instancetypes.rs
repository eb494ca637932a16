//! Instance types and a preference of KubeVirt in every tenant's namespace, with the values of KKP
//! (`pkg/provider/cloud/kubevirt/manifests` of kubermatic/kubermatic).

use serde_json::json;

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;

/// Name, number of CPUs and amount of memory of each instance type.
const INSTANCETYPE_SIZES: [(&str, u32, &str); 3] =
    [("standard-2", 2, "8Gi"), ("standard-4", 4, "16Gi"), ("standard-8", 8, "32Gi")];

const PREFERENCE: &str = "sockets-advantage";

/// Returns the number of CPUs and the memory of an instance type that every tenant's namespace has; `None` for another name.
#[must_use]
pub fn built_in_instancetype(name: &str) -> Option<(u32, &'static str)> {
    let found = INSTANCETYPE_SIZES.into_iter().find(|(one, ..)| *one == name);
    found.map(|(_, cpus, memory)| (cpus, memory))
}

/// Returns true for the name of the preference that every tenant's namespace has.
#[must_use]
pub fn is_built_in_preference(name: &str) -> bool {
    name == PREFERENCE
}

/// Returns the instance types and the preference for a tenant's namespace.
#[must_use]
pub fn instancetype_objects(tenant: &str) -> Vec<DesiredObject> {
    let size = |(name, cpus, memory): (&str, u32, &str)| {
        let spec = json!({"spec": {"cpu": {"guest": cpus}, "memory": {"guest": memory}}});
        DesiredObject::new(ObjectKind::Instancetype, tenant, name, spec)
    };
    let mut all: Vec<DesiredObject> = INSTANCETYPE_SIZES.into_iter().map(size).collect();
    let spec = json!({"spec": {"cpu": {"preferredCPUTopology": "preferSockets"}}});
    all.push(DesiredObject::new(ObjectKind::Preference, tenant, PREFERENCE, spec));
    all
}
