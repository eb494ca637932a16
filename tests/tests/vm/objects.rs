//! Objects of the cluster: the profile of the hosts, two flavors, and the policy with which a VM boots the small guest.
//!
//! Berth's controller creates the VMs for MachineDeployments, and the test changes only their disks and their kernel. A
//! MachineDeployment has no field for a kernel, and CDI, which would import the image of a disk, does not run.
//! Therefore a policy of the API server replaces the disks of each new VM with an empty one and the kernel of the small
//! guest, before KubeVirt's webhooks receive the VM. Without this policy, each DataVolume would need a volume with a
//! bootable disk, as `berth_tests::kubevirt::Simulation` creates volumes without content.

use serde_json::{Value, json};

/// Name of the hosts' profile.
pub(crate) const PROFILE: &str = "vms";
/// Host network of `examples/tenants/config.yaml`.
pub(crate) const HOST_NETWORK: &str = "tenant-trunk";
/// Bridge of the host network.
pub(crate) const BRIDGE: &str = "br-tenant";
/// Flavor with exclusive CPUs and huge pages of one zone.
pub(crate) const PERFORMANCE_FLAVOR: &str = "performance-small";
/// Flavor with shared CPUs.
pub(crate) const DENSITY_FLAVOR: &str = "density-small";
/// Number of huge pages of 2 MiB of each host, all in zone 1.
pub(crate) const HOST_PAGES: u64 = 128;
/// Number of huge pages of 2 MiB of a VM of the flavor [`PERFORMANCE_FLAVOR`].
pub(crate) const GUEST_PAGES: u64 = 64;
/// Annotation of the template of a MachineDeployment: arguments for the kernel of the guest. The init program of the
/// guest reads the arguments that begin with `guest.`.
pub(crate) const ARGUMENTS_ANNOTATION: &str = "guest-arguments";

/// Returns the huge pages of a host, as in the spec of an InfraNode.
pub(crate) fn huge_pages() -> Value {
    json!([{"size": "2Mi", "zone": 1, "count": HOST_PAGES}])
}

/// Returns the profile of the hosts. Its priority is higher than that of the profile in `examples/tenants/config.yaml`.
pub(crate) fn profile() -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": PROFILE},
        "spec": {
            "priority": 200, "class": "Performance", "hugepages": huge_pages(), "ksm": {"mode": "Off"},
            "networks": [{"name": HOST_NETWORK, "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "bridge": BRIDGE}],
        },
    })
}

/// Returns the flavors, as in `deploy/instancetypes` but smaller. With the CPU of the emulator's thread, a VM of the
/// flavor [`PERFORMANCE_FLAVOR`] has two exclusive CPUs.
pub(crate) fn flavors() -> [Value; 2] {
    let flavor = |name: &str, spec: Value| {
        json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": name}, "spec": spec,
        })
    };
    let performance = json!({
        "cpu": {
            "guest": 1, "dedicatedCPUPlacement": true, "isolateEmulatorThread": true,
            "numa": {"guestMappingPassthrough": {}},
        },
        "memory": {"guest": format!("{}Mi", 2 * GUEST_PAGES), "hugepages": {"pageSize": "2Mi"}},
        "ioThreadsPolicy": "shared", "schedulerName": "berth-scheduler",
    });
    let density = json!({
        "cpu": {"guest": 1}, "memory": {"guest": "128Mi", "overcommitPercent": 33},
        "schedulerName": "berth-scheduler",
    });
    [flavor(PERFORMANCE_FLAVOR, performance), flavor(DENSITY_FLAVOR, density)]
}

/// Returns the policy with which a VM boots the small guest, and the binding of the policy.
pub(crate) fn boot_policy() -> [Value; 2] {
    let patches = [
        r#"{op: "remove", path: "/spec/dataVolumeTemplates"}"#.to_owned(),
        // virt-launcher does not start a VM that has IO threads and no disk. In CEL, a map has values of one type only,
        // so each level is a separate patch.
        r#"{op: "add", path: "/spec/template/spec/volumes", value: [{"name": "scratch"}]}"#
            .to_owned(),
        r#"{op: "add", path: "/spec/template/spec/volumes/0/emptyDisk", value: {"capacity": "8Mi"}}"#
            .to_owned(),
        r#"{op: "add", path: "/spec/template/spec/domain/devices/disks", value: [{"name": "scratch"}]}"#
            .to_owned(),
        r#"{op: "add", path: "/spec/template/spec/domain/devices/disks/0/disk", value: {"bus": "virtio"}}"#
            .to_owned(),
        r#"{op: "add", path: "/spec/template/spec/domain/firmware", value: {"kernelBoot": {"container": {
            "image": "berth.test/guest:1", "imagePullPolicy": "Never",
            "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initramfs"}}}}"#
            .to_owned(),
        format!(
            r#"{{op: "add", path: "/spec/template/spec/domain/firmware/kernelBoot/kernelArgs",
            value: "console=ttyS0 quiet guest.address=dhcp " + object.spec.template.metadata.annotations["{ARGUMENTS_ANNOTATION}"]}}"#
        ),
    ];
    let patches = patches.map(|patch| format!("JSONPatch{patch}"));
    let metadata = "object.spec.template.metadata";
    let has_arguments = format!(
        "has({metadata}) && has({metadata}.annotations) && \"{ARGUMENTS_ANNOTATION}\" in {metadata}.annotations"
    );
    let group = "admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": "guests"},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["virtualmachines"],
            }]},
            "matchConditions": [{"name": "has-arguments", "expression": has_arguments}],
            "mutations": [{
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": format!("[{}]", patches.join(", "))},
            }],
        },
    });
    let binding = json!({
        "apiVersion": group, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "guests"},
        "spec": {"policyName": "guests"},
    });
    [policy, binding]
}
