//! Simulation of virt-controller: a VirtualMachine gets an instance, and the instance gets a pod with the same
//! requests as KubeVirt's launcher pod. A real scheduler and a real kubelet handle the pod.

use anyhow::{Context as _, Result};
use berth_kubelet_admission::pod::{Container, Resources};
use berth_kubevirt_render::launcher::{ClusterObjects, Configuration, Launcher, Machine, predict};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

use crate::simulated::{create_client, create_runtime};

/// Image in which a launcher pod sleeps; the image is on the hosts.
const POD_IMAGE: &str = "berth.test/busybox:1";

/// Running simulation of virt-controller, stopped on drop.
#[derive(Debug)]
pub struct LauncherSimulation(Option<Runtime>);

impl LauncherSimulation {
    /// Starts the simulation with KubeVirt's configuration.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig, or if the configuration is malformed.
    pub fn start(kubeconfig: &Path, kubevirt: &Value) -> Result<Self> {
        let configuration = Configuration::from_kubevirt(kubevirt)?;
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or an unreachable server, the next iteration tries again.
                if let Err(error) = sync_launchers(&client, &configuration).await {
                    use std::io::Write as _;
                    writeln!(std::io::stderr(), "launchers: {error:#}").unwrap_or_default();
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for LauncherSimulation {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

fn api_resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

async fn list_objects(client: &Client, resource: &ApiResource) -> Result<Vec<Value>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let mut all = Vec::new();
    for object in api.list(&ListParams::default()).await?.items {
        let mut value = serde_json::to_value(object)?;
        value["apiVersion"] = resource.api_version.clone().into();
        value["kind"] = resource.kind.clone().into();
        all.push(value);
    }
    Ok(all)
}

async fn sync_launchers(client: &Client, configuration: &Configuration) -> Result<()> {
    let instances = api_resource("kubevirt.io", "v1", "VirtualMachineInstance");
    let machines =
        list_objects(client, &api_resource("kubevirt.io", "v1", "VirtualMachine")).await?;
    let existing = list_objects(client, &instances).await?;
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&ListParams::default().labels("kubevirt.io=virt-launcher")).await?.items;
    let mut objects = None;
    for machine in machines.iter().filter(|machine| should_run(machine)) {
        let key = |object: &Value| {
            let text =
                |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            (text("namespace"), text("name"))
        };
        let (namespace, name) = key(machine);
        let instance = existing.iter().find(|one| key(one) == (namespace.clone(), name.clone()));
        let uid = instance.and_then(|one| one["metadata"]["uid"].as_str());
        let belongs_to_instance = |pod: &&Pod| {
            uid.is_some() && pod.labels().get("kubevirt.io/created-by").map(String::as_str) == uid
        };
        // An instance whose pod has ended is deleted, and the next iteration creates a new instance for the
        // VirtualMachine.
        if let Some(instance) = instance.filter(|one| has_ended(one)) {
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &instances);
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            deleted.with_context(|| instance["status"]["phase"].to_string())?;
            continue;
        }
        if let Some(instance) = instance {
            let pod = pods.iter().find(belongs_to_instance);
            let had_pod = ["Scheduled", "Running"]
                .into_iter()
                .any(|phase| instance["status"]["phase"] == phase);
            if pod.is_some() || had_pod {
                update_status(client, &instances, instance, pod).await?;
                continue;
            }
        }
        if objects.is_none() {
            objects = Some(list_cluster_objects(client).await?);
        }
        let objects = objects.as_ref().context("the objects of the cluster were not listed")?;
        let mut vm =
            Machine::read(machine)?.context("the listed object is not a VirtualMachine")?;
        vm.uid = uid.map(str::to_owned);
        let launcher = predict(&vm, configuration, objects)?;
        match instance {
            None => {
                let api: Api<DynamicObject> =
                    Api::namespaced_with(client.clone(), &namespace, &instances);
                let body = serde_json::from_value(new_instance(machine, &launcher))?;
                api.create(&PostParams::default(), &body).await?;
            }
            Some(instance) => {
                let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
                let body = serde_json::from_value(launcher_pod(instance, &launcher))?;
                api.create(&PostParams::default(), &body).await?;
            }
        }
    }
    Ok(())
}

fn should_run(machine: &Value) -> bool {
    let spec = &machine["spec"];
    machine["metadata"]["deletionTimestamp"].is_null()
        && spec["runStrategy"] != "Halted"
        && spec["running"] != false
}

fn has_ended(instance: &Value) -> bool {
    ["Failed", "Succeeded"].into_iter().any(|phase| instance["status"]["phase"] == phase)
}

async fn list_cluster_objects(client: &Client) -> Result<ClusterObjects> {
    let mut objects = ClusterObjects::default();
    let group = "instancetype.kubevirt.io";
    for resource in [
        api_resource(group, "v1beta1", "VirtualMachineClusterInstancetype"),
        api_resource(group, "v1beta1", "VirtualMachineClusterPreference"),
        api_resource("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition"),
        api_resource("", "v1", "Namespace"),
    ] {
        let plural = match resource.kind.as_str() {
            "NetworkAttachmentDefinition" => "network-attachment-definitions".to_owned(),
            _ => resource.plural.clone(),
        };
        for object in list_objects(client, &ApiResource { plural, ..resource }).await? {
            objects.add(&object)?;
        }
    }
    Ok(objects)
}

fn owner_reference(object: &Value) -> Value {
    json!([{
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }])
}

/// Returns the instance of a VirtualMachine: the VirtualMachine's template, with the CPUs and the memory of the
/// instance type and of the defaults.
fn new_instance(machine: &Value, launcher: &Launcher) -> Value {
    let template = &machine["spec"]["template"];
    let mut spec = template["spec"].clone();
    let requests = launcher.pod.requests();
    let mut cpu = json!({"sockets": 1, "cores": launcher.vcpus, "threads": 1});
    if launcher.is_dedicated {
        cpu["dedicatedCpuPlacement"] = true.into();
        let has_extra_cpu = requests.cpu_millis / 1000 > u64::from(launcher.vcpus);
        cpu["isolateEmulatorThread"] = has_extra_cpu.into();
    }
    if launcher.numa_passthrough {
        cpu["numa"] = json!({"guestMappingPassthrough": {}});
    }
    let mut memory = json!({"guest": launcher.guest_memory.to_string()});
    if let Some(size) = requests.hugepages.keys().next() {
        memory["hugepages"] = json!({"pageSize": size.to_string()});
    }
    spec["domain"]["cpu"] = cpu;
    spec["domain"]["memory"] = memory;
    spec["schedulerName"] = launcher.scheduler_name.clone().into();
    let annotations = template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": machine["metadata"]["name"], "namespace": machine["metadata"]["namespace"],
            "labels": template["metadata"]["labels"], "annotations": annotations,
            "ownerReferences": owner_reference(machine),
        },
        "spec": spec,
    })
}

/// Returns the launcher pod of an instance.
fn launcher_pod(instance: &Value, launcher: &Launcher) -> Value {
    let name = instance["metadata"]["name"].as_str().unwrap_or_default();
    let container = |one: &Container, disk: u64| {
        json!({
            "name": one.name, "image": POD_IMAGE, "imagePullPolicy": "Never",
            "resources": {"requests": resource_amounts(&one.requests, disk), "limits": resource_amounts(&one.limits, 0)},
        })
    };
    let containers = launcher
        .pod
        .containers
        .iter()
        .enumerate()
        .map(|(at, one)| container(one, if at == 0 { launcher.ephemeral_storage } else { 0 }));
    let first = launcher.pod.init_containers.iter().map(|one| {
        let mut one = container(one, 0);
        one["command"] = json!(["/bin/sh", "-c", ":"]);
        one
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("virt-launcher-{name}-"), "namespace": launcher.namespace,
            "labels": launcher.labels, "annotations": {"kubevirt.io/domain": name},
            "ownerReferences": owner_reference(instance),
        },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false, "enableServiceLinks": false,
            "schedulerName": launcher.scheduler_name, "nodeSelector": launcher.node_selector,
            "affinity": launcher.affinity, "tolerations": launcher.tolerations,
            "topologySpreadConstraints": launcher.spread,
            "initContainers": first.collect::<Vec<_>>(), "containers": containers.collect::<Vec<_>>(),
        },
    })
}

fn resource_amounts(requirements: &Resources, disk: u64) -> Value {
    let mut all = Map::new();
    let mut add = |name: &str, amount: u64, unit: &str| {
        if amount > 0 {
            all.insert(name.to_owned(), format!("{amount}{unit}").into());
        }
    };
    add("cpu", requirements.cpu_millis, "m");
    add("memory", requirements.memory, "");
    add("ephemeral-storage", disk, "");
    for (size, bytes) in &requirements.hugepages {
        add(&format!("hugepages-{size}"), *bytes, "");
    }
    for (name, count) in &requirements.extended {
        add(name, *count, "");
    }
    all.into()
}

/// Updates the status of the instance from its pod. An instance whose pod was deleted has failed.
async fn update_status(
    client: &Client,
    instances: &ApiResource,
    instance: &Value,
    pod: Option<&Pod>,
) -> Result<()> {
    let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
    let spec = pod.and_then(|pod| pod.spec.clone());
    let phase = match (&spec, status.phase.as_deref()) {
        (None, _) | (_, Some("Failed")) => "Failed",
        (_, Some("Running")) => "Running",
        (_, Some("Succeeded")) => "Succeeded",
        (Some(spec), _) if spec.node_name.is_some() => "Scheduled",
        _ => "Scheduling",
    };
    if instance["status"]["phase"] == phase {
        return Ok(());
    }
    let ready = if phase == "Running" { "True" } else { "False" };
    let mut ready = json!({"type": "Ready", "status": ready});
    if let Some(since) = status.start_time {
        ready["lastTransitionTime"] = json!(since);
    }
    // The kind VirtualMachineInstance has no status subresource.
    let mut update = json!({"status": {"phase": phase, "conditions": [ready]}});
    // `nodeName` is omitted without a value: if there was no status before, Kubernetes 1.20 treats an empty value as
    // null, and refuses the update.
    if let Some(node) = spec.and_then(|spec| spec.node_name) {
        update["status"]["nodeName"] = node.into();
    }
    let (namespace, name) = (
        instance["metadata"]["namespace"].as_str().unwrap_or_default(),
        instance["metadata"]["name"].as_str().unwrap_or_default(),
    );
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, instances);
    api.patch(name, &PatchParams::default(), &Patch::Merge(update)).await?;
    Ok(())
}
