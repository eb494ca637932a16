//! Machines of all shipped flavors, with both eviction strategies and the fields of the providerSpec that
//! `docs/machines.md` describes: virt-api accepts each VirtualMachine that Berth renders.

use std::io::Write as _;

use berth_controller::fleet::{InputObject, RenderInput};
use berth_kubevirt_render::machines::{
    MachineDeployment, RenderContext, RenderOptions, render_machine,
};
use berth_tests::repository;
use serde_json::{Value, json};

use crate::machines::BANK_NAMESPACE;
use crate::provider_fields::{ARM_PREFERENCE, Case, LISTED_NETWORK, cases};
use crate::testbed::{Testbed, text};

/// Files with the instance types that `flavor` names.
const FLAVOR_FILES: [&str; 2] = ["performance.yaml", "density.yaml"];
/// Kinds of instance types, which rendering reads.
const INSTANCETYPE_KINDS: [&str; 2] =
    ["virtualmachineclusterinstancetypes", "virtualmachineinstancetypes"];
/// Values of `evictionStrategy`; `None` is the default, which `examples/tenants/config.yaml` sets to `External`.
const EVICTION_STRATEGIES: [Option<&str>; 3] = [None, Some("External"), Some("LiveMigrate")];
/// Feature gate of KubeVirt that is disabled by default, and that VMs with Flatcar need.
const IGNITION_GATE: &str = "ExperimentalIgnitionSupport";

/// Tests that virt-api accepts each combination of size, eviction strategy and case. No VirtualMachine is stored.
pub(crate) fn machines_of_all_flavors_are_accepted(bed: &Testbed) {
    let preference = json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterPreference",
        "metadata": {"name": ARM_PREFERENCE}, "spec": {"preferredArchitecture": "arm64"},
    });
    bed.plane.apply(&preference.to_string()).unwrap();
    let (context, sizes, cases) = (render_context(bed), sizes(bed), cases());
    let (mut accepted, mut refused) = (0, Vec::new());
    for (size, fields) in &sizes {
        for strategy in EVICTION_STRATEGIES {
            for case in &cases {
                let machine = render(&context, &provider_spec(fields, strategy, case), case);
                match bed.plane.create_dry_run(&machine) {
                    Ok(stored) => {
                        assert_stored(&stored, strategy, case);
                        accepted += 1;
                    }
                    Err(error) => refused
                        .push(format!("{size}, eviction {strategy:?}, {}: {error:#}", case.name)),
                }
            }
        }
    }
    let delete = ["delete", "virtualmachineclusterpreference", ARM_PREFERENCE];
    bed.plane.kubectl(&delete).unwrap();
    writeln!(
        std::io::stderr(),
        "virt-api accepted {accepted} of {} rendered machines: {} sizes, {} eviction strategies, {} sets of fields",
        accepted + refused.len(),
        sizes.len(),
        EVICTION_STRATEGIES.len(),
        cases.len()
    )
    .unwrap_or_default();
    assert!(refused.is_empty(), "virt-api refused {}:\n{}", refused.len(), refused.join("\n"));
    assert!(accepted >= 1000, "only {accepted} machines");
}

/// Tests that virt-api refuses a machine with Flatcar without the feature gate that `docs/machines.md` names: the user
/// data are in an annotation.
pub(crate) fn flatcar_needs_a_feature_gate(bed: &Testbed) {
    let fields = json!({"operatingSystem": "flatcar", "cloudProviderSpec": {"virtualMachine":
        {"template": {"primaryDisk": {"osImage": "http://images.example/flatcar.img"}}}}});
    let case = Case { user_data: Some("{}".to_owned()), ..Case::new("Flatcar", fields) };
    let size = json!({"flavor": {"name": "density-1"}});
    let machine = render(&render_context(bed), &provider_spec(&size, None, &case), &case);
    let error = bed.plane.create_dry_run(&machine).unwrap_err().to_string();
    assert!(error.contains(IGNITION_GATE), "{error}");
}

/// Checks that the stored VirtualMachine has the fields that the combination sets.
fn assert_stored(stored: &Value, strategy: Option<&str>, case: &Case) {
    let spec = &stored["spec"]["template"]["spec"];
    assert_eq!(spec["evictionStrategy"], strategy.unwrap_or("External"), "{}", case.name);
    assert_eq!(spec["architecture"], case.architecture, "{}", case.name);
}

/// Returns the sizes of machines: a name and the fields in `virtualMachine` of the providerSpec.
fn sizes(bed: &Testbed) -> Vec<(String, Value)> {
    let name = |object: &Value| text(&object["metadata"]["name"]).to_owned();
    let flavors = bed.list("virtualmachineclusterinstancetypes", &[]);
    let folder = repository().join("deploy/instancetypes");
    let shipped = FLAVOR_FILES.map(|file| {
        let content = std::fs::read_to_string(folder.join(file)).unwrap();
        content.matches("kind: VirtualMachineClusterInstancetype\n").count()
    });
    assert_eq!(flavors.len(), shipped.iter().sum::<usize>(), "{flavors:#?}");
    let flavors =
        flavors.iter().map(|object| (name(object), json!({"flavor": {"name": name(object)}})));
    let of_tenant = bed.list("virtualmachineinstancetypes", &["-n", BANK_NAMESPACE]);
    assert_eq!(of_tenant.len(), 3, "{of_tenant:#?}");
    let of_tenant = of_tenant.iter().map(|object| {
        let fields = json!({
            "instancetype": {"name": name(object), "kind": "VirtualMachineInstancetype"},
            "preference": {"name": "sockets-advantage", "kind": "VirtualMachinePreference"},
        });
        (name(object), fields)
    });
    let without_type = [
        ("cpus", json!({"template": {"cpus": "2", "memory": "4Gi"}})),
        ("vcpus", json!({"template": {"vcpus": {"cores": 2}, "memory": "4Gi"}})),
        ("kubermatic-standard", json!({"flavor": {"name": "kubermatic-standard"}})),
    ];
    let without_type = without_type.map(|(name, fields)| (name.to_owned(), fields));
    flavors.chain(of_tenant).chain(without_type).collect()
}

/// Returns what rendering reads: the objects of the cluster, and permissions for a network of another namespace.
fn render_context(bed: &Testbed) -> RenderContext {
    let mut tenant = bed.get("tenantcluster", "default", "bank");
    tenant["spec"]["network"]["additional"] = json!([LISTED_NETWORK]);
    let mut config = bed.get("infraconfig", "default", "default");
    config["spec"]["additionalNetworks"] = json!([LISTED_NETWORK]);
    let types = INSTANCETYPE_KINDS.iter().flat_map(|kind| bed.list(kind, &["-A"]));
    let objects = [tenant, config].into_iter().chain(types);
    let location = "the API server";
    let objects =
        objects.map(|object| InputObject { location: location.to_owned(), object }).collect();
    let RenderInput { render_context, problems, .. } = RenderInput::new(objects, Vec::new());
    assert!(problems.is_empty(), "{problems:#?}");
    render_context
}

/// Returns the providerSpec of a machine.
fn provider_spec(size: &Value, strategy: Option<&str>, case: &Case) -> Value {
    let mut provider = json!({
        "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
        "cloudProviderSpec": {"virtualMachine": {"template": {"primaryDisk": {"size": "20Gi"}}}},
    });
    let machine = &mut provider["cloudProviderSpec"]["virtualMachine"];
    merge(machine, size);
    if let Some(strategy) = strategy {
        machine["evictionStrategy"] = strategy.into();
    }
    merge(&mut provider, &case.fields);
    provider
}

/// Renders a machine of the bank, as the controller and `berth-controller render` do.
fn render(context: &RenderContext, provider: &Value, case: &Case) -> Value {
    let deployment = json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "flavors", "namespace": BANK_NAMESPACE},
        "spec": {"template": {"spec": {"providerSpec": {"value": provider}}}},
    });
    let deployment = MachineDeployment::read("test", deployment).unwrap();
    let options = RenderOptions {
        machine_name: Some("flavors-1".to_owned()),
        interfaces: case.interfaces.clone(),
        user_data: case.user_data.clone(),
        ..RenderOptions::default()
    };
    let rendered = render_machine(&deployment, context, &options);
    rendered.unwrap_or_else(|problems| panic!("{problems:#?}\n{provider:#}")).machine
}

/// Merges objects recursively. Other values are replaced.
fn merge(target: &mut Value, fields: &Value) {
    match fields {
        Value::Object(fields) => {
            for (name, value) in fields {
                merge(&mut target[name], value);
            }
        }
        other => *target = other.clone(),
    }
}
