//! Spread of the control planes of all tenants.

use super::program::{repository, run_controller, run_plan, stdout};
use super::samples::compare_sample;

/// Returns the manifests of three hosts, of six tenants with three control-plane VMs each, and of a seventh tenant with
/// one control-plane VM.
fn control_planes() -> String {
    let host = std::fs::read_to_string(repository().join("examples/fleet/rack1-b.yaml")).unwrap();
    let hosts = ["rack-a", "rack-b", "rack-c"].map(|name| host.replace("rack1-b", name));
    let vm = |tenant: &str, number: u32| {
        format!(
            "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: cp-{number}, \
             namespace: cluster-{tenant}}}\nspec:\n  runStrategy: Always\n  template:\n    metadata: {{labels: \
             {{cluster.x-k8s.io/role: control-plane}}}}\n    spec: {{domain: {{devices: {{}}, cpu: {{cores: 1}}, \
             memory: {{guest: 1Gi}}}}}}\n"
        )
    };
    let tenants = ["a", "b", "c", "d", "e", "f"];
    let vms = tenants.iter().flat_map(|tenant| (1..=3).map(|number| vm(tenant, number)));
    format!("{}\n{}{}", hosts.join("\n---\n"), vms.collect::<String>(), vm("g", 1))
}

#[test]
fn control_planes_are_spread_over_hosts() {
    let input = control_planes();
    let (code, plan) = run_plan(&["-f", "-"], &input);
    assert_eq!(code, 0, "{plan}");
    let domain = |name: &str, vms: u32, points: u32| serde_json::json!({"domain": name, "vms": vms, "points": points});
    let counts = serde_json::json!({
        "topologyKey": "kubernetes.io/hostname", "pointsPerVm": 1000, "hostsWithoutLabel": 0,
        "domains": [domain("rack-a", 7, 1000), domain("rack-b", 6, 0), domain("rack-c", 6, 0)],
    });
    assert_eq!(plan["controlPlanes"], counts);
    let placed = plan["placed"].as_array().unwrap();
    assert_eq!(placed[4]["spread"], domain("rack-b", 1, 0), "{placed:?}");
    assert!(placed.iter().all(|vm| vm["spread"]["points"] == 0), "{placed:?}");
    let table = stdout(&run_controller(&["plan", "-f", "-"], &input));
    let section = &table[table.find("Control-plane VMs by").unwrap()..];
    compare_sample("docs/placement.md", "control-planes", section);

    let config = |spread: &str| {
        format!(
            "{input}---\napiVersion: berth.dev/v1alpha1\nkind: InfraConfig\nmetadata: {{name: default}}\n\
             spec: {{placement: {{controlPlaneSpread: {{{spread}}}}}}}\n"
        )
    };
    let (_, packed) = run_plan(&["-f", "-"], &config("weight: 0"));
    let domains = &packed["controlPlanes"]["domains"];
    assert_ne!(domains[0]["vms"], domains[1]["vms"], "{domains}");
    let (_, unlabelled) = run_plan(&["-f", "-"], &config("topologyKey: example.com/rack"));
    assert_eq!(unlabelled["controlPlanes"]["hostsWithoutLabel"], 3);
    let (_, invalid) = run_plan(&["-f", "-"], &config("topologyKey: a rack"));
    let field = &invalid["problems"][0]["field"];
    assert_eq!(field, "spec.placement.controlPlaneSpread.topologyKey");
}
