//! The control plane's kube-scheduler, with the default configuration or the configuration of `deploy/`.

#![expect(clippy::disallowed_methods, reason = "tests read a file of the repository")]

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::keys::Keys;
use super::{ControlPlane, POD_GROUPS_FLAG, READY_TIMEOUT, Version, free_ports, start_program};
use crate::repository;
use crate::running::Running;
use crate::wait;

impl ControlPlane {
    /// Starts a kube-scheduler, which replaces the running scheduler. A control plane with
    /// [`has_controllers`](super::ControlPlaneOptions::has_controllers) also needs
    /// [`has_kubevirt`](super::ControlPlaneOptions::has_kubevirt), because the controllers would otherwise mark Nodes
    /// without a kubelet as not ready. `configuration` replaces the default configuration, and must contain the path of
    /// the kubeconfig.
    ///
    /// # Errors
    /// Fails if the scheduler cannot be started.
    pub fn start_scheduler(&mut self, configuration: Option<&Path>) -> Result<()> {
        let [port] = free_ports()?;
        let flags = self.scheduler_flags(configuration, port);
        let mut scheduler =
            start_program(&self.assets, self.folder.path(), "kube-scheduler", &flags)?;
        let listens =
            wait::wait_until(
                "kube-scheduler listens",
                READY_TIMEOUT,
                || match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(_) => Ok(true),
                    Err(_) if matches!(scheduler.process.try_wait(), Ok(Some(_))) => Ok(false),
                    Err(error) => Err(error.to_string().into()),
                },
            )?;
        ensure!(listens, "kube-scheduler exited at startup\n{}", self.log_tail("kube-scheduler"));
        self.scheduler = Some(scheduler);
        Ok(())
    }

    /// Starts one of several kube-schedulers; `host` is the host name that the process sees. Needs root. The log is
    /// `kube-scheduler-<host>.log`.
    ///
    /// # Errors
    /// Fails if the scheduler cannot be started.
    pub fn start_scheduler_on_host(&self, host: &str, configuration: &Path) -> Result<Running> {
        self.start_further_scheduler(host, Some(host), Some(configuration))
    }

    /// Starts a kube-scheduler with the default configuration, beside the other schedulers. It places the pods that name
    /// no scheduler. The log is `kube-scheduler-default.log`.
    ///
    /// # Errors
    /// Fails if the scheduler cannot be started.
    pub fn start_default_scheduler(&self) -> Result<Running> {
        self.start_further_scheduler("default", None, None)
    }

    /// Starts a kube-scheduler that replaces no other scheduler. `name` is a part of the name of its log.
    fn start_further_scheduler(
        &self,
        name: &str,
        host: Option<&str>,
        configuration: Option<&Path>,
    ) -> Result<Running> {
        let log = self.folder.path().join(format!("kube-scheduler-{name}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Running::command(&self.assets.join("kube-scheduler"), host);
        let [port] = free_ports()?;
        command.args(self.scheduler_flags(configuration, port));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Running::spawn(command).context("kube-scheduler")
    }

    fn scheduler_flags(&self, configuration: Option<&Path>, port: u16) -> Vec<String> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let mut flags = vec![
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
        ];
        flags.extend(Keys::in_folder(self.folder.path()).serving_flags());
        if self.has_pod_groups {
            flags.push(POD_GROUPS_FLAG.to_owned());
        }
        match configuration {
            Some(file) => flags.push(format!("--config={}", file.display())),
            None => {
                flags.push(format!("--kubeconfig={kubeconfig}"));
                flags.push("--leader-elect=false".to_owned());
                // A scheduler with a configuration file needs no flag: the file closes the port without TLS.
                flags.extend(self.insecure_port_flag());
            }
        }
        flags
    }

    /// Stops the scheduler with SIGKILL, like a crash: its Lease remains until the Lease expires.
    pub fn stop_scheduler(&mut self) {
        self.scheduler = None;
    }

    /// Writes the configuration of `deploy/`, with an extender at this port or without any extender.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or written, or does not contain the extender's default address.
    pub fn scheduler_configuration(&self, extender: Option<u16>) -> Result<PathBuf> {
        let old = self.version < Version(1, 25);
        let component = if old { "scheduler-1.20" } else { "scheduler" };
        let file = repository().join("deploy/components").join(component).join("config.yaml");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut configuration: Value =
            serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        configuration["clientConnection"]["kubeconfig"] = json!(self.kubeconfig());
        if let Some(port) = extender {
            let prefix = &mut configuration["extenders"][0]["urlPrefix"];
            ensure!(
                *prefix == "http://127.0.0.1:10262",
                "{}: extenders[0].urlPrefix: {prefix} is not the default address of the extender",
                file.display()
            );
            *prefix = json!(format!("http://127.0.0.1:{port}"));
        } else if let Some(fields) = configuration.as_object_mut() {
            fields.remove("extenders");
        }
        if old {
            let [port] = free_ports()?;
            for field in ["healthzBindAddress", "metricsBindAddress"] {
                configuration[field] = json!(format!("127.0.0.1:{port}"));
            }
        }
        let name = extender.map_or_else(|| "alone".to_owned(), |port| port.to_string());
        let file = self.folder().join(format!("scheduler-{name}.json"));
        fs::write(&file, configuration.to_string()).with_context(|| file.display().to_string())?;
        Ok(file)
    }
}
