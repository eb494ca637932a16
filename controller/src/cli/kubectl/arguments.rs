//! Arguments that several commands have.

use std::path::PathBuf;

use berth_api::TenantCluster;
use berth_runtime::cli::{EXIT_BAD_INPUT, Failure};
use berth_runtime::client::Impersonation;
use clap::{ValueEnum, ValueHint};

/// Arguments that select the cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ClusterArguments {
    /// Kubeconfig; by default KUBECONFIG, or else ~/.kube/config
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default its current context
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Show what this user may see; needs the permission to impersonate the user
    #[arg(long = "as", value_name = "USER")]
    pub(super) as_user: Option<String>,
    /// UID of the user of --as
    #[arg(long, value_name = "UID")]
    pub(super) as_uid: Option<String>,
    /// Group of the user of --as; may be given several times
    #[arg(long, value_name = "GROUP")]
    pub(super) as_group: Vec<String>,
}

impl ClusterArguments {
    pub(super) fn impersonation(&self) -> Impersonation {
        let Self { as_user, as_uid, as_group, .. } = self;
        Impersonation { user: as_user.clone(), uid: as_uid.clone(), groups: as_group.clone() }
    }
}

/// Arguments that select the cluster and a namespace.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ScopeArguments {
    #[command(flatten)]
    pub(super) cluster: ClusterArguments,
    /// Namespace; by default all namespaces or, without this permission, the namespace of the context
    #[arg(long, short, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(long, short = 'A', hide = true, conflicts_with = "namespace")]
    pub(super) all_namespaces: bool,
}

impl ScopeArguments {
    /// Returns the namespace that the user specifies; `None` for all namespaces.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| !self.all_namespaces)
    }
}

/// Arguments of the commands that show objects.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    pub(super) scope: ScopeArguments,
    /// Read the objects from a file or folder (YAML or JSON, as kubectl prints them) instead of a cluster; `-` reads
    /// standard input; may be given several times
    #[arg(long, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    pub(super) from: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Output,
    /// Show the objects again after each change, until Ctrl-C
    #[arg(long, short, conflicts_with = "from")]
    pub(super) watch: bool,
}

impl ListArguments {
    /// Returns the arguments for the namespace of a tenant, unless the user specifies a namespace.
    pub(super) fn for_tenant(&self, tenant: &str) -> Self {
        let mut arguments = self.clone();
        if arguments.scope.namespace.is_none() {
            arguments.scope.namespace = Some(TenantCluster::namespace_of(tenant));
            arguments.scope.all_namespaces = false;
        }
        arguments
    }

    /// Checks that the user specifies no namespace, for a command that needs the objects of all namespaces.
    pub(super) fn check_no_namespace(&self, command: &str) -> Result<(), Failure> {
        if self.scope.namespace.is_none() {
            return Ok(());
        }
        let error =
            anyhow::anyhow!("`{command}` has no --namespace: a host has VMs of all namespaces");
        Err(Failure { exit_code: EXIT_BAD_INPUT, error })
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Table with 80 columns; long texts are shortened
    #[default]
    Table,
    /// Table with more columns; no text is shortened
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}
