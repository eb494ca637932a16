//! Plans of the example fleet: placed VMs, tenants, missing hosts and remedies.

use super::program::{repository, run_plan};

#[test]
fn example_fleet_is_planned_as_its_comments_describe() {
    let (code, plan) = run_plan(&["-f", "examples/fleet/"], "");
    assert_eq!(code, 1);
    assert_eq!(plan["running"], 2);
    let placement_of = |vm: &str| {
        let all = plan["placed"].as_array().unwrap();
        all.iter().find(|placed| placed["vm"] == vm).unwrap_or_else(|| panic!("{vm}: {all:?}"))
    };
    assert_eq!(placement_of("cluster-xyz/wide-1")["host"], "rack2-a");
    assert_eq!(placement_of("cluster-xyz/wide-1")["zones"], serde_json::json!([0, 1]));
    // The zones of rack1-a are filled before the zones of rack1-b.
    assert_eq!(placement_of("cluster-abc/db-2")["host"], "rack1-a");
    assert_eq!(placement_of("cluster-abc/db-2")["zones"].as_array().unwrap().len(), 1);
    let unplaced = plan["unplaced"].as_array().unwrap();
    assert_eq!(unplaced.len(), 1, "{unplaced:?}");
    assert_eq!(unplaced[0]["vm"], "cluster-xyz/analytics");
    let refused: u64 = unplaced[0]["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["hosts"].as_u64().unwrap())
        .sum();
    assert_eq!(refused, 4, "each host should have one reason");
    let remedy = unplaced[0]["remedy"].as_str().unwrap();
    assert!(remedy.contains("the largest zone has 38 pinnable CPUs"), "{remedy}");
    assert_eq!(plan["problems"], serde_json::json!([]));
    // No CPU is allocated to two VMs, and no CPU in use or reserved CPU is allocated.
    let mut cpus: Vec<(String, u32)> = Vec::new();
    for placed in plan["placed"].as_array().unwrap() {
        let host = placed["host"].as_str().unwrap().to_owned();
        let set: berth_api::CpuSet = placed["cpus"].as_str().unwrap_or_default().parse().unwrap();
        cpus.extend(set.iter().map(|cpu| (host.clone(), cpu)));
    }
    let taken: berth_api::CpuSet = "0-9,11,13,15,17,40-49,51,53,55,57".parse().unwrap();
    assert!(cpus.iter().all(|(host, cpu)| host != "rack1-a" || !taken.contains(*cpu)));
    let count = cpus.len();
    cpus.sort();
    cpus.dedup();
    assert_eq!(cpus.len(), count, "a CPU is allocated twice");
}

#[test]
fn missing_hosts_are_counted() {
    let mut machines =
        std::fs::read_to_string(repository().join("examples/fleet/machines.yaml")).unwrap();
    // The last machine fits on no host.
    let last = machines.find("metadata: {name: analytics,").unwrap();
    machines.truncate(machines[..last].rfind("---").unwrap());
    let many: String = (0..9)
        .map(|number| machines.replace("db-2", &format!("db-{}", 20 + number)))
        .map(|text| format!("---\n{text}\n"))
        .collect();
    let host = ["-f", "examples/fleet/rack1-b.yaml", "-f", "-"];
    let plan_with = |add: &[&str]| {
        let arguments: Vec<&str> = host.iter().chain(add).copied().collect();
        // The VM with 24 cores fits on no host of this fleet.
        let text = many.replace("cores: 24", "cores: 4").replace("pageSize: 2Mi", "pageSize: 1Gi");
        run_plan(&arguments, &text)
    };
    let (code, alone) = plan_with(&[]);
    let missing = alone["unplaced"].as_array().unwrap().len();
    assert!(code == 1 && missing > 0, "{alone}");
    let (_, answer) = plan_with(&["--add", "rack1-b"]);
    let enough = answer["added"]["enough"].as_u64().unwrap();
    assert!(enough > 0);
    let (code, answer) = plan_with(&["--add", &format!("{enough}xrack1-b")]);
    assert_eq!((code, answer["unplaced"].as_array().unwrap().len()), (0, 0), "{answer}");
    if enough > 1 {
        let (code, _) = plan_with(&["--add", &format!("{}", enough - 1), "x", "rack1-b"]);
        assert_eq!(code, 1, "one host fewer should not be sufficient");
    }
    let (_, answer) = plan_with(&["--add", "unknown"]);
    assert!(answer["added"].get("like").is_none());
}

#[test]
fn tenants_and_their_machines_are_planned() {
    let all = ["-f", "examples/fleet/", "-f", "examples/tenants/", "-f", "deploy/instancetypes/"];
    let (_, plan) = run_plan(&all, "");
    let tenant = |name: &str| {
        let mut all = plan["tenants"].as_array().unwrap().iter();
        all.find(|tenant| tenant["name"] == name).unwrap()
    };
    assert_eq!((&tenant("bank")["vlan"], &tenant("bank")["hosts"]), (&120.into(), &4.into()));
    let vlan = tenant("shop")["vlan"].as_u64().unwrap();
    assert!((100..200).contains(&vlan) && vlan != 120, "{vlan}");
    let deployments: Vec<_> = plan["machineDeployments"].as_array().unwrap().iter().collect();
    assert_eq!(deployments.len(), 2, "{deployments:?}");
    let placed = plan["placed"].as_array().unwrap().iter();
    let web = placed.filter(|vm| vm["vm"].as_str().unwrap().starts_with("cluster-shop/web-"));
    assert_eq!(web.count(), 3);
    // No host has 2 MiB pages for the database, and no setting of a kubelet creates such pages.
    let unplaced = plan["unplaced"].as_array().unwrap();
    for vm in unplaced {
        let remedy = vm["remedy"].as_str().unwrap();
        assert!(!remedy.contains("topologyManagerScope"), "{remedy}");
    }
    assert_eq!(unplaced.len(), 3, "analytics and two databases are unplaced");
}

#[test]
fn remedy_is_the_topology_scope_if_only_the_scope_prevents_placement() {
    let read = |name: &str| {
        std::fs::read_to_string(repository().join("examples/fleet").join(name)).unwrap()
    };
    let machines = read("machines.yaml");
    let wide = machines.split("---\n").find(|one| one.contains("name: wide-1")).unwrap();
    let host = read("rack2-a.yaml");
    let remedy = |host: &str, wide: &str| {
        let (_, plan) = run_plan(&["-f", "-"], &format!("{host}\n---\n{wide}"));
        plan["unplaced"][0]["remedy"].as_str().map(str::to_owned)
    };
    let by_container = host.replace("topologyManagerScope: pod", "topologyManagerScope: container");
    assert_ne!(by_container, host);
    assert_eq!(remedy(&host, wide), None, "the VM is placed");
    let text = remedy(&by_container, wide).unwrap();
    assert!(text.contains("rack2-a") && text.contains("topologyManagerScope: pod"), "{text}");
    assert!(text.contains("guest-console-log") && !text.contains("were empty"), "{text}");
    // The plan does not recommend `topologyManagerScope: pod` if this setting would not help: with another policy, for
    // a VM that is too large for a zone, and for a VM without additional containers.
    let single = by_container.replace("Policy: restricted", "Policy: single-numa-node");
    let wider = wide.replace("cores: 24", "cores: 40");
    for (host, wide) in [(&single, wide), (&by_container, &wider), (&host, &wider)] {
        let text = remedy(host, wide).unwrap();
        assert!(!text.contains("topologyManagerScope"), "{text}");
    }
    let alone = wide.replace("devices: {}", "devices: {logSerialConsole: false}");
    assert_eq!(remedy(&by_container, &alone), None, "the VM has no additional container");
}
