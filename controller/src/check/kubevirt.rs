//! Checks of KubeVirt: its release, its feature gates and its network binding plugins.

use berth_api::NetworkBinding;
use berth_kubevirt_render::launcher::Configuration;
use berth_kubevirt_render::machines::MachineDeployment;
use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::operator::{problem_conditions, with_conditions};
use super::read::Unread;
use super::release::Release;
use super::values::{items, join_names, name, text, texts};
use crate::tenants::binding_plugins::BindingPlugins;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kubevirt.version",
        title: "release of KubeVirt",
        explanation: "FAIL without KubeVirt, and for KubeVirt before 1.9 on Kubernetes 1.36 and later: VMs stay in phase \
            Scheduled there (kubevirt/kubevirt issue 17858). Releases 1.5.3, 1.6.6, 1.8.4 and 1.9.0 are tested, the releases \
            between are expected to work (docs/compatibility.md). WARN for earlier and later releases: the prediction of \
            launcher pods may be wrong.",
        run: check_version,
    },
    Check {
        id: "kubevirt.phase",
        title: "KubeVirt is deployed",
        explanation: "The phase of the KubeVirt object must be Deployed, and its conditions Available True, Progressing and \
            Degraded not True: during an installation, an upgrade or a deletion VMs may not start. During an upgrade only \
            the conditions change. KubeVirt allows only one KubeVirt object.",
        run: check_phase,
    },
    Check {
        id: "kubevirt.cpu-manager",
        title: "feature gate CPUManager",
        explanation: "virt-handler labels the Nodes whose kubelet allocates exclusive CPUs only if the feature gate \
            CPUManager is enabled. Without the label, VMs with dedicated CPUs stay Pending: FAIL if a host has the CPU \
            Manager policy static, otherwise WARN.",
        run: check_cpu_manager,
    },
    Check {
        id: "kubevirt.network-resources",
        title: "requests for tenants' bridges",
        explanation: "With the feature gate ExternalNetResourceInjection, the default since KubeVirt 1.9, KubeVirt \
            does not add the bridge of a tenant's network to the requests of launcher pods. Berth's scheduler \
            nevertheless treats the bridge as requested, but other schedulers may place VMs on hosts without the \
            network. WARN unless network-resources-injector adds the request (docs/networks.md), with failurePolicy \
            Fail. The pods of the injector are not examined.",
        run: check_network_resources,
    },
    Check {
        id: "kubevirt.binding-plugins",
        title: "network binding plugins",
        explanation: "A tenant with the binding Macvtap needs the network binding plugin macvtap in the KubeVirt object; \
            without it, its VMs get no launcher pod. SKIP if no tenant has this binding.",
        run: check_binding_plugins,
    },
    Check {
        id: "kubevirt.hotplug",
        title: "hotpluggable disks of machines",
        explanation: "Disks with hotpluggable: true are attached to running machines only with the feature gate \
            DeclarativeHotplugVolumes (the default since KubeVirt 1.9) and without HotplugVolumes; before 1.9, running guests \
            get the size of an expanded disk only with ExpandDisks. FAIL if disks are not attached, WARN if guests do not \
            get the size. SKIP if no MachineDeployment has such disks.",
        run: check_hotplug,
    },
];

/// Oldest release in the results of docs/compatibility.md.
const OLDEST_TESTED: Release = Release(1, 5, 3);
/// Newest release in the results of docs/compatibility.md.
const NEWEST_TESTED: Release = Release(1, 9, 0);
/// First release of Kubernetes on which KubeVirt before [`OLDEST_FOR_KUBERNETES_1_36`] does not work.
const KUBERNETES_1_36: Release = Release(1, 36, 0);
/// First release of KubeVirt that works on Kubernetes 1.36.
const OLDEST_FOR_KUBERNETES_1_36: Release = Release(1, 9, 0);
/// Feature gate with which virt-handler labels the Nodes whose kubelet allocates exclusive CPUs.
const CPU_MANAGER_GATE: &str = "CPUManager";
/// Part of the webhook's name in the configuration of network-resources-injector.
const INJECTOR_WEBHOOK: &str = "network-resources-injector";
/// JSON pointer to the enabled feature gates of the KubeVirt object.
pub(super) const FEATURE_GATES_POINTER: &str =
    "/spec/configuration/developerConfiguration/featureGates";

/// Returns namespace and name of the KubeVirt object, as evidence shows them.
pub(super) fn object_name(kubevirt: &Value) -> String {
    format!("KubeVirt {}/{}", text(kubevirt, "/metadata/namespace"), name(kubevirt))
}

/// Returns the outcome of a check that needs KubeVirt, if KubeVirt is not installed.
pub(super) fn not_installed() -> Outcome {
    Outcome::skip("KubeVirt is not installed, see kubevirt.version")
}

fn check_version(input: &Input) -> Result<Outcome, Unread> {
    let Some(kubevirt) = input.kubevirt()? else {
        return Ok(Outcome::fail("KubeVirt is not installed")
            .with_evidence("kubevirts", "none")
            .remedy(
                "install KubeVirt: https://kubevirt.io/user-guide/cluster_admin/installation",
            ));
    };
    let version = text(kubevirt, "/status/observedKubeVirtVersion");
    let field = format!("{} status.observedKubeVirtVersion", object_name(kubevirt));
    let is_on_1_36 = input.kubernetes_release().is_some_and(|release| release >= KUBERNETES_1_36);
    let outcome = match version.parse::<Release>() {
        Err(_) => Outcome::warn("the release of KubeVirt is unknown")
            .remedy("wait until KubeVirt is deployed: kubectl get kubevirt -A"),
        Ok(release) if release < OLDEST_FOR_KUBERNETES_1_36 && is_on_1_36 => {
            let message = format!(
                "KubeVirt {release} does not work on Kubernetes 1.36 and later: VMs stay Scheduled"
            );
            Outcome::fail(message)
                .with_evidence("/version", input.kubernetes.as_deref().unwrap_or_default())
                .remedy("upgrade KubeVirt to 1.9 or later (kubevirt/kubevirt issue 17858)")
        }
        Ok(release) if release < OLDEST_TESTED => Outcome::warn(format!(
            "KubeVirt is older than {OLDEST_TESTED}, the oldest tested release"
        ))
        .remedy("upgrade KubeVirt"),
        Ok(release) if release.first_patch() > NEWEST_TESTED => Outcome::warn(format!(
            "KubeVirt is newer than {NEWEST_TESTED}, the newest tested release"
        ))
        .remedy("read docs/compatibility.md of a later release of Berth"),
        Ok(release) => Outcome::pass(release.to_string()),
    };
    Ok(outcome.with_evidence(field, version))
}

fn check_phase(input: &Input) -> Result<Outcome, Unread> {
    let all = input.objects(Kind::KubeVirt)?;
    let Some(kubevirt) = all.first() else { return Ok(not_installed()) };
    if all.len() > 1 {
        let names: Vec<String> = all.iter().map(object_name).collect();
        return Ok(Outcome::warn(format!("{} KubeVirt objects", all.len()))
            .with_evidence("kubevirts", join_names(&names))
            .remedy("delete all but one: kubectl get kubevirt -A"));
    }
    let (phase, object) = (text(kubevirt, "/status/phase"), object_name(kubevirt));
    let problems = problem_conditions(kubevirt);
    let outcome = if phase == "Deployed" && problems.is_empty() {
        Outcome::pass("deployed")
    } else {
        let message = match phase {
            "Deployed" => "KubeVirt is being upgraded, or one of its components does not run",
            _ => "KubeVirt is not deployed completely",
        };
        Outcome::warn(message).remedy(
            "kubectl get kubevirt -A -o yaml shows the conditions; wait, or resolve the problem that they report",
        )
    };
    let outcome = outcome.with_evidence(format!("{object} status.phase"), phase);
    Ok(with_conditions(outcome, &object, &problems))
}

fn check_cpu_manager(input: &Input) -> Result<Outcome, Unread> {
    let Some(kubevirt) = input.kubevirt()? else { return Ok(not_installed()) };
    let gates = texts(kubevirt, FEATURE_GATES_POINTER);
    let field =
        format!("{} spec.configuration.developerConfiguration.featureGates", object_name(kubevirt));
    if gates.contains(&CPU_MANAGER_GATE) {
        return Ok(Outcome::pass("enabled").with_evidence(field, join_names(&gates)));
    }
    // If the InfraNodes could not be read, the check returns WARN instead of FAIL.
    let hosts = input.hosts().unwrap_or_default();
    let exclusive: Vec<&str> = hosts
        .iter()
        .filter(|host| host.has_exclusive_cpus)
        .map(|host| host.name.as_str())
        .collect();
    let outcome = if exclusive.is_empty() {
        Outcome::warn("the feature gate is disabled: VMs with dedicated CPUs would stay Pending")
    } else {
        Outcome::fail("the feature gate is disabled: VMs with dedicated CPUs stay Pending")
            .with_evidence("hosts with CPU Manager policy static", join_names(&exclusive))
    };
    Ok(outcome.with_evidence(field, join_names(&gates)).remedy(format!(
        "add CPUManager to spec.configuration.developerConfiguration.featureGates: kubectl -n {} edit kubevirt {}",
        text(kubevirt, "/metadata/namespace"),
        name(kubevirt)
    )))
}

/// Returns the configuration, or the outcome of a check that needs it and cannot read it.
fn read_configuration(kubevirt: &Value) -> Result<Configuration, Outcome> {
    Configuration::from_kubevirt(kubevirt).map_err(|error| {
        Outcome::skip("the KubeVirt object cannot be interpreted")
            .with_evidence(object_name(kubevirt), error)
    })
}

fn check_network_resources(input: &Input) -> Result<Outcome, Unread> {
    let Some(kubevirt) = input.kubevirt()? else { return Ok(not_installed()) };
    let configuration = match read_configuration(kubevirt) {
        Ok(configuration) => configuration,
        Err(skipped) => return Ok(skipped),
    };
    let gate = "feature gate ExternalNetResourceInjection";
    let version = configuration.version;
    if configuration.requests_network_resources() {
        return Ok(Outcome::pass("KubeVirt adds the requests for bridges")
            .with_evidence(gate, format!("disabled in {version}")));
    }
    let webhooks = input.objects(Kind::MutatingWebhook)?;
    let injectors: Vec<&Value> = webhooks.iter().filter(|one| is_injector(one)).collect();
    if let Some(first) = injectors.first() {
        let required = injectors.iter().find(|one| is_required(one));
        let webhook = required.unwrap_or(first);
        let outcome = if required.is_some() {
            Outcome::pass("network-resources-injector adds the requests for bridges")
        } else {
            Outcome::warn(
                "while network-resources-injector is not available, pods are created without these requests",
            )
            .with_evidence("failurePolicy", "Ignore (whether the injector runs is not checked)")
            .remedy(format!(
                "set failurePolicy: Fail: kubectl edit mutatingwebhookconfiguration {}",
                name(webhook)
            ))
        };
        return Ok(outcome
            .with_evidence(gate, format!("enabled in {version}"))
            .with_evidence("MutatingWebhookConfiguration", name(webhook)));
    }
    Ok(Outcome::warn(
        "nothing adds the requests for bridges: only Berth's scheduler prevents placement on hosts without the network",
    )
    .with_evidence(gate, format!("enabled in {version}"))
    .with_evidence("MutatingWebhookConfiguration of network-resources-injector", "none")
    .remedy(
        "use schedulerName berth-scheduler for all VMs of tenants; or install network-resources-injector; or add \
         ExternalNetResourceInjection to spec.configuration.developerConfiguration.disabledFeatureGates of the KubeVirt object",
    ))
}

/// Returns true for the webhook configuration of network-resources-injector. The name of the object varies, but its
/// webhook always has the same name.
fn is_injector(configuration: &Value) -> bool {
    name(configuration).contains(INJECTOR_WEBHOOK)
        || items(configuration, "/webhooks").any(has_injector_name)
}

/// Returns true if a webhook has the name of network-resources-injector.
fn has_injector_name(webhook: &Value) -> bool {
    text(webhook, "/name").contains(INJECTOR_WEBHOOK)
        || text(webhook, "/clientConfig/service/name").contains(INJECTOR_WEBHOOK)
}

/// Returns true if the API server refuses pods while the injector does not run.
fn is_required(configuration: &Value) -> bool {
    let is_own =
        |one: &&Value| name(configuration).contains(INJECTOR_WEBHOOK) || has_injector_name(one);
    let mut own = items(configuration, "/webhooks").filter(is_own).peekable();
    own.peek().is_some() && own.all(|one| text(one, "/failurePolicy") == "Fail")
}

fn check_binding_plugins(input: &Input) -> Result<Outcome, Unread> {
    let tenants = input.objects(Kind::TenantCluster)?;
    let binding = |tenant: &&Value| text(tenant, "/spec/network/binding") == "Macvtap";
    let names: Vec<&str> = tenants.iter().filter(binding).map(name).collect();
    if names.is_empty() {
        return Ok(Outcome::skip("no tenant has the binding Macvtap"));
    }
    let Some(kubevirt) = input.kubevirt()? else { return Ok(not_installed()) };
    let plugins = BindingPlugins::from_kubevirt(kubevirt);
    let field = format!("{} spec.configuration.network.binding", object_name(kubevirt));
    let outcome = match plugins.check(Some(NetworkBinding::Macvtap)) {
        Ok(()) => Outcome::pass("macvtap is registered").with_evidence(field, "macvtap"),
        Err(_) => Outcome::fail("macvtap is not registered: VMs of tenants with the binding Macvtap get no pod")
            .with_evidence(field, "no macvtap")
            .remedy(
                "register the plugin: https://kubevirt.io/user-guide/network/net_binding_plugins/macvtap; or change \
                 spec.network.binding of the tenants",
            ),
    };
    Ok(outcome.with_evidence("tenants with the binding Macvtap", join_names(&names)))
}

fn check_hotplug(input: &Input) -> Result<Outcome, Unread> {
    let deployments = input.objects(Kind::MachineDeployment)?;
    let users: Vec<String> =
        deployments.iter().filter(|one| has_hotpluggable_disks(one)).map(namespaced_name).collect();
    if users.is_empty() {
        return Ok(Outcome::skip("no MachineDeployment has hotpluggable disks"));
    }
    let Some(kubevirt) = input.kubevirt()? else { return Ok(not_installed()) };
    let configuration = match read_configuration(kubevirt) {
        Ok(configuration) => configuration,
        Err(skipped) => return Ok(skipped),
    };
    let edit = format!(
        "kubectl -n {} edit kubevirt {}, spec.configuration.developerConfiguration",
        text(kubevirt, "/metadata/namespace"),
        name(kubevirt)
    );
    let outcome = match configuration.check_declarative_hotplug() {
        Err(unsupported) => Outcome::fail("disks of running machines are not attached or detached")
            .remedy(format!("{unsupported}: {edit}")),
        Ok(()) if !configuration.expands_disks_online() => {
            Outcome::warn("running guests do not get the size of expanded disks")
                .remedy(format!("add ExpandDisks to featureGates: {edit}"))
        }
        Ok(()) => Outcome::pass("DeclarativeHotplugVolumes is enabled"),
    };
    let gates = texts(kubevirt, FEATURE_GATES_POINTER);
    let field =
        format!("{} spec.configuration.developerConfiguration.featureGates", object_name(kubevirt));
    Ok(outcome
        .with_evidence(field, join_names(&gates))
        .with_evidence("MachineDeployments with hotpluggable disks", join_names(&users)))
}

fn namespaced_name(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), name(object))
}

/// Returns true if the template of a MachineDeployment has hotpluggable disks.
fn has_hotpluggable_disks(object: &Value) -> bool {
    MachineDeployment::read("the cluster", object.clone())
        .is_ok_and(|deployment| deployment.hotplug_revision().is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{host, input_with, run_check, with_objects};

    fn kubevirt(version: &str, developer: Value) -> Input {
        let object = json!({
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": {"developerConfiguration": developer}},
            "status": {"observedKubeVirtVersion": version, "phase": "Deployed"},
        });
        input_with(Kind::KubeVirt, &json!([object]))
    }

    #[test]
    fn release_depends_on_kubernetes() {
        for (kubernetes, version, status) in [
            ("v1.36.2", "v1.9.0", Status::Pass),
            ("v1.36.2", "v1.8.4", Status::Fail),
            ("v1.35.0", "v1.8.4", Status::Pass),
            ("v1.35.0", "v1.5.2", Status::Warn),
            ("v1.35.0", "v0.59.2", Status::Warn),
            ("v1.36.2", "v1.10.0", Status::Warn),
            ("v1.36.2", "", Status::Warn),
            ("unknown", "v1.8.4", Status::Pass),
        ] {
            let kubernetes = Ok(kubernetes.to_owned());
            let input = Input { kubernetes, ..kubevirt(version, json!({})) };
            let outcome = run_check("kubevirt.version", &input);
            assert_eq!(outcome.status, status, "{version}: {outcome:?}");
        }
        let outcome = run_check("kubevirt.version", &input_with(Kind::KubeVirt, &json!([])));
        assert_eq!(outcome.status, Status::Fail);
    }

    #[test]
    fn phase_must_be_deployed() {
        let phase =
            |objects: Value| run_check("kubevirt.phase", &input_with(Kind::KubeVirt, &objects));
        let with_conditions = |phase: &str, conditions: Value| json!({"metadata": {"name": "a"}, "status": {"phase": phase, "conditions": conditions}});
        let one =
            |phase: &str| with_conditions(phase, json!([{"type": "Available", "status": "True"}]));
        assert_eq!(phase(json!([one("Deployed")])).status, Status::Pass);
        assert_eq!(phase(json!([with_conditions("Deployed", json!([]))])).status, Status::Warn);
        // virt-operator does not change the phase during an upgrade.
        let upgrade = json!([
            {"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "True", "reason": "UpdateInProgress", "message": "v1.9.0"},
            {"type": "Degraded", "status": "True", "reason": "UpdateInProgress", "message": "v1.9.0"},
        ]);
        let outcome = phase(json!([with_conditions("Deployed", upgrade)]));
        assert_eq!(outcome.status, Status::Warn);
        let evidence = &outcome.evidence[1];
        assert_eq!(evidence.path, "KubeVirt /a condition Progressing");
        assert_eq!(evidence.value, "True UpdateInProgress: v1.9.0");
        assert_eq!(phase(json!([one("Deploying")])).status, Status::Warn);
        assert_eq!(phase(json!([one("Deployed"), one("Deployed")])).status, Status::Warn);
        assert_eq!(phase(json!([])).status, Status::Skip);
    }

    #[test]
    fn cpu_manager_gate_is_needed_for_exclusive_cpus() {
        let with_host = |input: Input, policy: &str| {
            let status = json!({"capabilities": {"kubelet": {"cpuManagerPolicy": policy}}});
            let input = Input { hosts: Ok(vec![host("rack1-a", &status)]), ..input };
            run_check("kubevirt.cpu-manager", &input).status
        };
        let gates = json!({"featureGates": ["HostDisk", "CPUManager"]});
        assert_eq!(with_host(kubevirt("v1.9.0", gates), "static"), Status::Pass);
        assert_eq!(with_host(kubevirt("v1.9.0", json!({})), "static"), Status::Fail);
        let malformed = json!({"featureGates": {"CPUManager": true}});
        assert_eq!(with_host(kubevirt("v1.9.0", malformed), "none"), Status::Warn);
        let outcome = run_check("kubevirt.cpu-manager", &kubevirt("v1.9.0", json!({})));
        let remedy = outcome.remedy.unwrap_or_default();
        assert!(remedy.ends_with("kubectl -n kubevirt edit kubevirt kubevirt"), "{remedy}");
    }

    #[test]
    fn bridges_are_requested_by_kubevirt_or_by_the_injector() {
        let check = |input: &Input| run_check("kubevirt.network-resources", input);
        assert_eq!(check(&kubevirt("v1.8.4", json!({}))).status, Status::Pass);
        let disabled = json!({"disabledFeatureGates": ["ExternalNetResourceInjection"]});
        assert_eq!(check(&kubevirt("v1.9.0", disabled)).status, Status::Pass);
        let outcome = check(&kubevirt("v1.9.0", json!({})));
        assert_eq!(outcome.status, Status::Warn);
        let remedy = outcome.remedy.unwrap_or_default();
        assert!(remedy.contains("network-resources-injector"), "{remedy}");
        assert!(remedy.contains("disabledFeatureGates"), "{remedy}");
        let with_injector = |policy: &str| {
            let webhook = json!({"name": "network-resources-injector-config.k8s.io", "failurePolicy": policy});
            let webhooks = json!([
                {"metadata": {"name": "other"}, "webhooks": 7},
                {"metadata": {"name": "sriov"}, "webhooks": [webhook, {"name": "other", "failurePolicy": "Ignore"}]},
            ]);
            with_objects(kubevirt("v1.9.0", json!({})), Kind::MutatingWebhook, &webhooks)
        };
        assert_eq!(check(&with_injector("Fail")).status, Status::Pass);
        let outcome = check(&with_injector("Ignore"));
        assert_eq!(outcome.status, Status::Warn);
        assert_eq!(outcome.evidence[0].path, "failurePolicy");
        let remedy = outcome.remedy.unwrap_or_default();
        assert!(remedy.contains("mutatingwebhookconfiguration sriov"), "{remedy}");
        // The default depends on the release, so the check is skipped if the release is unknown.
        assert_eq!(check(&kubevirt("v0.59.0", json!({}))).status, Status::Skip);
    }

    #[test]
    fn hotpluggable_disks_need_a_gate() {
        let deployment = |disk: Value| {
            let machine = json!({"template": {"secondaryDisks": [disk]}});
            let value = json!({"cloudProviderSpec": {"virtualMachine": machine}});
            let template = json!({"spec": {"providerSpec": {"value": value}}});
            json!([{"metadata": {"name": "web", "namespace": "cluster-a"}, "spec": {"template": template}}, 7])
        };
        let check = |version: &str, developer: Value, disk: Value| {
            let input = kubevirt(version, developer);
            let input = with_objects(input, Kind::MachineDeployment, &deployment(disk));
            run_check("kubevirt.hotplug", &input)
        };
        let hot = json!({"name": "data", "size": "1Gi", "hotpluggable": true});
        let cold = json!({"size": "1Gi"});
        assert_eq!(check("v1.9.0", json!({}), cold).status, Status::Skip);
        assert_eq!(check("v1.9.0", json!({}), hot.clone()).status, Status::Pass);
        assert_eq!(check("v1.8.4", json!({}), hot.clone()).status, Status::Fail);
        let declarative = json!({"featureGates": ["DeclarativeHotplugVolumes"]});
        assert_eq!(check("v1.8.4", declarative, hot.clone()).status, Status::Warn);
        let outcome = check("v1.9.0", json!({"featureGates": ["HotplugVolumes"]}), hot);
        assert_eq!(outcome.status, Status::Fail);
        assert!(outcome.remedy.unwrap_or_default().contains("remove it from featureGates"));
        assert_eq!(outcome.evidence[1].value, "cluster-a/web");
    }

    #[test]
    fn macvtap_needs_its_plugin() {
        let tenant = |binding: &str| json!([{"metadata": {"name": "bank"}, "spec": {"network": {"binding": binding}}}]);
        let check = |binding: &str, plugins: Value| {
            let object = json!({"spec": {"configuration": {"network": {"binding": plugins}}}});
            let input = input_with(Kind::KubeVirt, &json!([object]));
            let input = with_objects(input, Kind::TenantCluster, &tenant(binding));
            run_check("kubevirt.binding-plugins", &input).status
        };
        assert_eq!(check("Macvtap", json!({"macvtap": {}})), Status::Pass);
        assert_eq!(check("Macvtap", json!({"passt": {}})), Status::Fail);
        assert_eq!(check("Bridge", json!({})), Status::Skip);
    }
}
