//! List of all parsers of the controller that read untrusted bytes, by name.
//!
//! The fuzz targets in `fuzz/` and the test that replays their corpus both use this list; `berth_agent::parsers` is the
//! same list for the agent. A parser in the list must return for any input: it must not panic, hang, or use more memory
//! than a small multiple of the input.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{InfraNode, Quantity};
use berth_runtime::cli::style::Style;
use berth_runtime::leader_election::LeaderGuard;
use berth_runtime::untrusted::{
    CollectionEvent, ConnectionSlots, RefusedAddress, UntrustedClient, parse_watch_line,
};
use k8s_openapi::api::core::v1;
use kube::Config;
use kube::config::KubeConfigOptions;
use serde_json::Value;

use crate::fleet::{self, Fleet};
use crate::plan::{self, PlanOptions};
use crate::tenant_nodes::host_fields::HostFields;
use crate::tenant_nodes::node::NodeObject;
use crate::tenant_nodes::node_store::NodeStore;
use crate::tenant_nodes::plan::plan_tenant;
use crate::tenant_nodes::replicated_taint::parse_recorded;
use crate::tenant_nodes::report::report;
use crate::tenant_nodes::taint_changes::taint_patch;
use crate::tenants::kubeconfig::parse_server;
use crate::tenants::kubeconfig_rules::parse_kubeconfig;
use berth_kubelet_admission::HostState;
use berth_kubelet_admission::pod::Pod;
use berth_kubevirt_render::launcher::{
    ClusterObjects, Configuration, ExistingPod, Machine, predict,
};
use berth_placement::inventory::ReportedHost;

/// A parser and its name.
pub type Parser = (&'static str, fn(&[u8]));

pub const PARSERS: &[Parser] = &[
    ("quantity", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(amount) = text.parse::<Quantity>() {
            assert_eq!(amount.to_string().parse::<Quantity>().ok(), Some(amount), "{text:?}");
            black_box((amount.whole_units_rounded_up(), amount.millis_rounded_up()));
        }
    }),
    ("fleet", |bytes| {
        let mut problems = Vec::new();
        let items = fleet::parse_items("text", &String::from_utf8_lossy(bytes), &mut problems);
        let plan = plan::plan(&Fleet::from_items(items, problems), &PlanOptions::default());
        black_box(plan::render(&plan, Style::Plain, true));
    }),
    ("host_facts", |bytes| parse_host(&parse_values(bytes))),
    ("launcher", |bytes| parse_launcher(&parse_values(bytes))),
    ("tenant_node", parse_tenant_nodes),
    ("kubeconfig", |bytes| parse_tenant_kubeconfig(&String::from_utf8_lossy(bytes))),
];

/// Returns consecutive JSON values, up to the first invalid value.
fn parse_values(bytes: &[u8]) -> Vec<Value> {
    serde_json::Deserializer::from_slice(bytes).into_iter().map_while(Result::ok).collect()
}

/// Reads an InfraNode from the first value, and its Node from the second value if there is one.
fn parse_host(values: &[Value]) {
    let read = |value: &Value| serde_json::from_value::<InfraNode>(value.clone()).ok();
    let Some(infra) = values.first().and_then(read) else { return };
    let node = values.get(1).and_then(|node| serde_json::from_value::<v1::Node>(node.clone()).ok());
    let Ok(facts) = ReportedHost::read(&infra, node.as_ref(), &mut Vec::new()) else { return };
    let mut state = HostState::new(&Arc::clone(&facts.admission));
    for allocation in &facts.allocations {
        state.restore(&allocation.uid, &allocation.to_restored(None));
    }
    black_box((state.free_by_zone().count(), state.check(&Pod::default()).is_ok()));
}

/// Reads machines and, in any order, the objects on which their launcher pods depend.
fn parse_launcher(values: &[Value]) {
    let (mut cluster_objects, mut configuration) =
        (ClusterObjects::default(), Configuration::default());
    for value in values {
        match value.get("kind").and_then(Value::as_str) {
            Some("KubeVirt") => {
                configuration = Configuration::from_kubevirt(value).unwrap_or(configuration);
            }
            Some("Pod") => {
                if let Ok(pod) = serde_json::from_value::<v1::Pod>(value.clone()) {
                    black_box(ExistingPod::read(&pod).is_ok());
                }
            }
            _ => drop(black_box(cluster_objects.add(value))),
        }
    }
    for value in values {
        if let Ok(Some(machine)) = Machine::read(value) {
            let launcher = predict(&machine, &configuration, &cluster_objects);
            black_box(launcher.map(|launcher| launcher.pod.requests()).is_ok());
        }
    }
}

/// Reads the lines of a watch of a tenant's Nodes, and plans the labels and taints of the Nodes.
fn parse_tenant_nodes(bytes: &[u8]) {
    let (mut store, fields) = (NodeStore::default(), host_fields());
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(Some(event)) = parse_watch_line::<NodeObject>(line) else { continue };
        if let CollectionEvent::Applied(node) = &event {
            black_box(taint_patch(&fields.taints, node));
        }
        black_box(store.handle(event, CONTROLLER_FIELD_MANAGER));
    }
    // Assumes a machine with the name of each Node.
    let host = Some("host".to_owned());
    let machines: BTreeMap<_, _> =
        store.nodes().keys().map(|name| (name.clone(), host.clone())).collect();
    let plan = plan_tenant(&machines, store.nodes(), |_| Some(fields.clone()));
    black_box(report(&plan, store.omitted()).is_ok());
}

fn host_fields() -> HostFields {
    let pair = |key: &str| BTreeMap::from([(key.to_owned(), "a".to_owned())]);
    HostFields {
        labels: pair("topology.kubernetes.io/zone"),
        annotations: pair("example.com/power"),
        taints: parse_recorded("example.com/gpu=a100:NoSchedule"),
    }
}

/// Reads the kubeconfig of a tenant, and creates a client, which connects to no server.
fn parse_tenant_kubeconfig(text: &str) {
    black_box((parse_server(text).is_ok(), parse_kubeconfig(text, false).is_ok()));
    let Ok(kubeconfig) = parse_kubeconfig(text, true) else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    runtime.block_on(async {
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        // Without CA certificates in the kubeconfig, the root CA certificates of this machine are read, which is
        // slow.
        if let Some(config) = config.ok().filter(|config| config.root_cert.is_some()) {
            let (slots, guard) = (ConnectionSlots::default(), LeaderGuard::default());
            let policy = Arc::new(RefusedAddress::check);
            black_box(UntrustedClient::new(&config, policy, slots, guard).is_ok());
        }
    });
}
