//! Simulated changes: their pages show what `berth-controller plan` and `kubectl berth what-if` compute from the same objects.

use std::path::PathBuf;
use std::process::Command;

use berth_tests::browser::Browser;
use berth_tests::cluster::{ADMIN_TOKEN, ControlPlane};
use serde_json::{Value, json};

use crate::objects::patch;
use crate::{Console, WIDTHS, assert_accessible, start_browser};

/// Runs a program with the kubeconfig of the administrator, and returns its JSON output. It fails if a VM has no host, which
/// is a result too.
fn run(plane: &ControlPlane, program: &str, arguments: &[&str]) -> Value {
    let output = Command::new(berth_tests::program(program))
        .args(arguments)
        .args(["-o", "json", "--kubeconfig"])
        .arg(plane.kubeconfig())
        .output()
        .unwrap();
    let parsed = serde_json::from_slice(&output.stdout);
    parsed.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
}

fn plan(plane: &ControlPlane) -> Value {
    run(plane, "berth-controller", &["plan"])
}

fn what_if(plane: &ControlPlane, arguments: &[&str]) -> Value {
    run(plane, "kubectl-berth", &[&["what-if"], arguments].concat())
}

fn write_file(plane: &ControlPlane, name: &str, content: &str) -> PathBuf {
    let file = plane.folder().join(name);
    std::fs::write(&file, content).unwrap();
    file
}

/// Lets the hosts accept VMs with exclusive CPUs, and creates VMs of which only some fit.
fn prepare(plane: &ControlPlane) {
    for host in ["rack1-a", "rack2-a"] {
        let labels = json!({"metadata": {"labels": {
            "kubevirt.io/schedulable": "true", "cpumanager": "true", "kubevirt.io/cpumanager": "true",
            "kubernetes.io/arch": "amd64", "machine-type.node.kubevirt.io/q35": "true",
        }}});
        patch(plane, &format!("/api/v1/nodes/{host}"), &labels);
        // The API server taints a new Node, and no controller of this cluster removes the taint.
        patch(plane, &format!("/api/v1/nodes/{host}"), &json!({"spec": {"taints": null}}));
        let devices = json!({
            "devices.kubevirt.io/kvm": "1000", "devices.kubevirt.io/tun": "1000", "devices.kubevirt.io/vhost-net": "1000",
        });
        let status = json!({"status": {"capacity": devices, "allocatable": devices}});
        patch(plane, &format!("/api/v1/nodes/{host}/status"), &status);
        // Hosts that merge pages accept no VMs with exclusive CPUs.
        let status = json!({"status": {"capabilities": {"memory": {"ksm": {"running": false}}}}});
        patch(plane, &format!("/apis/berth.dev/v1alpha1/infranodes/{host}/status"), &status);
    }
    for number in 1..=4 {
        let domain = json!({
            "cpu": {"cores": 40, "dedicatedCpuPlacement": true}, "memory": {"guest": "8Gi"}, "devices": {},
        });
        let machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": format!("large-{number}"), "namespace": "cluster-bank"},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": domain}}},
        });
        plane.apply(&machine.to_string()).unwrap();
    }
}

/// Returns kind, name and version of the objects that a simulation could change.
fn versions(plane: &ControlPlane) -> String {
    let kinds = "infranodes,hostprofiles,tenantclusters,machinedeployments,\
        virtualmachines.kubevirt.io,virtualmachineinstances.kubevirt.io";
    let columns = "custom-columns=K:.kind,N:.metadata.name,V:.metadata.resourceVersion";
    plane.kubectl(&["get", kinds, "-A", "--no-headers", "-o", columns]).unwrap()
}

/// Compares the sums of the page with those of two plans.
fn assert_sums(browser: &Browser, before: &Value, after: &Value) {
    let shown = browser.text("#region-before-and-after").unwrap();
    let length = |plan: &Value, field: &str| plan[field].as_array().unwrap().len();
    let cpus = |plan: &Value| {
        let hosts = plan["hosts"].as_array().unwrap().iter();
        let zones = hosts.flat_map(|host| host["zones"].as_array().unwrap());
        let sum = zones.fold((0, 0), |(used, total), zone| {
            let amount = |field: &str| zone["cpus"][field].as_u64().unwrap();
            (used + amount("used"), total + amount("total"))
        });
        format!("{} of {}", sum.1 - sum.0, sum.1)
    };
    for line in [
        format!("Hosts {} {}", length(before, "hosts"), length(after, "hosts")),
        format!("VMs without a host {} {}", length(before, "unplaced"), length(after, "unplaced")),
        format!("Free CPUs for pinning {} {}", cpus(before), cpus(after)),
    ] {
        assert!(shown.contains(&line), "{line}: {shown}");
    }
}

/// Compares the VMs that only `after` places with those of the page.
fn assert_placed(browser: &Browser, before: &Value, after: &Value) {
    let names = |plan: &Value| {
        let placed = plan["placed"].as_array().unwrap().iter();
        placed.map(|vm| vm["vm"].clone()).collect::<Vec<Value>>()
    };
    let known = names(before);
    let new = after["placed"].as_array().unwrap().iter().filter(|vm| !known.contains(&vm["vm"]));
    let new: Vec<String> = new
        .map(|vm| format!("{} {}", vm["vm"].as_str().unwrap(), vm["host"].as_str().unwrap()))
        .collect();
    let shown = browser.text("#result").unwrap();
    for line in &new {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    if new.is_empty() {
        assert!(shown.contains("No VM gets a host because of the change."), "{shown}");
    }
}

fn wait_for(browser: &Browser, text: &str) {
    let is_shown = |browser: &Browser| Ok(browser.text("#result")?.contains(text));
    browser.wait(&format!("the result has {text:?}"), is_shown).unwrap();
}

pub(crate) fn changes_are_simulated(console: &Console, tenant_token: &str) {
    prepare(&console.plane);
    let versions_before = versions(&console.plane);
    let state = plan(&console.plane);
    for list in ["placed", "unplaced"] {
        assert!(!state[list].as_array().unwrap().is_empty(), "{list}: {state:#}");
    }
    for has_scripts in [true, false] {
        let browser = start_browser(WIDTHS[1], has_scripts);
        console.sign_in(&browser, ADMIN_TOKEN);
        let check = |page: &str| {
            // axe-core needs scripts.
            if has_scripts {
                assert_accessible(&browser, page);
            }
        };
        additional_hosts_are_simulated(console, &browser);
        check("additional hosts");
        profile_is_simulated(console, &browser);
        check("a profile");
        deployment_is_simulated(console, &browser);
        check("a MachineDeployment");
        form_of_machines_leads_to_the_simulation(console, &browser);
    }
    assert_eq!(versions(&console.plane), versions_before, "a simulation has changed an object");
    // A user of the tenant sees its page, but may not list the hosts.
    let browser = start_browser(WIDTHS[1], false);
    console.sign_in(&browser, tenant_token);
    console.open(&browser, "/tenants/bank/what-if");
    browser.fill("#yaml", &deployment(1)).unwrap();
    browser.click("form.create button").unwrap();
    wait_for(&browser, "you have no permission to list");
}

fn additional_hosts_are_simulated(console: &Console, browser: &Browser) {
    console.open(browser, "/hosts/rack1-a");
    browser.click("a[href='/hosts/rack1-a/add']").unwrap();
    for invalid in ["0", "101"] {
        browser.fill("#count", invalid).unwrap();
        browser.click("form.create button").unwrap();
        wait_for(browser, &format!("count: `{invalid}`: must be a number from 1 to 100"));
    }
    browser.fill("#count", "1").unwrap();
    browser.click("form.create button").unwrap();
    wait_for(browser, "It changes no object");
    let after = what_if(&console.plane, &["--add", "1xrack1-a"]);
    let before = plan(&console.plane);
    assert_sums(browser, &before, &after);
    assert_placed(browser, &before, &after);
    assert!(browser.text("#result").unwrap().contains("rack1-a-1"));
}

/// The YAML of a profile that reserves two cores of each zone.
const PROFILE: &str = "apiVersion: berth.dev/v1alpha1\nkind: HostProfile\nmetadata: {name: reserved}\n\
    spec: {nodeSelector: {pool: reserved}, priority: 3, cpu: {reserved: {coresPerZone: 2}, kubelet: Advise}}\n";

/// Returns the host as its agent would report it with two reserved cores of each zone, after a drain.
fn host_with_reserved_cores(plane: &ControlPlane) -> String {
    let mut infra = plane.get_json(&["infranode", "rack1-a"]).unwrap();
    let status = &mut infra["status"];
    status["capabilities"]["kubelet"]["reservedSystemCPUs"] = json!("0-1,24-25,48-49,72-73");
    status["allocations"] = json!([]);
    for (at, (reserved, pinnable)) in
        [("0-1,48-49", "2-23,50-71"), ("24-25,72-73", "26-47,74-95")].into_iter().enumerate()
    {
        let zone = &mut status["zones"][at];
        zone["reservedCPUs"] = json!(reserved);
        zone["pinnableCPUs"] = json!(pinnable);
        zone["pinnedCPUs"] = Value::Null;
    }
    let mut node = plane.get_json(&["node", "rack1-a"]).unwrap();
    node["status"]["allocatable"]["cpu"] = json!("92");
    format!("{infra}\n---\n{node}\n")
}

fn profile_is_simulated(console: &Console, browser: &Browser) {
    console.open(browser, "/hosts/rack1-a");
    browser.click("a[href='/what-if/profile?host=rack1-a']").unwrap();
    browser.fill("#yaml", "kind: Secret").unwrap();
    browser.click("form.create button").unwrap();
    wait_for(browser, "must be HostProfile of the group berth.dev");
    assert!(!browser.source().unwrap().contains(">\nkind: Secret<"), "the text is shown again");
    browser.fill("#yaml", PROFILE).unwrap();
    browser.click("form.create button").unwrap();
    wait_for(browser, "It changes no object");
    let file =
        write_file(&console.plane, "reserved.yaml", &host_with_reserved_cores(&console.plane));
    let after = what_if(&console.plane, &["-f", file.to_str().unwrap()]);
    assert_sums(browser, &plan(&console.plane), &after);
    let interrupted = browser.text("#region-interrupted-vms").unwrap();
    assert!(interrupted.contains("bank-web") && !interrupted.contains("shop-web"), "{interrupted}");
    let changes = browser.text("#region-changes-of-hosts").unwrap();
    assert!(changes.contains("0-1,24-25,48-49,72-73"), "{changes}");
    assert!(browser.is_visible("a[href='/hosts/rack1-a/drain']").unwrap());
}

/// Returns the YAML of a MachineDeployment of the tenant `bank`.
fn deployment(replicas: u32) -> String {
    let mut object = berth_tests::cluster::web_deployment("cluster-bank", replicas);
    object["metadata"]["name"] = json!("simulated");
    object.to_string()
}

fn deployment_is_simulated(console: &Console, browser: &Browser) {
    console.open(browser, "/tenants/bank");
    browser.click("a[href='/tenants/bank/what-if']").unwrap();
    let foreign = deployment(1).replace("cluster-bank", "cluster-shop");
    browser.fill("#yaml", &foreign).unwrap();
    browser.click("form.create button").unwrap();
    wait_for(browser, "metadata.namespace: `cluster-shop`: must be cluster-bank");
    browser.fill("#yaml", &deployment(3)).unwrap();
    browser.click("form.create button").unwrap();
    wait_for(browser, "3 desired, 0 existing");
    let file = write_file(&console.plane, "simulated.json", &deployment(3));
    let after = what_if(&console.plane, &["-f", file.to_str().unwrap()]);
    let before = plan(&console.plane);
    assert_sums(browser, &before, &after);
    assert_placed(browser, &before, &after);
}

fn form_of_machines_leads_to_the_simulation(console: &Console, browser: &Browser) {
    console.open(browser, "/tenants/bank/create");
    browser.fill("#name", "from-form").unwrap();
    browser.click("button[formaction]").unwrap();
    wait_for(browser, "1 desired, 0 existing");
    assert!(browser.source().unwrap().contains("name: from-form"));
    assert!(browser.text("#result").unwrap().contains("cluster-bank/from-form-"));
}
