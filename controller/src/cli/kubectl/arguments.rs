//! Arguments that several commands have.

use std::path::PathBuf;

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
