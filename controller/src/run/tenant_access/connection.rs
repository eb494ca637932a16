//! Connection to the API server of one tenant: watches the Secret with the kubeconfig, and the Nodes in the tenant's
//! cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use berth_api::ConditionReason;
use berth_runtime::backoff::add_jitter;
use berth_runtime::call::CallError;
use berth_runtime::certificate::{CertificateSource, Validity};
use berth_runtime::leader_election::LeaderGuard;
use berth_runtime::untrusted::{
    CollectionEvent, CollectionLimits, ConnectionSlots, LargeAnswerPermits, RefusedAddress,
    UntrustedClient, UntrustedError,
};
use berth_runtime::watch::{Informer, watch_object_with_errors};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, ResourceExt as _};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::{Receiver, Sender, channel};

use super::class_watch::watch_classes;
use super::collection_watch::watch_repeatedly;
use super::connections::{Access, Connections};
use super::faults::fault_of;
use super::infra_server::InfraServer;
use super::spec::AccessSpec;
use crate::run::tenants::WatchedKubeconfig;
use crate::tenant_nodes::node::NodeObject;
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::parse_server;
use crate::tenants::kubeconfig_rules::{RefusedKubeconfig, parse_kubeconfig};

/// Delay before the first connection of a tenant; its jitter prevents that the Nodes of all tenants are listed at the
/// same time.
const START_DELAY: Duration = Duration::from_millis(200);
/// Number of 403 answers to reads of a Secret in the tenant's own namespace that are ignored before the fault is
/// reported.
const INITIAL_REFUSALS: u32 = 4;
/// Maximum size of a kubeconfig in bytes, because the kubeconfig stays in memory. A kubeconfig usually has less than 10
/// KiB.
const MAX_KUBECONFIG_LENGTH: usize = 1 << 18;
/// Path of the Nodes in the Kubernetes API.
pub(in crate::run) const NODES_PATH: &str = "/api/v1/nodes";
/// Limits for the list of Nodes. A Node usually has 20 KiB, and a page less than 256 KiB, so that the page is no large
/// answer and need not wait for the large answers of other tenants. The API server permits 1.5 MiB for a Node.
pub(in crate::run) const NODE_LIMITS: CollectionLimits = CollectionLimits {
    page_size: 10,
    max_pages: 1000,
    max_page_length: 1 << 22,
    max_event_length: 1 << 21,
};

/// State that the connections to all tenants share.
pub(super) struct Environment {
    /// Client of the infra cluster.
    pub(super) client: Client,
    pub(super) guard: LeaderGuard,
    pub(super) infra_nodes: Informer<Node>,
    pub(super) infra_server: InfraServer,
    pub(super) connections: Connections,
    pub(super) large_answers: LargeAnswerPermits,
    /// Sender of each observed state of a kubeconfig, to the reconciler of tenants.
    pub(super) kubeconfigs: UnboundedSender<WatchedKubeconfig>,
}

/// The kubeconfig, or the reason why it cannot be read; `None` before the first read.
type KubeconfigRead = Option<Result<Arc<str>, Fault>>;

/// Maintains the connection to a tenant until this future is dropped.
pub(super) async fn run(tenant: String, spec: AccessSpec, environment: Arc<Environment>) {
    let connections = &environment.connections;
    if let Some(refusal) = &spec.refusal {
        let message = format!("{} {refusal}", spec.secret_description());
        let fault = Fault::new(ConditionReason::InvalidKubeconfig, message);
        connections.set_access(&tenant, Err(fault));
        return std::future::pending().await;
    }
    environment.infra_server.wait_until_known().await;
    let (sender, kubeconfig) = channel(None);
    tokio::join!(
        watch_secret(&tenant, &spec, &environment, &sender),
        reconnect_on_new_kubeconfig(&tenant, &spec, &environment, kubeconfig)
    );
}

/// Watches the Secret with the kubeconfig. The watch selects the Secret by name, so a permission for this one Secret is
/// sufficient.
async fn watch_secret(
    tenant: &str,
    spec: &AccessSpec,
    environment: &Environment,
    sender: &Sender<KubeconfigRead>,
) {
    let send = |read: Result<Arc<str>, Fault>| {
        sender.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&read);
            if is_new {
                *known = Some(read);
            }
            is_new
        });
    };
    let secrets: Api<Secret> = Api::namespaced(environment.client.clone(), &spec.secret.namespace);
    let handle = |secret: Option<Secret>| {
        let read = read_entry(secret, spec);
        let server = read.clone().and_then(|text| {
            parse_server(&text).map_err(|error| {
                let message =
                    format!("{}: entry {} {error}", spec.secret_description(), spec.secret.key);
                Fault::new(ConditionReason::InvalidKubeconfig, message)
            })
        });
        let (tenant, secret) = (tenant.to_owned(), spec.secret.clone());
        // The error is ignored: there is no receiver only if the reconciler of tenants has ended.
        drop(environment.kubeconfigs.send(WatchedKubeconfig { tenant, secret, server }));
        send(read);
    };
    let refusals = AtomicU32::new(0);
    let handle_error = |error: &CallError| {
        // Errors other than 403 are temporary, so the last kubeconfig stays in use. In the tenant's own namespace, the
        // first 403 answers are ignored: the controller has just created the RoleBinding, which takes effect a moment
        // later.
        let is_refused = error.status_code() == Some(403);
        let count = refusals.fetch_add(1, Ordering::Relaxed);
        if is_refused && (count >= INITIAL_REFUSALS || !spec.secret.is_own()) {
            let message = format!(
                "{} cannot be read, because an RBAC permission (get, list, watch) is missing (docs/security.md): {error}",
                spec.secret_description()
            );
            send(Err(Fault::new(ConditionReason::InvalidKubeconfig, message)));
        }
    };
    let name = spec.secret.name.clone();
    watch_object_with_errors(secrets, "secrets", name, handle, handle_error).await;
}

fn read_entry(secret: Option<Secret>, spec: &AccessSpec) -> Result<Arc<str>, Fault> {
    let (secret_description, key) = (spec.secret_description(), &spec.secret.key);
    let fault = |message| Fault::new(ConditionReason::InvalidKubeconfig, message);
    let secret = secret.ok_or_else(|| fault(format!("{secret_description} does not exist")))?;
    let data = secret.data.unwrap_or_default();
    let entry =
        data.get(key).ok_or_else(|| fault(format!("{secret_description} has no entry {key}")))?;
    if entry.0.len() > MAX_KUBECONFIG_LENGTH {
        return Err(fault(format!("{secret_description}: entry {key} has more than 256 KiB")));
    }
    Ok(String::from_utf8_lossy(&entry.0).into())
}

/// Connects to the tenant again whenever there is a new kubeconfig. The previous connection ends.
async fn reconnect_on_new_kubeconfig(
    tenant: &str,
    spec: &AccessSpec,
    environment: &Environment,
    mut kubeconfig: Receiver<KubeconfigRead>,
) {
    // All connections of the tenant share these slots, because the previous connection may still occupy some of them.
    let slots = ConnectionSlots::new(environment.large_answers.clone());
    loop {
        let read = kubeconfig.borrow_and_update().clone();
        let session = async {
            match read {
                Some(Ok(text)) => connect(tenant, spec, environment, &text, &slots).await,
                Some(Err(fault)) => environment.connections.set_access(tenant, Err(fault)),
                None => {}
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = session => {}
            changed = kubeconfig.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
    }
}

/// Watches the Nodes and the StorageClasses of a tenant's cluster. Returns only if the kubeconfig is refused; a new
/// attempt then requires a new kubeconfig.
async fn connect(
    tenant: &str,
    spec: &AccessSpec,
    environment: &Environment,
    text: &str,
    slots: &ConnectionSlots,
) {
    let connections = &environment.connections;
    connections.reset(tenant);
    let certificate = certificate_validity(text);
    let client = match create_client(spec, environment, text, slots).await {
        Ok(client) => client,
        Err(fault) => return connections.set_access(tenant, Err(fault)),
    };
    tokio::time::sleep(add_jitter(START_DELAY)).await;
    let access = Access { client, certificate };
    let secret_description = spec.secret_description();
    tokio::join!(
        watch_nodes(tenant, &secret_description, environment, &access),
        watch_classes(tenant, connections, &access.client)
    );
}

/// Watches the Nodes in a tenant's cluster. Never returns.
async fn watch_nodes(
    tenant: &str,
    secret_description: &str,
    environment: &Environment,
    access: &Access,
) {
    let connections = &environment.connections;
    let handle = |event: CollectionEvent<NodeObject>| {
        let is_complete = matches!(event, CollectionEvent::ListCompleted);
        connections.handle_node_event(tenant, event);
        if is_complete {
            if is_infra_cluster(tenant, environment) {
                let refused = RefusedAddress::InfraApiServer;
                return Err(UntrustedError::AddressRefused(refused));
            }
            connections.set_access(tenant, Ok(access.clone()));
        }
        Ok(())
    };
    let report = |error: UntrustedError| {
        tracing::debug!(tenant, %error, "failed to watch the Nodes of a tenant");
        connections
            .set_access(tenant, Err(fault_of(error, secret_description, access.certificate)));
    };
    watch_repeatedly(&access.client, (NODES_PATH, NODE_LIMITS), handle, report).await;
}

async fn create_client(
    spec: &AccessSpec,
    environment: &Environment,
    text: &str,
    slots: &ConnectionSlots,
) -> Result<UntrustedClient, Fault> {
    let (secret_description, key) = (spec.secret_description(), &spec.secret.key);
    let refused = |refusal: RefusedKubeconfig| {
        let reason = match refusal {
            RefusedKubeconfig::UsesMachine | RefusedKubeconfig::Insecure => {
                ConditionReason::KubeconfigRefused
            }
            RefusedKubeconfig::Invalid
            | RefusedKubeconfig::NoCredential
            | RefusedKubeconfig::InvalidToken
            | RefusedKubeconfig::NoServer => ConditionReason::InvalidKubeconfig,
        };
        Fault::new(reason, format!("{secret_description}: entry {key}: {refusal}"))
    };
    let kubeconfig = parse_kubeconfig(text, spec.permits_insecure).map_err(refused)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.map_err(|_| refused(RefusedKubeconfig::Invalid))?;
    let (policy, guard) = (environment.infra_server.policy(), environment.guard.clone());
    UntrustedClient::new(&config, policy, slots.clone(), guard).map_err(|error| {
        Fault::new(
            ConditionReason::InvalidKubeconfig,
            format!("{secret_description}: entry {key}: {error}"),
        )
    })
}

/// Returns true if a Node in the tenant's cluster is a Node of the infra cluster, so that the kubeconfig refers to the
/// infra cluster. Addresses do not suffice for this check: a load balancer in front of the infra API server may have an
/// unknown address, but the UIDs of the Nodes are the same.
fn is_infra_cluster(tenant: &str, environment: &Environment) -> bool {
    let is_infra_node = |name: &str, uid: &str| {
        let node = environment.infra_nodes.get(name);
        node.is_some_and(|node| node.uid().is_some_and(|infra| infra == uid))
    };
    let state = environment.connections.state(tenant);
    state.is_some_and(|state| {
        let state = state.lock();
        state.nodes.nodes().values().any(|node| is_infra_node(&node.name, &node.uid))
    })
}

fn certificate_validity(text: &str) -> Option<Validity> {
    let source = CertificateSource::from_kubeconfig(text).ok()?;
    source.validity(|_| Err("files are not read")).ok().flatten()
}
