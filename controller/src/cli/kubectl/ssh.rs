//! Command `ssh`.

#![expect(
    clippy::disallowed_methods,
    reason = "the user starts ssh; the command does not observe a host"
)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print, print_error};
use berth_runtime::object_name::is_valid_name;
use berth_runtime::vm_stream::{StreamError, Subresource};
use berth_views::{Kind, ObjectName};

use super::arguments::ScopeArguments;
use super::exchange::attach_terminal;
use super::read::Session;
use super::route::{Route, RouteChoice, route};
use super::target::{find_machine, split_name};

/// Kinds that the command needs.
const KINDS: [Kind; 6] = [
    Kind::VirtualMachine,
    Kind::VirtualMachineInstance,
    Kind::LauncherPod,
    Kind::AddressClaim,
    Kind::MachineService,
    Kind::Node,
];

/// Connect to a machine with ssh
///
/// The command finds a way to the machine, and starts ssh. It uses the first of these ways that exists:
///
/// 1. the load balancer or node port of its Service (`exposure.machineAccess` of the tenant)
///
/// 2. for a VM in the pod network: KubeVirt's port forwarding, through the API server
///
/// 3. its address in the tenant's network, which only computers with a route to this network reach
///
/// ssh stores the host key under the name of the machine (HostKeyAlias), because addresses are used again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth ssh web-1 -n cluster-bank -l ubuntu\n  \
    kubectl berth ssh cluster-bank/web-1 -- -i ~/.ssh/lab uptime   further arguments of ssh\n  \
    kubectl berth ssh cluster-bank/web-1 --print                   print the command instead\n  \
    kubectl berth ssh cluster-bank/web-1 --direct                  only the tenant's network")]
pub(in crate::cli) struct Arguments {
    /// Machine: NAME or NAMESPACE/NAME
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,
    /// User on the machine; by default that of ssh
    #[arg(long, short, value_name = "USER")]
    login: Option<String>,
    /// Port of ssh on the machine
    #[arg(long, short, value_name = "PORT", default_value_t = 22)]
    port: u16,
    /// Connect to the address of the machine in the tenant's network
    #[arg(long, conflicts_with = "port_forward")]
    direct: bool,
    /// Connect through the API server with KubeVirt's port forwarding
    #[arg(long)]
    port_forward: bool,
    /// Print the command instead of starting it
    #[arg(long)]
    print: bool,
    /// Connect standard input and output with the port; ssh calls this as its ProxyCommand
    #[arg(long, hide = true)]
    stdio: bool,
    #[command(flatten)]
    scope: ScopeArguments,
    /// Further arguments of ssh
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let choice = match (arguments.direct, arguments.port_forward) {
        (true, _) => RouteChoice::Direct,
        (_, true) => RouteChoice::PortForward,
        _ => RouteChoice::Any,
    };
    let (machine, route) = runtime.block_on(async {
        let session = Session::open_for_machine(&arguments.scope, &arguments.name).await?;
        if arguments.stdio {
            let (_, name) = split_name(&arguments.name);
            let machine = ObjectName::new(session.namespace.clone().unwrap_or_default(), name);
            let stream = session.open_stream(&machine, Subresource::PortForward(arguments.port));
            let stream = stream.await.map_err(StreamError::into_failure)?;
            attach_terminal(stream, None).await.map_err(StreamError::into_failure)?;
            return Ok::<_, Failure>((machine, None));
        }
        let snapshot = session.read(&KINDS).await?;
        let machine =
            find_machine(&snapshot, &arguments.name, arguments.scope.namespace.as_deref())?;
        let found = route(&snapshot, &machine, arguments.port, choice);
        Ok((machine, found))
    })?;
    if arguments.stdio {
        return Ok(ExitCode::SUCCESS);
    }
    let is_valid = is_valid_name(&machine.namespace) && is_valid_name(&machine.name);
    let Some(route) = route.filter(|_| is_valid) else {
        let error = anyhow::anyhow!(
            "no address of {machine} is known: set exposure.machineAccess of its tenant, or use \
             `kubectl berth console {machine}`"
        );
        return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    };
    let command = ssh_arguments(arguments, &machine, &route)?;
    if arguments.print {
        let quoted: Vec<String> = command.iter().map(|word| shell_quoted(word)).collect();
        return print(&format!("ssh {}\n", quoted.join(" ")));
    }
    print_error(&describe(&machine, &route));
    let error = Command::new("ssh").args(&command).exec();
    let error = anyhow::Error::from(error).context("ssh cannot be started: install it");
    Err(Failure { exit_code: EXIT_BAD_INPUT, error })
}

fn describe(machine: &ObjectName, route: &Route) -> String {
    match route {
        Route::LoadBalancer { address, .. } => {
            format!("{machine}: through its load balancer {address}")
        }
        Route::NodePort { address, port } => {
            format!("{machine}: through node port {port} of {address}")
        }
        Route::PortForward { .. } => {
            format!("{machine}: through the API server, with KubeVirt's port forwarding")
        }
        Route::TenantAddress { address, .. } => {
            format!("{machine}: directly to {address}, which needs a route to the tenant's network")
        }
    }
}

/// Returns the arguments of ssh.
fn ssh_arguments(
    arguments: &Arguments,
    machine: &ObjectName,
    route: &Route,
) -> Result<Vec<String>, Failure> {
    let alias = format!("{}.{}", machine.name, machine.namespace);
    let mut command = vec!["-o".to_owned(), format!("HostKeyAlias={alias}")];
    if let Some(login) = &arguments.login {
        command.extend(["-l".to_owned(), login.clone()]);
    }
    let target = match route {
        Route::LoadBalancer { address, port }
        | Route::NodePort { address, port }
        | Route::TenantAddress { address, port } => {
            command.extend(["-p".to_owned(), port.to_string()]);
            address.to_string()
        }
        Route::PortForward { port } => {
            command.extend(["-o".to_owned(), proxy_command(arguments, machine, *port)?]);
            alias
        }
    };
    // ssh also accepts options after the name of the host.
    command.push(target);
    command.extend(arguments.arguments.iter().cloned());
    Ok(command)
}

/// Returns the option ProxyCommand, with which ssh starts this program.
fn proxy_command(
    arguments: &Arguments,
    machine: &ObjectName,
    port: u16,
) -> Result<String, Failure> {
    let program = std::env::current_exe()?.display().to_string();
    let mut words = vec![
        program,
        "ssh".to_owned(),
        "--stdio".to_owned(),
        machine.to_string(),
        format!("--port={port}"),
    ];
    let cluster = &arguments.scope.cluster;
    if let Some(kubeconfig) = &cluster.kubeconfig {
        words.push(format!("--kubeconfig={}", kubeconfig.display()));
    }
    if let Some(context) = &cluster.context {
        words.push(format!("--context={context}"));
    }
    words.extend(cluster.as_user.iter().map(|user| format!("--as={user}")));
    words.extend(cluster.as_uid.iter().map(|uid| format!("--as-uid={uid}")));
    words.extend(cluster.as_group.iter().map(|group| format!("--as-group={group}")));
    let quoted: Vec<String> = words.iter().map(|word| shell_quoted(word)).collect();
    // ssh replaces `%` and a letter.
    Ok(format!("ProxyCommand={}", quoted.join(" ").replace('%', "%%")))
}

/// Quotes a word for a shell, if necessary.
fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shells() {
        assert_eq!(shell_quoted("a-b/c=1"), "a-b/c=1");
        assert_eq!(shell_quoted("a b"), "'a b'");
        assert_eq!(shell_quoted("$(x)'y"), "'$(x)'\\''y'");
        assert_eq!(shell_quoted(""), "''");
    }
}
