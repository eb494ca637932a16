//! Runs `berth-controller` as users run it. The README and the manual show its output for the example fleet.
//!
//! After a change of the output, run `make samples` (this test with `BERTH_UPDATE=1`) and review the difference.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "tests run the program, read files, and fail by panicking"
)]

#[path = "../../tests/src/manual.rs"]
mod manual;
#[path = "../../tests/src/skip.rs"]
mod skip;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run_controller(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth-controller"))
        .args(arguments)
        .current_dir(repository())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that ignores its input may exit before all input is written.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap_or_default();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn run_plan(arguments: &[&str], input: &str) -> (i32, Value) {
    let all: Vec<&str> = ["plan", "-o", "json"].iter().chain(arguments).copied().collect();
    let output = run_controller(&all, input);
    let code = output.status.code().unwrap();
    let value = serde_json::from_str(&stdout(&output));
    (code, value.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output))))
}

fn compare_with_file(path: &str, wanted: &str) {
    let path = repository().join(path);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found == wanted {
        return;
    }
    assert!(
        std::env::var_os("BERTH_UPDATE").is_some(),
        "{} is stale: run `make samples` and review the difference",
        path.display()
    );
    std::fs::write(&path, wanted).unwrap();
}

/// Compares the code block after `<!-- sample: NAME -->` of a document.
fn compare_sample(path: &str, name: &str, sample: &str) {
    let document = std::fs::read_to_string(repository().join(path)).unwrap();
    let marker = format!("<!-- sample: {name} -->\n```text\n");
    let start = document.find(&marker).unwrap() + marker.len();
    let end = start + document[start..].find("```\n").unwrap();
    compare_with_file(path, &format!("{}{sample}{}", &document[..start], &document[end..]));
}

#[test]
fn checks_are_documented() {
    let list = stdout(&run_controller(&["check", "--list"], ""));
    for line in list.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    compare_sample("docs/preflight.md", "checks", &list);
    let json = stdout(&run_controller(&["check", "--list", "-o", "json", "kubevirt"], ""));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["id"], "kubevirt.version");
}

/// An API server that does not answer has another exit code than invalid usage.
#[test]
fn unreachable_cluster_is_reported_by_check() {
    let kubeconfig = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unreachable.kubeconfig");
    // Without an authority, the client needs those of the operating system, which may be missing.
    let authority = std::fs::read(repository().join("crates/runtime/tests/agent.crt")).unwrap();
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    // Port 1 is reserved, and no program listens on it.
    let cluster =
        format!("{{server: 'https://127.0.0.1:1', certificate-authority-data: {authority}}}");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let output = run_controller(&["check", "--kubeconfig", kubeconfig.to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let error = stderr(&output);
    assert!(error.starts_with("berth-controller: API server 127.0.0.1:1: "), "{error}");
}

#[test]
fn documents_contain_the_output_of_the_program() {
    let output = run_controller(&["plan", "-f", "examples/fleet/"], "");
    assert_eq!(output.status.code(), Some(1), "one VM does not fit: {}", stderr(&output));
    let table = stdout(&output);
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    compare_sample("docs/placement.md", "fleet", &table);
    let reference = stdout(&run_controller(&["man", "--markdown"], ""));
    compare_with_file("docs/berth-controller.md", &reference);
    manual::check("berth-controller", &stdout(&run_controller(&["man"], "")), &reference);
}

#[test]
fn the_bash_completion_script_completes_commands() {
    let script = stdout(&run_controller(&["completion", "bash"], ""));
    let words = "COMP_WORDS=(berth-controller pl); COMP_CWORD=1";
    let call = "_berth__controller berth-controller pl berth-controller";
    let test = format!("{script}\n{words}; {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\"");
    let output = Command::new("bash").args(["-c", &test]).output().unwrap();
    assert_eq!(stdout(&output), "plan\n", "{}", stderr(&output));
}

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
    assert_eq!(refused, 4, "each host has one reason");
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

/// Plans the drain of a host with two VMs of a MachineDeployment with this spec.
fn plan_drain_of_deployment(spec: &str, annotations: &str) -> Value {
    let instance = |name: &str| {
        format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: {name}, namespace: cluster-abc, labels: {{md: db}}, annotations: {{{annotations}}}}}\n\
             spec: {{evictionStrategy: External, domain: {{memory: {{guest: 64Mi}}, devices: {{}}}}}}\n\
             status: {{nodeName: rack1-a, phase: Running, conditions: [{{type: LiveMigratable, status: \"False\"}}, \
             {{type: Ready, status: \"True\"}}]}}\n"
        )
    };
    let deployment = format!(
        "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\n\
         metadata: {{name: db, namespace: cluster-abc}}\nspec: {spec}\n\
         status: {{replicas: 2, availableReplicas: 2}}\n"
    );
    let text = [instance("db-8"), instance("db-9"), deployment].join("---\n");
    let arguments = ["-f", "examples/fleet/", "-f", "-", "--drain", "rack1-a"];
    let (_, answer) = run_plan(&arguments, &text);
    answer["drain"]["decisions"].clone()
}

#[test]
fn drain_has_the_reasons_of_the_controller() {
    let reasons = |spec: &str, annotations: &str| {
        let decisions = plan_drain_of_deployment(spec, annotations);
        let decisions = decisions.as_array().cloned().unwrap_or_default();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let each =
            decisions.iter().map(|one| format!("{} {}", text(one, "vm"), text(one, "reason")));
        each.collect::<Vec<_>>()
    };
    let limits = |surge: u32, unavailable: u32| {
        format!(
            "{{replicas: 2, template: {{}}, strategy: {{rollingUpdate: {{maxSurge: {surge}, maxUnavailable: {unavailable}}}}}}}"
        )
    };
    assert_eq!(
        reasons(&limits(1, 0), ""),
        ["cluster-abc/db-8 WaitingForReplacement", "cluster-abc/db-9 BudgetExhausted"]
    );
    assert_eq!(
        reasons(&limits(0, 1), ""),
        ["cluster-abc/db-8 BeingRemoved", "cluster-abc/db-9 BudgetExhausted"]
    );
    let marked = "berth.dev/removal: Rollout, berth.dev/removal-since: \"2026-05-01T12:00:00Z\"";
    assert_eq!(
        reasons(&limits(1, 0), marked),
        ["cluster-abc/db-8 BeingRemoved", "cluster-abc/db-9 BeingRemoved"]
    );
    let invalid = "{replicas: -1, template: {}}";
    assert_eq!(
        reasons(invalid, ""),
        ["cluster-abc/db-8 InvalidDeployment", "cluster-abc/db-9 InvalidDeployment"]
    );
    let decisions = plan_drain_of_deployment(invalid, "");
    assert_eq!(decisions[0]["blocked"], true);
    assert!(
        decisions[0]["message"].as_str().unwrap_or_default().contains("spec.replicas"),
        "{decisions}"
    );
}

#[test]
fn drain_moves_vms_or_reports_the_blocking_rule() {
    let (code, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack1-a"], "");
    assert_eq!(code, 1);
    let drain = &answer["drain"];
    let stuck = drain["stuck"].as_array().unwrap();
    assert_eq!(stuck.len(), 1, "{stuck:?}");
    assert_eq!(stuck[0]["vm"], "cluster-abc/cache-1");
    assert_eq!(stuck[0]["reason"], "NoHostFits");
    assert!(
        stuck[0]["refused"][0]["detail"]
            .as_str()
            .unwrap()
            .contains("kubernetes.io/hostname=rack1-a")
    );
    let has_db =
        |list: &Value| list.as_array().unwrap().iter().any(|one| one["vm"] == "cluster-abc/db-1");
    assert!(has_db(&drain["moved"]) && !has_db(&drain["replaced"]), "{drain}");
    let instances = ["db-1", "cache-1"].map(|name| {
        format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: {name}, namespace: cluster-abc}}\n\
             spec: {{evictionStrategy: External, domain: {{devices: {{}}}}}}\n\
             status: {{nodeName: rack1-a, conditions: [{{type: LiveMigratable, status: \"False\"}}]}}\n"
        )
    });
    let arguments = ["-f", "examples/fleet/", "-f", "-", "--drain", "rack1-a"];
    // No MachineDeployment owns these; the label shows that one owns the last instance.
    let managed = instances[0]
        .replace("name: db-1,", "name: db-9, labels: {md: db},")
        .replace("domain: {", "domain: {memory: {guest: 64Mi}, ");
    let [first, second] = instances;
    let (_, answer) = run_plan(&arguments, &[first, second, managed].join("---\n"));
    let drain = &answer["drain"];
    assert!(!has_db(&drain["moved"]) && has_db(&drain["notManaged"]), "{drain}");
    assert_eq!(drain["replaced"][0]["vm"], "cluster-abc/db-9");
    assert_eq!(drain["replaced"][0]["reason"], "NotMigratable");
    assert_eq!(drain["stuck"][0]["reason"], "NotMigratable");
    let (_, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack2-a"], "");
    let moved = &answer["drain"]["moved"];
    assert!(moved.as_array().unwrap().iter().all(|moved| moved["host"] != "rack2-a"), "{moved}");
    let (code, answer) = run_plan(&["-f", "examples/fleet/", "--drain", "rack9"], "");
    assert_eq!((code, &answer["drain"]["isKnown"]), (1, &Value::Bool(false)));
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
        // The wide VM fits on no host of this fleet.
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
        assert_eq!(code, 1, "one host fewer is not sufficient");
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

/// Three hosts, and the control planes of six tenants with three VMs each, and one VM more.
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

#[test]
fn broken_objects_are_reported_and_others_are_planned() {
    let broken = "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: odd, namespace: x}\n\
        spec: {template: {spec: {domain: {cpu: {cores: many}, devices: {}}}}}\n\
        ---\nkind: [\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n\
        ---\napiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: empty}\nspec: {}\n";
    let (code, plan) = run_plan(&["-f", "examples/fleet/", "-f", "-"], broken);
    assert_eq!(code, 1);
    assert_eq!(plan["placed"].as_array().unwrap().len(), 4, "the other VMs are placed");
    assert_eq!(plan["ignored"]["Service"], 1);
    let problems: Vec<String> = plan["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| {
            format!(
                "{}: {}",
                problem["object"].as_str().unwrap(),
                problem["field"].as_str().unwrap()
            )
        })
        .collect();
    for wanted in [
        "VirtualMachine x/odd: spec.template.spec.domain.cpu.cores",
        "standard input, document 3: ",
        "InfraNode empty: status",
    ] {
        assert!(
            problems.iter().any(|problem| problem == wanted),
            "{wanted} is not in {problems:?}"
        );
    }
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
    // The plan does not recommend `topologyManagerScope: pod` if it would not help: with another policy, for a VM that
    // is too wide, and for a VM without additional containers.
    let single = by_container.replace("Policy: restricted", "Policy: single-numa-node");
    let wider = wide.replace("cores: 24", "cores: 40");
    for (host, wide) in [(&single, wide), (&by_container, &wider), (&host, &wider)] {
        let text = remedy(host, wide).unwrap();
        assert!(!text.contains("topologyManagerScope"), "{text}");
    }
    let alone = wide.replace("devices: {}", "devices: {logSerialConsole: false}");
    assert_eq!(remedy(&by_container, &alone), None, "the VM has no additional container");
}

#[test]
fn omitted_vm_causes_exit_code_1() {
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: odd, namespace: x}\nspec:\n  \
              runStrategy: Always\n  preference: {kind: VirtualMachinePreference, name: nowhere}\n  template: {spec: \
              {domain: {devices: {}, cpu: {cores: 1}, memory: {guest: 1Gi}}}}\n";
    let (code, answer) = run_plan(&["-f", "examples/fleet/rack1-b.yaml", "-f", "-"], vm);
    let problems = answer["problems"].as_array().unwrap();
    assert!(problems.iter().any(|one| one["isFatal"] == true), "{answer}");
    assert!(answer.to_string().contains("nowhere"), "{answer}");
    assert_eq!(code, 1, "{answer}");
}

#[test]
fn invalid_usage_is_reported_with_a_remedy() {
    for (arguments, code, words) in [
        (&["plan"][..], 2, "specify -f DIR|FILE|-"),
        (&["plan", "-f", "/nowhere"], 2, "/nowhere"),
        (&["plan", "-f", "controller/src"], 2, "no .yaml"),
        (&["plan", "-f", "examples/fleet/", "--add", "0xrack1-a"], 2, "2xrack1-a"),
        (&["plan", "-f", "examples/machines.yaml"], 2, "no InfraNode"),
        (&["plan", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["check", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["check", "tenant.network"], 2, "specify --tenant NAME"),
        (&["check", "kubevirt.nothing"], 2, "kubevirt.nothing"),
        (&["run", "--kubeconfig", "/nowhere"], 2, "/nowhere"),
        (&["run", "--kubeconfig", "docs/packing.svg"], 2, "packing.svg"),
    ] {
        let output = run_controller(arguments, "");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn printed_crds_equal_the_files_in_deploy() {
    let printed = stdout(&run_controller(&["crds"], ""));
    let names = [
        "infranodes",
        "hostprofiles",
        "infraconfigs",
        "tenantclusters",
        "vlanclaims",
        "prefixclaims",
        "addressclaims",
        "hostleases",
    ];
    let files = names.map(|name| {
        let file = repository().join(format!("deploy/crds/{name}.berth.dev.yaml"));
        format!("---\n{}", std::fs::read_to_string(file).unwrap())
    });
    assert_eq!(printed, files.concat());
}

/// Objects that are left out by mistake are named, and the exit code is 1. Objects that placement ignores are
/// counted.
#[test]
fn omitted_documents_are_reported() {
    let host = std::fs::read_to_string(repository().join("examples/fleet/lab-a.yaml")).unwrap();
    let document = |kind: &str, version: &str| {
        let version =
            if version.is_empty() { String::new() } else { format!("apiVersion: {version}\n") };
        format!("---\n{version}kind: {kind}\nmetadata: {{name: thing}}\n")
    };
    let services = document("Service", "v1").repeat(2) + &document("Node", "longhorn.io/v1beta2");
    let fine = format!("{host}\n{services}");
    let (code, value) = run_plan(&["-f", "-"], &fine);
    assert_eq!(code, 0, "{:#}", value["problems"]);
    assert_eq!(value["ignored"], serde_json::json!({"Service": 2, "Node.longhorn.io": 1}));
    for (more, words) in [
        (document("VirtualMachine", ""), "VirtualMachine thing"),
        (document("InfraNodes", "berth.dev/v1alpha1"), "InfraNodes"),
        (document("Pood", "v1"), "there is no such kind in v1"),
        (
            "---\napiVersion: v1\nkind: List\nitems: [{kind: Pod, metadata: {name: lost}}]\n"
                .to_owned(),
            "Pod lost",
        ),
        ("---\napiVersion: v1\nkind: PodList\nitems: 7\n".to_owned(), "items"),
    ] {
        let (code, value) = run_plan(&["-f", "-"], &format!("{fine}{more}"));
        let problems = value["problems"].to_string();
        assert!(code == 1 && problems.contains(words), "{words}: {code}: {problems}");
        // `render` uses the same reader: such an object is not rendered, and is reported.
        let deployment =
            std::fs::read_to_string(repository().join("examples/machines.yaml")).unwrap();
        let output = run_controller(&["render", "-f", "-"], &format!("{deployment}\n{more}"));
        assert_eq!(output.status.code(), Some(2), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words}: {}", stderr(&output));
    }
}

#[test]
fn migration_of_load_balancers_is_printed() {
    let input = "apiVersion: berth.dev/v1alpha1\nkind: TenantCluster\nmetadata: {name: xyz}\nspec: {}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {name: a1, namespace: cluster-xyz}\n\
                 spec: {type: LoadBalancer, selector: {cloud.kubevirt.io/xyz: 'true'}}\n";
    let output = run_controller(&["render", "--migrate", "-f", "-"], input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("Service cluster-xyz/a1, spec.selector:\n  - cloud.kubevirt.io/xyz"),
        "{text}"
    );
    let output = run_controller(&["render", "--migrate", "-o", "json", "-f", "-"], input);
    let patch: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(patch["spec"]["selector"]["cluster.x-k8s.io/cluster-name"], "xyz");
    let output = run_controller(&["render", "--migrate", "-f", "-"], "apiVersion: v1\nkind: Pod\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("has no Service"), "{}", stderr(&output));
}
