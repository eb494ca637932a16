//! Reads the objects of a view: from the cluster with the permissions of the user, or from files.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use berth_api::Problem;
use berth_runtime::call::CallError;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};
use berth_runtime::client::{Connection, connect_as_user};
use berth_runtime::object_name::is_valid_name;
use berth_runtime::vm_stream::{StreamError, Subresource, VmStream, open};
use berth_views::{Kind, ObjectName, Snapshot};
use futures::future::try_join_all;
use kube::Client;
use kube::api::ApiResource;
use serde_json::Value;

use super::arguments::{ClusterArguments, ScopeArguments};
use super::target::{find_machine, split_name};
use crate::api_resource::api_resource;
use crate::cli::input::for_each_input_object;
use crate::fleet::InputObject;
use crate::list::{is_expired, list_objects, probe_list};

/// Kinds in which machines are found.
const MACHINE_KINDS: [Kind; 3] =
    [Kind::VirtualMachine, Kind::VirtualMachineInstance, Kind::LauncherPod];

/// A client with the permissions of the user, and the namespaces that a command reads.
pub(super) struct Session {
    pub(super) client: Client,
    /// Host name and port of the API server, for messages.
    pub(super) server: String,
    /// Namespace that the user specifies; `None` for all namespaces.
    pub(super) namespace: Option<String>,
    /// Namespace of the context, which is read if all namespaces are not permitted.
    pub(super) default_namespace: String,
}

impl Session {
    /// Connects to the cluster of the arguments.
    pub(super) async fn open(
        cluster: &ClusterArguments,
        namespace: Option<&str>,
    ) -> Result<Self, Failure> {
        // The namespace becomes a part of the path of requests.
        if let Some(invalid) = namespace.filter(|namespace| !is_valid_name(namespace)) {
            let error = anyhow::anyhow!("{invalid:?} is not the name of a namespace");
            return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
        }
        let (kubeconfig, context) = (cluster.kubeconfig.as_deref(), cluster.context.as_deref());
        let connected = connect_as_user(kubeconfig, context, &cluster.impersonation()).await;
        let (connection, default_namespace) =
            connected.map_err(|error| Failure { exit_code: EXIT_BAD_INPUT, error })?;
        let Connection { client, server: (host, port), .. } = connection;
        Ok(Self {
            client,
            server: format!("{host}:{port}"),
            namespace: namespace.map(str::to_owned),
            default_namespace,
        })
    }

    pub(super) async fn open_scope(scope: &ScopeArguments) -> Result<Self, Failure> {
        Self::open(&scope.cluster, scope.namespace()).await
    }

    /// Connects to the cluster, and reads only the namespace of a machine if the user specifies it: `NAMESPACE/NAME`, or
    /// `NAME` and `--namespace`.
    pub(super) async fn open_for_machine(
        scope: &ScopeArguments,
        machine: &str,
    ) -> Result<Self, Failure> {
        let (namespace, _) = split_name(machine);
        Self::open(&scope.cluster, namespace.or_else(|| scope.namespace())).await
    }

    /// Connects to the cluster, and finds the machine with a name, `NAME` or `NAMESPACE/NAME`.
    pub(super) async fn open_with_machine(
        scope: &ScopeArguments,
        machine: &str,
    ) -> Result<(Self, ObjectName), Failure> {
        let session = Self::open_for_machine(scope, machine).await?;
        let snapshot = session.read(&MACHINE_KINDS).await?;
        let machine = find_machine(&snapshot, machine, scope.namespace.as_deref())?;
        Ok((session, machine))
    }

    /// Opens a stream to the VM of a machine.
    pub(super) async fn open_stream(
        &self,
        machine: &ObjectName,
        subresource: Subresource,
    ) -> Result<VmStream, StreamError> {
        open(&self.client, &machine.namespace, &machine.name, subresource).await
    }

    /// Lists objects of these kinds. A kind that the user may not list, or that is not installed, is recorded in the
    /// snapshot.
    pub(super) async fn read(&self, kinds: &[Kind]) -> Result<Snapshot, Failure> {
        let snapshot = RefCell::new(Snapshot::default());
        let lists = kinds.iter().map(|kind| self.read_kind(*kind, &snapshot));
        let refused = try_join_all(lists).await?;
        let mut snapshot = snapshot.into_inner();
        // The lists end in any order; the refused kinds are shown in the order of `kinds`.
        for (kind, refused) in kinds.iter().zip(refused) {
            if let Some((fallback, reason)) = refused {
                snapshot.set_unread(*kind, fallback, reason.message);
            }
        }
        Ok(snapshot)
    }

    /// Lists a kind. Returns the refusal, if there is one, with the namespace whose objects were read instead.
    async fn read_kind(
        &self,
        kind: Kind,
        snapshot: &RefCell<Snapshot>,
    ) -> Result<Option<(Option<&str>, Refusal)>, Failure> {
        let namespace = self.namespace.as_deref().filter(|_| kind.is_namespaced());
        let Err(error) = self.list(kind, namespace, snapshot).await else { return Ok(None) };
        let reason = self.refusal(kind, error)?;
        let fallback = self.fallback_namespace(kind, &reason);
        let fallback = match fallback {
            Some(other) => self.list(kind, Some(other), snapshot).await.ok().and(Some(other)),
            None => None,
        };
        Ok(Some((fallback, reason)))
    }

    /// Returns the namespace of the context if objects in all namespaces are refused, and it may be permitted.
    pub(super) fn fallback_namespace(&self, kind: Kind, refusal: &Refusal) -> Option<&str> {
        let may_be_permitted =
            kind.is_namespaced() && self.namespace.is_none() && refusal.is_forbidden;
        may_be_permitted.then_some(self.default_namespace.as_str())
    }

    /// Lists a kind; a list that expires is repeated once.
    async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        snapshot: &RefCell<Snapshot>,
    ) -> Result<(), CallError> {
        match self.list_once(kind, namespace, snapshot).await {
            Err(error) if is_expired(&error) => {
                snapshot.borrow_mut().clear(kind);
                self.list_once(kind, namespace, snapshot).await
            }
            result => result,
        }
    }

    async fn list_once(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        snapshot: &RefCell<Snapshot>,
    ) -> Result<(), CallError> {
        let visit = |object: Value| snapshot.borrow_mut().add(kind, &object);
        let namespace = namespace.unwrap_or_default();
        let (resource, selector) = (resource(kind), kind.label_selector());
        // A list without some of the objects would be wrong, so there is no limit.
        list_objects(&self.client, &resource, namespace, selector, usize::MAX, visit).await?;
        Ok(())
    }

    /// Checks that the objects of a kind can be listed, with a request for one of them. Returns the reason if not.
    pub(super) async fn probe(
        &self,
        kind: Kind,
        namespace: Option<&str>,
    ) -> Result<Option<Refusal>, Failure> {
        let (resource, selector) = (resource(kind), kind.label_selector());
        let namespace = namespace.unwrap_or_default();
        match probe_list(&self.client, &resource, namespace, selector).await {
            Ok(()) => Ok(None),
            Err(error) => self.refusal(kind, error).map(Some),
        }
    }

    /// Returns the reason why the API server refuses a kind.
    ///
    /// # Errors
    /// Returns an error if the API server does not answer.
    fn refusal(&self, kind: Kind, error: CallError) -> Result<Refusal, Failure> {
        let [group, version, ..] = kind.resource();
        match error.status() {
            Some(status) if status.code == 403 => {
                Ok(Refusal { is_forbidden: true, message: status.message.clone() })
            }
            Some(status) if status.code == 404 => {
                let message = format!("the API server does not serve {group}/{version}");
                Ok(Refusal { is_forbidden: false, message })
            }
            Some(status) if status.code == 401 => Err(self.unreachable(error)),
            Some(status) => Ok(Refusal { is_forbidden: false, message: status.message.clone() }),
            None => Err(self.unreachable(error)),
        }
    }

    fn unreachable(&self, error: CallError) -> Failure {
        let error = anyhow::Error::from(error).context(format!("API server {}", self.server));
        Failure { exit_code: EXIT_UNREACHABLE, error }
    }
}

/// Reason why the API server refuses a list.
pub(super) struct Refusal {
    /// True if the user lacks the permission.
    is_forbidden: bool,
    pub(super) message: String,
}

pub(super) fn resource(kind: Kind) -> ApiResource {
    let [group, version, kind, plural] = kind.resource();
    api_resource(group, version, kind, plural)
}

/// Reads objects from files, folders and standard input. Objects of kinds that no view reads are ignored. Of these `kinds`,
/// those of which the files have no object count as unread: the files may be a part of a cluster.
pub(super) fn read_files(
    paths: &[PathBuf],
    kinds: &[Kind],
) -> Result<(Snapshot, Vec<Problem>), Failure> {
    let (objects, problems) = read_objects(paths)?;
    Ok((snapshot_of(&objects, kinds), problems))
}

/// Reads all objects from files, folders and standard input.
pub(super) fn read_objects(paths: &[PathBuf]) -> Result<(Vec<InputObject>, Vec<Problem>), Failure> {
    let (mut objects, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        objects.extend(for_each_input_object(path, &mut problems, |found| found)?);
    }
    Ok((objects, problems))
}

/// Returns the snapshot of input objects, as [`read_files`] does.
pub(super) fn snapshot_of(objects: &[InputObject], kinds: &[Kind]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut found = BTreeSet::new();
    for InputObject { object, .. } in objects {
        if let Some(kind) = Kind::of(object) {
            found.insert(kind);
            snapshot.add(kind, object);
        }
    }
    for kind in kinds.iter().filter(|kind| !found.contains(*kind)) {
        snapshot.set_unread(*kind, None, "the files have none");
    }
    snapshot
}
