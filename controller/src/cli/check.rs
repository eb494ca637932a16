//! Command `berth-controller check`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::check::{OutputFormat, name_parser};
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure, print};
use berth_runtime::client::{Connection, connect};
use clap::ValueHint;

use crate::check::{self, Input, ReadError, TENANT_GROUP};
use crate::observe;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Check that an infra cluster is ready for virtual machines",
    long_about = "Checks that an infra cluster is ready for virtual machines of tenants: releases and feature gates of \
        Kubernetes, KubeVirt and CDI, networks, storage, Berth's own objects and programs, and the hosts. Each check has a \
        stable id, a status, the evidence (objects and their values) and, if there is a problem, the remedy.\n\n\
        The command sends only GET requests, with the permissions of the kubeconfig's user; a check that would need \
        further permissions is skipped. It prints no content of Secrets.\n\n\
        PASS  no problem\nWARN  VMs run, but with a disadvantage\n\
        FAIL  VMs do not run, or tenants are not isolated\n\
        SKIP  could not be checked, or does not apply; the message gives the reason",
    after_help = "Examples:\n  \
        berth-controller check                               all checks, with KUBECONFIG\n  \
        berth-controller check --kubeconfig ~/.kube/config   with another kubeconfig\n  \
        berth-controller check kubevirt storage              two groups\n  \
        berth-controller check --tenant bank                 also the objects and the API server of a tenant\n  \
        berth-controller check -o json | jq '.checks[] | select(.status == \"FAIL\")'\n  \
        berth-controller check --list                        explain each check\n\n\
        Exit code 1 if a check failed; warnings do not change the exit code. docs/preflight.md describes the checks."
)]
pub(super) struct Arguments {
    /// Checks or groups of checks to run (default: all; those of a tenant only with --tenant)
    #[arg(value_name = "ID", value_parser = name_parser(&check::all_checks()), hide_possible_values = true)]
    ids: Vec<String>,
    /// Kubeconfig; by default KUBECONFIG, or the ServiceAccount in a pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Also check this TenantCluster
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Explain the checks instead of running them
    #[arg(long)]
    list: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut checks = check::select(&arguments.ids);
    if arguments.list {
        return print(&arguments.output.render_list(&checks)?);
    }
    if arguments.tenant.is_none() {
        let count = checks.len();
        checks.retain(|check| !check.has_name(TENANT_GROUP));
        if !arguments.ids.is_empty() && checks.len() < count {
            let error = anyhow::anyhow!("checks of a tenant: specify --tenant NAME");
            return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
        }
    }
    let findings = check::run(&checks, &read_input(arguments)?);
    print(&arguments.output.render(&findings, |_| String::new())?)?;
    Ok(findings.exit_code())
}

/// Reads the objects that the checks examine.
fn read_input(arguments: &Arguments) -> Result<Input, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = connect(arguments.kubeconfig.as_deref(), ", or set KUBECONFIG", |_| {});
        let Connection { client, server, .. } =
            connection.await.map_err(|error| Failure { exit_code: EXIT_BAD_INPUT, error })?;
        let kubernetes = observe::observe_version(&client).await;
        if let Err(error @ (ReadError::Unreachable(_) | ReadError::Refused(_))) = kubernetes {
            let (host, port) = &server;
            let error = anyhow::Error::from(error).context(format!("API server {host}:{port}"));
            return Err(Failure { exit_code: EXIT_UNREACHABLE, error });
        }
        Ok(observe::observe(&client, &server, kubernetes, arguments.tenant.as_deref()).await)
    })
}
